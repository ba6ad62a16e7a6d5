"""Measure how long training waits for the loader: the lab's GPT, a simulated accelerator, and the first batch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import jax_diversity as jd
from jax_diversity.lab.settings import TrainConfig

TOKENS_PER_SECOND = 1_000_000  # of the simulated accelerator
LATE_SECONDS = 1e-3  # a batch is late after a longer wait
WARM_UP_BATCHES = 2
NUM_BATCHES = 40

_FIRST_BATCH = """
import json, sys, time
start = time.perf_counter()
import jax_diversity as jd
from jax_diversity.streaming.loader.loader import make_loader
imported = time.perf_counter()
iterator = iter(make_loader(sys.argv[1], global_batch_size=16))
next(iterator)
print(json.dumps([imported - start, time.perf_counter() - imported]))
iterator.close()
"""


@dataclass(frozen=True)
class TrainingWaits:
    """Waiting times of training.

    Attributes:
        lab_wait_share: share of waiting in the time of the lab's steps, without the first step.
        lab_step_seconds: median time of the lab's steps.
        num_late: batches that a simulated accelerator waited for more than `LATE_SECONDS`.
        num_batches: number of batches of the simulated accelerator.
        worst_wait_seconds: longest wait of the simulated accelerator.
        import_seconds: time to import the loader, in a new process.
        first_batch_seconds: time from the import to the first batch.
    """

    lab_wait_share: float
    lab_step_seconds: float
    num_late: int
    num_batches: int
    worst_wait_seconds: float
    import_seconds: float
    first_batch_seconds: float

    def sentences(self) -> Iterator[str]:
        """Return the results as text, one per line."""
        yield (
            f"the laboratory's GPT waits {self.lab_wait_share:.2%} of its time "
            f"(steps of {self.lab_step_seconds * 1e3:.0f} ms; wanted: under 1 %)"
        )
        yield (
            f"an accelerator of {TOKENS_PER_SECOND:,} tokens/s waits over {LATE_SECONDS * 1e3:.0f} ms for "
            f"{self.num_late} of {self.num_batches} batches, at most {self.worst_wait_seconds * 1e3:.2f} ms "
            "(wanted: 0)"
        )
        yield (
            f"the first batch is there {self.first_batch_seconds:.2f} s after imports, which take "
            f"{self.import_seconds:.1f} s (wanted: under 2)"
        )


@contextmanager
def small_dataset(folder: str | None) -> Iterator[Path]:
    """Open the dataset in a folder, or build one from 2,000 documents of random words, as in the demonstration."""
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as name:
        rng = np.random.default_rng(0)
        words = np.array(["".join(map(chr, rng.integers(97, 123, rng.integers(2, 9)))) for _ in range(5000)])
        lines = []
        for index in range(2000):
            number = int(rng.lognormal(5, 1)) + 5
            text = " ".join(words[rng.zipf(1.3, number) % len(words)])
            lines.append(json.dumps({"id": str(index), "text": text}))
        corpus = Path(name) / "corpus.jsonl"
        corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "jax_diversity", "build", "--quiet", "--out", f"{name}/out"]
        command += ["--corpus.paths", str(corpus), "--cluster.num-clusters", "20"]
        command += ["--packing.sequence-length", "256", "--packing.validation-fraction", "0.02"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        yield Path(name) / "out"


def waits_of_training(
    root: Path, batches: Callable[[], Iterable[Any]], tokens_per_batch: int, num_steps: int = 60
) -> TrainingWaits:
    """Train on a dataset, feed a simulated accelerator with some batches, open the dataset in a new process."""
    share, step_seconds = _lab(root, num_steps)
    waits = _accelerator(batches, tokens_per_batch / TOKENS_PER_SECOND)
    command = [sys.executable, "-c", _FIRST_BATCH, str(root)]
    imported, first = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    num_late = int((waits > LATE_SECONDS).sum())
    return TrainingWaits(share, step_seconds, num_late, len(waits), float(waits.max()), imported, first)


def _lab(root: Path, num_steps: int) -> tuple[float, float]:
    from jax_diversity.lab.training import train

    config = TrainConfig(num_steps=num_steps, batch_size=8, checkpoint_every=num_steps, validation_batches=0)
    with tempfile.TemporaryDirectory() as folder:
        run = train(jd.open_dataset(root), config, Path(folder) / "run")
    return run.input_wait_share, float(np.median([step["step_seconds"] for step in run.steps[1:]]))


def _accelerator(batches: Callable[[], Iterable[Any]], seconds_per_batch: float) -> np.ndarray:
    """Seconds of waiting for each batch, without the first few, for a consumer that sleeps between batches."""
    iterator = iter(batches())
    waits = []
    for _ in range(WARM_UP_BATCHES + NUM_BATCHES):
        asked = time.perf_counter()
        next(iterator)
        waits.append(time.perf_counter() - asked)
        time.sleep(seconds_per_batch)
    return np.array(waits[WARM_UP_BATCHES:])
