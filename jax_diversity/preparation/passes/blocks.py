"""Files of an unfinished preparation: compressed blocks with hashes. Reading a file never runs code from the file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import xxhash

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError

_CODEC = "lz4"
_LARGEST_RATIO = 256  # LZ4 makes data at most about 255 times smaller
_HEAD = struct.Struct("<QQQ")
"""The size of a block, the size of its compressed bytes, and their hash."""
_OF_DAMAGE = (
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    *(MemoryError, OSError, RecursionError, struct.error, pa.ArrowException),
)
"""The first line: a file from another program may have a valid hash and arbitrary content."""


def write_blocks(path: Path, *blocks: bytes | bytearray) -> None:
    """Store all blocks in a file. If this fails, no file is written."""
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        for block in blocks:
            stored = pa.compress(block, _CODEC, asbytes=True)
            file.write(_HEAD.pack(len(block), len(stored), xxhash.xxh3_64_intdigest(stored)))
            file.write(stored)


def read_blocks(path: Path, number: int) -> Iterator[memoryview]:
    """Yield the first `number` blocks of a file. A damaged file is a `ValueError`."""
    with open(path, "rb") as file:
        for _ in range(number):
            size, num_stored, digest = _HEAD.unpack(file.read(_HEAD.size))
            stored = file.read(min(num_stored, path.stat().st_size))
            if xxhash.xxh3_64_intdigest(stored) != digest or size > _LARGEST_RATIO * len(stored):
                raise ValueError(f"{path} is damaged")
            yield memoryview(pa.decompress(stored, size, _CODEC))


@contextmanager
def damage_as_error(path: Path) -> Iterator[None]:
    """Turn the exceptions of reading a damaged or hostile file into a `UserError`."""
    try:
        yield
    except _OF_DAMAGE as error:
        raise UserError(
            f"Expected a file of an unfinished preparation at {path}, found a damaged file ({type(error).__name__}); "
            f"delete the folder {path.parent}, and run the stage again."
        ) from None
