"""Document files -> token files, one by one: in this process, or in several side by side.

Every stored document file has a token file of its own, which depends on nothing but its texts and the tokenizer. So
any number of processes writes the same bytes, and files that were finished before a kill are kept.

Workers are started by `spawn`, as new processes of Python: a fork would copy the locks of this process's threads in
whatever state they are in. Each worker holds the reading end of a pipe, the lifeline, whose only writing end is held
here. However this process ends, an interrupt and SIGKILL among them, the operating system closes that end, and the
workers stop at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
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
ReadTexts = Callable[[Path], Iterator[list[str]]]
"""Reads a file of documents, some texts at a time; small enough to be sent to worker processes."""

_FILES_AT_A_TIME = 2


def is_finished(prefix: Path) -> bool:
    """Tell whether both files of a prefix are there: they get their names when they are whole."""
    return all(prefix.with_name(prefix.name + ending).exists() for ending in (".bin", ".idx"))


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def encode_here(read: ReadTexts, tokenizer: Tokenizer, pairs: Sequence[Pair], advance: Advance = ignore) -> None:
    """Encode files in this process, where the library's own threads take all cores.

    Two files are worked on at a time: while the library encodes the texts of one, those of the other are read or
    its tokens written.
    """
    lock = threading.Lock()  # `advance` is called by two threads
    stopping = threading.Event()

    def tell(num_documents: int) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt  # ends this thread; the error that set the event is the one that is reported
        with lock:
            advance(num_documents)

    with ThreadPoolExecutor(_FILES_AT_A_TIME) as threads:
        try:
            futures = [threads.submit(_encode_file, read, tokenizer, *pair, tell) for pair in pairs]
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stopping.set()
            threads.shutdown(cancel_futures=True)
            raise


def encode_in_processes(
    read: ReadTexts, folder: Path, pairs: Sequence[Pair], num_processes: int, advance: Advance = ignore
) -> None:
    """Encode files in worker processes, which share the cores and load the tokenizer that `folder` holds."""
    # The libraries' own threads would multiply with the processes otherwise.
    num_threads = max(1, num_cores() // num_processes)
    context = multiprocessing.get_context("spawn")
    pipe: Any = context.Pipe(duplex=False)  # typed by platform
    theirs, ours = pipe
    start = (theirs, num_threads)
    with theirs, ours, ProcessPoolExecutor(num_processes, context, _start_worker, start) as workers:
        try:
            futures = [workers.submit(_encode_in_worker, read, folder, num_threads, *pair) for pair in pairs]
            # The pool watches the workers that it knew of when it last woke up. This submission wakes it after the last
            # worker was started; otherwise the pool would not notice the death of that one.
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
            ours.close()  # ends the workers now: the pool would wait for their files to be finished
            raise


def _encode_file(read: ReadTexts, tokenizer: Tokenizer, path: Path, prefix: Path, advance: Advance = ignore) -> int:
    """Encode the documents of the file `path` into the .bin and .idx of `prefix`; returns their number."""
    from jax_diversity.token_store.megatron import TokenWriter

    with TokenWriter(prefix, tokenizer.dtype) as writer:
        for texts in read(path):
            writer.add_documents(tokenizer.encode_documents(texts))
            advance(len(texts))
        return writer.num_documents


def _start_worker(lifeline: Connection, num_threads: int) -> None:
    # An interrupt of a terminal reaches all processes; the one that started the workers ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # threads of the tokenizers library
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if num_threads > 1 else "false"


def _end_with(lifeline: Connection) -> None:
    lifeline.poll(None)  # nothing is ever sent: it returns when the other end is closed
    os._exit(1)  # without clean-up: unfinished files have temporary names, and a lock may be held by another thread


def _encode_in_worker(read: ReadTexts, folder: Path, num_threads: int, path: Path, prefix: Path) -> int:
    return _encode_file(read, _worker_tokenizer(folder, num_threads), path, prefix)


@cache
def _worker_tokenizer(folder: Path, num_threads: int) -> Tokenizer:
    from jax_diversity.tokenization.factory import load_saved

    return load_saved(folder, num_threads)
