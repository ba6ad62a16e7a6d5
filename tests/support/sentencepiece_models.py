"""Small SentencePiece models, trained in a moment on made-up text."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

_WORDS = "the quick brown fox jumps over lazy dogs while seven wizards box with liquor jugs near bridges"
_PARTS = "ing ed er tion ment ness able re un over out"


def sentences(number: int, seed: int = 0) -> list[str]:
    """Made-up lines of words that share beginnings and ends."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(number):
        words = [
            str(rng.choice(_WORDS.split())) + str(rng.choice(_PARTS.split())) * int(rng.integers(2))
            for _ in range(rng.integers(4, 12))
        ]
        lines.append(" ".join(words).capitalize() + str(rng.choice(list(".!?"))))
    return lines


def train_model(model_type: str = "unigram", **options: Any) -> bytes:
    """A .model file's content; `options` are the trainer's."""
    import sentencepiece

    content = io.BytesIO()
    settings = {"vocab_size": 200, "character_coverage": 1.0, "minloglevel": 2, "num_threads": 1} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*sentences(400), "Größe *** ... zzz --- 1234567890 (x) é"]),
        model_writer=content,
        model_type=model_type,
        **settings,
    )
    return content.getvalue()
