r"""Expand the TeX macros that a text defines.

The text is read from beginning to end, as in TeX: the last definition before a use is valid. The body of a macro is
read again because it may contain macros. The arguments of the last macro in a body may follow the use in the text.
Therefore the texts that are being read form a stack of frames. Copying the rest of the text for each use would take
quadratic time.

A definition stays valid after the end of its group (`{...}`), unlike in TeX. Macros stay as they are if they compute
(with `\if` and similar commands), have delimited parameters, are recursive, or are defined by `\let`.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from functools import cached_property
from typing import NamedTuple

_COMMAND = re.compile(r"\\(?:(?:long|global|protected|outer)\s*\\)*([a-zA-Z]+|[^a-zA-Z])", re.DOTALL)
_NEW = re.compile(r"\*?\s*(?:\{\s*\\([a-zA-Z]+)\s*\}|\\([a-zA-Z]+)(?![a-zA-Z@]))\s*(?:\[\s*([0-9])\s*\])?")
_DEF = re.compile(r"\s*\\([a-zA-Z]+)(?![a-zA-Z@])((?:#[0-9])*)\s*(?=\{)")
_NAMED = re.compile(r"\*?\s*(?:\{\s*\\([a-zA-Z]+)|\\([a-zA-Z]+))")
_DEFINING = {
    **dict.fromkeys(("newcommand", "renewcommand", "providecommand", "DeclareRobustCommand"), _NEW),
    "DeclareMathOperator": _NEW,
    **dict.fromkeys(("def", "gdef", "edef", "xdef"), _DEF),
    "let": None,  # only the former meaning is removed
}
# Commands of a document's structure stay, even if the author has redefined them.
_STRUCTURE = {
    *("begin", "end", "part", "chapter", "section", "subsection", "subsubsection", "paragraph", "appendix", "item"),
    *("maketitle", "abstract", "caption", "label", "ref", "cite", "bibliography", "input", "include", "par", "relax"),
    *("documentclass", "documentstyle", "usepackage"),
    *_DEFINING,
}
_COMPUTES = re.compile(
    r"\\(?:[a-zA-Z]*@|(?:if(?!f(?![a-zA-Z]))[a-zA-Z]*|else|fi|csname|expandafter|futurelet|noexpand|catcode|loop|the"
    r"|advance|begingroup|endgroup)(?![a-zA-Z]))"
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BRACKET = re.compile(r"\\.|[{\]]", re.DOTALL)
_PARAMETER = re.compile(r"#(#|[0-9])")
_SPACE = re.compile(r"[ \t]*(?:\n(?![ \t]*\n)[ \t]*)?")
_LINE_END = re.compile(r"[ \t]*\n")
_XSPACE = re.compile(r"\\xspace(?![a-zA-Z])(?:\{\})?")
_ENDS_IN_COMMAND = re.compile(r"\\[a-zA-Z]+\Z")
_MOST_LEVELS = 10
_MOST_COMMANDS = 300
_LONGEST_OPTION = 300


class _Macro(NamedTuple):
    num_parameters: int
    default: str | None  # default of the first parameter, if it is an option in brackets
    body: str
    commands: frozenset[str]  # the commands in the body


class _Frame:
    """A text that is being read: the document, the body of a macro, or an argument."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    @cached_property
    def closing(self) -> dict[int, int]:
        """Opening brace -> closing brace, by position."""
        opened: list[int] = []
        pairs = {}
        for match in _BRACE.finditer(self.text):
            if match[0] == "{":
                opened.append(match.start())
            elif match[0] == "}" and opened:
                pairs[opened.pop()] = match.start()
        return pairs

    def skip_space(self) -> str:
        """Skip space and return the next character; an empty text at the end of the text or paragraph."""
        self.position = _SPACE.match(self.text, self.position).end()  # type: ignore[union-attr]
        return self.text[self.position : self.position + 1].strip("\n")

    def argument(self) -> slice | None:
        """Read an argument: a group in braces, a command or a character. Return None if there is no argument."""
        start, mark = self.position, self.skip_space()
        if mark == "{":
            end = self.closing.get(self.position)
            if end is not None:
                argument = slice(self.position + 1, end)
                self.position = end + 1
                return argument
        elif mark == "\\" and (match := _COMMAND.match(self.text, self.position)):
            self.position = match.end()
            return slice(match.start(), match.end())
        elif mark not in ("", "}", "\0"):
            self.position += 1
            return slice(self.position - 1, self.position)
        self.position = start
        return None

    def option(self) -> str | None:
        """Read the content of square brackets. Return None if there are no brackets."""
        start = self.position
        if self.skip_space() == "[":
            place = first = self.position + 1
            last = self.text.rfind("]", first, first + _LONGEST_OPTION) + 1
            while match := _BRACKET.search(self.text, place, last):
                if match[0] == "]":
                    self.position = match.end()
                    return self.text[first : match.start()]
                place = self.closing.get(match.start(), len(self.text)) + 1 if match[0] == "{" else match.end()
        self.position = start
        return None


def expand_macros(text: str) -> tuple[str, Counter[str]]:
    r"""Expand macros and remove their definitions.

    Returns:
        The text and counts: `macros` (expanded uses), `macros_left` (uses that stay because arguments are missing or
        the text would become too long), and `recursive_macros` (recursive definitions, which stay).

    Example:
        >>> expand_macros(r"\newcommand{\norm}[1]{\lVert #1 \rVert}\def\R{\mathbb{R}} $\norm{x} \in \R$")
        (' $\\lVert x \\rVert \\in \\mathbb{R}$', Counter({'macros': 2}))
    """
    if not any(f"\\{name}" in text for name in _DEFINING):
        return text, Counter()
    expansion = _Expansion(len(text))
    return expansion.of(text), expansion.counts


class _Expansion:
    """The known macros, and the remaining budget for the expansion of a text of `length` characters.

    The expansion may add at most four times the length of the text. Definitions within definitions are read again, and
    so are the commands of every macro on which a definition depends: together at most 20 times the length of the text.
    A constant is added to both limits, for short texts.
    """

    def __init__(self, length: int) -> None:
        self.counts = Counter[str]()
        self._left = 4 * length + 20_000
        self._left_to_define = 20 * length + 1_000_000
        self._macros: dict[str, _Macro] = {}  # no macro is recursive

    def of(self, text: str, level: int = 0) -> str:
        """The text without definitions and with all macros expanded."""
        parts: list[str] = []
        frames = [_Frame(text)]
        while frames:
            frame = frames[-1]
            match = self._next(frame)
            if match is None:
                _append(parts, frame.text[frame.position :])
                frames.pop()
                continue
            _append(parts, frame.text[frame.position : match.start()])
            name, frame.position = match[1], match.end()
            if name in _DEFINING:
                if not self._define(frame, name):
                    parts.append(match[0])
                elif (not parts or parts[-1].endswith("\n")) and (end := _LINE_END.match(frame.text, frame.position)):
                    frame.position = end.end()  # the line contained only the definition
                continue
            body = self._body(frames, name, level)
            if body is None:
                self.counts["macros_left"] += 1
                _append(parts, match[0])
            else:
                self.counts["macros"] += 1
                frames.append(_Frame(body))
        return "".join(parts)

    def _next(self, frame: _Frame) -> re.Match | None:
        """The next command that is a known macro or a definition."""
        for match in _COMMAND.finditer(frame.text, frame.position):
            if match[1] in self._macros or match[1] in _DEFINING:
                return match
        return None

    def _body(self, frames: list[_Frame], name: str, level: int) -> str | None:
        """The body of a macro with the arguments that follow its use; None if the macro stays in the text as it is."""
        if level > _MOST_LEVELS or self._left < 0:
            return None
        macro = self._macros[name]
        while len(frames) > 1 and frames[-1].position == len(frames[-1].text):
            frames.pop()  # the arguments may follow the use of the macro whose body ends here
        frame, arguments, places = frames[-1], list[str](), list[slice]()
        start = frame.position
        if macro.num_parameters and macro.default is not None:
            option = frame.option()
            arguments.append(macro.default if option is None else option)
        for _ in range(macro.num_parameters - len(arguments)):
            place = frame.argument()
            if place is None:
                frame.position = start
                return None
            places.append(place)
        if not macro.num_parameters and frame.text.startswith("{}", frame.position):
            frame.position += 2
        arguments += [frame.text[place] for place in places]
        arguments = [self.of(argument, level + 1) if "\\" in argument else argument for argument in arguments]
        uses = [macro.body.count(f"#{number}") for number in range(1, len(arguments) + 1)]
        self._left -= len(macro.body) + sum(map(operator.mul, uses, map(len, arguments))) + 1
        if self._left < 0:
            frame.position = start
            return None
        return _filled(macro.body, arguments) if "#" in macro.body else macro.body

    def _define(self, frame: _Frame, by: str) -> bool:
        """Read a definition. Return False if its macro cannot be expanded: the definition then stays in the text."""
        start = frame.position
        pattern = _DEFINING[by]
        match = pattern and pattern.match(frame.text, start)
        named = match or _NAMED.match(frame.text, start)
        if named is None:
            return False
        name = named[1] or named[2]
        macro = self._macros.pop(name, None)
        if match is None:
            return False
        frame.position = match.end()
        default = None
        if pattern is _DEF:
            num_parameters = match[2].count("#")
        else:
            num_parameters = int(match[3] or 0)
            default = frame.option() if num_parameters else None
        place = frame.argument()
        body = frame.text[place] if place is not None else ""
        self._left_to_define -= len(body)
        if place is None or self._left_to_define < 0 or _COMPUTES.search(body):
            frame.position = start
            return False
        if by == "DeclareMathOperator":
            star = "*" if frame.text.startswith("*", start) else ""
            body = f"\\operatorname{star}{{{body}}}"
        if by == "providecommand" and macro is not None:
            self._macros[name] = macro
            return True
        body = _XSPACE.sub("", body)
        commands = frozenset(_COMMAND.findall(body))
        if not self._learn(name, _Macro(num_parameters, default, body, commands)):
            frame.position = start
            return False
        return True

    def _learn(self, name: str, macro: _Macro) -> bool:
        """Store a macro; False if it is recursive, or depends on an unusually large number of macros."""
        waiting, seen = list(macro.commands), set(macro.commands)
        while waiting and name not in seen and len(seen) < _MOST_COMMANDS:
            further = self._macros.get(waiting.pop())
            if further is not None:
                self._left_to_define -= len(further.commands)
                new = further.commands - seen
                seen |= new
                waiting += new
        if name in seen or name in _STRUCTURE or len(seen) >= _MOST_COMMANDS:
            self.counts["recursive_macros"] += name in seen
            return False
        self._macros[name] = macro
        return True


def _filled(body: str, arguments: list[str]) -> str:
    """The body of a macro with its arguments inserted."""
    parts: list[str] = []
    last = 0
    for match in _PARAMETER.finditer(body):
        _append(parts, body[last : match.start()])
        name = match[1]
        if name == "#":
            _append(parts, "#")
        elif 0 < int(name) <= len(arguments):
            _append(parts, arguments[int(name) - 1])
        last = match.end()
    _append(parts, body[last:])
    return "".join(parts)


def _append(parts: list[str], part: str) -> None:
    """Append a part. A space goes before it if its first letter would otherwise belong to the command before it."""
    if part:
        if parts and part[0].isalpha() and _ENDS_IN_COMMAND.search(parts[-1][-40:]):
            part = f" {part}"
        parts.append(part)
