"""Measures of several chunks equal those of one, for counts in memory and in files, for orders and runs."""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity import Characteristics, Targets, UserError
from jax_diversity.counts import spool, token_counts
from jax_diversity.counts.stored import CountFiles
from jax_diversity.ordering.measures.balance import Measurer
from jax_diversity.schema.orderings import Positions

NUM, WINDOWS = 500, (1, 7, 64, 230)


def corpus(scale: int = 1) -> Characteristics:
    rng = np.random.default_rng(0)
    topics = rng.poisson(rng.gamma(0.3, 4.0, (NUM, 12)))
    topics[:, 0] += rng.integers(0, 2, NUM)  # some sequences have no tokens
    topics[:, 11] = 0
    halves = np.stack([topics[:, :6].sum(axis=1), topics[:, 6:].sum(axis=1)], axis=1)
    copies = np.where(rng.random((NUM, 2)) < 0.2, rng.integers(0, 40, (NUM, 2)) * 2 + [0, 1], -1)
    return Characteristics.from_counts(
        {"topic": topics * scale, "half": halves * scale}, documents=rng.integers(-1, 90, NUM), copies=copies
    )


def save(chars: Characteristics, folder: Path) -> Path:
    folder.mkdir()
    for number, (first, stop) in enumerate(itertools.pairwise((0, 123, NUM))):
        chars.take(np.arange(first, stop)).save(folder / f"part-{number}.parquet")
    return folder


def plain(value: Any) -> Any:
    """Measures as nested dicts of numbers and arrays."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    return {str(name): plain(each) for name, each in value.items()} if isinstance(value, Mapping) else value


def check_equal(ours: Any, theirs: Any, where: str = "") -> None:
    """Whole numbers are equal, other numbers up to rounding."""
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), where
        for name in theirs:
            check_equal(ours[name], theirs[name], f"{where}/{name}")
    elif theirs is None or isinstance(theirs, str | int):
        assert ours == theirs, where
    elif np.asarray(theirs).dtype.kind in "iu":
        np.testing.assert_array_equal(ours, theirs, where)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9, err_msg=where)


def orders() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "order": rng.permutation(NUM),
        "run": Positions(rng.integers(0, NUM - 50, 2 * NUM + 3), NUM, {}),
        "short run": Positions(rng.integers(0, NUM, 240), NUM, {}),
    }


def moving() -> Targets:
    shares = np.random.default_rng(2).random((4, 12))
    return Targets((0, 90, 120, 400), {"topic": shares})


def measured(counts: Any, ordering: Any, targets: Any) -> dict[str, Any]:
    return {
        "balance": plain(jd.measure(counts, ordering, WINDOWS, every_start=True, targets=targets)),
        "profile": plain(jd.window_profile(counts, ordering, targets=targets)),
        "timeline": plain(jd.group_timeline(counts, "topic", ordering, num_bins=9, targets=targets)),
    }


@pytest.mark.first(6)
@pytest.mark.parametrize("rows", [99, 25, 300])
@pytest.mark.parametrize("order", orders())
@pytest.mark.parametrize(
    "targets", [None, {"topic": [0.5, *[0.05] * 10, 0.0]}, moving()], ids=["own", "given", "moving"]
)
def test_several_chunks_measure_as_one(
    rows: int, order: str, targets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chars, ordering = corpus(), orders()[order]
    expected = measured(chars, ordering, targets)
    files = save(chars, tmp_path / "counts")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for given in (chars, CountFiles.open(files)):
        monkeypatch.setattr(token_counts, "MOST_ROWS", rows)
        check_equal(measured(given, ordering, targets), expected)
        short = Measurer(given, WINDOWS, targets, every_start=True).measure_in_short(ordering)
        monkeypatch.setattr(token_counts, "MOST_ROWS", 1 << 20)
        whole = Measurer(chars, WINDOWS, targets, every_start=True)
        balance = whole.measure(ordering)
        check_equal(plain(short.summary), plain(balance.summary()))
        assert whole.measure_in_short(ordering).summary == balance.summary()
    assert [path.name for path in tmp_path.iterdir()] == ["counts"]


@pytest.mark.parametrize("scale", [2**13, 2**29])
def test_large_counts(scale: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts above 2^16 and 2^32 keep their values in files and in spools."""
    chars, ordering = corpus(scale), orders()["order"]
    expected = plain(jd.measure(chars, ordering, (64,)))
    files = save(chars, tmp_path / "counts")
    monkeypatch.setattr(token_counts, "MOST_ROWS", 99)
    check_equal(plain(jd.measure(files, ordering, (64,))), expected)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_few_sequences(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = corpus().take(np.arange(number))
    given = {"documents": taken.documents, "copies": taken.copies, "sequence_length": taken.sequence_length}
    chars = Characteristics.from_counts(taken.counts, **given)
    expected = plain(jd.measure(chars, np.arange(number), windows=(1,) * (number > 0)))
    chars.save(tmp_path / "a.parquet")
    monkeypatch.setattr(token_counts, "MOST_ROWS", 1)
    check_equal(plain(jd.measure(tmp_path, np.arange(number), windows=(1,) * (number > 0))), expected)


def dense(chars: Characteristics, indices: np.ndarray, targets: Targets, size: int) -> dict[str, Any]:
    """The measures of moving targets from dense excesses, position by position."""
    counts = chars.counts["topic"].toarray()[indices].astype(float)
    tokens = counts.sum(axis=1)
    phase = np.searchsorted(targets.starts, np.arange(len(indices)), side="right") - 1
    excess = counts - tokens[:, None] * targets.shares["topic"][phase]
    running = np.pad(np.cumsum(excess, axis=0), ((1, 0), (0, 0)))
    of_tokens = np.pad(np.cumsum(tokens), (1, 0))
    windows = running[size:] - running[:-size]
    distance = windows / np.maximum(of_tokens[size:] - of_tokens[:-size], 1)[:, None]
    tv = np.abs(distance).sum(axis=1) / 2
    return {
        "prefix": np.linalg.norm(running[1:], axis=1) / chars.sequence_length,
        "tv": tv[::size],
        "shifted": tv[size // 2 :: size],
        "l2": np.linalg.norm(distance, axis=1)[::size],
        "max": np.abs(distance).max(),
        "every": (tv.mean(), tv.max()),
    }


@pytest.mark.parametrize("size", [1, 7, 64, 230])
def test_moving_targets_against_a_dense_reference(size: int) -> None:
    chars, indices, targets = corpus(), orders()["order"], moving()
    expected = dense(chars, indices, targets, size)
    balance = jd.measure(chars, indices, (size,), targets=targets, every_start=True)
    np.testing.assert_allclose(balance.prefix_l2["topic"], expected["prefix"], atol=1e-9)
    for values, name in ((balance.window_tv, "tv"), (balance.window_tv_shifted, "shifted"), (balance.window_l2, "l2")):
        np.testing.assert_allclose(values["topic"][size], expected[name], atol=1e-12)
    assert balance.window_max["topic"][size] == pytest.approx(expected["max"])
    assert balance.window_tv_every_start["topic"][size] == pytest.approx(expected["every"])
    assert balance.window_tv_floor["topic"][size] <= balance.window_tv["topic"][size].mean()
    profile = jd.window_profile(chars, indices, targets=targets)["topic"]["0"]
    for place, level in enumerate(profile.sizes.tolist()):
        assert profile.mean[place] == pytest.approx(dense(chars, indices, targets, level)["tv"].mean())


@pytest.mark.usefixtures("unchecked")
def test_the_forms_of_targets() -> None:
    """A run of an ordering, what its info says, and one phase in each form."""
    chars, targets = corpus(), moving()
    ordering = jd.order(chars, targets={"half": [0.7, 0.3]})
    forms = [
        {"half": [0.7, 0.3]},
        {"half": [7, 3]},
        Targets((0,), {"half": np.array([[0.7, 0.3]])}),
        ordering.info["targets"],
    ]
    values = [jd.measure(chars, ordering, (64,), targets=form).window_tv["half"][64] for form in forms]
    for each in values:
        np.testing.assert_allclose(each, values[0], atol=1e-12)
    again = jd.order(chars, targets=jd.order(chars, targets=targets).info["targets"])
    assert again.info["targets"]["starts"] == list(targets.starts)
    compared = jd.compare(chars, {"mine": ordering}, (64,), targets=targets)
    expected = jd.measure(chars, ordering, (64,), targets=targets).window_tv["topic"][64].mean()
    assert compared.value("mine", "topic", "tv_mean", 64, "0") == pytest.approx(float(expected))
    for wrong, message in (
        ({"other": [1]}, "unknown families"),
        ({"half": [1]}, "2 groups of 'half'"),
        ({"half": [-1, 2]}, ">= 0"),
        (5, "mapping"),
        ({"starts": [1], "shares": {"half": [[1, 1]]}}, "ascend from 0"),
    ):
        with pytest.raises(UserError, match=message):
            jd.measure(chars, ordering, (64,), targets=wrong)  # type: ignore[arg-type]


def test_orders_by_file_and_bad_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chars = corpus()
    files, path = save(chars, tmp_path / "counts"), tmp_path / "order.npy"
    monkeypatch.setattr(token_counts, "MOST_ROWS", 99)
    np.save(path, orders()["order"])
    check_equal(plain(jd.measure(files, path, (64,))), plain(jd.measure(chars, orders()["order"], (64,))))
    for name, message in (("absent.npy", "no such file"), ("balance", "which only a dataset has")):
        with pytest.raises(UserError, match=message):
            jd.measure(files, name)
    for values, message in (
        (np.arange(NUM - 1), "made for another dataset"),
        (np.arange(NUM) * 1.0, "integers"),
        (np.arange(NUM) - 1, ">= 0"),
        (np.zeros(NUM, np.int64), "once"),
    ):
        np.save(path, values)
        with pytest.raises(UserError, match=message):
            jd.measure(files, path)
    for size in (0, NUM + 1):
        with pytest.raises(UserError, match="window size"):
            jd.measure(files, orders()["order"], (size,))


def test_a_full_disk_and_files_that_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = save(corpus(), tmp_path / "counts")
    monkeypatch.setattr(token_counts, "MOST_ROWS", 99)
    with monkeypatch.context() as patch:

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(spool.Spool, "append", full)
        with pytest.raises(UserError, match="free some space and repeat the call"):
            jd.measure(files, orders()["order"], (64,))
    append, last = spool.Spool.append, max(files.iterdir())

    def change(*arguments: Any) -> None:
        os.utime(last)
        append(*arguments)

    monkeypatch.setattr(spool.Spool, "append", change)
    with pytest.raises(UserError, match=r"part-1\.parquet to stay as it was when it was opened"):
        jd.measure(files, orders()["order"], (64,))


@pytest.mark.parametrize("rows", [99, 1 << 20])
def test_progress_within_a_block(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every position is told once, also in steps within a block; a usual corpus is one block."""
    monkeypatch.setattr(token_counts, "MOST_ROWS", rows)
    told: list[int] = []
    jd.measure(corpus(), orders()["order"], WINDOWS, told.append)
    assert sum(told) == NUM
    assert sum(amount > 0 for amount in told) >= len(WINDOWS)


def test_phases_after_the_last_position_change_nothing() -> None:
    chars, ordering = corpus(), orders()["order"]
    shares = moving().shares["topic"]
    expected = plain(jd.measure(chars, ordering, (7, 64), targets=Targets((0, 90), {"topic": shares[:2]})))
    longer = Targets((0, 90, NUM, NUM + 5), {"topic": shares})
    check_equal(plain(jd.measure(chars, ordering, (7, 64), targets=longer)), expected)
