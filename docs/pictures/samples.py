"""Draw the mean loss of a sample against its size, from the results of `benchmarks/samples.py`.

python docs/pictures/samples.py
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
    "random": ("thin", "random"),
    "balance": ("c1", "balanced"),
    "balance with reference": ("c2", "with reference"),
}


def draw(found: dict) -> str:
    """The SVG's text."""
    sizes, mean = np.array(found["sizes"], float), found["mean"]
    curves = []
    for name, (kind, words) in KINDS.items():
        for number, losses in enumerate(found["losses"][name]):
            curves.append(Curve(sizes, np.array(losses), kind, "" if number else words))
    curves.append(Curve(sizes[[0, -1]], np.full(2, mean), "limit dashed", "all"))
    # Small random samples are far off; the picture shows the range of the others.
    reach = 1.2 * max(float(np.abs(curve.y[len(sizes) // 4 :] - mean).max()) for curve in curves[:-1])
    within = [curve._replace(y=curve.y.clip(mean - reach, mean + reach)) for curve in curves]
    return Chart(
        "The mean loss of a sample against its size",
        f"{len(found['losses']['random'])} samples of each kind; nats per token",
        "sequences in the sample",
        "mean loss",
        (float(sizes[0]), float(sizes[-1])),
        (mean - reach, mean + reach),
        logarithmic=(True, False),
        room=120,
    ).draw(within)


def main() -> None:
    """Write the picture."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    OUT.write_text(draw(results[CORPUS]["curves"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
