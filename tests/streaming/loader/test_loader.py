"""The loader keeps the window contract for any hosts, batch sizes, epochs and moments of resuming."""

from __future__ import annotations

import gc
import inspect
import json
import pickle
import shutil
import threading
import time
from pathlib import Path

import grain
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.loader.iteration import BatchIterator
from tests.support.hostile import sign_manifest
from tests.support.tiny_dataset import TinyDataset, reference_row, write_tiny_dataset


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> TinyDataset:
    tiny = write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out")
    assert tiny.segments.num_sequences % 4 != 0  # else remainders go untested
    return tiny


@pytest.fixture(scope="module")
def rows(tiny) -> list[dict[str, np.ndarray]]:
    """Every sequence's arrays, decoded slowly."""
    return [reference_row(tiny.segments, tiny.store, index) for index in range(tiny.segments.num_sequences)]


def stacked(rows, sequences) -> dict[str, np.ndarray]:
    return {field: np.stack([rows[index][field] for index in sequences]) for field in rows[0]}


def assert_batch(batch, expected) -> None:
    assert batch.keys() == expected.keys()
    for field in batch:
        assert batch[field].dtype == np.int32
        np.testing.assert_array_equal(batch[field], expected[field], err_msg=field)


def sequences_of(loader, rows) -> list[int]:
    """Which sequences came, from their tokens; -1: padding only."""
    names = {row["inputs"].tobytes(): index for index, row in enumerate(rows)}
    names[np.zeros_like(rows[0]["inputs"]).tobytes()] = -1
    return [names[row.tobytes()] for batch in loader for row in batch["inputs"]]


@pytest.mark.parametrize("num_hosts", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [4, 8, 12])
@pytest.mark.parametrize("drop", [True, False])
def test_window_contract(tiny, rows, num_hosts, batch_size, drop):
    order, number = tiny.orders["balance"], tiny.segments.num_sequences
    hosts = [
        list(
            jd.make_loader(
                tiny.root,
                global_batch_size=batch_size,
                drop_remainder=drop,
                host_index=host,
                num_hosts=num_hosts,
            )
        )
        for host in range(num_hosts)
    ]
    num_batches = number // batch_size if drop else -(-number // batch_size)
    assert {len(batches) for batches in hosts} == {num_batches}
    for index, parts in enumerate(zip(*hosts, strict=True)):
        whole = {field: np.concatenate([part[field] for part in parts]) for field in parts[0]}
        expected = stacked(rows, order[index * batch_size : (index + 1) * batch_size])
        missing = batch_size - len(expected["inputs"])
        assert_batch(whole, {field: np.pad(array, ((0, missing), (0, 0))) for field, array in expected.items()})


@pytest.mark.parametrize(("batch_size", "num_epochs"), [(5, 1), (5, 3), (7, 2), (1, 2)])
def test_every_sequence_comes_once_an_epoch(tiny, rows, batch_size, num_epochs):
    loader = jd.make_loader(tiny.root, global_batch_size=batch_size, num_epochs=num_epochs, drop_remainder=False)
    came = [sequence for sequence in sequences_of(loader, rows) if sequence >= 0]
    assert came == tiny.orders["balance"].tolist() * num_epochs


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("start", [0, 3, 7])
def test_a_loaders_length_is_the_number_of_batches_that_it_gives(tiny, start, drop):
    settings = {"global_batch_size": 4, "num_epochs": 2, "drop_remainder": drop}
    loader = jd.make_loader(tiny.root, start_position=start, **settings)
    assert len(loader) == len(list(loader)) > 0
    over = jd.make_loader(tiny.root, start_position=2 * tiny.segments.num_sequences, **settings)
    assert (len(over), bool(over), bool(loader)) == (0, False, True)


def test_an_endless_loader_runs_on(tiny, rows):
    order, number = tiny.orders["balance"], tiny.segments.num_sequences
    loader = jd.make_loader(tiny.root, global_batch_size=6, num_epochs=None, start_position=10**12)
    assert loader.num_batches is None
    assert loader
    with pytest.raises(TypeError, match="found num_epochs=None"):
        len(loader)
    iterator = iter(loader)
    for step in range(12):
        positions = (10**12 + 6 * step + np.arange(6)) % number
        assert_batch(next(iterator), stacked(rows, order[positions]))
    iterator.close()


@pytest.mark.parametrize("num_prefetch", [0, 1, 3])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_change_nothing(tiny, rows, num_prefetch, num_threads):
    loader = jd.make_loader(
        tiny.root, global_batch_size=4, num_epochs=4, num_prefetch=num_prefetch, num_threads=num_threads
    )
    number = tiny.segments.num_sequences
    assert sequences_of(loader, rows) == (tiny.orders["balance"].tolist() * 4)[: 4 * number // 4 * 4]
    assert sequences_of(loader, rows) == sequences_of(loader, rows)


@pytest.mark.parametrize("ordering", ["balance", "uniform_shuffle", "file", "array", "ordering"])
@pytest.mark.parametrize("layout", ["packed", "ordered"])
def test_any_ordering_over_any_layout(tmp_path, rows, ordering, layout):
    tiny = write_tiny_dataset(tmp_path / "out", layout=layout)
    order = tiny.orders.get(ordering, tiny.orders["uniform_shuffle"][::-1].copy())
    if ordering == "file":
        np.save(tmp_path / "mine.npy", order)
    given = {"file": tmp_path / "mine.npy", "array": order, "ordering": jd.Ordering(order)}.get(ordering, ordering)
    loader = jd.make_loader(tiny.root, ordering=given, global_batch_size=5, drop_remainder=False)
    came = [sequence for sequence in sequences_of(loader, rows) if sequence >= 0]
    assert came == order.tolist()


@pytest.mark.parametrize("layout", ["packed", "ordered"])
@pytest.mark.parametrize("num_epochs", [1, 2])
def test_positions_repeat_and_omit_over_any_layout(tmp_path, rows, layout, num_epochs):
    root = write_tiny_dataset(tmp_path / "out", layout=layout).root
    run = jd.make_run(root, positions=[5, 5, 0, len(rows) - 1, 0, 5, 2])
    loader = jd.make_loader(run, global_batch_size=3, num_epochs=num_epochs, drop_remainder=False, num_threads=2)
    expected = run.indices.tolist() * num_epochs
    assert sequences_of(pickle.loads(pickle.dumps(loader)), rows)[: len(expected)] == expected
    assert sequences_of(loader, rows)[: len(expected)] == expected


def test_states_of_positions_are_their_own(tiny, rows):
    ordering = jd.Ordering(tiny.orders["balance"])
    twice = jd.make_run(tiny.root, positions=np.tile(ordering, 2))
    once = jd.make_loader(twice, global_batch_size=4)
    again = jd.make_loader(tiny.root, ordering=ordering, global_batch_size=4, num_epochs=2)
    assert sequences_of(once, rows) == sequences_of(again, rows)
    iterator = iter(once)
    next(iterator)
    state = iterator.get_state()
    assert state["ordering"] == twice.fingerprint
    resumed = iter(jd.make_loader(jd.make_run(tiny.root, positions=twice.indices), global_batch_size=2))
    resumed.set_state(state)
    np.testing.assert_array_equal(next(resumed)["inputs"], next(iterator)["inputs"][:2])
    with pytest.raises(UserError, match="The checkpoint was made with the ordering of fingerprint"):
        iter(again).set_state(state)
    for opened in (iterator, resumed):
        opened.close()


def test_a_batch_that_a_run_cannot_fill_is_a_sentence(tiny):
    with pytest.raises(
        UserError, match=r"batch size in 1 \.\. 3 \(the positions of all epochs\), found 4; .* drop_remainder=False"
    ):
        jd.make_loader(jd.make_run(tiny.root, positions=np.arange(3)), global_batch_size=4)


def test_its_own_layout_is_read_in_ranges(tmp_path):
    tiny = write_tiny_dataset(tmp_path / "out", layout="ordered", sequences_per_file=10_000)
    loader = jd.make_loader(tiny.root, global_batch_size=8, num_prefetch=0)
    places: list[list[int]] = []
    (records,) = loader.batches.source.readers
    assert records.in_sequence
    read = records.read_batch
    records.read_batch = lambda indices, **settings: places.append(indices.tolist()) or read(indices, **settings)
    list(loader)
    assert places[:2] == [list(range(8)), list(range(8, 16))]


def test_states_resume_at_every_step_with_any_batch_size_and_hosts(tiny, rows):
    order = np.concatenate([tiny.orders["balance"]] * 2)
    dataset = jd.open_dataset(tiny.root)
    settings = {"num_epochs": 2, "drop_remainder": True, "num_prefetch": 2}
    iterator = iter(jd.make_loader(dataset, global_batch_size=4, **settings))
    states = [iterator.get_state()]
    states.extend(json.loads(json.dumps(iterator.get_state())) for _ in iterator)
    assert [state["position"] for state in states] == list(range(0, len(order) // 4 * 4 + 1, 4))
    for state in states:
        for batch_size, num_hosts in ((4, 1), (6, 2), (8, 4), (3, 1)):
            parts = []
            for host in range(num_hosts):
                loader = jd.make_loader(
                    dataset, global_batch_size=batch_size, host_index=host, num_hosts=num_hosts, **settings
                )
                resumed = iter(loader)
                next(resumed)
                resumed.set_state(state)
                parts.append(list(resumed))
            position = state["position"]
            assert {len(part) for part in parts} == {(len(order) - position) // batch_size}
            for index, batches in enumerate(zip(*parts, strict=True)):
                start = position + index * batch_size
                whole = np.concatenate([batch["inputs"] for batch in batches])
                np.testing.assert_array_equal(whole, stacked(rows, order[start : start + batch_size])["inputs"])


def test_states_count_what_was_taken_not_what_was_made_ahead(tiny):
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=2, num_prefetch=5))
    iterator.start_prefetch()
    assert iterator.get_state()["position"] == 0
    next(iterator)
    assert iterator.get_state()["position"] == 2
    assert all(isinstance(value, int | str) for value in iterator.get_state().values())
    iterator.close()


def test_states_of_others_are_refused_with_both_fingerprints(tiny, tmp_path):
    other = write_tiny_dataset(tmp_path / "other", seed=5)
    state = iter(jd.make_loader(tiny.root, global_batch_size=4)).get_state()
    foreign = iter(jd.make_loader(other.root, global_batch_size=4))
    with pytest.raises(UserError, match="dataset of fingerprint") as caught:
        foreign.set_state(state)
    assert state["dataset"][:16] in str(caught.value)
    assert foreign.get_state()["dataset"][:16] in str(caught.value)
    shuffled = iter(jd.make_loader(tiny.root, ordering="uniform_shuffle", global_batch_size=4))
    with pytest.raises(UserError, match="ordering of fingerprint") as caught:
        shuffled.set_state(state)
    assert state["ordering"][:16] in str(caught.value)
    assert shuffled.get_state()["ordering"][:16] in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"position": -1},
        {"position": 10**9},
        {"position": "4"},
        {"position": None},
        {"position": True},
    ],
)
def test_hostile_states_are_refused(tiny, change):
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=4))
    with pytest.raises(UserError, match="Expected"):
        iterator.set_state({**iterator.get_state(), **change})
    with pytest.raises(UserError, match="Expected the state of a loader"):
        iterator.set_state({"next_index": 3})
    assert iterator.get_state()["position"] == 0


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.array, jnp.int32])
def test_a_position_may_be_an_integer_of_an_array(tiny, kind):
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=4))
    next(iterator)
    state, following = iterator.get_state(), next(iterator)
    iterator.set_state({**state, "position": kind(state["position"])})
    assert type(iterator.get_state()["position"]) is int
    np.testing.assert_array_equal(next(iterator)["inputs"], following["inputs"])


@pytest.mark.parametrize(
    ("position", "sentence"),
    [
        ("16", "a whole number, found '16' of the type str"),
        (16.0, "a whole number, found .*16.0.* of the type float"),
        (True, "a whole number, found .*True.* of the type bool"),
        (np.float32(16), "a whole number, .* of the type float32"),
        (-16, r"a position in 0 \.\. \d+, found -16; restore the state"),
        (10**9, r"a position in 0 \.\. \d+, found 1000000000; give the loader as many epochs"),
    ],
)
def test_the_sentence_tells_a_wrong_type_from_a_wrong_range(tiny, position, sentence):
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=4))
    with pytest.raises(UserError, match=sentence):
        iterator.set_state({**iterator.get_state(), "position": position})


def test_orbax_saves_and_restores(tiny, tmp_path):
    loader = jd.make_loader(tiny.root, global_batch_size=4, num_epochs=2)
    expected = list(loader)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    manager = orbax.checkpoint.CheckpointManager(tmp_path / "checkpoints")
    manager.save(3, args=orbax.checkpoint.args.Composite(input=grain.checkpoint.CheckpointSave(iterator)))
    manager.wait_until_finished()
    resumed = iter(jd.make_loader(tiny.root, global_batch_size=4, num_epochs=2))
    manager.restore(3, args=orbax.checkpoint.args.Composite(input=grain.checkpoint.CheckpointRestore(resumed)))
    manager.close()
    for batch, wanted in zip(resumed, expected[3:], strict=True):
        assert_batch(batch, wanted)


def test_loaders_pickle_small_and_equal(tiny, tmp_path, rows):
    expected = sequences_of(jd.make_loader(tiny.root, global_batch_size=4), rows)
    for ordering in ("balance", tiny.orders["balance"]):
        loader = jd.make_loader(tiny.root, ordering=ordering, global_batch_size=4)
        list(loader)  # opened and mapped
        stored = pickle.dumps(loader)
        assert len(stored) < 4000
        assert sequences_of(pickle.loads(stored), rows) == expected


def test_grain_builds_on_it(tiny, rows):
    loader = jd.make_loader(tiny.root, global_batch_size=4)
    assert isinstance(loader, grain.IterDataset)
    mapped = loader.map(lambda batch: batch["inputs"] * 2)
    iterator = iter(mapped)
    np.testing.assert_array_equal(next(iterator), 2 * stacked(rows, tiny.orders["balance"][:4])["inputs"])
    assert next(iterator).shape == (4, 16)
    state = iterator.get_state()
    again = iter(mapped)
    again.set_state(state)
    np.testing.assert_array_equal(next(again), next(iterator))
    batches = loader.batches
    assert_batch(batches[1], stacked(rows, tiny.orders["balance"][4:8]))
    halves = [batches[host::2] for host in (0, 1)]
    assert len(halves[0]) + len(halves[1]) == len(batches) == loader.num_batches
    assert_batch(halves[1][0], stacked(rows, tiny.orders["balance"][4:8]))


def test_fields(tiny):
    batch = next(iter(jd.make_loader(tiny.root, global_batch_size=4, fields=("inputs", "targets"))))
    assert list(batch) == ["inputs", "targets"]
    with pytest.raises(UserError, match="found \\['labels'\\]"):
        jd.make_loader(tiny.root, global_batch_size=4, fields=("labels",))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"global_batch_size": 0}, "global_batch_size to be a whole number >= 1, found 0"),
        ({"global_batch_size": 10_000}, "global batch size in 1"),
        ({"num_hosts": 3}, "divides the global batch of 4, found 3"),
        ({"num_hosts": 0}, "num_hosts to be a whole number >= 1, found 0"),
        ({"num_hosts": 2, "host_index": 2}, r"host index in 0 \.\. 1, found 2"),
        ({"num_epochs": 0}, "num_epochs to be a whole number >= 1, found 0"),
        ({"start_position": -1}, "start_position to be a whole number >= 0"),
        ({"start_position": 10**9}, "start position"),
        ({"num_prefetch": -1}, "num_prefetch to be a whole number >= 0"),
        ({"num_threads": 0}, "num_threads to be a whole number >= 1"),
        ({"ordering": "best"}, "Unknown ordering 'best'; the dataset has balance, uniform_shuffle"),
        ({"ordering": "no.npy"}, "found no such file"),
        ({"ordering": np.arange(5)}, "ordering of the dataset's .* found 5"),
        ({"ordering": np.zeros(3, np.int64)}, "found 0 3 times"),
    ],
)
def test_impossible_settings_are_a_sentence(tiny, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        jd.make_loader(tiny.root, **{"global_batch_size": 4, **settings})


@pytest.fixture
def copy(tiny, tmp_path) -> Path:
    shutil.copytree(tiny.root, tmp_path / "copy")
    return tmp_path / "copy"


def test_damaged_records_stop_the_run_and_name_the_file(copy):
    path = sorted((copy / "records").glob("train-*.array_record"))[1]
    damaged = bytearray(path.read_bytes())
    for place in range(200, 700):
        damaged[place] ^= 255
    path.write_bytes(damaged)
    iterator = iter(jd.make_loader(copy, global_batch_size=5))
    with pytest.raises(UserError, match=r"Record \d of .*train-00001-of-.* is damaged"):
        list(iterator)
    position = iterator.get_state()["position"]
    with pytest.raises(UserError, match="is damaged"):  # it does not go past the damage
        next(iterator)
    assert iterator.get_state()["position"] == position


def test_swapped_and_missing_files_are_found(copy):
    first, second = sorted((copy / "records").glob("train-*.array_record"))[:2]
    aside = first.with_suffix(".aside")
    # Files of one size, so that only the sequences inside can tell.
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    with pytest.raises(UserError, match="train-0000"):
        list(jd.make_loader(copy, global_batch_size=4))
    first.unlink()
    with pytest.raises(UserError, match=r"train-00000.*no such file"):
        jd.make_loader(copy, global_batch_size=4)


def test_a_layout_whose_ordering_was_remade_is_found(tmp_path):
    tiny = write_tiny_dataset(tmp_path / "out", layout="ordered")
    loader = jd.make_loader(tiny.root, global_batch_size=4)
    before = next(iter(loader))
    remade = jd.Ordering(tiny.orders["uniform_shuffle"])
    remade.save(tiny.root / "orderings" / "balance.npy")
    assert_batch(next(iter(loader)), before)  # what was opened stays what it was
    with pytest.raises(UserError, match=r"ordering of fingerprint .* made again after the dataset or the loader was"):
        next(iter(pickle.loads(pickle.dumps(loader))))
    counts = {"fingerprint": remade.fingerprint}
    sign_manifest(tiny.root, lambda manifest: manifest["stages"]["order/balance"]["counts"].update(counts))
    with pytest.raises(UserError, match=r"sequence \d+ expected, \d+ found"):
        next(iter(jd.make_loader(tiny.root, global_batch_size=4)))


def test_a_dataset_rebuilt_under_a_loader_is_found(tmp_path):
    """Other tokens under the same names and sizes never come with the former fingerprint."""
    root = write_tiny_dataset(tmp_path / "out").root
    loader = jd.make_loader(root, global_batch_size=4)
    shutil.rmtree(root / "records")
    shutil.copytree(write_tiny_dataset(tmp_path / "same").root / "records", root / "records")
    list(loader)
    store = write_tiny_dataset(tmp_path / "other", vocab_size=60)
    other = jd.make_loader(root, global_batch_size=4)
    assert store.segments.num_sequences == len(other.run)
    shutil.rmtree(root / "records")
    shutil.copytree(store.root / "records", root / "records")
    with pytest.raises(UserError, match=r"written again after the dataset was opened"):
        list(other)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("global_batch_size", 4.0),
        ("num_epochs", 1.5),
        ("num_epochs", "2"),
        ("start_position", np.float64(0)),
        ("num_hosts", None),
        ("host_index", "0"),
        ("num_prefetch", 0.5),
        ("num_threads", [1]),
    ],
)
def test_counts_that_are_no_whole_numbers_are_a_sentence(tiny, name, value):
    make = inspect.unwrap(jd.make_loader)  # without the type checker of the tests, as users have it
    with pytest.raises(UserError, match=f"Expected {name} to be a whole number >= [01], found"):
        make(tiny.root, **{"global_batch_size": 4, name: value})


def test_numpy_counts_and_plain_lists_of_positions(tiny, rows):
    order = tiny.orders["balance"]
    counts = {"global_batch_size": np.int64(4), "num_epochs": np.int32(2), "start_position": np.uint16(8)}
    counts |= {"num_hosts": np.int64(2), "host_index": np.int64(1), "num_prefetch": np.int8(1)}
    loader = jd.make_loader(tiny.root, ordering=order.tolist(), **counts)
    iterator = iter(loader)
    assert_batch(next(iterator), stacked(rows, order[10:12]))
    assert json.loads(json.dumps(iterator.get_state())) == iterator.get_state()
    for given in (tuple(order.tolist()), order.astype(np.uint16), jd.Ordering(order)):
        again = jd.make_loader(tiny.root, ordering=given, **counts)
        assert again.run.fingerprint == loader.run.fingerprint
    for given in (order.astype(float), []):
        with pytest.raises(UserError, match="whole numbers, found float64"):
            jd.make_loader(tiny.root, ordering=given, **counts)


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("jax-diversity-loader")]


def wait_until_no_threads() -> None:
    deadline = time.monotonic() + 10
    while loader_threads() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert loader_threads() == []


def test_dropped_and_closed_iterators_leave_no_threads(tiny):
    wait_until_no_threads()
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=4, num_prefetch=3, num_threads=2))
    next(iterator)
    assert loader_threads()
    iterator.close()
    wait_until_no_threads()
    with pytest.raises(ValueError, match="closed"):
        next(iterator)
    for _ in range(3):
        next(iter(jd.make_loader(tiny.root, global_batch_size=4)))
    wait_until_no_threads()


def test_batches_are_the_callers_own(tiny):
    """Memory is used again only when nothing refers to a batch any more."""
    loader = jd.make_loader(tiny.root, global_batch_size=4, num_epochs=3)
    kept = [{"inputs": batch["inputs"][1:2]} for batch in loader]
    gc.collect()
    list(loader)
    for first, again in zip(kept, loader, strict=True):
        np.testing.assert_array_equal(first["inputs"], again["inputs"][1:2])


def test_the_iterator_is_a_grain_iterator(tiny):
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=4))
    assert isinstance(iterator, grain.DatasetIterator)
    assert isinstance(iterator, BatchIterator)
    assert iter(iterator) is iterator
