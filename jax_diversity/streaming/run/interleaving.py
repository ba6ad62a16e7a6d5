"""Choose a dataset for every position: always the dataset that is furthest below its share.

The weights w are normalised, steps i count from 0, and `count_d` is the number of positions of dataset d so far:

    nearest:   next = arg max_d  w_d (i + 1) - count_d         ties to the lowest index
    megatron:  next = arg max_d  w_d max(i, 1) - count_d       ties to the lowest index

The lag of a dataset is the difference that is maximised: its wanted minus its actual number of positions. The rule
`nearest` computes the lag at the *end* of the step. The rule `megatron` is that of Megatron-LM's blended
datasets (`build_blending_indices` in its `helpers.cpp`), which computes the lag at the beginning: deviations from the
shares are larger (in trials of 3 to 20 datasets up to 1.8 positions instead of 1.2). If weights change during training,
the share of a dataset after t positions is the running sum of its weights, `Σ_{i<t} w_d(i)`, instead of `w_d t`. Unlike
in Megatron, a dataset is never chosen while its weight is zero, even if it is below its share.

Short plans are computed by a loop in NumPy, long ones by a compiled program with the same arithmetic in float64: their
lags are equal to the last bit. With many datasets a step does not check all of them. Within a block of steps a lag
grows at most by its share, so that only the datasets with the largest lags at the block's end can be chosen. The
program computes only these lags. After the block it checks that no other dataset could have been chosen; otherwise it
repeats the block with all datasets.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float64, Int32, Int64

from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.deviation import rounded_size
from jax_diversity.streaming.run.settings import Rule

_LOOKAHEAD: dict[Rule, int] = {"nearest": 1, "megatron": 0}
"""Rule -> the number of steps after the current one at which the lag is computed, with the current weights."""

# Shorter plans use a loop in NumPy, which takes 2 µs per step and needs no compilation.
_SHORT = 1 << 18
_STEPS_PER_ADVANCE = 1 << 16
_STEPS_PER_CALL = 1 << 20
_STEPS_PER_BLOCK = 64
_CANDIDATES = 128
_HALVINGS = 10
_NOBODY = np.iinfo(np.int32).max


def interleave(
    starts: Sequence[int],
    phases: Float64[np.ndarray, "phase dataset"],
    num_positions: int,
    rule: Rule = "nearest",
    advance: Advance = ignore,
) -> Int64[np.ndarray, " position"]:
    """The dataset at every position: always the dataset that is furthest below its share.

    The rule `megatron` gives the sequence of Megatron-LM, position by position. A position takes 0.05 µs with ten
    datasets, 0.9 µs with 1,000, and 2 µs in plans of fewer than 260,000 positions. When weights change, the lags are
    kept, so that they are still corrected.

    Args:
        starts: the first positions of the phases.
        phases: the shares of every phase, which add up to 1; see `weights.phases_of`.
        num_positions: number of positions.
        rule: how the lags are computed.
        advance: called with the number of positions done.

    Example:
        >>> interleave(*phases_of([3, 1]), 8).tolist()
        [0, 0, 1, 0, 0, 0, 1, 0]
        >>> interleave(*phases_of([3, 1]), 8, "megatron").tolist()
        [0, 1, 0, 0, 0, 1, 0, 0]
    """
    due, counts = np.zeros(phases.shape[1]), np.zeros(phases.shape[1])
    chosen = np.empty(num_positions, np.int64)
    ends = [min(stop, num_positions) for stop in (*starts[1:], num_positions)]
    for first, end, weights in zip(starts, ends, phases, strict=True):
        # Datasets of weight zero are left out of the arg-max: a lag from an earlier phase could be the largest.
        blended = np.flatnonzero(weights)
        follow = _short if end - first < _SHORT or not _has_processor() else _long
        shares, before = weights[blended], due[blended]
        choices = np.zeros(max(end - first, 0), np.int64)
        if len(blended) > 1:
            choices = follow(shares, before, counts[blended], first, max(end, first), _LOOKAHEAD[rule], advance)
        chosen[first:end] = blended[choices]
        counts += np.bincount(chosen[first:end], minlength=len(counts))
        # A phase that begins after the last position has no steps.
        due += weights * max(end - first, 0)
    return chosen


def _has_processor() -> bool:
    """Whether JAX can use the CPU (in addition to an accelerator)."""
    try:
        return bool(jax.local_devices(backend="cpu"))
    except RuntimeError:  # JAX_PLATFORMS names accelerators only
        return False


def _short(
    shares: np.ndarray, before: np.ndarray, counts: np.ndarray, first: int, end: int, lookahead: int, advance: Advance
) -> Int64[np.ndarray, " step"]:
    assigned, lags = counts.copy(), np.zeros(len(shares))
    chosen = np.empty(end - first, np.int64)
    for start in range(first, end, _STEPS_PER_ADVANCE):
        stop = min(start + _STEPS_PER_ADVANCE, end)
        for step in range(start, stop):
            # Lags are computed from the step number, not from the previous lags: rounding errors do not add up, and
            # equal lags are equal to the last bit, so that ties go to the lowest index.
            np.multiply(shares, max(step + lookahead, 1) - first, out=lags)
            np.add(lags, before, out=lags)
            np.subtract(lags, assigned, out=lags)
            most = lags.argmax()
            assigned[most] += 1.0
            chosen[step - first] = most
        advance(stop - start)
    return chosen


def _long(
    shares: np.ndarray, before: np.ndarray, counts: np.ndarray, first: int, end: int, lookahead: int, advance: Advance
) -> Int64[np.ndarray, " step"]:
    size = rounded_size(len(shares))
    missing = (0, size - len(shares))
    parts = []
    # Without x64 the lags would be float32, which cannot hold ten million steps.
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        own_shares, assigned = jnp.asarray(np.pad(shares, missing)), jnp.asarray(np.pad(counts, missing))
        # The padding is never chosen.
        own_before = jnp.asarray(np.pad(before, missing, constant_values=-np.inf))
        for start in range(first, end, _STEPS_PER_CALL):
            stop = min(start + _STEPS_PER_CALL, end)
            places = [jnp.asarray(np.int64(place)) for place in (first, start, stop, lookahead)]
            assigned, chosen = _steps(own_shares, own_before, assigned, *places, jnp.asarray(np.float64(0)))
            parts.append(np.asarray(chosen)[: stop - start].astype(np.int64))
            advance(stop - start)
    return np.concatenate(parts)


@jax.jit
def _steps(
    shares: Float[Array, " dataset"],
    before: Float[Array, " dataset"],
    assigned: Float[Array, " dataset"],
    first: Array,
    start: Array,
    stop: Array,
    lookahead: Array,
    zero: Array,
) -> tuple[Float[Array, " dataset"], Int32[Array, " step"]]:
    """The new number of positions of each dataset, and the datasets of the steps from `start` to `stop - 1`."""
    follow = functools.partial(_block, first=first, lookahead=lookahead, zero=zero)

    def all_of(step: Array, assigned: Array) -> tuple[Array, Array]:
        assigned, chosen, _ = follow(shares, before, assigned, step, stop)
        return assigned, chosen

    def block(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        assigned, chosen = carry
        step = start + index * _STEPS_PER_BLOCK
        if len(shares) <= _CANDIDATES:
            assigned, choices = all_of(step, assigned)
        else:
            last = jnp.minimum(step + _STEPS_PER_BLOCK, stop) - 1
            candidates, bound = _largest(_lags(shares, before, assigned, last, first, lookahead, zero))
            some = jnp.minimum(candidates, len(shares) - 1)
            lags_of = jnp.where(candidates < len(shares), before[some], -jnp.inf)
            assigned_to_some, local, least = follow(shares[some], lags_of, assigned[some], step, stop)
            of_some = assigned.at[candidates].set(assigned_to_some, mode="drop"), candidates[local]
            # A dataset that was left out has a lag of at most `bound` within the block.
            assigned, choices = lax.cond(least > bound, lambda: of_some, lambda: all_of(step, assigned))
        return assigned, lax.dynamic_update_slice(chosen, choices, (index * _STEPS_PER_BLOCK,))

    chosen = jnp.zeros(_STEPS_PER_CALL + _STEPS_PER_BLOCK, jnp.int32)
    num_blocks = -(-(stop - start) // _STEPS_PER_BLOCK)
    return lax.fori_loop(0, num_blocks, block, (assigned, chosen))


def _lags(
    shares: Array, before: Array, assigned: Array, step: Array, first: Array, lookahead: Array, zero: Array
) -> Array:
    # `zero` is an argument, so that the compiler cannot fuse product and sum, which would be rounded only once.
    due = shares * (jnp.maximum(step + lookahead, 1) - first).astype(shares.dtype) + zero
    return due + before - assigned


def _block(
    shares: Array,
    before: Array,
    assigned: Array,
    start: Array,
    stop: Array,
    *,
    first: Array,
    lookahead: Array,
    zero: Array,
) -> tuple[Array, Int32[Array, " step"], Array]:
    """One block of steps: the new counts, the dataset of every step, and the smallest lag that was chosen."""
    index = jnp.arange(len(shares), dtype=jnp.int32)

    def step(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        assigned, chosen, least = carry
        lags = _lags(shares, before, assigned, start + number, first, lookahead, zero)
        # `argmax` is slow on CPUs. Two simple reductions replace it; the second finds the lowest index.
        best = jnp.max(lags)
        most = jnp.min(jnp.where(lags == best, index, _NOBODY))
        return assigned.at[most].add(1.0), chosen.at[number].set(most), jnp.minimum(least, best)

    nothing = (assigned, jnp.zeros(_STEPS_PER_BLOCK, jnp.int32), jnp.full((), jnp.inf, shares.dtype))
    return lax.fori_loop(0, jnp.minimum(_STEPS_PER_BLOCK, stop - start), step, nothing)


def _largest(lags: Float[Array, " dataset"]) -> tuple[Int32[Array, " candidate"], Array]:
    """The datasets with the largest lags, ascending and padded with an index past the end; the largest other lag."""

    def halved(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = 0.5 * (low + high)
        too_many = jnp.sum(lags >= middle) > _CANDIDATES
        return jnp.where(too_many, middle, low), jnp.where(too_many, high, middle)

    lowest = jnp.min(jnp.where(jnp.isfinite(lags), lags, jnp.inf))
    _, least = lax.fori_loop(0, _HALVINGS, halved, (lowest, jnp.max(lags)))
    inside = lags >= least
    place = jnp.where(inside, jnp.cumsum(inside.astype(jnp.int32)) - 1, _CANDIDATES)
    index = jnp.arange(len(lags), dtype=jnp.int32)
    candidates = jnp.full(_CANDIDATES, len(lags), jnp.int32).at[place].set(index, mode="drop")
    # There can be more equal lags than places; lags without a place are left out.
    left_out = ~inside | (place >= _CANDIDATES)
    return candidates, jnp.max(jnp.where(left_out, lags, -jnp.inf))
