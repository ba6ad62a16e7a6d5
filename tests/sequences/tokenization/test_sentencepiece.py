"""SentencePiece models read by the sentencepiece package: ids, end tokens, long texts, files that are none."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.tokenization import sentencepiece_model
from jax_diversity.sequences.tokenization.base import Tokenizer
from jax_diversity.sequences.tokenization.factory import load_saved, make_tokenizer
from jax_diversity.sequences.tokenization.sentencepiece_model import read_model
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from tests.support.sentencepiece_models import sentences, train_model

sentencepiece = pytest.importorskip("sentencepiece", reason="the extra [sentencepiece] is not installed")

TEXTS = [
    *sentences(20, seed=1),
    "",
    "  two  blanks ",
    "Zeile\neins\r\nzwei\t\x00",
    "日本語 ü *** 🌉",
    "</s> <unk> ▁",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of several kinds, each `NAME.model`."""
    folder = tmp_path_factory.mktemp("models")
    models = {
        "unigram": train_model(),
        "bpe": train_model("bpe"),
        "identity": train_model(
            "bpe",
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            byte_fallback=True,
            vocab_size=500,
        ),
        "no-blank": train_model(
            normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False
        ),
        "eos": train_model(eos_piece="<eos>", eos_id=1, bos_id=2),
        "endless": train_model(eos_id=-1),
        "symbol": train_model(eos_id=-1, user_defined_symbols=["<|endoftext|>", "END"]),
        "padded": train_model(pad_id=3, pad_piece="<pad>"),
    }
    for name, content in models.items():
        (folder / f"{name}.model").write_bytes(content)
    return folder


def tokenizer_of(path: Path, end_token: str | None = None, num_threads: int | None = None) -> Tokenizer:
    config = TokenizerConfig(kind="sentencepiece", path=str(path), end_token=end_token)
    return make_tokenizer(config, num_threads=num_threads)


# Ids


@pytest.mark.parametrize("name", ["unigram", "bpe", "identity", "no-blank", "eos"])
def test_ids_are_the_librarys_and_the_end_token(folder: Path, name: str) -> None:
    tokenizer = tokenizer_of(folder / f"{name}.model")
    library = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.model"))
    documents = tokenizer.encode_documents(TEXTS)
    assert [document.tolist() for document in documents] == [
        [*library.encode(text), library.eos_id()] for text in TEXTS
    ]
    assert {document.dtype for document in documents} == {np.dtype(np.uint16)}
    assert tokenizer.vocab_size == library.vocab_size()
    assert tokenizer.unknown_id == library.unk_id()
    assert tokenizer.implementation == f"sentencepiece {sentencepiece.__version__}"
    for text, document in zip(TEXTS, documents, strict=True):
        assert tokenizer.decode(document) == library.decode(library.encode(text))


def test_decoding_gives_plain_text_back(folder: Path) -> None:
    for name in ("unigram", "bpe", "identity"):
        tokenizer = tokenizer_of(folder / f"{name}.model")
        for text, document in zip(TEXTS[:20], tokenizer.encode_documents(TEXTS[:20]), strict=True):
            assert tokenizer.decode(document) == text


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=100), max_size=5))
@settings(max_examples=60)
def test_byte_fallback_loses_no_character(folder: Path, texts: list[str]) -> None:
    tokenizer = tokenizer_of(folder / "identity.model")
    for text, document in zip(texts, tokenizer.encode_documents(texts), strict=True):
        assert tokenizer.decode(document) == text.replace("\u2581", " ")
        assert (document == tokenizer.end_id).sum() == 1
        assert (document != tokenizer.unknown_id).all()


def test_threads_change_nothing(folder: Path) -> None:
    one, three = (tokenizer_of(folder / "unigram.model", num_threads=number) for number in (1, 3))
    pairs = zip(one.encode_documents(TEXTS * 9), three.encode_documents(TEXTS * 9), strict=True)
    assert all(np.array_equal(first, second) for first, second in pairs)


def test_ids_outside_the_vocabulary_are_refused(folder: Path) -> None:
    tokenizer = tokenizer_of(folder / "bpe.model")
    for bad in (-1, tokenizer.vocab_size):
        with pytest.raises(UserError, match=f"found {bad}"):
            tokenizer.decode([0, bad])
    assert tokenizer.decode([]) == ""


def test_saved_and_loaded_it_is_the_same(folder: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(folder / "padded.model", "<pad>")
    tokenizer.save(tmp_path)
    loaded = load_saved(tmp_path)
    assert (loaded.fingerprint, loaded.end_token, loaded.end_id) == (tokenizer.fingerprint, "<pad>", 3)
    assert loaded.fingerprint != tokenizer_of(folder / "padded.model").fingerprint
    for one, other in zip(tokenizer.encode_documents(TEXTS), loaded.encode_documents(TEXTS), strict=True):
        assert np.array_equal(one, other)


# Start and end tokens


def test_a_start_token_of_a_model(folder: Path, tmp_path: Path) -> None:
    config = TokenizerConfig(kind="sentencepiece", path=str(folder / "bpe.model"), start_token="<s>")
    tokenizer, plain = make_tokenizer(config), tokenizer_of(folder / "bpe.model")
    texts = [*TEXTS, "<s> is text"]
    for text, document, ids in zip(texts, *(one.encode_documents(texts) for one in (tokenizer, plain)), strict=True):
        assert document.tolist() == [1, *ids.tolist()]  # the library's own id of `<s>`
        assert tokenizer.decode(document) == plain.decode(ids), text
    tokenizer.save(tmp_path)
    assert load_saved(tmp_path).fingerprint == tokenizer.fingerprint != plain.fingerprint
    for token, sentence in (("<unk>", "a start token that no text turns into, found '<unk>'"), ("</s>", "the same")):
        with pytest.raises(UserError, match=sentence):
            make_tokenizer(TokenizerConfig(kind="sentencepiece", path=config.path, start_token=token))


def test_the_end_token_that_a_model_was_trained_with(folder: Path) -> None:
    assert (tokenizer_of(folder / "eos.model").end_token, tokenizer_of(folder / "eos.model").end_id) == ("<eos>", 1)
    assert tokenizer_of(folder / "unigram.model").end_token == "</s>"
    assert tokenizer_of(folder / "symbol.model").end_token == "<|endoftext|>"


def test_a_model_without_an_end_token_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"endless\.model, found none of .*name it in tokenizer\.end_token"):
        tokenizer_of(folder / "endless.model")
    with pytest.raises(UserError, match=r"'STOP' in .*found no such token in its vocabulary of 200 tokens; name one"):
        tokenizer_of(folder / "endless.model", "STOP")
    assert tokenizer_of(folder / "endless.model", "<s>").end_id == 1


def test_the_unknown_token_ends_nothing(folder: Path) -> None:
    with pytest.raises(UserError, match="no text turns into, found '<unk>'"):
        tokenizer_of(folder / "unigram.model", "<unk>")


def test_the_letters_of_the_end_token_are_text(folder: Path) -> None:
    texts = ["a </s> b", "END", "the END of<|endoftext|>it", "<|endoftext|>" * 3]
    for name, end_token in (("unigram", None), ("symbol", None), ("symbol", "END")):
        tokenizer = tokenizer_of(folder / f"{name}.model", end_token)
        for document in tokenizer.encode_documents(texts):
            assert (document == tokenizer.end_id).sum() == 1
            assert document[-1] == tokenizer.end_id


def test_a_word_as_the_end_token_is_refused_where_a_text_has_it(folder: Path) -> None:
    letter = next(piece for piece in read_model(folder / "bpe.model").pieces if piece == "x")
    with pytest.raises(UserError, match="no text turns into, found 'x'"):
        tokenizer_of(folder / "bpe.model", letter).encode_documents(["xx x"])


# Long texts


@pytest.mark.parametrize("name", ["unigram", "bpe", "identity", "no-blank"])
@pytest.mark.parametrize("separator", [" ", "\n", " \n  "])
def test_pieces_give_the_ids_of_the_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, separator: str
) -> None:
    tokenizer = tokenizer_of(folder / f"{name}.model")
    texts = [separator.join(sentences(40, seed)) for seed in range(3)]
    whole = tokenizer.encode_documents(texts)
    for size in (40, 97, 500):
        monkeypatch.setattr(sentencepiece_model, "PIECE_CHARACTERS", size)
        for one, other in zip(tokenizer.encode_documents(texts), whole, strict=True):
            assert np.array_equal(one, other)


def test_text_without_any_place_to_cut_keeps_its_letters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentencepiece_model, "PIECE_CHARACTERS", 100)
    tokenizer = tokenizer_of(folder / "bpe.model")
    text = "quickbrownfox" * 100
    assert tokenizer.decode(tokenizer.encode_documents([text])[0]).replace(" ", "") == text


@pytest.mark.parametrize("text", [" " * 300_000, "a" * 300_000, "\n" * 300_000, "🌉" * 100_000])
def test_long_runs_of_one_character(folder: Path, text: str) -> None:
    tokenizer = tokenizer_of(folder / "identity.model")
    (document,) = tokenizer.encode_documents([text])
    assert tokenizer.decode(document).replace(" ", "") == text.replace(" ", "")


# Files that are not models


@given(st.data())
@settings(max_examples=60)
def test_a_part_of_a_model_is_refused(folder: Path, data: st.DataObject) -> None:
    content = (folder / "unigram.model").read_bytes()
    size = data.draw(st.integers(0, len(content) - 1))
    path = folder / "part.model"
    path.write_bytes(content[:size])
    with pytest.raises(UserError, match=r"part\.model is not a complete SentencePiece model: .*; name a \.model file"):
        read_model(path)


@given(st.binary(max_size=300))
@settings(max_examples=60)
def test_garbage_is_refused(folder: Path, content: bytes) -> None:
    (folder / "garbage.model").write_bytes(content)
    with pytest.raises(UserError, match=r"garbage\.model is not a complete SentencePiece model"):
        read_model(folder / "garbage.model")


@given(st.data())
@settings(max_examples=60)
def test_flipped_bytes_are_a_model_or_a_users_error(folder: Path, data: st.DataObject) -> None:
    content = bytearray((folder / "bpe.model").read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    (folder / "flipped.model").write_bytes(content)
    try:
        model = read_model(folder / "flipped.model")
    except UserError:
        return
    assert model.pieces
    assert model.end_token == model.pieces[model.end_id]


def test_what_the_library_refuses_is_named(tmp_path: Path) -> None:
    model = b"".join(
        [
            b"\x0a\x08\x0a\x04</s>\x18\x03",  # one piece, of type control; no unknown piece
            b"\x0a\x05\x0a\x01a\x18\x01",
            b"\x12\x00",
            b"\x1a\x00",
        ]
    )
    (tmp_path / "t.model").write_bytes(model)
    assert read_model(tmp_path / "t.model").pieces == ("</s>", "a")
    with pytest.raises(UserError, match=r"t\.model is not a readable SentencePiece model"):
        tokenizer_of(tmp_path / "t.model")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.model", tmp_path):
        with pytest.raises(UserError, match="Expected a SentencePiece model at"):
            read_model(path)


def test_a_missing_package_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"pip install 'jax-diversity\[sentencepiece\]'"):
        tokenizer_of(folder / "bpe.model")


@pytest.mark.parametrize(
    "fields",
    [b"\x08\x01", b"\x0a\x02\x08\x01", b"\x0a\x07\x0a\x01a\x1a\x02\x31\x32"],
    ids=["a number for a piece", "a number for its text", "text for its type"],
)
def test_fields_of_another_type_are_refused(tmp_path: Path, fields: bytes) -> None:
    (tmp_path / "t.model").write_bytes(b"\x0a\x08\x0a\x04</s>\x18\x03" + fields + b"\x12\x00\x1a\x00")
    with pytest.raises(UserError, match=r"t\.model is not a complete SentencePiece model: expected .*, found "):
        read_model(tmp_path / "t.model")
