"""Convert records with a chat, or with an instruction and its answer, to documents with the places of the answers.

Each record may have different fields for its turns: `messages` (OpenAI), `conversations` (ShareGPT), or a pair such as
`instruction` and `output` (Alpaca). Contents are text or lists of parts; parts other than text become placeholders such
as `<image>`, and are counted in the field `media_parts`.

The places of the answers are counted in characters, so an edit of the text makes them wrong. After the steps of
preparation, `with_loss_spans` compares every text with the text that was read. In an edited text it searches for the
turns again, by the template's text between them. If this fails, no answer of the document counts towards the loss, and
the number of such documents is reported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from jax_diversity.corpus.readers.chat_template import ANSWERS, ChatTemplate, Turn, TurnSpan, load_template
from jax_diversity.corpus.readers.files import InputFile
from jax_diversity.corpus.readers.records import LOSS_SPANS, TURN_SPANS, Place, Problem, RecordForm, labels
from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.foundation.errors import UserError, shortened
from jax_diversity.schema import Document

_READ = "turns_as_read"
"""The metadata field of a chat during preparation: the places of the turns in the text as read, the numbers of the
turns in the loss, a hash of the text, and whether the content contains no template markers."""
_LISTS = ("messages", "conversations", "conversation")
_PAIRS = (
    ("instruction", "output"),
    ("instruction", "response"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
)
_INPUTS = ("input", "context")
_SYSTEM = ("system", "system_prompt")
_ROLE_OF = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatbot"), ANSWERS),
    **dict.fromkeys(("tool", "function", "observation", "ipython"), "tool"),
}


_MEDIA = ("image", "audio", "video", "file")
_PLACEHOLDER = re.compile(f"<(?:{'|'.join(_MEDIA)}|part)>")
MEDIA_PARTS = "media_parts"
"""The metadata field with the number of parts that are placeholders. Chats of text alone do not have it."""


class _BrokenError(Exception):
    """The turns of a record are broken."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


def chat_form(config: CorpusConfig) -> RecordForm:
    """Return the form of records with turns; texts are written with the template of the settings."""
    return _ChatForm("format", "turns", partial(_make_chat, load_template(config.chat_template)))


class _ChatForm(RecordForm):
    def is_in(self, fields: Iterable[str], config: CorpusConfig) -> bool:
        names = set(fields)
        return any(name in names for name in _LISTS) or any(set(pair) <= names for pair in _PAIRS)

    def missing(self, file: InputFile, config: CorpusConfig, fields: Iterable[str]) -> UserError:
        found = ", ".join(sorted(fields)) or "no fields"
        return UserError(
            f"Expected turns in {file.address}, in {_known_fields()}, found only {found}; rename the fields, or set "
            "corpus.format to the file's format."
        )


def with_loss_spans(documents: Iterable[Document], config: CorpusConfig, counts: dict[str, int]) -> Iterator[Document]:
    """Add the places of turns and answers to the metadata of chats. Other documents stay unchanged.

    The number of chats, the number of edited chats whose turns were not found again, and the number of placeholders for
    parts other than text are written into `counts`.
    """
    template = load_template(config.chat_template)
    counts |= {"num_chats": 0, "num_chats_without_turns": 0}
    for document in documents:
        read = document.metadata.get(_READ)
        if read is None:  # not a chat, such as a module of the Python environment
            yield document
            continue
        turns = _current_turns(document, read, template)
        counts["num_chats"] += 1
        if media := document.metadata.get(MEDIA_PARTS):
            counts["num_media_parts"] = counts.get("num_media_parts", 0) + media
        counts["num_chats_without_turns"] += turns is None
        said, in_loss = [(0, len(document.text))], []  # for an edited chat whose turns are not certain
        if turns is not None:
            said = [turn[:2] for turn in turns]
            in_loss = [(turns[number][0], turns[number][2]) for number in read["in_loss"]]
        metadata = {name: value for name, value in document.metadata.items() if name != _READ}
        yield dataclasses.replace(document, metadata=metadata | {TURN_SPANS: said, LOSS_SPANS: in_loss})


def _current_turns(document: Document, read: Mapping[str, Any], template: ChatTemplate) -> Sequence[TurnSpan] | None:
    if _text_mark(document.text) == read["text"]:
        return [TurnSpan(*turn) for turn in read["turns"]]  # a stored part has lists
    # If the content contains template markers, a step may have removed the template's own markers. Then the search
    # would find the markers in the content.
    return template.find(document.text, document.metadata["roles"]) if read["is_clear"] else None


def _text_mark(text: str) -> str:
    # A step may have left a lone surrogate. It is reported when the document is stored.
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _make_chat(
    template: ChatTemplate, fields: dict[str, Any], place: Place, config: CorpusConfig
) -> Document | Problem:
    try:
        turns = _take_turns(fields)
    except _BrokenError as error:
        return error.problem
    roles, num_media = [turn.role for turn in turns], sum(turn.num_media for turn in turns)
    if unknown := [role for role in roles if role not in template.patterns]:
        return Problem("num_broken_records", f"the template has no pattern for the role {unknown[0]!r}")
    if not any(_PLACEHOLDER.sub("", turn.content).strip() if num_media else turn.content.strip() for turn in turns):
        return Problem("num_without_text", "turns without text")
    text, spans = template.render(turns)
    about = labels(fields, place, config)
    read = {
        "turns": spans,
        "in_loss": [number for number, turn in enumerate(turns) if turn.role == ANSWERS and turn.in_loss],
        "text": _text_mark(text),
        "is_clear": template.find(text, roles) == spans,
    }
    about["metadata"] |= {"num_turns": len(turns), "roles": roles, _READ: read}
    about["metadata"] |= {MEDIA_PARTS: num_media} if num_media else {}
    return Document(text=text, **about)


def _take_turns(fields: dict[str, Any]) -> list[Turn]:
    """Remove the fields of the turns from the record and return the turns."""
    for name in _LISTS:
        if isinstance(fields.get(name), list):
            turns = _turns(fields.pop(name), name)
            break
    else:
        turns = _take_pair(fields)
    if not turns:
        raise _broken("no turns")
    for name in _SYSTEM:
        if turns[0].role != "system" and isinstance(fields.get(name), str) and fields[name]:
            return [Turn("system", fields.pop(name)), *turns]
    return turns


def _take_pair(fields: dict[str, Any]) -> list[Turn]:
    for asked, answered in _PAIRS:
        if asked in fields and answered in fields:
            question, answer = fields.pop(asked), fields.pop(answered)
            if isinstance(question, list) and isinstance(answer, list):  # the two fields are lists of turns
                return _turns(question, asked) + _turns(answer, answered)
            (question, in_question), (answer, in_answer) = _content(question, asked), _content(answer, answered)
            for name in _INPUTS:
                if asked == "instruction" and isinstance(fields.get(name), str):
                    more = fields.pop(name)
                    question = f"{question}\n\n{more}" if more.strip() else question
                    break
            return [Turn("user", question, num_media=in_question), Turn(ANSWERS, answer, num_media=in_answer)]
    found = ", ".join(sorted(fields)[:20]) or "no fields"
    raise _BrokenError(Problem("num_without_text", f"no turns in {_known_fields()}, found only {found}"))


def _turns(entries: list[Any], name: str) -> list[Turn]:
    return [_turn(entry, f"{name}[{number}]") for number, entry in enumerate(entries)]


def _turn(entry: Any, name: str) -> Turn:
    if not isinstance(entry, Mapping):
        raise _broken(f"{name} is {_kind(entry)}, expected an object")
    speaker = entry.get("role", entry.get("from"))
    role = _ROLE_OF.get(speaker.strip().lower()) if isinstance(speaker, str) else None
    if role is None:
        raise _broken(f"{name} has the unknown role {shortened(repr(speaker))}")
    calls = _calls(entry, name)
    content = entry.get("content", entry.get("value"))
    text, num_media = ("", 0) if content is None and calls else _content(content, name)
    weight = entry.get("weight")
    if weight not in (None, 0, 1):
        raise _broken(f"{name} has the weight {shortened(repr(weight))}, expected 0 or 1")
    return Turn(role, "\n".join(filter(None, [text, *calls])), in_loss=weight != 0, num_media=num_media)


def _content(content: Any, name: str) -> tuple[str, int]:
    """Return the content of a turn, and the number of its parts that became placeholders."""
    if isinstance(content, str):
        return content, 0
    if not isinstance(content, list):
        raise _BrokenError(Problem("num_text_not_string", f"{name} holds {_kind(content)}, expected a text"))
    parts, num_media = [], 0
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str):
            parts.append(text)
        elif not isinstance(part, Mapping) or part.get("type") == "text":
            what = f"{name} has a part that holds {_kind(text)}, expected a text"
            raise _BrokenError(Problem("num_text_not_string", what))
        else:
            parts.append(_placeholder(part))
            num_media += 1
    return "".join(parts), num_media


def _placeholder(part: Mapping[str, Any]) -> str:
    """Return the placeholder for a part that is not text, by its type (`image_url`) or its fields."""
    named = f"{part.get('type')} {' '.join(map(str, part))}".lower()
    return f"<{next((kind for kind in _MEDIA if kind in named), 'part')}>"


def _calls(entry: Mapping[str, Any], name: str) -> list[str]:
    """Return the tool calls; each is a line of JSON with name and arguments."""
    calls = entry.get("tool_calls") or ([{"function": entry["function_call"]}] if entry.get("function_call") else [])
    if not isinstance(calls, list):
        raise _broken(f"tool_calls of {name} are {_kind(calls)}, expected a list")
    lines = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _broken(f"{name} has a tool call without a name")
        arguments = function.get("arguments")
        with suppress(ValueError, RecursionError):  # most writers encode them as JSON text
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        try:
            lines.append(json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False))
        except (TypeError, ValueError, RecursionError):
            raise _broken(f"{name} has a tool call whose arguments JSON cannot hold") from None
    return lines


def _broken(what: str) -> _BrokenError:
    return _BrokenError(Problem("num_broken_records", what))


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _known_fields() -> str:
    return ", ".join([*_LISTS, *(f"{asked} and {answered}" for asked, answered in _PAIRS)])
