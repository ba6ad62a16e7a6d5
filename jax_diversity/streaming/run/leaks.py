"""Texts that one dataset of a run holds out for validation and another one trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import distinct_ends
from jax_diversity.foundation.warned import warn
from jax_diversity.foundation.wording import counted
from jax_diversity.sequences.packing.stored import PackingArtifacts
from jax_diversity.streaming.dataset import Dataset
from jax_diversity.streaming.dataset.dataset import ValidationPart
from jax_diversity.streaming.run.settings import HeldOut


@dataclass(frozen=True)
class Leaks:
    """The held-out texts that datasets of a run train on, under any id.

    Attributes:
        numbers: (the dataset that holds out, the dataset that trains) -> the number of texts. The names are those of
            the datasets' folders.
        documents: fingerprint of a dataset -> whether each of its documents is in training and has such a text; only
            for datasets with such documents.
    """

    numbers: Mapping[tuple[str, str], int]
    documents: Mapping[str, Bool[np.ndarray, " document"]]

    def __str__(self) -> str:
        """The numbers of texts by dataset."""
        return "; ".join(
            f"{trainer} trains on {counted(number, 'held-out text')} of {holder}"
            for (holder, trainer), number in self.numbers.items()
        )


def find_leaks(datasets: Sequence[Dataset], for_evaluation: Sequence[Dataset] = ()) -> Leaks:
    """Compare the hashes of the datasets' held-out texts with those of the texts that the other datasets train on.

    A dataset without a record of its split holds nothing out. All texts of datasets `for_evaluation` count as held out.
    """
    rows: dict[str, tuple[str, np.ndarray]] = {}
    trained: dict[str, np.ndarray] = {}
    num_training, datasets = len(datasets), [*datasets, *for_evaluation]
    for number, (dataset, name) in enumerate(
        zip(datasets, distinct_ends([dataset.address for dataset in datasets]), strict=True)
    ):
        if dataset.fingerprint not in rows and PackingArtifacts.document_hashes.is_stored(dataset.stored):
            hashes = dataset.document_hashes
            if number >= num_training:
                hashes = hashes.copy()
                hashes["held_out"] = True
            rows[dataset.fingerprint], trained[dataset.fingerprint] = (name, hashes), ~hashes["held_out"]
            if dataset.appearances is not None:  # a weight of 0 keeps a document out of training
                trained[dataset.fingerprint] &= dataset.appearances > 0
    numbers: dict[tuple[str, str], int] = {}
    documents: dict[str, np.ndarray] = {}
    for holding, (holder, hashes) in rows.items():
        texts = np.unique(hashes["text"][hashes["held_out"]])
        for training, (trainer, other_rows) in rows.items():
            if holding == training:
                continue
            leaked = np.isin(other_rows["text"], texts) & trained[training]
            if leaked.any():
                numbers[holder, trainer] = len(np.unique(other_rows["text"][leaked]))
                documents[training] = documents.get(training, False) | leaked
    return Leaks(numbers, documents)


class PartOfDataset(Dataset):
    """A dataset without some of its training sequences, for orders of the others.

    Only what orders need is that of the part: the number of sequences, their token counts, documents and copies.

    Args:
        whole: the dataset.
        sequences: the sequences of the part, ascending.
    """

    def __init__(self, whole: Dataset, sequences: Int64[np.ndarray, " kept"]) -> None:
        self.root, self.remote, self._memory_map = whole.root, whole.remote, whole._memory_map
        self.stored, self._whole, self.sequences = whole.stored, whole, sequences

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._whole, self.sequences)

    @property
    def num_sequences(self) -> int:
        """Number of sequences of the part."""
        return len(self.sequences)

    @cached_property
    def characteristics(self) -> Characteristics:
        """Token counts of these sequences in the families that orderings balance."""
        return self._whole.characteristics.take(self.sequences)

    @cached_property
    def sequence_documents(self) -> Int64[np.ndarray, " sequence"]:
        """See `Dataset.sequence_documents`."""
        return self._whole.sequence_documents[self.sequences]

    @cached_property
    def sequence_copies(self) -> Int64[np.ndarray, "sequence member"]:
        """See `Dataset.sequence_copies`."""
        return self._whole.sequence_copies[self.sequences]

    @cached_property
    def sequence_turns(self) -> Int64[np.ndarray, " sequence"] | None:
        """See `Dataset.sequence_turns`."""
        turns = self._whole.sequence_turns
        return None if turns is None else turns[self.sequences]


@dataclass(frozen=True)
class TrainingPart:
    """The sequences of a run's datasets that its new positions may read.

    Attributes:
        datasets: the datasets; those with held-out texts of others are a `PartOfDataset`, if these are left out.
        change: what the description of the version says about these texts; empty without such texts.
        numbers: the numbers of the sequences in the run, ascending; None if these are all sequences.
    """

    datasets: tuple[Dataset, ...]
    change: str = ""
    numbers: Int64[np.ndarray, " kept"] | None = None

    def own_numbers(self, history: Int64[np.ndarray, " used"]) -> Int64[np.ndarray, " _own"]:
        """The places of sequences among `numbers`; sequences that are left out have none."""
        if self.numbers is None or not len(self.numbers):
            return history if self.numbers is None else self.numbers
        places = np.searchsorted(self.numbers, history).clip(max=len(self.numbers) - 1)
        return places[self.numbers[places] == history]


def training_part(datasets: Sequence[Dataset], held_out: HeldOut) -> TrainingPart:
    """Find what a run may read of its datasets, such that it does not train on their held-out texts.

    Args:
        datasets: the datasets of the run.
        held_out: see `Mixture`. With `skip`, a sequence is left out if it contains tokens of a document with a held-out
            text of another dataset, or of a document that its own dataset marks as a near copy of such a document.

    Raises:
        UserError: datasets train on held-out texts of others and `held_out` is `refuse`; the message has the numbers.
    """
    leaks = find_leaks(datasets)
    if not leaks.numbers:
        return TrainingPart(tuple(datasets))
    if held_out == "keep":
        return TrainingPart(tuple(datasets), f", {leaks}")
    if held_out == "refuse":
        holder, trainer = next(iter(leaks.numbers))
        raise UserError(
            f"Expected datasets that do not train on each other's held-out texts, found that {leaks}; build {trainer} "
            f"with packing.validation_from set to the folder of {holder}, or set held_out=skip to leave out the "
            "sequences with these texts, or held_out=keep to train on them."
        )
    parts, numbers, words, start = [], [], [], 0
    for dataset, name in zip(datasets, distinct_ends([dataset.address for dataset in datasets]), strict=True):
        kept, part = np.arange(dataset.num_sequences), dataset
        if (leaked := leaks.documents.get(dataset.fingerprint)) is not None:
            kept = np.flatnonzero(~_sequences_with(dataset, leaked))
            part = PartOfDataset(dataset, kept)
            texts = len(np.unique(dataset.document_hashes["text"][leaked]))
            left_out = counted(dataset.num_sequences - len(kept), "sequence")
            words.append(f", without {left_out} of {name} with {counted(texts, 'held-out text')}")
        parts.append(part)
        numbers.append(kept + start)
        start += dataset.num_sequences
    return TrainingPart(tuple(parts), "".join(words), np.concatenate(numbers))


def warn_of_validation(datasets: Sequence[Dataset]) -> None:
    """Warn if a dataset whose held-out sequences are read trains on texts that are read for evaluation of another one.

    Args:
        datasets: the validation parts, and datasets that are for evaluation alone.
    """
    if len(datasets) < 2:
        return  # a dataset never trains on its own held-out texts
    wholes = [dataset.whole for dataset in datasets if isinstance(dataset, ValidationPart)]
    leaks = find_leaks(wholes, [dataset for dataset in datasets if not isinstance(dataset, ValidationPart)])
    if leaks.numbers:
        warn(
            f"Some texts are read for validation that another dataset trains on: {leaks}; the loss on them is too low "
            "for a model that trains on both. create_schedule(..., held_out='skip') makes a run without these texts."
        )


def check_positions(datasets: Sequence[Dataset], numbers: Int64[np.ndarray, " position"]) -> None:
    """Refuse positions that read held-out texts of other datasets.

    Args:
        datasets: the datasets.
        numbers: the sequence at every position, numbered over all datasets.

    Raises:
        UserError: with the number of positions and the numbers of texts by dataset.
    """
    allowed = training_part(datasets, "skip").numbers
    if allowed is not None and (number := int((~np.isin(numbers, allowed)).sum())):
        raise UserError(
            "Expected positions that read no held-out text of another dataset, found that "
            f"{counted(number, 'position')} read some: {find_leaks(datasets)}; leave these sequences out, let "
            "create_schedule(..., held_out='skip') make the order, or set held_out='keep' to train on these texts."
        )


def _sequences_with(dataset: Dataset, documents: Bool[np.ndarray, " document"]) -> Bool[np.ndarray, " sequence"]:
    """Whether each training sequence contains tokens of some documents, or of their copies and marked near copies."""
    groups = np.asarray(dataset.duplicate_groups)
    segments = dataset.segments
    leaked = np.isin(groups, np.unique(groups[documents]))[segments.document_index]
    is_copy = np.zeros(dataset.num_sequences, bool)
    is_copy[segments.sequence_index[leaked]] = True
    return is_copy
