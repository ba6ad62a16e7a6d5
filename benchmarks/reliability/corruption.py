"""Damaged files: `verify` names each; every reader refuses it or reads the same values as from undamaged files.

One attack damages one or two of the stored files of a dataset, or of its training run's checkpoints. All readers of
Python then read the dataset, and some verbs, drawn at random, run on a copy of it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.reliability import small
from benchmarks.reliability.forks import Outcome, in_fork
from benchmarks.reliability.readers import READERS, read
from benchmarks.reliability.small import Place, Task
from benchmarks.reliability.tally import Tally

VERBS = {
    task.verb: task
    for task in (
        *(small.ORDER, small.WRITE, small.REPORT, small.EXPORT, small.INSPECT, small.MEASURE),
        *(small.TRAIN, small.BUILD),
    )
}
_VERBS_EACH = 2
_COSTS = {"train": 0.15, "build": 0.15, "report": 0.5}
"""The rates of verbs that are drawn less often than others, because they take seconds."""

Rng = np.random.Generator


def _flip(content: bytearray, rng: Rng) -> None:
    """Flip one bit, half of the times near an end, where headers and footers are."""
    size = len(content)
    edge = min(size, 256)
    place = int(rng.integers(size)) if rng.random() < 0.5 else int(rng.integers(edge)) - (rng.random() < 0.5) * edge
    content[place] ^= 1 << int(rng.integers(8))


def _noise(content: bytearray, rng: Rng) -> None:
    """Choose some consecutive bytes."""
    start = int(rng.integers(len(content)))
    stop = min(len(content), start + int(rng.integers(1, 65)))
    content[start:stop] = bytes(byte ^ int(rng.integers(1, 256)) for byte in content[start:stop])


def _cut(content: bytearray, rng: Rng) -> None:
    del content[int(rng.integers(len(content))) :]


def _extend(content: bytearray, rng: Rng) -> None:
    added = int(rng.integers(1, 200))
    content += bytes(added) if rng.random() < 0.5 else rng.bytes(added)


_CHANGES: tuple[Callable[[bytearray, Rng], None], ...] = (_flip, _flip, _flip, _noise, _cut, _extend)


def damage(root: Path, kinds: Mapping[str, list[Path]], rng: Rng) -> tuple[str, list[Path]]:
    """Damage a file of a random kind; return a description of the damage, and the changed files."""
    names = sorted(kinds)
    path = kinds[names[rng.integers(len(names))]][0:]
    path = path[rng.integers(len(path))]
    content = path.read_bytes()
    choice = rng.random()
    if choice < 0.1 or not content:
        path.unlink()
        return "deleted", [path]
    if choice < 0.3:
        files = [each for paths in kinds.values() for each in paths if each != path and each.exists()]
        equals = [each for each in files if each.stat().st_size == len(content) and each.read_bytes() != content]
        if equals:
            other = equals[rng.integers(len(equals))]
            path.write_bytes(other.read_bytes())
            other.write_bytes(content)
            return f"swapped with {other.relative_to(root)}", [path, other]
    change = _CHANGES[rng.integers(len(_CHANGES))]
    changed = bytearray(content)
    change(changed, rng)
    path.write_bytes(changed)
    return change.__name__.strip("_"), [path]


def kinds_of_files(root: Path) -> dict[str, list[Path]]:
    """The stored files by kind: folder and ending."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if not path.is_file() or name.parts[0] in (".lock", "build.log", ".cache") or path.name == "log.jsonl":
            continue  # the log of a run grows with every step, so it has no hash
        kinds.setdefault(f"{name.parts[0]} {path.suffix}", []).append(path)
    return kinds


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """Damage files `count` times."""
    sound = small.build(folder / "sound") if dataset is None else dataset.copied_to(folder / "sound")
    small.begin_training(sound)
    expected = _readings(sound.dataset, folder / "readings").readings
    products = {verb: _products(task, sound.copied_to(folder / "run")) for verb, task in VERBS.items()}
    wrong = [f"{reader}: {text}" for reader, text in expected.items() if not text.startswith("= ")]
    wrong += [f"{verb}: {outcome.said}" for verb, (outcome, _) in products.items() if outcome.status != 0]
    if wrong:
        raise RuntimeError(f"The undamaged dataset cannot be read: {wrong}")
    damaged, tally = sound.copied_to(folder / "damaged"), Tally(seed)
    kinds = kinds_of_files(damaged.dataset)
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        how, paths = damage(damaged.dataset, kinds, rng)
        names = [str(path.relative_to(damaged.dataset)) for path in paths]
        fail = partial(tally.fail, attack=number, file=names[0], damage=how)
        tally.begin()
        if how != "deleted" or not names[0].startswith("training/"):  # a run removes checkpoints itself
            _check_verify(tally, fail, damaged, names)
        found = _readings(damaged.dataset, folder / "readings")
        if found.outcome.status != 0:
            fail("crashes" if found.outcome.status is not None else "hangs", reader=found.last, said=found.outcome.said)
        for reader, text in found.readings.items():
            if text == expected[reader]:
                tally.add("harmless")
            elif text.startswith("refused"):
                tally.add("refused")
            else:
                fail("silent" if text.startswith("= ") else "tracebacks", reader=reader, said=ascii(text)[:300])
        for verb in _chosen_verbs(names, rng):
            outcome, made = _products(VERBS[verb], damaged.copied_to(folder / "run"))
            differs = small.differing(made, products[verb][1])
            # A build keeps files that it does not read; results made from them must be unchanged.
            _judge(tally, fail, verb, outcome, not set(differs) - {f"dataset/{name}" for name in names})
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(sound.root / path.relative_to(damaged.root), path)
    return tally.result


def _check_verify(tally: Tally, fail: Callable[..., None], damaged: Place, names: list[str]) -> None:
    outcome = in_fork(small.VERIFY.run(damaged))
    if outcome.fault is not None:
        fail(outcome.fault, reader="verify", said=outcome.said)
    elif outcome.status == 0 or not all(name in outcome.error for name in names):
        fail("unnamed", reader="verify", said=outcome.said)
    else:
        tally.add("named")


def _chosen_verbs(names: list[str], rng: Rng) -> list[str]:
    if any(name.startswith("training/") for name in names):
        return ["train"]  # nothing else reads checkpoints
    verbs = list(VERBS)
    weights = np.array([_COSTS.get(verb, 1.0) for verb in verbs])
    return [verbs[index] for index in rng.choice(len(verbs), _VERBS_EACH, replace=False, p=weights / weights.sum())]


def _judge(tally: Tally, fail: Callable[..., None], verb: str, outcome: Outcome, is_equal: bool) -> None:
    if outcome.fault is not None:
        fail(outcome.fault, reader=verb, said=outcome.said)
    elif outcome.status == 2 and "learning_rate" in outcome.error:
        fail("unclear", reader=verb, said=outcome.said)  # damage, not a setting, is the cause
    elif outcome.status == 2:
        tally.add("refused")
    elif is_equal:
        tally.add("harmless")
    else:
        fail("silent", reader=verb, said=outcome.said)


class _Readings:
    """The values of each reader; `last` is the reader at which the process crashed, if it did."""

    def __init__(self, outcome: Outcome, lines: list[str]) -> None:
        self.outcome = outcome
        pairs = [line.split("\t", 1) for line in lines]
        self.readings = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
        self.last = pairs[-1][0] if pairs else ""


def _readings(root: Path, log: Path) -> _Readings:
    def work() -> None:
        with log.open("w", encoding="utf-8", errors="backslashreplace") as file:
            for reader in READERS:
                file.write(reader)
                file.flush()
                text = " ".join(read(reader, root).split())
                file.write(f"\t{text}\n")

    outcome = in_fork(work)
    return _Readings(outcome, log.read_text(encoding="utf-8").splitlines())


def _products(task: Task, place: Place) -> tuple[Outcome, dict[str, str]]:
    """The end of a verb, and hashes of its output and its files."""
    outcome = in_fork(task.run(place))
    made = {name: hashed for name, hashed in small.tree(place.root).items() if fnmatch(name, task.products)}
    if not task.products:  # its output is its only result
        made["output"] = hashlib.sha256(outcome.output.encode("utf-8", "backslashreplace")).hexdigest()
    return outcome, made
