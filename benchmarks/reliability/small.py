"""The small dataset for the attacks, the commands that run on it, and the content of a folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reliability.forks import command, in_fork

_TOPICS = {
    "cooking": "onion butter oven simmer garlic recipe salt pan stir flour bake sauce",
    "sailing": "mast sail harbour wind anchor deck keel rope tide captain rudder crew",
    "music": "violin chord melody orchestra tempo rhythm concert piano string note choir song",
}
_SETTINGS = {
    "corpus.file-bytes": 8000,
    "tokenizer.vocab-size": 300,
    "embedding.method": "hashing",
    "embedding.options": "dimensions 16",
    "cluster.num-clusters": 3,
    "packing.sequence-length": 32,
    "packing.validation-fraction": 0.05,
    "characteristics.families": "cluster length source language",
    "characteristics.length-bins": 4,
    "windows": "8 32",
    "records.sequences-per-file": 100,
}
_TRAINING = {
    "num-steps": 6,
    "batch-size": 4,
    "width": 16,
    "num-heads": 2,
    "num-layers": 1,
    "checkpoint-every": 2,
    "warmup-steps": 1,
    "validate-every": 3,
    "validation-batches": 1,
}
_OWN = (".lock", "build.log", ".cache")
"""Files in a dataset's folder that are not artifacts: process numbers, times, cached hashes."""


def write_corpus(folder: Path, num_documents: int = 80, seed: int = 0) -> None:
    """Two JSONL files of short documents on three topics."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    topics = list(_TOPICS)
    lines: list[list[str]] = [[], []]
    for index in range(num_documents):
        topic = topics[rng.integers(len(topics))]
        text = " ".join(rng.choice(_TOPICS[topic].split(), int(rng.lognormal(3.5, 0.8)) + 5))
        language = ("en", "de")[index % 3 == 0]
        record = {"id": f"doc-{index}", "text": text, "source": topic, "language": language, "year": 1990 + index % 7}
        lines[index % 2].append(json.dumps(record))
    for index, part in enumerate(lines):
        (folder / f"part-{index}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")


def options(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Settings as arguments of a command line."""
    words = [[f"--{prefix}{name}", *str(value).split()] for name, value in settings.items()]
    return [word for option in words for word in option]


@dataclass(frozen=True)
class Task:
    """A verb with its options. `products` is the pattern of the files that it makes, in the place of the dataset."""

    verb: str
    options: tuple[str, ...] = ()
    products: str = ""

    def arguments(self, place: Place) -> list[str]:
        """The command line, for a dataset in a place."""
        words = [self.verb, "--out", str(place.dataset), *self.options]
        words += [] if self.verb == "inspect" else ["--quiet"]
        words += ["--corpus.paths", f"{place.corpus}/*.jsonl"] if self.verb in ("build", "prepare") else []
        return words + (["--target", str(place.exported)] if self.verb == "export" else [])

    def run(self, place: Place, before: Callable[[], None] | None = None) -> Callable[[], int]:
        """Make the command work for a fork."""
        return command(self.arguments(place), before)


@dataclass(frozen=True)
class Place:
    """A folder with a corpus, a dataset and an export."""

    root: Path

    @property
    def corpus(self) -> Path:
        """The corpus's folder."""
        return self.root / "corpus"

    @property
    def dataset(self) -> Path:
        """The dataset's folder."""
        return self.root / "dataset"

    @property
    def exported(self) -> Path:
        """The export's folder."""
        return self.root / "export"

    def copied_to(self, root: Path) -> Place:
        """Copy it to another folder, which is emptied first."""
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.root, root, symlinks=True)
        return Place(root)


BUILD = Task("build", tuple(options(_SETTINGS)), "dataset/*")
ORDER = Task("order", ("--method", "stratified", "--seed", "3", "--name", "more"), "dataset/orderings/more.*")
WRITE = Task("write", ("--records.layout", "ordered", "--records.sequences-per-file", "90"), "dataset/records/*")
REPORT = Task("report", (), "dataset/report.*")
EXPORT = Task("export", ("--to", "maxtext"), "export/*")
TRAIN = Task("train", tuple(options(_TRAINING, "train.")), "dataset/training/*")
INSPECT = Task("inspect", ("--json", "--batch-size", "8", "--step", "3"))
MEASURE = Task("measure", ("--json",))
VERIFY = Task("verify")


def build(root: Path) -> Place:
    """The corpus and its dataset."""
    place = Place(root)
    write_corpus(place.corpus)
    done = in_fork(BUILD.run(place), patience=600)
    if done.status != 0:
        raise RuntimeError(f"The small dataset cannot be built: {done.error}")
    return place


def begin_training(place: Place, num_steps: int = 5) -> None:
    """A training run that is interrupted after so many steps, with the checkpoint of the last even one."""

    def work() -> None:
        from jax_diversity.lab import training

        records = []

        def stop(record: Mapping[str, Any]) -> None:
            records.append(record)
            if len(records) == num_steps:
                raise KeyboardInterrupt

        train = training.train
        training.train = lambda *args, **kwargs: train(*args, **{**kwargs, "on_step": stop})
        TRAIN.run(place)()

    in_fork(work, patience=600)
    if not (place.dataset / "training" / "balance" / "log.jsonl").exists():
        raise RuntimeError("The training run was not begun.")


def training_config() -> Any:
    """The settings of `TRAIN`, for calls from Python."""
    from jax_diversity.lab.settings import TrainConfig

    return TrainConfig(**{name.replace("-", "_"): value for name, value in _TRAINING.items()})


def remove(folder: Path) -> None:
    """Remove a folder, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


def tree(root: Path) -> dict[str, str]:
    """Every file's hash; for training runs the losses and leftover files, because logs and checkpoints hold times."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        parts = [part for part in name.parts if part != "dataset"]
        if not path.is_file() or parts[0] in _OWN:
            continue
        content = path.read_bytes()
        if parts[0] == "training" and path.name == "log.jsonl":
            content = losses(path)
        elif parts[0] == "training" and "tmp" not in str(name):
            continue
        found[str(name)] = hashlib.sha256(content).hexdigest()
    return found


def losses(log: Path) -> bytes:
    """The values of a training log that do not depend on time."""
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        timed = ("tokens_per_second", "step_seconds", "input_wait_seconds", "input_wait_share")
        kept.append({name: value for name, value in record.items() if name not in timed})
    return json.dumps(kept, sort_keys=True).encode()


def differing(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """The names of files that only one folder has, or that differ."""
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
