"""Tokenizers: round trips, hostile text, long documents, files that are none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.tokenization import cutting
from jax_diversity.sequences.tokenization.base import Tokenizer, token_dtype
from jax_diversity.sequences.tokenization.factory import load_saved, make_tokenizer
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from jax_diversity.sequences.tokenization.tokenizer_json import byte_tokenizer, load_tokenizer, spread_texts, train_bpe

TEXTS = [
    "The quick brown fox jumps over the lazy dog.\n" * 3,
    "def area(radius):\n    return 3.14159 * radius ** 2\n",
    "Größere Straßen führen über die Brücke; 大きな橋を渡る。 🌉",
    "We don't know what they'll say, but it's 12345 words long\t\t and \r\n wide.",
] * 5

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(TEXTS, 400)


def definition(model: models.Model, **parts: object) -> dict:
    backend = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(backend, name, part)
    return json.loads(backend.to_str())


def save(path: Path, content: dict) -> Path:
    path.write_text(json.dumps(content))
    return path


# Trained BPE and bytes


def test_bpe_has_all_bytes_and_ends_with_the_end_token(bpe: Tokenizer) -> None:
    assert bpe.vocab_size <= 400
    assert bpe.end_id == bpe.vocab_size - 1
    assert bpe.end_token == "<|endoftext|>"
    (document,) = bpe.encode_documents(["The quick brown fox"])
    assert document.dtype == np.uint16
    assert document[-1] == bpe.end_id
    assert len(document) < len("The quick brown fox") // 2


@given(st.lists(_texts, max_size=5))
@settings(max_examples=100, deadline=None)
def test_decoding_gives_the_text_back(bpe: Tokenizer, texts: list[str]) -> None:
    for tokenizer in (bpe, byte_tokenizer()):
        documents = tokenizer.encode_documents(texts)
        assert [tokenizer.decode(document) for document in documents] == texts
        assert all((document == tokenizer.end_id).sum() == 1 for document in documents)


@pytest.mark.campaign
def test_training_is_the_same_in_every_process() -> None:
    program = "import sys; from jax_diversity.sequences.tokenization.tokenizer_json import train_bpe; " + (
        "print(train_bpe(sys.stdin.read().split('|'), 600).fingerprint)"
    )
    words = " ".join(f"word{n % 97} {n * 7919 % 1013}" for n in range(5000))
    found = {
        subprocess.run([sys.executable, "-c", program], input=words, text=True, capture_output=True, check=True).stdout
        for _ in range(3)
    }
    assert len(found) == 1


def test_the_smallest_vocabularies() -> None:
    assert train_bpe(TEXTS, 257).vocab_size == 257
    assert train_bpe([], 300).vocab_size == 257


def test_byte_ids_are_bytes(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    assert (tokenizer.vocab_size, tokenizer.end_id) == (257, 256)
    text = "aé\0" + "".join(map(chr, range(1, 256)))
    assert tokenizer.encode_documents([text, ""])[0].tolist() == [*text.encode(), 256]
    assert tokenizer.encode_documents([""])[0].tolist() == [256]
    tokenizer.save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode(text).ids == list(text.encode())
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.encode_documents([text])[0].tolist() == [*text.encode(), 256]
    assert loaded.fingerprint == tokenizer.fingerprint


def test_half_a_character_decodes_to_a_replacement() -> None:
    assert byte_tokenizer().decode([0x61, 0xC3, 256]) == "a\ufffd"


def test_ids_outside_the_vocabulary_are_refused(bpe: Tokenizer) -> None:
    for bad in (-1, bpe.vocab_size):
        with pytest.raises(UserError, match=f"found {bad}"):
            bpe.decode([0, bad])


def test_saved_and_loaded_it_is_the_same(bpe: Tokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path)
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.fingerprint == bpe.fingerprint
    for one, other in zip(loaded.encode_documents(TEXTS), bpe.encode_documents(TEXTS), strict=True):
        assert one.tolist() == other.tolist()


# Start tokens


@pytest.mark.parametrize("kind", ["bpe", "bytes"])
def test_a_start_token_stands_before_every_document(kind: str, tmp_path: Path) -> None:
    plain = make_tokenizer(TokenizerConfig(kind=kind, vocab_size=400), TEXTS)  # type: ignore[arg-type]
    config = TokenizerConfig(kind=kind, vocab_size=401, start_token="<s>")  # type: ignore[arg-type]
    tokenizer = make_tokenizer(config, TEXTS)
    assert (tokenizer.start_token, tokenizer.start_id) == ("<s>", plain.vocab_size)
    assert (tokenizer.vocab_size, tokenizer.end_id) == (plain.vocab_size + 1, plain.end_id)
    texts = [*TEXTS[:4], "", "<s>", "a<s><|endoftext|>b</s><s>"]
    documents = tokenizer.encode_documents(texts)
    assert [tokenizer.decode(document) for document in documents] == texts
    for text, document in zip(texts, documents, strict=True):
        assert (document[0], document[-1]) == (tokenizer.start_id, tokenizer.end_id)
        assert not np.isin(document[1:-1], [tokenizer.start_id, tokenizer.end_id]).any()
        if "<s>" not in text:
            assert document[1:].tolist() == plain.encode_documents([text])[0].tolist()
    tokenizer.save(tmp_path)
    loaded = load_saved(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint != plain.fingerprint
    assert loaded.settings == tokenizer.settings
    assert loaded.encode_documents(["a"])[0].tolist() == tokenizer.encode_documents(["a"])[0].tolist()


def test_a_start_token_of_a_given_vocabulary(tmp_path: Path) -> None:
    model = word_level("</s>", "<s>")
    tokenizer = load_tokenizer(save(tmp_path / "t.json", definition(model)), start_token="<s>")
    (document,) = tokenizer.encode_documents([""])
    assert document.tolist() == [tokenizer.start_id, tokenizer.end_id]
    with pytest.raises(UserError, match=r"start token '<b>' in .*; name one of them in tokenizer\.start_token"):
        load_tokenizer(tmp_path / "t.json", start_token="<b>")
    with pytest.raises(UserError, match="start token that is not the end token '</s>', found the same"):
        load_tokenizer(tmp_path / "t.json", start_token="</s>")


@pytest.mark.parametrize("name", ["a", "<|endoftext|>"])
def test_a_start_token_that_is_a_token_already_is_refused(name: str) -> None:
    for make in (byte_tokenizer, lambda start: train_bpe(TEXTS, 400, start)):
        with pytest.raises(UserError, match="to be absent from the trained vocabulary, found"):
            make(name)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"start_token": ""}, "tokenizer.start_token to be the name of a token, such as '<s>', found ''"),
        ({"start_token": "<s>", "vocab_size": 257}, r">= 258 \(256 bytes and the start and the end token\)"),
        ({"kind": "stored", "start_token": "<s>"}, "tokenizer.start_token with tokenizer.kind=bpe or .* with stored"),
    ],
)
def test_start_tokens_that_no_corpus_could_have(settings: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        TokenizerConfig(**settings).check()


# Hostile text


@pytest.mark.parametrize("text", ["<|endoftext|>", "a<|endoftext|><|endoftext|>b", " <|endoftext|> "])
def test_the_letters_of_the_end_token_are_text(bpe: Tokenizer, text: str) -> None:
    for tokenizer in (bpe, byte_tokenizer(), train_bpe([text] * 50, 400)):
        (document,) = tokenizer.encode_documents([text])
        assert (document == tokenizer.end_id).sum() == 1
        assert tokenizer.decode(document) == text


@pytest.mark.parametrize("text", [" " * 300_000, "a" * 300_000, "\n" * 300_000, "🌉" * 100_000, "-" * 300_000 + "x"])
def test_long_runs_of_one_character(bpe: Tokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode_documents([text])[0]) == text


# Long documents


@pytest.mark.parametrize("separators", ["\n", " ", "\n \n\n\t \u00a0"])
def test_pieces_give_the_ids_of_the_whole(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch, separators: str) -> None:
    rng = np.random.default_rng(0)
    words = ["The", "quick", "it's", "12345", "radius", "--", "über", "大きな", "x", "don't!", "🌉", "..."]
    text = "".join(
        str(rng.choice(words)) + str(rng.choice(list(separators))) * int(rng.integers(1, 3)) for _ in range(4000)
    )
    texts = [text, "short", "", text[::-1]]
    whole = bpe.encode_documents(texts)
    monkeypatch.setattr(cutting, "PIECE_CHARACTERS", 100)
    monkeypatch.setattr(cutting, "BATCH_CHARACTERS", 1000)
    for one, other in zip(bpe.encode_documents(texts), whole, strict=True):
        assert one.tolist() == other.tolist()


@given(st.text("ab \n", max_size=200), st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_pieces_join_to_the_text(text: str, size: int) -> None:
    for cut in (cutting.lines_and_blanks, cutting.blanks):
        pieces = list(cut(text, size))
        assert "".join(pieces) == text
        assert all(0 < len(piece) <= size for piece in pieces) or text == ""


def test_text_without_any_place_to_cut_comes_back_whole(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "PIECE_CHARACTERS", 100)
    text = "0123456789abcdef" * 100
    assert bpe.decode(bpe.encode_documents([text])[0]) == text


_HUGE = """
import resource, sys
from jax_diversity.sequences.tokenization.tokenizer_json import load_tokenizer
tokenizer = load_tokenizer(sys.argv[1])
text = "The quick brown fox\\n" * (12 * 2**20 // 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(document,) = tokenizer.encode_documents([text])
assert document.dtype == "uint16"
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.campaign
def test_memory_does_not_follow_the_document(bpe: Tokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path)
    command = [sys.executable, "-c", _HUGE, str(tmp_path / "tokenizer.json")]
    kilobytes = int(subprocess.check_output(command))
    assert kilobytes < 600 * 1024  # a single call of the library takes gigabytes


# Given tokenizers


def word_level(*extra: str) -> models.WordLevel:
    words = ["[UNK]", "a", "b", *extra]
    return models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]")


def test_what_a_file_says_of_truncation_padding_and_added_tokens_is_left_aside(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(word_level("[CLS]", "[SEP]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 3), ("[SEP]", 4)]
    )
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.end_token == "[SEP]"
    documents = tokenizer.encode_documents(["a b a b a b", "b"])
    assert [document.tolist() for document in documents] == [[1, 2, 1, 2, 1, 2, 4], [2, 4]]


@pytest.mark.parametrize("special", [True, False])
def test_an_end_token_is_never_read_out_of_text(tmp_path: Path, special: bool) -> None:
    content = definition(word_level("</s>", "</", "s>"), pre_tokenizer=pre_tokenizers.WhitespaceSplit())
    if special:
        content["added_tokens"] = [
            {
                "id": 3,
                "content": "</s>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": False,
            }
        ]
    tokenizer = load_tokenizer(save(tmp_path / "t.json", content))
    documents = tokenizer.encode_documents(["a </s> b", "</s></s>", "a"])
    assert tokenizer.end_id == 3
    assert documents[0].tolist() == [1, 4, 5, 2, 3]
    assert all((document == 3).sum() == 1 for document in documents)


def test_an_end_token_that_stands_for_unknown_words_is_refused(tmp_path: Path) -> None:
    model = models.WordLevel({"</s>": 0, "a": 1}, unk_token="</s>")
    path = save(tmp_path / "t.json", definition(model, pre_tokenizer=pre_tokenizers.Whitespace()))
    with pytest.raises(UserError, match="no text turns into"):
        load_tokenizer(path).encode_documents(["a c"])


@pytest.mark.parametrize("name", ["<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "[SEP]"])
def test_usual_end_tokens_are_found(tmp_path: Path, name: str) -> None:
    tokenizer = load_tokenizer(save(tmp_path / "t.json", definition(word_level(name))))
    assert (tokenizer.end_token, tokenizer.end_id) == (name, 3)


def test_a_named_end_token(tmp_path: Path) -> None:
    path = save(tmp_path / "t.json", definition(word_level("</s>", "END")))
    assert load_tokenizer(path, "END").end_id == 4
    with pytest.raises(UserError, match=r"'STOP' in .*t\.json, found no such token"):
        load_tokenizer(path, "STOP")
    with pytest.raises(UserError, match=r"none of .*name it in tokenizer\.end_token"):
        load_tokenizer(save(tmp_path / "u.json", definition(word_level())))


def test_prefixing_tokenizers_round_trip(tmp_path: Path) -> None:
    vocabulary = [("<unk>", 0.0), ("</s>", 0.0), *((letter, -2.0) for letter in "▁abcdefgh"), ("▁ab", -1.0)]
    content = definition(
        models.Unigram(vocabulary, 0),
        normalizer=normalizers.NFKC(),
        pre_tokenizer=pre_tokenizers.Metaspace(),
        decoder=decoders.Metaspace(),
    )
    tokenizer = load_tokenizer(save(tmp_path / "t.json", content))
    assert tokenizer.decode(tokenizer.encode_documents(["abc dea ab"])[0]) == "abc dea ab"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"{", "not JSON"),
        (b"[]", "without a tokenizer's model"),
        (b'{"model": 3}', "without a tokenizer's model"),
        (b'{"model": {"type": "Nonsense"}}', "cannot|not a readable"),
        (b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', "not a readable"),
        (b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}', "not a readable"),
        (b'{"version": "9", "model": {"type": "BPE", "vocab": {}, "merges": []}}', "not a readable"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_files_that_are_no_tokenizers_are_refused(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(UserError, match=what) as caught:
        load_tokenizer(tmp_path / "t.json")
    assert "t.json" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UserError, match=r"tokenizer\.json at"):
            load_tokenizer(path)


def test_token_types() -> None:
    assert token_dtype(65_499) == np.uint16
    assert token_dtype(65_500) == np.int32
    assert token_dtype(2**31) == np.int32
    for size in (0, 2**31 + 1):
        with pytest.raises(UserError, match="the range of int32 tokens"):
            token_dtype(size)


def test_a_vocabulary_beyond_the_token_type_is_refused(tmp_path: Path) -> None:
    content = definition(word_level("</s>"))
    content["model"]["vocab"]["far"] = 2**31 + 5
    with pytest.raises(UserError, match="the range of int32 tokens"):
        load_tokenizer(save(tmp_path / "t.json", content))


def test_wide_vocabularies_have_wide_tokens(tmp_path: Path) -> None:
    content = definition(word_level("</s>"), pre_tokenizer=pre_tokenizers.Whitespace())
    content["model"]["vocab"]["far"] = 100_000
    (document,) = load_tokenizer(save(tmp_path / "t.json", content)).encode_documents(["a far"])
    assert (document.dtype, document.tolist()) == (np.int32, [1, 100_000, 3])


# What BPE is trained on


@given(st.lists(st.text("ab \n", max_size=50), max_size=40), st.integers(1, 500))
@settings(max_examples=100, deadline=None)
def test_a_spread_part_has_its_size(texts: list[str], keep_bytes: int) -> None:
    total = sum(map(len, texts))
    kept = sum(map(len, spread_texts(texts, total, keep_bytes)))
    assert kept <= keep_bytes + 25
    if keep_bytes >= total:
        assert kept == total


def test_a_spread_part_comes_from_everywhere() -> None:
    texts = [chr(65 + index // 100) * 1000 for index in range(1000)]
    part = "".join(spread_texts(texts, 1_000_000, 100_000))
    assert 95_000 <= len(part) <= 105_000
    counts = [part.count(chr(65 + index)) for index in range(10)]
    assert min(counts) >= 8_000
    huge = "\n".join(str(n) for n in range(400_000))
    part = "".join(spread_texts([huge], len(huge), len(huge) // 10))
    assert 0.05 * len(huge) < len(part) < 0.12 * len(huge)


def test_a_folder_stands_for_its_tokenizer_json(tmp_path: Path, bpe: Tokenizer) -> None:
    (tmp_path / "model").mkdir()
    bpe.save(tmp_path / "model")
    config = TokenizerConfig(kind="file", path=str(tmp_path / "model"))
    config.check()
    assert make_tokenizer(config).encode_documents(TEXTS)[0].tolist() == bpe.encode_documents(TEXTS)[0].tolist()
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"found the folder .*model without a tokenizer\.json; name another file"):
        config.check()
    with pytest.raises(UserError, match=r"found a folder at .*model; name the \.model file in it"):
        TokenizerConfig(kind="sentencepiece", path=str(tmp_path / "model")).check()
