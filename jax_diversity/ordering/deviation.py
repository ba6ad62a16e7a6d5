"""The running deviation `D` of the sequences placed so far, stored on the accelerator without loss of precision.

At every step `c_s - τ t_s` is added to `D`: c_s are the token counts of the placed sequence s, t_s is its number of
tokens, and τ are the target shares. Token counts are whole numbers, but τ is not. A plain float32 sum would get one
rounding error per step, always of the same sign. It would choose wrong sequences after a few thousand steps. Therefore

- `D` is a pair of float32 arrays, a value and the remaining rounding error (Knuth's TwoSum), about 48 bits;
- τ is split into two pieces of eight bits and a small rest. The products of a piece with token counts up to 65,536
  (16 bits) have at most 24 bits, so that float32 represents them exactly. Only the products with the rest are rounded.

After ten million steps the error is still far below one token. No 64-bit type is needed on the accelerator.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Float64, Int32, Int64, Integer

from jax_diversity.ordering.features import Features, check_index_range
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.plan import Plan


class Compensated(NamedTuple):
    """A number of about 48 bits, stored as two float32 arrays (`value` + `error`)."""

    value: Float32[Array, "..."]
    error: Float32[Array, "..."]


class Families(NamedTuple):
    """The families whose norms a rule adds; `bounds` are the first column of each family, and the end of the last."""

    bounds: Int32[Array, " boundary"]
    weights: Float32[Array, " family"]
    norm_weight: Float32[Array, ""]


class GreedyRule(NamedTuple):
    """An objective's weights and the target; the last column is the norm column.

    A rule of the form "norms" has `families`, which contain the weights; its `column_weights` are 1.
    """

    target_pieces: Float32[Array, "piece column"]
    column_weights: Float32[Array, " column"]
    window_sizes: Int32[Array, " window"]
    window_weight: Float32[Array, ""]
    # One entry for each group that is kept apart. The last entries do not belong to a group and have a weight of zero.
    apart_shares: Float32[Array, " group"]
    apart_weights: Float32[Array, " group"]
    zero: Float32[Array, ""]
    families: Families | None

    @property
    def targets(self) -> Float32[Array, " column"]:
        """τ, rounded to float32: for scores, never for sums."""
        return self.target_pieces[0] + self.target_pieces[1] + self.target_pieces[2]

    def times(self, left: Array, right: Array) -> Array:
        """Multiply; the product is rounded before it is added to another number."""
        # A compiler may fuse a product with the following addition (one rounding) or not (two roundings), and its
        # choice may differ between one device and many. `zero` is an argument of the compiled program, so the compiler
        # cannot remove this addition. Whether the compiler fuses the product with `zero` or not, the rounded product is
        # the same, and all devices get equal scores.
        return left * right + self.zero


class PaddedCounts(NamedTuple):
    """The sequences' counts as CSR rows. Padding at the end allows reading as many entries as the longest row has."""

    starts: Int32[Array, " boundary"]
    columns: Integer[Array, " nonzero"]
    values: Integer[Array, " nonzero"] | Float32[Array, " nonzero"]
    norms: Float32[Array, " sequence"]
    tokens: Float32[Array, " sequence"]
    slots: Int32[Array, " slot"]
    apart: Int32[Array, "member sequence"]


class SequenceCounts(NamedTuple):
    """One sequence's counts; an unused slot has a column index past the end and a count of zero."""

    columns: Int32[Array, " slot"]
    values: Float32[Array, " slot"]
    norm: Float32[Array, ""]
    tokens: Float32[Array, ""]
    apart: Int32[Array, " member"]


class PlacedTokens(NamedTuple):
    """Numbers of placed tokens. The first row is since the beginning, each further row for the last w positions.

    `tokens` is for each group that is kept apart. `total` is for all sequences, as a multiple of 2^20 and a rest
    below 2^20, because the total may exceed an int32.
    """

    tokens: Int32[Array, "sum group"]
    total: Int32[Array, "sum part"]


class Deviation(NamedTuple):
    """`D` in tokens, `D_t - D_{t-w}` per window size w, and `2 λ (D + β Σ_w (D_t - D_{t-w}))`.

    A sequence's score is the product of the gradient and `v_s`, plus `a ||v_s||²`.
    """

    total: Compensated
    windows: tuple[Compensated, ...]
    # The gradient is stored. Otherwise XLA would fuse its computation into the gathers that read it, and would repeat
    # the computation for every gathered element.
    gradient: Float32[Array, " column"]
    placed: PlacedTokens


_TOTAL_UNIT = 1 << 20
_SUMMED_ROWS, _MOST_UNROLLED = 64, 512
# So few steps take less time than the compilation of another program.
_FEW_ROWS = 1024
# Rows are read with at least so many places: corpora whose sequences have few groups share compiled programs.
_SHORTEST = 16


def rounded_size(size: int) -> int:
    """Round up, so that corpora of similar sizes share compiled programs.

    Sizes up to 1,024 become 64, 256 or 1,024: compiling a program takes longer than all its steps on so few sequences.
    Larger sizes become one of eight sizes between a power of two and the next, so at most 1/8 is padding.
    """
    return _rounded_far(size, 64, _FEW_ROWS)


def _rounded_far(size: int, smallest: int, largest: int) -> int:
    """Round up to `smallest`, four times as much, and so on; above `largest` as `rounded_width`."""
    if not 0 < size <= largest:
        return rounded_width(size)
    rounded = smallest
    while rounded < size:
        rounded *= 4
    return rounded


def rounded_width(size: int) -> int:
    """Round up to one of eight sizes between a power of two and the next, for sizes that the time of a step grows with.

    Sizes up to 16 are unchanged.
    """
    if size <= 8:
        return size
    step = 1 << max((size - 1).bit_length() - 4, 0)
    return -(-size // step) * step


def padded(values: np.ndarray, size: int, fill: float = 0) -> Array:
    """Pad the values to `size` and put them on the device."""
    # `jnp.asarray` would compile a program for every new shape; `device_put` compiles nothing.
    return jax.device_put(np.pad(values, (0, size - len(values)), constant_values=fill))


def padded_columns(values: np.ndarray, size: int) -> np.ndarray:
    """Pad the rows to `size` columns."""
    return np.pad(values, ((0, 0), (0, size - values.shape[1])))


def build_rule(features: Features, objective: Objective, num_groups: int = 0) -> GreedyRule:
    """Make the rule of an objective over the features' columns, with arrays for at least `num_groups` groups apart."""
    # A window of more than all positions is the same as all of them, so a size beyond int32 can be cut to the limit of
    # int32.
    sizes = [min(size, int(np.iinfo(np.int32).max)) for size in objective.windows]
    column_weights, families = features.column_weights, None
    if objective.form == "norms":
        # A norm is multiplied by its weight after the square root, so the columns have the weight 1.
        column_weights, families = np.ones(len(features.targets)), _build_families(features)
    apart = features.apart
    # + 1 for sequences without a group
    num_groups = max(num_groups, rounded_size(len(apart.share) + 1)) if len(apart.group) else 0
    return GreedyRule(
        target_pieces=jax.device_put(split_into_pieces(features.targets)),
        column_weights=jax.device_put(column_weights.astype(np.float32)),
        window_sizes=jax.device_put(np.array(sizes, np.int32)),
        window_weight=jax.device_put(np.float32(objective.window_weight)),
        apart_shares=padded(apart.share.astype(np.float32), num_groups),
        apart_weights=padded(apart.weight.astype(np.float32), num_groups),
        zero=jax.device_put(np.float32(0)),
        families=families,
    )


def _build_families(features: Features) -> Families:
    starts = [columns.start for columns in features.family_columns.values()]
    return Families(
        bounds=jax.device_put(np.array([*starts, len(features.targets) - 1], np.int32)),
        weights=jax.device_put(features.column_weights[starts].astype(np.float32)),
        norm_weight=jax.device_put(np.float32(features.column_weights[-1])),
    )


class RowSizes(NamedTuple):
    """Sizes of the arrays of `PaddedCounts`: rows, non-zeros of all rows, non-zeros of the longest row."""

    rows: int
    nonzeros: int
    longest: int


NO_ROWS = RowSizes(0, 0, 0)


def row_sizes(lengths: Integer[np.ndarray, " sequence"]) -> RowSizes:
    """Return the rounded sizes for sequences with these numbers of non-zeros."""
    check_index_range(len(lengths), int(lengths.sum()))
    longest = max(rounded_width(int(lengths.max(initial=1))), _SHORTEST)
    if len(lengths) <= _FEW_ROWS and longest <= _MOST_UNROLLED:
        # Zeros up to a multiple of `_SUMMED_ROWS` change no sum: `fixed_sum` adds them in any case.
        longest = -(-longest // _SUMMED_ROWS) * _SUMMED_ROWS
    return RowSizes(
        rows=rounded_size(len(lengths)),
        nonzeros=_rounded_far(int(lengths.sum()), 256, 2**16),
        longest=longest,
    )


def build_rows(features: Features, device: int = 0, num_devices: int = 1, sizes: RowSizes = NO_ROWS) -> PaddedCounts:
    """Build the rows of device d of W: the sequences d, W + d, 2 W + d ... Array sizes are equal on all devices.

    `sizes` are the smallest sizes, so that several tables have equal sizes.
    """
    counts = np.diff(features.row_starts)
    device_counts = counts[device::num_devices]
    starts = np.concatenate([[0], np.cumsum(device_counts)])
    # Every device has the sizes of the device that needs most.
    needed = [row_sizes(counts[other::num_devices]) for other in range(num_devices)]
    num_rows, num_nonzeros, longest = (max(needed_sizes) for needed_sizes in zip(sizes, *needed, strict=True))
    # A single device uses the arrays unchanged: an index of every non-zero would be larger than the counts themselves.
    entries = slice(None)
    if num_devices > 1:
        entries = features.entries(np.arange(device, features.num_sequences, num_devices))
    size = num_nonzeros + longest
    return PaddedCounts(
        starts=padded(starts.astype(np.int32), num_rows + 1, fill=int(starts[-1])),
        columns=padded(features.columns[entries], size),
        values=padded(features.values[entries], size),
        norms=padded(features.norms[device::num_devices], num_rows),
        tokens=padded(features.tokens[device::num_devices].astype(np.float32), num_rows),
        slots=jax.device_put(np.arange(longest, dtype=np.int32)),
        apart=jax.device_put(padded_columns(features.apart.group[:, device::num_devices], num_rows)),
    )


def read_row(rows: PaddedCounts, row_index: Int32[Array, ""], num_columns: int) -> SequenceCounts:
    """Read the row of one sequence."""
    start, end = rows.starts[row_index], rows.starts[row_index + 1]
    width = rows.slots.shape[0]
    used = start + rows.slots < end
    columns = lax.dynamic_slice(rows.columns, (start,), (width,)).astype(jnp.int32)
    values = lax.dynamic_slice(rows.values, (start,), (width,)).astype(jnp.float32)
    return SequenceCounts(
        columns=jnp.where(used, columns, num_columns),
        values=jnp.where(used, values, 0),
        norm=rows.norms[row_index],
        tokens=rows.tokens[row_index],
        apart=rows.apart[:, row_index],
    )


def start_deviation(rule: GreedyRule, plan: Plan, placed: Int64[np.ndarray, " position"]) -> Deviation:
    """Compute, in float64, the deviation after the sequences `placed`, which fill the first positions."""
    total = _compensated(plan.carried + plan.excess(placed))
    reached = [max(len(placed) - size, 0) for size in np.asarray(rule.window_sizes).tolist()]
    windows = [_compensated(plan.excess(placed[first:], first)) for first in reached]
    return _before_a_call(total, windows, _start_placed(rule, plan, placed))


def _start_placed(rule: GreedyRule, plan: Plan, placed: Int64[np.ndarray, " position"]) -> PlacedTokens:
    group, tokens = plan.features.apart.group, plan.features.tokens
    sizes = np.asarray(rule.window_sizes).tolist()
    sums = [placed, *(placed[max(len(placed) - size, 0) :] for size in sizes)]
    num_groups, num_members = len(rule.apart_shares), len(group)
    group_tokens = [
        np.bincount(group[:, rows].ravel(), np.tile(tokens[rows], num_members), minlength=num_groups) for rows in sums
    ]
    if num_groups:
        group_tokens[0][: len(plan.head_start)] += plan.head_start  # it is part of the prefix, not of the windows
    total = [divmod(int(tokens[rows].sum()), _TOTAL_UNIT) for rows in sums]
    return PlacedTokens(
        jax.device_put(np.array(group_tokens, np.float64)[:, :num_groups].astype(np.int32)),
        jax.device_put(np.array(total, np.int32)),
    )


def saved_deviation(deviation: Deviation) -> dict[str, np.ndarray]:
    """Return the sums of a deviation as named arrays."""
    return {f"sum_{i}": np.stack(total) for i, total in enumerate([deviation.total, *deviation.windows])}


def restored_deviation(rule: GreedyRule, plan: Plan, saved: Mapping[str, np.ndarray]) -> Deviation:
    """Make the deviation from the arrays of `saved_deviation`; `PlacedTokens` is computed from the placed sequences."""
    total, *windows = (Compensated(*jax.device_put([*saved[f"sum_{i}"]])) for i in range(1 + len(rule.window_sizes)))
    return _before_a_call(total, windows, _start_placed(rule, plan, saved["placed"]))


def _before_a_call(total: Compensated, windows: Sequence[Compensated], placed: PlacedTokens) -> Deviation:
    """Make a deviation with a gradient of zeros; the selectors compute the gradient at the beginning of every call."""
    return Deviation(total, tuple(windows), jax.device_put(np.zeros(total.value.shape, np.float32)), placed)


def _compensated(values: Float64[np.ndarray, " column"]) -> Compensated:
    value = values.astype(np.float32)
    return Compensated(*jax.device_put([value, (values - value).astype(np.float32)]))


def place(
    rule: GreedyRule,
    deviation: Deviation,
    chosen: SequenceCounts,
    leaving: Sequence[SequenceCounts],
    num_placed: Int32[Array, ""],
) -> Deviation:
    """Add the excess of the sequence at position `num_placed`; subtract the sequence that leaves from each window."""
    windows = []
    for index, (window, row) in enumerate(zip(deviation.windows, leaving, strict=True)):
        window = add_excess(rule, window, chosen, jnp.float32(1))
        # In the first w steps the window is not full yet: nothing leaves it.
        sign = jnp.where(num_placed >= rule.window_sizes[index], jnp.float32(-1), jnp.float32(0))
        windows.append(add_excess(rule, window, row, sign))
    total = add_excess(rule, deviation.total, chosen, jnp.float32(1))
    gradient = compute_gradient(rule, total, windows)
    return Deviation(total, tuple(windows), gradient, add_placed(rule, deviation.placed, chosen, leaving, num_placed))


def add_placed(
    rule: GreedyRule,
    placed: PlacedTokens,
    chosen: SequenceCounts,
    leaving: Sequence[SequenceCounts],
    num_placed: Int32[Array, ""],
) -> PlacedTokens:
    """Add the tokens of the sequence at position `num_placed` to all sums; subtract leaving tokens from the windows."""
    if not placed.tokens.shape[1]:
        return placed
    tokens, total = placed.tokens, placed.total
    chosen_tokens = chosen.tokens.astype(jnp.int32)
    tokens = tokens.at[:, chosen.apart].add(chosen_tokens)
    total = total.at[:, 1].add(chosen_tokens)
    for index, row in enumerate(leaving, 1):
        lost = jnp.where(num_placed >= rule.window_sizes[index - 1], -row.tokens.astype(jnp.int32), 0)
        tokens = tokens.at[index, row.apart].add(lost)
        total = total.at[index, 1].add(lost)
    # Whole units move to the first part; a negative rest borrows one unit, because `//` rounds down.
    total = total.at[:, 0].add(total[:, 1] // _TOTAL_UNIT).at[:, 1].set(total[:, 1] % _TOTAL_UNIT)
    return PlacedTokens(tokens, total)


def apart_gradient(
    rule: GreedyRule, placed: PlacedTokens, groups: Int32[Array, "..."] | slice = slice(None)
) -> Float32[Array, "..."]:
    """Return `2 λ √n_g (P_g - τ_g S)` plus the windows' parts: the score of one token of each of the groups."""
    group_tokens = placed.tokens[:, groups].astype(jnp.float32)
    total = rule.times(placed.total[:, 0].astype(jnp.float32), jnp.float32(_TOTAL_UNIT))
    total += placed.total[:, 1].astype(jnp.float32)
    shares = rule.apart_shares[groups]
    excess = [group_tokens[index] - rule.times(total[index], shares) for index in range(len(group_tokens))]
    combined = excess[0]
    for of_window in excess[1:]:
        combined += rule.times(rule.window_weight, of_window)
    return 2.0 * rule.apart_weights[groups] * combined


def compute_gradient(rule: GreedyRule, total: Compensated, windows: Sequence[Compensated]) -> Float32[Array, " column"]:
    """Return `2 λ (D + β Σ_w (D_t - D_{t-w}))`, rounded to float32."""
    combined = total.value + total.error
    for window in windows:
        combined += rule.times(rule.window_weight, window.value + window.error)
    return 2.0 * rule.column_weights * combined


def add_excess(rule: GreedyRule, total: Compensated, row: SequenceCounts, sign: Float32[Array, ""]) -> Compensated:
    """Add `sign * v_s`; the sign is 1, 0 or -1."""
    # A row contains each column once, so every addition into zeros is exact. Unused slots add past the end, where
    # additions are dropped.
    placed = jnp.zeros_like(total.value).at[row.columns].add(sign * row.values, mode="drop")
    placed = placed.at[-1].set(sign * row.norm)
    total = add_compensated(total, placed)
    # The target of the norm column is per sequence; the targets of all other columns are per token.
    multiplier = jnp.full_like(total.value, row.tokens).at[-1].set(1)
    for piece in rule.target_pieces:
        total = add_compensated(total, rule.times(-sign * multiplier, piece))
    return total


def add_compensated(total: Compensated, addend: Float32[Array, "..."]) -> Compensated:
    """Add to a compensated sum and keep the rounding error (Knuth, TAOCP vol. 2, 4.2.2, theorem B)."""
    value = total.value + addend
    shifted = value - total.value
    error = total.error + ((total.value - (value - shifted)) + (addend - shifted))
    # Move the accumulated error into the value, so that the error stays below half a unit in the last place.
    renormalised = value + error
    return Compensated(renormalised, error - (renormalised - value))


def fixed_sum(values: Float32[Array, " number"]) -> Float32[Array, ""]:
    """Sum numbers in an order of additions that does not depend on the device or on other sums in the program."""
    # A compiler adds the numbers of `jnp.sum` in an order of its choice: on processors, on accelerators and for many
    # sums at the same time (`vmap`) the rounding differs. Here each pass adds the rows of a matrix, element by element.
    while (size := values.shape[0]) > _SUMMED_ROWS:
        rows = jnp.pad(values, (0, -size % _SUMMED_ROWS)).reshape(_SUMMED_ROWS, -1)
        if size > _MOST_UNROLLED:
            # A sum over all columns, once in a thousand steps: the loop takes longer, its compilation much less.
            values = lax.fori_loop(1, _SUMMED_ROWS, lambda row, total, rows=rows: total + rows[row], rows[0])
        else:
            values = functools.reduce(jnp.add, rows)
    return functools.reduce(jnp.add, values) if size else jnp.float32(0)


def split_into_pieces(values: Float[np.ndarray, " column"]) -> Float32[np.ndarray, "piece column"]:
    """Split into three float32 arrays with the sum `values` (to 2^-40); the first two have eight significant bits."""
    # The third array is at most 2^-16 of the value. Rounding a product with it leaves an error of 2^-41, and ten
    # million such errors add up to less than a hundred-thousandth of one step's share.
    rest = values.astype(np.float64)
    pieces = []
    for _ in range(2):
        mantissa, exponent = np.frexp(rest)
        piece = np.ldexp(np.round(mantissa * 256), exponent - 8)
        pieces.append(piece.astype(np.float32))
        rest = rest - piece
    return np.stack([*pieces, rest.astype(np.float32)])
