"""`tf.train.Example`, the record of TensorFlow's data sets, decoded without TensorFlow.

An Example is a protocol buffer: a map from names to lists of bytes, floats or 64-bit integers
(https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto). What is read here is
the wire format itself, integers by the array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int64

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_Feature = Int64[np.ndarray, " value"] | list[float] | list[bytes]


def decode_example(record: bytes) -> dict[str, Int64[np.ndarray, " value"] | list[float] | list[bytes]]:
    """The features of one Example: integers as an array, floats and bytes as lists.

    Raises:
        ValueError: no Example, or a damaged one.
    """
    features: dict[str, _Feature] = {}
    for number, kind, value in _fields(memoryview(record)):
        if number != 1 or kind != _BYTES:
            raise ValueError(f"no tf.train.Example: it has a field {number}")
        for number, kind, entry in _fields(value):
            if number != 1 or kind != _BYTES:
                raise ValueError(f"no tf.train.Example: its features have a field {number}")
            name, feature = _entry(entry)
            features[name] = feature
    return features


def _entry(entry: memoryview) -> tuple[str, _Feature]:
    """A name and its feature."""
    name, feature = "", memoryview(b"")
    for number, kind, value in _fields(entry):
        if kind != _BYTES or number not in (1, 2):
            raise ValueError(f"no tf.train.Example: an entry of its map has a field {number}")
        if number == 1:
            name = bytes(value).decode("utf-8")
        else:
            feature = value
    values: _Feature = []
    for number, kind, value in _fields(feature):
        if kind != _BYTES or number not in (1, 2, 3):
            raise ValueError(f"no tf.train.Example: feature {name!r} has a field {number}")
        values = (_bytes_list, _float_list, _integer_list)[number - 1](value)
    return name, values


def _bytes_list(content: memoryview) -> list[bytes]:
    return [bytes(value) for _, kind, value in _fields(content) if kind == _BYTES]


def _float_list(content: memoryview) -> list[float]:
    parts = [np.frombuffer(value, "<f4") for _, kind, value in _fields(content) if kind in (_BYTES, _FIXED32)]
    return np.concatenate(parts).tolist() if parts else []


def _integer_list(content: memoryview) -> Int64[np.ndarray, " value"]:
    """The integers, written packed (one run of varints) or each as a field of its own."""
    parts = [
        _varints(value) if kind == _BYTES else np.array([value], np.uint64).view(np.int64)
        for _, kind, value in _fields(content)
        if kind in (_BYTES, _VARINT)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _varints(packed: memoryview) -> Int64[np.ndarray, " value"]:
    """Integers of seven bits a byte, the lowest first, all but the last byte of each with the eighth bit set."""
    content = np.frombuffer(packed, np.uint8)
    last = content < 0x80
    if last.all():
        return content.astype(np.int64)
    if not last[-1]:
        raise ValueError("an integer is cut off")
    ends = np.flatnonzero(last) + 1
    starts = np.concatenate([[0], ends[:-1]])
    widths = ends - starts
    if widths.max() > _LONGEST_VARINT:
        raise ValueError(f"an integer of {widths.max()} bytes")
    shifts = 7 * (np.arange(len(content)) - np.repeat(starts, widths))
    bits = (content & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def _fields(content: memoryview) -> Iterator[tuple[int, int, Any]]:
    """A message's fields: number, wire type, and the value, an int for a varint, otherwise its bytes."""
    position = 0
    while position < len(content):
        tag, position = _varint(content, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(content, position)
            yield number, kind, value
            continue
        if kind == _BYTES:
            size, position = _varint(content, position)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"no protocol buffer: wire type {kind}")
        if position + size > len(content):
            raise ValueError("no protocol buffer, or one that is cut off")
        yield number, kind, content[position : position + size]
        position += size


def _varint(content: memoryview, position: int) -> tuple[int, int]:
    """One unsigned integer and where the next field goes on."""
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        if position >= len(content):
            raise ValueError("no protocol buffer, or one that is cut off")
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), position
    raise ValueError(f"no protocol buffer: an integer of more than {_LONGEST_VARINT} bytes")
