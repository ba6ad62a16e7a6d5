"""Corpora that one host cannot order alone: balanced parts, an ordering for each, and their merger.

    partition_sequences -> one part a host: select_sequences -> jd.order -> merge_orderings

Hosts do not communicate. The parts' deviations are independent: the merged stream's deviation is about the deviation of
one ordering times the square root of their number. A run on one mesh of several hosts (`jd.order(..., mesh=...)`) loses
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.checks import as_tuple, as_whole_number, check_type
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.ordering.composition.compose import origin
from jax_diversity.ordering.objective import Features, Objective
from jax_diversity.schema import Characteristics, Ordering
from jax_diversity.schema.characteristics import MADE_BY
from jax_diversity.schema.orderings import as_integers, check_ordering


def partition_sequences(
    characteristics: Characteristics, num_parts: SupportsIndex, seed: SupportsIndex = 0
) -> list[Int64[np.ndarray, " _part"]]:
    """Split the sequences into parts that each hold the corpus's mixture; sizes differ by one at most.

    Sorted halving makes a stream that is balanced everywhere (`halving.balanced_stream`); consecutive runs of it are
    the parts.

    Args:
        characteristics: token counts; all families are balanced, by their weights.
        num_parts: number of parts, such as the number of hosts.
        seed: decides the order among similar sequences.

    Returns:
        Every part's sequence indices, ascending.

    Raises:
        UserError: fewer than one part or more than there are sequences; a negative seed.

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
    """The characteristics of some sequences, in the given order, with the same weights and sequence length.

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
    """Interleave the orderings of parts evenly into one ordering of all their sequences.

    If W parts have one size, position p holds a sequence of part p mod W. In general the i-th of a part's n sequences
    is placed at the fraction `(i + 1/2) / n` of all positions.

    Args:
        parts: every part's sequence indices among all sequences, and the ordering of the part, whose own indices
            count within the part.

    Raises:
        UserError: no part; an ordering of another size than its part; parts that share a sequence or leave one out.

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
    # The i-th of n sequences at (i + 1/2) / n: parts of any sizes are spread evenly; ties go to the lower part.
    part = np.repeat(np.arange(len(parts)), sizes)
    way = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    info = {"method": "merge_orderings", "of": [origin(ordering) for _, ordering in parts]}
    try:
        return Ordering(np.concatenate(streams)[np.lexsort((part, way))], info)
    except UserError as error:
        raise UserError(f"Expected all parts of one corpus, each sequence in one of them: {error}") from None
