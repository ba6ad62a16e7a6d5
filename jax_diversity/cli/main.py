"""The command line: parse and dispatch, nothing else.

`jax-diversity VERB` finds the verb's function below; each parses its own typed settings with tyro. A user's mistake
ends with status 2 and one sentence; only bugs give tracebacks. Nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

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
from jax_diversity.pipeline.settings import BuildConfig, demo_config

_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_Options = TypeVar("_Options")


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
        _find_verb(given[0])(given[1:])
    except UserError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted; run the same command again to go on where it stopped.", status=130)
    except BrokenPipeError:  # whoever read what was printed, such as `head`, has had enough
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
    width = max(map(len, _VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {_sentence(verb)}" for name, verb in _VERBS.items())
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


def _sentence(verb: Callable[[list[str]], None]) -> str:
    return (verb.__doc__ or "").strip().splitlines()[0]


def _find_verb(name: str) -> Callable[[list[str]], None]:
    if name in _VERBS:
        return _VERBS[name]
    if name.startswith("-"):
        raise UserError(f"Expected a verb first, as in `jax-diversity measure {name} ...`, found the option {name}.")
    import difflib

    near = difflib.get_close_matches(name, _VERBS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise UserError(f"Unknown verb {name!r}: expected one of {', '.join(_VERBS)}{hint}")


def _parse(kind: type[_Options], verb: str, arguments: list[str], *, hint: str = "", flat: bool = False) -> _Options:
    return parse_options(kind, verb, arguments, f"{_sentence(_VERBS[verb])}{hint}", flat=flat)


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


def _build_config(
    verb: str, arguments: list[str], default: BuildConfig, *, section: str | None = None
) -> tuple[BuildConfig, Progress]:
    """A verb's settings, from a file and the command line; of a stage's verb the help shows its `section` alone."""
    progress = Progress(_pop_flag(arguments, "--quiet"))
    path = _pop(arguments, "--config")
    default = read_settings(path, default) if path else default
    hint = "\n\nBesides:\n  --config FILE.yaml  where options come from that are not given here"
    hint += "\n  --quiet             no progress"
    hint += "\n  --open              show the report in the browser" if verb in _WITH_REPORT else ""
    hidden = []
    if section is not None:
        hidden = [each.name for each in fields(BuildConfig) if each.name not in ("out", section)]
        hint += "\n  any option of `jax-diversity build`, kept for the stage that it belongs to"
    description = f"{_sentence(_VERBS[verb])}{hint}"
    return parse_options(BuildConfig, verb, arguments, description, default=default, hidden=hidden), progress


def _show_report(folder: Path, opens: bool) -> None:
    """Name a dataset's report, and open it where that was asked for."""
    from jax_diversity.cli.guidance import open_report, report_line
    from jax_diversity.cli.tables import show

    report = folder / "report.html"
    show(f"\n{report_line(report)}")
    excuse = open_report(report) if opens else None
    if excuse:
        print(excuse, file=sys.stderr)


def _build(arguments: list[str]) -> None:
    """Make everything, from the documents to records and report."""
    from jax_diversity.cli.tables import build_table, orderings_table, show

    opens = _pop_flag(arguments, "--open")
    config, progress = _build_config("build", arguments, BuildConfig())
    from jax_diversity.pipeline.build import Build

    build = Build(config, progress)
    results = build.run_all()
    show(build_table(results))
    show(f"\n{orderings_table(build.folder)}")
    _show_report(build.folder.root, opens)


def _out(arguments: list[str]) -> str:
    """The dataset's folder, before all else: its recorded settings are a later stage's defaults."""
    path = _pop(list(arguments), "--config")
    return _pop(list(arguments), "--out") or (read_settings(path, BuildConfig()) if path else BuildConfig()).out


def _made(out: str) -> str:
    """A dataset's folder or address as it was given, where there is one; else one that lies here is offered."""
    folder = Path(out)
    if "://" in out or (folder / "manifest.json").is_file():
        return out
    found = "no manifest.json in it" if folder.is_dir() else "a file" if folder.exists() else "no such folder"
    others = sorted(path.parent.name for path in Path().glob("*/manifest.json"))
    advice = f"did you mean --out {others[0]}?" if others else "make one with `jax-diversity build` or `demo`."
    raise UserError(f"Expected a dataset in {out}, found {found}; {advice}")


def _stage_verb(name: str, sentence: str, section: str) -> Callable[[list[str]], None]:
    def run(arguments: list[str]) -> None:
        from jax_diversity.cli.tables import build_table, show
        from jax_diversity.pipeline.build import Build, recorded_config

        opens = name in _WITH_REPORT and _pop_flag(arguments, "--open")
        default = BuildConfig()
        if name != "prepare" and not {"-h", "--help"} & set(arguments):
            default = recorded_config(_made(_out(arguments)))
        config, progress = _build_config(name, arguments, default, section=section)
        build = Build(config, progress)
        show(build_table([build.run_stage(name)]))
        if name in _WITH_REPORT:
            _show_report(build.folder.root, opens)

    run.__doc__ = sentence
    return run


def _order(arguments: list[str]) -> None:
    """Compute and measure one more ordering."""
    from jax_diversity.cli.tables import build_table, methods_list, orderings_table, show

    hint = f"\n\n{methods_list()}" if {"-h", "--help"} & set(arguments) else ""
    options = _parse(OrderOptions, "order", arguments, hint=hint, flat=True)
    from jax_diversity.pipeline.build import Build, recorded_config

    build = Build(recorded_config(_made(options.out)), Progress(options.quiet))
    show(build_table(build.run_order(options.order)))
    show(f"\n{orderings_table(build.folder)}")


def _measure(arguments: list[str]) -> None:
    """Compare orderings with a shuffle: prefixes, windows, drift."""
    from jax_diversity.cli.measuring import measures_legend, profile_plots, training_curves
    from jax_diversity.cli.tables import show

    options = _parse(MeasureOptions, "measure", arguments)
    if options.json and (options.markdown or options.relative_to):
        other = "--markdown" if options.markdown else "--relative-to"
        raise UserError(f"Expected --json or {other}, found both; choose one.")
    from jax_diversity.dataset import measuring

    chosen = measuring.choose_orderings(_made(options.out), options.orderings, options.order, options.windows)
    progress = Progress(options.quiet)
    if options.json:
        print(json.dumps(measuring.measure_orderings(chosen, progress, profile=options.profile), indent=2))
        return
    compared, curves = measuring.compare_orderings(chosen, progress)
    if options.relative_to is not None:
        compared = compared.relative_to(options.relative_to)
    shows_measures = not options.markdown and options.relative_to is None
    if shows_measures:
        show(f"{measures_legend(chosen)}\n")
    show(compared.markdown() if options.markdown else compared.table())
    if shows_measures:
        show(f"\n{training_curves(curves)}")
    if options.profile and not options.markdown:
        show(f"\n{profile_plots(measuring.profile_orderings(chosen, progress))}")


def _inspect(arguments: list[str]) -> None:
    """Show a batch and how good it is, or where a document is used."""
    from jax_diversity.cli.inspecting import as_json, batch_table, uses_table
    from jax_diversity.cli.tables import show

    options = _parse(InspectOptions, "inspect", arguments)
    if options.rank is None and options.num_hosts != 1:
        raise UserError(f"Expected --rank with --num-hosts {options.num_hosts}, found none; say which host.")
    if options.rows < 0:
        raise UserError(f"Expected --rows >= 0, found {options.rows}.")
    from jax_diversity.dataset import inspection, open_dataset
    from jax_diversity.dataset.measuring import batch_deviations

    dataset = open_dataset(_made(options.out))
    inspector = inspection.Inspector(dataset, options.ordering, options.batch_size)
    if options.document is not None:
        uses = inspector.uses(options.document)
        show(as_json(uses) if options.json else uses_table(options.document, uses))
        return
    host, hosts = options.rank or 0, options.num_hosts
    batch = inspector.batch(options.step, host_index=host, num_hosts=hosts)
    deviations = None
    if options.compare:
        deviations = batch_deviations(dataset, options.ordering, options.batch_size, host_index=host, num_hosts=hosts)
    shown = as_json(batch, deviations) if options.json else batch_table(batch, options.rows, deviations)
    show(shown)


def _export(arguments: list[str]) -> None:
    """Write an order or ordered sequences for another stack."""
    from jax_diversity.cli.tables import show

    options = _parse(ExportOptions, "export", arguments)
    from jax_diversity.export.export import export

    for line in export(_made(options.out), options, Progress(options.quiet)):
        show(line)


def _verify(arguments: list[str]) -> None:
    """Compare every stored file with its size and hash."""
    options = _parse(VerifyOptions, "verify", arguments)
    from jax_diversity.foundation.artifacts import OutputFolder

    folder = OutputFolder(_made(options.out))
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


def _train(arguments: list[str]) -> None:
    """Train the lab's small GPT, from its last checkpoint on."""
    from jax_diversity.cli.tables import show, training_line

    options = _parse(TrainOptions, "train", arguments)
    from jax_diversity.lab.run import train_dataset

    show(training_line(train_dataset(_made(options.out), options.train, Progress(options.quiet))))


def _demo(arguments: list[str]) -> None:
    """Build the installed Python packages' texts and train on them."""
    from jax_diversity.cli.guidance import next_steps
    from jax_diversity.cli.tables import build_table, orderings_table, show, training_line

    opens = _pop_flag(arguments, "--open")
    config, progress = _build_config("demo", arguments, demo_config())
    from jax_diversity.lab.run import train_dataset
    from jax_diversity.pipeline.build import Build

    build = Build(config, progress)
    results = build.run_all()
    run = train_dataset(config.out, config.train, progress)
    results[-1] = build.run_stage("report")
    show(build_table(results))
    show(f"\n{orderings_table(build.folder)}\n")
    show(training_line(run))
    _show_report(build.folder.root, opens)
    show(f"\nTry next:\n{next_steps(config)}")


_WITH_REPORT = ("build", "demo", "report")
_VERBS: dict[str, Callable[[list[str]], None]] = {
    "demo": _demo,
    "build": _build,
    "prepare": _stage_verb("prepare", "Read a corpus and store its documents.", "corpus"),
    "tokenize": _stage_verb("tokenize", "Train or load the tokenizer; store all tokens.", "tokenizer"),
    "embed": _stage_verb("embed", "Turn every document into a vector.", "embedding"),
    "cluster": _stage_verb("cluster", "Group the documents' vectors into topic clusters.", "cluster"),
    "pack": _stage_verb("pack", "Set validation documents aside, pack sequences.", "packing"),
    "characterize": _stage_verb(
        "characterize", "Count every sequence's tokens per cluster, length, source.", "characteristics"
    ),
    "order": _order,
    "write": _stage_verb("write", "Write the sequences as ArrayRecord files.", "records"),
    "report": _stage_verb("report", "Draw the report page.", "windows"),
    "measure": _measure,
    "inspect": _inspect,
    "export": _export,
    "verify": _verify,
    "train": _train,
}
