"""The settings of the stage `order`: one ordering, its method and what it balances.

A *family* is a kind of characteristics, such as topic clusters, document lengths or sources. A *group* is one value of
a family, such as one cluster.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax_diversity.foundation.checks import (
    as_weight,
    as_whole_number,
    check_at_least,
    check_file_name,
)
from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.objective import Objective

Place = int | float
"""A position of the run: a whole number, or a fraction of the run in [0, 1), written with a decimal point."""


@dataclass(frozen=True)
class TargetsConfig:
    """Target shares of groups that replace the corpus's own shares, in phases: a curriculum."""

    shares: dict[str, tuple[dict[str, float] | tuple[float, ...], ...]] = field(default_factory=dict)
    """Family -> the shares of its groups in every phase, such as `{source: [{web: 0.9}, {web: 0.5}]}`. The shares of a
    phase are a mapping or a list. In a mapping from names to shares, the groups without an entry divide the rest of 1
    as in the corpus. A list has a share for every group, in their stored order; it is scaled to a sum of 1. Families
    without an entry keep the corpus's shares."""
    starts: tuple[Place, ...] = ()
    """Where every phase begins: positions (`1000`) or fractions of the run (`0.5`). The first phase begins at 0.
    Without starts, all phases have equal length."""
    linear: bool = False
    """Whether the shares change in 64 equal steps: from the shares of the first phase at the beginning to the shares of
    the second phase at the end. This needs two phases and no starts."""

    @property
    def num_phases(self) -> int:
        """The number of phases; it is the same for all families."""
        return max(map(len, self.shares.values()), default=0)

    def check(self, where: str, families: Sequence[str]) -> None:
        """Raise an error for targets that are wrong for every corpus. Names of groups are checked with the corpus."""
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
                    raise UserError(f"Expected {where}.shares.{family}[{number}] to have a share above zero.")
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
        # A position and a fraction can only be compared if the number of sequences is given. It is not given here.
        pairs = [pair for pair in itertools.pairwise(self.starts) if type(pair[0]) is type(pair[1])]
        if self.starts and (self.starts[0] != 0 or any(before >= after for before, after in pairs)):
            raise UserError(f"Expected {where}.starts to ascend from 0, found {', '.join(map(str, self.starts))}.")


@dataclass(frozen=True)
class AfterConfig:
    """Another ordering that is continued here: its first positions stay, the other sequences are ordered again."""

    order: str | None = None
    """Name of the other ordering, which must be made before this one. Without it, all sequences are ordered."""
    position: Place | None = None
    """The first position that changes, as a number of sequences (`1000`) or as a fraction of the run (`0.5`)."""

    def check(self, where: str) -> None:
        """Check that either both settings are given or none."""
        if (self.order is None) != (self.position is None):
            present, lacking = ("position", "order") if self.order is None else ("order", "position")
            raise UserError(f"Expected {where}.{lacking} with {where}.{present}, found none.")
        if self.position is not None:
            _check_place(f"{where}.position", self.position)


@dataclass(frozen=True)
class OrderConfig:
    """One ordering: its method and options, seed, objective and targets.

    If a setting differs from its default and the method does not use it, an error is raised.
    """

    method: str = "balance"
    """A method's name; the end of `jax-diversity order --help` lists the methods."""
    options: dict[str, int | float | bool | str | None] = field(default_factory=dict)
    """The method's own options, such as `pool_size 8192`; other options keep their defaults."""
    name: str | None = None
    """Name of the ordering. The default is the method's name. The name of another method is refused."""
    seed: int = 0
    """Seed for methods that use random numbers."""
    objective: Objective = Objective()
    reverse: bool = False
    """Reverse the order: last sequence first."""
    devices: int | None = None
    """Number of devices that share the work, for methods that support it; the result does not change. The default is
    one device."""
    targets: TargetsConfig = TargetsConfig()
    after: AfterConfig = AfterConfig()

    @property
    def file_name(self) -> str:
        """The name of the ordering and of its file."""
        return self.name or self.method

    def for_batches(self, batch_size: int | None) -> OrderConfig:
        """Return the settings with the batch size as window size and block size, if the method uses them.

        If windows or a block size are set, they stay. An objective with a list of weights, such as the published ones,
        gets no windows.
        """
        from jax_diversity.ordering.base import METHODS

        if batch_size is None:
            return self
        objective = self.objective
        is_default = objective.form == "squares" and not isinstance(objective.family_weights, tuple)
        if METHODS.takes(self.method, "objective") and is_default and not objective.windows:
            objective = dataclasses.replace(objective, windows=(batch_size,))
        blocks = {"block_size": batch_size} if METHODS.takes(self.method, "block_size") else {}
        return dataclasses.replace(self, objective=objective, options={**blocks, **self.options})

    def check_uses(self) -> None:
        """Raise an error for unknown options, and for settings that the method does not use.

        We read the method's source code, because an import of the method would load JAX and start the accelerator.

        Raises:
            UserError: there is such an option or setting; the error names the first.
        """
        from jax_diversity.ordering.base import METHODS

        METHODS.check_settings(self.method, self.options)
        for name, parameter in _PARAMETER_OF.items():
            if getattr(self, name) != getattr(_DEFAULT, name):
                METHODS.check_takes(self.method, parameter, f"use {name}")

    def check_absent(self, where: str, names: Sequence[str], place: str) -> None:
        """Raise an error for settings that have no effect in a place, such as `in a run`."""
        for name in names:
            if getattr(self, name) != getattr(_DEFAULT, name):
                raise UserError(f"Expected no {where}.{name} {place}, where it has no effect; leave it out.")

    def arguments(self, families: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of `order` that the method uses for counts of these families.

        A weight may name a family that the counts do not have, because it has only one group in this corpus. Such a
        family is balanced in any order.
        """
        from jax_diversity.ordering.base import METHODS

        objective, weights = self.objective, self.objective.family_weights
        if isinstance(weights, Mapping):
            known_weights = {family: value for family, value in weights.items() if family in families}
            objective = dataclasses.replace(objective, family_weights=known_weights)
        arguments = {"seed": self.seed, "objective": objective}
        return {name: arguments[name] for name in arguments if METHODS.takes(self.method, name)} | self.options

    def check(self, where: str, families: Sequence[str], earlier: Sequence[str] = ()) -> None:
        """Raise an error for settings that are wrong for every corpus.

        Only the names and types of options are checked; the method checks their values.

        Args:
            where: the name of these settings in messages, such as `orders[0]`.
            families: the families that orderings can balance.
            earlier: the orderings that are made before this one.

        Raises:
            UserError: there is a wrong setting; the error names the first.
        """
        from jax_diversity.ordering.base import METHODS

        check_file_name("an ordering's name", self.file_name)
        check_at_least(0, where, self, "seed")
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
        if self.file_name != self.method and self.file_name in METHODS:
            raise UserError(
                f"Expected a name that is not the name of another method for an ordering by {self.method!r}, found "
                f"{self.name!r}; choose a name of its own, or method {self.name}."
            )
        try:
            self.check_uses()
            self.objective.check(self.method, families)
            weighed = self.objective.weights_of(dict.fromkeys(families, 1.0))
            for family in self.targets.shares:
                if family not in weighed:
                    raise UserError(f"Targets name the family {family!r}; the objective weighs {', '.join(weighed)}.")
        except UserError as error:
            raise UserError(f"Ordering {self.file_name!r}: {error}") from None


_DEFAULT = OrderConfig()
_PARAMETER_OF = {"seed": "seed", "objective": "objective", "targets": "plan", "after": "plan", "devices": "mesh"}
"""Setting -> the parameter that a method needs for it. Settings without an entry work with all methods."""


def position_of(place: Place, num_positions: int) -> int:
    """Return the position for a place that is given as a whole number or as a fraction of the run."""
    return place if isinstance(place, int) else round(place * num_positions)


def _check_place(name: str, place: Place) -> None:
    if isinstance(place, int):
        as_whole_number(name, place)
    elif not 0 <= place < 1:
        raise UserError(f"Expected {name} to be a position (a whole number) or a fraction in [0, 1), found {place}.")


def _check_family(setting: str, family: str, families: Sequence[str]) -> None:
    if family not in families:
        raise UserError(
            f"Expected {setting} families of characteristics.families ({', '.join(families)}), found {family!r}; add "
            "it there or leave it out here."
        )
