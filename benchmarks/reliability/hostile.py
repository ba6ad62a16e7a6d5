"""Bad inputs: the command line answers with one sentence and status 2, the API with an error that names the argument.

A refused command must not write anything, and no control characters of data may reach a terminal.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.reliability import small
from benchmarks.reliability.forks import in_fork, in_new_process
from benchmarks.reliability.hostile_calls import attack_calls
from benchmarks.reliability.hostile_inputs import Input, all_inputs
from benchmarks.reliability.small import Place
from benchmarks.reliability.tally import Tally

MEMORY = 6 * 2**30
_IN_PROGRESS = (".lock", "build.log", ".cache", ".partial")
_PATIENCE = 60.0
_NEW_PROCESS_EVERY = 40
"""One command line in this number runs in a new Python, which takes seconds to start."""


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """Two thirds of `count` are command lines, one third calls."""
    sound = small.build(folder / "sound") if dataset is None else dataset
    tally = Tally(seed)
    num_calls = count // 3
    attack_lines(tally, sound, folder, count - num_calls, np.random.default_rng(seed))
    attack_calls(tally, sound, num_calls, np.random.default_rng(seed))
    return tally.result


def attack_lines(tally: Tally, sound: Place, folder: Path, count: int, rng: np.random.Generator) -> None:
    """Command lines, as many from every table as there are tables' inputs, drawn without repeats."""
    tables = [list(rng.permutation(np.array(inputs, object))) for inputs in all_inputs().values()]
    chosen: list[Input] = []
    while len(chosen) < count and any(tables):
        chosen += [table.pop() for table in tables if table]
    # Built in its own place: the corpus of a copy is another corpus, so that a build would replace all results first.
    place, _ = _fresh(sound, folder)
    if (built := in_fork(small.BUILD.run(place), 600)).status != 0:
        raise RuntimeError(f"The small dataset cannot be built again: {built.error}")
    sound = place.copied_to(folder / "intact")
    place, former = _fresh(sound, folder)
    for number, hostile in enumerate(chosen[:count]):
        hostile.prepare(place)
        before = _stamps(place.root)
        arguments = hostile.arguments(place)
        if number % _NEW_PROCESS_EVERY == _NEW_PROCESS_EVERY - 1:
            outcome = in_new_process(arguments, place.root, _PATIENCE)
        else:
            outcome = in_fork(small.command(arguments, _limit(place.root)), _PATIENCE)
        written = _changed(before, _stamps(place.root))
        fail = partial(tally.fail, input=ascii(hostile.about))
        tally.begin()
        if outcome.fault is not None:
            fail(outcome.fault, status=outcome.status, said=outcome.said)
        elif outcome.status == 2 and (kept := [name for name in written if not _is_progress(name, place)]):
            fail("written", files=kept[:5], said=outcome.said)
        elif outcome.status == 0 and not hostile.may_succeed:
            fail("silent", said=ascii(outcome.output[-200:]))
        else:
            tally.add("refused" if outcome.status == 2 else "accepted")
        if written or _stamps(place.root) != former:
            place, former = _fresh(sound, folder)


def _limit(root: Path) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.chdir(root)  # a name that is used as a relative path ends in the checked folder

    return limit


def _fresh(sound: Place, folder: Path) -> tuple[Place, dict[str, tuple[int, ...]]]:
    place = sound.copied_to(folder / "hostile")
    small.remove(place.dataset / "training")
    (place.root / "beside").mkdir(exist_ok=True)
    return place, _stamps(place.root)


def _is_progress(name: str, place: Place) -> bool:
    """Whether a file belongs to a build that stopped: finished stages of a new dataset, a lock, a log."""
    parts = Path(name).parts
    return parts[0] == "new" or bool(set(parts) & set(_IN_PROGRESS))


def _stamps(root: Path) -> dict[str, tuple[int, ...]]:
    stamps = {}
    for folder, _, files in os.walk(root):
        for file in files:
            status = os.lstat(os.path.join(folder, file))
            name = os.path.relpath(os.path.join(folder, file), root)
            stamps[name] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return stamps


def _changed(before: dict[str, tuple[int, ...]], after: dict[str, tuple[int, ...]]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
