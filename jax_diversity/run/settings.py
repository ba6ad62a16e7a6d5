"""Settings of a stored run, for YAML files and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.settings import OrderConfig, TargetsConfig

if TYPE_CHECKING:
    from jax_diversity.dataset import Dataset


@dataclass(frozen=True)
class ScheduleConfig:
    """The settings of a new run, or of a change from a position on."""

    path: str = "schedule"
    """The run's folder."""
    datasets: tuple[str, ...] = ()
    """Folders or addresses of the datasets of a new run, or of datasets to add."""
    num_epochs: float | None = None
    """Number of epochs of all datasets; 1 if neither this nor num_positions is given."""
    num_positions: int | None = None
    """The length of the run in sequences, instead of num_epochs."""
    weights: tuple[int | float | str, ...] | dict[str, float] = ()
    """Shares in any unit: a number for each dataset; name -> number, such as `{web: 3, code: 1}`; or each number before
    its name, as in Megatron's lists: `3 web 1 code`. All datasets that a pattern such as `web-*` matches share its
    weight. Without weights the sizes are used."""
    moving_weights: TargetsConfig = TargetsConfig()
    """Shares of `family` that change during the run, in place of `weights`; the starts of the phases count from the
    first position that these settings make."""
    family: str = "dataset"
    """The weights apply to the datasets, or to the groups of a family, such as `source`. Groups need a joint order."""
    temperature: float = 1.0
    """Without weights, shares are proportional to size^(1/temperature)."""
    max_repeats: int | None = None
    """The largest number of times that the run may read a sequence."""
    joint: bool = False
    """Make one order of the sequences of all datasets, which must be of one feature space (see `--features-from`)."""
    consecutive: bool = False
    """Read datasets one after another, one epoch each, for example several packings of one dataset (`repack`)."""
    interleaving: Literal["nearest", "megatron"] = "nearest"
    """How datasets are mixed by position. The next sequence is from the dataset that is furthest below its share:
    `nearest` counts the shares up to the end of the position, `megatron` up to its beginning, as Megatron-LM does."""
    order: OrderConfig = OrderConfig()
    """The settings that order every epoch. The first epoch uses the seed, the next one the seed + 1, and so on. For a
    change, the default seed is the seed of the previous version."""
    ordering: str | None = None
    """Name of an ordering. It is used for the first epoch of a run of one dataset."""
    background: bool = False
    """Store every part as soon as it is ordered, so that training can begin while the others are made."""
    position: int | None = None
    """For an existing run: the first position that changes; -1 means the end. Without it nothing is changed. Shares of
    one phase in `order.targets` are the target from this position on; phases count from the beginning of an epoch."""
    skip: tuple[int, ...] = ()
    """For an existing run: the first position to leave out, and the first later position to keep."""

    def arguments(self, datasets: Sequence[Dataset]) -> dict[str, Any]:
        """The arguments of `create_schedule` and `extend_schedule`; `datasets` are all datasets of the run."""
        from jax_diversity.ordering.base import METHODS
        from jax_diversity.run.joining import common_batch_size

        order = self.order.for_batches(common_batch_size(datasets))
        return {
            "num_epochs": self.num_epochs,
            "num_positions": self.num_positions,
            "weights": (self.moving_weights if self.moving_weights.shares else self.weights) or None,
            "family": self.family,
            "temperature": self.temperature,
            "max_repeats": self.max_repeats,
            "joint": self.joint,
            "consecutive": self.consecutive,
            "interleaving": self.interleaving,
            "background": self.background,
            "method": order.method,
            **({"objective": self._objective(order, datasets)} if METHODS.takes(order.method, "objective") else {}),
            **({"targets": self._targets(order.targets, datasets)} if order.targets.shares else {}),
            # Settings do not record whether a value was given: the default is replaced by the previous version's seed.
            **({"seed": order.seed} if order.seed else {}),
            **order.options,
        }

    def _objective(self, order: OrderConfig, datasets: Sequence[Dataset]) -> Any:
        """The objective of all epochs; weights of families (λ) replace the datasets' weights."""
        if not order.weights:
            return order.resolve_objective(())
        from jax_diversity.run.mixture import joint_characteristics

        is_joint = self.joint or self.family != "dataset"
        several = [joint_characteristics(datasets)] if is_joint else [each.characteristics for each in datasets]
        chars = several[0]
        if any(each.families != chars.families for each in several):
            raise UserError("Expected order.weights with datasets that balance the same families, found others.")
        if unknown := set(order.weights) - set(chars.families):
            raise UserError(
                f"Expected order.weights of families that are balanced ({', '.join(chars.families)}), found "
                f"{', '.join(sorted(unknown))}."
            )
        objective = order.resolve_objective(chars.families)
        if objective.family_weights is not None:
            return objective
        return replace(objective, family_weights=tuple({**chars.weights, **order.weights}.values()))

    def _targets(self, config: TargetsConfig, datasets: Sequence[Dataset]) -> Any:
        """The target shares of every epoch of one dataset."""
        from jax_diversity.ordering.curriculum import named_targets

        if len(datasets) != 1:
            raise UserError(
                f"Expected order.targets with one dataset, found {len(datasets)}; give shares of a family as weights "
                "of a joint order."
            )
        targets = named_targets(config, datasets[0].characteristics, datasets[0].group_names)
        if self.position is None or targets.starts != (0,):
            return targets
        # Shares without phases are the target from the position on. `Targets` would be the target of the positions
        # before it, too, and the next sequences would make up for them.
        return {family: shares[0] for family, shares in targets.shares.items()}

    def check(self, exists: bool) -> None:
        """Raise a `UserError` if settings contradict one another, or do not fit a new (or existing) run.

        A job that restarts may repeat the command that made a run: the repeated command must not change the run.
        """
        if self.skip and (len(self.skip) != 2 or self.position is not None):
            raise UserError(f"Expected --skip with two positions and without --position, found {len(self.skip)}.")
        names = [each.name for each in fields(ScheduleConfig) if each.name != "path"]
        changes = any(getattr(self, name) != getattr(_DEFAULT, name) for name in names)
        if exists and changes and self.position is None and not self.skip:
            raise UserError(
                f"Expected --position with settings that change the schedule at {self.path}, found none; give the "
                "first position that changes (-1 for the end), another --path for a new schedule, or --path alone to "
                "show this one."
            )
        if self.position is not None and self.position < -1:
            raise UserError(f"Expected --position >= 0, or -1 for the end, found {self.position}.")
        if exists and self.ordering is not None:
            raise UserError(
                f"Expected ordering only for a new schedule, found {self.ordering} for the existing one at {self.path}."
            )
        if self.weights and self.moving_weights.shares:
            raise UserError("Expected weights or moving_weights, found both; choose one.")
        if self.moving_weights.shares:
            self.moving_weights.check("moving_weights", (self.family,))
        self.order.check_uses()
        self.order.check_absent("order", ("name", "reverse", "devices", "after"), "in a run")


_DEFAULT = ScheduleConfig()
