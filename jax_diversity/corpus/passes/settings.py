"""The settings of preparation: what happens to documents between reading and storing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.checks import at_least
from jax_diversity.foundation.errors import UserError, did_you_mean, quoted
from jax_diversity.foundation.settings import parse_yaml, settings_from_plain

if TYPE_CHECKING:
    from jax_diversity.corpus.passes.chain import Chain

RECIPES = Path(__file__).parents[1] / "recipes"
"""The folder of the recipes: settings whose `preparation` lists the steps."""


@dataclass(frozen=True)
class StepConfig:
    """One step."""

    step: str = "words"
    """The step's name; docs/preparation.md shows all, with what they remove."""
    options: dict[str, int | float | bool | str] = field(default_factory=dict)
    """The step's own options, such as `least 50`; their defaults where not given."""


@dataclass(frozen=True)
class PreparationConfig:
    """What happens to documents between reading and storing: nothing where neither steps nor recipe are given."""

    steps: tuple[StepConfig, ...] = ()
    """The steps, in their order."""
    recipe: str | None = None
    """The name of a list of steps in configs/preparation, such as `fineweb`, in place of `steps`."""
    options: dict[str, int | float | bool | str] = field(default_factory=dict)
    """Options in place of those that the steps have, as STEP.OPTION, such as `perplexity.reference wiki.txt`. A step's
    second use is STEP_2."""
    engine: Literal["processes", "ray"] = "processes"
    """Who works on parts of the corpus: processes of this machine, or tasks of a Ray cluster, whose machines must
    share the file system of `out`."""
    num_processes: int = 0
    """How many parts are worked on at a time; 0 takes as many as there are cores, or only this process where one part
    of some megabytes holds the whole corpus. The result is the same."""

    def check(self) -> None:
        """Refuse unknown steps and recipes, and options that do not fit their step, with a `UserError`."""
        if self.steps and self.recipe is not None:
            raise UserError(
                f"Expected preparation.steps or preparation.recipe, found both (recipe {self.recipe}); leave one out."
            )
        at_least(0, "preparation", self, "num_processes")
        self.chain()

    def check_corpus(self, format: str) -> None:
        """Refuse documents that have no text to look at, with a `UserError`."""
        if format in ("megatron", "tokens") and self.listed():
            raise UserError(
                f"Expected a corpus of texts for the steps of preparation, found corpus.format {format}; leave "
                "preparation out: it cannot look at tokens."
            )

    def listed(self) -> tuple[StepConfig, ...]:
        """The steps that were given or that the recipe lists, with the options that are given apart."""
        steps = self.steps if self.recipe is None else _recipe_steps(self.recipe)
        if not self.options:
            return steps
        from jax_diversity.corpus.passes.phases import labelled

        labels = [spec.label for spec in labelled([(each.step, each.options) for each in steps])]
        given: dict[str, dict[str, int | float | bool | str]] = {label: {} for label in labels}
        for key, value in self.options.items():
            label, _, option = key.partition(".")
            if label not in given or not option:
                raise UserError(
                    f"Expected preparation.options to be STEP.OPTION with a step of {', '.join(labels) or 'none'}, "
                    f"found {quoted(key)}{did_you_mean(label, labels)}"
                )
            given[label][option] = value
        return tuple(
            replace(each, options=each.options | given[label]) for each, label in zip(steps, labels, strict=True)
        )

    def made_of(self) -> dict[str, Any]:
        """What the stored documents depend on, as plain values; nothing where no step is listed."""
        from jax_diversity.corpus.steps.base import METHODS

        steps = [{"step": each.step, "options": METHODS.options(each.step) | each.options} for each in self.listed()]
        return {"preparation": steps} if steps else {}

    def fingerprint_with(self, corpus: str) -> str:
        """The fingerprint of a corpus, together with all that the steps depend on besides their options."""
        from jax_diversity.corpus.steps.base import METHODS

        identities = []
        for each in self.listed():
            module = import_module(f"{METHODS.package}.{METHODS[each.step]}")
            if hasattr(module, "identity"):
                identities.append([each.step, module.identity(**each.options)])
        return fingerprint(corpus, identities) if identities else corpus

    def chain(self) -> Chain | None:
        """The steps, ready to run; None where none is listed."""
        steps = self.listed()
        if not steps:
            return None
        from jax_diversity.corpus.passes.chain import Chain
        from jax_diversity.corpus.steps.base import METHODS

        try:
            for index, each in enumerate(steps):
                try:
                    METHODS.check_settings(each.step, each.options)
                    for name, value in each.options.items():
                        if isinstance(value, float) and math.isnan(value):
                            raise UserError(f"Expected the option {name!r} to be a number, found nan.")
                except UserError as error:
                    raise UserError(f"preparation.steps[{index}]: {error}") from None
            return Chain([(each.step, each.options) for each in steps], self.engine, self.num_processes)
        except UserError as error:
            if self.recipe is None:
                raise
            raise UserError(
                f"Recipe {self.recipe}: {str(error).removesuffix('.')}; options of a recipe's steps are given as "
                "--preparation.options STEP.OPTION VALUE."
            ) from None


def _recipe_steps(name: str) -> tuple[StepConfig, ...]:
    """The steps of a recipe; a `UserError` that lists all recipes if there is none of this name."""
    known = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    if name not in known:
        near = did_you_mean(name, known)
        raise UserError(f"Expected preparation.recipe to be one of {', '.join(known)}, found {quoted(name)}{near}")
    plain = parse_yaml((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    return settings_from_plain(PreparationConfig, plain["preparation"], f"{name}.yaml").steps
