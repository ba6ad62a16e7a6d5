"""Every sequence exactly once: loaders of many shapes, and runs that continue in another shape.

The reference reads the stored files with NumPy and PyArrow alone: token files, segments and the ordering. Row j of the
batch at position p must be the tokens of sequence `ordering[p + j]`, for any hosts, threads, workers and batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.reliability import small
from benchmarks.reliability.forks import in_fork
from benchmarks.reliability.small import Place
from benchmarks.reliability.tally import Tally

_TOKEN_TYPES = {4: np.int32, 8: np.uint16}
_WORKERS_EVERY = 6
"""One shape in this number has worker processes, which take seconds to start."""


@dataclass(frozen=True)
class Shape:
    """The shape of a run: hosts, batches, threads and processes."""

    num_hosts: int
    batch_size: int
    num_threads: int
    num_workers: int

    @classmethod
    def drawn(cls, rng: np.random.Generator, *, with_workers: bool) -> Shape:
        """Draw any shape."""
        hosts = int(rng.choice([1, 2, 3, 4, 5, 8]))
        return cls(hosts, hosts * int(rng.integers(1, 13)), int(rng.integers(1, 5)), 2 if with_workers else 0)


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """Four in seven attacks are whole runs, the others are runs that continue twice in other shapes."""
    sound = small.build(folder / "sound") if dataset is None else dataset
    tally = Tally(seed)
    num_runs = count * 4 // 7
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        num_parts = 1 if number < num_runs else 3
        workers_at = number % _WORKERS_EVERY == _WORKERS_EVERY - 1
        shapes = [Shape.drawn(rng, with_workers=workers_at and part == 0) for part in range(num_parts)]
        work = partial(_check, sound.dataset, ("balance", "uniform_shuffle")[number % 2], shapes, rng)
        outcome = in_fork(work)
        tally.begin()
        fail = partial(tally.fail, attack=number, shapes=[str(shape) for shape in shapes])
        if outcome.status == 0:
            kind, text = outcome.value
            tally.add(f"{'runs' if num_parts == 1 else 'resumes'} equal") if kind == "equal" else fail(kind, said=text)
        else:
            fail(outcome.fault or "tracebacks", said=outcome.said)
    return tally.result


def reference_rows(root: Path) -> np.ndarray:
    """Every training sequence's tokens, padded with 0."""
    manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
    counts = manifest["stages"]["pack"]["counts"]
    documents = []
    for index in sorted((root / "tokens").glob("*.idx")):
        content = index.read_bytes()
        kind = np.dtype(_TOKEN_TYPES[content[17]])
        number = int(np.frombuffer(content, np.int64, 1, 18)[0])
        lengths = np.frombuffer(content, np.int32, number, 34)
        tokens = np.fromfile(index.with_suffix(".bin"), kind)
        documents += np.split(tokens, np.cumsum(lengths)[:-1])
    rows = np.zeros((counts["num_sequences"], counts["sequence_length"]), np.int32)
    for segment in pq.read_table(root / "sequences" / "segments.parquet").to_pylist():
        begin, length, at = segment["document_offset"], segment["length"], segment["position"]
        part = documents[segment["document_index"]][begin : begin + length]
        rows[segment["sequence_index"], at : at + length] = part
    return rows


def _check(root: Path, ordering: str, shapes: list[Shape], rng: np.random.Generator) -> tuple[str, str]:
    """Run in one shape after the other; each part except the last ends after a random number of batches."""
    order = np.load(root / "orderings" / f"{ordering}.npy")
    num_epochs = int(rng.integers(1, 4))
    expected = reference_rows(root)[np.tile(order, num_epochs)]
    found: list[np.ndarray] = []
    state = None
    for number, shape in enumerate(shapes):
        is_last = number == len(shapes) - 1
        left = len(expected) - sum(map(len, found))
        most = None if is_last else int(rng.integers(0, max(1, left // shape.batch_size // 2)))
        batches, state = _run(root, ordering, shape, num_epochs, state, most)
        found += batches
        if is_last:
            # Rows that do not fill a batch are dropped, the same on all hosts.
            expected = expected[: len(expected) - left % shape.batch_size]
    rows = np.concatenate([np.zeros_like(expected[:0]), *found])
    if rows.shape != expected.shape:
        return "lost", f"{len(rows)} rows in place of {len(expected)}"
    wrong = np.flatnonzero((rows != expected).any(1))
    return ("silent", f"row {wrong[0]} of {len(rows)} is another") if len(wrong) else ("equal", "")


def _run(
    root: Path, ordering: str, shape: Shape, num_epochs: int, state: Any, most: int | None
) -> tuple[list[np.ndarray], Any]:
    """Batches of all hosts, each joined in the order of the hosts, and the state after them."""
    import jax_diversity as jd

    hosts = []
    for host in range(shape.num_hosts):
        loader = jd.make_loader(
            root,
            ordering=ordering,
            global_batch_size=shape.batch_size,
            num_epochs=num_epochs,
            host_index=host,
            num_hosts=shape.num_hosts,
            num_threads=shape.num_threads,
            num_workers=shape.num_workers if host == 0 else 0,
            fields=("inputs",),
        )
        batches = iter(loader)
        if state is not None:
            batches.set_state(json.loads(state))
        hosts.append(batches)
    found = [np.concatenate([batch["inputs"] for batch in parts]) for parts in _together(hosts, most)]
    states = {json.dumps(batches.get_state(), sort_keys=True) for batches in hosts}
    if len(states) != 1:
        raise RuntimeError(f"The hosts have states that differ: {states}")
    for batches in hosts:
        batches.close()
    return found, states.pop()


def _together(hosts: list[Any], most: int | None) -> Iterator[tuple[dict[str, np.ndarray], ...]]:
    """Yield a batch of every host at a time; all hosts must end together."""
    number = 0
    while most is None or number < most:
        parts = [next(batches, None) for batches in hosts]
        missing = sum(part is None for part in parts)
        if missing == len(parts):
            return
        if missing:
            raise RuntimeError(f"{missing} of {len(parts)} hosts have no more batches.")
        yield tuple(part for part in parts if part is not None)
        number += 1
