"""Every sequence once an epoch and the same global batches, for all hosts, threads, workers and batch sizes.

What is checked against is the order's own slices of rows that were decoded token by token, by a hash of each batch.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import itertools
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import grain
import numpy as np
import orbax.checkpoint
import pytest

import jax_diversity as jd
from jax_diversity.foundation.artifacts import signed
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.loader.iteration import BatchIterator
from tests.support.tiny_dataset import TinyDataset, reference_row, write_tiny_dataset

Rows = list[dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    tiny = write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out", num_documents=48)
    assert tiny.segments.num_sequences % 8 != 0  # else remainders go untested
    assert tiny.segments.num_sequences > 2 * 16
    return tiny


@pytest.fixture(scope="module")
def dataset(tiny: TinyDataset) -> jd.Dataset:
    return jd.open_dataset(tiny.root)


@pytest.fixture(scope="module")
def rows(tiny: TinyDataset) -> Rows:
    return [reference_row(tiny.segments, tiny.store, index) for index in range(tiny.segments.num_sequences)]


def batch_hash(batch: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for field in sorted(batch):
        digest.update(field.encode() + str(batch[field].dtype).encode() + batch[field].tobytes())
    return digest.hexdigest()


def joined(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The hosts' rows as one global batch."""
    return {field: np.concatenate([part[field] for part in parts]) for field in parts[0]}


def reference_hashes(rows: Rows, sequences: Sequence[int], batch_size: int, drop: bool = False) -> list[str]:
    """Hashes of the batches of some sequences in turn, the last filled up with padding or left out."""
    hashes = []
    for start in range(0, len(sequences), batch_size):
        part = [rows[index] for index in sequences[start : start + batch_size]]
        if len(part) < batch_size and drop:
            break
        part += [{field: np.zeros_like(row) for field, row in rows[0].items()}] * (batch_size - len(part))
        hashes.append(batch_hash({field: np.stack([row[field] for row in part]) for field in rows[0]}))
    return hashes


def hashes_of_hosts(hosts: Iterable[Iterable[dict[str, np.ndarray]]]) -> list[str]:
    return [batch_hash(joined(parts)) for parts in zip(*hosts, strict=True)]


HOSTS_AND_BATCHES = [
    (num_hosts, batch_size)
    for num_hosts, batch_size in itertools.product((1, 2, 4, 8), (1, 2, 4, 6, 8, 11, 16, 24))
    if batch_size % num_hosts == 0
]


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize(("num_hosts", "batch_size"), HOSTS_AND_BATCHES)
def test_hosts_and_batch_sizes_give_the_same_global_batches(
    tiny: TinyDataset, dataset: jd.Dataset, rows: Rows, num_hosts: int, batch_size: int, drop: bool
) -> None:
    sequences = tiny.orders["balance"].tolist() * 2
    settings = {"global_batch_size": batch_size, "num_hosts": num_hosts, "num_epochs": 2, "drop_remainder": drop}
    hosts = [jd.make_loader(dataset, host_index=host, **settings) for host in range(num_hosts)]
    assert hashes_of_hosts(hosts) == reference_hashes(rows, sequences, batch_size, drop)


WORKER_CASES = [
    *itertools.product([0], [1, 2, 4, 8], [8, 16]),
    *[(1, 2, 6), (2, 1, 11)],  # processes take about a second each to start
]


@pytest.mark.campaign
@pytest.mark.parametrize(("num_workers", "num_hosts", "batch_size"), WORKER_CASES)
def test_workers_give_the_same_global_batches(
    tiny: TinyDataset, dataset: jd.Dataset, rows: Rows, num_workers: int, num_hosts: int, batch_size: int
) -> None:
    sequences = tiny.orders["balance"].tolist()
    settings = {"global_batch_size": batch_size, "num_hosts": num_hosts, "drop_remainder": False}
    hosts = [
        iter(jd.make_loader(dataset, host_index=host, num_workers=num_workers, **settings)) for host in range(num_hosts)
    ]
    assert hashes_of_hosts(hosts) == reference_hashes(rows, sequences, batch_size)
    for host in hosts:
        host.close()
    assert wait_until_alone() == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_every_sequence_comes_once_in_each_of_three_epochs(
    tiny: TinyDataset, dataset: jd.Dataset, rows: Rows, num_workers: int
) -> None:
    """The last batch of an epoch runs into the next; counts are of the tokens that came, not of positions."""
    number = tiny.segments.num_sequences
    names = {row["inputs"].tobytes(): index for index, row in enumerate(rows)}
    assert len(names) == number
    settings = {"global_batch_size": 16, "num_hosts": 2, "num_epochs": 3, "drop_remainder": False}
    hosts = [
        iter(jd.make_loader(dataset, host_index=host, num_workers=num_workers, num_threads=2, **settings))
        for host in range(2)
    ]
    came = [
        names.get(row.tobytes(), -1)
        for parts in zip(*hosts, strict=True)
        for row in np.concatenate([part["inputs"] for part in parts])
    ]
    for host in hosts:
        host.close()
    assert set(came[3 * number :]) <= {-1}
    for epoch in range(3):
        assert sorted(came[epoch * number : (epoch + 1) * number]) == list(range(number))


def resumed_hosts(
    dataset: jd.Dataset, num_hosts: int, batch_size: int, state: dict | None, **settings
) -> list[BatchIterator]:
    hosts = [
        iter(jd.make_loader(dataset, global_batch_size=batch_size, num_hosts=num_hosts, host_index=host, **settings))
        for host in range(num_hosts)
    ]
    for host in hosts:
        if state is not None:
            host.set_state(state)
    return hosts


def take(hosts: Sequence[BatchIterator], num_batches: int) -> tuple[list[str], dict]:
    """Hashes of the next batches and the state after them, which is the same on every host."""
    hashes = hashes_of_hosts(list(itertools.islice(host, num_batches)) for host in hosts)
    states = [json.loads(json.dumps(host.get_state())) for host in hosts]
    assert all(state == states[0] for state in states)
    for host in hosts:
        host.close()
    return hashes, states[0]


@pytest.mark.campaign
def test_hosts_and_batch_sizes_change_in_a_chain_at_every_step(
    tiny: TinyDataset, dataset: jd.Dataset, rows: Rows
) -> None:
    """4 hosts and batches of 8, cut at every step, then 2 hosts and 16, cut at every step, then 8 hosts and 8."""
    sequences = tiny.orders["balance"].tolist() * 2  # across the epoch's boundary
    settings = {"num_epochs": 2, "num_prefetch": 2}
    for first in range(len(sequences) // 8 + 1):
        hashes, state = take(resumed_hosts(dataset, 4, 8, None, **settings), first)
        assert hashes == reference_hashes(rows, sequences[: 8 * first], 8)
        assert state["position"] == 8 * first
        for second in range((len(sequences) - 8 * first) // 16 + 1):
            stop = 8 * first + 16 * second
            hashes, between = take(resumed_hosts(dataset, 2, 16, state, **settings), second)
            assert hashes == reference_hashes(rows, sequences[8 * first : stop], 16)
            hashes, _ = take(resumed_hosts(dataset, 8, 8, between, **settings), len(sequences))
            assert hashes == reference_hashes(rows, sequences[stop:], 8, drop=True)


def test_orbax_resumes_on_other_hosts_with_another_batch_across_an_epoch(
    tiny: TinyDataset, dataset: jd.Dataset, rows: Rows, tmp_path: Path
) -> None:
    sequences = tiny.orders["balance"].tolist() * 2
    done = len(sequences) // 2 // 8 + 1  # 8 does not divide an epoch: the last of these runs into the second
    hosts = resumed_hosts(dataset, 4, 8, None, num_epochs=2)
    hashes = hashes_of_hosts(list(itertools.islice(host, done)) for host in hosts)
    with orbax.checkpoint.CheckpointManager(tmp_path / "checkpoints") as manager:
        saved = orbax.checkpoint.args.Composite(input=grain.checkpoint.CheckpointSave(hosts[0]))
        manager.save(done, args=saved)
        manager.wait_until_finished()
        others = resumed_hosts(dataset, 2, 6, None, num_epochs=2)
        for other in others:
            restored = grain.checkpoint.CheckpointRestore(other)
            manager.restore(done, args=orbax.checkpoint.args.Composite(input=restored))
    assert hashes == reference_hashes(rows, sequences[: 8 * done], 8)
    assert hashes_of_hosts(others) == reference_hashes(rows, sequences[8 * done :], 6, drop=True)
    for iterator in (*hosts, *others):
        iterator.close()


def wait_until_alone(seconds: float = 20) -> list:
    """Processes that are left after some time."""
    end = time.monotonic() + seconds
    while multiprocessing.active_children() and time.monotonic() < end:
        time.sleep(0.05)
    return multiprocessing.active_children()


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("jax-diversity-loader")]


@pytest.mark.campaign
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("ending", ["dropped", "closed", "failed"])
def test_a_loader_left_in_the_middle_leaves_nothing_behind(tiny: TinyDataset, num_workers: int, ending: str) -> None:
    """No process, no thread, no shared memory, and no record file open."""
    gc.collect()
    files, memory, threads = open_files(tiny.root), shared_memory(), set(threading.enumerate())
    iterator = iter(
        jd.make_loader(
            tiny.root, global_batch_size=4, num_epochs=None, num_workers=num_workers, num_threads=2, num_prefetch=4
        )
    )
    next(iterator)
    used = shared_memory() - memory
    if num_workers:
        assert used  # the pool's semaphores
        assert len(multiprocessing.active_children()) == num_workers
    else:
        assert loader_threads()
        assert open_files(tiny.root) - files
    if ending == "closed":
        iterator.close()
    elif ending == "failed":
        with pytest.raises(ZeroDivisionError):
            fail_at(iterator)
    del iterator
    assert wait_until_alone() == []
    end = time.monotonic() + 20
    while time.monotonic() < end:
        gc.collect()
        left = {
            "threads": set(threading.enumerate()) - threads,
            "files": open_files(tiny.root) - files,
            "memory": shared_memory() - memory,
            "names of memory": used & {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")},
        }
        if not any(left.values()):
            break
        time.sleep(0.02)
    assert not any(left.values()), left


def fail_at(iterator: Iterable) -> None:
    for _ in iterator:
        _ = 1 / 0


def shared_memory() -> set[str]:
    """What this process has mapped of the machine's shared memory; other processes come and go in there."""
    fields = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    return {field[5].removesuffix(" (deleted)") for field in fields if field[5:] and "/dev/shm/" in field[5]}


def open_files(root: Path) -> set[tuple[str, str]]:
    """Descriptors of this process that are files of a dataset."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:  # the one that lists them
            continue
        if target.startswith(str(root)):
            found.add((descriptor.name, target))
    return found


def test_a_batch_that_no_epoch_fills_is_a_sentence(tiny: TinyDataset) -> None:
    number = tiny.segments.num_sequences
    sentence = rf"global batch size in 1 \.\. {number} \(the positions of all epochs\), found {number + 1}"
    with pytest.raises(UserError, match=sentence):
        jd.make_loader(tiny.root, global_batch_size=number + 1)
    (batch,) = jd.make_loader(tiny.root, global_batch_size=number)
    assert len(batch["inputs"]) == number


@pytest.mark.parametrize("num_hosts", [3, 5, 16])
def test_hosts_that_do_not_divide_the_batch_are_a_sentence(tiny: TinyDataset, num_hosts: int) -> None:
    with pytest.raises(UserError, match=f"divides the global batch of 8, found {num_hosts}"):
        jd.make_loader(tiny.root, global_batch_size=8, num_hosts=num_hosts)


@pytest.mark.parametrize("host", [4, 100])
def test_a_host_that_is_not_there_is_a_sentence(tiny: TinyDataset, host: int) -> None:
    with pytest.raises(UserError, match=rf"host index in 0 \.\. 3, found {host}"):
        jd.make_loader(tiny.root, global_batch_size=8, num_hosts=4, host_index=host)


def test_an_ordering_of_another_dataset_is_a_sentence(tiny: TinyDataset, tmp_path: Path) -> None:
    number = tiny.segments.num_sequences
    other = write_tiny_dataset(tmp_path / "other", num_documents=20)
    foreign = jd.open_dataset(other.root).orderings["balance"]
    assert len(foreign) != number
    for given, said in (
        (foreign, f"the dataset's {number} sequences, found {len(foreign)}; make a new one"),
        (other.root / "orderings" / "balance.npy", f"of {number} sequences at .*, found one of {len(foreign)}"),
    ):
        with pytest.raises(UserError, match=said):
            jd.make_loader(tiny.root, ordering=given, global_batch_size=4)


@pytest.mark.parametrize("damage", ["repeat", "negative", "too large"])
def test_what_is_no_permutation_is_refused_and_a_schedule_named(tiny: TinyDataset, tmp_path: Path, damage: str) -> None:
    number = tiny.segments.num_sequences
    indices = np.arange(number)
    indices[3] = {"repeat": 2, "negative": -1, "too large": number}[damage]
    sentence = f"indices >= 0.*, found {indices[3]}|must have each .*once, found {indices[3]}"
    if damage == "repeat":
        sentence = f"An ordering of {number} sequences must have each .*once, found 2 2 times; to repeat sequences"
    np.save(tmp_path / "mine.npy", indices)
    for given in (indices, indices.tolist(), tmp_path / "mine.npy", str(tmp_path / "mine.npy")):
        with pytest.raises(UserError, match=sentence):
            jd.make_loader(tiny.root, ordering=given, global_batch_size=4)


def test_a_run_may_repeat(tiny: TinyDataset, rows: Rows) -> None:
    sequences = [3, 3, 0, 3]
    run = jd.make_run(tiny.root, positions=sequences)
    assert hashes_of_hosts([jd.make_loader(run, global_batch_size=2)]) == reference_hashes(rows, sequences, 2)


def test_a_sequence_length_that_the_model_does_not_expect_is_a_sentence(tiny: TinyDataset) -> None:
    make = partial(jd.make_loader, tiny.root, global_batch_size=4)
    with pytest.raises(UserError, match=r"Expected sequences of 32 tokens, found 16 from position 0 on; pack"):
        make(sequence_length=32)
    for length in (None, 16, np.int64(16)):
        assert next(iter(make(sequence_length=length)))["inputs"].shape == (4, 16)
    with pytest.raises(UserError, match="sequence_length to be a whole number >= 1, found '16'"):
        inspect.unwrap(jd.make_loader)(tiny.root, global_batch_size=4, sequence_length="16")


@pytest.mark.parametrize("structure", ["the same", "another"])
def test_a_dataset_of_a_newer_version_is_refused(tmp_path: Path, structure: str) -> None:
    root = write_tiny_dataset(tmp_path / "out").root
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["format_version"] += 1
    if structure == "another":
        manifest["stages"] = [{"name": name} for name in manifest["stages"]]
    (root / "manifest.json").write_text(json.dumps(signed(manifest)))
    for use in (jd.open_dataset, lambda root: jd.make_loader(root, global_batch_size=4)):
        with pytest.raises(UserError, match=r"was written in format \d+, this version reads up to \d+; upgrade"):
            use(root)
