"""Settings of a run's schedule, as YAML files and the command line have them."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    weights: tuple[float, ...] = ()
    """A weight for each dataset, in any unit; their sizes where none is given."""
    method: str = "balance"
    """How every epoch is ordered; `jax-diversity order --help` lists the methods."""
    options: dict[str, int | float | bool | str | None] = field(default_factory=dict)
    """The method's own options."""
    seed: int = 0
    """Of the first epoch; each later one takes the next."""
    objective: Literal["default", "f1", "f2", "f3"] = "default"
    """`default`, or f1, f2, f3 as published."""
    windows: tuple[int, ...] = ()
    """Window sizes that are balanced besides the whole prefix, such as the batch size."""
    position: int | None = None
    """Of a schedule that exists: the first position that changes; its end where none is given."""
    skip: tuple[int, ...] = ()
    """Of a schedule that exists: the first position to leave out, and the first one after it that is kept."""

    @property
    def changes(self) -> bool:
        """Whether a schedule that exists is to go on otherwise."""
        return bool(self.datasets or self.weights) or any(
            value is not None for value in (self.num_epochs, self.num_positions, self.position)
        )

    def arguments(self) -> dict[str, Any]:
        """For `create_schedule` and `extend_schedule`."""
        order = OrderConfig(self.method, self.options, seed=self.seed, objective=self.objective, windows=self.windows)
        return {
            "num_epochs": self.num_epochs,
            "num_positions": self.num_positions,
            "weights": self.weights or None,
            "method": self.method,
            "seed": self.seed,
            "objective": order.resolve_objective(()),
            **self.options,
        }

    def check(self) -> None:
        """Refuse settings that contradict one another."""
        if self.skip and (len(self.skip) != 2 or self.changes):
            raise UserError(
                "Expected --skip with two positions and nothing else that changes the schedule, found "
                f"{len(self.skip)} and {'other changes' if self.changes else 'no other change'}."
            )
