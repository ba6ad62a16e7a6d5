"""A small corpus of made-up texts on a few topics, and settings that build it in seconds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.sequences.characteristics.settings import CharacteristicsConfig
from jax_diversity.sequences.clustering.settings import ClusterConfig
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.tokenization.settings import TokenizerConfig

TOPICS = {
    "cooking": "onion butter oven simmer garlic recipe salt pan stir flour bake sauce",
    "sailing": "mast sail harbour wind anchor deck keel rope tide captain rudder crew",
    "music": "violin chord melody orchestra tempo rhythm concert piano string note choir song",
    "law": "court statute clause judge appeal contract liable section tenant notice party act",
}


def write_corpus(folder: Path, num_documents: int = 400, seed: int = 0) -> Path:
    """Two JSONL files of documents with id, text, source, language and one more field."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    names = list(TOPICS)
    lines: list[list[str]] = [[], []]
    for index in range(num_documents):
        topic = names[int(rng.integers(len(names)))]
        words = rng.choice(TOPICS[topic].split(), int(rng.lognormal(3.5, 0.8)) + 5)
        record = {"id": f"doc-{index}", "text": " ".join(words), "source": topic, "language": "en", "year": 1990}
        lines[index % 2].append(json.dumps(record))
    for index, part in enumerate(lines):
        (folder / f"part-{index}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")
    return folder


def tiny_config(corpus: Path, out: Path) -> BuildConfig:
    """Settings for such a corpus."""
    return BuildConfig(
        out=str(out),
        corpus=CorpusConfig(paths=(str(corpus / "*.jsonl"),), file_bytes=20_000),
        tokenizer=TokenizerConfig(vocab_size=300),
        embedding=EmbeddingConfig(options={"dimensions": 8}),
        cluster=ClusterConfig(num_clusters=4, options={"max_iterations": 10}),
        packing=PackingConfig(sequence_length=32, validation_fraction=0.05),
        characteristics=CharacteristicsConfig(length_bins=5),
        windows=(8, 32),
    )
