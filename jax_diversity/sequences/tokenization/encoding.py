"""Makes a token file from a file of documents: the work of one job.

A token file depends only on the texts of its file of documents and on the tokenizer. So any number of processes writes
the same bytes.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.foundation import processes
from jax_diversity.foundation.jobs import Opened, opened, work
from jax_diversity.foundation.progress import tell
from jax_diversity.sequences.tokenization.answers import encode_answers

if TYPE_CHECKING:
    from jax_diversity.sequences.tokenization.base import Tokenizer


# Two files at a time: while the library encodes one file in all cores, this process reads or writes the other file.
@work("tokenizing", at_a_time=2, patience=30.0)
def encode_file(name: Path, dataset: Opened, number: int, folder: str, has_chats: bool) -> dict[str, Any]:
    """Encode the file `number` of documents into the .bin and .idx of `name`.

    Args:
        name: the path of the token file without endings.
        dataset: the dataset of the documents.
        number: the number of the file of documents.
        folder: contains the tokenizer.
        has_chats: whether documents may be chats; then a loss mask and the turns are also written.

    Returns:
        The numbers of documents, tokens, tokens that are unknown to the tokenizer, names of added tokens that stayed
        text, and, with a loss mask, tokens that count towards the loss.
    """
    return encode(name, saved_tokenizer(folder), opened(dataset).file_of_documents(number).document_store, has_chats)


def encode(name: Path, tokenizer: Tokenizer, documents: Any, has_chats: bool) -> dict[str, Any]:
    """Encode stored documents with a tokenizer; see `encode_file`."""
    from jax_diversity.sequences.token_store.megatron import TokenFile, TokenWriter

    unknown = num_names = 0
    with TokenWriter(name, tokenizer.dtype, with_chats=has_chats) as writer:
        spans = documents.chat_spans() if has_chats else None
        for texts in documents.texts():
            if spans is None:
                encoded, chats = tokenizer.encode_documents(texts), None
                num_names += sum(map(tokenizer.count_names, texts))
            else:
                encoded, chats = encode_answers(tokenizer, texts, next(spans))
            if tokenizer.unknown_id is not None:
                unknown += sum(int(np.count_nonzero(tokens == tokenizer.unknown_id)) for tokens in encoded)
            writer.add_documents(encoded, chats)
            tell(len(texts))
    counts = {"num_documents": writer.num_documents, "num_tokens": writer.num_tokens, "num_unknown": unknown}
    counts["num_names_as_text"] = num_names
    if has_chats:
        file = TokenFile(name)
        counts["num_loss_tokens"] = int(file.num_loss_tokens_before(np.array([file.num_tokens]))[0])
    return counts


def saved_tokenizer(folder: str) -> Tokenizer:
    """Load the tokenizer in a folder, once in a process, with as many threads as the process may use."""
    # In a worker, the variable says how many threads may run in its process.
    num_threads = int(os.environ["RAYON_NUM_THREADS"]) if processes.is_worker else None
    return _loaded(folder, os.stat(folder).st_ino, num_threads)


@lru_cache(1)
def _loaded(folder: str, inode: int, num_threads: int | None) -> Tokenizer:
    from jax_diversity.sequences.tokenization.factory import load_saved

    return load_saved(folder, num_threads)
