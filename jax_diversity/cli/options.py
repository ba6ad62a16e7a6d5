"""The options of the commands: typed dataclasses that tyro fills from the command line; an error is one sentence."""

from __future__ import annotations

import dataclasses
import difflib
import io
import itertools
import json
import re
import sys
import textwrap
import typing
from collections import Counter
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, TypeVar

from jax_diversity.export.settings import ExportConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.settings import parse_yaml, settings_from_plain
from jax_diversity.foundation.signatures import field_texts
from jax_diversity.foundation.terminal import show
from jax_diversity.lab.settings import TrainConfig
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.execution import ExecutionConfig
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.run.settings import ScheduleConfig

_Options = TypeVar("_Options")
_Part = TypeVar("_Part")
POSITIONAL = {"positional": True}
"""A marker for a field that is given without its name."""
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", type(None): "None"}


@dataclass(frozen=True)
class FromFile:
    """The options of commands whose settings can be in a file."""

    config: str | None = None
    """A YAML file with settings; options on the command line override it."""
    quiet: bool = False
    """Show no progress."""

    @property
    def settings(self) -> Any:
        """The settings: a `BuildConfig` or a `ScheduleConfig`."""
        (kind,) = {BuildConfig, ScheduleConfig} & set(type(self).__mro__)
        return part_of(self, kind)


@dataclass(frozen=True)
class BuildOptions(FromFile, ExecutionConfig, BuildConfig):
    """A whole build."""

    open: bool = False
    """Show the report in the browser."""
    all: bool = False
    """Print every measure of every ordering at every window size."""


@dataclass(frozen=True)
class StageOptions(FromFile, ExecutionConfig, BuildConfig):
    """One stage of a build."""


@dataclass(frozen=True)
class PrepareOptions(StageOptions):
    """The options of the first stage, which also has a dry run."""

    dry_run: bool = False
    """Show what the steps would keep, and write nothing."""
    sample: int | None = None
    """In a dry run: approximate number of documents to read, from all files; None means all documents."""


@dataclass(frozen=True)
class ReportOptions(StageOptions):
    """The options of the report page of a dataset or of a run."""

    open: bool = False
    """Show the page in the browser."""
    version: int | None = None
    """Of a run: its version; None means the last."""
    families: tuple[str, ...] = ()
    """For a run: families to measure; by default all families that the datasets balance."""
    target: str | None = None
    """For a run: the folder for report.html and report.json; None means the run's folder."""


@dataclass(frozen=True)
class VerifyOptions:
    """The dataset to verify; all commands that work on a finished dataset have these options."""

    out: str = "out"
    """The dataset's folder."""
    quiet: bool = False
    """Show no progress."""


@dataclass(frozen=True)
class OrderOptions(VerifyOptions, OrderConfig):
    """The options for adding an ordering to a built dataset."""

    all: bool = False
    """Print every measure of every ordering at every window size."""

    @property
    def order(self) -> OrderConfig:
        """The ordering's settings."""
        return part_of(self, OrderConfig)


@dataclass(frozen=True)
class RepackOptions(VerifyOptions):
    """The options for packing a dataset's documents again, into another dataset."""

    to: str = "repacked"
    """The new dataset's folder."""
    seed: int = 1
    """Seed of the packing."""
    sequence_length: int | None = None
    """L, the length of the new sequences; None means the length of the dataset's sequences."""


@dataclass(frozen=True)
class SampleOptions(VerifyOptions):
    """How many sequences or documents to choose, or a precision whose number to compute."""

    n: int | None = None
    """The number to choose."""
    share: float | None = None
    """The share to choose, above 0 and below 1."""
    of: Literal["sequences", "documents"] | None = None
    """What to choose; None means sequences of a dataset, and documents if `--out` is a Parquet file of documents."""
    values: str | None = None
    """Your own numbers, such as losses of an earlier model, that the sample also balances: a .npy file with one number
    for each of all, or a .npz file with several arrays by name."""
    num_samples: int = 1
    """Number of samples; no two have a common sequence."""
    to: str | None = None
    """The file to write: NAME.npz (the sample), NAME.npy (only its positions) or NAME.parquet (the documents, or the
    sequences' tokens). With several samples the names get numbers."""
    seed: int = 0
    """Other seeds give other samples."""
    precision: float | None = None
    """Choose nothing; say how many sequences the mean loss ± this number (95 % interval) needs, from `--losses`."""
    losses: str | None = None
    """With `--precision`: a .npy file of pilot losses, one for each of all, or for each of `--pilot`."""
    pilot: str | None = None
    """With `--precision`: the sample (.npz) that the pilot losses belong to."""


@dataclass(frozen=True)
class ScheduleOptions(FromFile, ScheduleConfig):
    """The options of a stored run. The command makes it, changes it, or only shows it if no change is given."""

    seen: int | None = None
    """Also write the documents that training has read before this position."""
    out: str = "seen.parquet"
    """The file that `--seen` writes."""


@dataclass(frozen=True)
class MeasureOptions(VerifyOptions):
    """The orderings to measure, and the form of the output."""

    orderings: tuple[str, ...] = ()
    """Names of the dataset's orderings, or .npy files; default: all orderings of the dataset."""
    order: tuple[str, ...] = ()
    """Your own orderings, which are also measured: .npy files of sequence indices."""
    windows: tuple[int, ...] = ()
    """Window sizes in sequences, such as your batch size; default: the sizes that the dataset was built with, except
    sizes of which fewer than two windows fit into the dataset."""
    families: tuple[str, ...] = ()
    """Families to measure; each stored family is allowed; default: the families that the dataset balances. The norm
    drift is measured in the first family."""
    version: int | None = None
    """The version of a run; None means the last."""
    targets: str | None = None
    """An ordering (name or .npy file) that was made with targets: also compare every window with these targets."""
    all: bool = False
    """Print every measure, by family and window size, and the curves."""
    curves: bool = False
    """Also draw every ordering along training."""
    profile: bool = False
    """Also list the deviation at the window sizes 1, 2, 4 ... up to all sequences."""
    relative_to: str | None = None
    """The name of an ordering: print every number as a ratio to this ordering's number."""
    json: bool = False
    """Print the values and curves as JSON."""
    markdown: bool = False
    """Print the tables in Markdown, without curves."""


@dataclass(frozen=True)
class InspectOptions:
    """The batch to show, or the document to find."""

    out: str = "out"
    """The folder of a dataset, or of a run."""
    ordering: str | None = None
    """The ordering that training follows, or a .npy file of sequence indices; None means `balance`."""
    version: int | None = None
    """The version of a run; None means the last."""
    step: int = 0
    """The step of training, counted from 0 over all epochs."""
    batch_size: int | None = None
    """Number of sequences in a batch over all hosts; None means the batch size of the dataset, or 64 (or all sequences,
    if there are fewer)."""
    rank: int | None = None
    """Show only the rows that this host reads; hosts are counted from 0. This needs `num_hosts`."""
    num_hosts: int = 1
    """Number of hosts that share the batch."""
    document: str | None = None
    """The id of a document: show where training reads it, instead of a batch."""
    rows: int = 10
    """The largest number of listed sequences."""
    compare: bool = True
    """Show the batch's rank among all batches of the ordering. This reads the counts of the whole dataset."""
    json: bool = False
    """Print JSON, with all sequences of the batch."""


@dataclass(frozen=True)
class ExportOptions(VerifyOptions, ExportConfig):
    """The run to export, and the stack that will read it."""

    version: int | None = None
    """The version of a run; None means the last."""


@dataclass(frozen=True)
class TrainOptions(VerifyOptions):
    """The options of a training run of the lab."""

    version: int | None = None
    """Of a run: its version; None means the last."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Model, length and learning rate."""


@dataclass(frozen=True)
class LabOptions:
    """The experiment, and the folder of its rows."""

    file: str = field(default="", metadata=POSITIONAL)
    """The experiment's file, such as configs/experiments/orders.yaml."""
    out: str = "lab"
    """Folder of all experiments: rows are in OUT/NAME/results.parquet, datasets in OUT/datasets."""
    size: Literal["tiny", "mini", "small", "gpu"] | None = None
    """Size of all models (230 thousand, 2, 10 and 161 million parameters); None means the size in the file."""


@dataclass(frozen=True)
class LabShowOptions(LabOptions):
    """The options for showing the results of an experiment."""

    page: str | None = None
    """Write the experiment's page (Markdown) and figures (SVG) into this folder."""


@dataclass(frozen=True)
class LabRunOptions(LabOptions):
    """The options for doing the runs of an experiment."""

    data: str = "."
    """The folder to which the paths of corpora and tasks are relative."""
    processes: int = 0
    """Number of parallel runs, each on one core; 0 means the number of cores, or 1 on an accelerator."""
    arms: tuple[str, ...] = ()
    """Run only these arms."""
    runs: int | None = None
    """Largest number of runs to do now."""
    quiet: bool = False
    """Show no progress."""


@dataclass(frozen=True)
class LabExplainOptions(VerifyOptions):
    """The options for explaining the gradients of a model."""

    checkpoint: str | None = None
    """A checkpoint's folder, such as out/training/balance/checkpoints/200, or the folder of a training run. None means
    the last checkpoint of the dataset's training runs."""
    sequences: int = 4096
    """Number of training sequences whose gradients are explained."""
    batch_size: int | None = None
    """Number of sequences in a batch of training. None means the batch size of the dataset's build, or 256."""
    picture: str | None = None
    """Write the picture (SVG) to this file."""


SHOWN = (
    "corpus.paths",
    "out",
    "batch-size",
    "packing.sequence-length",
    "tokenizer.path",
    "tokenizer.vocab-size",
    "corpus.format",
    "corpus.text-field",
    "corpus.source-field",
    "corpus.language-field",
    "corpus.documents-begin",
    "corpus.keep-markup",
    "corpus.max-bytes",
    "preparation.recipe",
    "tokenizer.kind",
    "cluster.num-clusters",
    "packing.method",
    "packing.validation-fraction",
    "characteristics.families",
    "features-from",
    "windows",
    "shard",
    "config",
    "quiet",
    "open",
    "all",
)
"""The settings that the help of `build` and `demo` shows, in the order of their use; `--help-all` shows all."""

ALIASES = {
    "--corpus": "--corpus.paths",
    "--sequence-length": "--packing.sequence-length",
    "--tokenizer": "--tokenizer.path",
    "--vocab-size": "--tokenizer.vocab-size",
    "--keep-markup": "--corpus.keep-markup",
    "--recipe": "--preparation.recipe",
}
"""Short names of settings, in the commands that have the setting and no option of the short name."""
_MEANT = {"--batch-size": "--windows"}
"""Options of other commands -> the option with the same meaning in a command that lacks them."""


def with_full_names(arguments: Sequence[str], known: Collection[str]) -> list[str]:
    """Replace the short names of settings by their full names."""
    found = []
    for word in arguments:
        name, equals, value = word.partition("=")
        full = ALIASES.get(name.replace("_", "-"), "")
        found.append(f"{full}{equals}{value}" if full in known and name not in known else word)
    return found


def short_help(default: Any, verb: str, text: str) -> str:
    """The help of a command that shows the settings in `SHOWN`, at most 80 columns wide."""
    options = {name: (default, meaning) for name, _, default, meaning in list_options(default)}
    short = {full: name for name, full in ALIASES.items()}
    lines = [f"usage: jax-diversity {verb} [options]", "", textwrap.fill(text, width=80), ""]
    for name in (f"--{each}" for each in SHOWN):
        if name not in options:
            continue
        value, meaning = options[name]
        given = "" if value in (None, (), {}) else f"  (default: {_as_words(value)})"
        other = f", {short[name]}" if name in short else ""
        lines.append(f"  {name}{other}{given}")
        lines += textwrap.wrap(_first_sentence(meaning), width=78, initial_indent=6 * " ", subsequent_indent=6 * " ")
    return "\n".join([*lines, "", f"`jax-diversity {verb} --help-all` shows all {len(options)} options."])


def _as_words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _first_sentence(text: str) -> str:
    """The beginning of a text up to the end of its first sentence."""
    return re.split(r"(?<=[.])\s+(?=[A-Z`])", " ".join(text.split()), maxsplit=1)[0]


def part_of(options: Any, kind: type[_Part]) -> _Part:
    """The settings among the options of a command."""
    return kind(**{each.name: getattr(options, each.name) for each in dataclasses.fields(typing.cast(Any, kind))})


def first_options(arguments: Sequence[str], names: Collection[str]) -> dict[str, str | None]:
    """The values of the options that decide the defaults of all other options; the others are parsed afterwards.

    Raises:
        UserError: an option has no value.
    """
    import tyro

    kind = dataclasses.make_dataclass("First", [(name, str | None, None) for name in names])
    try:
        with redirect_stderr(io.StringIO()):
            words = [word for word in arguments if word not in ("-h", "--help")]
            found, _ = tyro.cli(kind, args=words, return_unknown_args=True, add_help=False)
    except SystemExit:
        last = arguments[-1] if arguments else ""
        raise UserError(f"Expected a value after {last}, found nothing.") from None
    return dataclasses.asdict(typing.cast(Any, found))


def parse_options(
    default: _Options,
    verb: str,
    arguments: Sequence[str],
    text: str,
    *,
    hidden: Collection[str] = (),
) -> _Options:
    """Parse a command's options; `--help` prints them and ends the process with status 0; mistakes raise a `UserError`.

    `default` is a dataclass with the options. The help shows `text` above them, and leaves out the top-level
    fields `hidden`.
    """
    import tyro

    known = {option: kind for option, kind, _, _ in list_options(default)}
    arguments = with_full_names(arguments, known)
    asks_help = {"-h", "--help"} & set(arguments)
    call = partial(
        tyro.cli,
        type(default),
        prog=f"jax-diversity {verb}",
        default=default,
        description=text,
        registry=_registry(default, hidden if asks_help else ()),  # tyro does not accept suppressed options
    )
    if asks_help:
        # tyro prints into a buffer: defaults may come from a file with control characters. The buffer's encoding
        # decides which characters tyro uses for the lines of boxes. tyro ends with SystemExit, which leaves this
        # function after the text is printed.
        buffer = io.TextIOWrapper(io.BytesIO(), encoding=sys.stdout.encoding, errors="replace")
        try:
            with redirect_stdout(buffer):
                call(args=["--help"])
        finally:
            buffer.seek(0)
            show(_with_names(buffer.read().rstrip("\n"), default))

    def parse(words: Sequence[str]) -> tuple[_Options, list[str]] | None:
        """The options, and the unknown words; None if the value of an option is not allowed."""
        try:
            with redirect_stderr(io.StringIO()):  # discards the message that tyro draws
                return call(args=words, return_unknown_args=True)
        except SystemExit:
            return None

    # tyro uses the last values of an option. For a single value this is how commands are changed; of an option with
    # several values, the others would be lost in silence.
    given = Counter(word.partition("=")[0].replace("_", "-") for word in arguments)
    if repeated := [option for option, kind in known.items() if given[option] > 1 and _takes_many(kind)]:
        name = {full: short for short, full in ALIASES.items()}.get(repeated[0], repeated[0])
        raise UserError(
            f"Expected {name} once, found it {given[repeated[0]]} times; write all values after one {name}."
        )
    parsed = parse(arguments)
    if parsed is not None and not parsed[1]:
        # tyro checks only types; the values are then checked like those of a settings file.
        return settings_from_plain(type(default), dataclasses.asdict(typing.cast(Any, parsed[0])))
    if parsed is not None:
        mistake = f"`jax-diversity {verb}` has no {_unknown(verb, parsed[1], known)}"
    else:
        # tyro shows errors only as a drawing, so each option is parsed alone to find the one that fails.
        starts = [index for index, word in enumerate(arguments) if word.startswith("--")]
        given = [list(arguments[start:end]) for start, end in itertools.pairwise([*starts, len(arguments)])]
        wrong = next((words for words in given if parse(words) is None), None)
        together = f"Expected options that can be given together, found {' '.join(arguments)};"
        mistake = together if wrong is None else _wrong_value(wrong, known)
    raise UserError(f"{mistake} `jax-diversity {verb} --help` lists all options.")


def list_options(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any, str]]:
    """Every option of a tree of settings: its name, type, default and meaning.

    Fields of `settings` may be dataclasses, or tuples of them; `prefix` is their section, such as `packing.`.
    """
    kinds, texts = typing.get_type_hints(type(settings)), field_texts(type(settings))
    for each in dataclasses.fields(settings):
        held = getattr(settings, each.name)
        parts = {f".{index}": part for index, part in enumerate(held)} if isinstance(held, tuple) else {"": held}
        within = {place: part for place, part in parts.items() if dataclasses.is_dataclass(part)}
        for place, part in within.items():
            yield from list_options(part, f"{prefix}{each.name}{place}.")
        if not within:
            is_positional = each.metadata == POSITIONAL
            name = each.name.upper() if is_positional else f"--{prefix}{each.name}".replace("_", "-")
            yield name, kinds[each.name], held, texts.get(each.name, "")


def _wrong_value(words: Sequence[str], known: dict[str, Any]) -> str:
    option, _, value = words[0].partition("=")
    option, found = option.replace("_", "-"), " ".join([value, *words[1:]]).strip()
    kind = known.get(option, str)
    if not found:
        return f"Expected a value after {option}, found nothing;"
    near = difflib.get_close_matches(found, map(str, typing.get_args(kind)), n=1)
    return f"Expected {_in_words(kind)} after {option}, found {found}{f'; did you mean {near[0]}?' if near else ';'}"


def _in_words(kind: Any) -> str:
    """A description of the values that an option of a type accepts."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        return "names and values in YAML" if _is_nested(kind) else "pairs of a name and its value"
    if _lists_settings(kind):
        return "a list in YAML"
    if origin is tuple:
        return f"values that are each {_in_words(parts[0])}"
    if origin is Literal:
        words = [*map(str, parts)]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    return " or ".join(_in_words(part) for part in parts) if parts else _WORDS[kind]


def _is_nested(kind: Any) -> bool:
    """Whether settings contain mappings within mappings, which pairs of words cannot express."""
    return typing.get_origin(kind) is dict and typing.get_origin(typing.get_args(kind)[1]) is tuple


def _takes_words_or_names(kind: Any) -> bool:
    """Whether settings accept both a list, which words can express, and a mapping, which only YAML can express."""
    return {tuple, dict} <= {typing.get_origin(part) for part in typing.get_args(kind)}


def _takes_many(kind: Any) -> bool:
    """Whether an option takes several values."""
    return bool({tuple, dict} & {typing.get_origin(each) for each in (kind, *typing.get_args(kind))})


def _holds_lists(kind: Any) -> bool:
    """Whether the values of a dict may be both lists and single values."""
    return any(typing.get_origin(each) is tuple for each in typing.get_args(typing.get_args(kind)[1]))


def _as_scalar(word: str) -> int | float | bool | str:
    """A word of the command line, converted to the first type that fits."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return {"True": True, "False": False}.get(word, word)


def _lists_settings(kind: Any) -> bool:
    """Whether settings are a list of dataclasses; an empty list has no options to show."""
    return typing.get_origin(kind) is tuple and dataclasses.is_dataclass(typing.get_args(kind)[0])


def _unknown(verb: str, words: Sequence[str], known: Collection[str]) -> str:
    """The first unknown argument of a command, and the option that was probably meant."""
    option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
    if option is not None:
        short = [name for name, full in ALIASES.items() if full in known]
        near = difflib.get_close_matches(option.replace("_", "-"), [*known, *short], n=1, cutoff=0.7)
        near += [each for each in [*short, *known] if _MEANT.get(option) == each or _begins(option, each)]
        return f"option {option}; did you mean {near[0]}?" if near else f"option {option};"
    meant = "--corpus.paths" if verb in ("build", "prepare") else "--out"
    hint = f" did you mean {meant} {words[0]}?" if Path(words[0]).exists() else ""
    return f"argument {words[0]};{hint}"


def _begins(option: str, known: str) -> bool:
    """Return whether every word of an option begins a word of a known option, as --seq-len and --sequence-length."""
    given, full = (re.split("[-_]", name.strip("-").rpartition(".")[2]) for name in (option, known))
    return len(given) == len(full) and all(there.startswith(here) for here, there in zip(given, full, strict=True))


def as_typed(sentence: str) -> str:
    """Return a sentence in which settings, such as corpus.text_field, have the names of their options."""
    short = {full: name for name, full in ALIASES.items()}
    names = {name.removeprefix("--").replace("-", "_"): name for name, _, _, _ in list_options(BuildConfig())}

    def typed(match: re.Match[str]) -> str:
        option = names.get(match[0])
        return match[0] if option is None else short.get(option, option)

    return re.sub(r"(?<![\w.-])[a-z]+\.[a-z_]+\b(?!\.\w|[(/])", typed, sentence)


def _with_names(text: str, default: Any) -> str:
    """A help text whose boxes on orderings say which ordering they are about, instead of `orders.0 options`."""

    def named(match: re.Match[str]) -> str:
        order = default.orders[int(match["number"])]
        title = f"orders.{match['number']}{match['part']}: the ordering {order.file_name} "
        # The line below the title becomes shorter by what the title gets longer.
        longer = max(len(title) - len(match["title"]), 0)
        return f"{title}{match['line'][longer:]}"

    return re.sub(r"(?P<title>orders\.(?P<number>\d+)(?P<part>[.\w]*) options )(?P<line>[^\w\n]*)", named, text)


def _registry(default: Any, hidden: Collection[str]) -> Any:
    """The rules for reading dataclasses with tyro: a field of pairs is one option; the lines of texts are joined."""
    import tyro

    registry = tyro.constructors.ConstructorRegistry()

    def as_yaml(kind: Any) -> Any:
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="YAML",
            instance_from_str=lambda words: settings_from_plain(kind, parse_yaml(words[0])),
            is_instance=lambda value: True,
            str_from_instance=lambda value: [json.dumps(value)],
        )

    def as_words_or_yaml(kind: Any) -> Any:
        def read(words: Sequence[str]) -> Any:
            is_yaml = len(words) == 1 and words[0].startswith(("{", "["))
            return settings_from_plain(kind, parse_yaml(words[0]) if is_yaml else [_as_scalar(word) for word in words])

        return tyro.constructors.PrimitiveConstructorSpec(
            nargs="*",
            metavar="[VALUE ...]|YAML",
            instance_from_str=read,
            is_instance=lambda value: True,
            str_from_instance=lambda value: [json.dumps(value)] if isinstance(value, dict) else list(map(str, value)),
        )

    def as_pairs() -> Any:
        """Pairs of names and values; a value may also be a list or mapping, which stays YAML text here."""
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs="*",
            metavar="[NAME VALUE [NAME VALUE ...]]",
            instance_from_str=lambda words: dict(zip(words[::2], map(_as_scalar, words[1::2]), strict=True)),
            is_instance=lambda value: True,
            str_from_instance=lambda value: [str(word) for pair in value.items() for word in pair],
        )

    @registry.struct_rule
    def describe(info: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
        if not dataclasses.is_dataclass(info.type):
            return None
        kinds, texts, fields = typing.get_type_hints(info.type), field_texts(info.type), []
        for each in dataclasses.fields(info.type):
            kind: Any = kinds[each.name]
            value = getattr(info.default, each.name)
            if _takes_words_or_names(kind):
                kind = Annotated[Any, as_words_or_yaml(kind)]
            elif _is_nested(kind) or (value == () and _lists_settings(kind)):
                kind = Annotated[Any, as_yaml(kind)]
            elif typing.get_origin(kind) is dict and _holds_lists(kind):
                kind = Annotated[Any, as_pairs()]
            elif typing.get_origin(kind) is dict:  # for a dict that is not empty, tyro makes an option for each key
                kind = GenericAlias(MutableMapping, typing.get_args(kind))
            if each.metadata == POSITIONAL:
                kind = tyro.conf.Positional[Annotated[kind, tyro.conf.arg(metavar=each.name.upper())]]
            if info.default is default and each.name in hidden:
                kind = tyro.conf.Suppress[kind]
            elif value in ((), {}):
                kind = Annotated[kind, tyro.conf.arg(help_behavior_hint="(default: none)")]
            fields.append(tyro.constructors.StructFieldSpec(each.name, kind, value, helptext=texts.get(each.name)))
        return tyro.constructors.StructConstructorSpec(instantiate=info.type, fields=tuple(fields))

    return registry
