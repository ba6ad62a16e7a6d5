"""The command line: find the command, parse its options, run it, and say mistakes in one sentence.

`jax-diversity COMMAND` calls a function whose parameters are its options; `COMMANDS` says in which module it is. The
list of stages defines the commands of the stages, with their help. A user's mistake ends with status 2 and one
sentence; only bugs show a traceback. A module is imported only by the commands that need it.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from types import TracebackType
from typing import Any

from jax_diversity.cli.parsing import (
    Signature,
    as_typed,
    given_options,
    help_text,
    list_options,
    methods_text,
    short_help,
    with_given,
)
from jax_diversity.foundation.compilation import keep_compiled_programs
from jax_diversity.foundation.errors import UserError, did_you_mean, in_one_line, quoted
from jax_diversity.foundation.methods import Methods
from jax_diversity.foundation.own_functions import give, only_given
from jax_diversity.foundation.settings import parse_yaml, read_settings
from jax_diversity.foundation.stage import Stage
from jax_diversity.foundation.terminal import show
from jax_diversity.pipeline import stages
from jax_diversity.pipeline.settings import BuildConfig

COMMANDS = Methods(
    "command",
    "jax_diversity",
    {
        **dict.fromkeys(("demo", "build", "prepare", "report", "order", "repack", "verify"), "pipeline.commands"),
        **dict.fromkeys(("measure", "inspect", "schedule"), "streaming.run.commands"),
        "sample": "lab.sampling.commands",
        "export": "streaming.export.commands",
        **dict.fromkeys(("train", "lab_explain"), "lab.commands"),
    },
)
"""The function of a command, and its module; other stages have the function `run_stage`."""
_FIRST = ("demo", "build")
_LAST = ("inspect", "sample", "repack", "schedule", "export", "verify", "train", "lab_explain")
"""The commands before and after those of the stages in the overview."""
_REFUSALS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        ("no space left on the disk", "free some space and run the same command again to continue."),
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        ("no permission", "change the permission, or name a folder that you may read and write."),
    ),
    errno.ENAMETOOLONG: ("a name is too long for the disk", "choose a shorter name."),
}
"""Errors of the operating system by number: the reason, and what to do."""
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
    "ray",
    "config",
    "quiet",
    "open",
    "all",
)
"""The settings that the help of `build` and `demo` shows, in the order of their use; `--help-all` shows all."""


@dataclass(frozen=True)
class Command:
    """One command: its sentence, and for a stage the stage and the settings' sections that its help shows."""

    name: str
    help: str
    stage: Stage | None = None

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections of a build's settings that a stage uses; () if the command has other options."""
        is_other = self.stage is None or self.name in ("measure", "order")
        return () if is_other or self.stage is None else (self.stage.section, *self.stage.also)

    @property
    def options(self) -> Any:
        """The defaults of its options."""
        return self.signature().default

    def signature(self, settings: Mapping[type, Any] | None = None) -> Signature:
        """The function of the command and its options; `settings` are defaults of settings by their type."""
        function = self.name.replace(" ", "_")
        if not self.sections:
            return Signature(COMMANDS.find(function), settings or {})
        from jax_diversity.pipeline import commands

        command: Callable[..., None] = COMMANDS.find(function) if function in COMMANDS else commands.run_stage
        return Signature(partial(command, self.stage), settings or {})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 if done, 2 after a user's mistake, 130 if interrupted."""
    if arguments is None:
        begin_program()
    words = list(sys.argv[1:] if arguments is None else arguments)
    # A settings file has the settings' own names.
    from_file = any(word.startswith("--config") for word in words)
    return in_sentences(partial(_answer, words), "jax-diversity", str if from_file else _typed)


def begin_program() -> None:
    """Prepare the process of a program: tracebacks are printed in the same way as all other output."""
    sys.excepthook = _show_traceback
    keep_compiled_programs()


def in_sentences(command: Callable[[], None], program: str, spoken: Callable[[str], str] = str) -> int:
    """Run a command; every mistake and every warning becomes one sentence after the program's name.

    Args:
        command: what to run.
        program: name of the program. Warnings of another package also have their origin.
        spoken: changes the sentence of a `UserError`.

    Returns:
        The exit status: 0 if done, 2 after a user's mistake, 130 if interrupted.
    """
    with warnings.catch_warnings():
        warnings.showwarning = partial(_show_warning, program)
        sentence, status = _mistake(command, spoken)
    if status:
        show(f"{program}: {' '.join(sentence.split())}", sys.stderr)
    return status


def _answer(words: list[str]) -> None:
    """Run the command in the first argument."""
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        show(_overview())
    elif words[0] in ("-V", "--version", "version"):
        from jax_diversity import __version__

        show(f"jax-diversity {__version__}")
    else:
        _run(words[0], words[1:])


def _mistake(command: Callable[[], None], spoken: Callable[[str], str]) -> tuple[str, int]:
    """Run a command; returns the sentence on a mistake, and the exit status."""
    try:
        command()
    except UserError as error:
        return spoken(str(error)), 2
    except KeyboardInterrupt:
        return "interrupted; run the same command again to continue where it stopped.", 130
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        # Python flushes standard output once more at its end, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        otherwise = ("a file cannot be used", "check the file and the disk, then repeat the command to continue.")
        refusal, advice = _REFUSALS.get(error.errno or 0, otherwise)
        return f"{refusal} ({in_one_line(error)}); {advice}", 2
    except (MemoryError, RuntimeError) as error:
        # JAX's exception for a device without free memory is a RuntimeError.
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        advice = "choose smaller settings (such as batches, sequences or models), or a machine with more."
        return f"no memory left ({in_one_line(error)}); {advice}", 2
    return "", 0


def _typed(sentence: str) -> str:
    """A sentence with the names of options in place of the names of settings."""
    return as_typed(sentence, {option.name for option in list_options(BuildConfig())})


def _show_warning(
    program: str, message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any
) -> None:
    """Show a warning as one line; a warning of another package also has its origin."""
    is_own = category is UserWarning or category.__module__.partition(".")[0] in ("jax_diversity", program)
    place = "" if is_own else f" ({category.__name__} in {filename}:{lineno})"
    show(f"{program}: warning: {in_one_line(_typed(str(message)))}{place}", sys.stderr)


def _show_traceback(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    show("".join(traceback.format_exception(kind, error, place)).rstrip(), sys.stderr)


def _overview() -> str:
    width = max(map(len, all_verbs()))
    verbs = "\n".join(f"  {name:<{width}}  {verb.help}" for name, verb in all_verbs().items())
    return (
        "usage: jax-diversity COMMAND [options]\n\n"
        "Turn a corpus into token sequences in an order that is measurably better than\n"
        "a shuffle, and stream that order into JAX training.\n\n"
        f"verbs:\n{verbs}\n\n"
        "`jax-diversity COMMAND --help` shows a command's options with their defaults.\n\n"
        "Start with:\n"
        "  jax-diversity demo                          # uses texts on this machine\n"
        "  jax-diversity measure --out demo --profile  # compares it with a shuffle\n"
        "  jax-diversity build --corpus.paths 'texts/*.jsonl.gz' --out dataset"
    )


def _find_verb(name: str) -> Command:
    verbs = all_verbs()
    if name in verbs:
        return verbs[name]
    if name.startswith("-"):
        raise UserError(f"Expected a command first, as in `jax-diversity measure {name} ...`, found the option {name}.")
    raise UserError(f"Unknown command {name!r}: expected one of {', '.join(verbs)}{did_you_mean(name, verbs)}")


def all_verbs() -> dict[str, Command]:
    """Return every command by its name, in the order of the overview; stages are in the order of their list."""
    of_stages = {stage.verb: stage for stage in stages.all_stages(BuildConfig()) if stage.help}
    verbs = {}
    for function in (*_FIRST, *of_stages, *_LAST):
        name, stage = function.replace("_", " "), of_stages.get(function)
        verbs[name] = Command(name, COMMANDS.describe(function)[0] if stage is None else stage.help, stage)
    return verbs


def _run(name: str, arguments: list[str]) -> None:
    """Parse the options of a command and run it."""
    if name == "lab":
        if arguments[:1] != ["explain"]:
            first_word = arguments[0] if arguments else "nothing"
            raise UserError(f"Expected `jax-diversity lab explain`, found {first_word} after lab.")
        name, arguments = f"lab {arguments[0]}", arguments[1:]
    verb = _find_verb(name)
    if {"-h", "--help", "--help-all"} & set(arguments):
        show(_help(name, verb, arguments))
        raise SystemExit(0)
    with only_given(*map(_as_given, arguments)):
        signature, values = _with_defaults(verb, arguments)
        options = with_given(signature.default, values)
        call(signature, options)


def call(signature: Signature, options: Any) -> None:
    """Call the function of a command; a user's function that ends the program is a mistake."""
    try:
        signature.call(options)
    except SystemExit as error:
        raise UserError(
            f"Expected code that returns, found that it ended the program (sys.exit({quoted(error.code)})); remove "
            "this call from your functions."
        ) from None


def _help(name: str, verb: Command, arguments: list[str]) -> str:
    words = [word for word in arguments if word not in ("-h", "--help", "--help-all")]
    signature, _ = _with_defaults(verb, words, asks_help=True)
    if name in _FIRST and "--help-all" not in arguments:
        return short_help(signature.default, name, verb.help, SHOWN)
    text, hidden = verb.help, []
    if verb.sections:
        hidden = [section.name for section in fields(BuildConfig) if section.name not in ("out", *verb.sections)]
        text += "\n\nThe stage uses the options below. It accepts all others of\n`jax-diversity build`, without effect."
    methods = methods_text(verb.stage.methods) if verb.stage is not None and verb.stage.methods else ""
    return help_text(signature.default, name, text, hidden=hidden) + methods


def _with_defaults(verb: Command, arguments: list[str], *, asks_help: bool = False) -> tuple[Signature, dict[str, Any]]:
    """The function of a command with the defaults of its options, and the options that the user gave.

    The defaults are those of the file in `--config`, or of the dataset, or of the function.
    """
    signature = verb.signature()
    options = given_options(signature.default, verb.name, arguments)
    settings = signature.parts.get("settings")
    if settings is None:
        return signature, options
    usual = settings
    # The first stage begins a dataset. The defaults of later stages are the settings recorded in the dataset's folder.
    if verb.stage not in (None, stages.STAGES[0]) and not asks_help:
        from jax_diversity.foundation.finding import existing_dataset
        from jax_diversity.pipeline.build import recorded_config
        from jax_diversity.streaming.run.commands import is_run

        out = options.get("--out", settings.out)
        of_run = verb.name == "report" and is_run(out)
        settings = replace(settings, windows=()) if of_run else recorded_config(existing_dataset(out))
    if path := options.get("--config"):
        give(asdict(read_settings(path, usual)))
        settings = read_settings(path, settings)
    return verb.signature({type(usual): settings}), options


def _as_given(word: str) -> Any:
    """The values in a word of the command line, which may be `--option=value`, or a list or mapping in YAML."""
    value = word.partition("=")[2] if word.startswith("--") else word
    with suppress(UserError):
        return parse_yaml(value) if value.startswith(("[", "{")) else value
