"""Split a text into sentences, and list the marks that end a sentence.

The marks have Unicode's property Sentence_Terminal (Unicode 15.0); three marks of Khmer are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

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
    bounds = [(each.partition("-")[0], each.rpartition("-")[2]) for each in ranges.split()]
    return frozenset(chr(code) for low, high in bounds for code in range(int(low, 16), int(high, 16) + 1))


TERMINALS = characters(_TERMINAL_RANGES)
"""The marks of all scripts that end a sentence."""

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def _sentence_end(terminals: Iterable[str]) -> re.Pattern:
    marks = f"[{re.escape(''.join(sorted(terminals)))}]"
    # A search begins only at the first of neighbouring marks. Beginning at every mark would take quadratic time.
    return re.compile(rf"{marks}(?<!{marks}{marks}){marks}*+[\"'\u201d\u2019\xbb)\]]*+(?=\s|$)")


# Python searches characters above 16 bits one by one, ten times as slowly; most texts do not contain any.
_SENTENCE_END = _sentence_end(mark for mark in TERMINALS if not _ASTRAL.match(mark))
_ANY_SENTENCE_END = _sentence_end(TERMINALS)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text. Each ends with a terminal mark and closing quotes, before a space or the end.

    Example:
        >>> split_sentences('He said "Stop." Then he left, at 3.50')
        ['He said "Stop."', 'Then he left, at 3.50']
    """
    sentence_end = _SENTENCE_END if text.isascii() or not _ASTRAL.search(text) else _ANY_SENTENCE_END
    ends = [match.end() for match in sentence_end.finditer(text)]
    parts = (text[start:end].strip() for start, end in pairwise([0, *ends, len(text)]))
    return [part for part in parts if part]
