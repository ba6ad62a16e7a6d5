"""Concatenate and split: documents end to end, cut every L tokens.

No token is lost but the unfilled last sequence's (dropped or padded, as asked); documents are cut wherever a
sequence ends. The method of GPT-3 (Brown et al., 2020, https://arxiv.org/abs/2005.14165).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Int64

from jax_diversity.packing.pieces import checked_atom_size, cut_stream, end_to_end, fill, num_filled, whole_documents
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

    With an atom size other than L, the documents' stream is cut into *atoms*, which are shuffled; then L tokens at
    a time make a sequence, out of several small atoms or a part of a large one. The unfilled last atom stays last.

    Args:
        atom_size: tokens of an atom, a fraction or a multiple of L; None takes L. Atoms of L stay in their order:
            to shuffle them would be to shuffle sequences, which is the ordering's to do.

    Raises:
        UserError: an atom size that neither divides L nor is a multiple of it.

    Example:
        >>> segments = concat(np.array([3, 2]), np.array([1, 0]), sequence_length=2)
        >>> segments.document_index.tolist(), segments.length.tolist()
        ([1, 0], [2, 2])
    """
    atom_size = checked_atom_size(atom_size, sequence_length)
    pieces = whole_documents(document_lengths, document_order)
    total = int(pieces.length.sum())
    if atom_size != sequence_length:
        atoms = np.arange(-(-total // atom_size))
        full = atoms[: total // atom_size]  # a view: the unfilled last atom keeps its place
        full[:] = np.random.default_rng(seed).permutation(len(full))
        # Atoms that follow one another as before are one run: a document is not cut between them. Before the first atom
        # comes -2, because after -1 atom 0 would not begin a run.
        begins = np.flatnonzero(np.diff(atoms, prepend=-2) != 1)
        start = atoms[begins] * atom_size
        length = np.minimum(np.diff(begins, append=len(atoms)) * atom_size, total - start)
        pieces, _ = cut_stream(pieces, start, length)
    num_sequences = num_filled(total, sequence_length, last_sequence)
    return fill(pieces, end_to_end(pieces.length), num_sequences, sequence_length)
