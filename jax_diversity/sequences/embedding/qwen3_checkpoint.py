"""Reading the folder of a Qwen3-Embedding checkpoint: the sizes of the model, its tokenizer, and its tensors.

A file of weights (safetensors) has three parts: the length of its header (u64, little-endian), the header, and the
bytes of the tensors. The header is JSON: name -> type, shape and place of the bytes after the header. Tensors are
mapped into memory, and only slices are read. The part of a tensor that a device needs is copied from disk to this
device. https://github.com/huggingface/safetensors describes the format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tokenizers
from jaxtyping import Shaped
from tokenizers import processors

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.embedding.base import CHARACTERS_PER_TOKEN

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
END_TOKEN = "<|endoftext|>"
# Features of Qwen3 models that are not implemented here, with the values that disable them.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "use_sliding_window": (False, None),
    "quantization_config": (None,),
}
_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(jnp.bfloat16)}
_LARGEST_HEADER = 100_000_000
_LENGTH_BYTES = 8
# An embedding does not need the head, which predicts tokens, nor the inverse frequencies, which are computed from θ.
_UNUSED = ("lm_head.weight", "rotary_emb.inv_freq")

Tensors = Mapping[str, Shaped[np.ndarray, "..."]]


@dataclass(frozen=True)
class Architecture:
    """The sizes and constants of a Qwen3 model, by their names in config.json."""

    vocab_size: int
    hidden_size: int  # width of a hidden state, and of a document's vector
    intermediate_size: int  # inside a block's feed-forward part
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int  # each is used by the same number of neighbouring query heads
    head_dim: int  # even
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float  # added to the mean square that RMSNorm divides by

    @classmethod
    def read(cls, folder: Path) -> Architecture:
        """Read the architecture of a checkpoint; raise an error for models that are not Qwen3 or not implemented."""
        path = folder / CONFIG
        config = read_object(path)
        if config.get("model_type") != "qwen3":
            raise UserError(
                f"Expected a Qwen3 model (model_type 'qwen3') in {path}, found model_type "
                f"{config.get('model_type')!r}; name the folder of a Qwen3-Embedding checkpoint."
            )
        for name, accepted in _UNSUPPORTED.items():
            value = config.get(name, accepted[0])
            if value not in accepted:
                raise UserError(
                    f"Expected {name} to be {accepted[0]!r} in {path}, as in Qwen3-Embedding's checkpoints, found "
                    f"{value!r}, which is not supported."
                )
        rotary = _rotary(config)
        scaling = rotary.get("rope_type", "default")
        if scaling != "default":
            raise UserError(
                f"Expected plain rotary positions (rope_type 'default') in {path}, found {scaling!r}, which is not "
                "supported; remove rope_scaling to read documents up to the length the model was trained on."
            )
        names = [field.name for field in fields(cls) if field.type == "int"]
        sizes = {name: as_whole_number(f"{name} in {path}", config.get(name), 1) for name in names}
        if sizes["num_attention_heads"] % sizes["num_key_value_heads"] or sizes["head_dim"] % 2:
            raise UserError(
                f"Expected num_attention_heads to be a multiple of num_key_value_heads and head_dim to be even in "
                f"{path}, found {sizes['num_attention_heads']}, {sizes['num_key_value_heads']} and {sizes['head_dim']}."
            )
        base = _read_positive(rotary.get("rope_theta", config.get("rope_theta")), "rope_theta", path)
        epsilon = _read_positive(config.get("rms_norm_eps", 1e-6), "rms_norm_eps", path)
        return cls(**sizes, rope_theta=base, rms_norm_eps=epsilon)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains one object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"Expected {path.name} in the checkpoint's folder, found none at {path}; download the whole checkpoint."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"Expected JSON in {path}, found: {error}; download it again.") from None
    if not isinstance(value, dict):
        raise UserError(f"Expected a JSON object in {path}, found {type(value).__name__}; download it again.")
    return value


def _rotary(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of rotary positions: newer files have one object, older files several fields."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(settings, Mapping):
        return {"rope_type": settings}
    older = {"rope_type": settings["type"]} if "type" in settings else {}
    return {**older, **settings}


def _read_positive(value: Any, name: str, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UserError(f"Expected a positive number for {name} in {path}, found {value!r}.")
    return float(value)


def open_tensors(folder: Path) -> Tensors:
    """Map all tensors that an embedding needs into memory, by name without the first `model.`."""
    opened = [item for path in _weight_files(folder) for item in _open_file(path).items()]
    return {name.removeprefix("model."): tensor for name, tensor in opened if not name.endswith(_UNUSED)}


def _weight_files(folder: Path) -> list[Path]:
    """Return the files with the tensors of a checkpoint, sorted."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise UserError(
            f"Expected the weights as {WEIGHTS}, or as several files with {INDEX}, found neither in {folder}; "
            "download the whole checkpoint, in the safetensors format."
        )
    places = read_object(folder / INDEX).get("weight_map")
    names = set(places.values()) if isinstance(places, dict) else set()
    # Only plain names without folders are allowed: an index must not cause reads outside the folder.
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


def _open_file(path: Path) -> dict[str, np.ndarray]:
    """Map the tensors of a file into memory, by name; check everything, because downloads may be incomplete."""
    size = path.stat().st_size
    if size < _LENGTH_BYTES:
        raise _damaged(path, f"{size} bytes")
    # This is a map, not a copy: bytes are read from disk when the slice of a device is taken.
    content = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(content[:_LENGTH_BYTES].tobytes(), "little")
    if length > min(_LARGEST_HEADER, size - _LENGTH_BYTES):
        raise _damaged(path, f"a header of {length} bytes in a file of {size}")
    header_end = _LENGTH_BYTES + length
    try:
        header = json.loads(content[_LENGTH_BYTES:header_end].tobytes())
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise _damaged(path, "a header that is not a JSON object")
    header.pop("__metadata__", None)  # free text of the program that wrote the file; all other names are tensors
    return {name: _tensor(content[header_end:], name, description, path) for name, description in header.items()}


def _tensor(content: np.ndarray, name: str, description: Any, path: Path) -> np.ndarray:
    try:
        kind, shape, (start, end) = description["dtype"], tuple(description["shape"]), description["data_offsets"]
        if not isinstance(kind, str) or not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, f"the entry {str(description)[:80]} for {name}") from None
    if kind not in _DTYPES:
        raise UserError(
            f"Expected {name} in {path} as one of {', '.join(_DTYPES)}, found {kind}; quantised checkpoints "
            "cannot be read."
        )
    dtype = _DTYPES[kind]
    # Python's integers do not overflow, so a huge shape in a damaged header fails here.
    if end - start != math.prod(shape) * dtype.itemsize:
        raise _damaged(path, f"{end - start} bytes for {name}, which is {kind} {list(shape)}")
    if end > len(content):
        raise _damaged(path, f"{len(content)} of at least {end} bytes of tensors, {name} cut off")
    return content[start:end].view(dtype).reshape(shape)


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"Expected a whole safetensors file at {path}, found {reason}; download it again.")


class TokenReader:
    """The tokenizer of a checkpoint; it reads the first `max_tokens` tokens of a text, the end token included."""

    def __init__(self, folder: Path, max_tokens: int, vocab_size: int) -> None:
        path = folder / TOKENIZER
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(
                f"Expected {TOKENIZER} in the checkpoint's folder, found none at {path}; download the whole checkpoint."
            ) from None
        except Exception as error:  # the library raises plain `Exception`
            raise UserError(
                f"Expected a tokenizer of the `tokenizers` library in {path}, found: {error}; download it again."
            ) from None
        self._num_characters = max_tokens * CHARACTERS_PER_TOKEN
        largest = max(self._tokenizer.get_vocab().values(), default=-1)
        if largest >= vocab_size:
            raise UserError(
                f"Expected token ids below {vocab_size}, the model's vocab_size, in {path}, found {largest}; "
                "use the tokenizer that belongs to the checkpoint."
            )
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # A tokenizer that appends an end token also appends it to the empty text.
        if not self._tokenizer.encode("").ids:
            end = self._tokenizer.token_to_id(END_TOKEN)  # the tokenizers of some base models do not append it
            if end is None:
                raise UserError(
                    f"Expected the tokenizer in {path} to append an end token or to have {END_TOKEN}, found neither; "
                    "use the tokenizer that belongs to the checkpoint."
                )
            self._tokenizer.post_processor = processors.TemplateProcessing(
                single=f"$A {END_TOKEN}", special_tokens=[(END_TOKEN, end)]
            )
        # Truncation leaves room for the tokens that the post-processor appends: the end token is never cut off.
        self._tokenizer.enable_truncation(max_tokens)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, at least one."""
        # Texts are cut before tokenization: a text may have megabytes, but only a few kilobytes are used.
        beginnings = [text[: self._num_characters] for text in texts]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(beginnings)]
