"""Iterators of a loader in threads, copies and forks; Grain's questions to them; batches larger than an epoch."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import grain
import jax
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.export.pytorch import OrderedBatchSampler
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out")


def numbers(batch: Any) -> list[Any]:
    return batch["inputs"].tolist()


@pytest.mark.parametrize("num_prefetch", [0, 2])
def test_threads_that_share_an_iterator_get_each_batch_once(tiny: TinyDataset, num_prefetch: int) -> None:
    loader = jd.make_loader(tiny.root, global_batch_size=1, num_epochs=8, num_prefetch=num_prefetch)
    expected = sorted(map(numbers, loader))
    iterator, start = iter(loader), threading.Barrier(4)

    def read() -> list[Any]:
        start.wait()
        return [numbers(batch) for batch in iterator]

    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read) for _ in range(4)]
        came = [batch for reader in readers for batch in reader.result()]
    assert sorted(came) == expected
    assert iterator.get_state()["position"] == 8 * tiny.segments.num_sequences


def test_watched_batches_are_shared_too(tiny: TinyDataset) -> None:
    loader = jd.make_loader(tiny.root, global_batch_size=2, num_epochs=4)
    steps: list[int] = []
    watched = jd.watch_batches(loader, lambda step, values: steps.append(step))
    with ThreadPoolExecutor(4) as threads:
        for reader in [threads.submit(list, watched) for _ in range(4)]:
            reader.result()
    assert steps == list(range(loader.num_batches or 0))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_iterator_is_not_copied(tiny: TinyDataset, duplicate: Callable[[Any], Any]) -> None:
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=4))
    expected = [numbers(batch) for batch in jd.make_loader(tiny.root, global_batch_size=4)]
    with pytest.raises(
        UserError,
        match=r"original would give the same batches; make another iterator with iter\(loader\)",
    ):
        duplicate(iterator)
    assert [numbers(batch) for batch in iterator] == expected


@pytest.mark.parametrize("num_prefetch", [0, 2])
def test_an_iterator_in_a_forked_process_is_a_sentence(tiny: TinyDataset, num_prefetch: int) -> None:
    loader = jd.make_loader(tiny.root, global_batch_size=4, num_prefetch=num_prefetch)
    iterator = iter(loader)
    next(iterator)
    said, say = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this process has threads
        child = os.fork()
    if not child:
        try:
            next(iterator)
        except UserError as error:
            os.write(say, str(error).encode())
        os._exit(0)
    os.close(say)
    os.waitpid(child, 0)
    with open(said, encoding="utf-8") as file:
        assert f"in the process that made it ({os.getpid()})" in file.read()
    assert numbers(next(iterator)) == numbers(list(loader)[1])


def test_closing_in_another_thread_ends_who_waits(tiny: TinyDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    started, go_on = threading.Event(), threading.Event()
    loader = jd.make_loader(tiny.root, global_batch_size=4)
    at = loader.run.at

    def slow_at(positions: np.ndarray) -> np.ndarray:
        if positions[0] >= 16:
            started.set()
            go_on.wait(30)
        return at(positions)

    monkeypatch.setattr(loader.run, "at", slow_at)
    iterator = iter(loader)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(list, iterator)
        started.wait(30)
        iterator.close()
        go_on.set()
        with pytest.raises(ValueError, match="closed iterator"):
            waiting.result()


@pytest.mark.parametrize("start_position", [0, 5])
@pytest.mark.parametrize("drop_remainder", [True, False])
def test_grain_asks_for_the_next_batch_s_number_and_sets_it(
    tiny: TinyDataset, start_position: int, drop_remainder: bool
) -> None:
    loader = jd.make_loader(
        tiny.root, global_batch_size=8, start_position=start_position, drop_remainder=drop_remainder
    )
    expected = [numbers(batch) for batch in loader]
    iterator = iter(loader)
    for index in [*range(len(expected)), 2, 0, len(expected)]:
        grain.experimental.set_next_index(iterator, index)
        assert grain.experimental.get_next_index(iterator) == index
        assert [numbers(batch) for batch in iterator] == expected[index:]
        assert grain.experimental.get_next_index(iterator) == len(expected)
    for wrong in (-1, len(expected) + 1):
        with pytest.raises(UserError, match="Expected the next index to be a whole number"):
            grain.experimental.set_next_index(iterator, wrong)
    # As Grain counts batches of another size: those that were begun count as done.
    other = iter(jd.make_loader(tiny.root, global_batch_size=6))
    next(other)
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=4))
    iterator.set_state(other.get_state())
    assert grain.experimental.get_next_index(iterator) == 2
    watched = jd.watch_batches(loader, lambda step, values: None)
    grain.experimental.set_next_index(watched, 2)
    assert numbers(next(watched)) == expected[2]
    assert grain.experimental.get_next_index(watched) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_hosts": 2, "drop_remainder": False},
        {"fields": ("inputs",), "names": {"inputs": "tokens"}, "dtype": "int64"},
        {"sharding": True},
    ],
)
@pytest.mark.parametrize("num_datasets", [1, 2])
def test_grain_is_told_what_batches_look_like(tiny: TinyDataset, settings: dict[str, Any], num_datasets: int) -> None:
    if settings.get("sharding"):
        settings = {"sharding": jax.sharding.SingleDeviceSharding(jax.devices()[0])}
    datasets: Any = tiny.root if num_datasets == 1 else [tiny.root] * num_datasets
    ordering: Any = np.arange(num_datasets * tiny.segments.num_sequences)
    loader = jd.make_loader(datasets, ordering=ordering, global_batch_size=4, **settings)
    spec = grain.experimental.get_element_spec(loader)
    for batch in loader:
        assert {field: (each.shape, each.dtype) for field, each in spec.items()} == {
            field: (rows.shape, rows.dtype) for field, rows in batch.items()
        }
        if "sharding" in settings:
            assert all(spec[field].sharding == rows.sharding for field, rows in batch.items())


@pytest.mark.parametrize("num_hosts", [1, 2])
@pytest.mark.parametrize(("num_epochs", "drop_remainder"), [(1, False), (5, True), (5, False), (None, True)])
def test_a_batch_may_hold_more_than_an_epoch(
    tiny: TinyDataset, num_hosts: int, num_epochs: int | None, drop_remainder: bool
) -> None:
    size, number = 2 * tiny.segments.num_sequences + 2, tiny.segments.num_sequences
    size += size % 2
    order = tiny.orders["balance"]
    one = rows_of(tiny)
    hosts = [
        jd.make_loader(
            tiny.root,
            global_batch_size=size,
            num_epochs=num_epochs,
            drop_remainder=drop_remainder,
            num_hosts=num_hosts,
            host_index=host,
        )
        for host in range(num_hosts)
    ]
    end = 3 * size if num_epochs is None else num_epochs * number
    steps = list(islice(zip(*hosts, strict=num_epochs is not None), 3 if num_epochs is None else None))
    assert len(steps) == (end // size if drop_remainder else -(-end // size))
    for step, parts in enumerate(steps):
        came = [row for part in parts for row in part["inputs"].tolist()]
        positions = range(step * size, min((step + 1) * size, end))
        expected = [one[order[position % number]] for position in positions]
        assert came == expected + [[0] * len(came[0])] * (size - len(expected))
    if num_epochs is not None and num_hosts == 1:
        sampler = OrderedBatchSampler(tiny.root, "balance", size, num_epochs=num_epochs, drop_last=drop_remainder)
        batches = [[one[sequence] for sequence in batch] for batch in sampler]
        assert batches == [
            [one[order[position % number]] for position in range(start, min(start + size, end))]
            for start in range(0, end, size)
            if not drop_remainder or start + size <= end
        ]


def test_a_streamed_batch_may_hold_more_than_an_epoch(tiny: TinyDataset) -> None:
    rows, size = rows_of(tiny), tiny.segments.num_sequences + 5
    came = [batch["inputs"].tolist() for batch in jd.stream_batches(tiny.root, global_batch_size=size, num_epochs=3)]
    assert came == [(3 * rows)[:size], (3 * rows)[size : 2 * size]]


def rows_of(tiny: TinyDataset) -> list[list[int]]:
    """The inputs of every sequence."""
    loader = jd.make_loader(tiny.root, ordering=np.arange(tiny.segments.num_sequences), global_batch_size=1)
    return [batch["inputs"][0].tolist() for batch in loader]


def test_no_file_is_left_open(tiny: TinyDataset) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        list(jd.make_loader(tiny.root, global_batch_size=4))
        pickle.loads(pickle.dumps(jd.make_loader(tiny.root, global_batch_size=4)))
        OrderedBatchSampler(tiny.root, "balance", 4)
        gc.collect()
    assert [str(warning.message) for warning in caught if str(tiny.root) in str(warning.message)] == []
