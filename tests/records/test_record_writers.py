"""Several writers side by side: the same files, the same errors, and nothing half-written after a kill."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.records import writing
from jax_diversity.records.writing import write_array_record, write_records
from jax_diversity.schema import Segments
from tests.support.tiny_dataset import ListStore, pack

L = 16


@pytest.fixture
def packed() -> tuple[Segments, ListStore]:
    lengths = np.random.default_rng(1).integers(1, 50, 80).tolist()
    documents = [np.random.default_rng(length).integers(1, 999, length).astype(np.uint16) for length in lengths]
    return pack(lengths, L), ListStore(documents)


def write(segments: Segments, store, folder: Path, num_writers: int, **settings) -> tuple[int, ...]:
    folder.mkdir(exist_ok=True)
    order = np.arange(segments.num_sequences)[::-1].copy()
    settings = {"sequences_per_file": 9, "identity": "ab" * 32, **settings}
    return write_records(segments, store.gather, "uint16", order, folder, "train", num_writers=num_writers, **settings)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("num_writers", [2, 3, 20])
def test_bytes_do_not_depend_on_the_number_of_writers(packed, tmp_path, num_writers):
    segments, store = packed
    counts = write(segments, store, tmp_path / "one", 1)
    assert len(counts) > 10
    done: list[int] = []
    assert write(segments, store, tmp_path / "many", num_writers, advance=done.append) == counts
    assert sum(done) == segments.num_sequences
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


def test_files_are_written_side_by_side(packed, tmp_path, monkeypatch):
    segments, store = packed
    together = threading.Barrier(3, timeout=30)
    gather, calls = store.gather, iter(range(10**6))

    def waiting(*columns: np.ndarray) -> np.ndarray:
        if next(calls) < 3:
            together.wait()  # ends only if three writers gather at a time
        return gather(*columns)

    monkeypatch.setattr(store, "gather", waiting)
    write(segments, store, tmp_path / "three", 3)
    assert not together.broken


@pytest.mark.parametrize("error", [OSError("disk gone"), KeyboardInterrupt(), ValueError("odd")])
def test_one_writers_error_ends_all_and_leaves_whole_files_only(packed, tmp_path, monkeypatch, error):
    segments, store = packed
    write(segments, store, tmp_path / "sound", 1)
    gather, calls = store.gather, iter(range(10**6))

    def failing(*columns: np.ndarray) -> np.ndarray:
        if next(calls) == 4:
            raise error
        return gather(*columns)

    monkeypatch.setattr(store, "gather", failing)
    with pytest.raises(UserError if isinstance(error, OSError) else type(error)):
        write(segments, store, tmp_path / "cut", 3)
    left, sound = contents(tmp_path / "cut"), contents(tmp_path / "sound")
    assert len(left) < len(sound)
    assert all(sound[name] == content for name, content in left.items())
    monkeypatch.undo()
    write(segments, store, tmp_path / "cut", 2)
    assert contents(tmp_path / "cut") == sound


def test_writers_killed_at_random_moments(tmp_path):
    command = [sys.executable, "-m", "tests.support.killed_writers", str(tmp_path), "14"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 5


def test_a_file_without_sequences_is_not_of_this_build(tmp_path) -> None:
    path = tmp_path / "one.array_record"
    write_array_record(path, [[b"documents"]], 1, "group_size:1,uncompressed")
    about = {"sequence_length": 16, "dtype": np.dtype("uint16"), "identity": "", "has_loss_mask": False}
    assert writing._num_sequences(path, **about) == 0
    path.write_bytes(b"")
    assert writing._num_sequences(path, **about) == 0
