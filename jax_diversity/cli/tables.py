"""Tables of what was built and measured; at most 80 columns wide."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.foundation.methods import Methods
from jax_diversity.foundation.stage import Stage

if TYPE_CHECKING:
    from jax_diversity.lab.run import TrainingRun
    from jax_diversity.pipeline.build import StageResult


def build_table(results: Sequence[StageResult]) -> str:
    """One row a stage: what it counted, how long it took."""
    table = plain_table("stage", "made", "seconds", numbers={"seconds"})
    for result in results:
        seconds = "kept" if result.kept else f"{result.seconds:.1f}"
        table.add_row(result.stage, result.summary, seconds)
    return printed(table)


def orderings_table(folder: OutputFolder) -> str:
    """The finished orderings' measured balance, as their .json files keep it; smaller is better everywhere."""
    names = sorted(name.removeprefix("measure/") for name in folder.stages if name.startswith("measure/"))
    summaries = {}
    for name in names:
        about = json.loads((folder.root / "orderings" / f"{name}.json").read_text(encoding="utf-8"))
        summaries[name] = about["balance"]
    if not summaries:
        return "no orderings yet"
    numbers = ("TV mean", "worst", "best", "floor", "prefix L2")
    table = plain_table("family", "window", "ordering", *numbers, numbers={"window", *numbers})
    for family, size in _rows(summaries):
        for name, summary in summaries.items():
            values = summary["families"].get(family, {"windows": {}})
            if size in values["windows"]:
                window = values["windows"][size]
                shares = [window[key] for key in ("tv_mean", "tv_worst", "tv_best", "tv_floor")]
                prefix = f"{values['prefix_l2_max']:.2f}"
                table.add_row(family, size, name, *[f"{share:.4f}" for share in shares], prefix)
    drifts = ", ".join(f"{name} {summary['norm_drift_max']:.1f}" for name, summary in summaries.items())
    legend = "TV: half the L1 distance between a window's mixture and the corpus's."
    drift = textwrap.wrap(f"norm drift, largest: {drifts}", width=80)
    return "\n".join([printed(table), *drift, legend])


def _rows(summaries: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Families and window sizes that any ordering was measured at."""
    rows: dict[str, set[str]] = {}
    for summary in summaries.values():
        for family, values in summary["families"].items():
            rows.setdefault(family, set()).update(values["windows"])
    return [(family, size) for family, sizes in rows.items() for size in sorted(sizes, key=int)]


def methods_list(stage: Stage) -> str:
    """Every method of a stage: its options with their defaults, and its first sentence."""
    methods: Methods = import_module(f"jax_diversity.{stage.methods}").METHODS
    lines = ["Methods, and the options of their own with the defaults:"]
    for name in sorted(methods):
        sentence, options = methods.describe(name)
        given = " ".join(f"{option} {(default or '(needed)').strip(chr(39))}" for option, default in options.items())
        lines.append(f"  {name}{f'  ({given})' if given else ''}")
        lines += textwrap.wrap(sentence, width=78, initial_indent=6 * " ", subsequent_indent=6 * " ")
    return "\n".join(lines)


def training_line(run: TrainingRun) -> str:
    """Where a training run ended."""
    return textwrap.fill(str(run), width=80, break_on_hyphens=False)


def plain_table(*columns: str, numbers: Collection[str] = (), no_wrap: bool = False) -> Table:
    """A table without lines; the columns `numbers` are aligned to the right."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=no_wrap)
    return table


def printed(table: Table) -> str:
    """A table as plain text, without colours whatever the environment says: the output may go to a file."""
    target = io.StringIO()
    console = Console(
        file=target, width=80, highlight=False, markup=False, emoji=False, color_system=None, force_terminal=False
    )
    console.print(table)
    text = "\n".join(line.rstrip() for line in target.getvalue().rstrip().splitlines())
    return text if speaks_unicode() else text.replace("…", "~")


def show(text: str) -> None:
    """Print to standard output; characters that its encoding lacks become question marks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def speaks_unicode(stream: Any = None) -> bool:
    """Tell whether a stream, standard output where none is given, can show more than ASCII."""
    encoding = getattr(sys.stdout if stream is None else stream, "encoding", None) or "ascii"
    try:
        return codecs.lookup(encoding).name.startswith("utf") and os.environ.get("TERM") != "dumb"
    except LookupError:
        return False
