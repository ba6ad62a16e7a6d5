"""The objective of an ordering: the weights of the greedy rule.

A *family* is a kind of characteristics (such as topic clusters, lengths or sources). A *group* is one value of a
family. Let `c_s` be the token counts of sequence s in the groups of all families. The columns of each family are
multiplied by the square root of the family's weight λ. `t_s` is the sequence's number of tokens, and τ are the corpus's
token shares. The *excess* of a sequence is `v_s = c_s - τ t_s`, and `D` is the sum of the excesses of all placed
sequences. The next sequence is the one with the smallest score

    2 <D, v_s> + a ||v_s||²

where `a` is the self weight. With `a = 1` the score is the growth of `||D||²`; this is the published rule (kernel
herding, Bach et al., 2012). The *norm column* is one more feature: the Euclidean norm of the sequence's counts in the
first family. Its target is the mean norm. Without it, the greedy rule uses the sequences with many groups first. The
form "norms" adds the families' norms `λ ||D + v_s||`; the rule above adds their squares.

Sequences of one document are kept *apart*: far from each other in the ordering. The same is true for sequences that
contain copies of one document. Each document, and each set of copies, is a group g of n_g sequences. P_g is the number
of its tokens that are placed, τ_g is its share of all tokens, and S is the number of all placed tokens. The score of a
sequence of g has the additional term `2 λ √n_g t_s (P_g - τ_g S)`. This is the rule above for one more family, without
the terms that are (nearly) equal for all sequences. Because of the factor √n_g, this term is stronger than the families
for long documents and weak for short documents. Sequences of short documents are kept apart easily.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from jax_diversity.foundation.checks import as_tuple, as_weight, as_whole_number, check_one_of, check_type
from jax_diversity.foundation.errors import UserError, did_you_mean, quoted

if TYPE_CHECKING:
    from jax_diversity.counts import TokenCounts

# Scores are float32: with a larger weight no digits would remain for the other terms.
_LARGEST_WEIGHT = 1e9
_NORMS_METHODS = ("greedy", "greedy_block_shuffle")

Form = Literal["squares", "norms"]
"""What an objective adds up over its families: the squares of the norms of their deviations, or the norms."""


@dataclass(frozen=True)
class Objective:
    """Weights of the greedy rule.

    Raises:
        UserError: a weight that is negative or not finite, a window below 1, an unknown form; the form "norms" with
            windows, a document weight above 0 or a self weight other than 1.

    Example:
        >>> Objective.f3(0.5).family_weights
        (1.0, 0.5)
        >>> Objective.f3(0.5, form="norms").form
        'norms'
    """

    norm_weight: float = 1.0
    """λ of the norm column. With 0 there is no norm column."""
    self_weight: float = 0.5
    """`a`, the weight of a sequence's own squared excess; 1 is the published rule."""
    windows: tuple[int, ...] = ()
    """Window sizes, in sequences, that are balanced besides the prefix (all sequences placed so far). If a build has a
    `batch_size`, it is the default, unless the family weights are a list. Windows of these sizes are then a few per
    cent nearer to the corpus's mixture; other windows become only slightly worse."""
    window_weight: float = 0.5
    """β. With windows, the rule uses `D + β Σ_w (D_t - D_{t-w})` instead of `D`, and `(1 + β |windows|) a` instead of
    `a`."""
    family_weights: tuple[float, ...] | dict[str, float] | None = None
    """The weights λ of families, which replace the characteristics' weights (1.0 for listed families, 12.0 for
    `tokens`). A mapping, such as `{length: 0.5}`, changes the families that it names. A list has the weights of the
    first families; families without an entry are left out."""
    document_weight: float = 0.04
    """λ of the term that keeps apart the sequences of one document (`Characteristics.documents`) and the sequences
    with copies of one document (`Characteristics.copies`). A group of n sequences has the weight `λ √n`. 0 leaves the
    term out."""
    form: Form = "squares"
    """`squares` adds `λ ||D + v_s||²` over the families, as in the published formulas. `norms` adds `λ ||D + v_s||`,
    and λ times the absolute value of the norm column's sum, as in the authors' own code
    (https://github.com/JoeMelko/dclm_exp, clustering/greedy_order_sparse_gpu_clean.py). `norms` needs the method
    `greedy` or `greedy_block_shuffle`, the self weight 1, the document weight 0 and no windows."""

    BASES: ClassVar[tuple[str, ...]] = ("f1", "f2", "f3")
    """A published objective, whose values replace the defaults below."""

    def __post_init__(self) -> None:
        # Weights are stored as Python numbers, also if they were given as NumPy numbers, so that `info` is JSON.
        for name in ("norm_weight", "self_weight", "window_weight", "document_weight"):
            object.__setattr__(self, name, _as_weight(name, getattr(self, name)))
        weights = self.family_weights
        if isinstance(weights, Mapping):
            weights = {str(name): _as_weight(f"family_weights.{name}", value) for name, value in weights.items()}
        elif weights is not None:
            listed = enumerate(as_tuple(weights))
            weights = tuple(_as_weight(f"family_weights[{i}]", value) for i, value in listed)
            if not any(weights):
                raise UserError("Expected family_weights with a weight above zero, found none.")
        object.__setattr__(self, "family_weights", weights)
        # YAML, JSON and NumPy may give a whole number as a float, such as 256.0.
        sizes = [int(w) if isinstance(w, float) and w.is_integer() else w for w in as_tuple(self.windows)]
        windows = tuple(as_whole_number("each of the objective's windows", size, 1) for size in sizes)
        object.__setattr__(self, "windows", windows)
        check_one_of("the objective's form", self.form, get_args(Form))
        if self.form == "norms" and (self.self_weight != 1 or self.document_weight or self.windows):
            raise UserError(
                "Expected self_weight 1, document_weight 0 and no windows with the form 'norms', found "
                f"{self.self_weight:g}, {self.document_weight:g} and {self.windows}; take Objective.f2 or f3, or the "
                "form 'squares'."
            )

    @classmethod
    def f1(cls) -> Objective:
        """Return the published objective f1: only the first family (topic clusters)."""
        return cls(norm_weight=0.0, self_weight=1.0, family_weights=(1.0,), document_weight=0.0)

    @classmethod
    def f2(cls, norm_weight: float = 1.0, *, form: Form = "squares") -> Objective:
        """Return f2: f1 with the norm column, weighted by λ = `norm_weight`. The authors' code uses `form="norms"`."""
        return cls(norm_weight=norm_weight, self_weight=1.0, family_weights=(1.0,), document_weight=0.0, form=form)

    @classmethod
    def f3(cls, length_weight: float = 1.0, *, form: Form = "squares") -> Objective:
        """Return f3: the first two families (clusters and document lengths). The second has the weight `length_weight`.

        The authors' code uses `form="norms"`.
        """
        weights = (1.0, length_weight)
        return cls(norm_weight=0.0, self_weight=1.0, family_weights=weights, document_weight=0.0, form=form)

    @classmethod
    def based_on(cls, base: str, changes: Mapping[str, Any]) -> Objective:
        """Return a published objective with changes: the form of settings."""
        if isinstance(changes.get("family_weights"), Mapping):
            raise UserError(
                f"Expected family_weights as a list with the base {base}, which weighs the first families, found names."
            )
        return dataclasses.replace(getattr(cls, base)(), **changes)

    @property
    def total_self_weight(self) -> float:
        """The value `(1 + β |windows|) a`: the prefix and every window grow by the same `v_s`."""
        return (1.0 + self.window_weight * len(self.windows)) * self.self_weight

    def check(self, method: str, families: Sequence[str]) -> None:
        """Raise an error if the objective does not fit a method, or the families that an ordering can balance."""
        if not self.windows and self.window_weight != type(self).window_weight:
            raise UserError(f"Expected windows with the window_weight {self.window_weight:g}, found none.")
        if self.form == "norms" and method not in _NORMS_METHODS:
            raise UserError(
                f"Expected the method {' or '.join(_NORMS_METHODS)} with the objective's form 'norms', found "
                f"{method!r}; take one of them or the form 'squares'."
            )
        self.weights_of(dict.fromkeys(families, 1.0))

    def weights_of(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return family -> λ, without families of weight zero; `weights` are the weights without this objective.

        Raises:
            UserError: a family does not exist, or no family has a weight above zero.
        """
        given_weights = self.family_weights
        if isinstance(given_weights, Mapping):
            if unknown := [name for name in given_weights if name not in weights]:
                raise UserError(
                    f"Expected family_weights to weigh families of the characteristics ({', '.join(weights)}), found "
                    f"{quoted(unknown[0])}{did_you_mean(unknown[0], weights) or '; add it there or leave it out here.'}"
                )
            weights = {**weights, **given_weights}
        elif given_weights is not None:
            if len(given_weights) > len(weights):
                raise UserError(
                    f"The objective weighs {len(given_weights)} families, the characteristics have {len(weights)} "
                    f"({', '.join(weights)}); add the missing family or use another objective."
                )
            weights = dict(zip(weights, given_weights, strict=False))
        positive = {name: value for name, value in weights.items() if value > 0}
        if not positive:
            raise UserError("Expected family_weights with a weight above zero, found only zeros.")
        return positive

    def resolved_weights(self, counts: TokenCounts) -> dict[str, float]:
        """Return family -> λ, in the families' order, without families of weight zero."""
        return self.weights_of({name: counts.weights[name] for name in counts.families})


def _as_weight(name: str, value: Any) -> float:
    number = as_weight(f"the objective's {name}", value)
    if number > _LARGEST_WEIGHT:
        raise UserError(f"Expected the objective's {name} to be at most {_LARGEST_WEIGHT:g}, found {value!r}.")
    return number


def as_objective(objective: Objective | str | None) -> Objective | None:
    """Return an objective that is given by itself or by the name of a published one; None stays None.

    Raises:
        UserError: another type, or an unknown name.
    """
    check_type(
        "objective", objective, Objective | str | None, "a jd.Objective, or the name of a published one, such as 'f3'"
    )
    if isinstance(objective, str):
        check_one_of("the objective", objective, Objective.BASES)
        return Objective.based_on(objective, {})
    return objective
