"""The turns of a chat, and their places in the text that a template gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

CHAT_LISTS = ("messages", "conversations", "conversation")
"""The fields of a record with the list of its turns."""
QUESTION_PAIRS = (
    ("instruction", "output"),
    ("instruction", "response"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("query", "response"),
)
"""The pairs of fields of a record with a question and its answer."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The fields of a turn with its reasoning; the first that is not empty is read. Templates get it under all names."""


def turn_fields(fields: Iterable[str]) -> list[str]:
    """Return those of a record's fields that have its turns.

    Example:
        >>> turn_fields(["id", "answer", "question"])
        ['question', 'answer']
    """
    names = {*fields}
    pairs = (pair for pair in QUESTION_PAIRS if names.issuperset(pair))
    return list(dict.fromkeys([*filter(names.__contains__, CHAT_LISTS), *chain.from_iterable(pairs)]))


class Turn(NamedTuple):
    """One turn of a chat.

    Attributes:
        role: one of `ROLES`.
        content: the text.
        in_loss: False for an answer that does not count towards the loss.
        num_media: number of placeholders in the content for parts other than text.
        reasoning: the text that a model writes before its answer.
        calls: calls of tools as in OpenAI's API, each with `function`, which has `name` and `arguments`. The arguments
            are as in the record: an object, or a text of JSON.
        labels: the name of the speaker and the id of the call that a tool answers, if the record has them.
        has_content: False if the record has no content beside its calls or reasoning; then templates get none either.
    """

    role: str
    content: str
    in_loss: bool = True
    num_media: int = 0
    reasoning: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = {}
    has_content: bool = True


class TurnSpan(NamedTuple):
    """The place of a turn in the text, in characters.

    The template's text before the content is [begin, start), the content is [start, stop), the ending is [stop, end).
    `gaps` are places in [start, end) that a template writes between the parts of an answer, such as results of tools.
    """

    begin: int
    start: int
    stop: int
    end: int
    gaps: Sequence[Sequence[int]] = ()

    @staticmethod
    def counted(span: Sequence[Any]) -> list[tuple[int, int]]:
        """Return the places of an answer that count towards the loss; `span` may be a list with the same values."""
        bounds = [span[1], *chain.from_iterable(span[4]), span[3]]
        return [(start, stop) for start, stop in zip(bounds[::2], bounds[1::2], strict=True) if start < stop]


class Rendered(NamedTuple):
    """The text of a chat.

    Attributes:
        text: the text.
        spans: the place of each turn; None if the places are not certain.
        contents: start and stop of the contents of turns. The text between them is from the template.
    """

    text: str
    spans: list[TurnSpan] | None
    contents: list[tuple[int, int]]
