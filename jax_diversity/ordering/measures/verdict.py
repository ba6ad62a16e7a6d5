"""The verdict on an order: some sentences and one small table, from the TV of its windows and of a shuffle's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jax_diversity.foundation.tables import Cells, Display, Displayed
from jax_diversity.foundation.wording import counted

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
LEGEND = "TV: share of a window's tokens in a wrong group; no order is below the floor."
"""What the table shows, in one line."""
_LEAST_WINDOWS = 4
"""The smallest number of windows for which a verdict has no reservation."""
_MOST_NAMED = 2
"""The largest number of comparisons that a sentence names; the table has all families."""
_BETTER = "better than"


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
    something to gain.

    Attributes:
        ordering: the name of the order that is judged; None if there is only the shuffle.
        reference: the name of the shuffle.
        means: ordering -> TV of the windows, by family and window size.
        window: the window size of the table; None if there are no windows.
        batch_size: the global batch size of training; None if it is unknown.
    """

    ordering: str | None
    reference: str
    means: Mapping[str, Means]
    window: int | None
    batch_size: int | None

    @property
    def is_batch(self) -> bool:
        """Whether the window size of the table is the batch size."""
        return self.window is not None and self.window == self.batch_size

    @property
    def comparisons(self) -> dict[tuple[str, int], tuple[WindowTV, WindowTV]]:
        """The TV of the order and of the shuffle, of every comparison that counts."""
        if self.ordering is None:
            return {}
        shuffled = self.means[self.reference]
        pairs = {key: (means, shuffled[key]) for key, means in self.means[self.ordering].items() if key in shuffled}
        return {key: (tv, other) for key, (tv, other) in pairs.items() if other.mean - tv.floor > _SMALLEST_GAP}

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
        compared = self.comparisons
        if not compared:
            return (
                f"`{self.ordering}` cannot be better than a shuffle here: a shuffle already has the corpus's mixture "
                "in every window, or there are too few sequences."
            )
        families, sizes = ({key[part] for key in compared} for part in (0, 1))
        over = f"{counted(len(families), 'family')} at {counted(len(sizes), 'window size')}"
        worse = {key: pair for key, pair in compared.items() if pair[0].mean > pair[1].mean}
        how, number = _outcome([(tv.mean, shuffled.mean) for tv, shuffled in compared.values()])
        text = f"`{self.ordering}` is {how} a shuffle in {number} of {len(compared)} comparisons ({over})"
        if worse and how == _BETTER:
            named = [
                f"by {family} at {size:,} (TV {tv.mean:.4f} against {shuffled.mean:.4f})"
                for (family, size), (tv, shuffled) in [*worse.items()][:_MOST_NAMED]
            ]
            more = f" and {len(worse) - _MOST_NAMED} more" if len(worse) > _MOST_NAMED else ""
            text += f", and worse in {len(worse)}: {', '.join(named)}{more}"
        return f"{text}.{self._gap_sentence}{self._worst_sentences}"

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
        return f" {where} {text}{inside}."

    @property
    def _worst_sentences(self) -> str:
        """Compare the worst window of the order with the worst of the shuffle, and with its best, by family."""
        pairs = {family: pair for (family, size), pair in self.comparisons.items() if size == self.window}
        if not pairs:
            return ""
        kind, kinds = ("batch", "batches") if self.is_batch else ("window", "windows")
        how, number = _outcome([(tv.worst, shuffled.worst) for tv, shuffled in pairs.values()])
        named = [
            f"{family} {decimal(tv.worst)} against {decimal(shuffled.worst)}"
            for family, (tv, shuffled) in [*pairs.items()][:_MOST_NAMED]
        ]
        more = f" and {len(pairs) - _MOST_NAMED} more" if len(pairs) > _MOST_NAMED else ""
        text = (
            f" Its worst {kind} is {how} the worst {kind} of the shuffle in {number} of "
            f"{counted(len(pairs), 'family')} (TV by {', '.join(named)}{more})."
        )
        separated = [family for family, (tv, shuffled) in pairs.items() if tv.worst < shuffled.best]
        overlapping = [family for family in pairs if family not in separated]
        claims = []
        if separated:
            claims.append(f"By {', '.join(separated)}, every {kind} is better than every {kind} of the shuffle")
        if overlapping and how == _BETTER:
            scope = f"by {', '.join(overlapping)}" if separated else "By every family"
            claims.append(f"{scope}, some {kinds} of the shuffle are at least as good as its worst {kind}")
        return f"{text} {'; '.join(claims)}." if claims else text

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

        def of_window(means: Means) -> list[WindowTV]:
            return [means[family, self.window] for family in families]  # type: ignore[index]

        lines = [[f"TV mean / worst, {kind} of {self.window:,}", *families]]
        for name, means in self.means.items():
            lines.append([name, *(f"{decimal(tv.mean)} / {decimal(tv.worst)}" for tv in of_window(means))])
        lines.append(["floor", *(decimal(tv.floor) for tv in of_window(self.means[self.ordering or self.reference]))])
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


def _outcome(tvs: Sequence[tuple[float, float]]) -> tuple[str, int]:
    """Return how an order compares with the shuffle, from pairs of their TV, and in how many of the pairs."""
    num_better, num_worse = sum(tv < other for tv, other in tvs), sum(tv > other for tv, other in tvs)
    if num_better:
        return _BETTER, num_better
    return ("worse than", num_worse) if num_worse else ("equal to", len(tvs))


def _percent(share: float) -> str:
    return f"{100 * share:z.0f} %"


def judge(
    means: Mapping[str, Means], reference: str, batch_size: int | None = None, ordering: str | None = None
) -> Verdict:
    """Judge one of some orders.

    Args:
        means: ordering -> TV of the windows, by family and window size; also of the shuffle.
        reference: the name of the shuffle.
        batch_size: the global batch size of training, if it is known. The table shows the measured window size nearest
            to it (or to 256) on a logarithmic scale.
        ordering: the order to judge. None means `balance`, or the first order that is not the shuffle.

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
    return Verdict(chosen, reference, {reference: means[reference], **means}, window, batch_size)


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
