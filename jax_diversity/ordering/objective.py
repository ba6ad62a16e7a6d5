"""What an ordering minimises, and the sequences' features in the form that the selectors read.

Let `c_s` be a sequence's token counts over all families, each family's columns multiplied by the square root of
its weight λ, `t_s` its number of tokens and τ the corpus's token shares. A sequence's *excess* is
`v_s = c_s - τ t_s`, and `D` is the sum of the excesses of all that is placed. The next sequence is the one with
the smallest

    2 <D, v_s> + a ||v_s||²

where `a` is the self weight; `a = 1` makes it the growth of `||D||²`, the published greedy. The *norm column*
adds the norm `||counts of the first family||₂` of a sequence as one more feature, with the plain mean as its
target: it stops the greedy from spending all mixed sequences first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64
from scipy.sparse import csr_array, hstack

from jax_diversity.errors import UserError
from jax_diversity.schema import Characteristics


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
        family_weights: λ of the leading families, replacing the characteristics' own and leaving out the
            families past the end; None uses all families with the characteristics' weights.

    Raises:
        ValueError: a weight that is negative or not finite, a window below 1.

    Example:
        >>> Objective.f3(0.5).family_weights
        (1.0, 0.5)
    """

    norm_weight: float = 1.0
    self_weight: float = 0.5
    windows: tuple[int, ...] = ()
    window_weight: float = 0.5
    family_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        # Plain numbers whatever came, so that an ordering's info is JSON.
        for name in ("norm_weight", "self_weight", "window_weight"):
            object.__setattr__(self, name, _weight(name, getattr(self, name)))
        if self.family_weights is not None:
            weights = enumerate(_several(self.family_weights))
            family_weights = tuple(_weight(f"family_weights[{i}]", weight) for i, weight in weights)
            object.__setattr__(self, "family_weights", family_weights)
        object.__setattr__(self, "windows", tuple(map(_window, _several(self.windows))))
        if self.family_weights is not None and not any(self.family_weights):
            raise UserError("Expected family_weights to hold a weight above zero, found none.")

    @classmethod
    def f1(cls) -> Objective:
        """The first family (topic clusters) alone, exactly as published."""
        return cls(norm_weight=0.0, self_weight=1.0, family_weights=(1.0,))

    @classmethod
    def f2(cls, norm_weight: float = 1.0) -> Objective:
        """f1 and the norm column, weighted by λ = `norm_weight`."""
        return cls(norm_weight=norm_weight, self_weight=1.0, family_weights=(1.0,))

    @classmethod
    def f3(cls, length_weight: float = 1.0) -> Objective:
        """The first two families (clusters and document lengths), the second weighted by λ = `length_weight`."""
        return cls(norm_weight=0.0, self_weight=1.0, family_weights=(1.0, length_weight))

    @property
    def total_self_weight(self) -> float:
        """`(1 + β |windows|) a`."""
        return (1.0 + self.window_weight * len(self.windows)) * self.self_weight

    def resolved_weights(self, characteristics: Characteristics) -> dict[str, float]:
        """Family -> λ, in the families' order, those left out or of weight zero not listed.

        Raises:
            ValueError: more family weights than families.
        """
        families = characteristics.families
        if self.family_weights is None:
            weights = dict(characteristics.weights)
        elif len(self.family_weights) > len(families):
            raise UserError(
                f"The objective weighs {len(self.family_weights)} families, the characteristics have "
                f"{len(families)} ({', '.join(families)}); add the missing family or use another objective."
            )
        else:
            weights = dict(zip(families, self.family_weights, strict=False))
        return {name: weight for name, weight in weights.items() if weight > 0}


def _several(values: Any) -> Iterable[Any]:
    return values if np.ndim(values) else (values,)


def _weight(name: str, value: Any) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError, OverflowError):
        weight = math.nan
    if not math.isfinite(weight) or weight < 0:
        raise UserError(f"Expected the objective's {name} to be finite and >= 0, found {value!r}.")
    return weight


def _window(value: Any) -> int:
    try:
        window = int(value) if float(value).is_integer() else 0
    except (TypeError, ValueError, OverflowError):
        window = 0
    if window < 1:
        raise UserError(f"Expected the objective's windows to be whole numbers >= 1, found {value!r}.")
    return window


@dataclass(frozen=True)
class Features:
    """The characteristics as an objective weighs them, in tokens: sparse columns, then the norm column.

    Attributes:
        row_starts: CSR row pointers.
        columns: CSR column of every non-zero.
        values: its token count (float32 holds counts up to 2^24 exactly).
        tokens: t_s.
        norms: the first family's Euclidean norm, rounded to float32 once so that every step sees the same value.
        targets: τ for every column and, last, the norms' plain mean.
        column_weights: λ for every column and, last, the norm column's.
        own_costs: `a ||v_s||²`.
    """

    row_starts: Int64[np.ndarray, " boundary"]
    columns: Int32[np.ndarray, " nonzero"]
    values: Float32[np.ndarray, " nonzero"]
    tokens: Int64[np.ndarray, " sequence"]
    norms: Float32[np.ndarray, " sequence"]
    targets: Float64[np.ndarray, " column"]
    column_weights: Float32[np.ndarray, " column"]
    own_costs: Float32[np.ndarray, " sequence"]

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.tokens)

    @classmethod
    def build(cls, characteristics: Characteristics, objective: Objective) -> Features:
        """Stack the weighted families; means and own costs are computed in float64 from integer counts."""
        weights = objective.resolved_weights(characteristics)
        stacked = csr_array(hstack([characteristics.counts[name] for name in weights], format="csr"))
        targets = np.concatenate([characteristics.target_share(name) for name in weights])
        column_weights = np.concatenate(
            [np.full(len(characteristics.target_share(name)), weight) for name, weight in weights.items()]
        )
        tokens = characteristics.tokens
        norms = row_norms(characteristics.counts[characteristics.families[0]]).astype(np.float32)
        mean_norm = float(norms.astype(np.float64).mean()) if len(norms) else 0.0

        squares = stacked.copy()
        squares.data = squares.data.astype(np.float64) ** 2
        excess = squares @ column_weights
        excess -= 2.0 * tokens * (stacked @ (column_weights * targets))
        excess += tokens.astype(np.float64) ** 2 * float(column_weights @ targets**2)
        excess += objective.norm_weight * (norms.astype(np.float64) - mean_norm) ** 2
        return cls(
            row_starts=stacked.indptr.astype(np.int64),
            columns=stacked.indices.astype(np.int32),
            values=stacked.data.astype(np.float32),
            tokens=tokens,
            norms=norms,
            targets=np.append(targets, mean_norm),
            column_weights=np.append(column_weights, objective.norm_weight).astype(np.float32),
            own_costs=(objective.total_self_weight * excess).astype(np.float32),
        )


def row_norms(counts: csr_array) -> Float64[np.ndarray, " sequence"]:
    """Euclidean norm of every row of a count matrix."""
    squares = counts.copy()
    squares.data = squares.data.astype(np.float64) ** 2
    return np.sqrt(np.asarray(squares.sum(axis=1)).ravel())
