"""A comparison's rows, and tables of them that read well at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One number of a comparison.

    Attributes:
        ordering: its name.
        family: the family that was measured; the norm drift stands with the first.
        measure: prefix_l2_max, norm_drift_max, groups_per_sequence_mean; of windows: tv_floor, tv_bound, l2_worst,
            max_share_deviation, groups_per_batch_mean, groups_per_batch_min and, of aligned windows, gap_closed; of
            windows at an offset: tv_mean, tv_best, tv_worst.
        value: None where it is not defined (no window fits, no gap to close).
        window: the window size, where there is one.
        offset: "0", "half" a window later, or "every" start position, where there is one.
    """

    ordering: str
    family: str
    measure: str
    value: float | None
    window: int | None = None
    offset: str | None = None

    @property
    def key(self) -> tuple[str, str, int | None, str | None]:
        """What the row says of an ordering: family, measure, window, offset."""
        return self.family, self.measure, self.window, self.offset


_Cells = list[list[str]]
_OFFSET_WORDS = {"0": "aligned", "half": "half a window later", "every": "every start position"}
_DECIMALS = {"prefix_l2_max": 2, "norm_drift_max": 1, "groups_per_sequence_mean": 2, "gap_closed": 3} | {
    f"groups_per_batch_{figure}": 0 for figure in ("mean", "min")
}


_WIDTH, _NAME_WIDTH = 80, 32


def as_text(rows: Sequence[Row], base: str | None) -> str:
    """Aligned columns, numbers to the right; at most 80 columns wide: what does not fit follows below."""
    return "\n\n".join(f"{_cut(title, _WIDTH)}\n{_aligned(cells)}" for title, cells in _blocks(rows, base))


def as_markdown(rows: Sequence[Row], base: str | None) -> str:
    """Markdown tables under bold titles."""
    return "\n\n".join(f"**{title}**\n\n{_piped(cells)}" for title, cells in _blocks(rows, base))


def _blocks(rows: Sequence[Row], base: str | None) -> Iterator[tuple[str, _Cells]]:
    """Titles and cells, the header first."""
    ratio = f", relative to {base}" if base else ""
    offsets = dict.fromkeys(row.offset for row in rows if row.offset is not None)
    for family in dict.fromkeys(row.family for row in rows):
        of_family = _Family(tuple(row for row in rows if row.family == family), base is not None)
        yield f"{family}{ratio}", of_family.totals()
        if not of_family.windows:
            continue
        for offset in offsets:
            cells = of_family.by_window(("tv_mean", "tv_worst"), offset)
            if offset == "0" and not base:
                cells += of_family.limits()
            yield f"{family}{ratio}: window TV, mean / worst, {_OFFSET_WORDS[offset]}", cells
        yield f"{family}{ratio}: gap closed between a shuffle and the floor", of_family.by_window(("gap_closed",))
        groups = ("groups_per_batch_mean", "groups_per_batch_min")
        yield f"{family}{ratio}: groups per batch, mean / least", of_family.by_window(groups)


class _Family:
    """One family's rows, by what they say."""

    def __init__(self, rows: tuple[Row, ...], ratios: bool) -> None:
        self._values = {(row.ordering, row.measure, row.window, row.offset): row.value for row in rows}
        self._ratios = ratios
        self.orderings = list(dict.fromkeys(row.ordering for row in rows))
        self.windows = sorted({row.window for row in rows if row.window is not None})

    def totals(self) -> _Cells:
        """What needs no window size."""
        heads = {"prefix_l2_max": "prefix L2", "norm_drift_max": "norm drift"}
        heads["groups_per_sequence_mean"] = "groups per sequence"
        held = [measure for measure in heads if (self.orderings[0], measure, None, None) in self._values]
        lines = [[name, *(self._number(name, measure) for measure in held)] for name in self.orderings]
        return [["", *(heads[measure] for measure in held)], *lines]

    def by_window(self, measures: tuple[str, ...], offset: str | None = None) -> _Cells:
        """An ordering a line, a window size a column."""
        lines = [[name, *self._line(name, measures, offset)] for name in self.orderings]
        return [["", *map(str, self.windows)], *lines]

    def limits(self) -> _Cells:
        """What no ordering's mean can be below; a schedule has limits of its own."""
        lines = []
        for limit in ("floor", "bound"):
            distinct: dict[tuple[str, ...], list[str]] = {}
            for name in self.orderings:
                distinct.setdefault(tuple(self._line(name, (f"tv_{limit}",), None)), []).append(name)
            for line, names in distinct.items():
                lines.append([limit if len(distinct) == 1 else f"{limit} of {', '.join(names)}", *line])
        return lines

    def _line(self, name: str, measures: tuple[str, ...], offset: str | None) -> list[str]:
        return [
            " / ".join(self._number(name, measure, window, offset) for measure in measures) for window in self.windows
        ]

    def _number(self, name: str, measure: str, window: int | None = None, offset: str | None = None) -> str:
        value = self._values.get((name, measure, window, offset))
        if value is None:
            return "-"
        return f"{value:.{3 if self._ratios else _DECIMALS.get(measure, 4)}f}"


def _aligned(cells: _Cells) -> str:
    """The columns side by side as long as there is room; the rest, with the names once more, in further parts."""
    cells = [[_cut(name, _NAME_WIDTH), *numbers] for name, *numbers in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    parts: list[list[int]] = [[]]
    room = left = _WIDTH - widths[0]
    for column, width in enumerate(widths[1:], start=1):
        if width + 2 > left and parts[-1]:
            parts.append([])
            left = room
        parts[-1].append(column)
        left -= width + 2
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(line[column].rjust(widths[column]) for column in columns)])
        for columns in parts
        for line in cells
    )


def _cut(text: str, width: int) -> str:
    """A text's beginning and end, where the names of orderings differ, in at most so many characters."""
    if len(text) <= width:
        return text
    tail = width // 2
    return f"{text[: width - tail - 3]}...{text[-tail:]}"


def _piped(cells: _Cells) -> str:
    header, *lines = [[cell.replace("|", "\\|") for cell in line] for line in cells]
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))
