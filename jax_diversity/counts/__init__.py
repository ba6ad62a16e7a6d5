"""Token counts of sequences, in memory and stored. This folder imports only `foundation` and `schema`.

`TokenCounts` is what orderings, measures and samples read. `Characteristics` has the counts in memory, `StoredCounts`
reads them from a disk in blocks. A block is a `Characteristics` of some consecutive sequences, so a small corpus is one
block. Names are imported at their first use, so that SciPy is loaded only with `Characteristics`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
