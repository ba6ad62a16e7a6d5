"""The jobs of a stage: every job writes its own files, and then a file that records that it is finished.

A job has a name, which is the path that its files begin with. It writes `NAME.*`, each file under a temporary name
first, and then `NAME.done.json`: its result, and the size and SHA-256 of every file. These records say which work is
finished, in every process and on every machine that runs jobs. So a killed run continues, with the same executor or
another one, and nobody hashes the files a second time.

The work of a job is a function at the top level of a module, which other processes and machines import. Its arguments
and its result are JSON values: the record stores the result.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import RECORD, file_hash, is_temporary, write_json
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.warned import warn

Job = tuple[str, tuple]
"""A job's name and the arguments of its work, which are JSON values."""
Opened = Sequence[str]
"""The function that opens a dataset, `module:name`, and the dataset's folder: an argument of a job."""
Files = dict[str, dict[str, Any]]
"""The files that a job wrote: name -> `bytes` and `sha256`."""


@dataclass(frozen=True)
class Work:
    """A function that does one job; its first argument is the job's name as a path, and its result is a JSON value.

    Attributes:
        function: the function; the same arguments write the same bytes.
        what: the activity, for messages, such as `tokenizing`.
        alone: whether one job uses all cores or accelerators of a machine.
        at_a_time: the number of jobs that one process does at the same time, in threads.
        patience: seconds of work that are done in this process before other processes are started, because they have
            to import the libraries of the work first.
        is_passing: whether later jobs delete the files.
        sources: from the arguments, the files of earlier jobs that it reads, and that are deleted after this job.
        traces: from the names of jobs, the files that processes left which ended in the middle of a document. After new
            traces the jobs are repeated.
    """

    function: Callable[..., Any]
    what: str
    alone: bool = False
    at_a_time: int = 1
    patience: float = 0.0
    is_passing: bool = False
    sources: Callable[..., Sequence[str]] | None = None
    traces: Callable[[Sequence[str]], Collection[Path]] | None = None

    @property
    def reference(self) -> str:
        """The place of the function, `module:name`."""
        return f"{self.function.__module__}:{self.function.__qualname__}"


def work(what: str, **about: Any) -> Callable[[Callable[..., Any]], Work]:
    """Make a function the work of jobs; see `Work` for the arguments."""
    return lambda function: Work(function, what, **about)


def find_work(reference: str) -> Work:
    """Import the work at `module:name`.

    Raises:
        UserError: there is no such work.
    """
    module, _, name = reference.partition(":")
    try:
        job_function = getattr(import_module(module), name, None)
    except ImportError:
        job_function = None
    if not isinstance(job_function, Work):
        raise UserError(
            f"Expected the name of work of this version, found {quoted(reference)}; run the same version everywhere."
        )
    return job_function


def opened(dataset: Opened) -> Any:
    """Open the dataset that a job reads, as a `jax_diversity.streaming.dataset.Dataset`; once in a process.

    The foundation imports nothing above it, so the argument also names the function that opens a dataset.
    """
    opener, root = dataset
    status = os.stat(Path(root) / "manifest.json")
    return _opened(opener, root, status.st_mtime_ns, status.st_ino)


@lru_cache(1)
def _opened(opener: str, root: str, *stamp: int) -> Any:
    module, _, name = opener.partition(":")
    return getattr(import_module(module), name)(Path(root))


@dataclass(frozen=True)
class Done:
    """The record of a finished job."""

    result: Any
    files: Files


def read_done(name: str) -> Done | None:
    """Read the record of a job; None if there is no record, or if it is damaged."""
    try:
        plain = json.loads(Path(name + RECORD).read_bytes())
        files = {
            str(file): {"bytes": int(description["bytes"]), "sha256": description["sha256"]}
            for file, description in plain["files"]
        }
        if any("/" in file or not isinstance(description["sha256"], str) for file, description in files.items()):
            raise ValueError(name)
        return Done(plain["result"], files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def finished(work: Work, name: str) -> Done | None:
    """The record of a job whose files are all present; None if the job has to run.

    Warns:
        UserWarning: a job is recorded as finished, but one of its files is absent or has another size.
    """
    done = read_done(name)
    if done is None or work.is_passing:
        return done
    for file, description in done.files.items():
        path = Path(name).with_name(file)
        num_bytes = path.stat().st_size if path.is_file() else None
        if num_bytes != description["bytes"]:
            warn(
                f"Expected {description['bytes']} bytes in {path}, which {name}{RECORD} lists, found "
                f"{'no such file' if num_bytes is None else num_bytes}; the job runs again.",
            )
            return None
    return done


def run_job(reference: str, name: str, arguments: Sequence[Any]) -> Any:
    """Do a job, unless it is finished, record it, and return its result."""
    work = find_work(reference)
    done = finished(work, name)
    if done is None:
        result = work.function(Path(name), *arguments)
        done = record(name, result, _files_of(name))
    if work.sources is not None:
        # After the record: a job whose sources are gone could not run again.
        for source in work.sources(*arguments):
            if Path(source).parent == Path(name).parent:
                Path(source).unlink(missing_ok=True)
    return done.result


def record(
    name: str, result: Any, paths: Sequence[Path], known: Mapping[Path, Mapping[str, Any]] | None = None
) -> Done:
    """Record that `name` is finished; `known` has the sizes and hashes of files that are not hashed again."""
    files = {
        path.name: dict((known or {}).get(path) or {"bytes": path.stat().st_size, "sha256": file_hash(path)})
        for path in paths
    }
    write_json(Path(name + RECORD), {"result": result, "files": [*files.items()]})
    # As another process would read it: a tuple becomes a list, for example.
    return Done(json.loads(json.dumps(result)), files)


def _files_of(name: str) -> list[Path]:
    paths = map(Path, glob.glob(glob.escape(name) + ".*"))
    return sorted(path for path in paths if not path.name.endswith(RECORD) and not is_temporary(path))


def gather(name: str, result: Any, renamed: Mapping[Path, Path]) -> None:
    """Move files of finished jobs into the folder of `name`, and record them as the files of `name`.

    After a kill in the middle, the jobs whose files have moved run again.
    """
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    descriptions = dict[Path, dict[str, Any]]()
    for folder in {source.parent for source in renamed}:
        descriptions |= {renamed[path]: description for path, description in recorded_files(folder) if path in renamed}
    for source, target in renamed.items():
        os.replace(source, target)
    record(name, result, [*renamed.values()], descriptions)


def recorded_files(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the records of jobs below a folder, and the files that they list, each with its size and hash."""
    for path in sorted(folder.rglob(f"*{RECORD}")):
        done = read_done(str(path)[: -len(RECORD)])
        for file, description in (done.files if done else {}).items():
            yield path.with_name(file), description
