"""The exception for a user's mistake, and parts of its message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input or bad settings: one sentence that says what was expected, what was found and what to do.

    The command line prints the sentence and ends with status 2; from Python it is a `ValueError`.
    """


def in_one_line(error: object) -> str:
    """An exception's message without line breaks; the name of its type where it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known name that is nearest to it, if one is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."
