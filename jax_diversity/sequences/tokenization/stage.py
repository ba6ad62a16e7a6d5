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
from jax_diversity.foundation.warned import warn
from jax_diversity.foundation.wording import counted
from jax_diversity.sequences.tokenization.encoding import encode_file
from jax_diversity.sequences.tokenization.settings import TokenizerConfig, tokenizer_files
from jax_diversity.sequences.tokenization.stored import TOKENS

if TYPE_CHECKING:
    from jax_diversity.sequences.token_store.megatron import TokenStore
    from jax_diversity.sequences.tokenization.base import Tokenizer

_SAMPLED, _SAMPLED_CHARACTERS, _SHOWN = 64, 4000, 60
"""Numbers of documents and characters that are decoded to see what the tokenizer changes, and of shown characters."""


def tokenize(context: Context, partial: Path) -> Counts:
    """Write the tokens of every document, one file pair per document file, and the tokenizer that made them."""
    from jax_diversity.sequences.token_store.megatron import TokenStore

    prefixes = [partial / f"tokens-{number:05d}" for number in range(context.dataset.num_document_files)]
    prepared = context.counts("prepare")
    if context.config.tokenizer.kind == "stored":
        from jax_diversity.sequences.tokenization.given import store_given_tokens

        counts, of_files = store_given_tokens(context, partial, prefixes), []
    else:
        tokenizer = _tokenizer(context, partial, prepared["text_bytes"])
        if context.config.tokenizer.kind not in ("bpe", "bytes"):  # these are bytes, so they change nothing
            warn_of_changes(tokenizer, _sample(context))
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
    from jax_diversity.sequences.tokenization.factory import load_unchanged, make_tokenizer

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


def _sample(context: Context) -> list[str]:
    """Return the beginnings of some documents, at equal distances in the corpus."""
    import numpy as np

    store = context.dataset.document_store
    indices = np.unique(np.linspace(0, store.num_documents - 1, _SAMPLED).astype(np.int64))
    return [row["text"][:_SAMPLED_CHARACTERS] for row in store.rows(indices, ["text"])] if store.num_documents else []


def warn_of_changes(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Warn if texts change when they are encoded and decoded, or have unknown tokens, and show one place."""
    if not texts or tokenizer.normalization != "none":  # the user asked for another form
        return
    encoded = tokenizer.encode_documents(texts)
    num_tokens = sum(map(len, encoded))
    unknown = sum(int((ids == tokenizer.unknown_id).sum()) for ids in encoded) / num_tokens
    pairs = [(text, tokenizer.decode(ids)) for text, ids in zip(texts, encoded, strict=True)]
    changed = [(text, decoded) for text, decoded in pairs if text != decoded]
    if not changed and not unknown:
        return
    message = f"The text changes in {len(changed) / len(texts):.1%} of {len(texts)} sampled documents if tokens are "
    message += f"decoded, and {unknown:.1%} of their tokens are unknown to the tokenizer"
    if changed:
        before, after = _around_difference(*changed[0])
        message += f"; for example {before!r} becomes {after!r}"
    warn(f"{message}. Training sees the changed text; choose a tokenizer of bytes (byte-level BPE) to keep all of it.")


def _around_difference(text: str, decoded: str) -> tuple[str, str]:
    """Return the first place where two texts differ, in both."""
    place = next((at for at, (one, other) in enumerate(zip(text, decoded, strict=False)) if one != other), None)
    start = max((min(len(text), len(decoded)) if place is None else place) - _SHOWN // 2, 0)
    return text[start : start + _SHOWN], decoded[start : start + _SHOWN]


def _training_texts(context: Context, text_bytes: int, advance: Advance) -> Iterator[str]:
    from jax_diversity.sequences.tokenization.tokenizer_json import spread_texts

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
    if names := sum(counts_of_file["num_names_as_text"] for counts_of_file in of_files):
        counts["num_names_as_text"] = names
    if of_files and "num_loss_tokens" in of_files[0]:
        counts["num_loss_tokens"] = sum(counts_of_file["num_loss_tokens"] for counts_of_file in of_files)
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
    is_given = counts["implementation"] == "stored"
    if is_given and counts["end_token"] is None:
        text += ", which is the largest id plus 1, because tokenizer.path names no tokenizer"
    if "bytes_per_token" in counts:
        text += f", {counts['bytes_per_token']:.3g} bytes per token"
    if "num_loss_tokens" in counts:
        text += f", {counts['num_loss_tokens'] / counts['num_tokens']:.1%} of them count with loss_mask=answers"
    if names := counts.get("num_names_as_text"):
        text += f", {names:,} names of added tokens in documents stayed text"
    if counts.get("start_token") is not None:
        text += f", documents start with {counts['start_token']}"
    return f"{text}, ids as stored in the corpus" if is_given else f"{text}, by {counts['implementation']}"


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
    version=2,
)
