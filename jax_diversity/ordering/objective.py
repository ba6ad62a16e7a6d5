"""The objective of an ordering, and the sequences' features in the form that the selectors read.

Let `c_s` be a sequence's token counts over all families, each family's columns multiplied by the square root of
its weight λ, `t_s` its number of tokens and τ the corpus's token shares. A sequence's *excess* is
`v_s = c_s - τ t_s`, and `D` is the sum of the excesses of all placed sequences. The next sequence is the one with
the smallest

    2 <D, v_s> + a ||v_s||²

where `a` is the self weight; `a = 1` makes it the growth of `||D||²`, the published greedy. The *norm column* adds the
first family's norm as one more feature, with the plain mean as its target: it stops the greedy from spending all mixed
sequences first. The form "norms" adds the families' norms `λ ||D + v_s||` where this rule adds their squares.

Sequences of one document are kept *apart*, as are sequences that hold copies of one document. Both are groups of
sequences: with P_g the tokens placed of the n_g sequences of group g, τ_g their share of all tokens and S all tokens
placed, a sequence of g has the further score `2 λ √n_g t_s (P_g - τ_g S)`. It is the rule above for one more family,
without the terms that are (nearly) equal for all sequences. With the root, long
documents, whose sequences are frequent, outweigh the families; short ones, which are easily kept apart, disturb the
families little.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64, Integer
from scipy.sparse import csr_array, hstack

from jax_diversity.foundation.checks import as_tuple, as_weight, as_whole_number, check_one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Characteristics

EXACT_TOKENS = 65_536
"""The longest sequence, in tokens, for which the selectors' float32 sums are exact (`deviation` explains why)."""
# Scores are float32: a larger weight would leave no digits for the other terms.
_LARGEST_WEIGHT = 1e9

_NORMS_METHODS = ("greedy", "greedy_block_shuffle")

Form = Literal["squares", "norms"]
"""How an objective adds its families: the squares of their deviations, or the deviations."""


@dataclass(frozen=True)
class Objective:
    """Weights of the greedy rule.

    Attributes:
        norm_weight: λ of the norm column; 0 leaves it out.
        self_weight: `a`, the weight of a sequence's own squared excess; 1 is the published greedy.
        windows: window sizes (sequences) that matter besides the whole prefix, such as the batch size; a bare
            number is one window.
        window_weight: β; the rule reads `D + β Σ_w (D_t - D_{t-w})` in place of `D` and `(1 + β |windows|) a` in
            place of `a`.
        family_weights: λ of the leading families, which replace the characteristics' weights; the families past the
            end are left out; None uses all families with the characteristics' weights.
        document_weight: λ of the term that keeps apart the sequences of one document (`Characteristics.documents`)
            and the sequences with copies of one document (`Characteristics.copies`); a group of n sequences weighs
            `λ √n`. 0 leaves the term out, as the presets do.
        form: "squares" adds `λ ||D + v_s||²` over the families, as the published formulas do; "norms" adds
            `λ ||D + v_s||`, and λ times the absolute value of the norm column's sum, as the authors' own code does
            (https://github.com/JoeMelko/dclm_exp, clustering/greedy_order_sparse_gpu_clean.py). Norms need the
            method `greedy` or `greedy_block_shuffle`, the self weight 1, the document weight 0 and no windows.

    Raises:
        ValueError: a weight that is negative or not finite, a window below 1, an unknown form; norms with windows,
            documents or a self weight other than 1.

    Example:
        >>> Objective.f3(0.5).family_weights
        (1.0, 0.5)
        >>> Objective.f3(0.5, form="norms").form
        'norms'
    """

    norm_weight: float = 1.0
    self_weight: float = 0.5
    windows: tuple[int, ...] = ()
    window_weight: float = 0.5
    family_weights: tuple[float, ...] | None = None
    document_weight: float = 0.04
    form: Form = "squares"

    def __post_init__(self) -> None:
        # Stored as plain numbers, even if they were given as NumPy's, so that an ordering's info is JSON.
        for name in ("norm_weight", "self_weight", "window_weight", "document_weight"):
            object.__setattr__(self, name, _as_weight(name, getattr(self, name)))
        if self.family_weights is not None:
            weights = enumerate(as_tuple(self.family_weights))
            family_weights = tuple(_as_weight(f"family_weights[{i}]", value) for i, value in weights)
            object.__setattr__(self, "family_weights", family_weights)
        # YAML, JSON and NumPy may give a whole number as a float, such as 256.0.
        sizes = [int(w) if isinstance(w, float) and w.is_integer() else w for w in as_tuple(self.windows)]
        windows = tuple(as_whole_number("each of the objective's windows", size, 1) for size in sizes)
        object.__setattr__(self, "windows", windows)
        if self.family_weights is not None and not any(self.family_weights):
            raise UserError("Expected family_weights to hold a weight above zero, found none.")
        check_one_of("the objective's form", self.form, get_args(Form))
        if not self.windows and self.window_weight != type(self).window_weight:
            raise UserError(f"Expected windows with the window_weight {self.window_weight:g}, found none.")
        if self.form == "norms" and (self.self_weight != 1 or self.document_weight or self.windows):
            raise UserError(
                "Expected self_weight 1, document_weight 0 and no windows with the form 'norms', found "
                f"{self.self_weight:g}, {self.document_weight:g} and {self.windows}; take Objective.f2 or f3, or the "
                "form 'squares'."
            )

    @classmethod
    def f1(cls) -> Objective:
        """The first family (topic clusters) alone, exactly as published."""
        return cls(norm_weight=0.0, self_weight=1.0, family_weights=(1.0,), document_weight=0.0)

    @classmethod
    def f2(cls, norm_weight: float = 1.0, *, form: Form = "squares") -> Objective:
        """f1 and the norm column, weighted by λ = `norm_weight`; `form="norms"` is the form of the authors' code."""
        return cls(norm_weight=norm_weight, self_weight=1.0, family_weights=(1.0,), document_weight=0.0, form=form)

    @classmethod
    def f3(cls, length_weight: float = 1.0, *, form: Form = "squares") -> Objective:
        """The first two families (clusters and document lengths), the second weighted by λ = `length_weight`.

        `form="norms"` is the form of the authors' code.
        """
        weights = (1.0, length_weight)
        return cls(norm_weight=0.0, self_weight=1.0, family_weights=weights, document_weight=0.0, form=form)

    @property
    def total_self_weight(self) -> float:
        """`(1 + β |windows|) a`: the prefix and every window grow by the same `v_s`."""
        return (1.0 + self.window_weight * len(self.windows)) * self.self_weight

    def check_method(self, method: str) -> None:
        """Refuse a method that does not minimise the objective's form."""
        if self.form == "norms" and method not in _NORMS_METHODS:
            raise UserError(
                f"Expected the method {' or '.join(_NORMS_METHODS)} with the objective's form 'norms', found "
                f"{method!r}; take one of them or the form 'squares'."
            )

    def check_families(self, families: Sequence[str]) -> None:
        """Refuse fewer families than the objective weighs."""
        if self.family_weights is not None and len(self.family_weights) > len(families):
            raise UserError(
                f"The objective weighs {len(self.family_weights)} families, the characteristics have "
                f"{len(families)} ({', '.join(families)}); add the missing family or use another objective."
            )

    def resolved_weights(self, characteristics: Characteristics) -> dict[str, float]:
        """Family -> λ, in the families' order, without families of weight zero."""
        self.check_families(characteristics.families)
        if self.family_weights is None:
            weights = dict(characteristics.weights)
        else:
            weights = dict(zip(characteristics.families, self.family_weights, strict=False))
        return {name: value for name, value in weights.items() if value > 0}


def _as_weight(name: str, value: Any) -> float:
    number = as_weight(f"the objective's {name}", value)
    if number > _LARGEST_WEIGHT:
        raise UserError(f"Expected the objective's {name} to be at most {_LARGEST_WEIGHT:g}, found {value!r}.")
    return number


@dataclass(frozen=True)
class Apart:
    """The groups of sequences that are kept apart: parts of one document, or of its copies.

    `group` has a row for each group that a sequence can belong to (its document, and copies that it holds); it has
    no rows if nothing is kept apart. A sequence's groups ascend; unused places hold `len(share)`.
    """

    group: Int32[np.ndarray, "member sequence"]
    share: Float64[np.ndarray, " group"]
    weight: Float64[np.ndarray, " group"]

    @classmethod
    def build(cls, characteristics: Characteristics, weight: float) -> Apart:
        """The characteristics' documents and copies; empty with a weight of zero."""
        num_sequences, tokens = characteristics.num_sequences, characteristics.tokens
        given = [] if weight == 0 else [characteristics.documents, characteristics.copies]
        rows, sizes, held, num_groups = [], [], [], 0
        for members in given:
            if members is None:
                continue
            members = (members[:, None] if members.ndim == 1 else members).T
            _, number, size = np.unique(members, return_inverse=True, return_counts=True)
            number = number.reshape(members.shape)
            several = size > 1
            several[number[members < 0]] = False  # negative: without a group
            # A placeholder until the number of all groups is known.
            group = np.where(several, np.cumsum(several) - 1 + num_groups, -1)[number]
            rows += [row for row in group if row.max(initial=-1) >= 0]
            sizes.append(size[several])
            sums = np.bincount(number.ravel(), np.tile(tokens, len(members)), minlength=len(size))
            held.append(sums[several])
            num_groups += int(several.sum())
        if not num_groups:
            return cls(np.zeros((0, num_sequences), np.int32), np.zeros(0), np.zeros(0))
        group = np.array(rows, np.int32)
        group[group < 0] = num_groups
        group.sort(axis=0)  # unused places last
        share = np.concatenate(held) / max(int(tokens.sum()), 1)
        return cls(group, share, weight * np.sqrt(np.concatenate(sizes)))

    @cached_property
    def drift(self) -> Float64[np.ndarray, " sequence"]:
        """`2 λ √n_g τ_g` of every sequence: how much a placed token lowers its score, per token of the sequence."""
        return 2.0 * np.append(self.weight * self.share, 0.0)[self.group].sum(axis=0)


@dataclass(frozen=True)
class Features:
    """The characteristics as an objective weighs them, in tokens: CSR rows, then the norm column.

    Sums of tokens are whole numbers, so that results are the same on every machine. λ is stored separately
    (`column_weights`) and multiplied last: scaled counts would not be whole. `norms` are of the first family, rounded
    to float32 once, so that every step uses the same value; `targets` and `column_weights` end with the norm column's;
    `squares` are `||c_s||²` without the norm column. `apart` has the documents and copies.
    """

    row_starts: Int64[np.ndarray, " boundary"]
    columns: Int32[np.ndarray, " nonzero"]
    values: Float32[np.ndarray, " nonzero"]
    tokens: Int64[np.ndarray, " sequence"]
    norms: Float32[np.ndarray, " sequence"]
    targets: Float64[np.ndarray, " column"]
    column_weights: Float64[np.ndarray, " column"]
    squares: Float64[np.ndarray, " sequence"]
    self_weight: float
    family_columns: Mapping[str, slice]
    apart: Apart

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.tokens)

    @classmethod
    def build(cls, characteristics: Characteristics, objective: Objective) -> Features:
        """Stack the weighted families; the targets are the corpus's own shares."""
        # A family of weight zero costs time at every step and changes nothing: `resolved_weights` leaves it out.
        weights = objective.resolved_weights(characteristics)
        stacked = csr_array(hstack([characteristics.counts[name] for name in weights], format="csr"))
        sizes = [characteristics.counts[name].shape[1] for name in weights]
        ends = np.cumsum(sizes).tolist()
        family_columns = {name: slice(end - size, end) for name, size, end in zip(weights, sizes, ends, strict=True)}
        targets = np.concatenate([characteristics.target_share(name) for name in weights])
        column_weights = np.repeat(list(weights.values()), sizes)
        # The norm is of the first family's counts before weighting, even if its weight is zero.
        first = characteristics.counts[characteristics.families[0]]
        norms = np.sqrt(_row_sums(first.indptr, first.data.astype(np.float64) ** 2)).astype(np.float32)
        mean_norm = float(norms.astype(np.float64).mean()) if len(norms) else 0.0
        tokens = characteristics.tokens
        if (longest := int(tokens.max(initial=0))) > EXACT_TOKENS:
            warnings.warn(
                f"Expected sequences of at most {EXACT_TOKENS:,} tokens, found {longest:,}: beyond that the orderings' "
                "sums are rounded, so that long runs may place sequences that are not quite the best; check the "
                "ordering with jd.measure or pack shorter sequences.",
                stacklevel=2,
            )
        return cls(
            row_starts=stacked.indptr.astype(np.int64),
            columns=stacked.indices.astype(np.int32),
            values=stacked.data.astype(np.float32),
            tokens=tokens,
            norms=norms,
            targets=np.append(targets, mean_norm),
            column_weights=np.append(column_weights, objective.norm_weight),
            squares=_row_sums(stacked.indptr, column_weights[stacked.indices] * stacked.data.astype(np.float64) ** 2),
            self_weight=objective.total_self_weight,
            family_columns=family_columns,
            apart=Apart.build(characteristics, objective.document_weight),
        )

    def take(self, rows: Int64[np.ndarray, " row"]) -> Features:
        """The features of some sequences, in the given order; targets and shares are still of all sequences."""
        entries = self.entries(rows)
        return replace(
            self,
            row_starts=np.append(0, np.cumsum(np.diff(self.row_starts)[rows])),
            columns=self.columns[entries],
            values=self.values[entries],
            tokens=self.tokens[rows],
            norms=self.norms[rows],
            squares=self.squares[rows],
            apart=replace(self.apart, group=self.apart.group[:, rows]),
        )

    def with_groups_as_columns(self) -> Features:
        """The same with a further column for every group that is kept apart, which counts its sequences' tokens."""
        apart, num_columns = self.apart, len(self.targets)
        if not len(apart.group):
            return self
        held = apart.group < len(apart.share)
        lengths = np.diff(self.row_starts)
        row_starts = np.append(0, np.cumsum(lengths + held.sum(axis=0)))
        columns, values = np.empty(row_starts[-1], np.int32), np.empty(row_starts[-1], np.float32)
        own = np.arange(len(self.columns)) + np.repeat(row_starts[:-1] - self.row_starts[:-1], lengths)
        columns[own], values[own] = self.columns, self.values
        place = row_starts[:-1] + lengths
        for group, is_member in zip(apart.group, held, strict=True):
            columns[place[is_member]] = num_columns + group[is_member]
            values[place[is_member]] = self.tokens[is_member]
            place += is_member
        return replace(self, row_starts=row_starts, columns=columns, values=values)

    def counts(self, columns: slice) -> csr_array:
        """The token counts (sequence, group) of some consecutive columns, such as a family's."""
        # A row begins in the selection at the running number of selected non-zeros before its first entry.
        inside = (self.columns >= columns.start) & (self.columns < columns.stop)
        starts = np.concatenate([[0], np.cumsum(inside)])[self.row_starts]
        shape = (self.num_sequences, columns.stop - columns.start)
        return csr_array((self.values[inside], self.columns[inside] - columns.start, starts), shape=shape)

    def entries(self, rows: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " _nonzero"]:
        """The indices of some rows' non-zeros in `columns` and `values`, row after row."""
        counts = np.diff(self.row_starts)[rows]
        # Entry n of all is entry n - (entries of the previous rows) of its own row.
        before = np.cumsum(counts) - counts
        return np.repeat(self.row_starts[rows] - before, counts) + np.arange(counts.sum())

    @cached_property
    def target_products(self) -> Float64[np.ndarray, " sequence"]:
        """`2 <λ τ, c_s>`, without the norm column: how much a placed token lowers a sequence's score."""
        weighted = 2.0 * self.column_weights[:-1] * self.targets[:-1]
        return _row_sums(self.row_starts, weighted[self.columns] * self.values)

    @cached_property
    def own_costs(self) -> Float32[np.ndarray, " sequence"]:
        """`a ||v_s||²`, computed in float64 from integer counts."""
        tokens = self.tokens.astype(np.float64)
        # Expanded over the non-zeros only: ||c - τ t||² = ||c||² - t 2 <τ, c> + t² ||τ||², all weighted by λ.
        length = float(self.column_weights[:-1] @ self.targets[:-1] ** 2)
        norm_excess = self.norms.astype(np.float64) - self.targets[-1]
        excess = self.squares - tokens * self.target_products + tokens**2 * length
        return (self.self_weight * (excess + self.column_weights[-1] * norm_excess**2)).astype(np.float32)

    @property
    def family_squares(self) -> Float32[np.ndarray, "family sequence"]:
        """`||v_s||²` of every family, without its weight, computed in float64 from integer counts."""
        squares = []
        for columns in self.family_columns.values():
            counts, target = self.counts(columns).astype(np.float64), self.targets[columns]
            # Expanded over the non-zeros only: ||c - τ t||² = ||c||² + t (t ||τ||² - 2 <τ, c>).
            excess = self.tokens * (self.tokens * (target @ target) - 2.0 * (counts @ target))
            squares.append(counts.power(2).sum(axis=1) + excess)
        return np.array(squares, np.float32)

    def excess(self, placed: Int64[np.ndarray, " position"]) -> Float64[np.ndarray, " column"]:
        """Σ v_s over some sequences, without λ; the norm column is last."""
        entries = self.entries(placed)
        sums = np.bincount(self.columns[entries], self.values[entries], minlength=len(self.targets)).astype(np.float64)
        sums[-1] = self.norms[placed].sum(dtype=np.float64)
        return sums - self.targets * np.append(np.full(len(sums) - 1, self.tokens[placed].sum()), len(placed))


def _row_sums(
    row_starts: Integer[np.ndarray, " boundary"], values: Float64[np.ndarray, " nonzero"]
) -> Float64[np.ndarray, " sequence"]:
    num_rows = len(row_starts) - 1
    rows = np.repeat(np.arange(num_rows), np.diff(row_starts))
    return np.bincount(rows, values, minlength=num_rows).astype(np.float64)  # without values NumPy returns int


def heaviest_groups(counts: csr_array) -> Int64[np.ndarray, " sequence"]:
    """The group with the most tokens of every row, ties to the lowest; rows without tokens get `counts.shape[1]`.

    Example:
        >>> heaviest_groups(csr_array([[1, 2, 2], [0, 0, 0], [5, 0, 1]])).tolist()
        [1, 3, 0]
    """
    num_rows, num_groups = len(counts.indptr) - 1, counts.shape[1]
    row = np.repeat(np.arange(num_rows), np.diff(counts.indptr))
    # `maximum.at` and `minimum.at` on the non-zeros: SciPy's argmax would also compare the implicit zeros.
    most = np.zeros(num_rows, np.int64)
    np.maximum.at(most, row, counts.data)
    heaviest = np.full(num_rows, num_groups, np.int64)
    leading = (counts.data > 0) & (counts.data == most[row])
    np.minimum.at(heaviest, row[leading], counts.indices[leading])
    return heaviest
