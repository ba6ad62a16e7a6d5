"""Settings of a stored run: its mixture of datasets, and the orders of its epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from jax_diversity.foundation.checks import as_weight, as_whole_number, check_one_of, check_type
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.ordering.settings import OrderConfig, TargetsConfig

if TYPE_CHECKING:
    from jax_diversity.streaming.dataset import Dataset


SCHEDULE_FILE = "schedule.json"
"""The file of a stored run, in its folder."""
DATASET = "dataset"
"""The family whose groups are the datasets of a run."""
_MOST_POSITIONS = 2**37
"""The largest number of positions of a run: a terabyte of numbers."""
_LARGEST_TEMPERATURE = 1e6

Rule = Literal["nearest", "megatron"]
"""The name of the rule that computes the lags of the datasets."""
HeldOut = Literal["refuse", "skip", "keep"]
"""What happens to held-out texts that another dataset trains on, see `Mixture.held_out`."""


@dataclass(frozen=True)
class Mixture:
    """The length of a run, the shares of its datasets or groups, and the limit on repetitions.

    The fields are arguments of `create_schedule` and `extend_schedule`, and options of `jax-diversity schedule`. Python
    also accepts NumPy's numbers and arrays.
    """

    num_epochs: float | dict[str, float] | Any | None = None
    """The number of epochs of all datasets, which may be a fraction; 1 if no length is given. With `weights` it sets
    only the length of the run. Or name -> epochs: with `weights`, the epochs of one dataset, such as `{wiki: 2}`: the
    run ends when this dataset was read so often at its share. Without weights, the epochs of every dataset, which set
    length and weights."""
    num_positions: int | Any | None = None
    """The length of the run in sequences, instead of `num_epochs`."""
    weights: tuple[int | float | str, ...] | dict[str, float] | TargetsConfig | Any | None = None
    """Shares in any unit: a number for each dataset; name -> number, such as `{web: 3, code: 1}`; or Megatron's list,
    each weight before its name, such as `3 web 1 code`. The names are the names of the datasets' folders, or of the
    groups of `family`; all groups that a pattern such as `web-*` matches share its weight. For shares that change
    during the run: `Targets`, or the settings of an order's `targets`, such as `{shares: {dataset: [{web: 0.9}, {web:
    0.5}]}, starts: [0, 0.8]}`; the starts count from the first position that the call makes. By default, the weights
    are the sizes."""
    family: str = DATASET
    """The weights apply to the datasets, or to the groups of a family that the datasets balance, such as `source`. With
    groups the order is joint, also for one dataset."""
    temperature: float | Any = 1.0
    """Without weights, the shares are proportional to `size^(1/temperature)`."""
    max_repeats: int | Any | None = None
    """The largest number of times that the run may read a sequence. Weights that need more reads raise an error. With
    a temperature, the other groups get the positions that a group loses by this limit."""
    joint: bool = False
    """Whether one joint order is made for the sequences of all datasets; weights are then shares of the tokens.
    Otherwise each dataset has its own order, and datasets are mixed by position. A joint order needs datasets of one
    feature space (see `features_from` of a build)."""
    consecutive: bool = False
    """Whether datasets are read one after another, one epoch each, and then again from the first one, instead of being
    mixed. This is useful for several packings of one dataset (`repack`)."""
    interleaving: Rule = "nearest"
    """How datasets are mixed by position. The next sequence is from the dataset that is furthest below its share:
    `nearest` counts the shares up to the end of the position, `megatron` up to its beginning, as Megatron-LM does."""
    held_out: HeldOut = "refuse"
    """What happens if a dataset trains on texts that another one holds out for validation: `refuse` is an error with
    their number, `skip` leaves out the sequences that contain these texts, `keep` trains on them. The description of
    the version has the numbers."""

    def __post_init__(self) -> None:
        check_type("family", self.family, str, "the name of a family")
        for name in ("joint", "consecutive"):
            check_type(name, getattr(self, name), bool, "True or False")
        check_one_of("interleaving", self.interleaving, get_args(Rule))
        check_one_of("held_out", self.held_out, get_args(HeldOut))
        as_temperature(self.temperature)
        if self.max_repeats is not None:
            object.__setattr__(self, "max_repeats", as_whole_number("max_repeats", self.max_repeats, 1))
        if isinstance(self.weights, TargetsConfig):
            self.weights.check("weights", (self.family,))
        if self.weights is not None and self.temperature != 1:
            raise UserError("Expected weights or a temperature, found both: a temperature defines weights.")
        other_settings = (self.weights is not None, self.temperature != 1, self.max_repeats is not None, self.is_joint)
        if self.interleaving != "nearest" and (self.is_joint or self.consecutive):
            raise UserError(
                f"Expected interleaving={self.interleaving} with datasets that are mixed by position, found "
                f"{'a joint order' if self.is_joint else 'consecutive datasets'}; leave it out."
            )
        if isinstance(self.num_epochs, Mapping) and (self.is_joint or self.consecutive or self.temperature != 1):
            raise UserError(
                "Expected num_epochs by name with datasets that are mixed by position and no temperature, found "
                f"{quoted(self.num_epochs)}; give one number of epochs, or num_positions."
            )
        if self.consecutive and any(other_settings):
            raise UserError(
                "Expected only consecutive, found it with weights, a temperature, max_repeats or a joint order; "
                "consecutive datasets are not mixed."
            )

    def __str__(self) -> str:
        """A short description of the settings, for the list of versions."""
        words = ["jointly"] if self.is_joint else ["one after another"] if self.consecutive else []
        if isinstance(self.num_epochs, Mapping):
            words += [
                f"{epochs:g} {'epoch' if epochs == 1 else 'epochs'} of {name}"
                for name, epochs in self.num_epochs.items()
            ]
        words += ["interleaved as by Megatron"] if self.interleaving == "megatron" else []
        words += [f"weighted by {self.family}"] if self.weights is not None else []
        words += [f"temperature {self.temperature:g}"] if self.temperature != 1 else []
        words += [f"at most {self.max_repeats} times"] if self.max_repeats is not None else []
        return "".join(f", {word}" for word in words)

    def num_positions_of(self, datasets: Sequence[Dataset]) -> int:
        """The length of the run in sequences."""
        if not datasets:
            raise UserError("Expected at least one dataset, found none.")
        if self.num_epochs is not None and self.num_positions is not None:
            raise UserError("Expected num_epochs or num_positions, found both; choose one.")
        size = sum(dataset.num_sequences for dataset in datasets)
        if not size:
            raise UserError("Expected datasets with sequences, found none in any.")
        if self.num_positions is not None:
            return as_whole_number("num_positions", self.num_positions, 1, _MOST_POSITIONS)
        epochs = 1 if self.num_epochs is None else as_weight("num_epochs", self.num_epochs)
        if not 0 < epochs * size < _MOST_POSITIONS:
            raise UserError(f"Expected num_epochs above zero, found {self.num_epochs!r}.")
        if round(epochs * size) < 1:
            raise UserError(f"Expected num_epochs to give at least one of {size} sequences, found {self.num_epochs!r}.")
        return round(epochs * size)

    @property
    def is_joint(self) -> bool:
        """Whether the run has one order over all sequences; shares of groups within datasets need this."""
        return self.joint or self.family != DATASET


def as_temperature(value: Any) -> float:
    """Check a temperature of the shares."""
    temperature = as_weight("temperature", value)
    if not 1 / _LARGEST_TEMPERATURE <= temperature <= _LARGEST_TEMPERATURE:
        raise UserError(f"Expected temperature above zero and at most {_LARGEST_TEMPERATURE:g}, found {temperature:g}.")
    return temperature


@dataclass(frozen=True)
class ScheduleConfig:
    """The settings of a new run, or of a change from a position on."""

    path: str = "schedule"
    """The run's folder."""
    datasets: tuple[str, ...] = ()
    """Folders or addresses of the datasets of a new run, or of datasets to add."""
    mixture: Mixture = Mixture()
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
        from jax_diversity.streaming.run.joining import common_batch_size

        order = self.order.for_batches(common_batch_size(datasets))
        return {
            **vars(self.mixture),
            "background": self.background,
            "method": order.method,
            **({"objective": order.objective} if METHODS.takes(order.method, "objective") else {}),
            **({"targets": self._targets(order.targets, datasets)} if order.targets.shares else {}),
            # Settings do not record whether a value was given: the default is replaced by the previous version's seed.
            **({"seed": order.seed} if order.seed else {}),
            **order.options,
        }

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
        names = [setting.name for setting in fields(ScheduleConfig) if setting.name != "path"]
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
        self.order.check_uses()
        self.order.check_absent("order", ("name", "reverse", "devices", "after"), "in a run")


_DEFAULT = ScheduleConfig()
