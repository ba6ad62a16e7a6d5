"""The stage `pack`: turns documents' tokens into segments, separately for training and validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int64

from jax_diversity.foundation.artifacts import write_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.foundation.spacing import space_groups
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.foundation.wording import counted
from jax_diversity.packing.settings import PackingConfig
from jax_diversity.packing.stored import (
    APPEARANCES,
    HELD_OUT,
    SEGMENTS,
    SEQUENCES,
    SHUFFLE_INDEX,
    VALIDATION,
    write_segments,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from jax_diversity.packing.base import Packed
    from jax_diversity.packing.report import PackingReport

_COUNTED = (
    "num_tokens_kept",
    "num_tokens_dropped",
    "num_tokens_repeated",
    "num_inserted_ends",
    "num_padding_tokens",
    "num_documents_cut",
)
"""Counts of the packing report that are added up over training and validation."""
_VALIDATION_OPTIONS = {"num_epochs": 1, "num_samples": None, "num_rows": 1}
"""Options for validation documents, which are packed once and in one row."""
_LAST_SEQUENCE = "last_sequence"


def pack_documents(context: Context, partial: Path) -> Counts:
    """Set validation documents aside and pack both parts into sequences."""
    from jax_diversity.packing.appearances import draw_appearances
    from jax_diversity.packing.split import RECORD, hash_ids, split_documents
    from jax_diversity.packing.weighing import weigh_documents

    config: PackingConfig = context.config.packing
    dataset = context.dataset
    lengths, groups = dataset.tokens.document_lengths, dataset.duplicate_groups
    records = np.empty(len(lengths), RECORD)
    records["id"] = hash_ids(dataset.document_store.ids())
    records["held_out"] = validation = split_documents(context, records["id"])
    write_array(partial / HELD_OUT, records)
    del records
    chosen, appearances = ~validation, None
    if (weights := weigh_documents(context)) is not None:
        appearances = draw_appearances(weights, dataset.document_store.ids(), config.seed)
        appearances[validation] = 0
        # Validation documents appear once; documents that never appear are left out of both parts.
        chosen, validation = appearances > 0, validation & (weights > 0)
        write_array(partial / APPEARANCES, appearances)
    # Both parts are packed separately, so with any method no sequence contains tokens of training and validation
    # documents.
    with context.progress.task("pack documents", len(lengths), "document") as advance:
        training, overlap = _store(dataset, partial / SEGMENTS, _packed(context, dataset, chosen, advance, appearances))
        apart, _ = _store(dataset, partial / VALIDATION, _packed(context, dataset, validation, advance, once=True))
    if not training.num_sequences:
        raise UserError(
            f"Expected a corpus of at least one training sequence, packing.sequence_length="
            f"{config.sequence_length} tokens for packing.method={config.method}, found "
            f"{training.num_tokens} tokens; choose shorter sequences or add text."
        )
    if config.method == "megatron":  # store the order in which Megatron would read the sequences, to measure it later
        from jax_diversity.packing.megatron import megatron_indices

        options: dict[str, Any] = {"seed": config.seed, **config.options}
        documents = np.flatnonzero(chosen) if appearances is None else np.repeat(np.arange(len(lengths)), appearances)
        indices = megatron_indices(lengths, documents, config.sequence_length, **options)
        write_array(partial / SHUFFLE_INDEX, indices.shuffle_index)
    return {
        "sequence_length": config.sequence_length,
        "overlap": overlap,
        "num_sequences": training.num_sequences,
        "num_validation_sequences": apart.num_sequences,
        "num_validation_documents": int(validation.sum()),
        "num_duplicate_documents": len(groups) - int(groups.max(initial=-1)) - 1,
        **{name: getattr(training, name) + getattr(apart, name) for name in _COUNTED},
        **_appearance_counts(context, appearances, validation),
    }


def _store(dataset: Any, path: Path, blocks: Iterator[Packed]) -> tuple[PackingReport, int]:
    """Write the segments of a packing, block by block, and return its report and its sequences' overlap."""
    import pyarrow as pa

    lengths = dataset.tokens.document_lengths
    stored: list[tuple[PackingReport, int]] = []

    def tables() -> Iterator[pa.Table]:
        for block in blocks:
            segments = block.segments
            columns = {column: getattr(segments, column) for column in segments.COLUMNS}
            if dataset.has_loss_mask:
                kept = segments.length - segments.inserted_ends(lengths)  # an inserted end token does not count
                columns["num_loss_tokens"] = dataset.tokens.num_loss_tokens_of(
                    segments.document_index, segments.document_offset, kept
                )
            stored.append((block.report, segments.overlap))
            yield pa.table(columns)

    write_segments(path, tables())
    return stored[-1]


def _appearance_counts(
    context: Context,
    appearances: Int64[np.ndarray, " document"] | None,
    validation: Bool[np.ndarray, " document"],
) -> Counts:
    """Return the counts of appearances by weight, and whether a metadata field named `weight` is not used."""
    from jax_diversity.packing.weighing import is_field_unused

    unused = {"unused_weight_field": True} if is_field_unused(context) else {}
    if appearances is None:
        return unused
    return unused | {
        "num_appearances": int(appearances.sum()),
        "num_documents_repeated": int((appearances > 1).sum()),
        "num_documents_left_out": int(((appearances == 0) & ~validation).sum()),
    }


def _packed(
    context: Context,
    dataset: Any,
    chosen: Bool[np.ndarray, " document"],
    advance: Advance,
    appearances: Int64[np.ndarray, " document"] | None = None,
    *,
    once: bool = False,
) -> Iterator[Packed]:
    """Pack the chosen documents in their order with the method and options of the settings, in blocks."""
    from jax_diversity.packing.base import METHODS, pack_in_blocks

    config: PackingConfig = context.config.packing
    lengths = dataset.tokens.document_lengths
    if config.document_order == "shuffle":
        # All documents are shuffled, not only the chosen ones: their order does not depend on the other documents.
        # The numbers have no more bytes than they need; their type does not change the shuffle.
        order = np.arange(len(chosen), dtype=np.min_scalar_type(-len(chosen)))
        np.random.default_rng(config.seed).shuffle(order)
        order = order[chosen[order]]
    else:
        order = np.flatnonzero(chosen)
    if config.document_order == "spacing":
        _, group = np.unique(dataset.assignments("cluster")[order], return_inverse=True)
        with context.progress.task("space documents", len(order), "document") as spaced:
            tokens = lengths[order].astype(np.int64)
            times = 1 if appearances is None else appearances[order]
            order = order[space_groups(group, tokens * times, spaced)]
    arguments: dict[str, Any] = {**config.options, "seed": config.seed}
    if once:
        options = dict(_VALIDATION_OPTIONS)
        if config.validation_choice == "balanced":  # `hash` packs as earlier versions did
            options[_LAST_SEQUENCE] = "pad"
        arguments |= {name: value for name, value in options.items() if METHODS.takes(config.method, name)}
    if METHODS.takes(config.method, "clusters"):
        arguments["clusters"] = dataset.assignments("cluster")
    if METHODS.takes(config.method, "vectors"):
        arguments["vectors"] = np.asarray(dataset.embeddings)  # in memory if it has several files
    return pack_in_blocks(
        lengths,
        config.sequence_length,
        method=config.method,
        document_order=order,
        appearances=appearances,
        advance=advance,
        **arguments,
    )


def _inputs(context: Context) -> tuple[str, ...]:
    from jax_diversity.packing.base import METHODS
    from jax_diversity.packing.weighing import needs_clusters

    config: PackingConfig = context.config.packing
    by_vectors = METHODS.takes(config.method, "vectors")
    by_clusters = METHODS.takes(config.method, "clusters") or config.document_order == "spacing"
    by_clusters = by_clusters or needs_clusters(context)
    by_clusters = by_clusters or (config.validation_choice == "balanced" and config.validation_fraction > 0)
    return ("prepare", "tokenize", *["embed"] * by_vectors, *["cluster"] * by_clusters)


def summary(counts: Counts) -> str:
    """Summarize the counts in one line: number and length of sequences, documents repeated or left out by weight."""
    sequences = f"{counted(counts['num_sequences'], 'sequence')} of {counted(counts['sequence_length'], 'token')}"
    text = f"{sequences}, {counts['num_validation_sequences']:,} for validation"
    if "num_appearances" in counts:
        text += f"; {counted(counts['num_documents_repeated'], 'document')} several times by weight"
        text += f", {counts['num_documents_left_out']:,} never" if counts["num_documents_left_out"] else ""
    if "unused_weight_field" in counts:
        text += "; the field weight is not used (packing.weight_field)"
    return text


def _check_weights(context: Context) -> None:
    from jax_diversity.packing.weighing import weigh_documents

    weigh_documents(context, with_clusters=False)


def _settings(config: Any) -> dict[str, Any]:
    # The place of the earlier dataset is left out: `outside` has a fingerprint of its choice.
    packing = dataclasses.asdict(config.packing)
    del packing["validation_from"]
    return {"packing": packing}


def _earlier(context: Context) -> str:
    from jax_diversity.packing.split import earlier_split

    return earlier_split(context)


PACK = Stage(
    "pack",
    help="Set validation documents aside, pack sequences.",
    section="packing",
    destination=SEQUENCES,
    run=pack_documents,
    summary=summary,
    settings=_settings,
    inputs=_inputs,
    outside=_earlier,
    check=_check_weights,
    remembered=f"{SEQUENCES}/{HELD_OUT}",
    methods="packing.base",
    version=2,
)
