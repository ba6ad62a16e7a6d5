"""Runs that are cut off: interrupted, killed, gone on with, refused. Whatever happens, the ordering is the same."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_diversity import Characteristics, Objective, Ordering, order
from jax_diversity.counts.targets import Targets
from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering import greedy, running
from tests.support.synthetic import synthetic_characteristics

STEPS = 64
NUM_SEQUENCES = 1100  # more than 1024, so that `balance` halves its stream


@pytest.fixture(scope="module")
def chars() -> Characteristics:
    return synthetic_characteristics(NUM_SEQUENCES, num_clusters=12, num_bins=4, last_sequence="pad")


@pytest.fixture(autouse=True)
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STEPS_PER_CALL", STEPS)
    monkeypatch.setattr(greedy, "_REPACK_ABOVE", 500)


WINDOWS = Objective(windows=(16, 64))
RUNS: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy", "objective": WINDOWS},
    "greedy_pool": {"method": "greedy_pool", "objective": WINDOWS, "pool_size": 48, "seed": 3},
    "balance": {"method": "balance", "objective": WINDOWS, "pool_size": 48, "seed": 3},
}


def variants(chars: Characteristics, name: str) -> dict[str, dict[str, Any]]:
    """A run as it is, with targets that move, and as one that goes on from consumed sequences."""
    uniform = np.full(12, 1 / 12)
    targets = Targets.linear(
        {"cluster": chars.target_share("cluster")}, {"cluster": uniform}, chars.num_sequences, num_phases=5
    )
    consumed = np.random.default_rng(8).permutation(chars.num_sequences)[:150]
    return {
        "plain": RUNS[name],
        "targets": {**RUNS[name], "targets": targets},
        "consumed": {**RUNS[name], "targets": {"cluster": uniform}, "consumed": consumed},
    }


class Interrupt:
    """An `advance` that raises once so many positions are filled."""

    def __init__(self, after: int) -> None:
        self.left, self.told = after, 0

    def __call__(self, amount: int) -> None:
        self.told += amount
        self.left -= amount
        if self.left <= 0:
            raise KeyboardInterrupt


def interrupted(chars: Characteristics, path: Path, after: int, **run: Any) -> int:
    """Start a run and interrupt it; how many positions it told of."""
    interrupt = Interrupt(after)
    with pytest.raises(KeyboardInterrupt):
        order(chars, folder=path, advance=interrupt, **run)
    return interrupt.told


@pytest.mark.first(2)
@pytest.mark.parametrize("variant", ["plain", "targets", "consumed"])
@pytest.mark.parametrize("name", RUNS)
def test_interrupted_runs_end_as_if_they_were_not(
    name: str, variant: str, chars: Characteristics, tmp_path: Path
) -> None:
    run = variants(chars, name)[variant]
    expected = order(chars, **run)
    path = tmp_path / "run"
    to_place = len(expected) - len(run.get("consumed", ()))
    for after in (1, 600, to_place) if variant == "plain" else (600,):
        told = interrupted(chars, path, after, **run)
        assert told >= after
        assert (path / "checkpoint").is_file()
        resumed: list[int] = []
        result = order(chars, folder=path, advance=resumed.append, **run)
        np.testing.assert_array_equal(result.indices, expected.indices)
        assert sum(resumed) == to_place
        assert resumed[0] == told
        assert not list(path.iterdir())
    assert type(result) is type(expected) is Ordering
    assert result.info == expected.info


@pytest.mark.first(1)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_interrupted_again_and_again(name: str, chars: Characteristics, tmp_path: Path) -> None:
    expected = order(chars, **RUNS[name]).indices
    path = tmp_path / "run"
    done = 0
    # Every state that greedy goes on from has tables of its own size, to be compiled for.
    while done < len(expected) - 6 * STEPS:
        done = interrupted(chars, path, done + 6 * STEPS, **RUNS[name])
    # At once, before anything new is placed: what is kept stays.
    assert interrupted(chars, path, 1, **RUNS[name]) == done
    np.testing.assert_array_equal(order(chars, folder=path, **RUNS[name]).indices, expected)


def test_other_lengths_of_a_call_may_go_on(
    chars: Characteristics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an update that changed nothing but how often progress is told."""
    expected = order(chars, **RUNS["greedy"]).indices
    interrupted(chars, tmp_path / "run", 300, **RUNS["greedy"])
    monkeypatch.setattr(running, "STEPS_PER_CALL", 1000)
    np.testing.assert_array_equal(order(chars, folder=tmp_path / "run", **RUNS["greedy"]).indices, expected)


def test_a_run_without_a_checkpoint_leaves_no_file(
    chars: Characteristics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "_SECONDS_BETWEEN_SAVES", 0.0)
    with pytest.raises(KeyboardInterrupt):
        order(chars, advance=Interrupt(200), **RUNS["greedy"])
    order(chars, **RUNS["greedy"])
    assert not list(tmp_path.iterdir())


def test_states_are_looked_at_only_where_they_are_saved(
    chars: Characteristics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy from the device of all that is placed, after every call, would cost more than the calls."""
    times = [0]
    saved = greedy.GreedySelector.saved

    def counted(selector: greedy.GreedySelector) -> dict[str, np.ndarray]:
        times[0] += 1
        return saved(selector)

    monkeypatch.setattr(greedy.GreedySelector, "saved", counted)
    order(chars, **RUNS["greedy"])
    order(chars, folder=tmp_path / "run", **RUNS["greedy"])
    assert times == [0]
    monkeypatch.setattr(running, "_SECONDS_BETWEEN_SAVES", 0.0)
    order(chars, folder=tmp_path / "run", **RUNS["greedy"])
    assert times[0] > 5


def test_other_errors_pass_and_keep_what_was_saved(
    chars: Characteristics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_SECONDS_BETWEEN_SAVES", 0.0)
    path = tmp_path / "run"

    def fail(amount: int, done: list[int] = [0]) -> None:  # noqa: B006 - counts over the calls
        done[0] += amount
        if done[0] > 400:
            raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="the terminal is gone"):
        order(chars, folder=path, advance=fail, **RUNS["greedy_pool"])
    told: list[int] = []
    result = order(chars, folder=path, advance=told.append, **RUNS["greedy_pool"])
    assert told[0] >= 300
    np.testing.assert_array_equal(result.indices, order(chars, **RUNS["greedy_pool"]).indices)


# Killed


KILLED = """
import glob, os, signal, sys
import numpy as np
from jax_diversity import Objective, order
from jax_diversity.ordering import greedy, running
from tests.support.synthetic import synthetic_characteristics

running.STEPS_PER_CALL, running._SECONDS_BETWEEN_SAVES, greedy._REPACK_ABOVE = 64, 0.0, 500
chars = synthetic_characteristics(1100, num_clusters=12, num_bins=4, last_sequence="pad")
method, path, moment = sys.argv[1:]
options = {} if method == "greedy" else {"pool_size": 48, "seed": 3}
done = 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def advance(amount):
    global done
    done += amount
    if done < 500:
        return
    if moment == "after a call":
        die()
    # In the middle of writing the file: half of it is there, under its temporary name.
    fsync = os.fsync
    os.fsync = lambda handle: (os.ftruncate(os.open(glob.glob(path + "/checkpoint.*.tmp")[0], os.O_RDWR), 700), die())

order(chars, method, objective=Objective(windows=(16, 64)), folder=path, advance=advance, **options)
"""


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "moment"), [("greedy", "in the middle of a save"), ("balance", "after a call")], ids=str
)
def test_killed_runs_end_as_if_they_were_not(name: str, moment: str, chars: Characteristics, tmp_path: Path) -> None:
    path = tmp_path / "run"
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, name, str(path), moment],
        env=environment,
        cwd=root,
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert (path / "checkpoint").is_file()
    assert any(path.glob("checkpoint.*.tmp")) == (moment == "in the middle of a save")
    told: list[int] = []
    result = order(chars, folder=path, advance=told.append, **RUNS[name])
    assert 400 <= told[0] < 512
    np.testing.assert_array_equal(result.indices, order(chars, **RUNS[name]).indices)
    assert not (path / "checkpoint").exists()


# Refused


@pytest.fixture
def kept(chars: Characteristics, tmp_path: Path) -> Path:
    """The checkpoint of a pool's run."""
    path = tmp_path / "run"
    interrupted(chars, path, 300, **RUNS["greedy_pool"])
    return path / "checkpoint"


OTHERS: dict[str, Callable[[Characteristics], dict[str, Any]]] = {
    "counts": lambda chars: {},
    "method": lambda chars: {**RUNS["balance"]},
    "seed": lambda chars: {"seed": 4},
    "objective": lambda chars: {"objective": Objective(windows=(16, 65))},
    "options": lambda chars: {"pool_size": 49},
    "another option": lambda chars: {"shuffle": False},
    "targets": lambda chars: {"targets": {"cluster": np.ones(12)}},
    "consumed": lambda chars: {"consumed": [0]},
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_runs_checkpoint_is_refused(other: str, kept: Path, chars: Characteristics) -> None:
    before = kept.read_bytes()
    run = {**RUNS["greedy_pool"], **OTHERS[other](chars)}
    if other == "counts":
        chars = Characteristics.from_counts(chars.counts, sequence_length=4096)
    sentence = (
        rf"The checkpoint at {kept} belongs to another run \([0-9a-f]{{16}}, this one is [0-9a-f]{{16}}\): other "
        "counts, objective, seed or options; delete it or name another file"
    )
    with pytest.raises(UserError, match=sentence):
        order(chars, folder=kept.parent, **run)
    assert kept.read_bytes() == before


def test_damaged_files_are_refused_whatever_the_damage(kept: Path) -> None:
    whole = kept.read_bytes()
    identity = np.load(io.BytesIO(whole[32:]))["identity"].item()
    checkpoint = running.Checkpoint(kept, identity)
    assert checkpoint.load() is not None
    rng = np.random.default_rng(0)
    # All of the table of contents at the end, and some of the rest.
    places = {*range(len(whole) - 500, len(whole)), *rng.integers(0, len(whole), 500).tolist()}
    damaged = [whole[:size] for size in rng.integers(0, len(whole), 200)]
    damaged += [whole[:place] + bytes([whole[place] ^ 0x81]) + whole[place + 1 :] for place in sorted(places)]
    damaged += [b"", whole + b"\0", whole[32:], whole[:32], bytes(len(whole)), whole[:-64] + bytes(64)]
    for content in damaged:
        kept.write_bytes(content)
        with pytest.raises(UserError, match=rf"Expected a run's checkpoint at {kept}, found another kind of file"):
            checkpoint.load()


@pytest.mark.parametrize("kind", ["ordering", "archive", "text", "pickle"])
def test_files_that_are_no_checkpoint_are_refused_and_stay(kind: str, chars: Characteristics, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write: dict[str, Callable[[], Any]] = {
        "ordering": lambda: np.save(path.open("wb"), np.arange(3)),
        "archive": lambda: np.savez(path.open("wb"), identity=np.array("x"), placed=np.arange(3)),
        "text": lambda: path.write_text("my notes"),
        "pickle": lambda: np.save(path.open("wb"), np.array([{}], object), allow_pickle=True),
    }
    write[kind]()
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"Expected a run's checkpoint at .*delete it or name another file"):
        order(chars, "greedy", folder=tmp_path)
    assert path.read_bytes() == before


def test_places_that_no_checkpoint_can_be_written_to_are_refused_before_the_run(
    chars: Characteristics, tmp_path: Path
) -> None:
    told: list[int] = []
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(UserError, match=r"Expected a run's checkpoint at .*found .*[Dd]irectory"):
        order(chars, "greedy", folder=tmp_path, advance=told.append)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Expected a folder that can be written, found .*file"):
        order(chars, "greedy", folder=tmp_path / "file", advance=told.append)
    assert not told


def test_a_checkpoint_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    checkpoint = running.Checkpoint(path, "identity")
    checkpoint.save({"placed": np.arange(3)})

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            checkpoint.save({"placed": np.arange(9)})
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    loaded = checkpoint.load()
    assert loaded is not None
    assert loaded["placed"].tolist() == [0, 1, 2]
    checkpoint.remove()
    checkpoint.remove()
    assert checkpoint.load() is None


def test_states_are_saved_when_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: now[0])
    checkpoint = running.Checkpoint(tmp_path / "run", "identity")
    for seconds, expected in ((0, False), (29, False), (2, True)):
        now[0] += seconds
        checkpoint.save_when_due(lambda: {"placed": np.arange(3)})
        assert (tmp_path / "run").exists() == expected
    checkpoint.remove()
    checkpoint.save_when_due(lambda: {"placed": np.arange(3)})
    assert not (tmp_path / "run").exists()
