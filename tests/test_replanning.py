"""A run whose plan changes on the way: what was trained on stays, the rest is planned anew, exactly once."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity import Characteristics, Ordering
from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.loader import Loader
from tests.synthetic import synthetic_characteristics
from tests.tiny_dataset import write_tiny_dataset

NUM_DOCUMENTS = 400


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out", num_documents=NUM_DOCUMENTS).root


@pytest.fixture(scope="module")
def old(root: Path) -> Ordering:
    return jd.open_dataset(root).orderings["balance"]


@pytest.fixture(scope="module")
def chars(old: Ordering) -> Characteristics:
    """One of two sources a sequence, half and half: what the plans ask for."""
    source = np.arange(len(old)) % 2
    return Characteristics.from_counts({"source": 16 * np.eye(2, dtype=int)[source]})


@pytest.fixture(scope="module")
def names(root: Path, old: Ordering) -> dict[bytes, int]:
    """Which sequence a row of tokens is; the dataset has no two alike."""
    batches = list(jd.make_loader(root, global_batch_size=1))
    names = {batch["inputs"].tobytes(): int(old.indices[place]) for place, batch in enumerate(batches)}
    assert len(names) == len(old)
    return names


def sequences(batches: list[np.ndarray], names: dict[bytes, int]) -> list[int]:
    return [names[row.tobytes()] for rows in batches for row in rows]


def loader_of(root: Path, ordering: object, batch_size: int = 8, **settings: object) -> Loader:
    return jd.make_loader(root, ordering=ordering, global_batch_size=batch_size, fields=("inputs",), **settings)


def whole_batches(root: Path, ordering: object, state: dict, num_hosts: int, batch_size: int = 8) -> list[np.ndarray]:
    """The rest of an epoch as several hosts read it, their rows put together."""
    hosts = []
    for host in range(num_hosts):
        settings = {"host_index": host, "num_hosts": num_hosts}
        iterator = iter(loader_of(root, ordering, batch_size, drop_remainder=False, **settings))
        iterator.set_state(state)
        hosts.append([batch["inputs"] for batch in iterator])
    whole = [np.concatenate(rows) for rows in zip(*hosts, strict=True)]
    last = [row for row in whole[-1] if row.any()] if whole else []
    return [*whole[:-1], np.array(last)] if whole else []


def take(iterator, number: int) -> list[np.ndarray]:
    return [next(iterator)["inputs"] for _ in range(number)]


def state_at(loader: Loader, position: int) -> dict:
    """What a checkpoint holds when the batches up to a position were trained on."""
    iterator = iter(loader)
    take(iterator, position // loader.batches.windows.settings.global_batch_size)
    assert iterator.position == position
    return iterator.get_state()


# The plan


@settings(max_examples=20)
@given(share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_the_past_stays_and_every_sequence_comes_once(share: float, seed: int) -> None:
    chars = synthetic_characteristics(100, num_clusters=8, num_bins=3)
    ordering = Ordering(np.random.default_rng(seed).permutation(chars.num_sequences))
    place = round(share * chars.num_sequences)
    replanned = jd.replan(chars, ordering, place, pool_size=64, targets={"cluster": np.ones(8)})
    np.testing.assert_array_equal(replanned.indices[:place], ordering.indices[:place])
    np.testing.assert_array_equal(np.sort(replanned.indices), np.arange(chars.num_sequences))
    rest = jd.order(chars, consumed=ordering.indices[:place], pool_size=64, targets={"cluster": np.ones(8)})
    np.testing.assert_array_equal(replanned.indices[place:], rest.indices)


def test_without_a_new_target_the_greedy_goes_on_as_it_would_have() -> None:
    chars = synthetic_characteristics(300, num_clusters=8, num_bins=3)
    ordering = jd.order(chars, "greedy")
    assert jd.replan(chars, ordering, 100, "greedy").fingerprint == ordering.fingerprint


def test_the_past_that_a_phased_target_did_not_want_is_made_up_for(chars: Characteristics) -> None:
    """All of one source first: phases count from position 0, plain shares from the position."""
    one_sided = Ordering(np.argsort(np.arange(chars.num_sequences) % 2, kind="stable"))
    place = chars.num_sequences // 5
    shares = {"source": [0.5, 0.5]}
    plain = jd.replan(chars, one_sided, place, "greedy", targets=shares)
    from_the_start = jd.Targets((0,), {"source": np.array([[0.5, 0.5]])})
    phased = jd.replan(chars, one_sided, place, "greedy", targets=from_the_start)
    assert (plain.indices[place : 2 * place] % 2).mean() == pytest.approx(0.5, abs=0.05)
    assert (phased.indices[place : 2 * place] % 2).mean() == 1


def test_a_plan_is_a_file_that_says_where_it_began(tmp_path: Path, chars: Characteristics, old: Ordering) -> None:
    first = jd.replan(chars, old, 40, targets={"source": [1, 3]})
    second = jd.replan(chars, first, np.int64(96), targets={"source": [3, 1]})
    second.save(tmp_path / "plan.npy")
    loaded = Ordering.load(tmp_path / "plan.npy")
    assert loaded.fingerprint == second.fingerprint
    assert (loaded.info["replanned_at"], loaded.info["of"]["replanned_at"]) == (96, 40)
    assert loaded.info["of"]["of"]["fingerprint"] == old.fingerprint


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"position": -1}, "position to be a whole number >= 0, found -1"),
        ({"position": 10**6}, "found 1000000; of a run over several epochs"),
        ({"ordering": Ordering(np.arange(5))}, "found one of 5; it was made for another dataset"),
        ({"method": "uniform_shuffle"}, "cannot follow targets or go on"),
        ({"targets": {"topic": [1, 1]}}, "unknown families"),
    ],
)
def test_what_is_no_plan(chars: Characteristics, old: Ordering, change: dict, sentence: str) -> None:
    arguments = {"ordering": old, "position": 8, "method": "greedy"} | change
    with pytest.raises(UserError, match=sentence):
        jd.replan(chars, arguments.pop("ordering"), arguments.pop("position"), **arguments)


# The run


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_exactly_once_over_the_change(root, old, chars, names, place, hosts) -> None:
    """At the start, in the middle and at the end; gone on with by another number of hosts, in other batches."""
    before = loader_of(root, old, drop_remainder=False)
    steps = {"start": 0, "middle": 9, "end": before.num_batches}[place]
    iterator = iter(before)
    seen = [rows[rows.any(axis=1)] for rows in take(iterator, steps)]
    state = iterator.get_state()
    new = jd.replan(chars, old, state["position"], targets={"source": [1, 3]})
    state = json.loads(json.dumps(jd.replanned_state(state, before, loader_of(root, new))))
    assert state["position"] == min(8 * steps, len(old))
    rest = whole_batches(root, new, state, hosts, batch_size=16)
    assert sequences([*seen, *rest], names) == new.indices.tolist()
    assert sorted(new.indices) == list(range(len(old)))


def test_windows_after_the_change_follow_the_new_target(root, old, chars, names) -> None:
    before = loader_of(root, old)
    after = loader_of(root, jd.replan(chars, old, 80, targets={"source": [1, 3]}))
    iterator = iter(after)
    iterator.set_state(jd.replanned_state(state_at(before, 80), before, after))
    shares = [np.mean(np.array(sequences([rows], names)) % 2) for rows in take(iterator, 20)]
    assert np.abs(np.array(shares) - 0.75).max() <= 1 / 8
    old_shares = [np.mean(old.indices[start : start + 8] % 2) for start in range(80, 240, 8)]
    assert np.abs(np.array(old_shares) - 0.75).max() > 1 / 8  # the old order would not have


def test_two_changes_and_a_restart_from_a_file(root, old, chars, names, tmp_path) -> None:
    """Each change made from the last checkpoint; the last part is read by another program, from the saved plan."""
    first = jd.replan(chars, old, 40, targets={"source": [1, 3]})
    before, middle = loader_of(root, old), loader_of(root, first)
    seen = take(iter(before), 5)
    iterator = iter(middle)
    iterator.set_state(jd.replanned_state(state_at(before, 40), before, middle))
    seen += take(iterator, 7)
    second = jd.replan(chars, first, 96, targets={"source": [3, 1]})
    second.save(tmp_path / "plan.npy")
    last = loader_of(root, tmp_path / "plan.npy")
    state = jd.replanned_state(iterator.get_state(), middle, last)
    rest = whole_batches(root, tmp_path / "plan.npy", state, num_hosts=2)
    assert sequences([*seen, *rest], names) == second.indices.tolist()
    for other in (before, middle):
        with pytest.raises(UserError, match="made with the ordering of fingerprint"):
            iter(other).set_state(state)


def test_in_a_later_epoch(root, old, chars, names) -> None:
    """The plan changes in the second of three epochs; the third has one of its own, made when it is reached."""
    size = len(old)
    position = (size + 20) // 8 * 8
    new = jd.replan(chars, old, position - size, targets={"source": [1, 3]})
    other = jd.order(chars, seed=1)
    before = loader_of(root, old, num_epochs=3)
    after = loader_of(root, lambda epoch: new if epoch == 1 else other, num_epochs=3)
    seen = take(iter(before), position // 8)
    iterator = iter(after)
    iterator.set_state(jd.replanned_state(state_at(before, position), before, after))
    found = sequences([*seen, *[batch["inputs"] for batch in iterator]], names)
    expected = [*old.indices, *new.indices, *other.indices]
    assert found == expected[: 3 * size // 8 * 8]


def test_a_finished_epoch_binds_nothing(root, old, chars) -> None:
    size = len(old)
    before = loader_of(root, old, batch_size=1)
    done = {**iter(before).get_state(), "position": size}
    any_order = Ordering(old.indices[::-1])
    after = loader_of(root, any_order, batch_size=1, num_epochs=2)
    iterator = iter(after)
    iterator.set_state(jd.replanned_state(done, before, after))
    assert iterator.position == size
    assert len(list(iterator)) == size


def test_global_arrays_go_on_alike(root, old, chars) -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    new = jd.replan(chars, old, 24, targets={"source": [1, 3]})
    before, after = loader_of(root, old), loader_of(root, new)
    state = jd.replanned_state(state_at(before, 24), before, after)
    placed, plain = iter(loader_of(root, new, sharding=sharding)), iter(after)
    for iterator in (placed, plain):
        iterator.set_state(state)
    for _ in range(3):
        np.testing.assert_array_equal(next(placed)["inputs"], next(plain)["inputs"])
    placed.close()


def test_from_a_stream_to_a_plan(tmp_path: Path, chars, old) -> None:
    """Records that lie in their order are streamed; from the change on they are read where the plan says."""
    tiny = write_tiny_dataset(tmp_path / "out", num_documents=NUM_DOCUMENTS, layout="ordered")
    stream = jd.stream_batches(tiny.root, global_batch_size=8, fields=("inputs",))
    new = jd.replan(chars, old, 24, targets={"source": [1, 3]})
    after = loader_of(tiny.root, new)
    iterator = iter(after)
    iterator.set_state(jd.replanned_state(state_at(stream, 24), stream, after))
    expected = jd.make_loader(tiny.root, ordering=new, global_batch_size=8, start_position=24, fields=("inputs",))
    np.testing.assert_array_equal(next(iterator)["inputs"], next(iter(expected))["inputs"])


# What is refused


def test_a_plan_that_forgets_what_was_trained_on(root, old, chars) -> None:
    """From the wrong position, from another ordering: named at the first position that disagrees."""
    before = loader_of(root, old)
    state = state_at(before, 48)
    early = jd.replan(chars, old, 32, targets={"source": [1, 3]})
    place = int(np.flatnonzero(early.indices != old.indices)[0])
    assert 32 <= place < 48
    sentence = f"instead of {old.indices[place]} at position {place}"
    with pytest.raises(UserError, match=sentence):
        jd.replanned_state(state, before, loader_of(root, early))
    other = jd.open_dataset(root).orderings["uniform_shuffle"]
    with pytest.raises(UserError, match="agrees with the old one on the positions before 48"):
        jd.replanned_state(state, before, loader_of(root, jd.replan(chars, other, 48)))
    swapped = old.indices.copy()
    swapped[[46, 47]] = swapped[[47, 46]]
    with pytest.raises(UserError, match="at position 46"):
        jd.replanned_state(state, before, loader_of(root, Ordering(swapped)))
    swapped = old.indices.copy()
    swapped[[48, 49]] = swapped[[49, 48]]
    assert jd.replanned_state(state, before, loader_of(root, Ordering(swapped)))["position"] == 48


def test_states_and_loaders_of_something_else(root, old, chars, tmp_path) -> None:
    before = loader_of(root, old)
    state = state_at(before, 16)
    new = loader_of(root, jd.replan(chars, old, 16, targets={"source": [1, 3]}))
    carried = jd.replanned_state(state, before, new)
    with pytest.raises(UserError, match="made with the ordering of fingerprint"):
        jd.replanned_state(carried, before, new)  # a state of the new plan already
    with pytest.raises(UserError, match="Expected the state of a loader"):
        jd.replanned_state({"position": 16}, before, new)
    short = loader_of(root, jd.Schedule(old.indices[:32], len(old)))
    with pytest.raises(UserError, match=f"of {len(old)} positions an epoch, as the old one has, found 32"):
        jd.replanned_state(state, before, short)
    other = write_tiny_dataset(tmp_path / "other", num_documents=NUM_DOCUMENTS, vocab_size=63)
    assert jd.open_dataset(other.root).num_sequences == len(old)
    with pytest.raises(UserError, match="made with the dataset of fingerprint"):
        jd.replanned_state(state, before, loader_of(other.root, old))
    endless = loader_of(root, old, num_epochs=2)
    late = {**iter(endless).get_state(), "position": len(old) + 8}
    with pytest.raises(UserError, match=f"Expected a position in 0 .. {len(old)}"):
        jd.replanned_state(late, endless, before)
