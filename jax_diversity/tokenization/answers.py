"""Chats -> tokens: each part of a chat is encoded separately, so that the answers' tokens are known exactly."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Integer

if TYPE_CHECKING:
    from jax_diversity.tokenization.base import Tokenizer

Spans = Sequence[Sequence[int]]
"""Starts and stops of consecutive parts of a text, in characters."""
ChatSpans = tuple[Spans, Spans]
"""The spans of the turns, between which are the template's marks, and the spans of the answers."""


class _Part(NamedTuple):
    text: str
    is_markup: bool
    in_loss: bool


def encode_answers(
    tokenizer: Tokenizer, texts: Sequence[str], spans: Sequence[ChatSpans | None]
) -> tuple[list[Integer[np.ndarray, " _"]], list[list[tuple[int, int]]]]:
    """Tokens of every text, and the spans of the tokens that count towards the loss, as starts and stops.

    Turns and the template's marks are encoded separately, as when a model writes an answer after a prompt of tokens.
    The end token counts if an answer ends the text. A text whose spans are None is not a chat: all of its tokens count.
    """
    parts = [[*_parts(text, of_text)] for text, of_text in zip(texts, spans, strict=True)]
    encoded = tokenizer.encode_parts([[part[:2] for part in of_text] for of_text in parts])
    loss_runs = []
    for (tokens, lengths), of_text, is_chat in zip(encoded, parts, (each is not None for each in spans), strict=True):
        if not is_chat:
            loss_runs.append([(0, len(tokens))])
            continue
        # The start token is before the parts, the end token after them.
        bounds = np.cumsum([int(tokenizer.start_id is not None), *lengths]).tolist()
        runs = [run for run, part in zip(pairwise(bounds), of_text, strict=True) if part.in_loss]
        if of_text and of_text[-1].in_loss:
            runs.append((bounds[-1], len(tokens)))
        loss_runs.append(runs)
    return [tokens for tokens, _ in encoded], loss_runs


def _parts(text: str, spans: ChatSpans | None) -> Iterator[_Part]:
    """The text, cut where turns and answers begin and end; there are no empty parts."""
    turns, answers = ([*chain(*each)] for each in spans or ([(0, len(text))], []))
    for start, stop in pairwise(sorted({0, len(text), *turns, *answers})):
        # A place is in a span if more spans begin at or before it than end there.
        is_said, in_loss = (bisect_right(bounds, start) % 2 == 1 for bounds in (turns, answers))
        yield _Part(text[start:stop], not is_said, in_loss)
