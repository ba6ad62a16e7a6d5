"""The verdict on an order: some sentences and one small table, from the TV of its windows and of a shuffle's."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

from jax_diversity.foundation.tables import Cells, Display, Displayed
from jax_diversity.foundation.wording import against, counted, listing

Key = TypeVar("Key")

SHUFFLE = "uniform_shuffle"
"""The method, and the name, of the order that others are compared with."""


class WindowTV(NamedTuple):
    """TV of an order's aligned windows of one size: their mean, its floor, the best and the worst window."""

    mean: float
    floor: float
    best: float
    worst: float


Means = Mapping[tuple[str, int], WindowTV]
"""The TV of an order's aligned windows by family and window size."""
_SMALLEST_GAP = 1e-4
"""The smallest distance of a shuffle from the floor, in TV, with which orders are compared."""
ALL_FAMILIES = "dataset"
"""The family of a run's datasets: if their shares move, the shares of all families move."""
LEGEND = "TV: share of a window's tokens in a wrong group; no order is below the floor."
"""What the table shows, in one line."""
_LEAST_WINDOWS = 4
"""The smallest number of windows for which a verdict has no reservation."""
_MOST_NAMED = 2
"""The largest number of comparisons that a sentence names; the table has all families."""
_BETTER, _WORSE, _EQUAL = "better than", "worse than", "equal to"


def gap_closed(tv: float, shuffle_tv: float, floor: float) -> float:
    """Compute how much of the gap between a shuffle and the floor an ordering closes: 1 at the floor, 0 at the shuffle.

    NaN if the shuffle is at the floor, because there is no gap to close.

    Example:
        >>> gap_closed(0.3, shuffle_tv=0.5, floor=0.1)
        0.5
    """
    gap = shuffle_tv - floor  # both are sums of rounded shares: a gap below 1e-12 is a rounding error
    return (shuffle_tv - tv) / gap if gap > 1e-12 else math.nan


@dataclass(frozen=True)
class Verdict(Displayed):
    """Whether an order is better than a shuffle.

    A *comparison* is one family at one window size; it counts if a shuffle is above the floor there, so that there is
    something to gain. A family in which the order follows targets does not count: its windows are measured against the
    corpus's mixture, which the order does not aim at.

    Attributes:
        ordering: the name of the order that is judged; None if there is only the shuffle.
        reference: the name of the shuffle.
        means: ordering -> TV of the windows, by family and window size.
        window: the window size of the table; None if there are no windows.
        batch_size: the global batch size of training; None if it is unknown.
        targeted: ordering -> the families in which it follows targets of its own.
    """

    ordering: str | None
    reference: str
    means: Mapping[str, Means]
    window: int | None
    batch_size: int | None
    targeted: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_batch(self) -> bool:
        """Whether the window size of the table is the batch size."""
        return self.window is not None and self.window == self.batch_size

    @property
    def comparisons(self) -> dict[tuple[str, int], tuple[WindowTV, WindowTV]]:
        """The TV of the order and of the shuffle, of every comparison that counts."""
        if self.ordering is None:
            return {}
        shuffled, targeted = self.means[self.reference], self.targeted.get(self.ordering, ())
        return {
            (family, size): (tv, shuffled[family, size])
            for (family, size), tv in self.means[self.ordering].items()
            if family not in targeted
            and (family, size) in shuffled
            and shuffled[family, size].mean - tv.floor > _SMALLEST_GAP
        }

    @property
    def gaps_closed(self) -> dict[str, float]:
        """The closed share of the gap between the shuffle and the floor in `window`, by family."""
        return {
            family: gap_closed(tv.mean, shuffled.mean, tv.floor)
            for (family, size), (tv, shuffled) in self.comparisons.items()
            if size == self.window
        }

    @property
    def mean_gap_closed(self) -> float | None:
        """The closed share of the gap between the shuffle and the floor in `window`, the mean over the families."""
        closed = self.gaps_closed.values()
        return sum(closed) / len(closed) if closed else None

    @property
    def sentence(self) -> str:
        """Where the order is better than a shuffle, where it is worse, how much, and its worst window."""
        if self.ordering is None:
            return "There is only a shuffle; make an order with `jax-diversity order`, and compare it."
        compared, targets = self.comparisons, self._targets_sentence
        if not compared and targets:
            return targets
        if not compared:
            return (
                f"`{self.ordering}` cannot be better than a shuffle here: a shuffle already has the corpus's mixture "
                "in every window, or there are too few sequences."
            )
        families, sizes = ({key[part] for key in compared} for part in (0, 1))
        means = {key: (tv.mean, shuffled.mean) for key, (tv, shuffled) in compared.items()}
        outcome = _Outcome.of(means)

        def named(keys: Sequence[tuple[str, int]]) -> str:
            return _named(keys, lambda key: f"by {key[0]} at {key[1]:,} (TV {_pair(means[key])})")

        text = (
            f"`{self.ordering}` is {outcome.word} a shuffle in {len(outcome.keys)} of {len(compared)} comparisons "
            f"({counted(len(families), 'family')} at {counted(len(sizes), 'window size')})"
        )
        if outcome.others:
            text += f", and {outcome.other_word} in {len(outcome.others)}: {named(outcome.others)}"
        sentences = (f"{text}.", self._gap_sentence, self._worst_sentence, targets)
        return " ".join(filter(None, sentences))

    @property
    def _targets_sentence(self) -> str:
        """The families in which the order is not compared, because it follows targets there."""
        families = self.targeted.get(self.ordering or "", ())
        if not families:
            return ""
        return (
            f"By {listing(families)}, `{self.ordering}` follows targets or weights of its own, so its distance from "
            "the corpus's mixture is not judged; `jd.measure(..., targets=...)` and, for the orderings of a dataset, "
            "`jax-diversity measure --targets` measure against targets."
        )

    @property
    def _gap_sentence(self) -> str:
        """How much of the gap the order closes: the mean of the families, the least and the largest."""
        gaps, mean = self.gaps_closed, self.mean_gap_closed
        if mean is None or self.window is None:
            return ""
        size = counted(self.window, "sequence")
        where = f"At your batch of {size}" if self.is_batch else f"In windows of {size}"
        if self.batch_size is not None and not self.is_batch:
            where += f" (the measured size nearest to your batch of {self.batch_size:,})"
        details = []
        if len(gaps) > 1:
            least, most = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
            details.append(
                f"mean of {counted(len(gaps), 'family')}: {_percent(gaps[least])} by {least} to "
                f"{_percent(gaps[most])} by {most}"
            )
        text = f"it closes {_percent(mean)} of the gap between a shuffle and the floor"
        if mean < 0:
            text = "it is further from the floor than a shuffle"
            details.insert(0, f"gap closed {_percent(mean)}")
        inside = f" ({', '.join(details)})" if details else ""
        return f"{where} {text}{inside}."

    @property
    def _worst_sentence(self) -> str:
        """Compare the worst window of the order with the worst and with the best window of the shuffle, by family."""
        pairs = {family: pair for (family, size), pair in self.comparisons.items() if size == self.window}
        if not pairs:
            return ""
        kind = "batch" if self.is_batch else "window"
        worst = {family: (tv.worst, shuffled.worst) for family, (tv, shuffled) in pairs.items()}
        best = {family: (tv.worst, shuffled.best) for family, (tv, shuffled) in pairs.items()}
        return (
            f"Compared with the worst {kind} of the shuffle, its worst {kind} is {_by_family(worst)}. Compared with "
            f"the best {kind} of the shuffle, a harder test, it is {_by_family(best)}."
        )

    @property
    def cells(self) -> Cells:
        """The table: mean and worst TV of every family in `window`, of all orders; the floor, and the gaps closed."""
        every = [family for family, size in self.means[self.reference] if size == self.window]
        # A family of one group has nothing to show.
        families = [
            family
            for family in every
            if any(means[family, self.window].worst > _SMALLEST_GAP for means in self.means.values())  # type: ignore[index]
        ] or every
        kind = "batches" if self.is_batch else "windows"

        def of_window(name: str) -> list[WindowTV | None]:
            """Return the TV by family; None if the order follows targets in the family."""
            means, targeted = self.means[name], self.targeted.get(name, ())
            return [None if family in targeted else means[family, self.window] for family in families]  # type: ignore[index]

        lines = [[f"TV mean / worst, {kind} of {self.window:,}", *families]]
        for name in self.means:
            row = [None if tv is None else f"{decimal(tv.mean)} / {decimal(tv.worst)}" for tv in of_window(name)]
            lines.append([name, *(cell or "-" for cell in row)])
        shuffled = self.means[self.reference]
        lines.append(["floor", *(decimal(shuffled[family, self.window].floor) for family in families)])  # type: ignore[index]
        judged = [name for name in self.means if name != self.reference]
        for name in judged:
            gaps = replace(self, ordering=name).gaps_closed
            closed = [_percent(gaps[family]) if family in gaps else "-" for family in families]
            lines.append(["gap closed" if len(judged) == 1 else f"gap closed, {name}", *closed])
        return lines

    def __str__(self) -> str:
        """The sentence and the table, at most 80 columns wide."""
        return self._display().text + ("" if self.window is None else f"\n{LEGEND}")

    def _display(self) -> Display:
        return Display(self.sentence, [] if self.window is None else [("", self.cells)])


def too_few(num_positions: int, window: int | None) -> str:
    """Return a sentence if an order has too few windows to be judged; empty if it has enough, or none."""
    number = 0 if window is None else num_positions // window
    if not 0 < number < _LEAST_WINDOWS:
        return ""
    windows = f"{counted(number, 'window')} of {window:,}"
    return (
        f"This is too little to judge an order: {counted(num_positions, 'sequence')}, only {windows}; more text, or "
        "shorter sequences, gives more."
    )


@dataclass(frozen=True)
class _Outcome(Generic[Key]):
    """How an order compares with the shuffle in most of the comparisons, and in which; then in which it is opposite."""

    word: str
    keys: list[Key]
    other_word: str
    others: list[Key]

    @classmethod
    def of(cls, tvs: Mapping[Key, tuple[float, float]]) -> _Outcome[Key]:
        """Compare the TV of the order with that of the shuffle, by comparison."""
        better = [key for key, (tv, other) in tvs.items() if tv < other]
        worse = [key for key, (tv, other) in tvs.items() if tv > other]
        if not better and not worse:
            return cls(_EQUAL, [*tvs], "", [])
        if len(better) >= len(worse):
            return cls(_BETTER, better, "worse", worse)
        return cls(_WORSE, worse, "better", better)


def _by_family(tvs: Mapping[str, tuple[float, float]]) -> str:
    """Say by which families the first TV is better than the second, by which it is worse, and by which equal."""
    parts = []
    for word, holds in (("better", operator.lt), ("worse", operator.gt), ("equal", operator.eq)):
        families = [family for family in tvs if holds(*tvs[family])]
        if len(families) == len(tvs) > _MOST_NAMED:
            parts.append(f"{word} by all {len(families)} families")
        elif families:
            numbers = [f"{family} (TV {_pair(tvs[family])})" for family in families[:_MOST_NAMED]]
            parts.append(f"{word} by {listing([*numbers, *families[_MOST_NAMED:]])}")
    return ", ".join(parts)


def _named(keys: Sequence[Key], text: Callable[[Key], str]) -> str:
    """Return the texts of the first comparisons, and the number of the others."""
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    return f"{', '.join(map(text, keys[:_MOST_NAMED]))}{more}"


def _pair(tvs: tuple[float, float]) -> str:
    return " against ".join(against(*tvs))


def _percent(share: float) -> str:
    return f"{100 * share:z.0f} %"


def judge(
    means: Mapping[str, Means],
    reference: str,
    batch_size: int | None = None,
    ordering: str | None = None,
    targeted: Mapping[str, Sequence[str]] | None = None,
) -> Verdict:
    """Judge one of some orders.

    Args:
        means: ordering -> TV of the windows, by family and window size; also of the shuffle.
        reference: the name of the shuffle.
        batch_size: the global batch size of training, if it is known. The table shows the measured window size nearest
            to it (or to 256) on a logarithmic scale.
        ordering: the order to judge. None means `balance`, or the first order that is not the shuffle.
        targeted: ordering -> the families in which it follows targets of its own, and in which it is not judged.

    Example:
        >>> shuffle, order = WindowTV(0.4, 0.1, best=0.3, worst=0.5), WindowTV(0.2, 0.1, best=0.15, worst=0.25)
        >>> means = {"uniform_shuffle": {("topic", 64): shuffle}, "balance": {("topic", 64): order}}
        >>> judge(means, "uniform_shuffle", batch_size=64).mean_gap_closed
        0.6666666666666667
    """
    names = [name for name in means if name != reference]
    chosen = ordering if ordering in names else "balance" if "balance" in names else next(iter(names), None)
    sizes = sorted({size for _, size in means[reference]})
    window = min(sizes, key=lambda size: (abs(math.log(size / (batch_size or 256))), size), default=None)
    return Verdict(chosen, reference, {reference: means[reference], **means}, window, batch_size, targeted or {})


def targeted_families(info: Mapping[str, Any], families: Sequence[str]) -> tuple[str, ...]:
    """Return which of the measured families an order or a run does not aim at the corpus's mixture in, from its `info`.

    The weights of a run may change the mixture of all families; its `info` then names the family `dataset`.
    """
    named = info.get("targeted") or (info.get("targets") or {}).get("shares", ())
    return tuple(family for family in families if family in named or ALL_FAMILIES in named)


def means_of(summary: Mapping) -> dict[tuple[str, int], WindowTV]:
    """Return the TV of the windows of `Balance.summary()`."""
    return {
        (family, int(size)): WindowTV(*(window[f"tv_{part}"] for part in WindowTV._fields))
        for family, values in summary["families"].items()
        for size, window in values["windows"].items()
    }


def decimal(value: float) -> str:
    """Return a share with three decimals."""
    return f"{value:.3f}"
