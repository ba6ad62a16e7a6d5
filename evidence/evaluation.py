"""Evaluation of trained models: validation documents by their groups, and held-out tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from jaxtyping import Float64, Int64, Integer

from evidence.sequences import Sequences, sequences_of_texts
from evidence.settings import ExperimentConfig, TaskConfig, ValidationConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.lab.group_losses import document_codes
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig

if TYPE_CHECKING:
    from jax_diversity.streaming.dataset import Dataset

_LEAST_TOKENS = 512
"""Smallest number of tokens of a group whose loss is reported."""
_RUN = 32  # shorter runs of tokens, such as phrases, occur in any two texts of a language


@dataclass(frozen=True)
class Documents:
    """Documents on which the loss is measured.

    Attributes:
        texts: the tokens of each document.
        sequences: the same tokens as sequences; `sequences.documents` contains indices into `texts`.
        groups: family -> the name of every document's group.
    """

    texts: tuple[Integer[np.ndarray, " _"], ...]
    sequences: Sequences
    groups: Mapping[str, np.ndarray]

    def by_document(
        self, losses: Float64[np.ndarray, "row token"]
    ) -> tuple[np.ndarray, Int64[np.ndarray, " document"]]:
        """Return every document's summed loss and its number of targets."""
        counts = self.sequences.is_target[: len(losses)] > 0
        documents = self.sequences.documents[: len(losses)][counts]
        sums = np.bincount(documents, losses[counts], len(self.texts))
        return sums, np.bincount(documents, minlength=len(self.texts))

    def measures(self, sums: np.ndarray, counts: np.ndarray, macro: str) -> dict[str, float]:
        """Mean losses in nats per token: of all targets, of every group, and the mean over the groups of `macro`."""
        losses = {"loss/validation": float(sums.sum() / counts.sum())}
        for family, names in self.groups.items():
            means = []
            for name in sorted(set(names.tolist())):
                in_group = names == name
                if (total := counts[in_group].sum()) >= _LEAST_TOKENS:
                    means.append(float(sums[in_group].sum() / total))
                    losses[f"loss/{family}/{name}"] = means[-1]
            if family == macro:
                losses["loss/macro"] = float(np.mean(means))
        return losses


@dataclass(frozen=True)
class Evaluation:
    """The texts that a trial's model is evaluated on: the validation documents, and the tasks by name."""

    validation: Documents
    tasks: Mapping[str, Documents]


def make_evaluation(dataset: Dataset, config: ExperimentConfig, data: Path) -> Evaluation:
    """Read the texts of an experiment's evaluation; tasks' paths are relative to `data`.

    Raises:
        UserError: the dataset has no validation documents, or a task is empty.
    """
    length = dataset.sequence_length
    tasks = {name: _task(dataset, name, task, data, length) for name, task in config.tasks.items()}
    return Evaluation(_validation(dataset, config.validation, length), tasks)


def _validation(dataset: Dataset, config: ValidationConfig, length: int) -> Documents:
    documents = np.unique(dataset.validation_segments.document_index)
    if not len(documents):
        raise UserError(
            "Expected a dataset with validation documents, found none; set packing.validation_fraction to 0.1."
        )
    ids = list(dataset.document_store.ids())
    marks = np.array(
        [xxhash.xxh64_intdigest(ids[document].encode("utf-8", "surrogatepass")) for document in documents.tolist()]
    )
    documents = documents[np.argsort(marks, kind="stable")]
    codes = document_codes(dataset, config.macro)[documents]
    lengths = np.minimum(dataset.tokens.document_lengths[documents], config.tokens_per_document)
    # Each group gets documents in the order of their hashes until it has enough tokens.
    kept = np.zeros(len(documents), bool)
    for code in np.unique(codes):
        of_group = np.flatnonzero(codes == code)
        before = np.cumsum(lengths[of_group]) - lengths[of_group]
        kept[of_group[before < config.tokens_per_group]] = True
    documents, lengths = documents[kept], lengths[kept]
    tokens = dataset.tokens
    texts = [tokens.document(document)[:length] for document, length in zip(documents.tolist(), lengths, strict=True)]
    names = {}
    for family in config.families:
        group_names = np.array(dataset.group_names[family])
        names[family] = group_names[document_codes(dataset, family)[documents]]
    return Documents(tuple(texts), sequences_of_texts(texts, length), names)


def _task(dataset: Dataset, name: str, task: TaskConfig, data: Path, length: int) -> Documents:
    tokenizer = dataset.tokenizer
    if tokenizer is None:
        raise UserError("Expected a dataset with a tokenizer for the tasks' texts, found one without a tokenizer.")
    corpus = CorpusConfig(paths=tuple(at(data, path) for path in task.paths), format=task.format)
    texts, left = [], task.max_tokens
    try:
        for document in read_documents(corpus, ReadReport()):
            # This is enough for the missing tokens: a token of a trained BPE rarely has more than 16 characters.
            tokens = tokenizer.encode_documents([document.text[: 16 * left]])[0][:left]
            texts.append(tokens)
            left -= len(tokens)
            if left <= 1:
                break
    except UserError as error:
        raise UserError(f"Task {name!r}: {error}") from None
    if sum(len(tokens) - 1 for tokens in texts) < 1:
        raise UserError(f"Expected the task {name!r} to contain text, found none in {', '.join(task.paths)}.")
    return Documents(tuple(texts), sequences_of_texts(texts, length, task.stride), {})


def at(data: Path, path: str) -> str:
    """A path of an experiment's file; relative paths are relative to the folder `data`."""
    return path if "://" in path or Path(path).is_absolute() else str(data / path)


def common_runs(dataset: Dataset, documents: Documents) -> float:
    """Share of a task's runs of 32 consecutive tokens that also occur in the training documents, by 64-bit hashes."""
    runs = np.unique(np.concatenate([_runs(np.asarray(tokens)) for tokens in documents.texts]))
    if not len(runs):
        return 0.0
    is_present = np.zeros(len(runs), bool)
    for index in np.unique(dataset.segments.document_index).tolist():
        hashes = _runs(np.asarray(dataset.tokens.document(index)))
        places = np.minimum(np.searchsorted(runs, hashes), len(runs) - 1)
        is_present[places[runs[places] == hashes]] = True
    return float(is_present.mean())


def _runs(tokens: Integer[np.ndarray, " token"]) -> np.ndarray:
    """A hash of every run of tokens: a polynomial modulo 2^64."""
    if len(tokens) < _RUN:
        return np.zeros(0, np.uint64)
    total = np.zeros(len(tokens) - _RUN + 1, np.uint64)
    for place in range(_RUN):
        total = (
            total * np.uint64(0x9E3779B97F4A7C15) + tokens[place : place + len(total)].astype(np.uint64) + np.uint64(1)
        )
    return total
