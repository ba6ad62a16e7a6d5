"""Files of an unfinished preparation: compressed blocks with hashes. Reading them never runs code from them."""

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
_LARGEST_RATIO = 256  # of LZ4
_HEAD = struct.Struct("<QQQ")
"""The size of a block, the size of its compressed bytes, and their hash."""


def write_blocks(path: Path, *blocks: bytes | bytearray) -> None:
    """Store blocks, all or none."""
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        for block in blocks:
            stored = pa.compress(block, _CODEC, asbytes=True)
            file.write(_HEAD.pack(len(block), len(stored), xxhash.xxh3_64_intdigest(stored)))
            file.write(stored)


def read_blocks(path: Path, number: int) -> Iterator[memoryview]:
    """The first `number` blocks of a file; a `ValueError` for a damaged file."""
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
    # A file that others wrote may have a valid hash and any content.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = type(error).__name__
    except (MemoryError, OSError, RecursionError, struct.error, pa.ArrowException) as error:
        reason = type(error).__name__
    else:
        return
    raise UserError(
        f"Expected a file of an unfinished preparation at {path}, found a damaged one ({reason}); delete the folder "
        f"{path.parent}, and run the stage again."
    )
