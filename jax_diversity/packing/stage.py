"""The stage `pack`: documents' tokens -> segments, training and validation apart."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from jax_diversity.foundation.artifacts import write_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.foundation.spacing import space_groups
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.packing.settings import PackingConfig

if TYPE_CHECKING:
    from jax_diversity.packing.base import Packed

_COUNTED = (
    "num_tokens_kept",
    "num_tokens_dropped",
    "num_tokens_repeated",
    "num_inserted_ends",
    "num_padding_tokens",
    "num_documents_cut",
)
"""What is counted over training and validation sequences together."""
_VALIDATION_OPTIONS = {"num_epochs": 1, "num_samples": None, "num_rows": 1}
"""Options for validation documents, which are packed once and in one row."""


def pack_documents(context: Context, partial: Path) -> Counts:
    """Set validation documents aside and pack both parts into sequences."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from jax_diversity.packing.split import validation_mask

    config: PackingConfig = context.config.packing
    dataset = context.dataset
    lengths, groups = dataset.tokens.document_lengths, dataset.duplicate_groups
    validation = validation_mask(dataset.document_store.ids(), groups, config.validation_fraction)
    # Packed apart: no sequence holds tokens of both, whatever the method.
    with context.progress.task("pack documents", len(lengths), "documents") as advance:
        training = _packed(context, dataset, ~validation, advance)
        apart = _packed(context, dataset, validation, advance, once=True)
    if not training.report.num_sequences:
        raise UserError(
            f"Expected a corpus of at least one training sequence, packing.sequence_length="
            f"{config.sequence_length} tokens for packing.method={config.method}, found "
            f"{int(lengths[~validation].sum())} tokens; choose shorter sequences or more text."
        )
    for name, part in (("segments", training.segments), ("validation", apart.segments)):
        table = pa.table({column: getattr(part, column) for column in part.COLUMNS})
        pq.write_table(table, partial / f"{name}.parquet", compression="zstd")
    if config.method == "megatron":  # the order in which Megatron would read the sequences, to be measured
        from jax_diversity.packing.megatron import megatron_indices

        options: dict[str, Any] = {"seed": config.seed, **config.options}
        indices = megatron_indices(lengths, np.flatnonzero(~validation), config.sequence_length, **options)
        write_array(partial / "shuffle_index.npy", indices.shuffle_index)
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
    context: Context, dataset: Any, chosen: Bool[np.ndarray, " document"], advance: Advance, *, once: bool = False
) -> Packed:
    """Some of the documents in their order, packed by the method and the options of the settings."""
    from jax_diversity.packing.base import METHODS, pack

    config: PackingConfig = context.config.packing
    lengths = dataset.tokens.document_lengths
    order = np.flatnonzero(chosen)
    if config.document_order == "shuffle":
        # All documents are shuffled, not the chosen ones: the order of those that stay does not depend on the rest.
        order = np.random.default_rng(config.seed).permutation(len(chosen))
        order = order[chosen[order]]
    elif config.document_order == "spacing":
        _, group = np.unique(dataset.assignments("cluster")[order], return_inverse=True)
        with context.progress.task("space documents", len(order), "documents") as spaced:
            order = order[space_groups(group, lengths[order].astype(np.int64), spaced)]
    arguments: dict[str, Any] = dict(config.options)
    if once:
        arguments |= {name: value for name, value in _VALIDATION_OPTIONS.items() if METHODS.takes(config.method, name)}
    if METHODS.takes(config.method, "clusters"):
        arguments["clusters"] = dataset.assignments("cluster")
    if METHODS.takes(config.method, "vectors"):
        arguments["vectors"] = dataset.embeddings
    return pack(
        lengths,
        config.sequence_length,
        method=config.method,
        document_order=order,
        seed=config.seed,
        advance=advance,
        **arguments,
    )


def _inputs(context: Context) -> tuple[str, ...]:
    from jax_diversity.packing.base import METHODS

    config: PackingConfig = context.config.packing
    by_vectors = METHODS.takes(config.method, "vectors")
    by_clusters = METHODS.takes(config.method, "clusters") or config.document_order == "spacing"
    return ("prepare", "tokenize", *["embed"] * by_vectors, *["cluster"] * by_clusters)


def summary(counts: Counts) -> str:
    """How many sequences of which length."""
    sequences = f"{counts['num_sequences']:,} sequences of {counts['sequence_length']:,} tokens"
    return f"{sequences}, {counts['num_validation_sequences']:,} for validation"


PACK = Stage(
    "pack",
    help="Set validation documents aside, pack sequences.",
    section="packing",
    destination="sequences",
    run=pack_documents,
    summary=summary,
    settings=lambda config: {"packing": dataclasses.asdict(config.packing)},
    inputs=_inputs,
    methods="packing.base",
)
