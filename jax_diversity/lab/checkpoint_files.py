"""The file of one checkpoint: a hash, then an .npz of the run's arrays and of what they belong to.

The hash finds damage before NumPy's parser sees it, which raises many kinds of errors, and before anything is used.
Reading and checking need no JAX.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from jax_diversity.foundation.artifacts import Fault, atomic_path
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.lab.metrics import read_log

_ABOUT = "about"
_DIGEST_SIZE = hashlib.sha256().digest_size
_NAME = re.compile(r"(0|[1-9][0-9]*)\.checkpoint")


class DamagedCheckpoint(UserError):
    """A file that is not as a run wrote it; the sentence does not say yet what to do."""


def checkpoint_path(folder: Path, num_steps: int) -> Path:
    """The file of the run after so many steps."""
    return folder / f"{num_steps}.checkpoint"


def find_checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints in a folder: number of steps -> file, ascending."""
    names = {match[0]: int(match[1]) for path in folder.glob("*") if (match := _NAME.fullmatch(path.name))}
    return {names[name]: folder / name for name in sorted(names, key=names.__getitem__)}


def write_checkpoint(path: Path, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint, whole or not at all; `about` is JSON and has `num_steps`."""
    packed = io.BytesIO()  # in memory first, for the hash
    np.savez(packed, allow_pickle=False, **{_ABOUT: np.array(json.dumps(about))}, **arrays)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(hashlib.sha256(packed.getbuffer()).digest())
        file.write(packed.getbuffer())


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `write_checkpoint` was given.

    Raises:
        DamagedCheckpoint: a file that is not as it was written, or has the name of another checkpoint.
    """
    try:
        content = memoryview(path.read_bytes())
        if hashlib.sha256(content[_DIGEST_SIZE:]).digest() != content[:_DIGEST_SIZE]:
            raise ValueError("bytes that do not fit their hash")
        with np.load(io.BytesIO(content[_DIGEST_SIZE:]), allow_pickle=False) as stored:
            arrays = dict(stored)
        about = json.loads(str(arrays.pop(_ABOUT)))
        if checkpoint_path(path.parent, about["num_steps"]) != path:
            raise ValueError(f"the one after {about['num_steps']} steps")
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        # A file with a right hash that is none of ours: a KeyError says only what it lacks.
        reason = "another kind of file" if isinstance(error, KeyError) else in_one_line(error)
        raise DamagedCheckpoint(f"Expected a training checkpoint as it was written at {path}, found {reason}") from None
    return about, arrays


def verify_training(root: Path) -> list[Fault]:
    """Check the checkpoints of all runs in a dataset's folder: whole, and those of the run in whose folder they lie."""
    faults = []
    for folder in sorted(root.glob("training/*/checkpoints")):
        header, _ = read_log(folder.parent / "log.jsonl")
        for path in find_checkpoints(folder).values():
            name = path.relative_to(root).as_posix()
            try:
                state = read_checkpoint(path)[0]["input"]
            except DamagedCheckpoint as error:
                faults.append(Fault(name, "a checkpoint as it was written", str(error).rpartition(", found ")[2]))
                continue
            faults += [
                Fault(name, f"the {each} {header[each]} of the log beside it", str(state[each]))
                for each in ("dataset", "ordering")
                if header.get(each, state[each]) != state[each]
            ]
    return faults
