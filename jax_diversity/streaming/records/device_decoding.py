"""Make the arrays for training on a device, from the rows of `decoding.stored_rows`.

They equal the arrays of `decoding.decode`. A row of 2,048 tokens of two bytes takes 4.4 KB; its six int32 arrays take
48 KB. So about a tenth of the bytes is transferred to a device, and the host only copies. Every row is independent of
the others, so the devices do not communicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer, Shaped, UInt8

from jax_diversity.streaming.records.codec import padding_mark
from jax_diversity.streaming.records.decoding import FIELDS


def expand(
    tokens: Integer[Array, "row column"],
    starts: UInt8[Array, "row byte"],
    loss_mask: UInt8[Array, "row byte"] | None = None,
    *,
    fields: Sequence[str] = FIELDS,
    merge_segments: bool = False,
    dtype: Any = "int32",
    columns: tuple[int, int] | None = None,
) -> dict[str, Shaped[Array, "row token"]]:
    """Make the arrays of `decode` from stored rows, with the same values.

    Rows of zeros give rows of zeros: they fill the last batch.

    Args:
        tokens: L + 1 tokens of every row.
        starts: one bit per place: whether a segment or a run of padding starts there.
        loss_mask: one bit per place: whether its token counts towards the loss. None masks no target.
        fields: the fields to make.
        merge_segments: join the segments of a row into one segment.
        dtype: the type of the arrays.
        columns: the first column to make and the column after the last; None makes all L.
    """
    arrays = _arrays(tokens, starts, loss_mask, tuple(fields), merge_segments, dtype, columns or (0, None))
    return dict(zip(fields, arrays, strict=True))  # compiled functions return dicts with sorted names


@partial(jax.jit, static_argnums=(3, 4, 5, 6))
def _arrays(
    tokens: Array,
    starts: Array,
    loss_mask: Array | None,
    fields: tuple[str, ...],
    merge_segments: bool,
    dtype: Any,
    columns: tuple[int, int | None],
) -> list[Array]:
    num_places = tokens.shape[1]
    place = jax.lax.broadcasted_iota(jnp.int32, tokens.shape, 1)
    begins = _unpacked(starts, num_places)
    is_padding = begins & (tokens == padding_mark(tokens.dtype))
    values = jnp.where(is_padding, 0, tokens).astype(jnp.int32)
    # A place belongs to the run with the last start before it. The number of a run is twice its start, plus 1 for a
    # segment, so that one maximum over the places before gives the start and the kind.
    run = jax.lax.cummax(jnp.where(begins, 2 * place + ~is_padding, 0), axis=1)
    in_segment = run & 1
    if merge_segments:  # a segment is joined to the segment directly before it
        begins &= is_padding | (jnp.pad(in_segment, ((0, 0), (1, 0)))[:, :-1] == 0)
        number, position = in_segment, place * in_segment
    else:
        number = jnp.cumsum(begins & ~is_padding, axis=1, dtype=jnp.int32) * in_segment
        position = (place - (run >> 1)) * in_segment
    has_target = ~begins[:, 1:]  # the last token of a run has no next token
    targets_segmentation = number[:, :-1] * has_target
    if loss_mask is not None:
        targets_segmentation *= _unpacked(loss_mask, num_places)[:, 1:]
    batch = {
        "inputs": values[:, :-1],
        "targets": values[:, 1:] * has_target,
        "inputs_segmentation": number[:, :-1],
        "targets_segmentation": targets_segmentation,
        "inputs_position": position[:, :-1],
        "targets_position": position[:, :-1],
    }
    return [batch[field][:, slice(*columns)].astype(dtype) for field in fields]


def _unpacked(bits: UInt8[Array, "row byte"], count: int) -> Array:
    return jnp.unpackbits(bits, axis=1, count=count, bitorder="little").astype(jnp.bool_)
