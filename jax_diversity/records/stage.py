"""The stage `write`: it gathers the tokens of the sequences and writes them as records."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from jax_diversity.foundation.processes import num_cores
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.foundation.wording import counted
from jax_diversity.records.settings import RecordsConfig
from jax_diversity.records.stored import RECORDS


def write_sequences(context: Context, partial: Path) -> Counts:
    """Gather the sequences' tokens and write the records."""
    from jax_diversity.records.writing import write_records

    config: RecordsConfig = context.config.records
    dataset = context.dataset
    token_dtype = context.counts("tokenize")["token_dtype"]
    parts = {"train": dataset.segments, "validation": dataset.validation_segments}
    ordering = config.ordering if config.layout == "ordered" else None
    order_of = {name: np.arange(part.num_sequences) for name, part in parts.items()}
    if ordering is not None:
        order_of["train"] = dataset.orderings[ordering].indices
    # Every record has the fingerprint of the packing. With it, an open reader detects a new build of the dataset.
    identity = context.folder.stages["pack"]["fingerprint"]
    inserted = context.counts("pack")["num_inserted_ends"]
    records = {}
    total = sum(part.num_sequences for part in parts.values())
    with context.progress.task("write records", total, "sequence") as advance:
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
                    inserted_ends=part.inserted_ends(dataset.tokens.document_lengths) if inserted else None,
                    end_id=dataset.end_id,
                    read_loss_mask=dataset.tokens.loss_mask if dataset.has_loss_mask else None,
                    num_writers=num_cores(),
                    advance=advance,
                )
            )
    counts = {"records": records, "dtype": token_dtype, "identity": identity}
    if dataset.has_loss_mask:
        counts["has_loss_mask"] = True
    return {"layout": config.layout, "ordering": ordering, **counts}


def summary(counts: Counts) -> str:
    """Return one line: the numbers of records and files, and the order."""
    records = counts["records"]
    where = f"in the order of {counts['ordering']!r}" if counts["layout"] == "ordered" else "as packed"
    num_files = sum(map(len, records.values()))
    return (
        f"{sum(records['train']):,} + {sum(records['validation']):,} records in {counted(num_files, 'file')}, {where}"
    )


def _inputs(context: Context) -> tuple[str, ...]:
    config: RecordsConfig = context.config.records
    needs = ("tokenize", "pack")
    return (*needs, f"order/{config.ordering}") if config.layout == "ordered" else needs


WRITE = Stage(
    "write",
    help="Write the sequences as ArrayRecord files.",
    section="records",
    destination=RECORDS,
    run=write_sequences,
    summary=summary,
    settings=lambda config: {"records": dataclasses.asdict(config.records)},
    inputs=_inputs,
    resumable=True,
    packages=("array_record",),
)
