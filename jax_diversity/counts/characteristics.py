"""Token counts of sequences: the input of every ordering method and measure.

A *family* is a kind of characteristics, such as topic clusters, document lengths or sources. A *group* is one value of
a family, such as one cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import coo_array, csr_array, issparse, vstack

from jax_diversity.counts.files import ParquetCounts, write_counts
from jax_diversity.counts.narrow import NarrowCounts
from jax_diversity.counts.token_counts import MAX_COUNT, TokenCounts, as_weights
from jax_diversity.foundation.checks import as_whole_number, check_mapping
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.tables import Display, Displayed
from jax_diversity.foundation.warned import warn
from jax_diversity.foundation.wording import counted
from jax_diversity.schema.orderings import as_integers

MADE_BY = "Characteristics; make them with jd.Characteristics.from_counts"
"""The end of the error message for an argument that is not a `Characteristics`."""

_ROUNDED_SHARES = 1e-3
"""The largest difference of a row of shares from 1: shares in half precision are rounded."""


@dataclass(frozen=True)
class Characteristics(TokenCounts, Displayed):
    """Token counts of every sequence in every group of every family, in memory.

    Attributes:
        counts: family name -> CSR matrix (sequence, group) of token counts; int32 if they fit.
        weights: family name -> λ, the weight of the family's squared deviations.
        sequence_length: L in tokens, the unit of every measure.
        documents: for every sequence, the number of its document (any number). It is negative if the sequence contains
            several documents. None if unknown. Orderings place the sequences of one document far from each other.
        copies: for every sequence, the groups of copies (equal or nearly equal documents) that it has parts of. The
            numbers of groups may be any distinct numbers; unused places are negative. None if unknown. Orderings place
            the sequences of one group far from each other.
        turns: for sequences of one document with equal counts, numbers that give their order in training. Negative for
            all other sequences. None if their order does not matter.
        batch_size: the global batch size of your training, in sequences. Without an objective, orderings balance
            windows of this size; measures include it. None if it is unknown.
        names: family -> the names of its groups. Families whose groups have only numbers are left out.

    Use `Characteristics.from_counts` to make a value of this class. Pickles and copies are read-only too.
    """

    counts: Mapping[str, csr_array]
    weights: Mapping[str, float]
    sequence_length: int
    documents: Int64[np.ndarray, " sequence"] | None = None
    copies: Int64[np.ndarray, "sequence member"] | None = None
    turns: Int64[np.ndarray, " sequence"] | None = None
    batch_size: int | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A SciPy matrix cannot be made read-only, only its three arrays.
        for matrix in self.counts.values():
            # We check the indices also without `from_counts`, because compiled code reads wherever they point.
            _check_indices(matrix)
            for part in (matrix.data, matrix.indices, matrix.indptr):
                part.setflags(write=False)
        for groups in (self.documents, self.copies, self.turns):
            if groups is not None:
                groups.setflags(write=False)
        object.__setattr__(self, "counts", MappingProxyType(dict(self.counts)))
        object.__setattr__(self, "weights", MappingProxyType(dict(self.weights)))
        names = {family: self.names[family] for family in self.counts if family in self.names}
        object.__setattr__(self, "names", MappingProxyType(names))

    @classmethod
    def from_counts(
        cls,
        counts: Any,
        *,
        weights: Mapping[str, float] | None = None,
        sequence_length: int | None = None,
        documents: Any = None,
        copies: Any = None,
        turns: Any = None,
        batch_size: int | None = None,
    ) -> Characteristics:
        """Check and freeze a user's own count matrices.

        Args:
            counts: family name -> SciPy sparse or dense matrix (sequence, group) with token counts >= 0; or with
                shares, which add up to 1 in every row (a text that is .7 science and .3 art); or labels: one text or
                whole number per sequence, the group of all its tokens. Every family must count all tokens of the same
                sequences, so a row has the same total in all families. Shares and labels divide the totals of the
                families with counts; without such a family, a sequence counts as full. Shares become whole tokens: of
                each row, the largest remainders are rounded up. In place of a matrix, every sequence can have a mapping
                label -> count or share. A single matrix or a single list is the family `group`. Labels, and the columns
                of a pandas table, are the `names` of the groups.
            weights: family name -> λ >= 0. Families without an entry have 1.0.
            sequence_length: L in tokens. None means the largest row total. Shares without counts need it.
            documents: for every sequence, the number of its document; negative if the sequence contains several.
            copies: for every sequence, the numbers of the groups of copies that it has parts of; unused places are
                negative. The shape is (sequence, member) or, with one group per sequence, (sequence,).
            turns: for sequences of one document with equal counts, whole numbers that give their order in training.
                Negative for all other sequences.
            batch_size: the global batch size of your training, in sequences; None if it is unknown.

        Raises:
            ValueError: not a mapping, no family; counts that are negative, NaN, infinite, fractional or too large;
                families with different numbers of sequences or different totals of a row; weights that are negative,
                all zero or of an unknown family; a sequence length below the largest row total; documents, copies or
                turns of another number of sequences; a sequence with the same group of copies twice.

        Example:
            >>> chars = Characteristics.from_counts({"topic": [[3, 1], [0, 4]]})
            >>> chars.num_sequences, chars.sequence_length
            (2, 4)
            >>> Characteristics.from_counts(["web", "code", "web"], sequence_length=512)
            Characteristics(3 sequences of 512; group: 2 groups)
            >>> shares = Characteristics.from_counts({"topic": [[0.7, 0.3], [0.5, 0.5]]}, sequence_length=512)
            >>> shares.counts["topic"].toarray().tolist()
            [[358, 154], [256, 256]]
            >>> topics = [{"science": 0.7, "art": 0.3}, {"art": 1.0}]
            >>> Characteristics.from_counts({"topic": topics}, sequence_length=512).names["topic"]
            ('art', 'science')
        """
        if isinstance(counts, Mapping):
            check_mapping("counts", counts, "family -> matrix or labels")
        elif isinstance(counts, list | tuple) or getattr(counts, "ndim", 0):
            counts = {"group": counts}
        else:
            raise UserError(
                "Expected counts to be a mapping family -> matrix or labels, one matrix (sequence, group), or one "
                f"label per sequence, found {type(counts).__name__}."
            )
        if not counts:
            raise UserError("Expected at least one family of counts, found none; pass {'name': matrix}.")
        labelled = {name: _of_mappings(name, rows) for name, rows in counts.items() if _are_mappings(rows)}
        counts = {**counts, **{name: matrix for name, (matrix, _) in labelled.items()}}
        entries = {name: _as_entries(name, matrix) for name, matrix in counts.items() if not _are_labels(matrix)}
        shares = {name: matrix for name, matrix in entries.items() if _can_be_shares(matrix)}
        # Rows such as [1., 0.] can be one token or a whole sequence of one group. They are shares beside other shares,
        # and in sequences of several tokens.
        is_short = not isinstance(sequence_length, int | np.integer) or sequence_length <= 1
        if is_short and not any(map(_has_fraction, shares.values())):
            shares = {}
        matrices = {name: _as_counts(name, matrix) for name, matrix in entries.items() if name not in shares}
        if len(matrices) < len(counts):
            tokens = 1 if sequence_length is None else as_whole_number("sequence_length", sequence_length, 1, MAX_COUNT)
            totals: Any = next((np.asarray(matrix.sum(axis=1)).ravel() for matrix in matrices.values()), tokens)
            if shares and not matrices and sequence_length is None:
                raise UserError(
                    f"Family {next(iter(shares))!r} has shares in its rows, so sequence_length is needed, found None; "
                    "give the number of tokens of a sequence."
                )
            matrices |= {name: _as_counts(name, _of_shares(name, matrix, totals)) for name, matrix in shares.items()}
            of_labels = (name for name in counts if name not in entries)
            matrices |= {name: _of_labels(name, counts[name], totals) for name in of_labels}
            matrices = {name: matrices[name] for name in counts}
        for name, matrix in entries.items():
            # The matrices of a dataset are sparse, and a family of one group is in order there.
            if matrix.shape[1] == 1 and not issparse(counts[name]) and len(np.unique(matrix.toarray())) > 1:
                warn(
                    f"Family {name!r} has the shape {matrix.shape}: one group, which every order balances. If the "
                    "numbers are labels, give one axis of them, without a second one."
                )
        names = {name: group_names for name, labels in counts.items() if (group_names := _names_of(labels))}
        names |= {name: labels for name, (_, labels) in labelled.items()}
        longest = _longest(matrices)
        length = (
            longest if sequence_length is None else as_whole_number("sequence_length", sequence_length, 0, MAX_COUNT)
        )
        if documents is not None:
            documents = as_integers("documents", documents, least=-(2**63)).copy()
        if copies is not None:
            copies = _as_copies(copies)
        if turns is not None:
            turns = as_integers("turns", turns, least=-(2**63)).copy()
        size = None if batch_size is None else as_whole_number("batch_size", batch_size, 1)
        return cls.of_matrices(
            matrices,
            weights=as_weights(weights, matrices),
            sequence_length=length,
            documents=documents,
            copies=copies,
            turns=turns,
            batch_size=size,
            names=names,
        )

    @classmethod
    def of_matrices(
        cls,
        counts: Mapping[str, csr_array],
        *,
        weights: Mapping[str, float],
        sequence_length: int,
        documents: Int64[np.ndarray, " sequence"] | None = None,
        copies: Int64[np.ndarray, "sequence member"] | None = None,
        turns: Int64[np.ndarray, " sequence"] | None = None,
        batch_size: int | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> Characteristics:
        """Freeze matrices in canonical form (ascending groups, integer counts above zero) without copying them.

        Raises:
            UserError: families that count different tokens, a sequence that is too long; documents, copies or turns of
                another number of sequences, the same group of copies twice.
        """
        longest, number = _longest(counts), len(next(iter(counts.values())).indptr) - 1
        if sequence_length < longest:
            raise UserError(
                f"Expected a sequence length of at least {longest}, the largest row total, found {sequence_length}."
            )
        if documents is not None and len(documents) != number:
            raise UserError(
                f"Expected the documents of {number} sequences, found {len(documents)}; give one number per sequence, "
                "negative if the sequence contains several documents."
            )
        if copies is not None:
            _check_copies(copies, number)
        if turns is not None and len(turns) != number:
            raise UserError(
                f"Expected the turns of {number} sequences, found {len(turns)}; give one number per sequence, negative "
                "without a turn."
            )
        named = {family: tuple(group_names) for family, group_names in (names or {}).items()}
        return cls(counts, weights, sequence_length, documents, copies, turns, batch_size, named)

    @classmethod
    def from_files(cls, files: Any) -> Characteristics:
        """Read into memory the counts that `save` wrote. `jd.order` and `jd.measure` take the folder, too.

        Args:
            files: a folder (its `*.parquet`, in the order of their names), a file, or several files in the given order.
                The sequences of the files follow one another.

        Raises:
            ValueError: no files; a file that is absent, damaged or of another format; files of different families;
                counts that `from_counts` refuses.

        Example:
            >>> Characteristics.from_counts({"topic": [[3, 1], [0, 4]]}).save("counts/part-00000.parquet")
            >>> Characteristics.from_files("counts").num_sequences
            2
        """
        opened = ParquetCounts.open(files)
        narrowed = opened.read(0, opened.num_sequences)
        return cls.of_matrices(
            narrowed.counts(opened.num_groups),
            weights=opened.weights,
            sequence_length=opened.sequence_length,
            documents=narrowed.documents,
            copies=narrowed.copies,
            turns=narrowed.turns,
            batch_size=opened.batch_size,
            names=opened.names,
        )

    @staticmethod
    def joined(several: Sequence[Characteristics]) -> Characteristics:
        """Return the sequences of several, one after another; families, weights and lengths are those of the first.

        Example:
            >>> chars = Characteristics.from_counts({"topic": [[3, 1], [0, 4]]})
            >>> Characteristics.joined([chars, chars]).num_sequences
            4
        """
        first = several[0]
        if len(several) == 1:
            return first
        counts = {
            name: csr_array(vstack([part.counts[name] for part in several], format="csr")) for name in first.counts
        }
        of_sequences: dict[str, Any] = {}
        for name in ("documents", "turns"):
            parts = [getattr(part, name) for part in several]
            of_sequences[name] = np.concatenate(parts) if any(part is not None for part in parts) else None
        members = [part.copies for part in several if part.copies is not None]
        if members:
            width = max(copies.shape[1] for copies in members)
            # Unused places contain a negative number.
            wide = [np.pad(copies, ((0, 0), (0, width - copies.shape[1])), constant_values=-1) for copies in members]
            of_sequences["copies"] = np.concatenate(wide)
        return replace(first, counts=counts, **of_sequences)

    def narrow(self) -> NarrowCounts:
        """Copy the counts, documents, copies and turns into narrow arrays."""
        return NarrowCounts.of(self.counts, self.documents, self.copies, self.turns)

    def of_narrow(self, narrowed: NarrowCounts) -> Characteristics:
        """Return other sequences, with the families, weights and lengths of these."""
        counts = narrowed.counts(self.num_groups)
        of_sequences = {"documents": narrowed.documents, "copies": narrowed.copies, "turns": narrowed.turns}
        return replace(self, counts=counts, **of_sequences)

    def save(self, path: str | Path) -> None:
        """Write the counts, weights, documents, copies and turns into a Parquet file, atomically.

        A large corpus has several files: make the characteristics of some sequences, save them, and continue with the
        next sequences. All files need the same families, groups, weights, sequence length and batch size. If groups
        have names, they must be the same in all files.

        Args:
            path: a name that ends in .parquet.

        Raises:
            ValueError: the name has another ending, or there is no such folder.

        Example:
            >>> chars.save("counts/part-00000.parquet")
        """
        settings = (self.num_groups, self.weights, self.sequence_length, self.batch_size, self.names)
        write_counts(Path(path), self.narrow(), *settings)

    def with_weights(self, weights: Mapping[str, float]) -> Characteristics:
        """See `TokenCounts.with_weights`."""
        return replace(self, weights=as_weights(weights, self.counts))

    def rows(self, first: int, stop: int) -> Characteristics:
        """See `TokenCounts.rows`."""
        if (first, stop) == (0, self.num_sequences):
            return self
        counts = {name: csr_array(matrix[first:stop]) for name, matrix in self.counts.items()}
        of_sequences = {"documents": self.documents, "copies": self.copies, "turns": self.turns}
        taken: Any = {name: None if groups is None else groups[first:stop] for name, groups in of_sequences.items()}
        return replace(self, counts=counts, **taken)

    def take(self, rows: Int64[np.ndarray, " row"]) -> Characteristics:
        """Return the characteristics of some sequences, in the given order.

        Groups, weights and document numbers stay the same.

        Example:
            >>> chars = Characteristics.from_counts({"topic": [[3, 1], [0, 4], [2, 2]]})
            >>> chars.take(np.array([2, 0])).counts["topic"].toarray().tolist()
            [[2, 2], [3, 1]]
        """
        counts = {name: csr_array(matrix[rows]) for name, matrix in self.counts.items()}
        of_sequences = {"documents": self.documents, "copies": self.copies, "turns": self.turns}
        taken: Any = {name: None if groups is None else groups[rows] for name, groups in of_sequences.items()}
        return replace(self, counts=counts, **taken)

    def __reduce__(self) -> tuple[type[Characteristics], tuple[Any, ...]]:
        # A `MappingProxyType` cannot be pickled, so we make dicts.
        of_sequences = (self.documents, self.copies, self.turns)
        members = (dict(self.counts), dict(self.weights), self.sequence_length, *of_sequences, self.batch_size)
        return type(self), (*members, dict(self.names))

    @property
    def num_sequences(self) -> int:
        """Number of sequences (rows)."""
        return len(next(iter(self.counts.values())).indptr) - 1

    @property
    def num_groups(self) -> Mapping[str, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Family -> its number of groups."""
        return {name: matrix.shape[1] for name, matrix in self.counts.items()}

    @property
    def num_entries(self) -> int:
        """See `TokenCounts.num_entries`."""
        return sum(int(np.maximum(np.diff(matrix.indptr), 1).sum()) for matrix in self.counts.values())

    @property
    def tokens(self) -> Int64[np.ndarray, " sequence"]:
        """Number of tokens of every sequence, without padding."""
        # We use the first family, because all families count the same tokens (`from_counts`).
        return np.asarray(next(iter(self.counts.values())).sum(axis=1)).ravel().astype(np.int64)

    def target_share(self, family: str) -> Float64[np.ndarray, " group"]:
        """Return τ: every group's share of all tokens."""
        if family not in self._shares:
            self._shares[family] = super().target_share(family)
            self._shares[family].setflags(write=False)
        return self._shares[family]

    @cached_property
    def _shares(self) -> dict[str, Float64[np.ndarray, " group"]]:
        return {}

    @cached_property
    def totals(self) -> Mapping[str, Int64[np.ndarray, " group"]]:
        """See `TokenCounts.totals`."""
        return {name: np.asarray(matrix.sum(axis=0, dtype=np.int64)).ravel() for name, matrix in self.counts.items()}

    def __repr__(self) -> str:
        families = ", ".join(f"{name}: {counted(matrix.shape[1], 'group')}" for name, matrix in self.counts.items())
        # Labels without a sequence length count a sequence as one token.
        length = f" of {self.sequence_length}" if self.sequence_length > 1 else ""
        return f"Characteristics({counted(self.num_sequences, 'sequence')}{length}; {families})"

    def _display(self) -> Display:
        number = max(self.num_sequences, 1)
        rows = [
            [family, f"{matrix.shape[1]:,}", f"{matrix.nnz / number:.1f}", f"{self.weights[family]:g}"]
            for family, matrix in self.counts.items()
        ]
        sentence = (
            f"Characteristics of {counted(self.num_sequences, 'sequence')} of {counted(self.sequence_length, 'token')}"
        )
        return Display(sentence, [("", [["family", "groups", "groups a sequence", "weight"], *rows])])


def _are_mappings(entries: Any) -> bool:
    """Whether a family is given as one mapping label -> count or share per sequence."""
    return isinstance(entries, list | tuple) and len(entries) > 0 and all(isinstance(row, Mapping) for row in entries)


def _of_mappings(name: str, rows: Sequence[Mapping[Any, Any]]) -> tuple[coo_array, tuple[str, ...]]:
    """Return the matrix of the rows' numbers, with one column per label, sorted, and the labels."""
    labels = {label for row in rows for label in row}
    if not labels or not all(isinstance(label, str) for label in labels):
        what = "no label" if not labels else f"{next(label for label in labels if not isinstance(label, str))!r}"
        raise UserError(f"Family {name!r} must have mappings with texts as labels, found {what}; write str(label).")
    names = sorted(labels)
    places = dict(zip(names, range(len(names)), strict=True))
    columns = [places[label] for row in rows for label in row]
    values = [value for row in rows for value in row.values()]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise UserError(f"Family {name!r} must have a number for every label, found {in_one_line(repr(value))}.")
    of_row = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    # As fractional numbers, because rows that add up to 1 are shares, whether 1 was written as 1 or 1.0.
    entries = (np.array(values, np.float64), (of_row, np.array(columns)))
    return coo_array(entries, shape=(len(rows), len(names))), tuple(names)


def _has_labels(row: Any) -> bool:
    """Return whether a row of a list has labels in place of numbers."""
    return isinstance(row, list | tuple | set | dict) and any(isinstance(label, str) for label in row)


def _as_entries(name: str, matrix: Any) -> Any:
    """Convert a matrix to a sparse one in the user's type, CSR or COO; check its indices, shape and type."""
    try:
        entries: Any = matrix if issparse(matrix) else np.asarray(matrix)
        objects = entries if entries.dtype.kind == "O" and not issparse(entries) else np.zeros(0)
        kinds = {type(value) for value in objects.ravel().tolist()}
        if entries.dtype.kind in "SU" or kinds & {str, bytes, tuple}:
            raise UserError(
                f"Family {name!r} must be a matrix (sequence, group) of token counts, or one label per sequence, found "
                f"labels of the shape {entries.shape}; give each column of labels as a family of its own: "
                "{'source': [...], 'language': [...]}."
            )
        # Columns of pandas may hold numbers as objects; SciPy has no matrices of half precision.
        if entries.dtype.kind == "O":
            entries = entries.astype(np.float64)
        elif entries.dtype == np.float16:
            entries = entries.astype(np.float32)
        if entries.ndim == 2 and issparse(entries):
            # We check before the first conversion: SciPy's compiled code reads and writes wherever the indices point.
            _check_indices(entries)
        # We do not convert to CSR yet, because the conversion adds up several entries of the same place. It does this
        # in the user's type, in which for example uint8 counts overflow.
        if entries.ndim == 2 and not (issparse(entries) and entries.format == "csr"):
            entries = entries.tocoo() if issparse(entries) else coo_array(entries)
            _check_indices(entries)
    except UserError:
        raise
    except Exception as error:  # arrays of other libraries raise various errors when NumPy converts them
        reason = f": {in_one_line(error)}."
        if isinstance(matrix, list | tuple) and any(map(_has_labels, matrix)):
            reason = (
                ", or one label per sequence, found several labels of a sequence; give every sequence the shares of "
                "its labels, which add up to 1: [{'science': 0.7, 'art': 0.3}, ...]."
            )
        raise UserError(f"Family {name!r} must be a matrix (sequence, group) of token counts{reason}") from None
    if entries.ndim != 2 or entries.shape[1] == 0:
        labels = "; labels are texts or whole numbers" if entries.ndim == 1 else ""
        raise UserError(f"Family {name!r} must have the shape (sequence, group >= 1), found {entries.shape}{labels}.")
    values = entries.data
    if values.dtype.kind not in "iuf":
        raise UserError(f"Family {name!r} must contain integer token counts, found the type {values.dtype}.")
    return entries


def _can_be_shares(entries: Any) -> bool:
    """Return whether the numbers are floating-point numbers of which every row adds up to 1."""
    values = entries.data
    if values.dtype.kind != "f" or not len(values) or not (np.isfinite(values) & (values >= 0)).all():
        return False
    return bool((np.abs(np.asarray(entries.astype(np.float64).sum(axis=1)).ravel() - 1) < _ROUNDED_SHARES).all())


def _has_fraction(entries: Any) -> bool:
    return bool(((entries.data > 0) & (entries.data < 1)).any())


def _of_shares(name: str, entries: Any, totals: Any) -> coo_array:
    """Divide the tokens of every row by shares; whole tokens go to the largest remainders, then to the first groups."""
    shares = csr_array(entries, dtype=np.float64, copy=True)  # the next line changes it in place
    shares.sum_duplicates()
    num_rows = shares.shape[0]
    if np.ndim(totals) and len(totals) != num_rows:
        raise UserError(
            f"Families must describe the same sequences: {name!r} has {num_rows} rows, the counts have {len(totals)}."
        )
    tokens = np.broadcast_to(np.asarray(totals, np.int64), num_rows)
    row = np.repeat(np.arange(num_rows), np.diff(shares.indptr))
    exact = shares.data / np.asarray(shares.sum(axis=1)).ravel()[row] * tokens[row]
    whole = np.floor(exact).astype(np.int64)
    missing = tokens - np.bincount(row, whole, num_rows).astype(np.int64)
    # Remainders are rounded, because rounding errors must not decide. The sort is stable: the first group comes first.
    by_remainder = np.lexsort((-np.round(exact - whole, 9), row))
    rank = np.arange(len(row)) - shares.indptr[:-1][row]
    whole[by_remainder] += rank < missing[row]
    return coo_array((whole, (row, shares.indices)), shape=shares.shape)


def _as_counts(name: str, entries: Any) -> csr_array:
    values = entries.data
    if values.dtype.kind == "f" and (bad := (values != np.floor(values)) | ~np.isfinite(values)).any():
        message = f"Family {name!r} must contain whole token counts, found "
        if not (is_finite := np.isfinite(values)).all():
            raise UserError(f"{message}{values[~is_finite][0]}.")
        sums = np.asarray(entries.astype(np.float64).sum(axis=1)).ravel()
        row = int(np.abs(sums - 1).argmax())
        message += f"{values[bad][0]}; shares must add up to 1 in every row, and row {row} adds up to {sums[row]:.6g}"
        if values.min() < 0:  # shares and counts are never negative
            message += "; cluster embeddings, and give the clusters as labels"
        raise UserError(f"{message}.")
    if len(values) and values.min() < 0:
        raise UserError(f"Family {name!r} must contain token counts >= 0, found {values.min()}.")
    if len(values) and values.max() > MAX_COUNT:
        raise UserError(f"Family {name!r} must contain token counts up to 2^53, found {values.max()}.")
    largest = _bound_of_row_sums(entries)
    if largest > MAX_COUNT:
        raise UserError(f"Family {name!r} must have at most 2^53 tokens per sequence, found {largest:.0f}.")
    data = values.astype(np.int32 if largest < 2**31 else np.int64)
    # We copy the arrays: a later change of the user's matrix must not change the checked matrix, and vice versa. SciPy
    # has no indices narrower than int32.
    if entries.format == "csr":
        index_type = np.int32 if max(len(data), entries.shape[1]) < 2**31 else np.int64
        parts = (data, entries.indices.astype(index_type), entries.indptr.astype(index_type))
        rows = csr_array(parts, shape=entries.shape)
    else:
        rows = csr_array((data, (entries.row, entries.col)), shape=entries.shape)
    # All matrices get one canonical form, so that equal counts have equal fingerprints.
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return rows


def _bound_of_row_sums(entries: Any) -> float:
    """Return a number of tokens that no row exceeds; the exact maximum if a simple bound is 2^31 or more."""
    widths = np.diff(entries.indptr) if entries.format == "csr" else np.bincount(entries.row, minlength=1)
    widest = int(widths.max(initial=0))
    bound = widest * float(entries.data.max(initial=0))
    if bound < 2**31:
        return bound
    # We add in float64, which does not overflow. After this check, sums of integers are right.
    return np.asarray(entries.astype(np.float64).sum(axis=1)).max(initial=0.0)


def _are_labels(entries: Any) -> bool:
    """Whether a family is given as one label per sequence."""
    if issparse(entries):
        return False
    if isinstance(entries, list | tuple):
        return not entries or isinstance(entries[0], str | int | np.integer)
    return getattr(entries, "ndim", 2) == 1


def _names_of(entries: Any) -> tuple[str, ...]:
    """The names of the groups: the sorted labels, or the columns of a table; empty if the groups have only numbers."""
    if _are_labels(entries):
        return tuple(str(label) for label in np.unique(_as_labels(entries)).tolist())
    return tuple(str(name) for name in getattr(entries, "columns", ()))


def _as_labels(labels: Any) -> np.ndarray:
    values = np.asarray(labels)
    if values.dtype.kind == "O":  # such as a column of texts in pandas
        kinds = {type(value) for value in values.tolist()}
        values = values.astype(str) if kinds <= {str} else values
    return values


def _of_labels(name: str, labels: Any, tokens: Any) -> csr_array:
    """One column per label, sorted; all tokens of a sequence are in the column of its label."""
    values = _as_labels(labels)
    # NumPy turns a NaN between texts into the text "nan"; it stands for a missing label in tables.
    plain = [] if isinstance(labels, np.ndarray) and labels.dtype.kind != "O" else [*labels]
    missing = [
        place for place, label in enumerate(plain) if label is None or (isinstance(label, float) and label != label)
    ]
    if missing or values.dtype.kind not in "iuUSb":
        kind = f"the type {values.dtype}" if len(values) else "no label"
        kind = f"{plain[missing[0]]} at {missing[0]}" if missing else kind
        raise UserError(
            f"Family {name!r} must have labels that are texts or whole numbers, found {kind}; give each sequence one "
            "label, or counts (sequence, group)."
        )
    groups, column = np.unique(values, return_inverse=True)
    totals = np.broadcast_to(np.asarray(tokens, np.int64), values.shape) if np.ndim(tokens) == 0 else tokens
    if len(totals) != len(values):
        raise UserError(
            f"Families must describe the same sequences: {name!r} has {len(values)} labels, the counts have "
            f"{len(totals)} rows."
        )
    entries = (totals, (np.arange(len(values)), column.ravel()))
    return _as_counts(name, csr_array(entries, shape=(len(values), max(len(groups), 1))))


def _longest(matrices: Mapping[str, csr_array]) -> int:
    """Return the largest number of tokens of a sequence, at least 1; check that all families count the same tokens."""
    totals = {name: np.asarray(matrix.sum(axis=1)).ravel() for name, matrix in matrices.items()}
    first_name, first_totals = next(iter(totals.items()))
    for name, row_totals in totals.items():
        if row_totals.shape != first_totals.shape:
            raise UserError(
                f"Families must describe the same sequences: {first_name!r} has {len(first_totals)} rows, "
                f"{name!r} has {len(row_totals)}."
            )
        if not np.array_equal(row_totals, first_totals):
            row = int(np.flatnonzero(row_totals != first_totals)[0])
            raise UserError(
                f"Every family must count all tokens of a sequence: sequence {row} has {first_totals[row]} "
                f"tokens in {first_name!r} and {row_totals[row]} in {name!r}; give uncounted tokens a group, or give "
                "shares that add up to 1, which are rounded for you."
            )
    return max(int(first_totals.max(initial=0)), 1)


def _as_copies(copies: Any) -> Int64[np.ndarray, "sequence member"]:
    try:
        groups = np.asarray(copies)
    except ValueError as error:  # rows of different lengths
        raise UserError(f"Expected the groups of copies as an array (sequence, member): {in_one_line(error)}") from None
    if groups.ndim not in (1, 2):
        raise UserError(
            f"Expected the groups of copies as an array (sequence, member), found the shape {groups.shape}; give a row "
            "of numbers per sequence, negative in unused places."
        )
    shape = groups.shape if groups.ndim == 2 else (len(groups), 1)
    groups = as_integers("copies", groups.ravel(), least=-(2**63)).reshape(shape)
    return groups[:, (groups >= 0).any(axis=0)]  # a copy, without columns in which no sequence has a group


def _check_copies(copies: Int64[np.ndarray, "sequence member"], num_sequences: int) -> None:
    if len(copies) != num_sequences:
        raise UserError(
            f"Expected the groups of copies of {num_sequences} sequences (sequence, member), found the shape "
            f"{copies.shape}; give a row of numbers per sequence, negative in unused places."
        )
    ascending = np.sort(copies, axis=1)
    if len(twice := np.argwhere((ascending[:, 1:] == ascending[:, :-1]) & (ascending[:, 1:] >= 0))):
        row, column = twice[0]
        raise UserError(
            f"Expected the groups of copies of a sequence to be distinct, found {ascending[row, column]} twice in "
            f"sequence {row}."
        )


def _check_indices(matrix: Any) -> None:
    """Raise a ValueError if a sparse matrix has indices outside its shape, or not as many indices as values."""
    if matrix.format in ("csr", "csc", "bsr"):
        parts = (matrix.data, matrix.indices, matrix.indptr)
        if any(part.dtype.kind not in "iu" for part in parts[1:]):
            raise ValueError(f"its indices are {matrix.indices.dtype} and {matrix.indptr.dtype}, expected integers")
        # We check a shallow copy, because the check removes the values beyond the last entry.
        type(matrix)(parts, shape=matrix.shape, copy=False).check_format(full_check=True)
    elif matrix.format == "coo":
        for places, size in zip((matrix.row, matrix.col), matrix.shape, strict=True):
            if places.dtype.kind not in "iu" or places.shape != matrix.data.shape:
                raise ValueError(f"{len(matrix.data)} values have indices {places.dtype} of the shape {places.shape}")
            if len(places) and not 0 <= int(places.min()) <= int(places.max()) < size:
                raise ValueError(f"it has {size} rows or columns, and indices {places.min()} .. {places.max()}")
