"""The wire format of protocol buffers: every field comes back, and damage is an error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_diversity.foundation.protobuf import BYTES, FIXED32, FIXED64, VARINT, packed_integers, read_fields

pytestmark = pytest.mark.core


def varint(value: int) -> bytes:
    """Seven bits at a time, the slow way."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F)
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def written(fields: list[tuple[int, int, int | bytes]]) -> bytes:
    content = b""
    for number, kind, value in fields:
        content += varint(number << 3 | kind)
        if isinstance(value, int):
            content += varint(value)
        else:
            content += (varint(len(value)) if kind == BYTES else b"") + value
    return content


_fields = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 2**29 - 1), st.just(VARINT), st.integers(0, 2**64 - 1)),
        st.tuples(st.integers(1, 40), st.just(BYTES), st.binary(max_size=200)),
        st.tuples(st.integers(1, 40), st.just(FIXED32), st.binary(min_size=4, max_size=4)),
        st.tuples(st.integers(1, 40), st.just(FIXED64), st.binary(min_size=8, max_size=8)),
    ),
    max_size=6,
)


@given(_fields)
def test_fields_come_back(fields: list[tuple[int, int, int | bytes]]) -> None:
    found = [
        (number, kind, value if isinstance(value, int) else bytes(value))
        for number, kind, value in read_fields(written(fields))
    ]
    assert found == fields


@given(_fields.filter(bool), st.data())
def test_a_message_that_is_cut_off_gives_no_other_fields(
    fields: list[tuple[int, int, int | bytes]], data: st.DataObject
) -> None:
    last = len(written(fields[-1:]))
    content = written(fields)[: -data.draw(st.integers(1, last - 1)) or None]
    reader = read_fields(content)
    for number, kind, value in fields[:-1]:
        field = next(reader)
        assert field[:2] == (number, kind)
        assert (field[2] if isinstance(field[2], int) else bytes(field[2])) == value
    with pytest.raises(ValueError, match="cut off"):
        next(reader)


@given(st.binary(max_size=100))
def test_garbage_is_fields_or_a_value_error(content: bytes) -> None:
    try:
        size = sum(value < 2**64 if isinstance(value, int) else 1 for _, _, value in read_fields(content))
    except ValueError:
        return
    assert 2 * size <= len(content)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\xff" * 20, "more than 10 bytes"),
        (b"\x0b", "wire type 3"),
        (b"\x0f", "wire type 7"),
        (b"\x80", "cut off"),
    ],
)
def test_what_is_wrong_is_named(content: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        list(read_fields(content))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_packed_integers_come_back(values: list[int]) -> None:
    found = packed_integers(b"".join(varint(value & (2**64 - 1)) for value in values))
    assert found.dtype == np.int64
    assert found.tolist() == values


@pytest.mark.parametrize(("content", "what"), [(b"\x01\x80", "cut off"), (b"\xff" * 10 + b"\x01", "of 11 bytes")])
def test_packed_integers_that_are_none(content: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        packed_integers(content)
