"""The tables that the exact greedy reads: rows bucketed by their number of non-zeros, each table transposed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float32, Int32, Int64

from jax_diversity.ordering.deviation import padded, rounded_size
from jax_diversity.ordering.mesh import NOBODY
from jax_diversity.ordering.objective import Features

UNPLACEABLE = np.float32(np.inf)

WidthGroup = tuple[int, Int64[np.ndarray, " _member"]]
"""A table's width and the sequences that share it."""


class Bucket(NamedTuple):
    """Sequences of about as many non-zeros, as one transposed table; ascending sequence indices."""

    columns: Int32[Array, "feature row"]
    values: Float32[Array, "feature row"]
    norms: Float32[Array, " row"]
    tokens: Float32[Array, " row"]
    sequence_index: Int32[Array, " row"]


class Candidates(NamedTuple):
    """The sequences left, bucketed, and where each is."""

    buckets: tuple[Bucket, ...]
    bucket_of: Int32[Array, " sequence"]
    row_of: Int32[Array, " sequence"]


def group_by_width(
    features: Features, remaining: Int64[np.ndarray, " row"], gathers_per_table: int
) -> list[WidthGroup]:
    """Split the remaining sequences into those that share a table, so that a step costs least.

    Args:
        features: every sequence's non-zeros.
        remaining: the sequences to split.
        gathers_per_table: what a table costs besides its gathers, in gathers.
    """
    nonzeros_left = np.maximum(np.diff(features.row_starts)[remaining], 1)
    return [
        (width, remaining[(nonzeros_left > above) & (nonzeros_left <= width)])
        for above, width in _partition(nonzeros_left, gathers_per_table)
    ]


def build_candidates(features: Features, groups: list[WidthGroup], device: int = 0, num_devices: int = 1) -> Candidates:
    """One device's share of the groups' sequences, in tables of one size on all devices.

    Of W devices number d holds the sequences d, W + d, 2 W + d ...; it knows them as 0, 1, 2 ...
    """
    num_own = rounded_size(-(-features.num_sequences // num_devices))
    bucket_of = np.zeros(num_own, np.int32)
    row_of = np.zeros(num_own, np.int32)
    buckets = []
    for width, members in groups:
        owners = members % num_devices
        own = members[owners == device]
        num_rows = rounded_size(int(np.bincount(owners).max()))
        bucket_of[own // num_devices] = len(buckets)
        row_of[own // num_devices] = np.arange(len(own))
        buckets.append(_bucket(features, own, rounded_size(width), num_rows))
    return Candidates(tuple(buckets), jax.device_put(bucket_of), jax.device_put(row_of))


def _partition(nonzeros: Int64[np.ndarray, " row"], gathers_per_table: int) -> list[tuple[int, int]]:
    """Ranges (above, up to) of non-zeros that share a table, so that a step reads least.

    A table of r rows, w wide, costs r w gathers and a few kernel launches; the cheapest cut of the sorted widths
    is found by dynamic programming.
    """
    widths, counts = np.unique(nonzeros, return_counts=True)
    rows_up_to = np.concatenate([[0], np.cumsum(counts)])
    cheapest, cut = [0.0], [0]
    for last in range(1, len(widths) + 1):
        costs = [
            cheapest[first] + (rows_up_to[last] - rows_up_to[first]) * widths[last - 1] + gathers_per_table
            for first in range(last)
        ]
        cut.append(int(np.argmin(costs)))
        cheapest.append(costs[cut[-1]])
    ranges, last = [], len(widths)
    while last:
        first = cut[last]
        ranges.append((int(widths[first - 1]) if first else 0, int(widths[last - 1])))
        last = first
    return ranges[::-1]


def _bucket(features: Features, members: Int64[np.ndarray, " row"], width: int, num_rows: int) -> Bucket:
    starts, ends = features.row_starts[members], features.row_starts[members + 1]
    slots = starts[None, :] + np.arange(width)[:, None]
    used = slots < ends[None, :]
    slots = np.where(used, slots, 0)
    columns = np.zeros((width, num_rows), np.int32)
    values = np.zeros((width, num_rows), np.float32)
    if len(features.columns):
        columns[:, : len(members)] = np.where(used, features.columns[slots], 0)
        values[:, : len(members)] = np.where(used, features.values[slots], 0)
    return Bucket(
        columns=jax.device_put(columns),
        values=jax.device_put(values),
        norms=padded(features.norms[members], num_rows),
        tokens=padded(features.tokens[members].astype(np.float32), num_rows),
        sequence_index=padded(members.astype(np.int32), num_rows, fill=NOBODY),
    )


def bucketed(candidates: Candidates, costs: Float32[np.ndarray, " sequence"]) -> tuple[Float32[Array, " _row"], ...]:
    """Costs of all sequences, as the buckets hold them; infinite where a bucket is padded."""
    by_bucket = []
    for bucket in candidates.buckets:
        members = np.asarray(bucket.sequence_index)
        own = np.full(len(members), UNPLACEABLE, np.float32)
        real = members < len(costs)
        own[real] = costs[members[real]]
        by_bucket.append(jax.device_put(own))
    return tuple(by_bucket)
