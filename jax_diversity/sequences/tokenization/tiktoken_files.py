"""Recognise the files of tiktoken and tekken, which are vocabularies and not whole tokenizers."""

from __future__ import annotations

import re
from pathlib import Path

from jax_diversity.foundation.errors import UserError

_FIRST_BYTES = 4096
_RANKED = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4}) \d+\r?\n")


def check_format(path: str | Path) -> None:
    """Raise a `UserError` for a file of tiktoken (`qwen.tiktoken`, Llama 3's `tokenizer.model`) or `tekken.json`.

    A file of tiktoken has a token in base64 and its rank in every line. The pattern that splits words and the special
    tokens are in the program that reads the file, so that the ids of texts do not follow from the file.
    """
    try:
        with Path(path).open("rb") as file:
            beginning = file.read(_FIRST_BYTES)
    except OSError:
        return  # the reader of the file says what is wrong
    if _RANKED.match(beginning):
        kind = "the ranks of tiktoken"
        advice = (
            "name the tokenizer.json of the same model, or make it with transformers.integrations.tiktoken."
            "convert_tiktoken_to_fast"
        )
    elif beginning.lstrip().startswith(b"{") and b'"token_bytes"' in beginning:
        kind, advice = "the ranks of Mistral's tekken", "name the tokenizer.json of the same model"
    else:
        return
    raise UserError(f"Expected a tokenizer.json or a SentencePiece model in {path}, found {kind}; {advice}.")
