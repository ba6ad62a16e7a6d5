"""The settings of preparation: the steps between reading and storing documents."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.checks import as_weight
from jax_diversity.foundation.errors import UserError, did_you_mean, quoted
from jax_diversity.foundation.libraries import MissingLibrary
from jax_diversity.foundation.settings import parse_yaml, settings_from_plain
from jax_diversity.preparation.settings import SECONDS_PER_DOCUMENT

if TYPE_CHECKING:
    from jax_diversity.foundation.executors import Executor
    from jax_diversity.preparation.passes.chain import Chain

RECIPES = Path(__file__).parents[1] / "recipes"
"""The folder of the recipes: settings whose `preparation` lists the steps."""

Options = dict[str, int | float | bool | str | tuple[str, ...] | dict[str, int | float | str]]
"""Options of a step by name."""


@dataclass(frozen=True)
class StepConfig:
    """One step."""

    step: str = "words"
    """The step's name; docs/preparation.md lists all steps."""
    options: Options = field(default_factory=dict)
    """The step's own options, such as `least: 50`, `languages: [en, de]` or `thresholds: {least_words: 20}`. Other
    options keep their defaults."""
    only: dict[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Sources and languages of the documents that the step is applied to, such as `{source: [web-*], language: [en]}`;
    `*` matches any characters. The step leaves all other documents unchanged."""

    def all_options(self) -> dict[str, Any]:
        """Return the options, with `only` if it is given."""
        return {**self.options, **({"only": self.only} if self.only else {})}


@dataclass(frozen=True)
class PreparationConfig:
    """The steps between reading and storing documents. Without steps and recipe every document is stored unchanged."""

    steps: tuple[StepConfig, ...] = ()
    """The steps, in their order."""
    recipe: str | None = None
    """The name of a list of steps, such as `fineweb`: a file in the package's folder preparation/recipes. It replaces
    `steps`."""
    options: Options = field(default_factory=dict)
    """Options that replace the options in `steps` or in the recipe, as STEP.OPTION, such as `perplexity.reference
    wiki.txt`. Lists and mappings are YAML, such as `perplexity.thirds '[head, middle]'`. The second use of a step is
    STEP_2. STEP.only sets the step's `only`."""
    seconds_per_document: float = SECONDS_PER_DOCUMENT
    """Time limit for reading a document, and for every step of a document; 0 means no limit. A slower document is left
    out: the counts of reading contain it, or the rule `took_too_long` of the step removes it. A step that calls a large
    model may need more time."""

    keep_removed: bool = False
    """Write the removed documents in full to preparation/removed/STEP.RULE.parquet, with their personal data. Later
    runs can read these files as a corpus."""

    def check(self) -> None:
        """Raise a `UserError` for unknown steps and recipes, and for options that do not fit their step."""
        if self.steps and self.recipe is not None:
            raise UserError(
                f"Expected preparation.steps or preparation.recipe, found both (recipe {self.recipe}); leave one out."
            )
        as_weight("preparation.seconds_per_document", self.seconds_per_document)
        self.chain()

    def check_corpus(self, format: str) -> None:
        """Raise a `UserError` for a corpus without texts."""
        if format in ("megatron", "tokens") and self.listed():
            raise UserError(
                f"Expected a corpus of texts for the steps of preparation, found corpus.format {format}; leave "
                "preparation out: its steps read texts."
            )

    def listed(self) -> tuple[StepConfig, ...]:
        """Return the given steps or the recipe's steps, with `options` applied."""
        steps = self.steps if self.recipe is None else _recipe_steps(self.recipe)
        if not self.options:
            return steps
        from jax_diversity.preparation.passes.phases import labelled

        labels = [spec.label for spec in labelled([(step.step, {}) for step in steps])]
        options_by_label: dict[str, Options] = {label: {} for label in labels}
        for key, value in self.options.items():
            label, _, option = key.partition(".")
            if not labels:
                raise UserError(
                    f"Expected preparation.options with steps, found {quoted(key)} without steps; give "
                    "preparation.recipe or preparation.steps."
                )
            if label not in options_by_label or not option:
                raise UserError(
                    f"Expected preparation.options to be STEP.OPTION with a step of {', '.join(labels)}, "
                    f"found {quoted(key)}{did_you_mean(label, labels)}"
                )
            options_by_label[label][option] = value
        return tuple(
            replace(step, options=step.options | options_by_label[label])
            for step, label in zip(steps, labels, strict=True)
        )

    def made_of(self) -> dict[str, Any]:
        """Return the settings that decide the stored documents, as JSON values. An unchanged time limit is left out."""
        from jax_diversity.preparation.passes.phases import labelled
        from jax_diversity.preparation.steps.base import METHODS

        steps = [
            {"step": spec.name, "options": METHODS.complete(spec.name, spec.options)}
            | ({} if spec.only is None else {"only": dict(spec.only)})
            | ({"mark": True} if spec.mark else {})
            for spec in labelled([(step.step, step.all_options()) for step in self.listed()])
        ]
        limit = self.seconds_per_document
        changed = {} if limit == type(self).seconds_per_document else {"seconds_per_document": limit}
        kept = {"keep_removed": True} if self.keep_removed and steps else {}
        return ({"preparation": steps} if steps else {}) | changed | kept

    def fingerprint_with(self, corpus: str) -> str:
        """Return the fingerprint of a corpus, together with the steps' inputs that are not options."""
        chain = self.chain()
        identities = [] if chain is None else chain.identities()
        return fingerprint(corpus, identities) if identities else corpus

    def chain(self, executor: Executor | None = None) -> Chain | None:
        """Return the steps, ready to run by an executor; None if there are no steps."""
        steps = self.listed()
        if not steps:
            return None
        from jax_diversity.preparation.passes.chain import Chain

        try:
            options = [(step.step, step.all_options()) for step in steps]
            return Chain(options, executor, self.seconds_per_document, self.keep_removed)
        except MissingLibrary:
            raise
        except UserError as error:
            if self.recipe is None:
                raise
            raise UserError(
                f"Recipe {self.recipe}: {error} Options of a recipe's steps are given as "
                "--preparation.options STEP.OPTION VALUE."
            ) from None


def _recipe_steps(name: str) -> tuple[StepConfig, ...]:
    """Return the steps of a recipe. An unknown name is a `UserError` that lists all recipes."""
    recipes = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    if name not in recipes:
        near = did_you_mean(name, recipes)
        raise UserError(f"Expected preparation.recipe to be one of {', '.join(recipes)}, found {quoted(name)}{near}")
    plain = parse_yaml((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    return settings_from_plain(PreparationConfig, plain["preparation"], f"{name}.yaml").steps
