"""What tensorflow-text does: the same .model files, normal forms, sentence ends; it is never loaded unasked.

Its import takes ten seconds; the tests of one process share it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.tokenization import sentencepiece_model, tensorflow_text
from jax_diversity.sequences.tokenization.factory import load_saved, make_tokenizer
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from jax_diversity.sequences.tokenization.tensorflow_text import normalize_texts, split_sentences
from jax_diversity.sequences.tokenization.tokenizer_json import byte_tokenizer
from tests.support.sentencepiece_models import sentences, train_model

pytestmark = pytest.mark.campaign

pytest.importorskip("sentencepiece", reason="the extra [sentencepiece], which trains the models, is not installed")
installed = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_text") is None, reason="the extra [tensorflow-text] is not installed"
)
PLAIN = [*sentences(200, seed=5), "", "Größe und Maß", "  two  blanks ", "one\ntwo\t three"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "unigram.model").write_bytes(train_model())
    (folder / "bpe.model").write_bytes(train_model("bpe", pad_id=3, pad_piece="<pad>"))
    return folder


def config(path: Path, kind: str = "tensorflow-text", **more: object) -> TokenizerConfig:
    return TokenizerConfig(kind=kind, path=str(path), **more)  # type: ignore[arg-type]


# SentencePiece models


@installed
@pytest.mark.parametrize("name", ["unigram", "bpe"])
def test_on_plain_text_both_libraries_give_the_same_ids(folder: Path, name: str) -> None:
    ours, theirs = (
        make_tokenizer(config(folder / f"{name}.model", kind)) for kind in ("tensorflow-text", "sentencepiece")
    )
    pairs = list(zip(ours.encode_documents(PLAIN), theirs.encode_documents(PLAIN), strict=True))
    assert sum(not np.array_equal(one, other) for one, other in pairs) == 0
    assert {one.dtype for one, _ in pairs} == {np.dtype(np.uint16)}
    assert [ours.decode(one) for one, _ in pairs] == [theirs.decode(other) for _, other in pairs]
    assert (ours.vocab_size, ours.end_id, ours.unknown_id) == (theirs.vocab_size, theirs.end_id, theirs.unknown_id)
    assert ours.implementation.startswith("tensorflow-text 2.")
    assert ours.fingerprint != theirs.fingerprint


@installed
@given(st.lists(st.text("az*.-1 \n", max_size=30), min_size=1, max_size=5))
@settings(max_examples=20)
def test_where_ids_differ_their_scores_are_equal(folder: Path, texts: list[str]) -> None:
    """A run such as `***` can be cut in several ways of one score, and the libraries may choose differently."""
    import sentencepiece

    library = sentencepiece.SentencePieceProcessor(model_file=str(folder / "unigram.model"))
    ours, theirs = (
        make_tokenizer(config(folder / "unigram.model", kind)).encode_documents(texts)
        for kind in ("tensorflow-text", "sentencepiece")
    )
    for one, other in zip(ours, theirs, strict=True):
        first, second = (sum(library.get_score(int(token)) for token in ids) for ids in (one, other))
        assert first == pytest.approx(second, abs=1e-3)
        assert library.decode(one.tolist()) == library.decode(other.tolist())


@installed
def test_saved_and_loaded_it_is_the_same(folder: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(
        config(folder / "bpe.model", end_token="<pad>", normalization="NFKC", cut_at="sentences")
    )
    tokenizer.save(tmp_path)
    loaded = load_saved(tmp_path, num_threads=1)
    assert (loaded.fingerprint, loaded.end_id, loaded.implementation) == (
        tokenizer.fingerprint,
        3,
        tokenizer.implementation,
    )
    assert loaded.implementation.endswith(f"after NFKC by {tensorflow_text.implementation()}")
    for one, other in zip(loaded.encode_documents(PLAIN), tokenizer.encode_documents(PLAIN), strict=True):
        assert np.array_equal(one, other)


@installed
def test_pieces_and_calls_give_the_ids_of_the_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(PLAIN), "x", "", "\n".join(PLAIN[:50])]
    for name in ("unigram", "bpe"):
        whole = make_tokenizer(config(folder / f"{name}.model")).encode_documents(texts)
        for cut_at in ("blanks", "sentences"):
            with monkeypatch.context() as patch:
                patch.setattr(sentencepiece_model, "PIECE_CHARACTERS", 300)
                patch.setattr(sentencepiece_model, "_CALL_CHARACTERS", 500)
                tokenizer = make_tokenizer(config(folder / f"{name}.model", cut_at=cut_at), num_threads=3)
                for one, other in zip(tokenizer.encode_documents(texts), whole, strict=True):
                    assert np.array_equal(one, other)


@installed
def test_what_the_library_refuses_is_named(tmp_path: Path) -> None:
    pieces = b"\x0a\x08\x0a\x04</s>\x18\x03\x0a\x05\x0a\x01a\x18\x01"  # without an unknown piece
    (tmp_path / "t.model").write_bytes(pieces + b"\x12\x00\x1a\x00")
    with pytest.raises(UserError, match=r"t\.model is not a readable SentencePiece model"):
        make_tokenizer(config(tmp_path / "t.model"))


@installed
def test_it_leaves_the_accelerators_alone() -> None:
    import tensorflow

    assert tensorflow_text.implementation()
    assert tensorflow.config.get_visible_devices("GPU") == []


# Normal forms


@installed
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_normal_forms_are_pythons(form: str) -> None:
    texts = ["ﬁre é e\u0301 ½ Å", "plain", "", "カ\u3099 ㍿ 한글"]
    assert normalize_texts(texts, form) == [unicodedata.normalize(form, text) for text in texts]  # type: ignore[arg-type]


@installed
def test_any_tokenizer_can_have_its_text_normalised(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(TokenizerConfig(kind="bytes", normalization="NFKC"))
    assert tokenizer.encode_documents(["ﬁ"])[0].tolist() == [*b"fi", 256]
    assert tokenizer.fingerprint != byte_tokenizer().fingerprint
    tokenizer.save(tmp_path)
    loaded = load_saved(tmp_path)
    assert (loaded.fingerprint, loaded.decode([*b"fi", 256])) == (tokenizer.fingerprint, "fi")
    trained = make_tokenizer(TokenizerConfig(vocab_size=300, normalization="NFKC"), training_texts=["ﬁne ﬁre"] * 50)
    assert len(trained.encode_documents(["ﬁne"])[0]) < len("ﬁne".encode()) + 1
    assert trained.decode(trained.encode_documents(["ﬁne"])[0]) == "fine"


# Sentences


@installed
def test_sentences_are_found_in_characters() -> None:
    texts = ["Here. And there!  Why?", "", "no end", "Größe zählt. Ja! 你好。再见。 ok"]
    spans = split_sentences(texts)
    found = [[text[begin:end] for begin, end in one.tolist()] for text, one in zip(texts, spans, strict=True)]
    assert found == [
        ["Here.", "And there!", "Why?"],
        [],
        ["no end"],
        ["Größe zählt.", "Ja!", "你好。", "再见。", "ok"],
    ]
    assert split_sentences([]) == []


@installed
@given(st.text("aé🌉.! \n", max_size=300), st.integers(1, 60))
@settings(max_examples=20)
def test_pieces_cut_at_sentences_join_to_the_text(text: str, size: int) -> None:
    pieces = list(tensorflow_text.sentence_ends(text, size))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= size for piece in pieces) or text == ""


@installed
def test_a_piece_ends_with_a_sentence() -> None:
    text = " ".join(sentences(100))
    pieces = list(tensorflow_text.sentence_ends(text, 400))
    assert len(pieces) > 10
    assert all(piece[-1] in ".!?" for piece in pieces)


# Imports


def test_a_missing_library_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    tensorflow_text.import_libraries.cache_clear()
    try:
        for settings_ in (config(folder / "bpe.model"), TokenizerConfig(kind="bytes", normalization="NFC")):
            with pytest.raises(UserError, match=r"pip install 'jax-diversity\[tensorflow-text\]'"):
                make_tokenizer(settings_)
    finally:
        tensorflow_text.import_libraries.cache_clear()


def test_nothing_of_it_is_loaded_unasked(folder: Path) -> None:
    program = (
        "import sys\nfrom jax_diversity.sequences.tokenization.factory import make_tokenizer\n"
        "from jax_diversity.sequences.tokenization.settings import TokenizerConfig\n"
        f"make_tokenizer(TokenizerConfig(kind='sentencepiece', path={str(folder / 'bpe.model')!r}))\n"
        "import jax_diversity.sequences.tokenization.encoding\n"
        "print({'tensorflow', 'jax'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
