"""The verdict on an order: one sentence and one small table, from the mean TV of its windows and of a shuffle's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
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
"""The largest number of comparisons that a sentence names."""


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
        is_batch: whether this is the global batch size of training.
    """

    ordering: str | None
    reference: str
    means: Mapping[str, Means]
    window: int | None
    is_batch: bool

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
        """Where the order is better than a shuffle, where it is not, how much, and whether in every window."""
        if self.ordering is None:
            return "There is only a shuffle; make an order with `jax-diversity order`, and compare it."
        compared = self.comparisons
        if not compared:
            return (
                f"`{self.ordering}` cannot be better than a shuffle here: a shuffle already has the corpus's mixture "
                "in every window, or there are too few sequences."
            )
        lost = {key: pair for key, pair in compared.items() if pair[0].mean >= pair[1].mean}
        how = "not better" if len(lost) == len(compared) else "better"
        number = len(compared) - (0 if how == "not better" else len(lost))
        families, sizes = ({key[part] for key in compared} for part in (0, 1))
        over = f"{counted(len(families), 'family')} at {counted(len(sizes), 'window size')}"
        text = f"`{self.ordering}` is {how} than a shuffle in {number} of {len(compared)} comparisons ({over})"
        named = [
            f"by {family} at {size:,} (TV {tv.mean:.4f} against {shuffled.mean:.4f})"
            for (family, size), (tv, shuffled) in [*lost.items()][:_MOST_NAMED]
        ]
        if lost and how == "better":
            more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
            text += f", but not {', '.join(named)}{more}"
        return f"{text}.{self._gap_sentence}{self._worst_sentence}"

    @property
    def _gap_sentence(self) -> str:
        """How much of the gap the order closes: the mean of the families, the least and the largest."""
        gaps, mean = self.gaps_closed, self.mean_gap_closed
        if mean is None or self.window is None:
            return ""
        size = counted(self.window, "sequence")
        where = f"At your batch of {size}" if self.is_batch else f"In windows of {size}"
        text = f" {where} it closes {_percent(mean)} of the gap between a shuffle and the floor"
        if len(gaps) > 1:
            least, most = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
            text += f" (mean of {counted(len(gaps), 'family')}: {_percent(gaps[least])} by {least} to "
            text += f"{_percent(gaps[most])} by {most})"
        return f"{text}."

    @property
    def _worst_sentence(self) -> str:
        """Whether the worst window of the order is better than the best window of the shuffle, by every family."""
        pairs = {family: pair for (family, size), pair in self.comparisons.items() if size == self.window}
        if not pairs:
            return ""
        separated = [family for family, (tv, shuffled) in pairs.items() if tv.worst < shuffled.best]
        kind = "batch" if self.is_batch else "window"
        if not separated:
            return f" Its worst {kind} is not better than the best {kind} of the shuffle by any family."
        overlapping = [family for family in pairs if family not in separated]
        but = f"; by {', '.join(overlapping)} it is not" if overlapping else ""
        return f" By {', '.join(separated)}, even its worst {kind} is better than the best {kind} of the shuffle{but}."

    @property
    def cells(self) -> Cells:
        """The table: the mean TV of every family in `window`, of the shuffle, the orders and the floor."""
        families = list(dict.fromkeys(family for family, size in self.means[self.reference] if size == self.window))
        kind = "batches" if self.is_batch else "windows"
        lines = [[f"mean TV, {kind} of {self.window:,}", *families]]
        for name, means in self.means.items():
            lines.append([name, *(decimal(means[family, self.window].mean) for family in families)])  # type: ignore[index]
        judged = self.means[self.ordering or self.reference]
        lines.append(["floor", *(decimal(judged[family, self.window].floor) for family in families)])  # type: ignore[index]
        if self.ordering is not None:
            gaps = self.gaps_closed
            closed = [_percent(gaps[family]) if family in gaps else "-" for family in families]
            lines.append(["gap closed", *closed])
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


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


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
    is_batch = batch_size in sizes
    window = min(sizes, key=lambda size: (abs(math.log(size / (batch_size or 256))), size), default=None)
    return Verdict(chosen, reference, {reference: means[reference], **means}, window, is_batch)


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
