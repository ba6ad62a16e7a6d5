"""Make SVG pictures of text, boxes, lines and charts, with colours for light and dark themes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import numpy as np

WIDTH, HEIGHT = 760, 404
_LEFT, _TOP, _BOTTOM = 66, 88, 344
_STYLE = """
  svg { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; }
  .ground { fill: #ffffff; } text { fill: #1f2328; } .quiet { fill: #59636e; font-size: 12px; }
  .title { font-weight: 600; font-size: 15px; } .strong { font-weight: 600; }
  .grid { stroke: #d1d9e0; } .axis { stroke: #8c959f; }
  polyline, line { fill: none; stroke-linejoin: round; } .main, .second { stroke-width: 2.2; }
  .main { stroke: #0a66c2; } .second { stroke: #c4590a; } .limit { stroke: #1f2328; stroke-width: 1.6; }
  .thin { stroke: #8c959f; stroke-width: 1.1; } .quiet-line { stroke: #1a7f37; stroke-width: 1.4; }
  .dashed { stroke-dasharray: 5 4; stroke-width: 1.7; } .c0, .c1, .c2, .c3, .c4, .c5 { stroke-width: 2; }
  .c0 { stroke: #59636e; } .c1 { stroke: #0a66c2; } .c2 { stroke: #c4590a; } .c3 { stroke: #1a7f37; }
  .c4 { stroke: #8250df; } .c5 { stroke: #b58900; }
  .g0 { fill: #6cb0fb; } .g1 { fill: #f7a95f; } .g2 { fill: #6fcf85; } .g3 { fill: #d3a4f9; } .g4 { fill: #f2d16b; }
  .g5 { fill: #c8d1da; } .empty { fill: #f0f2f5; }
"""
_DARK = """
    .ground { fill: #0d1117; } text { fill: #e6edf3; } .quiet { fill: #9198a1; }
    .grid { stroke: #2a313c; } .axis { stroke: #6e7681; }
    .main { stroke: #6cb0fb; } .second { stroke: #f7a95f; } .limit { stroke: #e6edf3; }
    .thin { stroke: #6e7681; } .quiet-line { stroke: #6fcf85; }
    .c0 { stroke: #9198a1; } .c1 { stroke: #6cb0fb; } .c2 { stroke: #f7a95f; } .c3 { stroke: #6fcf85; }
    .c4 { stroke: #d3a4f9; } .c5 { stroke: #f2d16b; }
    .g0 { fill: #2f74bd; } .g1 { fill: #b0652a; } .g2 { fill: #2c8745; } .g3 { fill: #7d50a8; }
    .g4 { fill: #a1842a; } .g5 { fill: #444c56; } .empty { fill: #161b22; }
"""


class Curve(NamedTuple):
    """A line through points, the CSS class of its style, and its name in the chart; an empty name is not shown."""

    x: np.ndarray
    y: np.ndarray
    kind: str
    words: str = ""


@dataclass(frozen=True)
class Chart:
    """Titles, axes and ranges.

    Attributes:
        title: the first line.
        subtitle: the second line.
        x_words: the label of the x axis.
        y_words: the label of the y axis; empty for no label.
        x_range: lowest and highest x.
        y_range: lowest and highest y.
        logarithmic: two flags: whether the x axis is logarithmic, and the y axis.
        room: pixels at the right side for the names of the curves.

    Example:
        >>> Chart("Loss", "of one run", "step", "nats", (0, 9), (2, 4)).draw([Curve(steps, losses, "main", "balance")])
        '<svg xmlns=...
    """

    title: str
    subtitle: str
    x_words: str
    y_words: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    logarithmic: tuple[bool, bool] = (False, False)
    room: int = 90

    def draw(self, curves: Sequence[Curve]) -> str:
        """The text of the SVG file."""
        parts = [*titles(self.title, self.subtitle), *self._axes()]
        for curve in curves:
            inside = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y >= self.y_range[0]]
            points = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in inside)
            parts.append(f'<polyline class="{curve.kind}" points="{points}"/>')
        parts += self._names([curve for curve in curves if curve.words])
        return framed(self.title, parts, WIDTH, HEIGHT)

    @property
    def _right(self) -> float:
        return WIDTH - self.room - 14

    def _x(self, value: float) -> float:
        return _LEFT + (self._right - _LEFT) * _part(value, self.x_range, self.logarithmic[0])

    def _y(self, value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * _part(value, self.y_range, self.logarithmic[1])

    def _axes(self) -> Iterator[str]:
        for value in _ticks(self.y_range, self.logarithmic[1]):
            y = self._y(value)
            yield line("axis" if value == 0 else "grid", _LEFT, y, self._right, y)
            yield text(_LEFT - 8, y + 4, f"{value:,.6g}".replace("-", "\N{MINUS SIGN}"), "quiet", "end")
        for value in _ticks(self.x_range, self.logarithmic[0]):
            yield text(self._x(value), _BOTTOM + 20, f"{value:,.6g}", "quiet", "middle")
        yield text((_LEFT + self._right) / 2, _BOTTOM + 42, self.x_words, "quiet", "middle")
        yield text(_LEFT - 8, _TOP - 8, self.y_words, "quiet")

    def _names(self, curves: Sequence[Curve]) -> Iterator[str]:
        """The names at the ends of the curves, each with a short line in the curve's style; moved if they overlap."""
        ordered = sorted(curves, key=lambda curve: self._y(float(curve.y[-1])))
        places = [self._y(float(curve.y[-1])) + 4 for curve in ordered]
        for index in range(1, len(places)):
            places[index] = max(places[index], places[index - 1] + 17)
        for index in reversed(range(len(places))):
            below = places[index + 1] - 17 if index + 1 < len(places) else _BOTTOM
            places[index] = min(places[index], below)
        for curve, y in zip(ordered, places, strict=True):
            yield line(curve.kind, self._right + 8, y - 4, self._right + 28, y - 4)
            yield text(self._right + 34, y, curve.words)


def _part(value: float, bounds: tuple[float, float], logarithmic: bool) -> float:
    if logarithmic:
        value, bounds = math.log(max(value, bounds[0])), (math.log(bounds[0]), math.log(bounds[1]))
    return (value - bounds[0]) / (bounds[1] - bounds[0])


def _ticks(bounds: tuple[float, float], logarithmic: bool) -> list[float]:
    """Round values within the range."""
    if logarithmic:
        base = 4 if bounds[1] > 10 else 10
        powers = range(math.ceil(math.log(bounds[0], base) - 1e-9), math.floor(math.log(bounds[1], base) + 1e-9) + 1)
        return [float(f"{float(base) ** power:.6g}") for power in powers]
    rough = (bounds[1] - bounds[0]) / 5
    step = min(
        (one for one in (m * 10.0**p for p in range(-4, 7) for m in (1, 2, 5))), key=lambda one: abs(one - rough)
    )
    first, last = math.ceil(bounds[0] / step - 1e-9), math.floor(bounds[1] / step + 1e-9)
    return [float(f"{index * step:.6g}") for index in range(first, last + 1)]


def framed(
    title: str, parts: Sequence[str], width: float, height: float, *, style: str = "", dark: str = "", summary: str = ""
) -> str:
    """The text of an SVG file with a background and the given elements.

    Args:
        title: a name for readers who do not see the picture.
        parts: elements, in the order in which they are drawn.
        width: width in pixels.
        height: height in pixels.
        style: CSS of additional classes.
        dark: CSS of additional classes for dark themes.
        summary: a description for readers who do not see the picture.
    """
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" aria-label="{escape(title)}">',
            *([f"<desc>{escape(summary)}</desc>"] if summary else []),
            f"<style>{_STYLE}{style}  @media (prefers-color-scheme: dark) {{{_DARK}{dark}  }}\n</style>",
            f'<rect class="ground" width="{width:g}" height="{height:g}" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def titles(title: str, subtitle: str) -> list[str]:
    """The two lines above a picture."""
    return [text(24, 28, title, "title"), text(24, 50, subtitle, "quiet")]


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Text at a position."""
    return f'<text{_class(kind)} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    """A box."""
    return f'<rect{_class(kind)} x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A straight line."""
    return f'<line{_class(kind)} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def circle(kind: str, x: float, y: float, radius: float) -> str:
    """A dot."""
    return f'<circle{_class(kind)} cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
