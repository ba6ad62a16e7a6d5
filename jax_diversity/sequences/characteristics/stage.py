"""The stage `characterize`: documents' codes and segments -> sparse counts, one matrix per family.

A *family* is a kind of characteristics, such as topic clusters, document lengths or sources. A *group* is one value of
a family, and a document's *code* is the number of its group.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import (
    copy_file,
    file_hash,
    fingerprint,
    read_array,
    write_array,
    write_json,
)
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.jobs import Job
from jax_diversity.foundation.progress import reached
from jax_diversity.foundation.settings import adopt_settings
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.sequences.characteristics import stored
from jax_diversity.sequences.characteristics.settings import default_families, listed_weight
from jax_diversity.sequences.characteristics.stored import (
    LOSS,
    LOSS_GROUPS,
    SEQUENCE_CLUSTER,
    TOKENS,
    CharacteristicArtifacts,
)

if TYPE_CHECKING:
    from jax_diversity.sequences.characteristics.codes import Bins, Codes

_STORED = ("length", "source", "language", "host", "duplicate")
"""Families of every dataset, besides its clusterings."""
_FIELD = "field:"
_MAX_FIELDS = 5
"""The summary names at most this number of metadata fields."""
FIELD_BINS = 10
"""Number of quantile bins of a numeric metadata field."""
MAX_GROUPS = 1000
"""Maximum number of groups in a family of names (source, language, host, metadata field).

The largest groups are kept; the others form one group.
"""
_ROW_GROUP = 65_536
"""Number of documents in a row group of the stored tables; a row group is read as a whole."""


def characterize_sequences(context: Context, partial: Path) -> Counts:
    """Give every document its codes and count every sequence's tokens per family."""
    dataset = context.dataset
    codes = _all_codes(context, dataset)
    _write_documents(context, dataset, partial, codes)
    totals = _count_sequences(context, dataset, partial, codes)
    fitted = ()
    if SEQUENCE_CLUSTER in context.config.characteristics.possible_families:
        totals[SEQUENCE_CLUSTER] = _write_sequence_clusters(context, dataset, partial).tolist()
        fitted = (file_hash(partial / stored.CENTRES.name),)
    names = {family: list(code.names) for family, code in codes.items()}
    names |= {
        family: [*map(str, range(len(totals[family])))] for family in stored.SEQUENCE_FAMILIES if family in totals
    }
    names |= {LOSS: [*LOSS_GROUPS]} if LOSS in totals else {}
    write_json(partial / CharacteristicArtifacts.group_names.name, names)
    write_json(partial / CharacteristicArtifacts.group_tokens.name, totals)
    bins = {family: dataclasses.asdict(code.bins) for family, code in codes.items() if code.bins is not None}
    write_json(partial / stored.BINS.name, bins)
    weights = _balanced(context, totals)
    return {
        "features": fingerprint(list(weights), bins, *fitted),
        "families": list(weights),
        "weights": weights,
        "other_fields": sorted({*context.counts("prepare")["metadata_fields"]} - {*map(_field_of, weights)}),
        "num_groups": {family: len(groups) for family, groups in names.items()},
        "num_missing": {family: code.num_missing for family, code in codes.items() if code.num_missing},
        "num_joined": {family: code.num_joined for family, code in codes.items() if code.num_joined},
    }


def _count_sequences(context: Context, dataset: Any, partial: Path, codes: Mapping[str, Codes]) -> dict[str, list[int]]:
    """Count all sequences, a range at a time, and join the files of the ranges; return the tokens of every group."""
    from jax_diversity.sequences.characteristics import counting
    from jax_diversity.sequences.characteristics.counting import range_file
    from jax_diversity.sequences.characteristics.counts import arrange_copies, arrange_turns, copied_groups

    folder, num_sequences = partial / "ranges", dataset.num_sequences
    folder.mkdir(exist_ok=True)
    for number, code in enumerate(codes.values()):
        write_array(counting.codes_file(folder, number), code.group)
    groups = copied_groups(dataset.duplicate_groups, dataset.appearances)
    write_array(folder / counting.COPIED_GROUPS, groups)
    num_groups = {family: len(code.names) for family, code in codes.items()}
    # A dataset for evaluation alone has no training sequence, and one empty range.
    bounds = [*range(0, max(num_sequences, 1), counting.SEQUENCES_PER_RANGE), num_sequences]
    has_loss = dataset.has_loss_mask or LOSS in _reference_families(context)
    jobs: list[Job] = [
        (str(folder / f"{number:05}"), (context.opened, first, stop, num_groups, has_loss))
        for number, (first, stop) in enumerate(pairwise(bounds))
    ]
    with context.progress.task("count tokens", num_sequences, "sequence") as advance:
        for stop, _ in zip(bounds[1:], context.executor.map(counting.count_range, jobs), strict=True):
            reached(advance, stop)
    ranges = [Path(name) for name, _ in jobs]

    def joined(what: str) -> np.ndarray:
        return np.concatenate([read_array(range_file(name, what), "characterize") for name in ranges])

    totals: dict[str, list[int]] = {}
    for family in [*num_groups, *[LOSS] * has_loss]:
        name = stored.counts_name(family)
        totals[family] = stored.join_counts(partial / name, [range_file(file, name) for file in ranges]).tolist()
    of_tokens = [read_array(range_file(name, counting.TOKEN_TOTALS), "characterize") for name in ranges]
    totals[TOKENS] = np.sum(of_tokens, axis=0).tolist()
    documents, copies, turns = (
        artifact.name
        for artifact in (
            CharacteristicArtifacts.sequence_documents,
            CharacteristicArtifacts.sequence_copies,
            CharacteristicArtifacts.sequence_turns,
        )
    )
    write_array(partial / documents, joined(documents))
    write_array(partial / copies, arrange_copies(joined(copies), num_sequences))
    if dataset.appearances is not None:
        write_array(partial / turns, arrange_turns(joined(turns), num_sequences))
    shutil.rmtree(folder)
    return totals


def _write_sequence_clusters(context: Context, dataset: Any, partial: Path) -> Int64[np.ndarray, " cluster"]:
    """Store the centres of the family `sequence_cluster` and every sequence's cluster; return the clusters' tokens."""
    from jax_diversity.sequences.characteristics.sequence_clusters import (
        fit_sequence_clusters,
        nearest_clusters,
        num_iterations,
    )

    segments, path = dataset.segments, partial / stored.CENTRES.name
    if context.reference is not None:
        copy_file(stored.CENTRES.path(context.reference.stored), path)
        centres = read_array(path, "characterize")
    else:
        wants_clusters = context.config.characteristics.sequence_clusters
        with context.progress.task("cluster sequences", num_iterations(), "pass") as advance:
            centres = fit_sequence_clusters(segments, dataset.count_segments, wants_clusters, advance)
        write_array(path, centres)
    with context.progress.task("assign sequences", segments.num_sequences, "sequence") as advance:
        clusters = nearest_clusters(segments, dataset.count_segments, centres, advance)
    write_array(partial / stored.SEQUENCE_CLUSTERS.name, clusters)
    totals = np.zeros(len(centres), np.int64)
    np.add.at(totals, clusters[segments.sequence_index], segments.length)
    return totals


def _reference_families(context: Context) -> Sequence[str]:
    """Return the families that the dataset of `features_from` balances; empty without this dataset."""
    return () if context.reference is None else context.reference.counts("characterize")["families"]


def _balanced(context: Context, totals: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return the families that orderings balance, and their weights.

    `totals` has the tokens per group of every stored family.
    """
    if context.reference is not None:
        counts_of_reference = context.reference.counts("characterize")
        return {family: counts_of_reference["weights"][family] for family in counts_of_reference["families"]}
    families = context.config.characteristics.families
    if families == "auto":
        is_empty = not context.dataset.num_sequences  # without training sequences, all groups of documents count
        num_groups = {
            family: len(tokens) if is_empty else np.count_nonzero(tokens) for family, tokens in totals.items()
        }
        return default_families({family: int(number) for family, number in num_groups.items()})
    return {family: listed_weight(family) for family in families}


def _field_of(family: str) -> str:
    """Return the name of a family's metadata field: `field:length` means the field `length`."""
    return family.removeprefix(_FIELD)


def _all_codes(context: Context, dataset: Any) -> dict[str, Codes]:
    """Return the codes of all families: clusterings, built-in families, and the fields in the settings."""
    from jax_diversity.sequences.characteristics import codes as make

    config = context.config.characteristics
    of_fields = _field_codes(context, with_hosts=True)  # before the other families, because it may raise an error
    codes = {
        family: make.Codes(dataset.assignments(family), tuple(map(str, range(number))))
        for family, number in context.counts("cluster")["clusterings"].items()
    }
    num_bins: int = config.length_bins
    bins = _reference_bins(context).get("length", num_bins)
    codes["length"] = make.length_bins(dataset.tokens.document_lengths, bins, config.length_bins_equal)
    for name in ("source", "language"):
        codes[name] = make.column_codes(dataset.document_store, name, MAX_GROUPS)
    codes |= {"host": of_fields.pop("host"), "duplicate": make.copies(dataset.duplicate_groups)}
    return codes | of_fields


def _field_codes(context: Context, *, with_hosts: bool = False) -> dict[str, Codes]:
    """Return the codes of metadata fields; unknown families, and fields that make no groups, are a `UserError`.

    Metadata is JSON, and we parse it only once. With `with_hosts`, the codes of the addresses' hosts are therefore made
    in the same pass.
    """
    from jax_diversity.sequences.characteristics.codes import FieldValues, categorical, encoded, host_of, joined

    config = context.config.characteristics
    families = [*context.config.cluster.clusterings, *_STORED, *stored.SEQUENCE_FAMILIES]
    present = context.counts("prepare")["metadata_fields"]
    values, hosts = {}, []
    for family in [family for family in config.possible_families if family not in families]:
        field = _field_of(family)
        if field not in present and context.reference is None:
            raise UserError(
                f"Expected characteristics.families to name families ({', '.join(families)}) or metadata fields of the "
                f"documents ({', '.join(present) or 'there are none'}), found {family!r}; use one of these, or add "
                "another clustering to cluster.also."
            )
        values[family] = FieldValues(field)
    if values or with_hosts:
        names = [config.url_field, *(column.name for column in values.values())]
        for group in context.dataset.document_store.metadata(names):
            for column in values.values():
                column.add(group[column.name])
            if with_hosts:
                hosts.append(encoded(map(host_of, group[config.url_field])))
    codes = {"host": categorical(joined(hosts), MAX_GROUPS)} if with_hosts else {}
    bins = _reference_bins(context)
    # A field that has no bins in the other dataset is treated as names here.
    num_bins = FIELD_BINS if context.reference is None else 0
    return codes | {family: column.codes(bins.get(family, num_bins), MAX_GROUPS) for family, column in values.items()}


def _reference_bins(context: Context) -> dict[str, Bins]:
    """Return family -> bins of the dataset in `features_from`; empty if there is no such dataset."""
    from jax_diversity.sequences.characteristics.codes import Bins

    if context.reference is None:
        return {}
    bins_by_family = stored.BINS.read(context.reference.stored)
    return {
        family: Bins(**{name: tuple(values) for name, values in bins.items()})
        for family, bins in bins_by_family.items()
    }


def _taken(context: Context) -> str:
    """Return a fingerprint of the families, weights and bins of `features_from`; without it, an empty string."""
    if context.reference is None:
        return ""
    counts_of_reference = context.reference.counts("characterize")
    return fingerprint(counts_of_reference["features"], counts_of_reference["weights"])


def _check_families(context: Context) -> None:
    _field_codes(context)


def _write_documents(context: Context, dataset: Any, partial: Path, codes: dict[str, Codes]) -> None:
    """Write two tables with one row per document: a description for readers, and the groups in every family."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Groups need four bytes per document and are in memory. Ids may need much more; they are read while rows are
    # written.
    columns: dict[str, Any] = {"id": None, "num_tokens": dataset.tokens.document_lengths}  # None: as stored
    for family, code in codes.items():
        if family in context.counts("cluster")["clusterings"]:
            columns[family] = code.group
        elif family == "length":
            columns["length_bin"] = code.group
        elif family in ("source", "language"):
            columns[family] = None
        elif family == "duplicate":
            columns["duplicate_group"] = dataset.duplicate_groups
        else:
            columns[family] = pa.DictionaryArray.from_arrays(pa.array(code.group), pa.array(code.names, pa.string()))
    numbers = pa.table({family: code.group for family, code in codes.items()})
    pq.write_table(numbers, partial / stored.CODES.name, compression="zstd", row_group_size=_ROW_GROUP)
    tables = _document_tables(dataset.document_store, columns)
    first = next(tables)
    with pq.ParquetWriter(partial / stored.DOCUMENTS.name, first.schema, compression="zstd") as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _document_tables(store: Any, columns: dict[str, Any]) -> Iterator[Any]:
    """Yield tables of `_ROW_GROUP` documents. Columns that are None are read from the stored documents."""
    import pyarrow as pa

    as_stored = [name for name, values in columns.items() if values is None]
    waiting, start = None, 0  # `waiting` has the rows of an incomplete row group; slices and joins copy no data
    for path in store.paths:
        read = store.columns(as_stored, path)
        waiting = read if waiting is None else pa.concat_tables([waiting, read])
        # After the last file the remaining rows are a row group too, even if there are few.
        while len(waiting) >= (1 if path == store.paths[-1] else _ROW_GROUP):
            group = waiting.slice(0, _ROW_GROUP)
            waiting = waiting.slice(len(group))
            rows = slice(start, start + len(group))
            start = rows.stop
            yield pa.table({name: group[name] if whole is None else whole[rows] for name, whole in columns.items()})


def summary(counts: Counts) -> str:
    """Return one line: the groups of the balanced families, and the other families and fields."""
    # A manifest is stored with sorted keys. We also sort here, so that the line is the same before and after storing.
    numbers = sorted(counts["num_groups"].items())
    balanced = ", ".join(f"{family} {counts['num_groups'][family]:,}" for family in counts["families"])
    # A family with one group is left out: it is balanced in any order.
    left_out = [f"{family} {number:,}" for family, number in numbers if number > 1 and family not in counts["families"]]
    fields = counts["other_fields"]
    shown = [*fields[:_MAX_FIELDS], *([f"{len(fields) - _MAX_FIELDS} more"] if len(fields) > _MAX_FIELDS else [])]
    left_out += [f"field {field}" for field in shown]
    return f"{balanced} groups" + (f"; not balanced: {', '.join(left_out)}" if left_out else "")


CHARACTERIZE = Stage(
    "characterize",
    help="Count every sequence's tokens per cluster, length, source.",
    section="characteristics",
    destination=stored.CHARACTERISTICS,
    run=characterize_sequences,
    summary=summary,
    settings=lambda config: {"characteristics": dataclasses.asdict(config.characteristics)},
    inputs=lambda context: ("prepare", "tokenize", "cluster", "pack"),
    outside=_taken,
    check=_check_families,
    adopt=lambda config, other: adopt_settings("characteristics", config.characteristics, other, own=("url_field",)),
    resumable=True,
    version=3,
)
