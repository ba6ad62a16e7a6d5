"""`tf.train.Example` as bytes: rows of token ids in protobuf's wire format, without TensorFlow.

The message holds one feature, a list of int64 values:

    Example.features (1) > Features.feature (1, a map entry: key (1), value (2)) > Feature.int64_list (3) >
    Int64List.value (1, packed varints)

Every level but the innermost is a tag byte, a length and the bytes of the next. Source: the protocol buffers'
encoding guide, and TensorFlow's example.proto and feature.proto for the field numbers.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64

_LENGTH_DELIMITED = 2
_MOST_BYTES = 5  # of a varint of 31 bits


def encode_examples(
    tokens: Int32[np.ndarray, "row token"], num_tokens: Int64[np.ndarray, " row"], feature: str = "tokens"
) -> list[bytes]:
    """One serialised `tf.train.Example` a row.

    Args:
        tokens: token ids, not below zero.
        num_tokens: how many of a row's tokens count; what is behind them is left out.
        feature: the feature's name.

    Raises:
        ValueError: a token below zero.

    Example:
        >>> encode_examples(np.array([[1, 300]], np.int32), np.array([2]), "a").pop().hex(" ")
        '0a 0e 0a 0c 0a 01 61 12 07 1a 05 0a 03 01 ac 02'
    """
    values = tokens[np.arange(tokens.shape[1]) < num_tokens[:, None]]
    if len(values) and values.min() < 0:
        raise ValueError(f"Expected token ids of 0 and above, found {values.min()}.")
    packed, ends = _varints(values)
    row_ends = ends[np.cumsum(num_tokens)].tolist()
    name = feature.encode()
    return [
        _example(name, packed[start:end].tobytes()) for start, end in zip([0, *row_ends[:-1]], row_ends, strict=True)
    ]


def _varints(values: Int32[np.ndarray, " value"]) -> tuple[np.ndarray, np.ndarray]:
    """All values' varints end to end, seven bits a byte, lowest first; and where each ends, from a 0 on."""
    # Column k of `digits` is every value's k-th byte; `kept` marks those that the value needs. Taking the kept ones
    # row by row gives the varints end to end without a loop over values.
    longer = [values >= 1 << 7 * count for count in range(1, _MOST_BYTES)]
    longer = [more for more in longer if more.any()]
    digits = np.empty((len(values), len(longer) + 1), np.uint8)
    kept = np.ones(digits.shape, bool)
    for place in range(len(longer) + 1):
        digits[:, place] = (values >> 7 * place) & 0x7F
        if place < len(longer):
            digits[:, place] |= longer[place].view(np.uint8) << 7  # one more byte follows
            kept[:, place + 1] = longer[place]
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(kept.sum(axis=1, dtype=np.uint8), out=ends[1:])
    return digits[kept], ends


def _example(name: bytes, packed: bytes) -> bytes:
    feature = _field(3, _field(1, packed) if packed else b"")
    return _field(1, _field(1, _field(1, name) + _field(2, feature)))


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
