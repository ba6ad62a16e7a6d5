"""Tables of stages, orderings and preparation, at most 80 columns wide."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax_diversity.foundation.errors import shortened
from jax_diversity.foundation.tables import plain_table, printed, wrapped
from jax_diversity.foundation.terminal import clean
from jax_diversity.foundation.wording import counted
from jax_diversity.ordering.measures.stored import measured_orderings, read_figures

if TYPE_CHECKING:
    from jax_diversity.lab.training import TrainingRun
    from jax_diversity.pipeline.build import StageResult
    from jax_diversity.streaming.dataset import Dataset


_MOST_GROUPS = 20
"""The largest number of sources and languages in the funnel."""
_MOST_KINDS = 10
"""The largest number of kinds of findings in the funnel."""
_REPEATS = ("window", "repeats mean", "worst", "floor")


def build_table(results: Sequence[StageResult]) -> str:
    """A table with one row per stage: its counts and its seconds."""
    table = plain_table("stage", "made", "seconds", numbers={"seconds"})
    for result in results:
        table.add_row(result.stage, result.summary, "kept" if result.kept else f"{result.seconds:.1f}")
    return printed(table)


def _summaries(dataset: Dataset) -> dict[str, dict[str, Any]]:
    """The measures of the finished orderings."""
    stored = dataset.stored
    return {name: read_figures(stored, name, dataset.families)["balance"] for name in measured_orderings(stored)}


def orderings_verdict(dataset: Dataset, orderings: Sequence[str | None] = (None,)) -> str:
    """The verdicts on some orderings, from the .json files: a sentence for each, and a small table of all.

    None means the dataset's main ordering. Without a measured shuffle there is nothing to compare with: the text names
    the command that compares.
    """
    # These import SciPy, which `--help` does not need.
    from jax_diversity.ordering.measures.verdict import SHUFFLE, judge, means_of, targeted_families, too_few

    summaries = _summaries(dataset)
    if SHUFFLE not in summaries:
        return f"`jax-diversity measure --out {dataset.root}` compares the orderings with a shuffle."
    means = {name: means_of(summary) for name, summary in summaries.items()}
    judged = [ordering for ordering in orderings if ordering != SHUFFLE] or [None]
    targeted = {name: targeted_families(dataset.counts(f"order/{name}"), dataset.families) for name in summaries}
    *others, verdict = (judge(means, SHUFFLE, dataset.batch_size, ordering, targeted) for ordering in judged)
    few = too_few(dataset.num_sequences, verdict.window)
    return "\n".join(
        [
            *(f"{wrapped(other.sentence)}\n" for other in others),
            str(verdict),
            *([wrapped(few)] if few else []),
        ]
    )


def held_out_line(dataset: Dataset) -> str:
    """A sentence that names the sources without a held-out document, or why no document is held out.

    It is empty if every source has one, or if no validation was wanted.
    """
    import numpy as np

    from jax_diversity.sequences.characteristics.codes import column_codes

    held_out = dataset.held_out
    if not held_out.any():
        reason = dataset.counts("pack")["no_validation"]
        return wrapped(f"No document is held out for validation: {reason}.") if reason else ""
    sources = column_codes(dataset.document_store, "source", None)
    num_held_out = np.bincount(sources.group[held_out], minlength=len(sources.names))
    absent = [sources.names[group] for group in np.flatnonzero(num_held_out == 0)]
    if not absent:
        return ""
    shown = [clean(name) for name in absent[:_MOST_KINDS]]
    more = f" and {len(absent) - len(shown):,} more" if len(absent) > len(shown) else ""
    return wrapped(
        f"{counted(len(absent), 'source')} of {len(sources.names):,} without a held-out document: "
        f"{', '.join(shown)}{more}; a larger packing.validation_fraction adds documents."
    )


def orderings_table(dataset: Dataset) -> str:
    """A table of the balance of the finished orderings, from their .json files; smaller is better in every column."""
    summaries = _summaries(dataset)
    if not summaries:
        return "no orderings yet"
    numbers = ("TV mean", "worst", "best", "floor", "prefix L2")
    table = plain_table("family", "window", "ordering", *numbers, numbers={"window", *numbers})
    rows = [
        (family, int(size), name, window, values["prefix_l2_max"])
        for name, summary in summaries.items()
        for family, values in summary["families"].items()
        for size, window in values["windows"].items()
    ]
    families = list(dict.fromkeys(family for family, *_ in rows))
    for family, size, name, window, prefix in sorted(rows, key=lambda row: (families.index(row[0]), row[1])):
        shares = [f"{window[key]:.4f}" for key in ("tv_mean", "tv_worst", "tv_best", "tv_floor")]
        table.add_row(family, str(size), name, *shares, f"{prefix:.2f}")
    spread = {name: summary["documents"] for name, summary in summaries.items() if "documents" in summary}
    repeats = plain_table("window", "ordering", "repeats mean", "worst", "floor", numbers=_REPEATS)
    for size in sorted({size for measured in spread.values() for size in measured["windows"]}, key=int):
        for name, measured in spread.items():
            window = measured["windows"][size]
            # Large datasets have no floor: it needs the sizes of all documents.
            figures = (window["repeats_mean"], window["repeats_worst"], window.get("repeats_floor"))
            repeats.add_row(size, name, *("-" if figure is None else f"{figure:.2f}" for figure in figures))
    drifts = ", ".join(f"{name} {summary['norm_drift_max']:.1f}" for name, summary in summaries.items())
    legend = "TV: half the L1 distance between a window's mixture and the corpus's."
    if spread:
        legend += "\nRepeats: sequences whose document already has a sequence in the window."
    drift = textwrap.wrap(f"norm drift, largest: {drifts}", width=80)
    tables = [printed(table), *([printed(repeats)] if spread else [])]
    return "\n".join(["\n\n".join(tables), *drift, legend])


def funnel_table(account: Mapping[str, Any]) -> str:
    """Tables of numbers of documents: after each step, removed by each rule, left of each source or language."""
    flow = plain_table("step", "documents", "words", "MB", "kept", numbers={"documents", "words", "MB", "kept"})
    rules = plain_table("step", "rule", "reason", "removed", "share", numbers={"removed", "share"})
    for index, step in enumerate(account["steps"]):
        if index == 0:
            flow.add_row("(read)", *_amounts(step, "in"), "")
        flow.add_row(step["step"], *_amounts(step, "out"), _share(step["documents_out"], step["documents_in"]))
        for rule, number in sorted(step["removed"].items(), key=lambda pair: -pair[1]):
            reason = account.get("phrases", {}).get(f"{step['step']}.{rule}", "")
            rules.add_row(step["step"], rule, reason, f"{number:,}", _share(number, step["documents_in"]))
    tables = [flow, rules]
    last = account["steps"][-1]["step"]
    for kind in ("source", "language"):
        table = plain_table(kind, "read", "kept", "share", numbers={"read", "kept", "share"})
        kept = {name: figures["documents_out"] for name, figures in account[kind].get(last, {}).items()}
        # A step may set the language of documents: we count them with the language that they had at the end.
        read = Counter(kept)
        for step in account[kind].values():
            read.update({name: sum(figures["removed"].values()) for name, figures in step.items()})
        for name, before in sorted(read.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST_GROUPS]:
            if before:
                after = kept.get(name, 0)
                table.add_row(shortened(name, 40) or "(none)", f"{before:,}", f"{after:,}", _share(after, before))
        tables.append(table)
    findings = [f"{step['step']} found {_most(step['found'])}" for step in account["steps"] if step["found"]]
    edited = [
        f"{step['step']} edited {counted(step['edited'], 'document')}" for step in account["steps"] if step["edited"]
    ]
    unjudged = [sentence for step in account["steps"] for sentence in _unjudged(step)]
    return "\n\n".join([*map(printed, (table for table in tables if table.row_count)), *findings, *edited, *unjudged])


def _unjudged(step: Mapping[str, Any]) -> Iterator[str]:
    """How many documents passed a step because of its option `only`, and how many a rule did not judge."""
    from jax_diversity.schema.prepared import OUT_OF_SCOPE

    rules = dict(step["unjudged"])
    outside = rules.pop(OUT_OF_SCOPE, 0)
    if outside == step["documents_in"] > 0:
        yield f"{step['step']} judged no document: `only` excludes all {outside:,}"
    elif outside:
        yield f"{step['step']} did not judge {counted(outside, 'document')}, which `only` excludes"
    if rules:
        yield f"{step['step']} did not judge {_most(rules)}"


def _most(counts: Mapping[str, int]) -> str:
    """The most frequent kinds, with their numbers."""
    kinds = sorted(counts.items(), key=lambda pair: -pair[1])
    more = [f"{len(kinds) - _MOST_KINDS:,} kinds more"] if len(kinds) > _MOST_KINDS else []
    return ", ".join([*(f"{number:,} {kind}" for kind, number in kinds[:_MOST_KINDS]), *more])


def _amounts(step: Mapping[str, Any], side: str) -> tuple[str, str, str]:
    figures = (step[f"{name}_{side}"] for name in ("documents", "words", "bytes"))
    documents, words, size = figures
    return f"{documents:,}", f"{words:,}", f"{size / 1e6:,.1f}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def training_line(run: TrainingRun) -> str:
    """The last step and losses of a training run."""
    return textwrap.fill(str(run), width=80, break_on_hyphens=False)
