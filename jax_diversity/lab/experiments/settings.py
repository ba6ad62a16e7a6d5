"""The file of an experiment: what varies, seeds, budget, tasks, and the claims that it judges.

A *trial* is one training run. An experiment lists *arms*, each a trial's settings as far as they differ from the
experiment's own, and may vary further settings for every arm; every arm is run with the same seeds.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.checks import at_least, file_name, one_of, whole_number
from jax_diversity.foundation.errors import UserError, did_you_mean
from jax_diversity.foundation.settings import parse_yaml, settings_from_plain
from jax_diversity.lab.gradient_orders import Rule as GradientRule
from jax_diversity.lab.mixture_rules import Rule as MixtureRule
from jax_diversity.lab.settings import Size
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.packing.settings import PackingConfig

VERSION = 1
"""Of what a trial's settings mean: it grows when the same settings give other numbers."""
_MOST_TRIALS = 100_000


SIZES: Mapping[str, Mapping[str, Size]] = {
    "gpt": {"tiny": Size(64, 2, 2), "small": Size(256, 8, 8), "gpu": Size(896, 12, 14)},
    "lstm": {"tiny": Size(96, 1, 1), "small": Size(512, 2, 1), "gpu": Size(1536, 3, 1)},
}
"""Model -> size -> shape. `tiny` has 230,000 parameters with a vocabulary of 2,048, `small` 10 million with 16,384,
`gpu` 161 million with 50,304."""


@dataclass(frozen=True)
class TrialConfig:
    """All that decides the numbers of one training run."""

    dataset: str = ""
    """Name of one of the experiment's datasets."""
    packing: PackingConfig | None = None
    """Pack the dataset's documents in another way; None takes its own sequences."""
    order: OrderConfig = field(default_factory=lambda: OrderConfig(method="uniform_shuffle"))
    """The ordering; its seed is the trial's `order_seed`."""
    documents: Literal["as_ordered", "random", "clumped", "spread"] = "as_ordered"
    """Exchange sequences of one source and cluster among the positions that the ordering gives them, so that the
    mixture of every window stays: at `random`, a document's sequences together (`clumped`), or as far apart as can be
    (`spread`)."""
    epoch_orders: Literal["same", "fresh"] = "same"
    """Whether every epoch has the first one's order, or one with a seed of its own."""
    learner: Literal["none"] | GradientRule = "none"
    """Learn the next epoch's order from the sequences' gradients: `grab` or `cd_grab`."""
    mixture: Literal["fixed"] | MixtureRule = "fixed"
    """Change the shares of the groups during training by their losses: `excess_loss` (as in DoReMi) or
    `learning_speed` (as in ADO)."""
    mixture_family: str = "source"
    """The family whose shares `mixture` changes."""
    replan_every: int = 40
    """Steps after which `mixture` makes a new order of what is left."""
    attention: Literal["document", "sequence"] = "document"
    """What a token sees: its own document, or all of its sequence before it."""
    layout: Literal["sequences", "contiguous", "rotated"] = "sequences"
    """`sequences` come in the ordering. The others are for `lstm`: the corpus as one stream in rows, each batch going
    on where the last one ended, every row rotated by a random offset in each epoch (`rotated`) or not."""
    model: Literal["gpt", "lstm"] = "gpt"
    """The lab's transformer, or an LSTM that carries its state."""
    size: Literal["tiny", "small", "gpu"] = "tiny"
    """Shape of the model."""
    positions: Literal["rotary", "alibi"] = "rotary"
    """How the transformer's attention knows where tokens are."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the computation; weights are float32."""
    batch_size: int = 16
    """Sequences a step."""
    num_epochs: int = 1
    """Passes over the dataset."""
    num_steps: int | None = None
    """Optimiser steps; None takes all that the epochs have."""
    learning_rate: float = 3e-3
    """Its peak."""
    warmup: float = 0.1
    """Share of the steps with a rising rate."""
    decay: Literal["cosine", "constant"] = "cosine"
    """What follows: half a cosine down to a tenth, or the peak."""
    evaluate_at: tuple[float, ...] = (1.0,)
    """Shares of the steps after which losses are measured; the last is 1."""
    diagnose_at: tuple[float, ...] = ()
    """Shares of the steps after which gradients are measured."""
    order_seed: int = 0
    """Seed of the order, and of what else is drawn of the data."""
    weight_seed: int = 0
    """Seed of the first weights."""

    def check(self, where: str) -> None:
        """Refuse settings that no dataset could satisfy."""
        at_least(1, where, self, "batch_size", "num_epochs", "replan_every")
        at_least(0, where, self, "order_seed", "weight_seed")
        if self.num_steps is not None:
            whole_number(f"{where}.num_steps", self.num_steps, 1)
        if not self.learning_rate > 0 or not 0 <= self.warmup <= 1:
            raise UserError(
                f"Expected {where}.learning_rate > 0 and {where}.warmup in [0, 1], found {self.learning_rate} and "
                f"{self.warmup}."
            )
        for name in ("evaluate_at", "diagnose_at"):
            if not all(0 < share <= 1 for share in getattr(self, name)):
                raise UserError(
                    f"Expected {where}.{name} as shares of the steps in (0, 1], found {getattr(self, name)}."
                )
        if 1.0 not in self.evaluate_at:
            raise UserError(f"Expected {where}.evaluate_at to hold 1, the end of training, found {self.evaluate_at}.")
        if (self.model == "lstm") != (self.layout != "sequences"):
            raise UserError(
                f"Expected {where}.model=lstm with a layout of contiguous or rotated, and gpt with sequences, "
                f"found {self.model} with {self.layout}."
            )
        if self.learner != "none" and self.mixture != "fixed":
            raise UserError(f"Expected {where}.learner or {where}.mixture, found both.")
        if self.mixture != "fixed" and (self.attention != "document" or self.layout != "sequences"):
            raise UserError(
                f"Expected {where}.mixture with sequences whose segments are told apart (attention=document), found "
                f"{self.attention} and layout={self.layout}."
            )


@dataclass(frozen=True)
class TaskConfig:
    """A held-out text on which the loss is measured."""

    paths: tuple[str, ...] = ()
    """Its files, as in `corpus.paths`."""
    format: Literal["auto", "jsonl", "parquet", "text"] = "auto"
    """What they are, as in `corpus.format`."""
    max_tokens: int = 16_384
    """Tokens at most, the first documents'."""
    stride: int | None = None
    """Slide the context by so many tokens, so that all but a document's first tokens see at least a sequence less a
    stride; None cuts documents into sequences."""


@dataclass(frozen=True)
class ValidationConfig:
    """How the dataset's validation documents are measured."""

    families: tuple[str, ...] = ("source", "language", "cluster")
    """Losses by the groups of these families."""
    macro: str = "source"
    """The family over whose groups `loss/macro` is the mean: each counts alike, however many tokens it has."""
    tokens_per_group: int = 6_144
    """About so many tokens of every group of that family, of the documents with the smallest hashes; documents are
    cut."""
    tokens_per_document: int = 1_024
    """At most so many of one document."""


@dataclass(frozen=True)
class SeedsConfig:
    """Seeds of the pairs: the same for all arms."""

    order: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Of the order."""
    weights: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Of the first weights."""
    crossed: bool = False
    """Each seed of the order with each of the weights; otherwise the first with the first, and so on."""

    def pairs(self) -> list[tuple[int, int]]:
        """(order seed, weight seed) of every run of an arm."""
        if self.crossed:
            return list(itertools.product(self.order, self.weights))
        return list(zip(self.order, self.weights, strict=True))

    def check(self) -> None:
        """Refuse seeds that make no pairs."""
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
    """A sentence that the experiment judges, and the comparison that decides."""

    number: int = 0
    """Its number in the list of claims."""
    text: str = ""
    """The sentence."""
    test: Test = "lower"
    """`lower`, `higher`: every measure of every arm lies below (above) the other arm's. `mixed`: some measures are
    lower and some higher. `most_higher`: four of five measures are higher, and so is their mean. `lowest`, `highest`:
    the arm lies below (above) all of `among`. `sensitivity`: the first measure's range over the varied setting is
    larger than the other arm's."""
    measures: tuple[str, ...] = ("loss/macro",)
    """Names of measures; `loss/source/*` are all that begin so, `NAME@0.2` is the value after a fifth of the steps,
    `NAME@>0.9` the mean over the last tenth."""
    arms: tuple[str, ...] = ()
    """The arms that the claim is about."""
    against: str = ""
    """The arm that they are compared with; where it is not given, what `compare` or `baseline` say."""
    among: tuple[str, ...] = ()
    """Of `lowest` and `highest`: the other arms."""


@dataclass(frozen=True)
class ExperimentConfig:
    """An experiment: its file's content but for datasets and arms, which are plain values."""

    title: str = ""
    """A few words."""
    question: str = ""
    """What it asks, a sentence or two."""
    trial: TrialConfig = TrialConfig()
    """Settings of all trials."""
    seeds: SeedsConfig = SeedsConfig()
    validation: ValidationConfig = ValidationConfig()
    tasks: dict[str, TaskConfig] = field(default_factory=dict)
    baseline: str = ""
    """The arm that the others are compared with."""
    compare: dict[str, str] = field(default_factory=dict)
    """Arms that are compared with another one than the baseline."""
    measures: tuple[str, ...] = ("loss/macro", "loss/validation")
    """What tables show first; the first one is the experiment's."""
    asks: float = 0.01
    """The difference of the first measure that the experiment is to see."""
    deviation: float = 0.01
    """Standard deviation of a pair's difference in that measure, as a pilot found it: with the number of pairs it says
    which difference can be seen."""
    claims: tuple[ClaimConfig, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One training run of an experiment.

    Attributes:
        arm: the arm's name.
        varied: the varied settings and their values.
        config: all settings.
        identity: hash of the settings, those of dataset, validation and tasks among them.
    """

    arm: str
    varied: Mapping[str, Any]
    config: TrialConfig
    identity: str


@dataclass(frozen=True)
class Experiment:
    """An experiment's file.

    Attributes:
        name: the file's, without its ending.
        config: its settings.
        datasets: name -> a build's settings as plain values.
        arms: name -> the arm's own settings as plain values.
        vary: setting of the trial -> its values.
        trials: all runs, those of one pair of seeds together.
    """

    name: str
    config: ExperimentConfig
    datasets: Mapping[str, Mapping[str, Any]]
    arms: Mapping[str, Mapping[str, Any]]
    vary: Mapping[str, Sequence[Any]]
    trials: tuple[Trial, ...]

    @property
    def num_pairs(self) -> int:
        """Runs of an arm with one value of what varies."""
        return len(self.config.seeds.pairs())


def read_experiment(path: str | Path, size: str | None = None) -> Experiment:
    """Read an experiment's file.

    Args:
        path: the file.
        size: of all models, in place of the file's; sizes above `tiny` compute in bfloat16.

    Raises:
        UserError: no such file, no YAML, unknown settings, or ones that cannot be: the file is named.

    Example:
        >>> len(read_experiment("configs/experiments/orders.yaml").trials)
    """
    path = Path(path)
    try:
        plain = parse_yaml(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"Expected the file of an experiment at {path}, found none.") from None
    except UnicodeDecodeError:
        raise UserError(f"Expected YAML in {path}, found bytes that are no text; name another file.") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    try:
        file_name("an experiment's name", path.stem)
        return _experiment(path.stem, plain, size)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _experiment(name: str, plain: Any, size: str | None) -> Experiment:
    if not isinstance(plain, dict):
        raise UserError("Expected settings by their names, such as `title: Orders`.")
    rest = dict(plain)
    datasets, arms, vary = ({} if (part := rest.pop(each, None)) is None else part for each in _PLAIN)
    for each, part in zip(_PLAIN, (datasets, arms, vary), strict=True):
        if not isinstance(part, dict) or (each != "vary" and not part):
            raise UserError(f"Expected {each} by their names, at least one, found {part!r}.")
    config = settings_from_plain(ExperimentConfig, rest)
    _check(config, datasets, arms, vary)
    base = dataclasses.asdict(config.trial)
    if size is not None:
        base |= {"size": size, "precision": "float32" if size == "tiny" else "bfloat16"}
    held = {"validation": dataclasses.asdict(config.validation)}
    held["tasks"] = {each: dataclasses.asdict(task) for each, task in config.tasks.items()}
    trials = []
    for order_seed, weight_seed in config.seeds.pairs():
        for arm, own in arms.items():
            settings = _overlaid(base, own, f"arms.{arm}")
            for values in itertools.product(*vary.values()):
                varied = dict(zip(vary, values, strict=True))
                seeds = {"order_seed": order_seed, "weight_seed": weight_seed}
                trial = settings_from_plain(TrialConfig, settings | varied | seeds, f"arms.{arm}")
                trial.check(f"arms.{arm}")
                if trial.dataset not in datasets:
                    raise UserError(
                        f"Expected arms.{arm}.dataset among {', '.join(datasets)}, found {trial.dataset!r}"
                        f"{did_you_mean(trial.dataset, datasets)}"
                    )
                identity = fingerprint(VERSION, dataclasses.asdict(trial), datasets[trial.dataset], held)[:16]
                trials.append(Trial(arm, varied, trial, identity))
    if len({trial.identity for trial in trials}) < len(trials):
        raise UserError("Expected arms that differ, found two whose settings are the same; leave one out.")
    return Experiment(name, config, datasets, arms, vary, tuple(trials))


_PLAIN = ("datasets", "arms", "vary")


def _overlaid(base: Mapping[str, Any], own: Any, where: str) -> dict[str, Any]:
    if own is None:
        return dict(base)
    if not isinstance(own, dict):
        raise UserError(f"Expected settings of {where} by their names, found {own!r}.")
    # An order is given as a whole: a method's options do not fit another method.
    return dict(base) | own


def _check(config: ExperimentConfig, datasets: dict, arms: dict, vary: dict) -> None:
    config.seeds.check()
    names = [each.name for each in dataclasses.fields(TrialConfig)]
    for setting, values in vary.items():
        if setting not in names or not isinstance(values, list) or not values or isinstance(values[0], dict | list):
            raise UserError(
                f"Expected vary.{setting} to be a setting of a trial and a list of values, found {values!r}."
            )
    for name in (*datasets, *arms):
        file_name("the name of a dataset or an arm", str(name))
    for name, task in config.tasks.items():
        file_name("a task's name", name)
        if not task.paths:
            raise UserError(f"Expected tasks.{name}.paths to name files, found none.")
        at_least(2, f"tasks.{name}", task, "max_tokens")
    at_least(1, "validation", config.validation, "tokens_per_group", "tokens_per_document")
    one_of("validation.macro", config.validation.macro, config.validation.families)
    one_of("baseline", config.baseline, list(arms))
    if not config.measures:
        raise UserError("Expected measures to name at least one, found none.")
    if not config.asks > 0 or not config.deviation > 0:
        raise UserError(f"Expected asks and deviation above 0, found {config.asks} and {config.deviation}.")
    total = len(arms) * len(config.seeds.pairs())
    for values in vary.values():
        total *= len(values)
    if total > _MOST_TRIALS:
        raise UserError(f"Expected at most {_MOST_TRIALS:,} runs, found {total:,}; vary less.")
    for arm, other in config.compare.items():
        one_of("compare", arm, list(arms))
        one_of(f"compare.{arm}", other, list(arms))
    for claim in config.claims:
        for arm in (*claim.arms, *claim.among, *([claim.against] if claim.against else [])):
            one_of(f"the arms of claim {claim.number}", arm, list(arms))
        if not claim.arms or not claim.text or not claim.measures:
            raise UserError(f"Expected claim {claim.number} to have text, arms and measures.")
