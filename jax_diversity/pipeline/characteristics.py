"""The stage of the characteristics: documents' codes, sequences' counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jax_diversity.artifacts import write_json
from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.pipeline.corpus import duplicate_groups


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
        "duplicate_group": duplicate_groups(table["text_hash"].to_pylist()),
    }
    pq.write_table(pa.table(columns), partial / "documents.parquet", compression="zstd")
    write_json(partial / "groups.json", {family: list(code.names) for family, code in codes.items()})
    families = list(config.families)
    return {
        "families": families,
        "weights": dict.fromkeys(families, 1.0),
        "num_groups": {family: len(family_codes.names) for family, family_codes in codes.items()},
    }
