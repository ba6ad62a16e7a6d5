"""The content of `schedule.json`: the datasets, parts and versions of a stored run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import signed, write_json
from jax_diversity.foundation.checks import as_whole_number, check_type
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.streaming.run.settings import SCHEDULE_FILE

FORMAT = 2


@dataclass(frozen=True)
class Member:
    """A dataset of a stored run: its path relative to the run's folder, and properties of its sequences.

    `checked_against` lists the files of evaluation texts that the dataset's preparation was given (`decontaminate`).
    `num_loss_tokens` is the number of tokens of its sequences that count with `loss_mask="answers"`.
    """

    path: str
    fingerprint: str
    num_sequences: int
    sequence_length: int
    num_loss_tokens: int
    checked_against: Sequence[str] = ()


@dataclass(frozen=True)
class Part:
    """A file with numbers of sequences; all these sequences have the same length.

    `key` is a random text from the time when the part was planned; it identifies the part in a version's fingerprint.
    `fingerprint` is the hash of the numbers, or an empty text until the part is made.
    """

    file: str
    num_positions: int
    sequence_length: int
    key: str
    fingerprint: str = ""


@dataclass(frozen=True)
class Slice:
    """The positions `start` to `stop - 1` of a part; training does not read skipped slices."""

    part: int
    start: int
    stop: int
    skipped: bool = False

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Version:
    """The slices of a version in their order, its number of datasets, and a description of the change.

    `seed` is the seed of the first epoch that was ordered for this version. `targeted` names the families in which the
    positions of this version follow targets; the family of the datasets stands for all families: weights change the
    mixture along the run, or the mixture of its only dataset.
    """

    slices: tuple[Slice, ...]
    num_datasets: int
    change: str
    seed: int
    targeted: Sequence[str] = ()


@dataclass(frozen=True)
class Content:
    """The content of `schedule.json`."""

    id: str
    datasets: tuple[Member, ...]
    parts: tuple[Part, ...]
    versions: tuple[Version, ...]

    @classmethod
    def read(cls, path: Path) -> Content:
        """Read the file; raises a `UserError` if it is absent, damaged, edited, or has another format."""
        try:
            plain = json.loads(path.read_bytes())
            if plain["format"] == FORMAT and plain == signed(plain):
                datasets, parts = ([kind(**entry) for entry in plain[name]] for name, kind in _LISTS.items())
                slices = [tuple(Slice(**entry) for entry in version["slices"]) for version in plain["versions"]]
                versions = [
                    Version(**{**entry, "slices": slices_of_version})
                    for entry, slices_of_version in zip(plain["versions"], slices, strict=True)
                ]
                content = cls(plain["id"], tuple(datasets), tuple(parts), tuple(versions))
                content.check()
                return content
            reason = "it was changed after it was written"
            if plain["format"] != FORMAT:
                reason = f"it has the format {plain['format']}, but this version reads {FORMAT}"
        except FileNotFoundError:
            raise UserError(
                f"Expected a schedule at {path.parent}, found no {SCHEDULE_FILE}; make one with "
                "`jax-diversity schedule`."
            ) from None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            reason = in_one_line(error)
        raise UserError(
            f"Expected a schedule at {path}, found a file that cannot be followed ({reason}); restore it, or make "
            "another run."
        )

    def check(self) -> None:
        """Check the types and ranges of all values; raises a `UserError` for the first invalid value."""
        for record in (self, *self.datasets, *self.parts, *self.versions):
            for field in fields(record):
                if (kind := _KINDS.get(str(field.type))) is not None:
                    check_type(field.name, getattr(record, field.name), kind, f"of the type {field.type}")
        as_whole_number("the number of versions", len(self.versions), 1)
        for member in self.datasets:
            as_whole_number("num_sequences of a dataset", member.num_sequences, 0, _MOST_POSITIONS)
            check_type("checked_against of a dataset", member.checked_against, list | tuple, "a list of names")
            as_whole_number("num_loss_tokens of a dataset", member.num_loss_tokens, 0)
            for name in member.checked_against:
                check_type("a name in checked_against", name, str, "a text")
        for part in self.parts:
            as_whole_number(f"num_positions of {part.file}", part.num_positions, 0, _MOST_POSITIONS)
            as_whole_number(f"sequence_length of {part.file}", part.sequence_length, 1)
        for number, version in enumerate(self.versions, start=1):
            owner = f"of a slice of version {number}"
            as_whole_number(f"num_datasets of version {number}", version.num_datasets, 1, len(self.datasets))
            check_type(f"targeted of version {number}", version.targeted, list | tuple, "a list of families")
            for family in version.targeted:
                check_type("a family in targeted", family, str, "a text")
            for record in version.slices:
                index = as_whole_number(f"part {owner}", record.part, 0, len(self.parts) - 1)
                start = as_whole_number(f"start {owner}", record.start, 0)
                as_whole_number(f"stop {owner}", record.stop, start, self.parts[index].num_positions)
                check_type(f"skipped {owner}", record.skipped, bool, "true or false")

    def write(self, root: Path) -> None:
        """Replace the file atomically."""
        write_json(root / SCHEDULE_FILE, signed({"format": FORMAT, **asdict(self)}))


_KINDS: Mapping[str, type] = {"str": str, "int": int}
_MOST_POSITIONS = 2**48
"""More positions than any run has; sums of such numbers fit into 64 bits."""
_LISTS: Mapping[str, Any] = {"datasets": Member, "parts": Part}
