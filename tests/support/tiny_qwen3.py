"""A tiny Qwen3-Embedding checkpoint of seeded weights, and the same mathematics in plain float64 loops."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

END_TOKEN = "<|endoftext|>"
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}
TEXTS = [
    "Sails are set before the wind turns.",
    "",
    "a",
    "Ein Segel, das der Wind nicht füllt, ist nur ein Tuch. " * 2,
    "風が変わる前に帆を上げる。",
    "\x00 \n\t ",
    "The keel holds what the sail would lose, and the rudder decides between them. " * 5,
]


def tensor_shapes(config: Mapping[str, Any] = CONFIG) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the tensors of a checkpoint without a head."""
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config["vocab_size"], width)}
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "input_layernorm": (width,),
            "self_attn.q_proj": (queries, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, queries),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
            "post_attention_layernorm": (width,),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return shapes | {"norm.weight": (width,)}


def random_tensors(seed: int = 0, config: Mapping[str, Any] = CONFIG) -> dict[str, np.ndarray]:
    """Weights large enough that attention is far from uniform and norms far from 1."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        if len(shape) == 1:
            tensors[name] = random.uniform(0.3, 2.0, shape).astype(np.float32)
        else:
            tensors[name] = (random.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)
    return tensors


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """One file, tensors in the order given."""
    kinds = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        stop = start + tensor.nbytes
        about = {"dtype": kinds[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": [start, stop]}
        header[name], start = about, stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    parts = [len(text).to_bytes(8, "little"), text, *(tensor.tobytes() for tensor in tensors.values())]
    path.write_bytes(b"".join(parts))


def byte_tokenizer(*, appends_end: bool = True, knows_end: bool = True) -> Tokenizer:
    """Every byte a token, as in byte-level BPE without merges; then the end token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if knows_end:
        tokenizer.add_special_tokens([END_TOKEN])
    if appends_end:
        end = tokenizer.token_to_id(END_TOKEN)
        ending = processors.TemplateProcessing(single=f"$A {END_TOKEN}", special_tokens=[(END_TOKEN, end)])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), ending])
    return tokenizer


def make_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    prefix: str = "",
    num_files: int = 1,
    dtype: Any = np.float32,
    **changes: Any,
) -> dict[str, np.ndarray]:
    """Write a checkpoint's folder; gives its tensors by name without the prefix, in float32.

    Args:
        folder: is made.
        seed: of the weights.
        prefix: before every tensor's name; `model.` adds an untied head, as language models' checkpoints have.
        num_files: how many files the weights are split into.
        dtype: that the weights are rounded to and stored as.
        changes: to `CONFIG`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    tensors = {name: tensor.astype(dtype) for name, tensor in random_tensors(seed, config).items()}
    stored = {prefix + name: tensor for name, tensor in tensors.items()}
    if prefix:
        stored["lm_head.weight"] = np.ones((config["vocab_size"], config["hidden_size"]), dtype)
    if num_files == 1:
        write_safetensors(folder / "model.safetensors", stored)
    else:
        places = {}
        for number in range(num_files):
            file = f"model-{number + 1:05d}-of-{num_files:05d}.safetensors"
            names = list(stored)[number::num_files]
            write_safetensors(folder / file, {name: stored[name] for name in names})
            places |= dict.fromkeys(names, file)
        index = {"metadata": {"total_size": 0}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def reference_vectors(
    tensors: Mapping[str, np.ndarray], rows: Sequence[Sequence[int]], config: Mapping[str, Any] = CONFIG
) -> np.ndarray:
    """The embedding of each row of token ids, one token and one head at a time."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    vectors = []
    for ids in rows:
        hidden = weights["embed_tokens.weight"][list(ids)]
        for layer in range(config["num_hidden_layers"]):
            own = {
                name.removeprefix(f"layers.{layer}.").removesuffix(".weight"): tensor
                for name, tensor in weights.items()
                if name.startswith(f"layers.{layer}.")
            }
            hidden = hidden + _attention(_norm(hidden, own["input_layernorm"], config), own, config)
            normed = _norm(hidden, own["post_attention_layernorm"], config)
            gate = normed @ own["mlp.gate_proj"].T
            hidden = hidden + (gate / (1 + np.exp(-gate)) * (normed @ own["mlp.up_proj"].T)) @ own["mlp.down_proj"].T
        last = _norm(hidden, weights["norm.weight"], config)[-1]
        vectors.append(last / np.sqrt((last**2).sum()))
    return np.array(vectors)


def _norm(values: np.ndarray, scale: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    return values / np.sqrt((values**2).mean(axis=-1, keepdims=True) + config["rms_norm_eps"]) * scale


def _turn(head: np.ndarray, position: int, theta: float) -> np.ndarray:
    half = len(head) // 2
    pairs = head[:half] + 1j * head[half:]
    turned = pairs * np.exp(1j * position * theta ** (-np.arange(half) / half))
    return np.concatenate([turned.real, turned.imag])


def _attention(normed: np.ndarray, own: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> np.ndarray:
    num_heads, num_key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    num_tokens, head_width = len(normed), config["head_dim"]
    split = (num_tokens, -1, head_width)
    queries = _norm((normed @ own["self_attn.q_proj"].T).reshape(split), own["self_attn.q_norm"], config)
    keys = _norm((normed @ own["self_attn.k_proj"].T).reshape(split), own["self_attn.k_norm"], config)
    values = (normed @ own["self_attn.v_proj"].T).reshape(split)
    mixed = np.zeros((num_tokens, num_heads, head_width))
    for head in range(num_heads):
        shared = head // (num_heads // num_key_heads)
        turned = np.array([_turn(keys[t, shared], t, config["rope_theta"]) for t in range(num_tokens)])
        for token in range(num_tokens):
            query = _turn(queries[token, head], token, config["rope_theta"])
            scores = turned[: token + 1] @ query / np.sqrt(head_width)
            shares = np.exp(scores - scores.max())
            mixed[token, head] = shares / shares.sum() @ values[: token + 1, shared]
    return mixed.reshape(num_tokens, -1) @ own["self_attn.o_proj"].T
