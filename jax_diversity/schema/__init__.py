"""The values that flow through the package; of the package it imports only `foundation`.

    documents -> tokens -> segments -> sequences -> characteristics -> ordering

Every value is immutable. Arrays are NumPy's; a stage that uses an accelerator copies them to it. Names are imported
when first used, so that what needs no characteristics does not load SciPy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
