"""Pad: every document is cut into its own atoms, and the last atom is filled with padding.

No atom contains tokens of two documents. The cost is padding.
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
    document_blocks,
    end_to_end,
    expand,
    fill,
    num_filled,
    repeated,
)


def pad(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    atom_size: int | None = None,
    last_sequence: Literal["drop", "pad"] = "drop",
    seed: int = 0,
    advance: Advance = ignore,
) -> Iterable[Segments]:
    """Cut every document into atoms of A tokens: A - 1 tokens of the document and an end token.

    The last atom of a document is padded, and its end token is the document's own; in the other atoms an end token is
    inserted. If A <= L, an atom fills A places, with padding after its tokens, and L / A atoms make a sequence. If A >
    L, atoms are split into sequences of L tokens. Then the last atom is padded only to the next multiple of L, so that
    no sequence consists only of padding.

    Args:
        atom_size: A, a divisor or a multiple of L, at least 2. One random permutation, drawn with `seed`, shuffles all
            atoms. None means A = L without a shuffle: the atoms stay in the order of the documents.
        last_sequence: drop or pad the last sequence if it has fewer than L / A atoms.

    Raises:
        UserError: the atom size neither divides L nor is a multiple of L, or it has room only for an end token.

    Example:
        >>> (segments,) = pad(np.array([5, 2]), np.array([0, 1]), sequence_length=4)
        >>> segments.document_offset.tolist(), segments.length.tolist()   # the first atom has an inserted end token
        ([0, 3, 0], [4, 2, 2])
    """
    # At L = 1 an atom of one token would have room for an end token only; larger atoms are split to L.
    size = max(sequence_length, 2) if atom_size is None else as_atom_size(atom_size, sequence_length, least=2)
    unit = min(size, sequence_length)  # an atom fills whole units: itself, or several sequences
    blocks = document_blocks(document_order, in_one=atom_size is not None)  # a permutation of atoms needs all documents
    totals = [int(_num_units(document_lengths[documents], size, unit).sum()) for documents in blocks]
    num_sequences = num_filled(sum(totals), sequence_length // unit, last_sequence)

    def segments_of(documents: Int64[np.ndarray, " block"], start: int) -> Segments:
        # The tokens of every document, without its own end token, in pieces of A - 1 tokens.
        lengths = document_lengths[documents]
        place, offset = expand(_num_full(lengths, size) + (lengths > 0))
        offset *= size - 1
        length = np.minimum(lengths[place] - offset, size)
        atoms = Pieces(documents[place], offset, length, np.broadcast_to(np.True_, len(place)))
        if atom_size is not None:
            order = atom_order(len(length), seed)
            if size < sequence_length and len(several := repeated(documents)):
                in_several = np.flatnonzero(np.isin(atoms.document_index, several))
                order = apart_atoms(order, sequence_length // size, in_several, atoms.document_index[in_several], seed)
            atoms = atoms.take(order)
        advance(len(documents))
        places = (start + end_to_end(-(-atoms.length // unit))) * unit
        return fill(atoms, places, num_sequences, sequence_length)

    return map(segments_of, blocks, accumulate(totals, initial=0))


def _num_full(lengths: Int64[np.ndarray, " block"], size: int) -> Int64[np.ndarray, " block"]:
    """Return the number of atoms before the last atom of each document."""
    return np.maximum((lengths - 2) // (size - 1), 0)


def _num_units(lengths: Int64[np.ndarray, " block"], size: int, unit: int) -> Int64[np.ndarray, " block"]:
    """Return the number of units that the atoms of each document fill."""
    full = _num_full(lengths, size)
    return full * (size // unit) - (full * (size - 1) - lengths) // unit
