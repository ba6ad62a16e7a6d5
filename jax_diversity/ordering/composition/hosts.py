"""Corpora that are too large for one host: split them into balanced parts, order each part, merge the orderings.

    partition_sequences -> on each host, for its part: select_sequences -> jd.order -> merge_orderings

The hosts do not communicate. The deviations of the parts are independent. With W parts, the deviation of the merged
ordering is therefore about √W times the deviation of one part's ordering. With one mesh over several hosts
(`jd.order(..., mesh=...)`), the result is as good as on one host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts import Characteristics
from jax_diversity.counts.characteristics import MADE_BY
from jax_diversity.foundation.checks import as_tuple, as_whole_number, check_type
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.ordering.composition.compose import origin
from jax_diversity.ordering.features import Features
from jax_diversity.ordering.objective import Objective
from jax_diversity.schema import Ordering
from jax_diversity.schema.orderings import as_integers, check_ordering


def partition_sequences(
    characteristics: Characteristics, num_parts: SupportsIndex, seed: SupportsIndex = 0
) -> list[Int64[np.ndarray, " _part"]]:
    """Split the sequences into parts that each have the corpus's mixture. The sizes differ by at most one.

    Sorted halving makes a stream that is balanced everywhere (`halving.balanced_stream`). The parts are consecutive
    runs of this stream.

    Args:
        characteristics: token counts; all families are balanced, with their weights.
        num_parts: number of parts, such as the number of hosts.
        seed: decides the order among similar sequences.

    Returns:
        For every part, its sequence indices, ascending.

    Raises:
        UserError: fewer parts than one, or more parts than sequences; a negative seed.

    Example:
        >>> parts = partition_sequences(characteristics, num_parts=4)
        >>> own = select_sequences(characteristics, parts[jax.process_index()])
    """
    from jax_diversity.ordering.halving import balanced_stream  # loads JAX, which merging does not need

    check_type("characteristics", characteristics, Characteristics, MADE_BY)
    num_sequences = characteristics.num_sequences
    num_parts = as_whole_number("num_parts", num_parts, 1, max(num_sequences, 1))
    seed = as_whole_number("seed", seed, 0)
    features = Features.build(characteristics, Objective())
    stream = balanced_stream(features, np.arange(num_sequences), seed)
    return [np.sort(part) for part in np.array_split(stream, num_parts)]


def select_sequences(characteristics: Characteristics, sequences: Int64[np.ndarray, " part"]) -> Characteristics:
    """Return the characteristics of some sequences, in the given order. Weights and sequence length stay the same.

    Raises:
        UserError: an index outside the sequences.
    """
    check_type("characteristics", characteristics, Characteristics, MADE_BY)
    sequences = as_integers("sequences", sequences, below=characteristics.num_sequences)
    return Characteristics.from_counts(
        {family: matrix[sequences] for family, matrix in characteristics.counts.items()},
        weights=characteristics.weights,
        sequence_length=characteristics.sequence_length,
        documents=None if characteristics.documents is None else characteristics.documents[sequences],
    )


def merge_orderings(parts: Sequence[tuple[Any, Ordering]]) -> Ordering:
    """Interleave the orderings of parts evenly into one ordering of all sequences.

    If W parts have the same size, the sequence at position p is from part p mod W. In general, the i-th of a part's n
    sequences is placed at the fraction `(i + 1/2) / n` of all positions.

    Args:
        parts: for every part, its sequence indices among all sequences, and its ordering. The ordering's indices are
            places within the part.

    Raises:
        UserError: there is no part; an ordering does not have its part's size; a sequence is in two parts or in none.

    Example:
        >>> even, odd = ([0, 2, 4], Ordering(np.array([2, 0, 1]))), ([1, 3], Ordering(np.array([0, 1])))
        >>> merge_orderings([even, odd]).indices
        array([4, 1, 0, 3, 2])
    """
    parts, streams = as_tuple(parts), []
    if not parts:
        raise UserError("Expected at least one part to merge, found none.")
    for number, part in enumerate(parts):
        if not isinstance(part, tuple) or len(part) != 2:
            raise UserError(f"Expected parts[{number}] to be (sequences, ordering), found {quoted(part)}.")
        sequences, ordering = part
        check_ordering(f"parts[{number}]'s ordering", ordering)
        indices = as_integers(f"part {number}'s sequences", sequences)
        if len(indices) != len(ordering):
            raise UserError(
                f"Expected part {number}'s ordering to have its {len(indices)} sequences, found {len(ordering)}."
            )
        streams.append(indices[ordering.indices])
    sizes = [len(stream) for stream in streams]
    # The i-th of n sequences is placed at (i + 1/2) / n, so parts of any sizes are spread evenly. In a tie, the part
    # with the lower number is first.
    part = np.repeat(np.arange(len(parts)), sizes)
    way = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    info = {"method": "merge_orderings", "of": [origin(ordering) for _, ordering in parts]}
    try:
        return Ordering(np.concatenate(streams)[np.lexsort((part, way))], info)
    except UserError as error:
        raise UserError(f"Expected all parts of one corpus, with each sequence in one part: {error}") from None
