"""Validation sequences in a loop: every held-out token once, padded, the same on any number of hosts, resumable."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.pipeline.build import Build
from tests.support.tiny_corpus import tiny_config, write_corpus


@pytest.fixture(scope="module")
def built(tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(tiny_dataset, tmp_path_factory.mktemp("validated") / "out")


def batches(folder: Path, **options: object) -> list[dict[str, np.ndarray]]:
    return list(jd.make_loader(folder, split="validation", global_batch_size=8, **options))


def test_every_held_out_token_comes_once_and_the_last_batch_is_padded(built: Path) -> None:
    dataset = jd.open_dataset(built)
    segments = dataset.validation_segments
    number = segments.num_sequences
    assert number % 8 != 0
    # No token of a held-out document is lost.
    assert segments.length.sum() == dataset.tokens.document_lengths[dataset.held_out].sum()
    order = dataset.validation.order.indices
    found = batches(built)
    assert len(found) == len(jd.make_loader(built, split="validation", global_batch_size=8)) == -(-number // 8)
    rows = {name: np.concatenate([batch[name] for batch in found]) for name in ("inputs", "inputs_segmentation")}
    assert (rows["inputs_segmentation"][number:] == 0).all()
    held = np.count_nonzero(rows["inputs_segmentation"])
    assert held == segments.length.sum()
    for row in range(number):
        mine = np.flatnonzero(segments.sequence_index == order[row])
        tokens = dataset.tokens.gather(
            segments.document_index[mine], segments.document_offset[mine], segments.length[mine]
        )
        np.testing.assert_array_equal(rows["inputs"][row][rows["inputs_segmentation"][row] > 0], tokens)
    assert not set(segments.document_index.tolist()) & set(dataset.segments.document_index.tolist())


@pytest.mark.parametrize("num_hosts", [2, 4])
def test_hosts_share_the_batches(built: Path, num_hosts: int) -> None:
    whole = batches(built)
    parts = [batches(built, num_hosts=num_hosts, host_index=host) for host in range(num_hosts)]
    for step, batch in enumerate(whole):
        joined = np.concatenate([part[step]["inputs"] for part in parts])
        np.testing.assert_array_equal(joined, batch["inputs"])


def test_it_resumes_and_is_pickled(built: Path) -> None:
    loader = jd.make_loader(built, split="validation", global_batch_size=8)
    iterator = iter(loader)
    next(iterator)
    state, expected = iterator.get_state(), next(iterator)
    again = iter(pickle.loads(pickle.dumps(jd.make_loader(built, split="validation", global_batch_size=8))))
    again.set_state(state)
    np.testing.assert_array_equal(next(again)["inputs"], expected["inputs"])
    training = iter(jd.make_loader(built, global_batch_size=8))
    with pytest.raises(jd.UserError):
        training.set_state(state)
    for each in (iterator, again, training):
        each.close()


def test_its_characteristics_are_those_of_its_segments_and_an_order_may_follow_them(built: Path) -> None:
    part = jd.open_dataset(built).validation
    chars = part.characteristics
    assert "balance" not in part.orderings
    assert chars.families == jd.open_dataset(built).families
    assert chars.num_sequences == part.num_sequences
    np.testing.assert_array_equal(
        chars.tokens, np.bincount(part.segments.sequence_index, part.segments.length, part.num_sequences)
    )
    names = part.group_names["source"]
    sources = jd.open_dataset(built).documents.to_table(columns=["source"])["source"].to_pylist()
    for row in range(part.num_sequences):
        mine = np.flatnonzero(part.segments.sequence_index == row)
        expected = np.zeros(len(names))
        for segment in mine:
            expected[names.index(sources[part.segments.document_index[segment]])] += part.segments.length[segment]
        np.testing.assert_array_equal(chars.counts["source"].toarray()[row], expected)
    order = jd.order(chars, "greedy")
    ordered, stored = batches(built, ordering=order), batches(built)
    rows = np.empty((part.num_sequences, 32), np.int32)
    rows[part.order.indices] = np.concatenate([batch["inputs"] for batch in stored])[: part.num_sequences]
    np.testing.assert_array_equal(np.concatenate([batch["inputs"] for batch in ordered])[: len(rows)], rows[order])


def test_the_order_is_stored_balanced_and_the_default(built: Path) -> None:
    part = jd.open_dataset(built).validation
    np.testing.assert_array_equal(part.order.indices, jd.order(part.characteristics).indices)
    assert jd.make_loader(built, split="validation", global_batch_size=8).run.fingerprint == part.order.fingerprint
    # A dataset whose order was not made is read in the order of the packing.
    assert jd.open_dataset(built).verify() == []


def test_several_datasets_are_interleaved_in_their_orders(built: Path) -> None:
    part = jd.open_dataset(built).validation
    loader = jd.make_loader([built, built], split="validation", global_batch_size=2)
    found = list(loader)
    assert [batch["dataset_index"].tolist() for batch in found] == [[0, 1]] * part.num_sequences
    for each in (0, 1):
        np.testing.assert_array_equal([batch["sequence_index"][each] for batch in found], part.order.indices)


def test_named_datasets_give_named_loaders(built: Path) -> None:
    whole = jd.make_run(built)
    loaders = jd.make_loader({"held": built, "all": whole}, split="validation", global_batch_size=8)
    assert list(loaders) == ["held", "all"]
    np.testing.assert_array_equal(next(iter(loaders["held"]))["inputs"], batches(built)[0]["inputs"])
    assert len(loaders["all"]) == -(-len(whole) // 8)
    expected = next(iter(jd.make_loader(built, global_batch_size=8)))["inputs"]
    np.testing.assert_array_equal(next(iter(loaders["all"]))["inputs"], expected)


def test_bad_input_is_one_sentence(built: Path, tmp_path: Path) -> None:
    config = tiny_config(write_corpus(tmp_path / "corpus", 40), tmp_path / "none")
    Build(replace(config, packing=replace(config.packing, validation_fraction=0.0))).run_all()
    with pytest.raises(jd.UserError, match=r"Expected validation documents in .*, found none; build the dataset"):
        jd.make_loader(tmp_path / "none", split="validation", global_batch_size=8)
    with pytest.raises(jd.UserError, match=r"Expected validation documents in .*, found none; build the dataset"):
        jd.make_loader({"held": tmp_path / "none"}, split="validation", global_batch_size=8)
    other = tmp_path / "other"
    Build(tiny_config(tmp_path / "corpus", other)).run_all()
    with pytest.raises(jd.UserError, match=r"tokenizer and the families of 'a', found others in 'b'; build 'b' with"):
        jd.make_loader({"a": built, "b": other}, split="validation", global_batch_size=8)
    with pytest.raises(jd.UserError, match="at least one name with a dataset"):
        jd.make_loader({}, split="validation", global_batch_size=8)
    with pytest.raises(jd.UserError, match="no ordering with named datasets"):
        jd.make_loader({"a": built}, split="validation", ordering=[0], global_batch_size=8)
    with pytest.raises(jd.UserError, match="every name of a mapping of datasets to be a text"):
        jd.make_loader({1: built}, split="validation", global_batch_size=8)
    with pytest.raises(jd.UserError, match='Expected split="validation" with named datasets'):
        jd.make_loader({"a": built}, global_batch_size=8)
    with pytest.raises(jd.UserError, match="split"):
        jd.make_loader(built, split="test", global_batch_size=8)
    with pytest.raises(jd.UserError, match="found the name 'balance' of an ordering of training sequences"):
        jd.make_loader(built, split="validation", ordering="balance", global_batch_size=8)
    with pytest.raises(jd.UserError, match=r"found a run; give run\.datasets"):
        jd.make_loader(jd.make_run(built), split="validation", global_batch_size=8)
