"""Join the characteristics of several datasets, to measure and order mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Int64
from scipy.sparse import csr_array, vstack

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.characteristics.stored import SEQUENCE_CLUSTER, TOKENS
from jax_diversity.streaming.dataset.dataset import Dataset

_NUMBERED = "duplicate"


def joined_characteristics(datasets: Sequence[Dataset]) -> Characteristics:
    """The token counts of the sequences of all datasets, end to end, in the families that all datasets have.

    A family is one kind of characteristics, such as topic clusters; a group is one value of the family. Groups with the
    same name in a family are one group. The caller must make sure that a name has the same meaning in all datasets: the
    names of clusters are numbers, and cluster 3 of one clustering is not cluster 3 of another. Groups of equal texts
    are left out, because their names are always numbers.

    Args:
        datasets: at least one.

    Returns:
        Characteristics with one row per sequence (dataset after dataset) and one column per group (in the order in
        which the names first appear). The result has the families that all datasets balance, with the order and the
        weights of the first dataset. The sequence length is the largest one. Each document and each group of copies
        belongs to one dataset. If there is only one dataset, its characteristics are returned unchanged.

    Raises:
        UserError: there is no dataset, or no common family.

    Example:
        >>> joined_characteristics([web, code])  # of 5,000 and 2,000 sequences
        Characteristics(7,000 sequences of 512; length: 12 groups, language: 31 groups)
    """
    if not datasets:
        raise UserError("Expected at least one dataset, found none.")
    counts = [dataset.characteristics for dataset in datasets]
    if len(datasets) == 1:
        return counts[0]
    common = (family for family in counts[0].families if all(family in chars.counts for chars in counts))
    families = [family for family in common if family != _NUMBERED]
    if not families:
        families_by_dataset = "; ".join(", ".join(chars.families) for chars in counts)
        raise UserError(
            f"Expected a family that all datasets balance, found none ({families_by_dataset}); name a common one in "
            "characteristics.families of each dataset, and characterize the datasets again."
        )
    return Characteristics.from_counts(
        {family: _stacked(datasets, family) for family in families},
        weights={family: counts[0].weights[family] for family in families},
        sequence_length=max(chars.sequence_length for chars in counts),
        documents=_apart([dataset.sequence_documents[:, None] for dataset in datasets])[:, 0],
        copies=_apart([dataset.sequence_copies for dataset in datasets]),
        turns=_joined_turns(datasets),
        batch_size=common_batch_size(datasets),
    )


def common_batch_size(datasets: Sequence[Dataset]) -> int | None:
    """The batch size that all datasets were built for; None if it is unknown or differs."""
    sizes = {dataset.batch_size for dataset in datasets}
    return sizes.pop() if len(sizes) == 1 else None


def comparable_characteristics(datasets: Sequence[Dataset]) -> Characteristics:
    """The joined characteristics, in the families whose groups have the same meaning in all datasets.

    Datasets of one feature space (built with `features_from`) share all families. Otherwise clusterings,
    `tokens` and `sequence_cluster` are left out: their groups are numbers, which depend on the clustering and on the
    tokenizer.

    Raises:
        UserError: there is no comparable family, and the errors of `joined_characteristics`.
    """
    joined = joined_characteristics(datasets)
    if len(datasets) == 1 or len({dataset.feature_space for dataset in datasets}) == 1:
        return joined
    numbered = {
        TOKENS,
        SEQUENCE_CLUSTER,
        *chain.from_iterable(dataset.counts("cluster")["clusterings"] for dataset in datasets),
    }
    kept = {family: counts for family, counts in joined.counts.items() if family not in numbered}
    if not kept:
        raise UserError(
            "Expected datasets of one feature space, or with a common family that is not a clustering, found only "
            f"{', '.join(joined.families)}; build the datasets with features_from, or pass your own token counts."
        )
    return replace(joined, counts=kept, weights={family: joined.weights[family] for family in kept})


def joined_groups(datasets: Sequence[Dataset], family: str) -> tuple[str, ...]:
    """The names of a family's columns in `joined_characteristics`."""
    return tuple(dict.fromkeys(chain.from_iterable(dataset.group_names[family] for dataset in datasets)))


def _stacked(datasets: Sequence[Dataset], family: str) -> Any:
    """The counts of a family for the sequences of all datasets, one after another, with one column per group name."""
    column = {name: index for index, name in enumerate(joined_groups(datasets, family))}
    parts = []
    for dataset in datasets:
        matrix = dataset.characteristics.counts[family]
        columns = np.array([column[name] for name in dataset.group_names[family]], matrix.indices.dtype)
        # A dataset without documents has one column without a name and without entries.
        shape = (matrix.shape[0], max(len(column), 1))
        parts.append(csr_array((matrix.data, columns[matrix.indices], matrix.indptr), shape=shape))
    return vstack(parts, format="csr")


def _joined_turns(datasets: Sequence[Dataset]) -> Int64[np.ndarray, " sequence"] | None:
    """The turns of all sequences, dataset after dataset; None if no dataset has turns."""
    turns = [dataset.sequence_turns for dataset in datasets]
    if all(turn is None for turn in turns):
        return None
    none = (np.full(dataset.num_sequences, -1) for dataset in datasets)
    return np.concatenate([no if turn is None else turn for turn, no in zip(turns, none, strict=True)])


def _apart(numbers: Sequence[Int64[np.ndarray, "_ _"]]) -> Int64[np.ndarray, "sequence member"]:
    """The rows of all arrays, padded with -1; numbers >= 0 are shifted so that arrays have no number in common."""
    width, above = max(matrix.shape[1] for matrix in numbers), 0
    rows = []
    for matrix in numbers:
        moved = np.full((len(matrix), width), -1)
        moved[:, : matrix.shape[1]] = np.where(matrix < 0, matrix, matrix + above)
        above = max(above, int(moved.max(initial=-1)) + 1)
        rows.append(moved)
    return np.concatenate(rows)
