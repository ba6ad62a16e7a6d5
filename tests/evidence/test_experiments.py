"""Experiments: a run repeats bit for bit, survives kills, and its numbers are what slow references give."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest
from flax import nnx
from scipy import stats

import jax_diversity as jd
from evidence.__main__ import main
from evidence.averaging import MeanOfWeights
from evidence.batches import Contiguous, Mixed, Ordered
from evidence.compiled import Given, StepResult, trial_model
from evidence.evaluation import Documents, Evaluation, common_runs, make_evaluation
from evidence.gradient_orders import GradientOrder, balanced_signs
from evidence.gradients import (
    between_batches,
    cosine,
    curvature_along,
    named_matrices,
    stable_ranks,
)
from evidence.judging import Judge, Judged, are_significant, value_of
from evidence.lstm import Lstm
from evidence.mixture_rules import ExcessLoss, LearningSpeed, make_rule
from evidence.orders import exchange_documents, main_documents
from evidence.page import experiment_text, write_page
from evidence.results import Measure, TrialRow, append_rows, read_rows
from evidence.running import SmallDesign, design_sentence, run_experiment
from evidence.sequences import rotated_rows, sequences_of_texts, training_sequences
from evidence.settings import SIZES, Experiment, TrialConfig, read_experiment
from evidence.statistics import Difference, power
from evidence.summary import judged_claims, summary_text
from evidence.trial import Material, learning_rate, run_trial
from jax_diversity.foundation.errors import UserError
from jax_diversity.lab.group_losses import document_codes
from jax_diversity.lab.model import Gpt
from jax_diversity.lab.trainer import Trainer

WORDS = ["sea", "ship", "wind", "tax", "law", "court", "judge", "sail", "wave", "fish", "note", "song", "tune", "drum"]

FILE = """
title: Small
question: Which of two orders?
datasets:
  texts:
    corpus: {paths: ["texts/*.jsonl"]}
    tokenizer: {vocab_size: 300}
    cluster: {num_clusters: 4}
    packing: {sequence_length: 16, validation_fraction: 0.3}
    characteristics: {families: [cluster, source], length_bins: 4}
trial: {dataset: texts, batch_size: 4, num_steps: 6}
seeds: {order: [0, 1], weights: [0, 1]}
validation: {tokens_per_group: 1200, tokens_per_document: 300}
tasks:
  tale: {paths: [tale.txt], stride: 8, max_tokens: 120}
baseline: shuffle
smallest_effect: 0.5
pair_deviation: 0.01
claims:
  - {number: 1, text: Balance is lower, arms: [balance]}
arms:
  shuffle: {}
  balance: {order: {method: balance}}
"""


def write_texts(folder: Path) -> None:
    """Two sources of random words, each with some of its own, and a tale of other words."""
    rng = np.random.default_rng(0)
    (folder / "texts").mkdir(parents=True)
    for number, source in enumerate(("sea", "law")):
        words = WORDS[number * 5 : number * 5 + 9]
        with (folder / "texts" / f"{source}.jsonl").open("w") as file:
            for place in range(50):
                text = " ".join(rng.choice(words, rng.integers(60, 160)))
                file.write(json.dumps({"id": f"{source}-{place}", "text": text, "source": source}) + "\n")
    (folder / "tale.txt").write_text(" ".join(f"{word}s of old" for word in WORDS * 4))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with texts, an experiment, and its rows."""
    folder = tmp_path_factory.mktemp("evidence")
    write_texts(folder)
    (folder / "small.yaml").write_text(FILE)
    assert run(folder, "out") == 0
    return folder


def run(folder: Path, out: str, *options: str) -> int:
    arguments = ["run", str(folder / "small.yaml"), "--data", str(folder), "--out", str(folder / out), "--quiet"]
    return main([*arguments, "--processes", "1", *options])


@pytest.fixture(scope="module")
def experiment(place) -> Experiment:
    return read_experiment(place / "small.yaml")


@pytest.fixture(scope="module")
def material(place, experiment) -> Material:
    dataset = jd.open_dataset(next((place / "out" / "datasets").iterdir()))
    return Material(dataset, make_evaluation(dataset, experiment.config, place), "source")


def numbers(rows: dict[str, TrialRow]) -> dict[str, dict[str, str]]:
    """All that a row says but how long it took."""
    plain = {}
    for identity, row in rows.items():
        values = dataclasses.asdict(row)
        del values["seconds"]
        values["document_losses"] = row.document_losses.tobytes()
        values["document_tokens"] = row.document_tokens.tolist()
        plain[identity] = {name: repr(value) for name, value in values.items()}
    return plain


# ---- Whole experiments.


def test_an_experiment_leaves_a_row_a_run(place, experiment):
    rows = read_rows(place / "out" / "small")
    assert set(rows) == {trial.identity for trial in experiment.trials}
    for row in rows.values():
        final = row.final()
        assert row.status == "done"
        assert row.num_steps == 6
        assert np.isfinite(list(final.values())).all()
        assert {"loss/macro", "loss/source/sea", "loss/task/tale", "loss/train"} <= final.keys()
        assert final["loss/macro"] == pytest.approx((final["loss/source/sea"] + final["loss/source/law"]) / 2)
        weights = row.document_tokens / row.document_tokens.sum()
        assert final["loss/validation"] == pytest.approx(float(weights @ row.document_losses), rel=1e-5)
    assert not (place / "out" / "small" / "finished").exists()


@pytest.mark.campaign
def test_killed_at_three_moments_it_ends_with_the_same_rows(place, tmp_path):
    """Each kill ends the whole group of processes, some while a run trains, some while a row is being written."""
    write_texts(tmp_path)
    (tmp_path / "small.yaml").write_text(FILE)
    folder = tmp_path / "out" / "small"
    command = [sys.executable, "-m", "evidence", "run", "small.yaml", "--out", "out", "--data", "."]
    for num_rows in (0, 1, 3):
        process = subprocess.Popen(
            [*command, "--processes", "1", "--quiet"], cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE
        )
        # The first kill comes while the dataset is built, the others when so many runs have left a row.
        deadline = time.monotonic() + 120
        wanted = (tmp_path / "out" / "datasets") if num_rows == 0 else None
        while process.poll() is None and time.monotonic() < deadline:
            rows = list(folder.glob("finished/*.parquet"))
            stored = (
                pq.read_metadata(folder / "results.parquet").num_rows if (folder / "results.parquet").exists() else 0
            )
            if (wanted is not None and wanted.exists()) or (num_rows and stored + len(rows) >= num_rows):
                break
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    options = {"cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run([*command, "--processes", "2", "--quiet"], check=False, **options)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 runs done" in done.stdout
    found, expected = numbers(read_rows(folder)), numbers(read_rows(place / "out" / "small"))
    assert found.keys() == expected.keys()
    for identity, row in found.items():
        assert {name for name, value in row.items() if value != expected[identity][name]} == set()


@pytest.mark.campaign
def test_a_run_repeats_bit_for_bit(experiment, material):
    trial = experiment.trials[1]
    config = dataclasses.replace(trial.config, diagnose_at=(0.5, 1.0))
    first, again = (run_trial(dataclasses.replace(trial, config=config), material, "small") for _ in range(2))
    names = {
        "stable_rank/block0/query",
        "gradient/diversity",
        "gradient/variance",
        "cosine/tale",
        "curvature/validation",
    }
    assert names <= first.final().keys()
    assert first.curve("gradient/variance")[0].tolist() == [3, 6]
    assert first.digest == again.digest
    assert first.measures == again.measures


def test_nothing_is_run_twice(place, capsys):
    before = (place / "out" / "small" / "results.parquet").read_bytes()
    assert run(place, "out") == 0
    assert (place / "out" / "small" / "results.parquet").read_bytes() == before
    assert "4 of 4 runs done" in capsys.readouterr().out


def test_rows_of_two_machines_are_joined(place, tmp_path):
    rows = read_rows(place / "out" / "small")
    parts = list(rows.values())
    append_rows(tmp_path / "one.parquet", parts[:3])
    append_rows(tmp_path / "two.parquet", parts[2:])
    assert numbers(read_rows(tmp_path)) == numbers(rows)


def test_a_row_that_a_kill_left_in_both_places_is_kept_once(place, tmp_path):
    folder = tmp_path / "small"
    rows = list(read_rows(place / "out" / "small").values())
    folder.mkdir()
    append_rows(folder / "results.parquet", rows)
    (folder / "finished").mkdir()
    append_rows(folder / "finished" / f"{rows[0].identity}.parquet", rows[:1])
    (tmp_path / "datasets").symlink_to(place / "out" / "datasets")
    assert run(place, str(tmp_path)) == 0
    assert pq.read_metadata(folder / "results.parquet").num_rows == 4
    assert not (folder / "finished").exists()


def test_the_page_says_what_was_run(place, experiment, tmp_path, capsys):
    rows = read_rows(place / "out" / "small")
    write_page(experiment, rows, tmp_path)
    text = (tmp_path / "small.md").read_text()
    assert "(1) Balance is lower | **" in text
    assert "2 arms, 2 runs of each" in text
    figure = (tmp_path / "small-differences.svg").read_text()
    assert "balance" in figure
    for name in ("small-differences.svg", "small-curves.svg"):
        assert name in text
    assert main(["show", str(place / "small.yaml"), "--out", str(place / "out")]) == 0
    assert "## loss/macro" in capsys.readouterr().out
    assert experiment_text(experiment, rows).startswith("# Small")


def test_the_page_names_the_files_that_a_reader_needs(place, tmp_path):
    rows = read_rows(place / "out" / "small")
    text = FILE.replace("title: Small", 'title: Small\ncorpora: "See [there](x.md)."')
    (tmp_path / "small.yaml").write_text(text)
    experiment = read_experiment(tmp_path / "small.yaml")
    assert experiment.files == ("texts/*.jsonl", "tale.txt")
    page = experiment_text(experiment, rows)
    assert "Files in the folder `--data`: `texts/*.jsonl`, `tale.txt`. See [there](x.md).\n" in page
    assert "small.yaml --data texts\n" in page
    # The corpus of the packages needs no files.
    experiment = read_experiment("configs/experiments/python_environment.yaml")
    assert experiment.files == ()
    rng = np.random.default_rng(0)
    page = experiment_text(experiment, {trial.identity: invented(trial, 0.0, rng) for trial in experiment.trials})
    assert "--data" not in page
    assert f"\n{experiment.config.corpora}\n" in page


def test_a_loss_that_is_no_number_is_a_row(experiment, material):
    trial = experiment.trials[0]
    config = dataclasses.replace(trial.config, learning_rate=1e30, warmup=0.0)
    row = run_trial(dataclasses.replace(trial, config=config), material, "small")
    assert row.status == "diverged"
    judge = Judge(experiment, {trial.identity: row})
    assert judge.num_diverged == 1
    assert not judge.runs


# ---- Bad input.


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("baseline: shuffle", "baseline: shufle", "baseline"),
        ("arms:\n  shuffle: {}", "arms:\n  shuffle: {dataset: text}", "arms.shuffle.dataset among texts, found 'text'"),
        ("smallest_effect: 0.5", "smallest_effect: 0", "smallest_effect and pair_deviation above 0"),
        ("weights: [0, 1]}", "weights: [0]}", "as many seeds.order as seeds.weights"),
        ("paths: [tale.txt]", "paths: []", "tasks.tale.paths to name files"),
        ("batch_size: 4", "batch_sise: 4", "trial.batch_sise"),
        ("num_steps: 6", "num_steps: 0", "num_steps"),
        ("  balance: {order: {method: balance}}", "  balance: {}", "two arms with the same settings"),
        ("num_steps: 6", "evaluate_at: [0.5]", "evaluate_at to contain 1"),
        ("num_steps: 6", "model: lstm", "layout of contiguous or rotated"),
        ("num_steps: 6", "weight_decay: -0.1", "weight_decay finite and >= 0, found 0.1, 0.0 and -0.1"),
        ("num_steps: 6", "weight_decay: .inf", "weight_decay finite and >= 0"),
        ("num_steps: 6", "end_rate: 1.5", "end_rate and arms.shuffle.averaging in [0, 1]"),
        ("num_steps: 6", "averaging: .nan", "averaging in [0, 1]"),
        ("num_steps: 6", "decay: constant, end_rate: 0", "end_rate with arms.shuffle.decay=cosine"),
        ("num_steps: 6", "size: medium", "size"),
        ("arms: [balance]}", "arms: [balanse]}", "the arms of claim 1"),
        ("title: Small", "title: Small\nvary: {batch: [1]}", "vary.batch"),
    ],
)
def test_a_file_that_is_wrong(old: str, new: str, sentence: str, tmp_path: Path):
    assert old in FILE
    (tmp_path / "small.yaml").write_text(FILE.replace(old, new))
    with pytest.raises(UserError) as error:
        read_experiment(tmp_path / "small.yaml")
    assert sentence in str(error.value)
    assert str(tmp_path / "small.yaml") in str(error.value)


def test_mistakes_on_the_command_line_are_one_sentence(place, tmp_path, capsys):
    def answer(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        return capsys.readouterr().err

    assert "Unknown command 'sho': expected run, show or summary; did you mean 'show'?" in answer("sho")
    assert "found no file" in answer("run")
    assert "Expected the file of an experiment at nowhere.yaml" in answer("run", "nowhere.yaml")
    file = str(place / "small.yaml")
    assert "found none; run `python -m evidence run`" in answer("show", file, "--out", str(tmp_path))
    given = ("--out", str(place / "out"), "--data", str(place), "--quiet")
    assert "arms among shuffle, balance" in answer("run", file, "--arms", "balanse", *given)
    assert "--processes >= 0" in answer("run", file, "--processes", "-1", *given)


def test_a_design_that_is_too_small_is_told_before_it_runs(tmp_path):
    (tmp_path / "small.yaml").write_text(FILE.replace("smallest_effect: 0.5", "smallest_effect: 0.02"))
    sentence, is_enough = design_sentence(read_experiment(tmp_path / "small.yaml"))
    assert "2 pairs with a standard deviation of 0.01 detect" in sentence
    assert not is_enough
    with pytest.warns(SmallDesign, match="Add seeds"), pytest.raises(UserError, match="arms among"):
        run_experiment(read_experiment(tmp_path / "small.yaml"), tmp_path, {}, arms=["none"])
    (tmp_path / "small.yaml").write_text(FILE)
    sentence, is_enough = design_sentence(read_experiment(tmp_path / "small.yaml"))
    assert is_enough
    assert "the smallest effect that matters is 0.5" in sentence


def test_an_empty_task_is_refused(material, experiment, tmp_path):
    (tmp_path / "tale.txt").write_text("  \n")
    with pytest.raises(UserError, match="Task 'tale': Expected at least one document"):
        make_evaluation(material.dataset, experiment.config, tmp_path)


def test_a_task_of_the_training_data_is_found_out(material):
    dataset = material.dataset
    trained = np.unique(dataset.segments.document_index)[:3]
    texts = tuple(np.asarray(dataset.tokens.document(index)) for index in trained.tolist())
    known = Documents(texts, sequences_of_texts(list(texts), 16), {})
    assert common_runs(dataset, known) == 1
    assert common_runs(dataset, material.evaluation.tasks["tale"]) == 0


def test_rows_that_cannot_be(place, tmp_path):
    rows = list(read_rows(place / "out" / "small").values())
    (tmp_path / "results.parquet").write_bytes(b"no table")
    with pytest.raises(UserError, match="Expected rows of an experiment in"):
        read_rows(tmp_path)
    (tmp_path / "results.parquet").unlink()
    append_rows(tmp_path / "a.parquet", rows)
    append_rows(tmp_path / "b.parquet", [dataclasses.replace(rows[1], digest="0")])
    with pytest.raises(UserError, match=f"two different results of small, {rows[1].arm}, order seed"):
        read_rows(tmp_path)
    (tmp_path / "b.parquet").unlink()
    table = pq.read_table(tmp_path / "a.parquet")
    pq.write_table(
        table.set_column(table.schema.get_field_index("version"), "version", [[99] * 4]), tmp_path / "a.parquet"
    )
    with pytest.raises(UserError, match=r"rows of version 1 .* found version 99"):
        read_rows(tmp_path)
    pq.write_table(table.drop_columns(["digest"]), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="found none of digest"):
        read_rows(tmp_path)


def test_no_flipped_bit_changes_a_row_in_silence(place, tmp_path):
    path = tmp_path / "results.parquet"
    intact = (place / "out" / "small" / "results.parquet").read_bytes()
    expected, sentences = numbers(read_rows(place / "out" / "small")), []
    for place_of_bit in np.random.default_rng(0).integers(8 * len(intact), size=400).tolist():
        damaged = bytearray(intact)
        damaged[place_of_bit // 8] ^= 1 << place_of_bit % 8
        path.write_bytes(damaged)
        try:
            assert numbers(read_rows(tmp_path)) == expected
        except UserError as error:
            sentences.append(str(error))
    assert len(sentences) > 150  # the other bits are not used, such as statistics
    assert all("Expected rows of " in each and "\n" not in each for each in sentences)


@pytest.mark.parametrize(
    "edit",
    [
        lambda table: table.slice(1),
        lambda table: table.take([1, 0, 2, 3]),
        lambda table: table.set_column(table.schema.get_field_index("seconds"), "seconds", [[1.0] * 4]),
    ],
    ids=["a row less", "another order", "other numbers"],
)
def test_edited_rows_are_refused(edit, place, tmp_path):
    table = pq.read_table(place / "out" / "small" / "results.parquet")
    pq.write_table(edit(table), tmp_path / "results.parquet")
    with pytest.raises(UserError, match="found rows that differ from their hashes; restore the file"):
        read_rows(tmp_path)


@pytest.mark.campaign
def test_rows_of_other_tokens_are_never_compared(place, experiment, tmp_path, capsys):
    """One machine's corpus has one text more."""
    here = read_rows(place / "out" / "small")
    write_texts(tmp_path)
    with (tmp_path / "texts" / "law.jsonl").open("a") as file:
        file.write(json.dumps({"id": "law-more", "text": "court and law " * 40, "source": "law"}) + "\n")
    (tmp_path / "small.yaml").write_text(FILE)
    assert run(tmp_path, "other", "--arms", "balance") == 0
    there = read_rows(tmp_path / "other" / "small")
    shuffles = {identity: row for identity, row in here.items() if row.arm == "shuffle"}
    sentence = "all runs of small on the dataset 'texts' to have the same tokens, found "
    with pytest.raises(UserError, match=sentence):
        experiment_text(experiment, shuffles | there)
    # The same in a folder with the rows of both machines, which `run` would continue and `show` would judge.
    append_rows(tmp_path / "other" / "small" / "here.parquet", list(shuffles.values())[:1])
    capsys.readouterr()
    assert main(["show", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "other")]) == 2
    assert sentence in capsys.readouterr().err
    assert run(tmp_path, "other") == 2
    assert "(the next runs) and " in capsys.readouterr().err
    assert not (tmp_path / "other" / "small" / "finished").exists()


def test_an_order_of_a_trial_has_only_settings_that_trials_use(tmp_path):
    for order, sentence in (
        ("{method: uniform_shuffle, objective: {windows: [4]}}", "Method 'uniform_shuffle' cannot use objective"),
        ("{method: balance, devices: 2}", "no arms.balance.order.devices in a trial"),
        ("{method: balance, seed: 2}", "no arms.balance.order.seed in a trial"),
        ("{method: balance, reverse: true}, mixture: excess_loss", "no arms.balance.order.reverse with a mixture"),
    ):
        (tmp_path / "small.yaml").write_text(FILE.replace("{method: balance}}", f"{order}}}"))
        with pytest.raises(UserError, match=sentence):
            read_experiment(tmp_path / "small.yaml")


# ---- Sequences, orders and batches.


def test_sequences_are_those_of_the_records(material):
    dataset = material.dataset
    found = training_sequences(dataset, dataset.segments)
    rows = np.arange(dataset.num_sequences)
    expected = dataset.records.read_batch(rows, expected=rows)
    assert (found.inputs == expected["inputs"]).all()
    assert (found.segmentation == expected["inputs_segmentation"]).all()
    assert (found.position == expected["inputs_position"]).all()
    targets = expected["targets_segmentation"] != 0
    assert ((found.is_target > 0) == targets).all()
    assert (found.targets[targets] == expected["targets"][targets]).all()
    merged = dataset.records.read_batch(rows, expected=rows, merge_segments=True)
    across = training_sequences(dataset, dataset.segments, "sequence")
    assert ((across.is_target > 0) == (merged["targets_segmentation"] != 0)).all()
    assert (across.position == merged["inputs_position"]).all()


@pytest.mark.parametrize("method", ["pad", "same_cluster", "concat"])
def test_every_packing_gives_its_documents_tokens(material, method: str):
    from jax_diversity.sequences.packing.settings import PackingConfig

    config = TrialConfig(packing=PackingConfig(method=method, sequence_length=16), order_seed=3)
    found = material.packed(config).sequences
    tokens, end = material.dataset.tokens, material.dataset.end_id
    for row in range(0, len(found), 7):
        for part in range(1, found.segmentation[row].max() + 1):
            held = found.segmentation[row] == part
            piece, document = found.inputs[row][held], found.documents[row][held][0]
            whole = np.asarray(tokens.document(int(document))).astype(np.int32)
            inside = piece[:-1] if method == "pad" and piece[-1] == end else piece
            assert inside.tobytes() in whole.tobytes()
    counts = material.packed(config).characteristics.counts["source"].toarray()
    codes = document_codes(material.dataset, "source")[np.maximum(found.documents, 0)]
    for group in (0, 1):
        assert (counts[:, group] == ((codes == group) & (found.segmentation > 0)).sum(axis=1)).all()


@pytest.mark.parametrize("stride", [None, 1, 3, 8])
def test_sliding_contexts_count_every_target_once(stride: int | None):
    texts = [np.arange(length) + 1 for length in (1, 2, 8, 9, 10, 25)]
    found = sequences_of_texts(texts, 8, stride)
    counted = found.is_target > 0
    for document, tokens in enumerate(texts):
        held = counted & (found.documents == document)
        assert sorted(found.targets[held].tolist()) == tokens[1:].tolist()
        if stride is not None:
            seen = found.position[held][found.targets[held] > 9]
            assert (seen >= 8 - stride).all()


def test_rotated_rows_and_the_stream(material):
    rows = rotated_rows(np.arange(11), 2, np.array([0, 2]))
    assert rows.tolist() == [[0, 1, 2, 3, 4], [7, 8, 9, 5, 6]]
    config = TrialConfig(model="lstm", layout="rotated", batch_size=3)
    made = trial_model(material.dataset.vocab_size, SIZES["lstm"]["tiny"], "lstm")
    source = Contiguous(config, made, material.dataset)
    first, second = source.give(0), source.give(1)
    assert (first.arrays["targets"][:, -1] == second.arrays["inputs"][:, 0]).all()
    epochs = [source.give(epoch * source.steps_per_epoch).arrays["inputs"] for epoch in (0, 1)]
    assert (epochs[0] != epochs[1]).any()


def test_documents_are_exchanged_within_their_cells():
    rng = np.random.default_rng(1)
    indices, cells, documents = rng.permutation(300), rng.integers(4, size=300), rng.integers(12, size=300)
    documents = documents + 100 * cells
    gaps = {}
    for how in ("random", "clumped", "spread"):
        found = exchange_documents(indices, cells, documents, how, 5)
        assert sorted(found.tolist()) == list(range(300))
        assert (cells[found] == cells[indices]).all()
        of_cell = found[cells[found] == 2]
        places = [np.flatnonzero(documents[of_cell] == each) for each in np.unique(documents[of_cell])]
        gaps[how] = np.mean([np.diff(each).min() for each in places if len(each) > 1])
        if how == "clumped":
            assert all(np.ptp(each) == len(each) - 1 for each in places)
    assert gaps["clumped"] == 1
    assert gaps["spread"] > 2 * gaps["random"]


def test_main_documents(material):
    dataset = material.dataset
    found = main_documents(dataset.segments)
    sequences = training_sequences(dataset, dataset.segments)
    for row in range(0, len(found), 9):
        held = sequences.documents[row][sequences.documents[row] >= 0]
        values, counts = np.unique(held, return_counts=True)
        assert counts[values == found[row]][0] == counts.max()


def test_epochs_have_the_same_or_fresh_orders(material):
    packed = material.packed(TrialConfig())
    for epochs in ("same", "fresh"):
        source = Ordered(TrialConfig(batch_size=4, epoch_orders=epochs), packed)
        first = source.give(0).arrays["inputs"]
        again = source.give(source.steps_per_epoch).arrays["inputs"]
        assert (first == again).all() == (epochs == "same")


def test_a_mixture_is_planned_again_without_repeats(material):
    dataset, packed = material.dataset, material.packed(TrialConfig())
    sequences = packed.sequences

    class Wanted:
        def update(self, losses, num_tokens):
            assert num_tokens.sum() > 0
            return np.array([0.9, 0.1])

    order = dataclasses.replace(TrialConfig().order, method="greedy", objective=jd.Objective.f3(3.0))
    config = TrialConfig(batch_size=4, mixture="learning_speed", replan_every=2, order=order)
    codes = document_codes(dataset, "source")
    of_tokens = codes[np.maximum(sequences.documents, 0)].astype(np.int32)
    source = Mixed(config, packed, Wanted(), dataset.group_names["source"], codes)

    result = StepResult(jnp.zeros(()), (jnp.ones(2), jnp.full(2, 8.0)), None, None)
    share, seen = [], []
    for step in range(6):
        source.give(step)
        seen += source.rows.tolist()
        share.append((of_tokens[source.rows] == 0).mean())
        measures = source.observe(step, result)
        assert len(measures) == (2 if step % 2 else 0)
        if step % 2:  # the rest of the epoch is ordered by the trial's objective
            chars = packed.characteristics.with_weights({"cluster": 1.0, "source": 3.0})
            objective, plan = jd.Objective.f3(3.0), {"targets": {"source": [0.9, 0.1]}, "consumed": seen}
            expected = jd.order(chars, "greedy", seed=step, objective=objective, **plan)
            np.testing.assert_array_equal(source.order, expected.indices)
    assert len(set(seen)) == len(seen)
    assert np.mean(share[2:]) > np.mean(share[:2]) + 0.1


# ---- Models and gradients beside slow references.


def test_an_lstm_agrees_with_a_slow_reference():
    model = Lstm(vocab_size=11, width=4, num_layers=2, seed=1)
    tokens = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    hidden, carry = model(jnp.asarray(tokens), jnp.zeros((2, 2, 2, 4)))

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    inputs = np.asarray(model.embedding.embedding[...], np.float64)[tokens]
    for layer in model.layers:
        wide, bias = np.asarray(layer.from_input.kernel[...]), np.asarray(layer.from_input.bias[...])
        again = np.asarray(layer.from_output.kernel[...])
        outputs = np.zeros_like(inputs)
        for row in range(2):
            cell, output = np.zeros(4), np.zeros(4)
            for place in range(5):
                enters, forgets, leaves, candidate = np.split(inputs[row, place] @ wide + bias + output @ again, 4)
                cell = sigmoid(forgets + 1) * cell + sigmoid(enters) * np.tanh(candidate)
                output = sigmoid(leaves) * np.tanh(cell)
                outputs[row, place] = output
        inputs = outputs
    np.testing.assert_allclose(hidden, inputs, atol=1e-5)
    # In two parts with the state carried on: the same.
    first, state = model(jnp.asarray(tokens[:, :2]), jnp.zeros((2, 2, 2, 4)))
    second, state = model(jnp.asarray(tokens[:, 2:]), state)
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=1), hidden, atol=1e-6)
    np.testing.assert_allclose(state, carry, atol=1e-6)


def test_stable_ranks_by_layer_are_numpys():
    model = Gpt(vocab_size=20, width=8, num_layers=2, num_heads=2, seed=0)
    rng = np.random.default_rng(0)
    gradients = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), nnx.state(model, nnx.Param)
    )
    ranks, matrices = stable_ranks(gradients), named_matrices(gradients)
    kinds = ("query", "key", "value", "attention_out", "perceptron_in", "perceptron_out")
    assert set(ranks) == {"embedding", *(f"block{layer}/{kind}" for layer in (0, 1) for kind in kinds)}
    for name, rank in ranks.items():
        singular = np.linalg.svd(np.asarray(matrices[name], np.float64), compute_uv=False)
        assert float(rank) == pytest.approx((singular**2).sum() / singular[0] ** 2, rel=1e-4)
    joint = np.asarray(gradients["blocks"][0]["query_key_value"]["kernel"][...])
    np.testing.assert_array_equal(matrices["block0/key"], joint[:, 8:16])


def test_cosine_curvature_and_variance_are_numpys():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    hessian = root + root.T
    direction = rng.normal(size=4)

    def loss(x):
        return 0.5 * x @ jnp.asarray(hessian) @ x

    expected = direction @ hessian @ direction / (direction @ direction)
    assert float(curvature_along(loss, jnp.zeros(4), jnp.asarray(direction))) == pytest.approx(expected, rel=1e-4)
    other = rng.normal(size=4)
    angle = direction @ other / np.linalg.norm(direction) / np.linalg.norm(other)
    assert float(cosine({"a": jnp.asarray(direction)}, {"a": jnp.asarray(other)})) == pytest.approx(angle, rel=1e-5)
    batches = rng.normal(size=(5, 3))
    expected = batches.var(axis=0, ddof=1).sum() / np.square(batches.mean(axis=0)).sum()
    assert float(between_batches({"a": jnp.asarray(batches)})) == pytest.approx(expected, rel=1e-4)


@pytest.mark.campaign
def test_steps_with_sketches_are_steps_without(material):
    made = trial_model(material.dataset.vocab_size, SIZES["gpt"]["tiny"])
    batch = material.packed(TrialConfig()).sequences.batch(np.arange(4))
    with_, without = (
        made.step(*made.start(0), Given(batch, sketches=wanted), jnp.float32(1e-3)) for wanted in (True, False)
    )
    assert float(with_[2].loss) == pytest.approx(float(without[2].loss), rel=1e-5)
    assert with_[2].sketches.shape == (4, 4096)
    close = jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, atol=1e-4)), with_[0], without[0])
    assert all(jax.tree.leaves(close))


@pytest.mark.campaign
def test_half_precision_computes_nearly_the_same(material):
    """As sizes above `tiny` do: weights and losses are float32, what is between them is not."""
    batch = material.packed(TrialConfig()).sequences.batch(np.arange(4))
    found = {}
    for precision in ("float32", "bfloat16"):
        made = trial_model(material.dataset.vocab_size, SIZES["gpt"]["tiny"], "gpt", "alibi", precision)
        parameters, _ = made.start(0)
        found[precision] = made.losses(parameters, batch).by_token
        after, _, _ = made.step(*made.start(0), Given(batch), jnp.float32(1e-3))
        assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {jnp.dtype(jnp.float32)}
    held = batch["targets_segmentation"] != 0
    assert found["bfloat16"].dtype == jnp.float32
    assert not (found["bfloat16"] == found["float32"]).all()
    np.testing.assert_allclose(found["bfloat16"][held], found["float32"][held], rtol=0.02)


@pytest.mark.parametrize("end_rate", [0.0, 0.1, 1.0])
def test_learning_rates_rise_and_fall(end_rate: float):
    config = TrialConfig(learning_rate=0.5, warmup=0.2, end_rate=end_rate)
    found = [learning_rate(config, 20, step) for step in range(20)]
    np.testing.assert_allclose(found[:4], [0.125, 0.25, 0.375, 0.5])
    falls = [0.5 * (end_rate + (1 - end_rate) * (1 + np.cos(np.pi * step / 16)) / 2) for step in range(16)]
    np.testing.assert_allclose(found[4:], falls)
    constant = TrialConfig(learning_rate=0.5, warmup=0.0, decay="constant")
    assert {learning_rate(constant, 20, step) for step in range(20)} == {0.5}


@pytest.mark.parametrize(("share", "first"), [(0.0, 10), (0.04, 10), (0.3, 8), (0.5, 6), (1.0, 1)])
def test_a_mean_of_weights_is_numpys(share: float, first: int):
    weights = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    mean = MeanOfWeights(10, share)
    for step in range(1, 13):
        assert (mean.weights is None) == (step <= first)
        given = {"a": jnp.asarray(weights[step - 1])}
        mean.add(step, given)
        given["a"].delete()  # as the next step of training does
    np.testing.assert_allclose(mean.weights["a"], weights[first - 1 : 10].mean(axis=0), rtol=1e-5)


def test_averaging_evaluates_the_mean_of_the_last_weights(experiment, material):
    trial = experiment.trials[0]

    def row(**settings) -> TrialRow:
        config = dataclasses.replace(trial.config, evaluate_at=(0.5, 1.0), **settings)
        return run_trial(dataclasses.replace(trial, config=config), material, "small")

    assert row(averaging=0.1).measures == row().measures
    found, same = (row(averaging=share, end_rate=0.5, weight_decay=0.5) for share in (0.67, 0.0))
    assert found.curve("loss/train")[1].tolist() == same.curve("loss/train")[1].tolist()
    assert found.final()["loss/task/tale"] != same.final()["loss/task/tale"]
    config = dataclasses.replace(trial.config, end_rate=0.5, weight_decay=0.5)
    made = trial_model(material.dataset.vocab_size, SIZES["gpt"]["tiny"])
    trainer = Trainer(made, Ordered(config, material.packed(config)).give, config.weight_seed, 0.5)
    steps = trainer.steps(0, 6, lambda step: learning_rate(config, 6, step))
    weights = [jax.tree.map(np.array, trainer.parameters) for _ in steps]
    validation = material.evaluation.validation
    for step, first in ((3, 1), (6, 2)):
        mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *weights[first:step])
        sequences = validation.sequences
        by_token = np.asarray(made.losses(mean, sequences.batch(np.arange(len(sequences)))).by_token, np.float64)
        sums, counts = validation.by_document(by_token)
        steps, values = found.curve("loss/validation")
        assert values[steps.tolist().index(step)] == pytest.approx(sums.sum() / counts.sum(), rel=1e-5)


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_sizes_have_the_documented_numbers_of_parameters(kind: str):
    """Counted by hand: embedding, matrices and scales of the transformer's blocks; the LSTM's gates and biases."""
    numbers = {}
    for name in ("tiny", "mini"):
        width, layers, _ = size = SIZES[kind][name]
        made = trial_model(2048, size, kind)
        numbers[name] = sum(leaf.size for leaf in jax.tree.leaves(made.start(0)[0]))
        own = 12 * width**2 + 2 * width if kind == "gpt" else 8 * width**2 + 4 * width
        assert numbers[name] == 2048 * width + layers * own + (width if kind == "gpt" else 0)
    assert numbers == {"gpt": {"tiny": 229_696, "mini": 2_164_416}, "lstm": {"tiny": 270_720, "mini": 2_296_320}}[kind]


# ---- Orders from gradients, mixtures from losses.


def reference_order(order: list[int], gradients: np.ndarray, rule: str, mean: np.ndarray) -> list[int]:
    """GraB and CD-GraB in plain loops."""
    total, front, back = np.zeros(gradients.shape[1]), [], []
    if rule == "grab":
        for index, gradient in zip(order, gradients, strict=True):
            centred = gradient - mean
            if np.linalg.norm(total + centred) < np.linalg.norm(total - centred):
                total, front = total + centred, [*front, index]
            else:
                total, back = total - centred, [index, *back]
        return front + back
    for place in range(0, len(order) - 1, 2):
        difference = gradients[place] - gradients[place + 1]
        first, second = order[place], order[place + 1]
        if np.linalg.norm(total + difference) < np.linalg.norm(total - difference):
            total, front, back = total + difference, [*front, first], [second, *back]
        else:
            total, front, back = total - difference, [*front, second], [first, *back]
    return front + back + order[len(order) // 2 * 2 :]


@pytest.mark.parametrize("rule", ["grab", "cd_grab"])
@pytest.mark.parametrize("number", [16, 17])
def test_orders_from_gradients_are_those_of_plain_loops(rule: str, number: int):
    rng = np.random.default_rng(number)
    gradients = rng.normal(size=(number, 6)).astype(np.float32)
    learnt, order, mean = GradientOrder(np.arange(number), rule, size=6), list(range(number)), np.zeros(6)
    for _ in range(3):
        for start in range(0, number, 5):
            learnt.observe(gradients[learnt.order][start : start + 5])
        order = reference_order(order, gradients[order], rule, mean)
        mean = gradients.mean(axis=0)
        assert learnt.next_epoch().tolist() == order
    with pytest.raises(UserError, match="sketches of 6 numbers"):
        learnt.observe(np.zeros((number + 1, 6), np.float32))


def test_balanced_signs_keep_the_sum_small():
    vectors = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    plus, total = balanced_signs(jnp.asarray(vectors), jnp.zeros(3))
    signed = np.where(np.asarray(plus)[:, None], vectors, -vectors)
    np.testing.assert_allclose(signed.sum(axis=0), total, atol=1e-3)
    assert np.abs(np.cumsum(signed, axis=0)).max() < 0.5 * np.abs(np.cumsum(vectors, axis=0)).max()


def test_mixtures_follow_losses():
    rule = ExcessLoss(np.array([0.5, 0.5]), np.array([2.0, 2.0]), smoothing=0.1)
    shares = rule.update(np.array([3.0, np.nan]), np.array([5, 0]))
    expected = np.array([np.e, 1]) / (np.e + 1)
    np.testing.assert_allclose(shares, 0.9 * expected + 0.05)
    speed = LearningSpeed(np.array([0.6, 0.4]))
    for place in range(1, 5):
        losses = np.array([2 + 3 * (100 * place - 50) ** -0.5, 2.0])
        shares = speed.update(losses, np.array([100, 100]))
        assert shares.sum() == pytest.approx(1)
    assert shares[0] == pytest.approx(0.7 + 0.3 * 0.6, abs=1e-3)
    with pytest.raises(UserError, match="reference losses"):
        make_rule("excess_loss", np.array([1.0]))
    with pytest.raises(UserError, match="each of 2 groups, found 1"):
        ExcessLoss(np.array([0.5, 0.5]), np.array([1.0]))


# ---- Verdicts.

CLAIMS = """
claims:
  - {number: 1, text: a, arms: [better]}
  - {number: 2, text: b, arms: [worse]}
  - {number: 3, text: c, arms: [equal]}
  - {number: 4, text: d, test: mixed, measures: ["loss/source/*"], arms: [better]}
  - {number: 5, text: e, test: lowest, arms: [better], among: [worse, equal, shuffle]}
  - {number: 6, text: f, test: highest, arms: [worse], among: [better, shuffle]}
  - {number: 7, text: g, test: most_higher, measures: ["stable_rank/*"], arms: [worse]}
  - {number: 8, text: h, arms: [absent]}
  - {number: 9, text: i, test: sensitivity, arms: [worse]}
arms:
  shuffle: {batch_size: 5}
  better: {batch_size: 6}
  worse: {batch_size: 7}
  equal: {batch_size: 8}
  absent: {batch_size: 9}
vary: {learning_rate: [0.001, 0.002]}
"""


SETTINGS = {"evaluate_at": [1.0], "diagnose_at": [1.0], "model": "gpt", "size": "tiny"}


def invented(trial, shift: float, rng: np.random.Generator) -> TrialRow:
    """A row with a known difference from that of the same seeds, and little noise of its own."""
    seed = trial.config.weight_seed
    rate = trial.config.learning_rate
    spread = 1 + 100 * rate * (2 if trial.arm == "worse" else 1)
    losses = 3 * spread + 0.3 * seed + shift + rng.normal(0, 0.01, 20)
    final = {
        "loss/macro": float(losses.mean()),
        "loss/validation": float(losses.mean()),
        "loss/source/a": float(losses.mean()),
        "loss/source/b": float(3 - shift + 0.3 * seed + rng.normal(0, 0.01)),
        "stable_rank/x": float(np.exp(shift + rng.normal(0, 0.01))),
        "stable_rank/y": float(np.exp(2 * shift + rng.normal(0, 0.01))),
    }
    measures = tuple(Measure(6, name, value) for name, value in final.items())
    return TrialRow(
        trial.identity, "x", trial.arm, trial.varied, trial.config.order_seed, seed, SETTINGS, "d", 1,
        "done", 1, 6, 100, 1.0, "cpu", "0", measures, losses.astype(np.float32), np.full(20, 5, np.int32), ["a"] * 20,
    )  # fmt: skip


def invented_row() -> TrialRow:
    rows = read_experiment("configs/experiments/documents.yaml").trials
    return invented(rows[0], 0.0, np.random.default_rng(0))


def test_verdicts_on_rows_with_known_differences(tmp_path):
    text = FILE[: FILE.index("claims:")] + CLAIMS
    text = text.replace("order: [0, 1], weights: [0, 1]", "order: [0, 1, 2, 3, 4], weights: [0, 1, 2, 3, 4]")
    (tmp_path / "x.yaml").write_text(text)
    experiment = read_experiment(tmp_path / "x.yaml")
    rng = np.random.default_rng(0)
    shifts = {"shuffle": 0.0, "better": -0.2, "worse": 0.2, "equal": 0.0}
    rows = {each.identity: invented(each, shifts[each.arm], rng) for each in experiment.trials if each.arm in shifts}
    judge = Judge(experiment, rows)
    verdicts = {judged.claim.number: judged.verdict for judged in map(judge.judge, experiment.config.claims)}
    assert verdicts == {
        1: "supported",
        2: "not supported",
        3: "inconclusive",
        4: "supported",
        5: "supported",
        6: "supported",
        7: "supported",
        8: "not run",
        9: "supported",
    }
    difference = judge.difference("better", "shuffle", "loss/macro")
    assert difference is not None
    assert difference.low < -0.2 < difference.high
    assert difference.high - difference.low < 0.05
    assert judge.best("shuffle") == '{"learning_rate": 0.001}'
    text = experiment_text(experiment, rows)
    assert "**40 of 50 runs are done.**" in text
    assert "| better | 0.001 | " in text


def test_noise_says_how_many_runs_are_needed(tmp_path):
    text = FILE.replace(
        "seeds: {order: [0, 1], weights: [0, 1]}", "seeds: {order: [0, 1, 2, 3], weights: [0], crossed: true}"
    )
    (tmp_path / "x.yaml").write_text(text)
    experiment = read_experiment(tmp_path / "x.yaml")
    rng = np.random.default_rng(0)
    rows = {each.identity: invented(each, 0.0, rng) for each in experiment.trials}
    spreads = Judge(experiment, rows).spreads()
    assert [each.arm for each in spreads] == ["shuffle", "balance"]
    values = [value_of(row, "loss/macro") for row in rows.values() if row.arm == "shuffle"]
    assert spreads[0].deviation == pytest.approx(np.std(values, ddof=1))
    # The fluctuation that all groups of a run share is not the groups' own.
    names = ("loss/source/a", "loss/source/b")
    groups = np.array([[value_of(row, name) for name in names] for row in rows.values() if row.arm == "shuffle"])
    halves = (groups[:, 0] - groups[:, 1]) / 2  # the distance of both from their mean
    assert spreads[0].by_group == pytest.approx(np.std(halves, ddof=1))
    assert "## Noise" in experiment_text(experiment, rows)


def test_the_noise_of_the_logged_loss_is_a_table_by_arm_and_setting(tmp_path):
    (tmp_path / "x.yaml").write_text(FILE)
    experiment = read_experiment(tmp_path / "x.yaml")
    rng = np.random.default_rng(0)
    rows = {each.identity: invented(each, 0.0, rng) for each in experiment.trials}
    assert "logged loss" not in experiment_text(experiment, rows)
    for row in list(rows.values()):
        deviations = (0.08, 0.06) if row.order_seed else (0.08, 0.0)
        noise = [Measure(6, f"noise/{number}", value) for number, value in zip((1, 8), deviations, strict=True)]
        rows[row.identity] = dataclasses.replace(row, measures=(*row.measures, *noise))
    text = experiment_text(experiment, rows)
    table = text[text.index("## Noise of the logged loss") :].splitlines()
    assert "| arm | 1 step | 8 steps |" in table
    # 2.8 standard errors of a difference of two means; the root mean square of .06 and 0 is .0424.
    assert "| shuffle | 0.0800 (0.317) | 0.0424 (0.168) |" in table


def test_measures_on_the_way():
    measures = tuple(Measure(step, "loss/train", float(step)) for step in (2, 4, 6, 8, 10))
    row = dataclasses.replace(invented_row(), measures=measures, num_steps=10)
    assert [value_of(row, f"loss/train{part}") for part in ("", "@0.2", "@0.5", "@>0.7")] == [10, 2, 4, 9]
    assert np.isnan(value_of(row, "loss/none"))


def test_several_comparisons_are_corrected_for():
    single = [Difference(-0.1, 0.03, 0.09, 0.03, 0.09, 5)]
    assert are_significant(single) == [True]
    assert are_significant(single * 2) == [False, False]


def judged(tmp_path: Path, claim: str, shifts: dict[str, list[float]]) -> tuple[Judged, str]:
    """The verdict on a claim of an experiment with three arms, and its page; every pair's difference is given."""
    text = FILE[: FILE.index("claims:")] + f"claims:\n  - {{number: 1, text: a, {claim}}}\n"
    text = text.replace("order: [0, 1], weights: [0, 1]", "order: [0, 1, 2], weights: [0, 1, 2]")
    text += "arms:\n  shuffle: {batch_size: 5}\n  one: {batch_size: 6}\n  two: {batch_size: 7}\n"
    (tmp_path / "x.yaml").write_text(text + "measures: [loss/train]\n")
    experiment = read_experiment(tmp_path / "x.yaml")
    rows = {}
    for trial in experiment.trials:
        value = 3 + trial.config.weight_seed + shifts[trial.arm][trial.config.weight_seed]
        length = 8 if trial.arm == "two" else 16
        settings = {**SETTINGS, "num_epochs": 1, "dataset": "texts", "packing": {"sequence_length": length}}
        rows[trial.identity] = dataclasses.replace(
            invented(trial, 0.0, np.random.default_rng(0)),
            measures=(Measure(3, "loss/train", value + 1), Measure(6, "loss/train", value)),
            settings=settings,
        )
    judge = Judge(experiment, rows)
    return judge.judge(experiment.config.claims[0]), experiment_text(experiment, rows)


WEAK, CLEAR, NONE = [0.08, 0.1, 0.14], [0.5, 0.51, 0.52], [0.0] * 3


def test_a_claim_on_all_of_several_needs_no_correction(tmp_path):
    """p is .025 for each: Holm's correction of two comparisons would make it .05 and more."""
    claim = "test: lowest, measures: [loss/train], arms: [shuffle], among: [one, two]"
    found, _ = judged(tmp_path, claim, {"shuffle": NONE, "one": WEAK, "two": [0.16, 0.2, 0.28]})
    assert found.verdict == "supported"
    assert found.figure.startswith("2 of 2 as claimed; the largest p is 0.0263; shuffle - one: -0.1067 [")
    found, _ = judged(tmp_path, claim, {"shuffle": NONE, "one": CLEAR, "two": [-0.1, 0.1, 0.2]})
    assert (found.verdict, found.figure[:17]) == ("inconclusive", "1 of 2 as claimed")
    # One that is clearly on the other side refutes the claim; there Holm's correction applies.
    found, _ = judged(tmp_path, claim, {"shuffle": CLEAR, "one": NONE, "two": [1.0, 1.1, 1.2]})
    assert found.verdict == "not supported"
    found, _ = judged(tmp_path, claim, {"shuffle": WEAK, "one": NONE, "two": [0.0, 0.2, -0.1]})
    assert found.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("claim", "differences", "num_arms"),
    [
        ("measures: [loss/train], arms: [one]", [[-0.1, 0.1, 0.15]], 2),
        ("measures: [loss/train], arms: [one, two]", [[0.1, -0.1, -0.15], [0.0, -0.1, -0.02]], 3),
        ("test: most_higher, measures: [loss/train, loss/train@0.5], arms: [one]", [[-0.1, 0.1, 0.15]], 2),
    ],
)
def test_an_inconclusive_claim_says_how_many_pairs_it_needs(
    claim: str, differences: list[list[float]], num_arms: int, tmp_path: Path
):
    """The first number of pairs from 2 on whose power is four fifths; every invented run takes a second."""
    shifts = dict(zip(("one", "two"), differences, strict=False))
    found, text = judged(tmp_path, claim, {"shuffle": NONE, "one": CLEAR, "two": CLEAR} | shifts)
    assert found.verdict == "inconclusive"
    assert found.needed is not None
    if "most_higher" in claim:  # the mean difference of the logarithms; `judged` says what the losses are
        seeds, each = np.arange(3), np.array(differences[0])
        differences = [np.log((3 + seeds + each) / (3 + seeds) * (4 + seeds + each) / (4 + seeds)) / 2]
    numbers = []
    for each in differences:
        mean, deviation = float(np.mean(each)), float(np.std(each, ddof=1))
        numbers.append(next(number for number in range(2, 1000) if power(mean, deviation, number) >= 0.8))
    # The weakest comparison is the one with the largest p-value.
    p_values = [stats.ttest_1samp(each, 0).pvalue for each in differences]
    assert found.needed.num_pairs == numbers[int(np.argmax(p_values))]
    assert found.needed.hours == pytest.approx(found.needed.num_pairs * num_arms / 3600)
    assert f"| {found.needed.num_pairs} ({found.needed.hours:.1f} hours) |" in text
    assert "*Pairs needed* is the number" in text


def test_a_decided_claim_and_equal_runs_need_no_number_of_pairs(tmp_path):
    for shifts, verdict in ((CLEAR, "not supported"), (NONE, "inconclusive")):
        found, text = judged(
            tmp_path, "measures: [loss/train], arms: [one]", {"shuffle": NONE, "one": shifts, "two": NONE}
        )
        assert (found.verdict, found.needed) == (verdict, None)
        assert "airs needed" not in text


def test_the_interval_of_the_weakest_comparison_is_quoted(tmp_path):
    claim = "measures: [loss/train, loss/train, loss/train@0.5, loss/train@>0.9, loss/train@>0.5], arms: [one]"
    found, _ = judged(tmp_path, f"{claim}, against: two", {"shuffle": NONE, "one": NONE, "two": CLEAR})
    assert found.figure.startswith("5 of 5 as claimed; the largest p is 0.000128; one - two: -0.5100 [")
    claim = "test: lowest, measures: [loss/train, loss/train@0.5, loss/train@>0.9], arms: [shuffle], among: [one, two]"
    found, _ = judged(tmp_path, claim, {"shuffle": NONE, "one": CLEAR, "two": WEAK})
    assert "6 of 6 as claimed; the largest p is 0.0263; shuffle - two: -0.1067 [" in found.figure


def test_ranks_are_taken_among_the_arms_of_one_length_and_pairs_counted_by_their_deviation(tmp_path):
    _, text = judged(tmp_path, "arms: [one]", {"shuffle": NONE, "one": WEAK, "two": CLEAR})
    ranks = {line.split(" | ")[0][2:]: line.split(" | ")[-1][:-2] for line in text.splitlines() if line.count("|") == 7}
    assert {arm: ranks[arm] for arm in ("shuffle", "one", "two")} == {"shuffle": "1.0", "one": "2.0", "two": "1.0"}
    deviation = np.median([np.std(WEAK, ddof=1), np.std(CLEAR, ddof=1)])
    assert f"standard deviation of a pair's difference is {deviation:.3g} (median of the arms). With\n3 pairs" in text


# ---- What the lab needs of other parts.


def test_text_files_of_several_documents(tmp_path):
    from jax_diversity.preparation.readers.reading import read_documents
    from jax_diversity.preparation.readers.records import ReadReport
    from jax_diversity.preparation.settings import CorpusConfig

    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("before\n\n = One = \n text\n\n = = Part = = \n more\n = Two = \n\n")
    corpus = CorpusConfig(paths=(str(tmp_path / "*.txt.gz"),), documents_begin="^ = [^=]")
    found = list(read_documents(corpus, ReadReport()))
    assert [document.text for document in found] == ["before", " = One = \n text\n\n = = Part = = \n more", " = Two ="]
    assert [document.id for document in found] == ["a.txt.gz#1", "a.txt.gz#2", "a.txt.gz#3"]
    lines = dataclasses.replace(corpus, documents_begin=r"\S")
    assert len(list(read_documents(lines, ReadReport()))) == 6
    with pytest.raises(UserError, match=r"documents_begin to be a regular expression"):
        dataclasses.replace(corpus, documents_begin="(").check()
    with pytest.raises(UserError, match=r"documents_begin with corpus.format=text only"):
        dataclasses.replace(corpus, format="jsonl").check()
    assert "documents_begin" not in CorpusConfig().made_of()


def test_committed_rows_belong_to_the_committed_experiments():
    """A setting's default is not part of the identity, so it must not change while rows of it are stored."""

    def assert_same(stored: Any, settings: Any) -> None:
        if "objective" in settings and not isinstance(stored["objective"], dict):  # from before it had a section
            stored = {name: value for name, value in stored.items() if name in settings and name != "objective"}
        for name, value in stored.items():  # settings may have been added since
            if isinstance(value, dict) and isinstance(settings[name], dict):
                assert_same(value, settings[name])
            else:
                assert settings[name] == value, name

    for folder in sorted(Path("benchmarks/results/lab").iterdir()):
        trials = {trial.identity: trial for trial in read_experiment(f"configs/experiments/{folder.name}.yaml").trials}
        for identity, row in read_rows(folder).items():
            assert_same(row.settings, json.loads(json.dumps(dataclasses.asdict(trials[identity].config))))


def test_a_setting_at_its_default_keeps_the_identity(experiment, tmp_path):
    def identities(old: str, new: str) -> list[str]:
        assert old in FILE
        (tmp_path / "small.yaml").write_text(FILE.replace(old, new))
        return [trial.identity for trial in read_experiment(tmp_path / "small.yaml").trials]

    known = [trial.identity for trial in experiment.trials]
    defaults = "num_steps: 6, weight_decay: 0.1, end_rate: 0.1, averaging: 0, size: tiny, packing: null"
    assert identities("num_steps: 6", defaults) == known
    assert identities("{method: balance}", "{method: balance, objective: {windows: [], form: squares}}") == known
    assert identities("max_tokens: 120", "max_tokens: 120, format: auto") == known
    for old, new in (
        ("num_steps: 6", "num_steps: 6, weight_decay: 0.2"),
        ("num_steps: 6", "num_steps: 6, averaging: 0.2"),
        ("num_steps: 6", "num_steps: 6, packing: {sequence_length: 2048}"),
        ("max_tokens: 120", "max_tokens: 121"),
        ("tokens_per_document: 300", "tokens_per_document: 301"),
        ("num_clusters: 4", "num_clusters: 5"),
    ):
        assert not set(identities(old, new)) & set(known)


@pytest.mark.parametrize("name", ["documents", "partial_shuffle"])
def test_the_committed_pages_say_what_the_committed_rows_say(name: str, tmp_path: Path):
    rows = read_rows(Path("benchmarks/results/lab") / name)
    write_page(read_experiment(f"configs/experiments/{name}.yaml"), rows, tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (Path("docs/evidence") / path.name).read_text(), path.name


def test_the_list_of_claims_says_what_the_committed_rows_say():
    index = Path("docs/evidence/index.md").read_text("utf-8")
    lines = [line for line in index.splitlines() if re.match(r"\| \d+\. ", line)]
    assert {line.split(".")[0] for line in lines} == {f"| {number}" for number in range(1, 10)}
    names = {name.replace("-", "_") for line in lines for name in re.findall(r"\(([\w-]+)\.md\)", line)}
    experiments = [read_experiment(f"configs/experiments/{name}.yaml") for name in sorted(names)]
    rows = [read_rows(Path("benchmarks/results/lab") / each.name) for each in experiments]
    claims = judged_claims([Judge(*pair) for pair in zip(experiments, rows, strict=True)])
    assert set(lines) <= set(summary_text(claims).splitlines())


def test_the_same_comparison_of_two_experiments_is_judged_together():
    whole = read_experiment("configs/experiments/partial_shuffle_again.yaml")
    rows = read_rows(Path("benchmarks/results/lab/partial_shuffle_again"))
    seeds = sorted({trial.config.order_seed for trial in whole.trials})

    def part(name: str, own: list[int], **changes: Any) -> Judge:
        trials = tuple(trial for trial in whole.trials if trial.config.order_seed in own)
        config = dataclasses.replace(whole.config, claims=(dataclasses.replace(claim, **changes),))
        return Judge(dataclasses.replace(whole, name=name, config=config, trials=trials), rows)

    (claim,) = whole.config.claims
    first, second = part("first", seeds[:5]), part("second_one", seeds[5:], text="Also so")
    claims = judged_claims([first, second])
    assert [(each.experiments, each.is_part) for each in claims] == [
        (("first",), True),
        (("second_one",), True),
        (("first", "second_one"), False),
    ]
    assert claims[2].judged.effect == Judge(whole, rows).judge(claim).effect
    assert claims[2].judged.effect.num_pairs == len(seeds)
    assert "9. Also so | [first](first.md) and [second-one](second-one.md), together | supported |" in summary_text(
        claims
    )
    # Another measure, or other tokens, are another comparison.
    assert len(judged_claims([first, part("second_one", seeds[5:], measures=("loss/macro",))])) == 2
    others = {identity: dataclasses.replace(row, data="other") for identity, row in rows.items()}
    assert len(judged_claims([first, Judge(second.experiment, others)])) == 2


def test_the_committed_experiments_can_be_read():
    files = sorted(Path("configs/experiments").glob("*.yaml"))
    assert len(files) >= 8
    claims = set()
    for file in files:
        experiment = read_experiment(file)
        claims |= {claim.number for claim in experiment.config.claims}
        assert read_experiment(file, "small").trials[0].config.precision == "bfloat16"
    assert claims == set(range(1, 11))


def test_evaluation_takes_as_many_tokens_of_every_source(material):
    evaluation: Evaluation = material.evaluation
    tokens = np.array([len(text) for text in evaluation.validation.texts])
    for source in ("sea", "law"):
        held = evaluation.validation.groups["source"] == source
        assert 1200 <= tokens[held].sum() <= 1500
    assert tokens.max() <= 300
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert material.evaluation.tasks["tale"].sequences.is_target.sum() > 50
