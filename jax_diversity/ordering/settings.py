"""The settings of the stage `order`: one ordering, its method and what it balances."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from jax_diversity.foundation.checks import at_least, file_name, weight
from jax_diversity.foundation.errors import UserError

if TYPE_CHECKING:
    from jax_diversity.ordering.objective import Objective


@dataclass(frozen=True)
class OrderConfig:
    """One ordering: method and its options, seed, objective."""

    method: str = "balance"
    """A method's name; `jax-diversity order --help` lists them."""
    options: dict[str, int | float | bool | str] = field(default_factory=dict)
    """The method's own options, such as `pool_size 8192`; their defaults where not given."""
    name: str | None = None
    """Name of the ordering; None takes the method's."""
    seed: int = 0
    """Seed of the methods that draw."""
    objective: Literal["default", "f1", "f2", "f3"] = "default"
    """`default`: families, norm column, self weight 0.5; f1, f2, f3: exactly as published."""
    weights: dict[str, float] = field(default_factory=dict)
    """λ per family, in place of the characteristics' own: 1.0 of families that were listed."""
    windows: tuple[int, ...] = ()
    """Window sizes, in sequences, that are balanced besides the whole prefix; where none is given, `batch_size` if that
    is set. Windows of these sizes are then some per cent nearer to the corpus's mixture, at little cost elsewhere."""
    window_weight: float = 0.5
    """β, the weight of the windows."""
    norm_weight: float | None = None
    """λ of the norm column; None takes the objective's own."""
    self_weight: float | None = None
    """Weight of a sequence's own squared excess; None takes the objective's own."""

    @property
    def file_name(self) -> str:
        """The ordering's name, which is that of its file."""
        return self.name or self.method

    def for_batches(self, batch_size: int | None) -> OrderConfig:
        """The settings for batches of a size: it is their window, unless they set windows or a published objective."""
        if batch_size is None or self.windows or self.objective != "default":
            return self
        return dataclasses.replace(self, windows=(batch_size,))

    def check(self, where: str, families: Sequence[str]) -> None:
        """Refuse settings that no corpus could satisfy; of options, names and types: values are the method's to check.

        Args:
            where: what messages call these settings, such as `orders[0]`.
            families: the families that orderings see.

        Raises:
            UserError: the first such setting.
        """
        from jax_diversity.ordering.base import METHODS

        file_name("an ordering's name", self.file_name)
        at_least(0, where, self, "seed")
        for family, value in self.weights.items():
            if family not in families:
                raise UserError(
                    f"Expected {where}.weights to weigh families of characteristics.families ({', '.join(families)}), "
                    f"found {family!r}; add it there or leave it out here."
                )
            weight(f"{where}.weights.{family}", value)
        if not any(self.weights.get(family, 1.0) for family in families):
            raise UserError(f"Expected {where}.weights to hold a weight above zero, found only zeros.")
        for name in ("window_weight", "norm_weight", "self_weight"):
            if getattr(self, name) is not None:
                weight(f"{where}.{name}", getattr(self, name))
        for size in self.windows:
            if size < 1:
                raise UserError(f"Expected {where}.windows >= 1, found {size}.")
        # By the method's signature, read from its source: the method itself would load JAX and start the accelerator.
        METHODS.check_name(self.method)
        try:
            METHODS.check_settings(self.method, self.options)
            self.resolve_objective().check_families(families)
        except UserError as error:
            raise UserError(f"Ordering {self.file_name!r}: {error}") from None

    def resolve_objective(self) -> Objective:
        """The objective that the settings describe: a preset, then what they set by themselves.

        Raises:
            UserError: weights that the preset does not have, or that cannot be.
        """
        from jax_diversity.ordering.objective import Objective

        presets = {"default": Objective, "f1": Objective.f1, "f2": Objective.f2, "f3": Objective.f3}
        if self.weights and self.objective != "default":
            raise UserError(
                f"Expected orders.weights with the default objective only, found them with {self.objective!r}, whose "
                "weights are fixed; take objective=default."
            )
        given = {"norm_weight": self.norm_weight, "self_weight": self.self_weight}
        return dataclasses.replace(
            presets[self.objective](),
            windows=self.windows,
            window_weight=self.window_weight,
            **{name: value for name, value in given.items() if value is not None},
        )
