"""Text -> token ids: one contract, `Tokenizer`, and one library a file."""

from jax_diversity.tokenization.base import USUAL_END_TOKENS, PiecewiseTokenizer, Tokenizer, token_dtype
from jax_diversity.tokenization.making import load_saved, load_saved_for, make_tokenizer
from jax_diversity.tokenization.tensorflow_text import normalize_texts, split_sentences
from jax_diversity.tokenization.tokenizer_json import (
    END_TOKEN,
    JsonTokenizer,
    byte_tokenizer,
    load_tokenizer,
    spread_texts,
    token_name,
    train_bpe,
)

__all__ = [
    "END_TOKEN",
    "USUAL_END_TOKENS",
    "JsonTokenizer",
    "PiecewiseTokenizer",
    "Tokenizer",
    "byte_tokenizer",
    "load_saved",
    "load_saved_for",
    "load_tokenizer",
    "make_tokenizer",
    "normalize_texts",
    "split_sentences",
    "spread_texts",
    "token_dtype",
    "token_name",
    "train_bpe",
]
