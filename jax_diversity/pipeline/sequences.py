"""Stages of the sequences: pack, characterize, write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64
from scipy.sparse import csr_array

from jax_diversity.artifacts import write_json
from jax_diversity.errors import UserError
from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.schema import Characteristics


def pack(context: Context, partial: Path) -> Counts:
    """Set validation documents aside and pack both parts into sequences."""
    from jax_diversity import corpus, packing

    config = context.config.packing
    lengths = context.dataset.tokens.document_lengths
    table = corpus.read_columns(context.root / "documents", ["id", "text_hash"])
    groups = _duplicate_groups(table["text_hash"].to_pylist())
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


def _duplicate_groups(text_hashes: list[bytes]) -> Int64[np.ndarray, " document"]:
    _, groups = np.unique(np.array(text_hashes, dtype="S16"), return_inverse=True)
    return groups.astype(np.int64)


def characterize(context: Context, partial: Path) -> Counts:
    """Give every document its codes and count every sequence's tokens per family."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from jax_diversity import characteristics, corpus

    config = context.config.characteristics
    lengths = context.dataset.tokens.document_lengths
    segments = context.dataset.segments
    table = corpus.read_columns(context.root / "documents", ["id", "source", "language", "text_hash"])
    assignments = np.load(context.root / "clusters" / "assignments.npy")
    num_clusters = context.counts("cluster")["num_clusters"]
    codes = {
        "cluster": characteristics.Codes(assignments, tuple(map(str, range(num_clusters)))),
        "length": characteristics.length_bins(lengths, config.length_bins),
        "source": characteristics.categorical(table["source"].to_pylist()),
        "language": characteristics.categorical(table["language"].to_pylist()),
    }
    with context.progress.task("count tokens", len(codes), "families") as advance:
        for family, family_codes in codes.items():
            counts = characteristics.count_tokens(segments, family_codes)
            characteristics.save_counts(partial / f"{family}.npz", counts)
            advance(1)
    columns = {
        "id": table["id"],
        "num_tokens": lengths,
        "cluster": assignments,
        "length_bin": codes["length"].group,
        "source": table["source"],
        "language": table["language"],
        "duplicate_group": _duplicate_groups(table["text_hash"].to_pylist()),
    }
    pq.write_table(pa.table(columns), partial / "documents.parquet", compression="zstd")
    write_json(partial / "groups.json", {family: list(code.names) for family, code in codes.items()})
    families = list(config.families)
    return {
        "families": families,
        "weights": dict.fromkeys(families, 1.0),
        "num_groups": {family: len(family_codes.names) for family, family_codes in codes.items()},
    }


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
