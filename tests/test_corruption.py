"""A thousand random corruptions of record files: each is found or harmless, none returns other tokens."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from tests.tiny_dataset import write_tiny_dataset

NUM_CORRUPTIONS = 1000


def flip(paths: list[Path], rng: np.random.Generator) -> None:
    """One to sixteen bytes that are not of the zeros with which small files are filled up."""
    path = paths[rng.integers(len(paths))]
    content = bytearray(path.read_bytes())
    for place in rng.choice(np.flatnonzero(np.frombuffer(content, np.uint8)), rng.integers(1, 17)):
        content[place] ^= int(rng.integers(1, 256))
    path.write_bytes(content)


def truncate(paths: list[Path], rng: np.random.Generator) -> None:
    path = paths[rng.integers(len(paths))]
    path.write_bytes(path.read_bytes()[: rng.integers(path.stat().st_size)])


def swap(paths: list[Path], rng: np.random.Generator) -> None:
    first, second = (paths[index] for index in rng.choice(len(paths), 2, replace=False))
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])


def delete(paths: list[Path], rng: np.random.Generator) -> None:
    paths[rng.integers(len(paths))].unlink()


def duplicate(paths: list[Path], rng: np.random.Generator) -> None:
    source, target = (paths[index] for index in rng.choice(len(paths), 2, replace=False))
    shutil.copyfile(source, target)


def overwrite(paths: list[Path], rng: np.random.Generator) -> None:
    """A run of zeros or noise, as a disk leaves it."""
    path = paths[rng.integers(len(paths))]
    content = bytearray(path.read_bytes())
    start = int(rng.integers(len(content)))
    stop = min(start + int(rng.integers(1, 4096)), len(content))
    content[start:stop] = bytes(stop - start) if rng.random() < 0.5 else rng.bytes(stop - start)
    path.write_bytes(content)


def exchange_parts(paths: list[Path], rng: np.random.Generator) -> None:
    """The same range of two files, which may hold whole records with sums that fit."""
    first, second = (paths[index] for index in rng.choice(len(paths), 2, replace=False))
    contents = [bytearray(path.read_bytes()) for path in (first, second)]
    size = min(map(len, contents))
    start = int(rng.integers(size))
    stop = int(rng.integers(start, size)) + 1
    contents[0][start:stop], contents[1][start:stop] = contents[1][start:stop], contents[0][start:stop]
    for path, content in zip((first, second), contents, strict=True):
        path.write_bytes(content)


def cut_front(paths: list[Path], rng: np.random.Generator) -> None:
    """Without its first blocks of 64 KiB, so that all others stand where blocks do; or its first bytes."""
    path = paths[rng.integers(len(paths))]
    content = path.read_bytes()
    unit = 2**16 if rng.random() < 0.5 else 1
    path.write_bytes(content[unit * int(rng.integers(1, len(content) // unit)) :])


CORRUPTIONS = (flip, truncate, swap, delete, duplicate, overwrite, exchange_parts, cut_front)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["packed", "ordered"])
def test_no_corruption_returns_wrong_tokens(tmp_path: Path, layout: str) -> None:
    root = write_tiny_dataset(tmp_path / "out", layout=layout, sequences_per_file=12).root
    sound = tmp_path / "sound"
    shutil.copytree(root / "records", sound)
    expected = [batch["inputs"] for batch in jd.make_loader(root, global_batch_size=1, fields=("inputs",))]
    paths = sorted((root / "records").glob("train-*"))
    assert len(paths) >= 3
    outcomes: Counter[tuple[str, str]] = Counter()
    for seed in range(NUM_CORRUPTIONS // 2):
        rng = np.random.default_rng(seed)
        corrupt = CORRUPTIONS[seed % len(CORRUPTIONS)]
        corrupt(paths, rng)
        try:
            loader = jd.make_loader(root, global_batch_size=1, fields=("inputs",), num_prefetch=0)
            found = [batch["inputs"] for batch in loader]
        except UserError:
            outcomes[corrupt.__name__, "found"] += 1
        else:
            outcomes[corrupt.__name__, "harmless"] += 1
            assert len(found) == len(expected), (corrupt.__name__, seed)
            assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True)), (
                corrupt.__name__,
                seed,
            )
        for path in paths:
            shutil.copyfile(sound / path.name, path)
    for name in ("truncate", "swap", "delete", "duplicate", "cut_front"):
        assert not outcomes[name, "harmless"], outcomes
    assert outcomes["flip", "found"] > outcomes["flip", "harmless"]
