"""The lab's rows: a flipped bit is refused or changes no value, and rows of different data are not compared.

The rows are those that the package holds as evidence. `count` is the number of flipped bits.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import results_file
from benchmarks.reliability import small
from benchmarks.reliability.forks import in_fork
from benchmarks.reliability.readers import hash_of
from benchmarks.reliability.small import Place
from benchmarks.reliability.tally import Tally
from evidence.results import FILE, append_rows, read_rows
from jax_diversity.foundation.errors import UserError

_EXPERIMENT = "documents"
_MOST_ROWS = 12


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """Flip `count` bits, then join rows of different data."""
    tally, root = Tally(seed), folder / _EXPERIMENT
    root.mkdir()
    rows = read_rows(results_file.RESULTS / "lab" / _EXPERIMENT)
    append_rows(root / FILE, list(rows.values())[:_MOST_ROWS])
    content, expected = (root / FILE).read_bytes(), _reading(root)
    for number in range(count):
        rng, tried = np.random.default_rng([seed, number]), bytearray(content)
        place = int(rng.integers(len(tried)))
        tried[place] ^= 1 << int(rng.integers(8))
        (root / FILE).write_bytes(tried)
        tally.begin()
        outcome = in_fork(partial(_reading, root))
        if outcome.fault is not None:
            tally.fail(outcome.fault, byte=place, of=len(tried), said=outcome.said)
        elif outcome.value in ("refused", expected):
            tally.add("refused" if outcome.value == "refused" else "harmless")
        else:
            tally.fail("silent", byte=place, of=len(tried))
    (root / FILE).unlink()
    _other_data(tally, root, list(rows.values()))
    return tally.result


def _reading(root: Path) -> str:
    """A hash of all values, or `refused`."""
    try:
        return hash_of([dataclasses.asdict(row) for _, row in sorted(read_rows(root).items())])
    except UserError:
        return "refused"


def _other_data(tally: Tally, root: Path, rows: list) -> None:
    """The rows of two machines, of which one had other tokens."""
    append_rows(root / "one.parquet", rows[::2])
    append_rows(root / "two.parquet", [dataclasses.replace(row, data="0" * 64) for row in rows[1::2]])
    config = results_file.RESULTS.parents[1] / "configs" / "experiments" / f"{_EXPERIMENT}.yaml"
    outcome = in_fork(small.command(["lab", "show", str(config), "--out", str(root.parent)]))
    tally.begin()
    if outcome.fault is not None:
        tally.fail(outcome.fault, attack="rows of different data", said=outcome.said)
    elif outcome.status == 0:
        tally.fail("silent", attack="rows of different data", said=ascii(outcome.output[:200]))
    else:
        tally.add("refused")
