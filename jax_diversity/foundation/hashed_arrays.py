"""Arrays as bytes with a hash: the content of checkpoints and of the pieces of a spool."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.lib.npyio import NpzFile

DIGEST_BYTES = hashlib.sha256().digest_size


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return a SHA-256 and an .npz, which is made in memory so that it can be hashed."""
    import numpy as np

    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)  # type: ignore[arg-type]
    return hashlib.sha256(packed.getbuffer()).digest() + packed.getbuffer()


def unpack_arrays(content: bytes) -> NpzFile:
    """Open the arrays; each is read when it is asked for.

    Raises:
        ValueError: the content is cut, changed, or something else.
    """
    import numpy as np

    # The hash is compared before NumPy parses the bytes: for damaged bytes, NumPy raises many kinds of errors.
    digest, packed = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if hashlib.sha256(packed).digest() != digest:
        raise ValueError("bytes that are cut or damaged")
    return np.load(io.BytesIO(packed), allow_pickle=False)
