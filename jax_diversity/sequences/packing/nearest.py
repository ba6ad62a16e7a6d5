"""Nearest: a path through the nearest neighbours, so that a sequence contains related documents.

Shi et al., "In-context pretraining: language modeling beyond document boundaries", 2024
(https://arxiv.org/abs/2310.10638).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from jaxtyping import Float32, Int64

from jax_diversity.foundation.checks import as_whole_number, check_one_of
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.appearances import intersperse
from jax_diversity.sequences.packing.concat import concat
from jax_diversity.sequences.packing.neighbors import distinct_units, nearest_rows, path_of_neighbors, rounded_units
from jax_diversity.sequences.packing.pieces import occurrences

CANDIDATES = 4096
"""Each document is compared with at least this many documents, from the nearest cells of the vector space. If there are
at most four times as many documents in all, every document is compared with every other."""
_RUN = 16  # if documents are repeated: length of the runs of the path that stay together, in sequences


def nearest(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    last_sequence: Literal["drop", "pad"] = "drop",
    vectors: Float32[np.ndarray, "document feature"],
    num_neighbors: int = 10,
    advance: Advance = ignore,
) -> Iterable[Segments]:
    """Concatenate the documents along a path through the graph of their nearest neighbours, and split.

    The graph joins two documents if one document is among the `num_neighbors` nearest of the other by cosine. The path
    starts at the document with the fewest neighbours and continues with the nearest unvisited neighbour. If there is no
    unvisited neighbour, the path jumps to the unvisited document with the fewest neighbours. Documents with equal
    vectors, such as copies of a text, are one point of the path and stay side by side. Of equally good candidates, the
    first in the order of the documents is taken. The path contains every document once; later appearances of documents
    follow other parts of the path, in runs of neighbours. Only the tokens of the unfilled last sequence can be lost.
    The result does not depend on the number of threads; the module `neighbors` explains why.

    Args:
        num_neighbors: k, the number of nearest neighbours. Only documents with a cosine above zero are neighbours, so a
            document may have fewer than k.

    Raises:
        UserError: `num_neighbors` is less than 1, or a vector contains NaN or infinity.

    Example:
        >>> vectors = np.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]], np.float32)
        >>> (segments,) = nearest(np.full(4, 2), np.arange(4), 4, vectors=vectors, num_neighbors=1)
        >>> segments.document_index.tolist()
        [0, 2, 1, 3]
    """
    # We check this option here too, because `concat` checks it only after the graph is made.
    check_one_of("last_sequence", last_sequence, ("drop", "pad"))
    num_neighbors = as_whole_number("num_neighbors", num_neighbors, least=1)
    documents = document_order[occurrences(document_order) == 0]
    units = rounded_units(vectors, documents)
    first, kind = distinct_units(units)
    advance(len(document_order) - len(first))
    path = path_of_neighbors(nearest_rows(units[first], num_neighbors, CANDIDATES, advance))
    # The inverse of the path gives the place of every distinct vector in the path. The stable sort keeps copies in the
    # order of the documents.
    along = documents[np.argsort(np.argsort(path)[kind], kind="stable")]
    if len(documents) < len(document_order):
        appearances = np.bincount(document_order, minlength=len(document_lengths))
        along = intersperse(along, appearances, document_lengths, _RUN * sequence_length)
    return concat(document_lengths, along, sequence_length, last_sequence=last_sequence)
