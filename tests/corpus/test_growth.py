"""Time and memory of every step and every reader grow with the length of a document, whatever it repeats."""

from __future__ import annotations

import pytest

from jax_diversity.corpus.steps.base import METHODS
from tests.support.growing import READERS, Use, fault, readers, steps
from tests.support.pumped import PUMPED, SHARP

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Use]:
    return steps(tmp_path_factory.mktemp("steps")) | readers(tmp_path_factory.mktemp("readers"))


@pytest.mark.parametrize("name", [*METHODS, *(f"read {each}" for each in READERS)])
def test_time_and_memory_grow_with_the_text(name: str, uses: dict[str, Use]) -> None:
    """Also with other options of a step, whose names continue the step's."""
    mine = [use for each, use in uses.items() if each == name or each.removeprefix(name)[:1] == " "]
    assert mine
    for use in mine:
        use("warm up")
        assert not {text: found for text in SHARP if (found := fault(use, PUMPED[text])) is not None}
