"""Sorted halving: makes, in linear time, a stream in which any few hundred consecutive sequences are balanced.

Sequences are sorted by their heaviest group: the group that has the most tokens in the sequence. To halve a block, the
method walks over its pairs of neighbours. It puts one sequence of each pair into the left half and the other into the
right half, so that the running signed sum of their excesses stays small. (An excess is a sequence's token counts minus
its target counts.) Both halves stay sorted and are halved in the same way, down to blocks of about 512. Neighbours are
similar, so each pair changes the sum only a little. This is a greedy version of the self-balancing walk of Alweiss, Liu
and Sawhney (https://arxiv.org/abs/2006.14009), which chooses signs of vectors so that their sums stay small.

- The walk of a block starts at `D_start + D_end`, the deviations at the block's two ends. S is the signed sum of the
  pairs. The walk ends at `D_start + D_end + S`, which is twice the deviation in the middle. The walk keeps this final
  sum small, so that errors of earlier levels do not add up.
- Several *lanes* walk over a block at once, each over a part of its pairs. Lanes share the running sum; a lane uses the
  sum of all lanes after the previous step. In the first levels a second sweep chooses every sign again.
- All sums are whole numbers of tokens (the norms are rounded to tokens) far below 2^24. Float32 adds them exactly, in
  any order. (If sequences have different numbers of tokens, the method also uses the sum `target_products`, which is
  rounded.)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float32, Float64, Int8, Int16, Int32, Int64, Integer

from jax_diversity.foundation.compilation import call
from jax_diversity.foundation.devices import processor
from jax_diversity.foundation.processes import in_threads, num_cores
from jax_diversity.ordering.features import Features

# With more lanes, more signs are chosen from an outdated sum. With 64 lanes the deviation is the same as with one lane;
# with 256 it is twice as large.
_LANES_PER_BLOCK = 64
_SMALLEST_BLOCK = 512
# A good division matters most in the first levels, because their blocks are the largest: a second sweep improves it.
_LEVELS_SWEPT_TWICE = 3
# The walk reads only the heaviest groups of a sequence: as many as are needed to contain this share of all tokens.
_COVERED = 0.98
# At most this number of groups: with more, sequences of many groups (such as token ids) would take much longer and be
# balanced no better.
_MOST_GROUPS = 16
# If the stream is cut into parts, the walk reads more groups. No pool corrects the deviation at the cuts: with 64
# groups of token ids, it is a third of the deviation with 16.
_MOST_GROUPS_OF_PARTS = 64
_ENTRIES_PER_BLOCK = 1 << 20


class WalkTable(NamedTuple):
    """The input of a walk, one row for each sequence; the last row is padding and has no tokens."""

    columns: Integer[Array, "row feature"]
    counts: Int16[Array, "row feature"] | Float32[Array, "row feature"]
    tokens: Float32[Array, " row"]
    target_products: Float32[Array, " row"]
    weights: Float32[Array, " column"]
    targets: Float32[Array, " column"]


def balanced_stream(
    features: Features,
    sequences: Int64[np.ndarray, " position"],
    seed: int | Sequence[int],
    num_parts: int = 1,
    carried: Float64[np.ndarray, " column"] | None = None,
    capacity: int = 0,
) -> Int64[np.ndarray, " position"]:
    """Order sequences so that every block of about 512 has nearly the mixture of all given sequences.

    Args:
        features: counts and targets.
        sequences: the sequences to order.
        seed: decides the order among similar sequences and within the last blocks (NumPy's PCG64).
        num_parts: the number of equal parts into which the stream will be cut, a power of two. With several parts, the
            walks read more groups, and threads walk over the blocks of a level.
        carried: the deviation from the features' targets before these sequences, if they are a part of a longer stream.
        capacity: streams with the same capacity use the same compiled programs; at least the number of sequences.
    """
    rng = np.random.default_rng(seed)
    arranged = sequences[sort_by_group(features, sequences, rng)]
    capacity = max(capacity, len(sequences))
    num_levels = max(int(np.log2(max(capacity, 1) / _SMALLEST_BLOCK)), 0)
    if carried is not None:
        carried = np.broadcast_to(carried, ((1 << num_levels) + 1, len(carried)))
    blocks = halve(features, arranged, num_levels, num_parts > 1, carried, capacity)
    # A block is still sorted by group: a random order balances the sequences within it.
    mixed = rng.permuted(blocks, axis=1).ravel()
    return mixed[mixed >= 0]


def sort_by_group(
    features: Features, sequences: Int64[np.ndarray, " position"], rng: np.random.Generator
) -> Int64[np.ndarray, " position"]:
    """Sort positions by the heaviest group (first family), its share, the document and the copies; ties are random."""
    heaviest, most = features.heaviest(next(iter(features.family_columns.values())))
    # Rounded shares have many ties. A shuffle decides the order of ties, so that the pairs depend on the seed.
    eighths = np.round(8 * most / np.maximum(features.tokens, 1)).astype(np.int8)
    shuffled = rng.permutation(len(sequences))
    chosen = sequences[shuffled]
    # Neighbours go to different halves at every level. Therefore a document's sequences are evenly spaced at the end.
    return shuffled[np.lexsort((*features.apart.group[::-1, chosen], eighths[chosen], heaviest[chosen]))]


def build_walk_table(
    features: Features,
    arranged: Int64[np.ndarray, " position"],
    most_groups: int = _MOST_GROUPS,
    targets: Float64[np.ndarray, " column"] | None = None,
    capacity: int = 0,
) -> WalkTable:
    """Make the rows of the arranged sequences, with the norm column, padded to `capacity` rows.

    `targets` are shares and the mean norm; None means those of these sequences.
    """
    num_columns = len(features.targets)
    width = _covering_width(features, arranged, most_groups)
    tokens, norms = features.tokens[arranged], features.norms[arranged].astype(np.float64)
    if targets is None:
        # excess + targets * (tokens, sequences) gives the totals of these sequences. Dividing the totals by the tokens
        # gives the shares.
        targets = features.excess(arranged) + features.targets * np.append(
            np.full(num_columns - 1, tokens.sum()), len(arranged)
        )
        targets /= max(int(tokens.sum()), 1)
        targets[-1] = norms.mean() if len(norms) else 0.0
    # The mean norm is subtracted here, so that the norm column needs no target; rounding keeps its sums exact.
    norms, targets = np.round(norms - targets[-1]), np.append(targets[:-1], 0.0)
    weighted_targets = features.column_weights * targets
    # The table needs more memory than anything else, so it has the narrowest types. The walk adds in float32.
    largest = max(float(features.values.max(initial=0)), float(np.abs(norms).max(initial=0.0)))
    num_padded = max(capacity, len(arranged)) + 1
    columns = np.full((num_padded, width + 1), num_columns - 1, features.columns.dtype)
    counts = np.zeros((num_padded, width + 1), np.int16 if largest < 2**15 else np.float32)
    target_products = np.zeros(num_padded, np.float32)
    longest = int(features.lengths(arranged).max(initial=1))
    num_rows = max(_ENTRIES_PER_BLOCK // longest, 1)

    def fill(first: int) -> None:
        block = slice(first, min(first + num_rows, len(arranged)))
        entries, used = _heaviest_entries(features, arranged[block], width)
        columns[block, :width][used] = features.columns[entries[used]]
        counts[block, :width][used] = features.values[entries[used]]
        counts[block, width] = norms[block]
        target_products[block] = (weighted_targets[columns[block]] * counts[block]).sum(axis=1)

    in_threads(fill, range(0, len(arranged), num_rows))
    # Walks are long loops of small steps: one core takes less time for a step than a GPU for starting its programs. The
    # tables are committed to the processor, so that the walks run there in every thread.
    on_processor = functools.partial(jax.device_put, device=processor())
    return WalkTable(
        columns=on_processor(columns),
        counts=on_processor(counts),
        tokens=on_processor(np.pad(tokens, (0, num_padded - len(tokens))).astype(np.float32)),
        target_products=on_processor(target_products),
        weights=on_processor(features.column_weights.astype(np.float32)),
        targets=on_processor(targets.astype(np.float32)),
    )


def _covering_width(features: Features, rows: Int64[np.ndarray, " row"], most_groups: int = _MOST_GROUPS) -> int:
    """Return the smallest number of heaviest groups per row that contain nearly all tokens, at most `most_groups`."""
    # About 10,000 rows are enough; of wide rows, fewer.
    rows = rows[:: max(len(rows) // 10_000, int(features.lengths(rows).sum()) // _ENTRIES_PER_BLOCK, 1)]
    entries, used = _heaviest_entries(features, rows, most_groups)
    counts = np.zeros(entries.shape)
    counts[used] = features.values[entries[used]]
    cumulative, total = np.cumsum(counts.sum(axis=0)), features.totals(rows).sum()
    covering = int(np.searchsorted(cumulative, _COVERED * total)) + 1 if total else 1
    return min(covering, most_groups)


def _heaviest_entries(
    features: Features, rows: Int64[np.ndarray, " row"], width: int
) -> tuple[Int64[np.ndarray, "row feature"], Bool[np.ndarray, "row feature"]]:
    """Return the indices of the entries with the largest counts, up to `width` per row, and a mask of used places."""
    starts, lengths = features.row_starts[rows], features.lengths(rows)
    slots = np.arange(width)
    entries, used = starts[:, None] + slots, slots < lengths[:, None]
    wide = np.flatnonzero(lengths > width)
    if len(wide):
        all_slots = np.arange(int(lengths.max()))
        candidates = starts[wide, None] + all_slots
        used_slots = all_slots < lengths[wide, None]
        sizes = np.where(used_slots, features.values[np.where(used_slots, candidates, 0)], 0)
        # A key has the count, then the slot: of equal counts, the lower slot has the larger key.
        if sizes.dtype == np.uint16 and len(all_slots) <= 2**16:
            keys, last = sizes.astype(np.uint32) << 16, 2**16 - 1
        else:
            # The bits of positive floats ascend with the floats.
            keys, last = sizes.astype(np.float32).view(np.uint32).astype(np.uint64) << np.uint64(32), 2**32 - 1
        keys |= (last - all_slots).astype(keys.dtype)
        largest = np.sort(np.partition(keys, -width, axis=1)[:, -width:], axis=1)[:, ::-1]
        slots = last - (largest & keys.dtype.type(last)).astype(np.int64)
        entries[wide] = starts[wide, None] + slots
    return entries, used


def halve(
    features: Features,
    arranged: Int64[np.ndarray, " position"],
    num_levels: int,
    for_parts: bool = False,
    carried: Float64[np.ndarray, "cut column"] | None = None,
    capacity: int = 0,
) -> Int64[np.ndarray, "block member"]:
    """Halve sequences with similar neighbours into 2^num_levels blocks; -1 pads blocks that are not full.

    Args:
        features: counts and targets.
        arranged: sequences with similar neighbours.
        num_levels: how often to halve.
        for_parts: whether the walks read more groups, and threads walk over the blocks of a level.
        carried: the deviation from the features' targets at the two ends of every block, before these sequences are
            added: blocks of other sequences may already be there. None means no deviation, and the mixture of these
            sequences as targets.
        capacity: calls with the same capacity use the same compiled programs.
    """
    padding = max(capacity, len(arranged))
    most_groups = _MOST_GROUPS_OF_PARTS if for_parts else _MOST_GROUPS
    table = build_walk_table(features, arranged, most_groups, None if carried is None else features.targets, padding)
    size = -(-max(padding, 1) // (1 << num_levels))
    members = np.full(size << num_levels, padding, np.int32)
    # Padding is spread evenly between the sequences. If all padding were at the end, the last block would be nearly
    # empty.
    places = np.arange(len(arranged)) * len(members) // max(len(arranged), 1)
    members[places] = np.arange(len(arranged))
    blocks = members[None]
    boundaries, bends = np.zeros((2, len(features.targets)), np.float32), np.zeros((1, 1))
    if carried is not None:
        boundaries = carried[[0, -1]].astype(np.float32)
        boundaries[1] += features.excess(arranged)
    # A power of two, so that all threads have equally many blocks, and all their arrays equal shapes.
    num_threads = 1 << (num_cores().bit_length() - 1) if for_parts else 1
    for level in range(num_levels):
        sweeps = 2 if level < _LEVELS_SWEPT_TWICE else 1
        # 64, 32, 16, 64, 32, 16 and so on: three levels then have the same shapes and share one compiled program.
        lanes = min(_LANES_PER_BLOCK >> (level % 3), blocks.shape[1] // 2)
        # The blocks of a level are independent, so that their walks give the same in any number of calls.
        if carried is not None:
            cuts = carried[:: 1 << (num_levels - level)]
            middles = carried[1 << (num_levels - level - 1) :: 1 << (num_levels - level)]
            bends = 2.0 * middles - cuts[:-1] - cuts[1:]
        shares = [
            (blocks[numbers], boundaries[numbers[0] : numbers[-1] + 2], bends if carried is None else bends[numbers])
            for numbers in np.split(np.arange(len(blocks)), min(num_threads, len(blocks)))
        ]
        halves, ends = zip(*in_threads(functools.partial(_halve_level, table, lanes, sweeps), shares), strict=True)
        blocks = np.concatenate(halves)
        boundaries = np.concatenate([ends[0][:1], *(end[1:] for end in ends)])
    return np.where(blocks < len(arranged), np.append(arranged, -1)[np.minimum(blocks, len(arranged))], -1)


def _halve_level(
    table: WalkTable,
    lanes: int,
    num_sweeps: int,
    share: tuple[
        Int32[np.ndarray, "block member"],
        Float32[np.ndarray, "boundary column"],
        Float64[np.ndarray, "bend bend_column"],
    ],
) -> tuple[Int32[np.ndarray, "half half_member"], Float32[np.ndarray, "new_boundary column"]]:
    """Halve every block; return the halves and the deviations at their boundaries (before each block, at the end).

    `share` has the blocks, the deviations at their boundaries, and `2 E_middle - E_start - E_end`, where E is the
    deviation of the sequences of other calls.
    """
    blocks, boundaries, bends = share
    num_blocks, size = blocks.shape
    num_pairs = size // 2
    steps = -(-num_pairs // lanes)
    pairs = np.full((num_blocks, lanes * steps, 2), len(table.tokens) - 1, np.int32)
    pairs[:, :num_pairs] = blocks.reshape(num_blocks, num_pairs, 2)
    pairs = pairs.reshape(num_blocks * lanes, steps, 2)
    # Three levels share one compiled program. All three get as many sums as the level with the most blocks needs.
    num_sums = max(num_blocks * lanes // (_LANES_PER_BLOCK >> 2), num_blocks)
    # The start is rounded to whole tokens, so that all sums of the walk are exact.
    start = np.round(boundaries[:-1] + boundaries[1:] + bends.astype(np.float32))
    # The arguments are made with NumPy: JAX would compile a program for every `jnp` function that is called here.
    signs, walked = call(
        _walk,
        table,
        pairs[..., 0].T,
        pairs[..., 1].T,
        np.repeat(np.arange(num_blocks, dtype=np.int32), lanes),
        np.pad(start, ((0, num_sums - num_blocks), (0, 0))),
        np.int32(num_sweeps),
        num_steps=len(table.tokens),  # more than there are steps: parts of a long stream share a program
    )
    left_first = np.asarray(signs).T.reshape(num_blocks, lanes * steps)[:, :num_pairs] > 0
    first, second = np.moveaxis(blocks.reshape(num_blocks, num_pairs, 2), 2, 0)
    halves = np.stack([np.where(left_first, first, second), np.where(left_first, second, first)], axis=1)
    # For these sequences alone, d_middle = (d_start + d_end + S) / 2. With D = d + E this gives the formula below. Only
    # the walk uses the rounded start.
    middles = (boundaries[:-1] + boundaries[1:] + bends.astype(np.float32) + np.asarray(walked)[:num_blocks]) / 2
    ends = np.empty((2 * num_blocks + 1, boundaries.shape[1]), np.float32)
    ends[::2], ends[1::2] = boundaries, middles
    return halves.reshape(2 * num_blocks, num_pairs), ends


class _Sums(NamedTuple):
    """Running signed sums of every block: counts, tokens, and `<λ τ, counts>`."""

    # The sum of excesses is `counts - τ tokens`. The two parts are stored separately: both are whole numbers, and a
    # pair changes only a few columns.

    counts: Float32[Array, "block column"]
    tokens: Float32[Array, " block"]
    target_products: Float32[Array, " block"]


@jax.jit
def _walk(
    table: WalkTable,
    firsts: Int32[Array, "step lane"],
    seconds: Int32[Array, "step lane"],
    block_of: Int32[Array, " lane"],
    start: Float32[Array, "block column"],
    num_sweeps: Int32[Array, ""],
) -> tuple[Int8[Array, "step lane"], Float32[Array, "block column"]]:
    """Choose a sign for every pair: +1 puts its first sequence into the left half.

    Returns the signs and every block's signed sum of excesses.
    """
    weighted_targets = table.weights * table.targets
    square = jnp.dot(weighted_targets, table.targets)
    num_blocks = start.shape[0]
    sums = _Sums(start, jnp.zeros(num_blocks), start @ weighted_targets)
    signs = jnp.zeros(firsts.shape, jnp.int8)

    def step(number: Int32[Array, ""], carry: tuple[_Sums, Array]) -> tuple[_Sums, Array]:
        sums, signs = carry
        index = number % len(firsts)
        first, second = firsts[index], seconds[index]
        columns = jnp.concatenate([table.columns[first], table.columns[second]], axis=1).astype(jnp.int32)
        pair_counts = table.counts[first].astype(jnp.float32), table.counts[second].astype(jnp.float32)
        counts = jnp.concatenate([pair_counts[0], -pair_counts[1]], axis=1)
        tokens = table.tokens[first] - table.tokens[second]
        target_products = table.target_products[first] - table.target_products[second]

        def add(sums: _Sums, sign: Float32[Array, " lane"]) -> _Sums:
            return _Sums(
                sums.counts.at[block_of[:, None], columns].add(sign[:, None] * counts),
                sums.tokens.at[block_of].add(sign * tokens),
                sums.target_products.at[block_of].add(sign * target_products),
            )

        # A later sweep first subtracts the pair from the sums, then chooses its sign again from all other pairs. In the
        # first sweep the signs are 0, and this changes nothing.
        shifted = add(sums, -signs[index].astype(jnp.float32))
        # <λ (sum - τ sum_tokens), difference - τ difference_tokens> in four products, without a pass over all columns.
        shared = (table.weights[columns] * counts * shifted.counts[block_of[:, None], columns]).sum(axis=1)
        total = shifted.tokens[block_of]
        product = shared - total * target_products - tokens * (shifted.target_products[block_of] - total * square)
        # If both signs are equally good, we take + and - in turn.
        turn = jnp.where(index % 2 == 0, 1.0, -1.0)
        sign = jnp.where(product == 0, turn, -jnp.sign(product))
        return add(shifted, sign), signs.at[index].set(sign.astype(jnp.int8))

    sums, signs = lax.fori_loop(0, num_sweeps * len(firsts), step, (sums, signs))
    return signs, sums.counts - start - sums.tokens[:, None] * table.targets
