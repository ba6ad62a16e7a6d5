"""What the other stages left, gathered into the report's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_diversity.dataset import Dataset
from jax_diversity.foundation.stage import Context
from jax_diversity.lab.log import read_log
from jax_diversity.measures.floors import ideal_token_shuffle
from jax_diversity.measures.stage import usable_windows
from jax_diversity.report.batches import open_batches
from jax_diversity.report.inputs import (
    ClusterInputs,
    CorpusInputs,
    DocumentGroups,
    PackingInputs,
    PurityInputs,
    ReportInputs,
    TrainingInputs,
)
from jax_diversity.report.orderings import NUM_SEEDS, measured_orderings, profile_references

_SHOWN_OF_STEPS = (
    "step",
    "loss",
    "validation_loss",
    "gradient_diversity",
    "stable_rank",
    "input_wait_seconds",
)


def report_title(context: Context) -> str:
    """The page's title: the dataset's folder."""
    return context.root.resolve().name


def gather_inputs(context: Context) -> ReportInputs:
    """The report's inputs, from a dataset whose orderings are made."""
    dataset = context.dataset
    chars = dataset.characteristics
    windows = usable_windows(context.config.windows, chars.num_sequences)
    about = {stage.removeprefix("order/"): context.counts(stage) for stage in _order_stages(context)}
    group_names = _group_names(context, dataset)
    batch_size = context.config.train.batch_size
    opened = {}
    if chars.num_sequences >= batch_size:
        opened = open_batches(context, dataset, about, group_names, batch_size)
    packing = _packing(context, dataset)
    positions = chars.num_sequences * len(chars.families)
    with context.progress.task("measure orderings", 2 * positions * len(about), "positions") as advance:
        orderings = measured_orderings(dataset, about, windows, group_names, opened, advance)
    with context.progress.task("measure shuffles", NUM_SEEDS * positions, "positions") as advance:
        references = profile_references(chars, advance)
    return ReportInputs(
        title=report_title(context),
        corpus=_corpus(context),
        clusters=_clusters(context),
        packing=packing,
        orderings=orderings,
        ideal_token_tv={
            family: {
                size: ideal_token_shuffle(chars.target_share(family), size, chars.sequence_length) for size in windows
            }
            for family in chars.families
        },
        profile_references=references,
        batch_size=batch_size if opened else None,
        training=training_runs(context),
        settings={name: entry["config"] for name, entry in _shown(context)},
        main_ordering=_main_ordering(context),
        fingerprints={name: entry["fingerprint"] for name, entry in _shown(context)},
    )


def _group_names(context: Context, dataset: Dataset) -> dict[str, Sequence[str]]:
    """What the families' groups are called; a cluster by its terms instead of its number."""
    clusterings = context.counts("cluster")["clusterings"]
    return {
        family: [cluster["name"] for cluster in dataset.clusters(family)]
        if family in clusterings
        else dataset.group_names[family]
        for family in dataset.families
    }


def _main_ordering(context: Context) -> str | None:
    """What training reads, if it is made."""
    name = context.config.train.ordering
    return name if f"order/{name}" in context.folder.stages else None


def _shown(context: Context) -> list[tuple[str, Any]]:
    return [(name, entry) for name, entry in sorted(context.folder.stages.items()) if name != "report"]


def _order_stages(context: Context) -> list[str]:
    """Finished orderings, those that the settings name first and in their order."""
    finished = [name for name in context.folder.stages if name.startswith("order/")]
    wanted = [f"order/{order.file_name}" for order in context.config.orders]
    return sorted(finished, key=lambda name: (wanted.index(name) if name in wanted else len(wanted), name))


def _corpus(context: Context) -> CorpusInputs:
    import pyarrow.parquet as pq

    prepared = context.counts("prepare")
    columns = ["num_tokens", "source", "language", "duplicate_group"]
    table = pq.read_table(context.root / "characteristics" / "documents.parquet", columns=columns)
    skipped = {
        "empty": prepared["num_empty_documents"],
        "broken": prepared["num_broken_records"],
        "without text": prepared["num_without_text"],
        "text is no string": prepared["num_text_not_string"],
        "invalid UTF-8": prepared["num_invalid_utf8"],
    }
    copies = np.bincount(table["duplicate_group"].to_numpy())
    return CorpusInputs(
        text_bytes=prepared["text_bytes"],
        document_lengths=table["num_tokens"].to_numpy(),
        sources=_document_groups(table["source"]),
        languages=_document_groups(table["language"]),
        skipped={reason: count for reason, count in skipped.items() if count},
        num_duplicates=context.counts("pack")["num_duplicate_documents"],
        num_duplicate_groups=int((copies > 1).sum()),
        largest_duplicate_group=int(copies.max(initial=0)),
    )


def _document_groups(column: Any) -> DocumentGroups | None:
    """An Arrow column of names, coded without a Python object a document; None where no document has one."""
    if column.null_count == len(column):
        return None
    coded = column.fill_null("unknown").combine_chunks().dictionary_encode()
    return DocumentGroups(coded.indices.to_numpy().astype(np.int64), tuple(coded.dictionary.to_pylist()))


def _clusters(context: Context) -> ClusterInputs:
    dataset = context.dataset
    counts, clusters = context.counts("cluster"), dataset.clusters()
    lengths = dataset.tokens.document_lengths
    assignments = dataset.assignments()
    return ClusterInputs(
        num_documents=np.array([cluster["num_documents"] for cluster in clusters], np.int64),
        num_tokens=np.bincount(assignments, weights=lengths, minlength=len(clusters)).astype(np.int64),
        top_terms=[cluster["top_terms"] for cluster in clusters],
        example_titles=[cluster["titles"] for cluster in clusters],
        names=[cluster["name"] for cluster in clusters],
        positions=np.array([cluster["position"] or [np.nan, np.nan] for cluster in clusters], np.float64),
        labels=[cluster["label"] for cluster in clusters],
        purity=PurityInputs(
            field=counts["label_field"],
            num_labels=counts["num_labels"],
            largest_label=counts["largest_label"],
            shares={number: counts["purity"][family] for family, number in counts["clusterings"].items()},
            embedding=context.folder.stages["embed"]["config"]["embedding"]["method"],
        ),
    )


def _packing(context: Context, dataset: Dataset) -> PackingInputs:
    from jax_diversity.packing.report import cluster_mix

    counts = context.counts("pack")
    segments = dataset.segments
    mix = cluster_mix(segments, dataset.assignments().astype(np.int32))
    return PackingInputs(
        method=context.folder.stages["pack"]["config"]["packing"]["method"],
        sequence_length=counts["sequence_length"],
        num_sequences=counts["num_sequences"],
        num_validation_sequences=counts["num_validation_sequences"],
        num_tokens_kept=counts["num_tokens_kept"],
        num_tokens_dropped=counts["num_tokens_dropped"],
        num_documents_cut=counts["num_documents_cut"],
        segments_per_sequence=np.bincount(segments.sequence_index, minlength=segments.num_sequences),
        num_padding_tokens=counts["num_padding_tokens"],
        num_inserted_ends=counts["num_inserted_ends"],
        num_tokens_repeated=counts["num_tokens_repeated"],
        clusters_per_sequence=None if mix is None else mix.clusters_per_sequence,
        largest_cluster_share=None if mix is None else mix.largest_share,
    )


def training_runs(context: Context) -> list[TrainingInputs]:
    """Finished or running training runs on these records in one of these orderings."""
    if "write" not in context.folder.stages:
        return []
    dataset = context.dataset
    runs = []
    for stage in _order_stages(context):
        name = stage.removeprefix("order/")
        header, lines = read_log(context.root / "training" / name / "log.jsonl")
        of_this = header.get("dataset") == dataset.fingerprint
        if of_this and header.get("ordering") == context.counts(stage)["fingerprint"] and lines:
            steps = [{key: line[key] for key in _SHOWN_OF_STEPS if line.get(key) is not None} for line in lines]
            runs.append(TrainingInputs(ordering=name, steps=steps))
    return runs
