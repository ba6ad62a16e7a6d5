"""Work for tests of executors; worker processes import it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jax_diversity.foundation.artifacts import write_text
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.jobs import Job, work
from jax_diversity.foundation.progress import tell

RELEASED = "released"
"""The file in the working folder that ends the wait of the jobs with `LengthsOnceReleased`."""


class LengthsOnceReleased:
    """An embedder that embeds the texts of one job at once; those of the other jobs wait for a file."""

    dimensions = 1

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        try:
            Path("first").touch(exist_ok=False)
        except FileExistsError:
            while not Path(RELEASED).exists():
                time.sleep(0.01)
        return np.array([[len(text)] for text in texts], np.float32)


@work("counting")
def count(name: Path, text: str) -> int:
    return _count(name, text)


@work("counting", at_a_time=2)
def count_in_threads(name: Path, text: str) -> int:
    return _count(name, text)


def _count(name: Path, text: str) -> int:
    write_text(Path(f"{name}.txt"), text)
    tell(len(text))
    return len(text)


@work("naming", patience=60.0)
def process(name: Path) -> int:
    return os.getpid()


@work("naming", alone=True)
def process_alone(name: Path) -> int:
    return os.getpid()


@work("reading")
def read(name: Path, path: str) -> int:
    return len(Path(path).read_text())


@work("refusing")
def refuse(name: Path, sentence: str) -> None:
    raise UserError(sentence)


@work("ending")
def end(name: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@work("telling", at_a_time=2)
def fail_or_tell(name: Path, fails: bool) -> None:
    """One job fails; the other would go on for a minute, but it is stopped."""
    if fails:
        time.sleep(0.2)
        raise UserError("one of two failed")
    for _ in range(6000):
        time.sleep(0.01)
        tell(1)


def counted(folder: Path, number: int = 7) -> list[Job]:
    return [(str(folder / f"count-{index:05d}"), ("x" * index,)) for index in range(number)]
