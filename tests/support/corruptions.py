"""Random damage to files, each kind a function of their paths."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np


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
