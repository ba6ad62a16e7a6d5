"""The settings of the stage `order`: one ordering, its method and what it balances."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from jax_diversity.foundation.checks import as_weight, as_whole_number, check_at_least, check_file_name
from jax_diversity.foundation.errors import UserError

if TYPE_CHECKING:
    from jax_diversity.ordering.objective import Objective

Place = int | float
"""A position of the run: a whole number, or a fraction of the run in [0, 1) as a number with a point."""


@dataclass(frozen=True)
class TargetsConfig:
    """Wanted shares of groups in place of the corpus's own, in phases: a curriculum."""

    shares: dict[str, tuple[dict[str, float] | tuple[float, ...], ...]] = field(default_factory=dict)
    """Family -> the shares of its groups in every phase, such as `{source: [{web: 0.9}, {web: 0.5}]}`. By name: groups
    that are not named divide the rest of 1 as in the corpus. As a list: a share for every group, in their stored
    order, scaled to a sum of 1. Families that are not named keep the corpus's shares."""
    starts: tuple[Place, ...] = ()
    """Where every phase begins, the first at 0: as positions (`1000`) or as fractions of the run (`0.5`). None makes
    phases of equal length."""
    linear: bool = False
    """From the shares of the first phase at the beginning to the shares of the second one at the end, in 64 steps;
    takes two phases and no starts."""

    @property
    def num_phases(self) -> int:
        """The number of phases; it is the same for all families."""
        return max(map(len, self.shares.values()), default=0)

    def check(self, where: str, families: Sequence[str]) -> None:
        """Refuse targets that no corpus could satisfy; names of groups are checked with the corpus."""
        if not self.shares:
            if self.starts or self.linear:
                raise UserError(f"Expected {where}.shares with {where}.starts or .linear, found none.")
            return
        for family, phases in self.shares.items():
            _check_family(f"{where}.shares to name", family, families)
            if not 0 < len(phases) == self.num_phases:
                raise UserError(
                    f"Expected {where}.shares of {self.num_phases} phases in every family, found {len(phases)} of "
                    f"{family!r}."
                )
            for number, shares in enumerate(phases):
                values = list(shares.values() if isinstance(shares, dict) else shares)
                for value in values:
                    as_weight(f"every share of {where}.shares.{family}", value)
                total = sum(values)
                if not total > 0 and not isinstance(shares, dict):
                    raise UserError(f"Expected {where}.shares.{family}[{number}] to hold a share above zero.")
                if isinstance(shares, dict) and total > 1 + 1e-6:
                    raise UserError(
                        f"Expected {where}.shares.{family}[{number}] to add up to at most 1, found {total:g}; scale "
                        "them."
                    )
        if self.linear and (self.num_phases != 2 or self.starts):
            raise UserError(
                f"Expected {where}.linear with shares of two phases, the first and the last, and without starts, "
                f"found {self.num_phases} phases and {len(self.starts)} starts."
            )
        if self.starts and len(self.starts) != self.num_phases:
            raise UserError(f"Expected {where}.starts of {self.num_phases} phases, found {len(self.starts)}.")
        for start in self.starts:
            _check_place(f"every start of {where}.starts", start)
        # A position and a fraction can only be compared when the number of sequences is known.
        pairs = [pair for pair in itertools.pairwise(self.starts) if type(pair[0]) is type(pair[1])]
        if self.starts and (self.starts[0] != 0 or any(before >= after for before, after in pairs)):
            raise UserError(f"Expected {where}.starts to ascend from 0, found {', '.join(map(str, self.starts))}.")


@dataclass(frozen=True)
class AfterConfig:
    """Another ordering that this one continues: its first positions stay, the others are ordered again."""

    order: str | None = None
    """Name of the other ordering, one that is made before this one; None orders all sequences."""
    position: Place | None = None
    """The first position that changes, as a number of sequences (`1000`) or as a fraction of the run (`0.5`)."""

    def check(self, where: str) -> None:
        """Check that both or neither are set."""
        if (self.order is None) != (self.position is None):
            given, lacking = ("position", "order") if self.order is None else ("order", "position")
            raise UserError(f"Expected {where}.{lacking} with {where}.{given}, found none.")
        if self.position is not None:
            _check_place(f"{where}.position", self.position)


@dataclass(frozen=True)
class OrderConfig:
    """One ordering: its method and options, seed, objective and targets.

    A setting that the method does not use is refused if it differs from its default.
    """

    method: str = "balance"
    """A method's name; `jax-diversity order --help` lists them."""
    options: dict[str, int | float | bool | str | None] = field(default_factory=dict)
    """The method's own options, such as `pool_size 8192`; their defaults where not given."""
    name: str | None = None
    """Name of the ordering; None takes the method's name."""
    seed: int = 0
    """Seed for methods that draw random numbers."""
    objective: Literal["default", "f1", "f2", "f3"] = "default"
    """`default`: families, norm column, self weight 0.5; f1, f2, f3: exactly as published."""
    form: Literal["squares", "norms"] = "squares"
    """Terms of f2 and f3: `squares`, as in the published formulas; `norms`, as in the authors' code (`greedy` and
    `greedy_block_shuffle` only)."""
    weights: dict[str, float] = field(default_factory=dict)
    """λ per family, in place of the characteristics' own, which is 1.0 for listed families. f1 takes the first
    family's; f2 takes that and norm_weight; f3 takes the first two families'."""
    windows: tuple[int, ...] = ()
    """Window sizes, in sequences, that are balanced besides the whole prefix; where none is given, `batch_size` if that
    is set. Windows of these sizes are then some per cent nearer to the corpus's mixture, at little cost elsewhere."""
    window_weight: float = 0.5
    """β, the weight of the windows."""
    norm_weight: float | None = None
    """λ of the norm column; None takes the objective's own."""
    self_weight: float | None = None
    """Weight of a sequence's own squared excess; None takes the objective's own."""
    document_weight: float | None = None
    """λ of the term that keeps sequences of one document, and its copies, apart; None takes the objective's own."""
    reverse: bool = False
    """Reverse the order: last sequence first."""
    devices: int | None = None
    """Devices that share the work, for methods that support it; the result does not change. None takes one device."""
    targets: TargetsConfig = TargetsConfig()
    after: AfterConfig = AfterConfig()

    @property
    def file_name(self) -> str:
        """The ordering's name, also its file's."""
        return self.name or self.method

    def for_batches(self, batch_size: int | None) -> OrderConfig:
        """The settings with the batch size as their window and block size, as far as the method uses them.

        Windows or a block size that are set stay, and a published objective stays without windows.
        """
        from jax_diversity.ordering.base import METHODS

        if batch_size is None:
            return self
        takes_windows = METHODS.takes(self.method, "objective") and self.objective == "default"
        windows = self.windows or ((batch_size,) if takes_windows else ())
        blocks = {"block_size": batch_size} if METHODS.takes(self.method, "block_size") else {}
        return dataclasses.replace(self, windows=windows, options={**blocks, **self.options})

    def check_uses(self) -> None:
        """Refuse unknown options, and settings that the method does not use.

        The method's source is read: importing the method would load JAX and start the accelerator.

        Raises:
            UserError: the first such setting.
        """
        from jax_diversity.ordering.base import METHODS

        METHODS.check_settings(self.method, self.options)
        for name, parameter in _PARAMETER_OF.items():
            if getattr(self, name) != getattr(_DEFAULT, name):
                METHODS.check_takes(self.method, parameter, f"use {name}")

    def check_absent(self, where: str, names: Sequence[str], place: str) -> None:
        """Refuse settings that do not apply in a place, such as `in a run`."""
        for name in names:
            if getattr(self, name) != getattr(_DEFAULT, name):
                raise UserError(f"Expected no {where}.{name} {place}, where it has no effect; leave it out.")

    def arguments(self, families: Sequence[str]) -> dict[str, Any]:
        """The arguments of `order` that the method uses: seed, objective and options."""
        from jax_diversity.ordering.base import METHODS

        used: dict[str, Any] = {"seed": self.seed} if METHODS.takes(self.method, "seed") else {}
        if METHODS.takes(self.method, "objective"):
            used["objective"] = self.resolve_objective(families)
        return {**used, **self.options}

    def check(self, where: str, families: Sequence[str], earlier: Sequence[str] = ()) -> None:
        """Refuse settings that no corpus could satisfy. Options: names and types; the method checks their values.

        Args:
            where: the name of these settings in messages, such as `orders[0]`.
            families: the families that orderings can balance.
            earlier: the orderings that are made before this one.

        Raises:
            UserError: the first such setting.
        """
        from jax_diversity.ordering.base import METHODS

        check_file_name("an ordering's name", self.file_name)
        check_at_least(0, where, self, "seed")
        for family, value in self.weights.items():
            _check_family(f"{where}.weights to weigh", family, families)
            as_weight(f"{where}.weights.{family}", value)
        if not any(self.weights.get(family, 1.0) for family in families):
            raise UserError(f"Expected {where}.weights to hold a weight above zero, found only zeros.")
        for name in ("window_weight", "norm_weight", "self_weight", "document_weight"):
            if getattr(self, name) is not None:
                as_weight(f"{where}.{name}", getattr(self, name))
        for size in self.windows:
            if size < 1:
                raise UserError(f"Expected {where}.windows >= 1, found {size}.")
        self.targets.check(f"{where}.targets", families)
        self.after.check(f"{where}.after")
        if self.after.order not in (None, *earlier):
            raise UserError(
                f"Expected {where}.after.order to name an ordering that is made before it "
                f"({', '.join(earlier) or 'there is none'}), found {self.after.order!r}."
            )
        if self.devices is not None:
            as_whole_number(f"{where}.devices", self.devices, 1)
        if self.reverse and (self.targets.shares or self.after.order):
            raise UserError(
                f"Expected {where}.reverse without targets and after, whose positions it would reverse, found it "
                f"with {'targets; give their phases in reverse' if self.targets.shares else 'after; leave it out'}."
            )
        METHODS.check_name(self.method)
        try:
            self.check_uses()
            objective = self.resolve_objective(families)
            objective.check_families(families)
            objective.check_method(self.method)
            weights = objective.family_weights or [self.weights.get(family, 1.0) for family in families]
            weighed = [family for family, value in zip(families, weights, strict=False) if value]
            for family in self.targets.shares:
                if family not in weighed:
                    raise UserError(f"Targets name the family {family!r}; the objective weighs {', '.join(weighed)}.")
        except UserError as error:
            raise UserError(f"Ordering {self.file_name!r}: {error}") from None

    def resolve_objective(self, families: Sequence[str]) -> Objective:
        """The objective of the settings: a preset with the values that are set.

        Raises:
            UserError: weights that the preset does not have, or invalid ones.
        """
        from jax_diversity.ordering.objective import Objective

        presets = {"default": Objective, "f1": Objective.f1, "f2": Objective.f2, "f3": Objective.f3}
        preset = presets[self.objective]()
        if preset.family_weights is not None and self.weights:
            weighed = families[: len(preset.family_weights)]
            if unknown := set(self.weights) - set(weighed):
                raise UserError(
                    f"Expected weights of the families of {self.objective} ({', '.join(weighed)}), found "
                    f"{', '.join(sorted(unknown))}; take objective=default for all families."
                )
            preset = dataclasses.replace(preset, family_weights=tuple(self.weights.get(name, 1.0) for name in weighed))
        given = {name: getattr(self, name) for name in ("norm_weight", "self_weight", "document_weight")}
        return dataclasses.replace(
            preset,
            windows=self.windows,
            window_weight=self.window_weight,
            form=self.form,
            **{name: value for name, value in given.items() if value is not None},
        )


_DEFAULT = OrderConfig()
_PARAMETER_OF = {
    "seed": "seed",
    **dict.fromkeys(("objective", "form", "weights", "windows", "window_weight"), "objective"),
    **dict.fromkeys(("norm_weight", "self_weight", "document_weight"), "objective"),
    **{"targets": "plan", "after": "plan", "devices": "mesh"},
}
"""Setting -> the parameter of the methods that use it; all methods use the others."""


def position_of(place: Place, num_positions: int) -> int:
    """The position that settings give as a whole number or as a fraction of the run."""
    return place if isinstance(place, int) else round(place * num_positions)


def _check_place(name: str, place: Place) -> None:
    if isinstance(place, int):
        as_whole_number(name, place)
    elif not 0 <= place < 1:
        raise UserError(f"Expected {name} to be a position (a whole number) or a fraction in [0, 1), found {place}.")


def _check_family(what: str, family: str, families: Sequence[str]) -> None:
    if family not in families:
        raise UserError(
            f"Expected {what} families of characteristics.families ({', '.join(families)}), found {family!r}; add it "
            "there or leave it out here."
        )
