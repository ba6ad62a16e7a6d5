"""The refilled pool against exact greedy and a slow float64 replay; what its shortcuts may not change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from jax_diversity import Characteristics, Objective, order
from jax_diversity.ordering import deviation, greedy, pool, running
from jax_diversity.ordering.plan import Plan
from tests.support.ordering_cases import OBJECTIVES, DocumentTerm, excess_matrix, random_copies
from tests.support.synthetic import synthetic_characteristics

POOL_SIZE = 64


@functools.cache
def corpus() -> Characteristics:
    return synthetic_characteristics(1300, num_clusters=12, num_bins=4)


@functools.cache
def unequal_corpus() -> Characteristics:
    """Sequences of 0 to 480 tokens."""
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 40, (700, 12)) * (rng.random((700, 12)) < 0.3)
    counts[5] = 0
    return Characteristics.from_counts({"topic": counts, "half": counts.reshape(700, 2, 6).sum(axis=2)})


def shuffled(num_sequences: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.arange(num_sequences))


def replay(
    chars: Characteristics, objective: Objective, stream: np.ndarray, size: int, indices: Any, deferred: Any = None
) -> float:
    """The largest excess of a chosen sequence's score over the pool's best, relative to ||D + v_best||² + 1.

    The pool is the first `size` of the stream; whenever one is placed, the stream's next comes in. The gradient of the
    `deferred` columns changes only after every `STEPS_PER_DEFERRAL` steps.
    """
    excess, documents = excess_matrix(chars, objective), DocumentTerm(chars, objective)
    own = objective.total_self_weight * (excess**2).sum(axis=1)
    sums = np.vstack([np.zeros(excess.shape[1]), np.cumsum(excess[indices], axis=0)])
    inside = np.zeros(len(excess), bool)
    inside[stream[:size]] = True
    following = iter(stream[size:].tolist())
    worst = 0.0

    def gradient_at(position: int) -> np.ndarray:
        gradient = sums[position].copy()
        for window in objective.windows:
            gradient += objective.window_weight * (sums[position] - sums[max(position - window, 0)])
        return gradient

    for position, chosen in enumerate(indices):
        assert inside[chosen], f"{chosen} at {position} was not in the pool"
        gradient = gradient_at(position)
        if deferred is not None:
            gradient[deferred] = gradient_at(position - position % pool.STEPS_PER_DEFERRAL)[deferred]
        members = np.flatnonzero(inside)
        scores = 2 * excess[members] @ gradient + own[members] + documents.scores(indices[:position])[members]
        best = int(scores.argmin())
        scale = ((sums[position] + excess[members[best]]) ** 2).sum() + 1
        worst = max(worst, (scores[members == chosen][0] - scores[best]) / scale)
        inside[chosen] = False
        for successor in following:
            inside[successor] = True
            break
    return worst


def test_the_replay_sees_a_choice_that_is_not_the_best() -> None:
    chars, objective = corpus(), Objective()
    stream = shuffled(chars.num_sequences)
    assert replay(chars, objective, stream, POOL_SIZE, stream) > 1e-3
    with pytest.raises(AssertionError, match="was not in the pool"):
        replay(chars, objective, stream, POOL_SIZE, stream[::-1])


# Default and f3 share a compilation, as do f1 and f2.
@pytest.mark.first(2)
@pytest.mark.parametrize(("make", "name"), [*((corpus, name) for name in OBJECTIVES), (unequal_corpus, "windows")])
def test_a_pool_of_all_sequences_is_exact_greedy(make: Callable[[], Characteristics], name: str) -> None:
    chars, objective = make(), OBJECTIVES[name]
    expected = order(chars, "greedy", objective=objective, ties="lowest").indices
    whole = {"objective": objective, "pool_size": 2 * chars.num_sequences}
    indices = order(chars, "greedy_pool", ties="lowest", shuffle=False, **whole).indices
    np.testing.assert_array_equal(indices, expected)
    indices = order(chars, "greedy_pool", ties="lowest", seed=5, **whole).indices
    np.testing.assert_array_equal(indices, expected)
    expected = order(chars, "greedy", objective=objective, seed=5).indices
    np.testing.assert_array_equal(order(chars, "greedy_pool", seed=5, **whole).indices, expected)


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["default", "f3", "windows"])
def test_replay_against_float64(name: str) -> None:
    chars, objective = unequal_corpus(), OBJECTIVES[name]
    stream = shuffled(chars.num_sequences, seed=4)
    indices = order(chars, "greedy_pool", objective=objective, seed=4, pool_size=POOL_SIZE).indices
    assert replay(chars, objective, stream, POOL_SIZE, indices) <= 1e-5


@pytest.mark.first(1)
@pytest.mark.parametrize("windows", [(), (3, 50)])
def test_replay_with_documents(windows: tuple[int, ...]) -> None:
    chars = synthetic_characteristics(700, sequence_length=300, documents=True)
    objective = Objective(windows=windows, document_weight=0.3)
    stream = shuffled(chars.num_sequences, seed=4)
    indices = order(chars, "greedy_pool", objective=objective, seed=4, pool_size=POOL_SIZE).indices
    assert replay(chars, objective, stream, POOL_SIZE, indices) <= 1e-5


def test_replay_with_documents_of_unequal_sequences() -> None:
    chars = unequal_corpus()
    rng = np.random.default_rng(5)
    documents, copies = rng.integers(-1, 90, chars.num_sequences), random_copies(chars.num_sequences, rng)
    chars = Characteristics.from_counts(chars.counts, documents=documents, copies=copies)
    objective = Objective(windows=(7,), window_weight=2.0)
    indices = order(chars, "greedy_pool", objective=objective, pool_size=POOL_SIZE, shuffle=False).indices
    assert replay(chars, objective, np.arange(chars.num_sequences), POOL_SIZE, indices) <= 1e-5


def test_replay_where_one_group_holds_nearly_all() -> None:
    """Every step moves the scores by the large group's tokens and back along the target: what is left is small."""
    chars = corpus()
    rare = np.random.default_rng(0).random(chars.num_sequences) < 0.02
    language = np.stack([np.where(rare, 0, chars.tokens), np.where(rare, chars.tokens, 0)], axis=1)
    chars = Characteristics.from_counts({**chars.counts, "language": language}, sequence_length=2048)
    indices = order(chars, "greedy_pool", pool_size=POOL_SIZE).indices
    assert replay(chars, Objective(), shuffled(chars.num_sequences), POOL_SIZE, indices) <= 1e-5


@pytest.mark.parametrize("windows", [(1, 7), (3, 3), (699, 10**5)])
def test_windows_of_any_size(windows: tuple[int, int]) -> None:
    chars, objective = unequal_corpus(), Objective(windows=windows, window_weight=2.0)
    indices = order(chars, "greedy_pool", objective=objective, pool_size=POOL_SIZE, shuffle=False).indices
    assert replay(chars, objective, np.arange(chars.num_sequences), POOL_SIZE, indices) <= 1e-5


def test_a_window_beyond_any_number_is_the_prefix() -> None:
    chars = unequal_corpus()
    orders = {
        order(chars, "greedy_pool", objective=Objective(windows=(16, window)), pool_size=POOL_SIZE).fingerprint
        for window in (chars.num_sequences, 2**31 - 1, 2**31, 10**30)
    }
    assert len(orders) == 1


# Deferred columns


@functools.cache
def wide_corpus() -> Characteristics:
    """Sequences of 300 groups, of which the pool defers most, and of a few topics; equal and unequal totals."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.7, 1.0, 300), (400, 300))
    topics = np.zeros((400, 5), np.int64)
    topics[np.arange(400), rng.integers(0, 5, 400)] = counts.sum(axis=1)
    return Characteristics.from_counts(
        {"topic": topics, "word": counts}, documents=rng.integers(-1, 60, 400), copies=random_copies(400, rng)
    )


def test_the_columns_that_vary_least_are_deferred() -> None:
    chars = wide_corpus()
    deferred = Plan.build(chars, Objective()).features.deferred
    variances = chars.counts["word"].toarray().var(axis=0)
    assert deferred.sum() == 300 - 128
    assert not deferred[:5].any()
    assert variances[deferred[5:305]].max() <= variances[~deferred[5:305]].min()
    narrow = Plan.build(corpus(), Objective()).features
    assert not narrow.deferred.any()


@pytest.mark.first(2)
@pytest.mark.parametrize("changed", [{}, {"pool.STEPS_PER_REFRESH": 48, "running.STEPS_PER_CALL": 96}], ids=str)
@pytest.mark.parametrize("windows", [(), (3, 50)])
@pytest.mark.parametrize("rows_per_entry", [0, 1000], ids=["lists", "table"])
def test_deferred_columns_change_scores_later(
    rows_per_entry: int, windows: tuple[int, ...], changed: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_ROWS_PER_ENTRY", rows_per_entry)
    for name, value in changed.items():
        module, _, constant = name.partition(".")
        # A refresh and a call also bring all changes: both numbers are multiples of the steps of a deferral.
        monkeypatch.setattr({"pool": pool, "running": running}[module], constant, value)
    chars, objective = wide_corpus(), Objective(windows=windows)
    indices = order(chars, "greedy_pool", objective=objective, pool_size=POOL_SIZE).indices
    deferred = Plan.build(chars, objective).features.deferred
    assert replay(chars, objective, shuffled(400), POOL_SIZE, indices, deferred) <= 1e-5
    assert replay(chars, objective, shuffled(400), POOL_SIZE, indices) > 2e-5


@pytest.mark.campaign
@pytest.mark.parametrize("rows_per_entry", [0, 1000], ids=["lists", "table"])
@pytest.mark.parametrize("name", ["STEPS_PER_DEFERRAL", "_MOST_DEFERRED_ENTRIES"])
def test_nothing_is_late_if_nothing_is_deferred(
    name: str, rows_per_entry: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns of every step and the deferred ones together are all columns."""
    monkeypatch.setattr(pool, name, {"STEPS_PER_DEFERRAL": 1}.get(name, 0))
    monkeypatch.setattr(pool, "_ROWS_PER_ENTRY", rows_per_entry)
    chars, objective = wide_corpus(), Objective(windows=(3, 50))
    indices = order(chars, "greedy_pool", objective=objective, pool_size=POOL_SIZE).indices
    assert replay(chars, objective, shuffled(400), POOL_SIZE, indices) <= 1e-5


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_pool_of_one_is_the_stream(shuffle: bool) -> None:
    chars = unequal_corpus()
    indices = order(chars, "greedy_pool", pool_size=1, seed=9, shuffle=shuffle).indices
    expected = shuffled(len(indices), 9) if shuffle else np.arange(len(indices))
    np.testing.assert_array_equal(indices, expected)


def test_the_stream_comes_into_the_pool_in_its_order() -> None:
    """A sequence is placed at most P - 1 positions before its turn; it may wait as long as it will."""
    chars = unequal_corpus()
    indices = order(chars, "greedy_pool", pool_size=POOL_SIZE, seed=2).indices
    turn = np.argsort(shuffled(len(indices), 2))
    assert (turn[indices] - np.arange(len(indices))).max() <= POOL_SIZE - 1


@pytest.mark.parametrize("pool_size", [5, 40])
def test_corpora_of_many_ties(pool_size: int) -> None:
    """Few different rows, many alike; all of one shape, so that they share a compilation."""
    entries = np.repeat([0, 1, 1, 2], 18)
    for seed in range(20):
        counts = np.random.default_rng(seed).permutation(entries).reshape(24, 3)
        chars = Characteristics.from_counts({"topic": np.vstack([counts, np.ones((1, 3), int)])})
        indices = order(chars, "greedy_pool", pool_size=pool_size, seed=seed).indices
        np.testing.assert_array_equal(np.sort(indices), np.arange(25))
        assert replay(chars, Objective(), shuffled(25, seed), pool_size, indices) <= 1e-5


# Shortcuts: the dense table, scores that are updated, calls of some thousand steps


@pytest.mark.parametrize(
    "changed",
    [
        {"pool._LARGEST_TABLE": 0},
        {"pool.STEPS_PER_REFRESH": 1},
        {"pool.STEPS_PER_REFRESH": 37},
        {"running.STEPS_PER_CALL": 50},
        {"pool.STEPS_PER_REFRESH": 16, "running.STEPS_PER_CALL": 17, "pool._LARGEST_TABLE": 0},
    ],
    ids=str,
)
def test_shortcuts_keep_to_the_rule(changed: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    chars, objective = unequal_corpus(), OBJECTIVES["windows"]
    modules = {"pool": pool, "running": running}
    for name, value in changed.items():
        module, _, constant = name.partition(".")
        monkeypatch.setattr(modules[module], constant, value)
    indices = order(chars, "greedy_pool", objective=objective, pool_size=POOL_SIZE).indices
    stream = shuffled(chars.num_sequences)
    assert replay(chars, objective, stream, POOL_SIZE, indices) <= 1e-5


def test_sums_of_very_long_sequences_stay_exact() -> None:
    """Of a million tokens each: sums that are kept between two refreshes may hold but few of them."""
    rng = np.random.default_rng(1)
    counts = rng.multinomial(2**20 + 1, [0.5, 0.3, 0.15, 0.05], 300) * rng.integers(0, 2, (300, 1))
    chars = Characteristics.from_counts({"topic": counts})
    with pytest.warns(UserWarning, match="at most 65,536 tokens, found 1,048,577"):
        indices = order(chars, "greedy_pool", pool_size=32).indices
    assert replay(chars, Objective(), shuffled(300), 32, indices) <= 1e-5


def test_padding_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chars = unequal_corpus()
    orders = [order(chars, "greedy_pool", pool_size=POOL_SIZE).indices]
    rounded = deviation.rounded_size
    for module in (pool, deviation):
        monkeypatch.setattr(module, "rounded_size", lambda size: rounded(size) + 29)
    orders.append(order(chars, "greedy_pool", pool_size=POOL_SIZE).indices)
    np.testing.assert_array_equal(orders[0], orders[1])


@pytest.mark.campaign
def test_slots_beyond_the_stream_change_nothing() -> None:
    chars, objective = unequal_corpus(), OBJECTIVES["windows"]
    sizes = (chars.num_sequences, 2 * chars.num_sequences, 10**15)
    orders = {order(chars, "greedy_pool", objective=objective, pool_size=size).fingerprint for size in sizes}
    assert len(orders) == 1


# Precision over many steps


def pool_selector(plan: Plan, objective: Objective) -> pool.PoolSelector:
    sizes = pool.PoolSizes.of_whole(plan, plan.remaining, POOL_SIZE)
    return pool.PoolSelector(plan, objective, plan.remaining, sizes)


@functools.cache
def deviation_after_a_run(windows: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """What the pool keeps after 9,000 steps, and the same in float64: (sum, column), the norms' last, in tokens.

    A sequence has 333 tokens, so that no τ t_s is a float32; its norm is none either.
    """
    objective = Objective(windows=windows)
    chars = synthetic_characteristics(9000, sequence_length=333, num_clusters=7, num_bins=3)
    plan = Plan.build(chars, objective)
    selector = pool_selector(plan, objective)
    selector.retarget(plan.features)
    for _ in range(2):
        selector.run(4400)
    placed = selector.placed()
    assert len(placed) == 8800
    sums = [selector.state.deviation.total, *selector.state.deviation.windows]
    kept = [np.asarray(total.value, np.float64) + np.asarray(total.error, np.float64) for total in sums]
    expected = [plan.excess(placed), *(plan.excess(placed[-window:], len(placed) - window) for window in windows)]
    return np.stack(kept), np.stack(expected)


def test_nothing_is_lost_in_a_long_run() -> None:
    kept, expected = deviation_after_a_run((64,))
    np.testing.assert_allclose(kept[:, :-1], expected[:, :-1], rtol=0, atol=1e-3)


def test_nothing_of_the_norms_is_lost_in_a_long_run() -> None:
    kept, expected = deviation_after_a_run((64,))
    np.testing.assert_allclose(kept[:, -1], expected[:, -1], rtol=0, atol=1e-3)


# Accelerators


def abstract(tree: Any) -> Any:
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), tree)


@pytest.mark.first(1)
@pytest.mark.parametrize("largest_table", [0, 2**29])
@pytest.mark.parametrize("make", [unequal_corpus, wide_corpus])
def test_pool_lowers_for_tpu(
    make: Callable[[], Characteristics], largest_table: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_LARGEST_TABLE", largest_table)
    chars, objective = make(), OBJECTIVES["windows"]
    plan = Plan.build(chars, objective)
    selector = pool_selector(plan, objective)
    one = abstract((selector.rule, selector.rows, selector.stream, selector.state, np.int32(0)))
    two = abstract((*pool.stack([selector, selector]), np.int32(0)))
    for program, arguments in ((pool.run, one), (pool.run_many, two)):
        exported = export.export(program, platforms=["tpu"])(*arguments)
        assert exported.platforms == ("tpu",)
        assert not {"f64", "i64"} & set(exported.mlir_module().replace("x", " ").replace(">", " ").split())


def test_greedy_lowers_for_tpu() -> None:
    chars, objective = unequal_corpus(), OBJECTIVES["windows"]
    plan = Plan.build(chars, objective)
    selector = greedy.GreedySelector(plan, objective)
    rule, rows = deviation.build_rule(plan.features, objective), deviation.build_rows(plan.features)
    arguments = abstract((rule, rows, selector.candidates, selector.state, np.int32(0)))
    for equal_tokens in (False, True):
        exported = export.export(greedy.run, platforms=["tpu"])(*arguments, equal_tokens)
        assert exported.platforms == ("tpu",)


@pytest.mark.first(1)
@pytest.mark.parametrize(("make", "rows_per_entry"), [(unequal_corpus, 7), (wide_corpus, 0), (wide_corpus, 1000)])
def test_a_step_copies_no_table(
    make: Callable[[], Characteristics], rows_per_entry: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is written before it is read: a loop that copied it would cost a hundred times its reads."""
    monkeypatch.setattr(pool, "_ROWS_PER_ENTRY", rows_per_entry)
    chars, objective = make(), Objective()
    plan = Plan.build(chars, objective)
    selector = pool_selector(plan, objective)
    arguments = (selector.rule, selector.rows, selector.stream, selector.state, jnp.int32(9))
    compiled = pool.run.lower(*arguments).compile()
    held = selector.state.slots
    for array, most in ((held.table, 4), (held.columns, 8), (held.values, 8)):
        rows, slots = array.shape
        copies = [
            line
            for line in (compiled.as_text() or "").splitlines()
            if any(f"{kind}[{rows},{slots}]" in line for kind in ("f16", "f32", "u16")) and " copy(" in line
        ]
        assert len(copies) <= most, copies
