"""Split a text into sentences, and list the marks that end a sentence.

The marks have Unicode's property Sentence_Terminal (Unicode 15.0); three marks of Khmer are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from jax_diversity.foundation.text.scripts import NO_SENTENCE_MARKS

_TERMINAL_RANGES = (
    "21 2e 3f 589 61d-61f 6d4 700-702 7f9 837 839 83d-83e 964-965 104a-104b 1362 1367-1368 166e 1735-1736 17d4-17d6 "
    "17d9-17da 1803 1809 1944-1945 1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e 1c3b-1c3c 1c7e-1c7f 203c-203d 2047-2049 "
    "2e2e 2e3c 2e53-2e54 3002 a4ff a60e-a60f a6f3 a6f7 a876-a877 a8ce-a8cf a92f a9c8-a9c9 aa5d-aa5f aaf0-aaf1 abeb "
    "fe52 fe56-fe57 ff01 ff0e ff1f ff61 10a56-10a57 10f55-10f59 10f86-10f89 11047-11048 110be-110c1 11141-11143 "
    "111c5-111c6 111cd 111de-111df 11238-11239 1123b-1123c 112a9 1144b-1144c 115c2-115c3 115c9-115d7 11641-11642 "
    "1173c-1173e 11944 11946 11a42-11a43 11a9b-11a9c 11c41-11c42 11ef7-11ef8 11f43-11f44 16a6e-16a6f 16af5 "
    "16b37-16b38 16b44 16e98 1bc9f 1da88"
)


def characters(ranges: str) -> frozenset[str]:
    """The characters in ranges of hexadecimal code points, such as `0-8 7f`."""
    bounds = [(bound.partition("-")[0], bound.rpartition("-")[2]) for bound in ranges.split()]
    return frozenset(chr(code) for low, high in bounds for code in range(int(low, 16), int(high, 16) + 1))


TERMINALS = characters(_TERMINAL_RANGES)
"""The marks of all scripts that end a sentence."""

_BEFORE_SPACE = characters("21 2e 3f 203c-203d 2047-2049 2e2e 2e3c 2e53-2e54 fe52 fe56-fe57")
"""Marks of Latin scripts: they also occur within numbers and names, so a sentence ends only before a space."""
FREE_TERMINALS = TERMINALS - _BEFORE_SPACE
"""Marks that end a sentence also without a space after them, such as the marks of Chinese, Hindi and Burmese."""
CLOSERS = "\"'\u201d\u2019\xbb)]\u300d\u300f\uff09\u3011\u300b\u3009\u3015\uff3d\uff63"
"""Quotes and brackets after the end of a sentence."""

_SPECIAL = re.compile(f"[{NO_SENTENCE_MARKS}\U00010000-\U0010ffff]")


def _sentence_end(terminals: Iterable[str], others: str = "") -> re.Pattern:
    def one_of(marks: Iterable[str]) -> str:
        return f"[{re.escape(''.join(sorted(marks)))}]"

    terminals = frozenset(terminals)
    marks, free, closers = one_of(terminals), one_of(terminals & FREE_TERMINALS), one_of(CLOSERS)
    # A search begins only at the first of neighbouring marks. Beginning at every mark would take quadratic time. The
    # fullwidth full stop is also the point of fullwidth numbers.
    return re.compile(
        rf"{marks}(?<!{marks}{marks}){marks}*+(?:(?<={free})(?<!\uff0e(?=[0-9A-Za-z\uff10-\uff5a])){closers}*+"
        rf"|{closers}*+(?=\s|$)){others}"
    )


# Python searches characters above 16 bits one by one, ten times as slowly; most texts do not contain any. In Thai and
# Lao, the repetition mark has spaces around it within a sentence.
_SENTENCE_END = _sentence_end(mark for mark in TERMINALS if mark < "\U00010000")
_ANY_SENTENCE_END = _sentence_end(
    TERMINALS, rf"|[{NO_SENTENCE_MARKS}](?<![\u0e46\u0ec6])(?=\s++[{NO_SENTENCE_MARKS}](?<![\u0e46\u0ec6]))"
)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text. Each ends with a terminal mark and closing quotes.

    A mark of Latin scripts ends a sentence only before a space or the end of the text. Thai and Lao have no such marks:
    there, a space between two letters separates sentences.

    Example:
        >>> split_sentences('He said "Stop." Then he left, at 3.50')
        ['He said "Stop."', 'Then he left, at 3.50']
        >>> split_sentences("他说：“好。”走了！")
        ['他说：“好。”', '走了！']
    """
    parts = (text[start:end].strip() for start, end in pairwise([0, *_ends(text), len(text)]))
    return [part for part in parts if part]


def count_sentences(text: str) -> int:
    """Return the number of sentences that `split_sentences` returns.

    Example:
        >>> count_sentences('He said "Stop." Then he left, at 3.50')
        2
    """
    ends = _ends(text)
    return len(ends) + bool(text[ends[-1] if ends else 0 :].strip())


def _ends(text: str) -> list[int]:
    """Return where sentences end; the text before each end, and after the end before it, is not blank."""
    sentence_end = _SENTENCE_END if text.isascii() or not _SPECIAL.search(text) else _ANY_SENTENCE_END
    return [match.end() for match in sentence_end.finditer(text)]
