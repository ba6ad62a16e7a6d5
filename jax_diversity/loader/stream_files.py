"""Record files of a dataset on an object store, on this machine only while they are read."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from jax_diversity.dataset.remote import RemoteFolder, locked
from jax_diversity.records.reading import RecordReader


@dataclass(frozen=True)
class Wanted:
    """Files by their numbers, as one batch sees them.

    Attributes:
        needed: those that it is read from.
        ahead: those that come after it, in that order.
        kept: others that are not to be removed yet.
    """

    needed: tuple[int, ...]
    ahead: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


class StreamedFiles:
    """Fetches files before they are needed, one after another, and removes those that no batch wants any more.

    A thread of its own fetches; each file comes in several large pieces at a time. What is on disk at a time are
    the files of one `Wanted`. They lie in a folder that goes with this object, with the process, or, after a kill,
    when the next stream uses the cache.

    Args:
        remote: where from.
        records: the dataset's, whose files are in its folder when somebody fetches them.

    Attributes:
        reader: the same records, to be read from the files that are held.
    """

    def __init__(self, remote: RemoteFolder, records: RecordReader) -> None:
        self._remote = remote
        self._names = [path.relative_to(remote.root).as_posix() for path in records.paths]
        folder, lock = _new_folder(remote.cache_folder / "streams")
        self.reader = records.moved([folder / path.name for path in records.paths])
        self._coming: dict[int, Future[None]] = {}
        self._in_use: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = SimpleQueue()
        self._stopping = threading.Event()
        # A daemon, since Python waits for all others at its end, for whole files then; it knows no stream.
        threading.Thread(target=_work, args=(self._tasks,), name="jax-diversity-stream", daemon=True).start()
        self.close = weakref.finalize(self, _end, self._tasks, self._stopping, folder, lock)

    @contextmanager
    def hold(self, wanted: Wanted) -> Iterator[None]:
        """Have the needed files there while the block runs, and begin to fetch what comes after them.

        Raises:
            UserError: a file cannot be fetched, or is not the one that the manifest knows.
        """
        with self._lock:
            self._in_use.update(wanted.needed)
            for file in (*wanted.needed, *wanted.ahead):
                if file not in self._coming:
                    self._begin(file)
            known = {*wanted.needed, *wanted.ahead, *wanted.kept}
            for file in [file for file in self._coming if file not in known and not self._in_use[file]]:
                self._drop(file)
        try:
            for file in wanted.needed:
                self._wait(file)
            yield
        finally:
            with self._lock:
                self._in_use.subtract(wanted.needed)

    def _begin(self, file: int) -> None:
        future: Future[None] = Future()
        fetch = partial(self._remote.download, self._names[file], self.reader.paths[file], self._stopping.is_set)
        self._coming[file] = future
        self._tasks.put((future, fetch))

    def _wait(self, file: int) -> None:
        future = self._coming[file]
        try:
            future.result()
        except BaseException:
            with self._lock:
                if self._coming.get(file) is future:  # whoever asks next has it fetched anew
                    self._drop(file)
            raise

    def _drop(self, file: int) -> None:
        future = self._coming.pop(file)
        self.reader.close(file)
        future.cancel()
        path = self.reader.paths[file]
        future.add_done_callback(lambda _: path.unlink(missing_ok=True))  # a fetch under way ends first


def _work(tasks: SimpleQueue[tuple[Future[None], Callable[[], None]] | None]) -> None:
    while (task := tasks.get()) is not None:
        future, fetch = task
        if future.set_running_or_notify_cancel():
            try:
                fetch()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)
        del task, future, fetch


def _end(tasks: SimpleQueue[Any], stopping: threading.Event, folder: Path, lock: Any) -> None:
    stopping.set()
    tasks.put(None)
    shutil.rmtree(folder, ignore_errors=True)
    Path(lock.name).unlink(missing_ok=True)
    lock.close()


def _new_folder(parent: Path) -> tuple[Path, Any]:
    """A folder for one stream, and the open file whose lock tells that the stream still runs."""
    with locked(parent):
        for path in parent.glob("*.lock"):
            with path.open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                shutil.rmtree(path.with_suffix(""), ignore_errors=True)  # its process is gone
                path.unlink(missing_ok=True)
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        lock = folder.with_suffix(".lock").open("a")
        fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock
