"""Qwen3 embeddings beside those of the torch implementation, where that is installed.

    pip install torch transformers && python -m pytest tests/sequences/embedding/test_qwen3_torch.py -s

prints the largest differences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_diversity.sequences.embedding.qwen3 import qwen3
from tests.support.tiny_qwen3 import TEXTS, make_checkpoint

pytestmark = pytest.mark.campaign

torch: Any = pytest.importorskip("torch", reason="torch is not a dependency: a comparison for those who have it")
transformers: Any = pytest.importorskip("transformers", reason="the torch implementation of Qwen3 is in transformers")

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


@pytest.fixture(params=["", "model."], ids=["embedding", "language model"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An embedding model's one file, or a language model's three, whose tensors have a prefix and a head."""
    prefix: str = request.param
    name, num_files = ("Qwen3ForCausalLM", 3) if prefix else ("Qwen3Model", 1)
    make_checkpoint(tmp_path, seed=11, prefix=prefix, num_files=num_files, num_hidden_layers=4, architectures=[name])
    return tmp_path


def our_vectors(folder: Path, dtype: Any) -> np.ndarray:
    return qwen3(path=str(folder), max_tokens=MAX_TOKENS, batch_tokens=2_000, dtype=dtype).embed(TEXTS)


def test_vectors_equal_those_of_torch(checkpoint: Path) -> None:
    difference = np.abs(our_vectors(checkpoint, "float32") - torch_vectors(checkpoint, torch.float32)).max()
    print(f"\nfloat32: largest difference {difference:.2e}")
    assert difference < 2e-6


def test_bfloat16_is_as_exact_as_that_of_torch(checkpoint: Path) -> None:
    ours, theirs = our_vectors(checkpoint, "bfloat16"), torch_vectors(checkpoint, torch.bfloat16)
    exact = torch_vectors(checkpoint, torch.float32)
    our_error, their_error = np.abs(ours - exact).max(), np.abs(theirs - exact).max()
    difference = np.abs(ours - theirs).max()
    print(f"\nbfloat16: largest difference {difference:.2e}, to float32 {our_error:.2e}, of torch {their_error:.2e}")
    assert difference < 5e-2
    assert our_error < 1.5 * their_error
