"""The choice of validation documents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Int64


def validation_mask(
    ids: Iterable[str], duplicate_group: Int64[np.ndarray, " document"], fraction: float
) -> Bool[np.ndarray, " document"]:
    """Choose about `fraction` of the documents by a hash of their ids; a group of equal texts is chosen as a whole.

    The choice depends only on the ids within a group: a growing corpus keeps its validation documents.
    """
    digests = bytearray()
    for key in ids:
        digests += hashlib.blake2b(key.encode(), digest_size=16).digest()
    halves = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    # In each group, the document with the smallest first half decides, by its second half. If we used one half for
    # both, large groups would be chosen more often than single documents, because the smallest value of a large group
    # is small.
    by_group = np.lexsort((halves[:, 0], duplicate_group))
    first_of_group = np.diff(duplicate_group[by_group], prepend=-1) != 0
    deciding = np.empty(len(halves), np.int64)
    deciding[by_group] = by_group[np.maximum.accumulate(np.where(first_of_group, np.arange(len(halves)), 0))]
    return (halves[:, 1] / 2.0**64 < fraction)[deciding]
