"""Draw what a sequence of an order is worth against the window size, from the results of `benchmarks/gradients.py`.

    python docs/pictures/worth.py

The worth is one divided by the variance of the window's mean gradient, relative to a shuffle.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from jax_diversity.foundation.svg import Chart, Curve

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "gradients.json"
OUT = ROOT / "docs" / "images" / "worth.svg"
CORPUS, STEP = "mixed", "2000"
LENGTHS = (128, 512)
ORDERS = {"default": "", "default without tokens": " dashed"}


def main() -> None:
    """Write the picture."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    curves = []
    for number, length in enumerate(LENGTHS, 1):
        windows = results[f"{CORPUS}-{length}"][STEP]["windows"]["raw"]
        for order, style in ORDERS.items():
            sizes = np.array([int(size) for size in windows[order]], float)
            worth = 1 / np.array([each["value"] for each in windows[order].values()])
            words = f"{length} tokens{'' if order == 'default' else ', no token ids'}"
            curves.append(Curve(sizes, worth, f"c{number}{style}", words))
    ends = np.array([curves[0].x[0], curves[0].x[-1]])
    curves.append(Curve(ends, np.ones(2), "c0", "a shuffle"))
    highest = max(float(curve.y.max()) for curve in curves)
    chart = Chart(
        "What a sequence of a balanced order is worth",
        "by the variance of the batch's gradient; 230,000 parameters after 8.2 million tokens",
        "sequences in a batch, or in several batches that the optimiser averages",
        "shuffled sequences",
        (float(ends[0]), float(ends[1])),
        (0.95, highest + 0.05),
        logarithmic=(True, False),
        room=210,
    )
    OUT.write_text(chart.draw(curves) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
