"""Concatenate and split: documents are joined end to end and cut every L tokens.

Documents are cut where a sequence ends. Only the tokens of the unfilled last sequence can be lost: an option decides
whether this sequence is dropped or padded. GPT-3 used this method (Brown et al., 2020,
https://arxiv.org/abs/2005.14165).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Literal

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.pieces import (
    Pieces,
    apart_atoms,
    as_atom_size,
    atom_order,
    cut_stream,
    document_blocks,
    end_to_end,
    fill,
    num_filled,
    repeated,
    whole_documents,
)


def concat(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    last_sequence: Literal["drop", "pad"] = "drop",
    atom_size: int | None = None,
    seed: int = 0,
    advance: Advance = ignore,
) -> Iterable[Segments]:
    """Pack the documents of `document_order`, in that order.

    With an atom size, the stream of all documents is cut into *atoms* of this size. One random permutation, drawn with
    `seed`, shuffles all atoms. Then every L tokens make a sequence: several small atoms, or a part of a large atom. The
    unfilled last atom stays last.

    Args:
        atom_size: tokens of an atom: a divisor or a multiple of L, or L itself. With None, nothing is shuffled.

    Raises:
        UserError: an atom size that neither divides L nor is a multiple of it.

    Example:
        >>> (segments,) = concat(np.array([3, 2]), np.array([1, 0]), sequence_length=2)
        >>> segments.document_index.tolist(), segments.length.tolist()
        ([1, 0], [2, 2])
    """
    size = None if atom_size is None else as_atom_size(atom_size, sequence_length)
    blocks = document_blocks(document_order, in_one=size is not None)  # a permutation of atoms needs all documents
    totals = [int(document_lengths[documents].sum()) for documents in blocks]
    num_sequences = num_filled(sum(totals), sequence_length, last_sequence)

    def segments_of(documents: Int64[np.ndarray, " block"], start: int) -> Segments:
        pieces = whole_documents(document_lengths, documents)
        if size is not None:
            pieces = _shuffle_atoms(pieces, size, sequence_length, seed)
        advance(len(documents))
        return fill(pieces, start + end_to_end(pieces.length), num_sequences, sequence_length)

    return map(segments_of, blocks, accumulate(totals, initial=0))


def _shuffle_atoms(documents: Pieces, size: int, sequence_length: int, seed: int) -> Pieces:
    """Cut the stream of all documents into atoms, and return the pieces of the shuffled atoms."""
    total = int(documents.length.sum())
    atoms = np.arange(-(-total // size))
    num_full = total // size  # the unfilled last atom keeps its place
    atoms[:num_full] = atom_order(num_full, seed)
    if size < sequence_length and len(several := repeated(documents.document_index)):
        full, atom = cut_stream(documents, np.arange(num_full) * size, np.full(num_full, size))
        rows = np.flatnonzero(np.isin(full.document_index, several))
        of_pieces = atom[rows], full.document_index[rows]
        atoms[:num_full] = apart_atoms(atoms[:num_full], sequence_length // size, *of_pieces, seed)
    # Consecutive atoms that are still consecutive after the shuffle are one run: a document is not cut between them. We
    # put -2 before the first atom, because atom 0 after -1 would not begin a run.
    begins = np.flatnonzero(np.diff(atoms, prepend=-2) != 1)
    start = atoms[begins] * size
    length = np.minimum(np.diff(begins, append=len(atoms)) * size, total - start)
    return cut_stream(documents, start, length)[0]
