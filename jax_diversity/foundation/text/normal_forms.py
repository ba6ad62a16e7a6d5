"""Unicode normal forms, in time that grows with the length of a text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Literal
from unicodedata import combining, is_normalized, normalize

import xxhash

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
_SHORT = 30
"""Number of characters. Python's `normalize` sorts a row of marks in time that grows with the square of its length."""
_TWO_MARKS = re.compile(rb"[^\0]{2}")
_SEVERAL = {"\u0f73": "\u0f71\u0f72", "\u0f75": "\u0f71\u0f74", "\u0f81": "\u0f71\u0f80"}
_COMPATIBLE = _SEVERAL | {"\uff9e": "\u3099", "\uff9f": "\u309a"}
"""Characters that are not marks themselves and stand only for marks: in all forms, and in NFKC and NFKD."""
_SPACES = b"\t\n\v\f\r "
_LOWER = bytes(range(256)).lower()


def text_hash(text: str) -> bytes:
    """Return a hash of 128 bits that copies of a text share: without case, spaces and forms of Unicode characters.

    Example:
        >>> text_hash("A copy") == text_hash("a  COPY\\n")
        True
    """
    if not text.isascii():
        # Most texts already have this form. The check takes a third of the time of normalising.
        if not is_normalized("NFKC", text):
            text = normal_form("NFKC", text)
        text = text.casefold().replace("\ufeff", "")  # a byte order mark, which joining files leaves in texts
    # One pass over the bytes converts ASCII letters to lower case and removes spaces.
    return xxhash.xxh3_128_digest(text.encode(errors="surrogatepass").translate(_LOWER, _SPACES))


def normal_form(form: Form, text: str) -> str:
    """Return the result of `unicodedata.normalize`; long rows of combining marks are sorted first.

    Example:
        >>> normal_form("NFKC", "\\N{LATIN SMALL LIGATURE FI}re")
        'fire'
    """
    if len(text) <= _SHORT or text.isascii():
        return normalize(form, text)
    for mark, parts in (_COMPATIBLE if "K" in form else _SEVERAL).items():
        if mark in text:
            text = text.replace(mark, parts)
    # A row of marks that is longer than _SHORT contains two neighbours among every fifteenth characters.
    if _TWO_MARKS.search(bytes(map(combining, text[:: _SHORT // 2]))):
        text = "".join(_sorted(row) if are_marks else "".join(row) for are_marks, row in groupby(text, _is_mark))
    return normalize(form, text)


def _is_mark(character: str) -> bool:
    return combining(character) != 0


def _sorted(marks: Iterable[str]) -> str:
    return "".join(sorted("".join(normalize("NFD", mark) for mark in marks), key=combining))
