"""Figures of an experiment as SVG: differences with intervals, and curves; colours follow the reader's theme."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from jax_diversity.lab.statistics import Difference

_STYLE = """
  svg { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; }
  .ground { fill: #ffffff; } text { fill: #1f2328; } .quiet { fill: #59636e; font-size: 12px; }
  .title { font-weight: 600; font-size: 15px; } .grid { stroke: #d1d9e0; } .zero { stroke: #59636e; }
  .lower { stroke: #1a7f37; fill: #1a7f37; } .higher { stroke: #c4590a; fill: #c4590a; }
  .open { stroke: #8c959f; fill: #8c959f; } polyline { fill: none; stroke-width: 2; }
  .c0 { stroke: #59636e; } .c1 { stroke: #0a66c2; } .c2 { stroke: #c4590a; } .c3 { stroke: #1a7f37; }
  .c4 { stroke: #8250df; } .c5 { stroke: #b58900; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; } text { fill: #e6edf3; } .quiet { fill: #9198a1; } .grid { stroke: #2a313c; }
    .zero { stroke: #9198a1; } .lower { stroke: #6fcf85; fill: #6fcf85; } .higher { stroke: #f7a95f; fill: #f7a95f; }
    .open { stroke: #6e7681; fill: #6e7681; } .c0 { stroke: #9198a1; } .c1 { stroke: #6cb0fb; }
    .c2 { stroke: #f7a95f; } .c3 { stroke: #6fcf85; } .c4 { stroke: #d3a4f9; } .c5 { stroke: #f2d16b; }
  }
"""
_WIDTH, _LEFT, _RIGHT = 760, 230, 190
_ROW = 26


class Bar(NamedTuple):
    """A line of a figure of differences; a bar without a difference is a heading."""

    name: str
    difference: Difference | None = None
    is_clear: bool = False


def differences_figure(title: str, subtitle: str, bars: Sequence[Bar]) -> str:
    """Differences as points with their intervals: green where lower, orange where higher, grey where not clear."""
    known = [bar.difference for bar in bars if bar.difference is not None]
    reach = max((max(abs(each.low), abs(each.high)) for each in known), default=1.0) or 1.0
    step = _round_step(reach / 3)
    limit = np.ceil(reach / step) * step
    top, height = 84, 84 + _ROW * len(bars) + 46
    scale = (_WIDTH - _LEFT - _RIGHT) / (2 * limit)

    def x(value: float) -> float:
        return _LEFT + (value + limit) * scale

    parts = [_text(24, 28, title, "title"), _text(24, 50, subtitle, "quiet")]
    bottom = top + _ROW * len(bars)
    for tick in np.arange(-limit, limit + step / 2, step):
        kind = "zero" if abs(tick) < step / 2 else "grid"
        parts.append(f'<line class="{kind}" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top - 8}" y2="{bottom}"/>')
        parts.append(_text(x(tick), bottom + 18, f"{0.0 if kind == 'zero' else tick:+.3g}", "quiet", "middle"))
    for number, bar in enumerate(bars):
        y = top + _ROW * (number + 0.5)
        each = bar.difference
        if each is None:
            parts.append(_text(24, y + 4, bar.name, "quiet"))
            continue
        parts.append(_text(_LEFT - 12, y + 4, bar.name, "", "end"))
        kind = "open" if not bar.is_clear else "lower" if each.mean < 0 else "higher"
        parts.append(
            f'<line class="{kind}" stroke-width="2.4" x1="{x(each.low):.1f}" x2="{x(each.high):.1f}" '
            f'y1="{y}" y2="{y}"/>'
        )
        parts.append(f'<circle class="{kind}" cx="{x(each.mean):.1f}" cy="{y}" r="4.5"/>')
        words = f"{each.mean:+.4f} [{each.low:+.3f}, {each.high:+.3f}]"
        parts.append(_text(_WIDTH - 14, y + 4, words, "quiet", "end"))
    parts.append(_text(x(-limit), bottom + 38, "← lower, better", "quiet"))
    parts.append(_text(x(limit), bottom + 38, "higher, worse →", "quiet", "end"))
    return _framed(title, parts, height)


class Line(NamedTuple):
    """A curve and its name."""

    name: str
    x: np.ndarray
    y: np.ndarray


def curves_figure(title: str, subtitle: str, x_words: str, lines: Sequence[Line]) -> str:
    """Curves with their names at the right end, at most six colours."""
    lines = [Line(line.name, *(np.asarray(each, np.float64) for each in line[1:])) for line in lines if len(line.x)]
    height, top, bottom, left, right = 380, 84, 330, 66, 210
    low_x, high_x = min(line.x.min() for line in lines), max(line.x.max() for line in lines)
    low, high = min(line.y.min() for line in lines), max(line.y.max() for line in lines)
    step = _round_step((high - low) / 6 or 1.0)
    low, high = np.floor(low / step) * step, np.ceil(high / step) * step
    parts = [_text(24, 28, title, "title"), _text(24, 50, subtitle, "quiet")]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low_x) / max(high_x - low_x, 1e-9)
        return left + across * (_WIDTH - left - right), bottom - (y - low) / max(high - low, 1e-9) * (bottom - top)

    for tick in np.arange(low, high + step / 2, step):
        y = place(low_x, tick)[1]
        parts.append(f'<line class="grid" x1="{left}" x2="{_WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 8, y + 4, f"{tick:.4g}", "quiet", "end"))
    parts.append(_text(left, bottom + 20, f"{low_x:g}", "quiet", "middle"))
    parts.append(_text(_WIDTH - right, bottom + 20, f"{high_x:g}", "quiet", "middle"))
    parts.append(_text((left + _WIDTH - right) / 2, bottom + 20, x_words, "quiet", "middle"))
    ends = []
    for number, line in enumerate(lines):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*each) for each in zip(line.x, line.y, strict=True)))
        parts.append(f'<polyline class="c{number % 6}" points="{points}"/>')
        ends.append([place(line.x[-1], line.y[-1])[1], number])
    # Names lie 15 pixels apart at least.
    ends.sort()
    for before, after in itertools.pairwise(ends):
        after[0] = max(after[0], before[0] + 15)
    shift = max(ends[-1][0] - bottom, 0)
    for y, number in ends:
        x, level = _WIDTH - right + 8, y - shift
        place_of_mark = f'x1="{x}" x2="{x + 12}" y1="{level:.1f}" y2="{level:.1f}"'
        parts.append(f'<line class="c{number % 6}" stroke-width="2" {place_of_mark}/>')
        parts.append(_text(x + 17, level + 4, lines[int(number)].name, "quiet"))
    return _framed(title, parts, height)


def _round_step(value: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below a value."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(min(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9)))


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def _framed(title: str, parts: Sequence[str], height: float) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(title, quote=True)}">\n<style>{_STYLE}</style>\n'
        f'<rect class="ground" width="{_WIDTH}" height="{height:g}"/>\n{body}\n</svg>\n'
    )
