"""K-means on 2, 6 and 8 emulated devices and in two processes finds what one device finds.

Sums are added in another order there, so centroids agree to rounding, and documents may change their cluster only
where two centroids are equally near to within rounding.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jax_diversity import UserError
from jax_diversity.sequences.clustering.base import cluster
from jax_diversity.sequences.clustering.lloyd import row_mesh
from tests.support.clustering_devices import CONFIGS, NUM_DEVICES, blurred_blobs, found_on
from tests.support.programs import answers, free_port, start


def check_same(case: str, found: dict[str, Any], alone: dict[str, Any]) -> None:
    rows, config = blurred_blobs(), CONFIGS[case]
    assert found["assigned again"]
    assert found["num_iterations"] == alone["num_iterations"]
    assert found["inertia"] == pytest.approx(alone["inertia"], rel=1e-5)
    centroids = np.array(alone["centroids"])
    np.testing.assert_allclose(found["centroids"], centroids, atol=1e-4)
    if config.get("spherical"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / np.where(lengths > 0, lengths, 1)
    differ = np.flatnonzero(np.array(found["assignments"]) != np.array(alone["assignments"]))
    for row in differ:
        mine, other = (centroids[each["assignments"][row]] for each in (found, alone))
        near = np.square(rows[row] - mine).sum(), np.square(rows[row] - other).sum()
        assert near[0] == pytest.approx(near[1], abs=1e-3)
    assert len(differ) <= len(rows) // 200


@pytest.mark.campaign
def test_many_devices_find_what_one_finds() -> None:
    [answer] = answers(start("clustering_devices", num_devices=8))
    assert answer["num_devices"] == 8
    assert set(answer["found"]) == {*map(str, NUM_DEVICES), "grid"}
    for case in CONFIGS:
        alone = found_on(None, CONFIGS[case], blurred_blobs())
        for found in answer["found"].values():
            check_same(case, found[case], alone)


@pytest.mark.campaign
def test_two_processes_find_what_one_finds() -> None:
    coordinator = f"127.0.0.1:{free_port()}"
    first, second = answers(
        *(start("clustering_devices", str(process), "2", coordinator, num_devices=2) for process in range(2))
    )
    assert first["num_devices"] == 4
    assert first["found"] == second["found"]  # every process knows all
    for case, found in first["found"]["all"].items():
        check_same(case, found, found_on(None, CONFIGS[case], blurred_blobs()))


def test_a_mesh_of_one_device_changes_nothing() -> None:
    rows = blurred_blobs()
    shared = cluster(rows, 10, max_iterations=4, mesh=jax.make_mesh((1,), ("rows",)))
    alone = cluster(rows, 10, max_iterations=4)
    np.testing.assert_array_equal(shared.centroids, alone.centroids)
    np.testing.assert_array_equal(shared.assignments, alone.assignments)


def test_what_is_no_mesh_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"Expected mesh to be a jax.sharding.Mesh, found str; make one"):
        row_mesh("eight devices")
    shared = jax.make_mesh((1,), ("rows",))
    monkeypatch.setattr(jax, "process_index", lambda: 3)
    with pytest.raises(UserError, match=r"devices of this process, number 3, found devices of processes \[0\]"):
        row_mesh(shared)
