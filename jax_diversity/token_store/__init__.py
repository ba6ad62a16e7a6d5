"""Tokens on disk: Megatron's indexed dataset, written and read, alone or blended from many."""

from jax_diversity.token_store.blend import Blend, read_blend
from jax_diversity.token_store.megatron import TokenFile, TokenStore, TokenWriter

__all__ = ["Blend", "TokenFile", "TokenStore", "TokenWriter", "read_blend"]
