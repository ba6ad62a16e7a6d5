"""A Qwen3 model's sizes, read from the `config.json` of its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_diversity.foundation.errors import UserError

CONFIG = "config.json"
_SIZES = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "inner_width": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_key_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "max_positions": "max_position_embeddings",
}
# What Qwen3 models may ask for and this implementation does not do, with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "use_sliding_window": (False, None),
    "quantization_config": (None,),
}


@dataclass(frozen=True)
class Architecture:
    """What decides the shapes and the arithmetic of a Qwen3 model.

    Attributes:
        vocab_size: rows of the table of token vectors.
        width: size of a hidden state, and of a document's vector.
        inner_width: size between the two halves of a block's feed-forward part.
        num_layers: number of blocks.
        num_heads: query heads of a block.
        num_key_heads: its key and value heads, each shared by as many neighbouring query heads.
        head_width: size of a head; even.
        max_positions: the longest run of tokens that the model was made for.
        rotary_base: θ of the rotary positions.
        epsilon: added to the mean square that RMSNorm divides by.
    """

    vocab_size: int
    width: int
    inner_width: int
    num_layers: int
    num_heads: int
    num_key_heads: int
    head_width: int
    max_positions: int
    rotary_base: float
    epsilon: float

    @classmethod
    def read(cls, folder: Path) -> Architecture:
        """The architecture of the checkpoint in a folder.

        Raises:
            UserError: no such folder or file, no JSON, another architecture than Qwen3, or sizes that are missing
                or fit no model.
        """
        if not folder.is_dir():
            raise UserError(
                f"Expected the folder of a Qwen3-Embedding checkpoint, found no folder at {folder}; download one "
                "(`hf download Qwen/Qwen3-Embedding-0.6B --local-dir FOLDER`) and name its folder."
            )
        path = folder / CONFIG
        config = read_object(path)
        if config.get("model_type") != "qwen3":
            raise UserError(
                f"Expected a Qwen3 model (model_type 'qwen3') in {path}, found model_type "
                f"{config.get('model_type')!r}; name the folder of a Qwen3-Embedding checkpoint."
            )
        _check_supported(config, path)
        sizes = {ours: _read_size(config, theirs, path) for ours, theirs in _SIZES.items()}
        if sizes["num_heads"] % sizes["num_key_heads"] or sizes["head_width"] % 2:
            raise UserError(
                f"Expected num_attention_heads to be a multiple of num_key_value_heads and head_dim to be even in "
                f"{path}, found {sizes['num_heads']}, {sizes['num_key_heads']} and {sizes['head_width']}."
            )
        rotary_base = _rotary(config).get("rope_theta", config.get("rope_theta"))
        return cls(
            **sizes,
            rotary_base=_read_positive(rotary_base, "rope_theta", path),
            epsilon=_read_positive(config.get("rms_norm_eps", 1e-6), "rms_norm_eps", path),
        )


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds one object.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
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


def _check_supported(config: Mapping[str, Any], path: Path) -> None:
    for name, accepted in _UNSUPPORTED.items():
        value = config.get(name, accepted[0])
        if value not in accepted:
            raise UserError(
                f"Expected {name} to be {accepted[0]!r} in {path}, as in Qwen3-Embedding's checkpoints, found "
                f"{value!r}, which is not supported."
            )
    scaling = _rotary(config).get("rope_type", "default")
    if scaling != "default":
        raise UserError(
            f"Expected plain rotary positions (rope_type 'default') in {path}, found {scaling!r}, which is not "
            "supported; remove rope_scaling to read documents up to the length the model was trained on."
        )


def _rotary(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the rotary positions: under a name of their own in newer files, scattered in older ones."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(settings, Mapping):
        return {"rope_type": settings}
    older = {"rope_type": settings["type"]} if "type" in settings else {}
    return {**older, **settings}


def _read_size(config: Mapping[str, Any], name: str, path: Path) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"Expected a whole number of 1 or more for {name} in {path}, found {value!r}.")
    return value


def _read_positive(value: Any, name: str, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UserError(f"Expected a positive number for {name} in {path}, found {value!r}.")
    return float(value)
