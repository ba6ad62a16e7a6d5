"""The exception for a user's mistake, and parts of its message."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable

_LONGEST_SENTENCE, _LONGEST_PART = 1500, 300
_QUOTES = reprlib.Repr()  # shortens long lists while it writes them, without writing them completely first
_QUOTES.maxlevel, _QUOTES.maxstring, _QUOTES.maxother, _QUOTES.maxlong = 3, _LONGEST_PART, _LONGEST_PART, _LONGEST_PART
_QUOTES.maxlist = _QUOTES.maxtuple = _QUOTES.maxdict = _QUOTES.maxset = _QUOTES.maxfrozenset = 6


class UserError(ValueError):
    """Bad input or bad settings: one sentence with the expected value, the found value and advice.

    The command line prints the sentence and ends with status 2; from Python it is a `ValueError`. The middle
    of a very long sentence is removed: the expectation is at the beginning, the advice at the end.
    """

    def __init__(self, sentence: object) -> None:
        super().__init__(shortened(str(sentence), _LONGEST_SENTENCE))


def shortened(text: str, most: int = _LONGEST_PART) -> str:
    """A text's beginning and end, at most `most` characters."""
    tail = most // 3
    return text if len(text) <= most else f"{text[: most - tail - 5]} ... {text[len(text) - tail :]}"


def in_one_line(error: object) -> str:
    """An exception's message without line breaks, at most 300 characters; if it is empty, the exception's type."""
    return shortened(" ".join(str(error).split())) or type(error).__name__


def quoted(value: object) -> str:
    """A value as Python writes it, for a message: one line of at most 300 characters."""
    try:
        return shortened(re.sub(r"\s*\n\s*", " ", _QUOTES.repr(value)))
    except ValueError:  # Python refuses to write integers of thousands of digits
        return f"a huge {type(value).__name__}"


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known names that may be meant, or a full stop if there are none.

    Names that have the given word as one of their words are meant, otherwise the most similar name.

    Example:
        >>> did_you_mean("shuffle", ["balance", "buffer_shuffle", "uniform_shuffle"])
        "; did you mean 'buffer_shuffle' or 'uniform_shuffle'?"
        >>> did_you_mean("balanc", ["balance"]), did_you_mean("x", ["balance"])
        ("; did you mean 'balance'?", '.')
    """
    names = list(known_names)
    near = [word for word in names if name in word.split("_")] or difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
