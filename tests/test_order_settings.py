"""Every order and option that Python has, once from YAML and once from the command line."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.settings import read_settings
from jax_diversity.ordering.base import METHODS
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.pipeline.stages import ordering_stages

# Another value than the default for every option that settings can give; a mesh of devices is given as their number.
OPTIONS: dict[str, dict[str, Any]] = {
    "balance": {"pool_size": 16},
    "buffer_shuffle": {"buffer_size": 30, "num_workers": 2, "epoch": 1},
    "cluster_sorted": {},
    "corpus_order": {},
    "document_spacing": {},
    "greedy": {},
    "greedy_block_shuffle": {"block_size": 8},
    "greedy_pool": {"pool_size": 16, "shuffle": False},
    "sequence_spacing": {},
    "stratified": {},
    "uniform_shuffle": {},
    "window_shuffle": {"window_size": 50},
}
EVEN, MORE = [0.25, 0.25, 0.25, 0.25], [0.4, 0.2, 0.2, 0.2]
# What an `OrderConfig` has besides method and options, each at least once with another value than its default.
FURTHER: dict[str, dict[str, Any]] = {
    "weighed": {
        "method": "greedy_pool",
        "weights": {"length": 0.5},
        "windows": [8],
        "window_weight": 0.25,
        "norm_weight": 2.0,
        "self_weight": 1.0,
        "seed": 3,
    },
    "published": {"method": "greedy", "objective": "f3"},
    "turned": {"method": "balance", "reverse": True},
    "constant": {"method": "greedy_pool", "targets": {"shares": {"cluster": [{"0": 0.4}]}}},
    "phases": {"method": "balance", "targets": {"shares": {"cluster": [MORE, {"1": 0.4}]}, "starts": [0, 0.25]}},
    "line": {"method": "greedy", "targets": {"shares": {"cluster": [EVEN, MORE], "length": [[1] * 5] * 2}, "linear": True}},
    "later": {"method": "greedy_pool", "after": {"order": "published", "position": 100}},
    "change": {
        "method": "balance",
        "after": {"order": "published", "position": 0.5},
        "targets": {"shares": {"cluster": [{"0": 0.4, "1": 0.2, "2": 0.2, "3": 0.2}]}},
    },
}
ORDERS: dict[str, dict[str, Any]] = {
    **{method: {"method": method, "options": options, "seed": 1} for method, options in OPTIONS.items()},
    **{f"{method} on devices": {"method": method, "devices": 1} for method in METHODS if METHODS.takes(method, "mesh")},
    **FURTHER,
}


@pytest.fixture(scope="module")
def from_yaml(tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose orders come from one file of settings."""
    out = tmp_path_factory.mktemp("orders") / "yaml"
    shutil.copytree(tiny_dataset, out)
    config = out.parent / "orders.yaml"
    config.write_text(json.dumps({"orders": [{**order, "name": name} for name, order in ORDERS.items()]}))  # also YAML
    build = Build(read_settings(config, recorded_config(out)))
    with pytest.warns(UserWarning, match="Ordering 'constant': The targets ask for"):
        build._run([stage for order in build.config.orders for stage in ordering_stages(order)])
    return out


@pytest.fixture(scope="module")
def from_command_line(tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same orders, each from words after `jax-diversity order`."""
    out = tmp_path_factory.mktemp("orders") / "words"
    shutil.copytree(tiny_dataset, out)
    for name, order in ORDERS.items():
        assert main(["order", "--out", str(out), "--quiet", "--name", name, *words(order)]) == 0
    return out


def words(settings: dict[str, Any], prefix: str = "") -> list[str]:
    """Settings as a user types them."""
    found: list[str] = []
    for key, value in settings.items():
        option = f"--{prefix}{key}".replace("_", "-")
        if key == "shares":
            found += [option, json.dumps(value)]
        elif key in ("targets", "after"):
            found += words(value, f"{key}.")
        elif isinstance(value, dict):
            found += [option, *(str(word) for pair in value.items() for word in pair)] if value else []
        elif value is True:
            found.append(option)
        else:
            found += [option, *map(str, value if isinstance(value, list) else [value])]
    return found


def test_every_method_and_option_is_used() -> None:
    """A new one has to be entered above, and so is used from settings and from the command line."""
    assert set(OPTIONS) == set(METHODS)
    for method, given in OPTIONS.items():
        by_settings = METHODS.describe(method)[1]
        assert set(given) == set(by_settings), method
        assert set(METHODS.options(method)) - set(by_settings) <= {"mesh"}, method
        assert all(value != METHODS.options(method)[option] for option, value in given.items()), method
    default, used = dataclasses.asdict(OrderConfig()), [*ORDERS.values(), {"name": "x"}]
    for name, value in default.items():
        assert any(order.get(name, value) != value for order in used), name
        for inner in value if name in ("targets", "after") else ():
            assert any(inner in order.get(name, {}) for order in used), inner


@pytest.mark.parametrize("name", ORDERS)
def test_settings_and_command_line_give_what_python_gives(name: str, from_yaml: Path, from_command_line: Path) -> None:
    dataset = jd.open_dataset(from_yaml)
    made = dataset.orderings[name].indices
    np.testing.assert_array_equal(made, jd.open_dataset(from_command_line).orderings[name].indices)
    np.testing.assert_array_equal(made, by_python(name, dataset).indices)


def by_python(name: str, dataset: jd.Dataset) -> jd.Ordering:
    """The same order through the functions of the package."""
    order, chars = ORDERS[name], dataset.characteristics
    mesh = {"mesh": jax.make_mesh((order["devices"],), ("sequences",))} if "devices" in order else {}
    number, own = chars.num_sequences, chars.target_share("cluster")
    match name:
        case "weighed":
            objective = jd.Objective(norm_weight=2.0, self_weight=1.0, windows=(8,), window_weight=0.25)
            return jd.order(chars.with_weights({"length": 0.5}), "greedy_pool", seed=3, objective=objective)
        case "published":
            return jd.order(chars, "greedy", objective=jd.Objective.f3())
        case "turned":
            return jd.reverse(jd.order(chars))
        case "constant":
            return jd.order(chars, "greedy_pool", targets={"cluster": named(own, {0: 0.4})})
        case "phases":
            targets = jd.Targets((0, round(number / 4)), {"cluster": np.array([MORE, named(own, {1: 0.4})])})
            return jd.order(chars, targets=targets)
        case "line":
            ends = ({"cluster": shares, "length": [1] * 5} for shares in (EVEN, MORE))
            return jd.order(chars, "greedy", targets=jd.Targets.linear(*ends, number))
        case "later":
            return jd.replan(chars, dataset.orderings["published"], 100, "greedy_pool")
        case "change":
            half = round(number / 2)
            return jd.replan(chars, dataset.orderings["published"], half, targets={"cluster": MORE})
    return jd.order(chars, order["method"], seed=order.get("seed", 0), **order.get("options", {}), **mesh)


def named(own: np.ndarray, given: dict[int, float]) -> np.ndarray:
    """The given groups' shares, and the corpus's own proportions of the others."""
    others = [group for group in range(len(own)) if group not in given]
    shares = np.array([given.get(group, 0.0) for group in range(len(own))])
    shares[others] = (1 - sum(given.values())) * own[others] / own[others].sum()
    return shares
