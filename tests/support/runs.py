"""A run's positions and batches, all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import jax_diversity as jd


def whole(run: jd.Run) -> np.ndarray:
    return run.at(np.arange(len(run)))


def batches(run: Any, size: int = 8, **settings: Any) -> list[dict[str, np.ndarray]]:
    return list(jd.make_loader(run, global_batch_size=size, **settings))


def assert_equal_batches(found: list[dict], expected: list[dict]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, rows in one.items():
            np.testing.assert_array_equal(rows, other[name])
