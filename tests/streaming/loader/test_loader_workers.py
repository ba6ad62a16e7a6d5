"""Worker processes, several datasets, names and types of fields."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.loader.workers import WorkerDied
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out")


def inputs(loader) -> list[list[list[int]]]:
    return [batch["inputs"].tolist() for batch in loader]


def wait_until_alone(seconds: float = 20) -> list:
    """Processes that are left after some time."""
    end = time.monotonic() + seconds
    while multiprocessing.active_children() and time.monotonic() < end:
        time.sleep(0.05)
    return multiprocessing.active_children()


@pytest.mark.campaign
def test_workers_give_the_batches_of_threads_and_their_states(tiny: TinyDataset) -> None:
    settings = {"global_batch_size": 6, "num_epochs": 2, "drop_remainder": False}
    expected = inputs(jd.make_loader(tiny.root, **settings))
    for num_workers in (1, 2):
        iterator = iter(jd.make_loader(tiny.root, num_workers=num_workers, num_prefetch=3, **settings))
        begun = [next(iterator)["inputs"].tolist() for _ in range(3)]
        state = json.loads(json.dumps(iterator.get_state()))
        assert begun + inputs(iterator) == expected
        iterator.close()
        threads = iter(jd.make_loader(tiny.root, num_threads=2, **settings))
        threads.set_state(state)
        assert begun + inputs(threads) == expected
    assert not wait_until_alone()


@pytest.mark.campaign
def test_a_killed_worker_is_an_error_and_work_continues_after_it(tiny: TinyDataset) -> None:
    settings = {"global_batch_size": 4, "num_epochs": 5000}  # hours of batches: it ends by the error
    iterator = iter(jd.make_loader(tiny.root, num_workers=2, **settings))
    next(iterator)
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="continue from the last checkpoint"):
        list(iterator)
    state = iterator.get_state()
    threads = iter(jd.make_loader(tiny.root, **settings))
    threads.set_state(state)
    np.testing.assert_array_equal(next(iterator)["inputs"], next(threads)["inputs"])
    iterator.close()
    assert not wait_until_alone()


@pytest.mark.campaign
@pytest.mark.parametrize("seconds", [0, 0.5])
def test_a_worker_killed_while_nobody_waits_loses_no_batch(tiny: TinyDataset, seconds: float) -> None:
    # The pool may notice before the next batch is submitted, while one that is done still waits to be taken.
    settings = {"global_batch_size": 4, "num_epochs": 3}
    expected = inputs(jd.make_loader(tiny.root, **settings))
    iterator = iter(jd.make_loader(tiny.root, num_workers=1, num_prefetch=4, **settings))
    seen = [next(iterator)["inputs"].tolist()]
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    time.sleep(seconds)
    num_errors = 0
    while len(seen) < len(expected) and num_errors < 3:
        try:
            seen.append(next(iterator)["inputs"].tolist())
        except WorkerDied:
            num_errors += 1
    assert seen == expected
    assert num_errors == 1
    iterator.close()
    assert not wait_until_alone()


@pytest.mark.campaign
def test_the_only_worker_killed_at_its_first_batch_is_an_error(tiny: TinyDataset) -> None:
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=4, num_workers=1, num_prefetch=1))
    iterator.start_prefetch()
    while not multiprocessing.active_children():
        time.sleep(0.01)
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        next(iterator)
    iterator.close()
    assert not wait_until_alone()


@pytest.mark.campaign
def test_a_loader_dropped_in_the_middle_leaves_nothing_behind(tiny: TinyDataset) -> None:
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=4, num_epochs=None, num_workers=2))
    next(iterator)
    assert len(multiprocessing.active_children()) == 2
    del iterator
    gc.collect()
    assert not wait_until_alone()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[TinyDataset]:
    folder = tmp_path_factory.mktemp("many")
    return [
        write_tiny_dataset(folder / str(index), seed=index + 1, layout=("packed", "ordered")[index % 2])
        for index in range(3)
    ]


def test_a_run_of_datasets_tells_where_every_row_comes_from(many: list[TinyDataset], tmp_path: Path) -> None:
    roots = [tiny.root for tiny in many]
    run = jd.create_schedule(tmp_path / "run", roots, weights=[5, 3, 1], num_positions=60)
    loader = jd.make_loader(run, global_batch_size=8, drop_remainder=False)
    alone = [np.concatenate([batch["inputs"] for batch in jd.make_loader(root, global_batch_size=1)]) for root in roots]
    place = [np.argsort(tiny.orders["balance"]) for tiny in many]
    batches = list(loader)
    datasets = np.concatenate([batch["dataset_index"] for batch in batches])
    sequences = np.concatenate([batch["sequence_index"] for batch in batches])
    rows = np.concatenate([batch["inputs"] for batch in batches])
    expected = run.places(np.arange(60))
    np.testing.assert_array_equal(datasets[:60], expected[0])
    np.testing.assert_array_equal(sequences[:60], expected[1])
    assert datasets[60:].tolist() == sequences[60:].tolist() == [-1] * 4
    for dataset, sequence, row in zip(datasets[:60], sequences[:60], rows, strict=False):
        np.testing.assert_array_equal(row, alone[dataset][place[dataset][sequence]])
    # The state is one position of the run; another batch size goes on from it.
    iterator = iter(loader)
    next(iterator), next(iterator)
    other = iter(jd.make_loader(run, global_batch_size=4))
    other.set_state(iterator.get_state())
    np.testing.assert_array_equal(next(other)["inputs"], rows[16:20])


def test_more_than_256_datasets(many: list[TinyDataset]) -> None:
    datasets = [jd.open_dataset(many[index % 3].root) for index in range(300)]
    first = np.cumsum([0, *(dataset.num_sequences for dataset in datasets)])[:-1]
    run = jd.make_run(datasets, positions=np.tile(first, 2))
    batch = next(iter(jd.make_loader(run, global_batch_size=600, fields=("inputs",))))
    assert sorted(batch["dataset_index"].tolist()) == sorted([*range(300)] * 2)


def test_datasets_that_do_not_fit_are_refused(many: list[TinyDataset], tmp_path: Path) -> None:
    roots = [tiny.root for tiny in many]
    with pytest.raises(UserError, match="found the name 'balance'"):
        jd.make_loader(roots, global_batch_size=4)
    with pytest.raises(UserError, match="at least one dataset"):
        jd.make_loader([], global_batch_size=4)
    longer = write_tiny_dataset(tmp_path / "longer", sequence_length=24)
    with pytest.raises(UserError, match="sequences of one length"):
        jd.make_loader([roots[0], longer.root], ordering=np.arange(3), global_batch_size=2)


def test_names_and_types_are_a_setting(tiny: TinyDataset) -> None:
    plain = next(iter(jd.make_loader(tiny.root, global_batch_size=4)))
    named = next(iter(jd.make_loader(tiny.root, global_batch_size=4, names={"inputs": "tokens"}, dtype="int64")))
    assert set(named) == set(plain) - {"inputs"} | {"tokens"}
    assert {rows.dtype for rows in named.values()} == {np.dtype(np.int64)}
    np.testing.assert_array_equal(named["tokens"], plain["inputs"])
    merged = next(iter(jd.make_loader(tiny.root, global_batch_size=4, merge_segments=True)))
    np.testing.assert_array_equal(merged["inputs_segmentation"], plain["inputs_segmentation"] > 0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"names": {"tokens": "inputs"}}, "names of fields"),
        ({"names": {"inputs": "targets"}}, "different names for different fields"),
        ({"dtype": "uint8"}, "found 'uint8'"),
        ({"num_workers": -1}, "num_workers to be a whole number >= 0"),
        ({"num_workers": 1, "num_prefetch": 0}, "num_prefetch >= 1 with num_workers"),
    ],
)
def test_settings_that_cannot_be(tiny: TinyDataset, settings: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        jd.make_loader(tiny.root, global_batch_size=4, **settings)


def test_a_warning_of_grain_that_nobody_can_follow_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    program = (
        "import jax_diversity as jd, absl.logging; jd.make_loader; "
        "absl.logging.warning('Grain multiprocess worker profiling requires jaxlib extension version 448'); "
        "absl.logging.warning('another warning')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    shown = capfd.readouterr().err
    assert "another warning" in shown
    assert "worker profiling" not in shown
