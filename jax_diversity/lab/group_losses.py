"""Sum losses by group within a jitted step. A group is one value of a family; a token has the group of its segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32, Int64

from jax_diversity.characteristics.stored import documents_file
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments

if TYPE_CHECKING:
    from jax_diversity.dataset import Dataset


def group_losses(
    losses: Float[Array, "row token"],
    segmentation: Int[Array, "row token"],
    groups: Int[Array, "row segment"],
    num_groups: int,
) -> tuple[Float[Array, " group"], Float[Array, " group"]]:
    """Sum the losses of a batch's target tokens by the groups of their segments.

    It can be called within `jax.jit`, with `num_groups` static. The sums add up to the loss of all targets, except for
    rounding.

    Args:
        losses: the loss of every token, in nats.
        segmentation: `targets_segmentation` of the batch: segment numbers from 1, 0 where a token has no target.
        groups: the group of every segment, in the order of the segments' numbers; see `segment_groups`.
        num_groups: number of groups of the family.

    Returns:
        The summed loss of every group, and its number of target tokens.

    Example:
        >>> losses = jnp.array([[1.0, 2.0, 4.0, 8.0]])
        >>> sums, counts = group_losses(losses, jnp.array([[1, 1, 2, 0]]), jnp.array([[1, 0]]), 2)
        >>> sums.tolist(), counts.tolist()
        ([4.0, 3.0], [1.0, 2.0])
    """
    group = jnp.take_along_axis(groups, jnp.maximum(segmentation - 1, 0), axis=1)
    # Tokens without a target are added to an extra group, which is dropped.
    group = jnp.where(segmentation > 0, group, num_groups).reshape(-1)
    sums = jnp.zeros(num_groups + 1, jnp.float32).at[group].add(losses.reshape(-1).astype(jnp.float32))
    counts = jnp.zeros(num_groups + 1, jnp.float32).at[group].add(1.0)
    return sums[:num_groups], counts[:num_groups]


def segment_groups(
    dataset: Dataset, family: str, sequences: Int64[np.ndarray, " row"]
) -> Int32[np.ndarray, "row segment"]:
    """Return the group of each segment of some training sequences; entries after a sequence's last segment are 0.

    The width is the largest number of segments of a sequence in the whole dataset, so that all batches have one shape.

    Args:
        dataset: a built dataset.
        family: a family in which a document has one group: source, language, cluster ...
        sequences: indices of training sequences, such as `ordering.indices[:64]`.

    Raises:
        UserError: a family or sequence is unknown.

    Example:
        >>> groups = segment_groups(dataset, "source", ordering.indices[position : position + 64])
    """
    segments, rows = dataset.segments, np.asarray(sequences)
    if len(rows) and not 0 <= rows.min() <= rows.max() < segments.num_sequences:
        raise UserError(f"Expected sequences below {segments.num_sequences}, found {rows.min()} to {rows.max()}.")
    return groups_of_segments(segments, document_codes(dataset, family), rows)


def groups_of_segments(
    segments: Segments, codes: Int64[np.ndarray, " document"], sequences: Int64[np.ndarray, " row"]
) -> Int32[np.ndarray, "row segment"]:
    """Like `segment_groups`, for any packing and any groups of its documents."""
    number = np.bincount(segments.sequence_index, minlength=segments.num_sequences)
    start = np.cumsum(number) - number
    column = np.arange(number.max(initial=1))
    held = column < number[sequences][:, None]
    places = np.where(held, start[sequences][:, None] + column, 0)
    return np.where(held, codes[segments.document_index[places]], 0).astype(np.int32)


def document_codes(dataset: Dataset, family: str) -> Int64[np.ndarray, " document"]:
    """Every document's group in a family, numbered as in `dataset.group_names[family]`.

    Raises:
        UserError: the family is unknown, or a document may have several groups in it.
    """
    import pyarrow.parquet as pq

    if family not in dataset.group_names:
        raise UserError(f"Expected a family among {', '.join(dataset.group_names)}, found {family!r}.")
    path = documents_file(dataset.stored)
    name = {"length": "length_bin"}.get(family, family)
    if name not in pq.read_schema(path).names:
        raise UserError(f"Expected a family with one group for each document, such as source, found {family!r}.")
    column = pq.read_table(path, columns=[name])[name]
    if family == "length" or family.startswith("cluster"):
        return column.to_numpy().astype(np.int64)  # the column contains the groups' numbers
    places = {name: place for place, name in enumerate(dataset.group_names[family])}
    # Rare values have the common group `(other)`, missing values the group `unknown`.
    rare = places.get("(other)", 0)
    values = column.to_pylist()
    return np.array([places.get("unknown" if value is None else str(value), rare) for value in values], np.int64)
