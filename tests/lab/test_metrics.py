"""What a run writes: TensorBoard reads it back, a cut-off run leaves no step twice, and no writer ends a run."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
import types
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.errors import UserError
from jax_diversity.lab.metrics import read_log
from jax_diversity.lab.settings import TrainConfig
from jax_diversity.lab.training import train, train_on_each
from jax_diversity.report.training import training_values
from tests.support.batch_values import assert_same_values, expected_values
from tests.support.documented_model import train_on
from tests.support.example_datasets import build_examples
from tests.support.tiny_dataset import write_tiny_dataset

pytestmark = pytest.mark.campaign

CONFIG = TrainConfig(
    num_steps=7,
    batch_size=5,
    num_layers=1,
    num_heads=2,
    width=8,
    warmup_steps=2,
    checkpoint_every=3,
    validate_every=3,
    validation_batches=1,
    diagnose_every=2,
    metrics=("tensorboard",),
)
TIMES = {"tokens_per_second", "step_seconds", "input_wait_seconds", "input_wait_share"}


class KillError(Exception):
    pass


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> jd.Dataset:
    return jd.open_dataset(write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out").root)


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """A run that nothing cut off, and its folder."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return train(dataset, CONFIG, folder), folder


@pytest.fixture(autouse=True)
def reader_of_its_own(monkeypatch):
    """TensorBoard's reader without TensorFlow, which takes ten seconds to import and which users may not have."""
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Name -> steps and values, as TensorBoard's own reader has them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    names = reader.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in reader.Scalars(name)] for name in names}


def assert_shows(folder: Path, steps) -> None:
    """TensorBoard shows these records, each once."""
    shown = scalars(folder)
    assert set(shown) == {name for step in steps for name in step} - {"step"}
    for name, found in shown.items():
        assert found == [(step["step"], pytest.approx(step[name], rel=1e-6)) for step in steps if name in step]


def without_times(steps) -> list[dict]:
    return [{name: value for name, value in step.items() if name not in TIMES} for step in steps]


def test_records_hold_balance_waits_and_diagnoses(dataset, whole):
    run, _ = whole
    order = jd.make_run(dataset, positions=np.tile(dataset.orderings["balance"], 2))
    for record in run.steps:
        expected = expected_values(dataset.characteristics, order, 5 * record["step"], 5)
        assert_same_values({name: record[name] for name in expected}, expected)
        assert record["input_wait_seconds"] > 0
        waited, worked = record["input_wait_seconds"], record["step_seconds"]
        assert record["input_wait_share"] == pytest.approx(waited / (waited + worked))
    for name, low, high in (("gradient_diversity", 1 / 5, 5), ("stable_rank", 1, 8)):
        steps, values = run.curve(name)
        assert steps.tolist() == [1, 3, 5]
        assert ((low <= values) & (values <= high)).all()
    assert run.curve("validation_loss")[0].tolist() == [2, 5, 6]
    with pytest.raises(UserError, match=r"among batch_tv/cluster.*validation_loss_low, found 'accuracy'"):
        run.curve("accuracy")


def test_diagnoses_change_nothing_else(dataset, whole, tmp_path):
    plain = train(dataset, dataclasses.replace(CONFIG, diagnose_every=0, metrics=()), tmp_path / "run")
    assert not (tmp_path / "run" / "tensorboard").exists()
    np.testing.assert_array_equal(plain.curve("loss")[1], whole[0].curve("loss")[1])
    assert not [step for step in plain.steps if "stable_rank" in step or "gradient_diversity" in step]


def test_tensorboard_reads_the_log(whole):
    run, folder = whole
    assert_shows(folder / "tensorboard", run.steps)


@pytest.mark.parametrize("killed_after", [2, 5])
def test_a_killed_run_writes_every_step_once_and_the_same(dataset, whole, tmp_path, killed_after):
    def kill(step):
        if step["step"] == killed_after - 1:
            raise KillError

    with pytest.raises(KillError):
        train(dataset, CONFIG, tmp_path / "run", on_step=kill)
    assert len(scalars(tmp_path / "run" / "tensorboard")["loss"]) == killed_after
    given: list[int] = []
    run = train(dataset, CONFIG, tmp_path / "run", writers=[lambda step, values: given.append(step)])
    assert given == list(range(killed_after // 3 * 3, 7))
    assert_shows(tmp_path / "run" / "tensorboard", run.steps)
    assert read_log(tmp_path / "run" / "log.jsonl")[1] == list(run.steps)
    for found, expected in zip(without_times(run.steps), without_times(whole[0].steps), strict=True):
        assert found == pytest.approx(expected, rel=1e-4)


def test_tensorboard_asked_for_late_begins_with_the_log(dataset, tmp_path):
    train(dataset, dataclasses.replace(CONFIG, metrics=()), tmp_path / "run")
    run = train(dataset, CONFIG, tmp_path / "run", on_step=lambda step: pytest.fail("a step was taken"))
    assert len(run.steps) == 7
    assert_shows(tmp_path / "run" / "tensorboard", run.steps)


def test_no_writer_ends_a_run(dataset, whole, tmp_path):
    calls: list[int] = []

    def failing(step, values):
        calls.append(step)
        if step == 2:
            raise ConnectionError("gone")

    later: list[int] = []
    with pytest.warns(UserWarning, match=r"failed at step 2 \(ConnectionError: gone\)"):
        run = train(dataset, CONFIG, tmp_path / "run", writers=[failing, lambda step, values: later.append(step)])
    assert calls == [0, 1, 2]
    assert later == list(range(7))
    np.testing.assert_array_equal(run.curve("loss")[1], whole[0].curve("loss")[1])


def test_a_writer_continues_with_its_run(tmp_path):
    with closing(jd.TensorBoardWriter(tmp_path / "board")) as write:
        for step in range(5):
            write(step, {"loss": float(step)})
    with closing(jd.TensorBoardWriter(tmp_path / "board", first_step=3)) as write:
        write(3, {"loss": 30.0})
    assert scalars(tmp_path / "board") == {"loss": [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0)]}
    path, header = tmp_path / "lines" / "log.jsonl", {"dataset": "d", "ordering": "o"}
    with closing(jd.JsonLinesWriter(path, header)) as write:
        for step in range(5):
            write(step, {"loss": float(step)})
    with closing(jd.JsonLinesWriter(path, header, first_step=3)) as write:
        write(3, {"loss": 30.0})
    with closing(jd.JsonLinesWriter(path)) as write:
        write(4, {"loss": 40.0, "batch_tv/cluster": 0.25})
    found, steps = read_log(path)
    assert found == header
    assert [(step["step"], step["loss"]) for step in steps] == [(0, 0), (1, 1), (2, 2), (3, 30), (4, 40)]
    assert json.loads(path.read_text().splitlines()[-1]) == {"step": 4, "loss": 40.0, "batch_tv/cluster": 0.25}


def test_values_are_readable_before_the_writer_is_closed(tmp_path):
    """A run that is killed leaves all that it wrote."""
    write, lines = jd.TensorBoardWriter(tmp_path / "board"), jd.JsonLinesWriter(tmp_path / "log.jsonl")
    write(0, {"loss": 2.0})
    lines(0, {"loss": 2.0})
    assert scalars(tmp_path / "board") == {"loss": [(0, 2.0)]}
    assert read_log(tmp_path / "log.jsonl")[1] == [{"step": 0, "loss": 2.0}]
    write.close()
    lines.close()


def test_without_the_extra_nothing_is_begun(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    sentence = r"Expected the library tensorboard, .*pip install 'jax-diversity\[tensorboard\]'"
    with pytest.raises(UserError, match=sentence):
        train(dataset, CONFIG, tmp_path / "run")
    with pytest.raises(UserError, match=sentence):
        jd.TensorBoardWriter(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "begin",
    [
        lambda dataset, folder: train(dataset, CONFIG, folder),
        lambda dataset, folder: jd.TensorBoardWriter(folder),
        lambda dataset, folder: jd.JsonLinesWriter(folder / "log.jsonl"),
    ],
)
def test_a_folder_that_cannot_be_made_is_a_sentence(dataset, tmp_path, begin):
    (tmp_path / "file").write_text("words")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match=r"folder that can be written, found .*choose another folder"):
            begin(dataset, folder)
    assert (tmp_path / "file").read_text() == "words"


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("diagnose_every", -1, r"train\.diagnose_every >= 0, found -1"),
        ("metrics", ("wandb",), r"train\.metrics to be one of tensorboard, found .wandb."),
    ],
)
def test_impossible_metrics_are_a_sentence(dataset, tmp_path, name, value, sentence):
    config = dataclasses.replace(CONFIG)
    object.__setattr__(config, name, value)  # past the type checker of the tests, as users have it
    with pytest.raises(UserError, match=sentence):
        train(dataset, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_verb_writes_them(tmp_path, capsys):
    out = write_tiny_dataset(tmp_path / "out").root
    options = "--train.num-steps 4 --train.batch-size 5 --train.num-layers 1 --train.num-heads 2 --train.width 8"
    options += " --train.diagnose-every 2 --train.metrics tensorboard --quiet"
    assert main(["train", "--out", str(out), *options.split()]) == 0
    _, steps = read_log(out / "training" / "balance" / "log.jsonl")
    assert [step["step"] for step in steps if "stable_rank" in step] == [1, 3]
    assert_shows(out / "training" / "balance" / "tensorboard", steps)
    assert main(["train", "--out", str(out), "--train.diagnose-every", "-1", "--quiet"]) == 2
    assert "--train.diagnose-every >= 0, found -1" in capsys.readouterr().err


def test_the_report_reads_the_records(whole):
    values = training_values("balance", whole[0].steps)
    for name in ("gradient_diversity", "stable_rank", "input_wait"):
        assert values[name] is not None, name
    assert values["num_steps"] == 7


def test_orderings_are_compared_by_runs_that_differ_in_nothing_else(dataset, whole, tmp_path):
    done: list[int] = []
    runs = train_on_each(dataset, CONFIG, tmp_path, advance=done.append)
    assert list(runs) == ["uniform_shuffle", "balance"]
    assert sum(done) == 14
    assert without_times(runs["balance"].steps) == without_times(whole[0].steps)
    alone = train(dataset, dataclasses.replace(CONFIG, ordering="uniform_shuffle"), tmp_path / "alone")
    assert without_times(runs["uniform_shuffle"].steps) == without_times(alone.steps)
    assert runs["uniform_shuffle"].curve("loss")[1].tolist() != runs["balance"].curve("loss")[1].tolist()
    again = train_on_each(dataset, CONFIG, tmp_path)
    assert again == runs
    for orderings, sentence in (
        ((), "at least one, found"),
        (("balance", "balance"), "different orderings"),
        (("balance", "best"), "Unknown ordering 'best'"),
    ):
        with pytest.raises(UserError, match=sentence):
            train_on_each(dataset, CONFIG, tmp_path / "none", orderings)
    assert not (tmp_path / "none").exists()


class FakeRun:
    """What `wandb.init` gives, as far as the page uses it."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        assert type(values) is dict  # wandb takes no other mapping
        self.logged.append((step, values))


def test_the_page_runs_as_it_is_written(make_once, tmp_path, monkeypatch, capsys):
    """With the five lines that a user of wandb writes, and a report that draws the loop of one's own."""
    shutil.copytree(make_once("examples", build_examples) / "dataset", tmp_path / "dataset")
    monkeypatch.chdir(tmp_path)
    run = FakeRun()
    fake: Any = types.ModuleType("wandb")
    fake.init = lambda project: run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    page = Path(__file__).parents[2] / "docs" / "training.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "training.md", "exec"), names)
    train_on(names["batch"])
    dataset = jd.open_dataset("dataset")
    assert [step for step, _ in run.logged] == list(range(dataset.num_sequences // 64))
    deviation = jd.measure(dataset.characteristics, dataset.orderings["balance"], windows=(64,)).prefix_l2["cluster"]
    for step, values in run.logged:
        assert values["prefix_l2/cluster"] == pytest.approx(deviation[64 * (step + 1) - 1], abs=1e-9)
    written = read_log(Path("metrics.jsonl"))[1]
    assert [step["step"] for step in written] == list(range(1, dataset.num_sequences // 16, 2))
    assert_shows(Path("board"), written)
    assert names["values"] == {name: value for name, value in run.logged[3][1].items() if name in names["values"]}
    assert names["expected"] == pytest.approx([5.2] * len(run.logged))
    assert names["noise"].deviations[8] == pytest.approx(0.1 / 8**0.5, rel=0.1)
    assert float(names["diversity"]) == pytest.approx(1.0)
    assert float(names["rank"]) == pytest.approx(1.0)
    assert main(["report", "--out", "dataset", "--quiet"]) == 0
    (drawn,) = json.loads(Path("dataset/report.json").read_text(encoding="utf-8"))["training"]
    assert (drawn["ordering"], drawn["loss"]["best"]) == ("balance", 4.8)
