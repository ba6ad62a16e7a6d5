"""The verbs' options: typed, parsed with tyro, with help that reads as plain sentences and mistakes told in one."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import inspect
import io
import itertools
import os
import re
import sys
import textwrap
import typing
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from jax_diversity.export.settings import ExportConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.lab.settings import TrainConfig
from jax_diversity.ordering.settings import OrderConfig

_Options = TypeVar("_Options")
_WORDS = {"INT": ("a whole number", "whole numbers"), "FLOAT": ("a number", "numbers"), "STR": ("a text", "texts")}
_DECORATION = re.compile(r"\x1b\[[0-9;]*m|[│┃╭╮╰╯]")


@dataclass(frozen=True)
class OrderOptions:
    """One more ordering of a built dataset."""

    order: OrderConfig = field(default_factory=OrderConfig)
    out: str = "out"
    """The dataset's folder."""
    quiet: bool = False
    """Show no progress."""


@dataclass(frozen=True)
class MeasureOptions:
    """Which orderings to measure, and how to show it."""

    out: str = "out"
    """The dataset's folder."""
    orderings: tuple[str, ...] = ()
    """Names of the dataset's orderings, or .npy files; all of the dataset's where none is given."""
    order: tuple[str, ...] = ()
    """Orderings of your own to measure beside them: .npy files of sequence indices."""
    windows: tuple[int, ...] = ()
    """Window sizes in sequences, such as your batch size; where none is given, those that the dataset was built
    with and that fit twice into it."""
    profile: bool = False
    """Also draw the deviation over window sizes: 1, 2, 4 ... up to all sequences."""
    relative_to: str | None = None
    """The name of an ordering: print every number as its ratio to that ordering's."""
    json: bool = False
    """Print JSON for machines: the figures and curves of the orderings that were asked for."""
    markdown: bool = False
    """Print the tables in Markdown, without curves."""
    quiet: bool = False
    """Show no progress."""


@dataclass(frozen=True)
class InspectOptions:
    """Which batch to look into, or which document to look for."""

    out: str = "out"
    """The dataset's folder."""
    ordering: str = "balance"
    """The ordering that training follows, or a .npy file of sequence indices."""
    step: int = 0
    """The step of training, counted from 0 over all epochs."""
    batch_size: int = 64
    """Sequences of a batch, those of all hosts together."""
    rank: int | None = None
    """Show only what this host reads, counted from 0; goes with `num_hosts`."""
    num_hosts: int = 1
    """Hosts that share the batch."""
    document: str | None = None
    """The id of a document: show where training meets it, instead of a batch."""
    rows: int = 10
    """Sequences of the batch that are listed, at most."""
    compare: bool = True
    """Show where the batch stands among all batches of the ordering, which reads the whole dataset's counts."""
    json: bool = False
    """Print JSON for machines, with all sequences of the batch."""


@dataclass(frozen=True)
class ExportOptions(ExportConfig):
    """What to export, for which stack."""

    out: str = "out"
    """The dataset's folder."""
    quiet: bool = False
    """Show no progress."""


@dataclass(frozen=True)
class VerifyOptions:
    """Which dataset to verify."""

    out: str = "out"
    """The dataset's folder."""
    quiet: bool = False
    """Show no progress."""


@dataclass(frozen=True)
class TrainOptions:
    """A training run of the lab."""

    out: str = "out"
    """The dataset's folder."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Model and run."""
    quiet: bool = False
    """Show no progress."""


def parse_options(
    kind: type[_Options],
    verb: str,
    arguments: list[str],
    description: str,
    *,
    default: _Options | None = None,
    flat: bool = False,
    hidden: Collection[str] = (),
) -> _Options:
    """Parse a verb's options; `--help` prints them and ends the process with status 0.

    Args:
        kind: the dataclass that holds them.
        verb: the verb, for the help.
        arguments: what was given.
        description: the sentence at the help's top.
        default: the values of options that are not given.
        flat: leave the sections' names out of the options'.
        hidden: top-level fields that the help leaves out; they are options all the same.

    Raises:
        UserError: an unknown option, or a value that is not what its option takes.
    """
    import tyro

    asks_help = bool({"-h", "--help"} & set(arguments))
    said = io.StringIO()
    # What is no terminal gets no colours.
    shown = io.TextIOWrapper(io.BytesIO(), encoding=sys.stdout.encoding) if os.environ.get("NO_COLOR") else sys.stdout
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown):
            return tyro.cli(
                kind,
                args=arguments,
                prog=f"jax-diversity {verb}",
                default=kind() if default is None else default,
                description=description,
                config=(tyro.conf.OmitArgPrefixes,) if flat else (),
                registry=_registry(kind, hidden) if asks_help else None,
            )
    except SystemExit as ending:
        if ending.code == 2:
            raise UserError(_sentence(said.getvalue(), verb, arguments)) from None
        raise
    finally:
        if sys.exc_info()[0] is None:
            sys.stderr.write(said.getvalue())
        if shown is not sys.stdout:
            shown.seek(0)
            sys.stdout.write(shown.read())


def _sentence(box: str, verb: str, arguments: Sequence[str]) -> str:
    """One sentence of what tyro says of a mistake in a box of several lines, parted by rules."""
    lines = [_DECORATION.sub("", line).strip() for line in box.splitlines()[1:]]
    parts: list[list[str]] = [[]]
    for line in lines:
        if line and not line.strip("─-+"):
            parts.append([])
        elif line:
            parts[-1].append(line)
    parts = [part for part in parts if part] or [[]]  # without a box a rule stands below the title
    message = " ".join(parts[0]) or " ".join(box.split()) or "these options could not be read"
    listed = [line for part in parts[1:] for line in part if line.startswith("--")]
    advice = f"`jax-diversity {verb} --help` lists all options."
    if message.startswith("Unrecognized options:"):
        given = message.partition(":")[2].replace(",", " ").split()
        return f"`jax-diversity {verb}` has no {_unknown(verb, given, listed)} {advice}"
    if missing := re.match(r"Missing value for argument '(\S+?)[='/]", message):
        return f"Expected a value after {missing[1]}, found nothing; {advice}"
    if choice := re.match(r"[Ii]nvalid choice '(.*)' for argument '(\S+)'\. Expected one of \((.*?),?\)", message):
        found, option, known = choice[1], choice[2], choice[3].replace("'", "").split(", ")
        near = difflib.get_close_matches(found, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        return f"Expected {option} to be one of {', '.join(known)}, found {found!r}{hint} {advice}"
    if parsing := re.match(r"Error parsing (--[\w.-]+)", message):
        kind = listed[0].partition(" ")[2] if listed else ""
        found = " ".join(_values_of(parsing[1], arguments)) or "nothing"
        return f"Expected {_in_words(kind)} after {parsing[1]}, found {found}; {advice}"
    return f"{message[:1].upper()}{message[1:].rstrip('.')}; {advice}"


def _unknown(verb: str, given: Sequence[str], listed: Sequence[str]) -> str:
    """What a verb does not know of its arguments, and what was meant by it: an option, or the value of one."""
    option = next((word.partition("=")[0] for word in given if word.startswith("-")), None)
    if option is not None:
        return f"option {option}; did you mean {listed[0].split()[0]}?" if listed else f"option {option};"
    word = given[0] if given else ""
    meant = "--corpus.paths" if verb in ("build", "prepare") else "--out"
    return f"argument {word}; did you mean {meant} {word}?" if Path(word).exists() else f"argument {word};"


def _values_of(option: str, arguments: Sequence[str]) -> list[str]:
    """What was given after an option."""
    for index, argument in enumerate(arguments):
        name, is_joined, value = argument.partition("=")
        if name.replace("_", "-") == option.replace("_", "-"):
            following = itertools.takewhile(lambda word: not word.startswith("--"), arguments[index + 1 :])
            return [value] if is_joined else list(following)
    return []


def _in_words(kind: str) -> str:
    """What an option takes, of how the help writes it: `{None}|INT`, `[INT [INT ...]]`."""
    if kind.startswith("[STR "):
        return "pairs of a name and its value"
    several = kind.startswith("[")
    alternatives = kind.partition(" [")[0].strip("[]").split("|")
    words = [_WORDS.get(word, (word, word))[several] for word in alternatives if word != "{None}"]
    return " or ".join([*words, "None"] if "{None}" in alternatives else words) or "other values"


def _registry(kind: type, hidden: Collection[str]) -> Any:
    """How help is made of dataclasses: paragraphs are joined, whatever the width of the source."""
    import tyro

    registry = tyro.constructors.ConstructorRegistry()

    @registry.struct_rule
    def describe(info: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
        if not dataclasses.is_dataclass(info.type):
            return None
        types = typing.get_type_hints(info.type, include_extras=True)
        texts = _field_texts(info.type)
        default = info.default if isinstance(info.default, info.type) else info.type()
        fields = [
            tyro.constructors.StructFieldSpec(
                name=each.name,
                type=_shown_as(types[each.name], default_value, hides=info.type is kind and each.name in hidden),
                default=default_value,
                helptext=texts.get(each.name),
            )
            for each in dataclasses.fields(info.type)
            for default_value in [getattr(default, each.name)]
        ]
        return tyro.constructors.StructConstructorSpec(instantiate=info.type, fields=tuple(fields))

    return registry


def _shown_as(kind: Any, default: Any, *, hides: bool) -> Any:
    import tyro

    if hides:
        return tyro.conf.Suppress[kind]
    if isinstance(default, tuple | dict) and not default:
        return Annotated[kind, tyro.conf.arg(help_behavior_hint="(default: none)")]
    return kind


def _field_texts(kind: type) -> dict[str, str]:
    """The docstrings behind a dataclass's fields, each as one line."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for declared, text in itertools.pairwise(statements):
            if not (isinstance(declared, ast.AnnAssign) and isinstance(declared.target, ast.Name)):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[declared.target.id] = " ".join(str(text.value.value).split())
    return texts
