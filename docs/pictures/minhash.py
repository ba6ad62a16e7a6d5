"""The picture of MinHash in docs/preparation.md: which pairs of documents are found, by their similarity.

    python docs/pictures/minhash.py [--out PICTURE.svg]

A pair of Jaccard similarity s agrees in a band of r values with a probability of s^r, and is found where it agrees in
one of b bands: 1 - (1 - s^r)^b.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from jax_diversity.foundation.svg import Chart, Curve

OUT = Path(__file__).parent.parent / "images" / "minhash.svg"
BANDS = ((28, 4, "second"), (14, 8, "main"))
"""Bands, values in each, and the curve's class."""


def found(similarity: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """The probability that a pair is found."""
    return 1 - (1 - similarity**rows) ** bands


def draw() -> str:
    """The SVG's text."""
    similarity = np.linspace(0, 1, 201)
    chart = Chart(
        "Which pairs MinHash finds",
        "Two documents of similarity s agree in one of b bands of r values with a "
        "probability of 1 \N{MINUS SIGN} (1 \N{MINUS SIGN} s^r)^b",
        "share of their runs of words that two documents have in common (Jaccard similarity)",
        "probability",
        (0.0, 1.0),
        (0.0, 1.0),
        room=120,
    )
    curves = [
        Curve(similarity, found(similarity, bands, rows), kind, f"{bands} bands of {rows}")
        for bands, rows, kind in BANDS
    ]
    return chart.draw(curves)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    arguments.out.write_text(draw(), encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
