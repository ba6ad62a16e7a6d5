"""Texts stay what they are: names of added tokens in documents, and tokenizers that change texts."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from jax_diversity.sequences.tokenization.factory import load_saved
from jax_diversity.sequences.tokenization.stage import warn_of_changes
from jax_diversity.sequences.tokenization.tokenizer_json import JsonTokenizer, byte_tokenizer, load_tokenizer

BAR = "\uff5c"
END = f"<{BAR}end\u2581of\u2581sentence{BAR}>"
MARKS = (f"<{BAR}User{BAR}>", f"<{BAR}Assistant{BAR}>", "<|EOT|>", "<tool_call>", "<|fim_prefix|>")


def with_marks(tmp_path: Path, *, special: bool) -> Path:
    """Write a byte-level tokenizer with marks of DeepSeek and Qwen, and a run of spaces."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    backend.add_special_tokens([END])
    backend.add_tokens([AddedToken(mark, special=special) for mark in MARKS])
    backend.add_tokens([AddedToken(" " * 8, special=False)])
    path = tmp_path / "tokenizer.json"
    backend.save(str(path))
    return path


@pytest.mark.parametrize("special", [False, True])
def test_names_of_added_tokens_stay_text(tmp_path: Path, special: bool) -> None:
    tokenizer = load_tokenizer(with_marks(tmp_path, special=special))
    assert tokenizer.end_token == END
    text = f"a {' '.join(MARKS)} b {END}{MARKS[0]}c"
    (ids,) = tokenizer.encode_documents([text])
    assert ids[-1] == tokenizer.end_id
    assert max(ids[:-1]) < 256  # bytes only
    assert tokenizer.decode(ids) == text
    assert tokenizer.count_names(text) == len(MARKS) + 2
    assert tokenizer.count_names("a < b | c") == 0
    # In a template they are these tokens.
    ((ids, _),) = tokenizer.encode_parts([[(MARKS[0], True), (MARKS[0], False)]])
    assert ids[0] == 257
    assert max(ids[1:-1]) < 256


def test_added_runs_of_spaces_are_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(with_marks(tmp_path, special=False))
    (ids,) = tokenizer.encode_documents([" " * 8 + "a"])
    assert len(ids) == 3
    assert tokenizer.decode(ids) == " " * 8 + "a"


def test_added_tokens_may_be_read_from_texts(tmp_path: Path) -> None:
    path = with_marks(tmp_path, special=False)
    tokenizer = load_tokenizer(path, added_tokens="tokens")
    (ids,) = tokenizer.encode_documents([f"{MARKS[0]}{END}"])
    assert ids[0] == 257
    assert list(ids).count(tokenizer.end_id) == 1  # never the end token
    tokenizer.save(tmp_path)
    stored = load_saved(tmp_path)
    assert stored.encode_documents([MARKS[0]])[0].tolist() == [257, 256]
    assert stored.fingerprint == tokenizer.fingerprint != load_tokenizer(path).fingerprint


def lossy() -> JsonTokenizer:
    """A tokenizer that loses line ends, capital letters, compatible forms and unknown characters."""
    letters = ["<unk>", "</s>", *"\u2581abcdefghijklmnopqrstuvwxyz0123456789():"]
    model = models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[], unk_token="<unk>")
    backend = Tokenizer(model)
    parts = [normalizers.NFKC(), normalizers.Replace("\n", " "), normalizers.Lowercase()]
    backend.normalizer = normalizers.Sequence(parts)  # type: ignore[assignment]
    backend.pre_tokenizer = pre_tokenizers.Metaspace()  # type: ignore[assignment]
    backend.decoder = decoders.Metaspace()  # type: ignore[assignment]
    backend.add_special_tokens(["</s>"])
    return JsonTokenizer(json.dumps(json.loads(backend.to_str())))


def said(tokenizer: JsonTokenizer, texts: list[str]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_changes(tokenizer, texts)
    return [str(each.message) for each in caught]


def test_tokenizers_that_change_texts_are_named() -> None:
    (message,) = said(lossy(), ["plain words", "two\nlines", "a \u00bd", "x"])
    assert "The text changes in 50.0% of 4 sampled documents" in message
    assert "'two\\nlines' becomes 'two lines'" in message
    (message,) = said(lossy(), ["a [b]"])
    assert " 0.0% of their tokens" not in message
    assert said(lossy(), ["plain words"]) == []
    assert said(lossy(), []) == []


def test_tokenizers_of_bytes_change_nothing() -> None:
    assert said(byte_tokenizer(), ["two\nlines \u00bd \u2460 \U0001f468\u200d\U0001f469", " leading", "\0"]) == []
