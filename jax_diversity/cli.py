"""The command line: parse and dispatch, nothing else.

`jax-diversity VERB` finds the verb's function below; each parses its own typed settings with tyro. A user's mistake
ends with status 2 and one sentence; only bugs give tracebacks. Nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from jax_diversity.config import BuildConfig, ExportConfig, OrderConfig, TrainConfig, demo_config, load_config
from jax_diversity.errors import UserError
from jax_diversity.progress import Progress

_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_Options = TypeVar("_Options")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status: 0 done, 2 a user's mistake, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if given[0] == "--version":
        from jax_diversity import __version__

        print(f"jax-diversity {__version__}")
        return 0
    try:
        _find_verb(given[0])(given[1:])
    except UserError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted; run the same command again to go on where it stopped.", status=130)
    except BrokenPipeError:  # whoever read what was printed, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _FULL_DISK:
            raise
        return _fail(f"no space left on the disk ({error}); free some and run the same command again to go on.")
    return 0


def _fail(sentence: str, status: int = 2) -> int:
    print(f"jax-diversity: {sentence}", file=sys.stderr)
    return status


def _overview() -> str:
    width = max(map(len, _VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {_sentence(verb)}" for name, verb in _VERBS.items())
    return (
        "usage: jax-diversity VERB [options]\n\n"
        "Turn a corpus into token sequences in an order that is measurably better than\n"
        "a shuffle, and stream that order into JAX training.\n\n"
        f"verbs:\n{verbs}\n\n"
        "`jax-diversity VERB --help` lists a verb's options with their defaults.\n"
        "Start with `jax-diversity demo`."
    )


def _sentence(verb: Callable[[list[str]], None]) -> str:
    return (verb.__doc__ or "").strip().splitlines()[0]


def _find_verb(name: str) -> Callable[[list[str]], None]:
    if name in _VERBS:
        return _VERBS[name]
    import difflib

    near = difflib.get_close_matches(name, _VERBS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise UserError(f"Unknown verb {name!r}: expected one of {', '.join(_VERBS)}{hint}")


def _parse(
    kind: type[_Options],
    verb: str,
    arguments: list[str],
    default: _Options | None = None,
    *,
    hint: str = "",
    flat: bool = False,
) -> _Options:
    """Parse a verb's options; `flat` leaves the sections' names out of theirs."""
    import tyro

    return tyro.cli(
        kind,
        args=arguments,
        prog=f"jax-diversity {verb}",
        default=kind() if default is None else default,
        description=f"{_sentence(_VERBS[verb])} {hint}".strip(),
        config=(tyro.conf.OmitArgPrefixes,) if flat else (),
    )


def _pop(arguments: list[str], option: str) -> str | None:
    """Take `option VALUE` or `option=VALUE` out of the arguments: it decides the defaults of all others."""
    for index, argument in enumerate(arguments):
        if argument == option:
            if index + 1 == len(arguments):
                raise UserError(f"Expected a value after {option}, found nothing.")
            arguments.pop(index)
            return arguments.pop(index)
        if argument.startswith(f"{option}="):
            return arguments.pop(index).split("=", 1)[1]
    return None


def _pop_quiet(arguments: list[str]) -> bool:
    if "--quiet" not in arguments:
        return False
    arguments.remove("--quiet")
    return True


def _build_config(verb: str, arguments: list[str], default: BuildConfig) -> tuple[BuildConfig, Progress]:
    progress = Progress(_pop_quiet(arguments))
    path = _pop(arguments, "--config")
    default = load_config(path, default) if path else default
    hint = "Also: --config FILE.yaml sets the defaults of all options; --quiet shows no progress."
    return _parse(BuildConfig, verb, arguments, default, hint=hint), progress


def _build(arguments: list[str]) -> None:
    """Make everything, from the documents to records and report."""
    config, progress = _build_config("build", arguments, BuildConfig())
    from jax_diversity import terminal
    from jax_diversity.pipeline import Build

    build = Build(config, progress)
    results = build.run_all()
    print(terminal.build_table(results))
    print(terminal.orderings_table(build.folder))
    print(f"\nReport: {build.folder.root / 'report.html'}")


def _out(arguments: list[str]) -> str:
    """The dataset's folder, before all else: its recorded settings are a later stage's defaults."""
    path = _pop(list(arguments), "--config")
    return _pop(list(arguments), "--out") or (load_config(path) if path else BuildConfig()).out


def _stage_verb(name: str, sentence: str) -> Callable[[list[str]], None]:
    def run(arguments: list[str]) -> None:
        from jax_diversity import terminal
        from jax_diversity.pipeline import Build, recorded_config

        default = BuildConfig()
        if name != "prepare" and not {"-h", "--help"} & set(arguments):
            default = recorded_config(_out(arguments))
        config, progress = _build_config(name, arguments, default)
        print(terminal.build_table([Build(config, progress).run_stage(name)]))

    run.__doc__ = sentence
    return run


@dataclass(frozen=True)
class OrderOptions:
    """One more ordering of a built dataset."""

    order: OrderConfig = field(default_factory=OrderConfig)
    out: str = "out"
    """The dataset's folder."""
    quiet: bool = False
    """Show no progress."""


def _order(arguments: list[str]) -> None:
    """Compute and measure one more ordering."""
    from jax_diversity import terminal

    hint = f"\n\n{terminal.methods_list()}" if {"-h", "--help"} & set(arguments) else ""
    options = _parse(OrderOptions, "order", arguments, hint=hint, flat=True)
    from jax_diversity.pipeline import Build, recorded_config

    build = Build(recorded_config(options.out), Progress(options.quiet))
    print(terminal.build_table(build.run_order(options.order)))
    print(terminal.orderings_table(build.folder))


@dataclass(frozen=True)
class MeasureOptions:
    """Which orderings to measure, at which window sizes."""

    out: str = "out"
    """The dataset's folder."""
    orderings: tuple[str, ...] = ()
    """Names of orderings or .npy files; all of the dataset's where none is given."""
    order: tuple[str, ...] = ()
    """Orderings of your own to measure beside them: .npy files of sequence indices."""
    windows: tuple[int, ...] = ()
    """Window sizes in sequences; those of the dataset's settings that fit twice where none is given."""
    json: bool = False
    """Print JSON for machines, of what was asked for alone."""
    markdown: bool = False
    """Print Markdown tables."""
    quiet: bool = False
    """Show no progress."""


def _measure(arguments: list[str]) -> None:
    """Compare orderings with a shuffle: prefixes, windows, drift."""
    options = _parse(MeasureOptions, "measure", arguments)
    if options.json and options.markdown:
        raise UserError("Expected --json or --markdown, found both; choose one.")
    import json

    from jax_diversity.pipeline.measuring import choose_orderings, compare_orderings, measure_orderings

    chosen = choose_orderings(options.out, options.orderings, options.order, options.windows)
    if options.json:
        print(json.dumps(measure_orderings(chosen, Progress(quiet=True)), indent=2))
        return
    compared = compare_orderings(chosen, Progress(options.quiet))
    print(compared.markdown() if options.markdown else compared.table())


@dataclass(frozen=True)
class InspectOptions:
    """Which batch to look into, or which document to look for."""

    out: str = "out"
    """The dataset's folder."""
    ordering: str = "balance"
    """The ordering that training follows."""
    step: int = 0
    """The step of training, counted from 0 over all epochs."""
    batch_size: int = 64
    """The global batch size."""
    rank: int | None = None
    """Show only what this host reads; needs num_hosts."""
    num_hosts: int = 1
    """Hosts that share the batch."""
    document: str | None = None
    """The id of a document: show where training meets it instead."""
    rows: int = 10
    """Rows of the batch that are listed, at most."""
    json: bool = False
    """Print JSON for machines, of all rows."""


def _inspect(arguments: list[str]) -> None:
    """Show the documents of a batch, or where a document is used."""
    options = _parse(InspectOptions, "inspect", arguments)
    from jax_diversity import inspection, terminal
    from jax_diversity.dataset import open_dataset

    inspector = inspection.Inspector(open_dataset(options.out), options.ordering, options.batch_size)
    if options.document is not None:
        uses = inspector.uses(options.document)
        print(terminal.as_json(uses) if options.json else terminal.uses_table(options.document, uses))
        return
    if options.rank is None and options.num_hosts != 1:
        raise UserError(f"Expected --rank with --num-hosts {options.num_hosts}, found none; say which host.")
    batch = inspector.batch(options.step, host_index=options.rank or 0, num_hosts=options.num_hosts)
    print(terminal.as_json(batch) if options.json else terminal.batch_table(batch, options.rows))


@dataclass(frozen=True)
class ExportOptions(ExportConfig):
    """What to export, for which stack."""

    out: str = "out"
    """The dataset's folder."""
    quiet: bool = False
    """Show no progress."""


def _export(arguments: list[str]) -> None:
    """Write an order or ordered sequences for another stack."""
    options = _parse(ExportOptions, "export", arguments)
    from jax_diversity.pipeline.exporting import export

    for line in export(options.out, options, Progress(options.quiet)):
        print(line)


@dataclass(frozen=True)
class VerifyOptions:
    """Which dataset to verify."""

    out: str = "out"
    """The dataset's folder."""
    quiet: bool = False
    """Show no progress."""


def _verify(arguments: list[str]) -> None:
    """Compare every stored file with its size and hash."""
    options = _parse(VerifyOptions, "verify", arguments)
    from jax_diversity.artifacts import OutputFolder

    folder = OutputFolder(options.out)
    sizes = [about["bytes"] for entry in folder.stages.values() for about in entry["files"].values()]
    if not sizes:
        raise UserError(f"Expected a dataset in {options.out}, found none; run `jax-diversity build` first.")
    with Progress(options.quiet).task("verify", sum(sizes), "bytes") as advance:
        faults = folder.verify(advance)
    if faults:
        raise UserError(
            f"{len(faults)} of {len(sizes)} files in {options.out} are not as they were written: "
            f"{'; '.join(map(str, faults))}; restore them, or delete them and build again."
        )
    print(f"{options.out}: {len(sizes)} files, {sum(sizes):,} bytes, all as they were written.")


@dataclass(frozen=True)
class TrainOptions:
    """A training run of the lab."""

    out: str = "out"
    """The dataset's folder."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Model and run."""
    quiet: bool = False
    """Show no progress."""


def _train(arguments: list[str]) -> None:
    """Train the lab's small GPT, from its last checkpoint on."""
    options = _parse(TrainOptions, "train", arguments)
    from jax_diversity import terminal
    from jax_diversity.pipeline.training import train

    print(terminal.training_line(train(options.out, options.train, Progress(options.quiet))))


def _demo(arguments: list[str]) -> None:
    """Build the installed Python packages' texts and train on them."""
    config, progress = _build_config("demo", arguments, demo_config())
    from jax_diversity import terminal
    from jax_diversity.pipeline import Build
    from jax_diversity.pipeline.training import train

    build = Build(config, progress)
    results = build.run_all()
    run = train(config.out, config.train, progress)
    results[-1] = build.run_stage("report")
    print(terminal.build_table(results))
    print(terminal.orderings_table(build.folder))
    print(terminal.training_line(run))
    print(terminal.next_steps(build.folder))


_VERBS: dict[str, Callable[[list[str]], None]] = {
    "demo": _demo,
    "build": _build,
    "prepare": _stage_verb("prepare", "Read a corpus and store its documents."),
    "tokenize": _stage_verb("tokenize", "Train or load the tokenizer; store all tokens."),
    "embed": _stage_verb("embed", "Turn every document into a vector."),
    "cluster": _stage_verb("cluster", "Group the documents' vectors into topic clusters."),
    "pack": _stage_verb("pack", "Set validation documents aside, pack sequences."),
    "characterize": _stage_verb("characterize", "Count every sequence's tokens per cluster, length, source."),
    "order": _order,
    "write": _stage_verb("write", "Write the sequences as ArrayRecord files."),
    "report": _stage_verb("report", "Draw the report page."),
    "measure": _measure,
    "inspect": _inspect,
    "export": _export,
    "verify": _verify,
    "train": _train,
}
