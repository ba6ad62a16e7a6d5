"""The datasets that the examples of the documentation work on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from jax_diversity.pipeline.build import Build
from jax_diversity.sequences.token_store.megatron import TokenWriter
from tests.support.tiny_corpus import tiny_config, write_corpus


def build_examples(folder: Path) -> None:
    """A dataset, one of longer sequences, one that is packed as Megatron packs, and tokens in Megatron's format."""
    config = tiny_config(write_corpus(folder / "corpus", num_documents=800), folder / "dataset")
    Build(config).run_all()
    described = ("prepare", "tokenize", "embed", "cluster", "pack", "characterize")
    for name, settings, stages in (
        ("longer", {"sequence_length": 64}, (*described, "write")),
        ("out", {"method": "megatron"}, described),
    ):
        packing = dataclasses.replace(config.packing, **settings)
        build = Build(dataclasses.replace(config, out=str(folder / name), packing=packing))
        for stage in stages:
            build.run_stage(stage)
    for name in ("web_text_document", "books_text_document"):
        with TokenWriter(folder / "tokens" / name, np.dtype(np.uint16)) as writer:
            writer.add_documents(list(np.arange(20 * 5000).reshape(20, 5000) % 5000))
