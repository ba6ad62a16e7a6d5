"""Write the files of an export atomically; the file of another ordering is replaced only on request."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from jax_diversity.foundation.artifacts import atomic_path, remove_leftovers
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.locks import hold
from jax_diversity.streaming.run.run import Run


class Written(NamedTuple):
    """The files of an export in the order in which they are read, and a line on how to use them."""

    files: tuple[Path, ...]
    line: str


@contextmanager
def new_file(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary path that becomes `path` when the block ends without an error.

    Raises a UserError instead of replacing another file, unless `overwrite` is set: a training run may be reading the
    file.
    """
    # One writer at a time: otherwise two writers that find no file would both write.
    with hold(path.parent), atomic_path(path) as temporary:
        remove_leftovers(path.parent, path.name)
        yield temporary
        # Compared before the rename, so that an existing file is never changed.
        if not overwrite and path.exists() and not filecmp.cmp(temporary, path, shallow=False):
            raise UserError(
                f"Expected no file, or the same export, at {path}, found another file; choose another target, or "
                "replace it with --overwrite."
            )


def common_length(run: Run) -> int:
    """The length L of the sequences of a run; raises a `UserError` if they have several lengths."""
    lengths = sorted({dataset.sequence_length for dataset in run.datasets})
    if len(lengths) > 1:
        raise UserError(
            f"Expected a run with sequences of one length to export, found lengths {lengths}; export a version "
            "with sequences of one length, or read the run with make_loader."
        )
    return lengths[0]
