"""Record files written by jobs: the same bytes in any way, and nothing half-written or lost after an interruption."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Executor, Here, Processes
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.stage import Context
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.streaming.dataset import open_dataset
from jax_diversity.streaming.records import sorting
from jax_diversity.streaming.records.settings import RecordsConfig
from jax_diversity.streaming.records.stage import write_sequences
from jax_diversity.streaming.records.writing import write_records
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset

PER_FILE, RECORD_BYTES = 7, 74


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out", num_documents=40)


def write(tiny: TinyDataset, folder: Path, layout: Any = "packed", executor: Executor | None = None) -> dict[str, Any]:
    """Run the stage with a folder for its files."""
    folder.mkdir(exist_ok=True)
    config = BuildConfig(records=RecordsConfig(layout=layout, sequences_per_file=PER_FILE))
    context = Context(config, OutputFolder(tiny.root), Progress(quiet=True), open_dataset, executor or Here())
    return write_sequences(context, folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.array_record"))}


def expected(tiny: TinyDataset, folder: Path, layout: str) -> dict[str, bytes]:
    """The files of `write_records`, which reads the sequences one after another in the order of the records."""
    folder.mkdir()
    identity = OutputFolder(tiny.root).stages["pack"]["fingerprint"]
    own = np.arange(tiny.segments.num_sequences)
    orders = {"train": tiny.orders["balance"] if layout == "ordered" else own}
    orders["validation"] = np.arange(tiny.validation.num_sequences)
    for stem, part in (("train", tiny.segments), ("validation", tiny.validation)):
        arguments = (part, tiny.store.gather, "uint16", orders[stem], folder, stem)
        write_records(*arguments, sequences_per_file=PER_FILE, identity=identity)
    return contents(folder)


def small(monkeypatch: pytest.MonkeyPatch, run: int = 10, places: int = 40) -> None:
    """Let a run and a bucket have `run` records, and a file of places `places`."""
    monkeypatch.setattr(sorting, "_BUCKET_BYTES", run * RECORD_BYTES)
    monkeypatch.setattr(sorting, "_PLACES", places)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("layout", "executor"),
    [("packed", Here()), ("packed", Processes(1)), ("ordered", Here()), ("ordered", Processes(2))],
)
def test_every_executor_writes_the_same_bytes(tiny, tmp_path, monkeypatch, layout, executor) -> None:
    small(monkeypatch)
    counts = write(tiny, tmp_path / "jobs", layout, executor)
    assert contents(tmp_path / "jobs") == expected(tiny, tmp_path / "plain", layout)
    assert sum(counts["records"]["train"]) == tiny.segments.num_sequences
    assert not [path for path in (tmp_path / "jobs").iterdir() if path.is_dir()]  # no spool is left


@pytest.mark.parametrize(("run", "places"), [(1, 1), (3, 7), (PER_FILE, 10**6), (10**6, 10**6)])
def test_bytes_do_not_depend_on_the_size_of_buckets(tiny, tmp_path, monkeypatch, run, places) -> None:
    small(monkeypatch, run, places)
    monkeypatch.setattr(sorting, "_PIECE", 11)
    write(tiny, tmp_path / "jobs", "ordered")
    assert contents(tmp_path / "jobs") == expected(tiny, tmp_path / "plain", "ordered")


@pytest.mark.parametrize("layout", ["packed", "ordered"])
@pytest.mark.parametrize("error", [OSError("disk gone"), KeyboardInterrupt()])
def test_an_interrupted_run_goes_on_at_the_next_file(tiny, tmp_path, monkeypatch, layout, error) -> None:
    small(monkeypatch)
    from jax_diversity.streaming.records import jobs

    calls, told = iter(range(10**6)), jobs.told
    after = 5 if layout == "packed" else 14

    def failing(chunks):  # type: ignore[no-untyped-def]
        if next(calls) == after:
            raise error
        return told(chunks)

    for module in (jobs, sorting):
        monkeypatch.setattr(module, "told", failing)
    folder = tmp_path / "cut"
    with pytest.raises((OSError, UserError, KeyboardInterrupt)):
        write(tiny, folder, layout)
    sound = expected(tiny, tmp_path / "plain", layout)
    left = contents(folder)
    assert 0 < len(left) < len(sound)
    assert all(sound[name] == content for name, content in left.items())
    assert not list(folder.rglob("*.tmp"))
    recorded = {path: path.stat().st_mtime_ns for path in folder.glob("*.done.json")}
    monkeypatch.undo()
    small(monkeypatch)
    write(tiny, folder, layout)
    assert contents(folder) == sound
    assert all(path.stat().st_mtime_ns == time for path, time in recorded.items())


@pytest.mark.campaign
def test_runs_killed_at_random_moments(tiny, tmp_path) -> None:
    command = [sys.executable, "-m", "tests.support.killed_writers", str(tiny.root), str(tmp_path), "6"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2


@pytest.mark.parametrize("limit", [100, 2000, 30_000])
def test_a_full_disk_is_a_sentence_and_the_next_run_goes_on(tiny, tmp_path, monkeypatch, limit) -> None:
    small(monkeypatch, run=20)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(UserError, match=r"free (some )?space"):
            write(tiny, tmp_path / "jobs", "ordered")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert not list((tmp_path / "jobs").rglob("*.tmp"))
    write(tiny, tmp_path / "jobs", "ordered")
    assert contents(tmp_path / "jobs") == expected(tiny, tmp_path / "plain", "ordered")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 40)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("ending", ["records", "rows.npy", "documents.npy"])
@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
def test_a_spool_that_was_changed_between_the_passes(tiny, tmp_path, monkeypatch, ending, harm) -> None:
    small(monkeypatch)
    harmed = tmp_path / "jobs" / "spool" / f"run-000001.{ending}"

    class Harms(Here):
        def map(self, work, jobs):  # type: ignore[no-untyped-def]
            if work is sorting.write_ordered_file:
                harm(harmed)
            return super().map(work, jobs)

    with pytest.raises(UserError, match=r"Expected sorted sequences in .*spool.*, found: .*; the files were changed"):
        write(tiny, tmp_path / "jobs", "ordered", Harms())
    if harm is flip:
        shutil.rmtree(harmed.parent)  # as the sentence says: a file of the same size is not written again
        write(tiny, tmp_path / "jobs", "ordered")
    else:
        with pytest.warns(UserWarning, match="the job runs again"):
            write(tiny, tmp_path / "jobs", "ordered")
    assert contents(tmp_path / "jobs") == expected(tiny, tmp_path / "plain", "ordered")


def test_an_order_that_lacks_a_sequence_is_refused(tiny, tmp_path, monkeypatch) -> None:
    class Twice:
        def __len__(self) -> int:
            return tiny.segments.num_sequences

        def at(self, positions: np.ndarray) -> np.ndarray:
            return np.maximum(positions, 1)

    opened = type("Opened", (), {"open_ordering": lambda self, name: Twice()})
    monkeypatch.setattr(sorting, "opened", lambda dataset: opened())
    with pytest.raises(
        UserError, match="every sequence once in the ordering 'balance', found that sequence 0 is absent"
    ):
        sorting.invert.function(tmp_path / "places", ["", ""], "balance", 0, 10)


def test_a_range_of_sequences_has_their_segments_alone(tiny, tmp_path) -> None:
    root = shutil.copytree(tiny.root, tmp_path / "out")
    path = root / "sequences" / "segments.parquet"
    pq.write_table(pq.read_table(path), path, row_group_size=5)
    dataset = open_dataset(root)
    monkey = lambda stage, name: root / name  # noqa: E731  the changed file has another hash
    dataset.stored.file = monkey  # type: ignore[method-assign]
    for first, stop in ((0, 1), (0, 40), (13, 29), (tiny.segments.num_sequences - 1, tiny.segments.num_sequences)):
        found = dataset.segments_between("train", first, stop)
        wanted = tiny.segments.take(np.arange(first, stop))
        for column in wanted.COLUMNS:
            np.testing.assert_array_equal(getattr(found, column), getattr(wanted, column))
        assert (found.num_sequences, found.sequence_length) == (stop - first, wanted.sequence_length)
    path.write_bytes(b"PAR1")
    with pytest.raises(UserError, match="does not contain segments"):
        dataset.segments_between("train", 0, 1)


def test_only_the_token_files_of_the_documents_are_opened(tiny_dataset) -> None:
    dataset = open_dataset(tiny_dataset)
    whole = dataset.tokens
    starts = np.cumsum([0, *(file.num_documents for file in whole.files)])
    assert len(whole.files) > 2
    for first, last in ((0, 0), (starts[1] - 1, starts[1]), (starts[1], starts[2] - 1), (0, whole.num_documents - 1)):
        store, first_document = open_dataset(tiny_dataset).tokens_between(int(first), int(last))
        assert first_document in starts
        assert first_document <= first
        assert store.num_documents >= last - first_document + 1
        for document in {int(first), int(last)}:
            np.testing.assert_array_equal(store.document(document - first_document), whole.document(document))
    assert len(dataset.tokens_between(0, 0)[0].files) == 1
    assert dataset.tokens_between(0, 0)[0] is dataset.tokens_between(0, 0)[0]
