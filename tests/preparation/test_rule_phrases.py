"""Every rule of preparation has a few words beside its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jax_diversity.preparation.steps import base
from jax_diversity.preparation.steps.base import METHODS, rule_phrase

pytestmark = pytest.mark.core
RULE = re.compile(r'\b(?:at_least|at_most|unknown)\(\s*"(\w+)"')


def modules_of(step: type) -> list[Path]:
    return [
        Path(base.__file__).with_name(f"{each.__module__.rpartition('.')[2]}.py")
        for each in step.__mro__
        if each.__module__.startswith("jax_diversity.preparation.steps.") and each.__module__ != base.__name__
    ]


@pytest.mark.parametrize("name", list(METHODS))
def test_every_rule_has_a_phrase(name: str) -> None:
    rules = {rule for path in modules_of(METHODS.find(name)) for rule in RULE.findall(path.read_text(encoding="utf-8"))}
    # `terminal_punctuation` removes lines, not documents.
    assert [rule for rule in rules - {"terminal_punctuation"} if not rule_phrase(name, rule)] == []


def test_phrases_of_rules() -> None:
    thresholds = METHODS.find("repetition")().thresholds
    assert all(rule_phrase("repetition", rule) for rule in thresholds)
    assert rule_phrase("repetition_2", "top_4") == "too much text in the most frequent run of 4 words"
    assert rule_phrase("gopher", "raised") == "the step raised an exception"
    assert rule_phrase("another step", "rule") == rule_phrase("words", "another rule") == ""
