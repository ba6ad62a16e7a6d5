"""Tokens on disk: Megatron's indexed dataset, written and read."""

from jax_diversity.token_store.megatron import TokenFile, TokenStore, TokenWriter

__all__ = ["TokenFile", "TokenStore", "TokenWriter"]
