"""Runs of one part: what they accept and refuse, and where their sequences come from."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema.orderings import Positions
from jax_diversity.streaming.run.run import as_run, times_before
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def tinies(tmp_path_factory: pytest.TempPathFactory) -> list[TinyDataset]:
    folder = tmp_path_factory.mktemp("tiny")
    return [write_tiny_dataset(folder / str(seed), seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def chars() -> jd.Characteristics:
    return jd.Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})


def test_a_dataset_with_an_ordering_is_a_run_of_one_part(tinies: list[TinyDataset], tmp_path: Path) -> None:
    tiny = tinies[0]
    order = tiny.orders["balance"]
    np.save(tmp_path / "order.npy", order)
    np.save(tmp_path / "narrow.npy", order.astype(np.int32))
    given: list[Any] = ["balance", None, order, jd.Ordering(order), order.tolist()]
    runs = [jd.make_run(tiny.root, each) for each in (*given, tmp_path / "order.npy", str(tmp_path / "narrow.npy"))]
    for run in runs:
        assert run.indices.tolist() == list(order)
        assert (len(run), run.num_sequences, run.is_bijection) == (len(order), len(order), True)
        assert run.fingerprint == runs[0].fingerprint
        assert run.identity == jd.open_dataset(tiny.root).fingerprint
        assert run.at(np.array([0, len(order), 2 * len(order) + 3])).tolist() == [order[0], order[0], order[3]]
        for other in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
            assert other.fingerprint == run.fingerprint
            assert other.indices.tolist() == list(order)
    assert repr(runs[0]).startswith(f"OrderedRun('balance', {len(order)} positions of 1 dataset, fingerprint ")
    assert runs[0].lengths == ((0, tiny.segments.sequence_length),)


@pytest.mark.parametrize("positions", [[-1], [3, -7, 2], [-(2**62)]])
def test_negative_positions_are_refused(tinies: list[TinyDataset], tmp_path: Path, positions: list[int]) -> None:
    stored = jd.create_schedule(tmp_path / "run", [tiny.root for tiny in tinies], num_positions=8)
    for run in (jd.make_run(tinies[0].root), stored):
        for read in (run.at, run.places):
            with pytest.raises(UserError, match=f"positions >= 0, found {min(positions)}"):
                read(np.array(positions))
            assert len(read(np.zeros(0, np.int64))) in (0, 2)


def test_positions_repeat_and_leave_out_sequences(tinies: list[TinyDataset]) -> None:
    mine = np.array([3, 1, 3, 0, 3])
    run = jd.make_run(tinies[0].root, positions=mine)
    mine[:] = 0
    assert run.indices.tolist() == [3, 1, 3, 0, 3]
    assert not run.is_bijection
    with pytest.raises(ValueError, match="read-only"):
        run.indices[0] = 0
    assert run.origins(np.arange(7)).epoch.tolist() == [0, 0, 1, 0, 2, 3, 1]
    batches = list(jd.make_loader(run, global_batch_size=2, num_epochs=2))
    expected = jd.open_dataset(tinies[0].root).records.read_sequences(np.array([3, 1, 3, 0, 3] * 2))
    np.testing.assert_array_equal(np.concatenate([batch["inputs"] for batch in batches]), expected["inputs"])


def test_several_datasets_are_numbered_end_to_end(tinies: list[TinyDataset]) -> None:
    sizes = [len(tiny.orders["balance"]) for tiny in tinies]
    order = np.random.default_rng(0).permutation(sum(sizes))
    run = jd.make_run([tiny.root for tiny in tinies], order)
    assert run.sizes == tuple(sizes)
    dataset, sequence, epoch = run.origins(np.arange(sum(sizes)))
    np.testing.assert_array_equal(run.offsets[dataset] + sequence, order)
    assert not epoch.any()
    assert run.identity != jd.make_run([tiny.root for tiny in tinies[::-1]], order).identity
    batch = next(iter(jd.make_loader(run, global_batch_size=8)))
    np.testing.assert_array_equal(batch["dataset_index"], dataset[:8])
    np.testing.assert_array_equal(batch["sequence_index"], sequence[:8])


def test_token_counts_of_ones_own_make_a_run(chars: jd.Characteristics) -> None:
    ordering = jd.order(chars, "greedy")
    assert jd.make_run(chars, ordering).indices.tolist() == ordering.indices.tolist()
    twice = jd.make_run(chars, positions=np.concatenate([ordering, ordering[::-1]]))
    assert twice.num_sequences == 4
    balance = jd.measure(chars, twice, windows=(2,))
    assert len(balance.prefix_l2["topic"]) == 8
    np.testing.assert_allclose(balance.window_tv["topic"][2], 0)
    metrics = jd.BatchMetrics(twice, global_batch_size=2)
    assert metrics.values(4)["batch_tv/topic"] == 0
    with pytest.raises(UserError, match="Expected an ordering of the 4 sequences, found the name 'balance'"):
        jd.make_run(chars)


@pytest.mark.usefixtures("unchecked")
def test_what_is_not_a_run(tinies: list[TinyDataset], chars: jd.Characteristics, tmp_path: Path) -> None:
    root, size = tinies[0].root, len(tinies[0].orders["balance"])
    calls: list[tuple[dict[str, Any], str]] = [
        ({"datasets": []}, "at least one dataset, found none"),
        ({"datasets": 3}, "Expected a dataset, its folder or address, or several of them, found 3"),
        ({"datasets": [root, 3]}, "Expected a dataset, or its folder or address, found 3"),
        ({"datasets": root, "ordering": "none"}, "Unknown ordering 'none'"),
        ({"datasets": root, "ordering": np.arange(3)}, f"of the dataset's {size} sequences, found 3"),
        ({"datasets": root, "ordering": [0, 0]}, "must have each once, found 0 2 times"),
        ({"datasets": root, "ordering": np.arange(3.0)}, "an ordering of whole numbers, found float64"),
        ({"datasets": root, "ordering": lambda epoch: epoch}, "Expected an ordering, found the function"),
        ({"datasets": [root, root], "ordering": "balance"}, "sequences of several datasets, found the name 'balance'"),
        ({"datasets": root, "ordering": "balance", "positions": [0]}, "an ordering or positions, found both"),
        ({"datasets": root, "positions": [0, size]}, f"positions >= 0 and below {size}, found {size}"),
        ({"datasets": root, "positions": [[0]]}, "positions to be one axis of integers"),
        ({"datasets": root, "cache_folder": 3}, "cache_folder to be a folder's path, found 3"),
        ({"datasets": root, "ordering": tmp_path / "none.npy"}, "found no such file"),
    ]
    for arguments, sentence in calls:
        with pytest.raises(UserError, match=sentence):
            jd.make_run(**arguments)
    run = jd.make_run(root)
    with pytest.raises(UserError, match="Expected no ordering, because a run has its own, found 'balance'"):
        as_run(run, "balance")
    with pytest.raises(UserError, match="Expected no cache_folder with a run"):
        jd.make_loader(run, global_batch_size=4, cache_folder=tmp_path)
    assert as_run(run) is run


def test_fingerprints_see_positions_and_number_but_not_info() -> None:
    indices = np.array([2, 0, 2, 3])
    prints = [
        Positions(indices, 5).fingerprint,
        Positions(indices, 6).fingerprint,
        Positions(indices[::-1], 5).fingerprint,
        Positions(indices[:3], 5).fingerprint,
        Positions(np.arange(3), 3).fingerprint,
        jd.Ordering(np.arange(3)).fingerprint,
    ]
    assert len(set(prints)) == 6
    assert Positions(indices, 5, {"method": "mine"}).fingerprint == prints[0]
    assert not pickle.loads(pickle.dumps(Positions(indices, 5))).indices.flags.writeable


def test_an_ordering_that_is_changed_while_it_is_followed_is_refused(tmp_path: Path) -> None:
    tiny = write_tiny_dataset(tmp_path / "out")
    path = tmp_path / "order.npy"
    np.save(path, tiny.orders["balance"][::-1])
    run = jd.make_run(tiny.root, path)
    np.save(path, np.array(tiny.orders["balance"]))
    with path.open("r+b") as file:
        file.seek(-8, 2)
        file.write(bytes(8))
    with pytest.raises(UserError, match="found"):
        pickle.loads(pickle.dumps(run))


def test_times_before() -> None:
    assert times_before(np.array([4, 7, 4, 4])).tolist() == [0, 0, 1, 2]
    assert times_before(np.zeros(0, np.int64)).tolist() == []
