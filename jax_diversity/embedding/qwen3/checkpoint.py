"""A checkpoint's tensors, looked at where they lie on disk: the safetensors format.

A file is the length of its header (u64, little-endian), the header (JSON: name -> type, shape and where its bytes
lie behind the header), then the tensors' bytes. Nothing is read but what is sliced, so that each device's share of
a tensor goes from disk to that device. https://github.com/huggingface/safetensors describes the format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from jax_diversity.embedding.qwen3.architecture import CONFIG, read_object
from jax_diversity.foundation.artifacts import file_hash, fingerprint
from jax_diversity.foundation.errors import UserError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(jnp.bfloat16)}
_LARGEST_HEADER = 100_000_000
_LENGTH_BYTES = 8
_PREFIX = "model."
# The head predicts tokens and inverse frequencies follow from θ: an embedding needs neither.
_UNUSED = ("lm_head.weight", "rotary_emb.inv_freq")

Tensors = Mapping[str, Shaped[np.ndarray, "..."]]


def open_tensors(folder: Path) -> Tensors:
    """Every tensor of a checkpoint that an embedding needs, mapped into memory, by name without the first `model.`.

    Raises:
        UserError: no weights in the folder, or a file that is missing, cut off or damaged.
    """
    tensors: dict[str, np.ndarray] = {}
    for path in weight_files(folder):
        for name, tensor in _open_file(path).items():
            if not name.endswith(_UNUSED):
                tensors[name.removeprefix(_PREFIX)] = tensor
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's tensors, sorted.

    Raises:
        UserError: there are none, or the index names files that are not there.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise UserError(
            f"Expected the weights as {WEIGHTS}, or as several files with {INDEX}, found neither in {folder}; "
            "download the whole checkpoint, in the safetensors format."
        )
    places = read_object(folder / INDEX).get("weight_map")
    names = set(places.values()) if isinstance(places, dict) else set()
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise UserError(
            f"Expected {folder / INDEX} to give each tensor's file in the same folder under weight_map, found "
            "something else; download it again."
        )
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        raise UserError(
            f"Expected the {len(names)} files that {folder / INDEX} names, found no {missing[0]}; download it too."
        )
    return sorted(folder / name for name in names)


def hash_checkpoint(folder: str | Path) -> str:
    """A hash of all that decides a checkpoint's vectors: configuration, tokenizer and weights, every byte read.

    Raises:
        UserError: a file is missing.
    """
    folder = Path(folder)
    paths = [folder / CONFIG, folder / TOKENIZER, *weight_files(folder)]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise UserError(f"Expected a whole checkpoint, found no {missing[0]}; download it too.")
    return fingerprint(*((path.name, file_hash(path)) for path in paths))


def _open_file(path: Path) -> dict[str, np.ndarray]:
    content, header_end = _open_header(path)
    tensors = {}
    for name, about in _parse_header(content, header_end, path).items():
        if name != "__metadata__":
            tensors[name] = _tensor(content[header_end:], name, about, path)
    return tensors


def _open_header(path: Path) -> tuple[np.ndarray, int]:
    """The file's bytes and where its header ends."""
    size = path.stat().st_size
    if size < _LENGTH_BYTES:
        raise _damaged(path, f"{size} bytes")
    content = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(content[:_LENGTH_BYTES].tobytes(), "little")
    if length > min(_LARGEST_HEADER, size - _LENGTH_BYTES):
        raise _damaged(path, f"a header of {length} bytes in a file of {size}")
    return content, _LENGTH_BYTES + length


def _parse_header(content: np.ndarray, header_end: int, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(content[_LENGTH_BYTES:header_end].tobytes())
    except (ValueError, RecursionError):
        raise _damaged(path, "a header that is no JSON") from None
    if not isinstance(header, dict):
        raise _damaged(path, "a header that is no JSON object")
    return header


def _tensor(content: np.ndarray, name: str, about: Any, path: Path) -> np.ndarray:
    try:
        kind, shape, (start, end) = about["dtype"], tuple(about["shape"]), about["data_offsets"]
        well_formed = all(type(number) is int and number >= 0 for number in (*shape, start, end))
    except (KeyError, TypeError, ValueError):
        kind, well_formed = None, False
        shape, start, end = (), 0, 0
    if not well_formed or not isinstance(kind, str):
        raise _damaged(path, f"the entry {str(about)[:80]} for {name}")
    if kind not in _DTYPES:
        raise UserError(
            f"Expected {name} in {path} as one of {', '.join(_DTYPES)}, found {kind}; quantised checkpoints "
            "cannot be read."
        )
    dtype = _DTYPES[kind]
    if end - start != math.prod(shape) * dtype.itemsize:
        raise _damaged(path, f"{end - start} bytes for {name}, which is {kind} {list(shape)}")
    if end > len(content):
        raise _damaged(path, f"{len(content)} of at least {end} bytes of tensors, {name} cut off")
    return content[start:end].view(dtype).reshape(shape)


def _damaged(path: Path, found: str) -> UserError:
    return UserError(f"Expected a whole safetensors file at {path}, found {found}; download it again.")
