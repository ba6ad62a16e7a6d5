"""Many orders of one corpus beside one another: plain numbers, and tables of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.measures.balance import Balance, Targets, Yardstick, measure_by, target_shares
from jax_diversity.measures.floors import gap_closed
from jax_diversity.measures.placing import place
from jax_diversity.measures.tables import Row, as_markdown, as_text
from jax_diversity.measures.windows import window_deviation
from jax_diversity.schema import Characteristics, Ordering, Schedule

Compared = Mapping[str, Ordering | Schedule | Int64[np.ndarray, " position"]]

WINDOWS = (64, 192, 256, 1024)
OFFSETS = ("0", "half", "every")
_SUFFIXES = {"0": "", "half": "_shifted", "every": "_every_start"}
_SHUFFLE = "uniform_shuffle"


@dataclass(frozen=True)
class Comparison:
    """Orders beside one another; smaller is better but for `gap_closed` and the groups.

    Attributes:
        rows: one number each, by ordering, then family, then measure.
        base: the ordering that all values are ratios to; None where they are the measures themselves.
    """

    rows: tuple[Row, ...]
    base: str | None = None

    @property
    def orderings(self) -> tuple[str, ...]:
        """The names, in the order in which they were given."""
        return tuple(dict.fromkeys(row.ordering for row in self.rows))

    def value(
        self, ordering: str, family: str, measure: str, window: int | None = None, offset: str | None = None
    ) -> float | None:
        """One number by what `Row` names it.

        Raises:
            ValueError: the comparison does not hold it.
        """
        wanted = (ordering, family, measure, window, offset)
        for row in self.rows:
            if (row.ordering, *row.key) == wanted:
                return row.value
        raise UserError(
            f"The comparison holds no {measure!r} of {ordering!r} in family {family!r} at window {window} "
            f"and offset {offset}; see `rows` for what it holds."
        )

    def relative_to(self, name: str) -> Comparison:
        """All values as ratios to one ordering's: None where that is zero, or either is not defined.

        Raises:
            ValueError: an ordering that was not compared.
        """
        if name not in self.orderings:
            raise UserError(f"Expected one of the compared orders {list(self.orderings)}, found {name!r}.")
        bases = {row.key: row.value for row in self.rows if row.ordering == name}

        def ratio(row: Row) -> float | None:
            base = bases.get(row.key)
            return row.value / base if row.value is not None and base else None

        return Comparison(tuple(replace(row, value=ratio(row)) for row in self.rows), base=name)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: under `orderings`, ordering -> family -> measure -> value.

        Measures of windows stand deeper, under `windows` and the size, and there under `offsets` and the offset;
        `relative_to` is `base`.
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

    def table(self) -> str:
        """Aligned text for terminals: per family prefixes, windows at every offset, gaps closed, groups."""
        return as_text(self.rows, self.base)

    def markdown(self) -> str:
        """The same as Markdown tables."""
        return as_markdown(self.rows, self.base)

    def __str__(self) -> str:
        return self.table()


def compare(
    characteristics: Characteristics,
    orderings: Compared,
    windows: Sequence[int] | None = None,
    offsets: Sequence[str] = ("0", "half"),
    *,
    targets: Targets | None = None,
    advance: Advance = ignore,
    keep: Callable[[str, Balance], None] = lambda name, balance: None,
) -> Comparison:
    """Measure several orders of one corpus by one yardstick.

    Args:
        characteristics: the token counts; weights play no part.
        orderings: name -> ordering, schedule, or array that is a bijection of the sequences.
        windows: window sizes in sequences; None takes those of 64, 192, 256 and 1024 that fit, else half of all.
        offsets: which windows' TV: "0" aligned ones, "half" those half a window later, "every" start position
            (which costs as much as the rest together).
        targets: as `measure` takes them.
        advance: told the number of positions done, over all families and orders.
        keep: given every order's name and all of its measures, whose curves are not kept otherwise.

    The gap is closed from a uniform shuffle: the one among the orders (its method or its name says so), else one
    made for the purpose, to the floor.

    Raises:
        ValueError: no orders, an unknown offset, and what `measure` raises.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [0, 2], [2, 0], [0, 2]]})
        >>> compared = compare(chars, {"in order": np.arange(4)}, windows=(2,))
        >>> compared.value("in order", "topic", "tv_mean", window=2, offset="0")
        0.0
    """
    if not orderings:
        raise UserError("Expected at least one order to compare, found none; pass {'name': ordering}.")
    unknown = [offset for offset in offsets if offset not in OFFSETS]
    if unknown:
        raise UserError(f"Expected offsets out of {list(OFFSETS)}, found {unknown[0]!r}.")
    if windows is None:
        windows = _fitting_windows(min(map(len, orderings.values())))
    shares = target_shares(characteristics, targets or {})
    yardstick = Yardstick(tuple(windows), shares, set(targets or {}), "every" in offsets)
    if all(1 <= size <= characteristics.num_sequences for size in windows):
        yardstick = yardstick.known_limits(characteristics)
    summaries = {}
    for name, ordering in orderings.items():
        balance = measure_by(yardstick, characteristics, ordering, advance)
        keep(name, balance)
        summaries[name] = balance.summary()
    shuffle = next((name for name, ordering in orderings.items() if _is_shuffle(name, ordering)), None)
    shuffled = _mean_tvs(summaries[shuffle]) if shuffle is not None else _shuffle_tvs(characteristics, windows, shares)
    rows = [row for name in orderings for row in _rows(name, summaries[name], offsets, shuffled)]
    return Comparison(tuple(rows))


def _fitting_windows(num_positions: int) -> tuple[int, ...]:
    if not num_positions:
        return ()
    return tuple(size for size in WINDOWS if size <= num_positions) or (max(num_positions // 2, 1),)


def _is_shuffle(name: str, ordering: Any) -> bool:
    return name == _SHUFFLE or (isinstance(ordering, Ordering) and ordering.info.get("method") == _SHUFFLE)


_MeanTVs = Mapping[tuple[str, int], float]


def _mean_tvs(summary: Mapping[str, Any]) -> _MeanTVs:
    return {
        (family, int(size)): values["tv_mean"]
        for family, about in summary["families"].items()
        for size, values in about["windows"].items()
    }


def _shuffle_tvs(
    characteristics: Characteristics,
    windows: Sequence[int],
    shares: Mapping[str, Float64[np.ndarray, " group"]],
) -> _MeanTVs:
    """Mean aligned window TV of a uniform shuffle; none of a size beyond the corpus, which a schedule may have."""
    indices = np.random.default_rng(0).permutation(characteristics.num_sequences)
    means = {}
    for family, target in shares.items():
        placed = place(characteristics.counts[family], indices)
        for size in windows:
            tv = window_deviation(placed, target, size)
            means[family, size] = float(tv.mean()) if len(tv) else math.nan
    return means


def _rows(name: str, summary: Mapping[str, Any], offsets: Sequence[str], shuffled: _MeanTVs) -> Iterator[Row]:
    for index, (family, about) in enumerate(summary["families"].items()):
        yield Row(name, family, "prefix_l2_max", about["prefix_l2_max"])
        if index == 0:
            yield Row(name, family, "norm_drift_max", summary["norm_drift_max"])
        yield Row(name, family, "groups_per_sequence_mean", about["groups_per_sequence_mean"])
        for size, values in about["windows"].items():
            window = int(size)
            for measured in _OF_WINDOWS:
                yield Row(name, family, measured, values[measured], window)
            closed = gap_closed(values["tv_mean"], shuffled[family, window], values["tv_floor"])
            yield Row(name, family, "gap_closed", None if math.isnan(closed) else closed, window)
            for offset in offsets:
                for part in ("tv_mean", "tv_best", "tv_worst"):
                    yield Row(name, family, part, values.get(part + _SUFFIXES[offset]), window, offset)


_OF_WINDOWS = (
    "tv_floor",
    "tv_bound",
    "l2_worst",
    "max_share_deviation",
    "groups_per_batch_mean",
    "groups_per_batch_min",
)
