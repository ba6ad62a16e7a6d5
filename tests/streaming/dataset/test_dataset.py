"""A built dataset as one value: every attribute, and a sentence for whatever is missing or broken."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import jax_diversity as jd
from jax_diversity.foundation.artifacts import signed
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments
from jax_diversity.streaming.records.writing import write_records
from tests.support.hostile import sign_manifest
from tests.support.tiny_dataset import ListStore, TinyDataset, write_tiny_dataset


@pytest.fixture
def tiny(tmp_path: Path) -> TinyDataset:
    return write_tiny_dataset(tmp_path / "out")


def test_every_artifact_is_an_attribute(tiny):
    dataset = jd.open_dataset(tiny.root)
    assert (dataset.sequence_length, dataset.num_sequences) == (16, tiny.segments.num_sequences)
    assert (dataset.vocab_size, dataset.end_id) == (64, 63)
    ids = dataset.documents.to_table(columns=["id"])["id"].to_pylist()
    assert ids == [f"document-{index}" for index in range(36)]
    np.testing.assert_array_equal(dataset.tokens.document_lengths, [len(text) for text in tiny.store.documents])
    assert dataset.tokens.dtype == np.uint16
    for found, expected in ((dataset.segments, tiny.segments), (dataset.validation_segments, tiny.validation)):
        for column in Segments.COLUMNS:
            np.testing.assert_array_equal(getattr(found, column), getattr(expected, column))
        assert (found.num_sequences, found.sequence_length) == (expected.num_sequences, 16)
    assert dataset.characteristics.families == ("cluster", "length")
    assert dict(dataset.characteristics.weights) == {"cluster": 1.0, "length": 2.0}
    assert sorted(dataset.orderings) == ["balance", "uniform_shuffle"]
    np.testing.assert_array_equal(dataset.orderings["balance"].indices, tiny.orders["balance"])
    assert len(dataset.records) == tiny.segments.num_sequences
    assert len(dataset.validation_records) == tiny.validation.num_sequences
    assert dataset.layout_ordering is None
    assert dataset.verify() == []


def test_segments_and_tokens_give_the_records(tiny):
    dataset = jd.open_dataset(tiny.root)
    segments = dataset.segments
    tokens = dataset.tokens.gather(segments.document_index, segments.document_offset, segments.length)
    stored = dataset.records.read_batch(np.arange(len(dataset.records)))["inputs"]
    np.testing.assert_array_equal(stored[stored > 0], tokens)


def test_the_fingerprint_is_of_the_records_and_their_length(tmp_path):
    first = jd.open_dataset(write_tiny_dataset(tmp_path / "a").root)
    again = jd.open_dataset(write_tiny_dataset(tmp_path / "b").root)
    other = jd.open_dataset(write_tiny_dataset(tmp_path / "c", seed=1).root)
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_repr_shows_the_flow(tiny):
    text = repr(jd.open_dataset(tiny.root))
    parts = ("num_documents 36", "vocab_size 64", "sequence_length 16", "balance, uniform_shuffle", "fingerprint  ")
    for part in parts:
        assert part in text
    first = [line.split()[0] for line in text.splitlines()[1:]]
    assert first == ["documents", "tokens", "sequences", "groups", "orderings", "fingerprint"]
    assert "<table>" in jd.open_dataset(tiny.root)._repr_html_()
    assert "text-align:right" not in jd.open_dataset(tiny.root)._repr_html_()  # texts begin at the left edge
    sign_manifest(tiny.root, lambda manifest: manifest["stages"].pop("write"))
    assert "fingerprint  " not in repr(jd.open_dataset(tiny.root))


def test_a_dataset_pickles_as_its_path(tiny):
    dataset = jd.open_dataset(tiny.root)
    _ = dataset.characteristics, dataset.documents, dataset.records
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.fingerprint == dataset.fingerprint


def test_records_without_a_memory_map_are_the_same(tiny):
    mapped, unmapped = (jd.open_dataset(tiny.root, memory_map=choice) for choice in (True, False))
    loaders = [jd.make_loader(each, global_batch_size=4) for each in (mapped, pickle.loads(pickle.dumps(unmapped)))]
    for expected, found in zip(*loaders, strict=True):
        for field, rows in expected.items():
            np.testing.assert_array_equal(found[field], rows)
    records = sorted((tiny.root / "records").glob("train-*.array_record"))[0]
    loader = jd.make_loader(unmapped, global_batch_size=4, num_prefetch=0)
    batches = iter(loader)
    next(batches)
    os.truncate(records, 100)
    with pytest.raises(UserError, match="found it cut short"):
        list(batches)


def test_opening_reads_the_manifest_only(tiny):
    for path in tiny.root.rglob("*"):
        if path.is_file() and path.name != "manifest.json":
            path.unlink()
    assert jd.open_dataset(tiny.root).num_sequences == tiny.segments.num_sequences


def test_no_dataset_there(tmp_path):
    with pytest.raises(UserError, match="found no such folder; make one"):
        jd.open_dataset(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"no manifest\.json in it"):
        jd.open_dataset(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="not a dataset's manifest"):
        jd.open_dataset(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Expected a dataset at"):
        jd.open_dataset(tmp_path / "file")


@pytest.mark.parametrize(
    ("stage", "verb", "attribute"),
    [
        ("prepare", "prepare", "documents"),
        ("tokenize", "tokenize", "tokens"),
        ("tokenize", "tokenize", "vocab_size"),
        ("pack", "pack", "segments"),
        ("pack", "pack", "num_sequences"),
        ("characterize", "characterize", "characteristics"),
        ("write", "write", "records"),
        ("write", "write", "fingerprint"),
        ("write", "write", "layout_ordering"),
    ],
)
def test_a_missing_stage_names_its_verb(tiny, stage, verb, attribute):
    sign_manifest(tiny.root, lambda manifest: manifest["stages"].pop(stage))
    with pytest.raises(UserError, match=f"jax-diversity {verb}"):
        getattr(jd.open_dataset(tiny.root), attribute)


def test_an_unknown_ordering_lists_the_known(tiny):
    orderings = jd.open_dataset(tiny.root).orderings
    with pytest.raises(UserError, match=r"Unknown ordering 'best'; the dataset has balance, uniform_shuffle"):
        orderings["best"]
    assert "best" not in orderings
    assert "balance" in orderings
    assert len(orderings) == 2


def test_a_changed_ordering_is_refused(tiny):
    np.save(tiny.root / "orderings" / "balance.npy", tiny.orders["uniform_shuffle"])
    with pytest.raises(UserError, match="was changed after it was saved"):
        jd.open_dataset(tiny.root).orderings["balance"]


def test_an_ordering_made_again_is_refused_until_the_dataset_is_opened_again(tiny):
    dataset = jd.open_dataset(tiny.root)
    path = tiny.root / "orderings" / "balance.npy"
    jd.Ordering(tiny.orders["uniform_shuffle"]).save(path)
    with pytest.raises(UserError, match=r"ordering of fingerprint .* made again after the dataset or the loader was"):
        dataset.orderings["balance"]
    jd.Ordering(tiny.orders["balance"][:5].argsort()).save(path)
    with pytest.raises(UserError, match=r"Expected \d+ bytes in .*balance\.npy"):
        dataset.orderings["balance"]
    path.unlink()
    with pytest.raises(UserError, match=r"balance\.npy, found no such file"):
        dataset.orderings["balance"]


def test_records_written_anew_are_refused_until_the_dataset_is_opened_again(tiny):
    first = jd.open_dataset(tiny.root)
    reader = first.records
    manifest = json.loads((tiny.root / "manifest.json").read_text())
    counts = manifest["stages"]["write"]["counts"]["records"]["train"]
    for path in (tiny.root / "records").glob("train-*.array_record"):
        path.unlink()
    store = ListStore([text[::-1].copy() for text in tiny.store.documents])
    write_records(
        tiny.segments,
        store.gather,
        "uint16",
        np.arange(tiny.segments.num_sequences),
        tiny.root / "records",
        "train",
        sequences_per_file=counts[0],
        identity="f" * 64,
    )
    with pytest.raises(UserError, match=r"written again after the dataset was opened .*open the dataset again"):
        reader.read_batch(np.arange(3))
    manifest["stages"]["write"]["counts"]["identity"] = "f" * 64
    (tiny.root / "manifest.json").write_text(json.dumps(signed(manifest)))
    jd.open_dataset(tiny.root).records.read_batch(np.arange(3))
    with pytest.raises(UserError, match="written again"):
        first.records.read_batch(np.arange(3))


def test_files_from_the_hundred_thousandth_on_follow_those_before(tiny):
    """Names with one digit more come after those with fewer, for documents and tokens alike."""
    manifest = json.loads((tiny.root / "manifest.json").read_text())
    for stage, stem in (("prepare", "documents/documents"), ("tokenize", "tokens/tokens")):
        files = manifest["stages"][stage]["files"]
        for name in [name for name in files if name.startswith(f"{stem}-00000.")]:
            for number in ("99999", "100000"):
                later = name.replace("00000", number)
                files[later] = files[name]
                shutil.copy(tiny.root / name, tiny.root / later)
    (tiny.root / "manifest.json").write_text(json.dumps(signed(manifest)))
    dataset = jd.open_dataset(tiny.root)
    documents = dataset.documents.to_table(columns=["id"])["id"].to_pylist()
    assert [Path(name).stem for name in dataset.documents.files][-2:] == ["documents-99999", "documents-100000"]
    assert documents[-1] == "document-17"
    tokens = [path.stem for path in dataset.stored.files("tokenize", "tokens/", ".bin")]
    assert tokens == ["tokens-00000", "tokens-99999", "tokens-100000"]


@pytest.mark.campaign
def test_other_libraries_read_the_folder_of_documents(tiny_dataset: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    folder, expected = tiny_dataset / "documents", jd.open_dataset(tiny_dataset).documents.to_table()
    assert pq.read_table(folder).equals(expected)
    found = load_dataset("parquet", data_dir=str(folder), cache_dir=str(tmp_path), split="train")
    assert found["text"][:] == expected["text"].to_pylist()


@pytest.mark.parametrize(
    ("file", "attribute"),
    [
        ("documents/documents-00001.parquet", "documents"),
        ("tokens/tokens-00000.idx", "tokens"),
        ("tokens/tokens-00000.bin", "tokens"),
        ("sequences/segments.parquet", "segments"),
        ("sequences/validation.parquet", "validation_segments"),
        ("characteristics/cluster.npz", "characteristics"),
        ("records/train-00001-of-{}.array_record", "records"),
        ("records/validation-00000-of-00001.array_record", "validation_records"),
    ],
)
def test_missing_and_cut_files_are_named(tiny, file, attribute):
    number = len(list((tiny.root / "records").glob("train-*.array_record")))
    path = tiny.root / file.format(f"{number:05d}")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=path.name):
        getattr(jd.open_dataset(tiny.root), attribute)
    path.unlink()
    with pytest.raises(UserError, match=path.name):
        getattr(jd.open_dataset(tiny.root), attribute)
    assert [fault.file for fault in jd.open_dataset(tiny.root).verify()] == [str(path.relative_to(tiny.root))]


def test_verify_names_what_was_changed_by_hand(tiny):
    path = tiny.root / "tokens" / "tokens-00000.bin"
    changed = bytearray(path.read_bytes())
    changed[7] ^= 4
    path.write_bytes(changed)
    done: list[int] = []
    faults = jd.open_dataset(tiny.root).verify(done.append)
    assert [fault.file for fault in faults] == ["tokens/tokens-00000.bin"]
    assert "sha256" in str(faults[0])
    assert sum(done) > len(changed)
