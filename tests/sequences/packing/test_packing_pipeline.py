"""Packing methods as a setting of a build: stages that they depend on, counts, the report's section."""

from __future__ import annotations

import dataclasses
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.parsing import with_given
from jax_diversity.foundation.settings import settings_from_plain
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.sequences.packing.base import METHODS
from jax_diversity.sequences.packing.megatron import megatron_indices, plan_epochs
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.streaming.export.maxtext import write_maxtext
from tests.support.packing_cases import registered
from tests.support.tiny_corpus import tiny_config, write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), num_documents=150)


def config_of(corpus: Path, out: Path, **packing: Any) -> BuildConfig:
    config = tiny_config(corpus, out)
    return dataclasses.replace(config, packing=dataclasses.replace(config.packing, **packing))


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose stages before packing are made."""
    out = tmp_path_factory.mktemp("prepared") / "out"
    for stage in ("prepare", "tokenize", "embed", "cluster"):
        Build(tiny_config(corpus, out)).run_stage(stage)
    return out


@pytest.mark.parametrize("method", registered())
def test_every_method_packs_a_corpus(method: str, corpus: Path, prepared: Path) -> None:
    Build(config_of(corpus, prepared, method=method)).run_stage("pack")
    dataset = jd.open_dataset(prepared)
    counts = dataset.manifest["stages"]["pack"]["counts"]
    lengths = dataset.tokens.document_lengths
    training, validation = dataset.segments, dataset.validation_segments
    assert not np.intersect1d(training.document_index, validation.document_index).size
    assert counts["num_tokens_kept"] + counts["num_tokens_dropped"] == lengths.sum()
    taken = counts["num_tokens_kept"] + counts["num_tokens_repeated"] + counts["num_inserted_ends"]
    assert taken == training.length.sum() + validation.length.sum()
    num_sequences = counts["num_sequences"] + counts["num_validation_sequences"]
    assert num_sequences * training.sequence_length == taken + counts["num_padding_tokens"]
    assert Build(config_of(corpus, prepared, method=method)).run_stage("pack").kept
    inputs = dataset.manifest["stages"]["pack"]["inputs"]
    assert "cluster" in inputs  # the choice of validation documents is balanced over clusters
    by_hash = config_of(corpus, prepared, method=method, validation_choice="hash")
    Build(by_hash).run_stage("pack")
    inputs = jd.open_dataset(prepared).manifest["stages"]["pack"]["inputs"]
    assert ("cluster" in inputs) == METHODS.takes(method, "clusters")
    assert ("embed" in inputs) == METHODS.takes(method, "vectors")


def test_options_reach_the_method(corpus: Path, prepared: Path) -> None:
    options: dict[str, Any] = {"num_rows": 3, "num_epochs": 2, "last_sequence": "pad"}
    config = config_of(corpus, prepared, method="partial_shuffle", options=options, seed=5)
    Build(config).run_stage("pack")
    dataset = jd.open_dataset(prepared)
    lengths = dataset.tokens.document_lengths
    order = np.random.default_rng(5).permutation(len(lengths))
    order = order[np.isin(order, dataset.segments.document_index)]
    expected = jd.pack(lengths, 32, method="partial_shuffle", document_order=order, seed=5, **options).segments
    np.testing.assert_array_equal(dataset.segments.document_index, expected.document_index)
    np.testing.assert_array_equal(dataset.segments.document_offset, expected.document_offset)
    # Validation documents are packed once.
    counts = dataset.manifest["stages"]["pack"]["counts"]
    validation = dataset.validation_segments
    own = lengths[np.setdiff1d(np.arange(len(lengths)), order)].sum()
    assert validation.num_sequences == -(-(own - 1) // 32)  # one row, whose first token is not a target
    places = dataset.segments.length.sum() + validation.length.sum()
    assert counts["num_tokens_repeated"] == places - counts["num_tokens_kept"]


def test_rows_of_a_batch_go_on_in_the_next_batch_without_a_masked_target(corpus: Path, prepared: Path) -> None:
    options = {"num_rows": 4}
    config = config_of(corpus, prepared, method="partial_shuffle", options=options)
    for stage in ("pack", "write"):
        Build(config).run_stage(stage)
    dataset = jd.open_dataset(prepared)
    assert (dataset.sequence_length, dataset.overlap) == (32, 1)
    num_rows = dataset.num_sequences // 4 * 4
    batch = dataset.records.read_sequences(np.arange(num_rows))
    assert batch["inputs"].shape == (num_rows, 32)
    inputs, targets, mask = (batch[name] for name in ("inputs", "targets", "targets_segmentation"))
    ends = inputs == dataset.manifest["stages"]["tokenize"]["counts"]["end_id"]
    # Where a row jumps back to its beginning, one document is cut off without its end token.
    jumps = (mask == 0) & ~ends & (batch["inputs_segmentation"] > 0)
    assert jumps.sum() <= 4 + 4  # and the last token of every row has no target
    np.testing.assert_array_equal(targets[:-4, -1][mask[:-4, -1] > 0], inputs[4:, 0][mask[:-4, -1] > 0])
    assert (mask[:, -1] > 0).mean() > 0.8


def test_a_build_with_padding_and_inserted_ends(corpus: Path, prepared: Path) -> None:
    config = config_of(corpus, prepared, method="pad", options={"atom_size": 8})
    Build(dataclasses.replace(config, orders=(OrderConfig(method="uniform_shuffle"),))).run_all()
    dataset = jd.open_dataset(config.out)
    assert dataset.verify() == []
    counts = dataset.manifest["stages"]["pack"]["counts"]
    assert counts["num_inserted_ends"] > 0
    assert counts["num_padding_tokens"] > 0
    page = json.loads((prepared / "report.json").read_text(encoding="utf-8"))["packing"]
    for name in ("num_inserted_ends", "num_padding_tokens", "num_tokens_repeated", "num_documents_cut"):
        assert page[name] == counts[name]
    clusters = np.load(prepared / "clusters" / "assignments.npy").astype(np.int32)
    lengths = dataset.tokens.document_lengths
    expected = [
        len({int(clusters[d]) for d in dataset.segments.document_index[dataset.segments.sequence_index == sequence]})
        for sequence in range(dataset.num_sequences)
    ]
    assert page["clusters_per_sequence"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert 1 / 4 < page["largest_cluster_share"] <= 1
    segments = dataset.segments
    assert (segments.length <= 8).all()
    assert lengths.max() > 8
    # Every atom lies at its own place, also in what training reads.
    np.testing.assert_array_equal(segments.position % 8, 0)
    held = np.zeros((dataset.num_sequences, 32), bool)
    for row, place, length in zip(segments.sequence_index, segments.position, segments.length, strict=True):
        held[row, place : place + length] = True
    batch = dataset.records.read_sequences(np.arange(dataset.num_sequences))
    np.testing.assert_array_equal(batch["inputs_segmentation"] > 0, held)
    assert not batch["inputs"][~held].any()
    with pytest.raises(jd.UserError, match=r"padding at their ends only for MaxText.*options\.atom_size"):
        write_maxtext(jd.make_run(dataset, "uniform_shuffle"), prepared / "maxtext")
    assert not (prepared / "maxtext").exists()


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("bestfit", {}, "^Unknown packing method 'bestfit': .* did you mean 'best_fit'"),
        ("concat", {"atom_size": 24}, "atom_size that divides the sequence length 32 or is a multiple of it, found 24"),
        ("concat", {"atom_size": 48}, "atom_size that divides the sequence length 32 .* found 48"),
        ("concat", {"atom_size": 0}, "atom_size to be a whole number >= 1, found 0"),
        ("concat", {"atom_size": 8.0}, "the option 'atom_size' to be a whole number or None, found 8.0"),
        ("concat", {"last_sequence": "keep"}, "the option 'last_sequence' to be one of drop, pad, found 'keep'"),
        ("concat", {"seed": 3}, "Method 'concat' has no option 'seed'"),
        ("pad", {"atom_size": 1}, "atom_size to be a whole number >= 2, found 1"),
        ("best_fit", {"atom_size": 16}, "Method 'best_fit' has no option 'atom_size': it takes none"),
        ("concat", {"num_epochs": 2}, "Method 'concat' has no option 'num_epochs': expected one of atom_size, last_"),
        ("partial_shuffle", {"num_rows": 0}, "num_rows to be a whole number >= 1, found 0"),
        ("partial_shuffle", {"num_epochs": 0}, "num_epochs to be a whole number >= 1, found 0"),
        ("megatron", {"num_epochs": 0}, "num_epochs to be a whole number >= 1, found 0"),
        ("megatron", {"num_samples": 0}, "num_samples to be a whole number >= 1, found 0"),
        ("nearest", {"num_neighbors": 0}, "num_neighbors to be a whole number >= 1, found 0"),
        ("spread", {"num_neighbors": 9}, "Method 'spread' has no option 'num_neighbors'"),
    ],
)
def test_bad_options_are_told_in_one_sentence(method: str, options: dict[str, Any], sentence: str) -> None:
    if not sentence.startswith("^"):
        sentence = rf"^packing\.method={method}: .*{sentence}"
    with pytest.raises(jd.UserError, match=sentence):
        PackingConfig(method=method, options=options, sequence_length=32).check()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((method, {}) for method in registered()),
        ("pad", {"atom_size": 8}),
        ("megatron", {"num_samples": 5, "last_sequence": "pad"}),
        ("partial_shuffle", {"num_rows": 64, "num_epochs": 3}),
        ("nearest", {"num_neighbors": 3}),
    ],
)
def test_good_settings_pass_before_there_are_documents(method: str, options: dict[str, Any]) -> None:
    for sequence_length in (2, 64):
        if sequence_length == 64 or "atom_size" not in options:
            PackingConfig(method=method, options=options, sequence_length=sequence_length).check()


def test_a_number_of_megatrons_samples_is_a_setting(corpus: Path, prepared: Path) -> None:
    """As many epochs as hold them; where few of the last are wanted, that one is shuffled apart."""
    lengths = jd.open_dataset(prepared).tokens.document_lengths
    Build(config_of(corpus, prepared, method="megatron")).run_stage("pack")
    once = jd.open_dataset(prepared)
    wanted = 2 * once.num_sequences + 3
    config = config_of(corpus, prepared, method="megatron", options={"num_samples": wanted})
    Build(config).run_stage("pack")
    dataset = jd.open_dataset(prepared)
    chosen = np.unique(dataset.segments.document_index)
    tokens = int(lengths[chosen].sum())
    epochs = plan_epochs(tokens, 32, num_samples=wanted)
    assert epochs.num_epochs == 3
    assert epochs.last_apart
    assert dataset.num_sequences == epochs.num_samples >= wanted
    expected = megatron_indices(lengths, chosen, 32, num_samples=wanted, seed=config.packing.seed)
    order = np.load(prepared / "sequences" / "shuffle_index.npy")
    np.testing.assert_array_equal(order, expected.shuffle_index)


def test_partial_shuffle_has_as_many_rows_as_a_batch(corpus: Path, prepared: Path) -> None:
    config = dataclasses.replace(config_of(corpus, prepared, method="partial_shuffle"), batch_size=3)
    Build(config).run_stage("pack")
    segments = jd.open_dataset(prepared).segments
    config = config_of(corpus, prepared, method="partial_shuffle", options={"num_rows": 3})
    Build(config).run_stage("pack")
    np.testing.assert_array_equal(jd.open_dataset(prepared).segments.document_offset, segments.document_offset)
    # The number of the settings stays where it is the batch size; another number is an error.
    dataclasses.replace(config, batch_size=3).check({"packing"})
    with pytest.raises(jd.UserError, match=r"num_rows in packing\.options to be the batch size, 4, .* found 3"):
        dataclasses.replace(config, batch_size=4).check({"packing"})
    without = PackingConfig(options={"atom_size": 8})
    assert without.for_batches(4) is without


def test_partial_shuffle_is_read_in_its_own_order(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packing = PackingConfig(method="partial_shuffle", sequence_length=32, validation_fraction=0.05)
    assert [order.method for order in BuildConfig(packing=packing).orders] == ["corpus_order"]
    assert [order.method for order in BuildConfig().orders] == ["uniform_shuffle", "balance"]
    chosen = (OrderConfig("uniform_shuffle"), OrderConfig("balance"))
    assert BuildConfig(packing=packing, orders=chosen).orders == chosen
    given = with_given(BuildConfig(), {"--packing.method": "partial_shuffle"})
    assert [order.method for order in given.orders] == ["corpus_order"]
    listed = with_given(BuildConfig(), {"--packing.method": "partial_shuffle", "--orders": [{"method": "balance"}]})
    assert [order.method for order in listed.orders] == ["balance"]
    file = settings_from_plain(BuildConfig, {"packing": {"method": "partial_shuffle"}})
    assert [order.method for order in with_given(file, {"--batch-size": 4}).orders] == ["corpus_order"]
    config = dataclasses.replace(tiny_config(corpus, tmp_path / "rows"), packing=packing, batch_size=2)
    config = dataclasses.replace(config, orders=(OrderConfig("corpus_order"), OrderConfig("uniform_shuffle")))
    with pytest.warns(UserWarning, match="continue from batch to batch") as caught:
        Build(config).run_all(report=False)
    told = [str(warning.message) for warning in caught if "continue from batch to batch" in str(warning.message)]
    assert len(told) == 1
    assert told[0].startswith("Ordering 'uniform_shuffle': packing.method=partial_shuffle")
    # Every row continues in the next batch: its first token is the last one of the sequence before.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = jd.make_loader(config.out, global_batch_size=2)
    assert "corpus_order" in repr(loader.run)
    for ordering, size in (("corpus_order", 4), ("uniform_shuffle", 2)):
        with pytest.warns(UserWarning, match="goes on in 2 rows from batch to batch, but not in these batches"):
            jd.make_loader(config.out, ordering=ordering, global_batch_size=size)
    batches = [*loader]
    follows = [(before["targets"][:, -1] == after["inputs"][:, 0]) for before, after in itertools.pairwise(batches)]
    assert np.mean(follows) > 0.9
