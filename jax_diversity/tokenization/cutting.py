"""Where texts may be cut: long ones are encoded in pieces, so that memory does not follow the longest document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

PIECE_CHARACTERS = 2**20
BATCH_CHARACTERS = 4 * 2**20

# Where a new word begins in any case: after a line end or before a blank that stands between other characters.
_LINE_END = re.compile(r"(?<=\S\n)(?=\S)")
_BLANK = re.compile(r"(?<=\S)(?= \S)")


def lines_and_blanks(text: str, size: int | None = None) -> Iterator[str]:
    """The text in pieces of at most `size` characters (`PIECE_CHARACTERS`), cut at a line's end where there is one.

    Else before a single blank, else wherever the size ends.
    """
    return _pieces(text, size or PIECE_CHARACTERS, (_LINE_END, _BLANK))


def blanks(text: str, size: int | None = None) -> Iterator[str]:
    """Likewise, but before a single blank where there is one, else at a line's end."""
    return _pieces(text, size or PIECE_CHARACTERS, (_BLANK, _LINE_END))


def _pieces(text: str, size: int, places: tuple[re.Pattern[str], ...]) -> Iterator[str]:
    start = 0
    while len(text) - start > size:
        end = _last_cut(text, start, start + size, places)
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _last_cut(text: str, start: int, end: int, places: tuple[re.Pattern[str], ...]) -> int:
    """Where to cut between `start` and `end`: the last good place, looked for in ever wider parts from the end."""
    for pattern in places:
        window, low = 1024, end
        while low > start + 1:
            low = max(start + 1, end - window)
            found = [match.start() for match in pattern.finditer(text, low, end)]
            if found:
                return found[-1]
            window *= 8
    return end


def batches(
    texts: Iterable[str], cut: Callable[[str], Iterable[str]], size: int | None = None
) -> Iterator[list[tuple[str, bool]]]:
    """Pieces, each with whether it is its text's last, in lists of at most some `size` (`BATCH_CHARACTERS`).

    Args:
        texts: read once.
        cut: gives a text's pieces, at least one.
        size: characters.
    """
    size = size or BATCH_CHARACTERS
    batch: list[tuple[str, bool]] = []
    num_characters = 0
    for text in texts:
        for piece, is_last in _marked(cut(text)):
            if batch and num_characters + len(piece) > size:
                yield batch
                batch, num_characters = [], 0
            batch.append((piece, is_last))
            num_characters += len(piece)
    if batch:
        yield batch


def _marked(pieces: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Every piece, and whether it is the last."""
    former: str | None = None
    for piece in pieces:
        if former is not None:
            yield former, False
        former = piece
    if former is not None:
        yield former, True
