"""The values of a batch as `measure` computes them, for tests of what is written while training runs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import jax_diversity as jd


def expected_values(
    chars: jd.Characteristics, order: jd.Ordering | jd.Run, position: int, size: int
) -> dict[str, float]:
    """By `measure`, of the order as far as it is trained on."""
    stop = min(position + size, len(order))
    window = jd.make_run(chars, positions=order.indices[position:stop])
    after, within = jd.measure(chars, order, windows=(1,)), jd.measure(chars, window, windows=(stop - position,))
    values = {}
    for family in chars.families:
        values[f"batch_tv/{family}"] = within.window_tv[family][stop - position][0]
        values[f"groups_per_batch/{family}"] = within.groups_per_batch[family][stop - position][0]
        values[f"prefix_l2/{family}"] = after.prefix_l2[family][stop - 1]
    for name, spread in (("document", within.documents), ("copy", within.copies)):
        if spread is not None:
            values[f"repeats/{name}"] = spread.repeats[stop - position][0]
    return values


def assert_same_values(found: Mapping[str, float], expected: Mapping[str, float]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-9), name
