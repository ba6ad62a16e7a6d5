"""On a machine with a GPU or a TPU: the device computes what processors compute. Elsewhere these tests are skipped."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import jax_diversity as jd
from jax_diversity.sequences.clustering.assignment import assign
from tests.support.clustered_rows import random_rows
from tests.support.many_devices import wide_characteristics
from tests.support.synthetic import synthetic_characteristics

pytestmark = pytest.mark.accelerator


@pytest.fixture(autouse=True)
def _needs_an_accelerator() -> None:
    if jax.default_backend() == "cpu":
        pytest.skip("JAX finds no GPU or TPU on this machine")


@pytest.mark.parametrize("part_size", [256, 2000])
@pytest.mark.parametrize("make", [synthetic_characteristics, wide_characteristics])
def test_an_order_is_that_of_the_processors(make: object, part_size: int) -> None:
    """One pool, and pools that advance together: every sum has a fixed order, so that the choices are the same."""
    assert callable(make)
    chars, objective = make(2000), jd.Objective(windows=(64,))
    device = Mesh(np.array(jax.devices()[:1]), ("device",))  # without a mesh, processors order so few sequences
    on_device = jd.order(chars, objective=objective, part_size=part_size, mesh=device)
    assert np.array_equal(jd.order(chars, objective=objective, part_size=part_size), on_device)


def test_rows_are_assigned_to_the_same_centroids() -> None:
    rows = random_rows(5000, 64)
    centroids = rows[::100]
    on_device, _ = assign(rows, centroids)
    with jax.default_device(jax.devices("cpu")[0]):
        on_processor, _ = assign(rows, centroids)
    assert (np.asarray(on_device) == np.asarray(on_processor)).mean() > 0.999


def test_the_loader_gives_the_tokens_of_the_dataset(request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue("tiny_dataset")  # as an argument it would be built before the test is skipped
    dataset = jd.open_dataset(root)
    batch = next(iter(jd.make_loader(root, global_batch_size=8)))
    expected = dataset.records.read_sequences(dataset.orderings["balance"].indices[:8])
    assert np.array_equal(jax.device_put(batch["inputs"]), expected["inputs"])
