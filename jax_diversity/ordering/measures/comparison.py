"""Comparison of several orders of one corpus: plain numbers, and tables that are at most 80 columns wide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from jax_diversity.counts import TokenCounts
from jax_diversity.foundation.checks import as_tuple, check_function, check_mapping, check_one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.figures.figure import Figure
from jax_diversity.foundation.figures.plain import clean_text
from jax_diversity.foundation.libraries import optional
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.tables import Cells, Display, Displayed, piped
from jax_diversity.ordering.measures.balance import AnyOrder, Measurer, as_order_of
from jax_diversity.ordering.measures.documents import COPY, DOCUMENT
from jax_diversity.ordering.measures.drawn import MeasuredOrder
from jax_diversity.ordering.measures.targets import GivenTargets
from jax_diversity.ordering.measures.verdict import (
    LEGEND,
    SHUFFLE,
    Verdict,
    WindowTV,
    decimal,
    gap_closed,
    judge,
    targeted_families,
)

WINDOWS = (64, 192, 256, 1024)
_SUFFIXES = {"0": "", "half": "_shifted", "every": "_every_start", "tokens": "_tokens"}
_GROUPS_PER_BATCH = ("groups_per_batch_mean", "groups_per_batch_min")
_SPREAD = ("place_correlation", "gap_low", "gap_median", "gap_smallest")


@dataclass(frozen=True)
class Row:
    """One number of a comparison.

    Attributes:
        ordering: the ordering's name.
        family: the family that was measured, `document` or `copy`; the norm drift is a row of the first family.
        measure: the name of the measure. Without windows: prefix_l2_max, norm_drift_max, groups_per_sequence_mean. For
            a window size: tv_floor, tv_bound, l2_best, l2_worst, max_share_deviation, groups_per_batch_mean,
            groups_per_batch_min and, for aligned windows, gap_closed. For a window size and an offset: tv_mean,
            tv_best, tv_worst. For the families `document` and `copy`: place_correlation (not for copies), gap_low,
            gap_median, gap_smallest and, for a window size, repeats_mean, repeats_worst, repeats_floor.
        value: the number; None if it is undefined (no window fits, or there is no gap to close).
        window: the window size; None for measures without windows.
        offset: "0" means aligned windows, which begin at position 0. "half" means windows that begin half a window
            later. "every" means all start positions. "tokens" means windows of equal tokens. None for measures without
            offsets.
    """

    ordering: str
    family: str
    measure: str
    value: float | None
    window: int | None = None
    offset: str | None = None

    @property
    def key(self) -> tuple[str, str, int | None, str | None]:
        """The quantity that was measured: family, measure, window, offset."""
        return self.family, self.measure, self.window, self.offset


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """Measures of several orders; smaller is better except for `gap_closed` and the groups.

    Attributes:
        rows: one number per row, by ordering, then family, then measure.
        base: the ordering whose values all values were divided by; None if the values are the measures themselves.
        batch_size: the global batch size of training; None if it is unknown.
        shuffle: the name of the uniform shuffle with which the verdict compares; None if no order is one.
        targeted: ordering -> the families in which it follows targets of its own, and in which it is not judged.
    """

    rows: tuple[Row, ...]
    base: str | None = None
    batch_size: int | None = None
    shuffle: str | None = None
    targeted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def orderings(self) -> tuple[str, ...]:
        """The names of the orderings, in the order in which they were given."""
        return tuple(dict.fromkeys(row.ordering for row in self.rows))

    def value(
        self, ordering: str, family: str, measure: str, window: int | None = None, offset: str | None = None
    ) -> float | None:
        """Return one number, found by the attributes of its `Row`.

        Raises:
            ValueError: the comparison does not contain this number.
        """
        for row in self.rows:
            if (row.ordering, *row.key) == (ordering, family, measure, window, offset):
                return row.value
        stored = [
            f"window={row.window}, offset={row.offset!r}"
            for row in self.rows
            if (row.ordering, row.family, row.measure) == (ordering, family, measure)
        ]
        there = f"it has {'; '.join(stored)}" if stored else "`rows` contains all values"
        raise UserError(
            f"The comparison has no value of {measure!r} for {ordering!r} in family {family!r} at window={window}, "
            f"offset={offset!r}; {there}."
        )

    def relative_to(self, name: str) -> Comparison:
        """Divide all values by the values of one ordering; None if that value is zero or one of the two is undefined.

        Raises:
            ValueError: the ordering was not compared.
        """
        check_one_of("the base", name, self.orderings)
        bases = {row.key: row.value for row in self.rows if row.ordering == name}

        def ratio(row: Row) -> float | None:
            base = bases.get(row.key)
            return row.value / base if row.value is not None and base else None  # a base of 0 has no ratios

        return replace(self, rows=tuple(replace(row, value=ratio(row)) for row in self.rows), base=name)

    def as_dict(self) -> dict[str, Any]:
        """Return nested dicts for JSON: under `orderings`, ordering -> family -> measure -> value.

        Measures of windows are under `windows` and the size. Measures at an offset are under `windows`, the size,
        `offsets` and the offset. `relative_to` is `base`.
        """
        nested: dict[str, Any] = {}
        for row in self.rows:
            values = nested.setdefault(row.ordering, {}).setdefault(row.family, {})
            if row.window is not None:
                values = values.setdefault("windows", {}).setdefault(str(row.window), {})
            if row.offset is not None:
                values = values.setdefault("offsets", {}).setdefault(row.offset, {})
            values[row.measure] = row.value
        return {"relative_to": self.base, "orderings": nested}

    def to_frame(self) -> Any:
        """Return the rows as a `pandas.DataFrame`, whose columns are the attributes of `Row`.

        Raises:
            UserError: pandas is not installed.
        """
        return optional("pandas", None).DataFrame([asdict(row) for row in self.rows])

    def table(self) -> str:
        """Return text tables for each family: prefixes, windows at every offset, closed gaps, groups.

        The text is at most 80 columns wide; further columns follow below.
        """
        return Display("", list(_blocks(self))).table

    def markdown(self) -> str:
        """Return the same tables in Markdown, under bold titles."""
        return "\n\n".join(f"**{title}**\n\n{piped(cells)}" for title, cells in _blocks(self))

    def verdict(self, batch_size: int | None = None) -> Verdict | None:
        """Return the verdict on `balance` (or the first order); None without a uniform shuffle, or for ratios.

        The verdict has a sentence and a small table. `batch_size` is the global batch size of training; None means that
        of the comparison.
        """
        if self.shuffle is None or self.base is not None:
            return None
        measures = [f"tv_{part}" for part in WindowTV._fields]
        ratios: dict[tuple[str, str, int], dict[str, float]] = {}
        for row in self.rows:
            if row.measure in measures and row.offset in ("0", None) and row.window is not None:
                of_windows = ratios.setdefault((row.ordering, row.family, row.window), {})
                of_windows[row.measure] = 0.0 if row.value is None else row.value
        means: dict[str, dict[tuple[str, int], WindowTV]] = {name: {} for name in self.orderings}
        for (name, family, window), values in ratios.items():
            if values.keys() == set(measures):
                means[name][family, window] = WindowTV(*(values[measure] for measure in measures))
        size = self.batch_size if batch_size is None else batch_size
        return judge(means, self.shuffle, size, targeted=self.targeted)

    def plot(self, figure: str = "profile", *, family: str | None = None) -> Figure:
        """Return a figure of the report on these orders, which a notebook shows.

        Args:
            figure: `profile` (the mean and worst TV of aligned windows against their size).
            family: the family; by default the first.

        Raises:
            ValueError: there is no such figure, the family was not compared, the values are ratios, or fewer than two
                window sizes were compared.

        Example:
            >>> compare(chars, {"mine": ordering}, windows=(16, 64, 256)).plot()
        """
        check_one_of("figure", figure, ("profile",))
        if self.base is not None:
            raise UserError("Expected a comparison of measures to draw, found ratios; draw the comparison itself.")
        rows = [row for row in self.rows if row.offset in ("0", None) and row.window is not None]
        values = {(row.ordering, row.family, row.measure, row.window): row.value for row in rows}
        families = tuple(dict.fromkeys(row.family for row in rows if row.measure == "tv_mean"))
        measured = [row.window for row in rows if row.measure == "tv_mean" and row.value is not None]
        sizes = sorted({size for size in measured if size is not None})
        if len(sizes) < 2:
            raise UserError(f"Expected at least two window sizes to draw, found {len(sizes)}; compare more `windows`.")
        chosen = families[0] if family is None else family
        check_one_of("family", chosen, families)

        def column(name: str, measure: str) -> list[float | None]:
            return [values.get((name, chosen, measure, size)) for size in sizes]

        measures = {"mean": "tv_mean", "best": "tv_best", "worst": "tv_worst"}
        orders = [
            {
                "name": clean_text(name),
                "is_baseline": name == self.shuffle,
                "profile": {
                    clean_text(chosen): {
                        "0": {"sizes": sizes, **{key: column(name, measure) for key, measure in measures.items()}}
                    }
                },
            }
            for name in self.orderings
        ]
        ordering = {
            "baseline": None if self.shuffle is None else clean_text(self.shuffle),
            "families": [clean_text(chosen)],
            "window_sizes": sizes,
            "profile_references": {
                clean_text(chosen): {"sizes": sizes, "floor": column(self.orderings[0], "tv_floor"), "ideal": []}
            },
            "orders": orders,
        }
        return Figure(figure, {"ordering": ordering})

    def _display(self) -> Display:
        """A sentence and a small table: the verdict, or, without a shuffle, the mean TV of every family and window."""
        verdict = self.verdict()
        if verdict is not None and verdict.window is not None:
            return verdict._display()
        keys = dict.fromkeys(row.key for row in self.rows if row.measure == "tv_mean" and row.offset == "0")
        values = {(row.ordering, *row.key): row.value for row in self.rows}

        def cell(name: str, key: tuple[Any, ...]) -> str:
            value = values.get((name, *key))
            return "-" if value is None else decimal(value)

        ratio = f", relative to {self.base}" if self.base else ""
        lines = [
            [f"{family}, {window}", *(cell(name, key) for name in self.orderings)]
            for key in keys
            for family, _, window, _ in [key]
        ]
        advice = (
            "" if self.base or self.shuffle else "; add jd.order(..., 'uniform_shuffle') to the orders for a verdict"
        )
        cells = [["family, window", *self.orderings], *lines]
        return Display(f"Mean TV of aligned windows{ratio}{advice}", [("", cells)])

    def __str__(self) -> str:
        return f"{self._display().text}\n{LEGEND}\nAll numbers: .table(), .markdown(), .to_frame(), .as_dict()"

    __repr__ = __str__


def compare(
    counts: TokenCounts,
    orderings: Mapping[str, AnyOrder],
    windows: Sequence[int] | None = None,
    offsets: Sequence[str] = ("0", "half"),
    *,
    targets: GivenTargets = None,
    advance: Advance = ignore,
    keep: Callable[[str, MeasuredOrder], None] = lambda name, measured: None,
    stored: Mapping[str, MeasuredOrder] | None = None,
) -> Comparison:
    """Measure several orders of one corpus against the same targets.

    Args:
        counts: the token counts; weights are ignored. With `jd.compare`, also a built dataset, its folder or its
            address, or files of counts.
        orderings: name -> ordering, run, or array that is a bijection of the sequences. Of a dataset, also the names of
            orderings; by default all.
        windows: window sizes in sequences. None means the sizes with which the dataset was built (of token counts: 64,
            192, 256, 1024) and the batch size, without the sizes that do not fit; if none of them fits, half of all
            sequences.
        offsets: the windows whose TV is measured. "0" means aligned windows. "half" means windows that begin half a
            window later. "every" means all start positions; this takes as long as all other measures. If the number of
            tokens per sequence varies, "tokens" (windows of equal tokens) is added.
        targets: see `measure`.
        advance: called with the number of positions done, over all orders.
        keep: called with the name and the measures of each order; the comparison itself does not keep curves.
        stored: the measures of orders that were measured in these windows, such as those of a build. These orders are
            not measured again.

    `gap_closed` compares with a uniform shuffle. If one of the orders is a uniform shuffle, by its method or its name,
    this order is used; otherwise a shuffle is made here.

    Raises:
        ValueError: there are no orders, or an offset is unknown; also the errors of `measure`.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [0, 2], [2, 0], [0, 2]]})
        >>> compared = compare(chars, {"in order": np.arange(4)}, windows=(2,))
        >>> compared.value("in order", "topic", "tv_mean", window=2, offset="0")
        0.0
    """
    check_mapping("orderings", orderings, "name -> ordering")
    if not orderings:
        raise UserError("Expected at least one order to compare, found none; pass {'name': ordering}.")
    offsets = as_tuple(offsets)
    for offset in offsets:
        check_one_of("every offset", offset, _SUFFIXES)
    check_function("keep", keep)
    orders = {name: as_order_of(counts, order, f"order {name!r}") for name, order in orderings.items()}
    if windows is None:
        least = min(map(len, orders.values()))
        size = counts.batch_size
        sizes = sorted(set(WINDOWS) | (set() if size is None else {size}))
        windows = [size for size in sizes if size <= least] or [max(least // 2, 1)] * (least > 0)
    measurer: Measurer | None = None
    summaries = {}
    for name, ordering in orders.items():
        # We keep only the summary, because the curves of many orders of ten million sequences would not fit into
        # memory.
        if (measured := (stored or {}).get(name)) is None:
            measurer = measurer or Measurer(counts, windows, targets, every_start="every" in offsets)
            measured = measurer.measure_in_short(ordering, advance)
        keep(name, measured)
        summaries[name] = measured.summary
    shuffle = next((name for name, ordering in orders.items() if is_shuffle(name, ordering)), None)
    if shuffle is not None:
        shuffled = _means(summaries[shuffle])
    else:
        measurer = measurer or Measurer(counts, windows, targets)
        # This is the permutation of `order(counts, "uniform_shuffle")` with its default seed, without importing it.
        with measurer.placed(np.random.default_rng(0).permutation(counts.num_sequences)) as blocks:
            aligned_tvs = {key: windows.tv for key, windows in measurer.aligned_windows(blocks).items()}
        shuffled = {key: float(tv.mean()) if len(tv) else math.nan for key, tv in aligned_tvs.items()}
    rows = [row for name in orders for row in _rows(name, summaries[name], offsets, shuffled)]
    # All orders are measured against the given targets, also orders that followed other targets.
    infos = {name: getattr(order, "info", {}) for name, order in orders.items() if targets is None}
    targeted = {name: named for name, info in infos.items() if (named := targeted_families(info, counts.families))}
    return Comparison(tuple(rows), batch_size=counts.batch_size, shuffle=shuffle, targeted=targeted)


def _means(summary: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    """Return the mean TV of aligned windows of an order."""
    by_family = {family: values["windows"] for family, values in summary["families"].items()}
    return {(at, int(size)): tv["tv_mean"] for at, sizes in by_family.items() for size, tv in sizes.items()}


def is_shuffle(name: str, ordering: AnyOrder) -> bool:
    """Return whether an ordering is a uniform shuffle, by its name or its method."""
    return name == SHUFFLE or getattr(ordering, "info", {}).get("method") == SHUFFLE


def gap_or_none(tv: float, shuffle_tv: float, floor: float) -> float | None:
    """Return `gap_closed` for JSON, with None instead of NaN if there is no gap."""
    closed = gap_closed(tv, shuffle_tv, floor)
    return None if math.isnan(closed) else closed


def _rows(
    name: str, summary: Mapping[str, Any], offsets: Sequence[str], shuffled: Mapping[tuple[str, int], float]
) -> Iterator[Row]:
    for index, (family, part_summary) in enumerate(summary["families"].items()):
        yield Row(name, family, "prefix_l2_max", part_summary["prefix_l2_max"])
        if index == 0:
            yield Row(name, family, "norm_drift_max", summary["norm_drift_max"])
        yield Row(name, family, "groups_per_sequence_mean", part_summary["groups_per_sequence_mean"])
        for size, values in part_summary["windows"].items():
            window = int(size)
            yield Row(name, family, "l2_best", values.get("l2_best"), window)  # absent from measures of version 1
            for measured in ("tv_floor", "tv_bound", "l2_worst", "max_share_deviation", *_GROUPS_PER_BATCH):
                yield Row(name, family, measured, values[measured], window)
            closed = gap_or_none(values["tv_mean"], shuffled[family, window], values["tv_floor"])
            yield Row(name, family, "gap_closed", closed, window)
            unequal = ("tokens",) if "tv_mean_tokens" in values and "tokens" not in offsets else ()
            for offset in (*offsets, *unequal):
                for part in ("tv_mean", "tv_best", "tv_worst"):
                    yield Row(name, family, part, values.get(part + _SUFFIXES[offset]), window, offset)
    for family, part in ((DOCUMENT, "documents"), (COPY, "copies")):
        if part_summary := summary.get(part):
            for measured in _SPREAD if family == DOCUMENT else _SPREAD[1:]:
                if measured in part_summary:
                    yield Row(name, family, measured, part_summary[measured])
            for size, values in part_summary["windows"].items():
                for measured in ("repeats_mean", "repeats_worst", "repeats_floor"):
                    yield Row(name, family, measured, values[measured], int(size))


# ---- tables

_OFFSET_WORDS = {"0": "aligned", "half": "half a window later", "every": "every start position"}
_OFFSET_WORDS["tokens"] = "windows of equal tokens"
_TOTALS = {
    "prefix_l2_max": "prefix L2",
    "norm_drift_max": "norm drift",
    "groups_per_sequence_mean": "groups per sequence",
    "place_correlation": "place correlation",
    "gap_low": "gaps, 5 %",
    "gap_median": "median",
    "gap_smallest": "least",
}
_DECIMALS = {"prefix_l2_max": 2, "norm_drift_max": 1, "groups_per_sequence_mean": 2, "gap_closed": 3}
_DECIMALS |= {"place_correlation": 2, "gap_low": 2, "gap_median": 2, "repeats_mean": 2, "repeats_floor": 2}
_DECIMALS |= dict.fromkeys((*_GROUPS_PER_BATCH, "gap_smallest", "repeats_worst"), 0)


def _blocks(compared: Comparison) -> Iterator[tuple[str, Cells]]:
    """Yield the title and the cells of every table; the header is the first row."""
    rows, base, names = compared.rows, compared.base, compared.orderings
    ratio = f", relative to {base}" if base else ""
    values = {(row.ordering, *row.key): row.value for row in rows}
    windows = sorted({row.window for row in rows if row.window is not None})
    offsets = dict.fromkeys(row.offset for row in rows if row.offset is not None)

    def cell(name: str, family: str, measure: str, window: int | None = None, offset: str | None = None) -> str:
        value = values.get((name, family, measure, window, offset))
        return "-" if value is None else f"{value:z.{3 if base else _DECIMALS.get(measure, 4)}f}"

    def line(name: str, family: str, measures: Sequence[str], offset: str | None = None) -> list[str]:
        return [" / ".join(cell(name, family, measure, window, offset) for measure in measures) for window in windows]

    def is_known(family: str, measure: str) -> bool:
        return any((names[0], family, measure, window, None) in values for window in windows)

    def by_window(family: str, measures: Sequence[str], offset: str | None = None) -> Cells:
        """Return cells with one line per ordering and one column per window size."""
        return [["", *map(str, windows)], *([name, *line(name, family, measures, offset)] for name in names)]

    def limits(family: str) -> Iterator[list[str]]:
        """Yield the lowest possible means: one line if all orderings have the same, otherwise one per value."""
        for limit in ("repeats_floor",) if family in (DOCUMENT, COPY) else ("tv_floor", "tv_bound"):
            if not is_known(family, limit):
                continue
            distinct: dict[tuple[str, ...], list[str]] = {}
            for name in names:
                distinct.setdefault(tuple(line(name, family, (limit,))), []).append(name)
            word = limit.partition("_")[2]
            for cells, sharing in distinct.items():
                yield [word if len(distinct) == 1 else f"{word} of {', '.join(sharing)}", *cells]

    for family in dict.fromkeys(row.family for row in rows):
        totals = [measure for measure in _TOTALS if (names[0], family, measure, None, None) in values]
        lines = [[name, *(cell(name, family, measure) for measure in totals)] for name in names]
        if totals:
            yield f"{family}{ratio}", [["", *(_TOTALS[measure] for measure in totals)], *lines]
        if not windows:
            continue
        if family in (DOCUMENT, COPY):
            cells = by_window(family, ("repeats_mean", "repeats_worst"))
            yield f"{family}{ratio}: repeats per window, mean / worst", cells if base else [*cells, *limits(family)]
            continue
        for offset in offsets:
            cells = by_window(family, ("tv_mean", "tv_worst"), offset)
            if offset == "0" and not base:
                cells += limits(family)
            yield f"{family}{ratio}: window TV, mean / worst, {_OFFSET_WORDS[offset]}", cells
        cells = by_window(family, ("l2_best", "l2_worst", "max_share_deviation"))
        yield f"{family}{ratio}: window L2, best / worst, / window maximum", cells
        yield f"{family}{ratio}: gap closed between a shuffle and the floor", by_window(family, ("gap_closed",))
        if is_known(family, _GROUPS_PER_BATCH[0]):
            yield f"{family}{ratio}: groups per batch, mean / least", by_window(family, _GROUPS_PER_BATCH)
