"""Pieces of documents, and functions that put pieces into sequences: the common basis of the packing methods.

A method decides which pieces of documents follow one another and at which *place* each piece begins. `fill` cuts the
pieces where a sequence ends. Places are numbered across all sequences: place p is position p mod L of sequence p // L.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Integer

from jax_diversity.foundation.checks import as_whole_number, check_one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments

_EXCHANGES = 32  # rounds of exchanges of atoms
ROWS = 1 << 20
"""Pieces that are cut together, and documents that are packed together; the result does not depend on it."""


class Pieces(NamedTuple):
    """Runs of documents' tokens, as columns; `length` includes an end token that packing inserts."""

    document_index: Int64[np.ndarray, " piece"]
    document_offset: Int64[np.ndarray, " piece"]
    length: Int64[np.ndarray, " piece"]
    closes: Bool[np.ndarray, " piece"]  # the last token is an end token

    def take(self, rows: Int64[np.ndarray, " row"] | slice) -> Pieces:
        """Return the pieces with the given row numbers."""
        return Pieces(*(column[rows] for column in self))


def as_atom_size(atom_size: Any, sequence_length: int, least: int = 1) -> int:
    """Check an atom's number of tokens against the sequence length."""
    size = as_whole_number("atom_size", atom_size, least)
    if size % sequence_length and sequence_length % size:
        raise UserError(
            f"Expected an atom_size that divides the sequence length {sequence_length} or is a multiple of it, "
            f"found {size}."
        )
    return size


def atom_order(num_atoms: int, seed: int) -> Int64[np.ndarray, " atom"]:
    """Return a random order of the atoms; it depends only on the seed and the number of atoms."""
    return np.random.default_rng(seed).permutation(num_atoms)


def apart_atoms(
    order: Int64[np.ndarray, " atom"],
    per_sequence: int,
    atom: Int64[np.ndarray, " piece"],
    document: Int64[np.ndarray, " piece"],
    seed: int,
) -> Int64[np.ndarray, " atom"]:
    """Exchange shuffled atoms until a sequence has at most one atom of a document, if possible.

    Args:
        order: the atoms in their order.
        per_sequence: atoms per sequence.
        atom: for each piece of the documents that appear several times, the atom that contains the piece.
        document: the document of each of these pieces.
        seed: the seed of the exchanges.
    """
    order, rng = order.copy(), np.random.default_rng([seed, 1])
    for _ in range(_EXCHANGES):
        place = np.argsort(order)
        sequence = place[atom] // per_sequence
        rows = np.lexsort((place[atom], sequence, document))
        same = (np.diff(document[rows]) == 0) & (np.diff(sequence[rows]) == 0) & (np.diff(atom[rows]) != 0)
        moved = np.unique(place[atom[rows[1:][same]]])
        if not len(moved):
            break
        exchanged = rng.permutation(np.setdiff1d(np.arange(len(order)), moved))[: len(moved)]
        moved = moved[: len(exchanged)]
        order[moved], order[exchanged] = order[exchanged], order[moved]
    return order


def whole_documents(
    document_lengths: Int64[np.ndarray, " document"], document_order: Int64[np.ndarray, " chosen"]
) -> Pieces:
    """Return the documents, each as one piece."""
    # Columns with only one value are broadcast, so they need no memory.
    zeros, ends = np.broadcast_to(np.int64(0), len(document_order)), np.broadcast_to(np.True_, len(document_order))
    return Pieces(document_order, zeros, document_lengths[document_order], ends)


def document_blocks(
    document_order: Int64[np.ndarray, " chosen"], *, in_one: bool = False
) -> list[Int64[np.ndarray, " block"]]:
    """Divide the documents into blocks of `ROWS`, or make one block of all; there is always at least one block."""
    num_documents = max(len(document_order), 1)
    size = num_documents if in_one else ROWS
    return [document_order[first : first + size] for first in range(0, num_documents, size)]


def split_documents(
    document_lengths: Int64[np.ndarray, " document"], document_order: Int64[np.ndarray, " chosen"], size: int
) -> Pieces:
    """Cut each document every `size` tokens from its beginning; empty documents are left out."""
    lengths = document_lengths[document_order]
    place, number = expand(-(-lengths // size))
    offset = number * size
    length = np.minimum(lengths[place] - offset, size)
    return Pieces(document_order[place], offset, length, offset + length == lengths[place])


def cut_stream(
    documents: Pieces, start: Int64[np.ndarray, " run"], length: Int64[np.ndarray, " run"]
) -> tuple[Pieces, Int64[np.ndarray, " piece"]]:
    """Return the pieces of non-empty runs of the stream of all documents, and the run of every piece."""
    ends = np.cumsum(documents.length)
    begins = ends - documents.length
    # An empty document ends where the document before it ends, so that the search from the right skips it.
    first = np.searchsorted(ends, start, side="right")
    last = np.searchsorted(ends, start + length - 1, side="right")
    run, place = expand(last - first + 1)
    place += first[run]
    begin = np.maximum(begins[place], start[run])
    end = np.minimum(ends[place], (start + length)[run])
    kept = np.flatnonzero(end > begin)  # empty documents within a run
    place, begin, end = place[kept], begin[kept], end[kept]
    pieces = Pieces(documents.document_index[place], begin - begins[place], end - begin, end == ends[place])
    return pieces, run[kept]


def expand(counts: Int64[np.ndarray, " row"]) -> tuple[Int64[np.ndarray, " entry"], Int64[np.ndarray, " entry"]]:
    """Repeat each row as often as its count, and number the repetitions: [2, 0, 1] gives [0, 0, 2] and [0, 1, 0]."""
    row = np.repeat(np.arange(len(counts)), counts)
    # We subtract in place, here and below: these columns are the largest temporary arrays of a packing.
    number = np.arange(len(row))
    number -= end_to_end(counts)[row]
    return row, number


def repeated(documents: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " document"]:
    """Return the documents that occur in several rows, ascending."""
    distinct, counts = np.unique(documents, return_counts=True)
    return distinct[counts > 1]


def occurrences(values: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
    """Count for each row how often its value occurs in earlier rows: [3, 5, 3, 3] gives [0, 0, 1, 2]."""
    by_value = np.argsort(values, kind="stable")
    ordered = values[by_value]
    before = np.empty(len(values), np.int64)
    before[by_value] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return before


def end_to_end(length: Int64[np.ndarray, " piece"]) -> Int64[np.ndarray, " piece"]:
    """Return the places of pieces that follow one another without gaps."""
    return np.cumsum(length) - length


def run_starts(values: Integer[np.ndarray, " row"]) -> Int64[np.ndarray, " run"]:
    """Return the indices at which runs of equal values begin; values are >= 0."""
    return np.flatnonzero(np.diff(values, prepend=-1))


def num_filled(num_places: int, sequence_length: int, last_sequence: str) -> int:
    """Check `last_sequence` and return the number of sequences for `num_places` places."""
    check_one_of("last_sequence", last_sequence, ("drop", "pad"))
    return num_places // sequence_length if last_sequence == "drop" else -(-num_places // sequence_length)


def fill(pieces: Pieces, start: Int64[np.ndarray, " piece"], num_sequences: int, sequence_length: int) -> Segments:
    """Put each piece at its place; pieces are sorted by place, and tokens after the last sequence are dropped."""
    # We cut a million pieces at a time: the temporary columns of `_cut` are several times as large as the result.
    blocks = []
    for row in range(0, len(start), ROWS):
        rows = slice(row, row + ROWS)
        blocks.append(_cut(pieces.take(rows), start[rows], num_sequences * sequence_length, sequence_length))
    return joined_segments(blocks, num_sequences, sequence_length)


def joined_segments(
    blocks: list[list[np.ndarray]], num_sequences: int, sequence_length: int, overlap: int = 0
) -> Segments:
    """Join blocks of columns to `Segments`. We empty `blocks`, so that the parts of a column are freed early."""
    if len(blocks) == 1:  # then a copy would only take time and memory
        columns = blocks.pop()
    else:
        columns = [
            np.concatenate([np.zeros(0, dtype), *(block.pop(0) for block in blocks)])
            for dtype in (*[np.int64] * 5, np.bool_)
        ]
    return Segments(*columns, num_sequences=num_sequences, sequence_length=sequence_length, overlap=overlap)


def joined_blocks(blocks: Iterable[Segments]) -> Segments:
    """Join the blocks of a packing."""
    *before, last = blocks
    columns = [[getattr(block, name) for name in Segments.COLUMNS] for block in (*before, last)]
    del before  # so that only the columns hold the arrays, see `joined_segments`
    return joined_segments(columns, last.num_sequences, last.sequence_length, last.overlap)


def _cut(pieces: Pieces, start: Int64[np.ndarray, " piece"], limit: int, sequence_length: int) -> list[np.ndarray]:
    """Cut pieces where a sequence ends, up to the place `limit`, and return the columns of their segments."""
    end = np.minimum(start + pieces.length, limit)
    first = start // sequence_length
    counts = np.where(end > start, (end - 1) // sequence_length - first + 1, 0)
    row, sequence = expand(counts)
    sequence += first[row]
    begin = np.maximum(sequence * sequence_length, start[row])
    position = begin - sequence * sequence_length
    within = begin - start[row]
    length = np.minimum(end[row] - begin, sequence_length - position)
    closes = pieces.closes[row] & (within + length == pieces.length[row])
    return [sequence, position, pieces.document_index[row], pieces.document_offset[row] + within, length, closes]


def fill_bins(pieces: Pieces, bins: Int64[np.ndarray, " small"], sequence_length: int) -> Segments:
    """Make one sequence of every bin and of every piece of L tokens.

    `bins` contains the bin number of every piece of fewer than L tokens; bin numbers have no gaps. The pieces of a bin
    stay in the order of the documents. Sequences are numbered by their first piece, so they follow the order of the
    documents and not of the lengths.
    """
    is_small = pieces.length < sequence_length
    num_bins, num = int(bins.max(initial=-1)) + 1, len(is_small)
    num_sequences = num_bins + num - len(bins)
    bin_of = np.empty(num, np.int64)
    bin_of[is_small] = bins
    bin_of[~is_small] = np.arange(num_bins, num_sequences)
    first = np.empty(num_sequences, np.int64)
    first[bin_of[::-1]] = np.arange(num)[::-1]  # of several writes to one element the last remains
    # Bins are renumbered by their first pieces: the new number of a bin is the number of first pieces before its own.
    sequence = (np.cumsum(np.bincount(first, minlength=num)) - 1)[first][bin_of]
    rows = np.argsort(sequence, kind="stable")
    pieces, sequence = pieces.take(rows), sequence[rows]
    before = end_to_end(pieces.length)
    start = sequence * sequence_length + before - before[run_starts(sequence)][sequence]
    return fill(pieces, start, num_sequences, sequence_length)


def reorder_sequences(segments: Segments, order: Int64[np.ndarray, " sequence"]) -> Segments:
    """Put the sequences into another order: sequence `order[i]` becomes sequence i."""
    # Rows are sorted by sequence, so the rows of a sequence are a run. The runs are gathered in the new order.
    counts = np.bincount(segments.sequence_index, minlength=segments.num_sequences)
    sequence, number = expand(counts[order])
    rows = end_to_end(counts)[order][sequence] + number
    columns = {name: getattr(segments, name)[rows] for name in Segments.COLUMNS} | {"sequence_index": sequence}
    return dataclasses.replace(segments, **columns)
