"""The tests' own checks of types and shapes: the first calls of a function in every test."""

from __future__ import annotations

import itertools

import jaxtyping
import numpy as np
import pytest

from jax_diversity.ordering.measures.windows import place
from tests.support.synthetic import synthetic_characteristics
from tests.support.typechecker import CHECKED_CALLS


@pytest.mark.core
@pytest.mark.parametrize("time", [1, 2])
def test_the_first_calls_in_every_test_are_checked(time: int, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--typecheck"):
        pytest.skip("types are checked with --typecheck")
    counts = synthetic_characteristics(4).counts["length"]
    with pytest.raises(jaxtyping.TypeCheckError, match="indices"):
        place(counts, np.zeros((2, 2), np.int64))
    for _ in itertools.repeat(None, CHECKED_CALLS):
        place(counts, np.arange(3))
    place(counts, np.arange(3, dtype=np.int32))  # type: ignore[arg-type]
