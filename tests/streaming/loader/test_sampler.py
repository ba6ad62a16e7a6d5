"""Grain's own DataLoader over our source and sampler gives the loader's batches, on any hosts and workers."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import absl.flags
import grain
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity import OrderSampler, SequenceSource
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.records.reading import RecordReader
from jax_diversity.streaming.records.writing import record_paths, write_records
from tests.support.tiny_dataset import ListStore, TinyDataset, pack, write_tiny_dataset


@pytest.fixture(scope="module", params=["packed", "ordered"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out", layout=request.param)


def stored_order(tiny: TinyDataset) -> np.ndarray:
    """The sequence of every record."""
    is_ordered = jd.open_dataset(tiny.root).layout_ordering is not None
    return tiny.orders["balance"] if is_ordered else np.arange(tiny.segments.num_sequences)


def data_loader(
    tiny: TinyDataset, num_workers: int = 0, num_hosts: int = 1, host: int = 0, **settings
) -> grain.DataLoader:
    sampler = OrderSampler(tiny.root, global_batch_size=4, worker_count=num_workers, num_hosts=num_hosts, **settings)
    return grain.DataLoader(
        data_source=SequenceSource(tiny.root),  # type: ignore[arg-type]
        sampler=sampler,
        operations=[grain.transforms.Batch(4 // num_hosts, drop_remainder=True)],
        worker_count=num_workers,
        shard_options=grain.sharding.ShardOptions(host, num_hosts),
    )


@pytest.mark.parametrize("num_hosts", [1, 2, 4])
def test_a_data_loaders_batches_are_windows_of_the_order(tiny: TinyDataset, num_hosts: int) -> None:
    expected = list(jd.make_loader(tiny.root, global_batch_size=4, num_epochs=2))
    hosts = [list(data_loader(tiny, num_hosts=num_hosts, host=host, num_epochs=2)) for host in range(num_hosts)]
    assert {len(batches) for batches in hosts} == {len(expected)}
    for batch, *parts in zip(expected, *hosts, strict=True):
        for field, rows in batch.items():
            np.testing.assert_array_equal(np.concatenate([part[field] for part in parts]), rows)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("num_hosts", [1, 2])
def test_workers_elements_are_dealt_so_that_batches_come_in_turn(
    tiny: TinyDataset, num_workers: int, num_hosts: int
) -> None:
    """What a DataLoader does with workers, without starting them: each takes every n-th element of its host's."""
    order, rows = tiny.orders["balance"], 4 // num_hosts
    places = stored_order(tiny)
    sampler = OrderSampler(tiny.root, global_batch_size=4, worker_count=num_workers, num_hosts=num_hosts)
    num_batches = len(order) // 4 // num_workers * num_workers
    assert len(sampler) == 4 * num_batches
    for host in range(num_hosts):
        elements = [places[sampler[index].record_key] for index in range(host, len(sampler), num_hosts)]
        workers = [elements[worker::num_workers] for worker in range(num_workers)]
        for batch in range(num_batches):
            turn, worker = divmod(batch, num_workers)
            made = workers[worker][turn * rows : (turn + 1) * rows]
            first = 4 * batch + host * rows
            assert made == order[first : first + rows].tolist()


def stock_loader(
    run: jd.Run, operations: list, batch_size: int = 4, num_workers: int = 0, num_epochs: int = 1
) -> grain.DataLoader:
    """Grain's own source over the record files of a run's datasets."""
    paths = [path for dataset in run.datasets for path in dataset.records.paths]
    source: Any = grain.sources.ArrayRecordDataSource(paths)
    assert len(source) == run.num_sequences
    return grain.DataLoader(
        data_source=source,
        sampler=OrderSampler(run, global_batch_size=batch_size, num_epochs=num_epochs, worker_count=num_workers),
        operations=[*operations, grain.transforms.Batch(batch_size, drop_remainder=True)],
        worker_count=num_workers,
        shard_options=grain.sharding.NoSharding(),
    )


def check_same(found: list, expected: list, without: tuple[str, ...] = ()) -> None:
    assert len(found) == len(expected) > 0
    for batch, other in zip(found, expected, strict=True):
        assert batch.keys() == other.keys() - set(without)
        for field, rows in batch.items():
            assert rows.dtype == other[field].dtype
            np.testing.assert_array_equal(rows, other[field])


@pytest.mark.parametrize("merge_segments", [False, True])
@pytest.mark.parametrize("sequences_per_file", [7, 10_000])
@pytest.mark.parametrize("layout", ["packed", "ordered"])
def test_grains_own_source_gives_the_batches(tmp_path, layout: str, sequences_per_file: int, merge_segments) -> None:
    root = write_tiny_dataset(tmp_path / "out", layout=layout, sequences_per_file=sequences_per_file).root
    for ordering in ("balance", "uniform_shuffle"):
        run = jd.make_run(root, ordering)
        found = stock_loader(run, [jd.DecodeRecord(merge_segments=merge_segments)], num_epochs=2)
        check_same(
            list(found), list(jd.make_loader(run, global_batch_size=4, num_epochs=2, merge_segments=merge_segments))
        )


def test_grains_own_source_reads_several_datasets(tmp_path) -> None:
    layouts = ("packed", "ordered", "packed")
    roots = [write_tiny_dataset(tmp_path / str(seed), seed=seed, layout=each).root for seed, each in enumerate(layouts)]
    run = jd.create_schedule(tmp_path / "run", roots, weights=[3, 2, 1], num_positions=40)
    fields = ("targets", "inputs")
    found = list(stock_loader(run, [jd.DecodeRecord(fields)], batch_size=8))
    expected = list(jd.make_loader(run, global_batch_size=8, fields=fields))
    check_same(found, expected, without=("dataset_index", "sequence_index"))


def test_grains_own_source_reads_answers_and_the_token_after_a_row(tmp_path) -> None:
    lengths = [30, 9, 25]
    segments = dataclasses.replace(pack(lengths, 17), overlap=1)
    store = ListStore([np.arange(1, length + 1).astype("<i4") for length in lengths])
    order = np.arange(segments.num_sequences)
    counts = write_records(
        segments,
        store.gather,
        "int32",
        order,
        tmp_path,
        "train",
        sequences_per_file=2,
        read_loss_mask=lambda documents, offsets, lengths: np.arange(lengths.sum()) % 3 > 0,
    )
    paths = record_paths(tmp_path, "train", len(counts))
    reader = RecordReader(paths, counts, sequence_length=17, dtype="int32", overlap=1, has_loss_mask=True)
    expected = reader.read_batch(order, loss_mask="answers")
    source: Any = grain.sources.ArrayRecordDataSource(paths)
    decode = jd.DecodeRecord(loss_mask="answers")
    assert len(source) == len(order)
    for index in order.tolist():
        for field, row in decode.map(source[index]).items():
            np.testing.assert_array_equal(row, expected[field][index])


def test_an_order_of_own_sequences_needs_no_dataset() -> None:
    chars = jd.Characteristics.from_counts({"topic": np.arange(24) % 5}, batch_size=4)
    ordering, rows = jd.order(chars), np.arange(48).reshape(24, 2)
    for order in (ordering, jd.make_run(chars, ordering)):
        loader = grain.DataLoader(
            data_source=rows,  # type: ignore[arg-type]
            sampler=OrderSampler(order, global_batch_size=4, num_epochs=2),
            operations=[grain.transforms.Batch(4, drop_remainder=True)],
            shard_options=grain.sharding.NoSharding(),
        )
        np.testing.assert_array_equal(np.concatenate([*loader]), rows[np.tile(ordering.indices, 2)])
    with pytest.raises(UserError, match="Expected no ordering, because a run has its own"):
        OrderSampler(ordering, "balance", global_batch_size=4)
    with pytest.raises(UserError, match="at least one dataset to read sequences from"):
        jd.make_loader(jd.make_run(chars, ordering), global_batch_size=4)


@pytest.mark.usefixtures("unchecked")
def test_bytes_that_are_not_a_record_are_a_sentence(tiny: TinyDataset) -> None:
    record = grain.sources.ArrayRecordDataSource(jd.open_dataset(tiny.root).records.paths)[3]
    decode = pickle.loads(pickle.dumps(jd.DecodeRecord()))
    assert decode.map(record)["inputs"].shape == (16,)
    older = record[:2] + bytes([5]) + record[3:]
    for changed in (b"", b"JD", b"text", record[:-1], record + b"0", record[:40] + b"xy" + record[42:], older):
        with pytest.raises(UserError, match="Expected a record of `jax-diversity write`"):
            decode.map(changed)
    with pytest.raises(UserError, match="its format is version 5, not 6"):
        decode.map(older)
    with pytest.raises(UserError, match="Expected the bytes of a record, found 'dict'"):
        decode.map({"inputs": record})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Expected a list of fields"):
        jd.DecodeRecord(["labels"])


@pytest.mark.campaign
@pytest.mark.parametrize("layout", ["packed", "ordered"])
def test_grains_own_source_gives_the_batches_in_worker_processes(tmp_path, layout: str) -> None:
    absl.flags.FLAGS.mark_as_parsed()
    run = jd.make_run(write_tiny_dataset(tmp_path / "out", layout=layout, sequences_per_file=7).root)
    found = list(stock_loader(run, [jd.DecodeRecord()], num_workers=2))
    expected = list(jd.make_loader(run, global_batch_size=4))
    check_same(found, expected[: len(expected) // 2 * 2])


@pytest.mark.campaign
def test_real_workers_give_the_same_batches(tmp_path) -> None:
    absl.flags.FLAGS.mark_as_parsed()
    tiny = write_tiny_dataset(tmp_path / "out")
    expected = list(jd.make_loader(tiny.root, global_batch_size=4))
    found = list(data_loader(tiny, num_workers=2))
    assert len(found) == len(expected) // 2 * 2
    for batch, other in zip(found, expected, strict=False):
        np.testing.assert_array_equal(batch["inputs"], other["inputs"])


@pytest.mark.campaign
def test_grains_worker_processes_take_the_batches_of_a_loader_in_turn(tmp_path) -> None:
    absl.flags.FLAGS.mark_as_parsed()
    loader = jd.make_loader(write_tiny_dataset(tmp_path / "out").root, global_batch_size=4)
    options = grain.multiprocessing.MultiprocessingOptions(num_workers=2)
    for batch, other in zip(loader, loader.mp_prefetch(options), strict=True):
        np.testing.assert_array_equal(batch["inputs"], other["inputs"])
    with pytest.raises(UserError, match="without sequential_slice"):
        jd.make_loader(tmp_path / "out", global_batch_size=4).set_slice(slice(0, 1), sequential_slice=True)


def test_a_data_loader_resumes_and_refuses_another_order(tiny: TinyDataset) -> None:
    iterator = iter(data_loader(tiny))
    next(iterator)
    state = iterator.get_state()
    following = next(iterator)
    again = iter(data_loader(tiny))
    again.set_state(state)
    np.testing.assert_array_equal(next(again)["inputs"], following["inputs"])
    sampler, other = (OrderSampler(tiny.root, name, global_batch_size=4) for name in ("balance", "uniform_shuffle"))
    assert repr(sampler) != repr(other)  # what Grain compares in a checkpoint


def test_a_data_loader_follows_a_stored_run(tmp_path) -> None:
    web, code = (write_tiny_dataset(tmp_path / name, seed=seed).root for seed, name in enumerate(("web", "code")))
    run = jd.create_schedule(tmp_path / "run", [web, code], weights=[3, 1], num_positions=40)
    loader = grain.DataLoader(
        data_source=SequenceSource(run),  # type: ignore[arg-type]
        sampler=OrderSampler(run, global_batch_size=8, num_epochs=2),
        operations=[grain.transforms.Batch(8, drop_remainder=True)],
        shard_options=grain.sharding.NoSharding(),
    )
    for batch, expected in zip(loader, jd.make_loader(run, global_batch_size=8, num_epochs=2), strict=True):
        assert batch.keys() == expected.keys()
        for field, rows in expected.items():
            np.testing.assert_array_equal(batch[field], rows)
    longer = write_tiny_dataset(tmp_path / "longer", sequence_length=24).root
    run = jd.extend_schedule(run, datasets=longer, weights=[0, 0, 1], num_positions=8)
    with pytest.raises(UserError, match="sequences of one length, found the lengths 16, 24"):
        OrderSampler(run, global_batch_size=8)


def test_rows_are_the_records(tiny: TinyDataset) -> None:
    rows = pickle.loads(pickle.dumps(SequenceSource(tiny.root, ("inputs", "targets"))))
    assert len(rows) == tiny.segments.num_sequences
    batch = next(iter(jd.make_loader(tiny.root, ordering=np.arange(len(rows)), global_batch_size=len(rows))))
    for index in (0, 7, len(rows) - 1):
        assert set(rows[index]) == {"inputs", "targets"}
        np.testing.assert_array_equal(rows[index]["inputs"], batch["inputs"][stored_order(tiny)[index]])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"global_batch_size": 6, "num_hosts": 4}, "divides the global batch of 6, found 4"),
        ({"global_batch_size": 4, "num_epochs": 0}, "num_epochs to be a whole number >= 1"),
        ({"global_batch_size": 4, "worker_count": 500}, "worker_count in 0 .. .*found 500"),
        ({"global_batch_size": 4, "ordering": "none"}, "Unknown ordering 'none'"),
    ],
)
def test_settings_that_cannot_be(tiny: TinyDataset, settings: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        OrderSampler(tiny.root, **settings)
    with pytest.raises(IndexError, match="Expected an index in 0"):
        OrderSampler(tiny.root, global_batch_size=4)[10**9]
