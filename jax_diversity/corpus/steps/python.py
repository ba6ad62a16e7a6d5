"""The user's own function."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jax_diversity.corpus.steps.base import Candidate, Measured, Step, at_least
from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.attempts import DocumentError
from jax_diversity.foundation.errors import UserError, in_one_line, quoted


@dataclass
class Python(Step):
    """Calls your own function `module:name`, from a module on Python's path or in the working folder.

    The function takes the document, with the text as the previous steps left it. It returns whether to keep the
    document, or a new text, or a dict of fields for its metadata. None keeps the document unchanged. If the function
    raises an exception or returns another value, the rule `raised` removes the document.
    """

    function: str

    def __post_init__(self) -> None:
        self._call = _find(self.function)

    def identity(self) -> str:
        """The hash of the module's file: the decisions may change with it."""
        origin = _spec(self.function.partition(":")[0]).origin
        return file_hash(Path(origin)) if origin and Path(origin).is_file() else ""

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Call the function and apply its answer."""
        answer = self._call(candidate.finished())
        # Values that cannot be stored raise here, not when the document is written.
        if isinstance(answer, Mapping):
            json.dumps(dict(answer), allow_nan=False, ensure_ascii=False).encode()
            candidate.scores.update(answer)
        elif isinstance(answer, str):
            candidate.text = answer
        elif answer is not None:
            if not hasattr(answer, "__bool__"):
                raise DocumentError(f"{self.function} returned {type(answer).__name__}, not bool, str, dict or None")
            yield at_least("function", int(bool(answer)), 1)


@cache
def _find(function: str) -> Callable[[Any], Any]:
    module, _, name = function.partition(":")
    if not module or not name:
        raise UserError(f"Expected the option 'function' to be module:name, found {quoted(function)}.")
    _spec(module)
    try:
        found = getattr(import_module(module), name, None)
    except Exception as error:
        raise UserError(f"Expected a module {module} that can be imported, found: {in_one_line(error)}.") from None
    if not callable(found):
        raise UserError(f"Expected a function {name} in the module {module}, found {quoted(found)}.")
    return found


def _spec(module: str) -> Any:
    if str(Path.cwd()) not in sys.path:  # Python searches the working folder only for scripts
        sys.path.append(str(Path.cwd()))
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise UserError(f"Expected a module {module} on Python's path or in the working folder, found none.")
    return spec
