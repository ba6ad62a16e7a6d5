"""A dataset's documents packed anew: another dataset of the same tokens, clusters and groups."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import SupportsIndex

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.foundation.checks import instance_of, whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import make_folder
from jax_diversity.foundation.progress import Progress
from jax_diversity.pipeline.build import Build, recorded_config

_AGAIN = ("pack", "characterize", "write")
"""The stages that run again; all that they need besides is taken over."""


def repack(
    dataset: str | Path | Dataset,
    path: str | Path,
    *,
    seed: SupportsIndex,
    sequence_length: SupportsIndex | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Pack a dataset's documents anew, into a dataset of their own.

    With another seed, documents meet others in a sequence and are cut elsewhere: a run that reads another packing in
    every epoch sees no sequence twice. Documents, tokens, vectors and clusters are not made again: their files are
    linked where the file system can do that, and copied elsewhere. Both datasets have one feature space.

    Args:
        dataset: a built dataset on this machine, or its folder.
        path: a folder for the new one; one that was packed before from the same dataset is brought up to date.
        seed: of the packing (`packing.seed`).
        sequence_length: L of the new sequences, in tokens; None keeps it.
        progress: where work is shown.

    Raises:
        UserError: no dataset on this machine, a folder that holds something else, a seed that is the dataset's own with
            the same length.

    Example:
        >>> again = repack("dataset", "packed-1", seed=1)
        >>> run = create_schedule("run", ["dataset", again], consecutive=True)
    """
    given = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    instance_of("path", path, str | os.PathLike, "the new dataset's folder")
    if given.remote is not None:
        raise UserError(f"Expected a dataset on this machine, found one at {given.remote.address}; copy it first.")
    config, target = recorded_config(given.root), Path(path).absolute()
    packing = dataclasses.replace(
        config.packing,
        seed=whole_number("seed", seed, 0),
        sequence_length=config.packing.sequence_length
        if sequence_length is None
        else whole_number("sequence_length", sequence_length, 2),
    )
    if packing == config.packing:
        raise UserError(
            f"Expected another seed or sequence length than those of {given.root}, found seed {packing.seed} and "
            f"length {packing.sequence_length}, which are its own."
        )
    # The other one gives the feature space, so that nothing depends on where its own features came from.
    origin = str(given.root.absolute())
    config = dataclasses.replace(config, out=str(target), packing=packing, features_from=origin, orders=())
    build = Build(config, progress)
    kept = {name: given.manifest["stages"][name] for name in _taken_over(given)}
    if build.folder.stages and any(
        build.folder.stages.get(name, {}).get("fingerprint") != entry["fingerprint"] for name, entry in kept.items()
    ):
        raise UserError(f"Expected an empty folder, or one packed from {given.root}, found other data in {target}.")
    with build.folder.lock():
        for entry in kept.values():
            for name in entry["files"]:
                _link(given.root / name, target / name)
        build.folder.manifest["stages"].update(kept)
        build.folder.manifest["format_version"] = given.manifest["format_version"]
        build.folder.write_manifest()
    for stage in _AGAIN:
        build.run_stage(stage)
    return open_dataset(target)


def _taken_over(dataset: Dataset) -> list[str]:
    """The stages that those that run again need, one through another."""
    stages = dataset.manifest["stages"]
    for name in _AGAIN:
        if name not in stages:
            raise UserError(
                f"Expected a finished dataset, found {dataset.root} without stage {name!r}; finish it with "
                "`jax-diversity build`."
            )
    found: set[str] = set()
    waiting = [*_AGAIN]
    while waiting:
        for need in stages[waiting.pop()]["inputs"]:
            if need not in found and need not in _AGAIN:
                found.add(need)
                waiting.append(need)
    return [name for name in stages if name in found]


def _link(source: Path, target: Path) -> None:
    make_folder(target.parent)
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(source, target)
