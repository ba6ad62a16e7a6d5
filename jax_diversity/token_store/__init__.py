"""Tokens on disk: Megatron's indexed dataset, written and read, alone or blended from many."""
