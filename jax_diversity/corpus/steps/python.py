"""The user's own function."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax_diversity.corpus.steps.base import Candidate, Measured, Step, at_least, at_most
from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.errors import UserError, in_one_line, quoted
from jax_diversity.foundation.own_functions import find_function, source_file


@dataclass
class Python(Step):
    """Calls your own function `module:name`, from a module on Python's path or in the working folder.

    The function takes the document, with the text as the previous steps left it. It returns whether to keep the
    document, or a new text, or a dict of fields for its metadata. None keeps the document unchanged. If the function
    raises an exception or `SystemExit`, the rule `raised` removes the document.
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
        try:
            answer = self._call(candidate.finished())
            # Values that cannot be stored are reported here, not when the document is written.
            if isinstance(answer, Mapping):
                json.dumps(dict(answer), allow_nan=False, ensure_ascii=False).encode()
            elif isinstance(answer, str):
                answer.encode()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # user code may raise anything; the document's row records the failure
            candidate.found[f"{type(error).__name__}: {in_one_line(error)}"[:100]] += 1
            yield at_most("raised", 1, 0)
            return
        if isinstance(answer, str):
            candidate.text = answer
        elif isinstance(answer, Mapping):
            candidate.scores.update(answer)
        elif answer is not None:
            if not hasattr(answer, "__bool__"):
                raise UserError(
                    f"Expected {self.function} to return whether to keep the document, a text or a dict, found "
                    f"{quoted(answer)} for {candidate.document.id!r}."
                )
            yield at_least("function", int(bool(answer)), 1)
