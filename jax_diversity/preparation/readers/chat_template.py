"""Chat templates: a template converts the turns of a chat to one text, and gives the place of each turn in it.

A template has a pattern for each role, such as `<|im_start|>user\\n{content}<|im_end|>{end}\\n`. The turn's content
replaces `{content}`. The turn ends at `{end}`, and the text after `{end}` separates this turn from the next. Patterns
are never run as code, and contents are never searched: a turn cannot change how other turns are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jax_diversity.foundation.errors import UserError, did_you_mean, in_one_line
from jax_diversity.preparation.readers.jinja_template import JINJA, JinjaTemplate, jinja_template, template_folder
from jax_diversity.preparation.readers.turns import Rendered, Turn, TurnSpan
from jax_diversity.schema.documents import ANSWERS, ROLES

_CONTENT, _END = "{content}", "{end}"
_MAX_BYTES = 2**20
_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n{{content}}<|eot_id|>"
BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "chatml": {role: f"<|im_start|>{role}\n{{content}}<|im_end|>{{end}}\n" for role in ROLES},
    "llama-3": {role: _HEADER.format("ipython" if role == "tool" else role) for role in ROLES},
    "alpaca": {
        "system": "{content}{end}\n\n",
        "user": "### Instruction:\n{content}{end}\n\n",
        "assistant": "### Response:\n{content}{end}\n\n",
    },
    "plain": {role: f"{role.capitalize()}:\n{{content}}{{end}}\n\n" for role in ROLES},
}


class _Pattern(NamedTuple):
    """The text before a turn's content, the turn's ending, and the text between this turn and the next."""

    before: str
    end: str
    between: str


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template; `load_template` makes it."""

    patterns: Mapping[str, _Pattern]

    @property
    def identity(self) -> str:
        """The patterns as text, for fingerprints."""
        return json.dumps({role: list(pattern) for role, pattern in self.patterns.items()}, sort_keys=True)

    def hidden(self, turns: Sequence[Turn], extras: Mapping[str, Any], text: str) -> list[str]:
        """Return what the text does not show of a record: the names of `extras`, and the reasoning."""
        return sorted([*extras, *["reasoning"] * any(turn.reasoning for turn in turns)])

    def render(self, turns: Sequence[Turn], extras: Mapping[str, Any] | None = None) -> Rendered:
        """Return the text of turns, and the place of each turn in this text.

        A call of a tool is a line of JSON below the content. Patterns do not show reasoning, nor `extras`: the tools
        and documents of a record.

        Raises:
            KeyError: the template has no pattern for a role.

        Example:
            >>> text, spans, _ = load_template("plain").render([Turn("user", "Why?"), Turn("assistant", "So.")])
            >>> text, spans[1]
            ('User:\\nWhy?\\n\\nAssistant:\\nSo.', TurnSpan(begin=12, start=23, stop=26, end=26))
        """
        parts: list[str] = []
        spans: list[TurnSpan] = []
        contents: list[tuple[int, int]] = []
        place, between = 0, ""
        for turn in turns:
            pattern, content = self.patterns[turn.role], turn.content
            if turn.calls:
                content = "\n".join(filter(None, [content, *map(_line, turn.calls)]))
            begin = place + len(between)
            start = begin + len(pattern.before)
            stop = start + len(content)
            place = stop + len(pattern.end)
            spans.append(TurnSpan(begin, start, stop, place))
            contents.append((start, stop))
            parts += (between, pattern.before, content, pattern.end)
            between = pattern.between
        return Rendered("".join(parts), spans, contents)

    def find(self, text: str, roles: Sequence[str]) -> list[TurnSpan] | None:
        """Find the places of the turns with these roles in an edited text. Return None if the places are not certain.

        The places are certain if the template's text between the contents occurs in order, and a search from the left
        and a search from the right find the same places.
        """
        contents = self.find_contents(text, roles)
        if contents is None:
            return None
        spans = [
            TurnSpan(start - len(pattern.before), start, stop, stop + len(pattern.end))
            for pattern, (start, stop) in zip(map(self.patterns.__getitem__, roles), contents, strict=True)
        ]
        return [*spans[:-1], spans[-1]._replace(end=len(text))]

    def find_contents(self, text: str, roles: Sequence[str]) -> list[tuple[int, int]] | None:
        """Return start and stop of the turns' contents, as `find`."""
        marks = [self._marks[pair] for pair in pairwise(roles)]
        before, end = self.patterns[roles[0]].before, self.patterns[roles[-1]].end
        end = end if text.endswith(end) else end.rstrip()  # steps remove spaces at the end of a text
        first, last = len(before), len(text) - len(end)
        if not (text.startswith(before) and text.endswith(end) and first <= last and all(marks)):
            return None
        starts, stops = [first], []
        for mark in marks:
            place = text.find(mark, starts[-1], last)
            if place < 0:
                return None
            stops.append(place)
            starts.append(place + len(mark))
        limit = last
        for mark, place in zip(reversed(marks), reversed(stops), strict=True):
            limit = text.rfind(mark, first, limit)
            if limit != place:
                return None
        return list(zip(starts, [*stops, last], strict=True))

    @cached_property
    def _marks(self) -> dict[tuple[str, str], str]:
        """The template's text between the contents of two turns, by their roles."""
        return {
            (first, second): one.end + one.between + other.before
            for first, one in self.patterns.items()
            for second, other in self.patterns.items()
        }


def _line(call: Mapping[str, Any]) -> str:
    """Return a call as a line of JSON; arguments that are a text of JSON become an object in it."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    with suppress(ValueError, RecursionError):
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def load_template(name: str) -> ChatTemplate | JinjaTemplate:
    """Load a template.

    Args:
        name: a built-in template, a YAML or JSON file with a pattern for every role, a `.jinja` file, or the folder of
            a tokenizer with a chat template.

    Raises:
        UserError: `name` is none of these, or the file does not contain a template.
    """
    if name in BUILT_IN:
        return ChatTemplate({role: _pattern(text) for role, text in BUILT_IN[name].items()})
    template = jinja_template(name)
    return ChatTemplate(dict(_patterns_of_file(Path(name)))) if template is None else template


def model_folder(name: str) -> Path | None:
    """Return the folder of the model that a template belongs to; None for built-in templates and patterns."""
    return None if name in BUILT_IN else template_folder(name)


def _patterns_of_file(path: Path) -> Iterator[tuple[str, _Pattern]]:
    from jax_diversity.foundation.settings import parse_yaml

    choices = f"one of {', '.join([*BUILT_IN, *JINJA])}, a file, or the folder of a tokenizer"
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UserError(f"Expected a template of at most {_MAX_BYTES} bytes at {path}, found a longer file.")
        patterns = parse_yaml(content.decode("utf-8-sig"))
    except FileNotFoundError:
        beside = map(str, sorted(path.parent.glob("*")))
        raise UserError(
            f"Expected corpus.chat_template to be {choices}, found {str(path)!r}, where there is no file or "
            f"folder{did_you_mean(str(path), [*BUILT_IN, *JINJA, *beside])}"
        ) from None
    except (OSError, ValueError) as error:  # a path with a zero byte, a file that is not UTF-8
        if isinstance(error, UserError):
            raise
        reason = getattr(error, "strerror", None) or in_one_line(error)
        raise UserError(f"Expected corpus.chat_template to be {choices}, found {str(path)!r}: {reason}.") from None
    if not isinstance(patterns, dict) or ANSWERS not in patterns:
        raise UserError(
            f"Expected a pattern for each role, {ANSWERS!r} among them, in the template {path}, found none; write a "
            'line such as `user: "User: {content}{end}\\n"` for each.'
        )
    for role, text in patterns.items():
        if role not in ROLES:
            raise UserError(f"Expected the roles {', '.join(ROLES)} in the template {path}, found {role!r}.")
        if (
            not isinstance(text, str)
            or text.count(_CONTENT) != 1
            or text.count(_END) > 1
            or _END in text.split(_CONTENT)[0]
        ):
            raise UserError(
                f"Expected {_CONTENT} once in the pattern of {role!r} in {path}, and {_END} at most once and after it, "
                f"found {text!r}."
            )
        yield role, _pattern(text)


def _pattern(text: str) -> _Pattern:
    before, _, after = text.partition(_CONTENT)
    end, _, between = after.partition(_END)
    return _Pattern(before, end, between)
