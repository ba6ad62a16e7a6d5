"""The artifacts of the stage `write`: the records of the training and validation sequences, and their documents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.stored import StoredStages, StoredValue

if TYPE_CHECKING:
    from jax_diversity.streaming.records.reading import RecordReader

RECORDS = "records"


def _layout_ordering(stored: StoredStages) -> str | None:
    counts = stored.counts("write")
    return counts["ordering"] if stored.part == "train" and counts["layout"] == "ordered" else None


def open_records(stored: StoredStages, layout: Path | None, *, memory_map: bool) -> RecordReader:
    """Make a reader of the part's records. See `RecordReader` for the arguments."""
    from jax_diversity.streaming.records.codec import VERSION
    from jax_diversity.streaming.records.reading import RecordReader

    counts, part = stored.counts("write"), stored.part
    overlap = stored.number("pack", "overlap")
    paths, fetch = stored.files_to_fetch("write", f"{RECORDS}/{part}-", ".array_record")
    per_file = counts["records"][part]
    if (version := counts.get("format", 5)) != VERSION:  # the manifest did not have the format before version 6
        raise UserError(
            f"Expected records of format {VERSION} in {stored.root}, found format {version}; run `jax-diversity write` "
            "again, with the version of jax-diversity that reads them."
        )
    if counts["dtype"] not in ("uint16", "int32"):
        raise UserError(
            f"Expected records of uint16 or int32 tokens in {stored.root / 'manifest.json'}, found "
            f"{counts['dtype']!r}; restore the file or run `jax-diversity write` again."
        )
    if len(paths) != len(per_file):
        raise UserError(
            f"Expected {len(per_file)} files of {part} records in {stored.root}, found {len(paths)}; "
            "run `jax-diversity write` again."
        )
    return RecordReader(
        [path.absolute() for path in paths],  # a process that unpickles the reader may have another working folder
        per_file,
        sequence_length=stored.number("pack", "sequence_length") + overlap,
        dtype=counts["dtype"],
        identity=counts["identity"],
        overlap=overlap,
        has_loss_mask=counts.get("has_loss_mask", False),
        layout=None if layout is None else layout.absolute(),
        fetch=fetch,
        memory_map=memory_map,
    )


class RecordArtifacts:
    """The artifacts of the stage `write`."""

    layout_ordering = StoredValue(_layout_ordering)
    """The ordering in which the training records are stored; None means the order of the packing."""
