"""`tf.train.Example`, the record of TensorFlow's data sets, decoded without TensorFlow.

An Example is a protocol buffer: a map from names to lists of bytes, floats or 64-bit integers
(https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.protobuf import BYTES, FIXED32, VARINT, packed_integers, read_fields

_Feature = Int64[np.ndarray, " value"] | list[float] | list[bytes]


def decode_example(record: bytes) -> dict[str, Int64[np.ndarray, " value"] | list[float] | list[bytes]]:
    """The features of one Example: integers as an array, floats and bytes as lists.

    Raises:
        ValueError: no Example, or a damaged one.
    """
    features: dict[str, _Feature] = {}
    for _, content in _parts(record, (1,), "it has"):
        for _, entry in _parts(content, (1,), "its features have"):
            name, feature = _entry(entry)
            features[name] = feature
    return features


def _entry(entry: memoryview) -> tuple[str, _Feature]:
    """A name and its feature."""
    name, feature = "", memoryview(b"")
    for number, value in _parts(entry, (1, 2), "an entry of its map has"):
        if number == 1:
            name = bytes(value).decode("utf-8")
        else:
            feature = value
    values: _Feature = []
    for number, value in _parts(feature, (1, 2, 3), f"feature {name!r} has"):
        values = (_bytes_list, _float_list, _integer_list)[number - 1](value)
    return name, values


def _parts(message: bytes | memoryview, numbers: tuple[int, ...], whose: str) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message that has none but texts and messages with these numbers."""
    for number, kind, value in read_fields(message):
        if number not in numbers or kind != BYTES or isinstance(value, int):
            raise ValueError(f"no tf.train.Example: {whose} a field {number}")
        yield number, value


def _bytes_list(content: memoryview) -> list[bytes]:
    return [bytes(value) for _, kind, value in read_fields(content) if kind == BYTES]


def _float_list(content: memoryview) -> list[float]:
    parts = [
        np.frombuffer(value, "<f4")
        for _, kind, value in read_fields(content)
        if kind in (BYTES, FIXED32) and not isinstance(value, int)
    ]
    return np.concatenate(parts).tolist() if parts else []


def _integer_list(content: memoryview) -> Int64[np.ndarray, " value"]:
    """The integers, written packed (one run of varints) or each as a field of its own."""
    parts = [
        np.array([value], np.uint64).view(np.int64) if isinstance(value, int) else packed_integers(value)
        for _, kind, value in read_fields(content)
        if kind in (BYTES, VARINT)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
