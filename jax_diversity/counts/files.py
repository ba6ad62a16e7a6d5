"""Token counts of sequences in Parquet files: read and written in blocks, so that memory does not grow with the corpus.

A *family* is a kind of characteristics, such as topic clusters, document lengths or sources. A *group* is one value of
a family, such as one cluster. A file has one row per sequence, and two list columns per family: `FAMILY.group` are the
groups of the sequence, `FAMILY.tokens` are its tokens of each of these groups. The columns `document` and `turn`, and
the lists `copies`, are optional. docs/formats.md describes the format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from scipy.sparse import csr_array

from jax_diversity.counts.narrow import COPIES, DOCUMENT, TURN, NarrowCounts, narrow
from jax_diversity.counts.token_counts import MAX_COUNT, MOST_GROUPS, as_weights
from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError, in_one_line

ROWS_PER_GROUP = 65_536
"""Number of sequences in a row group; a row group is read as a whole."""
_ABOUT = b"jax_diversity.counts"
_VERSION = 1
_ENDING = ".parquet"


@dataclass(frozen=True)
class ParquetCounts:
    """Files with the token counts of one corpus; the sequences of the files follow one another.

    Attributes:
        num_groups: family -> its number of groups.
        weights: family -> λ.
        sequence_length: L in tokens.
        batch_size: the global batch size of training; None if it is unknown.
        names: family -> the names of its groups, of families whose groups have names.
        paths: the files.
        columns: the columns of the files that do not belong to a family.
        states: the size and the time of the last change of every file when it was opened.
    """

    num_groups: Mapping[str, int]
    weights: Mapping[str, float]
    sequence_length: int
    batch_size: int | None
    names: Mapping[str, tuple[str, ...]]
    paths: tuple[Path, ...]
    columns: tuple[str, ...]
    states: tuple[tuple[int, int], ...]

    @classmethod
    def open(cls, files: Any) -> ParquetCounts:
        """Open a folder (its `*.parquet`, by name), a file, or several files in the given order.

        Raises:
            UserError: no files; a file that is absent, damaged or of another format; files of different families.
        """
        paths = _as_paths(files)
        descriptions, states = [_about(path) for path in paths], tuple(map(_state, paths))
        names = [description.pop("names") for description in descriptions]
        for path, description, of_groups in zip(paths, descriptions, names, strict=True):
            if different := [
                family for family in names[0] | of_groups if names[0].get(family) != of_groups.get(family)
            ]:
                # Labels are numbered in their own order in every file, so the same number would be another group.
                raise UserError(
                    f"Expected the groups of {different[0]!r} to have the same names in {paths[0]} and {path}, found "
                    "other names; make the counts of all files from the same labels."
                )
            if description != descriptions[0]:
                raise UserError(
                    f"Expected files of equal families, groups, weights, lengths and columns, found {descriptions[0]} "
                    f"in {paths[0]} and {description} in {path}; write all files with the same settings."
                )
        first = descriptions[0]
        weights = as_weights(first["weights"], first["families"])
        described = first["families"], weights, first["sequence_length"], first["batch_size"]
        return cls(
            *described,
            {family: tuple(group_names) for family, group_names in names[0].items()},
            tuple(paths),
            first["columns"],
            states,
        )

    @cached_property
    def _places(self) -> list[tuple[Path, int, int]]:
        """Return the file, the number in the file and the number of sequences of every row group."""
        bounds = []
        for path in self.paths:
            with _opened(path) as file:
                metadata = file.metadata
                bounds += [
                    (path, number, metadata.row_group(number).num_rows) for number in range(metadata.num_row_groups)
                ]
        return bounds

    @property
    def num_sequences(self) -> int:
        """Number of sequences of all files."""
        return sum(number for _, _, number in self._places)

    @property
    def num_entries(self) -> int:
        """See `TokenCounts.num_entries`; read from the metadata of the files."""
        total = 0
        for path in self.paths:
            with _opened(path) as file:
                metadata = file.metadata
                names = [metadata.schema.column(index).path.split(".list.")[0] for index in range(metadata.num_columns)]
                counted = [index for index, name in enumerate(names) if name.endswith(".tokens")]
                # Parquet counts an empty list as one value.
                total += sum(
                    metadata.row_group(number).column(index).num_values
                    for number in range(metadata.num_row_groups)
                    for index in counted
                )
        return total

    def read(self, first: int, stop: int) -> NarrowCounts:
        """Read the sequences `first` up to `stop`.

        Raises:
            UserError: a file is damaged, or was changed after it was opened.
        """
        blocks, start = [], 0
        for path, state in zip(self.paths, self.states, strict=True):
            if _state(path) != state:
                raise UserError(
                    f"Expected {path} to stay as it was when it was opened, found that it was changed; start again."
                )
        for path, number, num_rows in self._places:
            if start < stop and first < start + num_rows:
                rows = slice(max(first - start, 0), min(stop - start, num_rows))
                blocks.append(self._read_row_group(path, number, num_rows, rows))
            start += num_rows
        return NarrowCounts.from_arrays(NarrowCounts.joined(blocks or [self._empty()]))

    def _read_row_group(self, path: Path, number: int, num_rows: int, rows: slice) -> dict[str, np.ndarray]:
        """Read some rows of a row group, and check what later steps rely on."""
        import pyarrow as pa

        lengths, groups, tokens = {}, {}, {}
        documents = copies = turns = None
        try:
            with _opened(path) as file:
                table = file.read_row_group(number, use_threads=False)
                if len(table) != num_rows:
                    raise ValueError(f"{len(table)} rows in place of {num_rows}")
                table = table.slice(rows.start, rows.stop - rows.start).combine_chunks()
                for name, num_groups in self.num_groups.items():
                    lengths[name], groups[name] = _flat(table[f"{name}.group"])
                    counted, tokens[name] = _flat(table[f"{name}.tokens"])
                    if not np.array_equal(counted, lengths[name]):
                        raise ValueError(f"the columns {name}.group and {name}.tokens have lists of different lengths")
                    _check_canonical(name, lengths[name], groups[name], tokens[name], num_groups)
                if DOCUMENT in table.column_names:
                    documents = _integers(table[DOCUMENT])
                if TURN in table.column_names:
                    turns = _integers(table[TURN])
                if COPIES in table.column_names:
                    sizes, members = _flat(table[COPIES])
                    copies = np.full((len(sizes), int(sizes.max(initial=0))), -1)
                    copies[np.arange(copies.shape[1]) < sizes[:, None]] = members
                return NarrowCounts(lengths, groups, tokens, documents, copies, turns).arrays()
        except (OSError, IndexError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
            raise UserError(
                f"Expected the counts of {num_rows:,} sequences in row group {number} of {path}, found: "
                f"{in_one_line(error)}; the file is damaged or was changed: write it again."
            ) from None

    def _empty(self) -> dict[str, np.ndarray]:
        counts = {name: csr_array((0, number), dtype=np.int32) for name, number in self.num_groups.items()}
        none = np.zeros(0, np.int64)
        documents, turns = (none if name in self.columns else None for name in (DOCUMENT, TURN))
        copies = none[:, None] if COPIES in self.columns else None
        return NarrowCounts.of(counts, documents, copies, turns).arrays()


def write_counts(
    path: Path,
    block: NarrowCounts,
    num_groups: Mapping[str, int],
    weights: Mapping[str, float],
    sequence_length: int,
    batch_size: int | None,
    names: Mapping[str, Sequence[str]],
) -> None:
    """Write counts into a file, atomically; see `ParquetCounts` for the arguments."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if (largest := max(num_groups.values())) >= MOST_GROUPS:
        raise UserError(f"Expected families of fewer than {MOST_GROUPS:,} groups in a file, found {largest:,}.")
    if path.suffix != _ENDING:
        raise UserError(f"A file of counts must have a name that ends in {_ENDING}, found {path.name!r}.")
    description = {
        "version": _VERSION,
        "families": dict(num_groups),
        "weights": dict(weights),
        "sequence_length": sequence_length,
        "batch_size": batch_size,
        "names": {family: list(groups) for family, groups in names.items()},
    }
    columns: dict[str, Any] = {}
    for name, lengths in block.lengths.items():
        for kind, values in (("group", block.groups[name]), ("tokens", block.tokens[name])):
            columns[f"{name}.{kind}"] = _lists(lengths, values)
    if block.documents is not None:
        columns[DOCUMENT] = pa.array(block.documents)
    if block.copies is not None:
        is_copy = block.copies >= 0
        columns[COPIES] = _lists(is_copy.sum(axis=1), block.copies[is_copy])
    if block.turns is not None:
        columns[TURN] = pa.array(block.turns)
    table = pa.table(columns).replace_schema_metadata({_ABOUT: json.dumps(description).encode()})
    with atomic_path(path) as temporary:
        # Dictionaries store a count in 10 to 12 bits; compressing them saves 8 % and doubles the time of reading.
        pq.write_table(
            table,
            temporary,
            row_group_size=ROWS_PER_GROUP,
            compression="none",
            write_page_checksum=True,
            store_schema=True,
        )


def _lists(lengths: np.ndarray, values: np.ndarray) -> Any:
    import pyarrow as pa

    offsets = np.append(0, np.cumsum(lengths, dtype=np.int64))
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))


def _as_paths(files: Any) -> list[Path]:
    """Return the files of a folder, or the given file or files."""
    if isinstance(files, str | Path):
        path = Path(files)
        paths = sorted(path.glob(f"*{_ENDING}")) if path.is_dir() else [path]
        if not paths:
            raise UserError(f"Expected files of counts (*{_ENDING}) in {path}, found none.")
        return paths
    try:
        paths = [Path(path) for path in files]
    except TypeError:
        raise UserError(
            f"Expected files of counts as a folder, a file or several files, found {type(files).__name__}."
        ) from None
    if not paths:
        raise UserError("Expected files of counts, found none.")
    return paths


def _opened(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise UserError(f"Expected a file of counts at {path}, found no such file.") from None
    except (OSError, pa.ArrowException) as error:
        raise UserError(
            f"Expected a file of counts (Parquet) at {path}, found: {in_one_line(error)}; write it again."
        ) from None


def _state(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _about(path: Path) -> dict[str, Any]:
    """Read and check the description in a file."""
    with _opened(path) as file:
        schema = file.schema_arrow
    try:
        description = json.loads((schema.metadata or {})[_ABOUT])
        version, families, weights = description.pop("version"), description["families"], description["weights"]
    except (KeyError, ValueError, TypeError, AttributeError):
        raise UserError(
            f"Expected a file of counts that Characteristics.save wrote at {path}, found a Parquet file without a "
            "description of counts."
        ) from None
    if version != _VERSION:
        raise UserError(f"Expected counts of version {_VERSION} in {path}, found {version!r}; use a newer release.")
    length, sizes = description.get("sequence_length"), [*families.values()] if isinstance(families, dict) else [None]
    batch_size, names = description.get("batch_size"), description.setdefault("names", {})
    if (
        not families
        or not all(type(number) is int and 0 < number < MOST_GROUPS for number in sizes)
        or not (type(length) is int and 0 < length <= MAX_COUNT)
        or not isinstance(weights, dict)
        or set(weights) != set(families)
        or not (batch_size is None or (type(batch_size) is int and batch_size > 0))
        or not isinstance(names, dict)
        or not all(
            isinstance(value, list)
            and len(value) == families.get(family)
            and all(type(value) is str for value in value)
            for family, value in names.items()
        )
    ):
        raise UserError(f"Expected a description of families and lengths in {path}, found {in_one_line(description)}.")
    absent = {f"{name}.{kind}" for name in families for kind in ("group", "tokens")} - set(schema.names)
    if absent:
        raise UserError(f"Expected the column {min(absent)!r} in {path}, found {in_one_line(schema.names)}.")
    return {**description, "columns": tuple(name for name in (DOCUMENT, COPIES, TURN) if name in schema.names)}


def _integers(column: Any) -> Int64[np.ndarray, " sequence"]:
    """Return a column of whole numbers."""
    import pyarrow as pa

    if column.null_count or not pa.types.is_integer(column.type):
        raise ValueError(f"numbers of the type {column.type}, {column.null_count} of them null")
    return column.to_numpy().astype(np.int64)


def _check_canonical(name: str, lengths: np.ndarray, groups: np.ndarray, tokens: np.ndarray, num_groups: int) -> None:
    """Check that every row has ascending groups with tokens: other lists of the same counts would be another corpus.

    The numbers are checked before they get narrower types, in which a large number would become another one.
    """
    if len(groups) and not 0 <= int(groups.min()) <= int(groups.max()) < num_groups:
        raise ValueError(f"groups {groups.min()} .. {groups.max()} of {num_groups:,} in {name}.group")
    if len(tokens) and not 1 <= int(tokens.min()) <= int(tokens.max()) <= MAX_COUNT:
        raise ValueError(f"counts {tokens.min()} .. {tokens.max()} in {name}.tokens, expected 1 .. 2^53")
    ascends = np.diff(groups.astype(np.int64)) > 0
    ends = np.cumsum(lengths, dtype=np.int64)[:-1]
    ascends[ends[(ends > 0) & (ends < len(groups))] - 1] = True  # the next row begins with any group
    if not ascends.all():
        raise ValueError(f"a sequence whose groups in {name}.group do not ascend")


def _flat(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths and the values of a column of lists."""
    import pyarrow as pa

    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise ValueError(f"a column of the type {column.type} in place of lists")
    lists = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if column.null_count:
        raise ValueError("lists that are null")
    offsets = lists.offsets.to_numpy()
    values = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
    if values.null_count:
        raise ValueError("numbers that are null")
    array = values.to_numpy()
    if array.dtype.kind not in "iu":
        raise ValueError(f"numbers of the type {array.dtype}")
    return narrow(np.diff(offsets)), array
