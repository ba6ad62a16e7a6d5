"""Schedules that a thread makes while they are followed: waiting readers, errors, ends of processes."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.locks import is_locked
from jax_diversity.streaming.run import background, making, stored
from tests.support.runs import batches, whole
from tests.support.tiny_dataset import write_tiny_dataset

SIZE = 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ahead")
    write_tiny_dataset(root / "web", num_documents=60, features="space")
    write_tiny_dataset(root / "code", num_documents=25, seed=1, features="space")
    assert jd.open_dataset(root / "web").num_sequences == SIZE
    return root


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_SHORTEST_PART", 1)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Holds every epoch after the first back until it is set."""
    event, made = threading.Event(), making._Orders._made

    def held(self: Any, chars: Any, number: int, settings: Any) -> np.ndarray:
        assert number == 0 or event.wait(60)
        return made(self, chars, number, settings)

    monkeypatch.setattr(making._Orders, "_made", held)
    yield event
    event.set()


@pytest.mark.parametrize("settings", [{"num_epochs": 3.5}, {"weights": [1, 2]}, {"weights": [1, 2], "joint": True}])
def test_parts_are_cuts_of_one_plan(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    datasets = [folder / "web", folder / "code"][: len(settings.get("weights", [0]))]
    settings = {"num_positions": 350, **settings} if "num_epochs" not in settings else settings
    run = jd.create_schedule(tmp_path / "parts", datasets, **settings)
    assert len(run.content.parts) == (4 if len(datasets) == 1 else 3)
    ahead = jd.create_schedule(tmp_path / "ahead", datasets, background=True, **settings).wait()
    np.testing.assert_array_equal(whole(ahead), whole(run))
    monkeypatch.setattr(making, "_SHORTEST_PART", 1 << 16)
    at_once = jd.create_schedule(tmp_path / "one", datasets, **settings)
    assert len(at_once.content.parts) == 1
    np.testing.assert_array_equal(whole(run), whole(at_once))


def test_a_run_is_followed_while_it_is_made(folder: Path, tmp_path: Path, gate: threading.Event) -> None:
    run = jd.create_schedule(tmp_path / "run", folder / "web", num_epochs=3, background=True)
    fingerprint = run.fingerprint
    assert len(run) == 3 * SIZE
    assert is_locked(run.root)
    assert [bool(part.fingerprint) for part in run.content.parts] == [True, False, False]
    with pytest.raises(jd.UserError, match="being written"):
        jd.skip_positions(run, 0, 1)
    loader = jd.make_loader(run, global_batch_size=10)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(9)]
    state = iterator.get_state()
    rest: list[Any] = []
    reader = threading.Thread(target=lambda: rest.extend(iterator))
    reader.start()
    reader.join(0.3)
    assert reader.is_alive()  # it waits for the second epoch
    assert not rest
    gate.set()
    reader.join(60)
    expected = batches(jd.create_schedule(tmp_path / "other", folder / "web", num_epochs=3), 10)
    for one, other in zip([*first, *rest], expected, strict=True):
        np.testing.assert_array_equal(one["inputs"], other["inputs"])
    # The state from before all was made belongs to the schedule that is now complete.
    again = jd.open_schedule(tmp_path / "run").wait()
    assert again.fingerprint == fingerprint
    resumed = iter(jd.make_loader(again, global_batch_size=10))
    resumed.set_state(state)
    np.testing.assert_array_equal(next(resumed)["inputs"], expected[9]["inputs"])


def test_what_ends_the_making_is_said_where_it_is_missed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = jd.create_schedule(tmp_path / "other", folder / "web", num_epochs=3)
    made = making._Orders._made

    def fails(self: Any, chars: Any, number: int, settings: Any) -> np.ndarray:
        if number == 2:
            raise MemoryError("no memory left")
        return made(self, chars, number, settings)

    monkeypatch.setattr(making._Orders, "_made", fails)
    run = jd.create_schedule(tmp_path / "run", folder / "web", num_epochs=3, background=True)
    with pytest.raises(
        jd.UserError, match=r"stopped before position 180 \(.*no memory left.*extend_schedule\(run, pos"
    ):
        run.wait()
    assert not is_locked(run.root)
    np.testing.assert_array_equal(run.at(np.arange(2 * SIZE)), whole(expected)[: 2 * SIZE])
    monkeypatch.undo()
    longer = jd.extend_schedule(jd.open_schedule(tmp_path / "run"), position=180, num_epochs=1)
    np.testing.assert_array_equal(whole(longer), whole(expected))
    # What fails before anything is made is raised where it was asked for.
    with pytest.raises(jd.UserError, match="Expected a folder without a schedule"):
        jd.create_schedule(tmp_path / "run", folder / "web", background=True)
    assert background.error_of(run.root) is not None


@pytest.mark.campaign
def test_a_process_that_ends_stops_its_thread(folder: Path, tmp_path: Path) -> None:
    program = f"""
import time
import jax_diversity as jd
from jax_diversity.streaming.run import making
making._SHORTEST_PART = 1
calls = []
def slow(count):
    calls.append(count)
    time.sleep(.05 if len(calls) > 1 else 0)
run = jd.create_schedule({str(tmp_path / "run")!r}, {str(folder / "web")!r}, num_epochs=500, background=True,
                         method="uniform_shuffle", advance=slow)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    left = jd.open_schedule(tmp_path / "run")
    assert left.content.parts[0].fingerprint
    assert not left.content.parts[-1].fingerprint
    with pytest.raises(jd.UserError, match=r"stopped before position \d"):
        left.wait()


@pytest.mark.campaign
def test_an_interrupt_ends_the_thread(folder: Path, tmp_path: Path) -> None:
    # A job in the background of a shell ignores interrupts from its start.
    program = f"""
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import jax_diversity as jd
def slow(count):
    print("at work", flush=True)
    time.sleep(.1)
jd.create_schedule({str(tmp_path / "run")!r}, {str(folder / "web")!r}, num_epochs=500, background=True,
                   method="uniform_shuffle", advance=slow)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors
    assert not (tmp_path / "run" / "schedule.json").exists()


def test_few_files_are_open_at_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_MOST_FILES", 2)
    run = jd.create_schedule(tmp_path / "run", folder / "web", num_epochs=7)
    assert len(run.content.parts) == 7
    epochs = whole(run).reshape(7, SIZE)
    assert len(run._files) == 2
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(SIZE))
    np.testing.assert_array_equal(run.at(np.array([0, 6 * SIZE, 3 * SIZE])), epochs[[0, 6, 3], 0])


def _make_and_die(path: str, dataset: str) -> None:
    import os

    making._SHORTEST_PART = 1
    write = making.write_array

    def once(path: Path, array: np.ndarray) -> None:
        if path.name != "part-000000.npy":
            os._exit(9)
        write(path, array)

    making.write_array = once
    jd.create_schedule(path, dataset, num_epochs=2, background=True).wait()


@pytest.mark.campaign
def test_a_kill_leaves_what_was_made(folder: Path, tmp_path: Path) -> None:
    arguments = (str(tmp_path / "run"), str(folder / "web"))
    process = multiprocessing.get_context("spawn").Process(target=_make_and_die, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 9
    left = jd.open_schedule(tmp_path / "run")
    assert len(left.at(np.arange(SIZE))) == SIZE
    with pytest.raises(jd.UserError, match="stopped before position 90; continue with extend_schedule"):
        left.at(np.array([SIZE]))
    with pytest.raises(jd.UserError, match="stopped before position 90; continue with extend_schedule"):
        jd.extend_schedule(left, num_epochs=1)  # its own hold of the folder is not a sign of life
    whole_run = jd.extend_schedule(left, position=SIZE, num_epochs=1)
    expected = jd.create_schedule(tmp_path / "other", folder / "web", num_epochs=2)
    np.testing.assert_array_equal(whole(whole_run), whole(expected))
