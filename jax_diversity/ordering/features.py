"""The sequences' features in the form that the selectors read; the module `objective` explains the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64, Integer
from scipy.sparse import csr_array, hstack

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.warned import warn
from jax_diversity.ordering.objective import Objective

EXACT_TOKENS = 65_536
"""The longest sequence, in tokens, for which the selectors' float32 sums are exact.

The module `jax_diversity.ordering.deviation` explains why.
"""
_NONZEROS_TOGETHER = 1 << 18
"""Number of non-zeros that are handled together. Temporary arrays of this size stay in the processor's cache."""
_MANY_GROUPS = 32
"""From this mean number of groups per sequence on, a family has deferred columns."""
_COLUMNS_OF_STEPS = 128
"""Number of columns of such a family that are not deferred."""
_ROWS_OF_VARIANCE = 10_000
"""Number of rows, about, from which the variance of the counts is estimated."""


@dataclass(frozen=True)
class SeparatedGroups:
    """The groups of sequences that are kept apart: sequences of one document, or with copies of one document.

    `group[i, s]` is the i-th group of sequence s. There are as many rows as the largest number of groups of one
    sequence; without such groups there are no rows. The groups of a sequence ascend; unused places contain
    `len(share)`. `numbers` are the documents and then the copies as the characteristics number them; the first
    `num_documents` groups are documents.
    """

    group: Int32[np.ndarray, "member sequence"]
    share: Float64[np.ndarray, " group"]
    weight: Float64[np.ndarray, " group"]
    numbers: Int64[np.ndarray, " group"]
    num_documents: int

    @classmethod
    def build(cls, characteristics: Characteristics, weight: float) -> SeparatedGroups:
        """Make the groups of the characteristics' documents and copies; with a weight of zero there are no groups."""
        num_sequences, tokens = characteristics.num_sequences, characteristics.tokens
        memberships = [] if weight == 0 else [characteristics.documents, characteristics.copies]
        rows, sizes, group_tokens, numbers, num_groups, num_documents = [], [], [], [], 0, 0
        for members_of in memberships:
            if members_of is None:
                continue
            members = (members_of[:, None] if members_of.ndim == 1 else members_of).T
            distinct, number, size = np.unique(members, return_inverse=True, return_counts=True)
            number = number.reshape(members.shape)
            several = size > 1
            several[number[members < 0]] = False  # a negative number means no group
            # -1 is a placeholder until the number of all groups is known.
            group = np.where(several, np.cumsum(several) - 1 + num_groups, -1)[number]
            rows += [row for row in group if row.max(initial=-1) >= 0]
            sizes.append(size[several])
            numbers.append(distinct[several])
            sums = np.bincount(number.ravel(), np.tile(tokens, len(members)), minlength=len(size))
            group_tokens.append(sums[several])
            num_groups += int(several.sum())
            if members_of is characteristics.documents:
                num_documents = num_groups
        if not num_groups:
            return cls(np.zeros((0, num_sequences), np.int32), np.zeros(0), np.zeros(0), np.zeros(0, np.int64), 0)
        group = np.array(rows, np.int32)
        group[group < 0] = num_groups
        group.sort(axis=0)  # unused places last
        share = np.concatenate(group_tokens) / max(int(tokens.sum()), 1)
        weights = weight * np.sqrt(np.concatenate(sizes))
        return cls(group, share, weights, np.concatenate(numbers), num_documents)

    def only(self, rows: Int64[np.ndarray, " row"]) -> tuple[SeparatedGroups, Int64[np.ndarray, " _kept"]]:
        """Return the groups of some sequences, numbered without the other groups, and the former numbers."""
        group = self.group[:, rows]
        is_used = np.zeros(len(self.share) + 1, bool)
        is_used[group] = True
        kept = np.flatnonzero(is_used[:-1])
        numbers = np.full(len(self.share) + 1, len(kept), np.int32)
        numbers[kept] = np.arange(len(kept))
        documents = int(np.searchsorted(kept, self.num_documents))
        apart = SeparatedGroups(numbers[group], self.share[kept], self.weight[kept], self.numbers[kept], documents)
        return apart, kept

    @cached_property
    def drift(self) -> Float64[np.ndarray, " sequence"]:
        """The value `2 λ √n_g τ_g` of every sequence: how much a placed token lowers the score, per own token."""
        return 2.0 * np.append(self.weight * self.share, 0.0)[self.group].sum(axis=0)


@dataclass(frozen=True)
class Features:
    """The token counts of the families with a weight above zero, as CSR rows, and the norm column.

    `columns` and `values` (the counts) have the narrowest types that represent them, because they need most of the
    memory. Sums of tokens are whole numbers, so that results are the same on every machine. λ is stored separately
    (`column_weights`) and multiplied last, because scaled counts would not be whole numbers. `norms` are the norms of
    the first family's counts. They are rounded to float32 once, so that every step uses the same value. The last entry
    of `targets` and `column_weights` is for the norm column. `squares` are `||c_s||²` without the norm column. `apart`
    contains the groups of documents and copies. A pool may read the changes of the `deferred` columns later than those
    of the other columns: the columns of families with many groups in every sequence, such as token ids, but for the
    columns whose counts vary most.
    """

    row_starts: Int64[np.ndarray, " boundary"]
    columns: Integer[np.ndarray, " nonzero"]
    values: Integer[np.ndarray, " nonzero"] | Float32[np.ndarray, " nonzero"]
    tokens: Int64[np.ndarray, " sequence"]
    norms: Float32[np.ndarray, " sequence"]
    targets: Float64[np.ndarray, " column"]
    column_weights: Float64[np.ndarray, " column"]
    squares: Float64[np.ndarray, " sequence"]
    self_weight: float
    family_columns: Mapping[str, slice]
    apart: SeparatedGroups
    deferred: Bool[np.ndarray, " column"]

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.tokens)

    @classmethod
    def build(cls, characteristics: Characteristics, objective: Objective) -> Features:
        """Put the counts of the weighted families side by side; the targets are the corpus's own shares."""
        # A family of weight zero would take time at every step without an effect: `resolved_weights` leaves it out.
        weights = objective.resolved_weights(characteristics)
        row_starts, columns, values = _stacked([characteristics.counts[name] for name in weights])
        sizes = [characteristics.counts[name].shape[1] for name in weights]
        ends = np.cumsum(sizes).tolist()
        family_columns = {name: slice(end - size, end) for name, size, end in zip(weights, sizes, ends, strict=True)}
        targets = np.concatenate([characteristics.target_share(name) for name in weights])
        column_weights = np.repeat(list(weights.values()), sizes)
        # We take the norm of the first family's counts without its weight, even if the weight is zero.
        first = characteristics.counts[characteristics.families[0]]
        squares_of_first = _row_sums(first.indptr, lambda part: np.square(first.data[part], dtype=np.float64))
        norms = np.sqrt(squares_of_first).astype(np.float32)
        mean_norm = float(norms.astype(np.float64).mean()) if len(norms) else 0.0
        tokens = characteristics.tokens
        if (longest := int(tokens.max(initial=0))) > EXACT_TOKENS:
            warn(
                f"Expected sequences of at most {EXACT_TOKENS:,} tokens, found {longest:,}: beyond that the orderings' "
                "sums are rounded, so that a long run may place a sequence whose score is slightly above the best; "
                "check the ordering with jd.measure or pack shorter sequences.",
            )
        features = cls(
            row_starts=row_starts,
            columns=columns,
            values=values,
            tokens=tokens,
            norms=norms,
            targets=np.append(targets, mean_norm),
            column_weights=np.append(column_weights, objective.norm_weight),
            squares=_row_sums(
                row_starts,
                lambda part: np.take(column_weights, columns[part]) * np.square(values[part], dtype=np.float64),
            ),
            self_weight=objective.total_self_weight,
            family_columns=family_columns,
            apart=SeparatedGroups.build(characteristics, objective.document_weight),
            deferred=np.zeros(len(targets) + 1, bool),
        )
        return replace(features, deferred=features._find_deferred())

    def take(self, rows: Int64[np.ndarray, " row"], apart: SeparatedGroups | None = None) -> Features:
        """Return the features of some sequences, in the given order; targets and shares stay those of all sequences.

        `apart` are the rows' groups, if they are numbered differently (`SeparatedGroups.only`).
        """
        row_starts = np.append(0, np.cumsum(self.lengths(rows)))
        columns, values = np.empty(row_starts[-1], self.columns.dtype), np.empty(row_starts[-1], self.values.dtype)
        for block in _row_blocks(row_starts):
            entries, place = self.entries(rows[block]), slice(row_starts[block.start], row_starts[block.stop])
            columns[place], values[place] = self.columns[entries], self.values[entries]
        return replace(
            self,
            row_starts=row_starts,
            columns=columns,
            values=values,
            tokens=self.tokens[rows],
            norms=self.norms[rows],
            squares=self.squares[rows],
            apart=apart or replace(self.apart, group=self.apart.group[:, rows]),
        )

    def with_groups_as_columns(self) -> Features:
        """Add a column for every group that is kept apart; it contains the tokens of the group's sequences."""
        apart, num_columns = self.apart, len(self.targets)
        if not len(apart.group):
            return self
        is_used = apart.group < len(apart.share)
        lengths = np.diff(self.row_starts)
        row_starts = np.append(0, np.cumsum(lengths + is_used.sum(axis=0)))
        columns, values = np.empty(row_starts[-1], np.int32), np.empty(row_starts[-1], np.float32)
        entries = np.arange(len(self.columns)) + np.repeat(row_starts[:-1] - self.row_starts[:-1], lengths)
        columns[entries], values[entries] = self.columns, self.values
        place = row_starts[:-1] + lengths
        for group, is_member in zip(apart.group, is_used, strict=True):
            columns[place[is_member]] = num_columns + group[is_member]
            values[place[is_member]] = self.tokens[is_member]
            place += is_member
        return replace(self, row_starts=row_starts, columns=columns, values=values)

    def counts(self, columns: slice) -> csr_array:
        """Return the token counts (sequence, group) of some consecutive columns, such as the columns of a family."""
        chosen = np.zeros(len(self.targets), bool)
        chosen[columns] = True
        row_starts, groups, values = self._chosen(chosen)
        shape = (self.num_sequences, columns.stop - columns.start)
        return csr_array((values, groups - columns.start, row_starts), shape=shape)

    def heaviest(self, columns: slice) -> tuple[Int32[np.ndarray, " sequence"], Int64[np.ndarray, " sequence"]]:
        """Return every sequence's group with the most tokens in a family, as `heaviest_groups`, and these tokens.

        `columns` are the family's columns.
        """

        def entries(part: slice) -> tuple[Integer[np.ndarray, " _nonzero"], np.ndarray]:
            groups = self.columns[part].astype(np.int32) - columns.start
            is_own = (groups >= 0) & (groups < columns.stop - columns.start)
            return groups, np.where(is_own, self.values[part], 0)

        return _heaviest(self.row_starts, columns.stop - columns.start, entries)

    def _chosen(
        self, chosen: Bool[np.ndarray, " column"]
    ) -> tuple[Int64[np.ndarray, " boundary"], Integer[np.ndarray, " _nonzero"], np.ndarray]:
        """Return the starts of the rows, the columns and the values of some columns' counts."""
        starts, columns, values = [np.zeros(1, np.int64)], [self.columns[:0]], [self.values[:0]]
        for block in _row_blocks(self.row_starts):
            bounds = self.row_starts[block.start : block.stop + 1]
            part = slice(bounds[0], bounds[-1])
            kept = np.flatnonzero(np.take(chosen, self.columns[part]))
            # The end of a row in the selection is the number of chosen non-zeros up to this row.
            starts.append(starts[-1][-1] + np.searchsorted(kept, bounds[1:] - bounds[0]))
            columns.append(np.take(self.columns[part], kept))
            values.append(np.take(self.values[part], kept))
        return np.concatenate(starts), np.concatenate(columns), np.concatenate(values)

    def totals(self, rows: Int64[np.ndarray, " row"]) -> Float64[np.ndarray, " column"]:
        """Return the token counts of some distinct sequences in every column; the norm column is 0."""
        sums = np.zeros(len(self.targets))
        # Sums of whole numbers do not depend on the order, so that all rows need no selection.
        starts = self.row_starts if len(rows) == self.num_sequences else np.append(0, np.cumsum(self.lengths(rows)))
        for block in _row_blocks(starts):
            if len(rows) == self.num_sequences:
                entries: Any = slice(starts[block.start], starts[block.stop])
            else:
                entries = self.entries(rows[block])
            sums += np.bincount(self.columns[entries], self.values[entries], minlength=len(sums))
        return sums

    def lengths(self, rows: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """Return the number of non-zeros of some rows."""
        return self.row_starts[rows + 1] - self.row_starts[rows]

    def entries(self, rows: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " _nonzero"]:
        """Return the indices of some rows' non-zeros in `columns` and `values`, row after row."""
        counts = self.lengths(rows)
        # Entry n of the result is entry n - (number of entries in the previous rows) of its row.
        before = np.cumsum(counts) - counts
        return np.repeat(self.row_starts[rows] - before, counts) + np.arange(counts.sum())

    def _find_deferred(self) -> Bool[np.ndarray, " column"]:
        chosen = np.zeros(len(self.targets), bool)
        rows = np.arange(0, self.num_sequences, max(self.num_sequences // _ROWS_OF_VARIANCE, 1))
        entries = self.entries(rows) if len(rows) < self.num_sequences else slice(None)
        # `bincount` would convert narrow integers in every call.
        columns, values = self.columns[entries].astype(np.intp), self.values[entries].astype(np.float64)
        num_entries = np.bincount(columns, minlength=len(chosen))
        sums, squares = (np.bincount(columns, weights, minlength=len(chosen)) for weights in (values, values * values))
        num_rows = max(len(rows), 1)
        variances = squares / num_rows - (sums / num_rows) ** 2
        for columns_of_family in self.family_columns.values():
            if num_entries[columns_of_family].sum() >= _MANY_GROUPS * num_rows:
                chosen[
                    columns_of_family.start
                    + np.argsort(-variances[columns_of_family], kind="stable")[_COLUMNS_OF_STEPS:]
                ] = True
        return chosen

    def num_deferred(self) -> Int64[np.ndarray, " sequence"]:
        """Return the number of counts above zero in deferred columns, of every sequence."""
        return _row_sums(self.row_starts, lambda part: np.take(self.deferred, self.columns[part])).astype(np.int64)

    def only_deferred(self) -> Features:
        """Return the same sequences with only the counts of the deferred columns."""
        row_starts, columns, values = self._chosen(self.deferred)
        return replace(self, row_starts=row_starts, columns=columns, values=values)

    def without_deferred(self) -> Features:
        """Return the same sequences without the counts and weights of the deferred columns."""
        row_starts, columns, values = self._chosen(~self.deferred)
        return replace(
            self,
            row_starts=row_starts,
            columns=columns,
            values=values,
            column_weights=np.where(self.deferred, 0.0, self.column_weights),
        )

    @cached_property
    def target_products(self) -> Float64[np.ndarray, " sequence"]:
        """The products `2 <λ τ, c_s>`, without the norm column: how much a placed token lowers a sequence's score."""
        weighted = 2.0 * self.column_weights[:-1] * self.targets[:-1]
        return _row_sums(self.row_starts, lambda part: np.take(weighted, self.columns[part]) * self.values[part])

    @cached_property
    def own_costs(self) -> Float32[np.ndarray, " sequence"]:
        """The costs `a ||v_s||²`, computed in float64 from integer counts."""
        tokens = self.tokens.astype(np.float64)
        # This form needs only the non-zeros: ||c - τ t||² = ||c||² - t 2 <τ, c> + t² ||τ||², all weighted by λ.
        length = float(self.column_weights[:-1] @ self.targets[:-1] ** 2)
        norm_excess = self.norms.astype(np.float64) - self.targets[-1]
        excess = self.squares - tokens * self.target_products + tokens**2 * length
        return (self.self_weight * (excess + self.column_weights[-1] * norm_excess**2)).astype(np.float32)

    @property
    def family_squares(self) -> Float32[np.ndarray, "family sequence"]:
        """The squares `||v_s||²` of every family, without its weight, computed in float64 from integer counts."""
        squares = []
        for columns in self.family_columns.values():
            counts, target = self.counts(columns).astype(np.float64), self.targets[columns]
            # This form needs only the non-zeros: ||c - τ t||² = ||c||² + t (t ||τ||² - 2 <τ, c>).
            excess = self.tokens * (self.tokens * (target @ target) - 2.0 * (counts @ target))
            squares.append(counts.power(2).sum(axis=1) + excess)
        return np.array(squares, np.float32)

    def excess(self, placed: Int64[np.ndarray, " position"]) -> Float64[np.ndarray, " column"]:
        """Return Σ v_s over some sequences, without λ; the norm column is last."""
        sums = self.totals(placed)
        sums[-1] = self.norms[placed].sum(dtype=np.float64)
        return sums - self.targets * np.append(np.full(len(sums) - 1, self.tokens[placed].sum()), len(placed))


def check_index_range(num_sequences: int, num_nonzeros: int) -> None:
    """Raise an error if 32-bit indices cannot represent some sequences and non-zeros that are ordered together."""
    # The accelerator uses int32, rounds sizes up and adds indices. If the numbers are below half of the range of int32,
    # neither the rounding nor the additions can overflow.
    limit = np.iinfo(np.int32).max // 2
    if max(num_sequences, num_nonzeros) >= limit:
        raise UserError(
            f"Expected fewer than {limit:,} sequences and non-zero counts that are ordered together, found "
            f"{num_sequences:,} and {num_nonzeros:,}; use the method 'balance', which orders them in parts."
        )


def _stacked(
    matrices: Sequence[csr_array],
) -> tuple[
    Int64[np.ndarray, " boundary"],
    Integer[np.ndarray, " nonzero"],
    Integer[np.ndarray, " nonzero"] | Float32[np.ndarray, " nonzero"],
]:
    """Put matrices side by side; return the starts of the rows, the columns and the values, in narrow types."""
    num_rows, num_columns = len(matrices[0].indptr) - 1, sum(matrix.shape[1] for matrix in matrices)
    row_starts = np.zeros(num_rows + 1, np.int64)
    for matrix in matrices:
        row_starts += matrix.indptr
    largest = max((int(matrix.data.max(initial=0)) for matrix in matrices), default=0)
    columns = np.empty(row_starts[-1], np.uint16 if num_columns < 2**16 else np.int32)
    values = np.empty(row_starts[-1], np.uint16 if largest < 2**16 else np.float32)
    for block in _row_blocks(row_starts):
        # SciPy joins matrices with one type of indices and one of values: blocks keep the copies small.
        joined = csr_array(hstack([matrix[block].astype(values.dtype) for matrix in matrices], format="csr"))
        place = slice(row_starts[block.start], row_starts[block.stop])
        columns[place], values[place] = joined.indices, joined.data
    return row_starts, columns, values


def _row_sums(
    row_starts: Integer[np.ndarray, " boundary"],
    values: Callable[[slice], Float64[np.ndarray, " _nonzero"] | Bool[np.ndarray, " _nonzero"]],
) -> Float64[np.ndarray, " sequence"]:
    """Return the sum of each row's values; `values` computes the values of a slice of the non-zeros."""
    sums = np.zeros(len(row_starts) - 1)
    for block in _row_blocks(row_starts):
        starts = row_starts[block.start : block.stop + 1].astype(np.int64)
        summed = values(slice(starts[0], starts[-1])).astype(np.float64, copy=False)
        # A product with a matrix of one column adds a row's values one after another, as `np.bincount` does in four
        # times the time. `np.add.reduceat` would round in another order.
        column = np.zeros(len(summed), np.int32)
        rows = csr_array((summed, column, (starts - starts[0]).astype(np.int32)), shape=(len(starts) - 1, 1))
        sums[block] = rows @ np.ones(1)
    return sums


def _row_blocks(row_starts: Integer[np.ndarray, " boundary"]) -> Iterator[slice]:
    """Yield blocks of rows with about `_NONZEROS_TOGETHER` non-zeros, or of one longer row."""
    first, num_rows = 0, len(row_starts) - 1
    while first < num_rows:
        stop = int(np.searchsorted(row_starts, int(row_starts[first]) + _NONZEROS_TOGETHER, side="right")) - 1
        # Rows without non-zeros also need memory.
        stop = min(max(stop, first + 1), first + _NONZEROS_TOGETHER, num_rows)
        yield slice(first, stop)
        first = stop


def heaviest_groups(counts: csr_array) -> Int64[np.ndarray, " sequence"]:
    """Return the group with the most tokens of every row; if several are equal, the lowest group.

    Rows without tokens get `counts.shape[1]`.

    Example:
        >>> heaviest_groups(csr_array([[1, 2, 2], [0, 0, 0], [5, 0, 1]])).tolist()
        [1, 3, 0]
    """
    heaviest, _ = _heaviest(counts.indptr, counts.shape[1], lambda part: (counts.indices[part], counts.data[part]))
    return heaviest.astype(np.int64)


def _heaviest(
    row_starts: Integer[np.ndarray, " boundary"],
    num_groups: int,
    entries: Callable[[slice], tuple[Integer[np.ndarray, " _nonzero"], np.ndarray]],
) -> tuple[Int32[np.ndarray, " sequence"], Int64[np.ndarray, " sequence"]]:
    """Return every row's group with the most tokens, and these tokens; `entries` gives a slice's groups and tokens."""
    num_rows = len(row_starts) - 1
    heaviest, most = np.full(num_rows, num_groups, np.int32), np.zeros(num_rows, np.int64)
    for block in _row_blocks(row_starts):
        starts = row_starts[block.start : block.stop + 1]
        groups, tokens = entries(slice(starts[0], starts[-1]))
        used = np.flatnonzero(tokens > 0)
        groups, tokens = groups[used], tokens[used].astype(np.int64)
        row = block.start + np.searchsorted(starts, used + starts[0], side="right") - 1
        # `maximum.at` and `minimum.at` on the non-zeros: SciPy's argmax would also compare the implicit zeros.
        np.maximum.at(most, row, tokens)
        leading = tokens == most[row]
        np.minimum.at(heaviest, row[leading], groups[leading])
    return heaviest, most
