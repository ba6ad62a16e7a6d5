"""The lab's model sees only its segment, its loss is exact, and a run resumes exactly."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.lab.metrics import read_log
from jax_diversity.lab.model import Gpt, summed_cross_entropy
from jax_diversity.lab.run import count_parameters, train
from jax_diversity.lab.settings import TrainConfig
from tests.tiny_dataset import write_tiny_dataset

CONFIG = TrainConfig(
    num_steps=12,
    batch_size=5,
    num_layers=2,
    num_heads=2,
    width=16,
    warmup_steps=3,
    checkpoint_every=4,
    validate_every=5,
    validation_batches=2,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> jd.Dataset:
    return jd.open_dataset(write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out").root)


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """A run that nothing cut off, and its folder."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return train(dataset, CONFIG, folder), folder


def losses(run) -> list[tuple[float, float | None]]:
    return [(step["loss"], step.get("validation_loss")) for step in run.steps]


class KillError(Exception):
    pass


def test_a_run_learns_logs_and_says_what_it_came_to(dataset, whole):
    run, folder = whole
    assert [step["step"] for step in run.steps] == list(range(12))
    assert run.steps[0]["loss"] == pytest.approx(np.log(64), abs=0.3)
    assert run.loss < run.steps[0]["loss"] - 0.1
    assert [step["step"] for step in run.steps if "validation_loss" in step] == [4, 9, 11]
    assert run.validation_loss == run.steps[-1]["validation_loss"]
    rates = [step["learning_rate"] for step in run.steps]
    assert rates[0] == 0
    assert max(rates) == rates[3] == pytest.approx(CONFIG.learning_rate)
    header, steps = read_log(folder / "log.jsonl")
    assert steps == list(run.steps)
    assert header["dataset"] == dataset.fingerprint
    assert header["ordering"] == dataset.orderings["balance"].fingerprint
    assert header["settings"]["learning_rate"] == CONFIG.learning_rate
    assert "12 steps" in str(run)
    assert "'balance'" in str(run)
    assert run.tokens_per_second > 0
    assert 0 <= run.input_wait_share < 1


@pytest.mark.parametrize("killed_after", [2, 4, 11])
def test_a_killed_run_resumes_exactly(dataset, whole, tmp_path, killed_after):
    def kill(step):
        if step["step"] == killed_after - 1:
            raise KillError

    with pytest.raises(KillError):
        train(dataset, CONFIG, tmp_path / "run", on_step=kill)
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write('{"step": 99, "lo')
    done: list[int] = []
    run = train(dataset, CONFIG, tmp_path / "run", advance=done.append)
    assert sum(done) == CONFIG.num_steps
    assert done[0] == killed_after // 4 * 4
    np.testing.assert_allclose(np.array(losses(run), float), np.array(losses(whole[0]), float), atol=1e-5)
    header, steps = read_log(tmp_path / "run" / "log.jsonl")
    assert [step["step"] for step in steps] == list(range(12))
    assert header == read_log(whole[1] / "log.jsonl")[0]


def test_a_finished_run_is_not_run_again(dataset, whole):
    run, folder = whole
    again = train(dataset, CONFIG, folder, on_step=lambda step: pytest.fail("a step was taken"))
    assert again == run


@pytest.mark.parametrize(
    "changed",
    [
        {"learning_rate": 0.5, "seed": 9},
        {"batch_size": 3},
        {"num_steps": 14},
        {"num_steps": 6},
        {"warmup_steps": 2},
        {"width": 32},
        {"num_layers": 1},
        {"num_heads": 4},
    ],
)
def test_settings_that_change_the_losses_are_refused(dataset, whole, changed):
    _, folder = whole
    log = (folder / "log.jsonl").read_bytes()
    with pytest.raises(UserError) as caught:
        train(dataset, dataclasses.replace(CONFIG, **changed), folder)
    for name, value in changed.items():
        assert f"{name} {getattr(CONFIG, name)} (these settings: {value})" in str(caught.value)
    assert str(caught.value).count("these settings:") == len(changed)
    assert f"delete {folder} to start a new run" in str(caught.value)
    assert (folder / "log.jsonl").read_bytes() == log


def test_settings_that_change_no_loss_may_differ(dataset, whole):
    run, folder = whole
    other = dataclasses.replace(CONFIG, checkpoint_every=2, validate_every=3, validation_batches=1)
    assert train(dataset, other, folder).steps == run.steps


def test_a_lost_log_and_a_lost_checkpoint(dataset, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole[1], folder)
    (folder / "log.jsonl").unlink()
    run = train(dataset, CONFIG, folder)
    assert (run.num_steps, run.loss, run.validation_loss, run.tokens_per_second) == (12, None, None, None)
    assert str(run) == "Trained 7,248 parameters on 'balance' for 12 steps; the log of their losses is gone."
    assert run.input_wait_share == 0
    header, steps = read_log(folder / "log.jsonl")
    assert header["dataset"] == dataset.fingerprint
    assert steps == []
    shutil.rmtree(folder / "checkpoints" / "12")
    run = train(dataset, CONFIG, folder)
    assert [step["step"] for step in run.steps] == [8, 9, 10, 11]
    assert "12 steps: from step 8 on, loss" in str(run)


def test_a_checkpoint_without_settings_is_refused(dataset, whole, tmp_path):
    shutil.copytree(whole[1], tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("*/settings"):
        shutil.rmtree(path)
    with pytest.raises(UserError, match=r"cannot be read .*delete .*run to start a new run"):
        train(dataset, CONFIG, tmp_path / "run")


def test_logs_are_read_as_far_as_they_go(tmp_path):
    path = tmp_path / "log.jsonl"
    assert read_log(path) == ({}, [])
    whole = '{"dataset": "d", "ordering": "o", "settings": {}}\n{"step": 0, "loss": 2.0}\n{"step": 1, "loss": 1.5}\n'
    for size in range(len(whole) + 1):
        path.write_text(whole[:size])
        header, steps = read_log(path)
        lines = whole[:size].count("\n") + (whole[size - 1 : size] == "}" and whole[size : size + 1] == "\n")
        assert header == ({"dataset": "d", "ordering": "o", "settings": {}} if lines else {})
        assert [step["step"] for step in steps] == [0, 1][: max(lines - 1, 0)]
    path.write_bytes(b'{"step": 0, "loss": 2.0}\n\xff\xfe 7\n')  # no header
    assert read_log(path) == ({}, [{"step": 0, "loss": 2.0}])


def test_reading_logs_loads_nothing_heavy():
    program = "import sys, jax_diversity.lab.metrics; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"jax", "flax", "grain", "optax", "orbax", "scipy"}


def test_checkpoints_of_others_are_refused(dataset, whole, tmp_path):
    _, folder = whole
    with pytest.raises(UserError, match=r"ordering of fingerprint .* delete .*run\."):
        train(dataset, dataclasses.replace(CONFIG, ordering="uniform_shuffle"), folder)
    other = jd.open_dataset(write_tiny_dataset(tmp_path / "other", seed=3).root)
    with pytest.raises(UserError, match="dataset of fingerprint"):
        train(other, CONFIG, folder)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"width": 18, "num_heads": 2}, "multiple of twice train.num_heads"),
        ({"num_steps": 0}, r"train\.num_steps >= 1, found 0"),
        ({"checkpoint_every": 0}, r"train\.checkpoint_every >= 1"),
        ({"learning_rate": 0.0}, r"train\.learning_rate to be finite and > 0"),
        ({"batch_size": 1000}, "global batch size"),
        ({"ordering": "best"}, "Unknown ordering 'best'"),
    ],
)
def test_impossible_settings_are_a_sentence(dataset, tmp_path, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        train(dataset, dataclasses.replace(CONFIG, **settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_without_validation_sequences(tmp_path):
    tiny = write_tiny_dataset(tmp_path / "out", num_validation_documents=0)
    run = train(jd.open_dataset(tiny.root), dataclasses.replace(CONFIG, num_steps=2), tmp_path / "run")
    assert run.validation_loss is None


def make_model() -> Gpt:
    return Gpt(vocab_size=50, width=16, num_layers=2, num_heads=2, seed=1)


def test_a_token_sees_its_own_segment_up_to_itself():
    model = make_model()
    segmentation = jnp.array([[1, 1, 1, 1, 2, 2, 2, 0, 0]])
    position = jnp.array([[0, 1, 2, 3, 0, 1, 2, 0, 0]])
    inputs = jax.random.randint(jax.random.key(0), (1, 9), 1, 50)
    before = model(inputs, segmentation, position)
    assert bool(jnp.isfinite(before).all())
    for changed in range(9):
        after = model(inputs.at[0, changed].add(-1), segmentation, position)
        moved = np.flatnonzero(np.abs(np.asarray(after - before))[0].max(axis=-1) > 1e-7)
        segment = int(segmentation[0, changed])
        expected = [place for place in range(changed, 9) if int(segmentation[0, place]) == segment]
        assert moved.tolist() == expected


def test_a_segment_is_computed_as_if_alone():
    model = make_model()
    inputs = jax.random.randint(jax.random.key(0), (1, 9), 1, 50)
    packed = model(inputs, jnp.array([[1] * 4 + [2] * 5]), jnp.array([[0, 1, 2, 3, 0, 1, 2, 3, 4]]))
    alone = model(inputs[:, 4:], jnp.ones((1, 5), int), jnp.arange(5)[None])
    np.testing.assert_allclose(packed[:, 4:], alone, atol=1e-5)


@pytest.mark.parametrize("num_tokens", [7, 1024, 2500])
def test_the_loss_and_its_gradients_equal_the_plain_ones(num_tokens):
    keys = jax.random.split(jax.random.key(0), 4)
    hidden = jax.random.normal(keys[0], (num_tokens, 8))
    embedding = jax.random.normal(keys[1], (30, 8))
    targets = jax.random.randint(keys[2], (num_tokens,), 0, 30)
    weight = jax.random.bernoulli(keys[3], 0.7, (num_tokens,)).astype(jnp.float32)

    def plain(hidden, embedding):
        log_shares = jax.nn.log_softmax(hidden @ embedding.T)
        return 3 * -(weight * log_shares[jnp.arange(num_tokens), targets]).sum()

    def ours(hidden, embedding):
        return 3 * summed_cross_entropy(hidden, embedding, targets, weight)

    np.testing.assert_allclose(ours(hidden, embedding), plain(hidden, embedding), rtol=1e-5)
    found, expected = (jax.grad(loss, argnums=(0, 1))(hidden, embedding) for loss in (ours, plain))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3, rtol=1e-4)


def test_parameters_are_counted():
    model = make_model()
    assert count_parameters(model) == 50 * 16 + 16 + 2 * (2 * 16 + 4 * 16 * 16 + 8 * 16 * 16)
    assert isinstance(model.blocks, nnx.List)
