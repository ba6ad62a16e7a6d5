"""Validation sequences in a loop: every held-out token once, padded, the same on any number of hosts, resumable."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.pipeline.build import Build
from tests.support.tiny_corpus import tiny_config, write_corpus


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("validated")
    config = tiny_config(write_corpus(folder / "corpus", 300), folder / "out")
    Build(config).run_all()
    return folder / "out"


def batches(folder: Path, **options: object) -> list[dict[str, np.ndarray]]:
    return list(jd.make_loader(folder, split="validation", global_batch_size=8, **options))


def test_every_held_out_token_comes_once_and_the_last_batch_is_padded(built: Path) -> None:
    dataset = jd.open_dataset(built)
    segments = dataset.validation_segments
    number = segments.num_sequences
    assert number % 8 != 0
    found = batches(built)
    assert len(found) == len(jd.make_loader(built, split="validation", global_batch_size=8)) == -(-number // 8)
    rows = {name: np.concatenate([batch[name] for batch in found]) for name in ("inputs", "inputs_segmentation")}
    assert (rows["inputs_segmentation"][number:] == 0).all()
    held = np.count_nonzero(rows["inputs_segmentation"])
    assert held == segments.length.sum()
    for row in range(number):
        mine = np.flatnonzero(segments.sequence_index == row)
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
    rows = np.concatenate([batch["inputs"] for batch in stored])[: part.num_sequences]
    np.testing.assert_array_equal(np.concatenate([batch["inputs"] for batch in ordered])[: len(rows)], rows[order])


def test_several_datasets_follow_one_another(built: Path) -> None:
    number = jd.open_dataset(built).validation.num_sequences
    loader = jd.make_loader([built, built], split="validation", global_batch_size=number)
    origins = [batch["dataset_index"][0] for batch in loader]
    assert origins == [0, 1]


def test_bad_input_is_one_sentence(built: Path, tmp_path: Path) -> None:
    config = tiny_config(write_corpus(tmp_path / "corpus", 40), tmp_path / "none")
    Build(replace(config, packing=replace(config.packing, validation_fraction=0.0))).run_all()
    with pytest.raises(jd.UserError, match=r"Expected validation documents in .*, found none; build the dataset"):
        jd.make_loader(tmp_path / "none", split="validation", global_batch_size=8)
    with pytest.raises(jd.UserError, match="split"):
        jd.make_loader(built, split="test", global_batch_size=8)
    with pytest.raises(jd.UserError, match="found the name 'balance' of an ordering of training sequences"):
        jd.make_loader(built, split="validation", ordering="balance", global_batch_size=8)
    with pytest.raises(jd.UserError, match=r"found a run; give run\.datasets"):
        jd.make_loader(jd.make_run(built), split="validation", global_batch_size=8)
