"""What preparation leaves: documents, the groups of equal texts, decisions, and the account of all steps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import read_array, read_json
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.stored import Artifact, StoredStages, StoredValue

if TYPE_CHECKING:
    import pyarrow.dataset

    from jax_diversity.schema.document_store import DocumentStore

DOCUMENTS = "documents"
"""The folder of the documents. It has only Parquet files, so that any reader of Parquet folders can read it."""
PREPARATION = "preparation"
OUT_OF_SCOPE = "all_rules"
"""The account counts documents that `only` excludes from a step as not judged, under this name."""


def _read_documents(stored: StoredStages) -> pyarrow.dataset.Dataset:
    import pyarrow.dataset

    return pyarrow.dataset.dataset([str(path) for path in _document_files(stored)], format="parquet")


def _open_document_store(stored: StoredStages) -> DocumentStore:
    from jax_diversity.schema.document_store import DocumentStore

    return DocumentStore(tuple(_document_files(stored)))


def read_preparation(stored: StoredStages, name: str) -> Any:
    """Return one of the JSON files of preparation, such as `funnel`; None if there were no steps."""
    path = f"{PREPARATION}/{name}.json"
    return read_json(stored.file("prepare", path), "prepare") if stored.names("prepare", path) else None


def evaluation_lists(stored: StoredStages) -> tuple[str, ...]:
    """Return the files of evaluation texts that the documents were checked against, see `Step.evaluation_lists`."""
    lists = stored.counts("prepare").get("preparation", {}).get("evaluation_lists", ())
    return tuple(dict.fromkeys(map(str, lists)))


@dataclass(frozen=True)
class Decision:
    """The decision of preparation on one document, a row of `preparation/decisions`.

    `edited_by` has the steps that changed its text. `step` to `threshold` belong to the rule that removed it; they are
    None for kept documents. `duplicate_of` is the id of the document of which it is a copy. `fields` has the fields
    that steps added, as a JSON object. `phrase` says in a few words why the rule removes a document.
    """

    id: str
    kept: bool
    edited_by: list[str]
    step: str | None
    rule: str | None
    value: float | None
    threshold: float | None
    duplicate_of: str | None
    fields: str | None
    phrase: str = ""

    @property
    def sentence(self) -> str:
        """The decision in one sentence."""
        if self.kept:
            return "Preparation kept it."
        numbers = ""
        if self.value is not None:
            numbers = f": {self.value:g}"
            numbers += "" if self.threshold is None else f", against a threshold of {self.threshold:g}"
        copy = "" if self.duplicate_of is None else f"; it is a copy of {self.duplicate_of}"
        reason = f" ({self.phrase})" if self.phrase else ""
        text = f"The step {self.step} removed it by the rule {self.rule}{reason}{numbers}{copy}."
        decoded = json.loads(self.fields or "{}")
        if "detected_language" not in decoded:
            return text
        return (
            f"{text} The language found is {decoded['detected_language']}, with a probability of "
            f"{decoded['language_probability']:g}."
        )


def find_decision(stored: StoredStages, document: str) -> Decision | None:
    """Return the decision on a document; None if there were no steps, or if no document had this id.

    Raises:
        UserError: a file of decisions is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from jax_diversity.schema.document_store import DECISIONS

    names = [column.name for column in dataclass_fields(Decision) if column.name != "phrase"]
    folder = f"{PREPARATION}/decisions/"
    for path in stored.files("prepare", folder, ".parquet") if stored.names("prepare", folder) else ():
        try:
            table = pq.read_table(path, columns=names, filters=[("id", "==", document)])
            rows = table.cast(pa.schema([DECISIONS.field(name) for name in names])).to_pylist()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UserError(f"{path} is damaged ({in_one_line(error)}); prepare the corpus again.") from None
        if rows:
            phrases = (read_preparation(stored, "funnel") or {}).get("phrases", {})
            return Decision(**rows[0], phrase=phrases.get(f"{rows[0]['step']}.{rows[0]['rule']}", ""))
    return None


def _document_files(stored: StoredStages) -> list[Path]:
    return stored.document_files("prepare", f"{DOCUMENTS}/", ".parquet")


def _map_groups(path: Path, stage: str) -> Int64[np.ndarray, " document"]:
    return read_array(path, stage, mmap=True)


class DocumentArtifacts:
    """The artifacts of the stage `prepare`."""

    documents = StoredValue(_read_documents)
    """The documents in their stored order; columns are read when a table is requested.

    Example:
        >>> dataset.documents.to_table(columns=["id", "source"])
    """
    document_store = StoredValue(_open_document_store)
    """The files of the documents; they can be read in small batches or by columns."""
    num_document_files = StoredValue(lambda stored: len(stored.document_names("prepare", f"{DOCUMENTS}/")))
    """Number of stored files of documents."""
    duplicate_groups = Artifact("prepare", "duplicates/groups.npy", _map_groups)
    """A number for each document, 0 .. number of different texts - 1; equal texts have equal numbers."""
