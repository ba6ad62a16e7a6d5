"""Exchange sequences between near windows, for training whose batch size is known.

With `E_w` the sum of the excesses `v_s` (`objective`) over window w, *aligned* refinement lowers `Σ_w ||E_w||²`
over the batches themselves, *sliding* refinement the same sum over the windows at many offsets, so that no
alignment gains at another's cost. Both are one rule. Positions are cut into *cells*, a window is r neighbouring
cells (r = 1: aligned), and two cells at a distance d are in `K(d) = max(r - d, 0)` windows together. With
`Y_i = Σ_c K(i - c) E_c`, exchanging a in cell i with b in cell j changes the sum by

    2 <Y_i - Y_j, v_b - v_a> + κ ||v_b - v_a||²        κ = 2 (K(0) - K(j - i))

which for all a and b is a matrix: `f_b - f_a`, where `f_s = 2 <Y_i - Y_j, v_s>`, and the squared distances from one
product of the two cells' rows. An exchange adds `κ (v_b - v_a)` to `Y_i - Y_j`, and the next is sought.

- The rows of both cells are dealt at random into blocks and only products of a block with its counterpart are
  taken, so that work and memory grow with the batch size and not with its square. Each block offers its best
  exchange; the best offers are accepted first, each only if it still gains after those before it.
- Pairs of cells that share no window do not touch each other and run in parallel, as many as memory allows. Rows
  are dense only there: memory does not grow with the corpus beyond its sparse counts.
- An exchange must gain more than float32 can err by: the sum never rises.

What no order can better, the part of its window's deviation that a sequence brings by being larger than its groups'
whole share (`floor_parts`), varies between windows by chance. Evened out, the worst windows lie nearer to the mean:
a *floor column* beside the objective's norm column does that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Int32, Int64

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.base import _check_size
from jax_diversity.ordering.composition.compose import checked_whole, origin
from jax_diversity.ordering.deviation import padded, rounded_size
from jax_diversity.ordering.exchange import Sizes, build_pairing, build_tables, exchange
from jax_diversity.ordering.objective import Features, Objective
from jax_diversity.schema import Characteristics, Ordering

_REACH, _SLIDING_REACH = 8, 2
_CELLS_PER_WINDOW = 16
_BLOCK_SIZE = 128
_PAIRS_PER_CALL = 64
# A processor is fastest while a pair stays in its cache, an accelerator when it has much to do at once.
_BYTES_AT_ONCE = {"cpu": 8 << 20}
_BYTES_AT_ONCE_ON_ACCELERATORS = 512 << 20
_MAX_DENSE = 1 << 22
_OTHERS_SHARE = 0.25
_INT32_LIMIT = 2**31 - 1


def refine(
    characteristics: Characteristics,
    ordering: Ordering,
    *,
    batch_size: SupportsIndex,
    objective: Objective | None = None,
    sliding: bool = False,
    num_sweeps: SupportsIndex = 2,
    reach: SupportsIndex | None = None,
    floor_weight: float = 1.0,
    seed: SupportsIndex = 0,
    advance: Advance = ignore,
) -> Ordering:
    """Better an ordering's windows of one size by exchanging sequences between near windows.

    Aligned refinement betters the batches alone and worsens nearly all other windows; use it where training takes
    exactly these batches. Sliding refinement betters the windows of that size at every offset. What either costs at
    other sizes and in the prefixes is measured and stands in the result's `info["deviation"]`. Sequences past the
    last whole window (cell, where sliding) stay where they are.

    Args:
        characteristics: token counts.
        ordering: any ordering. Only near windows exchange: what drifts from beginning to end, such as the
            published greedy, keeps its drift and gains less than a greedy with norm column. Both forms end lowest
            when they start from a window-aware order (`Objective(windows=(batch_size,))`).
        batch_size: sequences in a window, from 2 to half of all.
        objective: family weights and norm column of the squares; its windows and self weight are not used. None
            takes the characteristics' weights, those of all families but the first divided by four: with their few
            groups they follow so easily that they would take most of the gain.
        sliding: whether to lower the sum over the windows at all offsets that are multiples of about a sixteenth of
            the window, in place of the aligned windows alone.
        num_sweeps: how often every window is paired with those at the distances 1, 2, 4 ...
        reach: the largest of these distances, in windows; None takes 8, or 2 where sliding.
        floor_weight: λ of the floor column.
        seed: for the draws; an integer >= 0.
        advance: told of positions done, as many in all as there are.

    Returns:
        A bijection whose sum is at most the ordering's. `info` holds the settings, `refined_from` and `deviation`.

    Raises:
        UserError: a batch size, number of sweeps, reach, weight or seed out of its range; an ordering of another
            dataset; an objective that does not fit the characteristics; more than 32-bit indices and sums can hold.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})
        >>> refined = refine(chars, Ordering(np.arange(4)), batch_size=2)
        >>> sorted(refined.indices[:2].tolist()) in ([0, 2], [0, 3], [1, 2], [1, 3])
        True
    """
    _check_ordering(characteristics, ordering)
    _check_size(characteristics)
    options = {
        "batch_size": _checked_batch_size(characteristics, batch_size),
        "sliding": bool(sliding),
        "num_sweeps": checked_whole("num_sweeps", num_sweeps, 1),
        "reach": checked_whole("reach", (_SLIDING_REACH if sliding else _REACH) if reach is None else reach, 1),
        "floor_weight": _checked_weight(floor_weight),
    }
    seed = checked_whole("seed", seed, 0)
    objective = default_objective(characteristics) if objective is None else objective
    features = Features.build(characteristics, objective)
    refiner = Refiner(characteristics, features, options)
    indices = refiner.run(ordering.indices, seed, advance)
    before, after = (
        deviations(features, characteristics.sequence_length, order, options["batch_size"])
        for order in (ordering.indices, indices)
    )
    info = {
        "method": "refine",
        "seed": seed,
        "objective": dataclasses.asdict(objective),
        "options": options,
        "characteristics": characteristics.fingerprint,
        "num_exchanges": refiner.num_exchanges,
        "deviation": {"before": before, "after": after},
        "refined_from": origin(ordering),
    }
    return Ordering(indices, info)


def default_objective(characteristics: Characteristics) -> Objective:
    """All families by the characteristics' weights, those of all but the first divided by four."""
    first, *others = (characteristics.weights[name] for name in characteristics.families)
    return Objective(family_weights=(first, *(_OTHERS_SHARE * weight for weight in others)))


def floor_parts(characteristics: Characteristics, batch_size: int) -> Float64[np.ndarray, " sequence"]:
    """What a sequence adds to its window's deviation wherever it stands, in sequence lengths, in the first family.

    That is `Σ_g max(0, c_g - n L τ_g) / L`: a piece larger than its group's whole share of a window of n sequences.
    """
    family = characteristics.families[0]
    counts, length = characteristics.counts[family], characteristics.sequence_length
    beyond = counts.data / length - batch_size * characteristics.target_share(family)[counts.indices]
    rows = np.repeat(np.arange(characteristics.num_sequences), np.diff(counts.indptr))
    return np.bincount(rows, np.maximum(beyond, 0), minlength=characteristics.num_sequences).astype(np.float64)


class Refiner:
    """The tables of a corpus and the plan of a run."""

    def __init__(self, characteristics: Characteristics, features: Features, options: dict[str, Any]) -> None:
        length, batch_size = characteristics.sequence_length, options["batch_size"]
        floors = math.sqrt(options["floor_weight"]) * floor_parts(characteristics, batch_size)
        self.tables = build_tables(features, length, floors)
        self.num_exchanges = 0
        self._num_sweeps = options["num_sweeps"]
        self._cells_per_window, self._cell = 1, batch_size
        if options["sliding"]:
            self._cells_per_window, self._cell = cut(batch_size, _INT32_LIMIT // (batch_size * length))
        self._num_cells = features.num_sequences // self._cell
        farthest = min(options["reach"] * self._cells_per_window, self._num_cells - 1)
        self._distances = [1 << power for power in range(farthest.bit_length())]
        # A power of two, and no more than the parallel pairs of a small corpus.
        most = min(_PAIRS_PER_CALL, len(self._phases(1)[0]))
        self._pairs_per_call = 1 << (most - 1).bit_length()
        num_blocks = -(-self._cell // _BLOCK_SIZE)
        self._sizes = Sizes(self._cell, num_blocks, self._pairs_at_once())

    def _pairs_at_once(self) -> int:
        """A power of two up to the pairs of a call; a pair holds dense rows and the counts of its neighbours."""
        allowed = _BYTES_AT_ONCE.get(jax.default_backend(), _BYTES_AT_ONCE_ON_ACCELERATORS)
        dense = 2 * 4 * self._cell * len(self.tables.targets)
        neighbours = 4 * 4 * self._cells_per_window * self._cell * 3 * len(self.tables.rows.slots)
        pairs = max(1, allowed // (dense + neighbours))
        return 1 << (min(pairs, self._pairs_per_call).bit_length() - 1)

    def run(
        self, indices: Int64[np.ndarray, " position"], seed: int, advance: Advance
    ) -> Int64[np.ndarray, " position"]:
        """The refined permutation."""
        order = padded(indices.astype(np.int32), rounded_size(len(indices)))
        rounds = [(distance, firsts) for distance in self._distances for firsts in self._phases(distance)]
        total = self._num_sweeps * sum(len(firsts) for _, firsts in rounds)
        done, counts = 0, []
        for turn in range(self._num_sweeps * len(rounds)):
            distance, firsts = rounds[turn % len(rounds)]
            pairing = build_pairing(distance, self._cells_per_window, self._num_cells)
            rng = np.random.default_rng([seed, turn])
            for start in range(0, len(firsts), self._pairs_per_call):
                chosen = firsts[start : start + self._pairs_per_call].astype(np.int32)
                filled = padded(chosen, self._pairs_per_call, fill=-1)
                order, num_exchanged = exchange(self.tables, order, filled, self._deal(rng), pairing, self._sizes)
                if counts:
                    counts[-1].block_until_ready()  # so that no more than one call waits, and progress is true
                counts.append(num_exchanged)
                advance(len(indices) * (done + len(chosen)) // total - len(indices) * done // total)
                done += len(chosen)
        self.num_exchanges = int(np.sum(jax.device_get(counts), dtype=np.int64))
        return np.asarray(order)[: len(indices)].astype(np.int64)

    def _deal(self, rng: np.random.Generator) -> Int32[Array, "pair 2 row"]:
        """Rows in random order; those that would leave a block unfilled stay out for once."""
        rows = np.tile(np.arange(self._cell, dtype=np.int32), (2 * self._pairs_per_call, 1))
        used = self._cell // self._sizes.num_blocks * self._sizes.num_blocks
        return jnp.asarray(rng.permuted(rows, axis=1)[:, :used].reshape(-1, 2, used))

    def _phases(self, distance: int) -> list[Int64[np.ndarray, " pair"]]:
        """First cells of pairs that run at once; together, of all pairs at the distance."""
        firsts = np.arange(self._num_cells - distance)
        if self._cells_per_window == 1:
            return [firsts[firsts // distance % 2 == parity] for parity in (0, 1)]
        period = distance + self._cells_per_window
        return [firsts[phase::period] for phase in range(period)]


def cut(batch_size: int, most: int) -> tuple[int, int]:
    """Cells in a window (at most `most`) and sequences in a cell, as near to the batch size as they come."""
    finest = max(min(_CELLS_PER_WINDOW, batch_size, most), 1)
    numbers = range(finest, -(-finest // 2) - 1, -1)
    num_cells = min(numbers, key=lambda number: abs(batch_size - number * round(batch_size / number)))
    return num_cells, round(batch_size / num_cells)


def deviations(
    features: Features, length: int, indices: Int64[np.ndarray, " position"], batch_size: int
) -> dict[str, Any]:
    """How far an ordering's windows and prefixes deviate, in sequence lengths, as the features weigh it.

    Returns:
        `prefix_max`: the largest `||D||` after any multiple of a quarter of the batch; `window_rms`: size -> offset
        -> root mean square of `||E_w||`, at sizes from half the batch to four batches and two offsets (four at the
        batch size). JSON's keys are texts, and so are these.
    """
    prefix, worst = np.zeros(len(features.targets)), 0.0
    for sums in window_excess(features, length, indices, max(batch_size // 4, 1)):
        running = prefix + np.cumsum(sums, axis=0)
        worst = max(worst, float(np.sqrt((running**2).sum(axis=1)).max()))
        prefix = running[-1]
    window_rms = {}
    for quarters in (2, 3, 4, 8, 16):
        size = batch_size * quarters // 4
        parts = 4 if quarters == 4 else 2
        offsets = {size * part // parts for part in range(parts)}
        by_offset = {
            str(offset): _rms(window_excess(features, length, indices[offset:], size))
            for offset in sorted(offsets)
            if offset + size <= len(indices)
        }
        if by_offset:
            window_rms[str(size)] = by_offset
    return {"prefix_max": worst, "window_rms": window_rms}


def window_excess(
    features: Features, length: int, indices: Int64[np.ndarray, " position"], size: int
) -> Iterator[Float64[np.ndarray, "window column"]]:
    """`E_w` of consecutive windows in sequence lengths, some windows at a time, the norm column last."""
    num_columns, num_windows = len(features.targets), len(indices) // size
    scale = np.sqrt(features.column_weights) / length
    chunk = max(1, _MAX_DENSE // max(num_columns, size))
    nonzeros = np.diff(features.row_starts)
    for low in range(0, num_windows, chunk):
        high = min(low + chunk, num_windows)
        placed = indices[low * size : high * size]
        counts = nonzeros[placed]
        entries = np.repeat(features.row_starts[placed] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        windows = np.repeat(np.repeat(np.arange(high - low), size), counts)
        keys = windows * num_columns + features.columns[entries]
        sums = np.bincount(keys, features.values[entries], minlength=(high - low) * num_columns).astype(np.float64)
        sums = sums.reshape(high - low, num_columns)
        sums[:, -1] = features.norms[placed].reshape(-1, size).sum(axis=1, dtype=np.float64)
        tokens = features.tokens[placed].reshape(-1, size).sum(axis=1)
        sums[:, :-1] -= tokens[:, None] * features.targets[:-1]
        sums[:, -1] -= size * features.targets[-1]
        yield sums * scale


def _rms(chunks: Iterator[Float64[np.ndarray, "window column"]]) -> float:
    total, num_windows = 0.0, 0
    for sums in chunks:
        total += float((sums**2).sum())
        num_windows += len(sums)
    return math.sqrt(total / num_windows)


def _check_ordering(characteristics: Characteristics, ordering: Ordering) -> None:
    if not isinstance(ordering, Ordering):
        raise UserError(
            f"Expected an Ordering, found {type(ordering).__name__}; wrap an array in jd.Ordering(indices)."
        )
    if len(ordering) != characteristics.num_sequences:
        raise UserError(
            f"Expected an ordering of {characteristics.num_sequences} sequences, found {len(ordering)}; it was "
            "made for another dataset."
        )


def _checked_batch_size(characteristics: Characteristics, batch_size: Any) -> int:
    size = checked_whole("batch_size", batch_size, 2)
    num_sequences = characteristics.num_sequences
    if size > num_sequences // 2:
        raise UserError(
            f"Expected a batch_size of at most half of the {num_sequences} sequences, found {size}; a smaller one "
            "leaves windows to exchange with."
        )
    if size * characteristics.sequence_length > _INT32_LIMIT:
        raise UserError(
            f"Expected batches of fewer than 2^31 tokens, found {size} sequences of "
            f"{characteristics.sequence_length}; refine for a smaller batch."
        )
    return size


def _checked_weight(value: Any) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError, OverflowError):
        weight = math.nan
    if not math.isfinite(weight) or weight < 0:
        raise UserError(f"Expected floor_weight to be finite and >= 0, found {value!r}.")
    return weight
