"""The stage of the tokens: documents' texts -> token ids in Megatron's format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.artifacts import file_hash, fingerprint
from jax_diversity.config import BuildConfig, TokenizerConfig, as_plain, tokenizer_files
from jax_diversity.pipeline import token_workers
from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.pipeline.corpus import all_texts, counted

if TYPE_CHECKING:
    from jax_diversity.token_store import TokenStore
    from jax_diversity.tokenization import Tokenizer

# Text below which starting processes costs more than they save: the libraries use all cores by threads anyway.
_POOL_BYTES = 256 * 2**20
_POOL_BYTES_TENSORFLOW = 2**30  # whose import takes every process ten seconds and 600 MB


def tokenize(context: Context, partial: Path) -> Counts:
    """Train or load the tokenizer and write every document's tokens, one file pair a document file."""
    if context.config.tokenizer.kind == "stored":
        from jax_diversity.pipeline import stored_tokens

        return stored_tokens.tokenize(context, partial)
    from jax_diversity import corpus
    from jax_diversity.token_store import TokenStore

    prepared = context.counts("prepare")
    tokenizer = _tokenizer(context, partial, prepared["text_bytes"])
    paths = corpus.document_paths(context.root / "documents")
    prefixes = [partial / f"tokens-{index:05d}" for index in range(len(paths))]
    waiting = [pair for pair in zip(paths, prefixes, strict=True) if not _is_finished(pair[1])]
    with context.progress.task("tokenize", prepared["num_documents"], "documents") as advance:
        finished = [prefix for prefix in prefixes if _is_finished(prefix)]
        advance(TokenStore(finished).num_documents if finished else 0)
        num_processes = _num_processes(context.config.tokenizer, prepared["text_bytes"], len(waiting))
        if num_processes > 1:
            token_workers.encode_in_processes(partial, waiting, num_processes, advance)
        else:
            token_workers.encode_here(tokenizer, waiting, advance)
    return {
        "vocab_size": tokenizer.vocab_size,
        "end_id": tokenizer.end_id,
        "end_token": tokenizer.end_token,
        "token_dtype": str(tokenizer.dtype),
        "implementation": tokenizer.implementation,
        **token_statistics(TokenStore(prefixes), prepared["text_bytes"], tokenizer.unknown_id),
    }


def token_statistics(store: TokenStore, text_bytes: int | None = None, unknown_id: int | None = None) -> Counts:
    """What there is to say of tokens, end tokens included.

    Args:
        store: the tokens.
        text_bytes: bytes of the texts in UTF-8, where there are texts.
        unknown_id: the token of text that the vocabulary cannot write, where there is one.

    Returns:
        `num_documents`, `num_tokens`, `tokens_per_document` (`mean`, `median`, `largest`), `text_bytes`,
        `bytes_per_token` and `tokens_per_byte` (where there are texts), `unknown_share` (of all tokens).
    """
    lengths = store.document_lengths
    num_tokens = store.num_tokens
    unknown = 0
    if unknown_id is not None:
        unknown = sum(int(np.count_nonzero(file.tokens == unknown_id)) for file in store.files)
    counts: Counts = {
        "num_documents": store.num_documents,
        "num_tokens": num_tokens,
        "tokens_per_document": {
            "mean": _rounded(num_tokens / max(len(lengths), 1)),
            "median": _rounded(float(np.median(lengths)) if len(lengths) else 0.0),
            "largest": int(lengths.max(initial=0)),
        },
        "unknown_share": _rounded(unknown / max(num_tokens, 1)),
    }
    if text_bytes:
        counts["text_bytes"] = text_bytes
        counts["bytes_per_token"] = _rounded(text_bytes / max(num_tokens, 1))
        counts["tokens_per_byte"] = _rounded(num_tokens / text_bytes)
    return counts


def token_settings(config: BuildConfig) -> dict[str, Any]:
    """The settings that decide the tokens; the number of processes is none of them."""
    settings = as_plain(config.tokenizer)
    del settings["num_processes"]
    return {"tokenizer": settings}


def tokenizer_fingerprint(context: Context) -> str:
    """A hash of the tokenizer's file, or files, that the settings name."""
    path = context.config.tokenizer.path
    files = tokenizer_files(path) if path else ()
    if not files or not all(file.is_file() for file in files):
        return ""  # trained on the corpus, or reported as missing when it is loaded
    hashes = [file_hash(file) for file in files]
    return hashes[0] if len(hashes) == 1 else fingerprint(*hashes)


def _tokenizer(context: Context, partial: Path, text_bytes: int) -> Tokenizer:
    """The tokenizer that the settings ask for; its files are in the partial folder afterwards."""
    from jax_diversity import tokenization

    config = context.config.tokenizer
    tokenizer = tokenization.load_saved_for(config, partial)
    if tokenizer is not None:
        return tokenizer
    for leftover in partial.iterdir():  # of a try that had no tokenizer yet, or one that makes other tokens
        leftover.unlink()
    with context.progress.task("train tokenizer", None, "documents") as advance:
        tokenizer = tokenization.make_tokenizer(
            config, counted(_training_texts(context, text_bytes), advance) if config.kind == "bpe" else ()
        )
    tokenizer.save(partial)
    return tokenizer


def _training_texts(context: Context, text_bytes: int) -> Iterable[str]:
    from jax_diversity import tokenization

    return tokenization.spread_texts(all_texts(context), text_bytes, context.config.tokenizer.train_bytes)


def _is_finished(prefix: Path) -> bool:
    return all(prefix.with_name(prefix.name + ending).exists() for ending in (".bin", ".idx"))


def _num_processes(config: TokenizerConfig, text_bytes: int, num_files: int) -> int:
    """Processes to work in; 1 is this one."""
    uses_tensorflow = (
        config.kind == "tensorflow-text" or config.normalization != "none" or config.cut_at == "sentences"
    )
    worthwhile = text_bytes >= (_POOL_BYTES_TENSORFLOW if uses_tensorflow else _POOL_BYTES)
    wanted = config.num_processes or (token_workers.num_cores() if worthwhile else 1)
    return min(wanted, num_files)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
