"""Orderings that are made from existing orderings.

If batches are put in random order, each batch stays balanced; windows of several batches and prefixes do not. A
reversed ordering has the same windows, and its prefixes are equally balanced, because an ordering's deviation ends at
zero. Concatenated parts are balanced if all parts have the same mixture (`duplicates.separate_duplicates`). The entry
`of` of `info` describes the orderings from which an ordering was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from jax_diversity.foundation.checks import as_tuple, as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Ordering
from jax_diversity.schema.orderings import check_ordering


def shuffle_blocks(ordering: Ordering, batch_size: SupportsIndex, seed: SupportsIndex = 0) -> Ordering:
    """Put whole batches in random order. Each batch keeps its sequences and their order.

    Batches are the aligned runs of `batch_size` positions. If the last batch is not full, it stays last, so that all
    other batches stay aligned. The order of batches is NumPy's PCG64 permutation for the seed.

    Raises:
        UserError: a batch size below 1 or above the number of sequences; a negative seed.

    Example:
        >>> shuffle_blocks(Ordering(np.arange(7)), 2, seed=0).indices.tolist()
        [4, 5, 0, 1, 2, 3, 6]
    """
    check_ordering("ordering", ordering)
    size = as_whole_number("batch_size", batch_size, 1, len(ordering) or None)
    seed = as_whole_number("seed", seed, 0)
    # The rows of a matrix are batches: a permutation of rows keeps each batch and the order within it.
    num_batches = len(ordering) // size
    whole = ordering.indices[: num_batches * size].reshape(num_batches, size)
    shuffled = whole[np.random.default_rng(seed).permutation(num_batches)].ravel()
    indices = np.concatenate([shuffled, ordering.indices[num_batches * size :]])
    return Ordering(indices, {"method": "shuffle_blocks", "batch_size": size, "seed": seed, "of": origin(ordering)})


def reverse(ordering: Ordering) -> Ordering:
    """Return the ordering with the sequences in reverse order.

    Example:
        >>> reverse(Ordering(np.array([2, 0, 1]))).indices.tolist()
        [1, 0, 2]
    """
    check_ordering("ordering", ordering)
    return Ordering(ordering.indices[::-1], {"method": "reverse", "of": origin(ordering)})


def concatenate(orderings: Sequence[Ordering], offsets: Sequence[int] | None = None) -> Ordering:
    """Make one ordering over the sequences of several datasets: one dataset after another, each in its own ordering.

    Args:
        orderings: the datasets' orderings, in the order of training.
        offsets: the index of each dataset's first sequence among all sequences. With None, the datasets' sequences are
            numbered in the given order.

    Raises:
        UserError: there is no ordering; the offsets have gaps or overlaps between the datasets.

    Example:
        >>> concatenate([Ordering(np.array([1, 0])), Ordering(np.array([0, 2, 1]))]).indices.tolist()
        [1, 0, 2, 4, 3]
    """
    orderings, offsets = as_tuple(orderings), None if offsets is None else as_tuple(offsets)
    if not orderings:
        raise UserError("Expected at least one ordering to concatenate, found none.")
    for number, ordering in enumerate(orderings):
        check_ordering(f"orderings[{number}]", ordering)
    sizes = [len(ordering) for ordering in orderings]
    starts = stacked_offsets(sizes) if offsets is None else _as_offsets(offsets, sizes)
    indices = np.concatenate([start + ordering.indices for start, ordering in zip(starts, orderings, strict=True)])
    origins = [origin(ordering) for ordering in orderings]
    return Ordering(indices, {"method": "concatenate", "offsets": starts, "of": origins})


def stacked_offsets(sizes: Sequence[int]) -> list[int]:
    """Return the index of each dataset's first sequence, for datasets that are stored one after another."""
    return [0, *np.cumsum(sizes, dtype=np.int64).tolist()[:-1]]


def _as_offsets(offsets: Sequence[int], sizes: Sequence[int]) -> list[int]:
    starts = [as_whole_number("offsets", offset, 0) for offset in offsets]
    if len(starts) != len(sizes):
        raise UserError(f"Expected an offset for each of {len(sizes)} orderings, found {len(starts)}.")
    # Sorted by offset, each dataset must begin where the previous one ends. Datasets without sequences may have the
    # offset of another dataset.
    end = 0
    for start, size in sorted(zip(starts, sizes, strict=True)):
        if start != end:
            raise UserError(
                f"Expected datasets without gaps or overlaps, found one at the offset {start}, but the "
                f"previous one ends at {end}; leave the offsets out to put the datasets one after another."
            )
        end = start + size
    return starts


def origin(ordering: Ordering) -> dict[str, Any]:
    """Return the description of an ordering from which another ordering was made, for `info`."""
    return {**ordering.info, "fingerprint": ordering.fingerprint}
