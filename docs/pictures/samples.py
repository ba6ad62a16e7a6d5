"""Draw how many random sequences a sequence of a sample is worth, from the results of `benchmarks/samples.py`.

    python docs/pictures/samples.py

The worth is one divided by the variance of the sample's mean loss, relative to a random sample.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from jax_diversity.foundation.svg import Chart, Curve

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "samples.json"
OUT = ROOT / "docs" / "images" / "samples.svg"
CORPUS = "mixed-128"
KINDS = {
    ("regression", "balance"): ("c2", "balanced, with reference"),
    ("variance", "balance"): ("c1", "balanced"),
    ("variance", "stratified by source"): ("c3", "stratified by source"),
}


def main() -> None:
    """Write the picture."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["results"][CORPUS]
    curves = []
    for (kind, sample), (style, words) in KINDS.items():
        found = results[kind][sample]
        worth = 1 / np.array([each["value"] for each in found.values()])
        curves.append(Curve(np.array([int(size) for size in found], float), worth, style, words))
    ends = np.array([curves[0].x[0], curves[0].x[-1]])
    curves.append(Curve(ends, np.ones(2), "c0", "random"))
    chart = Chart(
        "What a sequence of a sample is worth",
        "by the variance of the sample's mean loss; 230,000 parameters after 8.2 million tokens",
        "sequences in the sample",
        "random sequences",
        (float(ends[0]), float(ends[1])),
        (0.8, 1.1 * max(float(curve.y.max()) for curve in curves)),
        logarithmic=(True, True),
        room=190,
    )
    OUT.write_text(chart.draw(curves) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
