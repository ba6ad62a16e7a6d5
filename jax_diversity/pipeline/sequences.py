"""Stages of the sequences: pack, write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64
from scipy.sparse import csr_array

from jax_diversity.errors import UserError
from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.pipeline.corpus import duplicate_groups
from jax_diversity.schema import Characteristics


def pack(context: Context, partial: Path) -> Counts:
    """Set validation documents aside and pack both parts into sequences."""
    from jax_diversity import corpus, packing

    config = context.config.packing
    lengths = context.dataset.tokens.document_lengths
    table = corpus.read_columns(context.root / "documents", ["id", "text_hash"])
    groups = duplicate_groups(table["text_hash"].to_pylist())
    validation = packing.validation_mask(table["id"].to_pylist(), groups, config.validation_fraction)
    parts = {
        name: packing.concat(
            lengths, _document_order(context, lengths, chosen), config.sequence_length, config.last_sequence
        )
        for name, chosen in (("segments", ~validation), ("validation", validation))
    }
    if not parts["segments"].num_sequences:
        raise UserError(
            f"Expected a corpus of at least one training sequence, packing.sequence_length="
            f"{config.sequence_length} tokens, found {int(lengths[~validation].sum())} tokens; "
            "choose shorter sequences or more text."
        )
    for name, segments in parts.items():
        packing.write_segments(partial / f"{name}.parquet", segments)
    segments = parts["segments"]
    kept = sum(int(part.length.sum()) for part in parts.values())
    return {
        "sequence_length": config.sequence_length,
        "num_sequences": segments.num_sequences,
        "num_validation_sequences": parts["validation"].num_sequences,
        "num_validation_documents": int(validation.sum()),
        "num_duplicate_documents": int(len(groups) - len(np.unique(groups))),
        "num_tokens_kept": kept,
        "num_tokens_dropped": int(lengths.sum()) - kept,
        "num_documents_cut": sum(packing.num_documents_cut(part) for part in parts.values()),
    }


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

    clusters = np.load(context.root / "clusters" / "assignments.npy")[documents]
    shape = (len(documents), context.counts("cluster")["num_clusters"])
    counts = csr_array((lengths[documents], clusters, np.arange(len(documents) + 1)), shape=shape)
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
