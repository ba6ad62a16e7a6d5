"""Order language-model training data so that every window of training holds the corpus's own mixture.

>>> import jax_diversity as jd
>>> chars = jd.Characteristics.from_counts({"topic": counts})   # token counts (sequence, group)
>>> ordering = jd.order(chars, method="balance")
>>> jd.measure(chars, ordering, windows=(256,)).window_tv["topic"][256].mean()

The public names are listed in `__init__.pyi` alone. Each is imported when first used, so that importing the package
costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
