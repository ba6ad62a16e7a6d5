"""A disk that is full, read-only or fails, and several processes at once: one sentence, and no incomplete files.

After every attack the cause is removed and the same command is run again: the end state equals that of a run without
faults, byte for byte. `count` is the number of sizes of the full disk. The same number of failing operations of each
command is tried, and all of them from 20 on. Separate disks need the right to mount; without it, a limit on the size of
files replaces the full disk, and an injected error replaces the read-only disk.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.reliability import small
from benchmarks.reliability.forks import Outcome, Running, in_fork
from benchmarks.reliability.operations import Operations, count_operations, fail_at
from benchmarks.reliability.small import Place, Task, differing, tree
from benchmarks.reliability.tally import Tally

TASKS = (small.EXPORT, small.ORDER, small.TRAIN, small.WRITE, small.REPORT, small.BUILD)
READING = (small.MEASURE, small.INSPECT, small.VERIFY)
_EVERY = 20
_BLOCK, _DISK = 2**16, 2**28

Resize = Callable[[int | None], bool]


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """Attack every command that writes in every way."""
    sound = small.build(folder / "sound") if dataset is None else dataset
    tally = Tally(seed)
    with disk(folder / "disk") as resize:
        for number, task in enumerate(TASKS[:count]):
            _Attack(tally, task, sound, folder, resize).all(count, number, seed)
        for task in READING if count >= _EVERY else ():
            reading = _Attack(tally, task, sound, folder, resize)
            reading.failing_operations(None, seed)
            reading.at_once(4)
    return tally.result


class _Attack:
    """Attacks of one command; every run is on the same disk in the same folder, whose name some files hold."""

    def __init__(self, tally: Tally, task: Task, sound: Place, folder: Path, resize: Resize | None) -> None:
        self._tally, self._task, self._resize = tally, task, resize
        self._log, self._run = folder / "operations", folder / "disk" / "run"
        self._before = sound.copied_to(folder / "before")
        if task is small.BUILD:
            small.remove(self._before.dataset)
        in_fork(task.run(self._fresh()))  # compiles all programs
        place = self._fresh()
        used = _size(place.root)
        if in_fork(task.run(place)).status != 0:
            raise RuntimeError(f"{task.verb} cannot be run.")
        self._expected, self._added = tree(place.root), _size(place.root) - used

    def _fresh(self) -> Place:
        return self._before.copied_to(self._run)

    def all(self, count: int, number: int, seed: int) -> None:
        """Yield every kind; if not all sizes and operations are tried, other commands get others."""
        every = count >= _EVERY
        sizes = [round(self._added * share) for share in np.linspace(0, 1, count)]
        for size in sizes if every else sizes[number % 3 :: 3]:
            self.full_disk(size)
        self.read_only()
        self.failing_operations(None if every else max(1, count // 3), seed)
        for num_processes in (2, 4) if every else (2 + number % 2 * 2,):
            self.at_once(num_processes)

    def full_disk(self, size: int) -> None:
        """So many bytes are left."""
        place = self._fresh()
        if self._resize is None:
            most = max(size, 4096)  # the file of its answer is also limited
            outcome = in_fork(self._task.run(place, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))))
        else:
            state = os.statvfs(place.root)
            used = (state.f_blocks - state.f_bfree) * state.f_frsize
            while not self._resize(used + size):  # the kernel counts free blocks roughly
                used += _BLOCK
            outcome = in_fork(self._task.run(place))
            self._resize(_DISK)
        self._judge(place, outcome, "full disk", bytes_left=size)

    def read_only(self) -> None:
        """Nothing can be written."""
        place = self._fresh()
        if self._resize is None:
            outcome = in_fork(self._task.run(place, _always(place.root, errno.EROFS)))
        else:
            self._resize(None)
            outcome = in_fork(self._task.run(place))
            self._resize(_DISK)
        self._judge(place, outcome, "read-only disk")

    def failing_operations(self, most: int | None, seed: int) -> None:
        """One operation after the other fails; at most `most` of them, drawn at random."""
        place = self._fresh()
        in_fork(self._task.run(place, count_operations(place.root, self._log, reads=True)))
        operations = self._log.read_text().splitlines()
        numbers = np.arange(1, len(operations) + 1)
        if most is not None and most < len(numbers):
            numbers = np.sort(np.random.default_rng(seed).choice(numbers, most, replace=False))
        for number in map(int, numbers):
            place = self._fresh()
            outcome = in_fork(self._task.run(place, fail_at(place.root, number)))
            self._judge(place, outcome, "failing operation", operation=f"{number}: {operations[number - 1]}")

    def at_once(self, num_processes: int) -> None:
        """Several processes run the command in one folder; at least one must succeed."""
        place = self._fresh()
        running = [Running(self._task.run(place)) for _ in range(num_processes)]
        outcomes = [each.outcome() for each in running]
        if all(outcome.status != 0 for outcome in outcomes):
            said = [outcome.said for outcome in outcomes]
            self._tally.fail("lost", attack="at once", verb=self._task.verb, num_processes=num_processes, said=said)
        worst = max(outcomes, key=lambda outcome: (outcome.fault is not None, outcome.status == 2))
        self._judge(place, worst, "at once", num_processes=num_processes)

    def _judge(self, place: Place, outcome: Outcome, kind: str, **about: object) -> None:
        """Judge how the command ended, then run it again without the fault."""
        fail = partial(self._tally.fail, attack=kind, verb=self._task.verb, **about)
        self._tally.begin()
        self._tally.add(kind)
        if outcome.fault is not None:
            fail(outcome.fault, said=outcome.said)
        again = in_fork(self._task.run(place))
        if again.fault is not None or again.status != 0:
            fail(again.fault or "lost", said=again.said, run="the run after it")
        elif differs := differing(tree(place.root), self._expected):
            fail("lost", differs=differs[:5])
        elif outcome.fault is None:
            self._tally.add("refused" if outcome.status == 2 else "harmless")


def _size(root: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in root.rglob("*"))


def _always(root: Path, code: int) -> Callable[[], None]:
    """Patch a fork so that every operation that changes a file fails."""

    def install() -> None:
        def act(number: int, name: str) -> None:
            raise OSError(code, os.strerror(code), "a file of the attack")

        Operations(root, act).install()

    return install


@contextmanager
def disk(path: Path) -> Iterator[Resize | None]:
    """Mount a disk; yield a function that sets its size (None: read-only), or None without the right to mount."""
    path.mkdir()
    is_mounted = _mount("-t", "tmpfs", "-o", f"size={_DISK}", "reliability", str(path))
    try:
        yield partial(_remount, path) if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def _mount(*arguments: str) -> bool:
    return os.geteuid() == 0 and subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def _remount(path: Path, size: int | None) -> bool:
    return _mount("-o", "remount,ro" if size is None else f"remount,rw,size={size}", str(path))
