"""A corpus of chats, and datasets of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import jax_diversity as jd
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.sequences.clustering.settings import ClusterConfig
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from jax_diversity.streaming.dataset.dataset import Dataset


def write_corpus(folder: Path) -> None:
    rng = np.random.default_rng(5)

    def said(number: int) -> str:
        return " ".join(rng.choice(["mast", "keel", "sail", "wind"], number))

    rows = []
    for number in range(60):
        turns = [
            {"role": role, "content": said(int(rng.integers(1, 9)))}
            for _ in range(rng.integers(1, 5))
            for role in ("user", "assistant")
        ]
        rows.append(json.dumps({"id": f"chat-{number}", "messages": turns}))
    rows.append(json.dumps({"id": "long", "messages": [turns[0], {"role": "assistant", "content": said(90)}]}))
    (folder / "chats.jsonl").write_text("\n".join(rows), encoding="utf-8")


def config_of(folder: Path, paths: tuple[str, ...] = ("chats.jsonl",), **packing: Any) -> BuildConfig:
    return BuildConfig(
        out=str(folder / "out"),
        corpus=CorpusConfig(
            paths=tuple(each if each == "python-environment" else str(folder / each) for each in paths),
            format="chat",
            max_bytes=60_000,
        ),
        tokenizer=TokenizerConfig(kind="bytes"),
        embedding=EmbeddingConfig(options={"dimensions": 4}),
        cluster=ClusterConfig(num_clusters=2),
        packing=PackingConfig(**{"sequence_length": 200, "validation_fraction": 0.1, **packing}),
    )


def packed(folder: Path, paths: tuple[str, ...] = ("chats.jsonl",), **packing: Any) -> Dataset:
    config = config_of(folder, paths, **packing)
    for stage in ("prepare", "tokenize", "embed", "cluster", "pack"):
        Build(config).run_stage(stage)
    return jd.open_dataset(folder / "out")
