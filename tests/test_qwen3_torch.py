"""Qwen3 embeddings beside those of the torch implementation, where that is installed.

    pip install torch transformers && python -m pytest tests/test_qwen3_torch.py -s

prints the largest differences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_diversity.embedding.qwen3 import Qwen3Embedder
from tests.tiny_qwen3 import TEXTS, make_checkpoint

torch: Any = pytest.importorskip("torch", reason="torch is no dependency: a comparison for those who have it")
transformers: Any = pytest.importorskip(
    "transformers", reason="the torch implementation of Qwen3 is in transformers"
)

MAX_TOKENS = 150


def torch_vectors(folder: Path, dtype: Any) -> np.ndarray:
    """The texts' embeddings as the model's card computes them: padded on the left, the last state, length 1."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), padding_side="left", pad_token="<|endoftext|>"
    )
    model = transformers.AutoModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    assert type(model).__name__ == "Qwen3Model"
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    with torch.no_grad():
        states = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    return torch.nn.functional.normalize(states[:, -1].float(), dim=1).numpy()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 5e-2)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("prefix", ["", "model."], ids=["embedding", "language model"])
def test_vectors_equal_those_of_torch(tmp_path: Path, dtype: str, tolerance: float, prefix: str) -> None:
    changes: dict[str, Any] = {"prefix": prefix, "num_files": 1 + 2 * bool(prefix)}
    if not prefix:
        changes["architectures"] = ["Qwen3Model"]
    make_checkpoint(tmp_path, seed=11, num_hidden_layers=4, **changes)
    embedder = Qwen3Embedder.load(tmp_path, max_tokens=MAX_TOKENS, batch_tokens=2_000, dtype=dtype)
    vectors, expected = embedder.embed(TEXTS), torch_vectors(tmp_path, getattr(torch, dtype))
    difference = np.abs(vectors - expected).max()
    print(f"\n{dtype}, {prefix or 'no prefix'}: largest difference {difference:.2e}")
    assert difference < tolerance
    assert ((vectors * expected).sum(axis=1) > 0.999).all()
