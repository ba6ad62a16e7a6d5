"""Limits of every step and reader for long documents of one repeated unit; `benchmarks/growth.py` measures them."""

from __future__ import annotations

import pytest

from jax_diversity.preparation.steps.base import METHODS
from tests.support.growing import READERS, Use, readers, steps
from tests.support.limits import peak_bytes, processor_limit
from tests.support.pumped import PUMPED, SHARP

pytestmark = pytest.mark.campaign

NUM_CHARACTERS = 160_000
# The square of the length times half a nanosecond. `benchmarks/growth.py` finds growth that is less steep.
MOST_SECONDS = 12
MOST_BYTES = 400 * 2**20


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Use]:
    return steps(tmp_path_factory.mktemp("steps")) | readers(tmp_path_factory.mktemp("readers"))


@pytest.mark.parametrize("name", [*METHODS, *(f"read {each}" for each in READERS)])
def test_long_documents_keep_to_the_limits(name: str, uses: dict[str, Use]) -> None:
    """Also with other options of a step, whose names continue the step's."""
    mine = [use for each, use in uses.items() if each == name or each.removeprefix(name)[:1] == " "]
    assert mine
    for use in mine:
        use("warm up")
        for unit in SHARP:
            text = PUMPED[unit].text(NUM_CHARACTERS)
            peak_bytes()
            before = peak_bytes()  # what is used now
            with processor_limit(MOST_SECONDS):
                use(text)
            assert peak_bytes() - before < MOST_BYTES, unit
