"""Small curves made of characters: sparklines, histograms, plots with axes; in ASCII where that is all there is.

Every function returns text of known width and takes `fancy`: whether block and geometric characters may be used
(`speaks_unicode` says so of a stream). Values that are not finite are left out.
"""

from __future__ import annotations

import codecs
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

_BLOCKS, _PLAIN_BLOCKS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
_MARKS, _PLAIN_MARKS = "●○◆◇▲△■□", "ox+*#%@&"
_AXES, _PLAIN_AXES = "│┤└─┬", "||+-+"
_PLOT_WIDTH = 66


def speaks_unicode(stream: Any = None) -> bool:
    """Whether a stream, standard output where none is given, can show more than ASCII."""
    encoding = getattr(sys.stdout if stream is None else stream, "encoding", None) or "ascii"
    try:
        return codecs.lookup(encoding).name.startswith("utf") and os.environ.get("TERM") != "dumb"
    except LookupError:
        return False


def sparkline(
    values: Sequence[float] | Float[np.ndarray, " value"],
    low: float,
    high: float,
    width: int,
    *,
    fancy: bool = True,
) -> str:
    """One character a column, as high as the largest value of the column; fewer columns where values are fewer.

    Args:
        values: the curve.
        low, high: the scale, the same for all curves that are compared: the lowest and the highest character.
        width: most columns.

    Example:
        >>> sparkline([0.0, 0.5, 1.0], 0.0, 1.0, width=3)
        '▁▅█'
    """
    array = np.asarray(values, np.float64)
    if not len(array):
        return ""
    starts = np.arange(min(len(array), width)) * len(array) // min(len(array), width)
    tops = np.fmax.reduceat(array, starts)
    levels = _BLOCKS if fancy else _PLAIN_BLOCKS
    heights = np.clip((tops - low) / ((high - low) or 1.0), 0.0, 1.0) * len(levels)
    return "".join(
        " " if math.isnan(height) else levels[min(int(height), len(levels) - 1)] for height in heights.tolist()
    )


def histogram(values: Float[np.ndarray, " value"], mark: float, width: int, *, fancy: bool = True) -> tuple[str, int]:
    """How values are spread between the least and the largest: a character a bin, blank where a bin holds none.

    Returns:
        the line, and the column of the value `mark`, the first or the last where it lies outside.
    """
    values = values[np.isfinite(values)]
    if not len(values):
        return "", 0
    low, high = float(values.min()), float(values.max())
    width = width if high > low else 1

    def columns(positions: np.ndarray) -> np.ndarray:
        return np.clip((positions - low) / ((high - low) or 1.0) * width, 0, width - 1).astype(np.int64)

    counts = np.bincount(columns(values), minlength=width)
    levels = _BLOCKS if fancy else _PLAIN_BLOCKS
    line = "".join(
        levels[min(count * len(levels) // int(counts.max()), len(levels) - 1)] if count else " "
        for count in counts.tolist()
    )
    return line, int(columns(np.array([mark]))[0])


class Series(NamedTuple):
    """One curve of a plot.

    Attributes:
        mark: the character of its points; None takes the next of those that curves have.
        values: one a tick of the horizontal axis; what is not above 0 has no place on a logarithmic axis.
    """

    values: Sequence[float]
    mark: str | None = None


def plot(ticks: Sequence[str], series: Mapping[str, Series], *, height: int = 11, fancy: bool = True) -> str:
    """Curves over shared ticks with a logarithmic vertical axis, and which mark is whose; 80 columns at most.

    Where points of several curves fall together, the first one's mark is seen.

    Args:
        ticks: the labels of the horizontal axis, evenly spaced.
        series: name -> curve.
        height: lines of the plot, its axis and legend not counted.
    """
    shown = {name: np.asarray(curve.values, np.float64) for name, curve in series.items()}
    positive = [values[np.isfinite(values) & (values > 0)] for values in shown.values()]
    everything = np.log10(np.concatenate([*positive, np.zeros(0)]))
    if not len(everything):
        return ""
    low, high = float(everything.min()), float(everything.max())
    span = (high - low) or 1.0
    step = max(1, min(8, _PLOT_WIDTH // len(ticks)))
    marks = _marks(series, fancy)
    rows = [[" "] * (step * len(ticks)) for _ in range(height)]
    for name, values in reversed(shown.items()):
        for tick, value in enumerate(values.tolist()):
            if value > 0 and math.isfinite(value):
                row = round((high - math.log10(value)) / span * (height - 1))
                rows[row][tick * step + step // 2] = marks[name]
    bar, labelled, corner, line, below = _AXES if fancy else _PLAIN_AXES
    labels = _row_labels(low, high, height)
    lines = [
        f"{labels.get(index, ''):>8} {labelled if index in labels else bar}{''.join(row)}".rstrip()
        for index, row in enumerate(rows)
    ]
    axis = "".join(below if column % step == step // 2 else line for column in range(step * len(ticks)))
    lines += [f"{'':8} {corner}{axis}", f"{'':10}{_tick_labels(ticks, step)}"]
    return "\n".join([*lines, *_legend(marks)])


def _marks(series: Mapping[str, Series], fancy: bool) -> dict[str, str]:
    free = iter((_MARKS if fancy else _PLAIN_MARKS) * len(series))
    return {name: next(free) if curve.mark is None else curve.mark for name, curve in series.items()}


def _row_labels(low: float, high: float, height: int) -> dict[int, str]:
    """Round values at the rows that are nearest to them; `low` and `high` are powers of ten."""
    labels: dict[int, str] = {}
    for power in range(math.floor(low), math.ceil(high) + 1):
        for digit in (1, 3):
            row = round((high - math.log10(digit) - power) / ((high - low) or 1.0) * (height - 1))
            if 0 <= row < height:
                labels.setdefault(row, f"{digit * 10.0**power:g}")
    return labels


def _tick_labels(ticks: Sequence[str], step: int) -> str:
    """Labels centred below their ticks; every second one, or fewer, where they would touch."""
    widest = max(map(len, ticks))
    skip = -(-(widest + 1) // step)
    line = [" "] * (step * len(ticks) + widest)
    for index in range(0, len(ticks), skip):
        start = max(index * step + step // 2 - (len(ticks[index]) - 1) // 2, 0)
        line[start : start + len(ticks[index])] = ticks[index]
    return "".join(line).rstrip()


def _legend(marks: Mapping[str, str]) -> list[str]:
    """Which mark is whose, as many beside one another as fit."""
    lines: list[str] = []
    for name, mark in marks.items():
        entry = f"{mark} {name}"
        if lines and len(lines[-1]) + len(entry) <= 77:
            lines[-1] += f"   {entry}"
        else:
            lines.append(f"{'':10}{entry}"[:80])
    return lines


def size_label(size: int) -> str:
    """A window size in up to four characters: 256, 1k, 16k, 1M (of 1,024 each, where that is exact).

    Example:
        >>> size_label(256), size_label(16384)
        ('256', '16k')
    """
    for scale, sign in ((1 << 20, "M"), (1 << 10, "k")):
        if size >= scale and size % scale == 0:
            return f"{size // scale}{sign}"
    return str(size)
