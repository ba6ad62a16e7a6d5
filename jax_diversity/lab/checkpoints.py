"""Checkpoints of a run: model, optimiser and the loader's position, saved together by Orbax."""

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
    """The two last checkpoints of one run.

    Args:
        folder: where they lie, in the run's own folder.
        settings: all that decides the run's losses, by name; a checkpoint of other settings is refused.
    """

    def __init__(self, folder: Path, settings: Mapping[str, int | float]) -> None:
        self._folder = folder
        self._settings = dict(settings)
        options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self, step: int, model: nnx.Module, optimizer: nnx.Optimizer, batches: BatchIterator) -> None:
        """Save the run after a step; the files are written in the background."""
        self._manager.save(
            step,
            args=ocp.args.Composite(
                model=ocp.args.StandardSave(_named(nnx.state(model))),
                optimizer=ocp.args.StandardSave(_named(nnx.state(optimizer))),
                # As JSON, one for all hosts: what a run on another number of hosts can read.
                input=ocp.args.JsonSave(batches.get_state()),
                settings=ocp.args.JsonSave(self._settings),
            ),
        )

    def restore(self, model: nnx.Module, optimizer: nnx.Optimizer, batches: BatchIterator) -> int:
        """Go on from the last checkpoint; returns its step, 0 where there is none.

        Raises:
            UserError: it is of another dataset or ordering, of other settings, or damaged.
        """
        step = self._manager.latest_step()
        if step is None:
            return 0
        try:
            small = self._restore(step, input=ocp.args.JsonRestore(), settings=ocp.args.JsonRestore())
        except (KeyError, ValueError, OSError) as error:
            raise UserError(
                f"Expected the checkpoint of a run in {self._folder}, found one that cannot be read "
                f"({str(error).splitlines()[0]}); delete {self._folder.parent} to start anew."
            ) from None
        self._check(small["settings"])
        try:
            batches.set_state(small["input"])
        except UserError as error:
            raise UserError(
                f"{self._folder} does not fit this run: {error} To start anew, delete {self._folder.parent}."
            ) from None
        for name, holder in (("model", model), ("optimizer", optimizer)):
            state = nnx.state(holder)
            wanted = jax.tree.map(ocp.utils.to_shape_dtype_struct, _named(state))
            arrays = self._restore(step, **{name: ocp.args.StandardRestore(wanted)})[name]
            leaves = [arrays[key] for key in _named(state)]
            nnx.update(holder, jax.tree.unflatten(jax.tree.structure(state), leaves))
        return step

    def _check(self, found: Mapping[str, int | float]) -> None:
        differing = [
            f"{name} {found.get(name)} (these settings: {self._settings.get(name)})"
            for name in sorted(self._settings.keys() | found.keys())
            if found.get(name) != self._settings.get(name)
        ]
        if differing:
            raise UserError(
                f"The run in {self._folder.parent} was begun with {', '.join(differing)}; set that back to go on "
                f"with it, or delete {self._folder.parent} to start anew."
            )

    def _restore(self, step: int, **arguments: Any) -> Any:
        return self._manager.restore(step, args=ocp.args.Composite(**arguments))

    def close(self) -> None:
        """Wait until what was saved is on disk."""
        self._manager.wait_until_finished()
        self._manager.close()


def _named(state: Any) -> dict[str, jax.Array]:
    """The arrays of a state by their place in it."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
