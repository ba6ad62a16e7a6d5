"""Draw what a sequence of a balanced order is worth to a model's gradient, and to a sample's mean loss.

    python docs/pictures/worth.py

The results are those of `benchmarks/gradients.py` and `benchmarks/samples.py`. The worth is one divided by the
variance, relative to a shuffle or a random sample.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.foundation.svg import Chart, Curve

ROOT = Path(__file__).parents[2]
RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
CORPUS, STEP = "mixed", "2000"
AFTER = "230,000 parameters after 8.2 million tokens"
Windows = dict[str, dict[str, float]]
"""Window size -> the variance, `value`."""


def read(name: str, length: int) -> Any:
    """The results of a benchmark for the corpus in sequences of a length."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["results"][f"{CORPUS}-{length}"]


def draw(
    name: str, titles: tuple[str, str], axes: tuple[str, str], kinds: Sequence[tuple[Windows, str, str]], unit: str
) -> None:
    """Write `images/NAME.svg`; a kind has the variances, the style and the words of its curve."""
    curves = []
    for windows, style, words in kinds:
        worth = 1 / np.array([each["value"] for each in windows.values()])
        curves.append(Curve(np.array([int(size) for size in windows], float), worth, style, words))
    ends = np.array([curves[0].x[0], curves[0].x[-1]])
    curves.append(Curve(ends, np.ones(2), "c0", unit))
    highest = max(float(curve.y.max()) for curve in curves)
    # Worths of a tenth more need a linear axis, worths of ten a logarithmic one.
    limits = (0.8, 1.1 * highest) if highest > 2 else (0.95, highest + 0.05)
    chart = Chart(
        *titles,
        *axes,
        (float(ends[0]), float(ends[1])),
        limits,
        logarithmic=(True, highest > 2),
        room=190,
    )
    (IMAGES / f"{name}.svg").write_text(chart.draw(curves) + "\n", encoding="utf-8")


def main() -> None:
    """Write both pictures."""
    windows = {length: read("gradients", length)[STEP]["windows"]["raw"] for length in (512, 128)}
    draw(
        "worth",
        ("What a sequence of a balanced order is worth", f"by the variance of the batch's gradient; {AFTER}"),
        ("sequences in a batch, or in several batches that the optimiser averages", "shuffled sequences"),
        [
            (windows[length][order], style, f"{length} tokens{words}")
            for order, dashed, words in (("default", "", ""), ("default without tokens", " dashed", ", no token ids"))
            for length, style in ((512, f"c2{dashed}"), (128, f"c1{dashed}"))
        ],
        "a shuffle",
    )
    samples = read("samples", 128)
    draw(
        "samples",
        ("What a sequence of a sample is worth", f"by the variance of the sample's mean loss; {AFTER}"),
        ("sequences in the sample", "random sequences"),
        [
            (samples["regression"]["balance"], "c2", "balanced, with reference"),
            (samples["variance"]["balance"], "c1", "balanced"),
            (samples["variance"]["stratified by source"], "c3", "stratified by source"),
        ],
        "random",
    )


if __name__ == "__main__":
    main()
