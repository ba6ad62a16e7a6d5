"""Text -> token ids; one library a file."""

from jax_diversity.tokenization.tokenizer_json import (
    END_TOKEN,
    USUAL_END_TOKENS,
    Tokenizer,
    byte_tokenizer,
    load_tokenizer,
    spread_texts,
    token_dtype,
    train_bpe,
)

__all__ = [
    "END_TOKEN",
    "USUAL_END_TOKENS",
    "Tokenizer",
    "byte_tokenizer",
    "load_tokenizer",
    "spread_texts",
    "token_dtype",
    "train_bpe",
]
