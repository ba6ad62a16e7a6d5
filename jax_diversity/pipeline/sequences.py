"""Stages of the sequences: pack, write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int64, Integer
from scipy.sparse import csr_array

from jax_diversity.artifacts import read_array, write_array
from jax_diversity.config import BuildConfig, as_plain
from jax_diversity.errors import UserError
from jax_diversity.pipeline import clusters
from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.pipeline.corpus import duplicate_groups
from jax_diversity.progress import Advance
from jax_diversity.schema import Characteristics

if TYPE_CHECKING:
    from jax_diversity.packing import Packed

# What is counted over training and validation sequences together.
_COUNTED = (
    "num_tokens_kept",
    "num_tokens_dropped",
    "num_tokens_repeated",
    "num_inserted_ends",
    "num_padding_tokens",
    "num_documents_cut",
)


def pack(context: Context, partial: Path) -> Counts:
    """Set validation documents aside and pack both parts into sequences."""
    from jax_diversity import corpus, packing

    config = context.config.packing
    lengths = context.dataset.tokens.document_lengths
    table = corpus.read_columns(context.root / "documents", ["id", "text_hash"])
    groups = duplicate_groups(table["text_hash"].to_pylist())
    validation = packing.validation_mask(table["id"].to_pylist(), groups, config.validation_fraction)
    with context.progress.task("pack documents", len(lengths), "documents") as advance:
        training = _packed(context, lengths, ~validation, advance)
        apart = _packed(context, lengths, validation, advance, num_epochs=1, num_samples=None, num_rows=1)
    if not training.report.num_sequences:
        rows = f" in each of packing.num_rows={config.num_rows} rows" if config.method == "partial_shuffle" else ""
        raise UserError(
            f"Expected a corpus of at least one training sequence, packing.sequence_length="
            f"{config.sequence_length} tokens{rows}, found {int(lengths[~validation].sum())} tokens; "
            "choose shorter sequences or more text."
        )
    packing.write_segments(partial / "segments.parquet", training.segments)
    packing.write_segments(partial / "validation.parquet", apart.segments)
    if config.method == "megatron":
        write_array(partial / "shuffle_index.npy", _megatron_order(context, lengths, ~validation))
    return {
        "sequence_length": config.sequence_length,
        "overlap": training.segments.overlap,
        "num_sequences": training.report.num_sequences,
        "num_validation_sequences": apart.report.num_sequences,
        "num_validation_documents": int(validation.sum()),
        "num_duplicate_documents": int(len(groups) - len(np.unique(groups))),
        **{name: getattr(training.report, name) + getattr(apart.report, name) for name in _COUNTED},
    }


def _packed(
    context: Context,
    lengths: Int64[np.ndarray, " document"],
    chosen: Bool[np.ndarray, " document"],
    advance: Advance,
    **instead: Any,
) -> Packed:
    """Some of the documents packed by the method and the options of the settings, but for those given `instead`."""
    from jax_diversity import packing

    config = context.config.packing
    options = {
        name: getattr(config, name) for name in packing.method_options(config.method) if hasattr(config, name)
    }
    options |= {name: value for name, value in instead.items() if name in options}
    if packing.takes(config.method, "clusters"):
        options["clusters"] = read_array(clusters.assignments_path(context, "cluster"), "cluster")
    if packing.takes(config.method, "vectors"):
        options["vectors"] = read_array(context.root / "embeddings" / "embeddings.npy", "embed", mmap=True)
    order = _document_order(context, lengths, chosen)
    return packing.pack(
        lengths,
        config.sequence_length,
        method=config.method,
        document_order=order,
        seed=config.seed,
        advance=advance,
        **options,
    )


def _megatron_order(
    context: Context, lengths: Int64[np.ndarray, " document"], chosen: Bool[np.ndarray, " document"]
) -> Integer[np.ndarray, " sequence"]:
    """The order in which Megatron would read the sequences, to be measured beside other orderings."""
    from jax_diversity.packing.megatron import megatron_order

    config = context.config.packing
    return megatron_order(
        lengths,
        np.flatnonzero(chosen),
        config.sequence_length,
        num_epochs=config.num_epochs,
        num_samples=config.num_samples,
        seed=config.seed,
        last_sequence=config.last_sequence,
    )


def _document_order(
    context: Context, lengths: Int64[np.ndarray, " document"], chosen: Bool[np.ndarray, " document"]
) -> Int64[np.ndarray, " chosen"]:
    """The chosen documents in the order in which they are packed."""
    config = context.config.packing
    if config.document_order == "shuffle":
        order = np.random.default_rng(config.seed).permutation(len(lengths))
        return order[chosen[order]]
    documents = np.flatnonzero(chosen)
    if config.document_order == "corpus":
        return documents
    from jax_diversity import ordering

    assigned = read_array(clusters.assignments_path(context, "cluster"), "cluster")[documents]
    shape = (len(documents), context.counts("cluster")["num_clusters"])
    counts = csr_array((lengths[documents], assigned, np.arange(len(documents) + 1)), shape=shape)
    chars = Characteristics.from_counts({"cluster": counts})
    with context.progress.task("space documents", len(documents), "documents") as advance:
        return documents[ordering.order(chars, "document_spacing", advance=advance).indices]


def write(context: Context, partial: Path) -> Counts:
    """Gather the sequences' tokens and write the records."""
    from jax_diversity.records import write_records

    config = context.config.records
    dataset = context.dataset
    token_dtype = context.counts("tokenize")["token_dtype"]
    parts = {"train": dataset.segments, "validation": dataset.validation_segments}
    order_of = {name: np.arange(part.num_sequences) for name, part in parts.items()}
    if config.layout == "ordered":
        order_of["train"] = dataset.orderings[config.ordering].indices
    # Every record tells what it was packed from: a dataset that is rebuilt under an open reader shows.
    identity = context.folder.stages["pack"]["fingerprint"]
    inserted = context.counts("pack").get("num_inserted_ends", 0)
    lengths = dataset.tokens.document_lengths
    records = {}
    total = sum(part.num_sequences for part in parts.values())
    with context.progress.task("write records", total, "sequences") as advance:
        for name, part in parts.items():
            records[name] = list(
                write_records(
                    part,
                    dataset.tokens.gather,
                    token_dtype,
                    order_of[name],
                    partial,
                    name,
                    sequences_per_file=config.sequences_per_file,
                    identity=identity,
                    inserted_ends=part.inserted_ends(lengths) if inserted else None,
                    end_id=dataset.end_id,
                    num_writers=config.num_writers or len(os.sched_getaffinity(0)),
                    advance=advance,
                )
            )
    ordered = config.ordering if config.layout == "ordered" else None
    return {
        "layout": config.layout,
        "ordering": ordered,
        "records": records,
        "dtype": token_dtype,
        "identity": identity,
    }


def record_settings(config: BuildConfig) -> dict[str, Any]:
    """The settings that decide the records; the number of writers is none of them."""
    settings = as_plain(config.records)
    del settings["num_writers"]
    return {"records": settings}
