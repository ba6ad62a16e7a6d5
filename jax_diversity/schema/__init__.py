"""The values that stages exchange. This folder imports only `foundation`.

    documents -> tokens -> segments -> sequences -> characteristics -> ordering

Every value is immutable. Arrays are NumPy arrays; a stage that uses an accelerator copies them to the accelerator.
Names are imported at their first use, so that SciPy is loaded only with `Characteristics`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
