"""Run the jobs of a build on several hosts: every host runs the same command with its number.

Host 0 runs the build. It writes the list of the jobs of a stage into the folder `.shards` of the dataset's folder. Host
i of n does the jobs i, i + n, i + 2n ...; host 0 also waits for the records of the others' jobs, and does everything
between the maps. Each host writes a small file with its settings and a number that grows every few seconds. A host
gives no sign if its number stays the same; clocks of different machines are never compared.

The hosts share the dataset's folder. Or they share the object store that it is written to, and each has a scratch
folder (see `jax_diversity.foundation.mirror`). Then the list also has the hashes of the manifest and of the files that
the jobs may read, and the others fetch them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import file_hash, fingerprint, json_text, write_json
from jax_diversity.foundation.errors import UserError, in_one_line, quoted
from jax_diversity.foundation.executors import Executor
from jax_diversity.foundation.folders import inside, make_folder
from jax_diversity.foundation.jobs import Done, Job, Work, fetch_finished, find_work, finished, is_own
from jax_diversity.foundation.mirror import mirror_of

_FOLDER, _JOBS = ".shards", "jobs.json"
_BEAT_SECONDS = 2.0
_LOOK_SECONDS = 0.2
_OF_STORE = 5
"""In an object store, hosts write and look this many times less often, because each time is a request."""
_ROOT = "{out}"
"""The dataset's folder in the arguments of jobs for hosts with other scratch folders."""
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
        self.root, self.folder, self.mirror = root, inside(root, _FOLDER), mirror_of(root)
        self.where = str(root) if self.mirror is None else self.mirror.store.address
        self.pause = _LOOK_SECONDS * (_OF_STORE if self.mirror else 1)
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
        while not self._stops.wait(_BEAT_SECONDS * (_OF_STORE if self.mirror else 1)):
            with self._lock, suppress(UserError):  # the store may answer the next time
                self._beat += 1
                self._write()

    def _write(self) -> None:
        own = {"of": self.count, "token": self.token, "beat": self._beat, "about": self._about, **self._state}
        self.write_file(f"{self.index}.json", own)

    def write_file(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file for the other hosts."""
        if self.mirror is None:
            write_json(inside(self.folder, name), content)
        else:
            self.mirror.store.put(f"{_FOLDER}/{name}", json_text(content).encode())

    def read_file(self, name: str, fields: set[str]) -> dict[str, Any] | None:
        """Read a file of another host; None if there is nothing, or something else."""
        try:
            if self.mirror is None:
                content = inside(self.folder, name).read_bytes()
            else:
                content = self.mirror.store.find(f"{_FOLDER}/{name}") or b""
            found = json.loads(content)
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and fields <= found.keys() else None

    def read(self, shard: int) -> dict[str, Any] | None:
        """What a host wrote last; None if there is nothing, or something else."""
        return self.read_file(f"{shard}.json", {"of", "token", "beat", "about", "state"})

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


class FirstShard:
    """Host 0 as an executor: gives jobs to the other hosts; use it as a context, which tells them the end.

    Args:
        root: the dataset's folder, which all hosts share, or its scratch folder on this host.
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
        if host.mirror is not None:
            path = inside(host.root, "manifest.json")
            manifest = file_hash(path) if path.exists() else None  # the first stage begins without one
            own |= {"jobs": _moved([*jobs], str(host.root), _ROOT), "manifest": manifest, "files": host.mirror.plain}
        host.write_file(_JOBS, own)
        results = [*self._inner.map(work, jobs[:: host.count])][::-1]
        for place, (name, _) in enumerate(jobs):
            yield results.pop() if place % host.count == 0 else self._result(work, jobs, place, name)
        # A host that is started again must not look for these jobs: the stage moves their files away.
        host.write_file(_JOBS, {**own, "jobs": []})

    def _result(self, work: Work, jobs: Sequence[Job], place: int, name: str) -> Any:
        """Wait for the record of another host's job."""
        shard = place % self._host.count
        while (done := self._finished(work, name)) is None:
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
            time.sleep(self._host.pause)
        return done.result

    def _finished(self, work: Work, name: str) -> Done | None:
        done, mirror = finished(work, name), self._host.mirror
        return fetch_finished(mirror, work, name) if done is None and mirror is not None else done


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
    num_jobs, done = 0, list[Any]()
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
                f"Expected shard 0 of {host.count} to build {host.where}, found "
                f"{'that it was never started' if first is None else 'no sign of it'} for {silent / 60:.3g} minutes; "
                f"run the same command again on all hosts, with --shard 0/{host.count} on one of them."
            )
        announced = host.read_file(_JOBS, {"token", "number", "work", "jobs"})
        if first is None or announced is None or announced["token"] != first["token"]:
            pass
        elif (now := (announced["token"], announced["number"])) not in done:  # a store may show an older list
            done.append(now)
            for _ in inner.map(*_own_jobs(announced, host)):
                num_jobs += 1
        time.sleep(host.pause)


def _own_jobs(announced: Mapping[str, Any], host: _Host) -> tuple[Work, list[Job]]:
    """The work and the jobs of this host.

    Others may write to the folder: the work must be a function of this package, and its files in the dataset's folder.
    """
    root, work = host.root, str(announced["work"])
    if not is_own(work):
        raise UserError(f"Expected work of this package in {host.folder / _JOBS}, found {quoted(work)}.")
    try:
        given = announced["jobs"] if host.mirror is None else _moved(announced["jobs"], _ROOT, str(root))
        jobs = [(str(name), tuple(arguments)) for name, arguments in given[host.index :: host.count]]
        manifest = announced.get("manifest")
        files = {
            str(name): {"bytes": int(about["bytes"]), "sha256": str(about["sha256"])}
            for name, about in announced.get("files", {}).items()
        }
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        raise UserError(f"Expected a list of jobs in {host.folder / _JOBS}, found something else.") from None
    # Host 0 waits for the jobs of this host. Without any, it may be at a later stage by now.
    if host.mirror is not None and jobs:
        if manifest is not None:
            host.mirror.fetch_manifest(str(manifest))
        for name, about in files.items():
            host.mirror.fetch(name, about)
    for name, _ in jobs:
        inside(root, os.path.relpath(name, root))
    return find_work(work), jobs


def _moved(value: Any, start: str, to: str) -> Any:
    """Return a JSON value in which all paths in the folder `start` are paths in the folder `to`."""
    if isinstance(value, str):
        return to + value[len(start) :] if value == start or value.startswith(f"{start}/") else value
    if isinstance(value, dict):
        return {name: _moved(each, start, to) for name, each in value.items()}
    return [_moved(each, start, to) for each in value] if isinstance(value, list | tuple) else value
