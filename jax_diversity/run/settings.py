"""Settings of a run's schedule, as YAML files and the command line have them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.settings import OrderConfig


@dataclass(frozen=True)
class ScheduleConfig:
    """What a schedule holds, or how it goes on from a position."""

    path: str = "schedule"
    """The schedule's folder."""
    datasets: tuple[str, ...] = ()
    """Datasets' folders or addresses: of a new schedule, or those that are added."""
    num_epochs: float | None = None
    """How often all sequences come; 1 where neither this nor num_positions is given."""
    num_positions: int | None = None
    """The length instead, in sequences."""
    weights: tuple[int | float | str, ...] = ()
    """A weight for each dataset, in any unit; or each weight before its name, as in Megatron's lists: `3 web 1 code`. A
    pattern such as `web-*` is a weight that all that it means share. Their sizes where none is given."""
    family: str = "dataset"
    """What the weights are of: the datasets, or the groups of a family, such as `source`. Groups need a joint order."""
    temperature: float = 1.0
    """Without weights, shares are in proportion to size^(1/temperature)."""
    max_repeats: int | None = None
    """How often a sequence may come in the run."""
    joint: bool = False
    """One order over the sequences of all datasets, which must be of one feature space (see `--features-from`)."""
    consecutive: bool = False
    """Datasets one after another, an epoch each, instead of mixed: such as packings of one dataset (`repack`)."""
    method: str = "balance"
    """How every epoch is ordered; `jax-diversity order --help` lists the methods."""
    options: dict[str, int | float | bool | str | None] = field(default_factory=dict)
    """The method's own options."""
    seed: int | None = None
    """Of the first epoch; each later one takes the next. None takes 0, or that of the version before."""
    objective: Literal["default", "f1", "f2", "f3"] = "default"
    """`default`, or f1, f2, f3 as published."""
    windows: tuple[int, ...] = ()
    """Window sizes that are balanced besides the whole prefix, such as the batch size."""
    position: int | None = None
    """Of a schedule that exists: the first position that changes; -1 is its end. Without it nothing is changed."""
    skip: tuple[int, ...] = ()
    """Of a schedule that exists: the first position to leave out, and the first one after it that is kept."""

    def arguments(self) -> dict[str, Any]:
        """For `create_schedule` and `extend_schedule`."""
        order = OrderConfig(self.method, self.options, objective=self.objective, windows=self.windows)
        return {
            "num_epochs": self.num_epochs,
            "num_positions": self.num_positions,
            "weights": self.weights or None,
            "family": self.family,
            "temperature": self.temperature,
            "max_repeats": self.max_repeats,
            "joint": self.joint,
            "consecutive": self.consecutive,
            "method": self.method,
            "objective": order.resolve_objective(()),
            **({} if self.seed is None else {"seed": self.seed}),
            **self.options,
        }

    def check(self, exists: bool) -> None:
        """Refuse settings that contradict one another, or a schedule that is there (`exists`) or not.

        A command that made a schedule may be given again, such as by a job that starts again: it must not change it.
        """
        if self.skip and (len(self.skip) != 2 or self.position is not None):
            raise UserError(f"Expected --skip with two positions and without --position, found {len(self.skip)}.")
        names = [each.name for each in fields(ScheduleConfig) if each.name != "path"]
        changes = any(getattr(self, name) != getattr(_DEFAULT, name) for name in names)
        if exists and changes and self.position is None and not self.skip:
            raise UserError(
                f"Expected --position with what changes the schedule at {self.path}, found none; give the first "
                "position that changes (-1 for the end), another --path for a new schedule, or --path alone to look at "
                "this one."
            )
        if self.position is not None and self.position < -1:
            raise UserError(f"Expected --position >= 0, or -1 for the end, found {self.position}.")


_DEFAULT = ScheduleConfig()
