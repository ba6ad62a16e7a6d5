"""Signatures of documents as files, so that a later run can remove copies of an earlier run's documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int64, UInt8

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError, in_one_line, quoted

SIGNATURES = "signatures.parquet"
"""The file with the columns `id` and `signature`. Its metadata has the form of the signatures."""
_STORED = "preparation/learned/{step}*/" + SIGNATURES
_FORM = b"jax_diversity.signatures"


def write_signatures(
    path: Path, ids: Sequence[str], signatures: UInt8[np.ndarray, "document byte"], form: Mapping[str, Any]
) -> None:
    """Store the signatures of documents.

    Args:
        path: the file.
        ids: the documents' ids.
        signatures: a row for each document.
        form: the step and the options that decide the signatures.
    """
    kind = pa.binary(signatures.shape[1])
    buffer = pa.py_buffer(np.ascontiguousarray(signatures))
    column = pa.FixedSizeBinaryArray.from_buffers(kind, len(ids), [None, buffer])
    schema = pa.schema(
        [pa.field("id", pa.string(), nullable=False), pa.field("signature", kind, nullable=False)],
        {_FORM: json.dumps(form, sort_keys=True).encode()},
    )
    table = pa.Table.from_arrays([pa.array(ids, pa.string()), column], schema=schema)
    with atomic_path(path) as partial:
        pq.write_table(table, partial, compression="zstd", use_dictionary=False, write_statistics=False)


def signature_files(names: Sequence[str], form: Mapping[str, Any]) -> list[Path]:
    """Return the files of signatures of a form.

    Args:
        names: folders of datasets, or files of signatures.
        form: the step and the options that decide the signatures.

    Raises:
        UserError: a name has no signatures of the step, a file is damaged, or the signatures have another form.
    """
    signatures = []
    for name in names:
        path = Path(name).expanduser()
        files = sorted(path.glob(_STORED.format(step=form["step"]))) if path.is_dir() else [path]
        forms = {file: _form_of(file) for file in files if file.exists()}
        if not forms:
            raise UserError(
                f"Expected signatures of the step {form['step']} in {quoted(name)}, found none; prepare the earlier "
                f"corpus with the option keep_signatures of {form['step']}, and name its dataset."
            )
        fitting = [file for file, other in forms.items() if other == dict(form)]
        if not fitting:
            other_words = _in_words(min(forms.values(), key=str))
            raise UserError(
                f"Expected signatures of {_in_words(form)} in {quoted(name)}, found {other_words}; use the same "
                "options in both runs."
            )
        signatures += fitting
    return signatures


def read_signatures(paths: Sequence[Path], num_bytes: int) -> UInt8[np.ndarray, "document byte"]:
    """Read the signatures of all documents in files, each of `num_bytes` bytes.

    Raises:
        UserError: a file is damaged.
    """
    arrays = [np.zeros((0, num_bytes), np.uint8)]
    for path in paths:
        with _damage(path):
            for chunk in pq.read_table(path, columns=["signature"])["signature"].chunks:
                values = np.frombuffer(chunk.buffers()[-1], np.uint8).reshape(-1, chunk.type.byte_width)
                if len(chunk):  # an empty file does not know the length
                    arrays.append(values[chunk.offset : chunk.offset + len(chunk)])
    return np.concatenate(arrays)


def read_ids(paths: Sequence[Path], documents: Int64[np.ndarray, " chosen"]) -> list[str]:
    """Return the ids of some documents, given by ascending numbers through all files."""
    ids: list[str] = []
    start = 0
    for path in paths:
        with _damage(path):
            number = pq.read_metadata(path).num_rows
            low, high = np.searchsorted(documents, (start, start + number))
            if low < high:
                column = pq.read_table(path, columns=["id"])["id"]
                ids += column.take(pa.array(documents[low:high] - start)).to_pylist()
            start += number
    return ids


def _form_of(path: Path) -> Any:
    with _damage(path):
        metadata = pq.read_schema(path).metadata or {}
        return json.loads(metadata.get(_FORM, b"null"))


def _in_words(form: Any) -> str:
    if not isinstance(form, Mapping):
        return "no signatures"
    return f"{form['step']} ({', '.join(f'{name} {value}' for name, value in sorted(form.items()) if name != 'step')})"


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({in_one_line(error)}); run the earlier preparation again.") from None
