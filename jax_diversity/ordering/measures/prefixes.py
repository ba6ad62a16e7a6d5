"""The prefix deviation: the norm of a running sum that begins at the first position."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.measures.windows import Entries, entries, group_sums

_BLOCK_POSITIONS = 1024
_DENSE_ENTRIES = 4_000_000
# A norm is computed from D itself if it is below this part of a sequence length, or of the largest norm in its block.
_SMALL = 0.05


def prefix_deviation(
    placed: csr_array,
    tokens: Int64[np.ndarray, " sequence"],
    target: Float64[np.ndarray, " group"],
    sequence_length: int,
    advance: Advance = ignore,
    before: tuple[Int64[np.ndarray, " group"], int, Float64[np.ndarray, " group"]] | None = None,
) -> Float64[np.ndarray, " sequence"]:
    """Compute the norm of the summed excess D after every position, in sequence lengths.

    Running sums are exact integers, so errors do not add up over any number of positions. Within a block of positions,
    `||D + v||² = ||D||² + 2<D, v> + ||v||²` needs D only at the groups of v and along τ. If the norm is so small that
    this formula loses digits, the norm is computed from D itself.

    Args:
        placed: token counts (position, group).
        tokens: the number of tokens at every position.
        target: τ.
        sequence_length: L in tokens.
        advance: called with the number of positions done.
        before: the tokens of every group, and of all groups, at earlier positions with this target, and the deviation
            that positions with earlier targets left; None if there are no earlier positions.
    """
    deviations = np.empty(len(tokens))
    sums, total, carried = (np.zeros(len(target), np.int64), 0, np.zeros(len(target))) if before is None else before
    sums = sums.copy()
    for start in range(0, len(tokens), _BLOCK_POSITIONS):
        stop = min(start + _BLOCK_POSITIONS, len(tokens))
        block, block_tokens = entries(placed, start, stop), tokens[start:stop]
        excess = carried + (sums - total * target)
        squares = _block_squares(block, block_tokens, excess, target)
        norms = np.sqrt(np.maximum(squares, 0.0))
        # A small norm is a difference of large squares and may consist of rounding errors, so we compute it again with
        # dense rows. D is a running sum, so we need all positions up to the last position with a small norm.
        small = norms <= _SMALL * max(sequence_length, norms.max(initial=0.0))
        if small.any():
            last = int(np.flatnonzero(small)[-1]) + 1
            exact = _dense_norms(placed, tokens, start, start + last, sums, total, target, carried)
            norms[:last] = np.where(small[:last], exact, norms[:last])
        deviations[start:stop] = norms
        sums += group_sums(block, len(target))
        total += int(block_tokens.sum())
        advance(stop - start)
    return deviations / sequence_length


def _block_squares(
    block: Entries,
    tokens: Int64[np.ndarray, " position"],
    excess: Float64[np.ndarray, " group"],
    target: Float64[np.ndarray, " group"],
) -> Float64[np.ndarray, " position"]:
    """Compute `||D||²` after every position of a block; D before the block is `excess`."""
    length = len(tokens)
    # v = c - τ t is not sparse, but τ is the same at every position: <D, v> = <D, c> - t <D, τ>. The first term needs
    # only the non-zeros; the second term is one running number.
    tokens_before = np.cumsum(tokens) - tokens
    share = target[block.group]
    deviation = excess[block.group] + _counts_before(block) - share * tokens_before[block.position]
    pulled = np.bincount(block.position, weights=block.tokens * deviation, minlength=length)
    along = np.bincount(block.position, weights=block.tokens * share, minlength=length)
    squares = np.bincount(block.position, weights=block.tokens.astype(np.float64) ** 2, minlength=length)
    target_square = target @ target
    # `level` is <D, τ> before every position; at each position it changes by <v, τ> = <c, τ> - t ||τ||².
    steps = along - tokens * target_square
    level = target @ excess + np.cumsum(steps) - steps
    own_squares = squares - 2 * tokens * along + tokens.astype(np.float64) ** 2 * target_square
    return excess @ excess + np.cumsum(2 * (pulled - tokens * level) + own_squares)


def _counts_before(block: Entries) -> Int64[np.ndarray, " nonzero"]:
    """For each non-zero, count the tokens of its group at earlier positions of the block."""
    # The sort is stable, so the non-zeros of a group stay in the order of positions. The running sum, minus its value
    # at the first non-zero of the group, is the number of earlier tokens of the group.
    # NumPy sorts 16-bit integers by radix, several times as fast as wider ones.
    few = block.group.max(initial=0) < 1 << 16
    order = np.argsort(block.group.astype(np.uint16) if few else block.group, kind="stable")
    groups, tokens = block.group[order], block.tokens[order]
    before = np.cumsum(tokens) - tokens
    first = np.flatnonzero(np.diff(groups, prepend=-1))
    before -= np.repeat(before[first], np.diff(first, append=len(groups)))
    counts = np.empty_like(before)
    counts[order] = before
    return counts


def _dense_norms(
    placed: csr_array,
    tokens: Int64[np.ndarray, " sequence"],
    start: int,
    stop: int,
    sums: Int64[np.ndarray, " group"],
    total: int,
    target: Float64[np.ndarray, " group"],
    carried: Float64[np.ndarray, " group"],
) -> Float64[np.ndarray, " position"]:
    """Compute `||D||` after the positions from `start` up to `stop` from all elements of D."""
    # We use smaller blocks: with 100,000 groups, the 1,024 dense rows of a block would be 800 MB.
    norms = np.empty(stop - start)
    step = max(1, _DENSE_ENTRIES // len(target))
    for first in range(start, stop, step):
        last = min(first + step, stop)
        rows = entries(placed, first, last)
        running = np.zeros((last - first, len(target)), np.int64)
        running[rows.position, rows.group] = rows.tokens
        running = sums + np.cumsum(running, axis=0)  # integers, so errors do not add up
        running_tokens = total + np.cumsum(tokens[first:last])
        excess = carried + (running - running_tokens[:, None] * target)
        norms[first - start : last - start] = np.sqrt(np.einsum("sg,sg->s", excess, excess))
        sums, total = running[-1], int(running_tokens[-1])
    return norms
