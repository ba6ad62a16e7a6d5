"""What a run sees: the documents of a step's batch, and where a document comes, over all datasets and epochs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.dataset.inspection import (
    FamilyView,
    SequenceView,
    Use,
    document_parts,
    find_document,
    host_rows,
    sequence_views,
)
from jax_diversity.dataset.joining import comparable_characteristics, joined_groups
from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.measures.documents import num_repeats
from jax_diversity.measures.windows import place, total_variation, window_deviation
from jax_diversity.schedule.measuring import run_shares
from jax_diversity.schedule.stored import RunSchedule, times_before
from jax_diversity.schema import Characteristics


class Places(NamedTuple):
    """Where the sequences at some positions come from: number of the dataset, sequence in it, and its epoch.

    The epoch is how often the sequence came before. In a joint order, epochs of groups with other weights differ.
    """

    dataset: Int64[np.ndarray, " row"]
    sequence: Int64[np.ndarray, " row"]
    epoch: Int64[np.ndarray, " row"]


def places_before(run: RunSchedule, position: int) -> Places:
    """The places of all positions before one; what was skipped counts as read in its epoch."""
    slices, numbers = run.before(position), run.history(position)
    kept = ~np.repeat(np.array([each.skipped for each in slices], bool), [*map(len, slices)])
    dataset = np.searchsorted(run.offsets, numbers, side="right") - 1
    return Places(dataset[kept], (numbers - run.offsets[dataset])[kept], times_before(numbers)[kept])


@dataclass(frozen=True)
class RunRow(SequenceView):
    """A row of a run's batch: also its position, its dataset (number and path) and its sequence's epoch."""

    position: int
    dataset: int
    path: str
    epoch: int


@dataclass(frozen=True)
class RunBatch:
    """What one host, or all of them together, see at one step of a run; as `BatchView` has it.

    A family's target are the groups' shares of the whole run, or of its only dataset. Without a comparison there are no
    families.
    """

    schedule: str
    version: int
    step: int
    position: int
    sequences: tuple[RunRow, ...]
    families: dict[str, FamilyView]
    num_repeats: int
    num_copies: int


@dataclass(frozen=True)
class RunUse(Use):
    """One place where a run reads a document; `position` and `step` are those of the run."""

    dataset: int
    path: str
    epoch: int


class ScheduleInspector:
    """Shows what training reads from a schedule.

    Args:
        run: the schedule, in one of its versions.
        global_batch_size: B, sequences of a batch over all hosts.

    Raises:
        UserError: a batch that the schedule cannot fill.

    Example:
        >>> inspector = ScheduleInspector(open_schedule("run"), 64)
        >>> inspector.batch(step=3).sequences[0].path, inspector.uses("page-17")[0].epoch
        ('../web', 0)
    """

    def __init__(self, run: RunSchedule, global_batch_size: int) -> None:
        if not 1 <= global_batch_size <= len(run):
            raise UserError(
                f"Expected a global batch size in 1 .. {len(run)} (the positions of the schedule), found "
                f"{global_batch_size}."
            )
        self.run, self.global_batch_size = run, global_batch_size

    @cached_property
    def characteristics(self) -> Characteristics:
        """The token counts of all datasets' sequences, in the families whose groups mean the same in all."""
        return comparable_characteristics(self.run.datasets)

    @cached_property
    def _shares(self) -> dict[str, Float64[np.ndarray, " group"]]:
        return run_shares(self.characteristics, self.run)

    def batch(self, step: int, *, host_index: int = 0, num_hosts: int = 1, compare: bool = True) -> RunBatch:
        """The batch of a step; a host's rows of it.

        `compare` adds the families' shares beside those of the whole run, which reads the counts of all datasets.

        Raises:
            UserError: a step beyond the schedule, hosts that do not divide the batch, damaged records.
        """
        size = self.global_batch_size
        step = whole_number("step", step, 0, len(self.run) // size - 1)
        rows = host_rows(size, host_index, num_hosts)
        places = places_before(self.run, (step + 1) * size)
        dataset, sequence, epoch = (values[step * size + rows] for values in places)
        found, repeats, copies = dict[int, RunRow](), 0, 0
        for index in np.unique(dataset).tolist():
            own, of = np.flatnonzero(dataset == index), self.run.datasets[index]
            for at, view in zip(own, sequence_views(of, rows[own].tolist(), sequence[own]), strict=True):
                about = (step * size + view.row, index, self.run.members[index].path, int(epoch[at]))
                found[view.row] = RunRow(view.row, view.sequence_index, view.segments, *about)
            # No document and no copy is of two datasets: their repeats add up.
            repeats += num_repeats(of.sequence_documents[sequence[own]])
            copies += num_repeats(of.sequence_copies[sequence[own]])
        views = tuple(found[row] for row in rows.tolist())
        families = self._families(self.run.offsets[dataset] + sequence) if compare else {}
        return RunBatch(self.run.root.name, self.run.version, step, step * size, views, families, repeats, copies)

    def deviations(self, *, host_index: int = 0, num_hosts: int = 1) -> dict[str, Float64[np.ndarray, " batch"]]:
        """TV of every whole batch of the run, or of a host's rows of it, from the whole run: family -> (batch,)."""
        size = self.global_batch_size
        rows = host_rows(size, host_index, num_hosts)
        positions = (np.arange(len(self.run) // size)[:, None] * size + rows).reshape(-1)
        numbers = self.run.at(positions)
        return {
            family: window_deviation(place(self.characteristics.counts[family], numbers), share, len(rows))
            for family, share in self._shares.items()
        }

    def uses(self, document: str) -> list[RunUse]:
        """Where the run reads a document, by its id, in the order of training; several datasets may hold the id.

        Empty where it is kept for validation, left out, or not in the schedule.

        Raises:
            UserError: no dataset holds the id.
        """
        found = [find_document(dataset, document) for dataset in self.run.datasets]
        if all(index is None for index in found):
            raise UserError(
                f"Expected the id of a document of one of the schedule's {len(found)} datasets, found {document!r}; "
                "the ids are in the datasets' characteristics/documents.parquet."
            )
        places, uses = places_before(self.run, len(self.run)), list[RunUse]()
        for index, (dataset, number) in enumerate(zip(self.run.datasets, found, strict=True)):
            parts: dict[int, list[tuple[int, int]]] = {}
            for sequence, offset, length in () if number is None else document_parts(dataset, number):
                parts.setdefault(sequence, []).append((offset, length))
            held = np.isin(places.sequence, np.array([*parts], np.int64)) & (places.dataset == index)
            path = self.run.members[index].path
            for position in np.flatnonzero(held).tolist():
                sequence, epoch = int(places.sequence[position]), int(places.epoch[position])
                step = divmod(position, self.global_batch_size)
                uses += [RunUse(sequence, position, *step, *part, index, path, epoch) for part in parts[sequence]]
        return sorted(uses, key=lambda use: (use.position, use.document_offset))

    def _families(self, numbers: Int64[np.ndarray, " row"]) -> dict[str, FamilyView]:
        families = {}
        for family, target in self._shares.items():
            tokens = np.asarray(self.characteristics.counts[family][numbers].sum(axis=0), np.float64).ravel()
            tv = float(total_variation(tokens[None], target)[0])
            names = joined_groups(self.run.datasets, family)
            families[family] = FamilyView(tv, tokens / max(tokens.sum(), 1.0), target, names)
        return families
