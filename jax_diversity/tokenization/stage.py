"""The stage `tokenize`: turns documents' texts into token ids in Megatron's format."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from jax_diversity.foundation.artifacts import file_hash, fingerprint
from jax_diversity.foundation.jobs import Job
from jax_diversity.foundation.progress import Advance, reached
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.foundation.wording import counted
from jax_diversity.tokenization.encoding import encode_file
from jax_diversity.tokenization.settings import TokenizerConfig, tokenizer_files
from jax_diversity.tokenization.stored import TOKENS

if TYPE_CHECKING:
    from jax_diversity.token_store.megatron import TokenStore
    from jax_diversity.tokenization.base import Tokenizer


def tokenize(context: Context, partial: Path) -> Counts:
    """Write the tokens of every document, one file pair per document file, and the tokenizer that made them."""
    from jax_diversity.token_store.megatron import TokenStore

    prefixes = [partial / f"tokens-{number:05d}" for number in range(context.dataset.num_document_files)]
    prepared = context.counts("prepare")
    if context.config.tokenizer.kind == "stored":
        from jax_diversity.tokenization.given import store_given_tokens

        counts, of_files = store_given_tokens(context, partial, prefixes), []
    else:
        tokenizer = _tokenizer(context, partial, prepared["text_bytes"])
        of_files = _encode(context, partial, prefixes)
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
    text_bytes = prepared["text_bytes"] if prepared["has_text"] else 0
    return counts | _statistics(TokenStore(prefixes), text_bytes, of_files)


def _encode(context: Context, folder: Path, prefixes: list[Path]) -> list[dict[str, int]]:
    """Encode the files of documents with the tokenizer in a folder; returns the counts of every file."""
    prepared, of_files, num_documents = context.counts("prepare"), [], 0
    jobs: list[Job] = [
        (str(prefix), (context.opened, number, str(folder), "num_chats" in prepared))
        for number, prefix in enumerate(prefixes)
    ]
    with context.progress.task("tokenize", prepared["num_documents"], "document") as advance:
        for counts in context.executor.map(encode_file, jobs):
            of_files.append(counts)
            num_documents += counts["num_documents"]
            reached(advance, num_documents)
    return of_files


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
        with context.progress.task("train tokenizer", None, "text") as advance:
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


def _statistics(store: TokenStore, text_bytes: int, of_files: list[dict[str, int]]) -> Counts:
    """Count all tokens, start and end tokens included; counts that need text exist only if there is text.

    `of_files` has the counts of the jobs that encoded texts.
    """
    import numpy as np

    num_tokens, lengths = store.num_tokens, store.document_lengths
    unknown = sum(counts["num_unknown"] for counts in of_files)
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
    if of_files and "num_loss_tokens" in of_files[0]:
        counts["num_loss_tokens"] = sum(each["num_loss_tokens"] for each in of_files)
    if text_bytes:
        counts["text_bytes"] = text_bytes
        counts["bytes_per_token"] = _rounded(text_bytes / num_tokens)
        counts["tokens_per_byte"] = _rounded(num_tokens / text_bytes)
    return counts


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")  # six digits, for people who read the manifest


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
    text = f"{counted(counts['num_tokens'], 'token')}, vocabulary of {counts['vocab_size']:,} ({counts['token_dtype']})"
    if counts["implementation"] == "stored" and counts["end_token"] is None:
        text += ", which is the largest id plus 1, because tokenizer.path names no tokenizer"
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
    settings=lambda config: {"tokenizer": dataclasses.asdict(config.tokenizer)},
    inputs=lambda context: ("prepare",),
    outside=_tokenizer_fingerprint,
    adopt=lambda config, other: config.tokenizer.adopt(other, config.corpus.format),
    resumable=True,
    packages=("tokenizers",),
)
