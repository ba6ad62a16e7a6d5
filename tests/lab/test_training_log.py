"""A run's own log: at its place, with its header, continued after a kill, never of another run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.lab.metrics import read_log
from tests.support.tiny_dataset import write_tiny_dataset


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out").root


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "out")


def fill(log: jd.TrainingLog, steps: range, loss: float = 1.0) -> None:
    for step in steps:
        log(step, {"loss": loss})


def losses(path: Path) -> list[tuple[int, float]]:
    return [(step["step"], step["loss"]) for step in read_log(path)[1]]


def test_it_is_where_the_lab_trains_and_names_its_run(out: Path, tmp_path: Path) -> None:
    dataset = jd.open_dataset(out)
    with jd.TrainingLog(dataset, "balance", settings={"rate": 0.1}) as log:
        log(0, {"loss": jnp.float32(2.5), "count": 3, "mean": np.float64(0.5)})
    header, steps = read_log(out / "training" / "balance" / "log.jsonl")
    fingerprint = dataset.orderings["balance"].fingerprint
    assert header == {
        "dataset": dataset.fingerprint,
        "ordering": fingerprint,
        "order": {"method": "balance"},
        "settings": {"rate": 0.1},
    }
    assert steps == [{"step": 0, "loss": 2.5, "count": 3, "mean": 0.5}]
    order = tmp_path / "mine.npy"
    np.save(order, np.arange(dataset.num_sequences))
    with jd.TrainingLog(out, order):
        pass
    assert [path.name for path in (out / "training").glob("mine-*/log.jsonl")] == ["log.jsonl"]
    run = jd.create_schedule(tmp_path / "run", out, num_epochs=2)
    with jd.TrainingLog(run) as log:
        fill(log, range(2))
    header, steps = read_log(tmp_path / "run" / "training" / "log.jsonl")
    assert (header["ordering"], len(steps)) == (run.fingerprint, 2)
    longer = jd.extend_schedule(run, num_epochs=1)
    with jd.TrainingLog(longer) as log:  # it continues the version whose log this is
        log(2, {"loss": 3.0})
    header, steps = read_log(tmp_path / "run" / "training" / "log.jsonl")
    assert (header["ordering"], len(steps)) == (longer.fingerprint, 3)


def test_opening_removes_nothing_and_the_first_step_removes_the_later_ones(out: Path) -> None:
    path = out / "training" / "balance" / "log.jsonl"
    with jd.TrainingLog(out, "balance") as log:
        fill(log, range(10))
    before = path.read_bytes()
    with jd.TrainingLog(out, "balance") as log:
        assert [step["step"] for step in log.steps] == list(range(10))
    assert path.read_bytes() == before
    with jd.TrainingLog(out, "balance") as log:
        log(7, {"loss": 2.0})
        log(8, {"loss": 2.0})
        log(7, {"other": 5.0})  # a step may be written several times
        log(7, {"loss": 3.0})
    assert losses(path) == [*((step, 1.0) for step in range(7)), (7, 3.0), (8, 2.0)]
    assert read_log(path)[1][7] == {"step": 7, "loss": 3.0, "other": 5.0}
    with jd.TrainingLog(out, "balance") as log:
        log(20, {"loss": 4.0})
    assert losses(path)[-2:] == [(8, 2.0), (20, 4.0)]


def test_it_is_the_writer_of_watched_batches(out: Path) -> None:
    loader = jd.make_loader(out, ordering="balance", global_batch_size=5)
    with jd.TrainingLog(out, "balance") as log:
        for step, _ in enumerate(jd.watch_batches(loader, log)):
            log(step, {"loss": 1.0 + step})
    steps = log_of(out)
    assert [step["loss"] for step in steps] == [1.0 + step for step in range(len(loader))]
    assert all("batch_tv/cluster" in step for step in steps)


def log_of(out: Path) -> list[dict[str, Any]]:
    return read_log(out / "training" / "balance" / "log.jsonl")[1]


WRITER = """
import sys
import jax_diversity as jd
log = jd.TrainingLog(sys.argv[1], "balance")
for step in range(1_000_000):
    log(step, {f"value/{number}": 1.0 for number in range(300)})
    if step == 20:
        print(step, flush=True)
"""


@pytest.mark.campaign
def test_a_kill_in_mid_write_loses_no_earlier_step(out: Path) -> None:
    """A process is killed while it writes long lines as fast as it can; its log is then continued."""
    path = out / "training" / "balance" / "log.jsonl"
    program = subprocess.Popen([sys.executable, "-c", WRITER, str(out)], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "20\n"
    program.kill()
    program.communicate()
    with path.open("ab") as file:
        file.write(b'{"step": 77777, "val')
    steps = log_of(out)
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert len(steps) > 20
    with jd.TrainingLog(out, "balance") as log:
        log(15, {"loss": 1.0})
    assert [step["step"] for step in log_of(out)] == list(range(16))
    assert b"77777" not in path.read_bytes()


def test_a_log_of_another_run_is_refused_and_stays(out: Path, tmp_path: Path) -> None:
    other = write_tiny_dataset(tmp_path / "other", seed=3).root
    with jd.TrainingLog(other, "balance") as log:
        fill(log, range(3))
    shutil.copytree(other / "training", out / "training")
    path = out / "training" / "balance" / "log.jsonl"
    before = path.read_bytes()
    with pytest.raises(jd.UserError, match=r"Expected the log of a run on the dataset of fingerprint .* move "):
        jd.TrainingLog(out, "balance")
    header, *steps = path.read_text().splitlines()
    about = {**json.loads(header), "dataset": jd.open_dataset(out).fingerprint}
    path.write_text("\n".join([json.dumps(about), *steps]) + "\n")
    made = r"of the ordering \w{16} \(method balance\); to continue .* move .*training/balance away"
    with pytest.raises(
        jd.UserError, match=rf"Expected the log of a run on the ordering of fingerprint \w{{16}}, .* {made}"
    ):
        jd.TrainingLog(out, "balance")
    assert path.read_text().splitlines()[1:] == before.decode().splitlines()[1:]


def test_one_log_at_a_time_and_any_context_may_close_it(out: Path) -> None:
    log = jd.TrainingLog(out, "balance")
    with ThreadPoolExecutor(1) as other, pytest.raises(jd.UserError, match="is being written by this process"):
        other.submit(jd.TrainingLog, out, "balance").result()
    copy_context().run(log.close)
    with pytest.raises(jd.UserError, match=r"Expected an open log, found .*log\.jsonl, which was closed"):
        log(0, {"loss": 1.0})
    with jd.TrainingLog(out, "balance") as log:
        fill(log, range(1))


def test_only_the_first_process_writes(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with jd.TrainingLog(out, "balance") as log:
        fill(log, range(3))
    assert not (out / "training").exists()


def test_bad_input_is_one_sentence(out: Path, tmp_path: Path) -> None:
    with pytest.raises(jd.UserError, match="Unknown ordering 'best'"):
        jd.TrainingLog(out, "best")
    chars = jd.open_dataset(out).characteristics
    run = jd.make_run(chars, np.arange(chars.num_sequences))
    with pytest.raises(jd.UserError, match="found a run of token counts, which has no folder; give a folder"):
        jd.TrainingLog(run)
    with jd.TrainingLog(out, "balance") as log:
        with pytest.raises(jd.UserError, match="Expected step to be a whole number >= 0, found -1"):
            log(-1, {"loss": 1.0})
        with pytest.raises(jd.UserError, match=r"Expected the value 'loss' to be a number, found '1\.5a'"):
            log(0, {"loss": "1.5a"})
    assert log_of(out) == []
    (tmp_path / "file").write_text("words")
    with pytest.raises(jd.UserError, match="Expected a folder that can be written"):
        jd.TrainingLog(out, "balance", folder=tmp_path / "file")
