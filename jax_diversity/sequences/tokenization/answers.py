"""Tokens of chats: each part of a chat is encoded separately, so that we get the exact tokens of turns and answers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Integer

from jax_diversity.schema.documents import ROLES, ChatSpans

if TYPE_CHECKING:
    from jax_diversity.sequences.tokenization.base import Tokenizer


class ChatTokens(NamedTuple):
    """The parts of an encoded document, in tokens.

    Attributes:
        loss_runs: start and stop of the runs of tokens that count towards the loss.
        turns: where each turn begins, and the number of its role; empty if the document is not a chat. The first turn
            begins with the document's start token. A chat whose turns are not certain is one turn of role -1.
    """

    loss_runs: list[tuple[int, int]]
    turns: list[tuple[int, int]]


class _Part(NamedTuple):
    text: str
    is_markup: bool
    in_loss: bool


def encode_answers(
    tokenizer: Tokenizer, texts: Sequence[str], spans: Sequence[ChatSpans | None]
) -> tuple[list[Integer[np.ndarray, " _"]], list[ChatTokens]]:
    """Encode texts; also return which tokens count towards the loss, and where turns begin.

    Turns and template markers are encoded separately, as when a model writes an answer after the tokens of a prompt.
    The end token counts towards the loss if the text ends with an answer. If the spans of a text are None, it is not a
    chat, and all its tokens count towards the loss.
    """
    parts = [[*_parts(text, of_text)] for text, of_text in zip(texts, spans, strict=True)]
    encoded = tokenizer.encode_parts([[part[:2] for part in of_text] for of_text in parts])
    chats = []
    for (tokens, lengths), of_text, chat in zip(encoded, parts, spans, strict=True):
        if chat is None:
            chats.append(ChatTokens([(0, len(tokens))], []))
            continue
        # The start token comes before the parts, the end token after them.
        bounds = np.cumsum([int(tokenizer.start_id is not None), *lengths]).tolist()
        runs = [run for run, part in zip(pairwise(bounds), of_text, strict=True) if part.in_loss]
        if of_text and of_text[-1].in_loss:
            runs.append((bounds[-1], len(tokens)))
        place_of = dict(zip(np.cumsum([0, *(len(part.text) for part in of_text)]).tolist(), bounds, strict=True))
        turns = {0: -1}
        for start, role in zip(chat.starts, chat.roles, strict=False):  # without starts, the turns are not certain
            turns[place_of[start] if start else 0] = ROLES.index(role)  # a turn without tokens is replaced by the next
        chats.append(ChatTokens(runs, [turn for turn in turns.items() if turn[0] < len(tokens)]))
    return [tokens for tokens, _ in encoded], chats


def _parts(text: str, spans: ChatSpans | None) -> Iterator[_Part]:
    """Cut a text where turns, contents and answers begin and end; there are no empty parts."""
    if spans is None:
        spans = ChatSpans([(0, len(text))], [], [], [])
    contents, answers = [*chain(*spans.contents)], [*chain(*spans.answers)]
    for start, stop in pairwise(sorted({0, len(text), *contents, *answers, *spans.starts})):
        # A part is in a span if, up to its start, more spans have begun than ended.
        is_said, in_loss = (bisect_right(bounds, start) % 2 == 1 for bounds in (contents, answers))
        yield _Part(text[start:stop], not is_said, in_loss)
