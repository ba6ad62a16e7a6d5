"""The stage `characterize`: documents' codes and segments -> sparse counts, a matrix a family."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.foundation.artifacts import write_json
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.stage import Context, Counts, Stage

if TYPE_CHECKING:
    from jax_diversity.characteristics.codes import Codes

_STORED = ("length", "source", "language", "host", "duplicate")
"""Families that every dataset has, besides its clusterings."""
_FIELD = "field:"
_ROW_GROUP = 65_536
"""Documents that are read together when some of them are asked for."""


def characterize_sequences(context: Context, partial: Path) -> Counts:
    """Give every document its codes and count every sequence's tokens per family."""
    from jax_diversity.characteristics.counts import count_tokens, save_counts

    _check_families(context)
    lengths = context.dataset.tokens.document_lengths
    segments = context.dataset.segments
    codes = _all_codes(context, lengths)
    totals = {}
    with context.progress.task("count tokens", len(codes), "families") as advance:
        for family, family_codes in codes.items():
            counts = count_tokens(segments, family_codes)
            save_counts(partial / f"{family}.npz", counts)
            totals[family] = np.asarray(counts.sum(axis=0, dtype=np.int64)).ravel().tolist()
            advance(1)
    _write_documents(context, partial, lengths, codes)
    write_json(partial / "groups.json", {family: list(code.names) for family, code in codes.items()})
    write_json(partial / "totals.json", totals)
    families = list(context.config.characteristics.families)
    return {
        "families": families,
        "weights": dict.fromkeys(families, 1.0),
        "num_groups": {family: len(family_codes.names) for family, family_codes in codes.items()},
        "num_missing": {family: code.num_missing for family, code in codes.items() if code.num_missing},
        "num_joined": {family: code.num_joined for family, code in codes.items() if code.num_joined},
    }


def _check_families(context: Context) -> None:
    """Whether there is something to make every family of: known as soon as the documents are stored.

    Raises:
        UserError: a family that is neither built in nor a clustering nor a metadata field of any document; a field
            that makes no groups.
    """
    present = context.counts("prepare").get("metadata_fields", {})
    clusterings = context.config.cluster.clusterings
    fields = _fields(context, clusterings)
    for family, field in fields.items():
        if field not in present:
            known = ", ".join([*clusterings, *_STORED])
            raise UserError(
                f"Expected characteristics.families to name families ({known}) or metadata fields of the documents "
                f"({', '.join(present) or 'there are none'}), found {family!r}; take one of these, or add another "
                "clustering to cluster.also."
            )
    if fields:
        _field_codes(context, fields, _metadata_values(context, list(fields.values())))


def _fields(context: Context, clusterings: Iterable[str]) -> dict[str, str]:
    """The families that are metadata fields, each with its field; `field:length` is a field in any case."""
    known = {*_STORED, *clusterings}
    families = [family for family in context.config.characteristics.families if family not in known]
    return {family: family.removeprefix(_FIELD) for family in families}


def _field_codes(context: Context, fields: dict[str, str], values: dict[str, list[Any]]) -> dict[str, Codes]:
    from jax_diversity.characteristics.codes import field_codes

    config = context.config.characteristics
    return {
        family: field_codes(field, values[field], config.field_bins, config.max_groups)
        for family, field in fields.items()
    }


def _all_codes(context: Context, lengths: np.ndarray) -> dict[str, Codes]:
    """Every family's codes: the clusterings', the built-in ones', the asked-for fields'."""
    from jax_diversity.characteristics import codes as make
    from jax_diversity.characteristics.codes import Codes

    config = context.config.characteristics
    dataset = context.dataset
    table = dataset.document_store.columns(["source", "language"])
    clusterings = context.counts("cluster")["clusterings"]  # those that were made
    codes = {
        family: Codes(dataset.assignments(family), tuple(map(str, range(number))))
        for family, number in clusterings.items()
    }
    fields = _fields(context, clusterings)
    values = _metadata_values(context, [config.url_field, *fields.values()])
    codes |= {
        "length": make.length_bins(lengths, config.length_bins),
        "source": make.categorical(_strings(table["source"]), config.max_groups),
        "language": make.categorical(_strings(table["language"]), config.max_groups),
        "host": make.hosts(values[config.url_field], config.max_groups),
        "duplicate": make.copies(dataset.duplicate_groups),
    }
    return codes | _field_codes(context, fields, values)


def _strings(column: Any) -> Iterator[str | None]:
    """An Arrow column's values, a chunk in Python's memory at a time."""
    for chunk in column.chunks:
        yield from chunk.to_pylist()


def _metadata_values(context: Context, names: list[str]) -> dict[str, list[Any]]:
    """Some metadata fields of every document; None where a document lacks one."""
    values: dict[str, list[Any]] = {name: [] for name in names}
    for group in context.dataset.document_store.metadata(names):
        for name, column in values.items():
            column += group[name]
    return values


def _write_documents(context: Context, partial: Path, lengths: np.ndarray, codes: dict[str, Codes]) -> None:
    """Two tables of one row a document: what is known of it, to be read; its group's number in every family."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = context.dataset.document_store.columns(["id", "source", "language"])
    columns: dict[str, Any] = {"id": table["id"], "num_tokens": lengths}
    for family, code in codes.items():
        if family in context.counts("cluster")["clusterings"]:
            columns[family] = code.group
        elif family == "length":
            columns["length_bin"] = code.group
        elif family in ("source", "language"):
            columns[family] = table[family]
        elif family == "duplicate":
            columns["duplicate_group"] = context.dataset.duplicate_groups
        else:
            columns[family] = pa.DictionaryArray.from_arrays(pa.array(code.group), pa.array(code.names, pa.string()))
    numbers = {family: code.group for family, code in codes.items()}
    for name, table in (("documents", columns), ("codes", numbers)):
        path = partial / f"{name}.parquet"
        pq.write_table(pa.table(table), path, compression="zstd", row_group_size=_ROW_GROUP)


def summary(counts: Counts) -> str:
    """How many groups every family has."""
    return ", ".join(f"{family} {groups:,}" for family, groups in counts["num_groups"].items()) + " groups"


CHARACTERIZE = Stage(
    "characterize",
    help="Count every sequence's tokens per cluster, length, source.",
    section="characteristics",
    destination="characteristics",
    run=characterize_sequences,
    summary=summary,
    settings=lambda config: {"characteristics": dataclasses.asdict(config.characteristics)},
    inputs=lambda context: ("prepare", "tokenize", "cluster", "pack"),
    check=_check_families,
)
