"""Tokens of chats: each part of a chat is encoded separately, so that we get the exact tokens of the answers."""

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
"""Start and stop of consecutive parts of a text, in characters."""
ChatSpans = tuple[Spans, Spans]
"""The spans of the turns and the spans of the answers. Between the turns are the markers of the chat template."""


class _Part(NamedTuple):
    text: str
    is_markup: bool
    in_loss: bool


def encode_answers(
    tokenizer: Tokenizer, texts: Sequence[str], spans: Sequence[ChatSpans | None]
) -> tuple[list[Integer[np.ndarray, " _"]], list[list[tuple[int, int]]]]:
    """Encode texts; also return the spans (start, stop) of the tokens that count towards the loss.

    Turns and template markers are encoded separately, as when a model writes an answer after the tokens of a prompt.
    The end token counts towards the loss if the text ends with an answer. If the spans of a text are None, it is not a
    chat, and all its tokens count towards the loss.
    """
    parts = [[*_parts(text, of_text)] for text, of_text in zip(texts, spans, strict=True)]
    encoded = tokenizer.encode_parts([[part[:2] for part in of_text] for of_text in parts])
    loss_runs = []
    for (tokens, lengths), of_text, is_chat in zip(encoded, parts, (each is not None for each in spans), strict=True):
        if not is_chat:
            loss_runs.append([(0, len(tokens))])
            continue
        # The start token comes before the parts, the end token after them.
        bounds = np.cumsum([int(tokenizer.start_id is not None), *lengths]).tolist()
        runs = [run for run, part in zip(pairwise(bounds), of_text, strict=True) if part.in_loss]
        if of_text and of_text[-1].in_loss:
            runs.append((bounds[-1], len(tokens)))
        loss_runs.append(runs)
    return [tokens for tokens, _ in encoded], loss_runs


def _parts(text: str, spans: ChatSpans | None) -> Iterator[_Part]:
    """Cut a text where turns and answers begin and end; there are no empty parts."""
    turns, answers = ([*chain(*each)] for each in spans or ([(0, len(text))], []))
    for start, stop in pairwise(sorted({0, len(text), *turns, *answers})):
        # A part is in a span if, up to its start, more spans have begun than ended.
        is_said, in_loss = (bisect_right(bounds, start) % 2 == 1 for bounds in (turns, answers))
        yield _Part(text[start:stop], not is_said, in_loss)
