"""Texts -> token ids as Qwen3-Embedding reads them: cut to a number of tokens, the end token last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import processors

from jax_diversity.embedding.qwen3.checkpoint import TOKENIZER
from jax_diversity.foundation.errors import UserError

END_TOKEN = "<|endoftext|>"
_CHARACTERS_PER_TOKEN = 32  # longer tokens are runs of blanks and the like


class TokenReader:
    """A checkpoint's tokenizer.

    Args:
        folder: the checkpoint's.
        max_tokens: only a text's first tokens are read; the end token is one of them.
        vocab_size: rows of the model's table of token vectors.

    Raises:
        UserError: no tokenizer.json, one that does not parse, without an end token, or with ids beyond the table.
    """

    def __init__(self, folder: Path, max_tokens: int, vocab_size: int) -> None:
        path = folder / TOKENIZER
        self._tokenizer = _read(path)
        self._num_characters = max_tokens * _CHARACTERS_PER_TOKEN
        largest = max(self._tokenizer.get_vocab().values(), default=-1)
        if largest >= vocab_size:
            raise UserError(
                f"Expected token ids below {vocab_size}, the model's vocab_size, in {path}, found {largest}; "
                "take the tokenizer that belongs to the checkpoint."
            )
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if not self._tokenizer.encode("").ids:
            self._tokenizer.post_processor = _ending(self._tokenizer, path)
        self._tokenizer.enable_truncation(max_tokens)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, one or more."""
        beginnings = [text[: self._num_characters] for text in texts]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(beginnings)]


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"Expected {TOKENIZER} in the checkpoint's folder, found none at {path}; download the whole checkpoint."
        ) from None
    except Exception as error:  # the library raises bare exceptions
        raise UserError(
            f"Expected a tokenizer of the `tokenizers` library in {path}, found: {error}; download it again."
        ) from None


def _ending(tokenizer: tokenizers.Tokenizer, path: Path) -> processors.TemplateProcessing:
    """Appends the end token, for those base models' tokenizers that leave it to the caller."""
    end = tokenizer.token_to_id(END_TOKEN)
    if end is None:
        raise UserError(
            f"Expected the tokenizer in {path} to append an end token or to know {END_TOKEN}, found neither; take "
            "the tokenizer that belongs to the checkpoint."
        )
    return processors.TemplateProcessing(single=f"$A {END_TOKEN}", special_tokens=[(END_TOKEN, end)])
