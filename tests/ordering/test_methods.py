"""What every ordering method promises: the contract, seeds, degenerate corpora, options, golden orders."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from jax_diversity import Characteristics, Objective, Ordering, order
from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.base import METHODS
from tests.support.synthetic import synthetic_characteristics

# A pool that holds all of a small corpus would leave nothing to chance.
SEEDED: dict[str, dict[str, Any]] = {
    "balance": {"pool_size": 16},
    "buffer_shuffle": {"buffer_size": 30, "num_workers": 2, "epoch": 1},
    "greedy_block_shuffle": {"block_size": 16},
    "greedy_pool": {"pool_size": 16},
    "stratified": {},
    "uniform_shuffle": {},
    "window_shuffle": {"window_size": 50},
}
UNSEEDED = ("cluster_sorted", "corpus_order", "document_spacing")
ONLY_TIES = ("greedy", "sequence_spacing")  # what their seed decides
TIES = ("balance", "greedy_pool", *ONLY_TIES)
POOLED = ("balance", "greedy_pool")
PLANNED = ("balance", "greedy", "greedy_pool")
STORED = ("balance", "corpus_order", "uniform_shuffle")  # the methods that take counts which are not in memory
WEIGHING = (*PLANNED, "greedy_block_shuffle")  # the methods with an objective


def seeded(method: str, seed: int) -> dict[str, Any]:
    """The seed, for methods that use one."""
    return {} if method in UNSEEDED else {"seed": seed}


@pytest.fixture(scope="module")
def chars() -> Characteristics:
    return synthetic_characteristics(200, num_clusters=12, num_bins=4)


def test_every_method_is_tested_as_what_it_is() -> None:
    assert {*SEEDED, *UNSEEDED, *ONLY_TIES} == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_a_deterministic_read_only_bijection(method: str, chars: Characteristics) -> None:
    options, before = SEEDED.get(method, {}), chars.fingerprint
    state = str(np.random.get_state())  # noqa: NPY002 - no method may draw from it
    first, second = (order(chars, method, **seeded(method, 3), **options) for _ in range(2))
    np.testing.assert_array_equal(np.sort(first.indices), np.arange(chars.num_sequences))
    np.testing.assert_array_equal(first.indices, second.indices)
    assert first.indices.dtype == np.int64
    assert not first.indices.flags.writeable
    assert chars.fingerprint == before
    assert str(np.random.get_state()) == state  # noqa: NPY002


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_how_its_order_was_made(method: str, chars: Characteristics, tmp_path) -> None:
    options = SEEDED.get(method, {})
    ordering = order(chars, method, **seeded(method, 3), **options)
    every = {name: value for name, value in METHODS.options(method).items() if name != "mesh"} | options
    expected = {"method": method, **seeded(method, 3), "options": every}
    if method not in STORED or method in PLANNED:  # the others do not read the counts
        expected["characteristics"] = chars.fingerprint
    if method in WEIGHING:
        expected["objective"] = dataclasses.asdict(Objective())
    assert ordering.info == expected
    ordering.save(tmp_path / "mine.npy")
    assert Ordering.load(tmp_path / "mine.npy").info == json.loads(json.dumps(dict(ordering.info)))


@pytest.mark.parametrize("method", METHODS)
def test_progress_counts_every_position(method: str, chars: Characteristics) -> None:
    told: list[int] = []
    order(chars, method, advance=told.append, **SEEDED.get(method, {}))
    assert sum(told) == chars.num_sequences
    assert min(told) >= 0


@pytest.mark.parametrize("method", SEEDED)
def test_seeds_give_different_orders(method: str, chars: Characteristics) -> None:
    orders = {order(chars, method, seed=seed, **SEEDED[method]).fingerprint for seed in (0, 1, 2, 2**40)}
    assert len(orders) == 4


@pytest.mark.parametrize("method", TIES)
def test_ties_are_broken_by_the_seed_or_by_the_lowest_index(method: str) -> None:
    alike = Characteristics.from_counts({"topic": np.full((40, 1), 2)})
    at_random = [order(alike, method, seed=seed).indices for seed in (0, 0, 1)]
    np.testing.assert_array_equal(at_random[0], at_random[1])
    assert not np.array_equal(at_random[0], at_random[2])
    assert all(abs(np.corrcoef(indices, np.arange(40))[0, 1]) < 0.5 for indices in at_random)
    for seed in (0, 1):
        np.testing.assert_array_equal(order(alike, method, seed=seed, ties="lowest").indices, np.arange(40))


@pytest.mark.parametrize("method", ONLY_TIES)
def test_seeds_play_no_other_part(method: str, chars: Characteristics) -> None:
    assert len({order(chars, method, seed=seed, ties="lowest").fingerprint for seed in (0, 1, 2**40)}) == 1


def wide_rows() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 3, (20, 450))


def unruly_rows() -> csr_array:
    """Of 0 to 30,000 tokens; a stored zero, columns out of order and named several times."""
    columns = np.array([2, 0, 2, 1, 1, 0, 3, 3, 1])
    counts = np.array([1, 2, 3, 4, 0, 30_000, 2, 2, 7])
    return csr_array((counts, columns, np.array([0, 3, 3, 5, 6, 8, 8, 9])), shape=(7, 4))


DEGENERATE: dict[str, Callable[[], Any]] = {
    "no sequence": lambda: np.zeros((0, 3), int),
    "one sequence": lambda: np.array([[4, 1]]),
    "no tokens": lambda: np.zeros((4, 2), int),
    "equals of one group": lambda: np.full((7, 1), 2),
    "unruly": unruly_rows,
    "300 non-zeros": wide_rows,
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("corpus", DEGENERATE)
def test_degenerate_corpora(method: str, corpus: str) -> None:
    chars = Characteristics.from_counts({"topic": DEGENERATE[corpus]()})
    indices = order(chars, method).indices
    assert indices.dtype == np.int64
    np.testing.assert_array_equal(np.sort(indices), np.arange(chars.num_sequences))


def test_a_family_of_one_group_changes_nothing(chars: Characteristics) -> None:
    """All its excesses are zero; its column stands in the tables nevertheless."""
    counts = {**chars.counts, "all": chars.tokens[:, None]}
    with_one = Characteristics.from_counts(counts, sequence_length=chars.sequence_length)
    np.testing.assert_array_equal(order(with_one, "greedy").indices, order(chars, "greedy").indices)


@pytest.mark.parametrize("method", METHODS)
def test_groups_without_tokens_change_nothing(method: str, chars: Characteristics) -> None:
    options = SEEDED.get(method, {})
    padded = {}
    for name in chars.families:
        rows = chars.counts[name]
        padded[name] = csr_array((rows.data, rows.indices, rows.indptr), shape=(rows.shape[0], rows.shape[1] + 9))
    with_empty = Characteristics.from_counts(padded, sequence_length=chars.sequence_length)
    options = {**seeded(method, 1), **options}
    expected = order(chars, method, **options).indices
    np.testing.assert_array_equal(order(with_empty, method, **options).indices, expected)


# Options


@pytest.mark.parametrize("method", METHODS)
def test_unknown_options_are_refused(method: str, chars: Characteristics) -> None:
    known = sorted(METHODS.options(method))
    sentence = f"Method '{method}' has no option 'temperature': "
    sentence += f"expected one of {', '.join(known)}" if known else "it takes none"
    with pytest.raises(UserError) as caught:
        order(chars, method, temperature=1)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("name", ["plan", "checkpoints", "characteristic", "Seed", "_pool_size"])
def test_the_contracts_own_arguments_are_no_options(name: str, chars: Characteristics) -> None:
    options: dict[str, Any] = {name: None}
    with pytest.raises(UserError, match=f"has no option '{name}'"):
        order(chars, "balance", **options)


@pytest.mark.parametrize("method", POOLED)
def test_misspelt_options_are_suggested(method: str, chars: Characteristics) -> None:
    with pytest.raises(UserError, match=r"no option 'poolsize': expected one of .*; did you mean 'pool_size'\?"):
        order(chars, method, poolsize=5)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", POOLED)
@pytest.mark.parametrize("size", [0, -1, 1.5, 16.0, True, np.True_, "x", float("nan"), [16]], ids=repr)
def test_pool_sizes_that_are_none(method: str, size: Any, chars: Characteristics) -> None:
    with pytest.raises(UserError, match=r"Expected pool_size to be a whole number >= 1, found "):
        order(chars, method, pool_size=size)


@pytest.mark.parametrize("method", POOLED)
def test_a_bad_pool_size_is_refused_before_any_work_and_for_no_sequences(method: str) -> None:
    chars = Characteristics.from_counts({"topic": np.zeros((0, 3), int)})
    with pytest.raises(UserError, match="pool_size"):
        order(chars, method, pool_size=0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", POOLED)
def test_pool_sizes_of_numpys_types_are_plain_in_the_info(method: str, chars: Characteristics, tmp_path) -> None:
    expected = order(chars, method, pool_size=16)
    given = order(chars, method, pool_size=np.int64(16), folder=tmp_path / "run")
    assert given.fingerprint == expected.fingerprint
    assert json.dumps(dict(given.info)) == json.dumps(dict(expected.info))


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(PLANNED)))
def test_methods_that_follow_no_plan_name_those_that_do(method: str, chars: Characteristics) -> None:
    able = "balance, greedy, greedy_pool"
    cannot = f"Method '{method}' cannot follow targets or continue from earlier sequences; expected one of {able}."
    asked: tuple[dict[str, Any], ...] = ({"consumed": [0]}, {"consumed": []}, {"targets": {"length": [1, 1, 1, 1]}})
    for arguments in asked:
        with pytest.raises(UserError) as caught:
            order(chars, method, **arguments)
        assert str(caught.value) == cannot


@pytest.mark.parametrize("method", sorted(set(METHODS) - {*PLANNED, "greedy_block_shuffle"}))
def test_methods_that_keep_no_state_name_those_that_do(method: str, chars: Characteristics, tmp_path) -> None:
    with pytest.raises(UserError) as caught:
        order(chars, method, folder=tmp_path / "run")
    able = "balance, greedy, greedy_block_shuffle, greedy_pool"
    assert str(caught.value) == (f"Method '{method}' cannot keep its state in a folder; expected one of {able}.")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", METHODS)
def test_the_signature_declares_what_a_method_uses(method: str) -> None:
    parameters = inspect.signature(METHODS.find(method)).parameters
    source = "counts" if method in STORED else "characteristics"
    assert {source, "advance"} <= set(parameters)
    assert ("seed" in parameters) == (method not in UNSEEDED)
    assert ("objective" in parameters) == (method in WEIGHING)
    assert ("plan" in parameters) == (method in PLANNED)
    for name, parameter in parameters.items():
        assert parameter.kind is (
            inspect.Parameter.POSITIONAL_OR_KEYWORD if name == source else inspect.Parameter.KEYWORD_ONLY
        ), name
        assert (parameter.default is inspect.Parameter.empty) == (name in (source, "objective")), name
    chars = Characteristics.from_counts({"topic": DEGENERATE["equals of one group"]()})
    made: Callable[..., Any] = METHODS.find(method)
    assert len(made(chars, **({"objective": Objective()} if method in WEIGHING else {}))) == 7


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("given", "using"),
    [
        ({"seed": 1}, {*METHODS} - {*UNSEEDED}),
        ({"objective": Objective()}, {*WEIGHING}),
        ({"objective": Objective.f3()}, {*WEIGHING}),
        ({"seed": 0, "objective": None}, {*METHODS}),  # the defaults
    ],
    ids=["seed", "default objective", "f3", "defaults"],
)
def test_a_seed_or_objective_that_a_method_does_not_use_is_refused(
    method: str, given: dict[str, Any], using: set[str], chars: Characteristics
) -> None:
    if method in using:
        assert len(order(chars, method, **given)) == chars.num_sequences
        return
    (name,) = given
    article = "a" if name == "seed" else "an"
    with pytest.raises(UserError) as caught:
        order(chars, method, **given)
    sentence = f"Method '{method}' cannot use {article} {name}; expected one of {', '.join(sorted(using))}."
    assert str(caught.value) == sentence


# Golden orders: the same on every machine and with every supported version of the libraries.


def test_golden_orders(chars: Characteristics) -> None:
    for method, expected in GOLDEN.items():
        ordering = order(chars, method, **seeded(method, 7), **SEEDED.get(method, {}))
        assert ordering.indices[:12].tolist() == expected, method


def test_golden_order_of_a_stream_that_is_halved() -> None:
    chars = synthetic_characteristics(2100, num_clusters=12, num_bins=4)
    assert order(chars, "balance", seed=7, pool_size=64).indices[:12].tolist() == GOLDEN_HALVED


GOLDEN = {
    "balance": [78, 37, 103, 52, 190, 29, 75, 127, 123, 8, 175, 173],
    "buffer_shuffle": [42, 31, 36, 29, 18, 17, 56, 15, 16, 23, 6, 11],
    "cluster_sorted": [1, 3, 11, 21, 22, 25, 26, 32, 33, 34, 38, 39],
    "corpus_order": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    "document_spacing": [1, 4, 0, 3, 17, 56, 11, 10, 111, 21, 19, 6],
    "greedy": [78, 11, 191, 7, 172, 29, 186, 45, 165, 50, 48, 155],
    "greedy_pool": [21, 118, 80, 130, 0, 45, 5, 147, 175, 194, 92, 163],
    "sequence_spacing": [41, 182, 156, 1, 107, 140, 146, 27, 33, 84, 162, 131],
    "stratified": [147, 130, 45, 194, 0, 41, 4, 184, 21, 12, 135, 92],
    "uniform_shuffle": [0, 194, 196, 4, 12, 45, 41, 65, 2, 130, 163, 7],
    "window_shuffle": [10, 45, 24, 46, 20, 12, 37, 0, 28, 6, 22, 4],
}
GOLDEN_HALVED = [380, 1498, 1253, 1023, 632, 984, 1222, 451, 57, 292, 892, 485]
