"""Run the jobs of a build on several hosts with a shared folder: every host runs the same command with its number.

Host 0 runs the build. It writes the list of the jobs of a stage into the folder `.shards` of the dataset's folder. Host
i of n does the jobs i, i + n, i + 2n ...; host 0 also waits for the records of the others' jobs, and does everything
between the maps. Each host writes a small file with its settings and a number that grows every few seconds. A host
gives no sign if its number stays the same; clocks of different machines are never compared.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import fingerprint, write_json
from jax_diversity.foundation.errors import UserError, in_one_line, quoted
from jax_diversity.foundation.executors import Executor
from jax_diversity.foundation.folders import inside, make_folder
from jax_diversity.foundation.jobs import Job, Work, find_work, finished, is_own

_FOLDER, _JOBS = ".shards", "jobs.json"
_BEAT_SECONDS = 2.0
_LOOK_SECONDS = 0.2
_OVER_SECONDS = 60.0
"""A host waits this long for a new build if the last one of the folder has ended."""
_WORKING, _ENDED, _FAILED = "working", "ended", "failed"


def parse_shard(text: str) -> tuple[int, int]:
    """Return the number of this host and the number of hosts, from `i/n` or `auto`.

    `auto` takes them from Slurm (job arrays, or the tasks of a job), from GKE's TPU hosts, or from JAX.

    Raises:
        UserError: another form, a number out of range, or no numbers to take.
    """
    if text == "auto":
        return _automatic_shard()
    if not (match := re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)):
        raise UserError(f"Expected a shard as i/n, such as 0/8, or auto, found {quoted(text)}.")
    index, count = int(match[1]), int(match[2])
    if not 0 <= index < count:
        raise UserError(f"Expected a shard i/n with i from 0 to n - 1, found {text}; the first shard is 0/{match[2]}.")
    return index, count


def _automatic_shard() -> tuple[int, int]:
    def number(name: str, default: int | None = None) -> int:
        value = os.environ.get(name, "" if default is None else str(default))
        if not value.isdecimal():
            raise UserError(f"Expected a number in {name}, found {quoted(value)}; give --shard i/n.")
        return int(value)

    if "SLURM_ARRAY_TASK_ID" in os.environ:
        first, step = number("SLURM_ARRAY_TASK_MIN", 0), number("SLURM_ARRAY_TASK_STEP", 1)
        place, count = number("SLURM_ARRAY_TASK_ID") - first, number("SLURM_ARRAY_TASK_COUNT")
        return parse_shard(f"{place // max(step, 1)}/{count}")
    if number("SLURM_NTASKS", 1) > 1:
        return parse_shard(f"{number('SLURM_PROCID')}/{number('SLURM_NTASKS')}")
    if "TPU_WORKER_ID" in os.environ and (hosts := os.environ.get("TPU_WORKER_HOSTNAMES")):  # set by GKE
        return parse_shard(f"{number('TPU_WORKER_ID')}/{len(hosts.split(','))}")
    import jax

    if jax.process_count() > 1:
        return jax.process_index(), jax.process_count()
    raise UserError(
        "Expected the number of this host from Slurm (SLURM_ARRAY_TASK_ID or SLURM_PROCID), from GKE (TPU_WORKER_ID) "
        "or from JAX (jax.process_index() of several processes) for --shard auto, found none; give --shard i/n."
    )


class _Host:
    """The file of this host, which a thread renews; `_changed` and `_read` look at the files of the others."""

    def __init__(self, root: Path, index: int, count: int, about: Mapping[str, Any]) -> None:
        make_folder(root)
        self.folder = inside(root, _FOLDER)
        self.index, self.count, self.token = index, count, secrets.token_hex(8)
        self._about = json.loads(json.dumps(about))
        self._state: dict[str, Any] = {"state": _WORKING}
        self._beat, self._lock, self._stops = 0, threading.Lock(), threading.Event()
        self._before = {shard: self.read(shard) for shard in range(count)}
        self._last: dict[int, tuple[Any, float]] = {}

    def start(self) -> None:
        make_folder(self.folder)
        self.tell(_WORKING)
        self._thread = threading.Thread(target=self._keep_telling, daemon=True)
        self._thread.start()

    def tell(self, state: str, **about: Any) -> None:
        with self._lock:
            self._state = {"state": state, **about}
            self._write()

    def end(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, GeneratorExit):
            self.tell(_ENDED)
        else:
            self.tell(_FAILED, error=in_one_line(error))
        self._stops.set()
        self._thread.join()

    def _keep_telling(self) -> None:
        while not self._stops.wait(_BEAT_SECONDS):
            with self._lock:
                self._beat += 1
                self._write()

    def _write(self) -> None:
        own = {"of": self.count, "token": self.token, "beat": self._beat, "about": self._about, **self._state}
        write_json(inside(self.folder, f"{self.index}.json"), own)

    def read(self, shard: int) -> dict[str, Any] | None:
        """What a host wrote last; None if there is nothing, or something else."""
        return _read(inside(self.folder, f"{shard}.json"), {"of", "token", "beat", "about", "state"})

    def look(self, shard: int) -> tuple[dict[str, Any] | None, float]:
        """What a host has written since this one began (None for nothing), and the seconds since its last change."""
        now, written = time.monotonic(), self.read(shard)
        found = None if written == self._before[shard] else written
        if shard not in self._last or found != self._last[shard][0]:
            self._last[shard] = found, now
        if found is not None:
            self._check_same(shard, found)
        return found, now - self._last[shard][1]

    def _check_same(self, shard: int, other: Mapping[str, Any]) -> None:
        """Check that another host has the same number of hosts, settings and versions."""
        if other["of"] != self.count:
            raise UserError(
                f"Expected {self.count} shards, as of shard {self.index}/{self.count}, found shard {shard}/"
                f"{quoted(other['of'])} in the same folder; give every host the same number of shards."
            )
        theirs = other["about"] if isinstance(other["about"], Mapping) else {}
        for name in sorted(self._about.keys() | theirs.keys()):
            if fingerprint(self._about.get(name)) != fingerprint(theirs.get(name)):
                raise UserError(
                    f"Expected the same settings and versions on all shards, found {name}={quoted(theirs.get(name))} "
                    f"on shard {shard} and {quoted(self._about.get(name))} on shard {self.index}; start all shards "
                    "with the same command."
                )


def _read(path: Path, names: set[str]) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and names <= found.keys() else None


class FirstShard:
    """Host 0 as an executor: gives jobs to the other hosts; use it as a context, which tells them the end.

    Args:
        root: the dataset's folder, which all hosts share.
        count: the number of hosts.
        inner: runs this host's own jobs.
        about: settings and versions by name, which must be the same on all hosts.
        seconds: how long this host waits for another one that gives no sign.
    """

    def __init__(self, root: Path, count: int, inner: Executor, about: Mapping[str, Any], seconds: float) -> None:
        self._host = _Host(root, 0, count, about)
        self._inner, self._seconds, self._number = inner, seconds, 0

    def __enter__(self) -> FirstShard:
        self._host.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._host.end(error)

    def map(self, work: Work, jobs: Sequence[Job]) -> Iterator[Any]:
        """See `Executor.map`."""
        host = self._host
        self._number += 1
        own = {"token": host.token, "number": self._number, "work": work.reference, "jobs": jobs}
        write_json(inside(host.folder, _JOBS), own)
        results = [*self._inner.map(work, jobs[:: host.count])][::-1]
        for place, (name, _) in enumerate(jobs):
            yield results.pop() if place % host.count == 0 else self._result(work, jobs, place, name)

    def _result(self, work: Work, jobs: Sequence[Job], place: int, name: str) -> Any:
        """Wait for the record of another host's job."""
        shard = place % self._host.count
        while (done := finished(work, name)) is None:
            state, silent = self._host.look(shard)
            if state is not None and state["state"] == _FAILED:
                raise UserError(f"Shard {shard} of {self._host.count} failed: {in_one_line(state.get('error'))}")
            if silent > self._seconds:
                missing = [each for each, _ in jobs[shard :: self._host.count] if finished(work, each) is None]
                raise UserError(
                    f"Expected shard {shard} of {self._host.count} to do its {len(missing)} {work.what} jobs, found "
                    f"{'that it was never started' if state is None else 'no sign of it'} for {silent / 60:.3g} "
                    f"minutes; the first missing job is {missing[0] if missing else name}. Run the same command again "
                    f"on all hosts, with --shard {shard}/{self._host.count} on this one; finished jobs are kept."
                )
            time.sleep(_LOOK_SECONDS)
        return done.result


def follow(root: Path, index: int, count: int, inner: Executor, about: Mapping[str, Any], seconds: float) -> int:
    """Do the jobs of host `index` until host 0 ends the build. Returns the number of jobs; see `FirstShard`.

    Raises:
        UserError: a job failed, host 0 failed or gives no sign, or it has other settings.
    """
    host = _Host(root, index, count, about)
    host.start()
    error: BaseException | None = None
    try:
        return _follow(host, inner, seconds)
    except BaseException as raised:
        error = raised
        raise
    finally:
        host.end(error)


def _follow(host: _Host, inner: Executor, seconds: float) -> int:
    num_jobs, last = 0, None
    stale = host.read(0)
    while True:
        first, silent = host.look(0)
        if first is not None and first["state"] == _ENDED:
            return num_jobs
        if first is not None and first["state"] == _FAILED:
            raise UserError(f"Shard 0 of {host.count} failed: {in_one_line(first.get('error'))}")
        if first is None and silent > _OVER_SECONDS and stale is not None and stale["state"] == _ENDED:
            return num_jobs  # the build had ended before this host began
        if silent > seconds:
            raise UserError(
                f"Expected shard 0 of {host.count} to build {host.folder.parent}, found "
                f"{'that it was never started' if first is None else 'no sign of it'} for {silent / 60:.3g} minutes; "
                f"run the same command again on all hosts, with --shard 0/{host.count} on one of them."
            )
        announced = _read(inside(host.folder, _JOBS), {"token", "number", "work", "jobs"})
        now = None if announced is None else (announced["token"], announced["number"])
        if first is not None and announced is not None and now not in (None, last) and now[0] == first["token"]:
            last = now
            for _ in inner.map(*_own_jobs(announced, host)):
                num_jobs += 1
        time.sleep(_LOOK_SECONDS)


def _own_jobs(announced: Mapping[str, Any], host: _Host) -> tuple[Work, list[Job]]:
    """The work and the jobs of this host.

    Others may write to the folder: the work must be a function of this package, and its files in the dataset's folder.
    """
    root, work = host.folder.parent, str(announced["work"])
    if not is_own(work):
        raise UserError(f"Expected work of this package in {host.folder / _JOBS}, found {quoted(work)}.")
    try:
        jobs = [(str(name), tuple(arguments)) for name, arguments in announced["jobs"][host.index :: host.count]]
    except (TypeError, ValueError):
        raise UserError(f"Expected a list of jobs in {host.folder / _JOBS}, found something else.") from None
    for name, _ in jobs:
        inside(root, os.path.relpath(name, root))
    return find_work(work), jobs
