"""The stage of the tokens: any number of processes, kills and interrupts, statistics, end tokens that are odd."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

import jax_diversity as jd
from jax_diversity.foundation import artifacts
from jax_diversity.foundation.artifacts import OutputFolder, signed
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Processes
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.sequences.tokenization import tensorflow_text
from jax_diversity.sequences.tokenization.factory import load_saved, load_unchanged
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from jax_diversity.sequences.tokenization.tokenizer_json import byte_tokenizer
from jax_diversity.streaming.dataset import open_dataset
from jax_diversity.streaming.run.inspection import Inspector
from tests.support.tiny_corpus import tiny_config, write_corpus


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> BuildConfig:
    """A corpus of several stored files, prepared."""
    folder = tmp_path_factory.mktemp("prepared")
    config = tiny_config(write_corpus(folder / "corpus", 300), folder / "out")
    Build(config).run_stage("prepare")
    return config


@pytest.fixture
def config(prepared: BuildConfig, tmp_path: Path) -> BuildConfig:
    """The same in a folder that the test may change."""
    return dataclasses.replace(prepared, out=str(shutil.copytree(prepared.out, tmp_path / "out")))


def with_tokenizer(config: BuildConfig, **changes: object) -> BuildConfig:
    """The settings with another tokenizer; one of another kind begins with its defaults."""
    base = TokenizerConfig() if "kind" in changes else config.tokenizer
    return dataclasses.replace(config, tokenizer=dataclasses.replace(base, **changes))  # type: ignore[arg-type]


def stored_tokens(out: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(out, "tokens").iterdir())}


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


# Processes


@pytest.mark.campaign
def test_any_number_of_processes_writes_the_same_bytes(config: BuildConfig, tmp_path: Path) -> None:
    found = []
    for number in (1, 2):
        out = tmp_path / f"out-{number}"
        numbered, executor = dataclasses.replace(config, out=str(out)), Processes(number)
        Build(numbered).run_stage("prepare")
        result = Build(numbered, executor=executor).run_stage("tokenize")
        found.append((stored_tokens(str(out)), result.counts, OutputFolder(out).stages["tokenize"]["fingerprint"]))
    assert len(found[0][0]) > 8
    assert found[0] == found[1]
    again = Build(dataclasses.replace(config, out=str(tmp_path / "out-1")), executor=Processes(3))
    assert again.run_stage("tokenize").kept


# Going on


def store(out: str, path: Path, content: bytes) -> None:
    """Replace a stored file, and its hash in the manifest: what is wrong in it is found in the middle of the stage."""
    path.write_bytes(content)
    manifest = json.loads(Path(out, "manifest.json").read_text())
    about = manifest["stages"]["prepare"]["files"][path.relative_to(out).as_posix()]
    about["sha256"] = hashlib.sha256(content).hexdigest()
    Path(out, "manifest.json").write_text(json.dumps(signed(manifest)))


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_build_that_was_cut_off_goes_on_with_what_is_finished(
    config: BuildConfig, monkeypatch: pytest.MonkeyPatch, num_processes: int
) -> None:
    config, executor = with_tokenizer(config, kind="bytes"), Processes(num_processes)  # reads no text before it encodes
    documents = sorted(Path(config.out, "documents").glob("documents-*"))
    whole = documents[-1].read_bytes()
    store(config.out, documents[-1], whole[:-50] + bytes(50))
    with pytest.raises(UserError, match="is damaged"):
        Build(config, executor=executor).run_stage("tokenize")
    (partial,) = Path(config.out, ".partial").iterdir()
    finished = {path: path.stat().st_mtime_ns for path in partial.glob("*.bin")}
    assert 0 < len(finished) < len(documents)
    store(config.out, documents[-1], whole)
    result = Build(config, executor=executor).run_stage("tokenize")
    for path, time_ns in finished.items():
        assert Path(config.out, "tokens", path.name).stat().st_mtime_ns == time_ns
    expected = dataclasses.replace(config, out=config.out + "-fresh")
    Build(expected).run_stage("prepare")
    assert Build(expected).run_stage("tokenize").counts == result.counts
    assert stored_tokens(expected.out) == stored_tokens(config.out)


def test_files_of_another_version_of_the_library_are_made_anew(config: BuildConfig) -> None:
    config = with_tokenizer(config, kind="bytes")
    documents = sorted(Path(config.out, "documents").glob("documents-*"))
    whole = documents[-1].read_bytes()
    store(config.out, documents[-1], whole[:-50] + bytes(50))
    with pytest.raises(UserError, match="is damaged"):
        Build(config).run_stage("tokenize")
    store(config.out, documents[-1], whole)
    (partial,) = Path(config.out, ".partial").iterdir()
    about = partial / "tokenizer.meta.json"
    about.write_text(about.read_text().replace("UTF-8 bytes", "UTF-8 bytes 0.1"))
    finished = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.bin")}
    Build(config).run_stage("tokenize")
    for name, time_ns in finished.items():
        assert Path(config.out, "tokens", name).stat().st_mtime_ns > time_ns


class _KilledError(BaseException):
    """Stands for a SIGKILL: nothing catches it."""


@pytest.mark.campaign
def test_killed_at_any_file_a_build_ends_the_same(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between the tokenizer's file and its settings, where a tokenizer of other settings must not be read."""
    monkeypatch.setattr(tensorflow_text, "normalize_texts", lambda texts, form: [text.upper() for text in texts])
    monkeypatch.setattr(tensorflow_text, "implementation", lambda: "a library 1.0")
    config = with_tokenizer(config, kind="bytes", normalization="NFKC")
    config = dataclasses.replace(config, corpus=dataclasses.replace(config.corpus, file_bytes=30_000))
    Build(config).run_stage("prepare")
    expected = Build(config).run_stage("tokenize").counts
    tokens = stored_tokens(config.out)
    assert json.loads(tokens["tokenizer.meta.json"])["normalization"] == "NFKC"
    assert len(tokens) > 5
    text = byte_tokenizer().decode(open_dataset(config.out).tokens.document(0))
    assert text == text.upper()
    replace = os.replace

    def kill_after(number: int) -> Callable[..., None]:
        left = [number]

        def replace_or_die(source: Path, target: Path) -> None:
            if ".partial" in Path(target).parts:
                left[0] -= 1
                if left[0] < 0:
                    raise _KilledError
            replace(source, target)

        return replace_or_die

    killed = dataclasses.replace(config, out=str(tmp_path / "killed"))
    for number in range(5):
        shutil.rmtree(killed.out, ignore_errors=True)
        Build(killed).run_stage("prepare")
        with monkeypatch.context() as patch:
            patch.setattr(artifacts.os, "replace", kill_after(number))
            with pytest.raises(_KilledError):
                Build(killed).run_stage("tokenize")
        assert Build(killed).run_stage("tokenize").counts == expected
        assert stored_tokens(killed.out) == tokens


def test_a_tokenizer_of_another_version_is_not_gone_on_with(tmp_path: Path) -> None:
    assert load_unchanged(tmp_path) is None
    byte_tokenizer().save(tmp_path)
    found = load_unchanged(tmp_path)
    assert found is not None
    assert found.fingerprint == byte_tokenizer().fingerprint
    about = tmp_path / "tokenizer.meta.json"
    settings = json.loads(about.read_text())
    for changes in ({"implementation": "UTF-8 bytes 0.1"}, {"end_token": "STOP"}, {"kind": "none"}, {"kind": 3}):
        about.write_text(json.dumps(settings | changes))
        assert load_unchanged(tmp_path) is None
    for damaged in ("{", "[]", '{"kind": "file"}'):
        about.write_text(damaged)
        assert load_unchanged(tmp_path) is None


# What is counted


def test_statistics_are_those_of_the_tokens(config: BuildConfig) -> None:
    words = ["[UNK]", "</s>", "onion", "mast", "court"]
    backend = tokenizers.Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    path = Path(config.out).parent / "words.json"
    backend.save(str(path))
    counts = Build(with_tokenizer(config, kind="file", path=str(path))).run_stage("tokenize").counts
    dataset = open_dataset(config.out)
    texts = dataset.documents.to_table(columns=["text"])["text"].to_pylist()
    lengths = [len(text.split()) + 1 for text in texts]
    unknown = sum(word not in words for text in texts for word in text.split())
    assert counts["tokens_per_document"]["mean"] == pytest.approx(np.mean(lengths), rel=1e-5)
    assert counts["tokens_per_document"]["median"] == np.median(lengths)
    assert counts["tokens_per_document"]["largest"] == max(lengths)
    assert counts["unknown_share"] == pytest.approx(unknown / sum(lengths), rel=1e-5)
    assert counts["bytes_per_token"] == pytest.approx(sum(map(len, texts)) / sum(lengths), rel=1e-5)
    assert counts["tokens_per_byte"] == pytest.approx(1 / counts["bytes_per_token"], rel=1e-5)
    assert counts["implementation"] == f"tokenizers {tokenizers.__version__}"
    assert f"by tokenizers {tokenizers.__version__}" in repr(dataset)
    assert f"{counts['bytes_per_token']:.3g} bytes per token" in repr(dataset)


def test_the_stored_folder_holds_its_tokenizer(config: BuildConfig) -> None:
    Build(config).run_stage("tokenize")
    tokenizer = load_saved(Path(config.out, "tokens"))
    dataset = open_dataset(config.out)
    texts = dataset.documents.to_table(columns=["text"])["text"].to_pylist()
    assert [tokenizer.decode(dataset.tokens.document(index)) for index in range(5)] == texts[:5]


# Start and end tokens


def test_start_tokens_belong_to_their_documents(config: BuildConfig) -> None:
    for start_token in (None, "<s>"):
        build = Build(with_tokenizer(config, kind="bytes", start_token=start_token))
        for stage in ("tokenize", "embed", "cluster", "pack", "characterize", "write"):
            counts = build.run_stage(stage).counts
        dataset = open_dataset(config.out)
        counts = dataset.manifest["stages"]["tokenize"]["counts"]
        texts = dataset.documents.to_table(columns=["text"])["text"].to_pylist()
        lengths = [len(text.encode()) + 1 + (start_token is not None) for text in texts]
        assert dataset.tokens.document_lengths.tolist() == lengths
        assert (counts["start_token"], counts["num_tokens"]) == (start_token, sum(lengths))
        assert ("documents start with <s>" in repr(dataset)) == (start_token is not None)
        # Every group has the tokens of its documents, the start tokens among them.
        segments = dataset.segments
        for family in ("cluster", "length"):
            totals = np.asarray(dataset.characteristics.counts[family].sum(axis=0))
            assert totals.sum() == segments.length.sum()
    assert counts["start_id"] == 257
    of_length = np.bincount(dataset.assignments("cluster")[segments.document_index], weights=segments.length)
    np.testing.assert_array_equal(
        np.asarray(dataset.characteristics.counts["cluster"].sum(axis=0))[: len(of_length)], of_length
    )
    inputs = dataset.records.read_sequences(np.arange(dataset.num_sequences))["inputs"]
    begins = segments.document_offset == 0
    np.testing.assert_array_equal(inputs[segments.sequence_index[begins], segments.position[begins]], 257)
    assert (inputs == 257).sum() == begins.sum()
    # `inspect` counts them as well.
    order = Path(config.out).parent / "order.npy"
    np.save(order, np.arange(dataset.num_sequences))
    document = int(segments.document_index[0])
    [about] = dataset.document_store.rows(np.array([document]), ["id"])
    uses = Inspector(jd.make_run(dataset, str(order)), 1).uses(about["id"])
    assert (uses[0].document_offset, sum(use.num_tokens for use in uses)) == (0, lengths[document])


@pytest.fixture
def padded_model(tmp_path: Path) -> Path:
    pytest.importorskip("sentencepiece", reason="the extra [sentencepiece] is not installed")
    from tests.support.sentencepiece_models import train_model

    path = tmp_path / "padded.model"
    path.write_bytes(train_model(eos_id=-1, pad_id=0, unk_id=1, bos_id=2, pad_piece="<pad>"))
    return path


def test_an_end_token_that_is_the_padding_too_leaves_segments_right(config: BuildConfig, padded_model: Path) -> None:
    config = with_tokenizer(config, kind="sentencepiece", path=str(padded_model), end_token="<pad>")
    config = dataclasses.replace(
        config,
        packing=dataclasses.replace(
            config.packing, options={"last_sequence": "pad"}, document_order="corpus", validation_fraction=0.0
        ),
    )
    build = Build(config)
    for stage in ("tokenize", "pack", "write"):
        build.run_stage(stage)
    dataset = open_dataset(config.out)
    assert dataset.end_id == 0
    segments = dataset.segments
    for sequence_index in (0, 1, dataset.num_sequences - 1):
        rows = np.flatnonzero(segments.sequence_index == sequence_index)
        expected = np.repeat(np.arange(1, len(rows) + 1), segments.length[rows])
        expected = np.pad(expected, (0, dataset.sequence_length - len(expected)))
        record = dataset.records.read_batch(np.array([sequence_index]))
        assert record["inputs_segmentation"][0].tolist() == expected.tolist()
        tokens = [
            dataset.tokens.document(int(segments.document_index[row]))[int(segments.document_offset[row]) :][
                : int(segments.length[row])
            ]
            for row in rows
        ]
        assert record["inputs"][0][expected > 0].tolist() == np.concatenate(tokens).tolist()
    assert (expected == 0).any()  # the last one is padded, with the very token that ends documents


def test_a_tokenizer_without_an_end_token_says_what_to_do(config: BuildConfig, tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.save(str(tmp_path / "t.json"))
    with pytest.raises(UserError, match=r"found none of .*; name it in tokenizer\.end_token"):
        Build(with_tokenizer(config, kind="file", path=str(tmp_path / "t.json"))).run_stage("tokenize")
