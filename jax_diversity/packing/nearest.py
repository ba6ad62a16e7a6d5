"""Nearest: chains of nearest neighbours, so that related documents are in one context.

Shi et al., "In-context pretraining: language modeling beyond document boundaries", 2024
(https://arxiv.org/abs/2310.10638).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float32, Int64

from jax_diversity.foundation.checks import as_whole_number, check_one_of
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.packing.appearances import intersperse
from jax_diversity.packing.concat import concat
from jax_diversity.packing.neighbors import distinct_units, nearest_rows, path_of_neighbors, rounded_units
from jax_diversity.packing.pieces import occurrences
from jax_diversity.schema import Segments

CANDIDATES = 4096
"""Each document is compared with this many documents in the nearest cells of the space. If there are at most four
times as many documents, all are compared with one another."""
_RUN = 16  # sequences of a path that stay together if documents are repeated


def nearest(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    last_sequence: Literal["drop", "pad"] = "drop",
    vectors: Float32[np.ndarray, "document feature"],
    num_neighbors: int = 10,
    advance: Advance = ignore,
) -> Segments:
    """Concatenate the documents along a path through the graph of their nearest neighbours, and split.

    Two documents are joined in the graph if one is among the other's `num_neighbors` nearest by cosine. The path
    starts at the document with the fewest neighbours and continues with the nearest unvisited neighbour; without
    one, it jumps to the unvisited document with the fewest neighbours. Documents with equal vectors, such as copies of
    one text, count as one and stay side by side; the documents' order decides between equals. The path contains
    every document once; its further appearances follow other parts of the path, in runs of neighbours. Only the
    unfilled last sequence's tokens can be lost. The result does not depend on the number of threads (`neighbors`).

    Args:
        num_neighbors: k; neighbours have a cosine above zero, so that a document may have fewer.

    Raises:
        UserError: fewer than one neighbour; a vector with NaN or infinity.

    Example:
        >>> vectors = np.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]], np.float32)
        >>> segments = nearest(np.full(4, 2), np.arange(4), 4, vectors=vectors, num_neighbors=1)
        >>> segments.document_index.tolist()
        [0, 2, 1, 3]
    """
    # Also checked here: `concat` checks it only after the graph is made.
    check_one_of("last_sequence", last_sequence, ("drop", "pad"))
    num_neighbors = as_whole_number("num_neighbors", num_neighbors, least=1)
    documents = document_order[occurrences(document_order) == 0]
    units = rounded_units(vectors, documents)
    first, kind = distinct_units(units)
    advance(len(document_order) - len(first))
    path = path_of_neighbors(nearest_rows(units[first], num_neighbors, CANDIDATES, advance))
    # The inverse of the path gives every distinct vector's turn; the stable sort keeps copies in the documents' order.
    along = documents[np.argsort(np.argsort(path)[kind], kind="stable")]
    if len(documents) < len(document_order):
        appearances = np.bincount(document_order, minlength=len(document_lengths))
        along = intersperse(along, appearances, document_lengths, _RUN * sequence_length)
    return concat(document_lengths, along, sequence_length, last_sequence=last_sequence)
