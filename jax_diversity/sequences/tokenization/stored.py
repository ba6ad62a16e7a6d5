"""The artifacts of the stage `tokenize`: the tokens in Megatron's format, and the tokenizer that made them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

if TYPE_CHECKING:
    from jax_diversity.foundation.stored import StoredStages
    from jax_diversity.sequences.token_store.megatron import TokenStore
    from jax_diversity.sequences.tokenization.base import Tokenizer

TOKENS = "tokens"


def open_tokens(stored: StoredStages, number: int | None = None) -> TokenStore:
    """Open the tokens of the documents, or of the file of documents of this number, as memory maps."""
    prefixes = _prefixes(stored)
    return _opened(stored, prefixes if number is None else [prefixes[number]])


def first_documents(stored: StoredStages) -> Int64[np.ndarray, " file_and_end"]:
    """Return the number of the first document of every token file, and the number of all documents."""
    from jax_diversity.sequences.token_store.megatron import count_documents

    stored.files("tokenize", f"{TOKENS}/", ".idx")
    return np.cumsum([0, *(count_documents(stored.root / prefix) for prefix in _prefixes(stored))])


def open_token_files(stored: StoredStages, begin: int, end: int) -> TokenStore:
    """Open the tokens of the files of documents from number `begin` to `end - 1`, as memory maps."""
    return _opened(stored, _prefixes(stored)[begin:end])


def _prefixes(stored: StoredStages) -> list[str]:
    return [name.removesuffix(".idx") for name in stored.names("tokenize", f"{TOKENS}/", ".idx")]


def _opened(stored: StoredStages, prefixes: list[str]) -> TokenStore:
    from jax_diversity.sequences.token_store.megatron import LOSS_MASK, TURNS, TokenStore

    # All files with these endings are fetched and checked; the store needs the names without endings.
    starts = [f"{prefix}." for prefix in prefixes]
    for start in [f"{TOKENS}/"] if len(prefixes) == len(_prefixes(stored)) else starts:
        for suffix in (".idx", ".bin", LOSS_MASK, TURNS):
            stored.files("tokenize", start, suffix)
    return TokenStore([stored.root / prefix for prefix in prefixes])


def read_tokenizer(stored: StoredStages) -> Tokenizer | None:
    """Load the tokenizer that made the tokens; None if the corpus consists of tokens and no tokenizer was given."""
    from jax_diversity.sequences.tokenization.factory import load_saved

    return load_saved(stored.root / TOKENS) if stored.files("tokenize", f"{TOKENS}/tokenizer.") else None


def tokenizer_file(stored: StoredStages) -> Path:
    """Return the path of `tokenizer.json`."""
    return stored.file("tokenize", f"{TOKENS}/tokenizer.json")
