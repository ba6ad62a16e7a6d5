"""Cutting of long texts into pieces, so that memory does not grow with the longest document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise

PIECE_CHARACTERS = 2**20
BATCH_CHARACTERS = 4 * 2**20

# Beginnings of words: after a line end, or before a blank (a space) between other characters. Byte-level BPE treats
# consecutive blanks and line ends as one word, so we must not cut between them.
_LINE_END = re.compile(r"(?<=\S\n)(?=\S)")
_BLANK = re.compile(r"(?<=\S)(?= \S)")


def lines_and_blanks(text: str, size: int | None = None) -> Iterator[str]:
    """Cut a text into pieces of at most `size` characters, at a line end, or else before a single blank."""
    return _pieces(text, size or PIECE_CHARACTERS, (_LINE_END, _BLANK))


def blanks(text: str, size: int) -> Iterator[str]:
    """Cut a text into pieces of at most `size` characters, before a single blank, or else at a line end."""
    return _pieces(text, size, (_BLANK, _LINE_END))


def _pieces(text: str, size: int, places: tuple[re.Pattern[str], ...]) -> Iterator[str]:
    start = 0
    while len(text) - start > size:
        end = _last_cut(text, start, start + size, places)
        yield text[start:end]
        start = end
    yield text[start:] if start else text  # without a cut, the text is not copied


def _last_cut(text: str, start: int, end: int, places: tuple[re.Pattern[str], ...]) -> int:
    """Return the last place between `start` and `end` of the first pattern that occurs; `end` if none occurs."""
    # A regular expression searches only forwards. So we apply it first to a short part before the end, then to longer
    # parts. In a piece of a million characters, the last place is usually among the last hundred characters.
    for pattern in places:
        window, low = 1024, end
        while low > start + 1:  # a cut at `start` would give an empty piece
            low = max(start + 1, end - window)
            starts = [match.start() for match in pattern.finditer(text, low, end)]
            if starts:
                return starts[-1]
            window *= 8
    return end


def batches(texts: Iterable[str], cut: Callable[[str], Iterable[str]]) -> Iterator[list[tuple[str, bool]]]:
    """Yield lists of pieces with at most about `BATCH_CHARACTERS` in all; a flag marks the last piece of a text."""
    batch: list[tuple[str, bool]] = []
    num_characters = 0
    for text in texts:
        # Pieces are copies, so we make one piece at a time.
        for piece, following in pairwise(chain(cut(text), (None,))):
            assert piece is not None
            if batch and num_characters + len(piece) > BATCH_CHARACTERS:
                yield batch
                batch, num_characters = [], 0
            batch.append((piece, following is None))
            num_characters += len(piece)
    if batch:
        yield batch
