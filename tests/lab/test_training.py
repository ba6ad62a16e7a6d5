"""The lab's model sees only its segment, its loss is exact, and a run resumes exactly."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.locks import hold
from jax_diversity.foundation.progress import Progress
from jax_diversity.lab import checkpoints
from jax_diversity.lab.checkpoints import find_checkpoints, read_checkpoint, verify_training
from jax_diversity.lab.metrics import JsonLinesWriter, read_log
from jax_diversity.lab.model import Gpt, Positions, attend, cross_entropy, distance_bias, segment_mask
from jax_diversity.lab.settings import TrainConfig
from jax_diversity.lab.training import train, train_in_place
from tests.support.tiny_dataset import write_tiny_dataset

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


OPTIONS = [
    f"--train.{field.name.replace('_', '-')}={getattr(CONFIG, field.name)}"
    for field in dataclasses.fields(CONFIG)
    if field.name not in ("metrics", "ordering")
]


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


def kill_at(step: int):
    """A function that ends a training run after a step."""

    def kill(record):
        if record["step"] == step:
            raise KillError

    return kill


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


@pytest.mark.first(1)
@pytest.mark.parametrize("killed_after", [2, 4, 11])
def test_a_killed_run_resumes_exactly(dataset, whole, tmp_path, killed_after):
    with pytest.raises(KillError):
        train(dataset, CONFIG, tmp_path / "run", on_step=kill_at(killed_after - 1))
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
    assert str(run) == "Trained 7,248 parameters on 'balance' for 12 steps; the log of the losses is lost."
    assert run.input_wait_share == 0
    header, steps = read_log(folder / "log.jsonl")
    assert header["dataset"] == dataset.fingerprint
    assert steps == []
    shutil.rmtree(folder / "checkpoints" / "12")
    run = train(dataset, CONFIG, folder)
    assert [step["step"] for step in run.steps] == [8, 9, 10, 11]
    assert "12 steps: from step 8 on, loss" in str(run)


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of the run's folder that may be damaged, as in a dataset's folder."""
    return Path(shutil.copytree(whole[1], tmp_path / "training" / "run"))


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


def exchange(one: Path, other: Path) -> None:
    kept = one.with_name("kept")
    one.rename(kept)
    other.rename(one)
    kept.rename(other)


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def largest(checkpoint: Path) -> Path:
    return max(files_of(checkpoint), key=lambda path: path.stat().st_size)


DAMAGES = {
    "flipped in the arrays": lambda path: flip(largest(path), largest(path).stat().st_size // 2),
    "flipped in the hashes": lambda path: flip(path / "checkpoint.json", 100),
    "cut": lambda path: os.truncate(largest(path), largest(path).stat().st_size - 100),
    "emptied": lambda path: os.truncate(largest(path), 0),
    "extended": lambda path: largest(path).open("ab").write(b"more"),
    "robbed of a file": lambda path: largest(path).unlink(),
    "robbed of its hashes": lambda path: (path / "checkpoint.json").unlink(),
    "given a file": lambda path: (path / "arrays" / "more").write_bytes(b"more"),
    "exchanged with the one before": lambda path: exchange(path, path.with_name("8")),
    "replaced by a file": lambda path: (shutil.rmtree(path), path.write_text("mine")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_refused(dataset, whole, copied, damage):
    path = copied / "checkpoints" / "12"
    DAMAGES[damage](path)
    faults = [fault.file for fault in verify_training(copied.parents[1])]
    assert any(file.startswith("training/run/checkpoints/12/") for file in faults)
    sentence = rf"as it was written at {path}, found .*; delete it to continue from the state after 8 steps\.$"
    with pytest.raises(UserError, match=sentence):
        train(dataset, CONFIG, copied)
    if damage.startswith("flipped"):  # and the advice of the sentence helps
        shutil.rmtree(path)
        assert losses(train(dataset, CONFIG, copied)) == losses(whole[0])


def test_no_damaged_byte_goes_unnoticed(copied):
    checkpoint = copied / "checkpoints" / "12"
    read_checkpoint(checkpoint)
    rng = np.random.default_rng(0)
    for path in files_of(checkpoint):
        sound = path.read_bytes()
        for place in rng.integers(0, len(sound), 20).tolist():
            flip(path, place)
            with pytest.raises(UserError, match="as it was written at"):
                read_checkpoint(checkpoint)
            path.write_bytes(sound)
    for name in ("9.checkpoint.tmp", "notes.txt", "x", "-3", "012"):
        (checkpoint.parent / name).write_text("mine")  # files of users are not checkpoints
    assert list(find_checkpoints(checkpoint.parent)) == [8, 12]
    assert verify_training(copied.parents[1]) == []


def test_a_checkpoint_of_another_run_is_named(dataset, copied):
    other = dataclasses.replace(CONFIG, ordering="uniform_shuffle", num_steps=1)
    train(dataset, other, copied.parent / "other")
    path = copied / "checkpoints" / "1"
    shutil.copytree(copied.parent / "other" / "checkpoints" / path.name, path)
    (fault,) = verify_training(copied.parents[1])
    assert fault.file == "training/run/checkpoints/1"
    assert "the ordering" in fault.expected


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(dataset, copied, monkeypatch, capsys):
    folder = copied / "checkpoints"
    shutil.rmtree(folder / "12")
    before = {path: path.read_bytes() for path in files_of(folder / "8")}

    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_json", full)
    (dataset.root / "training").mkdir()
    copied.rename(dataset.root / "training" / "balance")
    assert main(["train", "--quiet", "--out", str(dataset.root), *OPTIONS]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no space left on the disk" in line
    (dataset.root / "training" / "balance").rename(copied)
    assert [path.name for path in folder.iterdir()] == ["8"]
    assert {path: path.read_bytes() for path in files_of(folder / "8")} == before
    (dataset.root / "training").rmdir()


def test_remains_of_a_killed_run_are_removed(dataset, copied):
    folder = copied / "checkpoints"
    for name in ("4", "12.01234567"):
        shutil.copytree(folder / "8", folder / name)
    train(dataset, CONFIG, copied)
    assert sorted(path.name for path in folder.iterdir()) == ["12", "8"]


def test_one_process_trains_in_a_folder(dataset, tmp_path):
    (tmp_path / "run").mkdir()
    with hold(tmp_path / "run"), ThreadPoolExecutor(1) as other:
        training = other.submit(train, dataset, CONFIG, tmp_path / "run")
        with pytest.raises(UserError, match=rf"run is being written by this process \(id {os.getpid()}\); wait"):
            training.result()
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_an_ordering_from_a_file_has_a_folder_of_its_own(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    order = np.random.default_rng(1).permutation(dataset.num_sequences)
    np.save("mine.npy", order)
    config = dataclasses.replace(CONFIG, num_steps=1, ordering="mine.npy")
    train_in_place(dataset.root, config, Progress(quiet=True))
    fingerprint = jd.Ordering(order).fingerprint
    header, steps = read_log(dataset.root / "training" / f"mine-{fingerprint[:8]}" / "log.jsonl")
    assert (header["ordering"], len(steps)) == (fingerprint, 1)
    shutil.rmtree(dataset.root / "training")


def test_a_stored_run_is_trained_in_its_own_folder(dataset, tmp_path, capsys):
    run = jd.create_schedule(tmp_path / "run", dataset.root, num_epochs=2)
    whole = train(run, CONFIG, tmp_path / "whole")
    with pytest.raises(KillError):
        train(run, CONFIG, tmp_path / "run" / "training", on_step=kill_at(7))
    arguments = ["train", "--quiet", "--out", str(tmp_path / "run"), *OPTIONS]
    assert main(arguments) == 0
    assert "on 'run' for 12 steps" in capsys.readouterr().out
    header, steps = read_log(tmp_path / "run" / "training" / "log.jsonl")
    assert header["ordering"] == run.fingerprint
    assert [step["loss"] for step in steps] == [step["loss"] for step in whole.steps]
    assert main([*arguments, "--train.ordering", "balance"]) == 2
    assert "Expected no ordering, because the run in" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    "line", ['{"step": "3", "loss": 1}', '{"step": -1}', '{"step": true}', '{"step": 1e9}', "[1]", "\0", "[" * 99_999]
)
def test_a_log_with_a_damaged_line_is_continued(dataset, copied, line):
    log = copied / "log.jsonl"
    header, *steps = log.read_text().splitlines()
    log.write_text("\n".join([header, *steps[:3], line, *steps[4:]]) + "\n")
    run = train(dataset, CONFIG, copied)
    assert [step["step"] for step in run.steps] == [0, 1, 2, *range(4, 12)]
    assert read_log(log)[1] == list(run.steps)


def test_records_that_lack_what_every_step_has_are_left_out_of_the_run(dataset, copied):
    log = copied / "log.jsonl"
    log.write_text(log.read_text().replace('{"step": 11, "loss"', '{"step": 11, "lpss"'))
    run = train(dataset, CONFIG, copied)
    assert run.steps[-1]["step"] == 10
    assert str(run)


def test_logs_that_end_in_half_a_line_or_cannot_be_read(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0, "loss": 2.0}\n{"step": 1, "lo')
    with closing(JsonLinesWriter(path)) as write:
        write(1, {"loss": 1.5})
    assert [step["step"] for step in read_log(path)[1]] == [0, 1]
    path.write_text('{"step": 0, "loss": 2.0, "note": "mine"}\n')
    assert read_log(path)[1] == [{"step": 0, "loss": 2.0}]
    path.unlink()
    path.mkdir()
    for header in (None, {}):
        with pytest.raises(UserError, match=r"Expected a .*log.*log\.jsonl.*[Dd]irectory"):
            JsonLinesWriter(path, header)


@pytest.mark.campaign
def test_reading_logs_loads_nothing_heavy():
    for module, heavy in (("lab.checkpoints", {"scipy"}), ("lab.commands", set())):
        program = f"import sys, jax_diversity.{module}; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert not set(done.stdout.split()) & {"jax", "flax", "grain", "optax", "orbax", *heavy}


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
        ({"learning_rate": float("inf")}, r"train\.learning_rate to be finite and > 0"),
        ({"learning_rate": float("nan")}, r"train\.learning_rate to be finite and > 0"),
        ({"warmup_steps": -1}, r"train\.warmup_steps >= 0, found -1"),
        ({"seed": -1}, r"train\.seed >= 0, found -1"),
        ({"seed": 2**32}, r"train\.seed from 0 to 2\^32 - 1"),
        ({"num_steps": 2**31}, r"train\.num_steps <= 2147483647"),
        ({"width": 2**24}, r"at most 1,000,000,000 weights, found 6,755,399,441,055,744; lower train\.width"),
        ({"batch_size": 10**6}, r"train\.batch_size in 1 \.\. \d+ \(the sequences of the run\), found 1000000"),
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


def make_model(positions: Positions = "rotary") -> Gpt:
    return Gpt(vocab_size=50, width=16, num_layers=2, num_heads=2, seed=1, positions=positions)


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_a_token_sees_its_own_segment_up_to_itself(positions):
    model = make_model(positions)
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


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_a_segment_is_computed_as_if_alone(positions):
    model = make_model(positions)
    inputs = jax.random.randint(jax.random.key(0), (1, 9), 1, 50)
    packed = model(inputs, jnp.array([[1] * 4 + [2] * 5]), jnp.array([[0, 1, 2, 3, 0, 1, 2, 3, 4]]))
    alone = model(inputs[:, 4:], jnp.ones((1, 5), int), jnp.arange(5)[None])
    np.testing.assert_allclose(packed[:, 4:], alone, atol=1e-5)


def test_linear_biases_equal_a_slow_reference():
    """Scores token by token, as Press et al. 2022 write them: q k / sqrt(d) - m (i - j)."""
    keys = jax.random.split(jax.random.key(2), 3)
    query, key, value = (jax.random.normal(one, (1, 6, 4, 3)) for one in keys)
    segmentation, position = np.array([[1, 1, 1, 1, 2, 2]]), np.array([[0, 1, 2, 3, 0, 1]])
    bias = distance_bias(jnp.asarray(position), 4)
    found = attend(query, key, value, segment_mask(jnp.asarray(segmentation)), bias)
    for head, token in np.ndindex(4, 6):
        seen = [place for place in range(token + 1) if segmentation[0, place] == segmentation[0, token]]
        slope = [1 / 4, 1 / 16, 1 / 64, 1 / 256][head]
        scores = [query[0, token, head] @ key[0, place, head] / np.sqrt(3) - slope * (token - place) for place in seen]
        shares = np.exp(scores) / np.exp(scores).sum()
        expected = sum(share * value[0, place, head] for share, place in zip(shares, seen, strict=True))
        np.testing.assert_allclose(found[0, token, head], expected, atol=1e-5)


@pytest.mark.first(1)
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
        return 3 * cross_entropy(hidden, embedding, targets, weight)[0]

    np.testing.assert_allclose(ours(hidden, embedding), plain(hidden, embedding), rtol=1e-5)
    found, expected = (jax.grad(loss, argnums=(0, 1))(hidden, embedding) for loss in (ours, plain))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3, rtol=1e-4)


def test_parameters_are_counted(whole):
    assert whole[0].num_parameters == 64 * 16 + 16 + 2 * (2 * 16 + 4 * 16 * 16 + 8 * 16 * 16)
