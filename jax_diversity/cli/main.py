"""The command line: parse and dispatch.

`jax-diversity COMMAND` runs one of the functions below. In this package a command, such as `build`, is also called a
verb. The list of stages defines the commands of the stages, with their help and options; `all_verbs` adds the others. A
user's mistake ends with status 2 and one sentence; only bugs show a traceback. A heavy module is imported only by the
commands that need it.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jax_diversity.cli.guidance import next_steps, show_report
from jax_diversity.cli.options import (
    BuildOptions,
    ExportOptions,
    FromFile,
    InspectOptions,
    LabExplainOptions,
    LabRunOptions,
    LabShowOptions,
    MeasureOptions,
    OrderOptions,
    PrepareOptions,
    RepackOptions,
    ReportOptions,
    SampleOptions,
    ScheduleOptions,
    StageOptions,
    TrainOptions,
    VerifyOptions,
    as_typed,
    first_options,
    parse_options,
    short_help,
)
from jax_diversity.cli.tables import (
    build_table,
    funnel_table,
    methods_list,
    orderings_table,
    orderings_verdict,
    training_line,
)
from jax_diversity.foundation.artifacts import read_json
from jax_diversity.foundation.checks import as_whole_number, check_folder_name
from jax_diversity.foundation.compilation import keep_compiled_programs
from jax_diversity.foundation.errors import UserError, did_you_mean, in_one_line, quoted
from jax_diversity.foundation.object_store import is_address
from jax_diversity.foundation.own_functions import give, only_given
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.settings import parse_yaml, read_settings
from jax_diversity.foundation.stage import Stage
from jax_diversity.foundation.terminal import show
from jax_diversity.foundation.wording import counted
from jax_diversity.pipeline.execution import executing, follow_build
from jax_diversity.pipeline.settings import BuildConfig, demo_config
from jax_diversity.pipeline.stages import STAGES, all_stages

if TYPE_CHECKING:
    from jax_diversity.dataset import Dataset
    from jax_diversity.pipeline.build import StageResult
    from jax_diversity.run.run import Run

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
_LAST_POSITION = 2**62
"""The largest position that `inspect` accepts; positions are 64-bit integers."""
_MOST_FAULTS = 5
"""The largest number of damaged files in the error of `verify`."""


@dataclass(frozen=True)
class Verb:
    """One command: `options` contains the defaults of its options, `run` is called with the parsed options.

    `sections` are the sections of a build's settings that a stage uses; its help shows only these.
    """

    help: str
    run: Callable[..., None]
    options: Any
    sections: tuple[str, ...] = ()
    stage: Stage | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 if done, 2 after a user's mistake, 130 if interrupted."""
    if arguments is None:  # run as a program: tracebacks are printed in the same way as all other output
        sys.excepthook = _show_traceback
        keep_compiled_programs()
    given = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _answer(given)


def _answer(given: list[str]) -> int:
    """Run the command in the first argument; every mistake becomes one sentence."""
    if given[:1] == ["help"] and len(given) > 1:
        given = [given[1], "--help"]
    try:
        if not given or given[0] in ("-h", "--help", "help"):
            show(_overview())
        elif given[0] in ("-V", "--version", "version"):
            from jax_diversity import __version__

            show(f"jax-diversity {__version__}")
        else:
            _run(given[0], given[1:])
    except UserError as error:
        # A settings file has the settings' own names.
        return _fail(str(error) if any(word.startswith("--config") for word in given) else as_typed(str(error)))
    except KeyboardInterrupt:
        return _fail("interrupted; run the same command again to continue where it stopped.", status=130)
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        # Python flushes standard output once more at its end, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        otherwise = ("a file cannot be used", "check the file and the disk, then repeat the command to continue.")
        refusal, advice = _REFUSALS.get(error.errno or 0, otherwise)
        return _fail(f"{refusal} ({in_one_line(error)}); {advice}")
    except (MemoryError, RuntimeError) as error:
        # JAX's exception for a device without free memory is a RuntimeError.
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        advice = "choose smaller settings (such as batches, sequences or models), or a machine with more."
        return _fail(f"no memory left ({in_one_line(error)}); {advice}")
    return 0


def _fail(sentence: str, status: int = 2) -> int:
    show(f"jax-diversity: {' '.join(sentence.split())}", sys.stderr)
    return status


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    """Show a warning as one line; a warning of another package also has its origin."""
    own = category is UserWarning or category.__module__.startswith("jax_diversity.")
    place = "" if own else f" ({category.__name__} in {filename}:{lineno})"
    show(f"jax-diversity: warning: {in_one_line(as_typed(str(message)))}{place}", sys.stderr)


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


def _find_verb(name: str) -> Verb:
    verbs = all_verbs()
    if name in verbs:
        return verbs[name]
    if name.startswith("-"):
        raise UserError(f"Expected a command first, as in `jax-diversity measure {name} ...`, found the option {name}.")
    raise UserError(f"Unknown command {name!r}: expected one of {', '.join(verbs)}{did_you_mean(name, verbs)}")


def all_verbs() -> dict[str, Verb]:
    """Return every command by its name, in the order of the overview; stages are in the order of their list."""
    verbs = {
        "demo": Verb(
            "Build a dataset from installed Python packages and train on it.",
            partial(_run_build, trains=True),
            BuildOptions(**vars(demo_config())),
        ),
        "build": Verb("Make everything, from the documents to records and report.", _run_build, BuildOptions()),
    }
    for stage in all_stages(BuildConfig()):
        if not stage.help:
            continue
        if stage.verb == "measure":
            verbs["measure"] = Verb(stage.help, _run_measure, MeasureOptions())
        elif stage.verb == "order":  # it has the settings of one ordering, not of a whole build
            verbs["order"] = Verb(stage.help, _run_order, OrderOptions(), stage=stage)
        else:
            run, options = _STAGE_VERBS.get(stage.verb, (_run_stage, StageOptions()))
            verbs[stage.verb] = Verb(stage.help, partial(run, stage), options, (stage.section, *stage.also), stage)
    look = "Show a batch and its deviation, or the uses of a document."
    return verbs | {
        "inspect": Verb(look, _run_inspect, InspectOptions()),
        "sample": Verb("Choose sequences or documents that stand for all.", _run_sample, SampleOptions()),
        "repack": Verb("Pack a dataset's documents again, into a new dataset.", _run_repack, RepackOptions()),
        "schedule": Verb("Make, change or show the schedule of a run.", _run_schedule, ScheduleOptions()),
        "export": Verb("Write an order or ordered sequences for another stack.", _run_export, ExportOptions()),
        "verify": Verb("Compare every stored file with its size and hash.", _run_verify, VerifyOptions()),
        "train": Verb("Train the lab's small GPT, from its last checkpoint if any.", _run_train, TrainOptions()),
        "lab run": Verb("Make the missing training runs of an experiment.", _run_lab, LabRunOptions()),
        "lab show": Verb("Show an experiment: tables, figures, a page.", _show_lab, LabShowOptions()),
        "lab explain": Verb("Say what an order gives a trained model.", _explain_lab, LabExplainOptions()),
    }


def _run(name: str, arguments: list[str]) -> None:
    """Parse the options of a command and run it."""
    if name == "lab":
        if arguments[:1] not in (["run"], ["show"], ["explain"]):
            found = arguments[0] if arguments else "nothing"
            raise UserError(
                f"Expected `jax-diversity lab run FILE`, `lab show FILE` or `lab explain`, found {found} after lab."
            )
        name, arguments = f"lab {arguments[0]}", arguments[1:]
    verb, hidden = _find_verb(name), []
    if isinstance(verb.options, BuildOptions) and {"-h", "--help"} & set(arguments):
        show(short_help(verb.options, name, verb.help))
        raise SystemExit(0)
    arguments = ["--help" if word == "--help-all" else word for word in arguments]
    asks_help = bool({"-h", "--help"} & set(arguments))
    text = verb.help
    if verb.sections:
        hidden = [each.name for each in fields(BuildConfig) if each.name not in ("out", *verb.sections)]
        text += "\n\nAll options of `jax-diversity build` are accepted; each stage uses its own."
    text += methods_list(verb.stage) if asks_help and verb.stage is not None else ""
    with only_given(*map(_as_given, arguments)):
        options = parse_options(_defaults(verb, arguments, asks_help), name, arguments, text, hidden=hidden)
        try:
            verb.run(options)
        except SystemExit as error:
            raise UserError(
                f"Expected code that returns, found that it ended the program (sys.exit({quoted(error.code)})); remove "
                "this call from your functions."
            ) from None


def _as_given(word: str) -> Any:
    """The values in a word of the command line, which may be `--option=value`, or a list or mapping in YAML."""
    value = word.partition("=")[2] if word.startswith("--") else word
    with suppress(UserError):
        return parse_yaml(value) if value.startswith(("[", "{")) else value


def _defaults(verb: Verb, arguments: list[str], asks_help: bool) -> Any:
    """The defaults of a command's options: from the file in `--config`, or from the dataset, or from the command."""
    options = verb.options
    if not isinstance(options, FromFile):
        return options
    first = first_options(arguments, ("config", "out"))
    settings = options.settings
    # The first stage begins a dataset. The defaults of later stages are the settings recorded in the dataset's folder.
    if verb.stage not in (None, STAGES[0]) and not asks_help:
        from jax_diversity.pipeline.build import recorded_config

        out = first["out"] or settings.out
        is_run = isinstance(options, ReportOptions) and _is_run(out)
        settings = replace(settings, windows=()) if is_run else recorded_config(_existing(out))
    if first["config"]:
        give(asdict(read_settings(first["config"], options.settings)))
        settings = read_settings(first["config"], settings)
    return replace(options, **{each.name: getattr(settings, each.name) for each in fields(settings)})


def _existing(out: str) -> str:
    """A dataset's folder or address as given; if there is no dataset, the error suggests one in the working folder."""
    check_folder_name("out", out)
    folder = Path(out)
    if "://" in out or (folder / "manifest.json").is_file():
        return out
    found = "no manifest.json in it" if folder.is_dir() else "a file" if folder.exists() else "no such folder"
    others = sorted(path.parent.name for path in Path().glob("*/manifest.json"))
    near = difflib.get_close_matches(out, others, n=1) or (others if len(others) == 1 else [])
    advice = f"did you mean --out {near[0]}?" if near else "make one with `jax-diversity build` or `demo`."
    raise UserError(f"Expected a dataset in {out}, found {found}; {advice}")


def _run_stage(stage: Stage, options: StageOptions) -> None:
    from jax_diversity.pipeline.build import Build

    if _follows(options):
        return
    with executing(options.settings, options) as executor:
        build = Build(options.settings, Progress(options.quiet), executor)
        results = [build.run_stage(stage.name)]
    show(build_table(results))
    _show_funnel(results, build.folder.root)


def _follows(options: StageOptions | BuildOptions) -> bool:
    """Whether another host runs the command; then this host has done its jobs now."""
    index, count = options.place()
    if index:
        num_jobs = follow_build(options.settings, options)
        show(f"shard {index} of {count}: {counted(num_jobs, 'job')} done; shard 0 has finished.")
    return index > 0


def _run_prepare(stage: Stage, options: PrepareOptions) -> None:
    if options.sample is not None and not options.dry_run:
        raise UserError(
            "Expected --sample only together with --dry-run, found --sample alone; a dataset contains all documents: "
            "add --dry-run, or leave --sample out."
        )
    if options.dry_run:
        _run_dry(options.settings, Progress(options.quiet), options.sample)
    else:
        _run_stage(stage, options)


def _run_report(stage: Stage, options: ReportOptions) -> None:
    if _is_run(options.out):
        if replace(options.settings, out="", windows=()) != BuildConfig(out="", windows=()):
            raise UserError(
                f"Expected no settings of a build except windows for the report of the run in {options.out}, found "
                "others; leave them out."
            )
        folder = _report_of_run(options)
    else:
        for name in ("version", "families", "target"):
            if getattr(options, name) != getattr(ReportOptions(), name):
                raise UserError(
                    f"Expected a run in {options.out} because of --{name}, found a dataset; leave --{name} out."
                )
        _run_stage(stage, options)
        folder = Path(options.out)
    show_report(folder, options.open)


def _show_funnel(results: Sequence[StageResult], root: Path) -> None:
    """Show the documents that preparation removed, if preparation ran now."""
    for result in results:
        if "preparation" in result.counts and not result.kept:
            show(f"\n{funnel_table(read_json(root / 'preparation' / 'funnel.json', result.stage))}")


def _run_dry(config: BuildConfig, progress: Progress, sample: int | None) -> None:
    """Run the steps of preparation, show the remaining documents, and write nothing."""
    from jax_diversity.corpus.readers.reading import input_size, read_documents, sample_documents
    from jax_diversity.corpus.readers.records import ReadReport
    from jax_diversity.foundation.attempts import time_limit

    if sample is not None:
        as_whole_number("--sample", sample, 1)
    config.check({"corpus", "preparation"})
    chain = config.preparation.chain()
    if chain is None:
        raise UserError(
            "Expected steps to try, found no steps; set preparation.steps in a file for --config, or pass "
            "--preparation.recipe fineweb."
        )
    corpus, report = config.corpus, ReadReport()
    limit = time_limit(config.preparation.seconds_per_document)
    with limit, progress.task("try preparation", None if sample else input_size(corpus), "byte") as advance:
        if sample is None:
            documents = read_documents(corpus, report, advance)
        else:
            documents = sample_documents(corpus, sample, report, advance)
        for _ in chain.through(documents):
            pass
    show(funnel_table(chain.account()))


def _run_build(options: BuildOptions, *, trains: bool = False) -> None:
    # Imported here, after the options are checked, so that `--help` and errors appear without delay.
    from jax_diversity.dataset import open_dataset
    from jax_diversity.pipeline.build import Build

    if _follows(options):
        return
    config, progress = options.settings, Progress(options.quiet)
    if trains and is_address(config.out):
        raise UserError(
            f"Expected a folder for the demonstration (--out), found the address {config.out}; name a folder."
        )
    with executing(config, options) as executor:
        build = Build(config, progress, executor)
        results = build.run_all(report=not trains)
    run = None
    if trains:
        from jax_diversity.lab.training import train_in_place

        run = train_in_place(config.out, config.train, progress)
        results.append(build.run_stage("report"))  # with the run's losses
    show(build_table(results))
    _show_funnel(results, build.folder.root)
    _show_verdict(open_dataset(build.folder.root), config.out, options.all)
    if run is not None:
        show(f"\n{training_line(run)}")
    show_report(build.folder.root, options.open)
    if run is not None:
        show(f"\nTry next:\n{next_steps(config)}")


def _run_order(options: OrderOptions) -> None:
    from jax_diversity.dataset import open_dataset
    from jax_diversity.pipeline.build import Build, recorded_config

    build = Build(recorded_config(_existing(options.out)), Progress(options.quiet))
    has_report = "report" in build.folder.stages
    results = build.run_order(options.order)
    if has_report:  # it would show the orderings as they were
        results.append(build.run_stage("report"))
    show(build_table(results))
    _show_verdict(open_dataset(build.folder.root), options.out, options.all, options.file_name)


def _show_verdict(dataset: Dataset, out: str, shows_all: bool, ordering: str | None = None) -> None:
    """Show whether an ordering is better than a shuffle, and how; with `shows_all`, also all numbers."""
    show(f"\n{orderings_verdict(dataset, ordering)}")
    if shows_all:
        show(f"\n{orderings_table(dataset)}")
    else:
        show(f"More: jax-diversity measure --out {shlex.quote(out)} --all")


def _run_repack(options: RepackOptions) -> None:
    from jax_diversity.pipeline.repacking import repack

    settings = {"seed": options.seed, "sequence_length": options.sequence_length}
    dataset = repack(_existing(options.out), options.to, **settings, progress=Progress(options.quiet))
    show(f"{counted(dataset.num_sequences, 'sequence')} of {counted(dataset.sequence_length, 'token')}: {dataset.root}")


def _run_sample(options: SampleOptions) -> None:
    from jax_diversity.cli.sampling import say_needed, take_samples

    if not options.out.endswith(".parquet"):
        _existing(options.out)
    if options.precision is not None:
        show(say_needed(options))
        return
    for name in ("losses", "pilot"):
        if getattr(options, name) is not None:
            raise UserError(f"Expected --{name} only with --precision, found it alone; add --precision or remove it.")
    show(take_samples(options))


def _run_schedule(options: ScheduleOptions) -> None:
    from jax_diversity.cli.scheduling import schedule_table
    from jax_diversity.run import making
    from jax_diversity.run.run import SCHEDULE_FILE, open_datasets
    from jax_diversity.run.stored import open_schedule

    exists, progress = (Path(options.path) / SCHEDULE_FILE).is_file(), Progress(options.quiet)
    options.check(exists)
    datasets = open_datasets(options.datasets) if options.datasets else []
    if (options.seen or 0) < 0:
        raise UserError(f"Expected --seen >= 0, found {options.seen}.")
    if not exists and not options.datasets:
        open_schedule(options.path)  # raises an error if the run is missing
    with progress.task("schedule", None, "sequence") as advance:
        if not exists:
            if options.position is not None or options.skip:
                raise UserError(
                    f"Expected a schedule at {options.path} for --position or --skip, found no schedule; make it first."
                )
            first = options.ordering
            run = making.create_schedule(
                options.path, datasets, ordering=first, **options.arguments(datasets), advance=advance
            )
        elif options.skip:
            run = making.skip_positions(open_schedule(options.path), *options.skip)
        elif options.position is not None:
            position = None if options.position == -1 else options.position
            run = open_schedule(options.path)
            change = options.arguments([*run.datasets, *datasets])
            run = making.extend_schedule(run, position=position, datasets=datasets, **change, advance=advance)
        else:
            run = open_schedule(options.path)
        if options.background:
            run.wait()
    show(schedule_table(run))
    if options.seen is not None:
        table = run.seen(options.seen, options.out)
        show(f"\n{counted(table.num_rows, 'document')} were read before position {options.seen:,}: {options.out}")


def _open_run(options: Any, ordering: str | None = None) -> Run:
    """Open the run in `--out`: a stored run, or a dataset with an ordering."""
    from jax_diversity.run.run import make_run
    from jax_diversity.run.stored import open_schedule

    if _is_run(options.out):
        if ordering is not None:
            raise UserError(
                f"Expected no ordering, because the run in {options.out} has its own, found {ordering}; omit it."
            )
        return open_schedule(options.out, options.version)
    if options.version is not None:
        raise UserError(f"Expected a run in {options.out} with --version {options.version}, found a dataset.")
    return make_run(_existing(options.out), ordering)


def _is_run(out: str) -> bool:
    """Whether a folder contains a stored run."""
    from jax_diversity.run.run import SCHEDULE_FILE

    return bool(out) and "://" not in out and (Path(out) / SCHEDULE_FILE).is_file()


def _run_measure(options: MeasureOptions) -> None:
    if options.json and (options.markdown or options.relative_to):
        other = "--markdown" if options.markdown else "--relative-to"
        raise UserError(f"Expected --json or {other}, found both; choose one.")
    if options.targets is not None and options.relative_to is not None:
        raise UserError("Expected --targets or --relative-to, found both; measures against targets have no ratios.")
    from jax_diversity.cli.measuring import measures_legend, profile_tables, targets_table, training_curves
    from jax_diversity.run import measuring

    if _is_run(options.out):
        for name in ("orderings", "order", "targets"):
            if getattr(options, name):
                raise UserError(
                    f"Expected no --{name} with the run in {options.out}, which has its own order; leave --{name} out."
                )
        run = _open_run(options)
        given = measuring.choose({run.name: run}, options.windows, options.families)
    else:
        if options.version is not None:
            _open_run(options)  # raises an error for a dataset with --version
        given = measuring.choose_orderings(
            _existing(options.out),
            options.orderings,
            options.order,
            options.windows,
            options.families,
            options.targets,
        )
    progress = Progress(options.quiet)
    if options.json:
        show(json.dumps(measuring.measure_orderings(given, progress, profile=options.profile), indent=2))
        return
    compared, curves = measuring.compare_orderings(given, progress)
    if options.markdown or options.relative_to is not None:
        compared = compared if options.relative_to is None else compared.relative_to(options.relative_to)
        show(compared.markdown() if options.markdown else compared.table())
    else:
        verdict = compared.verdict()
        show(str(verdict if verdict is not None else compared))
        if options.all:
            show(f"\n{measures_legend(given)}\n\n{compared.table()}")
        if options.all or options.curves:
            show(f"\n{training_curves(curves)}")
        if not (options.all or options.curves or options.profile):
            show("More: --all (every measure), --curves (along training), --profile (all sizes)")
    if given.followed is not None:
        beside = measuring.measure_targets(given, given.followed, progress)
        show(f"\n{targets_table(given.followed.name, beside, options.markdown)}")
    if options.profile and not options.markdown:
        show(f"\n{profile_tables(measuring.profile_orderings(given, progress))}")


def _run_inspect(options: InspectOptions) -> None:
    if options.rank is None and options.num_hosts != 1:
        raise UserError(f"Expected --rank with --num-hosts {options.num_hosts}, found no --rank; say which host.")
    if options.rows < 0:
        raise UserError(f"Expected --rows >= 0, found {options.rows}.")
    from jax_diversity.cli.inspecting import as_json, batch_table, document_json, history_text, uses_table
    from jax_diversity.corpus.readers.files import valid_name
    from jax_diversity.dataset import open_dataset
    from jax_diversity.run.history import document_history
    from jax_diversity.run.inspection import Inspector, unknown_document

    if options.document is not None and not _is_run(options.out):
        dataset = open_dataset(_existing(options.out))
        if not dataset.orderings:  # the build has not reached the stage `order`, so a run does not exist yet
            document = valid_name(options.document)
            history = document_history(dataset, document)
            if history.decision is None and not history.is_stored:
                raise unknown_document([dataset], document)
            if options.json:
                show(document_json([history], []))
                return
            kept = ["Preparation kept it. There is no ordering yet: finish the dataset with `jax-diversity build`."]
            show(history_text(document, [*history.sentences, *(kept if history.is_stored else [])], ""))
            return
    run = _open_run(options, options.ordering)
    usual = run.datasets[0].batch_size or max(min(64, len(run)), 1)
    size = usual if options.batch_size is None else options.batch_size
    if options.step * size > _LAST_POSITION:
        raise UserError(
            f"Expected --step of at most {_LAST_POSITION // size} with --batch-size {size}, found {options.step}."
        )
    inspector = Inspector(run, size)
    if options.document is not None:
        document = valid_name(options.document)  # ids that contain file names are stored in this form
        told = [document_history(dataset, document) for dataset in run.datasets]
        is_removed = any(each.decision is not None for each in told) and not any(each.is_stored for each in told)
        uses = [] if is_removed else inspector.uses(document)  # an error for an id that nothing knows
        if options.json:
            show(document_json(told, uses))
            return
        sentences = [sentence for each in told for sentence in each.sentences]
        where = "" if is_removed else uses_table(document, run, uses, inspector.appearances(document))
        show(history_text(document, sentences, where))
        return
    host = {"host_index": options.rank or 0, "num_hosts": options.num_hosts}
    batch = inspector.batch(options.step, **host, compare=options.compare)
    deviations = inspector.deviations(**host) if options.compare else None
    show(as_json(batch, deviations) if options.json else batch_table(batch, run, options.rows, deviations))


def _report_of_run(options: ReportOptions) -> Path:
    from jax_diversity.report.page import write_report
    from jax_diversity.report.run import run_values
    from jax_diversity.run.stored import open_schedule

    run = open_schedule(options.out, options.version)
    values = run_values(run, Progress(options.quiet), options.windows, options.families)
    if options.target is not None:
        check_folder_name("target", options.target)
    folder = run.root if options.target is None else Path(options.target)
    write_report(folder, values)
    return folder


_STAGE_VERBS: dict[str, tuple[Callable[..., None], StageOptions]] = {
    "prepare": (_run_prepare, PrepareOptions()),
    "report": (_run_report, ReportOptions()),
}
"""Stage -> the function of its command, if the command does more than run the stage."""


def _run_export(options: ExportOptions) -> None:
    from jax_diversity.export.export import export

    check_folder_name("target", options.target)
    for line in export(_open_run(options, options.ordering), options, Progress(options.quiet)):
        show(line)


def _run_verify(options: VerifyOptions) -> None:
    from jax_diversity.dataset import open_dataset
    from jax_diversity.foundation.artifacts import OutputFolder
    from jax_diversity.lab.checkpoints import verify_training

    out = _existing(options.out)
    folder = open_dataset(out).stored if is_address(out) else OutputFolder(out)
    sizes = [about["bytes"] for entry in folder.stages.values() for about in entry["files"].values()]
    if not sizes:
        raise UserError(f"Expected a dataset in {options.out}, found no dataset; run `jax-diversity build` first.")
    with Progress(options.quiet).task("verify", sum(sizes), "byte") as advance:
        faults = folder.verify(advance) + verify_training(folder.root)
    if faults:
        named = "; ".join(map(str, faults[:_MOST_FAULTS]))
        if len(faults) > _MOST_FAULTS:
            show("\n".join(map(str, faults)))
            named += " and others (standard output has the full list)"
        raise UserError(
            f"Expected all files in {options.out} unchanged, found {counted(len(faults), 'file')} damaged or missing: "
            f"{named}; restore what is damaged, or delete it and make it again (`jax-diversity "
            "build`, or `train` for a checkpoint)."
        )
    show(f"{options.out}: {counted(len(sizes), 'file')}, {counted(sum(sizes), 'byte')}, all unchanged.")


def _run_lab(options: LabRunOptions) -> None:
    from jax_diversity.cli.experimenting import run_lab

    show(run_lab(options))


def _show_lab(options: LabShowOptions) -> None:
    from jax_diversity.cli.experimenting import show_lab

    show(show_lab(options))


def _explain_lab(options: LabExplainOptions) -> None:
    from jax_diversity.cli.explaining import explain_lab

    show(explain_lab(options))


def _run_train(options: TrainOptions) -> None:
    from dataclasses import replace

    from jax_diversity.lab.training import train_in_place

    run = _open_run(options, options.train.ordering)
    show(training_line(train_in_place(run, replace(options.train, ordering=None), Progress(options.quiet))))
