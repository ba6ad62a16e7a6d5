"""Measure tokens per second of Qwen3 embeddings on this machine, with random weights in a real checkpoint's shape.

    python benchmarks/qwen3.py [--write] [--scale 1.0] [--documents 2000] [--batch-tokens 16384] [--dtype bfloat16]

`--scale 1` has the shape of Qwen3-Embedding-0.6B (28 blocks of width 1024, 151,669 token ids: 1.2 GB of weights,
written to a temporary folder); a smaller scale reduces widths, blocks and ids, for CPUs: 0.125 takes a
minute on two cores. `--folder` uses a checkpoint of yours instead. Documents' lengths are log-normal, cut at
`--max-tokens`; tokens are counted without padding. Compilation is measured separately: the documents are embedded
twice.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors

END_TOKEN = "<|endoftext|>"
FULL = {
    "vocab_size": 151_669,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}


def scaled(scale: float) -> dict[str, Any]:
    """The configuration of Qwen3-Embedding-0.6B with all sizes multiplied, except the size of a head."""
    config: dict[str, Any] = {name: max(round(size * scale), 1) for name, size in FULL.items()}
    config["vocab_size"] = max(config["vocab_size"], 1_000)
    config["num_key_value_heads"] = max(config["num_attention_heads"] // 2, 1)
    config["num_attention_heads"] = 2 * config["num_key_value_heads"]
    fixed = {"head_dim": 128, "max_position_embeddings": 32_768, "rope_theta": 1_000_000, "rms_norm_eps": 1e-6}
    return {"model_type": "qwen3", "hidden_act": "silu", **config, **fixed}


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape, with the names of Qwen3-Embedding's checkpoints."""
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    block = {
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
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config["vocab_size"], width)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    return shapes | {"norm.weight": (width,)}


def write_checkpoint(folder: Path, config: dict[str, Any]) -> None:
    """Make a folder like a downloaded one: bfloat16 weights, a tokenizer with one word per token."""
    (folder / "config.json").write_text(json.dumps(config))
    words = {f"w{index}": index for index in range(config["vocab_size"] - 2)}
    tokenizer = Tokenizer(models.WordLevel({**words, "?": len(words)}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([END_TOKEN])
    ending = {"special_tokens": [(END_TOKEN, tokenizer.token_to_id(END_TOKEN))]}
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END_TOKEN}", **ending)
    tokenizer.save(str(folder / "tokenizer.json"))
    header, start = {}, 0
    for name, shape in tensor_shapes(config).items():
        stop = start + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in tensor_shapes(config).values():
            values = (
                random.standard_normal(shape, np.float32) / np.sqrt(shape[-1]) if len(shape) > 1 else np.ones(shape)
            )
            file.write(values.astype(jnp.bfloat16).tobytes())


def make_texts(num_documents: int, max_tokens: int) -> list[str]:
    """Make texts whose words are one token each."""
    random = np.random.default_rng(1)
    lengths = np.minimum(random.lognormal(5.8, 1.0, num_documents).astype(np.int64) + 1, max_tokens - 1)
    words = np.array([f"w{index}" for index in range(990)])
    return [" ".join(words[random.integers(0, 990, length)]) for length in lengths]


def products_per_token(config: dict[str, Any]) -> int:
    """Return the number of products of a parameter and a token's state; the table of token vectors needs none."""
    shapes = tensor_shapes(config)
    return sum(int(np.prod(shape)) for name, shape in shapes.items() if len(shape) > 1 and "embed" not in name)


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds to load, to embed the first time, and to embed again."""
    import jax

    from jax_diversity.sequences.embedding.qwen3 import BatchPlan, qwen3

    texts = make_texts(arguments.documents, arguments.max_tokens)
    settings: Any = {"max_tokens": arguments.max_tokens, "batch_tokens": arguments.batch_tokens}
    start = time.perf_counter()
    embedder = qwen3(path=str(folder), dtype=arguments.dtype, **settings)
    jax.block_until_ready(embedder._model.parameters)
    loaded = time.perf_counter()
    ids = embedder._tokens.encode(texts)
    tokenized = time.perf_counter()
    first = embedder.embed(texts)
    embedded = time.perf_counter()
    again, best = first, float("inf")
    for _ in range(arguments.repeats):
        begin = time.perf_counter()
        again = embedder.embed(texts)
        best = min(best, time.perf_counter() - begin)
    lengths = np.array([len(row) for row in ids], np.int64)
    plan = BatchPlan(**settings, num_devices=jax.local_device_count())
    shapes = [(rows, length) for _, rows, length in plan.batches(lengths)]
    config = json.loads((folder / "config.json").read_text())
    return {
        "device": jax.devices()[0].device_kind,
        "num_devices": jax.local_device_count(),
        "num_documents": len(texts),
        "num_tokens": int(lengths.sum()),
        "share_of_padding": round(1 - lengths.sum() / sum(rows * length for rows, length in shapes), 4),
        "num_shapes": len(set(shapes)),
        "load_seconds": round(loaded - start, 2),
        "tokenize_seconds": round(tokenized - loaded, 3),
        "compile_seconds": round(embedded - tokenized - best, 2),
        "embed_seconds": round(best, 3),
        "tokens_a_second": round(lengths.sum() / best),
        "documents_a_second": round(len(texts) / best, 1),
        "teraflops": round(2e-12 * products_per_token(config) * lengths.sum() / best, 3),
        "same_again": bool(np.array_equal(first, again)),
    }


def main() -> None:
    """Print the results; with --write, store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write results/qwen3.json")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="a checkpoint of your own")
    parser.add_argument("--documents", type=int, default=2_000)
    parser.add_argument("--max-tokens", type=int, default=1_024)
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if arguments.folder is None:
            write_checkpoint(folder, scaled(arguments.scale))
        figures = measure(folder, arguments)
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):20} {value:,}" if not isinstance(value, str) else f"{name:20} {value}")
    if arguments.write:
        import results_file

        kept = ("scale", "max_tokens", "batch_tokens", "dtype")
        about = {name: getattr(arguments, name) for name in kept if arguments.folder is None or name != "scale"}
        results_file.write("qwen3", {**figures, **about, **results_file.environment("jax", "flax", "tokenizers")})


if __name__ == "__main__":
    main()
