"""Import functions of users, which settings name as `module:function`.

Importing a module runs its code. So a name is accepted only if the user gave it: in the words of the command line, in a
file of settings, or in the settings of a program. The settings in a dataset's manifest may come from elsewhere: names
in them are refused until the user repeats them.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from jax_diversity.foundation.errors import UserError, in_one_line, quoted

_given: ContextVar[set[str] | None] = ContextVar("given", default=None)
"""The texts that the user gave; None: outside `only_given` every name is an argument of the user's own program."""


@contextmanager
def only_given(*values: Any) -> Iterator[None]:
    """Within the block, a name is accepted only if it is among the texts in `values` (plain values, at any depth).

    A block inside another such block changes nothing: the outermost block has the names that the user gave.
    """
    if _given.get() is not None:
        yield
        return
    before = _given.set(set(_texts(values)))
    try:
        yield
    finally:
        _given.reset(before)


def give(*values: Any) -> None:
    """Add the texts in `values` to the texts that the user gave, within a block of `only_given`."""
    if (functions := _given.get()) is not None:
        functions.update(_texts(values))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def find_function(name: str, setting: str) -> Callable[..., Any]:
    """Import the function `module:function` that a setting names.

    Raises:
        UserError: only a manifest names it; the text has another form; there is no such module or function.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute or module.startswith(".") or "/" in module:
        raise UserError(
            f"Expected {setting} to name a module, as in `import`, and a function in it, as `module:name`, found "
            f"{quoted(name)}; add the module's folder to PYTHONPATH, not to the name."
        )
    if (functions := _given.get()) is not None and name not in functions:
        raise UserError(
            f"Expected a function that you named, found {setting}={name} only in a dataset's manifest, which may come "
            "from elsewhere and runs no code; if you trust the function, repeat this setting on the command line or "
            "in the file of --config."
        )
    if str(Path.cwd()) not in sys.path:  # Python searches the working folder only for scripts
        sys.path.append(str(Path.cwd()))
    try:
        own_function = attrgetter(attribute)(import_module(module))
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a module may raise anything, such as the SystemExit of a script without a guard
        raise UserError(
            f"Expected {setting}={name} to name a function in a module, found: {in_one_line(error)}; check that the "
            "module's folder is in PYTHONPATH and that its dependencies are installed."
        ) from error
    if not callable(own_function):
        raise UserError(f"Expected {setting}={name} to name a function, found {quoted(own_function)}.")
    return own_function


def source_file(name: str) -> Path | None:
    """The file of the module of a function that `find_function` found; None if the module has no file."""
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


@contextmanager
def calling(name: str, setting: str, purpose: str) -> Iterator[None]:
    """Turn exceptions of a user's function, including `SystemExit`, into a `UserError` with their place."""
    try:
        yield
    except BaseException as error:
        is_clear = isinstance(error, UserError | OSError | MemoryError | KeyboardInterrupt)
        # A BrokenPipeError means that the output was closed: it ends the command without a message.
        if is_clear and not isinstance(error, BrokenPipeError):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"Expected {setting}={name} to {purpose}, found {type(error).__name__} from {place.filename}:"
            f"{place.lineno}: {in_one_line(error)}; correct the function."
        ) from error
