"""The artifacts of the stage `prepare`: documents, the groups of equal texts, and the account of preparation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import read_array, read_json

if TYPE_CHECKING:
    import pyarrow.dataset

    from jax_diversity.corpus.store import DocumentStore
    from jax_diversity.foundation.stored import StoredStages

DOCUMENTS = "documents"
"""The folder of the documents. It has only Parquet files, so that any reader of Parquet folders can read it."""
DUPLICATE_GROUPS = "duplicates/groups.npy"
PREPARATION = "preparation"


def read_documents(stored: StoredStages) -> pyarrow.dataset.Dataset:
    """Return the documents in their stored order."""
    import pyarrow.dataset

    return pyarrow.dataset.dataset([str(path) for path in _document_files(stored)], format="parquet")


def open_document_store(stored: StoredStages) -> DocumentStore:
    """Return the documents' files, which can be read in small batches or by columns."""
    from jax_diversity.corpus.store import DocumentStore

    return DocumentStore(tuple(_document_files(stored)))


def read_duplicate_groups(stored: StoredStages) -> Int64[np.ndarray, " document"]:
    """Return, for every document, the number of its group of copies. The array is memory-mapped."""
    return read_array(stored.file("prepare", DUPLICATE_GROUPS), "prepare", mmap=True)


def read_preparation(stored: StoredStages, name: str) -> Any:
    """Return one of the JSON files of preparation, such as `funnel`; None if there were no steps."""
    path = f"{PREPARATION}/{name}.json"
    return read_json(stored.file("prepare", path), "prepare") if stored.names("prepare", path) else None


def _document_files(stored: StoredStages) -> list[Path]:
    return stored.files("prepare", f"{DOCUMENTS}/", ".parquet")
