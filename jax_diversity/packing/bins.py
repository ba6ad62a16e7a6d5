"""Pieces that go whole into one sequence or another, as into bins: what best fit and first fit share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from jax_diversity.packing.pieces import Pieces, fill, split_documents
from jax_diversity.schema import Segments


class Fits(NamedTuple):
    """Documents in pieces of at most L tokens.

    Attributes:
        pieces: in the documents' order.
        open: the rows of the pieces that leave room; each of the others fills a sequence alone.
    """

    pieces: Pieces
    open: Int64[np.ndarray, " open"]


def split_to_fit(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
) -> Fits:
    """Documents longer than a sequence in pieces of its length, the rest in one."""
    pieces = split_documents(document_lengths, document_order, sequence_length)
    return Fits(pieces, np.flatnonzero(pieces.length < sequence_length))


def fill_bins(fits: Fits, bins: Int64[np.ndarray, " open"], sequence_length: int) -> Segments:
    """One sequence a bin and one for every full piece, pieces and sequences in the documents' order.

    A bin's pieces follow one another as the documents do, not by length, and sequences are numbered by their first
    piece: neither place in a sequence nor place in the packed order tells how long a document is.

    Args:
        fits: the pieces.
        bins: for every open piece the number of its bin, 0 .. bins - 1, none of them without a piece.
        sequence_length: L.
    """
    pieces = fits.pieces
    num = len(pieces.length)
    num_bins = int(bins.max(initial=-1)) + 1
    bin_of = np.empty(num, np.int64)
    is_full = np.ones(num, bool)
    is_full[fits.open] = False
    bin_of[fits.open] = bins
    bin_of[is_full] = num_bins + np.arange(num - len(fits.open))
    num_sequences = num_bins + num - len(fits.open)
    first = np.empty(num_sequences, np.int64)
    first[bin_of[::-1]] = np.arange(num)[::-1]  # of several writes to one place the last one stays
    sequence_of_bin = np.empty(num_sequences, np.int64)
    sequence_of_bin[np.argsort(first)] = np.arange(num_sequences)
    sequence = sequence_of_bin[bin_of]
    rows = np.argsort(sequence, kind="stable")
    pieces, sequence = pieces.take(rows), sequence[rows]
    before = np.cumsum(pieces.length) - pieces.length
    begins = np.searchsorted(sequence, np.arange(num_sequences))
    start = sequence * sequence_length + before - before[begins][sequence]
    return fill(pieces, start, num_sequences, sequence_length)
