"""Warnings of the package, which name the line of the user's code that led to them."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_LIBRARIES = {*sys.stdlib_module_names, "jaxtyping", "typeguard"}


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Show a warning at the innermost line that is neither of this package nor of Python's own library.

    Without such a line, for example in a thread, the warning names no line.
    """
    frame = sys._getframe()
    while frame is not None and _is_skipped(frame.f_code.co_filename, frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    if frame is None:
        warnings.warn_explicit(message, category, "jax-diversity", 0)
        return
    # The registry of the module with this line remembers which warnings were shown.
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, registry=registry)


def _is_skipped(file: str, module: str) -> bool:
    # `<@` begins the names of functions that jaxtyping makes to check types.
    return file.startswith((_PACKAGE, "<frozen", "<@")) or module.partition(".")[0] in _LIBRARIES
