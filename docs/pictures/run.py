"""The picture of a run in docs/runs.md: which dataset and epoch is read when, in two versions.

    python docs/pictures/run.py [--out PICTURE.svg]

Two made-up datasets of 600 and 400 sequences are scheduled by the package's own rule: two epochs of the first, then,
from position 700 on, both by weights of 1 and 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jax_diversity.foundation.svg import framed, line, rect, text, titles
from jax_diversity.streaming.run.interleaving import interleave
from jax_diversity.streaming.run.weights import phases_of

OUT = Path(__file__).parent.parent / "images" / "run.svg"
SIZES, CHANGE, LENGTH = (600, 400), 700, 1200
WIDTH, LEFT, RIGHT, STRETCHES = 760, 120, 740, 60
COLOURS = (("g0", "g2", "g3"), ("g1", "g4", "g5"))


def versions() -> list[tuple[str, np.ndarray]]:
    """The dataset at every position, by version."""
    first = np.zeros(LENGTH, np.int64)
    second = np.concatenate([first[:CHANGE], interleave(*phases_of([1, 1]), LENGTH - CHANGE)])
    return [("version 1", first), ("version 2", second)]


def draw() -> str:
    """The SVG's text."""
    parts = titles("One run, two versions", "Version 2 adds a dataset at position 700; earlier positions do not change")
    top = 84.0
    for words, dataset in versions():
        parts += [text(24, top + 30, words, "strong"), *_bars(dataset, top)]
        top += 78
    x = LEFT + (RIGHT - LEFT) * CHANGE / LENGTH
    parts.append(line("limit dashed", x, 76, x, top - 16))
    parts.append(text(x, top + 2, "position 700", "quiet", "middle"))
    names = ["first dataset, epoch 1", "epoch 2", "second dataset, epoch 1"]
    for index, (kind, words) in enumerate(zip(("g0", "g2", "g1"), names, strict=True)):
        parts += [rect(kind, LEFT + 210 * index, top + 20, 14, 14), text(LEFT + 210 * index + 20, top + 32, words)]
    return framed("One run, two versions", parts, WIDTH, int(top + 56))


def _bars(dataset: np.ndarray, top: float) -> Sequence[str]:
    """Stretches of the run as columns, divided by dataset and epoch."""
    epochs = np.zeros(len(dataset), np.int64)
    for index, size in enumerate(SIZES):
        places = np.flatnonzero(dataset == index)
        epochs[places] = np.arange(len(places)) // size
    width, parts = (RIGHT - LEFT) / STRETCHES, []
    for stretch in range(STRETCHES):
        own = slice(stretch * LENGTH // STRETCHES, (stretch + 1) * LENGTH // STRETCHES)
        pairs, counts = np.unique(np.stack([dataset[own], epochs[own]], axis=1), axis=0, return_counts=True)
        y = top
        for (index, epoch), count in zip(pairs.tolist(), counts.tolist(), strict=True):
            height = 48 * count / (own.stop - own.start)
            parts.append(rect(COLOURS[index][epoch], LEFT + stretch * width, y, width - 0.6, height))
            y += height
    return parts


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    arguments.out.write_text(draw(), encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
