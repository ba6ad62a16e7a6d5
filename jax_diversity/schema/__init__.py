"""The values that stages exchange; this folder imports only `foundation`.

    documents -> tokens -> segments -> sequences -> characteristics -> ordering

Every value is immutable. Arrays are NumPy's; a stage that uses an accelerator copies them to it. Names are imported
when they are first used, so that SciPy is loaded only with `Characteristics`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
