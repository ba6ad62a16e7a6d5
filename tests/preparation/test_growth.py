"""Limits of every step and reader for long documents of one repeated unit; `benchmarks/growth.py` measures them."""

from __future__ import annotations

import time

import pytest

from jax_diversity.preparation.steps.base import METHODS
from tests.support.growing import READERS, Use, readers, steps
from tests.support.limits import peak_bytes, processor_limit
from tests.support.pumped import PUMPED, SHARP

pytestmark = pytest.mark.campaign

GROWING = ("html", "html 1", "mediawiki", "stack_exchange", "latex", "personal_data", "gopher", "repetition", "lines")
GROWING_READERS = ("chat, chatml", "mediawiki", "latex", "html")
SHORT, LONG = 50_000, 500_000
MOST_GROWTH = 40
"""Between linear time (10) and quadratic time (100)."""
LEAST_SECONDS = 0.03
NUM_CHARACTERS = 80_000
# The square of the length times half a nanosecond. `benchmarks/growth.py` finds growth that is less steep.
MOST_SECONDS = 3
MOST_BYTES = 200 * 2**20


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


@pytest.mark.parametrize("name", [*GROWING, *(f"read {each}" for each in GROWING_READERS)])
def test_time_does_not_grow_with_the_square_of_the_length(name: str, uses: dict[str, Use]) -> None:
    """A document of 500 kB takes less than 40 times the time of one of 50 kB."""
    uses[name]("warm up")
    for unit in SHARP:
        text = PUMPED[unit].text(LONG)
        before = time.process_time()
        with processor_limit(MOST_SECONDS):
            uses[name](PUMPED[unit].text(SHORT))
        seconds = max(time.process_time() - before, LEAST_SECONDS)
        with processor_limit(MOST_GROWTH * seconds):
            uses[name](text)
