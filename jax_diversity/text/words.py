"""Words, sentences and marks of a text, as all steps see them.

The marks are those that CCNet takes for punctuation (Wenzek et al. 2020, LREC, `text_normalizer`), control characters,
and Unicode's sentence terminals (property Sentence_Terminal, Unicode 15.0, and three marks of Khmer).
"""

from __future__ import annotations

import re
import string
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


def _characters(ranges: str) -> frozenset[str]:
    bounds = [(each.partition("-")[0], each.rpartition("-")[2]) for each in ranges.split()]
    return frozenset(chr(code) for low, high in bounds for code in range(int(low, 16), int(high, 16) + 1))


TERMINALS = _characters(_TERMINAL_RANGES)
"""Marks that end a sentence, of all scripts."""
SYMBOLS = (
    TERMINALS
    | frozenset(string.punctuation)
    | _characters("0-8 b-1f 7f-9f ab b4 bb 2013-2014 2019 201c-201e 2026 2236 2501 25ba 3001 3008-300d 3010-3011")
    | _characters("ff05 ff08-ff09 ff0c ff11 ff1a-ff1b ff5e")
)
"""Characters that make no word of their own."""

# An address, or letters and digits with what joins them; points or dashes in a row; one mark. Close to the tokenizer
# that is usual for these rules (spaCy's), so that thresholds mean the same; docs/log.md has the measurements.
_WORD = re.compile(r"https?://\S+|\w+(?:['\u2019./@,:]\w+)*|\.+|-+|[^\w\s]")
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def _sentence_end(terminals: Iterable[str]) -> re.Pattern:
    return re.compile(rf"[{re.escape(''.join(sorted(terminals)))}]+[\"'\u201d\u2019\xbb)\]]*(?=\s|$)")


# Python looks characters beyond the basic plane up one by one, in ten times the time: most texts have none.
_SENTENCE_END = _sentence_end(mark for mark in TERMINALS if not _ASTRAL.match(mark))
_ANY_SENTENCE_END = _sentence_end(TERMINALS)


def split_words(text: str) -> list[str]:
    """The words of a text and its marks, each mark a word of its own.

    Example:
        >>> split_words("It costs 3.50, doesn't it?")
        ['It', 'costs', '3.50', ',', "doesn't", 'it', '?']
    """
    return _WORD.findall(text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where each of the words begins and ends.

    Example:
        >>> word_spans("It is.")
        [(0, 2), (3, 5), (5, 6)]
    """
    return [match.span() for match in _WORD.finditer(text)]


def split_sentences(text: str) -> list[str]:
    """The sentences of a text: each ends with a terminal mark and what closes it, before a space or at the end.

    Example:
        >>> split_sentences('He said "Stop." Then he left, at 3.50')
        ['He said "Stop."', 'Then he left, at 3.50']
    """
    sentence_end = _SENTENCE_END if text.isascii() or not _ASTRAL.search(text) else _ANY_SENTENCE_END
    ends = [match.end() for match in sentence_end.finditer(text)]
    parts = (text[start:end].strip() for start, end in pairwise([0, *ends, len(text)]))
    return [part for part in parts if part]


# Scripts that put no spaces between words: Thai and Lao, Burmese, Khmer, kana, Han.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_UNSPACED_PART = re.compile(f"[{_UNSPACED}]|[^{_UNSPACED}]+")
_ZEROS = str.maketrans("123456789", "0" * 9)


def cut_unspaced(words: list[str]) -> list[str]:
    """The words; of scripts without spaces between words, every character is one.

    Example:
        >>> cut_unspaced(["你好", "world"])
        ['你', '好', 'world']
    """
    whole = "".join(words)
    if whole.isascii() or not _UNSPACED_CHARACTER.search(whole):
        return words
    return [part for word in words for part in _UNSPACED_PART.findall(word)]


def plain_word(word: str) -> str:
    """A word in lower case, each digit as 0: what statistics of words count as one.

    Example:
        >>> plain_word("In1984")
        'in0000'
    """
    return word.lower().translate(_ZEROS)
