"""All readers of a dataset in Python: each gives a hash of the values that it read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import jax_diversity as jd


def hash_of(value: Any) -> str:
    """A hash of nested plain values and arrays."""
    digest = hashlib.sha256()
    _update(digest, value)
    return digest.hexdigest()


def _update(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key, each in value.items():
            digest.update(repr(key).encode())
            _update(digest, each)
    elif isinstance(value, list | tuple):
        digest.update(f"[{len(value)}".encode())
        for each in value:
            _update(digest, each)
    else:
        digest.update(repr(value).encode())


def _batches(root: Path, ordering: str) -> list[Any]:
    loader = jd.make_loader(root, ordering=ordering, global_batch_size=16, drop_remainder=False, num_prefetch=0)
    return list(loader)


def _validation(root: Path) -> Any:
    records = jd.open_dataset(root).validation_records
    rows = np.arange(len(records))
    return records.read_batch(rows, expected=rows, fields=("inputs", "targets"))


def _tokens(root: Path) -> Any:
    store = jd.open_dataset(root).tokens
    return [np.array(store.document(index)) for index in range(store.num_documents)]


def _gathered(root: Path) -> Any:
    dataset = jd.open_dataset(root)
    lengths = dataset.tokens.document_lengths
    return dataset.tokens.gather(np.arange(len(lengths)), np.zeros_like(lengths), lengths)


def _segments(root: Path, name: str) -> Any:
    segments = getattr(jd.open_dataset(root), name)
    return [np.asarray(getattr(segments, column)) for column in segments.COLUMNS]


def _characteristics(root: Path) -> Any:
    chars = jd.open_dataset(root).characteristics
    return {family: matrix.toarray() for family, matrix in chars.counts.items()}, dict(chars.weights)


def _document_store(root: Path) -> Any:
    store = jd.open_dataset(root).document_store
    return list(store.texts()), store.columns(["id", "source", "metadata"]).to_pydict(), list(store.ids())


def _tokenizer(root: Path) -> Any:
    tokenizer: Any = jd.open_dataset(root).tokenizer
    return tokenizer.decode([5, 70, 71, 260, 280])


def _numbers(root: Path) -> Any:
    dataset = jd.open_dataset(root)
    names = ("sequence_length", "overlap", "num_sequences", "vocab_size", "end_id", "families", "layout_ordering")
    return [getattr(dataset, name) for name in names], dataset.fingerprint, dict(dataset.settings)


def _ordering(root: Path, name: str) -> Any:
    ordering = jd.open_dataset(root).orderings[name]
    return ordering.indices, dict(ordering.info)


def _source(root: Path) -> Any:
    run = jd.make_run(root, "balance")
    return jd.SequenceSource(run, ("inputs",)).read(run.at(np.arange(0, len(run), 7)))


READERS: Mapping[str, Callable[[Path], Any]] = {
    "loader": lambda root: _batches(root, "balance"),
    "loader of another ordering": lambda root: _batches(root, "uniform_shuffle"),
    "validation_records": _validation,
    "tokens.document": _tokens,
    "tokens.gather": _gathered,
    "tokenizer": _tokenizer,
    "documents": lambda root: jd.open_dataset(root).documents.to_table().to_pydict(),
    "document_store": _document_store,
    "duplicate_groups": lambda root: np.asarray(jd.open_dataset(root).duplicate_groups),
    "embeddings": lambda root: np.asarray(jd.open_dataset(root).embeddings),
    "assignments": lambda root: np.asarray(jd.open_dataset(root).assignments()),
    "clusters": lambda root: jd.open_dataset(root).clusters(),
    "segments": lambda root: _segments(root, "segments"),
    "validation_segments": lambda root: _segments(root, "validation_segments"),
    "characteristics": _characteristics,
    "group_names": lambda root: dict(jd.open_dataset(root).group_names),
    "group_tokens": lambda root: dict(jd.open_dataset(root).group_tokens),
    "orderings['balance']": lambda root: _ordering(root, "balance"),
    "orderings['uniform_shuffle']": lambda root: _ordering(root, "uniform_shuffle"),
    "SequenceSource": _source,
    "numbers": _numbers,
}


def read(reader: str, root: Path) -> str:
    """`= HASH`, `refused SENTENCE` or `traceback TYPE: TEXT`."""
    try:
        return f"= {hash_of(READERS[reader](root))}"
    except jd.UserError as error:
        return f"refused {error}"
    except BaseException as error:
        return f"traceback {type(error).__name__}: {str(error)[:300]}"
