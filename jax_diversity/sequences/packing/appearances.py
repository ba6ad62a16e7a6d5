"""Repeated documents: weights become whole numbers of appearances, which are put far apart in the order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.sequences.packing.pieces import end_to_end, expand

_RUNS_PER_GAP = 4


def draw_appearances(
    weights: Float64[np.ndarray, " document"], ids: Iterable[str], seed: int
) -> Int64[np.ndarray, " document"]:
    """Draw the number of appearances of every document: 2.5 gives 2 or 3, .3 gives 1 for 30 % of the documents.

    Let h in [0, 1) be a hash of the document's id. With the seed s, a document of weight w appears
    `⌊w (s + 1) + h⌋ - ⌊w s + h⌋` times. The number does not depend on other documents, and it grows with the weight.
    The sum of the numbers for E consecutive seeds differs from w E by less than one.

    Args:
        weights: finite and >= 0.
        ids: the documents' ids.
        seed: the seed of the packing.

    Example:
        >>> [draw_appearances(np.array([2.5]), ["a"], seed).item() for seed in range(4)]
        [3, 2, 3, 2]
    """
    whole = np.floor(weights)
    part = weights - whole
    digests = bytearray()
    for key in ids:
        digests += hashlib.blake2b(key.encode(), digest_size=8, person=b"appearances").digest()
    place = np.frombuffer(digests, "<u8") / 2.0**64
    seed %= 2**32  # the products below keep their fractions
    drawn = np.floor(part * (seed + 1) + place) - np.floor(part * seed + place)
    return (whole + drawn).astype(np.int64)


def intersperse(
    order: Int64[np.ndarray, " chosen"],
    appearances: Int64[np.ndarray, " document"],
    document_lengths: Int64[np.ndarray, " document"],
    longest_run: int = 0,
) -> Int64[np.ndarray, " appearance"]:
    """Repeat each document as often as it appears, with equal distances between its appearances.

    First appearances keep the order of `order`. Let a document appear n times, and let it begin at the fraction x of
    all tokens. Then its other appearances are planned at the fractions x + k / n, modulo 1.

    Args:
        order: documents, each once.
        appearances: how often every document of the corpus appears.
        document_lengths: tokens of every document of the corpus.
        longest_run: neighbours stay together in runs of about this many tokens; with 0, no runs are kept.

    Example:
        >>> intersperse(np.array([2, 0, 1, 3]), np.array([1, 1, 2, 0]), np.array([5, 5, 5, 5])).tolist()
        [2, 0, 2, 1]
    """
    order = order[appearances[order] > 0]
    times = appearances[order]
    tokens = document_lengths[order] * times
    total = max(int(tokens.sum()), 1)
    row, number = expand(times)
    due = end_to_end(tokens)[row] / total + number / times[row]
    due -= np.floor(due)
    if not longest_run:
        return order[row[np.argsort(due, kind="stable")]]
    # The stream is cut into parts. The later appearances that are planned within a part follow the part as one run.
    run = min(longest_run, total / (_RUNS_PER_GAP * max(int(times.max(initial=1)), 1)))
    return order[row[np.lexsort((due, number > 0, np.floor(due * total / run)))]]
