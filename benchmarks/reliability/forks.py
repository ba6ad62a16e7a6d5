"""Work in a fork of this process: a command needs no start of Python, and its crash ends only the fork.

This process imports the commands' modules, but starts no accelerator and keeps no threads.
"""

from __future__ import annotations

import importlib
import os
import pickle
import pkgutil
import re
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax_diversity

PATIENCE = 120.0
"""Seconds after which a command counts as endless; each takes a few seconds on two busy cores."""
_MOST_OUTPUT = 2**24
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_LONGEST_SENTENCE = 1500


@dataclass(frozen=True)
class Outcome:
    """The end of work: its status (negative for a signal, None if it did not end), its output, its value."""

    status: int | None
    output: str
    error: str
    value: Any = None

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.status == -signal.SIGKILL

    @property
    def fault(self) -> str | None:
        """The fault in a command's end: it must succeed, or refuse in one sentence; warnings may stand before it."""
        if self.status is None:
            return "hangs"
        if "Traceback (most recent call last)" in self.error or (self.status not in (0, 2) and self.status > 0):
            return "tracebacks"
        if self.status < 0:
            return "crashes"
        if _CONTROL.search(self.output + self.error):
            return "unclear"
        lines = self.error.strip().split("\n")
        sentence = "\n".join(line for line in lines if not line.startswith("jax-diversity: warning: "))
        if self.status == 2 and (
            not sentence.startswith("jax-diversity: ") or "\n" in sentence or len(sentence) > _LONGEST_SENTENCE
        ):
            return "unclear"
        return None

    @property
    def said(self) -> str:
        """The end of its error output, without control characters."""
        return ascii(self.error.strip()[-300:])[1:-1]


class Running:
    """Work that was started in a fork."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="reliability-")
        self._files = [Path(self._folder.name) / name for name in ("output", "error", "value")]
        for path in self._files[:2]:  # a kill may come before the fork's first step
            path.touch()
        sys.stdout.flush()
        sys.stderr.flush()
        self._process = os.fork()
        if self._process == 0:
            self._child(work)

    def _child(self, work: Callable[[], Any]) -> None:
        status = 1
        try:
            for number, path in zip((1, 2), self._files, strict=False):
                os.dup2(os.open(path, os.O_WRONLY), number)
            # As Python opens them: characters that standard output cannot encode raise an error.
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            value = work()
            status = value if isinstance(value, int) else 0
            self._files[2].write_bytes(pickle.dumps(value))
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def kill(self) -> None:
        """Kill it at once, as `kill -9` does."""
        os.kill(self._process, signal.SIGKILL)

    def outcome(self, patience: float = PATIENCE, *, then_kill: bool = False) -> Outcome:
        """Wait a number of seconds; with `then_kill` the caller expects an end by our SIGKILL."""
        handle = os.pidfd_open(self._process)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        has_ended = bool(poll.poll(patience * 1000))
        os.close(handle)
        if not has_ended:
            self.kill()
        status: int | None = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        if not has_ended and not then_kill:
            status = None
        output, error = (_text(path) for path in self._files[:2])
        value = None
        if status == 0 and self._files[2].exists():
            value = pickle.loads(self._files[2].read_bytes())
        self._folder.cleanup()
        return Outcome(status, output, error, value)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_OUTPUT).decode("utf-8", "backslashreplace")


def in_new_process(arguments: Sequence[str], folder: Path, patience: float = PATIENCE) -> Outcome:
    """Run `jax-diversity ARGUMENTS` in a new Python, as a user does."""
    command_line = [sys.executable, "-m", "jax_diversity", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(jax_diversity.__file__).parents[1])}
    try:
        done = subprocess.run(
            command_line, capture_output=True, cwd=folder, env=environment, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, "", "")
    return Outcome(done.returncode, *(text.decode("utf-8", "backslashreplace") for text in (done.stdout, done.stderr)))


def in_fork(work: Callable[[], Any], patience: float = PATIENCE, *, then_kill: bool = False) -> Outcome:
    """Do work in a fork and wait for its end."""
    return Running(work).outcome(patience, then_kill=then_kill)


def command(arguments: Sequence[str], before: Callable[[], None] | None = None) -> Callable[[], int]:
    """Make `jax-diversity ARGUMENTS` work for a fork, after `before` has changed its process."""

    def work() -> int:
        from jax_diversity.cli.main import main

        if before is not None:
            before()
        return main(list(arguments))

    return work


def import_everything() -> None:
    """Import the whole package and its libraries for files, so that forks need not."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Programs are compiled once, and forks share them, as in the tests.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[2] / ".pytest_cache" / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    for module in pkgutil.walk_packages(jax_diversity.__path__, "jax_diversity."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in (
        "pyarrow.dataset",
        "pyarrow.parquet",
        "scipy.sparse.linalg",
        "sklearn.decomposition",
        "sklearn.feature_extraction.text",
        "tokenizers",
        "yaml",
        "zstandard",
    ):
        importlib.import_module(name)
