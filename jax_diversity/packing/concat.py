"""Concatenate and split: documents are joined end to end and cut every L tokens.

Documents are cut where a sequence ends. Only the tokens of the unfilled last sequence can be lost: an option decides
whether this sequence is dropped or padded. GPT-3 used this method (Brown et al., 2020,
https://arxiv.org/abs/2005.14165).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from jaxtyping import Int64, Integer

from jax_diversity.packing.pieces import (
    ROWS,
    apart_atoms,
    as_atom_size,
    atom_order,
    cut_stream,
    end_to_end,
    fill,
    num_filled,
    repeated,
    whole_documents,
)
from jax_diversity.schema import Segments


def concat(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    last_sequence: Literal["drop", "pad"] = "drop",
    atom_size: int | None = None,
    seed: int = 0,
) -> Segments:
    """Pack the documents of `document_order`, in that order.

    With an atom size, the stream of all documents is cut into *atoms* of this size. One random permutation, drawn with
    `seed`, shuffles all atoms. Then every L tokens make a sequence: several small atoms, or a part of a large atom. The
    unfilled last atom stays last.

    Args:
        atom_size: tokens of an atom: a divisor or a multiple of L, or L itself. With None, nothing is shuffled.

    Raises:
        UserError: an atom size that neither divides L nor is a multiple of it.

    Example:
        >>> segments = concat(np.array([3, 2]), np.array([1, 0]), sequence_length=2)
        >>> segments.document_index.tolist(), segments.length.tolist()
        ([1, 0], [2, 2])
    """
    size = None if atom_size is None else as_atom_size(atom_size, sequence_length)
    pieces = whole_documents(document_lengths, document_order)
    total = int(pieces.length.sum())
    if size is not None:
        atoms = np.arange(-(-total // size))
        num_full = total // size  # the unfilled last atom keeps its place
        atoms[:num_full] = atom_order(num_full, seed)
        if size < sequence_length and len(several := repeated(document_order)):
            held, atom = cut_stream(pieces, np.arange(num_full) * size, np.full(num_full, size))
            rows = np.flatnonzero(np.isin(held.document_index, several))
            of_pieces = atom[rows], held.document_index[rows]
            atoms[:num_full] = apart_atoms(atoms[:num_full], sequence_length // size, *of_pieces, seed)
        # Consecutive atoms that are still consecutive after the shuffle are one run: a document is not cut between
        # them. We put -2 before the first atom, because atom 0 after -1 would not begin a run.
        begins = np.flatnonzero(np.diff(atoms, prepend=-2) != 1)
        start = atoms[begins] * size
        length = np.minimum(np.diff(begins, append=len(atoms)) * size, total - start)
        pieces, _ = cut_stream(pieces, start, length)
    num_sequences = num_filled(total, sequence_length, last_sequence)
    return fill(pieces, end_to_end(pieces.length), num_sequences, sequence_length)


def blocks(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Integer[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    last_sequence: Literal["drop", "pad"] = "drop",
    atom_size: int | None = None,
    seed: int = 0,
) -> Iterator[tuple[Int64[np.ndarray, " block"], Segments]]:
    """Pack as `concat` in the memory of a block of documents; atoms need all documents. See `base.pack_in_blocks`.

    Example:
        >>> parts = blocks(np.array([3, 2]), np.array([1, 0]), sequence_length=2)
        >>> [(documents.tolist(), len(segments)) for documents, segments in parts]
        [([1, 0], 2)]
    """
    if atom_size is not None:
        order = document_order.astype(np.int64)
        options = {"last_sequence": last_sequence, "atom_size": atom_size, "seed": seed}
        yield order, concat(document_lengths, order, sequence_length, **options)
        return
    parts = [document_order[first : first + ROWS] for first in range(0, max(len(document_order), 1), ROWS)]
    sizes = [int(document_lengths[part].sum()) for part in parts]
    num_sequences, start = num_filled(sum(sizes), sequence_length, last_sequence), 0
    for part, size in zip(parts, sizes, strict=True):
        documents = part.astype(np.int64)
        pieces = whole_documents(document_lengths, documents)
        yield documents, fill(pieces, start + end_to_end(pieces.length), num_sequences, sequence_length)
        start += size
