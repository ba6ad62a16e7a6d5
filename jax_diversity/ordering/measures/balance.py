"""All measures of one ordering or run, in every family (a characteristic such as topic cluster, length or source)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array, vstack

from jax_diversity.counts import TokenCounts
from jax_diversity.counts.characteristics import MADE_BY
from jax_diversity.foundation.checks import (
    as_tuple,
    as_whole_number,
    check_function,
    check_one_of,
    check_type,
)
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.figures.figure import Figure
from jax_diversity.foundation.figures.plain import clean_text
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.tables import Display, Displayed
from jax_diversity.foundation.wording import counted
from jax_diversity.ordering.measures.curves import MAX_POINTS, Envelope, envelope
from jax_diversity.ordering.measures.documents import DocumentSpread, SpreadOfBlocks
from jax_diversity.ordering.measures.drawn import MeasuredOrder, curve_values, limit_values, window_curves
from jax_diversity.ordering.measures.family import FamilyMeasures, WindowsOfSize
from jax_diversity.ordering.measures.floors import Pieces, WindowLimits, pieces_of
from jax_diversity.ordering.measures.placing import PlacedCounts, placed_counts
from jax_diversity.ordering.measures.sliding import EveryStart
from jax_diversity.ordering.measures.targets import GivenTargets, given_targets, measured_targets
from jax_diversity.ordering.measures.windows import AlignedWindows, row_sums, usable_windows
from jax_diversity.schema import Ordering
from jax_diversity.schema.orderings import Order

# Windows of equal tokens are measured if the number of tokens per sequence varies: if its standard deviation is larger
# than this part of its mean.
_UNEVEN = 0.1


AnyOrder = Order | Int64[np.ndarray, " position"]
"""The order of training; an array must be a bijection of the sequences."""


@dataclass(frozen=True, repr=False)
class Balance(Displayed):
    """The measures of one ordering; arrays are float64 unless stated otherwise.

    A run may repeat and omit sequences. Then `num_sequences` in the shapes below is the number of positions, and floors
    and bounds are valid for all orders of the same positions. *Aligned* windows begin at position 0.

    Attributes:
        prefix_l2: family -> (num_sequences,) the prefix deviation after every position, in sequence lengths.
        window_tv: family -> window size -> (num_sequences // size,) the TV of consecutive aligned windows.
        window_tv_shifted: the same for windows that start at position size // 2; empty if no window fits.
        window_l2: family -> window size -> (num_sequences // size,) the Euclidean norm of share - τ of aligned windows.
        window_tv_floor: family -> window size -> the floor of the mean of `window_tv`.
        window_max: family -> window size -> the largest |share - τ| over all start positions and groups.
        ideal_tv: family -> window size -> the expected TV of an ideal token shuffle.
        norm_drift: (num_sequences,) the running sum of norms minus their mean, of the first family, in sequences.
        window_tv_bound: family -> window size -> a bound of the mean of `window_tv`, at least the floor.
        groups_per_batch: family -> window size -> int64 (num_sequences // size,) the number of distinct groups of every
            window.
        groups_per_sequence: family -> the mean number of distinct groups of a position's sequence.
        window_tv_every_start: family -> window size -> mean and worst TV over all start positions, if requested.
        window_tv_tokens: family -> window size -> the TV of consecutive windows with as many tokens as `size` sequences
            have on average; empty if all sequences have about the same number of tokens.
        documents: repeats and gaps of documents with several sequences; None if the documents are unknown.
        copies: the same for copies of one document; None if there are no copies or the copies are unknown.
    """

    prefix_l2: Mapping[str, Float64[np.ndarray, " sequence"]]
    window_tv: Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]]
    window_tv_shifted: Mapping[str, Mapping[int, Float64[np.ndarray, " shifted_window"]]]
    window_l2: Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]]
    window_tv_floor: Mapping[str, Mapping[int, float]]
    window_max: Mapping[str, Mapping[int, float]]
    ideal_tv: Mapping[str, Mapping[int, float]]
    norm_drift: Float64[np.ndarray, " sequence"]
    window_tv_bound: Mapping[str, Mapping[int, float]]
    groups_per_batch: Mapping[str, Mapping[int, Int64[np.ndarray, " window"]]]
    groups_per_sequence: Mapping[str, float]
    window_tv_every_start: Mapping[str, Mapping[int, EveryStart]]
    window_tv_tokens: Mapping[str, Mapping[int, Float64[np.ndarray, " token_window"]]]
    documents: DocumentSpread | None
    copies: DocumentSpread | None

    @property
    def max_share_deviation(self) -> float:
        """The article's objective: the largest |share - τ| of all families, windows, starts and groups."""
        return max((value for sizes in self.window_max.values() for value in sizes.values()), default=0.0)

    def _display(self) -> Display:
        """A sentence and a table: mean / worst TV of the aligned windows, and the largest prefix deviation."""
        sizes = list(dict.fromkeys(size for windows in self.window_tv.values() for size in windows))
        lines = [
            [
                family,
                *(f"{tv.mean():.3f} / {tv.max():.3f}" if len(tv) else "-" for tv in self.window_tv[family].values()),
                f"{prefix.max(initial=0.0):.2f}",
            ]
            for family, prefix in self.prefix_l2.items()
        ]
        number = counted(len(self.norm_drift), "position")
        sentence = f"Balance of {number}: window TV (mean / worst), largest prefix deviation"
        return Display(sentence, [("", [["family", *map(str, sizes), "prefix L2"], *lines])])

    def __repr__(self) -> str:
        return self._display().text

    def plot(
        self,
        figure: str = "windows",
        *,
        family: str | None = None,
        window: int | None = None,
    ) -> Figure:
        """Return a figure of the report on this order, which a notebook shows.

        Args:
            figure: `windows` (the TV of every window along training), `prefix` (the prefix deviation) or `drift` (the
                norm drift).
            family: the family; by default the first.
            window: for `windows`: the window size; by default the first.

        Raises:
            ValueError: there is no such figure, or the family or window was not measured.

        Example:
            >>> measure(chars, ordering, windows=(256,)).plot(family="topic")
        """
        check_one_of("figure", figure, ("windows", "prefix", "drift"))
        sizes = sorted({size for windows in self.window_tv.values() for size in windows})
        labels = {"family": None if family is None else clean_text(family), "size": window}
        choices = {name: value for name, value in labels.items() if value is not None}
        order = {
            "name": "order",
            "is_baseline": False,
            **curve_values(self.summary(), self.curves(), len(self.norm_drift)),
        }
        ordering = {
            "baseline": None,
            "families": list(map(clean_text, self.prefix_l2)),
            "window_sizes": sizes,
            "references": limit_values(self.window_tv_floor, self.ideal_tv),
            "orders": [order],
        }
        return Figure(figure, {"ordering": ordering}, choices)

    def curves(self, points: int = MAX_POINTS) -> dict[str, Any]:
        """Return the curves of the order, each with at most `points` points; see `MeasuredOrder`."""
        return {
            "prefix": {family: envelope(curve, max_points=points) for family, curve in self.prefix_l2.items()},
            "windows": window_curves(self.window_tv, points),
            "norm_drift": envelope(self.norm_drift, max_points=points),
        }

    def summary(self) -> dict[str, Any]:
        """Return the values that a table shows, as plain numbers, by family and window size.

        `tv_mean_shifted` and the other `_shifted` values are None if no shifted window fits. `tv_mean_every_start` and
        `tv_worst_every_start` exist if they were requested. `tv_mean_tokens` and the other `_tokens` values exist if
        the number of tokens per sequence varies. `documents` and `copies` exist if they are known.
        """
        families: dict[str, Any] = {
            family: {
                "prefix_l2_max": float(prefix.max(initial=0.0)),
                "groups_per_sequence_mean": self.groups_per_sequence[family],
                "windows": {str(size): self._window_summary(family, size) for size in self.window_tv[family]},
            }
            for family, prefix in self.prefix_l2.items()
        }
        drift = float(np.abs(self.norm_drift).max(initial=0.0))
        spreads = {"documents": self.documents, "copies": self.copies}
        summaries = {name: spread.summary() for name, spread in spreads.items() if spread is not None}
        return {"families": families, "norm_drift_max": drift, **summaries}

    def _window_summary(self, family: str, size: int) -> dict[str, float | None]:
        tv, shifted = self.window_tv[family][size], self.window_tv_shifted[family][size]
        groups = self.groups_per_batch[family][size]
        measured = self.window_tv_every_start[family].get(size)
        every_start = measured._asdict().items() if measured else ()
        parts = {"mean": np.mean, "best": np.min, "worst": np.max}
        of_tokens = self.window_tv_tokens[family].get(size, ())
        return {
            **{f"tv_{name}": float(part(tv)) for name, part in parts.items()},
            **{f"tv_{name}_shifted": float(part(shifted)) if len(shifted) else None for name, part in parts.items()},
            "tv_floor": self.window_tv_floor[family][size],
            "tv_bound": self.window_tv_bound[family][size],
            "tv_ideal_token_shuffle": self.ideal_tv[family][size],
            "l2_best": float(self.window_l2[family][size].min()),
            "l2_worst": float(self.window_l2[family][size].max()),
            "max_share_deviation": self.window_max[family][size],
            "groups_per_batch_mean": float(groups.mean()),
            "groups_per_batch_min": float(groups.min()),
            **{f"tv_{name}_every_start": value for name, value in every_start},
            **{f"tv_{name}_tokens": float(part(of_tokens)) for name, part in parts.items() if len(of_tokens)},
        }


def measure(
    counts: TokenCounts,
    ordering: AnyOrder,
    windows: Sequence[int] | None = None,
    advance: Advance = ignore,
    *,
    targets: GivenTargets = None,
    every_start: bool = False,
) -> Balance:
    """Measure an ordering, or a run that repeats or omits sequences, in every family.

    Args:
        counts: the token counts; weights are ignored. With `jd.measure`, also a built dataset, its folder or its
            address, or files of counts.
        ordering: the order of training; an array must be a bijection of the sequences. Of a dataset, also the name of
            an ordering; by default `balance`.
        windows: window sizes in sequences, each between 1 and the number of positions. None means 256 and the batch
            size of the counts, without the sizes that do not fit twice; if none fits, half of all sequences.
        advance: called with the number of positions done.
        targets: what `jd.order` takes, or the `info["targets"]` of an ordering: family -> the groups' shares to measure
            against, or `jd.Targets` with phases; for other families, the shares of the corpus. If the targets change,
            the target of a window is the mean target of its tokens, floors use the largest target of every group, and
            bounds are the floors. Norms have no target: if the first family has a target, the drift is measured against
            the mean of all positions.
        every_start: whether to also measure the window TV of all start positions.

    Raises:
        ValueError: the ordering was made for another dataset, a window size is out of range, or targets are not shares.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [0, 2], [2, 0], [0, 2]]})
        >>> float(measure(chars, np.arange(4), windows=(2,)).window_tv["topic"][2].max())
        0.0
    """
    check_type("characteristics", counts, TokenCounts, MADE_BY)
    if windows is None:
        windows = usable_windows((256,), counts.num_sequences, counts.batch_size)
    return Measurer(counts, windows, targets, every_start=every_start).measure(ordering, advance)


class _CorpusStatistics:
    """What the measures need of all sequences: shares, the mean norm, numbers of tokens, pieces."""

    def __init__(self, counts: TokenCounts) -> None:
        totals = {family: np.zeros(number, np.int64) for family, number in counts.num_groups.items()}
        self.pieces: dict[str, Pieces] = {}
        norms, num_tokens, squares, number = 0.0, 0, 0.0, counts.num_sequences
        for chunk in counts.chunks():
            for family, matrix in chunk.counts.items():
                pieces = pieces_of(matrix)
                self.pieces[family] = self.pieces[family].plus(pieces) if family in self.pieces else pieces
                totals[family] += np.asarray(matrix.sum(axis=0, dtype=np.int64)).ravel()
            norms += float(norms_of(chunk.counts[chunk.families[0]], chunk.sequence_length).sum())
            tokens = chunk.tokens
            num_tokens += int(tokens.sum())
            squares += (
                int((tokens.astype(object) ** 2).sum()) if tokens.max(initial=0) > 2**20 else int((tokens**2).sum())
            )
        # For a corpus without tokens all shares are 0, not NaN.
        self.shares = {family: total / max(float(total.sum()), 1.0) for family, total in totals.items()}
        self.mean_norm = norms / max(number, 1)
        self.mean_tokens = num_tokens / max(number, 1)
        variance = squares / max(number, 1) - self.mean_tokens**2
        # An incomplete last sequence alone does not need windows of equal tokens.
        self.is_uneven = max(variance, 0.0) ** 0.5 > _UNEVEN * self.mean_tokens


def norms_of(counts: csr_array, sequence_length: int) -> Float64[np.ndarray, " row"]:
    """Return `||c||₂ / L` of every row."""
    return np.sqrt(row_sums(counts, lambda _, tokens: tokens.astype(np.float64) ** 2)) / sequence_length


class Measurer:
    """Measures several orders of one corpus against the same targets; see `measure` for the arguments."""

    def __init__(
        self,
        counts: TokenCounts,
        windows: Sequence[int],
        targets: GivenTargets = None,
        *,
        every_start: bool = False,
    ) -> None:
        check_type("characteristics", counts, TokenCounts, MADE_BY)
        self.windows = tuple(as_whole_number("every window size", size, 1) for size in as_tuple(windows))
        check_type("every_start", every_start, bool | np.bool_, "True or False")
        self._counts, self._every_start = counts, every_start
        self._corpus = _CorpusStatistics(counts)
        target_shares = given_targets(counts, targets)
        self.targets = measured_targets(counts, target_shares, self._corpus.shares)
        self._has_own_mean = counts.families[0] in target_shares.shares
        # Floors and bounds take as long as some measures. They are the same for every bijection, so we compute them
        # once.
        self._limits_of_corpus: dict[str, dict[int, tuple[float, float]]] = {}

    def measure(self, ordering: AnyOrder, advance: Advance = ignore) -> Balance:
        """Measure one of the orders, with the curves of all positions as arrays."""
        prefixes: dict[str, list[np.ndarray]] = {family: [np.zeros(0)] for family in self.targets}
        drifts = [np.zeros(0)]

        def keep(family: str | None, values: Float64[np.ndarray, " position"]) -> None:
            (drifts if family is None else prefixes[family]).append(values)

        values = self._measured(ordering, advance, keep)
        joined = {family: np.concatenate(parts) for family, parts in prefixes.items()}
        return Balance(prefix_l2=joined, norm_drift=np.concatenate(drifts), **values)

    def measure_in_short(self, ordering: AnyOrder, advance: Advance = ignore) -> MeasuredOrder:
        """Measure one of the orders; keep its numbers and short curves, but no array of all positions."""
        number = len(as_order(ordering))
        prefixes, drift = {family: Envelope(number) for family in self.targets}, Envelope(number)

        def keep(family: str | None, values: Float64[np.ndarray, " position"]) -> None:
            (drift if family is None else prefixes[family]).add(values)

        values = self._measured(ordering, advance, keep)
        # Of the curves of all positions, a summary shows the largest values.
        largest = {family: np.array([prefix.largest]) for family, prefix in prefixes.items()}
        balance = Balance(prefix_l2=largest, norm_drift=np.array([drift.largest_size]), **values)
        curves = {
            "prefix": {family: prefix.points() for family, prefix in prefixes.items()},
            "windows": window_curves(balance.window_tv),
            "norm_drift": drift.points(),
        }
        return MeasuredOrder(balance.summary(), curves)

    def placed(self, ordering: AnyOrder) -> AbstractContextManager[PlacedCounts]:
        """Return the counts in the order of positions, see `placed_counts`."""
        return placed_counts(self._counts, as_order_of(self._counts, ordering).indices)

    def aligned_windows(self, blocks: PlacedCounts) -> dict[tuple[str, int], AlignedWindows]:
        """Measure only the aligned windows of an order, by family and window size."""
        windows = {
            (family, size): WindowsOfSize(targets, size)
            for family, targets in self.targets.items()
            for size in self.windows
        }
        kept: dict[tuple[str, int], csr_array] = {}
        for block in blocks():
            for family in self.targets:
                placed = block.counts(family)
                for size in self.windows:
                    rows, first, key = placed, block.first, (family, size)
                    if key in kept and kept[key].shape[0]:
                        rows, first = csr_array(vstack([kept[key], placed], format="csr")), first - kept[key].shape[0]
                    windows[key].add(rows, first)
                    kept[key] = csr_array(rows[windows[key].next - first :])
        return {key: measure.measured() for key, measure in windows.items()}

    def _measured(
        self, ordering: AnyOrder, advance: Advance, keep: Callable[[str | None, Any], None]
    ) -> dict[str, Any]:
        """Measure an order block by block; return the attributes of `Balance` but for the curves of all positions.

        `keep` gets the prefix deviations of a family, and the drift (without a family), of every block.
        """
        check_function("advance", advance)
        ordering = as_order_of(self._counts, ordering)
        number, length, corpus = len(ordering), self._counts.sequence_length, self._corpus
        for size in self.windows:
            as_whole_number("every window size", size, 1, number)
        # A stored run computes its indices at every access.
        is_bijection, indices = ordering.is_bijection, ordering.indices
        spreads = {"documents": SpreadOfBlocks(True), "copies": SpreadOfBlocks(False)}
        is_known = dict.fromkeys(spreads, False)
        with placed_counts(self._counts, indices) as blocks:
            # All orderings of a corpus have the same floors and bounds. A run has its own, computed from its positions.
            known_limits = self._limits_of_corpus if is_bijection else {}
            pieces = corpus.pieces if is_bijection else self._pieces_of(blocks)
            mean_norm = corpus.mean_norm
            if self._has_own_mean and not is_bijection:
                mean_norm = self._mean_norm_of(blocks, number)
            limits = {
                family: {
                    size: WindowLimits(
                        targets.largest(number),
                        size,
                        length,
                        number,
                        pieces.get(family) if targets.is_constant else None,
                    )
                    for size in self.windows
                    if family not in known_limits
                }
                for family, targets in self.targets.items()
            }
            families = {
                family: FamilyMeasures(
                    targets,
                    self.windows,
                    length,
                    every_start=bool(self._every_start),
                    mean_tokens=corpus.mean_tokens if corpus.is_uneven else None,
                    limits=limits[family],
                )
                for family, targets in self.targets.items()
            }
            drift = 0.0
            advance_once = _once(advance, sum(measures.num_walks for measures in families.values()))
            for block in blocks():
                for place, (family, measures) in enumerate(families.items()):
                    placed = block.counts(family)
                    keep(family, measures.add(placed, advance_once))
                    if place == 0:
                        running = norms_of(placed, length)
                        running -= mean_norm
                        if block.first:
                            running[:1] += drift
                        np.cumsum(running, out=running)
                        drift = float(running[-1]) if len(running) else drift
                        keep(None, running)
                    del placed
                for name, spread in spreads.items():
                    members = block.members(name)
                    # An order without positions has a spread if the corpus has documents or copies.
                    if members is not None and getattr(block.source, name).size:
                        is_known[name] = True
                        spread.add(block.first, members)
        for family, by_size in limits.items():
            if by_size or family not in known_limits:
                known_limits[family] = {size: limit.result() for size, limit in by_size.items()}
        attributes: dict[str, dict[str, Any]] = {}
        for family, measures in families.items():
            for name, value in self._family_values(family, measures, known_limits[family], number).items():
                attributes.setdefault(name, {})[family] = value
        measured_spreads = {
            name: spread.measured(indices, self.windows) if is_known[name] else None for name, spread in spreads.items()
        }
        return {**attributes, **measured_spreads}

    def _family_values(
        self, family: str, measures: FamilyMeasures, limits: Mapping[int, tuple[float, float]], num_positions: int
    ) -> dict[str, Any]:
        """Return a dict from attributes of `Balance` to their values for one family."""
        sizes = self.windows
        aligned = {size: measures.aligned[size].measured() for size in sizes}
        return {
            "window_tv": {size: aligned[size].tv for size in sizes},
            "window_tv_shifted": {size: measures.shifted[size].measured().tv for size in sizes},
            "window_l2": {size: aligned[size].l2 for size in sizes},
            "window_tv_floor": {size: limits[size][0] for size in sizes},
            "window_tv_bound": {size: limits[size][1] for size in sizes},
            "window_max": {size: measures.sliding[size].largest for size in sizes},
            "ideal_tv": {size: measures.ideal(size) for size in sizes},
            "groups_per_batch": {size: aligned[size].num_groups for size in sizes},
            "groups_per_sequence": measures.num_entries / max(num_positions, 1),
            "window_tv_every_start": {
                size: measures.sliding[size].every_start() for size in sizes if self._every_start
            },
            "window_tv_tokens": {size: measure.measured() for size, measure in measures.tokens.items()},
        }

    def _pieces_of(self, blocks: PlacedCounts) -> dict[str, Pieces]:
        """Return the pieces of all positions of a run."""
        pieces_of_families: dict[str, Pieces] = {}
        for block in blocks():
            for family in self.targets:
                pieces = pieces_of(block.counts(family))
                pieces_of_families[family] = (
                    pieces_of_families[family].plus(pieces) if family in pieces_of_families else pieces
                )
        return pieces_of_families

    def _mean_norm_of(self, blocks: PlacedCounts, number: int) -> float:
        """Return the mean norm of all positions of a run."""
        first, length = self._counts.families[0], self._counts.sequence_length
        return sum(float(norms_of(block.counts(first), length).sum()) for block in blocks()) / max(number, 1)


def _once(advance: Advance, num_walks: int) -> Advance:
    """Report each position once even if it is read several times, so that progress is the number of positions."""
    done = 0

    def told(amount: int) -> None:
        nonlocal done
        # We report whole positions; the remainder of the division is reported with the next call.
        before, done = done // num_walks, done + amount
        advance(done // num_walks - before)

    return told


def as_order_of(counts: TokenCounts, ordering: AnyOrder, name: str = "the ordering") -> Order:
    """Check that an ordering has as many sequences as the counts; `name` is its name in error messages."""
    check_type("characteristics", counts, TokenCounts, MADE_BY)
    ordering = as_order(ordering, name)
    if ordering.num_sequences != counts.num_sequences:
        raise UserError(
            f"Expected an ordering of {counts.num_sequences} sequences, found {ordering.num_sequences}; "
            "it was made for another dataset."
        )
    return ordering


def as_order(ordering: AnyOrder, name: str = "the ordering") -> Order:
    """Convert an array to an ordering; `name` is the argument's name in error messages."""
    if isinstance(ordering, Order):
        return ordering
    if isinstance(ordering, Mapping):
        raise UserError(
            f"Expected {name} to be one jd.Ordering or its array, found a mapping; jd.compare takes several."
        )
    try:
        return Ordering(ordering)
    except UserError as error:
        raise UserError(f"Expected {name} to be a jd.Ordering or its array: {in_one_line(error)}") from None
    except Exception as error:  # errors that come from arrays of NumPy and other libraries
        raise UserError(f"Expected {name} to be a jd.Ordering or its array, found: {in_one_line(error)}.") from None


def own_shares(counts: TokenCounts, ordering: AnyOrder) -> dict[str, Float64[np.ndarray, " group"]]:
    """Return the groups' shares of the tokens of all positions, such as the mixture of a run that repeats sequences.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [0, 2]]})
        >>> own_shares(chars, make_run(chars, positions=[0, 0, 0, 1]))
        {'topic': array([0.75, 0.25])}
    """
    indices = as_order_of(counts, ordering).indices
    times = np.bincount(indices, minlength=counts.num_sequences)
    tokens = {family: np.zeros(number) for family, number in counts.num_groups.items()}
    for (first, stop), chunk in zip(itertools.pairwise(counts.chunk_bounds), counts.chunks(), strict=True):
        for family, matrix in chunk.counts.items():
            tokens[family] += (matrix.T @ times[first:stop]).astype(np.float64)
    return {family: total / max(total.sum(), 1.0) for family, total in tokens.items()}
