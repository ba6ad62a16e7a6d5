"""The artifacts of the stage `tokenize`: the tokens in Megatron's format, and the tokenizer that made them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_diversity.foundation.stored import StoredStages
    from jax_diversity.token_store.megatron import TokenStore
    from jax_diversity.tokenization.base import Tokenizer

TOKENS = "tokens"


def open_tokens(stored: StoredStages, number: int | None = None) -> TokenStore:
    """Open the tokens of the documents, or of the file of documents of this number, as memory maps."""
    from jax_diversity.token_store.megatron import LOSS_MASK, TokenStore

    names = stored.names("tokenize", f"{TOKENS}/", ".idx")
    prefixes = [name.removesuffix(".idx") for name in (names if number is None else [names[number]])]
    # All files with these endings are fetched and checked; the store needs the names without endings.
    start = f"{TOKENS}/" if number is None else f"{prefixes[0]}."
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
