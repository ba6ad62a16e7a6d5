"""What the command line prints at the end: tables that read well at 80 columns."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jax_diversity.artifacts import OutputFolder

if TYPE_CHECKING:
    from jax_diversity.inspection import BatchView, Use
    from jax_diversity.pipeline import StageResult
    from jax_diversity.training import TrainingRun


def build_table(results: Sequence[StageResult]) -> str:
    """One row a stage: what it counted, how long it took."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("stage")
    table.add_column("made")
    table.add_column("seconds", justify="right")
    for result in results:
        seconds = "kept" if result.kept else f"{result.seconds:.1f}"
        table.add_row(result.stage, _made(result.stage, result.counts), seconds)
    return _printed(table)


def orderings_table(folder: OutputFolder) -> str:
    """The finished orderings' measured balance, as their .json files keep it; smaller is better everywhere."""
    names = sorted(name.removeprefix("measure/") for name in folder.stages if name.startswith("measure/"))
    summaries = {}
    for name in names:
        about = json.loads((folder.root / "orderings" / f"{name}.json").read_text(encoding="utf-8"))
        summaries[name] = about["balance"]
    if not summaries:
        return "no orderings yet"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("family", "window", "ordering", "TV mean", "worst", "best", "floor", "prefix L2"):
        table.add_column(name, justify="left" if name in ("family", "ordering") else "right")
    for family, size in _rows(summaries):
        for name, summary in summaries.items():
            values = summary["families"].get(family, {"windows": {}})
            if size in values["windows"]:
                window = values["windows"][size]
                shares = [window[key] for key in ("tv_mean", "tv_worst", "tv_best", "tv_floor")]
                prefix = f"{values['prefix_l2_max']:.2f}"
                table.add_row(family, size, name, *[f"{share:.4f}" for share in shares], prefix)
    drifts = ", ".join(f"{name} {summary['norm_drift_max']:.1f}" for name, summary in summaries.items())
    return "\n".join([_printed(table), *textwrap.wrap(f"norm drift, largest: {drifts}", width=80)])


def _rows(summaries: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Families and window sizes that any ordering was measured at."""
    rows: dict[str, set[str]] = {}
    for summary in summaries.values():
        for family, values in summary["families"].items():
            rows.setdefault(family, set()).update(values["windows"])
    return [(family, size) for family, sizes in rows.items() for size in sorted(sizes, key=int)]


def methods_list() -> str:
    """Every ordering method: its options with their defaults, and its first sentence."""
    from jax_diversity.ordering.base import METHODS, describe_method

    lines = ["Methods, and the options of their own with the defaults:"]
    for name in sorted(METHODS):
        sentence, options = describe_method(name)
        # What has no plain value, such as a mesh of devices, is for Python alone.
        given = " ".join(f"{option} {default}" for option, default in options.items() if default != "None")
        lines += [f"  {name}{f'  ({given})' if given else ''}"]
        lines += textwrap.wrap(sentence, width=78, initial_indent=6 * " ", subsequent_indent=6 * " ")
    return "\n".join(lines)


def batch_table(batch: BatchView, num_rows: int) -> str:
    """One batch: how its families lie, and its first rows' documents."""
    size = len(batch.sequences)
    place = f"epoch {batch.epoch}, position {batch.position:,}, {size:,} rows"
    lines = [f"step {batch.step:,} of {batch.ordering!r}: {place}", ""]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("family")
    table.add_column("TV", justify="right")
    table.add_column("largest differences: share here (in the corpus)")
    for family, view in batch.families.items():
        differences = ", ".join(
            f"{name[:24]}: {100 * share:.1f} % ({100 * target:.1f} %)"
            for name, share, target in view.largest_differences(2)
        )
        table.add_row(family, f"{view.total_variation:.3f}", Text(differences))
    lines += [_printed(table, 80), ""]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("row", "sequence", "tokens", "cluster"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    table.add_column("document", overflow="ellipsis", no_wrap=True, max_width=46)
    for sequence in batch.sequences[:num_rows]:
        for index, segment in enumerate(sequence.segments):
            place = (str(sequence.row), f"{sequence.sequence_index:,}") if index == 0 else ("", "")
            name = f"{segment.about['id']} ({segment.about['source']})"
            # The corpus's text is text: neither markup nor control characters reach the terminal.
            name = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)
            table.add_row(*place, f"{segment.num_tokens:,}", str(segment.codes.get("cluster", "")), Text(name))
    lines.append(_printed(table, 80))
    if size > num_rows:
        lines.append(f"... and {size - num_rows:,} rows more (--rows {size}, --json)")
    return "\n".join(lines)


def uses_table(document: str, uses: Sequence[Use]) -> str:
    """Where training meets a document."""
    if not uses:
        return f"{document}: in no training sequence (kept for validation, or lost in packing)"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("step", "row", "position", "sequence", "tokens", "from token"):
        table.add_column(name, justify="right")
    for use in uses:
        values = (use.step, use.row, use.position, use.sequence_index, use.num_tokens, use.document_offset)
        table.add_row(*(f"{value:,}" for value in values))
    return f"{document}, in every epoch:\n{_printed(table, 80)}"


def as_json(value: BatchView | list[Use]) -> str:
    """The same for machines."""
    plain: Any = (
        [dataclasses.asdict(use) for use in value] if isinstance(value, list) else dataclasses.asdict(value)
    )
    return json.dumps(plain, indent=2, default=_plain)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def training_line(run: TrainingRun) -> str:
    """Where a training run ended."""
    return str(run)


def next_steps(folder: OutputFolder) -> str:
    """What a newcomer may try next."""
    out, command = folder.root, _command()
    return (
        f"\nReport: {out / 'report.html'}\n\nTry next:\n"
        f"  {command} measure --out {out} --windows 16 64 256\n"
        f"  {command} order --out {out} --method greedy --objective f3 --name published\n"
        f"  {command} build --corpus.paths 'your/*.jsonl.gz' --out your-dataset"
    )


def _command() -> str:
    """What runs this program again: its name where the shell finds it, else the path it was started by."""
    name = "jax-diversity"
    return name if shutil.which(name) or not sys.argv[0].endswith(name) else sys.argv[0]


def _made(stage: str, counts: Mapping[str, Any]) -> str:
    if stage == "prepare":
        skipped = sum(value for key, value in counts.items() if key.startswith("num_") and key in _SKIPPED)
        text = f"{counts['num_documents']:,} documents, {counts['text_bytes'] / 1e6:,.1f} MB of text"
        first = f"; first: {counts['problems'][0]}" if counts["problems"] else ""
        return f"{text}, {skipped:,} records skipped{first}" if skipped else text
    if stage == "tokenize":
        return f"{counts['num_tokens']:,} tokens, vocabulary of {counts['vocab_size']:,}"
    if stage == "embed":
        return f"{counts['num_documents']:,} vectors of {counts['dimensions']}"
    if stage == "cluster":
        return f"{counts['num_clusters']:,} clusters in {counts['num_iterations']} passes"
    if stage == "pack":
        validation = counts["num_validation_sequences"]
        sequences = f"{counts['num_sequences']:,} sequences of {counts['sequence_length']:,} tokens"
        return f"{sequences}, {validation:,} for validation"
    if stage == "characterize":
        return ", ".join(f"{family} {groups:,}" for family, groups in counts["num_groups"].items()) + " groups"
    if stage.startswith("order/"):
        return f"{counts['num_sequences']:,} positions by {counts['method']}"
    if stage.startswith("measure/"):
        return f"windows of {', '.join(map(str, counts['windows']))} sequences"
    if stage == "write":
        return f"{sum(map(sum, counts['records'].values())):,} records, {counts['layout']} layout"
    return "report.html, report.json"


_SKIPPED = {
    "num_empty_documents",
    "num_broken_records",
    "num_without_text",
    "num_text_not_string",
    "num_invalid_utf8",
}


def _printed(table: Table, width: int = 100) -> str:
    target = io.StringIO()
    Console(file=target, width=width, highlight=False).print(table)
    return target.getvalue().rstrip()
