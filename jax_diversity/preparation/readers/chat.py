"""Convert records with a chat, or with an instruction and its answer, to documents with the places of the answers.

Each record may have different fields for its turns: `messages` (OpenAI), `conversations` (ShareGPT), or a pair such as
`instruction` and `output` (Alpaca). Contents are text or lists of parts. Reasoning and calls of tools are parts of a
turn; other parts become placeholders such as `<image>`, and are counted in the field `media_parts`. What the template
does not show of a record is counted by its name.

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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from jax_diversity.foundation.attempts import DocumentError
from jax_diversity.foundation.errors import UserError, shortened
from jax_diversity.preparation.readers.chat_template import ChatTemplate, load_template
from jax_diversity.preparation.readers.files import InputFile
from jax_diversity.preparation.readers.jinja_template import JinjaTemplate
from jax_diversity.preparation.readers.records import TEXT, Place, Problem, RecordForm, labels, plain_value
from jax_diversity.preparation.readers.turns import CHAT_LISTS, QUESTION_PAIRS, REASONING, Turn, TurnSpan, turn_fields
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema import Document
from jax_diversity.schema.documents import ANSWERS, LOSS_SPANS, TURN_SPANS, TURN_STARTS

_READ = "turns_as_read"
"""The metadata field of a chat during preparation: the places of the turns in the text as read, the numbers of the
turns in the loss, a hash of the text, and whether the content contains no template markers."""
_INPUTS = ("input", "context")
_OF_CHATS = (_READ, TURN_SPANS, LOSS_SPANS, TURN_STARTS)
"""The metadata fields that only chats have."""
_SYSTEM = ("system", "system_prompt")
_CALLERS = ("function_call", "tool_call")
"""Speakers whose content is a call of a tool, as in ShareGPT."""
_ROLE_OF = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatbot", *_CALLERS), ANSWERS),
    **dict.fromkeys(("tool", "function", "observation", "ipython", "tool_response", "function_response"), "tool"),
}
_ROLE_OF_SPEAKER = {speaker: role for speaker, role in _ROLE_OF.items() if speaker not in _CALLERS}
_LOSS_MARKS = ("train", "trainable", "train_on_turn", "loss", "loss_weight", "mask", "weight")
"""The fields of a turn that say whether it counts towards the loss."""
# Most turns have none of these fields.
_FIELDS_OF_REASONING, _FIELDS_OF_LOSS = frozenset(REASONING), frozenset(_LOSS_MARKS)
_FIELDS_OF_CALLS = frozenset(("tool_calls", "function_call"))
_PLAIN = (("role", "content"), ("from", "value"))
_OTHER_WEIGHTS, _MASKS, _EXCLUDED = "num_other_loss_weights", "num_loss_masks", "num_excluded_answers"
_LABELS = ("name", "tool_call_id")
_QUOTED = "num_chats_with_quoted_arguments"
_EXTRAS = {"tools": "tools", "functions": "tools", "documents": "documents"}
"""The fields of a record that a template may show, and their names in templates."""
HIDDEN = "num_chats_hiding_"
"""Counts of chats by what the template does not show of them, such as `num_chats_hiding_tools`."""

WITHOUT_ANSWERS = "num_chats_without_answers"
"""The count of chats without a token that counts towards the loss; those without certain turns are counted apart."""
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
    """Return the form of records with turns, or with a text; turns are written with the template of the settings."""
    return _ChatForm("format", "turns", partial(_make_document, load_template(config.chat_template)))


class _ChatForm(RecordForm):
    def is_in(self, fields: Iterable[str], config: CorpusConfig) -> bool:
        return bool(turn_fields(fields)) or TEXT.is_in(fields, config)

    def missing(self, file: InputFile, config: CorpusConfig, fields: Iterable[str]) -> UserError:
        names = ", ".join(sorted(fields)) or "no fields"
        return UserError(
            f"Expected turns in {file.address}, in {_known_fields()}, or texts in field {config.text_field!r}, found "
            f"only {names}; rename the fields, or set corpus.text_field or corpus.format."
        )


def _make_document(
    template: ChatTemplate | JinjaTemplate, fields: dict[str, Any], place: Place, config: CorpusConfig
) -> Document | Problem:
    """Make the document of a chat; of a text, if the record has no turns."""
    of_turns = turn_fields(fields)
    # In a table of both, a text's row has nothing in the columns of chats.
    if not TEXT.is_in(fields, config) or any(fields[name] not in (None, "") for name in of_turns):
        return _make_chat(template, fields, place, config)
    text = TEXT.make({name: value for name, value in fields.items() if name not in of_turns}, place, config)
    if isinstance(text, Problem):
        return text
    metadata = {name: value for name, value in text.metadata.items() if name not in _OF_CHATS}
    return dataclasses.replace(text, metadata=metadata)


def with_loss_spans(documents: Iterable[Document], config: CorpusConfig, counts: dict[str, int]) -> Iterator[Document]:
    """Add the places of turns and answers to the metadata of chats. Other documents stay unchanged.

    The number of chats, the number of edited chats whose turns were not found again, the number of other chats without
    an answer that counts, and the number of placeholders for parts other than text are written into `counts`.
    """
    template = load_template(config.chat_template)
    counts |= {"num_chats": 0, "num_chats_without_turns": 0}
    for document in documents:
        read = document.metadata.get(_READ)
        if read is None:  # not a chat, such as a module of the Python environment
            yield document
            continue
        is_edited = _text_mark(document.text) != read["text"]
        turns = _current_turns(document, read, template, is_edited)
        counts["num_chats"] += 1
        if media := document.metadata.get(MEDIA_PARTS):
            counts["num_media_parts"] = counts.get("num_media_parts", 0) + media
        for name, number in read["notes"].items():
            counts[name] = counts.get(name, 0) + number
        counts["num_chats_without_turns"] += turns is None
        content_places, in_loss, starts = (
            [(0, len(document.text))],
            [],
            [],
        )  # for an edited chat whose turns are not certain
        if turns is not None:
            content_places = [(turn[1], turn[2]) for turn in turns] if is_edited else read["contents"]
            in_loss = [place for number in read["in_loss"] for place in TurnSpan.counted(turns[number])]
            starts = [turn[0] for turn in turns]
            if not in_loss:
                counts[WITHOUT_ANSWERS] = counts.get(WITHOUT_ANSWERS, 0) + 1
        metadata = {name: value for name, value in document.metadata.items() if name != _READ}
        yield dataclasses.replace(
            document, metadata=metadata | {TURN_SPANS: content_places, LOSS_SPANS: in_loss, TURN_STARTS: starts}
        )


def _current_turns(
    document: Document, read: Mapping[str, Any], template: ChatTemplate | JinjaTemplate, is_edited: bool
) -> Sequence[Sequence[Any]] | None:
    if read["turns"] is None:
        return None
    if not is_edited:
        return read["turns"]  # a stored part has lists in place of `TurnSpan`
    if isinstance(template, JinjaTemplate):  # it has no fixed text between turns
        return None
    # If the content contains template markers, a step may have removed the template's own markers. Then the search
    # would find the markers in the content.
    return template.find(document.text, document.metadata["roles"]) if read["is_clear"] else None


def _text_mark(text: str) -> str:
    # A step may have left a lone surrogate. It is reported when the document is stored.
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _make_chat(
    template: ChatTemplate | JinjaTemplate, fields: dict[str, Any], place: Place, config: CorpusConfig
) -> Document | Problem:
    notes = Counter[str]()
    try:
        turns = _take_turns(fields, notes)
        extras = _extras(fields)
    except _BrokenError as error:
        return error.problem
    roles, num_media = [turn.role for turn in turns], sum(turn.num_media for turn in turns)
    if isinstance(template, ChatTemplate) and (unknown := [role for role in roles if role not in template.patterns]):
        return Problem("num_broken_records", f"the template has no pattern for the role {unknown[0]!r}")
    calling_turns = [turn for turn in turns if turn.calls]
    contents = (_PLACEHOLDER.sub("", turn.content) if num_media else turn.content for turn in turns)
    if not calling_turns and not any(map(str.strip, contents)):
        return Problem("num_without_text", "turns without text")
    try:
        text, spans, contents = template.render(turns, extras)
    except DocumentError as error:
        has_texts = any(True for _ in _texts_of_arguments(calling_turns))
        hint = "; it may expect the arguments of calls as objects, not as text" if has_texts else ""
        return Problem("num_broken_records", f"{error}{hint}")
    if any(json.dumps(arguments, ensure_ascii=False) in text for arguments in _texts_of_arguments(calling_turns)):
        notes[_QUOTED] += 1
    if hidden := template.hidden(turns, extras, text):
        named = [name for name in notes if name in REASONING] if "reasoning" in hidden else []
        hidden = [name for name in hidden if name != "reasoning" or not named]
        notes.update(f"{HIDDEN}{name}" for name in [*hidden, *named])
    answers = [number for number, role in enumerate(roles) if role == ANSWERS]
    said_answers = [number for number in answers if not _is_empty(turns[number])]
    notes["num_empty_answers"] += len(answers) - len(said_answers)
    labels_of_record = labels(fields, place, config)
    read = {
        "turns": spans,
        "contents": contents,
        "in_loss": [number for number in said_answers if turns[number].in_loss],
        "text": _text_mark(text),
        "is_clear": isinstance(template, ChatTemplate) and template.find_contents(text, roles) == contents,
        "notes": {name: number for name, number in notes.items() if number and name not in REASONING},
    }
    labels_of_record["metadata"] |= {"num_turns": len(turns), "roles": roles, _READ: read}
    labels_of_record["metadata"] |= {MEDIA_PARTS: num_media} if num_media else {}
    return Document(text=text, **labels_of_record)


def _texts_of_arguments(turns: Iterable[Turn]) -> Iterator[str]:
    """Yield the arguments of calls that are a text of JSON."""
    for call in (call for turn in turns for call in turn.calls):
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str) and not isinstance(_parsed(arguments), str):
            yield arguments


def _is_empty(turn: Turn) -> bool:
    return not (turn.content.strip() or turn.calls or turn.reasoning.strip())


def _extras(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tools and documents of a record, which stay in its metadata."""
    extras = {}
    for field, name in _EXTRAS.items():
        value = _parsed(fields.get(field))
        if isinstance(value, list) and value:
            extras[name] = plain_value(value)
    return extras


def _parsed(value: Any) -> Any:
    """Return the list or object in a text of JSON; other values stay as they are."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _take_turns(fields: dict[str, Any], notes: Counter[str]) -> list[Turn]:
    """Remove the fields of the turns from the record and return the turns; `notes` counts what is worth saying."""
    for name in CHAT_LISTS:
        if isinstance(entries := _parsed(fields.get(name)), list):
            del fields[name]
            turns = _turns(entries, name, notes)
            break
    else:
        turns = _take_pair(fields, notes)
    if not turns:
        raise _broken("no turns")
    for name in _SYSTEM:
        if turns[0].role != "system" and isinstance(fields.get(name), str) and fields[name]:
            return [Turn("system", fields.pop(name)), *turns]
    return turns


def _take_pair(fields: dict[str, Any], notes: Counter[str]) -> list[Turn]:
    for question_field, answered in QUESTION_PAIRS:
        if question_field in fields and answered in fields:
            question, answer = _parsed(fields.pop(question_field)), _parsed(fields.pop(answered))
            if isinstance(question, list) and isinstance(answer, list):  # the two fields are lists of turns
                return _turns(question, question_field, notes) + _turns(answer, answered, notes)
            question, answer = (json.dumps(value) if isinstance(value, dict) else value for value in (question, answer))
            asking, answering = _Content.of(question, question_field), _Content.of(answer, answered)
            text = asking.text
            for name in _INPUTS:
                if question_field == "instruction" and isinstance(fields.get(name), str):
                    more = fields.pop(name)
                    text = f"{text}\n\n{more}" if more.strip() else text
                    break
            before = list[Turn]()
            if isinstance(history := _parsed(fields.get("history")), list):
                del fields["history"]
                before = _history(history)
            return [
                *before,
                Turn("user", text, num_media=asking.num_media),
                Turn(ANSWERS, answering.text, num_media=answering.num_media, reasoning=answering.reasoning),
            ]
    names = ", ".join(sorted(fields)[:20]) or "no fields"
    raise _BrokenError(Problem("num_without_text", f"no turns, found only {names}"))


def _history(history: list[Any]) -> list[Turn]:
    """Return the earlier questions and answers of an Alpaca record."""
    turns = list[Turn]()
    for number, pair in enumerate(history):
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise _broken(f"history[{number}] is {_kind(pair)}, expected a question and its answer")
        turns += [Turn("user", pair[0]), Turn(ANSWERS, pair[1])]
    return turns


def _turns(entries: list[Any], name: str, notes: Counter[str]) -> list[Turn]:
    turns: list[Turn] = []
    for number, entry in enumerate(entries):
        # Most turns have a text and a known speaker only; the general case takes three times as long.
        if type(entry) is dict and tuple(entry) in _PLAIN:
            speaker, content = entry.values()
            if type(speaker) is str and type(content) is str and (role := _ROLE_OF_SPEAKER.get(speaker)):
                turns.append(Turn(role, content))
                continue
        turns += _turn(entry, f"{name}[{number}]", notes)
    return turns


def _turn(entry: Any, name: str, notes: Counter[str]) -> list[Turn]:
    """Return the turn of an entry, after the turns of the tools' results that it contains."""
    if not isinstance(entry, Mapping):
        raise _broken(f"{name} is {_kind(entry)}, expected an object")
    speaker = _first(entry, "role", "from")
    speaker = speaker.strip().lower() if isinstance(speaker, str) else speaker
    role = _ROLE_OF.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise _broken(f"{name} has the unknown role {shortened(repr(speaker))}")
    calls = _calls(entry, name)
    content = _first(entry, "content", "value")
    if content is None and role == ANSWERS and isinstance(refusal := entry.get("refusal"), str):
        content = refusal
    if speaker in _CALLERS and isinstance(content, str) and (named := _called(_parsed(content), name)):
        calls, content = [*named, *calls], None
    reasoning = ""
    if not _FIELDS_OF_REASONING.isdisjoint(entry):
        field = next((field for field in REASONING if isinstance(entry.get(field), str) and entry[field]), None)
        if field is not None:
            reasoning = entry[field]
            notes[field] += 1
    # As in transformers, null means an empty content. A turn without the field may have its text in another one.
    may_be_null = calls or reasoning or (role == ANSWERS and ("content" in entry or "value" in entry))
    is_null = content is None and bool(may_be_null)
    content_of_turn = _Content() if is_null else _Content.of(content, name)
    labels = {field: entry[field] for field in _LABELS if isinstance(entry.get(field), str)}
    in_loss = _in_loss(entry, name, notes)
    if role == ANSWERS and not in_loss:
        notes[_EXCLUDED] += 1
    results = [Turn("tool", text, in_loss) for text in content_of_turn.results]
    calls = [*content_of_turn.calls, *calls]
    turn = Turn(
        role,
        content_of_turn.text,
        in_loss,
        content_of_turn.num_media,
        "\n".join(filter(None, [reasoning, content_of_turn.reasoning])) if content_of_turn.reasoning else reasoning,
        tuple(calls),
        labels,
        has_content=isinstance(content, str) or bool(content_of_turn.text) or not (is_null or calls or reasoning),
    )
    return results if results and _is_empty(turn) else [*results, turn]


def _first(entry: Mapping[str, Any], *names: str) -> Any:
    """Return the first of some fields that is not null; tables of several formats have all their columns."""
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def _in_loss(entry: Mapping[str, Any], name: str, notes: Counter[str]) -> bool:
    """Return whether the marks of a turn let it count towards the loss."""
    in_loss = True
    if _FIELDS_OF_LOSS.isdisjoint(entry):
        return in_loss
    for field in _LOSS_MARKS:
        value = entry.get(field)
        if isinstance(value, str) and value.lower() in ("true", "false", "0", "1"):
            value = value.lower() in ("true", "1")
        if value is None:
            continue
        if not isinstance(value, bool | int | float):
            raise _broken(f"{name} has the {field} {shortened(repr(value))}, expected a number or a truth value")
        in_loss = in_loss and value != 0
        notes[_OTHER_WEIGHTS] += value not in (0, 1)
        notes[_MASKS] += field == "mask"
    return in_loss


@dataclasses.dataclass
class _Content:
    """The parts of a turn's content: its text, the number of placeholders in it, reasoning, calls, tools' results."""

    text: str = ""
    num_media: int = 0
    reasoning: str = ""
    calls: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    results: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, content: Any, name: str) -> _Content:
        if isinstance(content, str):
            return cls(content)
        if not isinstance(content, list):
            raise _BrokenError(Problem("num_text_not_string", f"{name} holds {_kind(content)}, expected a text"))
        said = cls()
        for part in content:
            said._add(part, name)
        return said

    def _add(self, part: Any, name: str) -> None:
        kind = part.get("type") if isinstance(part, Mapping) else "text"
        match kind:
            case "thinking" | "reasoning" if isinstance(text := part.get(kind, part.get("text")), str):
                self.reasoning += text
            case "tool_use":
                call = {"name": part.get("name"), "arguments": part.get("input")}
                self.calls += _calls({"tool_calls": [call]}, name)
            case "tool_result":
                result = _Content.of(part.get("content", ""), name)
                self.results.append(result.text)
                self.num_media += result.num_media
            case "refusal" if isinstance(part.get("refusal"), str):
                self.text += part["refusal"]
            case _:
                text = part.get("text") if isinstance(part, Mapping) else part
                if isinstance(text, list) and all(isinstance(item, str) for item in text):
                    text = "".join(text)
                if isinstance(text, str):
                    self.text += text
                elif not isinstance(part, Mapping) or kind == "text":
                    reason = f"{name} has a part that holds {_kind(text)}, expected a text"
                    raise _BrokenError(Problem("num_text_not_string", reason))
                else:
                    self.text += _placeholder(part)
                    self.num_media += 1


def _placeholder(part: Mapping[str, Any]) -> str:
    """Return the placeholder for a part that is not text, by its type (`image_url`) or its fields."""
    named = f"{part.get('type')} {' '.join(map(str, part))}".lower()
    return f"<{next((kind for kind in _MEDIA if kind in named), 'part')}>"


def _calls(entry: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the calls of tools in the form of OpenAI's API; their names, arguments and ids are as in the record."""
    if _FIELDS_OF_CALLS.isdisjoint(entry):
        return []
    calls = _parsed(entry.get("tool_calls")) or (
        [{"function": entry["function_call"]}] if entry.get("function_call") else []
    )
    if not isinstance(calls, list):
        raise _broken(f"tool_calls of {name} are {_kind(calls)}, expected a list")
    in_form: list[dict[str, Any]] = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _broken(f"{name} has a tool call without a name")
        # In the order of the record, in which templates may show them.
        named = {field: value for field, value in function.items() if field in ("name", "arguments")}
        try:
            values = json.loads(json.dumps(named, ensure_ascii=False))
        except (TypeError, ValueError, RecursionError):
            raise _broken(f"{name} has a tool call whose arguments JSON cannot hold") from None
        marks = {field: call[field] for field in ("id", "type") if isinstance(call.get(field), str)}
        values = values if "arguments" in values else {**values, "arguments": None}
        in_form.append({"type": "function", **marks, "function": values})
    return in_form


def _called(value: Any, name: str) -> list[dict[str, Any]]:
    """Return the calls in the content of a speaker who only calls tools; empty if the content is another text."""
    calls = value if isinstance(value, list) else [value]
    if not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        return []
    return _calls({"tool_calls": calls}, name)


def _broken(what: str) -> _BrokenError:
    return _BrokenError(Problem("num_broken_records", what))


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _known_fields() -> str:
    return ", ".join([*CHAT_LISTS, *(f"{question} and {answered}" for question, answered in QUESTION_PAIRS)])
