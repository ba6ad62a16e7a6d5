"""Files of tiktoken and tekken are recognised, and no other file is taken for one."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.tokenization.sentencepiece_model import read_model
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from jax_diversity.sequences.tokenization.tiktoken_files import check_format
from jax_diversity.sequences.tokenization.tokenizer_json import byte_tokenizer, load_tokenizer, token_name

RANKS = "".join(f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256)).encode()
TEKKEN = json.dumps(
    {
        "config": {"pattern": "[^\\r\\n\\p{L}\\p{N}]?", "default_vocab_size": 131072, "version": "v3"},
        "vocab": [{"rank": 0, "token_bytes": "AA==", "token_str": "\u0000"}],
    },
    indent=2,
).encode()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "qwen.tiktoken",
            RANKS,
            r"found the ranks of tiktoken; name the tokenizer\.json of the same model, or make it",
        ),
        ("tokenizer.model", RANKS, "found the ranks of tiktoken"),
        ("tokenizer.model", RANKS.replace(b"\n", b"\r\n"), "found the ranks of tiktoken"),
        ("cl100k_base.tiktoken", RANKS[:7], "found the ranks of tiktoken"),
        ("tekken.json", TEKKEN, r"found the ranks of Mistral's tekken; name the tokenizer\.json"),
    ],
)
def test_vocabularies_of_tiktoken_are_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    kind = "sentencepiece" if name.endswith(".model") else "file"
    for read in (
        lambda: TokenizerConfig(kind=kind, path=str(path)).check(),
        lambda: TokenizerConfig(kind="stored", path=str(path)).check(),
        lambda: load_tokenizer(path),
        lambda: token_name(path, 3),
        lambda: read_model(path),
    ):
        with pytest.raises(UserError, match=said) as raised:
            read()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content", [b"", b"AA= 0\n", b"AA== x\n", b"AA==\n", b"\n\x0e\n\x05<unk>", b"#version: 0.2\n", b"[]", b"{}"]
)
def test_other_files_are_left_to_their_readers(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    check_format(tmp_path / "x")
    check_format(tmp_path / "absent")
    byte_tokenizer().save(tmp_path)
    check_format(tmp_path / "tokenizer.json")
