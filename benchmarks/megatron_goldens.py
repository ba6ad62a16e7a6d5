"""Make the files in tests/support/data/megatron with Megatron-LM's own code.

    python benchmarks/megatron_goldens.py tests/support/data/megatron

Needs megatron-core and torch, but not jax-diversity; docs/megatron.md has the recipe. The opt-in test compares
`CASES` with an installed megatron-core.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np

# name -> dtype, number of stored sequences, mean length, sequences that continue the previous document
STORES = {
    "short": ("uint16", 40, 9, ()),
    "long": ("int32", 12, 70, ()),
    "ragged": ("uint16", 30, 12, (3, 4, 11, 29)),  # with empty sequences, and with documents of several sequences
}

# case -> store, the range of sequences to read, Megatron's arguments
CASES: dict[str, dict[str, Any]] = {
    "one_epoch": {"store": "short", "sequence_length": 16, "seed": 1234, "num_samples": None},
    "one_epoch_asked": {"store": "short", "sequence_length": 16, "seed": 7, "num_samples": 5},
    "last_epoch_apart": {"store": "short", "sequence_length": 16, "seed": 1234, "num_samples": 64},
    "last_epoch_mixed": {"store": "short", "sequence_length": 16, "seed": 1234, "num_samples": 50},
    "many_epochs": {"store": "long", "sequence_length": 64, "seed": 3, "num_samples": 100},
    "long_documents": {"store": "long", "sequence_length": 7, "seed": 0, "num_samples": 200},
    "ragged": {"store": "ragged", "sequence_length": 13, "seed": 42, "num_samples": 90},
    "longer_than_an_epoch": {"store": "ragged", "sequence_length": 900, "seed": 5, "num_samples": 2},
    "part": {"store": "short", "documents": [5, 33], "sequence_length": 10, "seed": 9, "num_samples": 60},
    "one_token": {"store": "ragged", "sequence_length": 1, "seed": 11, "num_samples": None},
}


# case -> the weights of a blend, and its number of samples
BLENDS: dict[str, dict[str, Any]] = {
    "three": {"weights": [0.3, 0.2, 0.5], "size": 1000},
    "ties": {"weights": [1.0, 1.0, 2.0], "size": 500},
    "rounded_ties": {"weights": [0.7, 0.3], "size": 1000},
    "rare": {"weights": [1000.0, 1.0, 7.0], "size": 3000},
    "many": {"weights": [1 / (1 + index) for index in range(60)], "size": 4000},
}


def write_stores(folder: Path) -> None:
    """Write `.bin` and `.idx` with Megatron's own builder."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    rng = np.random.default_rng(0)
    for name, (dtype, num_sequences, mean, joined) in STORES.items():
        builder = IndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=np.dtype(dtype).type)
        lengths = rng.poisson(mean, num_sequences) + 1
        if name == "ragged":
            lengths[[0, 7, 8, 29]] = 0
        for index, length in enumerate(lengths.tolist()):
            if index and index not in joined:
                builder.end_document()
            tokens = rng.integers(0, 1000, length)
            builder.add_item(torch.from_numpy(tokens))
        builder.end_document()
        builder.finalize(str(folder / f"{name}.idx"))


def gpt_indices(folder: Path, case: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return what `GPTDataset` builds from a whole store, and the tokens of the first samples of training."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    tokenizer: Any = SimpleNamespace(vocab_size=None, eod=0, pad=-1, unique_identifiers={"class": "none"})
    prefix = str(folder / case["store"])
    store = IndexedDataset(prefix)
    begin, end = case.get("documents", (0, GPTDataset.numel_low_level_dataset(store)))
    indices = np.arange(begin, end, dtype=np.int32)
    with TemporaryDirectory() as cache:
        config = GPTDatasetConfig(
            random_seed=case["seed"],
            sequence_length=case["sequence_length"],
            tokenizer=tokenizer,
            split="1,0,0",
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
            path_to_cache=cache,
        )
        dataset = GPTDataset(store, prefix, indices, case["num_samples"], Split.train, config)
    first = range(min(len(dataset), 8))
    return {
        "document_index": np.array(dataset.document_index),
        "sample_index": np.array(dataset.sample_index),
        "shuffle_index": np.array(dataset.shuffle_index),
        "first_samples": np.array([dataset._query_document_sample_shuffle_indices(place)[0] for place in first]),
    }


def padded_sample_index(folder: Path, case: dict[str, Any]) -> np.ndarray:
    """Build one epoch's sample index with an unfilled last sample, as Megatron can do for validation."""
    from megatron.core.datasets import helpers
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    store = IndexedDataset(str(folder / case["store"]))
    lengths = np.array(store.sequence_lengths)  # `store` must not be deleted: its arrays are views of its file
    documents = np.arange(len(lengths), dtype=np.int32)
    total = int(lengths.sum())
    return helpers.build_sample_idx(lengths, documents, case["sequence_length"], 1, total, False, True)


def blended_datasets(case: dict[str, Any]) -> np.ndarray:
    """Build the dataset of every sample as `BlendedDataset` does."""
    from megatron.core.datasets import helpers

    weights, size = np.array(case["weights"], np.float64), case["size"]
    of_dataset, within = np.zeros(size, np.int16), np.zeros(size, np.int64)
    helpers.build_blending_indices(of_dataset, within, (weights / weights.sum()).tolist(), len(weights), size, False)
    return of_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    write_stores(folder)
    for name, case in CASES.items():
        arrays = gpt_indices(folder, case)
        if case["store"] != "ragged":  # Megatron cannot end with a sequence without tokens
            arrays["padded_sample_index"] = padded_sample_index(folder, case)
        np.savez_compressed(folder / f"indices_{name}.npz", **arrays)  # type: ignore[arg-type]
    np.savez_compressed(folder / "blends.npz", **{name: blended_datasets(case) for name, case in BLENDS.items()})
    (folder / "cases.json").write_text(json.dumps({"blends": BLENDS, "indices": CASES}, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
