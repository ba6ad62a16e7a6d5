"""What training sees: the documents of a step's batch, and where a document is used.

Only what is asked for is read: a batch's records, their documents' rows, the ordering's positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.dataset.dataset import Dataset
from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.measures.documents import num_repeats
from jax_diversity.measures.windows import total_variation
from jax_diversity.records.codec import record_segments


@dataclass(frozen=True)
class SegmentView:
    """One document's part of a sequence.

    `about` is its row of `characteristics/documents.parquet` (id, tokens in all, source, language ...), `codes`
    family -> number of its group.
    """

    document_index: int
    num_tokens: int
    about: dict[str, Any]
    codes: dict[str, int]


@dataclass(frozen=True)
class SequenceView:
    """One row of the global batch: its sequence, and the segments of the sequence in their order."""

    row: int
    sequence_index: int
    segments: tuple[SegmentView, ...]


@dataclass(frozen=True)
class FamilyView:
    """How a batch's tokens are divided in one family: every group's share of them, and of the corpus's (the target).

    TV is as `measures.windows.total_variation` defines it.
    """

    total_variation: float
    share: Float64[np.ndarray, " group"]
    target: Float64[np.ndarray, " group"]
    names: tuple[str, ...]

    def largest_differences(self, number: int) -> list[tuple[str, float, float]]:
        """Groups whose share is farthest from the corpus's: name, share, target; ties to the first."""
        groups = np.argsort(-np.abs(self.share - self.target), kind="stable")[:number]
        return [(self.names[group], float(self.share[group]), float(self.target[group])) for group in groups]


@dataclass(frozen=True)
class BatchView:
    """What one host, or all of them together, see at one step.

    Steps count from 0 over all epochs; `epoch` is the one in which the batch begins, `position` the global position
    of its first row. `num_repeats` are the sequences beyond the first of each document, `num_copies` the copies beyond
    the first of each document that has several.
    """

    ordering: str
    step: int
    epoch: int
    position: int
    sequences: tuple[SequenceView, ...]
    families: dict[str, FamilyView]
    num_repeats: int
    num_copies: int


@dataclass(frozen=True)
class Use:
    """One place where training reads a document: `num_tokens` from its token `document_offset` on.

    `position` is that of the sequence in an epoch, `step` the step of the first epoch that reads it, `row` its row of
    the global batch.
    """

    sequence_index: int
    position: int
    step: int
    row: int
    document_offset: int
    num_tokens: int


class Inspector:
    """Shows what training reads from a built dataset in one of its orderings.

    Args:
        dataset: the dataset.
        ordering: name of one of its orderings, or a .npy file.
        global_batch_size: B, sequences of a batch over all hosts.

    Raises:
        UserError: an unknown ordering or one of another dataset, a batch that the epoch cannot fill.

    Example:
        >>> batch = Inspector(open_dataset("out/"), "balance", 64).batch(step=3)
        >>> batch.sequences[0].segments[0].about["id"]
    """

    def __init__(self, dataset: Dataset, ordering: str, global_batch_size: int) -> None:
        self.dataset, self.ordering, self.global_batch_size = dataset, ordering, global_batch_size
        self._order = dataset.find_plan(ordering).indices
        if not 1 <= global_batch_size <= len(self._order):
            raise UserError(
                f"Expected a global batch size in 1 .. {len(self._order)} (the positions of an epoch), found "
                f"{global_batch_size}."
            )

    def batch(self, step: int, *, host_index: int = 0, num_hosts: int = 1) -> BatchView:
        """The batch of a step, counted from the start of training over all epochs; a host's rows of it.

        Raises:
            UserError: a negative step, hosts that do not divide the batch, records that are damaged.
        """
        size = self.global_batch_size
        step = whole_number("step", step, 0, 2**62 // size)
        rows = host_rows(size, host_index, num_hosts)
        sequences = self._order[(step * size + rows) % len(self._order)]
        views = sequence_views(self.dataset, rows.tolist(), sequences)
        epoch = step * size // len(self._order)
        again = [
            num_repeats(held[sequences]) for held in (self.dataset.sequence_documents, self.dataset.sequence_copies)
        ]
        return BatchView(self.ordering, step, epoch, step * size, views, self._families(views), *again)

    def uses(self, document: str) -> list[Use]:
        """Where training reads a document, by its id; empty where it is kept for validation or left out.

        Raises:
            UserError: no document of this id.
        """
        document_index = find_document(self.dataset, document)
        if document_index is None:
            raise UserError(
                f"Expected the id of one of the dataset's {self.dataset.counts('prepare')['num_documents']} documents, "
                f"found {document!r}; the ids are in {_table(self.dataset, 'documents')}."
            )
        parts = document_parts(self.dataset, document_index)
        sequences = np.array([sequence for sequence, _, _ in parts], np.int64)
        # One pass over the ordering: its whole inverse would be as large as the ordering itself.
        positions = np.flatnonzero(np.isin(self._order, sequences))
        positions_of: dict[int, list[int]] = {}
        for sequence, position in zip(self._order[positions].tolist(), positions.tolist(), strict=True):
            positions_of.setdefault(sequence, []).append(position)  # a schedule may repeat it
        uses = [
            Use(sequence, at, *divmod(at, self.global_batch_size), offset, length)
            for sequence, offset, length in parts
            for at in positions_of.get(sequence, [])
        ]
        return sorted(uses, key=lambda use: (use.position, use.document_offset))

    def appearances(self, document: str) -> int | None:
        """How often a document was packed by its weight, by its id; None where nothing was weighed."""
        document_index = find_document(self.dataset, document)
        if document_index is None or self.dataset.appearances is None:
            return None
        return int(self.dataset.appearances[document_index])

    def _families(self, sequences: Sequence[SequenceView]) -> dict[str, FamilyView]:
        segments = [segment for sequence in sequences for segment in sequence.segments]
        num_tokens = [segment.num_tokens for segment in segments]
        families = {}
        for family in self.dataset.families:
            names, totals = self.dataset.group_names[family], self.dataset.group_tokens[family]
            codes = np.array([segment.codes[family] for segment in segments], np.int64)
            tokens = np.bincount(codes, weights=num_tokens, minlength=len(names))
            share, target = tokens / max(tokens.sum(), 1.0), totals / max(totals.sum(), 1)
            tv = float(total_variation(tokens[None], target)[0])
            families[family] = FamilyView(tv, share, target, names)
        return families


def host_rows(global_batch_size: int, host_index: int, num_hosts: int) -> Int64[np.ndarray, " row"]:
    """The rows of the global batch that a host holds; refused where the hosts do not divide it."""
    if num_hosts < 1 or global_batch_size % num_hosts or not 0 <= host_index < num_hosts:
        raise UserError(
            f"Expected a host index below a number of hosts that divides the global batch of {global_batch_size}, "
            f"found host {host_index} of {num_hosts}."
        )
    # The window contract: host h of H holds rows [h B / H, (h + 1) B / H) of the global batch.
    num_rows = global_batch_size // num_hosts
    return np.arange(num_rows) + host_index * num_rows


def sequence_views(
    dataset: Dataset, rows: Sequence[int], sequences: Int64[np.ndarray, " row"]
) -> tuple[SequenceView, ...]:
    """Some sequences with the documents in them; `rows` are their rows of the global batch."""
    records = dataset.records.read(dataset.records.places_of(sequences), expected=sequences)
    segments = [record_segments(record) for record in records]
    wanted = np.unique(np.concatenate([np.zeros(0, np.int64), *(documents for documents, _ in segments)]))
    # Every document's row is read once, however many segments it has in the batch.
    rows_of = [_take_rows(_table(dataset, name), wanted) for name in ("documents", "codes")]
    known = dict(zip(wanted.tolist(), zip(*rows_of, strict=True), strict=True))
    views = []
    for row, sequence, (mine, tokens) in zip(rows, sequences.tolist(), segments, strict=True):
        parts = zip(mine.tolist(), tokens.tolist(), strict=True)
        segment_views = tuple(SegmentView(document, length, *known[document]) for document, length in parts)
        views.append(SequenceView(row, sequence, segment_views))
    return tuple(views)


def find_document(dataset: Dataset, document: str) -> int | None:
    """The number of the document of an id; None where there is none."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    # One column and one search in Arrow: as Python strings, a hundred million ids would be many gigabytes.
    ids = pq.read_table(_table(dataset, "documents"), columns=["id"])["id"]
    place = pc.index(ids, document).as_py()  # type: ignore[attr-defined]
    return None if place < 0 else place


def document_parts(dataset: Dataset, document_index: int) -> list[tuple[int, int, int]]:
    """Where a document lies in the training sequences: sequence, first token of the document, number of tokens."""
    import pyarrow.parquet as pq

    columns, wanted = ["sequence_index", "document_offset", "length"], [("document_index", "==", document_index)]
    found = pq.read_table(dataset.file("pack", "sequences/segments.parquet"), columns=columns, filters=wanted)
    return list(zip(*(found[name].to_pylist() for name in columns), strict=True))


def _table(dataset: Dataset, name: str) -> Path:
    return dataset.file("characterize", f"characteristics/{name}.parquet")


def _take_rows(path: Path, indices: Int64[np.ndarray, " row"]) -> list[dict[str, Any]]:
    """Some rows of a Parquet file, ascending; only the row groups that hold them are read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    try:
        with pq.ParquetFile(path) as file:
            sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
            ends = np.cumsum(sizes, dtype=np.int64)
            group = np.searchsorted(ends, indices, side="right")
            # Indices ascend, so that the row groups' rows, one group after another, come in the order of the indices.
            for index in np.unique(group).tolist():
                local = indices[group == index] - (ends[index] - sizes[index])
                rows += file.read_row_group(index).take(pa.array(local)).to_pylist()
    except (pa.ArrowException, OSError) as error:
        what = " ".join(str(error).split())
        raise UserError(f"{path} is damaged ({what}); run `jax-diversity characterize` again.") from None
    return rows
