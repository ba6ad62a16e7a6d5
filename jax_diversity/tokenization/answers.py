"""Chats -> tokens: which of them are the answers', known exactly because answers are encoded on their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Integer

if TYPE_CHECKING:
    from jax_diversity.tokenization.base import Tokenizer

Spans = Sequence[Sequence[int]]
"""Starts and stops of the answers in a text, in characters, one behind another."""


def encode_answers(
    tokenizer: Tokenizer, texts: Sequence[str], spans: Sequence[Spans | None]
) -> tuple[list[Integer[np.ndarray, " _"]], list[list[tuple[int, int]]]]:
    """Tokens of every text, and where in them those are that are learnt, as starts and stops.

    The answers and what stands between them are encoded apart, as an answer is when a model writes it behind a prompt
    that is tokens already. The end token is learnt where an answer ends the text. A text whose spans are None is no
    chat: all of its tokens are learnt.
    """
    parts = [[*_parts(text, of_text)] for text, of_text in zip(texts, spans, strict=True)]
    encoded = tokenizer.encode_parts([[text for text, _ in of_text] for of_text in parts])
    learned = []
    for (tokens, lengths), of_text, is_chat in zip(encoded, parts, (of is not None for of in spans), strict=True):
        if not is_chat:
            learned.append([(0, len(tokens))])
            continue
        # The start token before the parts, the end token behind them.
        bounds = np.cumsum([int(tokenizer.start_id is not None), *lengths]).tolist()
        runs = [(bounds[place], bounds[place + 1]) for place, (_, is_answer) in enumerate(of_text) if is_answer]
        if of_text and of_text[-1][1]:
            runs[-1] = (runs[-1][0], len(tokens))
        learned.append(runs)
    return [tokens for tokens, _ in encoded], learned


def _parts(text: str, spans: Spans | None) -> Iterator[tuple[str, bool]]:
    """The text, cut where answers begin and end, and whether each part is one; empty parts are left out."""
    place = 0
    for start, stop in spans or ():
        if place < start:
            yield text[place:start], False
        if start < stop:
            yield text[start:stop], True
        place = stop
    if place < len(text):
        yield text[place:], False
