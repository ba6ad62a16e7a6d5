"""A corpus of tokens: the given ids are stored, and every document gets its end token if it has none.

Some programs begin every document with the delimiter (llm.c, modded-nanogpt, nanochat). It is moved to the end.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.jobs import Job, Opened, opened, work
from jax_diversity.foundation.progress import reached, tell
from jax_diversity.foundation.stage import Context, Counts
from jax_diversity.sequences.token_store.megatron import TokenStore, TokenWriter
from jax_diversity.sequences.tokenization.base import token_dtype
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from jax_diversity.sequences.tokenization.stored import TOKENIZER

if TYPE_CHECKING:
    from jax_diversity.sequences.tokenization.tokenizer_json import JsonTokenizer

# An end token has two signs: nearly all documents end (or begin) with it, and it is rare elsewhere. A few exceptions
# are allowed, because corpora contain documents that were cut off, or that were joined with this token.
_LEAST_SHARE_THAT_ENDS = 0.99
_MOST_SHARE_INSIDE = 0.01


@work("looking at token ids", patience=10.0)
def look_at_ids(name: Path, dataset: Opened, number: int) -> dict[str, Any]:
    """Return the largest token id of a file of documents, and how many documents begin and end with each id."""
    largest_id, first_ids, last_ids, num_documents = 0, Counter[int](), Counter[int](), 0
    for tokens, lengths in opened(dataset).file_of_documents(number).document_store.token_lists():
        ends = np.cumsum(lengths)
        for counter, places in ((first_ids, ends - lengths), (last_ids, ends - 1)):
            ids, times = np.unique(tokens[places], return_counts=True)
            counter.update(dict(zip(ids.tolist(), times.tolist(), strict=True)))
        largest_id = max(largest_id, int(tokens.max()))
        num_documents += len(lengths)
        tell(len(lengths))
    return {
        "largest_id": largest_id,
        "first_ids": [*first_ids.items()],
        "last_ids": [*last_ids.items()],
        "num_documents": num_documents,
    }


@work("looking for end tokens", patience=10.0)
def count_inside(name: Path, dataset: Opened, number: int, end_id: int, at_beginning: bool) -> int:
    """Return how often an id occurs in the documents of a file, other than at their ends (or at their beginnings)."""
    num_inside = 0
    for tokens, lengths in opened(dataset).file_of_documents(number).document_store.token_lists():
        is_end, ends = tokens == end_id, np.cumsum(lengths)
        usual = is_end[ends - lengths if at_beginning else ends - 1]
        num_inside += int(np.count_nonzero(is_end)) - int(np.count_nonzero(usual))
    return num_inside


@work("storing tokens", patience=10.0)
def store_file(name: Path, dataset: Opened, number: int, end_id: int, at_beginning: bool, dtype: str) -> int:
    """Store the tokens of a file of documents, each document with its end token; returns the number of documents."""
    with TokenWriter(name, np.dtype(dtype)) as writer:
        for tokens, lengths in opened(dataset).file_of_documents(number).document_store.token_lists():
            writer.add_runs(*_with_ends(tokens, lengths, end_id, at_beginning))
            tell(len(lengths))
    return writer.num_documents


def store_given_tokens(context: Context, partial: Path, prefixes: Sequence[Path]) -> Counts:
    """Write the token ids of the corpus, one file pair per document file, and a given tokenizer in the same folder."""
    config = _of_reference(context)
    prepared = context.counts("prepare")
    largest_id, first_ids, last_ids, num_documents = 0, Counter[int](), Counter[int](), 0
    numbers = range(len(prefixes))
    with context.progress.task("look at token ids", prepared["num_documents"], "document") as advance:
        jobs: list[Job] = [(str(partial / f"ids-{number:05d}"), (context.opened, number)) for number in numbers]
        for num_found in context.executor.map(look_at_ids, jobs):
            first_ids.update(dict(num_found["first_ids"]))
            last_ids.update(dict(num_found["last_ids"]))
            largest_id = max(largest_id, num_found["largest_id"])
            num_documents += num_found["num_documents"]
            reached(advance, num_documents)
    end_id, at_beginning, num_inside = _delimiter(context, config, partial, numbers, first_ids, last_ids)
    tokenizer = _given_tokenizer(config, end_id, largest_id)
    vocab_size = max(largest_id, end_id) + 1 if tokenizer is None else tokenizer.vocab_size
    dtype = token_dtype(vocab_size)
    # The largest of all ids determines the type of the tokens, so writing begins after all ids have been read.
    with context.progress.task("store tokens", prepared["num_documents"], "document") as advance:
        jobs = [
            (str(prefixes[number]), (context.opened, number, end_id, at_beginning, str(dtype))) for number in numbers
        ]
        num_stored = 0
        for number_of_file in context.executor.map(store_file, jobs):
            num_stored += number_of_file
            reached(advance, num_stored)
    if tokenizer is not None:
        tokenizer.save(partial)
    return {
        "vocab_size": vocab_size,
        "end_id": end_id,
        "end_token": None if tokenizer is None else tokenizer.end_token,
        "start_id": None,
        "start_token": None,
        "token_dtype": str(dtype),
        "implementation": "stored",
        "features": fingerprint("end", end_id) if tokenizer is None else tokenizer.fingerprint,
        "num_ends_appended": TokenStore(prefixes).num_tokens - prepared["num_tokens"],
        "num_ends_inside": num_inside,
        "ends_began_documents": at_beginning,
    }


def _of_reference(context: Context) -> TokenizerConfig:
    """Return the settings; with `features_from`, they have the end token and the tokenizer of that dataset."""
    config: TokenizerConfig = context.config.tokenizer
    if (reference := context.reference) is None:
        return config
    path = None if config.path is None else str(TOKENIZER.path(reference.stored))
    return dataclasses.replace(config, path=path, end_id=reference.end_id)


def _delimiter(
    context: Context,
    config: TokenizerConfig,
    partial: Path,
    numbers: Sequence[int],
    first_ids: Counter[int],
    last_ids: Counter[int],
) -> tuple[int, bool, int]:
    """Return the id between documents, whether it begins them, and how often it occurs elsewhere in the documents.

    It is the id of the settings, or the id that ends nearly all documents, or the id that begins them. An id that also
    occurs inside many documents, such as the id of a line end, is not a delimiter.
    """
    total = last_ids.total()
    given = config.end_id
    if given is None and config.end_token is not None and config.path is not None:
        from jax_diversity.sequences.tokenization.tokenizer_json import load_tokenizer

        given = load_tokenizer(config.path, config.end_token).end_id

    def num_elsewhere(token: int, at_beginning: bool) -> int:
        jobs: list[Job] = [
            (str(partial / f"{token}-{at_beginning:d}-{number:05d}"), (context.opened, number, token, at_beginning))
            for number in numbers
        ]
        return sum(context.executor.map(count_inside, jobs))

    if given is not None:
        at_beginning = first_ids[given] >= _LEAST_SHARE_THAT_ENDS * total and 2 * last_ids[given] < total
        return given, at_beginning, num_elsewhere(given, at_beginning)
    # Of several equally frequent ids, this is the smallest.
    end_id = min(last_ids, key=lambda token: (-last_ids[token], token))
    start_id = min(first_ids, key=lambda token: (-first_ids[token], token))
    share = last_ids[end_id] / total
    how = "set tokenizer.end_id to the id that ends documents; it is appended to documents without this id"
    if share < _LEAST_SHARE_THAT_ENDS:
        if first_ids[start_id] >= _LEAST_SHARE_THAT_ENDS * total:
            num_inside = num_elsewhere(start_id, True)
            if num_inside <= _MOST_SHARE_INSIDE * total:
                return start_id, True, num_inside
        raise UserError(
            f"Expected documents that end with one token, found documents without an end token: the most frequent "
            f"last id, {end_id}, ends {100 * share:.1f} % of them; {how}."
        )
    num_inside = num_elsewhere(end_id, False)
    if num_inside > _MOST_SHARE_INSIDE * total:
        if first_ids[end_id] >= _LEAST_SHARE_THAT_ENDS * total:
            raise UserError(
                f"Expected one delimiter between documents, found {end_id} at both ends: it begins "
                f"{100 * first_ids[end_id] / total:.1f} % of the documents and ends {100 * share:.1f} %; set "
                f"tokenizer.end_id={end_id} to keep both."
            )
        raise UserError(
            f"Expected an end token that occurs only at documents' ends, found documents without an end token: "
            f"{end_id} ends {100 * share:.1f} % of them, but occurs {num_inside} times inside them; {how}."
        )
    return end_id, False, num_inside


def _given_tokenizer(config: TokenizerConfig, end_id: int, largest_id: int) -> JsonTokenizer | None:
    """Load the tokenizer of the settings, with the end token of the documents."""
    if config.path is None:
        return None
    from jax_diversity.sequences.tokenization.tokenizer_json import load_tokenizer, token_name

    end_token = token_name(config.path, end_id)
    tokenizer = None if end_token is None else load_tokenizer(config.path, end_token)
    if tokenizer is None or largest_id >= tokenizer.vocab_size:
        size = "" if tokenizer is None else f" (it has {tokenizer.vocab_size})"
        raise UserError(
            f"Expected {config.path} to be the tokenizer that made the tokens, found token id "
            f"{end_id if tokenizer is None else largest_id}, which it does not have{size}; name the right tokenizer "
            "in tokenizer.path, or leave the setting out."
        )
    return tokenizer


def _with_ends(
    tokens: Int32[np.ndarray, " token"], lengths: Int64[np.ndarray, " document"], end_id: int, at_beginning: bool
) -> tuple[Int32[np.ndarray, " _ended"], Int64[np.ndarray, " document"]]:
    """Append the end token to documents without it; documents are end to end.

    If it begins documents, it is moved: stored in front of the next document and behind this one, it would be twice at
    every joint.
    """
    ends = np.cumsum(lengths)
    begins = ends - lengths
    moved = tokens[begins] == end_id if at_beginning else np.zeros(len(lengths), bool)
    # No document is empty: `prepare` drops empty ones. A document of the end token alone loses and gets it.
    lacking = (tokens[ends - 1] != end_id) | (moved & (lengths == 1))
    # np.insert takes indices of the original array, so one call inserts all end tokens.
    kept = np.ones(len(tokens), bool)
    kept[begins[moved]] = False
    stored = np.insert(tokens, ends[lacking], end_id)[np.insert(kept, ends[lacking], True)]
    return stored, lengths + lacking - moved
