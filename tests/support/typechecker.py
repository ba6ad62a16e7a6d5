"""The type checks of the tests: beartype, with integers accepted where floats are, on every function's first calls.

A check takes longer than many small functions, and a property test calls them thousands of times. So every test checks
the first `CHECKED_CALLS` calls of a function; the next test begins again, so that a test finds the same in any company.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

CHECKED_CALLS = 20

typecheck = beartype(conf=BeartypeConf(is_pep484_tower=True))
# A function inside another function is a new object in every call, with the same code.
_calls: Counter[CodeType] = Counter()
_check_always = jaxtyping.jaxtyped


def check_package(package: str) -> None:
    """Check the calls of a package's functions; call this before the package is imported."""
    jaxtyping.jaxtyped = _check_first_calls  # what the import hook writes above every function and class
    jaxtyping.install_import_hook(package, f"{__name__}.typecheck")


def begin_test() -> None:
    """Check the first calls of all functions again."""
    _calls.clear()


def _check_first_calls(decorated: Any = None, *, typechecker: Any = None) -> Any:
    """Decorate a function or a dataclass, as `jaxtyping.jaxtyped` does."""
    if decorated is None:
        return functools.partial(_check_first_calls, typechecker=typechecker)
    if not inspect.isclass(decorated):
        return _first_calls_of(decorated, typechecker)
    if dataclasses.is_dataclass(decorated) and "__init__" in vars(decorated):
        decorated.__init__ = _first_calls_of(decorated.__init__, typechecker)  # type: ignore[method-assign]
    return decorated


def _first_calls_of(function: Any, typechecker: Any) -> Callable[..., Any]:
    # A function is decorated when it is first called: a process calls few of the functions that it imports.
    code, checked = function.__code__, None

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if _calls[code] >= CHECKED_CALLS:
            return function(*args, **kwargs)
        _calls[code] += 1
        if checked is None:
            checked = _check_always(function, typechecker=typechecker)
        return checked(*args, **kwargs)

    # Named as jaxtyping names its own functions: a warning of the package looks for the user's line above them.
    called.__code__ = called.__code__.replace(co_filename="<@first calls>")
    return called
