"""The artifacts of the stage `tokenize`: the tokens in Megatron's format, and the tokenizer that made them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int64

from jax_diversity.foundation.stored import Artifact, Count, StoredStages, StoredValue, path_of

if TYPE_CHECKING:
    from jax_diversity.sequences.token_store.megatron import TokenStore
    from jax_diversity.sequences.tokenization.base import Tokenizer

TOKENS = "tokens"
TOKENIZER = Artifact("tokenize", f"{TOKENS}/tokenizer.json", path_of)


def _count_documents(stored: StoredStages) -> Int64[np.ndarray, " file_and_end"]:
    from jax_diversity.sequences.token_store.megatron import count_documents

    stored.files("tokenize", f"{TOKENS}/", ".idx")
    return np.cumsum([0, *(count_documents(stored.root / prefix) for prefix in _prefixes(stored))])


def open_token_files(stored: StoredStages, begin: int, end: int) -> TokenStore:
    """Open the tokens of the files of documents from number `begin` to `end - 1`, as memory maps."""
    return _opened(stored, _prefixes(stored)[begin:end])


def _prefixes(stored: StoredStages) -> list[str]:
    return [name.removesuffix(".idx") for name in stored.document_names("tokenize", f"{TOKENS}/", ".idx")]


def _opened(stored: StoredStages, prefixes: list[str]) -> TokenStore:
    from jax_diversity.sequences.token_store.megatron import LOSS_MASK, TURNS, TokenStore

    # All files with these endings are fetched and checked; the store needs the names without endings.
    is_whole = len(prefixes) == len(stored.names("tokenize", f"{TOKENS}/", ".idx"))
    for start in [f"{TOKENS}/"] if is_whole else [f"{prefix}." for prefix in prefixes]:
        for suffix in (".idx", ".bin", LOSS_MASK, TURNS):
            stored.files("tokenize", start, suffix)
    return TokenStore([stored.root / prefix for prefix in prefixes])


def _open_tokens(stored: StoredStages) -> TokenStore:
    return _opened(stored, _prefixes(stored))


def _read_tokenizer(stored: StoredStages) -> Tokenizer | None:
    from jax_diversity.sequences.tokenization.factory import load_saved

    return load_saved(stored.root / TOKENS) if stored.files("tokenize", f"{TOKENS}/tokenizer.") else None


def _find_chats(stored: StoredStages) -> Bool[np.ndarray, " document"]:
    tokens = _open_tokens(stored)
    turns, is_chat = tokens.turns, np.zeros(tokens.num_documents, bool)
    is_chat[turns.document_index[turns.role >= 0]] = True
    return is_chat


class TokenArtifacts:
    """The artifacts of the stage `tokenize`."""

    vocab_size = Count("tokenize", "vocab_size")
    """Number of token ids, including the end token."""
    end_id = Count("tokenize", "end_id")
    """The token that ends a document."""
    has_loss_mask = StoredValue(lambda stored: "num_loss_tokens" in stored.counts("tokenize"))
    """Whether a loss mask determines which tokens count towards the loss: True for datasets of chats."""
    tokens = StoredValue(_open_tokens)
    """The tokens of the documents, memory-mapped."""
    tokenizer = StoredValue(_read_tokenizer)
    """The tokenizer that made the tokens; None if the corpus consists of tokens without a tokenizer."""
    is_chat = StoredValue(_find_chats)
    """Whether each document is a chat whose turns are known."""
    _first_documents = StoredValue(_count_documents)
    """The number of the first document of every token file, and the number of all documents."""
