"""Split a text into words and punctuation marks.

The punctuation marks are CCNet's (Wenzek et al. 2020, LREC, `text_normalizer`), and the marks that end sentences.
Control characters are treated like punctuation marks.
"""

from __future__ import annotations

import re
import string

from jax_diversity.foundation.text.scripts import MARKS, UNSPACED, UNSPACED_MARKS, has_unspaced, is_simple
from jax_diversity.foundation.text.sentences import TERMINALS, characters

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
_CHARACTER = rf"[{UNSPACED}][{UNSPACED_MARKS}]*+"
_LETTERS = rf"[^\W{UNSPACED}](?>(?:[^\W{UNSPACED}]++|[{MARKS}]++)*)"
# The same for any text: combining marks belong to their word, and a character of a script without spaces is a word.
_ANY_WORD = re.compile(
    rf"{_CHARACTER}|https?://[^\s{UNSPACED}\u3001-\u303f\uff01-\uff65]++|{_LETTERS}(?>(?:['\u2019./@,:]{_LETTERS})*)"
    r"|\.+|-+|[^\w\s]"
)
_UNSPACED_WORD = re.compile(_CHARACTER)
_SPACED_WORD = re.compile(rf"{_CHARACTER}|[^\s{UNSPACED}]++")
_ZEROS = str.maketrans("123456789", "0" * 9)


def split_words(text: str) -> list[str]:
    """Split a text into words and marks; each mark is a separate word.

    In scripts without spaces between words (Chinese, Japanese, Thai, Lao, Burmese, Khmer), each character is a word,
    with its combining marks.

    Example:
        >>> split_words("It costs 3.50, doesn't it?")
        ['It', 'costs', '3.50', ',', "doesn't", 'it', '?']
        >>> split_words("用Python写。")
        ['用', 'Python', '写', '。']
    """
    return (_WORD if is_simple(text) else _ANY_WORD).findall(text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return begin and end of each word in the text.

    Example:
        >>> word_spans("It is.")
        [(0, 2), (3, 5), (5, 6)]
    """
    return [match.span() for match in (_WORD if is_simple(text) else _ANY_WORD).finditer(text)]


def split_spaced(text: str) -> list[str]:
    """Split a text at spaces; punctuation stays with its word. In scripts without spaces, each character is a word.

    Example:
        >>> split_spaced("It is, 好茶!")
        ['It', 'is,', '好', '茶', '!']
    """
    return _SPACED_WORD.findall(text) if has_unspaced(text) else text.split()


def count_unspaced(text: str) -> int:
    """Count the words of scripts without spaces.

    Example:
        >>> count_unspaced("It is, 好茶!")
        2
    """
    return len(_UNSPACED_WORD.findall(text)) if has_unspaced(text) else 0


def plain_word(word: str) -> str:
    """Return a word in lower case with 0 for each digit; statistics treat words with equal results as one word.

    Example:
        >>> plain_word("In1984")
        'in0000'
    """
    return word.lower().translate(_ZEROS)
