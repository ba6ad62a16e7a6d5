"""Stored runs: parts that are never changed, and versions that are slices of them.

A folder contains `schedule.json` and a file of sequence numbers for each part. The sequences of all datasets are
numbered end to end, in the order in which the datasets were added. Datasets are never removed, so that a number means
the same sequence in every version. A version is a list of slices of parts. A change adds parts and a version; earlier
versions are not changed.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.checks import as_tuple, as_whole_number, check_type
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.folders import as_path, distinct_ends, inside
from jax_diversity.foundation.locks import is_locked
from jax_diversity.streaming.dataset import Dataset, open_dataset
from jax_diversity.streaming.dataset.orderings import OrderingFile
from jax_diversity.streaming.run.background import error_of
from jax_diversity.streaming.run.content import Content, Member, Part, Slice, Version
from jax_diversity.streaming.run.run import SCHEDULE_FILE, Positioned, Run, times_before
from jax_diversity.streaming.run.schedule_text import schedule_table

_MOST_FILES = 32
"""The largest number of parts that are open at once; each needs two file handles."""
_WAIT = 0.05
"""Seconds between two checks of a run that is being made."""


class StoredRun(Run):
    """One version of a stored run; get one with `open_schedule`, or make one with `create_schedule`.

    Attributes:
        root: the folder.
        content: the content of its file when it was opened.
        version: the number of this version, from 1 on.
        given: the first datasets, as the user gave them; the others (all if `given` is None) are opened at their stored
            paths.

    Datasets are opened when they are first needed. A pickle contains the folder, the version and the given datasets.
    """

    def __init__(
        self, root: Path, content: Content, version: int, datasets: Sequence[str | Path | Dataset] | None = None
    ) -> None:
        self.root, self.content, self.version, self.given = root, content, version, datasets
        targeted = {family for earlier in content.versions[:version] for family in earlier.targeted}
        self.name = root.name
        self.info = {"method": "schedule", "version": version, "of": content.id, "targeted": sorted(targeted)}
        self._slices = [piece for piece in self._of(version).slices if not piece.skipped]
        self._starts = np.cumsum([0, *map(len, self._slices)], dtype=np.int64)
        self._bounds = self._starts.tolist()
        self._files: dict[int, OrderingFile] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return open_schedule, (self.root, self.version, self.given)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __str__(self) -> str:
        dataset, _ = self.places(np.arange(len(self)))
        names = distinct_ends([_absolute(member.path, self.root) for member in self.members])
        num_positions = np.bincount(dataset, minlength=len(self.members))
        return schedule_table(names, self.members, self.content.versions, num_positions)

    @property
    def _size_text(self) -> str:
        return f"{super()._size_text}, version {self.version} of {len(self.content.versions)}"

    def _of(self, version: int) -> Version:
        return self.content.versions[version - 1]

    @property
    def members(self) -> tuple[Member, ...]:
        """The datasets of this version, in the order in which they were added."""
        return self.content.datasets[: self._of(self.version).num_datasets]

    @property
    def identity(self) -> str:
        """The identity of the stored run; it stays the same when datasets are added."""
        return self.content.id

    @property
    def has_origins(self) -> bool:
        """Batches have the dataset index of every row, because datasets may be added later."""
        return True

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of sequences of every dataset."""
        return tuple(member.num_sequences for member in self.members)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The path of every dataset, relative to the run's folder."""
        return tuple(member.path for member in self.members)

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The open datasets.

        Raises:
            UserError: a dataset is not at its path, or has other sequences.
        """
        return self._datasets

    @cached_property
    def _datasets(self) -> tuple[Dataset, ...]:
        if self.given is not None and len(self.given) > len(self.content.datasets):
            raise UserError(
                f"Expected the {len(self.content.datasets)} datasets of the schedule, in its order, found "
                f"{len(self.given)}."
            )
        # This version may have fewer or more datasets than were given.
        members = [*(self.given or ())][: len(self.members)]
        members += [_absolute(member.path, self.root) for member in self.members[len(members) :]]
        return tuple(map(_opened, members, self.members))

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """The sequence lengths L, as pairs (first position, L); the first pair begins at position 0."""
        return self._lengths

    @cached_property
    def _lengths(self) -> tuple[tuple[int, int], ...]:
        lengths = [self.content.parts[piece.part].sequence_length for piece in self._slices]
        pairs = list(zip(self._bounds, lengths, strict=False))
        return tuple(pair for pair, before in zip(pairs, [(0, 0), *pairs], strict=False) if pair[1] != before[1])

    @property
    def fingerprint(self) -> str:
        """Hash of the datasets and the sequences at all positions of this version."""
        return self._fingerprint_of(self.version)

    def _fingerprint_of(self, version: int) -> str:
        members = [member.fingerprint for member in self.content.datasets[: self._of(version).num_datasets]]
        parts = self.content.parts
        slices = [[parts[piece.part].key, piece.start, piece.stop, piece.skipped] for piece in self._of(version).slices]
        return fingerprint("run schedule", members, slices)

    def _at(self, positions: Positioned) -> Positioned:
        if not len(positions):
            return np.zeros(0, np.int64)
        first = last = 0
        if len(self._slices) > 1:
            first, last = (bisect_right(self._bounds, int(end)) - 1 for end in (positions.min(), positions.max()))
        if first == last:  # nearly always: a batch within one slice
            return self._numbers(first, positions)
        of_slice = np.searchsorted(self._starts, positions, side="right") - 1
        numbers = np.empty(len(positions), np.int64)
        for index in np.unique(of_slice).tolist():
            rows = of_slice == index
            numbers[rows] = self._numbers(index, positions[rows])
        return numbers

    def _numbers(self, index: int, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        piece = self._slices[index]
        return self._file(piece.part).at(positions + (piece.start - self._bounds[index]))

    def _file(self, part: int) -> OrderingFile:
        if part not in self._files:
            part_content = self._made(part)
            if len(self._files) == _MOST_FILES:  # close the oldest file: runs are read forward
                del self._files[next(iter(self._files))]
            file = OrderingFile(
                inside(self.root, part_content.file), part_content.fingerprint, part_content.num_positions
            )
            if len(file.indices) and (file.indices.min() < 0 or file.indices.max() >= self.num_sequences):
                raise UserError(
                    f"Expected sequences in 0 .. {self.num_sequences - 1} in {self.root / part_content.file}, found "
                    f"{file.indices.min()} .. {file.indices.max()}; restore the run, or make another one."
                )
            self._files[part] = file
        return self._files[part]

    def _made(self, part: int) -> Part:
        """Return a finished part; waits while the part is being made in the background."""
        while not (part_content := self.content.parts[part]).fingerprint:
            # The lock is checked before the file is read: if it is free, the file already lists all finished parts.
            at_work = is_locked(self.root)
            content = Content.read(inside(self.root, SCHEDULE_FILE))
            if content.id != self.content.id:
                raise UserError(f"Expected the schedule that was opened at {self.root}, found another; open it again.")
            parts = content.parts[: len(self.content.parts)]
            self.content = replace(self.content, parts=parts)
            if parts[part].fingerprint:
                continue
            if not at_work:
                first = next(
                    start for piece, start in zip(self._slices, self._bounds, strict=False) if piece.part == part
                )
                error = error_of(self.root)
                reason = f" ({in_one_line(error)})" if error is not None else ""
                raise UserError(
                    f"Expected all positions of the schedule at {self.root}, found that the process that made it "
                    f"stopped before position {first:,}{reason}; continue with extend_schedule(run, position={first})."
                )
            time.sleep(_WAIT)
        return part_content

    def wait(self) -> StoredRun:
        """Wait until all positions are made; returns the run itself.

        Raises:
            UserError: the thread that makes the run stopped too early.
        """
        for piece in self._slices:
            self._made(piece.part)
        return self

    def before(self, position: int) -> tuple[Slice, ...]:
        """The slices before a position, including skipped slices."""
        left, kept = position, []
        for piece in self._of(self.version).slices:
            if not piece.skipped and len(piece) > left:
                if left:
                    kept.append(Slice(piece.part, piece.start, piece.start + left))
                break
            kept.append(piece)
            left -= 0 if piece.skipped else len(piece)
        return tuple(kept)

    def history(self, position: int) -> Int64[np.ndarray, " used"]:
        """The sequences at all positions before `position`, including skipped ones, numbered over all datasets."""
        numbers = [self._file(piece.part).at(np.arange(piece.start, piece.stop)) for piece in self.before(position)]
        return np.concatenate([np.zeros(0, np.int64), *numbers])

    def agrees_until(self, version: int) -> int:
        """The first position at which another version differs, or at which one of the two versions ends."""
        # The lists are reversed: `pop` takes the first slice, and `append` puts its rest back.
        own_slices, other_slices = (
            [piece for piece in reversed(self._of(number).slices) if not piece.skipped]
            for number in (self.version, version)
        )
        position = 0
        while own_slices and other_slices:
            first, second = own_slices.pop(), other_slices.pop()
            if (first.part, first.start) != (second.part, second.start):
                break
            length = min(len(first), len(second))
            position += length
            for slices, piece in ((own_slices, first), (other_slices, second)):
                if len(piece) > length:
                    slices.append(Slice(piece.part, piece.start + length, piece.stop))
        return position

    def _epochs_before(self, stop: int) -> tuple[Positioned, Positioned]:
        # Skipped sequences count as used in their epoch.
        skipped = [np.full(len(piece), piece.skipped) for piece in self.before(stop)]
        numbers, kept = self.history(stop), ~np.concatenate([np.zeros(0, bool), *skipped])
        return numbers[kept], times_before(numbers)[kept]

    def continues(self, position: int, of: str) -> bool:
        """Whether training on the version with the fingerprint `of` can continue with this one at a position."""
        for version in range(1, len(self.content.versions) + 1):
            if self._fingerprint_of(version) == of:
                return self.agrees_until(version) >= position
        return False

    def with_version(self, version: SupportsIndex) -> StoredRun:
        """Another version of the same run."""
        number = as_whole_number("version", version, 1, len(self.content.versions))
        return StoredRun(self.root, self.content, number, self.given)


def open_schedule(
    path: str | Path,
    version: SupportsIndex | None = None,
    datasets: Sequence[str | Path | Dataset] | None = None,
) -> StoredRun:
    """Open a stored run; its parts and datasets are read when they are first needed.

    Args:
        path: its folder.
        version: the version to open; None means the last one.
        datasets: the datasets or their current folders, in the order of the run. The run opens all others at their
            stored paths, which are relative to its folder.

    Raises:
        UserError: the folder does not exist; its file is damaged, edited, or has another format; the version is
            unknown.

    Example:
        >>> loader = make_loader(open_schedule("run"), global_batch_size=64)
    """
    root = schedule_folder(path)
    listed = None if datasets is None else as_tuple(datasets)
    for item in listed or ():
        check_type("each of datasets", item, str | os.PathLike | Dataset, "a dataset, its folder or its address")
    content = Content.read(inside(root, SCHEDULE_FILE))
    last = len(content.versions)
    number = last if version is None else as_whole_number("version", version, 1, last)
    return StoredRun(root, content, number, listed)


def schedule_folder(path: str | Path) -> Path:
    """The folder of a stored run, as an absolute path."""
    check_type("path", path, str | os.PathLike, "a schedule's folder")
    return as_path("the schedule's folder", path).absolute()


def relative(address: str | Path, root: Path) -> str:
    """A dataset's path relative to the run's folder, so that both can be moved together; addresses are not changed."""
    return str(address) if "://" in str(address) else os.path.relpath(Path(address).absolute(), root)


def _absolute(path: str, root: Path) -> str:
    return path if "://" in path else str(Path(os.path.normpath(root / path)))


def _opened(dataset_or_path: str | Path | Dataset, member: Member) -> Dataset:
    try:
        dataset = dataset_or_path if isinstance(dataset_or_path, Dataset) else open_dataset(dataset_or_path)
    except UserError as error:
        raise UserError(
            f"A dataset of the schedule is not at its stored path: {error} Give the folders of the datasets with "
            "open_schedule(path, datasets=[...])."
        ) from None
    if dataset.fingerprint != member.fingerprint:
        raise UserError(
            f"Expected the dataset of fingerprint {member.fingerprint[:16]} at {dataset.root}, found "
            f"{dataset.fingerprint[:16]}: it was built again with other sequences; restore it, or make another "
            "schedule."
        )
    for name in ("num_sequences", "sequence_length"):
        if (present := getattr(dataset, name)) != (expected := getattr(member, name)):
            raise UserError(
                f"Expected {name} {present}, as in the dataset {dataset.root}, found {expected} in {SCHEDULE_FILE}; "
                "restore that file, or make another run."
            )
    return dataset
