"""Measures of counts in files equal those in memory, for any division into parts."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import numpy as np
import pytest

from jax_diversity import Characteristics, UserError, measure
from jax_diversity.counts.spool import Spool
from jax_diversity.measures.files import measure_files
from jax_diversity.schema import count_files
from tests.support.summaries import check_among

NUM, WINDOWS = 500, (1, 7, 64, 230)


def corpus() -> Characteristics:
    rng = np.random.default_rng(0)
    topics = rng.poisson(rng.gamma(0.3, 4.0, (NUM, 12)))
    topics[:, 0] += 1
    halves = np.stack([topics[:, :6].sum(axis=1), topics[:, 6:].sum(axis=1)], axis=1)
    return Characteristics.from_counts({"topic": topics, "half": halves}, documents=rng.integers(-1, 90, NUM))


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    (tmp_path / "counts").mkdir()
    for number, (first, stop) in enumerate(itertools.pairwise((0, 123, 500))):
        corpus().take(np.arange(first, stop)).save(tmp_path / "counts" / f"part-{number}.parquet")
    return tmp_path / "counts"


@pytest.mark.parametrize("together", [5, 99, 1000])
def test_as_in_memory(together: int, counts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count_files, "_TOGETHER", together)
    order = np.random.default_rng(1).permutation(NUM)
    np.save(counts.parent / "order.npy", order)
    told: list[int] = []
    found = measure_files(counts, counts.parent / "order.npy", WINDOWS, told.append, every_start=True)
    check_among(found, measure(corpus(), order, WINDOWS, every_start=True).summary())
    assert sum(told) == NUM
    assert set(found["families"]["topic"]["windows"]) == set(map(str, WINDOWS))
    assert sorted(path.name for path in counts.parent.iterdir()) == ["counts", "order.npy"]


def test_bad_orders_and_windows(counts: Path) -> None:
    path = counts.parent / "order.npy"
    with pytest.raises(UserError, match="no such file"):
        measure_files(counts, path)
    path.write_bytes(b"NUMPY")
    with pytest.raises(UserError, match=r"ordering \(\.npy\)"):
        measure_files(counts, path)
    for values, message in (
        (np.arange(NUM - 1), "made for other files"),
        (np.arange(NUM) * 1.0, "made for other files"),
        (np.arange(NUM) + 1, "sequences 0 to 499"),
        (np.arange(NUM) // 2, "once"),
    ):
        np.save(path, values)
        with pytest.raises(UserError, match=message):
            measure_files(counts, path)
    np.save(path, np.arange(NUM))
    for size in (0, NUM + 1):
        with pytest.raises(UserError, match="window size"):
            measure_files(counts, path, (size,))


def test_a_killed_call_and_a_full_disk(counts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed call left is not read; after a full disk nothing is left."""
    order = counts.parent / "order.npy"
    np.save(order, np.random.default_rng(1).permutation(NUM))
    expected = measure_files(counts, order, (64,))
    folder = order.with_name("order.npy.measuring")
    folder.mkdir()
    (folder / "part-000000.spool").write_bytes(b"left by a killed call")
    (folder / "pairs-0").write_bytes(b"12345678" * 2)
    assert measure_files(counts, order, (64,)) == expected

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Spool, "append", full)
    with pytest.raises(UserError, match="free some space"):
        measure_files(counts, order, (64,))
    assert not folder.exists()
