"""Find the documents in the batch of a step, and the positions at which a run reads a document.

Only the run's positions, the records of the batch, and the table rows of their documents are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.ordering.measures.balance import own_shares
from jax_diversity.ordering.measures.documents import num_repeats
from jax_diversity.ordering.measures.windows import place, total_variation, window_deviation
from jax_diversity.schema.documents import ROLES
from jax_diversity.schema.prepared import find_decision
from jax_diversity.sequences.characteristics.stored import CODES, DOCUMENTS, SEQUENCE_FAMILIES
from jax_diversity.sequences.packing.stored import SEGMENTS
from jax_diversity.streaming.dataset.dataset import Dataset
from jax_diversity.streaming.run.joining import joined_groups
from jax_diversity.streaming.run.run import Run


@dataclass(frozen=True)
class SegmentView:
    """One document's part of a sequence.

    `about` is the document's row of `characteristics/documents.parquet` (id, all its tokens, source, language ...).
    `codes` maps a family to the number of the document's group.
    """

    document_index: int
    num_tokens: int
    about: dict[str, Any]
    codes: dict[str, int]


@dataclass(frozen=True)
class SequenceView:
    """One row of the global batch: the origin of its sequence, and the sequence's segments in their order.

    `position` is the position in the run. `dataset` is the number of the dataset, and `path` its folder or address.
    `sequence_index` is the number of the sequence in the dataset. `epoch` is how often the sequence was read before.
    """

    row: int
    position: int
    dataset: int
    path: str
    epoch: int
    sequence_index: int
    segments: tuple[SegmentView, ...]


@dataclass(frozen=True)
class FamilyView:
    """The shares of the groups of one family in the tokens of a batch, and in the corpus (the target).

    A family is one kind of characteristics, such as topic clusters or sources; a group is one value of the family.

    `measures.windows.total_variation` defines the total variation.
    """

    total_variation: float
    share: Float64[np.ndarray, " group"]
    target: Float64[np.ndarray, " group"]
    names: tuple[str, ...]

    def largest_differences(self, number: int) -> list[tuple[str, float, float]]:
        """The groups with the largest difference between share and target, as (name, share, target)."""
        groups = np.argsort(-np.abs(self.share - self.target), kind="stable")[:number]
        return [(self.names[group], float(self.share[group]), float(self.target[group])) for group in groups]


@dataclass(frozen=True)
class BatchView:
    """The batch of one step: the rows of one host or of all hosts.

    Steps count from 0 over all epochs; `position` is the global position of the first row. `run` is the name of the
    ordering or of the stored run, and `version` the version of a stored run. The target of a family is the shares of
    the groups in the whole run, or in its only dataset. If a document has several sequences in the batch, all except
    the first count for `num_repeats`. If a text has several copies in the batch, all except the first count for
    `num_copies`.
    """

    run: str
    version: int | None
    step: int
    position: int
    sequences: tuple[SequenceView, ...]
    families: dict[str, FamilyView]
    num_repeats: int
    num_copies: int


@dataclass(frozen=True)
class DocumentUse:
    """A part of a document that training reads: `num_tokens` tokens, from the token `document_offset` on.

    `position` is the position in the run, `step` the step that reads it, and `row` the row of the global batch.
    `dataset`, `path` and `epoch` are as in `SequenceView`. For a run of one epoch, only the first epoch is listed.
    """

    sequence_index: int
    position: int
    step: int
    row: int
    document_offset: int
    num_tokens: int
    dataset: int
    path: str
    epoch: int


class Inspector:
    """Shows what training reads from a run.

    Args:
        run: the run.
        global_batch_size: B, the number of sequences in a batch over all hosts.

    Raises:
        UserError: the batch is larger than the run.

    Example:
        >>> inspector = Inspector(make_run("out/", "balance"), 64)
        >>> inspector.batch(step=3).sequences[0].segments[0].about["id"], inspector.uses("page-17")[0].step
    """

    def __init__(self, run: Run, global_batch_size: int) -> None:
        if not 1 <= global_batch_size <= len(run):
            raise UserError(
                f"Expected a global batch size in 1 .. {len(run)} (the positions of the run), found "
                f"{global_batch_size}."
            )
        self.run, self.global_batch_size = run, global_batch_size

    @cached_property
    def _shares(self) -> dict[str, Float64[np.ndarray, " group"]]:
        counts = self.run.characteristics
        if len(self.run.datasets) > 1:
            return own_shares(counts, self.run)
        return {family: counts.target_share(family) for family in counts.families}

    def batch(self, step: int, *, host_index: int = 0, num_hosts: int = 1, compare: bool = True) -> BatchView:
        """The rows of one host in the batch of a step.

        `compare` adds the shares of each family, in the batch and in the whole run. With several datasets this reads
        all counts.

        Raises:
            UserError: the step is beyond the end of a run that does not repeat; the number of hosts does not divide
                the batch; records are damaged.
        """
        size = self.global_batch_size
        last = 2**62 // size if self.run.is_bijection else len(self.run) // size - 1
        step = as_whole_number("step", step, 0, last)
        rows = host_rows(size, host_index, num_hosts)
        dataset, sequence, epoch = self.run.origins(step * size + rows)
        views_of_rows, repeats, copies = dict[int, SequenceView](), 0, 0
        for index in np.unique(dataset).tolist():
            indices, of = np.flatnonzero(dataset == index), self.run.datasets[index]
            views = zip(indices.tolist(), sequence_segments(of, sequence[indices]), strict=True)
            for at, segments in views:
                row = int(rows[at])
                place = (row, step * size + row, index, self.run.addresses[index], int(epoch[at]), int(sequence[at]))
                views_of_rows[row] = SequenceView(*place, segments)
            # A document and its copies belong to one dataset, so that the repeats of all datasets can be added.
            repeats += num_repeats(of.sequence_documents[sequence[indices]])
            copies += num_repeats(of.sequence_copies[sequence[indices]])
        views = tuple(views_of_rows[row] for row in rows.tolist())
        families = self._families(views) if compare or len(self.run.datasets) == 1 else {}
        version = self.run.info.get("version")
        return BatchView(self.run.name, version, step, step * size, views, families, repeats, copies)

    def deviations(self, *, host_index: int = 0, num_hosts: int = 1) -> dict[str, Float64[np.ndarray, " batch"]]:
        """The total variation between each whole batch (or a host's rows of it) and the run: family -> (batch,)."""
        chars, numbers = self.run.characteristics, self._sequences_of_batches(host_index, num_hosts)
        return {
            family: window_deviation(place(chars.counts[family], numbers.reshape(-1)), share, numbers.shape[1])
            for family, share in self._shares.items()
        }

    def steps_with_repeats(self, *, host_index: int = 0, num_hosts: int = 1) -> Int64[np.ndarray, " step"] | None:
        """The steps whose batch (or a host's rows of it) has two rows of one document; None if they are unknown."""
        documents = self.run.characteristics.documents
        if documents is None:
            return None
        ordered = np.sort(documents[self._sequences_of_batches(host_index, num_hosts)], axis=1)
        repeats = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        return np.flatnonzero(repeats.any(axis=1))

    def _sequences_of_batches(self, host_index: int, num_hosts: int) -> Int64[np.ndarray, "batch row"]:
        """The sequences of all whole batches, or of a host's rows; a partial last batch is left out, as in training."""
        size = self.global_batch_size
        rows = host_rows(size, host_index, num_hosts)
        positions = np.arange(len(self.run) // size)[:, None] * size + rows
        return self.run.at(positions.reshape(-1)).reshape(positions.shape)

    def uses(self, document: str) -> list[DocumentUse]:
        """Return all places where the run reads a document, in the order of training; `document` is its id.

        Several datasets may have a document with this id. The list is empty if the document is in the validation set,
        is left out, or is not in the run.

        Raises:
            UserError: no dataset has a document with this id.
        """
        numbers = [find_document(dataset, document) for dataset in self.run.datasets]
        if all(index is None for index in numbers):
            raise unknown_document(self.run.datasets, document)
        uses: list[DocumentUse] = []
        for index, (dataset, number) in enumerate(zip(self.run.datasets, numbers, strict=True)):
            parts: dict[int, list[tuple[int, int]]] = {}
            for sequence, offset, length in () if number is None else document_parts(dataset, number):
                parts.setdefault(sequence, []).append((offset, length))
            # One pass over the run finds the positions: a table from sequences to positions would be too large.
            sequences = np.array([*parts], np.int64) + self.run.offsets[index]
            positions = np.flatnonzero(np.isin(self.run.indices, sequences))
            origins = self.run.origins(positions)
            for position, sequence, epoch in zip(
                positions.tolist(), origins.sequence.tolist(), origins.epoch.tolist(), strict=True
            ):
                step, path = divmod(position, self.global_batch_size), self.run.addresses[index]
                uses += [DocumentUse(sequence, position, *step, *part, index, path, epoch) for part in parts[sequence]]
        return sorted(uses, key=lambda use: (use.position, use.document_offset))

    def absence(self, document: str) -> str:
        """Return why the run does not read a document, which has no `uses`; a reason for each dataset that has it."""
        numbers = [find_document(dataset, document) for dataset in self.run.datasets]
        reasons = (
            _absence(dataset, number)
            for dataset, number in zip(self.run.datasets, numbers, strict=True)
            if number is not None
        )
        return "; ".join(dict.fromkeys(reasons))

    def appearances(self, document: str) -> int | None:
        """The number of appearances of a document, which its weight determines; None if documents have no weights."""
        for dataset in self.run.datasets:
            number = find_document(dataset, document)
            if number is not None and dataset.appearances is not None:
                return int(dataset.appearances[number])
        return None

    def _families(self, sequences: Sequence[SequenceView]) -> dict[str, FamilyView]:
        """The shares of the groups in the batch, counted from its segments, and the target shares."""
        datasets, families = self.run.datasets, {}
        only = datasets[0] if len(datasets) == 1 else None
        for family in self._shares if only is None else only.families:
            names = joined_groups(datasets, family)
            column = {name: number for number, name in enumerate(names)}
            tokens = np.zeros(len(names))
            if family in SEQUENCE_FAMILIES:  # the other families have one group for each segment
                for number, dataset in enumerate(datasets):
                    numbers = [sequence.sequence_index for sequence in sequences if sequence.dataset == number]
                    counts = dataset.count_segments(dataset.segments.take(np.array(numbers, np.int64)), family)
                    tokens += np.asarray(counts.sum(axis=0))
            else:
                for sequence in sequences:
                    groups = datasets[sequence.dataset].group_names[family]
                    for segment in sequence.segments:
                        tokens[column[groups[segment.codes[family]]]] += segment.num_tokens
            target = self._shares[family] if only is None else _stored_shares(only, family)
            tv = float(total_variation(tokens[None], target)[0])
            families[family] = FamilyView(tv, tokens / max(tokens.sum(), 1.0), target, names)
        return families


def _absence(dataset: Dataset, document_index: int) -> str:
    if dataset.held_out[document_index]:
        return "kept for validation"
    if dataset.appearances is not None and not dataset.appearances[document_index]:
        return "left out by its weight"
    if document_parts(dataset, document_index):
        return "the run does not reach its sequences, or skips them"
    return "left out by packing"


def _stored_shares(dataset: Dataset, family: str) -> Float64[np.ndarray, " group"]:
    """The groups' shares of a dataset's tokens, without reading its counts."""
    totals = dataset.group_tokens[family]
    return totals / max(totals.sum(), 1)


def host_rows(global_batch_size: int, host_index: int, num_hosts: int) -> Int64[np.ndarray, " row"]:
    """The rows of the global batch that a host reads; raises a `UserError` if the hosts do not divide the batch."""
    if num_hosts < 1 or global_batch_size % num_hosts or not 0 <= host_index < num_hosts:
        raise UserError(
            f"Expected a host index below a number of hosts that divides the global batch of {global_batch_size}, "
            f"found host {host_index} of {num_hosts}."
        )
    # The window contract: host h of H holds rows [h B / H, (h + 1) B / H) of the global batch.
    num_rows = global_batch_size // num_hosts
    return np.arange(num_rows) + host_index * num_rows


def sequence_segments(dataset: Dataset, sequences: Int64[np.ndarray, " row"]) -> list[tuple[SegmentView, ...]]:
    """For each sequence, its segments with their documents."""
    segments = dataset.records.read_segments(dataset.records.places_of(sequences), expected=sequences)
    distinct = np.unique(np.concatenate([np.zeros(0, np.int64), *(documents for documents, _ in segments)]))
    # The row of a document is read once, even if the document has several segments in the batch.
    rows_of = [_take_rows(path, distinct) for path in (DOCUMENTS.path(dataset.stored), CODES.path(dataset.stored))]
    rows_by_document = dict(zip(distinct.tolist(), zip(*rows_of, strict=True), strict=True))
    return [
        tuple(
            SegmentView(document, length, *rows_by_document[document])
            for document, length in zip(documents.tolist(), tokens.tolist(), strict=True)
        )
        for documents, tokens in segments
    ]


def find_document(dataset: Dataset, document: str) -> int | None:
    """The number of the document with an id; None if no document has the id."""
    import pyarrow.compute as pc

    place = pc.index(_ids(dataset), document).as_py()  # type: ignore[attr-defined]
    return None if place < 0 else place


@dataclass(frozen=True)
class TurnView:
    """A turn of a chat: its role, its tokens, and the runs of its text with whether they count towards the loss.

    `num_left_out` is the number of its tokens that packing left out of all sequences, of training and of validation.
    """

    role: str
    num_tokens: int
    num_left_out: int
    texts: tuple[tuple[str, bool], ...]


def chat_turns(dataset: Dataset, document: str) -> list[TurnView]:
    """Return the turns of a chat as they are tokenised; empty if the document is not a chat or there is no tokenizer.

    Raises:
        UserError: the tokens are damaged, or the tokenizer's library is missing.
    """
    number = find_document(dataset, document)
    if number is None or not dataset.is_chat[number] or (tokenizer := dataset.tokenizer) is None:
        return []
    tokens, turns = dataset.tokens.document(number), dataset.tokens.turns
    whole = np.array([number]), np.array([0]), np.array([len(tokens)])
    counts = dataset.tokens.loss_mask(*whole)
    turns_of_document = slice(*np.searchsorted(turns.document_index, [number, number + 1]).tolist())
    bounds = [*turns.offset[turns_of_document].tolist(), len(tokens)]
    is_placed = np.zeros(len(tokens), bool)
    for part in (dataset.segments, dataset.validation_segments):
        length = part.length - part.inserted_ends(dataset.tokens.document_lengths)
        for row in np.flatnonzero(part.document_index == number).tolist():
            is_placed[part.document_offset[row] :][: length[row]] = True
    views = []
    for role, (start, stop) in zip(turns.role[turns_of_document].tolist(), pairwise(bounds), strict=True):
        changes = np.flatnonzero(np.diff(counts[start:stop])) + 1 + start
        runs = pairwise([start, *changes.tolist(), stop])
        texts = tuple((tokenizer.decode(tokens[first:last]), bool(counts[first])) for first, last in runs)
        num_left_out = int((~is_placed[start:stop]).sum())
        views.append(TurnView(ROLES[role], stop - start, num_left_out, texts))
    return views


def unknown_document(datasets: Sequence[Dataset], document: str) -> UserError:
    """Return the error for an id that is in no dataset. It suggests an id that the given path may mean."""
    import pyarrow.compute as pc

    base = document.rsplit("/", 1)[-1]
    near: str | None = None
    for dataset in datasets:
        if near is None and find_decision(dataset.stored, base) is not None:
            near = base  # preparation removed it
        ids: Any = _ids(dataset)
        tests = (("equal", base), ("ends_with", f"/{base}"), ("starts_with", f"{base}:"))
        for test, text in tests:
            if base and near is None and len(matching := ids.filter(getattr(pc, test)(ids, text))):
                near = matching[0].as_py()
    meant = "" if near is None else f"; did you mean {near!r}?"
    return UserError(
        f"Expected the id of a document, found {quoted(document)}{meant or '.'} An id is the field `id` of a record; "
        "without that field, it is the name of the file, and the line of the record after a colon (docs.jsonl:44)."
    )


def _ids(dataset: Dataset) -> Any:
    """Return the ids of all documents as an Arrow column; a hundred million Python strings need many gigabytes."""
    import pyarrow.parquet as pq

    if "characterize" not in dataset.stored.stages:
        return dataset.documents.to_table(columns=["id"])["id"]
    return pq.read_table(DOCUMENTS.path(dataset.stored), columns=["id"])["id"]


def ids_of(dataset: Dataset, numbers: Int64[np.ndarray, " row"]) -> tuple[str, ...]:
    """The ids of some documents, given by ascending numbers."""
    if "characterize" not in dataset.stored.stages:
        return tuple(_ids(dataset).take(numbers).to_pylist())
    return tuple(str(row["id"]) for row in _take_rows(DOCUMENTS.path(dataset.stored), numbers))


def document_parts(dataset: Dataset, document_index: int) -> list[tuple[int, int, int]]:
    """The parts of a document in the training sequences: (sequence, first token of the document, number of tokens)."""
    import pyarrow.parquet as pq

    columns, filters = ["sequence_index", "document_offset", "length"], [("document_index", "==", document_index)]
    table = pq.read_table(SEGMENTS["train"].path(dataset.stored), columns=columns, filters=filters)
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def _take_rows(path: Path, indices: Int64[np.ndarray, " row"]) -> list[dict[str, Any]]:
    """Read rows of a Parquet file; `indices` are ascending. Only the row groups with these rows are read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    try:
        with pq.ParquetFile(path) as file:
            sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
            ends = np.cumsum(sizes, dtype=np.int64)
            group = np.searchsorted(ends, indices, side="right")
            # Indices are ascending: reading the row groups one after another keeps their order.
            for index in np.unique(group).tolist():
                local = indices[group == index] - (ends[index] - sizes[index])
                rows += file.read_row_group(index).take(pa.array(local)).to_pylist()
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is damaged ({reason}); run `jax-diversity characterize` again.") from None
    return rows
