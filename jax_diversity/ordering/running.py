"""Long runs of a selector: phases of the target, progress, interrupts, and checkpoints to continue from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.hashed_arrays import pack_arrays, unpack_arrays
from jax_diversity.foundation.progress import Advance
from jax_diversity.ordering.features import Features
from jax_diversity.ordering.plan import Plan

STEPS_PER_CALL = 4096
_SECONDS_BETWEEN_SAVES = 30.0
_IDENTITY = "identity"


class Checkpoint:
    """The state of an unfinished run, in one file.

    The file contains arrays with a hash (`pack_arrays`), and is replaced atomically. Without a path no file is written.
    `identity` is a hash of everything that decides the result.
    """

    def __init__(self, path: Path | None = None, identity: str = "") -> None:
        self.path = path
        self.identity = identity
        self._last_save = time.monotonic()

    def load(self) -> Mapping[str, np.ndarray] | None:
        """Return the saved arrays; None if there is no file."""
        content = self.read()
        if content is None:
            return None
        with unpack_arrays(content) as stored:
            return {name: stored[name] for name in stored.files if name != _IDENTITY}

    def read(self) -> bytes | None:
        """Return the file after a check that it is complete and belongs to this run; None if there is no file."""
        if self.path is None:
            return None
        if not self.path.exists():
            # We check this now, because the first state is saved only half a minute after the start of the run.
            if not (folder := self.path.parent).is_dir():
                raise UserError(f"Expected a folder for the checkpoint, found none at {folder}; create it first.")
            return None
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise UserError(f"Expected a run's checkpoint at {self.path}, found {error}; name a file.") from None
        try:
            with unpack_arrays(content) as stored:
                identity = str(stored[_IDENTITY])
        except ValueError:
            raise UserError(
                f"Expected a run's checkpoint at {self.path}, found another kind of file or a damaged file; delete "
                "it or name another file."
            ) from None
        if identity != self.identity:
            raise UserError(
                f"The checkpoint at {self.path} belongs to another run ({identity[:16]}, this one is "
                f"{self.identity[:16]}): other counts, objective, seed or options; delete it or name another file."
            )
        return content

    def save_when_due(self, arrays: Callable[[], Mapping[str, np.ndarray]]) -> None:
        """Save if the last save was half a minute ago. Only then is `arrays` called, which copies from the device."""
        if self.path is not None and time.monotonic() - self._last_save >= _SECONDS_BETWEEN_SAVES:
            self.save(arrays())

    def save(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the arrays to the file, atomically."""
        if self.path is None:
            return
        # All is packed in memory: the state has only a few numbers per position.
        content = pack_arrays({_IDENTITY: np.array(self.identity), **arrays})
        with atomic_path(self.path) as temporary:
            temporary.write_bytes(content)
        self._last_save = time.monotonic()

    def remove(self) -> None:
        """Delete the file of a finished run."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@runtime_checkable
class _Selector(Protocol):
    """A compiled selector and its state on the devices. Consumed sequences are treated as placed."""

    def retarget(self, features: Features) -> None: ...
    def run(self, num_steps: int) -> None: ...
    def placed(self) -> Int64[np.ndarray, " position"]: ...
    def saved(self) -> dict[str, np.ndarray]: ...
    def restore(self, saved: Mapping[str, np.ndarray]) -> None: ...


def drive(selector: _Selector, plan: Plan, advance: Advance, checkpoint: Checkpoint) -> Int64[np.ndarray, " remaining"]:
    """Run a selector to the end of its plan.

    After an interrupt the state is saved, and a later call continues from it.
    """
    position = len(plan.consumed)
    # Loading may fail, for example if the file belongs to another run. Therefore we load before we compute anything.
    saved = checkpoint.load()
    if saved is not None:
        selector.restore(saved)
        # The progress includes the positions of the interrupted run.
        advance(len(selector.placed()) - position)
        position = len(selector.placed())
    try:
        for start, stop, features in plan.phases(position):
            selector.retarget(features)
            # No call goes beyond the end of a phase, because the targets change there.
            for first in range(start, stop, STEPS_PER_CALL):
                steps = min(STEPS_PER_CALL, stop - first)
                selector.run(steps)
                position = first + steps
                advance(steps)
                # After the last step the file is removed.
                if position < plan.num_positions:
                    checkpoint.save_when_due(selector.saved)
    except KeyboardInterrupt:
        # The state is always complete: a selector replaces it only with the result of a finished call.
        checkpoint.save(selector.saved())
        raise
    checkpoint.remove()
    return selector.placed()[len(plan.consumed) :]
