"""Megatron's cache, read by a reader written after `GPTDataset`, and by `GPTDataset` where it is installed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.foundation.artifacts import signed
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build
from jax_diversity.schema import Ordering
from jax_diversity.sequences.token_store.megatron import TokenFile, TokenStore, TokenWriter
from jax_diversity.streaming.dataset import Dataset, open_dataset
from jax_diversity.streaming.export.export import export
from jax_diversity.streaming.export.megatron import (
    Description,
    check_prefix,
    description_hash,
    read_description,
    split_matrix,
    write_megatron,
    write_tokens,
)
from jax_diversity.streaming.export.settings import ExportConfig, MegatronExportConfig
from tests.support.tiny_corpus import tiny_config, write_corpus

TOKENIZER = {"class": "some.module.Tokenizer", "tokenizer_path": "tökens.json", "vocab_size": "300"}
QUIET = Progress(quiet=True)
SEED = 11


@pytest.fixture(scope="module", params=[("drop", 1), ("pad", 2)], ids=["drop", "pad"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    last_sequence, num_epochs = request.param
    folder = tmp_path_factory.mktemp("megatron")
    config = tiny_config(write_corpus(folder / "corpus", num_documents=150), folder / "out")
    options = {"last_sequence": last_sequence, "num_epochs": num_epochs}
    packing = dataclasses.replace(config.packing, method="megatron", seed=SEED, options=options)
    build = Build(dataclasses.replace(config, packing=packing))
    for stage in ("prepare", "tokenize", "embed", "cluster", "pack", "characterize", "write"):
        build.run_stage(stage)
    build.run_orders([OrderConfig()])
    build.run_orders([OrderConfig(method="uniform_shuffle", seed=1, name="other")])
    return open_dataset(folder / "out")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def settings(target: Path, *, overwrite: bool = False, **megatron: Any) -> ExportConfig:
    megatron.setdefault("tokenizer", None if "description" in megatron else json.dumps(TOKENIZER))
    options = MegatronExportConfig(**megatron)
    return ExportConfig("megatron", target=str(target), overwrite=overwrite, megatron=options)


def only(folder: Path, end: str) -> Path:
    (path,) = folder.glob(f"*-GPTDataset-train-{end}")
    return path


def read_samples(cache: Path, pad: int = -1) -> Iterator[np.ndarray]:
    """What training gets at every position: L + 1 tokens of the documents' run that the indices name."""
    about = json.loads(only(cache, "description.txt").read_text())
    store = TokenFile(Path(about["dataset_path"]))
    documents, samples, order = (
        np.load(only(cache, f"{name}_index.npy")) for name in ("document", "sample", "shuffle")
    )
    assert (documents.dtype, order.dtype) == (np.int32, np.uint32)
    for sample in order:
        (first, start), (last, end) = samples[sample], samples[sample + 1]
        parts = []
        for place in range(first, last + 1):
            tokens = store.document(int(documents[place]))
            stop = end + 1 if place == last else len(tokens)
            parts.append(tokens[start if place == first else 0 : stop].astype(np.int64))
        tokens = np.concatenate(parts)
        yield np.pad(tokens, (0, about["sequence_length"] + 1 - len(tokens)), constant_values=pad)


def check_samples(built: Dataset, samples: Iterator[np.ndarray], ordering: str = "balance") -> None:
    order = built.orderings[ordering].indices
    batch = built.records.read_batch(order, expected=order, merge_segments=True)
    rows = list(samples)
    assert len(rows) == len(order)
    for row, sample in enumerate(rows):
        filled = batch["inputs_segmentation"][row] > 0
        aimed = batch["targets_segmentation"][row] > 0
        assert np.array_equal(batch["inputs"][row][filled], sample[:-1][filled])
        assert np.array_equal(batch["targets"][row][aimed], sample[1:][aimed])
        assert aimed.sum() >= (sample[1:] >= 0).sum()


def test_megatron_reads_the_sequences_in_our_order(built: Dataset, target: Path) -> None:
    lines = export(jd.make_run(built.root), settings(target), QUIET)
    assert len(built.tokens.files) > 1  # so the documents were written once more as one pair
    assert TokenFile(target / "tokens").num_documents == built.tokens.num_documents
    assert f"--data-cache-path {target}" in lines[-1]
    check_samples(built, read_samples(target))
    hashes = {path.name.split("-")[0] for path in target.glob("*-GPTDataset-*")}
    assert hashes == {description_hash(only(target, "description.txt").read_text())}
    before = {path: path.read_bytes() for path in target.iterdir()}
    export(jd.make_run(built.root), settings(target), QUIET)
    assert {path: path.read_bytes() for path in target.iterdir()} == before


def test_another_ordering_s_cache_is_replaced_when_told(built: Dataset, target: Path) -> None:
    export(jd.make_run(built.root), settings(target), QUIET)
    before = only(target, "shuffle_index.npy").read_bytes()
    with pytest.raises(UserError, match=r"shuffle_index.npy, found another file; .* --overwrite"):
        export(jd.make_run(built.root, "other"), settings(target), QUIET)
    assert only(target, "shuffle_index.npy").read_bytes() == before
    export(jd.make_run(built.root, "other"), settings(target, overwrite=True), QUIET)
    check_samples(built, read_samples(target), "other")
    assert not list(target.glob("*.tmp"))


def test_a_run_s_own_description_is_followed(built: Dataset, target: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "web"
    write_tokens(built.tokens, prefix)
    length, size = built.sequence_length, built.num_sequences
    theirs = Description(str(prefix), size - 1, 1234, length, "99,1,0", TOKENIZER).text
    target.mkdir()
    path = target / f"{description_hash(theirs)}-GPTDataset-train-description.txt"
    path.write_text(theirs)
    export(jd.make_run(built.root), settings(target, description=str(path)), QUIET)
    assert path.read_text() == theirs
    check_samples(built, read_samples(target))
    path.write_text(theirs.replace("1234", "1235"))
    with pytest.raises(UserError, match="restore the file"):
        export(jd.make_run(built.root), settings(target, description=str(path)), QUIET)


def test_a_prefix_of_the_same_documents_is_taken(built: Dataset, target: Path, tmp_path: Path) -> None:
    write_tokens(built.tokens, tmp_path / "web")
    export(jd.make_run(built.root), settings(target, prefix=str(tmp_path / "web"), num_samples=3, split=None), QUIET)
    about = json.loads(only(target, "description.txt").read_text())
    assert about["dataset_path"] == str(tmp_path / "web")
    assert (about["num_samples"], about["random_seed"], about["split_matrix"]) == (3, SEED, None)
    check_samples(built, read_samples(target))


@pytest.mark.parametrize(
    ("megatron", "message"),
    [
        ({"tokenizer": None}, "which decides the cache's name, found nothing"),
        ({"tokenizer": "no JSON"}, "Expected JSON in --megatron.tokenizer, found 'no JSON'"),
        ({"tokenizer": "[1]"}, r"Expected a JSON object .* found \[1\]"),
        ({"tokenizer": "absent.json"}, "absent.json"),
        ({"prefix": "absent/web"}, "absent/web.idx"),
        ({"split": "none"}, "found 'none'"),
        ({"num_samples": 10**6}, r"Expected num_samples in 1 \.\. \d+, .* found 1000000"),
        ({"description": "absent.txt"}, "Expected a description that Megatron wrote at absent.txt"),
    ],
)
def test_what_does_not_fit_is_refused(built: Dataset, target: Path, megatron: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        export(jd.make_run(built.root), settings(target, **megatron), QUIET)
    assert not list(target.glob("*-GPTDataset-*"))
    assert not list(target.glob("tokens*"))


def test_settings_that_were_changed_after_packing_are_found(built: Dataset, target: Path, tmp_path: Path) -> None:
    shutil.copytree(built.root, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    manifest["settings"]["packing"]["seed"] = SEED + 1
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(signed(manifest)))
    with pytest.raises(UserError, match="found other sequences: the settings were changed"):
        export(jd.make_run(tmp_path / "out"), settings(target), QUIET)
    manifest["settings"]["packing"]["method"] = "concat"
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(signed(manifest)))
    with pytest.raises(UserError, match=r"packing.method=megatron .* found concat"):
        export(jd.make_run(tmp_path / "out"), settings(target), QUIET)


# Without a dataset


def test_the_description_is_megatron_s_text() -> None:
    text = Description("/data/web", 64, 1234, 8, "99,1,0", {"class": "é", "tokenizer_path": None}).text
    assert text.splitlines() == [
        "{",
        '    "class": "GPTDataset",',
        '    "dataset_path": "/data/web",',
        '    "num_samples": 64,',
        '    "index_split": "train",',
        '    "random_seed": 1234,',
        '    "sequence_length": 8,',
        '    "split": "99,1,0",',
        '    "split_matrix": [',
        "        [",
        "            0,",
        "            0.99",
        "        ],",
        "        [",
        "            0.99,",
        "            1.0",
        "        ],",
        "        null",
        "    ],",
        '    "tokenizer": {',
        '        "class": "\\u00e9",',
        '        "tokenizer_path": null',
        "    }",
        "}",
    ]


@pytest.mark.parametrize("split", ["", "0,0,0", "1,2,3,4", "a,b", "."])
def test_splits_that_are_none(split: str) -> None:
    with pytest.raises(UserError, match="Expected a split"):
        split_matrix(split)


@given(st.lists(st.floats(0, 1000).map(lambda value: round(value, 3)), min_size=1, max_size=3))
def test_split_matrices_tile_what_there_is(weights: list[float]) -> None:
    if not sum(weights):
        return
    parts = [part for part in split_matrix(",".join(f"{weight:.3f}" for weight in weights)) if part is not None]
    assert parts[0][0] == 0
    assert parts[-1][1] == pytest.approx(1)
    assert all(before[1] == after[0] for before, after in pairwise(parts))


def write_store(folder: Path, sizes: list[list[int]]) -> TokenStore:
    prefixes = [folder / f"part-{index}" for index in range(len(sizes))]
    rng = np.random.default_rng(0)
    for prefix, lengths in zip(prefixes, sizes, strict=True):
        with TokenWriter(prefix, np.dtype(np.uint16)) as writer:
            writer.add_documents([rng.integers(0, 999, length) for length in lengths])
    return TokenStore(prefixes)


@pytest.mark.parametrize("at_a_time", [1, 5, 1000])
def test_many_files_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_a_time: int) -> None:
    monkeypatch.setattr("jax_diversity.streaming.export.megatron._TOKENS_AT_A_TIME", at_a_time)
    store = write_store(tmp_path, [[3, 0, 7], [0], [4, 4, 1, 0]])
    done: list[int] = []
    write_tokens(store, tmp_path / "all", advance=done.append)
    merged = TokenFile(tmp_path / "all")
    assert merged.lengths.tolist() == [3, 0, 7, 0, 4, 4, 1, 0]
    assert sum(done) == store.num_tokens
    for document in range(store.num_documents):
        assert np.array_equal(merged.document(document), store.document(document))
    other = write_store(tmp_path / "other", [[3, 1]])
    with pytest.raises(UserError, match="Expected the 2 documents"):
        write_tokens(other, tmp_path / "all")
    write_tokens(other, tmp_path / "all", overwrite=True)
    with pytest.raises(UserError, match=r"Expected 2 tokens in document 1 of .* found 1"):
        check_prefix(str(tmp_path / "all"), np.array([3, 2]))


def test_indices_of_other_samples_are_refused(tmp_path: Path) -> None:
    text = Description("web", None, 1, 4, None, {}).text
    with pytest.raises(UserError, match="Expected an ordering of 2 samples, found one of 3"):
        write_megatron(Ordering(np.arange(3)), np.arange(2, dtype=np.int32), np.zeros((3, 2), np.int32), text, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index_split": "valid"}, "Expected index_split 'train' .* found 'valid'"),
        ({"class": "BERTMaskedWordPieceDataset"}, "Expected class 'GPTDataset'"),
        ({"sequence_length": 5}, "Expected sequence_length 4 .* found 5"),
        ({"num_samples": 9}, r"in 1 \.\. 8, .* found 9"),
        ({"num_samples": "8"}, r"in 1 \.\. 8, .* found '8'"),
        ({"num_samples": 8.0}, r"in 1 \.\. 8, .* found 8\.0"),
        ({"num_samples": True}, r"in 1 \.\. 8, .* found True"),
    ],
)
def test_descriptions_of_something_else(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    about = json.loads(Description("web", 8, 1, 4, "1", {}).text)
    path = tmp_path / "description.txt"
    path.write_text(json.dumps(about))
    assert json.loads(read_description(path, sequence_length=4, num_positions=8)) == about
    path.write_text(json.dumps(about | change))
    with pytest.raises(UserError, match=message):
        read_description(path, sequence_length=4, num_positions=8)
    for broken in ("[]", "{}", "no JSON"):
        path.write_text(broken)
        with pytest.raises(UserError, match="found no description"):
            read_description(path, sequence_length=4, num_positions=8)


# With the real package


@pytest.mark.parametrize(("split", "num_samples"), [("99,1,0", None), ("0.7, 0.2,0.1", 5), ("949,51", 3), (None, 4)])
def test_an_installed_megatron_core_takes_the_cache(
    built: Dataset, target: Path, split: str | None, num_samples: int | None
) -> None:
    why = "megatron-core is installed by hand"
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset", reason=why)
    builder = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_builder", reason=why)
    export(jd.make_run(built.root), settings(target, split=split, num_samples=num_samples), QUIET)
    files = {path: path.stat().st_mtime_ns for path in target.iterdir()}
    prefix = str((target / "tokens").resolve())
    blend = ([prefix], None)
    config = gpt.GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=built.sequence_length,
        split=split,
        blend=None if split is None else blend,
        blend_per_split=[blend, None, None] if split is None else None,
        path_to_cache=str(target),
        tokenizer=SimpleNamespace(vocab_size=None, eod=0, pad=-1, unique_identifiers=TOKENIZER),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    sizes = [num_samples, 1, 1]
    dataset = builder.BlendedMegatronDatasetBuilder(gpt.GPTDataset, sizes, lambda: True, config).build()[0]
    assert len(dataset) == built.num_sequences
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert len(list(target.glob("*-train-*"))) == 4
    found = (dataset._query_document_sample_shuffle_indices(index)[0] for index in range(len(dataset)))
    check_samples(built, found)
    for ours, theirs in zip(read_samples(target), range(len(dataset)), strict=True):
        assert np.array_equal(ours, dataset._query_document_sample_shuffle_indices(theirs)[0])
