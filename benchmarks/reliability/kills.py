"""Commands that are killed, then run again: the end state is that of a run that was not killed, byte for byte.

Half of the attacks are at random moments, the others before every file operation of each command in turn. If the
count is smaller than the number of operations, they are spread evenly. Losses of training are equal bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.reliability import small
from benchmarks.reliability.forks import Running, in_fork
from benchmarks.reliability.operations import count_operations, kill_at
from benchmarks.reliability.small import Place, Task, differing, tree
from benchmarks.reliability.tally import Tally

TASKS = (small.EXPORT, small.ORDER, small.WRITE, small.BUILD, small.TRAIN)


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """`count` kills at random moments, and as many before operations; a count of 100 or more takes every operation."""
    sound = small.build(folder / "sound") if dataset is None else dataset
    tally = Tally(seed)
    rng = np.random.default_rng(seed)
    for index, task in enumerate(TASKS):
        before = _before(task, sound, folder / "before")
        num_random = len(range(index, count, len(TASKS)))
        if num_random:
            _attack_task(tally, task, before, folder, num_random, rng, every=count >= 100)
    return tally.result


def _before(task: Task, sound: Place, folder: Path) -> Place:
    """The start of a task: a corpus alone, or a dataset."""
    place = sound.copied_to(folder)
    if task is small.BUILD:
        small.remove(place.dataset)
    return place


def _attack_task(
    tally: Tally, task: Task, before: Place, folder: Path, num_random: int, rng: np.random.Generator, *, every: bool
) -> None:
    place = before.copied_to(folder / "run")
    names = folder / "operations"
    in_fork(task.run(place, count_operations(place.root, names)))  # compiles all programs
    operations = names.read_text().splitlines()
    place = before.copied_to(folder / "run")
    start = time.monotonic()
    outcome = in_fork(task.run(place))
    seconds = time.monotonic() - start
    if outcome.status != 0:
        raise RuntimeError(f"{task.verb} cannot be run: {outcome.said}")
    expected = tree(place.root)
    tally.add("operations", len(operations))
    for number in range(num_random):
        place = before.copied_to(folder / "run")
        moments = [float(moment) for moment in rng.uniform(0, seconds, 1 + number % 2)]  # some are killed twice
        killed = sum(_killed_after(task.run(place), moment) for moment in moments)
        _judge(tally, task, place, expected, killed, moments=[round(moment, 4) for moment in moments])
    chosen: Sequence[int] = range(1, len(operations) + 1)
    if not every:
        chosen = sorted({round(float(at)) for at in np.linspace(1, len(operations), num_random)})
    for number in chosen:
        place = before.copied_to(folder / "run")
        killed = in_fork(task.run(place, kill_at(place.root, number)), then_kill=True).was_killed
        _judge(tally, task, place, expected, int(killed), operation=f"{number}: {operations[number - 1]}")


def _killed_after(work: Callable[[], int], seconds: float) -> bool:
    return Running(work).outcome(seconds, then_kill=True).was_killed


def _judge(tally: Tally, task: Task, place: Place, expected: dict[str, str], killed: int, **about: object) -> None:
    fail = partial(tally.fail, verb=task.verb, **about)
    tally.begin()
    tally.add("kills", killed)
    outcome = in_fork(task.run(place))
    if outcome.fault is not None:
        fail(outcome.fault, said=outcome.said)
    elif outcome.status != 0:
        fail("lost", said=outcome.said)
    elif differs := differing(tree(place.root), expected):
        fail("lost", differs=differs[:5])
    else:
        tally.add("equal")
