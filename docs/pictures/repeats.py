"""The picture of repeated documents against window size, from the results of `benchmarks/orderings.py --write`.

python docs/pictures/repeats.py benchmarks/results/orderings-mixed.json [--out PICTURE.svg]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.foundation.svg import Chart, Curve

OUT = Path(__file__).parent.parent / "images" / "repeats.svg"
DRAWN = {
    "exact f1": ("dashed second", "f1 as published"),
    "exact f3": ("second", "f3 as published"),
    "uniform shuffle": ("thin", "a shuffle"),
    "balance, without documents": ("quiet-line", "balance, without documents"),
    "balance 4096": ("main", "balance"),
}


def draw(results: Mapping[str, Any]) -> str:
    """The SVG's text."""
    curves = []
    for label, (kind, words) in DRAWN.items():
        repeats = results["orders"][label]["repeats"]
        curves.append(_curve(repeats, "mean", kind, words))
    curves.append(_curve(repeats, "floor", "dashed limit", "no order has fewer"))
    largest = max(curve.y.max() for curve in curves)
    corpus = results["corpus"]
    chart = Chart(
        "How much of a batch continues a document that is in it already",
        f"Corpus {corpus['name']!r}: {corpus['num_sequences']:,} sequences of {corpus['sequence_length']:,} tokens",
        "window, in sequences",
        "repeats, % of the window",
        (curves[0].x[0], curves[0].x[-1]),
        (0, largest * 1.05),
        logarithmic=(True, False),
        room=215,
    )
    return chart.draw(curves)


def _curve(repeats: Mapping[str, Any], figure: str, kind: str, words: str) -> Curve:
    sizes = np.array([int(size) for size in repeats], np.float64)
    means = np.array([window[figure] for window in repeats.values()])
    return Curve(sizes, 100 * means / sizes, kind, words)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a file that orderings.py --write made")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    arguments.out.write_text(draw(json.loads(arguments.results.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
