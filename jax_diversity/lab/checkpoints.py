"""Save and restore checkpoints of a training run: weights and optimiser (Orbax), the loader's state, all files' hashes.

A checkpoint is a folder named by the number of steps done. `checkpoint.json` in it holds the SHA-256 of every file, so
that damage is found before anything is used. Finding and verifying checkpoints needs no JAX.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_diversity.foundation.artifacts import Fault, atomic_folder, file_hash, signed, write_json
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.folders import make_folder, refuse_links
from jax_diversity.lab.metrics import LOG_FILE, read_log

if TYPE_CHECKING:
    from jax_diversity.lab.trainer import Trainer
    from jax_diversity.streaming.loader.iteration import BatchIterator

_ABOUT = "checkpoint.json"
_ARRAYS = "arrays"
_NUM_KEPT = 2
_MOST_METADATA = 2**18
"""Number of bytes on disk in addition to the arrays."""


class DamagedCheckpoint(UserError):
    """A damaged checkpoint; the error's sentence does not yet contain advice."""


class Checkpoints:
    """The last two checkpoints of a training run; checkpoint n is the state after n steps, before step n.

    A checkpoint is on disk when `save` returns; it is either complete or absent.

    Args:
        folder: the folder for the checkpoints.
        settings: everything that determines the losses of the run; a checkpoint with other settings is refused.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder, self._settings = folder, settings
        make_folder(folder)
        for leftover in folder.glob("*.*"):  # left by a killed writer: the locked folder has no active one
            if leftover.is_dir() and re.fullmatch("[0-9]+[.][0-9a-f]{8}", leftover.name):
                shutil.rmtree(leftover)
        self._remove_old()

    def save(self, num_steps: int, trainer: Trainer, batches: BatchIterator) -> None:
        """Save the state after `num_steps` steps."""
        import jax

        description = {"num_steps": num_steps, "settings": dict(self._settings), "input": batches.get_state()}
        with atomic_folder(self._folder / str(num_steps)) as folder:
            _save_arrays(folder / _ARRAYS, jax.tree.leaves((trainer.parameters, trainer.state)))
            write_json(folder / _ABOUT, signed({**description, "files": _hashes(folder)}))
        self._remove_old()

    def _remove_old(self) -> None:
        for path in list(find_checkpoints(self._folder).values())[:-_NUM_KEPT]:
            shutil.rmtree(path)

    def restore(self, trainer: Trainer, batches: BatchIterator) -> int:
        """Continue from the last checkpoint; returns the number of steps done, 0 if there is no checkpoint."""
        *earlier, num_steps = [0, *(checkpoints := find_checkpoints(self._folder))]
        if not checkpoints:
            return 0
        try:
            description = read_checkpoint(checkpoints[num_steps])
        except DamagedCheckpoint as error:
            raise UserError(f"{error}; delete it to continue from the state after {earlier[-1]} steps.") from None
        self._check(description["settings"])
        try:
            batches.set_state(description["input"])
        except UserError as error:
            raise UserError(
                f"{self._folder} does not fit this run: {error} To start a new run, delete {self._folder.parent}."
            ) from None
        trainer.parameters, trainer.state = restore_arrays(checkpoints[num_steps], (trainer.parameters, trainer.state))
        return num_steps

    def _check(self, losses: Mapping[str, int | float]) -> None:
        differing = [
            f"{name} {losses.get(name)} (these settings: {self._settings.get(name)})"
            for name in sorted(self._settings.keys() | losses.keys())
            if losses.get(name) != self._settings.get(name)
        ]
        if differing:
            raise UserError(
                f"The run in {self._folder.parent} was begun with {', '.join(differing)}; restore these settings to "
                f"continue the run, or delete {self._folder.parent} to start a new run."
            )


def _save_arrays(folder: Path, arrays: list[Any]) -> None:
    import orbax.checkpoint

    # Space is checked first: if the disk becomes full during a save, Orbax also prints the tracebacks of its threads.
    if shutil.disk_usage(folder.parent).free < sum(array.nbytes for array in arrays) + _MOST_METADATA:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    try:
        with orbax.checkpoint.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder.absolute(), arrays)
    except ValueError as error:  # TensorStore's error for a full disk, or a folder that cannot be written
        if (code := re.search(r"os_error_code='(\d+)'", str(error))) is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(folder)) from None


def restore_arrays(folder: Path, template: Any) -> Any:
    """Read the arrays of an undamaged checkpoint, the weights and the optimiser's state, into the template's tree.

    Raises:
        UserError: the checkpoint has arrays of another model.
    """
    import jax
    import orbax.checkpoint

    leaves, tree = jax.tree.flatten(template)
    try:
        with orbax.checkpoint.StandardCheckpointer() as checkpointer:
            arrays = checkpointer.restore((folder / _ARRAYS).absolute(), leaves)
    except ValueError:
        raise UserError(
            f"Expected the arrays of this version's model in {folder}, found other arrays: another version of the "
            f"package saved them; delete {folder.parent.parent} to start a new run."
        ) from None
    return jax.tree.unflatten(tree, arrays)


def _hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file of a checkpoint except `checkpoint.json`, by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _ABOUT)
    return {path.relative_to(folder).as_posix(): file_hash(path) for path in files}


def find_checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints in a folder: number of steps -> folder of the checkpoint, ascending."""
    names = (path.name for path in folder.glob("*"))
    numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit() and name == str(int(name)))
    return {number: folder / str(number) for number in numbers}


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Check that a checkpoint is undamaged; returns its number of steps, settings and the loader's state.

    Raises:
        DamagedCheckpoint: a file is damaged, missing or added, or the checkpoint has the name of another checkpoint.
    """
    description = _read_about(folder)
    if damaged := _damaged_files(folder, description):
        raise DamagedCheckpoint(f"{_expected(folder)}, found other bytes in {', '.join(damaged)}")
    return description


def _expected(folder: Path) -> str:
    return f"Expected a training checkpoint as it was written at {folder}"


def _read_about(folder: Path) -> dict[str, Any]:
    try:
        description = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        if description != signed(description):
            raise ValueError(f"{_ABOUT} whose content differs from its own hash")
        if str(description["num_steps"]) != folder.name:
            raise ValueError(f"the checkpoint after {description['num_steps']} steps")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = "another kind of file" if isinstance(error, KeyError) else in_one_line(error)
        raise DamagedCheckpoint(f"{_expected(folder)}, found {reason}") from None
    return description


def _damaged_files(folder: Path, description: Mapping[str, Any]) -> list[str]:
    """The files of a checkpoint that are damaged, missing or added."""
    present_hashes, written_hashes = _hashes(folder), description["files"]
    return sorted(
        name
        for name in present_hashes.keys() | written_hashes.keys()
        if present_hashes.get(name) != written_hashes.get(name)
    )


def verify_training(root: Path) -> list[Fault]:
    """Check that the checkpoints of all runs in a folder are undamaged and belong to the run of their folder."""
    faults = []
    for folder in sorted(root.glob("training/*/checkpoints")):
        refuse_links(root, str(folder.parent.relative_to(root)))
        header, _ = read_log(folder.parent / LOG_FILE)
        for path in find_checkpoints(folder).values():
            name = path.relative_to(root).as_posix()
            try:
                description = _read_about(path)
            except DamagedCheckpoint as error:
                reason = str(error).rpartition(", found ")[2]
                faults.append(Fault(f"{name}/{_ABOUT}", "the description of this checkpoint", reason))
                continue
            faults += [
                Fault(f"{name}/{file}", "the bytes that were written", "other bytes, or no file")
                for file in _damaged_files(path, description)
            ]
            faults += [
                Fault(
                    name, f"the {field} {header[field]} of the log in the same folder", str(description["input"][field])
                )
                for field in ("dataset", "ordering")
                if header.get(field, description["input"][field]) != description["input"][field]
            ]
    return faults
