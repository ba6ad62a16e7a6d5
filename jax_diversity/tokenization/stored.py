"""The artifacts of the stage `tokenize`: the tokens in Megatron's format, and the tokenizer that made them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jax_diversity.foundation.stored import StoredStages
    from jax_diversity.token_store.megatron import TokenStore
    from jax_diversity.tokenization.base import Tokenizer

TOKENS = "tokens"


def open_tokens(stored: StoredStages, number: int | None = None) -> TokenStore:
    """Open the tokens of the documents, or of the file of documents of this number, as memory maps."""
    prefixes = _prefixes(stored)
    return _opened(stored, prefixes if number is None else [prefixes[number]])


def open_tokens_between(stored: StoredStages, first: int, last: int) -> tuple[TokenStore, int]:
    """Open only the files with the tokens of the documents from `first` to `last`.

    Returns:
        The tokens, and the number of the first document that they contain.
    """
    from jax_diversity.token_store.megatron import count_documents

    prefixes = _prefixes(stored)
    stored.files("tokenize", f"{TOKENS}/", ".idx")
    starts = np.cumsum([0, *(count_documents(stored.root / prefix) for prefix in prefixes)])
    # "right": an empty file begins at the same document as the next file, which has the document.
    begin, end = (int(np.searchsorted(starts[:-1], document, "right")) for document in (max(first, 0), last))
    return _opened(stored, prefixes[begin - 1 : max(end, begin)]), int(starts[begin - 1])


def _prefixes(stored: StoredStages) -> list[str]:
    return [name.removesuffix(".idx") for name in stored.names("tokenize", f"{TOKENS}/", ".idx")]


def _opened(stored: StoredStages, prefixes: list[str]) -> TokenStore:
    from jax_diversity.token_store.megatron import LOSS_MASK, TokenStore

    # All files with these endings are fetched and checked; the store needs the names without endings.
    starts = [f"{prefix}." for prefix in prefixes]
    for start in [f"{TOKENS}/"] if len(prefixes) == len(_prefixes(stored)) else starts:
        for suffix in (".idx", ".bin", LOSS_MASK):
            stored.files("tokenize", start, suffix)
    return TokenStore([stored.root / prefix for prefix in prefixes])


def read_tokenizer(stored: StoredStages) -> Tokenizer | None:
    """Load the tokenizer that made the tokens; None if the corpus consists of tokens and no tokenizer was given."""
    from jax_diversity.tokenization.factory import load_saved

    return load_saved(stored.root / TOKENS) if stored.files("tokenize", f"{TOKENS}/tokenizer.") else None


def tokenizer_file(stored: StoredStages) -> Path:
    """Return the path of `tokenizer.json`."""
    return stored.file("tokenize", f"{TOKENS}/tokenizer.json")
