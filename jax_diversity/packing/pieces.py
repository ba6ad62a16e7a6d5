"""Pieces of documents, and how they come to stand in sequences: what all packing methods are built from.

Every method decides which pieces of documents follow one another, and from which place on; `fill` cuts them where
a sequence ends. A place counts over all sequences end to end: place p is position p mod L of sequence p // L.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from jax_diversity.schema import Segments

_ROWS = 1 << 20  # pieces cut together; the result does not depend on it


class Pieces(NamedTuple):
    """Runs of documents' tokens, as columns.

    Attributes:
        document_index: the document.
        document_offset: where in it the piece begins.
        length: its tokens; the end token that packing adds is one of them.
        closes: whether its last token is an end token.
    """

    document_index: Int64[np.ndarray, " piece"]
    document_offset: Int64[np.ndarray, " piece"]
    length: Int64[np.ndarray, " piece"]
    closes: Bool[np.ndarray, " piece"]

    def take(self, rows: Int64[np.ndarray, " row"]) -> Pieces:
        """Some of the pieces, in another order."""
        return Pieces(*(column[rows] for column in self))


def whole_documents(
    document_lengths: Int64[np.ndarray, " document"], document_order: Int64[np.ndarray, " chosen"]
) -> Pieces:
    """The documents as they are, each one piece."""
    num = len(document_order)
    nowhere = np.broadcast_to(np.int64(0), num)
    return Pieces(document_order, nowhere, document_lengths[document_order], np.broadcast_to(np.True_, num))


def split_documents(
    document_lengths: Int64[np.ndarray, " document"], document_order: Int64[np.ndarray, " chosen"], size: int
) -> Pieces:
    """The documents cut every `size` tokens from their beginnings on; empty ones vanish."""
    lengths = document_lengths[document_order]
    place, number = expand(-(-lengths // size))
    offset = number * size
    length = np.minimum(lengths[place] - offset, size)
    return Pieces(document_order[place], offset, length, offset + length == lengths[place])


def cut_stream(
    documents: Pieces, start: Int64[np.ndarray, " run"], length: Int64[np.ndarray, " run"]
) -> tuple[Pieces, Int64[np.ndarray, " piece"]]:
    """Runs of the stream that documents make end to end, as pieces of documents.

    Args:
        documents: whole documents.
        start: where in the stream every run begins.
        length: tokens of every run, above zero.

    Returns:
        The runs' pieces, run after run, and which run each belongs to.
    """
    ends = np.cumsum(documents.length)
    # Empty documents share their start with the next one and hold nothing: the search passes over them.
    first = np.searchsorted(ends, start, side="right")
    last = np.searchsorted(ends, start + length - 1, side="right")
    run, place = expand(last - first + 1)
    place += first[run]
    begin = np.maximum((ends - documents.length)[place], start[run])
    end = np.minimum(ends[place], (start + length)[run])
    kept = np.flatnonzero(end > begin)
    place, begin, end = place[kept], begin[kept], end[kept]
    offset = begin - (ends - documents.length)[place]
    closes = end == ends[place]
    return Pieces(documents.document_index[place], offset, end - begin, closes), run[kept]


def expand(counts: Int64[np.ndarray, " row"]) -> tuple[Int64[np.ndarray, " entry"], Int64[np.ndarray, " entry"]]:
    """Every row so many times as it counts, and which time it is.

    Example:
        >>> row, number = expand(np.array([2, 0, 3]))
        >>> row.tolist(), number.tolist()
        ([0, 0, 2, 2, 2], [0, 1, 0, 1, 2])
    """
    row = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(row))
    number -= (np.cumsum(counts) - counts)[row]
    return row, number


def shuffled_rows(counts: Int64[np.ndarray, " group"], order: Int64[np.ndarray, " group"]) -> Int64[np.ndarray, " row"]:
    """Rows that lie group after group, when the groups follow one another in another order.

    Args:
        counts: rows of every group.
        order: the groups in the order wanted.

    Example:
        >>> shuffled_rows(np.array([1, 2, 1]), np.array([2, 1, 0])).tolist()
        [3, 1, 2, 0]
    """
    group, number = expand(counts[order])
    return (np.cumsum(counts) - counts)[order][group] + number


def end_to_end(length: Int64[np.ndarray, " piece"]) -> Int64[np.ndarray, " piece"]:
    """The places of pieces that follow one another without gaps."""
    return np.cumsum(length) - length


def num_filled(num_places: int, sequence_length: int, last_sequence: str) -> int:
    """Sequences that so many places make, the unfilled last one dropped or padded."""
    return num_places // sequence_length if last_sequence == "drop" else -(-num_places // sequence_length)


def fill(pieces: Pieces, start: Int64[np.ndarray, " piece"], num_sequences: int, sequence_length: int) -> Segments:
    """Put every piece at its place and cut it wherever a sequence ends.

    What lies beyond the last sequence is dropped. Pieces are worked through by the million, so that little more
    memory is taken than the result's.

    Args:
        pieces: in the order of their places; empty ones vanish.
        start: the place at which each begins.
        num_sequences: sequences to fill.
        sequence_length: L.
    """
    limit = num_sequences * sequence_length
    chunks = [
        _cut(
            Pieces(*(column[row : row + _ROWS] for column in pieces)),
            start[row : row + _ROWS],
            limit,
            sequence_length,
        )
        for row in range(0, len(start), _ROWS)
    ]
    # A column of a chunk is let go as soon as it is joined: the result is never held twice.
    columns = [
        np.concatenate([np.zeros(0, dtype), *(chunk.pop(0) for chunk in chunks)])
        for dtype in (*[np.int64] * 5, np.bool_)
    ]
    return Segments(*columns, num_sequences=num_sequences, sequence_length=sequence_length)


def _cut(pieces: Pieces, start: Int64[np.ndarray, " piece"], limit: int, sequence_length: int) -> list[np.ndarray]:
    """The columns of some pieces' segments."""
    end = np.minimum(start + pieces.length, limit)
    first = start // sequence_length
    counts = np.where(end > start, (end - 1) // sequence_length - first + 1, 0)
    row, number = expand(counts)
    sequence = number
    sequence += first[row]
    begin = np.maximum(sequence * sequence_length, start[row])
    position = begin - sequence * sequence_length
    within = begin - start[row]
    length = np.minimum(end[row] - begin, sequence_length - position)
    closes = pieces.closes[row] & (within + length == pieces.length[row])
    return [sequence, position, pieces.document_index[row], pieces.document_offset[row] + within, length, closes]


def reorder_sequences(segments: Segments, order: Int64[np.ndarray, " sequence"]) -> Segments:
    """The same sequences, numbered anew: sequence `order[i]` becomes sequence i."""
    counts = np.bincount(segments.sequence_index, minlength=segments.num_sequences)
    rows = shuffled_rows(counts, order)
    columns = {name: getattr(segments, name)[rows] for name in Segments.COLUMNS}
    columns["sequence_index"] = np.repeat(np.arange(len(order)), counts[order])
    return Segments(
        **columns,
        num_sequences=segments.num_sequences,
        sequence_length=segments.sequence_length,
        overlap=segments.overlap,
    )
