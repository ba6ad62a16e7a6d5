"""Parse the words of a command: argparse divides them into options, and they are read as a file of settings is.

The options of a command are the fields of a tree of dataclasses. A word after an option becomes a plain value, as YAML
gives it. The values that the user gave replace those of the defaults, and `settings_from_plain` makes and checks the
settings. So a file and the command line have the same names, types and checks.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.methods import Methods
from jax_diversity.foundation.settings import BASE, parse_yaml, plain_values, settings_from_plain
from jax_diversity.foundation.signatures import argument_texts, field_texts

_Options = TypeVar("_Options")
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", type(None): "None"}
_TYPES = {int: "INT", float: "FLOAT", str: "TEXT", type(None): "None"}
PROGRAM = "jax-diversity"
_FROM_FILE = "settings"
"""The name of a function's parameter whose settings may be in a file."""
_CONFIG = "A YAML file with settings; options on the command line override it."
SHORT = {
    "--corpus": "--corpus.paths",
    "--objective": "--objective.base",
    "--recipe": "--preparation.recipe",
    "--tokenizer": "--tokenizer.path",
}
"""Short names of options that are not the end of the option's name, or that messages use."""
_MEANT = {"--batch-size": "--windows", "--dataset": "--out"}
"""Options of other commands, or words of users -> the option with the same meaning in a command that lacks them."""


class Option(NamedTuple):
    """An option: its name, and the type, default and meaning of its setting."""

    name: str
    kind: Any
    default: Any
    meaning: str

    @property
    def negative(self) -> str:
        """The option that switches this one off, such as `--corpus.no-strict`."""
        section, dot, name = self.name.removeprefix("--").rpartition(".")
        return f"--{section}{dot}no-{name}"


class Signature:
    """The options of a function: its keywords, and the fields of the settings that it takes by position.

    Attributes:
        function: the function.
        parts: parameter -> the default of its settings.
        default: an instance of a dataclass with all options.
    """

    def __init__(self, function: Callable[..., None], settings: Mapping[type, Any] = MappingProxyType({})) -> None:
        """Read the parameters of a function; `settings` are defaults in place of those of the signature, by type."""
        self.function = function
        inner = getattr(function, "func", function)
        hints, texts, self.parts = typing.get_type_hints(inner), argument_texts(inner), dict[str, Any]()
        fields: dict[str, tuple[Any, Any, dict[str, Any]]] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            kind, is_missing = hints[name], parameter.default is parameter.empty
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                value = settings.get(kind) or (kind() if is_missing else parameter.default)
                self.parts[name] = value
                of_kind, texts_of_kind = typing.get_type_hints(kind), field_texts(kind)
                for setting in dataclasses.fields(value):
                    metadata = {"text": texts_of_kind.get(setting.name, ""), "default": setting.default}
                    fields[setting.name] = (of_kind[setting.name], getattr(value, setting.name), metadata)
                if name == _FROM_FILE:
                    fields["config"] = (str | None, None, {"text": _CONFIG})
            else:
                is_place = parameter.kind is parameter.POSITIONAL_ONLY
                default = kind() if is_missing else parameter.default
                fields[name] = (kind, default, {"text": texts.get(name, ""), "is_place": is_place})
        options_class: Any = dataclasses.make_dataclass(
            "Options",
            [
                # A default of the settings stays one: `with_given` leaves it to the settings, if nobody gave a value.
                (name, kind, dataclasses.field(default=metadata.pop("default", dataclasses.MISSING), metadata=metadata))
                for name, (kind, _, metadata) in fields.items()
            ],
            frozen=True,
            kw_only=True,
        )
        self.default = options_class(**{name: value for name, (_, value, _) in fields.items()})

    def call(self, options: Any) -> None:
        """Call the function with options, which are an instance of the class of `default`."""
        values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
        if _FROM_FILE in self.parts:
            del values["config"]
        parts = {}
        for name, settings in self.parts.items():
            parts[name] = type(settings)(
                **{setting.name: values.pop(setting.name) for setting in dataclasses.fields(settings)}
            )
        # A list, because Python would read a generator only after the keywords.
        places = [values.pop(field.name) for field in dataclasses.fields(options) if field.metadata.get("is_place")]
        self.function(*places, **parts, **values)


def list_options(settings: Any, prefix: str = "", *, expands: bool = False) -> Iterator[Option]:
    """Every option of a tree of settings; `prefix` is the section of the settings, such as `packing.`.

    A list of dataclasses is one option, in YAML. With `expands`, there are also the options of every entry, such as
    `--orders.0.seed`.
    """
    kinds = typing.get_type_hints(type(settings))
    texts = {
        setting.name: setting.metadata["text"] for setting in dataclasses.fields(settings) if "text" in setting.metadata
    }
    texts = texts or field_texts(type(settings))
    if bases := getattr(settings, "BASES", ()):
        yield Option(f"--{prefix}{BASE}", typing.cast(Any, Literal)[bases] | None, None, texts["BASES"])
    for setting in dataclasses.fields(settings):
        value, name = getattr(settings, setting.name), f"{prefix}{setting.name}".replace("_", "-")
        if dataclasses.is_dataclass(value):
            yield from list_options(value, f"{name}.", expands=expands)
            continue
        is_place = setting.metadata.get("is_place", False)
        yield Option(name.upper() if is_place else f"--{name}", kinds[setting.name], value, texts.get(setting.name, ""))
        if expands and _lists_settings(kinds[setting.name]):
            for index, part in enumerate(value):
                yield from list_options(part, f"{name}.{index}.", expands=True)


def parse_options(default: _Options, verb: str, arguments: Sequence[str]) -> _Options:
    """The options of a command: `default` with the values that the words give.

    Raises:
        UserError: an unknown option, or a value that is not allowed.
    """
    return with_given(default, given_options(default, verb, arguments))


def with_given(default: _Options, given: Mapping[str, Any]) -> _Options:
    """Replace the defaults of options by the plain values that the user gave, by the options' names."""
    plain = _with_lists(plain_values(default, kept={_path(name)[0] for name in given}))
    # A list is set before its entries, and a base before the values that differ from it.
    for name in sorted(given, key=lambda name: (name.count("."), not name.endswith(f".{BASE}"))):
        *sections, last = _path(name)
        if last == BASE:
            *sections, last = sections
            value: Any = {BASE: given[name]}
        else:
            value = given[name]
        place = plain
        for part in sections:
            if isinstance(place, list) and int(part) >= len(place):
                raise UserError(f"Expected {name} only with an entry {part} of the list, found {len(place)} entries.")
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        place[last] = value
    return settings_from_plain(type(default), plain)


def _path(name: str) -> list[str]:
    """The sections and the setting of an option."""
    return name.removeprefix("--").replace("-", "_").lower().split(".")


def _with_lists(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _with_lists(value) for key, value in plain.items()}
    return [*map(_with_lists, plain)] if isinstance(plain, tuple) else plain


def given_options(default: Any, verb: str, arguments: Sequence[str], program: str = PROGRAM) -> dict[str, Any]:
    """The plain values that the words of a command give, by the names of the options."""
    options = {option.name: option for option in list_options(default, expands=True)}
    places = [option for name, option in options.items() if not name.startswith("--")]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name, option in options.items():
        if option.kind is bool:
            parser.add_argument(name, dest=name, action="append_const", const="True")
            parser.add_argument(option.negative, dest=name, action="append_const", const="False")
        elif option not in places:
            parser.add_argument(name, dest=name, action="append", nargs="*" if _takes_many(option.kind) else "?")
    parsed, rest = parser.parse_known_args(with_full_names(arguments, options))
    given: dict[str, Any] = {}
    values = dict(vars(parsed))
    while rest and places and not rest[0].startswith("-"):
        place, taken = places.pop(0), [rest.pop(0)]
        while _takes_many(place.kind) and rest and not rest[0].startswith("-"):
            taken.append(rest.pop(0))
        values[place.name] = [taken]
    advice = f"`{program} {verb} --help` lists all options."
    if rest:
        raise UserError(f"`{program} {verb}` has no {_unknown(verb, rest, options)} {advice}")
    for name, times in values.items():
        option = options[name]
        # The last value counts, so that a command is changed at its end; of several values the others would be lost.
        if len(times) > 1 and _takes_many(option.kind):
            short = {full: short for short, full in SHORT.items()}.get(name, name)
            raise UserError(
                f"Expected {short} once, found it {len(times)} times; write all values after one {short}. {advice}"
            )
        words = times[-1] if isinstance(times[-1], list) else [] if times[-1] is None else [times[-1]]
        try:
            value = _plain(option.kind, words)
        except (ValueError, UserError):
            raise UserError(f"{_wrong_value(option, words)} {advice}") from None
        given[name] = value
    return given


def _plain(kind: Any, words: Sequence[str]) -> Any:
    """The value of some words, as YAML would give it; a `ValueError` if they do not fit the type."""
    kinds = _alternatives(kind)
    origins = {typing.get_origin(alternative) for alternative in kinds}
    is_yaml = len(words) == 1 and words[0].lstrip().startswith(("{", "["))
    if _needs_yaml(kind) or (is_yaml and {tuple, dict} <= origins):
        if len(words) != 1:
            raise ValueError(kind)
        value = parse_yaml(words[0])
        settings_from_plain(kind, value)
        return value
    for alternative in kinds:
        of = typing.get_args(alternative)
        with suppress(ValueError):  # a list of numbers, or else pairs
            if typing.get_origin(alternative) is tuple:
                return [_scalar(of[0], word) for word in words]
            if typing.get_origin(alternative) is dict:
                return {name: _scalar(of[1], word) for name, word in zip(words[::2], words[1::2], strict=True)}
    if len(words) != 1:
        raise ValueError(kind)
    return _scalar(kind, words[0])


def _scalar(kind: Any, word: str) -> Any:
    """A word as the first type that fits; a `ValueError` if none does."""
    kinds = _alternatives(kind)
    for alternative in kinds:
        for value in typing.get_args(alternative) if typing.get_origin(alternative) is Literal else ():
            if str(value) == word:
                return value
    if type(None) in kinds and word == "None":
        return None
    if bool in kinds and word in ("True", "False"):
        return word == "True"
    for alternative in (int, float):
        if alternative in kinds:
            with suppress(ValueError):
                return alternative(word)
    if str in kinds:
        return word
    raise ValueError(word)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _lists_settings(kind: Any) -> bool:
    """Whether settings are a list of dataclasses."""
    return typing.get_origin(kind) is tuple and dataclasses.is_dataclass(typing.get_args(kind)[0])


def _needs_yaml(kind: Any) -> bool:
    """Whether words cannot express settings: a list of dataclasses, or mappings within mappings."""
    is_nested = typing.get_origin(kind) is dict and typing.get_origin(typing.get_args(kind)[1]) is tuple
    return is_nested or _lists_settings(kind)


def _takes_many(kind: Any) -> bool:
    """Whether an option takes several values."""
    return bool({tuple, dict} & {typing.get_origin(alternative) for alternative in _alternatives(kind)})


def _wrong_value(option: Option, words: Sequence[str]) -> str:
    name, text = option.name, " ".join(words)
    if not text:
        return f"Expected a value after {name}, found nothing;"
    near = difflib.get_close_matches(text, map(str, typing.get_args(option.kind)), n=1)
    return (
        f"Expected {_in_words(option.kind)} after {name}, found {text}{f'; did you mean {near[0]}?' if near else ';'}"
    )


def _in_words(kind: Any) -> str:
    """A description of the values that an option of a type accepts."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if _lists_settings(kind):
        return "a list in YAML"
    if origin is dict:
        return "names and values in YAML" if _needs_yaml(kind) else "pairs of a name and its value"
    if origin is tuple:
        return f"values that are each {_in_words(parts[0])}"
    if origin is Literal:
        words = [*map(str, parts)]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    kinds = [part for part in parts if part is not Any and not dataclasses.is_dataclass(part)]
    return " or ".join(_in_words(part) for part in kinds) if parts else _WORDS[kind]


def _unknown(verb: str, words: Sequence[str], options: Collection[str]) -> str:
    """The first unknown argument of a command, and the option that was probably meant."""
    option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
    if option is not None:
        names = [*_short_names(options), *options]
        near = [name for name in names if option.strip("-") and name.startswith(option)]
        near += [name for name in names if _MEANT.get(option) == name]
        near += difflib.get_close_matches(option.replace("_", "-"), names, n=1, cutoff=0.7)
        near += [name for name in names if _begins(option, name)]
        return f"option {option}; did you mean {near[0]}?" if near else f"option {option};"
    meant = "--corpus.paths" if verb in ("build", "prepare") else "--out"
    hint = f" did you mean {meant} {words[0]}?" if Path(words[0]).exists() else ""
    return f"argument {words[0]};{hint}"


def _begins(option: str, full_name: str) -> bool:
    """Return whether every word of an option begins a word of a known option, as --seq-len and --sequence-length."""
    written, full = (re.split("[-_]", name.strip("-").rpartition(".")[2]) for name in (option, full_name))
    return len(written) == len(full) and all(there.startswith(here) for here, there in zip(written, full, strict=True))


def _short_names(options: Collection[str]) -> dict[str, str]:
    """The short names of options: the end of a name that no other option has, and the names in `SHORT`."""
    ends: dict[str, list[str]] = {}
    for name in options:
        ends.setdefault(f"--{name.rpartition('.')[2]}", []).append(name)
    unique = {end: names[0] for end, names in ends.items() if len(names) == 1 and "." in names[0]}
    return {short: full for short, full in (unique | SHORT).items() if full in options and short not in options}


def with_full_names(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """Replace the short names of options by their full names, and `_` in names by `-`."""
    short, words = _short_names(options), []
    for word in arguments:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        words.append(f"{short.get(name, name)}{equals}{value}")
    return words


def as_typed(sentence: str, names: Collection[str]) -> str:
    """Return a sentence in which settings, such as corpus.text_field, have the names of their options `names`."""
    short = {full: name for name, full in SHORT.items()}

    def typed(match: re.Match[str]) -> str:
        option = f"--{match[0].replace('_', '-')}"
        return short.get(option, option) if option in names else match[0]

    return re.sub(r"(?<![\w.-])[a-z]+\.[a-z_]+\b(?!\.\w|[(/])", typed, sentence)


# ---- Help.


def help_text(default: Any, verb: str, text: str, *, hidden: Collection[str] = (), program: str = PROGRAM) -> str:
    """The help of a command with all its options, by section; `hidden` are sections that are left out."""
    sections: dict[str, list[str]] = {}
    for option in list_options(default):
        *section, last = _path(option.name)
        if (section or [last])[0] not in hidden:
            sections.setdefault(".".join(section), []).extend(_option_lines(option, " ".join(option.meaning.split())))
    lines = [f"usage: {program} {verb} [options]", "", text]
    for section, entry in sections.items():
        lines += ["", f"{section or 'options'}:", *entry]
    return "\n".join(lines)


def short_help(default: Any, verb: str, text: str, shown: Collection[str], program: str = PROGRAM) -> str:
    """The help of a command that shows only the options `shown`, each with one sentence."""
    options = {option.name: option for option in list_options(default)}
    lines = [f"usage: {program} {verb} [options]", "", textwrap.fill(text, width=80), ""]
    for name in (f"--{name}" for name in shown):
        if name in options:
            lines += _option_lines(options[name], _first_sentence(options[name].meaning), shows_type=False)
    return "\n".join([*lines, "", f"`{program} {verb} --help-all` shows all {len(options)} options."])


def _option_lines(option: Option, meaning: str, *, shows_type: bool = True) -> list[str]:
    value = " ".join(map(str, option.default)) if isinstance(option.default, tuple) else str(option.default)
    if _lists_settings(option.kind):
        value = " ".join(method.file_name for method in option.default)
    default = f"  (default: {value})" if option.default not in (None, (), {}, "") and option.kind is not bool else ""
    shows_type = shows_type and option.kind is not bool and option.name.startswith("--")
    kind = f" {type_of(option.kind)}" if shows_type else ""
    other = "".join(f", {short}" for short, full in SHORT.items() if full == option.name)
    if option.default is True:
        other, default = f", {option.negative}", "  (default: on)"
    head = f"{option.name}{other}{kind}{default}"
    return [
        *textwrap.wrap(head, width=80, initial_indent=2 * " ", subsequent_indent=8 * " ", break_on_hyphens=False),
        *textwrap.wrap(meaning, width=78, initial_indent=6 * " ", subsequent_indent=6 * " "),
    ]


def type_of(kind: Any) -> str:
    """The type of an option's values, as help texts show it."""
    if _needs_yaml(kind):
        return "YAML"
    shown = []
    for alternative in _alternatives(kind):
        origin, parts = typing.get_origin(alternative), typing.get_args(alternative)
        if origin is Literal:
            shown.append("|".join(map(str, parts)))
        elif origin is tuple:
            shown.append(f"{type_of(parts[0])} ...")
        elif origin is dict:
            shown.append("NAME VALUE ..." if alternative is kind else "YAML")
        elif alternative in _TYPES:
            shown.append(_TYPES[alternative])
    return "|".join(choice for choice in shown if choice != "None")


def _first_sentence(text: str) -> str:
    """The beginning of a text up to the end of its first sentence."""
    return re.split(r"(?<=[.])\s+(?=[A-Z`])", " ".join(text.split()), maxsplit=1)[0]


def methods_text(module: str) -> str:
    """The end of a help text: every method of a table, its options with their defaults, and its first sentence.

    Orderings from the literature, which serve as comparisons, have a heading of their own.
    """
    methods: Methods = import_module(f"jax_diversity.{module}").METHODS
    compared = {name for name, module in methods.items() if module.startswith("literature.")}
    lines = ["\n\nMethods, and their options with the defaults:"]
    for name in sorted(methods, key=lambda name: (name in compared, name)):
        if compared and name == min(compared):
            lines.append("\nMethods of the literature, for comparison:")
        sentence, options = methods.describe(name)
        example = " ".join(f"{option} {(default or '(needed)').strip(chr(39))}" for option, default in options.items())
        head = f"{name}{f'  ({example})' if example else ''}"
        lines += textwrap.wrap(head, width=80, initial_indent=2 * " ", subsequent_indent=8 * " ")
        lines += textwrap.wrap(sentence, width=78, initial_indent=6 * " ", subsequent_indent=6 * " ")
    return "\n".join(lines)
