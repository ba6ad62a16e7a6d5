"""GPT-2's vocab.json and merges.txt: the library's ids, damage that is found, builds from texts and from tokens."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.foundation.errors import UserError
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.sequences.tokenization.base import Tokenizer
from jax_diversity.sequences.tokenization.factory import load_saved
from jax_diversity.sequences.tokenization.settings import TokenizerConfig, tokenizer_files
from jax_diversity.sequences.tokenization.tokenizer_json import load_tokenizer, token_name, train_bpe
from jax_diversity.streaming.dataset import open_dataset
from tests.support.tiny_corpus import TOPICS, tiny_config, write_corpus

END = "<|endoftext|>"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vocabulary of a tiny pair, trained here and written as GPT-2's files are."""
    model = json.loads(train_bpe([*TOPICS.values()] * 20, 350).definition)["model"]  # type: ignore[attr-defined]
    folder = tmp_path_factory.mktemp("pair")
    (folder / "gpt2-vocab.json").write_text(json.dumps(model["vocab"] | {END: len(model["vocab"])}))
    lines = [" ".join(merge) for merge in model["merges"]]
    (folder / "gpt2-merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
    return folder / "gpt2-vocab.json"


def changed_pair(
    pair: Path,
    folder: Path,
    vocabulary: Callable[[dict[str, int]], object] = lambda tokens: tokens,
    merges: Callable[[str], str | bytes] = lambda text: text,
) -> Path:
    path = folder / "vocab.json"
    path.write_text(json.dumps(vocabulary(json.loads(pair.read_text()))))
    content = merges(tokenizer_files(pair)[1].read_text())
    (folder / "merges.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture(scope="module")
def tokenizer(pair: Path) -> Tokenizer:
    return load_tokenizer(pair)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), max_size=4))
@settings(max_examples=50)
def test_ids_are_the_librarys_and_decode_to_the_text(pair: Path, tokenizer: Tokenizer, texts: list[str]) -> None:
    library = tokenizers.Tokenizer(models.BPE.from_file(*map(str, tokenizer_files(pair))))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    texts = [*texts, "onion butter, " + " ".join(texts), END]
    documents = tokenizer.encode_documents(texts)
    assert [document.tolist() for document in documents] == [
        [*library.encode(text).ids, tokenizer.end_id] for text in texts
    ]
    assert [tokenizer.decode(document) for document in documents] == texts


def test_saved_it_is_an_ordinary_tokenizer(pair: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert (tokenizer.end_token, tokenizer.end_id) == (END, tokenizer.vocab_size - 1)
    tokenizer.save(tmp_path)
    loaded = load_saved(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint == load_tokenizer(pair).fingerprint
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "salt pan — über 🌉"
    ids = loaded.encode_documents([text])[0].tolist()
    assert library.encode(text).ids == ids[:-1]
    assert library.decode(ids) == text  # the end token is special to every reader
    assert token_name(pair, tokenizer.end_id) == END
    assert token_name(pair, 10_000) is None


def test_any_token_may_end_documents(pair: Path, tmp_path: Path) -> None:
    path = changed_pair(pair, tmp_path, lambda tokens: {name or END: at for name, at in tokens.items() if name != END})
    with pytest.raises(UserError, match=r"found none of .*; name it in tokenizer\.end_token"):
        load_tokenizer(path)
    path = changed_pair(pair, tmp_path, lambda tokens: tokens | {"STOP": 900})
    assert load_tokenizer(path, "STOP").end_id == 900
    with pytest.raises(UserError, match=r"'HALT' in .*found no such token"):
        load_tokenizer(path, "HALT")


@pytest.mark.parametrize("ending", ["\r\n", "\n\n"])
def test_line_ends_do_not_matter(pair: Path, tokenizer: Tokenizer, tmp_path: Path, ending: str) -> None:
    path = changed_pair(pair, tmp_path, merges=lambda text: text.replace("\n", ending))
    assert load_tokenizer(path).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    ("vocabulary", "what"),
    [
        (lambda tokens: [*tokens], "every token with a distinct id"),
        (lambda tokens: tokens | {"far": 3}, "every token with a distinct id"),
        (lambda tokens: tokens | {"far": -1}, "every token with a distinct id"),
        (lambda tokens: tokens | {"far": 2**31}, "every token with a distinct id below"),
        (lambda tokens: tokens | {"far": True}, "every token with a distinct id"),
        (lambda tokens: tokens | {"far": 1.5}, "every token with a distinct id"),
        (
            lambda tokens: {"model": {"type": "BPE"}},
            "a tokenizer.json needs a name that does not end in vocab.json",
        ),
        (lambda tokens: {name: at for name, at in tokens.items() if name not in "ab"}, "none for 2 of them"),
        (lambda tokens: tokens | {"a</w>": 999}, "tokens that end in </w>"),
    ],
)
def test_vocabularies_that_are_none(
    pair: Path, tmp_path: Path, vocabulary: Callable[[dict[str, int]], object], what: str
) -> None:
    path = changed_pair(pair, tmp_path, vocabulary)
    for read in (load_tokenizer, lambda path: token_name(path, 0)):
        with pytest.raises(UserError, match=what) as caught:
            read(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_vocabularies_that_are_no_json(pair: Path, tmp_path: Path, content: bytes) -> None:
    path = changed_pair(pair, tmp_path)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"vocab\.json"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("merges", "what"),
    [
        (lambda text: text + "a b c\n", r"merges\.txt:\d+: expected two tokens .* found 'a b c'; put the two"),
        (lambda text: text[: text.rindex(" ")], r"merges\.txt:\d+: expected two tokens"),
        (lambda text: "Ġ qqqq\n" + text, r"merges\.txt:1: expected two tokens .* found 'Ġ qqqq'"),
        (lambda text: "z q\n" + text, r"merges\.txt:1: .* join to a third, found 'z q'"),
        (lambda text: text.encode() + b"\xff \xfe", r"merges\.txt, found a file that is not UTF-8 text"),
    ],
)
def test_merges_that_are_none(pair: Path, tmp_path: Path, merges: Callable[[str], str | bytes], what: str) -> None:
    with pytest.raises(UserError, match=what):
        load_tokenizer(changed_pair(pair, tmp_path, merges=merges))


def test_merges_that_are_cut_off_at_a_line(pair: Path, tmp_path: Path) -> None:
    more = {f"{a}{b}": 1000 + 26 * i + j for i, a in enumerate("QXZJ0123") for j, b in enumerate("QXZJ0123456789")}
    lines = "".join(f"{name[0]} {name[1]}\n" for name in more)
    load_tokenizer(changed_pair(pair, tmp_path, lambda tokens: tokens | more, lambda text: text + lines))
    path = changed_pair(pair, tmp_path, lambda tokens: tokens | more)
    with pytest.raises(UserError, match=r"merges\.txt, found none for \d+ of them; the file is cut off"):
        load_tokenizer(path)


def test_a_vocabulary_without_its_merges_is_found_before_any_work(pair: Path, tmp_path: Path) -> None:
    path = changed_pair(pair, tmp_path)
    (tmp_path / "merges.txt").unlink()
    for kind, form in (("file", "jsonl"), ("stored", "tokens")):
        config = BuildConfig(
            corpus=CorpusConfig(paths=("x",), format=form),  # type: ignore[arg-type]
            tokenizer=TokenizerConfig(kind=kind, path=str(path)),  # type: ignore[arg-type]
        )
        with pytest.raises(UserError, match=r"Expected merges\.txt beside .*vocab\.json, found no such file"):
            config.check()
    with pytest.raises(UserError, match=r"Expected a list of merges at .*merges\.txt"):
        load_tokenizer(path)


def test_texts_and_tokens_are_built_with_a_pair(pair: Path, tmp_path: Path) -> None:
    texts = tiny_config(write_corpus(tmp_path / "corpus", 60), tmp_path / "texts")
    path = changed_pair(pair, tmp_path)
    texts = dataclasses.replace(texts, tokenizer=TokenizerConfig(kind="file", path=str(path)))
    for stage in ("prepare", "tokenize"):
        Build(texts).run_stage(stage)
    dataset = open_dataset(texts.out)
    written = dataset.documents.to_table(columns=["text"])["text"].to_pylist()
    tokenizer = load_saved(Path(texts.out, "tokens"))
    assert [tokenizer.decode(dataset.tokens.document(index)) for index in range(60)] == written

    stored = dataclasses.replace(
        texts,
        out=str(tmp_path / "stored"),
        corpus=CorpusConfig(paths=(str(Path(texts.out, "tokens", "tokens-*")),), format="megatron"),
        tokenizer=TokenizerConfig(kind="stored", path=str(path)),
    )
    for stage in ("prepare", "tokenize"):
        Build(stored).run_stage(stage)
    assert load_saved(Path(stored.out, "tokens")).fingerprint == tokenizer.fingerprint
    tokens = open_dataset(stored.out).tokens
    assert sorted(tokenizer.decode(tokens.document(index)) for index in range(60)) == sorted(written)

    former = OutputFolder(texts.out).stages["tokenize"]["fingerprint"]
    assert Build(texts).run_stage("tokenize").kept
    lines = (tmp_path / "merges.txt").read_text().splitlines()
    (tmp_path / "merges.txt").write_text("\n".join([lines[0], *lines[2:], lines[1]]) + "\n")
    assert not Build(texts).run_stage("tokenize").kept
    assert OutputFolder(texts.out).stages["tokenize"]["fingerprint"] != former


MEGATRON = "JAX_DIVERSITY_MEGATRON_SAMPLE"


@pytest.mark.skipif(
    MEGATRON not in os.environ,
    reason=f"{MEGATRON} names no folder with a *_text_document.bin, .idx, *vocab.json and *merges.txt",
)
def test_a_genuine_dataset_decodes_with_its_vocabulary(tmp_path: Path) -> None:
    folder = Path(os.environ[MEGATRON])
    (index,), (vocabulary,) = folder.glob("*_text_document.idx"), folder.glob("*vocab.json")
    config = dataclasses.replace(
        tiny_config(folder, tmp_path / "out"),
        corpus=CorpusConfig(paths=(str(index.with_suffix("")),), format="megatron"),
        tokenizer=TokenizerConfig(kind="stored", path=str(vocabulary)),
    )
    results = {result.stage: result for result in Build(config).run_all()}
    assert results["tokenize"].counts["num_ends_appended"] == 0
    assert (tmp_path / "out" / "report.html").is_file()
    tokenizer = load_saved(tmp_path / "out" / "tokens")
    dataset = open_dataset(tmp_path / "out")
    for document in range(0, dataset.tokens.num_documents, 50):
        ids = dataset.tokens.document(document)
        text = tokenizer.decode(ids)
        assert "\ufffd" not in text
        assert tokenizer.encode_documents([text])[0].tolist() == ids.tolist()
