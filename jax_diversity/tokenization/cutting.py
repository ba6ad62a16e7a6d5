"""Cuts of long texts: they are encoded in pieces, so that memory does not grow with the longest document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise

PIECE_CHARACTERS = 2**20
BATCH_CHARACTERS = 4 * 2**20

# The beginnings of words: after a line end, or before a blank between other characters.
# Consecutive blanks and line ends are one word to byte-level BPE, and must not be cut.
_LINE_END = re.compile(r"(?<=\S\n)(?=\S)")
_BLANK = re.compile(r"(?<=\S)(?= \S)")


def lines_and_blanks(text: str, size: int | None = None) -> Iterator[str]:
    """Pieces of at most `size` characters (`PIECE_CHARACTERS`), cut at a line end, or else before a single blank."""
    return _pieces(text, size or PIECE_CHARACTERS, (_LINE_END, _BLANK))


def blanks(text: str, size: int) -> Iterator[str]:
    """Pieces of at most `size` characters, cut before a single blank, or else at a line end."""
    return _pieces(text, size, (_BLANK, _LINE_END))


def _pieces(text: str, size: int, places: tuple[re.Pattern[str], ...]) -> Iterator[str]:
    start = 0
    while len(text) - start > size:
        end = _last_cut(text, start, start + size, places)
        yield text[start:end]
        start = end
    yield text[start:] if start else text  # a text that is not cut is not copied


def _last_cut(text: str, start: int, end: int, places: tuple[re.Pattern[str], ...]) -> int:
    """The last place between `start` and `end` of the first kind that occurs; the end if none occurs."""
    # A regular expression searches forwards only. It is applied to a short part before the end first, then to longer
    # parts: the last place of a piece of a million characters is usually among its last hundred.
    for pattern in places:
        window, low = 1024, end
        while low > start + 1:  # a cut at `start` would give an empty piece
            low = max(start + 1, end - window)
            found = [match.start() for match in pattern.finditer(text, low, end)]
            if found:
                return found[-1]
            window *= 8
    return end


def batches(texts: Iterable[str], cut: Callable[[str], Iterable[str]]) -> Iterator[list[tuple[str, bool]]]:
    """Lists of pieces, each of about `BATCH_CHARACTERS` at most; every piece has a flag whether it ends its text."""
    batch: list[tuple[str, bool]] = []
    num_characters = 0
    for text in texts:
        # Pieces are copies: only one piece of a text exists at a time.
        for piece, following in pairwise(chain(cut(text), (None,))):
            assert piece is not None
            if batch and num_characters + len(piece) > BATCH_CHARACTERS:
                yield batch
                batch, num_characters = [], 0
            batch.append((piece, following is None))
            num_characters += len(piece)
    if batch:
        yield batch
