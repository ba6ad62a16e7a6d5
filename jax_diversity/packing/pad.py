"""Pad: every document has separate atoms, filled with padding.

No atom contains tokens of two documents; the cost is padding.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Int64

from jax_diversity.packing.pieces import (
    Pieces,
    apart_atoms,
    as_atom_size,
    atom_order,
    end_to_end,
    expand,
    fill,
    num_filled,
    repeated,
)
from jax_diversity.schema import Segments


def pad(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    atom_size: int | None = None,
    last_sequence: Literal["drop", "pad"] = "drop",
    seed: int = 0,
) -> Segments:
    """Give every document separate atoms: A - 1 of its tokens and an end token each, the last one padded.

    A document's last atom ends with its own end token; in the others one is inserted. If A <= L, an atom takes A
    places, with padding after its tokens, and L / A atoms make a sequence. If A > L, the last atom is padded only to
    the next multiple of L, so that no sequence is all padding, and atoms are split to L.

    Args:
        atom_size: A, a fraction or a multiple of L, at least 2: atoms of A are shuffled, all by one permutation drawn
            from `seed`. None takes L, and leaves the atoms in the documents' order.
        last_sequence: drop or pad the last sequence if it has fewer than L / A atoms.

    Raises:
        UserError: an atom size that neither divides L nor is a multiple of it, or that has room only for an end
            token.

    Example:
        >>> segments = pad(np.array([5, 2]), np.array([0, 1]), sequence_length=4)
        >>> segments.document_offset.tolist(), segments.length.tolist()   # an end token inserted in the first
        ([0, 3, 0], [4, 2, 2])
    """
    # At L = 1 an atom of one token would have room for an end token only; larger atoms are split to L.
    size = max(sequence_length, 2) if atom_size is None else as_atom_size(atom_size, sequence_length, least=2)
    # Every document's tokens in pieces of A - 1, without its own end token.
    lengths = document_lengths[document_order]
    place, offset = expand(np.maximum(-(-(lengths - 1) // (size - 1)), lengths > 0))
    offset *= size - 1
    length = np.minimum(lengths[place] - offset, size)
    atoms = Pieces(document_order[place], offset, length, np.broadcast_to(np.True_, len(place)))
    if atom_size is not None:
        order = atom_order(len(length), seed)
        if size < sequence_length and len(several := repeated(document_order)):
            held = np.flatnonzero(np.isin(atoms.document_index, several))
            order = apart_atoms(order, sequence_length // size, held, atoms.document_index[held], seed)
        atoms = atoms.take(order)
    if size > sequence_length:
        taken = -(-atoms.length // sequence_length)  # sequences of an atom
        return fill(atoms, end_to_end(taken) * sequence_length, int(taken.sum()), sequence_length)
    num_sequences = num_filled(len(length), sequence_length // size, last_sequence)
    return fill(atoms, np.arange(len(length)) * size, num_sequences, sequence_length)
