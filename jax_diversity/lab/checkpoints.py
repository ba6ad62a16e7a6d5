"""Checkpoints of a run: model, optimiser and the state of the loader, saved together by Orbax."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from flax import nnx

from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.iteration import BatchIterator


class Checkpoints:
    """The last two checkpoints of a run; checkpoint n is the run after n steps, with which step n begins.

    `settings` are all that decides the losses of the run: a checkpoint of other settings is refused.
    """

    def __init__(self, folder: Path, settings: Mapping[str, int | float]) -> None:
        self._folder, self._settings = folder, settings
        options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self, num_steps: int, model: nnx.Module, optimizer: nnx.Optimizer, batches: BatchIterator) -> None:
        """Save the run after so many steps; the files are written in the background."""
        self._manager.save(
            num_steps,
            args=ocp.args.Composite(
                model=ocp.args.StandardSave(_named(nnx.state(model))),
                optimizer=ocp.args.StandardSave(_named(nnx.state(optimizer))),
                # As JSON, one for all hosts: a run on another number of hosts can read it.
                input=ocp.args.JsonSave(batches.get_state()),
                settings=ocp.args.JsonSave(self._settings),
            ),
        )

    def restore(self, model: nnx.Module, optimizer: nnx.Optimizer, batches: BatchIterator) -> int:
        """Continue from the last checkpoint; returns the number of steps done, 0 where there is no checkpoint."""
        num_steps = self._manager.latest_step()
        if num_steps is None:
            return 0
        try:
            small = self._restore(num_steps, input=ocp.args.JsonRestore(), settings=ocp.args.JsonRestore())
        except (KeyError, ValueError, OSError) as error:
            raise UserError(
                f"Expected the checkpoint of a run in {self._folder}, found one that cannot be read "
                f"({str(error).splitlines()[0]}); delete {self._folder.parent} to start a new run."
            ) from None
        # Settings and position are checked before the arrays are read: they may be large, or of other shapes.
        self._check(small["settings"])
        try:
            batches.set_state(small["input"])
        except UserError as error:
            raise UserError(
                f"{self._folder} does not fit this run: {error} To start a new run, delete {self._folder.parent}."
            ) from None
        for name, holder in (("model", model), ("optimizer", optimizer)):
            state = nnx.state(holder)
            wanted = jax.tree.map(ocp.utils.to_shape_dtype_struct, _named(state))
            arrays = self._restore(num_steps, **{name: ocp.args.StandardRestore(wanted)})[name]
            # By name, not by position: Orbax may give the dictionary back in another order.
            leaves = [arrays[key] for key in _named(state)]
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

    def _restore(self, num_steps: int, **arguments: Any) -> Any:
        return self._manager.restore(num_steps, args=ocp.args.Composite(**arguments))

    def close(self) -> None:
        """Wait until all checkpoints are on disk."""
        self._manager.wait_until_finished()  # a process that ended now would leave the last checkpoint unfinished
        self._manager.close()


def _named(state: Any) -> dict[str, jax.Array]:
    """The arrays of a state by their path in it: one flat dictionary, which Orbax restores whatever its nesting."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
