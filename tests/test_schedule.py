"""Schedules: what they accept, that their files are whole, their own and unchanged."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity import Ordering, Schedule

pytestmark = pytest.mark.core


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As for a user, whose calls nothing checks before the code does."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def schedule() -> Schedule:
    return Schedule(np.array([2, 0, 2, 3]), 5, {"method": "mine", "windows": (np.int64(3),)})


@given(st.lists(st.integers(0, 6), max_size=12))
def test_counts_and_bijections(indices: list[int]) -> None:
    plan = Schedule(np.array(indices, np.int64), 7)
    assert plan.counts.tolist() == [indices.count(sequence) for sequence in range(7)]
    assert plan.counts.dtype == np.int64
    assert len(plan) == len(indices)
    assert plan.is_bijection == (sorted(indices) == list(range(7)))


def test_a_schedule_is_read_only_and_the_users_array_stays_theirs() -> None:
    mine = np.array([1, 1, 0])
    plan = Schedule(mine, 2, {"method": "mine"})
    mine[:] = 0
    assert plan.indices.tolist() == [1, 1, 0]
    with pytest.raises(ValueError, match="read-only"):
        plan.indices[0] = 0
    with pytest.raises(TypeError):
        plan.info["method"] = "theirs"  # pyright: ignore[reportIndexIssue]
    with pytest.raises(AttributeError):
        plan.num_sequences = 9  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "copied",
    [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy, copy.copy],
    ids=("pickle", "deepcopy", "copy"),
)
def test_schedules_go_to_other_processes(copied) -> None:
    other = copied(schedule())
    assert (other.fingerprint, other.num_sequences) == (schedule().fingerprint, 5)
    assert dict(other.info) == dict(schedule().info)
    assert not other.indices.flags.writeable


def test_what_a_schedule_says_of_itself() -> None:
    assert repr(schedule()) == (
        f"Schedule(4 positions over 5 sequences, mine, fingerprint {schedule().fingerprint[:16]})"
    )
    assert repr(Ordering(np.arange(2))) == (
        f"Ordering(2 sequences, unknown method, fingerprint {Ordering(np.arange(2)).fingerprint[:16]})"
    )
    assert Ordering(np.arange(2)).num_sequences == 2


def test_fingerprints_see_indices_and_size_but_not_info() -> None:
    prints = {
        schedule().fingerprint,
        Schedule(schedule().indices, 6).fingerprint,
        Schedule(schedule().indices[::-1], 5).fingerprint,
        Schedule(schedule().indices[:3], 5).fingerprint,
        Ordering(np.arange(3)).fingerprint,
        Schedule(np.arange(3), 3).fingerprint,
    }
    assert len(prints) == 6
    assert Schedule(schedule().indices, 5).fingerprint == schedule().fingerprint


def test_to_ordering() -> None:
    ordering = Schedule(np.array([2, 0, 1]), 3, {"method": "mine"}).to_ordering()
    assert isinstance(ordering, Ordering)
    assert (ordering.indices.tolist(), ordering.info["method"]) == ([2, 0, 1], "mine")
    with pytest.raises(ValueError, match=r"each of the 5 sequences once .* found sequence 1 0 times"):
        schedule().to_ordering()
    with pytest.raises(ValueError, match="found sequence 1 2 times"):
        Schedule(np.array([0, 1, 1]), 2).to_ordering()
    assert len(Schedule(np.zeros(0, np.int64), 0).to_ordering()) == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("indices", "num_sequences", "sentence"),
    [
        (np.array([0, 5]), 5, "indices >= 0 and below 5, found 5"),
        (np.array([0, -1]), 5, "found -1"),
        (np.array([2**64 - 1], np.uint64), 5, "found 18446744073709551615"),
        (np.array([0.0]), 5, "one axis of integers, found float64"),
        (np.zeros((2, 2), int), 5, r"found int64 of shape \(2, 2\)"),
        (np.array([0]), 0, "found 0"),
        (np.array([0]), -1, "num_sequences to be a whole number >= 0, found -1"),
        (np.array([0]), 2.0, r"num_sequences to be a whole number >= 0, found 2\.0"),
        (np.array([0]), None, "num_sequences to be a whole number >= 0, found None"),
        (["a"], 5, "one axis of integers"),
        (None, 5, "one axis of integers"),
    ],
)
def test_what_is_no_schedule(indices: Any, num_sequences: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Schedule(indices, num_sequences)


@pytest.mark.usefixtures("unchecked")
def test_any_whole_numbers_will_do() -> None:
    values: list[Any] = [[1, 0, 1], np.array([1, 0, 1], np.uint8)]
    sizes: list[Any] = [np.int32(2), 2]
    for indices, size in zip(values, sizes, strict=True):
        plan = Schedule(indices, size)
        assert (plan.indices.dtype, type(plan.num_sequences)) == (np.int64, int)


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "plan.npy"
    schedule().save(path)
    loaded = Schedule.load(path)
    np.testing.assert_array_equal(np.load(path), schedule().indices)
    assert (loaded.fingerprint, loaded.num_sequences) == (schedule().fingerprint, 5)
    assert dict(loaded.info) == {"method": "mine", "windows": [3]}
    assert Schedule.load(path, num_sequences=5).fingerprint == loaded.fingerprint
    assert sorted(file.name for file in tmp_path.iterdir()) == ["plan.json", "plan.npy"]
    again = tmp_path / "again.npy"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()
    assert again.with_suffix(".json").read_bytes() == path.with_suffix(".json").read_bytes()


def test_info_cannot_pass_for_what_the_file_says(tmp_path: Path) -> None:
    own = {"fingerprint": "mine", "num_sequences": 7, "num_positions": 9}
    Schedule(np.array([0, 0]), 2, own).save(tmp_path / "plan.npy")
    assert dict(Schedule.load(tmp_path / "plan.npy").info) == {}
    Ordering(np.array([1, 0]), own).save(tmp_path / "order.npy")
    assert dict(Ordering.load(tmp_path / "order.npy").info) == {}


def test_a_bare_array_needs_its_size(tmp_path: Path) -> None:
    np.save(tmp_path / "bare.npy", np.array([0, 3, 3], np.int32))
    with pytest.raises(ValueError, match=r"bare\.npy: no \.json beside it .* pass num_sequences"):
        Schedule.load(tmp_path / "bare.npy")
    assert Schedule.load(tmp_path / "bare.npy", 4).counts.tolist() == [1, 0, 0, 2]
    with pytest.raises(ValueError, match="indices >= 0 and below 3, found 3"):
        Schedule.load(tmp_path / "bare.npy", 3)


def test_orderings_and_schedules_are_not_taken_for_one_another(tmp_path: Path) -> None:
    Ordering(np.arange(3)).save(tmp_path / "order.npy")
    Schedule(np.arange(3), 3).save(tmp_path / "plan.npy")
    with pytest.raises(ValueError, match=r"Expected a schedule .* holds an ordering; use Ordering\.load"):
        Schedule.load(tmp_path / "order.npy")
    with pytest.raises(ValueError, match=r"Expected an ordering .* holds a schedule.* use Schedule\.load"):
        Ordering.load(tmp_path / "plan.npy")


def test_files_that_hold_no_schedule(tmp_path: Path) -> None:
    path = tmp_path / "plan.npy"
    with pytest.raises(ValueError, match=r"Expected a schedule at .*plan\.npy, found no such file"):
        Schedule.load(path)
    schedule().save(path)
    whole = path.read_bytes()
    for broken in (b"", b"not an array", whole[:20], whole[:-1], whole[:-8], b"\x93NUMPY\x09\x00" + whole[8:]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"Expected a schedule \(\.npy\) at .*plan\.npy"):
            Schedule.load(path)
    with pytest.raises(ValueError, match=r"A schedule's file name must end in \.npy, found 'plan\.txt'"):
        schedule().save(tmp_path / "plan.txt")


def test_every_flipped_byte_of_the_array_is_found(tmp_path: Path) -> None:
    path = tmp_path / "plan.npy"
    schedule().save(path)
    whole = path.read_bytes()
    start = len(whole) - schedule().indices.nbytes
    for place in range(start, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"changed after it was saved|>= 0 and below|>= 0, found"):
            Schedule.load(path)


def test_a_schedule_of_another_dataset_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.npy"
    schedule().save(path)
    with pytest.raises(ValueError, match=r"over 9 sequences at .*plan\.npy, found one over 5"):
        Schedule.load(path, num_sequences=9)
    about = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**about, "num_sequences": 9}))
    with pytest.raises(ValueError, match="changed after it was saved"):
        Schedule.load(path)
    for bad in ("many", 1.5, -1, [5]):
        path.with_suffix(".json").write_text(json.dumps({**about, "num_sequences": bad}))
        with pytest.raises(ValueError, match="num_sequences to be a whole number >= 0"):
            Schedule.load(path)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b'{"other": "program"}', b'{"fingerprint": 3}'])
def test_a_json_that_is_not_the_schedules(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "plan.npy"
    schedule().save(path)
    path.with_suffix(".json").write_bytes(content)
    with pytest.raises(ValueError, match=r"plan\.json to describe its schedule, found no"):
        Schedule.load(path)


def test_a_save_that_fails_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.npy"
    schedule().save(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="A schedule's info must be what JSON can hold"):
        Schedule(np.array([0]), 1, {"made": object()}).save(path)

    def fail(file, values) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        Schedule(np.array([0]), 1).save(path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_public_names() -> None:
    assert jd.Schedule is Schedule
    assert jd.Blend.__module__ == "jax_diversity.ordering.composition.blending"
