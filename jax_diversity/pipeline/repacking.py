"""Pack a dataset's documents again: another dataset with the same tokens, clusters and groups."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsIndex

from jax_diversity.foundation.artifacts import copy_file, is_as_written
from jax_diversity.foundation.checks import as_whole_number, check_type
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside, make_folder
from jax_diversity.foundation.object_store import is_address
from jax_diversity.foundation.progress import Progress
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.streaming.dataset import Dataset, open_dataset

_NEEDED = ("pack", "characterize", "write")
_AGAIN = ("pack", "characterize", "order_validation", "write")
"""The stages that run again; the results of the other stages that they need are linked or copied."""


def repack(
    dataset: str | Path | Dataset,
    path: str | Path,
    *,
    seed: SupportsIndex,
    sequence_length: SupportsIndex | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Pack a dataset's documents again, into a new dataset.

    With another seed, sequences contain other documents and other cuts: a run with another packing in every epoch reads
    no sequence twice. The files of documents, tokens, vectors and clusters are linked if the file system allows it,
    else copied. Both datasets have one feature space.

    Args:
        dataset: a built dataset on this machine, or its folder.
        path: the new dataset's folder; an earlier packing of the same dataset there is updated.
        seed: the seed of the packing (`packing.seed`).
        sequence_length: L of the new sequences, in tokens; None keeps it.
        progress: shows the progress.

    Raises:
        UserError: the dataset is not on this machine, the folder has other content, or seed and length are equal to the
            dataset's own.

    Example:
        >>> again = repack("dataset", "packed-1", seed=1)
        >>> run = create_schedule("run", ["dataset", again], consecutive=True)
    """
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    check_type("path", path, str | os.PathLike, "the new dataset's folder")
    if is_address(path):
        raise UserError(f"Expected a folder for the new dataset, found the address {path}; name a folder.")
    if opened.remote is not None:
        raise UserError(f"Expected a dataset on this machine, found one at {opened.remote.address}; copy it first.")
    config, target = recorded_config(opened.root), Path(path).absolute()
    if config.packing.holds_out_all:
        raise UserError(
            f"Expected a dataset with training sequences, found {opened.root}, which holds out all documents "
            "(packing.validation_fraction=1); build it again with another packing."
        )
    packing = dataclasses.replace(
        config.packing,
        seed=as_whole_number("seed", seed, 0),
        sequence_length=config.packing.sequence_length
        if sequence_length is None
        else as_whole_number("sequence_length", sequence_length, 2),
    )
    if packing == config.packing:
        raise UserError(
            f"Expected another seed or sequence length than those of {opened.root}, found seed {packing.seed} and "
            f"length {packing.sequence_length}, which are its own."
        )
    packing.check()  # before there is a new folder
    # The given dataset is the source of features, so the origin of its own features does not matter.
    origin = str(opened.root.absolute())
    # The new dataset keeps the same documents for validation, also those that an earlier build has chosen.
    packing = dataclasses.replace(packing, validation_from=origin)
    config = dataclasses.replace(config, out=str(target), packing=packing, features_from=origin, orders=())
    build = Build(config, progress)
    kept = {name: opened.manifest["stages"][name] for name in _taken_over(opened)}
    if build.folder.stages and any(
        build.folder.stages.get(name, {}).get("fingerprint") != entry["fingerprint"] for name, entry in kept.items()
    ):
        raise UserError(
            f"Expected an empty folder, or a dataset packed from {opened.root}, found other data in {target}."
        )
    with build.folder.lock():
        for entry in kept.values():
            for name, description in entry["files"].items():
                _link(inside(opened.root, name), inside(target, name), description)
        build.folder.manifest["stages"].update(kept)
        build.folder.manifest["format_version"] = opened.manifest["format_version"]
        build.folder.write_manifest()
    for stage in _AGAIN:
        build.run_stage(stage)
    return open_dataset(target)


def _taken_over(dataset: Dataset) -> list[str]:
    """The stages on which the repeated stages depend, directly or indirectly."""
    stages = dataset.manifest["stages"]
    fields: set[str] = set()
    waiting = [*_NEEDED]
    while waiting:
        name = waiting.pop()
        if name not in stages:
            raise UserError(
                f"Expected a finished dataset, found {dataset.root} without stage {name!r}; finish it with "
                "`jax-diversity build`."
            )
        fields.add(name)
        waiting += set(stages[name]["inputs"]) - fields
    return [name for name in stages if name in fields.difference(_AGAIN)]


def _link(source: Path, target: Path, description: Mapping[str, Any]) -> None:
    make_folder(target.parent)
    if target.exists():
        if is_as_written(target, description):
            return
        target.unlink()
    if not source.is_file():
        raise UserError(f"Expected {description['bytes']} bytes in {source}, found no such file; restore it.")
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        copy_file(source, target)
    if not is_as_written(target, description):
        target.unlink()
        raise UserError(f"{source} is damaged: its SHA-256 differs from the manifest; restore it, or build it again.")
