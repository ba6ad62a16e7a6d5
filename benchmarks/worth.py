"""What an order is worth, predicted from gradients and seen in losses, in one picture.

    python benchmarks/worth.py [--out PICTURE.svg]

Predicted: a balanced batch whose gradient has r times the variance of a shuffled one is worth a shuffled batch of 1 / r
times its size (`results/gradients.json`, `mixed`). Seen: in an experiment of the lab with the arms `shuffle`,
`balance_tokens` and a shuffle with larger batches, an order that lowers the loss by d is worth a shuffled batch of
(larger / size)^(d / s) times the size; s is how much lower the larger batches end. The interval of 95 % comes from
10,000 draws of the pairs of seeds. An experiment without such an arm has no seen worth.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import results_file
from jaxtyping import Float64

from evidence.results import TrialRow, read_rows
from jax_diversity.foundation.svg import Chart, Curve

OUT = Path(__file__).parent.parent / "docs" / "images" / "worth-seen.svg"
MEASURE = "loss/macro"
NUM_DRAWS = 10_000
NUM_AVERAGED = 16
"""Optimisers average gradients over some ten batches; the mean of 16 batches is a window of 16 times the size."""
MOST = 3.0
"""Worths above this are drawn here: if larger batches hardly lower the loss, no number of sequences is known."""


class Predicted(NamedTuple):
    """Worth of the default order by the size of the batch."""

    name: str
    sizes: Float64[np.ndarray, " size"]
    worths: Float64[np.ndarray, " size"]


class Seen(NamedTuple):
    """Worth that the losses of an experiment show, with the bounds of its interval."""

    batch_size: int
    num_pairs: int
    gained: float
    gained_by_larger: float
    worth: float
    low: float
    high: float


def predicted(corpus: str, name: str) -> Predicted:
    """Read the variances of a corpus at its last step."""
    steps = {step: each for step, each in results_file.read("gradients")["results"][corpus].items() if step.isdigit()}
    ratios = steps[max(steps, key=int)]["windows"]["raw"]["default"]
    sizes = np.array([float(size) for size in ratios])
    return Predicted(name, sizes, 1 / np.array([each["value"] for each in ratios.values()]))


def losses(rows: Mapping[str, TrialRow], arm: str) -> dict[tuple[int, int], float]:
    """Return the last losses of an arm by its seeds."""
    return {
        (row.order_seed, row.weight_seed): row.final()[MEASURE]
        for row in rows.values()
        if row.arm == arm and row.status == "done"
    }


def seen(experiment: str, larger_arm: str) -> Seen:
    """Compare an experiment's order with its shuffles of two sizes."""
    rows = read_rows(results_file.RESULTS / "lab" / experiment)
    by_arm = [losses(rows, arm) for arm in ("shuffle", "balance_tokens", larger_arm)]
    seeds = sorted(set.intersection(*(set(each) for each in by_arm)))
    shuffle, order, larger = (np.array([each[seed] for seed in seeds]) for each in by_arm)
    sizes = {row.arm: row.settings["batch_size"] for row in rows.values()}
    step = np.log(sizes[larger_arm] / sizes["shuffle"])
    gained, gained_by_larger = shuffle - order, shuffle - larger

    def worth(gain: np.ndarray, slope: np.ndarray) -> np.ndarray:
        return np.where(slope > 0, np.exp(np.minimum(step * gain / np.maximum(slope, 1e-9), 5)), np.inf)

    draws = np.random.default_rng(0).integers(0, len(seeds), (NUM_DRAWS, len(seeds)))
    drawn = worth(gained[draws].mean(axis=1), gained_by_larger[draws].mean(axis=1))
    low, high = np.quantile(drawn, [0.025, 0.975], method="inverted_cdf")
    value = worth(gained.mean(), gained_by_larger.mean())
    return Seen(
        batch_size=sizes["shuffle"],
        num_pairs=len(seeds),
        gained=float(gained.mean()),
        gained_by_larger=float(gained_by_larger.mean()),
        worth=float(value),
        low=float(low),
        high=float(high),
    )


def picture(lines: list[Predicted], point: Seen) -> str:
    """Draw the predictions as lines and what was seen as an interval."""
    sizes = lines[0].sizes
    curves = []
    for number, each in enumerate(lines):
        few = each.sizes * NUM_AVERAGED <= each.sizes[-1]
        averaged = np.interp(each.sizes[few] * NUM_AVERAGED, each.sizes, each.worths)
        curves.append(Curve(each.sizes, each.worths, f"c{1 + number}", each.name))
        curves.append(Curve(each.sizes[few], averaged, f"c{1 + number} dashed"))
    curves.append(Curve(sizes[[0, -1]], np.ones(2), "c0", "a shuffle"))
    x, width = float(point.batch_size), 1.06
    low, value, high = (min(each, MOST) for each in (point.low, point.worth, point.high))
    curves.append(Curve(np.array([x, x]), np.array([low, high]), "limit"))
    ends = np.array([x / width, x * width])
    curves += [Curve(ends, np.array([y, y]), "limit") for y in (low, value, high)]
    curves.append(Curve(np.array([x, x]), np.array([value, value]), "limit", "seen, 128 tokens"))
    values = np.concatenate([curve.y for curve in curves])
    room = 0.06 * float(np.ptp(values))
    return Chart(
        "What a sequence of a balanced batch is worth: predicted and seen",
        f"230,000 parameters; predicted from gradients (dashed: mean of {NUM_AVERAGED} batches); seen in losses, 95 %",
        "sequences in a batch",
        "shuffled sequences",
        (float(sizes[0]), float(sizes[-1])),
        (float(values.min()) - room, float(values.max()) + room),
        logarithmic=(True, False),
        room=190,
    ).draw(curves)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    lines = [predicted("mixed-128", "predicted, 128 tokens"), predicted("mixed-512", "predicted, 512 tokens")]
    for line in lines:
        print(line.name, *(f"{size:,.0f}: {worth:.3f}" for size, worth in zip(line.sizes, line.worths, strict=True)))
    point = seen("worth_128_64", "shuffle_96")
    print(
        f"seen with batches of {point.batch_size}, {point.num_pairs} pairs: the order lowers the loss by "
        f"{point.gained:.4f}, larger batches by {point.gained_by_larger:.4f}; worth {point.worth:.3f} "
        f"[{point.low:.3f}, {point.high:.3f}]"
    )
    out.write_text(picture(lines, point), encoding="utf-8")


if __name__ == "__main__":
    main()
