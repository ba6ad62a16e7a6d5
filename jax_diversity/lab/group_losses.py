"""Sum losses by group within a jitted step. A group is one value of a family; a token has the group of its segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Int32, Int64

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.wording import counted
from jax_diversity.schema import Segments
from jax_diversity.sequences.characteristics.stored import DOCUMENTS

if TYPE_CHECKING:
    from jax_diversity.streaming.dataset import Dataset

_COLUMNS = {"length": "length_bin"}  # of the table of the documents, where it is not the family's name


def group_losses(
    losses: Float[Array, "row token"],
    segmentation: Int[Array, "row token"],
    groups: Int[Array, "row segment"],
    num_groups: int,
) -> tuple[Float[Array, " group"], Float[Array, " group"]]:
    """Sum the losses of a batch's target tokens by the groups of their segments.

    It can be called within `jax.jit`, with `num_groups` static. The sums add up to the loss of all targets, except for
    rounding. Within `jax.jit` the numbers are not known: there all sums are NaN if a target's segment or its group does
    not exist.

    Args:
        losses: the loss of every token, in nats.
        segmentation: `targets_segmentation` of the batch: segment numbers from 1, 0 where a token has no target.
        groups: the group of every segment, in the order of the segments' numbers; see `segment_groups`.
        num_groups: number of groups of the family.

    Returns:
        The summed loss of every group, and its number of target tokens.

    Raises:
        UserError: arrays of shapes that do not belong together; a target of a segment without a group, or of a group
            that is not one of the `num_groups`.

    Example:
        >>> losses = jnp.array([[1.0, 2.0, 4.0, 8.0]])
        >>> sums, counts = group_losses(losses, jnp.array([[1, 1, 2, 0]]), jnp.array([[1, 0]]), 2)
        >>> sums.tolist(), counts.tolist()
        ([4.0, 3.0], [1.0, 2.0])
    """
    num_groups = as_whole_number("num_groups", num_groups, 1)
    shapes = [np.shape(array) for array in (losses, segmentation, groups)]
    if len(shapes[0]) != 2 or shapes[0] != shapes[1] or len(shapes[2]) != 2 or shapes[2][:1] != shapes[0][:1]:
        raise UserError(
            "Expected losses (row, token), targets_segmentation (row, token) and groups (row, segment) of the same "
            f"rows, found the shapes {', '.join(map(str, shapes))}."
        )
    losses, segmentation, groups = (jnp.asarray(array) for array in (losses, segmentation, groups))
    width = groups.shape[1]
    group = jnp.take_along_axis(jnp.pad(groups, ((0, 0), (0, 1))), jnp.clip(segmentation - 1, 0, width), axis=1)
    is_target = segmentation > 0
    is_wrong = (segmentation < 0) | (segmentation > width) | (is_target & ((group < 0) | (group >= num_groups)))
    if not isinstance(is_wrong, Tracer) and (number := int(is_wrong.sum())):
        raise UserError(
            f"Expected targets of the {width} segments of a row and of the {num_groups} groups, found "
            f"{counted(number, 'target')} of other ones; give segment_groups(...) of the batch's own sequences."
        )
    # Tokens without a target are added to an extra group, which is dropped.
    group = jnp.where(is_target, group.clip(0, num_groups), num_groups).reshape(-1)
    sums = jnp.zeros(num_groups + 1, jnp.float32).at[group].add(losses.reshape(-1).astype(jnp.float32))
    counts = jnp.zeros(num_groups + 1, jnp.float32).at[group].add(1.0)
    return jnp.where(is_wrong.any(), jnp.nan, sums[:num_groups]), counts[:num_groups]


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
    is_held = column < number[sequences][:, None]
    places = np.where(is_held, start[sequences][:, None] + column, 0)
    return np.where(is_held, codes[segments.document_index[places]], 0).astype(np.int32)


def document_families(dataset: Dataset) -> tuple[str, ...]:
    """The families in which a document has one group, such as `source`, and not several or one of copies."""
    columns = _columns(dataset)
    return tuple(f for f in dataset.group_names if _COLUMNS.get(f, f) in columns and f != "duplicate")


def document_codes(dataset: Dataset, family: str) -> Int64[np.ndarray, " document"]:
    """Every document's group in a family, numbered as in `dataset.group_names[family]`.

    Raises:
        UserError: the family is unknown, or a document may have several groups in it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if family not in dataset.group_names:
        raise UserError(f"Expected a family among {', '.join(dataset.group_names)}, found {family!r}.")
    name = _COLUMNS.get(family, family)
    if name not in _columns(dataset):
        raise UserError(f"Expected a family with one group for each document, such as source, found {family!r}.")
    column = pq.read_table(DOCUMENTS.path(dataset.stored), columns=[name])[name]
    if family == "length" or family.startswith("cluster"):
        return column.to_numpy().astype(np.int64)  # the column contains the groups' numbers
    names = dataset.group_names[family]
    # Rare values have the common group `(other)`, missing values the group `unknown`.
    values = column.cast(pa.string()).fill_null("unknown").dictionary_encode().combine_chunks()
    places = {name: place for place, name in enumerate(names)}
    rare = places.get("(other)", 0)
    of_values = np.array([places.get(value, rare) for value in values.dictionary.to_pylist()], np.int64)
    return of_values[values.indices.to_numpy()]


def _columns(dataset: Dataset) -> list[str]:
    import pyarrow.parquet as pq

    return pq.read_schema(DOCUMENTS.path(dataset.stored)).names
