"""The stage of the tokens: documents' texts -> token ids in Megatron's format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jax_diversity.artifacts import atomic_path, file_hash
from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.pipeline.corpus import all_texts, counted

if TYPE_CHECKING:
    from jax_diversity.tokenization import Tokenizer


def tokenize(context: Context, partial: Path) -> Counts:
    """Train or load the tokenizer and write every document's tokens, one file pair a document file."""
    from jax_diversity import corpus, tokenization
    from jax_diversity.token_store import TokenStore, TokenWriter

    prepared = context.counts("prepare")
    tokenizer = _tokenizer(context, partial, prepared["text_bytes"])
    dtype = tokenization.token_dtype(tokenizer.vocab_size)
    paths = corpus.document_paths(context.root / "documents")
    with context.progress.task("tokenize", prepared["num_documents"], "documents") as advance:
        for index, path in enumerate(paths):
            prefix = partial / f"tokens-{index:05d}"
            if prefix.with_suffix(".idx").exists() and prefix.with_suffix(".bin").exists():
                advance(TokenStore([prefix]).num_documents)
                continue
            with TokenWriter(prefix, dtype) as writer:
                for texts in corpus.read_texts(path):
                    writer.add_documents(tokenizer.encode_documents(texts))
                    advance(len(texts))
    store = TokenStore([partial / f"tokens-{index:05d}" for index in range(len(paths))])
    return {
        "num_documents": store.num_documents,
        "num_tokens": store.num_tokens,
        "vocab_size": tokenizer.vocab_size,
        "end_id": tokenizer.end_id,
        "token_dtype": str(np.dtype(dtype)),
    }


def tokenizer_fingerprint(context: Context) -> str:
    """A hash of the tokenizer file that the settings name."""
    config = context.config.tokenizer
    if config.kind != "file" or not config.path or not Path(config.path).is_file():
        return ""  # trained on the corpus, or reported as missing when it is loaded
    return file_hash(Path(config.path))


def _tokenizer(context: Context, partial: Path, text_bytes: int) -> Tokenizer:
    """The tokenizer that the settings ask for; its file is in the partial folder afterwards."""
    from jax_diversity import tokenization

    config = context.config.tokenizer
    stored = partial / "tokenizer.json"
    if stored.exists():
        return tokenization.load_tokenizer(stored, config.end_token)
    if config.kind == "bytes":
        tokenizer = tokenization.byte_tokenizer()
    elif config.kind == "file":
        tokenizer = tokenization.load_tokenizer(config.path or "", config.end_token)
    else:
        texts = tokenization.spread_texts(all_texts(context), text_bytes, config.train_bytes)
        with context.progress.task("train tokenizer", None, "documents") as advance:
            tokenizer = tokenization.train_bpe(counted(texts, advance), config.vocab_size)
    with atomic_path(stored) as temporary:
        tokenizer.save(temporary)
    return tokenizer
