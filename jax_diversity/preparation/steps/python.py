"""A step that calls a function of the user."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.attempts import DocumentError
from jax_diversity.foundation.own_functions import find_function, source_file
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_least


@dataclass
class Python(Step):
    """Calls your own function `module:name`, from a module on Python's path or in the working folder.

    The argument of the function is the document, with the text after the previous steps. The function returns whether
    to keep the document, or a new text, or a dict of fields for the metadata. None keeps the document unchanged. If the
    function raises an exception or `SystemExit`, or returns another value, the rule `raised` removes the document.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "function": "your function removed it",
    }
    function: str

    def __post_init__(self) -> None:
        self._call = find_function(self.function, "the option 'function'")

    def identity(self) -> str:
        """Return the hash of the module's file, because the decisions may change if the file changes."""
        source = source_file(self.function)
        return "" if source is None else file_hash(source)

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Call the function and apply its answer."""
        answer = self._call(candidate.finished())
        # Values that cannot be stored raise an error here, and not later when the document is written.
        if isinstance(answer, Mapping):
            json.dumps(dict(answer), allow_nan=False, ensure_ascii=False).encode()
            candidate.scores.update(answer)
        elif isinstance(answer, str):
            candidate.text = answer
        elif answer is not None:
            if not hasattr(answer, "__bool__"):
                raise DocumentError(f"{self.function} returned {type(answer).__name__}, not bool, str, dict or None")
            yield at_least("function", int(bool(answer)), 1)
