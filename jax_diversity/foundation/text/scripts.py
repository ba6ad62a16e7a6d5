"""Character classes for regular expressions: scripts without spaces between words, and marks inside words."""

from __future__ import annotations

import re
from collections.abc import Iterator

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
"""Characters of Thai, Lao, Burmese, Khmer, Japanese and Chinese; these scripts have no spaces between words."""
UNSPACED_MARKS = (
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060"
    "\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd\u3099\u309a"
)
"""Combining marks among these characters, such as vowels and tones of Thai. A mark belongs to the character before."""
NO_SENTENCE_MARKS = "\u0e00-\u0eff"
"""Characters of Thai and Lao. These scripts have no mark for the end of a sentence; a space separates sentences."""
MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06ed\u0711\u0730-\u074a\u07a6-\u07b0\u07eb-\u07f3\u0898-\u089f\u08ca-\u08e1\u08e3-\u08ff\u0900-\u0963"
    "\u0966-\u0dff\u0f71-\u0f84\u0f8d-\u0fbc\u135d-\u135f\u200c\u200d"
)
r"""Combining marks of scripts with spaces, such as Indic scripts, Arabic and Hebrew. `\w` does not match them."""

_UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")
_SIMPLE_BYTES = bytes(byte for byte in range(256) if byte < 0xCC or byte == 0xE2)
"""Bytes of UTF-8 that occur in characters below U+0300, or from U+2000 to U+2FFF (punctuation and symbols)."""


def ranges(characters: str) -> Iterator[tuple[int, int]]:
    """Yield the first and last code of each range of a character class.

    Example:
        >>> list(ranges("a-cx"))
        [(97, 99), (120, 120)]
    """
    for match in re.finditer("(.)(?:-(.))?", characters):
        yield ord(match[1]), ord(match[2] or match[1])


def is_simple(text: str) -> bool:
    """Tell whether a text has only characters of Latin scripts and general marks. Most texts are simple."""
    # Removing bytes takes a quarter of the time of a regular expression.
    return text.isascii() or not text.encode(errors="surrogatepass").translate(None, _SIMPLE_BYTES)


def has_unspaced(text: str) -> bool:
    """Tell whether a text has characters of scripts without spaces.

    Example:
        >>> has_unspaced("tea, 茶")
        True
    """
    return not is_simple(text) and _UNSPACED_CHARACTER.search(text) is not None


def ends_without_mark(line: str) -> bool:
    """Tell whether a line ends with a character of a script that has no marks for the ends of sentences.

    Example:
        >>> ends_without_mark("กินข้าว"), ends_without_mark("a menu")
        (True, False)
    """
    return "\u0e00" <= line[-1:] <= "\u0eff"
