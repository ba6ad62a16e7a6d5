"""The exact greedy against a slow float64 replay, and the properties that every method promises."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

from jax_diversity import Characteristics, Objective, order
from jax_diversity.ordering import deviation, greedy, running
from jax_diversity.ordering.plan import Plan
from tests.support.ordering_cases import OBJECTIVES, DocumentTerm, excess_matrix, random_copies
from tests.support.synthetic import synthetic_characteristics


def replay(chars: Characteristics, objective: Objective, indices: np.ndarray) -> float:
    """The largest excess of a chosen sequence's score over the best, relative to ||D + v_best||² + 1."""
    excess, documents = excess_matrix(chars, objective), DocumentTerm(chars, objective)
    own = objective.total_self_weight * (excess**2).sum(axis=1)
    deviation = np.zeros(excess.shape[1])
    left = np.ones(len(excess), bool)
    worst = 0.0
    for position, chosen in enumerate(indices):
        gradient = deviation.copy()
        for window in objective.windows:
            gradient += objective.window_weight * excess[indices[max(position - window, 0) : position]].sum(axis=0)
        scores = np.where(left, 2 * excess @ gradient + own + documents.scores(indices[:position]), np.inf)
        best = int(scores.argmin())
        scale = ((deviation + excess[best]) ** 2).sum() + 1
        worst = max(worst, (scores[chosen] - scores[best]) / scale)
        left[chosen] = False
        deviation += excess[chosen]
    return worst


@pytest.mark.parametrize("name", OBJECTIVES)
def test_replay_against_float64(name: str) -> None:
    chars = synthetic_characteristics(1500)
    indices = order(chars, "greedy", objective=OBJECTIVES[name]).indices
    assert replay(chars, OBJECTIVES[name], indices) <= 1e-5


def test_replay_of_a_long_run_with_an_awkward_length() -> None:
    """τ t_s is not representable: whatever is lost at a step would add up over the run."""
    chars = synthetic_characteristics(9000, sequence_length=333, num_clusters=7, num_bins=3)
    objective = Objective.f3()
    assert replay(chars, objective, order(chars, "greedy", objective=objective).indices) <= 1e-5


def test_replay_of_unequal_sequences() -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 40, (400, 12)) * (rng.random((400, 12)) < 0.3)
    counts[5] = 0  # a sequence with no tokens
    chars = Characteristics.from_counts({"topic": counts, "half": counts.reshape(400, 2, 6).sum(axis=2)})
    for objective in OBJECTIVES.values():
        assert replay(chars, objective, order(chars, "greedy", objective=objective).indices) <= 1e-5


def test_window_replay_beyond_the_first_windows() -> None:
    chars = synthetic_characteristics(300, num_clusters=10, num_bins=4)
    objective = Objective(windows=(1, 7, 1000), window_weight=2.0)
    assert replay(chars, objective, order(chars, "greedy", objective=objective).indices) <= 1e-5


@pytest.mark.parametrize("windows", [(), (16, 50)])
def test_replay_with_documents(windows: tuple[int, ...]) -> None:
    chars = synthetic_characteristics(600, sequence_length=300, documents=True)
    copies = random_copies(chars.num_sequences, np.random.default_rng(8))
    chars = Characteristics.from_counts(chars.counts, documents=chars.documents, copies=copies)
    objective = Objective(windows=windows)
    assert replay(chars, objective, order(chars, "greedy", objective=objective).indices) <= 1e-5
    assert replay(chars, objective, order(chars, "greedy", objective=Objective.f3()).indices) > 1e-3


def test_ties_go_to_the_lowest_index_across_tables_where_that_is_asked_for() -> None:
    # Equal scores in different tables: rows with one and with many non-zeros, all sequences alike in pairs.
    wide = np.full(40, 2)
    narrow = np.zeros(40, int)
    narrow[0] = 80
    chars = Characteristics.from_counts({"topic": np.stack([wide, narrow] * 30)})
    indices = order(chars, "greedy", objective=Objective.f1(), ties="lowest").indices
    at_random = [order(chars, "greedy", objective=Objective.f1(), seed=seed).indices for seed in (0, 0, 1)]
    np.testing.assert_array_equal(at_random[0], at_random[1])
    assert not np.array_equal(at_random[0], at_random[2])
    assert replay(chars, Objective.f1(), at_random[0]) <= 1e-5
    for parity in (0, 1):
        own = indices[indices % 2 == parity]
        np.testing.assert_array_equal(own, np.sort(own))
        own = at_random[0][at_random[0] % 2 == parity]
        assert abs(np.corrcoef(own, np.arange(30))[0, 1]) < 0.5


# A few sizes, each of which is compiled.
@settings(max_examples=25, deadline=None)
@given(st.sampled_from([1, 2, 40]), st.sampled_from([1, 6]), st.integers(0, 2**16))
def test_any_counts_give_a_bijection(num_sequences: int, num_groups: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    chars = Characteristics.from_counts({"topic": rng.integers(0, 5, (num_sequences, num_groups))})
    indices = order(chars, "greedy").indices
    np.testing.assert_array_equal(np.sort(indices), np.arange(num_sequences))


@pytest.mark.campaign
def test_result_does_not_depend_on_how_rows_are_bucketed_or_repacked(monkeypatch: pytest.MonkeyPatch) -> None:
    chars = synthetic_characteristics(400)
    expected = order(chars, "greedy").indices
    monkeypatch.setattr(greedy, "_GATHERS_PER_TABLE", 0)
    np.testing.assert_array_equal(order(chars, "greedy").indices, expected)
    monkeypatch.setattr(greedy, "_GATHERS_PER_TABLE", 10**9)
    monkeypatch.setattr(greedy, "_REPACK_ABOVE", 100)
    monkeypatch.setattr(running, "STEPS_PER_CALL", 64)
    jax.clear_caches()
    np.testing.assert_array_equal(order(chars, "greedy").indices, expected)


def test_rows_wider_than_the_unrolled_loop() -> None:
    rng = np.random.default_rng(0)
    chars = Characteristics.from_counts({"topic": rng.integers(0, 3, (60, 300))})
    assert replay(chars, Objective(), order(chars, "greedy").indices) <= 1e-5


def test_weights_and_objectives_change_the_order() -> None:
    chars = synthetic_characteristics(300)
    orders = {
        name: order(chars, "greedy", objective=objective).indices.tobytes() for name, objective in OBJECTIVES.items()
    }
    assert len(set(orders.values())) == len(orders)


def test_the_norm_column_removes_the_drift() -> None:
    from jax_diversity import measure

    chars = synthetic_characteristics(2000)
    drift = {
        name: np.abs(measure(chars, order(chars, "greedy", objective=objective), windows=(64,)).norm_drift).max()
        for name, objective in {"with": Objective(), "without": Objective.f3()}.items()
    }
    assert drift["with"] < 5 < drift["without"]


def test_progress_counts_every_position() -> None:
    chars = synthetic_characteristics(500)
    told: list[int] = []
    order(chars, "greedy", advance=told.append)
    assert sum(told) == chars.num_sequences


def test_pieces_add_up_and_multiply_exactly() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.random(1000), 10.0 ** -rng.integers(1, 12, 1000) * rng.random(1000), [0.0, 1.0]])
    pieces = deviation.split_into_pieces(values)
    np.testing.assert_allclose(pieces.astype(np.float64).sum(axis=0), values, rtol=2.0**-39)
    for piece in pieces[:2]:
        product = np.float32(65_535) * piece
        np.testing.assert_array_equal(product.astype(np.float64), 65_535.0 * piece.astype(np.float64))


def test_compensated_sums_keep_what_float32_loses() -> None:
    def add(_: int, total: deviation.Compensated) -> deviation.Compensated:
        return deviation.add_compensated(total, jnp.full(1, 0.1, jnp.float32))

    zero = deviation.Compensated(jnp.full(1, 1e6, jnp.float32), jnp.zeros(1, jnp.float32))
    total = jax.jit(lambda start: jax.lax.fori_loop(0, 100_000, add, start))(zero)
    expected = 1e6 + 100_000 * float(np.float32(0.1))
    assert abs(float(total.value[0]) + float(total.error[0]) - expected) < 1e-3


@pytest.mark.parametrize("objective", [OBJECTIVES["windows"], Objective.f3(form="norms")], ids=["squares", "norms"])
def test_selector_lowers_for_tpu(objective: Objective) -> None:
    chars = synthetic_characteristics(200)
    plan = Plan.build(chars, objective)
    selector = greedy.GreedySelector(plan, objective)
    rule, rows = deviation.build_rule(plan.features, objective), deviation.build_rows(plan.features)

    def run(rule, rows, candidates, state):
        return greedy.run.__wrapped__(rule, rows, candidates, state, jnp.int32(5), False)

    exported = export.export(jax.jit(run), platforms=["tpu"])(rule, rows, selector.candidates, selector.state)
    assert exported.platforms == ("tpu",)


def test_sizes_are_shared_by_near_corpora() -> None:
    sizes = {deviation.rounded_size(size) for size in range(10_000, 20_001)}
    assert len(sizes) <= 10
    assert {deviation.rounded_size(size) for size in range(1, 1025)} == {64, 256, 1024}
    for size in range(1, 5000):
        assert size <= deviation.rounded_width(size) <= size * 1.13 + 1
        assert size <= deviation.rounded_size(size) <= (size * 1.13 + 1 if size > 1024 else max(4 * size, 64))
