"""Rows in the order of positions, and blocks of them: what all measures walk over."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, Integer
from scipy.sparse import csr_array

_BLOCK_POSITIONS = 1 << 18


class Entries(NamedTuple):
    """The non-zeros of consecutive positions; `position` counts from the first of them."""

    position: Int64[np.ndarray, " nonzero"]
    group: Integer[np.ndarray, " nonzero"]
    tokens: Int64[np.ndarray, " nonzero"]


def place(counts: csr_array, indices: Int64[np.ndarray, " position"]) -> csr_array:
    """Rows (sequence, group) in the order of positions (position, group), in the narrowest types that hold them."""
    widths = np.diff(counts.indptr)
    starts = np.zeros(len(indices) + 1, np.int64)
    np.cumsum(widths[indices], out=starts[1:])
    index_type = np.int32 if max(starts[-1], counts.shape[1]) < 2**31 else np.int64
    groups = np.empty(starts[-1], index_type)
    tokens = np.empty(starts[-1], np.int32 if counts.data.max(initial=0) < 2**31 else np.int64)
    for first in range(0, len(indices), _BLOCK_POSITIONS):
        chosen = indices[first : first + _BLOCK_POSITIONS]
        begin, end = starts[first], starts[first + len(chosen)]
        shifts = counts.indptr[chosen] - starts[first : first + len(chosen)]
        source = np.arange(begin, end) + np.repeat(shifts, widths[chosen])
        groups[begin:end] = counts.indices[source]
        tokens[begin:end] = counts.data[source]
    return csr_array((tokens, groups, starts.astype(index_type)), shape=(len(indices), counts.shape[1]))


def entries(placed: csr_array, start: int, stop: int) -> Entries:
    """The non-zeros of the positions from `start` up to `stop`."""
    bounds = placed.indptr[start : stop + 1]
    begin, end = bounds[0], bounds[-1]
    position = np.repeat(np.arange(stop - start), np.diff(bounds))
    return Entries(position, placed.indices[begin:end], placed.data[begin:end].astype(np.int64))


def group_sums(block: Entries, num_groups: int) -> Int64[np.ndarray, " group"]:
    """Tokens of every group, exact."""
    sums = np.zeros(num_groups, np.int64)
    np.add.at(sums, block.group, block.tokens)
    return sums


def cumulative_tokens(placed: csr_array) -> Int64[np.ndarray, " boundary"]:
    """Tokens before every position, and of all: (num_positions + 1,)."""
    totals = np.zeros(placed.shape[0] + 1, np.int64)
    done = 0
    for start in range(0, placed.shape[0], _BLOCK_POSITIONS):
        stop = min(start + _BLOCK_POSITIONS, placed.shape[0])
        bounds = placed.indptr[start : stop + 1]
        running = np.zeros(bounds[-1] - bounds[0] + 1, np.int64)
        np.cumsum(placed.data[bounds[0] : bounds[-1]], dtype=np.int64, out=running[1:])
        totals[start : stop + 1] = done + running[bounds - bounds[0]]
        done = int(totals[stop])
    return totals
