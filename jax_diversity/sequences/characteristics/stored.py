"""The artifacts of the stage `characterize`: a matrix of counts for each family, group names, and documents' tables.

A *family* is a kind of characteristics, such as topic clusters, document lengths or sources. A *group* is one value of
a family, such as one cluster.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from jaxtyping import Int32, Int64, Integer

from jax_diversity.foundation.artifacts import NO_ARRAY, atomic_path, read_array, read_json
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.stored import Artifact, OptionalArtifact, StoredStages, StoredValue, path_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

TOKENS = "tokens"
"""The family whose groups are token ids. It is counted when it is needed."""
SEQUENCE_CLUSTER = "sequence_cluster"
"""The family whose groups are clusters of sequences with similar tokens."""
LOSS = "loss"
"""The family of the tokens that count towards the loss, and of those that do not. Datasets of chats have it."""
LOSS_GROUPS = ("counted", "not counted")
"""The groups of the family `loss`."""
SEQUENCE_FAMILIES = (TOKENS, SEQUENCE_CLUSTER, LOSS)
"""The families that describe the tokens of a sequence. All other families describe documents."""
CHARACTERISTICS = "characteristics"
Value = TypeVar("Value")


def _artifact(name: str, read: Callable[[Path, str], Value]) -> Artifact[Value]:
    return Artifact("characterize", f"{CHARACTERISTICS}/{name}", read)


def _read_numbers(path: Path, stage: str) -> Int64[np.ndarray, " sequence"]:
    return read_array(path, stage)


def _read_clusters(path: Path, stage: str) -> Int32[np.ndarray, " sequence"]:
    return read_array(path, stage)


def _read_copies(path: Path, stage: str) -> Int64[np.ndarray, "sequence member"]:
    return read_array(path, stage)


BINS = _artifact("bins.json", read_json)
"""Family -> its bins, for families of numbers, as JSON values."""
DOCUMENTS = _artifact("documents.parquet", path_of)
"""The table that describes each document in one row: id, tokens, source, language ..."""
CODES = _artifact("codes.parquet", path_of)
"""The table with every document's group in every family."""
SEQUENCE_CLUSTERS = _artifact("sequence_clusters.npy", _read_clusters)
"""Every sequence's group in the family `sequence_cluster`."""
CENTRES = _artifact("sequence_cluster_centres.npy", read_array)
"""The centres of the family `sequence_cluster`, as `fit_sequence_clusters` makes them."""


def counts_name(family: str) -> str:
    """Return the name of the file with the sequences' token counts in a family's groups."""
    return f"{family}.npz"


def counts_file(stored: StoredStages, family: str) -> Path:
    """Return the path of this file."""
    return stored.file("characterize", f"{CHARACTERISTICS}/{counts_name(family)}")


def read_counts(stored: StoredStages, family: str) -> csr_array:
    """Return the sequences' token counts in a family's groups; an absent or damaged file is a `UserError`."""
    from scipy.sparse import load_npz

    path = counts_file(stored, family)
    try:
        return load_npz(path)
    except (OSError, ValueError, KeyError, BadZipFile, zlib.error) as error:
        raise _no_counts(path, error) from None


def read_counts_between(stored: StoredStages, family: str, first: int, stop: int) -> csr_array:
    """Return the rows `first` up to `stop` of `read_counts`; only these rows are read."""
    from scipy.sparse import csr_array

    path = counts_file(stored, family)
    whole = map_counts(path)
    starts = np.array(whole.indptr[first : stop + 1])
    if not 0 <= starts[0] <= starts[-1] <= len(whole.data) or (np.diff(starts) < 0).any():
        raise _no_counts(path, "rows that do not follow one another")
    entries = slice(int(starts[0]), int(starts[-1]))
    columns = np.array(whole.indices[entries])
    if not 0 <= columns.min(initial=0) <= columns.max(initial=0) < whole.num_groups:
        raise _no_counts(path, f"groups beyond {whole.num_groups}")
    parts = (np.array(whole.data[entries]), columns, starts - starts[0])
    return csr_array(parts, shape=(stop - first, whole.num_groups))


def num_entries(stored: StoredStages, family: str) -> int:
    """Return a family's number of counts above zero; a sequence without tokens has one entry."""
    whole = map_counts(counts_file(stored, family))
    return len(whole.data) + int((np.diff(whole.indptr) == 0).sum())


class MappedCounts(NamedTuple):
    """The arrays of a file of counts, as memory maps; see `scipy.sparse.csr_array`."""

    indptr: Integer[np.ndarray, " row_start"]
    indices: Integer[np.ndarray, " nonzero"]
    data: Integer[np.ndarray, " nonzero"]
    num_groups: int


def map_counts(path: Path) -> MappedCounts:
    """Map a file that `scipy.sparse.save_npz` has written without compression, or `join_counts`.

    Raises:
        UserError: the file is absent, damaged or compressed.
    """
    try:
        with ZipFile(path) as archive, path.open("rb") as file:
            shape = np.load(archive.open("shape.npy"), allow_pickle=False)
            indptr, indices, data = (_mapped(path, file, archive, name) for name in ("indptr", "indices", "data"))
        if len(shape) != 2 or len(indptr) != shape[0] + 1 or len(indices) != len(data):
            raise ValueError(f"arrays of {len(indptr)}, {len(indices)} and {len(data)} numbers, a shape of {shape}")
    except (*NO_ARRAY, KeyError, TypeError, BadZipFile, NotImplementedError) as error:
        raise _no_counts(path, error) from None
    return MappedCounts(indptr, indices, data, int(shape[1]))


def _no_counts(path: Path, reason: object) -> UserError:
    return UserError(f"{path} does not contain counts ({in_one_line(reason)}); run `jax-diversity characterize` again.")


def _mapped(path: Path, file: Any, archive: ZipFile, name: str) -> Integer[np.ndarray, " number"]:
    """Map an array in an archive: its bytes follow the member's own header, whose length that header has."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type != ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    file.seek(entry.header_offset + 26)
    lengths = np.frombuffer(file.read(4), "<u2")
    start = entry.header_offset + 30 + int(lengths.sum())
    file.seek(start)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "iu" or len(shape) != 1:
        raise ValueError(f"{name} has the type {dtype} and the shape {shape}")
    offset = file.tell()
    if offset + shape[0] * dtype.itemsize > start + entry.file_size:
        raise ValueError(f"{name} is cut")
    # NumPy cannot map an empty array.
    return np.memmap(path, dtype, "r", offset, shape) if shape[0] else np.zeros(0, dtype)


def join_counts(path: Path, parts: Sequence[Path]) -> Int64[np.ndarray, " group"]:
    """Write the rows of several files of counts as one file; return the tokens of every group.

    The file is one of `scipy.sparse.save_npz` without compression, so that some of its rows can be read. Only the
    arrays of one part are in memory.
    """
    mapped = [map_counts(part) for part in parts]
    num_groups = mapped[0].num_groups
    totals = np.zeros(num_groups, np.int64)  # the counts are int32, but the total of a corpus may be above 2^31
    for part in mapped:
        totals += np.bincount(part.indices, part.data, num_groups).astype(np.int64)
    starts = [0, *accumulate(len(part.data) for part in mapped)]
    # SciPy needs the same type for both index arrays.
    index = np.dtype(np.int32 if starts[-1] < 2**31 else np.int64)
    ends = (part.indptr[1:] + start for part, start in zip(mapped, starts, strict=False))
    num_rows = sum(len(part.indptr) - 1 for part in mapped)
    with atomic_path(path) as temporary, ZipFile(temporary, "w", ZIP_STORED) as archive:
        _write_member(archive, "indices", index, starts[-1], (part.indices for part in mapped))
        _write_member(archive, "indptr", index, num_rows + 1, chain([np.zeros(1)], ends))
        _write_member(archive, "data", mapped[0].data.dtype, starts[-1], (part.data for part in mapped))
        for name, value in {"format": b"csr", "shape": (num_rows, num_groups), "_is_array": True}.items():
            whole = np.array(value)
            with archive.open(ZipInfo(f"{name}.npy"), "w") as file:
                np.lib.format.write_array(file, whole, version=(1, 0), allow_pickle=False)
    return totals


def _write_member(
    archive: ZipFile, name: str, dtype: np.dtype, length: int, parts: Iterable[Integer[np.ndarray, " number"]]
) -> None:
    header: Any = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    # The date of a `ZipInfo` is a constant, so equal counts give equal bytes.
    with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype).data)


def _read_groups(path: Path, stage: str) -> Mapping[str, tuple[str, ...]]:
    return {family: tuple(names) for family, names in read_json(path, stage).items()}


def _read_totals(path: Path, stage: str) -> Mapping[str, Int64[np.ndarray, " group"]]:
    return {family: np.array(totals, np.int64) for family, totals in read_json(path, stage).items()}


def _find_families(stored: StoredStages) -> tuple[str, ...]:
    names = stored.counts("characterize")["families"]
    group_names = CharacteristicArtifacts.group_names.read(stored)
    unknown = [name for name in names if not isinstance(name, str) or name not in group_names]
    if unknown:  # a manifest that was not written by a build
        raise UserError(
            f"Expected families among {', '.join(group_names)} in {stored.root / 'manifest.json'}, found "
            f"{unknown[0]!r}; restore the file or run `jax-diversity characterize` again."
        )
    return tuple(names)


class CharacteristicArtifacts:
    """The artifacts of the stage `characterize`."""

    families = StoredValue(_find_families)
    """The families that orderings balance."""
    group_names = _artifact("groups.json", _read_groups)
    """Family -> the names of its groups, for every stored family."""
    group_tokens = _artifact("totals.json", _read_totals)
    """Family -> the number of training tokens in each of its groups, for every stored family."""
    sequence_documents = _artifact("sequence_documents.npy", _read_numbers)
    """The document of each training sequence; -1 if no document makes up 99 % of the tokens of the sequence."""
    sequence_copies = _artifact("sequence_copies.npy", _read_copies)
    """For each training sequence, the groups of equal documents that it contains parts of; padded with -1."""
    sequence_turns = OptionalArtifact("characterize", f"{CHARACTERISTICS}/sequence_turns.npy", _read_numbers)
    """Numbers (turns) that order the sequences of documents that are packed several times; -1 for other sequences.

    In the order of the turns, each part of a document comes once, then once more in the same order. None if the
    documents have no weights.
    """
