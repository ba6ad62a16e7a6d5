"""The choice of validation documents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Int64


def validation_mask(
    ids: Iterable[str], duplicate_group: Int64[np.ndarray, " document"], fraction: float
) -> Bool[np.ndarray, " document"]:
    """Choose about `fraction` of the documents by a hash of their ids, groups of equal texts whole.

    The choice depends only on the ids within a group: a growing corpus keeps its validation documents.
    """
    digests = bytearray()
    for key in ids:
        digests += hashlib.blake2b(key.encode(), digest_size=16).digest()
    halves = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    # The document with the smallest first half decides for its group, by its second half. If one half were used for
    # both, large groups, whose smallest value is small, would be chosen more often than single documents.
    by_group = np.lexsort((halves[:, 0], duplicate_group))
    first_of_group = np.diff(duplicate_group[by_group], prepend=-1) != 0
    deciding = np.empty(len(halves), np.int64)
    deciding[by_group] = by_group[np.maximum.accumulate(np.where(first_of_group, np.arange(len(halves)), 0))]
    return (halves[:, 1] / 2.0**64 < fraction)[deciding]
