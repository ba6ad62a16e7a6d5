"""Split a text into words and punctuation marks.

The punctuation marks are CCNet's (Wenzek et al. 2020, LREC, `text_normalizer`), and the marks that end sentences.
Control characters are treated like punctuation marks.
"""

from __future__ import annotations

import re
import string

from jax_diversity.text.scripts import UNSPACED
from jax_diversity.text.sentences import TERMINALS, characters

SYMBOLS = (
    TERMINALS
    | frozenset(string.punctuation)
    | characters("0-8 b-1f 7f-9f ab b4 bb 2013-2014 2019 201c-201e 2026 2236 2501 25ba 3001 3008-300d 3010-3011")
    | characters("ff05 ff08-ff09 ff0c ff11 ff1a-ff1b ff5e")
)
"""Punctuation marks and control characters."""

# A word is a web address, letters and digits with joining marks, a row of full stops or dashes, or one mark. This is
# close to spaCy's tokenizer, for which the published thresholds were chosen; docs/log.md has the measurements.
_WORD = re.compile(r"https?://\S+|\w+(?:['\u2019./@,:]\w+)*|\.+|-+|[^\w\s]")
_UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")
_UNSPACED_PART = re.compile(f"[{UNSPACED}]|[^{UNSPACED}]+")
_ZEROS = str.maketrans("123456789", "0" * 9)


def split_words(text: str) -> list[str]:
    """Split a text into words and marks; each mark is a separate word.

    Example:
        >>> split_words("It costs 3.50, doesn't it?")
        ['It', 'costs', '3.50', ',', "doesn't", 'it', '?']
    """
    return _WORD.findall(text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return begin and end of each word in the text.

    Example:
        >>> word_spans("It is.")
        [(0, 2), (3, 5), (5, 6)]
    """
    return [match.span() for match in _WORD.finditer(text)]


def cut_unspaced(words: list[str]) -> list[str]:
    """Split words of scripts without spaces into characters; other words stay whole.

    Example:
        >>> cut_unspaced(["你好", "world"])
        ['你', '好', 'world']
    """
    whole = "".join(words)
    if whole.isascii() or not _UNSPACED_CHARACTER.search(whole):
        return words
    return [part for word in words for part in _UNSPACED_PART.findall(word)]


def plain_word(word: str) -> str:
    """Return a word in lower case with 0 for each digit; statistics treat words with equal results as one word.

    Example:
        >>> plain_word("In1984")
        'in0000'
    """
    return word.lower().translate(_ZEROS)
