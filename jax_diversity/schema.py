"""The values that flow through the package; this module imports nothing else of it.

    documents -> tokens -> segments -> sequences -> characteristics -> ordering

Every value is immutable. Arrays are NumPy; what runs on an accelerator is made from them inside a stage.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import coo_array, csr_array, issparse


@dataclass(frozen=True, slots=True)
class Document:
    """One text with what is known about it; `metadata` keeps every field that came with it."""

    id: str
    text: str
    source: str
    language: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Segments:
    """Which run of which document's tokens stands where: the whole of packing, as columns of one table.

    Rows are sorted by (`sequence_index`, `position`). A sequence's tokens are its segments' tokens one after
    another; what is left up to the sequence length is padding and belongs to no document.

    Attributes:
        sequence_index: the sequence that holds the segment.
        position: where in the sequence the segment begins, in tokens.
        document_index: the document, counted over the whole corpus in its stored order.
        document_offset: where in the document the segment begins, in tokens.
        length: number of tokens, the end token included where the segment reaches it.
        ends_with_eos: whether the segment's last token is its document's end token.
        num_sequences: number of sequences, empty ones included.
        sequence_length: L, tokens a sequence can hold.
    """

    sequence_index: Int64[np.ndarray, " segment"]
    position: Int64[np.ndarray, " segment"]
    document_index: Int64[np.ndarray, " segment"]
    document_offset: Int64[np.ndarray, " segment"]
    length: Int64[np.ndarray, " segment"]
    ends_with_eos: Bool[np.ndarray, " segment"]
    num_sequences: int
    sequence_length: int

    COLUMNS: ClassVar = (
        "sequence_index",
        "position",
        "document_index",
        "document_offset",
        "length",
        "ends_with_eos",
    )

    def __len__(self) -> int:
        return len(self.sequence_index)


@dataclass(frozen=True)
class Characteristics:
    """Token counts of every sequence, per family of groups: all that an ordering method ever sees.

    Attributes:
        counts: family name -> CSR matrix (sequence, group) of int64 token counts.
        weights: family name -> λ, which weighs squared deviations.
        sequence_length: L, the unit of every measure, in tokens.

    Build one with `Characteristics.from_counts`. Pickles and copies are as read-only as the original.
    """

    counts: Mapping[str, csr_array]
    weights: Mapping[str, float]
    sequence_length: int

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, Any],
        *,
        weights: Mapping[str, float] | None = None,
        sequence_length: int | None = None,
    ) -> Characteristics:
        """Check and freeze a user's own count matrices.

        Args:
            counts: family name -> scipy sparse or dense matrix (sequence, group), token counts >= 0. Every
                family counts the same sequences' tokens: row totals agree between families.
            weights: λ >= 0 per family; 1.0 where not given.
            sequence_length: L in tokens; None takes the largest row total.

        Raises:
            ValueError: no family; negative, NaN, infinite, fractional or enormous counts; families that disagree in
                the number of sequences or in a row's total; weights that are negative, all zero or of an unknown
                family; a sequence length below the largest row total.

        Example:
            >>> chars = Characteristics.from_counts({"topic": [[3, 1], [0, 4]]})
            >>> chars.num_sequences, chars.sequence_length
            (2, 4)
        """
        if not counts:
            raise ValueError("Expected at least one family of counts, found none; pass {'name': matrix}.")
        matrices = {name: _checked_counts(name, matrix) for name, matrix in counts.items()}
        totals = {name: np.asarray(matrix.sum(axis=1)).ravel() for name, matrix in matrices.items()}
        first_name, first_totals = next(iter(totals.items()))
        for name, row_totals in totals.items():
            if row_totals.shape != first_totals.shape:
                raise ValueError(
                    f"Families must describe the same sequences: {first_name!r} has {len(first_totals)} rows, "
                    f"{name!r} has {len(row_totals)}."
                )
            if not np.array_equal(row_totals, first_totals):
                row = int(np.flatnonzero(row_totals != first_totals)[0])
                raise ValueError(
                    f"Every family must count all tokens of a sequence: sequence {row} has {first_totals[row]} "
                    f"tokens in {first_name!r} and {row_totals[row]} in {name!r}; give uncounted tokens a group."
                )
        longest = int(first_totals.max(initial=0))
        if sequence_length is None:
            sequence_length = max(longest, 1)
        if sequence_length < max(longest, 1):
            raise ValueError(
                f"Expected a sequence length of at least {longest}, the largest row total, found {sequence_length}."
            )
        return cls(
            MappingProxyType(matrices),
            MappingProxyType(_checked_weights(weights or {}, matrices)),
            int(sequence_length),
        )

    def __reduce__(self) -> tuple[Callable[..., Characteristics], tuple[Any, ...]]:
        return _restored, (dict(self.counts), dict(self.weights), self.sequence_length)

    @property
    def num_sequences(self) -> int:
        """Number of sequences (rows)."""
        return len(next(iter(self.counts.values())).indptr) - 1

    @property
    def families(self) -> tuple[str, ...]:
        """The families' names, the first being the one whose norm the objectives use."""
        return tuple(self.counts)

    @property
    def tokens(self) -> Int64[np.ndarray, " sequence"]:
        """Number of tokens of every sequence, padding not counted."""
        return np.asarray(next(iter(self.counts.values())).sum(axis=1)).ravel().astype(np.int64)

    def target_share(self, family: str) -> Float64[np.ndarray, " group"]:
        """τ: every group's share of all tokens, float64 (group,)."""
        totals = np.asarray(self.counts[family].sum(axis=0)).ravel().astype(np.float64)
        return totals / max(totals.sum(), 1.0)

    @property
    def fingerprint(self) -> str:
        """Hash of the counts, weights and sequence length."""
        digest = hashlib.sha256(json.dumps([dict(self.weights), self.sequence_length]).encode())
        for name, matrix in self.counts.items():
            digest.update(f"{name} {matrix.shape}".encode())
            for part in (matrix.indptr, matrix.indices, matrix.data):
                digest.update(part.astype(np.int64).tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        families = ", ".join(f"{name}: {matrix.shape[1]} groups" for name, matrix in self.counts.items())
        return f"Characteristics({self.num_sequences} sequences of {self.sequence_length}; {families})"


_MAX_COUNT = 2**53  # the largest whole number up to which float64 holds every one


def _checked_counts(name: str, matrix: Any) -> csr_array:
    try:
        # As entries, so that nothing is summed before it is checked, nor in the user's own narrow type.
        entries: Any = matrix if issparse(matrix) else np.asarray(matrix)
        if entries.ndim == 2 and not (issparse(entries) and entries.format == "csr"):
            entries = entries.tocoo() if issparse(entries) else coo_array(entries)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Family {name!r} must be a matrix (sequence, group) of token counts: {error}.") from None
    if entries.ndim != 2 or entries.shape[1] == 0:
        raise ValueError(f"Family {name!r} must have the shape (sequence, group >= 1), found {entries.shape}.")
    _check_values(name, entries.data)
    data = entries.data.astype(np.int64)
    # The user's own matrix is never changed, nor can it change what was checked.
    if entries.format == "csr":
        rows = csr_array((data, entries.indices.copy(), entries.indptr.copy()), shape=entries.shape)
    else:
        rows = csr_array((data, (entries.row, entries.col)), shape=entries.shape)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return _frozen(rows)


def _check_values(name: str, values: np.ndarray) -> None:
    if values.dtype.kind not in "iuf":
        raise ValueError(f"Family {name!r} must hold integer token counts, found the type {values.dtype}.")
    if values.dtype.kind == "f":
        bad = ~np.isfinite(values) | (values != np.floor(values))
        if bad.any():
            raise ValueError(
                f"Family {name!r} must hold whole token counts, found {values[bad][0]}; "
                "multiply shares by the number of tokens and round first."
            )
    if len(values) and values.min() < 0:
        raise ValueError(f"Family {name!r} must hold token counts >= 0, found {values.min()}.")
    if len(values) and values.max() > _MAX_COUNT:
        raise ValueError(f"Family {name!r} must hold token counts up to 2^53, found {values.max()}.")


def _frozen(matrix: csr_array) -> csr_array:
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.setflags(write=False)
    return matrix


def _restored(counts: dict[str, csr_array], weights: dict[str, float], sequence_length: int) -> Characteristics:
    """A pickle or copy: proxies cannot be pickled, and a pickled array forgets that it is read-only."""
    matrices = {name: _frozen(matrix) for name, matrix in counts.items()}
    return Characteristics(MappingProxyType(matrices), MappingProxyType(weights), sequence_length)


def _checked_weights(weights: Mapping[str, float], matrices: Mapping[str, Any]) -> dict[str, float]:
    unknown = set(weights) - set(matrices)
    if unknown:
        raise ValueError(f"Weights name unknown families {sorted(unknown)}; the families are {sorted(matrices)}.")
    complete = {name: float(weights.get(name, 1.0)) for name in matrices}
    for name, weight in complete.items():
        if not np.isfinite(weight) or weight < 0:
            raise ValueError(f"The weight of family {name!r} must be finite and >= 0, found {weight}.")
    if not any(complete.values()):
        raise ValueError("At least one family must have a weight above zero, found only zeros.")
    return complete


@dataclass(frozen=True, eq=False)
class Ordering:
    """A bijection from positions of training to sequence indices.

    Attributes:
        indices: the sequence at every position, read-only.
        info: how it was made (method, objective, seed, fingerprint of the characteristics ...), for people
            and for checks; never needed to use the ordering.

    Pickles and copies are as read-only as the original.

    Raises:
        ValueError: `indices` is no permutation of 0 .. n - 1.

    Example:
        >>> Ordering(np.array([2, 0, 1])).indices
        array([2, 0, 1])
    """

    indices: Int64[np.ndarray, " sequence"]
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        indices = _checked_permutation(self.indices)
        indices.setflags(write=False)
        object.__setattr__(self, "indices", indices)
        object.__setattr__(self, "info", MappingProxyType(dict(self.info)))

    def __reduce__(self) -> tuple[type[Ordering], tuple[np.ndarray, dict[str, Any]]]:
        return type(self), (self.indices, dict(self.info))  # a proxy cannot be pickled

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def fingerprint(self) -> str:
        """Hash of the permutation itself."""
        return hashlib.sha256(self.indices.tobytes()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write `path` (.npy, readable by anything) and, beside it, a .json with `info` and the fingerprint.

        Each file is whole or as it was; after a kill between the two `load` refuses a new .npy beside an old .json.

        Raises:
            ValueError: the name does not end in .npy; `info` holds what JSON cannot (nothing is written then).
        """
        path = Path(path)
        if path.suffix != ".npy":
            raise ValueError(f"An ordering's file name must end in .npy, found {path.name!r}.")
        about = {**self.info, "num_sequences": len(self), "fingerprint": self.fingerprint}
        try:
            text = json.dumps(about, indent=2, sort_keys=True, default=_plain_value) + "\n"
        except (TypeError, ValueError) as error:
            raise ValueError(f"An ordering's info must be what JSON can hold, found: {error}.") from None
        _replace(path, lambda file: np.save(file, self.indices))
        _replace(path.with_suffix(".json"), lambda file: file.write(text.encode()))

    @classmethod
    def load(cls, path: str | Path) -> Ordering:
        """Read what `save` wrote, or any one-axis .npy of integers that has no .json beside it.

        Raises:
            ValueError: not such a file, no bijection, changed since it was saved, or a .json that is not its own.
        """
        path = Path(path)
        try:
            indices = _checked_permutation(np.load(path, allow_pickle=False))
        except FileNotFoundError:
            raise ValueError(f"Expected an ordering at {path}, found no such file.") from None
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"Expected an ordering (.npy) at {path}: {error}") from None
        about = _read_about(path.with_suffix(".json"))
        ordering = cls(indices, {key: value for key, value in about.items() if key not in _DERIVED})
        if about and about["fingerprint"] != ordering.fingerprint:
            raise ValueError(
                f"{path} was changed after it was saved: its fingerprint is {ordering.fingerprint[:16]}, "
                f"{path.stem}.json says {about['fingerprint'][:16]}; restore the file or delete the .json."
            )
        return ordering

    def __repr__(self) -> str:
        method = self.info.get("method", "unknown method")
        return f"Ordering({len(self)} sequences, {method}, fingerprint {self.fingerprint[:16]})"


_DERIVED = ("num_sequences", "fingerprint")


def _plain_value(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON can hold them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} of the type {type(value).__name__}")


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under another name and move it into place once it is whole."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read_about(path: Path) -> dict[str, Any]:
    """What the .json beside an ordering says; nothing where there is none."""
    try:
        about = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"Expected {path} to describe its ordering, found no JSON ({error}); delete it.") from None
    if not isinstance(about, dict) or not isinstance(about.get("fingerprint"), str):
        raise ValueError(
            f"Expected {path} to describe its ordering, found no fingerprint in it; move it elsewhere."
        )
    return about


def _checked_permutation(values: Any) -> Int64[np.ndarray, " sequence"]:
    values = np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"An ordering must be one axis of integers, found {values.dtype} of shape {values.shape}.")
    indices = values.astype(np.int64)
    num_sequences = len(indices)
    if num_sequences and (indices.min() < 0 or indices.max() >= num_sequences):
        outside = indices[(indices < 0) | (indices >= num_sequences)][0]
        raise ValueError(
            f"An ordering of {num_sequences} sequences must hold each of 0 .. {num_sequences - 1} once, "
            f"found {outside}."
        )
    times = np.bincount(indices, minlength=num_sequences)
    if num_sequences and times.max() > 1:
        repeated = int(np.argmax(times > 1))
        raise ValueError(
            f"An ordering of {num_sequences} sequences must hold each once, found {repeated} "
            f"{times[repeated]} times."
        )
    return indices
