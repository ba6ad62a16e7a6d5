"""Exports of stored runs, read as the other stacks read them."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema.orderings import Positions
from jax_diversity.streaming.export.levanter import LevanterDataset
from jax_diversity.streaming.export.megatron import Description, write_megatron
from jax_diversity.streaming.export.olmo import write_olmo, write_olmo_tokens
from jax_diversity.streaming.export.pytorch import OrderedBatchSampler
from jax_diversity.streaming.export.settings import OlmoExportConfig
from jax_diversity.streaming.loader.streaming import StreamedRun
from tests.support.maxtext import read_as_maxtext
from tests.support.runs import refused, store_run, store_run_of_one, whole, write_web_and_code
from tests.support.tiny_dataset import TinyDataset, reference_row


@pytest.fixture(scope="module")
def tinies(tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyDataset, TinyDataset]:
    return write_web_and_code(tmp_path_factory.mktemp("uses"))


@pytest.fixture(scope="module")
def run(tinies: tuple[TinyDataset, TinyDataset]) -> Any:
    return store_run(tinies[0].root.parent)


@pytest.fixture(scope="module")
def one(tinies: tuple[TinyDataset, TinyDataset]) -> Any:
    return store_run_of_one(tinies[0].root.parent)


def tokens_of(tinies: tuple[TinyDataset, TinyDataset], run: Any, position: int) -> list[int]:
    """The tokens at a position, one at a time from the documents."""
    dataset, sequence = (int(values[0]) for values in run.places(np.array([position])))
    row = reference_row(tinies[dataset].segments, tinies[dataset].store, sequence)
    return row["inputs"][row["inputs_segmentation"] > 0].tolist()


def test_rows_of_a_run_are_those_of_its_loader(run: Any) -> None:
    source = pickle.loads(pickle.dumps(jd.SequenceSource(run)))
    assert len(source) == run.num_sequences
    for step, batch in enumerate(jd.make_loader(run, global_batch_size=7)):
        rows = source.read(run.at(np.arange(7 * step, 7 * step + 7)))
        assert rows.keys() == batch.keys()
        for field, values in rows.items():
            np.testing.assert_array_equal(values, batch[field])
    examples = asyncio.run(LevanterDataset(run).get_batch([8, 100]))
    np.testing.assert_array_equal(examples[1]["tokens"], source[run.at(np.array([100]))[0]]["inputs"])
    for wrong in (-1, len(source)):
        with pytest.raises(IndexError):
            source[wrong]
    with pytest.raises(UserError, match="no ordering, because a run has its own"):
        LevanterDataset(run, "balance")


def test_a_batch_sampler_follows_a_run_and_its_versions(run: Any) -> None:
    sampler = OrderedBatchSampler(run, None, 8)
    batches = list(sampler)
    np.testing.assert_array_equal(np.concatenate(batches), whole(run)[: 8 * len(batches)])
    # Version 2 was changed at position 130, version 3 by a skip at 48.
    later = OrderedBatchSampler(run, None, 8)
    later.resume(OrderedBatchSampler(run.with_version(2), None, 8).state(6))
    assert list(later) == batches[6:]
    with pytest.raises(UserError, match="Expected a state of the ordering"):
        later.resume(OrderedBatchSampler(run.with_version(2), None, 8).state(7))


def test_npy_holds_the_numbers_and_where_datasets_begin(
    run: Any, one: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", "--quiet", "--target", str(tmp_path), "--out"]
    assert main([*command, str(run.root)]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "run.npy"), whole(run))
    about = json.loads((tmp_path / "run-datasets.json").read_text())
    assert [each["first"] for each in about] == run.offsets[:-1].tolist()
    assert [each["fingerprint"] for each in about] == [dataset.fingerprint for dataset in run.datasets]
    assert main([*command, str(one.root), "--documents"]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "one.npy"), whole(one))
    assert not (tmp_path / "one-datasets.json").exists()
    documents = np.load(tmp_path / "one-documents.npy").tolist()
    first: dict[int, None] = {}
    segments = one.datasets[0].segments
    for number in whole(one):
        first |= dict.fromkeys(segments.document_index[segments.sequence_index == number].tolist())
    assert documents == list(first)
    assert main([*command, str(run.root), "--version", "1", "--overwrite"]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "run.npy"), whole(run.with_version(1)))


def test_maxtext_reads_the_run(
    tinies: tuple[TinyDataset, TinyDataset], run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", "--quiet", "--out", str(run.root), "--to", "maxtext", "--target", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert f"{len(run):,} records" in shown
    assert f"each of the {run.offsets[-1]:,} sequences is written as often as it occurs in the run" in shown
    expected = [tokens_of(tinies, run, position) for position in range(len(run))]
    assert read_as_maxtext(tmp_path / "maxtext.yml") == expected


@pytest.mark.parametrize("loader", ["numpy", "numpy_2024", "composable"])
def test_olmo_s_epochs_are_the_run(run: Any, tmp_path: Path, loader: str) -> None:
    """Read as OLMo-core does: of every epoch's file as many indices as whole batches of all instances."""
    batch_size, num_instances = 8, int(run.offsets[-1])
    config = OlmoExportConfig(loader, seed=3, global_batch_size=batch_size)  # pyright: ignore[reportArgumentType]
    written = write_olmo(run, tmp_path, config, sequence_length=16)
    total = batch_size * (num_instances // batch_size)
    assert num_instances % batch_size
    assert len(written.files) == -(-len(run) // total) > 1
    read = np.concatenate([np.fromfile(path, "<u4")[:total].reshape(-1, batch_size) for path in written.files])
    num_steps = len(run) // batch_size
    assert f"train {num_steps} steps" in written.line
    np.testing.assert_array_equal(read[:num_steps].ravel(), whole(run)[: num_steps * batch_size])
    assert read.max() < num_instances


def test_a_shuffled_stream_is_a_run_for_olmo(tinies: tuple[TinyDataset, TinyDataset], tmp_path: Path) -> None:
    """Each of its epochs has another order, so one order for all epochs would be wrong."""
    dataset = jd.open_dataset(tinies[0].root)
    stream = StreamedRun(dataset, dataset.num_sequences, shuffle_buffer=16, seed=3)
    config = OlmoExportConfig(global_batch_size=4, num_epochs=2)
    with pytest.raises(UserError, match="num-epochs 1 with a run"):
        write_olmo(stream, tmp_path, config, sequence_length=16)
    assert not list(tmp_path.iterdir())


def test_olmo_s_instances_are_all_datasets_sequences(tinies: tuple[TinyDataset, TinyDataset], tmp_path: Path) -> None:
    # Without the padded last sequence, which OLMo-core cannot tell from tokens.
    roots = [each.root for each in tinies]
    run = jd.create_schedule(tmp_path / "run", roots, num_positions=20)
    with pytest.raises(UserError, match="full of tokens"):
        write_olmo_tokens(run, tmp_path / "sequences.npy")


def test_megatron_reads_the_run(one: Any, tmp_path: Path) -> None:
    """As `GPTDataset` does: position i is sample `shuffle_index[i]`, from that row of the sample index to the next."""
    num_samples = one.datasets[0].num_sequences
    samples = np.stack([np.arange(num_samples + 1) // 3, np.arange(num_samples + 1) % 3], axis=1).astype(np.int32)
    about = Description("tokens", len(one), 1, 16, None, {"class": "a"}).text
    short = Positions(whole(one)[:20], num_samples)
    for name, order, text in (
        ("long", one, about),
        ("short", short, Description("tokens", 20, 1, 16, None, {}).text),
    ):
        folder = tmp_path / name
        write_megatron(order, np.arange(num_samples, dtype=np.int32), samples, text, folder)
        found = {each: np.load(next(folder.glob(f"*-{each}_index.npy"))) for each in ("sample", "shuffle")}
        length = len(found["sample"]) - 1  # the length that Megatron sees
        assert length == len(found["shuffle"]) == max(len(order), num_samples)
        at = found["shuffle"][: len(order)]
        np.testing.assert_array_equal(at, order.indices)
        np.testing.assert_array_equal(found["sample"][found["shuffle"]], samples[found["shuffle"]])
        np.testing.assert_array_equal(found["sample"][found["shuffle"] + 1], samples[found["shuffle"] + 1])
    with pytest.raises(UserError, match=r"num_samples in 1 .. 20, the positions of the order"):
        write_megatron(short, np.arange(num_samples), samples, about, tmp_path / "wrong")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--to", "megatron"], "a run of one dataset, for Megatron's cache"),
        (["--documents"], "a run of one dataset, for documents"),
        (["--to", "olmo"], "give --olmo.global-batch-size"),
        (["--to", "olmo", "--olmo.global-batch-size", "8", "--olmo.num-epochs", "2"], "has its own epochs"),
        (["--ordering", "balance"], "no ordering, because the run in"),
        (["--version", "7"], "version to be a whole number >= 1 and <= 4"),
    ],
)
def test_what_a_stack_cannot_hold_is_refused(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    target = tmp_path / "target"
    command = ["export", "--quiet", "--out", str(run.root), "--target", str(target)]
    assert sentence in refused(capsys, *command, *options)
    assert not [path for path in target.glob("*") if not path.name.startswith(".")]


def test_a_dataset_that_is_not_where_it_was_is_named(
    tinies: tuple[TinyDataset, TinyDataset], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = jd.create_schedule(tmp_path / "run", tinies[0].root, num_positions=10)
    (tmp_path / "away" / "deep").mkdir(parents=True)
    moved = run.root.rename(tmp_path / "away" / "deep" / "run")
    for verb in (["inspect"], ["measure"], ["export", "--to", "maxtext", "--target", str(tmp_path / "target")]):
        assert "A dataset of the schedule is not at its stored path" in refused(capsys, *verb, "--out", str(moved))
