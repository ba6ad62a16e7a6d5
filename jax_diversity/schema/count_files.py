"""Token counts of sequences in Parquet files: read and written in blocks, so that memory does not grow with the corpus.

A *family* is a kind of characteristics, such as topic clusters, document lengths or sources. A *group* is one value of
a family, such as one cluster. A file has one row per sequence, and two list columns per family: `FAMILY.group` are the
groups of the sequence, `FAMILY.tokens` are its tokens of each of these groups. The column `document` and the list
column `copies` are optional. docs/formats.md describes the format.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer
from scipy.sparse import csr_array

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError, in_one_line

ROWS_PER_GROUP = 65_536
"""Number of sequences in a row group; a row group is read as a whole."""
_ABOUT = b"jax_diversity.counts"
_VERSION = 1
_DOCUMENT, _COPIES = "document", "copies"
_ENDING = ".parquet"
_TOGETHER = 1 << 20
_MOST_TOGETHER = 4


@dataclass(frozen=True)
class CountBlock:
    """The token counts of some consecutive sequences, in narrow types.

    Attributes:
        lengths: family -> the number of groups of every sequence.
        groups: family -> the groups, sequence after sequence.
        tokens: family -> the tokens of these groups.
        documents: the document of every sequence; None if unknown.
        copies: the groups of copies (sequence, member); unused places are negative. None if unknown.
    """

    lengths: Mapping[str, Integer[np.ndarray, " sequence"]]
    groups: Mapping[str, Integer[np.ndarray, " _nonzero"]]
    tokens: Mapping[str, Integer[np.ndarray, " _nonzero"]]
    documents: Int64[np.ndarray, " sequence"] | None = None
    copies: Int64[np.ndarray, "sequence member"] | None = None

    @classmethod
    def of(
        cls,
        counts: Mapping[str, csr_array],
        documents: Int64[np.ndarray, " sequence"] | None = None,
        copies: Int64[np.ndarray, "sequence member"] | None = None,
    ) -> CountBlock:
        """Copy the counts of all families (sequence, group) into narrow arrays."""
        return cls(
            {name: _narrow(np.diff(matrix.indptr)) for name, matrix in counts.items()},
            {name: _narrow(matrix.indices) for name, matrix in counts.items()},
            {name: _narrow(matrix.data) for name, matrix in counts.items()},
            documents,
            copies,
        )

    def __len__(self) -> int:
        return len(next(iter(self.lengths.values())))

    def counts(self, num_groups: Mapping[str, int]) -> dict[str, csr_array]:
        """Return the counts as matrices (sequence, group) with int32 counts, or int64 if they do not fit."""
        found = {}
        for name, lengths in self.lengths.items():
            data, starts = self.tokens[name], np.append(0, np.cumsum(lengths, dtype=np.int64))
            index_type = np.int32 if starts[-1] < 2**31 else np.int64
            parts = (
                data.astype(np.int32 if int(data.max(initial=0)) < 2**31 else np.int64),
                self.groups[name].astype(index_type),
                starts.astype(index_type),
            )
            found[name] = csr_array(parts, shape=(len(lengths), num_groups[name]))
        return found

    def take(self, rows: Int64[np.ndarray, " row"]) -> CountBlock:
        """Return some sequences, in the given order.

        Example:
            >>> CountBlock.of({"topic": csr_array([[3, 1], [0, 4]])}).take(np.array([1])).tokens["topic"].tolist()
            [4]
        """
        lengths, groups, tokens = {}, {}, {}
        for name, of_all in self.lengths.items():
            own = of_all[rows].astype(np.int64)
            starts = (np.cumsum(of_all, dtype=np.int64) - of_all)[rows]
            entries = np.repeat(starts - (np.cumsum(own) - own), own) + np.arange(own.sum())
            lengths[name] = of_all[rows]
            groups[name], tokens[name] = self.groups[name][entries], self.tokens[name][entries]
        documents, copies = (None if each is None else each[rows] for each in (self.documents, self.copies))
        return CountBlock(lengths, groups, tokens, documents, copies)

    @staticmethod
    def joined(blocks: Sequence[CountBlock]) -> CountBlock:
        """Return the sequences of some blocks, one block after another."""
        arrays = [block.arrays() for block in blocks]
        width = max(each[_COPIES].shape[1] for each in arrays) if _COPIES in arrays[0] else 0
        for each in arrays if width else ():
            missing = width - each[_COPIES].shape[1]
            each[_COPIES] = np.pad(each[_COPIES], ((0, 0), (0, missing)), constant_values=-1)
        return CountBlock.from_arrays({name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]})

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name; see `from_arrays`."""
        named = {
            f"{kind}/{name}": values
            for kind in ("lengths", "groups", "tokens")
            for name, values in getattr(self, kind).items()
        }
        optional = {_DOCUMENT: self.documents, _COPIES: self.copies}
        return named | {name: values for name, values in optional.items() if values is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> CountBlock:
        """Make a block from the arrays of `arrays`."""

        def columns(kind: str) -> dict[str, np.ndarray]:
            return {name.removeprefix(kind): each for name, each in arrays.items() if name.startswith(kind)}

        documents, copies = arrays.get(_DOCUMENT), arrays.get(_COPIES)
        return cls(columns("lengths/"), columns("groups/"), columns("tokens/"), documents, copies)

    @property
    def digest(self) -> str:
        """A hash of the block, which does not depend on the types of its arrays."""
        found = hashlib.sha256()
        for name, values in self.arrays().items():
            # An array of a block of 2^20 sequences has only some megabytes.
            wide = values.astype(np.int64 if name in (_DOCUMENT, _COPIES) else np.uint32)
            found.update(f"{name} {wide.shape}".encode() + wide.tobytes())
        return found.hexdigest()


def _narrow(values: np.ndarray) -> Integer[np.ndarray, " value"]:
    """Copy numbers >= 0 into uint16, or into a wider type if they do not fit."""
    largest = int(values.max(initial=0))
    return values.astype(np.uint16 if largest < 2**16 else np.uint32 if largest < 2**32 else np.uint64)


@dataclass(frozen=True)
class StoredCounts(ABC):
    """The token counts of one corpus on a disk: files of counts, or a built dataset.

    Attributes:
        num_groups: family -> its number of groups.
        weights: family -> λ, the weight of the family's squared deviations.
        sequence_length: L in tokens.
        batch_size: the global batch size of training; None if it is unknown.
        names: family -> the names of its groups, of families whose groups have names.
    """

    num_groups: Mapping[str, int]
    weights: Mapping[str, float]
    sequence_length: int
    batch_size: int | None
    names: Mapping[str, Sequence[str]]

    @property
    def families(self) -> tuple[str, ...]:
        """Names of the families, in their order."""
        return tuple(self.num_groups)

    @property
    @abstractmethod
    def num_sequences(self) -> int:
        """Number of all sequences."""

    @abstractmethod
    def read(self, first: int, stop: int) -> CountBlock:
        """Read the sequences `first` up to `stop`.

        Raises:
            UserError: a file is damaged, or was changed after it was opened.
        """

    @property
    def sequences_together(self) -> int:
        """Number of sequences whose counts are in memory at the same time: the size of chunks and parts."""
        return _TOGETHER

    @property
    def is_large(self) -> bool:
        """Whether the stages of a build read the counts in blocks, because all of them would need much memory.

        The value decides which order a build makes. So it depends only on the number of sequences and on the families,
        never on the memory of the machine.
        """
        return self.num_sequences > self.most_in_memory

    @property
    def most_in_memory(self) -> int:
        """The largest number of sequences whose counts the stages of a build hold in memory."""
        return _MOST_TOGETHER * self.sequences_together

    def blocks(self, bounds: Sequence[int]) -> Iterator[CountBlock]:
        """Read the sequences between every two neighbouring bounds."""
        for first, stop in itertools.pairwise(bounds):
            yield self.read(first, stop)


def open_counts(files: Any) -> StoredCounts:
    """Return counts that are already open, or open files of counts, see `CountFiles.open`."""
    return files if isinstance(files, StoredCounts) else CountFiles.open(files)


@dataclass(frozen=True)
class CountFiles(StoredCounts):
    """Files with the token counts of one corpus; the sequences of the files follow one another.

    Attributes:
        paths: the files.
    """

    paths: tuple[Path, ...]

    @classmethod
    def open(cls, files: Any) -> CountFiles:
        """Open a folder (its `*.parquet`, by name), a file, or several files in the given order.

        Raises:
            UserError: no files; a file that is absent, damaged or of another format; files of different families.
        """
        paths = _as_paths(files)
        about = [_about(path) for path in paths]
        names = [each.pop("names") for each in about]
        for path, each, of_groups in zip(paths, about, names, strict=True):
            if different := [
                family for family in names[0] | of_groups if names[0].get(family) != of_groups.get(family)
            ]:
                # Labels are numbered in their own order in every file, so the same number would be another group.
                raise UserError(
                    f"Expected the groups of {different[0]!r} to have the same names in {paths[0]} and {path}, found "
                    "other names; make the counts of all files from the same labels."
                )
            if each != about[0]:
                raise UserError(
                    f"Expected files of equal families, groups, weights, lengths and columns, found {about[0]} in "
                    f"{paths[0]} and {each} in {path}; write all files with the same settings."
                )
        first = about[0]
        described = first["families"], first["weights"], first["sequence_length"], first["batch_size"]
        return cls(*described, {family: tuple(found) for family, found in names[0].items()}, tuple(paths))

    @cached_property
    def _places(self) -> list[tuple[Path, int, int]]:
        """Return the file, the number in the file and the number of sequences of every row group."""
        found = []
        for path in self.paths:
            with _opened(path) as file:
                about = file.metadata
                found += [(path, number, about.row_group(number).num_rows) for number in range(about.num_row_groups)]
        return found

    @property
    def num_sequences(self) -> int:
        """Number of sequences of all files."""
        return sum(number for _, _, number in self._places)

    @property
    def num_nonzeros(self) -> int:
        """Number of counts above zero in all files and families, from the metadata of the files."""
        total = 0
        for path in self.paths:
            with _opened(path) as file:
                about = file.metadata
                names = [about.schema.column(index).path.split(".list.")[0] for index in range(about.num_columns)]
                counted = [index for index, name in enumerate(names) if name.endswith(".tokens")]
                total += sum(
                    about.row_group(number).column(index).num_values
                    for number in range(about.num_row_groups)
                    for index in counted
                )
        return total

    def read(self, first: int, stop: int) -> CountBlock:
        """See `StoredCounts.read`."""
        blocks, start = [], 0
        for path, number, num_rows in self._places:
            if start < stop and first < start + num_rows:
                rows = slice(max(first - start, 0), min(stop - start, num_rows))
                blocks.append(_read_row_group(path, number, num_rows, self.families, rows))
            start += num_rows
        return CountBlock.joined(blocks) if blocks else self._empty()

    def _empty(self) -> CountBlock:
        return CountBlock.of({name: csr_array((0, number), dtype=np.int32) for name, number in self.num_groups.items()})


def write_counts(
    path: Path,
    block: CountBlock,
    num_groups: Mapping[str, int],
    weights: Mapping[str, float],
    sequence_length: int,
    batch_size: int | None,
    names: Mapping[str, Sequence[str]],
) -> None:
    """Write a file atomically; see `CountFiles` for the arguments."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix != _ENDING:
        raise UserError(f"A file of counts must have a name that ends in {_ENDING}, found {path.name!r}.")
    about = {
        "version": _VERSION,
        "families": dict(num_groups),
        "weights": dict(weights),
        "sequence_length": sequence_length,
        "batch_size": batch_size,
        "names": {family: list(found) for family, found in names.items()},
    }
    columns: dict[str, Any] = {}
    for name, lengths in block.lengths.items():
        for kind, values in (("group", block.groups[name]), ("tokens", block.tokens[name])):
            columns[f"{name}.{kind}"] = _lists(lengths, values)
    if block.documents is not None:
        columns[_DOCUMENT] = pa.array(block.documents)
    if block.copies is not None:
        held = block.copies >= 0
        columns[_COPIES] = _lists(held.sum(axis=1), block.copies[held])
    table = pa.table(columns).replace_schema_metadata({_ABOUT: json.dumps(about).encode()})
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


def _about(path: Path) -> dict[str, Any]:
    """Read and check the description in a file."""
    with _opened(path) as file:
        schema = file.schema_arrow
    try:
        about = json.loads((schema.metadata or {})[_ABOUT])
        version, families, weights = about.pop("version"), about["families"], about["weights"]
    except (KeyError, ValueError, TypeError, AttributeError):
        raise UserError(
            f"Expected a file of counts that Characteristics.save wrote at {path}, found a Parquet file without a "
            "description of counts."
        ) from None
    if version != _VERSION:
        raise UserError(f"Expected counts of version {_VERSION} in {path}, found {version!r}; use a newer release.")
    whole = [about.get("sequence_length"), *(families.values() if isinstance(families, dict) else [None])]
    size, names = about.get("batch_size"), about.setdefault("names", {})
    if (
        not families
        or not all(type(number) is int and 0 < number < 2**31 for number in whole)
        or not isinstance(weights, dict)
        or set(weights) != set(families)
        or not (size is None or (type(size) is int and size > 0))
        or not isinstance(names, dict)
        or not all(
            isinstance(found, list) and len(found) == families.get(family) and all(type(each) is str for each in found)
            for family, found in names.items()
        )
    ):
        raise UserError(f"Expected a description of families and lengths in {path}, found {in_one_line(about)}.")
    absent = {f"{name}.{kind}" for name in families for kind in ("group", "tokens")} - set(schema.names)
    if absent:
        raise UserError(f"Expected the column {min(absent)!r} in {path}, found {in_one_line(schema.names)}.")
    return {**about, "columns": [name for name in (_DOCUMENT, _COPIES) if name in schema.names]}


def _read_row_group(path: Path, number: int, num_rows: int, families: Sequence[str], rows: slice) -> CountBlock:
    """Read some rows of a row group, and check what later steps rely on."""
    import pyarrow as pa

    lengths, groups, tokens = {}, {}, {}
    documents = copies = None
    try:
        with _opened(path) as file:
            table = file.read_row_group(number, use_threads=False)
            if len(table) != num_rows:
                raise ValueError(f"{len(table)} rows in place of {num_rows}")
            table = table.slice(rows.start, rows.stop - rows.start).combine_chunks()
            for name in families:
                lengths[name], groups[name] = _flat(table[f"{name}.group"])
                counted, tokens[name] = _flat(table[f"{name}.tokens"])
                if not np.array_equal(counted, lengths[name]):
                    raise ValueError(f"the columns {name}.group and {name}.tokens have lists of different lengths")
                _check_canonical(name, lengths[name], groups[name], tokens[name])
            if _DOCUMENT in table.column_names:
                column = table[_DOCUMENT]
                if column.null_count or not pa.types.is_integer(column.type):
                    raise ValueError(f"documents of the type {column.type}, {column.null_count} of them null")
                documents = column.to_numpy().astype(np.int64)
            if _COPIES in table.column_names:
                sizes, members = _flat(table[_COPIES])
                copies = np.full((len(sizes), int(sizes.max(initial=0))), -1)
                copies[np.arange(copies.shape[1]) < sizes[:, None]] = members
    except (OSError, IndexError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"Expected the counts of {num_rows:,} sequences in row group {number} of {path}, found: "
            f"{in_one_line(error)}; the file is damaged or was changed: write it again."
        ) from None
    return CountBlock(lengths, groups, tokens, documents, copies)


def _check_canonical(name: str, lengths: np.ndarray, groups: np.ndarray, tokens: np.ndarray) -> None:
    """Check that every row has ascending groups with tokens: other lists of the same counts would be another corpus."""
    ascends = np.diff(groups.astype(np.int64)) > 0
    ends = np.cumsum(lengths, dtype=np.int64)[:-1]
    ascends[ends[(ends > 0) & (ends < len(groups))] - 1] = True  # the next row begins with any group
    if not ascends.all():
        raise ValueError(f"a sequence whose groups in {name}.group do not ascend")
    if (tokens == 0).any():
        raise ValueError(f"a group with 0 tokens in {name}.tokens")


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
    found = values.to_numpy()
    if found.dtype.kind not in "iu":
        raise ValueError(f"numbers of the type {found.dtype}")
    return _narrow(np.diff(offsets)), found
