"""A build whose documents are embedded by a Qwen3-Embedding checkpoint, a tiny one of random weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

import jax_diversity as jd
from jax_diversity.pipeline.build import Build
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from tests.support.tiny_corpus import tiny_config, write_corpus
from tests.support.tiny_qwen3 import END_TOKEN, byte_tokenizer, make_checkpoint, reference_vectors


def test_the_embed_stage_runs_a_checkpoint_and_knows_when_it_changed(tmp_path: Path) -> None:
    tensors = make_checkpoint(tmp_path / "checkpoint")
    options = {"path": str(tmp_path / "checkpoint"), "batch_tokens": 1024, "dtype": "float32"}
    embedding = EmbeddingConfig(method="qwen3", max_tokens=48, options=options)
    config = dataclasses.replace(
        tiny_config(write_corpus(tmp_path / "corpus", 24), tmp_path / "out"),
        embedding=embedding,
    )
    build = Build(config)
    for stage in ("prepare", "tokenize", "embed", "cluster"):
        result = build.run_stage(stage)
    assert result.counts["num_clusters"] == 4
    vectors = np.asarray(jd.open_dataset(tmp_path / "out").embeddings)
    texts = build.run_stage("embed").kept and _texts(tmp_path / "out")
    assert vectors.shape == (24, 48)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    # The checkpoint's tokens are bytes, those of the build are not: 48 of its own, of which its end token takes one.
    end = byte_tokenizer().token_to_id(END_TOKEN)
    rows = [[*byte_tokenizer(appends_end=False).encode(text[:48]).ids[:47], end] for text in texts[:3]]
    np.testing.assert_allclose(vectors[:3], reference_vectors(tensors, rows), atol=1e-5)
    make_checkpoint(tmp_path / "checkpoint", seed=1)
    again = Build(config).run_stage("embed")
    assert not again.kept
    assert np.abs(np.asarray(jd.open_dataset(tmp_path / "out").embeddings) - vectors).max() > 0.01


def _texts(out: Path) -> list[str]:
    return jd.open_dataset(out).documents.to_table(columns=["text"])["text"].to_pylist()
