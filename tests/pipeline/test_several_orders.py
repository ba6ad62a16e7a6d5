"""The words of `jax-diversity order`: the settings of several orderings."""

from __future__ import annotations

import pytest

from jax_diversity.cli.main import all_verbs
from jax_diversity.cli.parsing import given_options
from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.commands import _orderings_of


def test_words_are_methods_and_published_objectives() -> None:
    given = given_options(all_verbs()["order"].options, "order", ["f1", "balance", "--out", "data", "--no-page"])
    assert given == {"METHODS": ["f1", "balance"], "--out": "data", "--page": False}
    first, second = _orderings_of(["f1", "balance"], OrderConfig(seed=3))
    assert (first.file_name, first.method, first.objective, first.seed) == ("f1", "greedy", Objective.f1(), 3)
    assert (second.file_name, second.method, second.seed) == ("balance", "balance", 3)
    assert _orderings_of([], OrderConfig("greedy")) == [OrderConfig("greedy")]


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (OrderConfig("greedy"), "--method greedy"),
        (OrderConfig(name="mine"), "--name only with one method"),
        (OrderConfig(objective=Objective.f3()), "options of --objective"),
    ],
)
def test_options_that_contradict_the_words(config: OrderConfig, found: str) -> None:
    with pytest.raises(UserError, match=found):
        _orderings_of(["f1", "balance"], config)
