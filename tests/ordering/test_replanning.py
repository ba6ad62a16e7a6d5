"""A run whose plan changes on the way: what was trained on stays, the rest is planned anew, exactly once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity import Characteristics, Ordering
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.loader.loader import Loader
from tests.support.synthetic import synthetic_characteristics
from tests.support.tiny_dataset import write_tiny_dataset

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


def loader_of(run: jd.Run, batch_size: int = 8, **settings: object) -> Loader:
    return jd.make_loader(run, global_batch_size=batch_size, fields=("inputs",), **settings)


def whole_batches(run: jd.Run, state: dict, num_hosts: int, batch_size: int = 8) -> list[np.ndarray]:
    """The rest of a run as several hosts read it, their rows put together."""
    hosts = []
    for host in range(num_hosts):
        settings = {"host_index": host, "num_hosts": num_hosts}
        iterator = iter(loader_of(run, batch_size, drop_remainder=False, **settings))
        iterator.set_state(state)
        hosts.append([batch["inputs"] for batch in iterator])
    whole = [np.concatenate(rows) for rows in zip(*hosts, strict=True)]
    last = [row for row in whole[-1] if row.any()] if whole else []
    return [*whole[:-1], np.array(last)] if whole else []


def take(iterator, number: int) -> list[np.ndarray]:
    return [next(iterator)["inputs"] for _ in range(number)]


# The plan


# A few shares: every number of consumed sequences is compiled.
@settings(max_examples=12)
@given(share=st.sampled_from([0, 0.01, 0.37, 1]), seed=st.integers(0, 2**32))
def test_the_past_stays_and_every_sequence_comes_once(share: float, seed: int) -> None:
    chars = synthetic_characteristics(100, num_clusters=8, num_bins=3)
    consumed = np.random.default_rng(seed).permutation(chars.num_sequences)[: round(share * chars.num_sequences)]
    replanned = jd.order(chars, consumed=consumed, pool_size=64, targets={"cluster": np.ones(8)})
    np.testing.assert_array_equal(replanned.indices[: len(consumed)], consumed)
    np.testing.assert_array_equal(np.sort(replanned.indices), np.arange(chars.num_sequences))
    assert replanned.info["replanned_at"] == len(consumed)


def test_without_a_new_target_the_greedy_goes_on_as_it_would_have() -> None:
    chars = synthetic_characteristics(300, num_clusters=8, num_bins=3)
    ordering = jd.order(chars, "greedy")
    assert jd.order(chars, "greedy", consumed=ordering[:100]).fingerprint == ordering.fingerprint


def test_the_past_that_a_phased_target_did_not_want_is_made_up_for(chars: Characteristics) -> None:
    """All of one source first: phases count from position 0, plain shares from the position."""
    one_sided = Ordering(np.argsort(np.arange(chars.num_sequences) % 2, kind="stable"))
    place = chars.num_sequences // 5
    shares = {"source": [0.5, 0.5]}
    plain = jd.order(chars, "greedy", consumed=one_sided[:place], targets=shares)
    from_the_start = jd.Targets((0,), {"source": np.array([[0.5, 0.5]])})
    phased = jd.order(chars, "greedy", consumed=one_sided[:place], targets=from_the_start)
    assert (plain.indices[place : 2 * place] % 2).mean() == pytest.approx(0.5, abs=0.05)
    assert (phased.indices[place : 2 * place] % 2).mean() == 1


def test_an_ordering_says_from_where_on_it_was_planned_anew(tmp_path: Path, chars: Characteristics) -> None:
    first = jd.order(chars, consumed=jd.order(chars)[:40], targets={"source": [1, 3]})
    second = jd.order(chars, consumed=first[:96], targets={"source": [3, 1]})
    second.save(tmp_path / "plan.npy")
    loaded = Ordering.load(tmp_path / "plan.npy")
    assert loaded.fingerprint == second.fingerprint
    assert loaded.info["replanned_at"] == 96


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"consumed": [10**6]}, "consumed sequences >= 0 and below"),
        ({"consumed": [3, 4, 3]}, "each consumed sequence once, found 3 2 times"),
        ({"method": "uniform_shuffle"}, "cannot follow targets or continue"),
        ({"targets": {"topic": [1, 1]}}, "unknown families"),
    ],
)
def test_what_cannot_be_planned_anew(chars: Characteristics, change: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        jd.order(chars, **{"consumed": [1, 2], "method": "greedy"} | change)


# The run: a schedule that begins with the ordering, and goes on otherwise


def changed(run: jd.Run, position: int, **change: object) -> jd.Run:
    return jd.extend_schedule(run, position=position, **change)


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_exactly_once_over_the_change(root, old, names, place, hosts, tmp_path) -> None:
    """At the start, in the middle and at the end; gone on with by another number of hosts, in other batches."""
    run = jd.create_schedule(tmp_path / "run", root, ordering="balance")
    before = loader_of(run, drop_remainder=False)
    steps = {"start": 0, "middle": 9, "end": before.num_batches}[place]
    iterator = iter(before)
    seen = [rows[rows.any(axis=1)] for rows in take(iterator, steps)]
    state = json.loads(json.dumps(iterator.get_state()))
    assert state["position"] == min(8 * steps, len(old))
    assert sequences(seen, names) == old.indices[: state["position"]].tolist()
    new = run if place == "end" else changed(run, state["position"], targets={"cluster": [3, 1, 1, 1, 1]})
    rest = whole_batches(new, state, hosts, batch_size=16)
    assert sorted(sequences([*seen, *rest], names)) == list(range(len(old)))


def test_windows_after_the_change_follow_the_new_target(root, tmp_path) -> None:
    dataset = jd.open_dataset(root)
    counts = dataset.characteristics.counts["cluster"].toarray()
    target = np.array([3.0, 1, 1, 1, 1]) / 7
    run = jd.create_schedule(tmp_path / "run", dataset)
    after = changed(run, 80, targets={"cluster": target})

    def distances(schedule: jd.Run) -> np.ndarray:
        windows = schedule.at(np.arange(80, 240)).reshape(10, 16)
        tokens = counts[windows].sum(axis=1)
        return np.abs(tokens / tokens.sum(axis=1, keepdims=True) - target).sum(axis=1) / 2

    assert distances(after).max() < 0.12 < distances(run).min()


def test_a_run_that_began_without_a_schedule_goes_on_in_one(root, old, names, tmp_path) -> None:
    iterator = iter(jd.make_loader(root, global_batch_size=8, fields=("inputs",)))
    seen, position = take(iterator, 5), iterator.position
    run = changed(jd.create_schedule(tmp_path / "run", root, ordering=old), position, method="greedy", seed=7)
    rest = [batch["inputs"] for batch in loader_of(run, start_position=position, drop_remainder=False)]
    rest[-1] = rest[-1][rest[-1].any(axis=1)]
    assert sorted(sequences([*seen, *rest], names)) == list(range(len(old)))


def test_from_a_stream_to_a_schedule(tmp_path: Path) -> None:
    """Records that lie in their order are streamed; from the change on they are read where the schedule says."""
    tiny = write_tiny_dataset(tmp_path / "out", num_documents=NUM_DOCUMENTS, layout="ordered")
    stream = iter(jd.stream_batches(tiny.root, global_batch_size=8, fields=("inputs",)))
    take(stream, 3)
    run = changed(jd.create_schedule(tmp_path / "run", tiny.root, ordering="balance"), stream.position, seed=3)
    found = next(iter(loader_of(run, start_position=stream.position)))
    again = jd.make_run(tiny.root, positions=run.indices)
    expected = jd.make_loader(again, global_batch_size=8, start_position=24, fields=("inputs",))
    np.testing.assert_array_equal(found["inputs"], next(iter(expected))["inputs"])


def test_first_orders_that_do_not_fit(root, old, tmp_path) -> None:
    with pytest.raises(UserError, match="ordering only in a run of one dataset that is not joint, found 2 datasets"):
        jd.create_schedule(tmp_path / "run", [root, root], ordering="balance")
    with pytest.raises(UserError, match="Unknown ordering 'none'"):
        jd.create_schedule(tmp_path / "run", root, ordering="none")
    with pytest.raises(UserError, match=f"of {len(old)} sequences, found one of 3"):
        jd.create_schedule(tmp_path / "run", root, ordering=Ordering(np.arange(3)))
