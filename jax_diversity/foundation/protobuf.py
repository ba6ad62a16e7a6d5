"""Read the wire format of protocol buffers without a schema (https://protobuf.dev/programming-guides/encoding).

A message is a sequence of fields. A field has a tag (number and wire type) and a value: a varint, four or eight bytes,
or a length followed by this number of bytes. Invalid bytes raise a `ValueError`. The protobuf library is not used,
because it needs the schema of every file.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types; all others are deprecated."""
_SIZES = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10
_CUT_OFF = "not a protocol buffer, or one that is cut off"

Field = tuple[int, int, int | memoryview]
"""A field's number, its wire type, and its value: an unsigned int for a varint, otherwise its bytes."""


def read_fields(message: bytes | memoryview) -> Iterator[Field]:
    """Yield the fields of a message in their order; a truncated message raises after its last whole field."""
    content = memoryview(message)
    position = 0
    while position < len(content):
        tag, position = _varint(content, position)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, position = _varint(content, position)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, position = _varint(content, position)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"no protocol buffer: a field of wire type {kind}")
        if position + size > len(content):
            raise ValueError(_CUT_OFF)
        yield number, kind, content[position : position + size]
        position += size


def packed_integers(content: bytes | memoryview) -> Int64[np.ndarray, " value"]:
    """The integers of a packed field: consecutive varints, with seven bits in each byte, the lowest bits first."""
    octets = np.frombuffer(content, np.uint8)
    last = octets < 0x80  # the high bit is set if another byte of the integer follows
    if last.all():
        return octets.astype(np.int64)
    if not last[-1]:
        raise ValueError("an integer is cut off")
    ends = np.flatnonzero(last) + 1
    starts = np.concatenate([[0], ends[:-1]])
    widths = ends - starts
    if widths.max() > _LONGEST_VARINT:
        raise ValueError(f"an integer of {widths.max()} bytes")
    # All integers are decoded at once, without a loop: the seven bits of each byte are shifted to their place, and the
    # bytes of an integer are combined with `or`. uint64 drops the bits above the 64th, like `_varint`.
    shifts = 7 * (np.arange(len(octets)) - np.repeat(starts, widths))
    bits = (octets & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def _varint(content: memoryview, position: int) -> tuple[int, int]:
    """One unsigned integer of 64 bits, and the position after it."""
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        if position >= len(content):
            raise ValueError(_CUT_OFF)
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), position  # ten bytes hold 70 bits; readers drop the upper ones
    raise ValueError(f"no protocol buffer: an integer of more than {_LONGEST_VARINT} bytes")
