"""Datasets from elsewhere: no code of theirs runs, no file outside them changes, and no damage becomes an artifact.

Every attack changes a copy of a dataset, signs its manifest or schedule anew, and runs commands on it. `count` is the
number of attacks of each kind.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import jax_diversity as jd
from benchmarks.reliability import small
from benchmarks.reliability.forks import in_fork
from benchmarks.reliability.operations import count_operations, kill_at
from benchmarks.reliability.small import Place, Task
from benchmarks.reliability.tally import Tally
from jax_diversity.foundation.artifacts import signed

_RAN = "ran"
"""The file that code of a dataset would make."""
_OWN_MODULE = """
import pathlib, sys
def run(*args, **given):
    pathlib.Path({ran!r}).touch()
class Ending:
    dimensions = 4
    def embed(self, texts):
        sys.exit(0)
def ends():
    return Ending()
def exits(*args, **given):
    sys.exit(0)
"""
_AGAIN = Task(
    "build",
    (*small.BUILD.options, "--embedding.seed", "1", "--packing.seed", "1", "--characteristics.length-bins", "3"),
)
_VERBS = (
    small.VERIFY,
    small.BUILD,
    Task("embed"),
    Task("prepare"),
    small.REPORT,
    small.ORDER,
    Task("cluster"),
    Task("pack"),
)
_CHANGING = (
    small.BUILD,
    small.ORDER,
    small.WRITE,
    small.REPORT,
    Task("embed", ("--embedding.seed", "2")),
    small.EXPORT,
)


@dataclass(frozen=True)
class Attack:
    """A change of a dataset, and the commands that are then run on it."""

    about: str
    prepare: Callable[[Place], None]
    tasks: Sequence[Callable[[Place], list[str]]]
    must_refuse: bool = False


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """`count` attacks of each kind, drawn by the seed."""
    sound = small.build(folder / "sound") if dataset is None else dataset
    tally, rng = Tally(seed), np.random.default_rng(seed)
    for kind in (_hooks, _links, _arrays, _exits, _damaged_repacks):
        attacks = list(kind(sound))
        for place in rng.permutation(len(attacks))[:count]:
            _run(tally, attacks[place], sound, folder)
    for number in range(min(count, 12)):
        _pickles(tally, sound, folder, number)
    schedules = list(_schedules())
    for place in rng.permutation(len(schedules))[:count]:
        _schedule(tally, sound, folder, *schedules[place])
    return tally.result


def _run(tally: Tally, attack: Attack, sound: Place, folder: Path) -> None:
    """Every command on a new copy: one command may mend what the next one would meet."""
    for arguments in attack.tasks:
        place = _fresh(sound, folder)
        attack.prepare(place)
        outside, words = place.root / "outside", arguments(place)
        before = _content(outside)
        tally.begin()
        outcome = in_fork(small.command(words, partial(_work_in, place.root)))
        fail = partial(
            tally.fail, attack=attack.about, command=" ".join(words[:1] + words[3:7])[:100], said=outcome.said
        )
        if (place.root / _RAN).exists():
            fail("ran")
        if (after := _content(outside)) != before:
            changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            fail("outside", files=changed[:3])
        if outcome.fault is not None:
            fail(outcome.fault)
        elif attack.must_refuse and outcome.status == 0:
            fail("silent")
        else:
            tally.add("refused" if outcome.status == 2 else "harmless")


def _work_in(root: Path) -> None:
    os.chdir(root)
    sys.path.insert(0, str(root))  # where Python finds the user's own modules


def _fresh(sound: Place, folder: Path) -> Place:
    """A copy of the dataset, with a module of its own in the working folder and a folder outside of the dataset."""
    place = sound.copied_to(folder / "place")
    (place.root / "own_module.py").write_text(_OWN_MODULE.format(ran=str(place.root / _RAN)))
    outside = place.root / "outside"
    (outside / "inner").mkdir(parents=True)
    for name in ("a.npy", "b.parquet", "inner/c.json", "manifest.json"):
        (outside / name).write_text(f"content of {name}")
    return place


def _content(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
    }


def _of(task: Task) -> Callable[[Place], list[str]]:
    return task.arguments


# ---- Code.


def _changed_manifest(place: Place, change: Callable[[dict[str, Any]], object]) -> None:
    path = place.dataset / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(signed(manifest)))


def _hooks(sound: Place) -> Iterator[Attack]:
    command = f"touch {_RAN}"
    methods = {"os:system": {"command": command}, "own_module:run": {}, "subprocess:getoutput": {"cmd": command}}
    for method, options in methods.items():
        for name in ("the settings", "the record", "both"):

            def change(
                manifest: dict[str, Any], name: str = name, method: str = method, options: dict = options
            ) -> None:
                if name != "the record":
                    manifest["settings"]["embedding"] |= {"method": method, "options": options}
                if name != "the settings":
                    manifest["stages"]["embed"]["config"]["embedding"] |= {"method": method, "options": options}

            tasks = [_of(task) for task in (*_VERBS, _AGAIN)] + [_features_from, _repack]
            yield Attack(f"embedding.method {method} in {name}", partial(_changed_manifest, change=change), tasks)
    for function in ("own_module:run", "os:system", "builtins:eval"):

        def steps(manifest: dict[str, Any], function: str = function) -> None:
            listed = [{"step": "python", "options": {"function": function}}]
            manifest["settings"]["preparation"]["steps"] = listed
            manifest["stages"]["prepare"]["config"]["preparation"] = listed

        def without_file(manifest: dict[str, Any], steps: Callable = steps) -> None:
            steps(manifest)
            del manifest["stages"]["prepare"]

        for about, change in (("", steps), (", and prepare to be done", without_file)):
            tasks = [_of(task) for task in _VERBS[:4]] + [_bare("build"), _bare("prepare"), _repack]
            yield Attack(f"step python {function}{about}", partial(_changed_manifest, change=change), tasks)


def _bare(verb: str) -> Callable[[Place], list[str]]:
    """A command with the settings of the manifest alone."""
    return lambda place: [verb, "--out", str(place.dataset), "--quiet"]


def _features_from(place: Place) -> list[str]:
    paths = ["--corpus.paths", f"{place.corpus}/*.jsonl"]
    return ["build", "--out", str(place.root / "new"), "--quiet", *paths, "--features-from", str(place.dataset)]


def _repack(place: Place) -> list[str]:
    return ["repack", "--out", str(place.dataset), "--to", str(place.root / "repacked"), "--seed", "5", "--quiet"]


class _Payload:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._path,)


def _arrays(sound: Place) -> Iterator[Attack]:
    """Stored arrays that hold pickled objects, with their hashes in the manifest."""
    for path in sorted(sound.dataset.rglob("*.np[yz]")):
        name = str(path.relative_to(sound.dataset))

        def prepare(place: Place, name: str = name) -> None:
            with (place.dataset / name).open("wb") as file:
                objects = np.array([_Payload(place.root / _RAN)], object)
                np.save(file, objects) if name.endswith(".npy") else np.savez(file, data=objects)
            _enter(place, name)

        yield Attack(
            f"pickled objects in {name}",
            prepare,
            [_of(task) for task in (small.BUILD, small.REPORT, small.MEASURE, small.INSPECT)],
        )


def _enter(place: Place, name: str) -> None:
    """Enter a changed file in the manifest."""
    content = (place.dataset / name).read_bytes()

    def change(manifest: dict[str, Any]) -> None:
        for entry in manifest["stages"].values():
            if name in entry["files"]:
                entry["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    _changed_manifest(place, change)


def _pickles(tally: Tally, sound: Place, folder: Path, number: int) -> None:
    """Parts and notes of an interrupted preparation are replaced by pickles, and the preparation continues."""
    place = _fresh(sound, folder)
    small.remove(place.dataset)
    (place.root / "settings.yaml").write_text(
        json.dumps({"preparation": {"steps": [{"step": "minhash"}, {"step": "lines"}]}})
    )
    words = ["prepare", "--out", str(place.dataset), "--config", str(place.root / "settings.yaml"), "--quiet"]
    words += ["--corpus.paths", f"{place.corpus}/*.jsonl"]
    log = folder / "operations"
    in_fork(small.command(words, count_operations(place.root, log)))
    total = len(log.read_text().splitlines())
    small.remove(place.dataset)
    in_fork(small.command(words, kill_at(place.root, 4 + number * total // 12)), then_kill=True)
    replaced = []
    for path in sorted(place.dataset.rglob(".partial/**/*")):
        if path.is_file():
            path.write_bytes(pickle.dumps(_Payload(place.root / _RAN)))
            replaced.append(path.name)
    tally.begin()
    outcome = in_fork(small.command(words))
    about = {"attack": f"pickles in .partial: {', '.join(replaced)[:200]}", "said": outcome.said}
    if (place.root / _RAN).exists():
        tally.fail("ran", **about)
    if outcome.fault is not None:
        tally.fail(outcome.fault, **about)
    else:
        tally.add("refused" if outcome.status == 2 else "harmless")


# ---- Links.


def _links(sound: Place) -> Iterator[Attack]:
    """Links at every component: folders and files of the dataset, and further ones in its folders."""
    further = itertools.cycle(map(_of, _CHANGING))
    for path in (
        *sorted(sound.dataset.rglob("*")),
        *(sound.dataset / name for name in (".lock", ".partial", ".cache", "training", "build.log")),
    ):
        name = str(path.relative_to(sound.dataset))

        def move(place: Place, name: str = name, is_folder: bool = path.suffix == "") -> None:
            source, target = place.dataset / name, place.root / "outside" / "moved" / Path(name).name
            target.parent.mkdir()
            if source.exists():
                shutil.move(source, target)
            elif is_folder and name not in (".lock", ".cache"):
                target.mkdir()
                (target / "a").write_text("content")
            else:
                target.write_text("content")
            source.symlink_to(target)

        yield Attack(f"{name} is a link", move, [_of(_AGAIN), next(further)])
        if path.is_dir():
            for target in ("", "inner", "a.npy"):

                def add(place: Place, name: str = name, target: str = target) -> None:
                    (place.dataset / name / "extra").symlink_to(place.root / "outside" / target)

                yield Attack(f"a link {name}/extra to outside/{target}", add, [_of(_AGAIN), next(further)])


# ---- Ends and damage.


def _exits(sound: Place) -> Iterator[Attack]:
    """Own functions, which the user names, that end the process with status 0."""
    for method in ("own_module:ends", "own_module:exits"):

        def embed(place: Place, method: str = method) -> list[str]:
            return [
                "build",
                "--out",
                str(place.root / "new"),
                "--quiet",
                "--corpus.paths",
                f"{place.corpus}/*.jsonl",
                *small.BUILD.options,
                "--embedding.method",
                method,
                "--embedding.options",
            ]

        yield Attack(f"embedding.method {method}", lambda place: None, [embed], must_refuse=True)


def _damaged_repacks(sound: Place) -> Iterator[Attack]:
    for folder in ("documents", "tokens", "embeddings", "clusters", "duplicates"):
        for path in sorted((sound.dataset / folder).glob("*"))[:3]:

            def damage(place: Place, name: str = str(path.relative_to(sound.dataset))) -> None:
                content = bytearray((place.dataset / name).read_bytes())
                content[len(content) // 2] ^= 4
                (place.dataset / name).write_bytes(content)

            yield Attack(f"repack with damaged {path.relative_to(sound.dataset)}", damage, [_repack], must_refuse=True)


# ---- Schedules.


def _schedules() -> Iterator[tuple[str, Callable[[dict[str, Any]], object]]]:
    """Changes of a schedule that no run can follow."""
    wrong: Mapping[str, Sequence[Any]] = {
        "part": (9, -1, 0.5, "0", None, 10**30),
        "start": (-1, 10**9, 0.5, "0", None, [0], 10**30),
        "stop": (10**9, -5, 0, "9", None, 10**30, True),
        "skipped": (1, "no", None),
    }
    for name, values in wrong.items():
        for value in values:
            yield (
                f"slice {name}={value}",
                lambda plain, name=name, value=value: plain["versions"][0]["slices"][0].update({name: value}),
            )
    for name, values in {
        "num_sequences": (1, 10**9, -1, 0.5, "x", None),
        "sequence_length": (1, 0, -1, 10**9, "x"),
        "path": ("/nowhere", "", 5, "../../outside", "a\0b"),
        "fingerprint": ("", 5, "x"),
    }.items():
        for value in values:
            yield (
                f"dataset {name}={value!r}",
                lambda plain, name=name, value=value: plain["datasets"][0].update({name: value}),
            )
    for name, values in {
        "file": ("../outside/a.npy", "", 5, "nowhere.npy", "/etc/passwd"),
        "num_positions": (0, -1, 10**9, 1.5, "x"),
        "sequence_length": (0, -1, 8, "x"),
        "fingerprint": ("x", 5),
    }.items():
        for value in values:
            yield (
                f"part {name}={value!r}",
                lambda plain, name=name, value=value: plain["parts"][0].update({name: value}),
            )
    for name in ("versions", "parts", "datasets"):
        for value in ([], None, {}, [{}], "x", [None]):
            yield f"{name}={value}", lambda plain, name=name, value=value: plain.update({name: value})
    for value in (0, 2, -1, "x", None):
        yield f"num_datasets={value}", lambda plain, value=value: plain["versions"][0].update(num_datasets=value)


def _schedule(tally: Tally, sound: Place, folder: Path, about: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a schedule, sign it and read it in every way."""
    place = _fresh(sound, folder)
    path = place.root / "run"

    def make() -> None:
        jd.create_schedule(path, [place.dataset], num_epochs=2, method="uniform_shuffle")
        plain = json.loads((path / "schedule.json").read_text())
        change(plain)
        (path / "schedule.json").write_text(json.dumps(signed(plain)))

    if in_fork(make).status != 0:
        raise RuntimeError("A schedule cannot be made.")
    for way, read in _WAYS.items():
        tally.begin()
        outcome = in_fork(partial(_answer, partial(read, path)))
        if outcome.status != 0:
            tally.fail(outcome.fault or "crashes", attack=f"schedule: {about}", way=way, said=outcome.said)
        elif outcome.value[0] == "tracebacks":
            tally.fail("tracebacks", attack=f"schedule: {about}", way=way, said=outcome.value[1])
        else:
            tally.add(outcome.value[0])
        if way == "batches" and outcome.status == 0 and outcome.value[0] == "accepted" and about not in _HARMLESS:
            tally.fail("silent", attack=f"schedule: {about}", said=outcome.value[1])


_HARMLESS = ("slice stop=0",)
"""What is followed, but to another end."""


def _answer(read: Callable[[], Any]) -> tuple[str, str]:
    try:
        return "accepted", str(read())[:200]
    except jd.UserError as error:
        return "refused", str(error)
    except BaseException as error:
        return "tracebacks", f"{type(error).__name__}: {ascii(str(error))[:200]}"


def _batches(path: Path) -> int:
    loader = jd.make_loader(path, global_batch_size=8, fields=("inputs",), num_prefetch=0)
    return sum(len(batch["inputs"]) for batch in loader)


def _extended(path: Path) -> Any:
    return jd.extend_schedule(jd.open_schedule(path), num_epochs=4)


_WAYS: Mapping[str, Callable[[Path], Any]] = {
    "batches": _batches,
    "open": lambda path: repr(jd.open_schedule(path)),
    "extend": _extended,
}
