"""Call the user's own function."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax_diversity.corpus.steps.base import Candidate, Measured, Step, at_least
from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.attempts import DocumentError
from jax_diversity.foundation.own_functions import find_function, source_file


@dataclass
class Python(Step):
    """Calls your own function `module:name`, from a module on Python's path or in the working folder.

    The function takes the document, with the text as the previous steps left it. It returns whether to keep the
    document, or a new text, or a dict of fields for its metadata. None keeps the document unchanged. If the function
    raises an exception or `SystemExit`, or returns another value, the rule `raised` removes the document.
    """

    function: str

    def __post_init__(self) -> None:
        self._call = find_function(self.function, "the option 'function'")

    def identity(self) -> str:
        """The hash of the module's file: the decisions may change with it."""
        source = source_file(self.function)
        return "" if source is None else file_hash(source)

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
