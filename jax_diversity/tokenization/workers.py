"""Document files -> token files, one by one: in this process, or in several side by side.

Every stored document file has a token file of its own, made of nothing but its texts and the tokenizer; so the
bytes are the same whoever makes them, and what was finished before a kill is kept.

Workers are processes that Python starts anew (`spawn`): they share no threads and no locks with this one. Each
holds the reading end of a pipe, the lifeline, whose only writing end is held here. However this process ends, an
interrupt and SIGKILL among them, that end closes with it and the workers stop at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore

if TYPE_CHECKING:
    from jax_diversity.tokenization.base import Tokenizer

Pair = tuple[Path, Path]
"""A file of documents and the prefix of its .bin and .idx."""

_FILES_AT_A_TIME = 2


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def encode_here(documents: Any, tokenizer: Tokenizer, pairs: Sequence[Pair], advance: Advance = ignore) -> None:
    """Encode files in this process, where the library's own threads take all cores.

    Two files are worked on at a time: while the library encodes the texts of one, those of the other are read or
    its tokens written.

    Args:
        documents: the store of the documents.
        tokenizer: makes the ids.
        pairs: what to read and where to write.
        advance: told the documents done.

    Raises:
        UserError: a damaged file of documents, an end token that text turns into.
    """
    lock = threading.Lock()
    stopping = threading.Event()

    def tell(num_documents: int) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt  # seen by nobody: whoever set it has an error of its own
        with lock:
            advance(num_documents)

    with ThreadPoolExecutor(_FILES_AT_A_TIME) as threads:
        try:
            futures = [threads.submit(encode_file, documents, tokenizer, *pair, tell) for pair in pairs]
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stopping.set()
            threads.shutdown(cancel_futures=True)
            raise


def encode_in_processes(
    documents: Any, folder: Path, pairs: Sequence[Pair], num_processes: int, advance: Advance = ignore
) -> None:
    """Encode files in worker processes, which share the cores.

    Args:
        documents: the store of the documents, which is sent to the processes.
        folder: holds the tokenizer, as `Tokenizer.save` writes it.
        pairs: what to read and where to write.
        num_processes: workers.
        advance: told the documents done.

    Raises:
        UserError: what a worker found wrong, or a worker that was killed.
    """
    num_threads = max(1, num_cores() // num_processes)
    context = multiprocessing.get_context("spawn")
    pipe: Any = context.Pipe(duplex=False)  # typed by platform
    theirs, ours = pipe
    start = (theirs, num_threads)
    with theirs, ours, ProcessPoolExecutor(num_processes, context, _start_worker, start) as workers:
        try:
            futures = [workers.submit(_encode_in_worker, documents, folder, num_threads, *pair) for pair in pairs]
            # The pool looks for workers that died among those it knew when it was last woken: not among the last
            # one started, unless something more is submitted.
            workers.submit(os.getpid)
            for future in as_completed(futures):
                advance(future.result())
        except BrokenProcessPool:
            raise UserError(
                f"Expected {num_processes} tokenising processes to live until they are done, found one ended from "
                "outside (killed, memory ran out, or a script that starts processes without `if __name__ == "
                "'__main__':` around its own work); run the same again, which keeps what is finished, with that "
                "guard, and with a smaller tokenizer.num_processes where memory is short."
            ) from None
        except BaseException:
            ours.close()
            raise


def encode_file(documents: Any, tokenizer: Tokenizer, path: Path, prefix: Path, advance: Advance = ignore) -> int:
    """Encode one stored file of documents; returns their number.

    Args:
        documents: the store of the documents.
        tokenizer: makes the ids.
        path: one of its files.
        prefix: of the .bin and .idx to write; they get their names when they are whole.
        advance: told the documents done.

    Raises:
        UserError: a damaged file of documents, an end token that text turns into.
    """
    from jax_diversity.token_store.megatron import TokenWriter

    with TokenWriter(prefix, tokenizer.dtype) as writer:
        for texts in documents.texts(path):
            writer.add_documents(tokenizer.encode_documents(texts))
            advance(len(texts))
        return writer.num_documents


def _start_worker(lifeline: Connection, num_threads: int) -> None:
    """What a worker does first: leave interrupts to the process that started it, and end when that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # threads of the tokenizers library
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if num_threads > 1 else "false"


def _end_with(lifeline: Connection) -> None:
    lifeline.poll(None)  # nothing is ever sent: it returns when the other end is closed
    os._exit(1)


def _encode_in_worker(documents: Any, folder: Path, num_threads: int, path: Path, prefix: Path) -> int:
    return encode_file(documents, _worker_tokenizer(folder, num_threads), path, prefix)


@cache
def _worker_tokenizer(folder: Path, num_threads: int) -> Tokenizer:
    from jax_diversity.tokenization.making import load_saved

    return load_saved(folder, num_threads)
