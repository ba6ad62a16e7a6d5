"""The command line: parse and dispatch.

`jax-diversity VERB` runs the verb's function below. The stages' verbs, with their sentences and options, come from the
list of stages; the others stand at the end of this module. A user's mistake ends with status 2 and one sentence; only
bugs give tracebacks. Nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from jax_diversity.cli.options import (
    ExportOptions,
    InspectOptions,
    MeasureOptions,
    OrderOptions,
    TrainOptions,
    VerifyOptions,
    parse_options,
)
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.settings import read_settings
from jax_diversity.foundation.stage import Stage
from jax_diversity.pipeline.settings import BuildConfig, demo_config
from jax_diversity.pipeline.stages import STAGES, all_stages

_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_WITH_REPORT = ("build", "demo", "report")
"""Verbs that make the report, and so take `--open`."""


@dataclass(frozen=True)
class Verb:
    """One verb of the command line.

    Attributes:
        help: what it does, in one sentence.
        run: does it with the arguments behind the verb.
        options: a dataclass that holds its options with their defaults.
        section: of a stage's verb, the section of the settings that the help shows.
        flat: whether options go without their section's name.
    """

    help: str
    run: Callable[[list[str]], None]
    options: Any
    section: str | None = None
    flat: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status: 0 done, 2 a user's mistake, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["help"] and len(given) > 1:
        given = [given[1], "--help"]
    if not given or given[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if given[0] in ("-V", "--version", "version"):
        from jax_diversity import __version__

        print(f"jax-diversity {__version__}")
        return 0
    try:
        _find_verb(given[0]).run(given[1:])
    except UserError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted; run the same command again to go on where it stopped.", status=130)
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        # Python flushes standard output once more at its end, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno in _FULL_DISK:
            return _fail(f"no space left on the disk ({error}); free some and run the same command again to go on.")
        if error.errno in _REFUSED:
            return _fail(f"no permission ({error}); change it, or name a folder that you may read and write.")
        raise
    return 0


def _fail(sentence: str, status: int = 2) -> int:
    print(f"jax-diversity: {sentence}", file=sys.stderr)
    return status


def _overview() -> str:
    width = max(map(len, all_verbs()))
    verbs = "\n".join(f"  {name:<{width}}  {verb.help}" for name, verb in all_verbs().items())
    return (
        "usage: jax-diversity VERB [options]\n\n"
        "Turn a corpus into token sequences in an order that is measurably better than\n"
        "a shuffle, and stream that order into JAX training.\n\n"
        f"verbs:\n{verbs}\n\n"
        "`jax-diversity VERB --help` lists a verb's options with their defaults.\n\n"
        "Start with:\n"
        "  jax-diversity demo                          # of texts that this machine has\n"
        "  jax-diversity measure --out demo --profile  # its ordering beside a shuffle\n"
        "  jax-diversity build --corpus.paths 'texts/*.jsonl.gz' --out dataset"
    )


def _find_verb(name: str) -> Verb:
    verbs = all_verbs()
    if name in verbs:
        return verbs[name]
    if name.startswith("-"):
        raise UserError(f"Expected a verb first, as in `jax-diversity measure {name} ...`, found the option {name}.")
    near = difflib.get_close_matches(name, verbs, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise UserError(f"Unknown verb {name!r}: expected one of {', '.join(verbs)}{hint}")


def _asks_help(arguments: Sequence[str]) -> bool:
    return bool({"-h", "--help"} & set(arguments))


def _parse(name: str, arguments: list[str], hint: str = "") -> Any:
    """The options of a verb that takes no settings of a build."""
    verb = all_verbs()[name]
    return parse_options(verb.options, name, arguments, f"{verb.help}{hint}", flat=verb.flat)


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


def _pop_flag(arguments: list[str], option: str) -> bool:
    if option not in arguments:
        return False
    arguments.remove(option)
    return True


def _parse_settings(
    name: str, arguments: list[str], default: BuildConfig, more_help: str = ""
) -> tuple[BuildConfig, Progress, bool]:
    """A build's settings, from a file and the command line; where to show progress; whether to open the report."""
    verb = all_verbs()[name]
    # These are taken out first: they are no settings, and the file's settings are the defaults of all other options.
    quiet, opens = _pop_flag(arguments, "--quiet"), name in _WITH_REPORT and _pop_flag(arguments, "--open")
    path = _pop(arguments, "--config")
    default = read_settings(path, default) if path else default
    hint = "\n\nBesides:\n  --config FILE.yaml  where options come from that are not given here"
    hint += "\n  --quiet             no progress"
    hint += "\n  --open              show the report in the browser" if name in _WITH_REPORT else ""
    hidden = []
    if verb.section is not None:
        hidden = [each.name for each in fields(BuildConfig) if each.name not in ("out", verb.section)]
        hint += "\n  any option of `jax-diversity build`, kept for the stage that it belongs to"
    config = parse_options(default, name, arguments, f"{verb.help}{hint}{more_help}", hidden=hidden)
    return config, Progress(quiet), opens


def _show_report(folder: Path, opens: bool) -> None:
    """Print a dataset's report's place, and open the report where that was asked for."""
    from jax_diversity.cli.guidance import open_report, report_line
    from jax_diversity.cli.tables import show

    report = folder / "report.html"
    show(f"\n{report_line(report)}")
    problem = open_report(report) if opens else None
    if problem:
        print(problem, file=sys.stderr)


def _existing(out: str) -> str:
    """A dataset's folder or address as it was given; where it is none, the message offers one that lies here."""
    folder = Path(out)
    if "://" in out or (folder / "manifest.json").is_file():
        return out
    found = "no manifest.json in it" if folder.is_dir() else "a file" if folder.exists() else "no such folder"
    others = sorted(path.parent.name for path in Path().glob("*/manifest.json"))
    advice = f"did you mean --out {others[0]}?" if others else "make one with `jax-diversity build` or `demo`."
    raise UserError(f"Expected a dataset in {out}, found {found}; {advice}")


def _recorded(arguments: list[str]) -> BuildConfig:
    """The settings that the dataset's folder records: they are a later stage's defaults."""
    from jax_diversity.pipeline.build import recorded_config

    # Copies: the options are parsed again, whole, when these defaults are known.
    path = _pop(list(arguments), "--config")
    out = _pop(list(arguments), "--out") or (read_settings(path, BuildConfig()) if path else BuildConfig()).out
    return recorded_config(_existing(out))


def _run_stage(stage: Stage, arguments: list[str]) -> None:
    from jax_diversity.cli.tables import build_table, methods_list, show

    # The first stage starts a dataset; the others go on with one.
    starts = stage is STAGES[0]
    default = BuildConfig() if starts or _asks_help(arguments) else _recorded(arguments)
    methods = f"\n\n{methods_list(stage)}" if stage.methods and _asks_help(arguments) else ""
    config, progress, opens = _parse_settings(stage.verb, arguments, default, methods)
    from jax_diversity.pipeline.build import Build

    build = Build(config, progress)
    show(build_table([build.run_stage(stage.name)]))
    if stage.verb in _WITH_REPORT:
        _show_report(build.folder.root, opens)


def _run_build(arguments: list[str]) -> None:
    from jax_diversity.cli.tables import build_table, orderings_table, show

    config, progress, opens = _parse_settings("build", arguments, BuildConfig())
    # Imported here, after the options are known to be right: `--help` and mistakes are answered at once.
    from jax_diversity.pipeline.build import Build

    build = Build(config, progress)
    show(build_table(build.run_all()))
    show(f"\n{orderings_table(build.folder)}")
    _show_report(build.folder.root, opens)


def _run_demo(arguments: list[str]) -> None:
    from jax_diversity.cli.guidance import next_steps
    from jax_diversity.cli.tables import build_table, orderings_table, show, training_line

    config, progress, opens = _parse_settings("demo", arguments, demo_config())
    from jax_diversity.lab.run import train_dataset
    from jax_diversity.pipeline.build import Build

    build = Build(config, progress)
    results = build.run_all()
    run = train_dataset(config.out, config.train, progress)
    results[-1] = build.run_stage("report")  # again, with the run's losses
    show(build_table(results))
    show(f"\n{orderings_table(build.folder)}\n")
    show(training_line(run))
    _show_report(build.folder.root, opens)
    show(f"\nTry next:\n{next_steps(config)}")


def _run_order(stage: Stage, arguments: list[str]) -> None:
    from jax_diversity.cli.tables import build_table, methods_list, orderings_table, show

    hint = f"\n\n{methods_list(stage)}" if _asks_help(arguments) else ""
    options: OrderOptions = _parse("order", arguments, hint)
    from jax_diversity.pipeline.build import Build, recorded_config

    build = Build(recorded_config(_existing(options.out)), Progress(options.quiet))
    show(build_table(build.run_order(options.order)))
    show(f"\n{orderings_table(build.folder)}")


def _run_measure(arguments: list[str]) -> None:
    options: MeasureOptions = _parse("measure", arguments)
    if options.json and (options.markdown or options.relative_to):
        other = "--markdown" if options.markdown else "--relative-to"
        raise UserError(f"Expected --json or {other}, found both; choose one.")
    from jax_diversity.cli.measuring import measures_legend, profile_tables, training_curves
    from jax_diversity.cli.tables import show
    from jax_diversity.dataset import measuring

    chosen = measuring.choose_orderings(_existing(options.out), options.orderings, options.order, options.windows)
    progress = Progress(options.quiet)
    if options.json:
        print(json.dumps(measuring.measure_orderings(chosen, progress, profile=options.profile), indent=2))
        return
    compared, curves = measuring.compare_orderings(chosen, progress)
    if options.markdown or options.relative_to is not None:
        compared = compared if options.relative_to is None else compared.relative_to(options.relative_to)
        show(compared.markdown() if options.markdown else compared.table())
    else:
        show(f"{measures_legend(chosen)}\n\n{compared.table()}\n\n{training_curves(curves)}")
    if options.profile and not options.markdown:
        show(f"\n{profile_tables(measuring.profile_orderings(chosen, progress))}")


def _run_inspect(arguments: list[str]) -> None:
    options: InspectOptions = _parse("inspect", arguments)
    if options.rank is None and options.num_hosts != 1:
        raise UserError(f"Expected --rank with --num-hosts {options.num_hosts}, found none; say which host.")
    if options.rows < 0:
        raise UserError(f"Expected --rows >= 0, found {options.rows}.")
    from jax_diversity.cli.inspecting import as_json, batch_table, uses_table
    from jax_diversity.cli.tables import show
    from jax_diversity.dataset import open_dataset
    from jax_diversity.dataset.inspection import Inspector
    from jax_diversity.dataset.measuring import batch_deviations

    dataset = open_dataset(_existing(options.out))
    inspector = Inspector(dataset, options.ordering, options.batch_size)
    if options.document is not None:
        uses = inspector.uses(options.document)
        show(as_json(uses) if options.json else uses_table(options.document, uses))
        return
    host = {"host_index": options.rank or 0, "num_hosts": options.num_hosts}
    batch = inspector.batch(options.step, **host)
    deviations = None
    if options.compare:
        deviations = batch_deviations(dataset, options.ordering, options.batch_size, **host)
    show(as_json(batch, deviations) if options.json else batch_table(batch, options.rows, deviations))


def _run_export(arguments: list[str]) -> None:
    options: ExportOptions = _parse("export", arguments)
    from jax_diversity.cli.tables import show
    from jax_diversity.export.export import export

    for line in export(_existing(options.out), options, Progress(options.quiet)):
        show(line)


def _run_verify(arguments: list[str]) -> None:
    options: VerifyOptions = _parse("verify", arguments)
    from jax_diversity.foundation.artifacts import OutputFolder

    folder = OutputFolder(_existing(options.out))
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


def _run_train(arguments: list[str]) -> None:
    options: TrainOptions = _parse("train", arguments)
    from jax_diversity.cli.tables import show, training_line
    from jax_diversity.lab.run import train_dataset

    show(training_line(train_dataset(_existing(options.out), options.train, Progress(options.quiet))))


def all_verbs() -> dict[str, Verb]:
    """Every verb by its name, in the order of the overview: the stages' in theirs, which the list of stages gives."""
    verbs = {
        "demo": Verb("Build the installed Python packages' texts and train on them.", _run_demo, demo_config()),
        "build": Verb("Make everything, from the documents to records and report.", _run_build, BuildConfig()),
    }
    for stage in all_stages(BuildConfig()):
        if stage.verb == "measure":
            verbs["measure"] = Verb(stage.help, _run_measure, MeasureOptions())
        elif stage.verb == "order":  # one ordering's settings, not those of a whole build
            verbs["order"] = Verb(stage.help, partial(_run_order, stage), OrderOptions(), flat=True)
        else:
            verbs[stage.verb] = Verb(stage.help, partial(_run_stage, stage), BuildConfig(), stage.section)
    return verbs | {
        "inspect": Verb(
            "Show a batch and how good it is, or where a document is used.", _run_inspect, InspectOptions()
        ),
        "export": Verb("Write an order or ordered sequences for another stack.", _run_export, ExportOptions()),
        "verify": Verb("Compare every stored file with its size and hash.", _run_verify, VerifyOptions()),
        "train": Verb("Train the lab's small GPT, from its last checkpoint on.", _run_train, TrainOptions()),
    }
