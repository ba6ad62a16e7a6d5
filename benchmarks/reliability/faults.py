"""A disk that is full, read-only or fails, and several processes at once: one sentence, and nothing half written.

After every attack the cause is taken away and the same command is run again: the end state is that of a run that met no
fault, byte for byte. `count` is the number of sizes of the full disk; as many failing operations of each command are
tried, all of them from 20 on. Disks of their own need the right to mount; without it, a limit on the size of files
takes the place of the full disk and the read-only disk is an error that is injected.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.reliability import small
from benchmarks.reliability.forks import Outcome, Running, in_fork
from benchmarks.reliability.operations import Operations, count_operations, fail_at
from benchmarks.reliability.small import Place, Task, differing, tree
from benchmarks.reliability.tally import Tally

TASKS = (small.BUILD, small.ORDER, small.WRITE, small.REPORT, small.EXPORT, small.TRAIN)
READING = (small.MEASURE, small.INSPECT, small.VERIFY)
_BLOCK = 2**16


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """Attack every command that writes in every way."""
    sound = small.build(folder / "sound") if dataset is None else dataset
    tally, every = Tally(seed), count >= 20
    for number, task in enumerate(TASKS):
        before = _before(task, sound, folder / "before")
        in_fork(task.run(before.copied_to(folder / "run")))  # compiles what there is to compile
        place = before.copied_to(folder / "run")
        used = _size(place.root)
        if in_fork(task.run(place)).status != 0:
            raise RuntimeError(f"{task.verb} cannot be run.")
        expected, added = tree(place.root), _size(place.root) - used
        sizes = [round(added * share) for share in np.linspace(0, 1, count)]
        for size in sizes if every else sizes[number % 2 :: 2]:
            _full_disk(tally, task, before, folder, expected, size)
        _read_only(tally, task, before, folder, expected)
        _failing_operations(tally, task, before, folder, expected, None if every else max(1, count // 3), seed)
        for num_processes in (2, 4) if every else (2 + number % 2 * 2,):
            _at_once(tally, task, before, folder, expected, num_processes)
    for task in READING if every else ():
        _failing_operations(tally, task, sound, folder, tree(sound.root), None, seed)
    return tally.result


def _before(task: Task, sound: Place, folder: Path) -> Place:
    place = sound.copied_to(folder)
    if task is small.BUILD:
        small.remove(place.dataset)
    return place


def _size(root: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in root.rglob("*"))


def _judge(
    tally: Tally, task: Task, place: Place, expected: dict[str, str], outcome: Outcome, kind: str, **about: object
) -> None:
    """Judge how the command ended, then run it again without the fault."""
    fail = partial(tally.fail, attack=kind, verb=task.verb, **about)
    tally.attacks += 1
    tally.add(kind)
    if outcome.fault is not None:
        fail(outcome.fault, said=outcome.said)
    again = in_fork(task.run(place))
    if again.fault is not None or again.status != 0:
        fail(again.fault or "lost", said=again.said, run="the run after it")
    elif differs := differing(tree(place.root), expected):
        fail("lost", differs=differs[:5])
    elif outcome.fault is None:
        tally.add("refused" if outcome.status == 2 else "harmless")


def _full_disk(
    tally: Tally, task: Task, before: Place, folder: Path, expected: dict[str, str], size: int
) -> None:
    with disk(folder / "disk", _size(before.root) + 64 * _BLOCK) as resize:
        place = before.copied_to(folder / "disk" / "run")
        if resize is None:
            outcome = in_fork(task.run(place, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))))
        else:
            used = os.statvfs(place.root)
            resize((used.f_blocks - used.f_bfree) * used.f_frsize + size)
            outcome = in_fork(task.run(place))
            resize(2**28)
        _judge(tally, task, place, expected, outcome, "full disk", bytes_left=size)


def _read_only(tally: Tally, task: Task, before: Place, folder: Path, expected: dict[str, str]) -> None:
    with disk(folder / "disk", 2**28) as resize:
        place = before.copied_to(folder / "disk" / "run")
        if resize is None:
            outcome = in_fork(task.run(place, _always(place.root, errno.EROFS)))
        else:
            resize(None)
            outcome = in_fork(task.run(place))
            resize(2**28)
        _judge(tally, task, place, expected, outcome, "read-only disk")


def _failing_operations(
    tally: Tally, task: Task, before: Place, folder: Path, expected: dict[str, str], most: int | None, seed: int
) -> None:
    place, log = before.copied_to(folder / "run"), folder / "operations"
    in_fork(task.run(place, count_operations(place.root, log, reads=True)))
    operations = log.read_text().splitlines()
    numbers = np.arange(1, len(operations) + 1)
    if most is not None and most < len(numbers):
        numbers = np.sort(np.random.default_rng(seed).choice(numbers, most, replace=False))
    for number in map(int, numbers):
        place = before.copied_to(folder / "run")
        outcome = in_fork(task.run(place, fail_at(place.root, number)))
        where = f"{number}: {operations[number - 1]}"
        _judge(tally, task, place, expected, outcome, "failing operation", operation=where)


def _at_once(
    tally: Tally, task: Task, before: Place, folder: Path, expected: dict[str, str], num_processes: int
) -> None:
    place = before.copied_to(folder / "run")
    running = [Running(task.run(place)) for _ in range(num_processes)]
    outcomes = [each.outcome() for each in running]
    if not any(outcome.status == 0 for outcome in outcomes):
        said = [outcome.said for outcome in outcomes]
        tally.fail("lost", attack="at once", verb=task.verb, num_processes=num_processes, said=said)
    worst = max(outcomes, key=lambda outcome: (outcome.fault is not None, outcome.status == 2))
    _judge(tally, task, place, expected, worst, "at once", num_processes=num_processes)


def _always(root: Path, code: int) -> Callable[[], None]:
    """Patches for a fork: every operation that changes a file fails."""

    def install() -> None:
        def act(number: int, name: str) -> None:
            raise OSError(code, os.strerror(code), "a file of the attack")

        Operations(root, act).install()

    return install


Resize = Callable[[int | None], None]


def disk(path: Path, size: int) -> AbstractContextManager[Resize | None]:
    """A small disk of its own; gives a function that sets its size, or None for read-only. None without the right."""

    @contextmanager
    def mounted():
        path.mkdir(exist_ok=True)
        is_mounted = _mount("-t", "tmpfs", "-o", f"size={size}", "reliability", str(path))
        try:
            yield (lambda new: _remount(path, new)) if is_mounted else None
        finally:
            if is_mounted:
                subprocess.run(["umount", "--lazy", str(path)], check=True)
            small.remove(path)

    return mounted()


def _mount(*arguments: str) -> bool:
    return os.geteuid() == 0 and subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def _remount(path: Path, size: int | None) -> None:
    state = "ro" if size is None else f"rw,size={size}"
    if not _mount("-o", f"remount,{state}", str(path)):
        raise RuntimeError(f"{path} cannot be mounted again as {state}.")
