"""ArrayRecord files of token ids. Records are arrays or `tf.train.Example`s, which are decoded without TensorFlow.

An Example is a protocol buffer: a map from names to lists of bytes, floats or 64-bit integers
(https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.foundation.protobuf import BYTES, FIXED32, VARINT, packed_integers, read_fields
from jax_diversity.preparation.readers.files import InputFile, local_path, reading_faults
from jax_diversity.preparation.readers.records import TOKENS, Found, Place, Problem, Records, converted
from jax_diversity.preparation.settings import CorpusConfig

_READ_BYTES = 8 * 2**20
_READ_RECORDS = 1000
_Feature = Int64[np.ndarray, " value"] | list[float] | list[bytes]


def read_array_records(file: InputFile, config: CorpusConfig, advance: Advance) -> Found:
    """Read the documents of the records, about 8 MB at a time. Progress assumes that all records have equal size."""
    return TOKENS.documents(file, config, _records(file, config, advance))


def _records(file: InputFile, config: CorpusConfig, advance: Advance) -> Records:
    from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

    path = local_path(file)
    with reading_faults(file):
        size = os.stat(path).st_size
    try:
        # With read-ahead and threads, several chunks of the file would be in memory; we read one chunk at a time.
        # The library accepts every file name only as bytes.
        reader = array_record_module.ArrayRecordReader(os.fsencode(path), "readahead_buffer_size:0,max_parallelism:0")
        num_records = reader.num_records()
        step = int(min(max(_READ_BYTES * num_records // max(size, 1), 1), _READ_RECORDS))
        for begin in range(0, num_records, step):
            end = min(begin + step, num_records)
            for row, record in enumerate(reader.read(begin, end), begin + 1):  # rows are counted from 1
                yield Place(file, row), converted(_fields, record, config)
            # These differences of rounded values add up to the exact file size.
            advance(size * end // num_records - size * begin // num_records)
    except (ValueError, RuntimeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{file.address} is not an ArrayRecord file, or is damaged ({reason}); fetch it again."
        ) from None
    if size and not num_records:
        raise UserError(f"Expected records in {file.address}, found none; its writer may not have been closed.")


def _fields(record: bytes, config: CorpusConfig) -> dict[str, Any] | Problem:
    try:
        if config.array_record_tokens != "example":
            dtype = np.dtype(config.array_record_tokens).newbyteorder("<")
            return {config.tokens_field: np.frombuffer(record, dtype)}
        features = decode_example(record)
        return {name: values if name == config.tokens_field else _plain(values) for name, values in features.items()}
    except ValueError as error:  # a UnicodeDecodeError is a ValueError
        return Problem("num_broken_records", str(error))


def _plain(values: _Feature) -> Any:
    """Convert a feature as in other formats: a list of one value becomes the value, UTF-8 bytes become text."""
    plain = values.tolist() if isinstance(values, np.ndarray) else [_text(value) for value in values]
    return plain[0] if len(plain) == 1 else plain


def _text(value: float | bytes) -> Any:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def decode_example(record: bytes) -> dict[str, _Feature]:
    """Decode the features of one Example: integers as an array, floats and bytes as lists.

    If the bytes are not an Example, a ValueError is raised.
    """
    features: dict[str, _Feature] = {}
    for _, content in _parts(record, (1,), "it has"):
        for _, entry in _parts(content, (1,), "its features have"):
            parts = dict(_parts(entry, (1, 2), "an entry of its map has"))
            name = bytes(parts.get(1, b"")).decode("utf-8")
            features[name] = []  # an entry without values
            for number, value in _parts(parts.get(2, b""), (1, 2, 3), f"feature {name!r} has"):
                features[name] = (_bytes_list, _float_list, _integer_list)[number - 1](value)
    return features


def _parts(message: bytes | memoryview, numbers: tuple[int, ...], owner: str) -> Iterator[tuple[int, memoryview]]:
    """Yield the fields of a message. It may contain only texts or messages with these field numbers."""
    for number, kind, value in read_fields(message):
        if number not in numbers or kind != BYTES or isinstance(value, int):
            raise ValueError(f"not a tf.train.Example: {owner} a field {number}")
        yield number, value


def _bytes_list(content: memoryview) -> list[bytes]:
    return [bytes(value) for _, kind, value in read_fields(content) if kind == BYTES]


# Writers may pack a list of numbers into one field or write a field for each number; readers accept both.
def _float_list(content: memoryview) -> list[float]:
    parts = [
        np.frombuffer(value, "<f4")
        for _, kind, value in read_fields(content)
        if kind in (BYTES, FIXED32) and not isinstance(value, int)
    ]
    return np.concatenate(parts).tolist() if parts else []


def _integer_list(content: memoryview) -> Int64[np.ndarray, " value"]:
    parts = [
        np.array([value], np.uint64).view(np.int64) if isinstance(value, int) else packed_integers(value)
        for _, kind, value in read_fields(content)
        if kind in (BYTES, VARINT)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
