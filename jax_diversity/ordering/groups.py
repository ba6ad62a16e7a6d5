"""The one group of a sequence, for orders that do not use its mixture."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64
from scipy.sparse import csr_array


def heaviest_groups(counts: csr_array) -> Int64[np.ndarray, " sequence"]:
    """The group with the most tokens of every row, ties to the lowest.

    Rows without tokens form a group of their own behind all others, `counts.shape[1]`.

    Args:
        counts: one family's token counts (sequence, group).

    Example:
        >>> heaviest_groups(csr_array([[1, 2, 2], [0, 0, 0], [5, 0, 1]])).tolist()
        [1, 3, 0]
    """
    num_rows, num_groups = len(counts.indptr) - 1, counts.shape[1]
    row = np.repeat(np.arange(num_rows), np.diff(counts.indptr))
    # `maximum.at` and `minimum.at` on the non-zeros: SciPy's argmax would have to count the implicit zeros as well.
    most = np.zeros(num_rows, np.int64)
    np.maximum.at(most, row, counts.data)
    heaviest = np.full(num_rows, num_groups, np.int64)
    leading = (counts.data > 0) & (counts.data == most[row])
    np.minimum.at(heaviest, row[leading], counts.indices[leading])
    return heaviest
