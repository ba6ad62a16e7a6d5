"""Checkpoints of a run: model, optimiser and the state of the loader, saved together in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_diversity.foundation.artifacts import remove_leftovers
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import make_folder
from jax_diversity.lab.checkpoint_files import (
    DamagedCheckpoint,
    checkpoint_path,
    find_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from jax_diversity.loader.iteration import BatchIterator


class Checkpoints:
    """The last two checkpoints of a run; checkpoint n is the run after n steps, with which step n begins.

    `settings` are all that decides the losses of the run: a checkpoint of other settings is refused. A file is on disk
    when `save` returns, whole or not at all.
    """

    def __init__(self, folder: Path, settings: Mapping[str, int | float]) -> None:
        self._folder, self._settings = folder, settings
        make_folder(folder)
        remove_leftovers(folder)
        self._remove_old()

    def save(self, num_steps: int, model: nnx.Module, optimizer: nnx.Optimizer, batches: BatchIterator) -> None:
        """Save the run after so many steps."""
        about = {"num_steps": num_steps, "settings": dict(self._settings), "input": batches.get_state()}
        arrays = {name: np.asarray(leaf) for name, leaf in _named(model, optimizer).items()}
        write_checkpoint(checkpoint_path(self._folder, num_steps), about, arrays)
        self._remove_old()

    def _remove_old(self) -> None:
        for path in list(find_checkpoints(self._folder).values())[:-2]:
            path.unlink()

    def restore(self, model: nnx.Module, optimizer: nnx.Optimizer, batches: BatchIterator) -> int:
        """Continue from the last checkpoint; returns the number of steps done, 0 where there is no checkpoint."""
        *earlier, num_steps = [0, *(found := find_checkpoints(self._folder))]
        if not found:
            return 0
        try:
            about, arrays = read_checkpoint(found[num_steps])
        except DamagedCheckpoint as error:
            raise UserError(f"{error}; delete it to go on from the state after {earlier[-1]} steps.") from None
        self._check(about["settings"])
        try:
            batches.set_state(about["input"])
        except UserError as error:
            raise UserError(
                f"{self._folder} does not fit this run: {error} To start a new run, delete {self._folder.parent}."
            ) from None
        wanted = _named(model, optimizer)
        if _shapes(wanted) != _shapes(arrays):
            raise UserError(
                f"Expected the arrays of this version's model in {found[num_steps]}, found others: another version of "
                f"the package saved them; delete {self._folder.parent} to start a new run."
            )
        for name, holder in (("model", model), ("optimizer", optimizer)):
            state = nnx.state(holder)
            leaves = [jnp.asarray(arrays[key]) for key in _paths(name, holder)]
            nnx.update(holder, jax.tree.unflatten(jax.tree.structure(state), leaves))
        return num_steps

    def _check(self, found: Mapping[str, int | float]) -> None:
        differing = [
            f"{name} {found.get(name)} (these settings: {self._settings.get(name)})"
            for name in sorted(self._settings.keys() | found.keys())
            if found.get(name) != self._settings.get(name)
        ]
        if differing:
            raise UserError(
                f"The run in {self._folder.parent} was begun with {', '.join(differing)}; set that back to continue "
                f"it, or delete {self._folder.parent} to start a new run."
            )


def _paths(name: str, holder: nnx.Module | nnx.Optimizer) -> dict[str, jax.Array]:
    """The arrays of a module by their path in it, in the order of its leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(nnx.state(holder))
    return {f"{name}{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}


def _named(model: nnx.Module, optimizer: nnx.Optimizer) -> dict[str, jax.Array]:
    return _paths("model", model) | _paths("optimizer", optimizer)


def _shapes(arrays: Mapping[str, jax.Array] | Mapping[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}
