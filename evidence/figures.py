"""Figures of an experiment: differences with intervals, and curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evidence.statistics import Difference
from jax_diversity.foundation.svg import WIDTH, Chart, Curve, circle, framed, line, text, titles

_STYLE = """  .lower { stroke: #1a7f37; fill: #1a7f37; } .higher { stroke: #c4590a; fill: #c4590a; }
  .open { stroke: #8c959f; fill: #8c959f; } .lower, .higher, .open { stroke-width: 2.4; }
"""
_DARK = """    .lower { stroke: #6fcf85; fill: #6fcf85; } .higher { stroke: #f7a95f; fill: #f7a95f; }
    .open { stroke: #6e7681; fill: #6e7681; }
"""
_LEAST_LEFT, _RIGHT, _TOP = 230, 190, 84
_CHARACTER = 7
"""Mean width of a character of a name, in pixels."""
_ROW = 26


class Bar(NamedTuple):
    """One line of a figure of differences; a bar without a difference is a heading."""

    name: str
    difference: Difference | None = None
    is_significant: bool = False


def differences_figure(title: str, subtitle: str, bars: Sequence[Bar]) -> str:
    """Differences as points with their intervals: green if lower, orange if higher, grey if not significant."""
    differences = [bar.difference for bar in bars if bar.difference is not None]
    reach = max((max(abs(difference.low), abs(difference.high)) for difference in differences), default=1.0) or 1.0
    step = _round_step(reach / 3)
    limit = np.ceil(reach / step) * step
    names = [bar.name for bar in bars if bar.difference is not None]
    left = max(_LEAST_LEFT, 24 + _CHARACTER * max(map(len, names), default=0))
    scale = (WIDTH - left - _RIGHT) / (2 * limit)
    bottom = _TOP + _ROW * len(bars)

    def x(value: float) -> float:
        return left + (value + limit) * scale

    parts = titles(title, subtitle)
    for tick in np.arange(-limit, limit + step / 2, step):
        is_zero = abs(tick) < step / 2
        parts.append(line("axis" if is_zero else "grid", x(tick), _TOP - 8, x(tick), bottom))
        parts.append(text(x(tick), bottom + 18, f"{0.0 if is_zero else tick:+.3g}", "quiet", "middle"))
    for number, bar in enumerate(bars):
        y, difference = _TOP + _ROW * (number + 0.5), bar.difference
        if difference is None:
            parts.append(text(24, y + 4, bar.name, "quiet"))
            continue
        kind = "open" if not bar.is_significant else "lower" if difference.mean < 0 else "higher"
        parts.append(text(left - 12, y + 4, bar.name, "", "end"))
        parts += [line(kind, x(difference.low), y, x(difference.high), y), circle(kind, x(difference.mean), y, 4.5)]
        words = f"{difference.mean:+.4f} [{difference.low:+.3f}, {difference.high:+.3f}]"
        parts.append(text(WIDTH - 14, y + 4, words, "quiet", "end"))
    parts.append(text(x(-limit), bottom + 38, "← lower", "quiet"))
    parts.append(text(x(limit), bottom + 38, "higher →", "quiet", "end"))
    return framed(title, parts, WIDTH, bottom + 46, style=_STYLE, dark=_DARK)


def curves_figure(title: str, subtitle: str, x_words: str, curves: Sequence[Curve]) -> str:
    """Curves with their names at the right end."""
    low, high = min(curve.y.min() for curve in curves), max(curve.y.max() for curve in curves)
    step = _round_step((high - low) / 6 or 1.0)
    y_range = float(np.floor(low / step) * step), float(np.ceil(high / step) * step)
    x_range = float(min(curve.x.min() for curve in curves)), float(max(curve.x.max() for curve in curves))
    return Chart(title, subtitle, x_words, "nats per token", x_range, y_range, room=210).draw(curves)


def _round_step(value: float) -> float:
    """The smallest number >= a value that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(min(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9)))
