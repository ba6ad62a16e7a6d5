"""Makes token files from document files, one by one: in this process, or in several processes at the same time.

Every document file has its own token file, which depends only on its texts and the tokenizer. So any number of
processes writes the same bytes. If the build is killed, finished files are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jax_diversity.foundation.processes import map_in_processes, num_cores
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.tokenization.answers import ChatSpans, encode_answers

if TYPE_CHECKING:
    from jax_diversity.tokenization.base import Tokenizer

Pair = tuple[Path, Path]
"""A file of documents, and the prefix of its .bin and .idx files."""
ReadTexts = Callable[[Path], Iterator[list[str]]]
"""Reads a file of documents, a few texts at a time; the function itself is small enough to be sent to worker
processes."""
ReadSpans = Callable[[Path], Iterator[Sequence[ChatSpans | None]]]
"""Reads the spans of turns and answers of chats, in lists that correspond to the lists of texts."""

_FILES_AT_A_TIME = 2


def is_finished(prefix: Path) -> bool:
    """Return whether both files of a prefix exist; files get their names only when they are complete."""
    return all(prefix.with_name(prefix.name + ending).exists() for ending in (".bin", ".idx"))


def encode_here(
    read: ReadTexts,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    advance: Advance = ignore,
    *,
    read_spans: ReadSpans | None = None,
) -> None:
    """Encode files in this process; the threads of the library use all cores.

    Two files are processed at a time: while the library encodes one file, this process reads or writes the other file.
    """
    lock = threading.Lock()  # `advance` is called by two threads
    stopping = threading.Event()

    def tell(num_documents: int) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt  # this ends the thread; the error that set the event is reported
        with lock:
            advance(num_documents)

    with ThreadPoolExecutor(_FILES_AT_A_TIME) as threads:
        try:
            futures = [threads.submit(_encode_file, read, read_spans, tokenizer, *pair, tell) for pair in pairs]
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stopping.set()
            threads.shutdown(cancel_futures=True)
            raise


def encode_in_processes(
    read: ReadTexts,
    folder: Path,
    pairs: Sequence[Pair],
    num_processes: int,
    advance: Advance = ignore,
    *,
    read_spans: ReadSpans | None = None,
) -> None:
    """Encode files in worker processes, which share the cores and load the tokenizer from `folder`."""
    # Without this limit, every process would start one thread per core.
    num_threads = max(1, num_cores() // num_processes)
    environment = {  # variables of the library `tokenizers`
        "RAYON_NUM_THREADS": str(num_threads),
        "TOKENIZERS_PARALLELISM": "true" if num_threads > 1 else "false",
    }
    jobs = ((read, read_spans, folder, num_threads, *pair) for pair in pairs)
    for num_documents in map_in_processes(
        _encode_in_worker,
        jobs,
        num_processes,
        what="tokenising",
        setting="tokenizer.num_processes",
        environment=environment,
    ):
        advance(num_documents)


def _encode_file(
    read: ReadTexts,
    read_spans: ReadSpans | None,
    tokenizer: Tokenizer,
    path: Path,
    prefix: Path,
    advance: Advance = ignore,
) -> int:
    """Encode the documents of the file `path` into the .bin and .idx of `prefix`; return the number of documents."""
    from jax_diversity.token_store.megatron import TokenWriter

    with TokenWriter(prefix, tokenizer.dtype, with_loss_mask=read_spans is not None) as writer:
        spans = None if read_spans is None else read_spans(path)
        for texts in read(path):
            if spans is None:
                writer.add_documents(tokenizer.encode_documents(texts))
            else:
                writer.add_documents(*encode_answers(tokenizer, texts, next(spans)))
            advance(len(texts))
        return writer.num_documents


def _encode_in_worker(
    read: ReadTexts, read_spans: ReadSpans | None, folder: Path, num_threads: int, path: Path, prefix: Path
) -> int:
    return _encode_file(read, read_spans, _worker_tokenizer(folder, num_threads), path, prefix)


@cache
def _worker_tokenizer(folder: Path, num_threads: int) -> Tokenizer:
    from jax_diversity.tokenization.factory import load_saved

    return load_saved(folder, num_threads)
