"""A corpus that came as tokens: the stored ids, every document with its end token."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.foundation.stage import Context, Counts
from jax_diversity.tokenization.settings import TokenizerConfig

if TYPE_CHECKING:
    from jax_diversity.tokenization.tokenizer_json import JsonTokenizer

_LEAST_SHARE_THAT_ENDS = 0.99
_MOST_SHARE_INSIDE = 0.01


@dataclass(frozen=True)
class _Scan:
    """What the ids of all documents show.

    Attributes:
        num_documents: documents, none of them empty.
        largest_id: the largest token id.
        last_id: the id that most documents end with; the smallest of several.
        num_ending: documents that end with it.
    """

    num_documents: int
    largest_id: int
    last_id: int
    num_ending: int


def store_given_tokens(context: Context, partial: Path) -> Counts:
    """Write the documents' own token ids, one file pair a document file, and a given tokenizer beside them.

    A document that lacks the end token gets it appended.

    Raises:
        UserError: a corpus of texts, no end token to be seen, ids that a given tokenizer does not have.
    """
    from jax_diversity.token_store.megatron import TokenStore, TokenWriter
    from jax_diversity.tokenization.base import token_dtype
    from jax_diversity.tokenization.statistics import token_statistics

    prepared = context.counts("prepare")
    documents = context.dataset.document_store
    num_documents = prepared["num_documents"]
    with context.progress.task("look at token ids", num_documents, "documents") as advance:
        scan = _scan(documents, advance)
    end_id = _end_id(context.config.tokenizer, documents, scan)
    tokenizer = _given_tokenizer(context.config.tokenizer, end_id, scan.largest_id)
    vocab_size = max(scan.largest_id, end_id) + 1 if tokenizer is None else tokenizer.vocab_size
    dtype = token_dtype(vocab_size)
    prefixes = [partial / f"tokens-{index:05d}" for index in range(len(documents.paths))]
    with context.progress.task("store tokens", num_documents, "documents") as advance:
        for path, prefix in zip(documents.paths, prefixes, strict=True):
            if not prefix.with_name(prefix.name + ".idx").exists():  # where there is an .idx, both files are whole
                with TokenWriter(prefix, dtype) as writer:
                    for tokens, lengths in documents.token_lists(path):
                        writer.add_runs(*_with_ends(tokens, lengths, end_id))
            advance(TokenStore([prefix]).num_documents)
    if tokenizer is not None:
        tokenizer.save(partial)
    store = TokenStore(prefixes)
    num_given, num_inside = prepared["num_tokens"], _num_inside(documents, end_id)
    text_bytes = prepared["text_bytes"] if prepared["has_text"] else None
    return {
        "vocab_size": vocab_size,
        "end_id": end_id,
        "end_token": None if tokenizer is None else tokenizer.end_token,
        "token_dtype": str(dtype),
        "implementation": "stored",
        "num_ends_appended": store.num_tokens - num_given,
        "num_ends_inside": num_inside,
        **token_statistics(store, text_bytes),
    }


def _scan(documents: Any, advance: Advance) -> _Scan:
    largest, num_documents = 0, 0
    last: Counter[int] = Counter()
    for tokens, lengths in documents.token_lists():
        ids, times = np.unique(tokens[np.cumsum(lengths) - 1], return_counts=True)
        last.update(dict(zip(ids.tolist(), times.tolist(), strict=True)))
        largest = max(largest, int(tokens.max()))
        num_documents += len(lengths)
        advance(len(lengths))
    last_id = min(last, key=lambda token: (-last[token], token))
    return _Scan(num_documents, largest, last_id, last[last_id])


def _end_id(config: TokenizerConfig, documents: Any, scan: _Scan) -> int:
    """The id that ends documents: the settings' one, or the one that nearly all documents end with.

    An id that stands inside many documents as well, such as a line's end, ends none.
    """
    if config.end_id is not None:
        return config.end_id
    if config.end_token is not None and config.path is not None:
        from jax_diversity.tokenization.tokenizer_json import load_tokenizer

        return load_tokenizer(config.path, config.end_token).end_id
    how = "set tokenizer.end_id to the id that ends documents; those that lack it get it appended"
    share = scan.num_ending / scan.num_documents
    if share < _LEAST_SHARE_THAT_ENDS:
        raise UserError(
            f"Expected documents that end with one token, found documents without an end token: the most frequent "
            f"last id, {scan.last_id}, ends {100 * share:.1f} % of them; {how}."
        )
    inside = _num_inside(documents, scan.last_id)
    if inside > _MOST_SHARE_INSIDE * scan.num_documents:
        raise UserError(
            f"Expected an end token that stands at documents' ends alone, found documents without an end token: "
            f"{scan.last_id}, which ends {100 * share:.1f} % of them, stands inside them {inside} times; {how}."
        )
    return scan.last_id


def _num_inside(documents: Any, token: int) -> int:
    """How often an id stands in documents elsewhere than at their ends."""
    inside = 0
    for tokens, lengths in documents.token_lists():
        found = tokens == token
        inside += int(np.count_nonzero(found)) - int(np.count_nonzero(found[np.cumsum(lengths) - 1]))
    return inside


def _given_tokenizer(config: TokenizerConfig, end_id: int, largest_id: int) -> JsonTokenizer | None:
    """The tokenizer that the settings name, its end token the documents' own.

    Raises:
        UserError: it has not all of the ids.
    """
    if config.path is None:
        return None
    from jax_diversity.tokenization.tokenizer_json import load_tokenizer, token_name

    end_token = token_name(config.path, end_id)
    tokenizer = None if end_token is None else load_tokenizer(config.path, end_token)
    if tokenizer is None or largest_id >= tokenizer.vocab_size:
        size = "" if tokenizer is None else f" (it has {tokenizer.vocab_size})"
        raise UserError(
            f"Expected {config.path} to be the tokenizer that made the tokens, found token id "
            f"{end_id if tokenizer is None else largest_id}, which it does not have{size}; name the right one in "
            "tokenizer.path, or leave it out."
        )
    return tokenizer


def _with_ends(
    tokens: Int32[np.ndarray, " token"], lengths: Int64[np.ndarray, " document"], end_id: int
) -> tuple[Int32[np.ndarray, " _ended"], Int64[np.ndarray, " document"]]:
    """Documents end to end, each of them ended."""
    ends = np.cumsum(lengths)
    lacking = tokens[ends - 1] != end_id
    return np.insert(tokens, ends[lacking], end_id), lengths + lacking
