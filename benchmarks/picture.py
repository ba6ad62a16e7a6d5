"""Draw quality against time as SVG: one labelled point per order, from the results of `orderings.py`.

    python benchmarks/picture.py benchmarks/results/orderings-synthetic-200000.json [--out PICTURE.svg]

Horizontal axis: seconds, logarithmic. Vertical axis: the part of the distance between a uniform shuffle and the floor
that an order closes, by the mean cluster TV of windows of 256 sequences. Of the TV of aligned windows and the TV
of windows half a window later, the larger one is used. So an order that is good at only one alignment is not better.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_diversity.foundation.svg import circle, framed, line, text

OUT = Path(__file__).parent.parent / "docs" / "images" / "quality-time.svg"
WINDOW = "256"
MEASURE = "mean cluster TV of 256-sequence windows, at the worse of two offsets"
WIDTH, HEIGHT = 860, 620
LEFT, RIGHT, TOP, BOTTOM = 64, 836, 76, 490
RADIUS, LETTER, LINE = 5.0, 6.9, 15.0  # pixels; letters of a sans-serif font at 12 pixels are not wider on average
MOST_ROUNDS = 20
DEEPEST = -0.12  # points below this are only named in the text under the picture
KINDS = {
    "mixing": ("shuffles", {"corpus_order", "uniform_shuffle", "buffer_shuffle", "stratified"}),
    "linear": ("pools, linear time", {"greedy_pool", "balance"}),
    "exact": ("exact greedy, quadratic time", {"greedy"}),
}
STYLE = """  svg { font-size: 12px; } .title { font-size: 16px; } .limit { stroke-dasharray: 5 4; }
  .label { stroke: #ffffff; stroke-width: 3; paint-order: stroke; stroke-linejoin: round; }
  .leader { stroke: #8c959f; stroke-width: .8; } circle { stroke: #ffffff; stroke-width: 1; }
  .mixing { fill: #6e7781; } .linear { fill: #0969da; } .exact { fill: #bc4c00; }
"""
DARK = """    .leader { stroke: #6e7681; } circle, .label { stroke: #0d1117; }
    .mixing { fill: #9198a1; } .linear { fill: #58a6ff; } .exact { fill: #f0883e; }
"""

Place = tuple[float, float]  # pixels from the left and from the top


@dataclass(frozen=True)
class Point:
    """An order in the picture."""

    label: str
    method: str
    seconds: float
    closed: float

    @property
    def kind(self) -> str:
        """A key of `KINDS`."""
        return next((kind for kind, (_, methods) in KINDS.items() if self.method in methods), "mixing")


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether two rectangles overlap."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def nearest(self, point: Place) -> Place:
        """The nearest point inside to another point, a little away from the upper and lower edges."""
        return min(max(point[0], self.left), self.right), min(max(point[1], self.top + 3), self.bottom - 3)

    def within(self, other: Box) -> bool:
        """Whether the rectangle is completely inside."""
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.top <= self.top
            and self.bottom <= other.bottom
        )


PLOT = Box(LEFT, TOP - 6, RIGHT, BOTTOM - 2)


def points_of(results: Mapping[str, Any]) -> tuple[list[Point], float]:
    """The measured orders, and the largest part of the gap that any order can close by the bound."""
    families = {
        label: next(iter(entry["families"].values()))["windows"][WINDOW]
        for label, entry in results["orders"].items()
        if "families" in entry
    }
    shuffle = _mean_tv(families["uniform shuffle"])
    gap = shuffle - families["uniform shuffle"]["tv_floor"]
    points = [
        Point(
            label,
            results["orders"][label]["method"],
            results["orders"][label]["seconds"],
            (shuffle - _mean_tv(window)) / gap,
        )
        for label, window in families.items()
    ]
    return points, (shuffle - families["uniform shuffle"]["tv_bound"]) / gap


def _mean_tv(window: Mapping[str, Any]) -> float:
    means = (window["offsets"][offset]["tv_mean"] for offset in ("0", "half"))
    return max(mean for mean in means if mean is not None)


@dataclass(frozen=True)
class Scale:
    """Seconds and shares to pixels."""

    first: float
    last: float

    @classmethod
    def around(cls, points: Sequence[Point]) -> Scale:
        """Room for all points, in decades and parts of them."""
        logarithms = [math.log10(max(point.seconds, 1e-4)) for point in points]
        return cls(math.floor(2 * min(logarithms) - 0.3) / 2, math.ceil(2 * max(logarithms) + 0.7) / 2)

    def across(self, seconds: float) -> float:
        """Pixels from the left."""
        part = (math.log10(max(seconds, 1e-4)) - self.first) / (self.last - self.first)
        return LEFT + part * (RIGHT - LEFT)

    def down(self, closed: float) -> float:
        """Pixels from the top."""
        return TOP + (1 - closed) / (1 - DEEPEST) * (BOTTOM - TOP)

    def decades(self) -> range:
        """Whole powers of ten in the picture."""
        return range(math.ceil(self.first), math.floor(self.last) + 1)


def place_labels(at: Sequence[Place], labels: Sequence[str]) -> list[Box]:
    """Place a box for every label near its point, without covering labels, points or lines of others.

    Each label in turn is moved to its best place while the other labels stay, until no label moves.
    """
    places = [
        [box for box in _places(*point, LETTER * len(label)) if box.within(PLOT)]
        for point, label in zip(at, labels, strict=True)
    ]
    chosen = [options[0] for options in places]
    for _ in range(MOST_ROUNDS):
        before = list(chosen)
        for index, options in enumerate(places):
            badness = [_badness(at, chosen, index, box) for box in options]
            chosen[index] = options[badness.index(min(badness))]
        if chosen == before:
            break
    return chosen


def _badness(at: Sequence[Place], chosen: Sequence[Box], index: int, box: Box) -> float:
    """The cost of a label's place: hidden things, lines that cross labels, points nearer than its own, the distance."""
    point, marks = at[index], [_mark(*other) for other in at]
    others = [other for other in range(len(at)) if other != index]
    distance = math.dist(point, box.nearest(point))
    hidden = sum(map(box.meets, marks)) + sum(box.meets(chosen[other]) for other in others)
    crossed = sum(crosses(point, box, marks[other]) + crosses(point, box, chosen[other]) for other in others)
    crossed += sum(crosses(at[other], chosen[other], box) for other in others)
    nearer = sum(math.dist(at[other], box.nearest(at[other])) < distance + 6 for other in others)
    return 200 * hidden + 100 * crossed + 20 * nearer + distance


def _mark(x: float, y: float) -> Box:
    """The box of a point's circle."""
    return Box(x - RADIUS - 2, y - RADIUS - 1, x + RADIUS + 2, y + RADIUS + 1)


def crosses(point: Place, label: Box, other: Box) -> bool:
    """Whether the line from a point to its label runs through another box."""
    end = label.nearest(point)
    steps = (step / 16 for step in range(17))
    at = ((point[0] + part * (end[0] - point[0]), point[1] + part * (end[1] - point[1])) for part in steps)
    return any(other.left < x < other.right and other.top < y < other.bottom for x, y in at)


def _places(x: float, y: float, width: float) -> Iterator[Box]:
    """Yield boxes around a point at growing distances."""
    for distance in range(9, 150, 8):
        for angle in (0, 180, 90, -90, 30, -30, 150, -150, 60, -60, 120, -120):
            toward, upward = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            middle = y - (distance + 3) * upward
            # A label on the left or right has its near edge at the distance; a label above or below is centred.
            left = x + distance * toward - width * (1 - toward) / 2
            yield Box(left, middle - LINE / 2, left + width, middle + LINE / 2)


def draw(points: Sequence[Point], bound: float, title: str, caption: Sequence[str]) -> str:
    """The SVG's text."""
    drawn = [point for point in points if point.closed >= DEEPEST]
    scale = Scale.around(drawn)
    parts = [*_frame(scale, title), *_limits(scale, bound), *_points(scale, drawn), *_legend(drawn)]
    below = [f"{point.label} {100 * point.closed:.0f} %" for point in points if point.closed < DEEPEST]
    notes = [*caption, *([f"Below the picture: {', '.join(below)}."] if below else [])]
    parts += [text(LEFT, BOTTOM + 88 + 16 * row, note, "quiet") for row, note in enumerate(notes)]
    summary = "; ".join(f"{point.label} {point.seconds:.2g} s, {100 * point.closed:.0f} %" for point in points)
    return framed(title, parts, WIDTH, HEIGHT, style=STYLE, dark=DARK, summary=summary)


def _frame(scale: Scale, title: str) -> Iterator[str]:
    """Draw title, grid, ticks and the axes' titles."""
    yield text(LEFT - 44, 28, title, "title")
    yield text(LEFT - 44, 50, f"How far from a uniform shuffle to the floor: {MEASURE}", "quiet")
    for percent in range(0, 101, 20):
        y = scale.down(percent / 100)
        yield line("grid", LEFT, y, RIGHT, y)
        yield text(LEFT - 8, y + 4, f"{percent} %", "quiet", "end")
    for power in scale.decades():
        x = scale.across(10.0**power)
        yield line("grid", x, TOP, x, BOTTOM)
        yield text(x, BOTTOM + 18, f"{10 ** (power + 3)} ms" if power < 0 else f"{10**power:,} s", "quiet", "middle")
    yield line("axis", LEFT, BOTTOM, RIGHT, BOTTOM)
    yield text((LEFT + RIGHT) / 2, BOTTOM + 36, "time to make the order, compilation apart", "quiet", "middle")


def _limits(scale: Scale, bound: float) -> Iterator[str]:
    """Draw the upper bound of all orders."""
    y = scale.down(min(bound, 1.0))
    yield line("limit", LEFT, y, RIGHT, y)
    yield text(RIGHT, y - 6, "no order can lie above", "quiet", "end")


def _points(scale: Scale, points: Sequence[Point]) -> Iterator[str]:
    """Draw marks and labels, with a thin line between them if they are apart."""
    at = [(scale.across(point.seconds), scale.down(point.closed)) for point in points]
    boxes = place_labels(at, [point.label for point in points])
    for (x, y), box in zip(at, boxes, strict=True):
        near = box.nearest((x, y))
        distances = [math.dist(point, box.nearest(point)) for point in at]
        if math.dist(near, (x, y)) > 3 * RADIUS or sum(distance < 4 * RADIUS for distance in distances) > 1:
            yield line("leader", x, y, *near)
    for point, (x, y), box in zip(points, at, boxes, strict=True):
        yield circle(point.kind, x, y, RADIUS)
        at_x, anchor = (box.left + box.right) / 2, "middle"
        if box.left > x:
            at_x, anchor = box.left, "start"
        elif box.right < x:
            at_x, anchor = box.right, "end"
        yield text(at_x, box.bottom - 3.5, point.label, "label", anchor)


def _legend(points: Sequence[Point]) -> Iterator[str]:
    """Draw the legend of the present kinds in one line."""
    x = float(LEFT)
    for kind, (words, _) in KINDS.items():
        if any(point.kind == kind for point in points):
            yield circle(kind, x + 5, BOTTOM + 60, RADIUS)
            yield text(x + 15, BOTTOM + 64, words)
            x += 32 + LETTER * len(words)


def caption_of(results: Mapping[str, Any]) -> list[str]:
    """Describe the corpus and the machine."""
    corpus = results["corpus"]
    groups = corpus.get("num_groups_cluster")
    counted = f"{corpus['num_sequences']:,} sequences of {corpus['sequence_length']:,} tokens"
    kind = "synthetic corpus" if corpus["name"].startswith("synthetic") else f"corpus {corpus['name']!r}"
    clusters = f", {groups:,} clusters" if groups else ""
    machine = f"{results['processor']}, {results['cores']} cores" if "cpu" in results["device"].lower() else ""
    device = machine or results["device"]
    return [
        f"{kind}: {counted}{clusters}",
        f"{device}, jax {results['versions']['jax']}, commit {results['commit']}",
    ]


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a file that orderings.py --write made")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text(encoding="utf-8"))
    picture = draw(*points_of(results), "What an order costs and what it gives", caption_of(results))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(picture, encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
