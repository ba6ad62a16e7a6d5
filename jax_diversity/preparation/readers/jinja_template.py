"""Chat templates in Jinja, as the files of tokenizers contain them, in a sandbox.

The text of a chat is what the template gives for its turns. To find the turns in this text, the template is compiled
with a mark at the beginning of each pass of a loop over the turns. The text is made a second time from contents with
marks around them. If both texts are equal without the marks, the marks give the places of contents.

Without `{% generation %}` blocks, an answer begins after the text that the template writes for a generation
(`add_generation_prompt`), and ends with the text of its turn, without white space.

A template is a program of unknown origin. The sandbox allows no private attributes, no files, and no changes of
values. Loops, numbers and texts are limited, so that a template cannot run for ever or fill the memory.
"""

from __future__ import annotations

import datetime
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.attempts import DocumentError
from jax_diversity.foundation.errors import UserError, in_one_line, shortened
from jax_diversity.preparation.readers.turns import REASONING, Rendered, Turn, TurnSpan

JINJA = ("qwen-2.5", "qwen-3", "mistral", "deepseek", "gemma", "llama-3.1")
"""The built-in templates that are written in Jinja."""
_FOLDER = Path(__file__).parent / "chat_templates"
_TURN, _PASSED, _OPEN, _CLOSE, _BEGIN, _FINISH = (chr(0xFDD0 + number) for number in range(6))
"""Marks: begin and end of a turn, of a content, of an answer. Unicode reserves these characters for programs."""
_MARKS = re.compile(f"{_TURN}(\\d+);|[{_PASSED}{_OPEN}{_CLOSE}{_BEGIN}{_FINISH}]")
_MOST_STEPS = 2_000_000
_MOST_CHARACTERS = 2**25
_MOST_BYTES = 2**20
_LARGEST = 2**20
_NAMES = ("jd_turn", "jd_step", "jd_join")
_DATE = datetime.datetime(2024, 7, 26, tzinfo=datetime.UTC)
"""The date that templates print: the text of a chat must not depend on the day of the build."""
_JINJA_FILES = (".jinja", ".jinja2")
_CONFIG = "tokenizer_config.json"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def jinja_template(name: str) -> JinjaTemplate | None:
    """Load a built-in template, a `.jinja` file, or the template of a tokenizer's folder; None for other names.

    Raises:
        UserError: the file cannot be read, its template is not valid, or it writes a special token without a value.
    """
    if name in JINJA:
        return JinjaTemplate((_FOLDER / f"{name}.jinja").read_text("utf-8"), {}, name)
    if (folder := template_folder(name)) is None:
        return None
    path = Path(name)
    try:
        config = _config(folder)
        source = _read(path) if path.suffix in _JINJA_FILES and not path.is_dir() else _template_of(folder, config)
    except (OSError, ValueError) as error:
        raise UserError(f"Expected a chat template at {name}, found: {in_one_line(error)}.") from None
    tokens = _special_tokens(config)
    template = JinjaTemplate(source, {token: text for token, text in tokens.items() if text is not None}, name)
    if absent := sorted(_written_tokens(source) - tokens.keys()):
        place = folder / _CONFIG
        advice = (
            f"add a line such as {json.dumps(absent[0])}: ... to {place}, with null if the model has no such token"
            if place.exists()
            else f"put the template beside the {_CONFIG} of its model, or name the model's folder"
        )
        raise UserError(
            f"Expected a text for {' and '.join(absent)}, which the chat template {name} writes, in {place}, found "
            f"none; {advice}."
        )
    return template


def template_folder(name: str) -> Path | None:
    """Return the folder whose tokenizer has a template; None if it is neither a folder nor a file in Jinja."""
    path = Path(name)
    if name in JINJA or not (path.is_dir() or path.name == _CONFIG or path.suffix in _JINJA_FILES):
        return None
    return path if path.is_dir() else path.parent


def _read(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES} bytes")
    return content.decode("utf-8-sig")


def _config(folder: Path) -> dict[str, Any]:
    """Return the configuration of the tokenizer in a folder; empty without one."""
    file = folder / _CONFIG
    if not file.exists():
        return {}
    content = file.read_bytes()
    if len(content) > 64 * _MOST_BYTES:  # it may list every added token
        raise ValueError(f"{file.name} has more than {64 * _MOST_BYTES} bytes")
    config = json.loads(content.decode("utf-8-sig"))
    if not isinstance(config, dict):
        raise ValueError(f"{file.name} is not an object")
    return config


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the special tokens that a configuration names; None for a token that it sets to null."""
    tokens = {name: config[name] for name in _SPECIAL if name in config}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: text for name, text in texts.items() if text is None or isinstance(text, str)}


def _template_of(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the template of a tokenizer's folder."""
    if (file := folder / "chat_template.jinja").exists():
        return _read(file)
    template = config.get("chat_template")
    if isinstance(template, list):  # several templates with names
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise ValueError(
            f"no chat_template in {_CONFIG} and no {file.name}; name a built-in template or a file in its place"
        )
    return template


def _written_tokens(source: str) -> frozenset[str]:
    """Return the special tokens that a template writes, or joins to a text, without asking whether they have a value.

    Jinja writes nothing for a name without a value, or refuses the chat.
    """
    from jinja2 import nodes

    tree = _environment().parse(source)
    written = set[str]()

    def of_value(node: Any, asked: frozenset[str]) -> None:
        match node:
            case nodes.Name():
                written.update({node.name} - asked)
            case nodes.Add() | nodes.Concat():
                for part in node.iter_child_nodes():
                    of_value(part, asked)
            case nodes.Or() | nodes.And():
                of_value(node.right, asked | tested(node.left))
            case nodes.CondExpr():
                for part in filter(None, (node.expr1, node.expr2)):
                    of_value(part, asked | tested(node.test))
            case nodes.Filter() if node.name not in ("default", "d") or not isinstance(node.node, nodes.Name):
                of_value(node.node, asked)

    def visit(node: Any, asked: frozenset[str]) -> None:
        match node:
            case nodes.Output():
                for part in node.nodes:
                    of_value(part, asked)
            case nodes.Assign():
                of_value(node.node, asked)
            case nodes.If():
                asked |= tested(node.test)
        for child in node.iter_child_nodes():
            visit(child, asked)

    def tested(node: Any) -> frozenset[str]:
        return frozenset(name.name for name in _names(node))

    visit(tree, frozenset())
    set_here = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    return frozenset(written & {*_SPECIAL} - set_here)


@dataclass(frozen=True)
class JinjaTemplate:
    """A chat template in Jinja; `jinja_template` loads it.

    Attributes:
        source: the template.
        special: special tokens by name, such as `bos_token`, which the template may write.
        name: its name in messages.
    """

    source: str
    special: Mapping[str, str]
    name: str

    def __post_init__(self) -> None:
        probe = [Turn("user", "a"), Turn("assistant", "b")]
        try:
            self._render(_messages(probe, lambda text: text), {})
        except _LimitError as error:
            raise UserError(f"Expected a chat template that ends, found {error} in {self.name}.") from None
        except DocumentError:  # a template may refuse the chat
            pass

    @property
    def identity(self) -> str:
        """A hash of the template, for fingerprints."""
        return fingerprint(self.source, dict(self.special), 2)

    @cached_property
    def _compiled(self) -> tuple[Any, frozenset[str]]:
        """The template with marks, and the names of the values that it uses."""
        from jinja2 import TemplateError, meta

        environment = _environment()
        try:
            tree = environment.parse(self.source)
            if any(True for _ in meta.find_referenced_templates(tree)):
                raise UserError(f"Expected a chat template without other files, found one that includes {self.name}.")
            names = frozenset(meta.find_undeclared_variables(tree))
            _mark(tree)
            return environment.from_string(tree), names
        except (TemplateError, RecursionError) as error:
            reason = in_one_line(error)
            raise UserError(f"Expected a chat template in Jinja at {self.name}, found: {reason}.") from None

    @cached_property
    def _prompt(self) -> str:
        """The text before an answer that the template writes for a generation; empty if it writes none."""
        messages = _messages([Turn("user", "a")], lambda text: text)
        try:
            without, with_prompt = (
                _plain(self._render(messages, {"add_generation_prompt": adds_prompt})) for adds_prompt in (False, True)
            )
        except DocumentError:
            return ""
        return with_prompt[len(without) :] if with_prompt.startswith(without) else ""

    def hidden(self, turns: Sequence[Turn], extras: Mapping[str, Any], text: str) -> list[str]:
        """Return what the text does not show of a record: the names of `extras`, reasoning, tool calls, contents."""
        names = self._compiled[1]
        hidden = [name for name in extras if name not in names]
        for name, parts in (
            ("reasoning", [turn.reasoning for turn in turns]),
            ("tool calls", [call["function"]["name"] for turn in turns for call in turn.calls]),
            ("contents", [turn.content for turn in turns]),
        ):
            hidden += [name] * any(part.strip() not in text for part in parts)
        return sorted(hidden)

    def render(self, turns: Sequence[Turn], extras: Mapping[str, Any] | None = None) -> Rendered:
        """Return the text of turns, and the place of each turn in this text.

        Args:
            turns: the turns.
            extras: the tools and documents of the record.

        Raises:
            DocumentError: the template refuses the chat, or a limit was reached.
        """
        fields = dict(extras or {})
        plain = self._render(_messages(turns, lambda text: text), fields)
        text = _plain(plain)
        if _has_marks(turns):  # then the places of turns are not certain
            return Rendered(text, None, [(0, len(text))])
        marked = plain
        try:
            with_contents = self._render(_messages(turns, _marked), fields)
            marked = with_contents if _plain(with_contents) == text else plain
        except DocumentError:  # the template refuses contents with marks
            pass
        return Rendered(text, *_places(marked, text, turns, self._prompt))

    def _render(self, messages: list[dict[str, Any]], values: Mapping[str, Any]) -> str:
        from jinja2 import TemplateError

        index = {id(message): number for number, message in enumerate(messages)}
        steps = 0

        def turn(value: Any) -> str:
            number = value if isinstance(value, int) and 0 <= value < len(messages) else index.get(id(value))
            return "" if number is None else f"{_TURN}{number};"

        def step() -> None:
            nonlocal steps
            steps += 1
            if steps > _MOST_STEPS:
                raise _LimitError(f"more than {_MOST_STEPS:,} passes of its loops and calls of its macros")

        context = {"messages": messages, "add_generation_prompt": False, "tools": None, "documents": None}
        context |= {**self.special, **values, **dict(zip(_NAMES, (turn, step, _joined), strict=True))}
        parts, size = list[str](), 0
        try:
            for part in self._compiled[0].generate(context):
                parts.append(part)
                size += len(part)
                _check_size(size)
        except UserError:
            raise
        except _LimitError:
            raise
        except (TemplateError, RecursionError, MemoryError, OverflowError) as error:
            raise DocumentError(f"the template refuses the chat: {shortened(in_one_line(error))}") from None
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            raise DocumentError(f"the template fails with {type(error).__name__}") from None
        return "".join(parts)


class _LimitError(DocumentError):
    """A template reached a limit."""


def _messages(turns: Sequence[Turn], mark: Callable[[str], str]) -> list[dict[str, Any]]:
    """Return the turns as transformers gives them to templates; `mark` converts every text of a speaker."""
    messages = []
    for turn in turns:
        message: dict[str, Any] = {"role": turn.role, **turn.labels}
        if turn.has_content:
            message["content"] = mark(turn.content)
        if turn.reasoning:
            message |= dict.fromkeys(REASONING, mark(turn.reasoning))
        if turn.calls:
            message["tool_calls"] = [
                {
                    **call,
                    "function": {**call["function"], "arguments": _values(call["function"]["arguments"], mark)},
                }
                for call in turn.calls
            ]
        messages.append(message)
    return messages


def _values(value: Any, mark: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, Mapping):
        return {key: _values(entry, mark) for key, entry in value.items()}
    return [_values(entry, mark) for entry in value] if isinstance(value, list) else value


def _marked(text: str) -> str:
    """Put marks around a text, within its white space, which templates may remove."""
    core = text.strip()
    begin = text.find(core)
    return f"{text[:begin]}{_OPEN}{core}{_CLOSE}{text[begin + len(core) :]}" if core else text


def _has_marks(turns: Sequence[Turn]) -> bool:
    texts = (text for turn in turns for text in (turn.content, turn.reasoning, json.dumps(turn.calls, default=str)))
    return any(_MARKS.search(text) for text in texts)


def _plain(marked: str) -> str:
    return _MARKS.sub("", marked)


def _places(
    marked: str, text: str, turns: Sequence[Turn], prompt: str
) -> tuple[list[TurnSpan] | None, list[tuple[int, int]]]:
    """Return the places of turns and contents from a text with marks."""
    begins, contents, answers = list[tuple[int, int]](), list[tuple[int, int]](), list[list[int]]()
    removed, opened, closed = 0, -1, 0
    for mark in _MARKS.finditer(marked):
        place = mark.start() - removed
        removed += len(mark.group())
        match mark.group()[0]:
            case c if c == _TURN:
                begins.append((int(mark.group(1)), place))
            case c if c == _PASSED:
                if begins and begins[-1][1] == place:  # a pass without text
                    begins.pop()
            case c if c == _OPEN:
                opened = place
            case c if c == _CLOSE:
                # A template may leave out the beginning of a content, such as its reasoning.
                start = opened if opened >= 0 else max(closed, begins[-1][1] if begins else 0)
                contents.append((start, place))
                opened, closed = -1, place
            case c if c == _BEGIN:
                answers.append([place, place])
            case c if c == _FINISH and answers:
                answers[-1][1] = place
    numbers = [number for number, _ in begins]
    if not begins or numbers != sorted(set(numbers)):
        return None, []
    if numbers[0] == 0 or not text[: begins[0][1]].strip():
        begins[0] = (numbers[0], 0)
    else:  # the template writes the first turns before its loop
        begins.insert(0, (0, 0))
    stop_of = {
        number: (start, stop)
        for (number, start), stop in zip(begins, [*(start for _, start in begins[1:]), len(text)], strict=True)
    }
    spans, following = list[TurnSpan](), len(text)
    of_contents, of_answers = ([first for first, _ in places] for places in (contents, answers))
    for number in reversed(range(len(turns))):  # a turn without text begins where the next turn begins
        begin, stop = stop_of.get(number, (following, following))
        following = begin
        start, end, gaps = begin, begin, list[tuple[int, int]]()
        if number in stop_of and answers:
            if blocks := _within(answers, of_answers, begin, stop):
                start, end = blocks[0][0], blocks[-1][1]
                gaps = [(before[1], after[0]) for before, after in pairwise(blocks) if before[1] < after[0]]
        elif number in stop_of:
            start, end = _answer(text, begin, stop, prompt, _within(contents, of_contents, begin, stop))
        spans.append(TurnSpan(begin, start, end, end, gaps))
    return spans[::-1], [span for span in contents if span[0] < span[1]]


def _within(places: Sequence[Sequence[int]], firsts: Sequence[int], begin: int, stop: int) -> list[Sequence[int]]:
    """Return the places of a turn; `firsts` are their beginnings, ascending."""
    of_turn = places[bisect_left(firsts, begin) : bisect_right(firsts, stop)]
    return [place for place in of_turn if place[1] <= stop]


def _answer(text: str, begin: int, stop: int, prompt: str, contents: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return where the answer begins and ends in a turn with these contents: the tokens that a model has to write."""
    start = begin + sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, text[begin:stop], strict=False))
    )
    start = min([start, *(first for first, _ in contents)])
    return start, max(start, begin + len(text[begin:stop].rstrip()))


def _mark(tree: Any) -> None:
    """Add marks to loops over turns, count the passes of loops and the calls of macros, and limit joined texts."""
    from jinja2 import nodes

    def call(name: str, *arguments: Any) -> Any:
        return nodes.Call(nodes.Name(name, "load"), list(arguments), [], None, None)

    of_turns = {"messages"}
    while True:  # names of values that are made from the turns
        assigned = {
            name.name
            for assignment in tree.find_all(nodes.Assign)
            if any(used.name in of_turns for used in _names(assignment.node))
            for name in _names(assignment.target)
        }
        if assigned <= of_turns:
            break
        of_turns |= assigned

    def visit(node: Any, inside: bool) -> None:
        for child in node.iter_child_nodes():
            visit(child, inside or is_of_turns(node))
        if isinstance(node, nodes.For):
            if is_of_turns(node) and not inside:
                node.body.insert(0, nodes.Output([call(_NAMES[0], nodes.Name(_target(node), "load"))]))
                node.body.append(nodes.Output([nodes.TemplateData(_PASSED)]))
                end_passes(node)
            node.body.insert(0, nodes.ExprStmt(call(_NAMES[1])))
            if node.recursive:
                raise UserError("Expected a chat template without recursive loops, found one.")
        elif isinstance(node, nodes.Macro):  # it may call itself
            node.body.insert(0, nodes.ExprStmt(call(_NAMES[1])))

    def end_passes(node: Any) -> None:
        """Add the mark of the end of a pass before the statements that end it, without those of inner loops."""
        for _, value in node.iter_fields():
            if not isinstance(value, list):
                continue
            for place, child in reversed([*enumerate(value)]):
                if isinstance(child, nodes.Continue | nodes.Break):
                    value.insert(place, nodes.Output([nodes.TemplateData(_PASSED)]))
                elif isinstance(child, nodes.Node) and not isinstance(child, nodes.For):
                    end_passes(child)

    def is_of_turns(node: Any) -> bool:
        if not isinstance(node, nodes.For) or not isinstance(node.target, nodes.Name):
            return False
        return any(name.name in of_turns for name in _names(node.iter))

    if any(name.name == "self" for name in tree.find_all(nodes.Name)):
        raise UserError("Expected a chat template whose blocks do not call one another, found the name `self`.")
    visit(tree, False)
    for node in [tree, *tree.find_all(nodes.Node)]:
        for field, value in node.iter_fields():
            if isinstance(value, nodes.Concat):
                setattr(node, field, call(_NAMES[2], *value.nodes))
            elif isinstance(value, list):
                value[:] = [call(_NAMES[2], *node.nodes) if isinstance(node, nodes.Concat) else node for node in value]


def _target(loop: Any) -> str:
    return loop.target.name


def _names(node: Any) -> Iterator[Any]:
    from jinja2 import nodes

    if isinstance(node, nodes.Name):
        yield node
    yield from node.find_all(nodes.Name)


def _joined(*values: Any) -> str:
    return _concatenated([*map(str, values)])


def _concatenated(texts: Any) -> str:
    parts, size = list[str](), 0
    for text in texts:
        parts.append(text)
        size += len(text)
        _check_size(size)
    return "".join(parts)


def _check_size(size: float) -> None:
    if size > _MOST_CHARACTERS:
        raise _LimitError(f"a text of more than {_MOST_CHARACTERS:,} characters")


def _limited(name: str, function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Call a method or a filter of texts, unless its result may be too large."""
    values = [*arguments, *named.values()]
    for value in values:
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise _LimitError(f"a number above {_LARGEST:,}")
    texts = [value for value in values if isinstance(value, str)]
    match name:
        case "replace" if len(texts) == 3:
            _check_size(len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]))
        case "join":
            _check_size(
                max([0, *map(len, texts)]) * max([0, *(len(value) for value in values if hasattr(value, "__len__"))])
            )
        case "format" | "format_map":
            _check_format(values[0], values[1:])
        case "indent":
            _check_size(
                (1 + str(values[0]).count("\n"))
                * max(len(str(value)) if isinstance(value, str) else value or 4 for value in [4, *values[1:]])
            )
    result = function(*arguments, **named)
    if isinstance(result, str):
        _check_size(len(result))
    return result


def _check_format(text: Any, values: Any) -> None:
    if re.search(r"\d{5}|\*", str(text)):
        raise _LimitError("a format with a large width")
    sizes = [len(str(value)) for value in (values if isinstance(values, list | tuple) else [values])]
    _check_size(len(str(text)) * max([1, *sizes]))


def _environment() -> Any:
    """Make the sandbox, with the filters and functions that chat templates expect."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block `{% generation %}`, which marks the answers."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

        def marked(self, caller: Callable[[], str]) -> str:
            return f"{_BEGIN}{caller()}{_FINISH}"

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["+", "*", "**", "%"])
        concat = staticmethod(_concatenated)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            whole = isinstance(left, int) and isinstance(right, int)
            if operator == "**" or (whole and max(left.bit_length(), right.bit_length()) > 64):
                raise _LimitError("a power or a number of more than 64 bits")
            if operator == "*" and not whole:
                sizes = [operand if isinstance(operand, int | float) else len(operand) for operand in (left, right)]
                _check_size(max(sizes[0], 0) * max(sizes[1], 0))
            if operator == "%" and isinstance(left, str):
                _check_format(left, right)
            if operator == "+" and isinstance(left, str | list) and isinstance(right, str | list):
                _check_size(len(left) + len(right))
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
            of_text = getattr(function, "__self__", None)
            if not isinstance(of_text, str):
                return super().call(context, function, *arguments, **named)
            name = function.__name__

            def method(_: str, *values: Any, **by_name: Any) -> Any:
                return super(Sandbox, self).call(context, function, *values, **by_name)

            return _limited(name, method, [of_text, *arguments], named)

    def limited(name: str, function: Any) -> Any:
        passes = getattr(function, "jinja_pass_arg", None) is not None

        def checked(*arguments: Any, **named: Any) -> Any:
            first = arguments[:passes]
            return _limited(
                name, lambda *rest, **by_name: function(*first, *rest, **by_name), arguments[passes:], named
            )

        checked.__dict__.update(getattr(function, "__dict__", {}))  # whether the filter takes the environment
        return checked

    def tojson(value: Any, indent: Any = None, separators: Any = None, sort_keys: bool = False, **_: Any) -> str:
        if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 100):
            raise TemplateError("expected an indent of tojson of 0 to 100")
        return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)

    def refuse(message: str) -> None:
        raise TemplateError(str(message))

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters = {name: limited(name, function) for name, function in environment.filters.items()}
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": refuse, "strftime_now": _DATE.strftime}
    for name in ("lipsum", "cycler", "joiner"):
        environment.globals.pop(name, None)
    return environment
