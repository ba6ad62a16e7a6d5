"""The stage `tokenize`: turns documents' texts into token ids in Megatron's format."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_diversity.foundation.artifacts import file_hash, fingerprint
from jax_diversity.foundation.processes import num_cores
from jax_diversity.foundation.progress import Advance
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.tokenization import workers
from jax_diversity.tokenization.settings import TokenizerConfig, tokenizer_files
from jax_diversity.tokenization.stored import TOKENS

if TYPE_CHECKING:
    from jax_diversity.token_store.megatron import TokenStore
    from jax_diversity.tokenization.base import Tokenizer

# For less text than this, starting processes would cost more time than it saves: the libraries use all cores through
# threads anyway.
_POOL_BYTES = 256 * 2**20
_POOL_BYTES_TENSORFLOW = 2**30  # in every process, its import takes ten seconds and 600 MB


def tokenize(context: Context, partial: Path) -> Counts:
    """Write the tokens of every document, one file pair per document file, and the tokenizer that made them."""
    from jax_diversity.token_store.megatron import TokenStore

    paths = context.dataset.document_store.paths
    pairs = [(path, partial / f"tokens-{index:05d}") for index, path in enumerate(paths)]
    if context.config.tokenizer.kind == "stored":
        from jax_diversity.tokenization.given import store_given_tokens

        counts, unknown_id = store_given_tokens(context, partial, pairs), None
    else:
        tokenizer = _encode(context, partial, pairs)
        unknown_id = tokenizer.unknown_id
        counts = {
            "vocab_size": tokenizer.vocab_size,
            "end_id": tokenizer.end_id,
            "end_token": tokenizer.end_token,
            "start_id": tokenizer.start_id,
            "start_token": tokenizer.start_token,
            "token_dtype": str(tokenizer.dtype),
            "implementation": tokenizer.implementation,
            "features": tokenizer.fingerprint,
        }
    prepared = context.counts("prepare")
    text_bytes = prepared["text_bytes"] if prepared["has_text"] else 0
    return counts | _statistics(TokenStore([prefix for _, prefix in pairs]), text_bytes, unknown_id)


def _encode(context: Context, partial: Path, pairs: list[workers.Pair]) -> Tokenizer:
    """Train or load the tokenizer, and encode the files that an earlier run has not finished."""
    from jax_diversity.token_store.megatron import TokenStore

    prepared = context.counts("prepare")
    tokenizer = _tokenizer(context, partial, prepared["text_bytes"])
    waiting = [pair for pair in pairs if not workers.is_finished(pair[1])]
    finished = [prefix for _, prefix in pairs if workers.is_finished(prefix)]
    documents = context.dataset.document_store
    read_spans = documents.chat_spans if "num_chats" in prepared else None
    with context.progress.task("tokenize", prepared["num_documents"], "documents") as advance:
        advance(TokenStore(finished).num_documents if finished else 0)
        num_processes = _num_processes(context.config.tokenizer, prepared["text_bytes"], len(waiting))
        if num_processes > 1:
            workers.encode_in_processes(
                documents.texts, partial, waiting, num_processes, advance, read_spans=read_spans
            )
        else:
            workers.encode_here(documents.texts, tokenizer, waiting, advance, read_spans=read_spans)
    return tokenizer


def _tokenizer(context: Context, partial: Path, text_bytes: int) -> Tokenizer:
    """Make the tokenizer of the settings or of `features_from`, and write its files into the partial folder."""
    from jax_diversity.tokenization.factory import load_unchanged, make_tokenizer

    config: TokenizerConfig = context.config.tokenizer
    if (tokenizer := load_unchanged(partial)) is not None:
        return tokenizer
    # We delete files of a run without a tokenizer, or with another version of its library, because a new tokenizer may
    # have other ids.
    for leftover in partial.iterdir():
        leftover.unlink()
    if context.reference is not None:
        tokenizer = context.reference.tokenizer
    else:
        with context.progress.task("train tokenizer", None, "documents") as advance:
            texts = _training_texts(context, text_bytes, advance) if config.kind == "bpe" else ()
            tokenizer = make_tokenizer(config, texts)
    tokenizer.save(partial)
    return tokenizer


def _training_texts(context: Context, text_bytes: int, advance: Advance) -> Iterator[str]:
    from jax_diversity.tokenization.tokenizer_json import spread_texts

    texts = chain.from_iterable(context.dataset.document_store.texts())
    for text in spread_texts(texts, text_bytes, context.config.tokenizer.train_bytes):
        advance(1)
        yield text


def _num_processes(config: TokenizerConfig, text_bytes: int, num_files: int) -> int:
    """Return the number of processes that tokenize; 1 means only this process."""
    uses_tensorflow = config.kind == "tensorflow-text" or config.normalization != "none" or config.cut_at == "sentences"
    worthwhile = text_bytes >= (_POOL_BYTES_TENSORFLOW if uses_tensorflow else _POOL_BYTES)
    wanted = config.num_processes or (num_cores() if worthwhile else 1)
    return min(wanted, num_files)


def _statistics(store: TokenStore, text_bytes: int, unknown_id: int | None) -> Counts:
    """Count all tokens, start and end tokens included; counts that need text exist only if there is text."""
    import numpy as np

    num_tokens, lengths = store.num_tokens, store.document_lengths
    files = () if unknown_id is None else store.files
    unknown = sum(int(np.count_nonzero(file.tokens == unknown_id)) for file in files)
    counts: Counts = {
        "num_documents": store.num_documents,
        "num_tokens": num_tokens,
        "tokens_per_document": {
            "mean": _rounded(num_tokens / len(lengths)),
            "median": _rounded(float(np.median(lengths))),
            "largest": int(lengths.max()),
        },
        "unknown_share": _rounded(unknown / num_tokens),
    }
    if store.has_loss_mask:
        counts["num_loss_tokens"] = store.num_loss_tokens
    if text_bytes:
        counts["text_bytes"] = text_bytes
        counts["bytes_per_token"] = _rounded(text_bytes / num_tokens)
        counts["tokens_per_byte"] = _rounded(num_tokens / text_bytes)
    return counts


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")  # six digits, for people who read the manifest


def _settings(config: Any) -> dict[str, Any]:
    settings = dataclasses.asdict(config.tokenizer)
    del settings["num_processes"]  # any number of processes makes the same tokens
    return {"tokenizer": settings}


def _tokenizer_fingerprint(context: Context) -> str:
    if context.reference is not None:
        return context.reference.counts("tokenize")["features"]
    path = context.config.tokenizer.path
    files = tokenizer_files(path) if path else ()
    if not files or not all(file.is_file() for file in files):
        return ""  # trained on the corpus, or reported as missing when it is loaded
    hashes = [file_hash(file) for file in files]
    return hashes[0] if len(hashes) == 1 else fingerprint(*hashes)


def summary(counts: Counts) -> str:
    """Summarize the counts in one line: tokens, vocabulary, library."""
    text = f"{counts['num_tokens']:,} tokens, vocabulary of {counts['vocab_size']:,} ({counts['token_dtype']})"
    if "bytes_per_token" in counts:
        text += f", {counts['bytes_per_token']:.3g} bytes per token"
    if "num_loss_tokens" in counts:
        text += f", {counts['num_loss_tokens'] / counts['num_tokens']:.1%} of them count with loss_mask=answers"
    if counts.get("start_token") is not None:
        text += f", documents start with {counts['start_token']}"
    return f"{text}, by {counts['implementation']}"


TOKENIZE = Stage(
    "tokenize",
    help="Train or load the tokenizer; store all tokens.",
    section="tokenizer",
    destination=TOKENS,
    run=tokenize,
    summary=summary,
    settings=_settings,
    inputs=lambda context: ("prepare",),
    outside=_tokenizer_fingerprint,
    adopt=lambda config, other: config.tokenizer.adopt(other, config.corpus.format),
    resumable=True,
    packages=("tokenizers",),
)
