"""Every order and option that Python has, once from YAML and once from the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.artifacts import signed
from jax_diversity.foundation.settings import read_settings, settings_from_plain
from jax_diversity.ordering.base import METHODS
from jax_diversity.ordering.plan import Plan
from jax_diversity.ordering.settings import AfterConfig, OrderConfig, TargetsConfig
from jax_diversity.ordering.shortages import UnmetTargets, shortages
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.pipeline.stages import ordering_stages
from tests.conftest import MakeFolder
from tests.support.programs import devices

# Another value than the default for every option that settings can give; a mesh of devices is given as their number.
OPTIONS: dict[str, dict[str, Any]] = {
    "balance": {"pool_size": 16, "aging": 5.0, "ties": "lowest", "part_size": 100},
    "buffer_shuffle": {"buffer_size": 30, "num_workers": 2, "epoch": 1, "batch_size": 4},
    "cluster_sorted": {},
    "corpus_order": {},
    "document_spacing": {},
    "greedy": {"ties": "lowest"},
    "greedy_block_shuffle": {"block_size": 8, "ties": "lowest"},
    "greedy_pool": {"pool_size": 16, "shuffle": False, "ties": "lowest"},
    "sequence_spacing": {"ties": "lowest"},
    "stratified": {"second_family": "length"},
    "uniform_shuffle": {},
    "window_shuffle": {"window_size": 50},
}
EVEN, MORE = [0.25, 0.25, 0.25, 0.25], [0.4, 0.2, 0.2, 0.2]
# What an `OrderConfig` has besides method and options, each at least once with another value than its default.
FURTHER: dict[str, dict[str, Any]] = {
    "weighed": {
        "method": "greedy_pool",
        "objective": {
            "family_weights": {"length": 0.5},
            "windows": [8],
            "window_weight": 0.25,
            "norm_weight": 2.0,
            "self_weight": 1.0,
            "document_weight": 0.5,
        },
        "seed": 3,
    },
    "published": {"method": "greedy", "objective": {"base": "f3", "form": "norms"}},
    "turned": {"method": "balance", "reverse": True},
    "constant": {"method": "greedy_pool", "targets": {"shares": {"cluster": [{"0": 0.4}]}}},
    "phases": {"method": "balance", "targets": {"shares": {"cluster": [MORE, {"1": 0.4}]}, "starts": [0, 0.25]}},
    "line": {
        "method": "greedy",
        "targets": {"shares": {"cluster": [EVEN, MORE], "length": [[1] * 5] * 2}, "linear": True},
    },
    "later": {"method": "greedy_pool", "after": {"order": "published", "position": 100}},
    "change": {
        "method": "balance",
        "after": {"order": "published", "position": 0.5},
        "targets": {"shares": {"cluster": [{"0": 0.4, "1": 0.2, "2": 0.2, "3": 0.2}]}},
    },
}
ORDERS: dict[str, dict[str, Any]] = {
    **{
        method: {"method": method, "options": options, **({"seed": 1} if METHODS.takes(method, "seed") else {})}
        for method, options in OPTIONS.items()
    },
    **{f"{method} on devices": {"method": method, "devices": 1} for method in METHODS if METHODS.takes(method, "mesh")},
    **FURTHER,
}


def add_from_yaml(tiny_dataset: Path, out: Path, names: Collection[str]) -> None:
    """Copy a dataset and add some of `ORDERS` to it, with one file of settings."""
    shutil.copytree(tiny_dataset, out)
    config = out.parent / f"{out.name}.yaml"
    config.write_text(json.dumps({"orders": [{**ORDERS[name], "name": name} for name in names]}))
    build = Build(read_settings(config, recorded_config(out)))
    with pytest.warns(UserWarning, match="Ordering 'constant': The targets ask for"):
        build._run([stage for order in build.config.orders for stage in ordering_stages(order)])


@pytest.fixture(scope="session")
def from_yaml(tiny_dataset: Path, make_once: MakeFolder) -> Path:
    """A dataset whose orders come from one file of settings."""
    return make_once("orders-of-a-file", lambda out: add_from_yaml(tiny_dataset, out, ORDERS))


@pytest.fixture(scope="session")
def with_targets(tiny_dataset: Path, make_once: MakeFolder) -> Path:
    """A dataset with the orders `balance` and `uniform_shuffle`, with and without targets."""
    names = ("published", "turned", "constant", "phases", "later")
    return make_once("orders-with-targets", lambda out: add_from_yaml(tiny_dataset, out, names))


@pytest.fixture(scope="session")
def from_command_line(tiny_dataset: Path, make_once: MakeFolder) -> Path:
    """The same orders, each from words after `jax-diversity order`."""

    def fill(out: Path) -> None:
        shutil.copytree(tiny_dataset, out)
        # Without a report, which each command would draw again with the orders so far: most of the time of this file.
        manifest = json.loads((out / "manifest.json").read_text())
        del manifest["stages"]["report"]
        (out / "manifest.json").write_text(json.dumps(signed(manifest)))
        for name, order in ORDERS.items():
            assert main(["order", "--out", str(out), "--quiet", "--name", name, *words(order)]) == 0

    return make_once("orders-of-words", fill)


def words(settings: dict[str, Any], prefix: str = "") -> list[str]:
    """Settings as a user types them."""
    found: list[str] = []
    for key, value in settings.items():
        option = f"--{prefix}{key}".replace("_", "-")
        if key == "shares":
            found += [option, json.dumps(value)]
        elif key in ("objective", "targets", "after"):
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
    # What a method takes besides its options: a new name here is a new setting, too.
    assert METHODS.contract == {"characteristics", "counts", "seed", "objective", "advance", "plan", "checkpoint"}
    assert set(OPTIONS) == set(METHODS)
    for method, given in OPTIONS.items():
        by_settings = METHODS.describe(method)[1]
        assert set(given) == set(by_settings), method
        assert set(METHODS.options(method)) - set(by_settings) <= {"mesh"}, method
        assert all(value != METHODS.options(method)[option] for option, value in given.items()), method
    default, used = dataclasses.asdict(OrderConfig()), [*ORDERS.values(), {"name": "x"}]
    for name, value in default.items():
        assert any(order.get(name, value) != value for order in used), name
        for inner in value if name in ("objective", "targets", "after") else ():
            assert any(inner in order.get(name, {}) for order in used), inner


@pytest.mark.campaign
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
            weights = {"norm_weight": 2.0, "self_weight": 1.0, "window_weight": 0.25, "document_weight": 0.5}
            objective = jd.Objective(windows=(8,), **weights)
            return jd.order(
                chars.with_weights({**chars.weights, "length": 0.5}), "greedy_pool", seed=3, objective=objective
            )
        case "published":
            return jd.order(chars, "greedy", objective=jd.Objective.f3(form="norms"))
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
            return jd.order(chars, "greedy_pool", consumed=dataset.orderings["published"][:100])
        case "change":
            half = round(number / 2)
            return jd.order(chars, consumed=dataset.orderings["published"][:half], targets={"cluster": MORE})
    seed = {"seed": order["seed"]} if "seed" in order else {}
    return jd.order(chars, order["method"], **seed, **order.get("options", {}), **mesh)


def named(own: np.ndarray, given: dict[int, float]) -> np.ndarray:
    """The given groups' shares, and the corpus's own proportions of the others."""
    others = [group for group in range(len(own)) if group not in given]
    shares = np.array([given.get(group, 0.0) for group in range(len(own))])
    shares[others] = (1 - sum(given.values())) * own[others] / own[others].sum()
    return shares


def test_an_order_says_what_it_was_made_of(with_targets: Path) -> None:
    orderings = jd.open_dataset(with_targets).orderings
    number = len(orderings["phases"])
    assert orderings["turned"].info["reverse"] is True
    assert orderings["phases"].info["targets"]["starts"] == [0, round(number / 4)]
    assert orderings["phases"].info["targets"]["shares"]["cluster"][0] == MORE
    later = orderings["later"].info
    assert (later["of"]["name"], later["replanned_at"]) == ("published", 100)
    assert later["of"]["fingerprint"] == orderings["published"].fingerprint
    np.testing.assert_array_equal(orderings["later"][:100], orderings["published"][:100])


def test_an_order_that_is_made_again_stays_before_those_that_go_on_from_it(tiny_dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(tiny_dataset, out)

    def make(order: OrderConfig) -> jd.Dataset:
        Build(recorded_config(out)).run_orders([order])
        return jd.open_dataset(out)

    later = OrderConfig("greedy_pool", name="later", after=AfterConfig("base", 50))
    make(OrderConfig("corpus_order", name="base"))
    assert make(later).orderings["later"][:50].tolist() == list(range(50))
    remade = make(OrderConfig("uniform_shuffle", name="base"))
    assert "later" not in remade.orderings
    assert [order["name"] for order in remade.settings["orders"][-2:]] == ["base", "later"]
    np.testing.assert_array_equal(make(later).orderings["later"][:50], remade.orderings["base"][:50])
    Build(recorded_config(out)).run_stage("report")
    orders = json.loads((out / "report.json").read_text())["ordering"]["orders"]
    assert {order["name"]: order["info"].get("replanned_at") for order in orders}["later"] == 50


@pytest.mark.campaign
def test_more_devices_give_the_same(from_yaml: Path, tiny_dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_dataset, tmp_path / "out")
    program = "import sys; from jax_diversity.cli.main import main; sys.exit(main(sys.argv[1:]))"
    order = ["order", "--out", str(tmp_path / "out"), "--quiet", "--method", "balance", "--devices", "3"]
    environment = {**os.environ, "XLA_FLAGS": devices(3)}
    subprocess.run([sys.executable, "-c", program, *order, "--name", "three"], check=True, env=environment)
    made = (tmp_path / "out" / "orderings" / "three.npy").read_bytes()
    assert made == (from_yaml / "orderings" / "balance on devices.npy").read_bytes()


# What the corpus lacks


def test_a_summary_says_what_targets_lack(with_targets: Path) -> None:
    stages = jd.open_dataset(with_targets).manifest["stages"]
    assert "positions by greedy_pool. The targets ask for" in stages["order/constant"]["summary"]
    assert stages["order/balance"]["summary"].endswith("positions by balance")


def phases(starts: list[int], shares: list[list[float]]) -> jd.Targets:
    return jd.Targets(tuple(starts), {"topic": np.array(shares, float)})


def test_a_group_is_used_up_where_the_integral_of_its_target_says() -> None:
    """Against a walk over the positions."""
    rng = np.random.default_rng(0)
    groups = rng.choice(3, 300, p=[0.6, 0.3, 0.1])
    chars = jd.Characteristics.from_counts({"topic": 8 * np.eye(3, dtype=int)[groups]})
    targets = phases([0, 90, 200], [[0.7, 0.1, 0.2], [0.2, 0.4, 0.4], [0.4, 0.6, 0.0]])
    shares = np.repeat(targets.shares["topic"], [90, 110, 100], axis=0)
    running, has = np.cumsum(8 * shares, axis=0), np.bincount(groups) * 8
    found = {shortage.group: shortage for shortage in shortages(Plan.build(chars, jd.Objective()), targets)}
    assert set(found) == {int(group) for group in np.flatnonzero(running[-1] > has)} == {1, 2}
    for group, shortage in found.items():
        assert shortage.used_up_after == pytest.approx(np.argmax(running[:, group] > has[group]) / 300, abs=1 / 300)
        assert (shortage.needed, shortage.has) == (pytest.approx(running[-1, group]), has[group])
    assert [shortage.used_up_after for shortage in shortages(Plan.build(chars, jd.Objective()), targets)] == sorted(
        shortage.used_up_after for shortage in found.values()
    )


def test_targets_of_the_corpus_itself_lack_nothing() -> None:
    chars = jd.Characteristics.from_counts({"topic": 8 * np.eye(3, dtype=int)[np.arange(90) % 3]})
    assert shortages(Plan.build(chars, jd.Objective()), phases([0], [[1, 1, 1]])) == []
    line = jd.Targets.linear({"topic": [1, 0.5, 0]}, {"topic": [0, 0.5, 1]}, 90)
    assert shortages(Plan.build(chars, jd.Objective()), line) == []


def test_what_was_consumed_is_no_longer_there() -> None:
    chars = jd.Characteristics.from_counts({"topic": 8 * np.eye(2, dtype=int)[np.arange(90) % 2]})
    even = phases([0], [[1, 1]])
    (shortage,) = shortages(Plan.build(chars, jd.Objective(), None, np.arange(0, 40, 2)), even)
    assert (shortage.group, shortage.has) == (0, 8 * 25)
    assert shortage.used_up_after == pytest.approx((20 + 50) / 90)


def test_a_group_without_tokens_is_told() -> None:
    chars = jd.Characteristics.from_counts({"topic": np.array([[8, 0]] * 9)})
    (shortage,) = shortages(Plan.build(chars, jd.Objective()), phases([0], [[1, 1]]))
    assert shortage.sentence("law", 0) == (
        "The targets ask for the tokens of topic 'law' from 0% of the order on, but the corpus has none. "
        "The remaining sequences follow. To use all tokens evenly, give targets whose mean over the order is "
        "the corpus's shares."
    )


# Bad input: one sentence, and nothing written

MISTAKES = {
    "a group that does not exist": ({"targets": {"shares": {"cluster": [{"law": 0.5}]}}}, "found 'law'."),
    "too few shares": (
        {"targets": {"shares": {"cluster": [[1, 2]]}}},
        "for each of its 4 groups (0, 1, 2, 3), found 2",
    ),
    "a start beyond the end": (
        {"targets": {"shares": {"cluster": [EVEN, MORE]}, "starts": [0, 10**6]}},
        "Expected targets that start before position",
    ),
    "starts that meet": ({"targets": {"shares": {"cluster": [EVEN, MORE]}, "starts": [0, 0.0]}}, "to ascend from 0"),
    "a position beyond the end": ({"after": {"order": "balance", "position": 10**6}}, "Expected a position in 0 .. "),
    "an unknown order": (
        {"after": {"order": "mine", "position": 3}},
        "made before it (uniform_shuffle, balance), found 'mine'",
    ),
    "more devices than there are": ({"devices": 4096}, "devices of JAX (cpu), found 4096"),
    "a family that the objective does not weigh": (
        {"objective": {"base": "f1"}, "targets": {"shares": {"length": [[1] * 5]}}},
        "Targets name the family 'length'; the objective weighs cluster.",
    ),
    "an option of another method": ({"options": {"block_size": 3}}, "Method 'balance' has no option 'block_size'"),
    "a block of none": ({"method": "greedy_block_shuffle", "options": {"block_size": 0}}, "Expected block_size to be"),
    "targets of a shuffle": (
        {"method": "uniform_shuffle", "targets": {"shares": {"cluster": [EVEN]}}},
        "cannot use targets; expected one of balance, greedy, greedy_pool.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence_and_write_nothing(
    mistake: str, tiny_dataset: Path, capsys: pytest.CaptureFixture
) -> None:
    order, sentence = MISTAKES[mistake]
    before = {path: path.stat().st_mtime_ns for path in tiny_dataset.rglob("*") if path.is_file()}
    assert main(["order", "--out", str(tiny_dataset), "--quiet", "--name", "wrong", *words(order)]) == 2
    told = capsys.readouterr().err.strip()
    assert sentence in told
    assert "\n" not in told
    assert {path: path.stat().st_mtime_ns for path in tiny_dataset.rglob("*") if path.is_file()} == before


GREEDY = {"balance", "greedy", "greedy_block_shuffle", "greedy_pool"}
USED_BY: dict[str, tuple[Any, set[str]]] = {
    "seed": (1, {name for name in METHODS if METHODS.takes(name, "seed")}),
    "objective": (jd.Objective.f3(), GREEDY),
    "reverse": (True, {*METHODS}),
    "devices": (1, GREEDY),
    "targets": (TargetsConfig({"cluster": ({"0": 0.4},)}), GREEDY - {"greedy_block_shuffle"}),
    "after": (AfterConfig("earlier", 8), GREEDY - {"greedy_block_shuffle"}),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_setting_that_a_method_does_not_use_is_refused(method: str) -> None:
    """All methods, each with all settings: one that is set, or all defaults."""
    assert {*USED_BY, "method", "options", "name"} == {each.name for each in dataclasses.fields(OrderConfig)}
    OrderConfig(method).check("orders[0]", ("cluster", "length"))
    for name, (value, methods) in USED_BY.items():
        config = OrderConfig(method, **{name: value})
        if method in methods:
            config.check_uses()
            continue
        with pytest.raises(jd.UserError) as caught:
            config.check("orders[0]", ("cluster", "length"), ("earlier",))
        sentence = f"Method '{method}' cannot use {name}; expected one of {', '.join(sorted(methods))}."
        assert str(caught.value) == f"Ordering '{method}': {sentence}"


@pytest.mark.parametrize("method", METHODS)
def test_the_batch_size_is_given_only_to_methods_that_use_it(method: str) -> None:
    config = OrderConfig(method).for_batches(8)
    assert config.objective.windows == ((8,) if method in GREEDY else ())
    assert config.options == ({"block_size": 8} if method == "greedy_block_shuffle" else {})
    config.check("orders[0]", ("cluster", "length"))


def test_a_weight_of_windows_needs_windows() -> None:
    config = BuildConfig(orders=(OrderConfig(objective=jd.Objective(window_weight=0.25)),))
    with pytest.raises(jd.UserError, match=r"Ordering 'balance': Expected windows with the window_weight 0.25"):
        config.check([])
    dataclasses.replace(config, batch_size=8).check([])


@pytest.mark.parametrize("text", ["{", "3", "{cluster: 3}", "{cluster: [[x]]}", "[1]"])
def test_shares_that_are_none(text: str, tiny_dataset: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["order", "--out", str(tiny_dataset), "--targets.shares", text]) == 2
    assert f"Expected names and values in YAML after --targets.shares, found {text}" in capsys.readouterr().err


# What is measured


def test_measure_follows_the_targets_of_an_ordering(with_targets: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["measure", "--out", str(with_targets), "--quiet", "--targets", "phases"]
    assert main([*arguments, "--orderings", "phases", "balance"]) == 0
    table = capsys.readouterr().out.split("Against the targets of phases, each window with its positions' targets")[1]
    assert [line.split()[2] for line in table.strip().splitlines()[1:4]] == ["uniform_shuffle", "phases", "balance"]
    assert main([*arguments, "--orderings", "phases", "--markdown"]) == 0
    assert "| cluster |      8 | phases " in capsys.readouterr().out
    assert main([*arguments, "--orderings", "phases", "uniform_shuffle", "--json"]) == 0
    summaries = json.loads(capsys.readouterr().out)
    tv = {name: about["targets"]["families"]["cluster"]["windows"]["8"]["tv_mean"] for name, about in summaries.items()}
    assert tv["phases"] < 0.8 * tv["uniform_shuffle"]
    assert {about["targets"]["of"] for about in summaries.values()} == {"phases"}


def test_targets_of_a_file_are_followed_too(with_targets: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "mine.npy"
    jd.open_dataset(with_targets).orderings["phases"].save(file)
    tv = []
    for name in ("phases", str(file)):
        arguments = ["measure", "--out", str(with_targets), "--quiet", "--json"]
        assert main([*arguments, "--targets", name, "--orderings", name]) == 0
        tv.append(json.loads(capsys.readouterr().out)[name]["targets"]["families"])
    assert tv[0] == tv[1]


def test_measure_takes_any_stored_family(with_targets: Path, capsys: pytest.CaptureFixture) -> None:
    asked = ["--orderings", "balance", "--families", "source", "length", "--json", "--windows", "8"]
    assert main(["measure", "--out", str(with_targets), "--quiet", *asked]) == 0
    families = json.loads(capsys.readouterr().out)["balance"]["families"]
    assert list(families) == ["source", "length"]
    dataset = jd.open_dataset(with_targets)
    usual = jd.measure(dataset.characteristics, dataset.orderings["balance"], (8,)).summary()["families"]["length"]
    assert families["length"]["windows"]["8"]["tv_mean"] == usual["windows"]["8"]["tv_mean"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--families", "law"],
            "Expected every family to be one of cluster, duplicate, host, language, length, source,",
        ),
        (["--targets", "balance"], "Expected --targets to name an ordering that followed targets, found 'balance'"),
        (["--targets", "mine"], "Unknown ordering 'mine'"),
        (["--targets", "phases", "--families", "source"], "to measure a family with targets (cluster), found source"),
        (["--targets", "phases", "--relative-to", "balance"], "Expected --targets or --relative-to, found both"),
    ],
)
def test_measures_that_are_none(
    arguments: list[str], sentence: str, with_targets: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["measure", "--out", str(with_targets), "--quiet", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_published_objectives_take_the_weights_of_their_own_families() -> None:
    assert settings_from_plain(jd.Objective, {"base": "f3", "family_weights": [1, 0.3]}) == jd.Objective.f3(0.3)
    assert settings_from_plain(jd.Objective, {"base": "f2", "norm_weight": 0.2}) == jd.Objective.f2(0.2)
    with pytest.raises(jd.UserError, match=r"The objective weighs 3 families, the characteristics have 2"):
        OrderConfig(objective=jd.Objective(family_weights=(1, 1, 1))).check("orders[0]", ("cluster", "length"))


def test_weights_by_name_are_weights_of_the_characteristics() -> None:
    chars = jd.Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]], "source": [0, 1, 0, 1]})
    objective = jd.Objective(family_weights={"source": 0.5})
    assert objective.resolved_weights(chars) == {"topic": 1.0, "source": 0.5}
    expected = jd.order(chars.with_weights({"source": 0.5}), "greedy")
    np.testing.assert_array_equal(jd.order(chars, "greedy", objective=objective).indices, expected.indices)
    with pytest.raises(jd.UserError, match=r"found 'sourc'; did you mean 'source'\?"):
        jd.order(chars, objective=jd.Objective(family_weights={"sourc": 0.5}))


def test_python_says_what_targets_lack() -> None:
    chars = jd.Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})
    with pytest.warns(
        UnmetTargets, match="2.00 times the tokens of topic '0', which are used up after 50% of the order"
    ):
        jd.order(chars, targets={"topic": [1.0, 0.0]})
