"""What there is to say of a corpus's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jax_diversity.token_store.megatron import TokenStore


def token_statistics(store: TokenStore, text_bytes: int | None = None, unknown_id: int | None = None) -> dict[str, Any]:
    """What there is to say of tokens, end tokens included.

    Args:
        store: the tokens.
        text_bytes: bytes of the texts in UTF-8, where there are texts.
        unknown_id: the token of text that the vocabulary cannot write, where there is one.

    Returns:
        `num_documents`, `num_tokens`, `tokens_per_document` (`mean`, `median`, `largest`), `text_bytes`,
        `bytes_per_token` and `tokens_per_byte` (where there are texts), `unknown_share` (of all tokens).
    """
    lengths = store.document_lengths
    num_tokens = store.num_tokens
    unknown = 0
    if unknown_id is not None:
        unknown = sum(int(np.count_nonzero(file.tokens == unknown_id)) for file in store.files)
    counts: dict[str, Any] = {
        "num_documents": store.num_documents,
        "num_tokens": num_tokens,
        "tokens_per_document": {
            "mean": _rounded(num_tokens / max(len(lengths), 1)),
            "median": _rounded(float(np.median(lengths)) if len(lengths) else 0.0),
            "largest": int(lengths.max(initial=0)),
        },
        "unknown_share": _rounded(unknown / max(num_tokens, 1)),
    }
    if text_bytes:
        counts["text_bytes"] = text_bytes
        counts["bytes_per_token"] = _rounded(text_bytes / max(num_tokens, 1))
        counts["tokens_per_byte"] = _rounded(num_tokens / text_bytes)
    return counts


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
