"""Qwen3-Embedding: a checkpoint's folder -> vectors of documents, on as many devices as there are."""

from jax_diversity.embedding.qwen3.checkpoint import hash_checkpoint
from jax_diversity.embedding.qwen3.embedder import Qwen3Embedder

__all__ = ["Qwen3Embedder", "hash_checkpoint"]
