"""The file of an experiment: arms, seeds, budget, tasks, and the claims that it judges.

A *trial* is one training run. An experiment lists *arms*. An arm is a set of settings that replace the experiment's
settings in its trials. Further settings may be varied for every arm. All arms have the same seeds.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from evidence.gradient_orders import GradientRule
from evidence.mixture_rules import MixtureName
from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.checks import as_whole_number, check_at_least, check_file_name, check_one_of
from jax_diversity.foundation.errors import UserError, did_you_mean
from jax_diversity.foundation.settings import parse_yaml, settings_from_plain
from jax_diversity.lab.settings import WEIGHT_DECAY, Size
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.preparation.settings import PYTHON_ENVIRONMENT
from jax_diversity.sequences.packing.settings import PackingConfig

VERSION = 1
"""Version of the meaning of a trial's settings: it increases when the same settings give other numbers, or when a
setting's default changes, which identities do not contain."""
_MOST_TRIALS = 100_000
_DEFAULT_END_RATE = 0.1


SIZES: Mapping[str, Mapping[str, Size]] = {
    "gpt": {"tiny": Size(64, 2, 2), "mini": Size(192, 4, 6), "small": Size(256, 8, 8), "gpu": Size(896, 12, 14)},
    "lstm": {"tiny": Size(96, 1, 1), "mini": Size(320, 2, 1), "small": Size(512, 2, 1), "gpu": Size(1536, 3, 1)},
}
"""Model -> size -> shape. With a vocabulary of 2,048, `tiny` has 230,000 parameters and `mini` 2.2 million (the LSTM
2.3 million); `small` has 10 million with 16,384, `gpu` 161 million with 50,304."""
_HALF_PRECISION = ("small", "gpu")
"""The sizes for accelerators: `read_experiment` sets their precision to bfloat16."""


@dataclass(frozen=True)
class TrialConfig:
    """All settings that decide the numbers of one training run."""

    dataset: str = ""
    """Name of one of the experiment's datasets."""
    packing: PackingConfig | None = None
    """Another packing of the dataset's documents; None means the dataset's own sequences."""
    order: OrderConfig = field(default_factory=lambda: OrderConfig(method="uniform_shuffle"))
    """The ordering, without `name`, `seed`, `devices`, `targets` and `after`; its seed is the trial's `order_seed`."""
    documents: Literal["as_ordered", "random", "clumped", "spread"] = "as_ordered"
    """How to permute sequences of the same source and cluster: `as_ordered` (not at all), `random`, `clumped` (the
    sequences of a document are neighbours) or `spread` (they are far from each other). The mixture of each window does
    not change."""
    epoch_orders: Literal["same", "fresh"] = "same"
    """Whether all epochs have the same order, or each epoch has a new order with another seed."""
    learner: Literal["none"] | GradientRule = "none"
    """Learn the next epoch's order from gradients: `grab` (Lu et al. 2022) or `cd_grab` (Cooper et al. 2023)."""
    mixture: Literal["fixed"] | MixtureName = "fixed"
    """Change the shares of the groups during training, depending on their losses: `excess_loss` (as in DoReMi) or
    `learning_speed` (as in ADO)."""
    mixture_family: str = "source"
    """The family whose shares `mixture` changes."""
    replan_every: int = 40
    """Number of steps after which `mixture` reorders the rest of the epoch."""
    attention: Literal["document", "sequence"] = "document"
    """The tokens that a token attends to: earlier tokens of its document, or all earlier tokens of the sequence."""
    layout: Literal["sequences", "contiguous", "rotated"] = "sequences"
    """`sequences`: batches follow the ordering. The other values are for `lstm`: the corpus is one stream, cut into
    rows, and each batch continues where the last batch ended; `rotated` rotates every row by a random offset in each
    epoch."""
    model: Literal["gpt", "lstm"] = "gpt"
    """The lab's transformer, or an LSTM that carries its state."""
    size: Literal["tiny", "mini", "small", "gpu"] = "tiny"
    """Shape of the model."""
    positions: Literal["rotary", "alibi"] = "rotary"
    """How the transformer's attention represents positions."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the computation; weights are float32."""
    batch_size: int = 16
    """Number of sequences in a step."""
    num_epochs: int = 1
    """Number of passes over the dataset."""
    num_steps: int | None = None
    """Number of optimiser steps; None means all steps of the epochs."""
    learning_rate: float = 3e-3
    """Highest learning rate."""
    warmup: float = 0.1
    """Length of the warm-up, in which the learning rate rises, as a fraction of all steps."""
    decay: Literal["cosine", "constant"] = "cosine"
    """The learning rate after the warm-up: half a cosine down to `end_rate`, or constantly the peak."""
    end_rate: float = _DEFAULT_END_RATE
    """Learning rate at the end of the cosine, as a fraction of the peak."""
    weight_decay: float = WEIGHT_DECAY
    """AdamW's decay of the matrices: each step subtracts this share of the weights, multiplied by the learning rate."""
    averaging: float = 0.0
    """Length of the averaging, as a fraction of the steps done: losses are measured for the mean of the weights after
    each of these last steps. Training and measures of gradients use the weights themselves. 0 means no averaging."""
    evaluate_at: tuple[float, ...] = (1.0,)
    """Points of training, as fractions of all steps, at which losses are measured; the last point is 1."""
    diagnose_at: tuple[float, ...] = ()
    """Points of training, as fractions of all steps, at which gradients are measured."""
    order_seed: int = 0
    """Seed of the order, and of all other random choices of data."""
    weight_seed: int = 0
    """Seed of the first weights."""

    def check(self, where: str) -> None:
        """Raise a `UserError` for settings that are wrong for every dataset."""
        check_at_least(1, where, self, "batch_size", "num_epochs", "replan_every")
        check_at_least(0, where, self, "order_seed", "weight_seed")
        self.order.check_uses()
        self.order.check_absent(f"{where}.order", ("name", "seed", "devices", "targets", "after"), "in a trial")
        if self.num_steps is not None:
            as_whole_number(f"{where}.num_steps", self.num_steps, 1)
        if not self.learning_rate > 0 or not 0 <= self.warmup <= 1:
            raise UserError(
                f"Expected {where}.learning_rate > 0 and {where}.warmup in [0, 1], found {self.learning_rate} and "
                f"{self.warmup}."
            )
        if not 0 <= self.end_rate <= 1 or not 0 <= self.weight_decay < math.inf or not 0 <= self.averaging <= 1:
            raise UserError(
                f"Expected {where}.end_rate and {where}.averaging in [0, 1] and {where}.weight_decay finite and >= 0, "
                f"found {self.end_rate}, {self.averaging} and {self.weight_decay}."
            )
        if self.decay == "constant" and self.end_rate != _DEFAULT_END_RATE:
            raise UserError(
                f"Expected {where}.end_rate with {where}.decay=cosine, found it with constant, where it has no effect; "
                "leave it out."
            )
        for name in ("evaluate_at", "diagnose_at"):
            if not all(0 < share <= 1 for share in getattr(self, name)):
                raise UserError(
                    f"Expected {where}.{name} as fractions of the steps in (0, 1], found {getattr(self, name)}."
                )
        if 1.0 not in self.evaluate_at:
            raise UserError(f"Expected {where}.evaluate_at to contain 1, the end, found {self.evaluate_at}.")
        if (self.model == "lstm") != (self.layout != "sequences"):
            raise UserError(
                f"Expected {where}.model=lstm with a layout of contiguous or rotated, and gpt with sequences, "
                f"found {self.model} with {self.layout}."
            )
        if self.mixture != "fixed":
            self.order.check_absent(f"{where}.order", ("reverse",), "with a mixture that changes")
        if self.learner != "none" and self.mixture != "fixed":
            raise UserError(f"Expected {where}.learner or {where}.mixture, found both.")
        if self.mixture != "fixed" and (self.attention != "document" or self.layout != "sequences"):
            raise UserError(
                f"Expected {where}.mixture with sequences whose segments are separate (attention=document), found "
                f"{self.attention} and layout={self.layout}."
            )


@dataclass(frozen=True)
class TaskConfig:
    """A held-out text on which the loss is measured."""

    paths: tuple[str, ...] = ()
    """The files, as in `corpus.paths`."""
    format: Literal["auto", "jsonl", "parquet", "text"] = "auto"
    """The format of the files, as in `corpus.format`."""
    max_tokens: int = 16_384
    """Largest number of tokens; the first documents are used."""
    stride: int | None = None
    """Number of tokens by which the context slides. Then every token, except the first tokens of a document, has a
    context of at least the sequence length minus the stride. None means that documents are cut into sequences."""


@dataclass(frozen=True)
class ValidationConfig:
    """How the dataset's validation documents are measured."""

    families: tuple[str, ...] = ("source", "language", "cluster")
    """Losses are measured for each group of these families."""
    macro: str = "source"
    """The family of `loss/macro`, the mean over its groups: every group has the same weight."""
    tokens_per_group: int = 6_144
    """Approximate number of tokens of every group of this family; the documents with the smallest hashes are used."""
    tokens_per_document: int = 1_024
    """Largest number of tokens of one document; longer documents are cut."""


@dataclass(frozen=True)
class SeedsConfig:
    """Seeds of the runs, the same for all arms: each run has a pair (order seed, weight seed)."""

    order: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of the order."""
    weights: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of the first weights."""
    crossed: bool = False
    """Whether each order seed is combined with each weight seed; otherwise the first with the first, and so on."""

    def pairs(self) -> list[tuple[int, int]]:
        """Return (order seed, weight seed) for every run of an arm."""
        if self.crossed:
            return list(itertools.product(self.order, self.weights))
        return list(zip(self.order, self.weights, strict=True))

    def check(self) -> None:
        """Raise a `UserError` for seeds that do not form pairs."""
        for seeds in (self.order, self.weights):
            if not seeds or min(seeds) < 0:
                raise UserError(f"Expected seeds >= 0, at least one, found {seeds}.")
        if not self.crossed and len(self.order) != len(self.weights):
            raise UserError(
                f"Expected as many seeds.order as seeds.weights, or seeds.crossed, found {len(self.order)} and "
                f"{len(self.weights)}."
            )
        if len(set(self.pairs())) < len(self.pairs()):
            raise UserError(f"Expected every pair of seeds once, found {self.pairs()}.")


Test = Literal["lower", "higher", "mixed", "most_higher", "lowest", "highest", "sensitivity"]


@dataclass(frozen=True)
class ClaimConfig:
    """A sentence that the experiment judges, and the comparison that decides it."""

    number: int = 0
    """Number in the list of claims."""
    text: str = ""
    """The sentence."""
    test: Test = "lower"
    """`lower`, `higher`: every measure of every arm is below (above) that of the other arm. `mixed`: some measures are
    lower and some higher. `most_higher`: four of five measures are higher, and so is their mean. `lowest`, `highest`:
    the arm is below (above) all of `among`. `sensitivity`: the first measure's range over the varied setting is larger
    than that of the other arm."""
    measures: tuple[str, ...] = ("loss/macro",)
    """Names of measures; `loss/source/*` matches all names with this beginning, `NAME@0.2` is the value after a fifth
    of the steps, `NAME@>0.9` the mean over the last tenth."""
    arms: tuple[str, ...] = ()
    """The arms of the claim."""
    against: str = ""
    """The arm with which these arms are compared; by default the arm in `compare` or `baseline`."""
    among: tuple[str, ...] = ()
    """The other arms of `lowest` and `highest`."""


@dataclass(frozen=True)
class ExperimentConfig:
    """The settings of an experiment's file, without datasets, arms and what varies."""

    title: str = ""
    """Title of the page."""
    question: str = ""
    """The question that the experiment answers, in one or two sentences."""
    corpora: str = ""
    """Where the files of datasets and tasks come from: a sentence in Markdown, for the page."""
    trial: TrialConfig = TrialConfig()
    """Settings of all trials."""
    seeds: SeedsConfig = SeedsConfig()
    validation: ValidationConfig = ValidationConfig()
    tasks: dict[str, TaskConfig] = field(default_factory=dict)
    baseline: str = ""
    """The arm with which the other arms are compared."""
    compare: dict[str, str] = field(default_factory=dict)
    """Arm -> the arm with which it is compared, if that is not the baseline."""
    measures: tuple[str, ...] = ("loss/macro", "loss/validation")
    """The measures that the tables show first; the first one is the main measure."""
    smallest_effect: float = 0.01
    """The smallest difference in the first measure that matters: the experiment should detect it."""
    pair_deviation: float = 0.01
    """Standard deviation of a pair's difference in the first measure, from a pilot. With the number of pairs it
    determines the smallest difference that can be found."""
    claims: tuple[ClaimConfig, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One training run of an experiment.

    Attributes:
        arm: the arm's name.
        varied: the varied settings and their values.
        config: all settings.
        identity: hash of the settings that differ from their defaults, also of dataset, validation and tasks.
    """

    arm: str
    varied: Mapping[str, Any]
    config: TrialConfig
    identity: str


@dataclass(frozen=True)
class Experiment:
    """The content of an experiment's file.

    Attributes:
        name: name of the file without its suffix.
        config: the settings.
        datasets: name -> a build's settings as plain values.
        arms: name -> the arm's own settings as plain values.
        vary: setting of the trial -> its values.
        trials: all runs; runs of one pair of seeds are neighbours.
    """

    name: str
    config: ExperimentConfig
    datasets: Mapping[str, Mapping[str, Any]]
    arms: Mapping[str, Mapping[str, Any]]
    vary: Mapping[str, Sequence[Any]]
    trials: tuple[Trial, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files that datasets and tasks read, relative to the folder `--data`; empty if no file is needed."""
        corpora = [settings.get("corpus") or {} for settings in self.datasets.values()]
        paths = [path for corpus in corpora for path in corpus.get("paths") or ()]
        paths += [path for task in self.config.tasks.values() for path in task.paths]
        return tuple(path for path in dict.fromkeys(paths) if path != PYTHON_ENVIRONMENT)

    @property
    def num_pairs(self) -> int:
        """Number of runs of an arm with one value of every varied setting."""
        return len(self.config.seeds.pairs())


def read_experiment(path: str | Path, size: str | None = None) -> Experiment:
    """Read an experiment's file.

    Args:
        path: the file.
        size: size of all models, instead of the size in the file; `small` and `gpu` compute in bfloat16.

    Raises:
        UserError: the file does not exist or is not valid YAML, or settings are unknown or invalid. The message names
            the file.

    Example:
        >>> len(read_experiment("configs/experiments/orders.yaml").trials)
    """
    path = Path(path)
    try:
        plain = parse_yaml(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"Expected the file of an experiment at {path}, found none.") from None
    except UnicodeDecodeError:
        raise UserError(f"Expected YAML in {path}, found bytes that are not text; name another file.") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    try:
        check_file_name("an experiment's name", path.stem)
        return _experiment(path.stem, plain, size)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _experiment(name: str, plain: Any, size: str | None) -> Experiment:
    if not isinstance(plain, dict):
        raise UserError("Expected a mapping from names to settings, such as `title: Orders`.")
    rest = dict(plain)
    datasets, arms, vary = ({} if (part := rest.pop(name, None)) is None else part for name in _PLAIN)
    for section, part in zip(_PLAIN, (datasets, arms, vary), strict=True):
        if not isinstance(part, dict) or (section != "vary" and not part):
            raise UserError(f"Expected {section} as a mapping from names to settings, not empty, found {part!r}.")
    config = settings_from_plain(ExperimentConfig, rest)
    _check(config, datasets, arms, vary)
    base = dataclasses.asdict(config.trial)
    if size is not None:
        base |= {"size": size, "precision": "bfloat16" if size in _HALF_PRECISION else "float32"}
    evaluation = {"validation": _changed(config.validation, ValidationConfig())}
    evaluation["tasks"] = {name: _changed(task, TaskConfig()) for name, task in config.tasks.items()}
    trials = []
    for order_seed, weight_seed in config.seeds.pairs():
        for arm, arm_settings in arms.items():
            settings = _overlaid(base, arm_settings, f"arms.{arm}")
            for values in itertools.product(*vary.values()):
                varied = dict(zip(vary, values, strict=True))
                seeds = {"order_seed": order_seed, "weight_seed": weight_seed}
                trial = settings_from_plain(TrialConfig, settings | varied | seeds, f"arms.{arm}")
                if trial.packing is not None:  # texts of experiments are no chats: `auto` is `concat`
                    packing = dataclasses.replace(trial.packing, method=trial.packing.methods[1])
                    trial = dataclasses.replace(trial, packing=packing)
                trial.check(f"arms.{arm}")
                if trial.dataset not in datasets:
                    raise UserError(
                        f"Expected arms.{arm}.dataset among {', '.join(datasets)}, found {trial.dataset!r}"
                        f"{did_you_mean(trial.dataset, datasets)}"
                    )
                changed = _changed(trial, TrialConfig())
                if changed.get("packing", {}).get("method") == "concat":  # the default when the rows were measured
                    del changed["packing"]["method"]
                if "order" in changed:
                    changed["order"] = _identifying_order(trial.order, changed["order"])
                identity = fingerprint(VERSION, changed, _identifying(datasets[trial.dataset]), evaluation)[:16]
                trials.append(Trial(arm, varied, trial, identity))
    if len({trial.identity for trial in trials}) < len(trials):
        raise UserError("Expected arms that differ, found two arms with the same settings; remove one arm.")
    return Experiment(name, config, datasets, arms, vary, tuple(trials))


_PLAIN = ("datasets", "arms", "vary")


def _identifying(dataset: Any) -> Any:
    """The settings of a dataset, as they enter the identity of a row.

    Rows from before `packing.validation_choice` existed were measured with documents that a hash chose.
    """
    packing = dataset.get("packing", {}) if isinstance(dataset, dict) else None
    if not isinstance(packing, dict):
        return dataset
    choice = packing.get("validation_choice", PackingConfig().validation_choice)
    rest = {name: value for name, value in packing.items() if name != "validation_choice"}
    return dataset | {"packing": rest | ({} if choice == "hash" else {"validation_choice": choice})}


def _identifying_order(order: OrderConfig, changed: dict[str, Any]) -> dict[str, Any]:
    """The settings of an order, as they enter the identity of a row.

    Rows from before the objective had a section have its settings beside those of the order, and only the name of a
    published objective.
    """
    rest = dict(changed)
    objective = rest.pop("objective", {})
    form = {"form": objective["form"]} if "form" in objective else {}
    objective = {("weights" if name == "family_weights" else name): value for name, value in objective.items()}
    for base in Objective.BASES:
        if dataclasses.replace(order.objective, form="squares") == getattr(Objective, base)():
            return {**rest, "objective": base, **form}
    return {**rest, **objective}


def _changed(settings: Any, default: Any) -> dict[str, Any]:
    """Return the settings that differ from `default`, as plain values.

    A new setting, whose default keeps the numbers, therefore keeps the identities of all rows.
    """
    changed = {}
    for setting in dataclasses.fields(settings):
        value, other = getattr(settings, setting.name), getattr(default, setting.name)
        if value == other:
            continue
        # Inner settings are compared with the defaults of their own class: `default` may have None in their place.
        changed[setting.name] = _changed(value, type(value)()) if dataclasses.is_dataclass(value) else value
    return changed


def _overlaid(base: Mapping[str, Any], changes: Any, where: str) -> dict[str, Any]:
    if changes is None:
        return dict(base)
    if not isinstance(changes, dict):
        raise UserError(f"Expected {where} as a mapping from names to settings, found {changes!r}.")
    # If an arm sets `order`, it replaces the experiment's whole `order`: a method's options do not fit another method.
    return dict(base) | changes


def _check(config: ExperimentConfig, datasets: dict, arms: dict, vary: dict) -> None:
    config.seeds.check()
    names = [field.name for field in dataclasses.fields(TrialConfig)]
    for setting, values in vary.items():
        if setting not in names or not isinstance(values, list) or not values or isinstance(values[0], dict | list):
            raise UserError(
                f"Expected vary.{setting} to be a setting of a trial and a list of values, found {values!r}."
            )
    for name in (*datasets, *arms):
        check_file_name("the name of a dataset or an arm", str(name))
    for name, task in config.tasks.items():
        check_file_name("a task's name", name)
        if not task.paths:
            raise UserError(f"Expected tasks.{name}.paths to name files, found no path.")
        check_at_least(2, f"tasks.{name}", task, "max_tokens")
    check_at_least(1, "validation", config.validation, "tokens_per_group", "tokens_per_document")
    check_one_of("validation.macro", config.validation.macro, config.validation.families)
    check_one_of("baseline", config.baseline, list(arms))
    if not config.measures:
        raise UserError("Expected measures to name at least one measure, found none.")
    if not config.smallest_effect > 0 or not config.pair_deviation > 0:
        raise UserError(
            f"Expected smallest_effect and pair_deviation above 0, found {config.smallest_effect} and "
            f"{config.pair_deviation}."
        )
    total = len(arms) * len(config.seeds.pairs())
    for values in vary.values():
        total *= len(values)
    if total > _MOST_TRIALS:
        raise UserError(f"Expected at most {_MOST_TRIALS:,} runs, found {total:,}; vary less.")
    for arm, other in config.compare.items():
        check_one_of("compare", arm, list(arms))
        check_one_of(f"compare.{arm}", other, list(arms))
    for claim in config.claims:
        for arm in (*claim.arms, *claim.among, *([claim.against] if claim.against else [])):
            check_one_of(f"the arms of claim {claim.number}", arm, list(arms))
        if not claim.arms or not claim.text or not claim.measures:
            raise UserError(f"Expected claim {claim.number} to have text, arms and measures.")
