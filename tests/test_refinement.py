"""Refinement: what an exchange changes, against computing the sum anew; what it promises; what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

from jax_diversity import Characteristics, Objective, Ordering, UserError, measure, order, refine
from jax_diversity.ordering import exchange, refinement
from jax_diversity.ordering.objective import Features
from tests.synthetic import synthetic_characteristics

BATCH = 32


@pytest.fixture(scope="module")
def chars() -> Characteristics:
    return synthetic_characteristics(350, num_clusters=40, num_bins=8)


@pytest.fixture(scope="module")
def start(chars: Characteristics) -> Ordering:
    return order(chars, "uniform_shuffle", seed=3)


@pytest.fixture(scope="module")
def unequal() -> Characteristics:
    """Sequences of unequal token counts, one of them empty."""
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 30, (60, 9)) * (rng.random((60, 9)) < 0.4)
    counts[7] = 0
    return Characteristics.from_counts(
        {"topic": counts, "third": counts.reshape(60, 3, 3).sum(axis=2)}, weights={"topic": 2.0, "third": 0.5}
    )


def excess_matrix(
    chars: Characteristics, objective: Objective, batch_size: int, floor_weight: float = 1.0
) -> np.ndarray:
    """Every v_s in sequence lengths with the norm and the floor column, float64."""
    columns = []
    for family, weight in objective.resolved_weights(chars).items():
        counts = chars.counts[family].toarray().astype(np.float64)
        target = counts.sum(axis=0) / counts.sum()
        columns.append(np.sqrt(weight) * (counts - chars.tokens[:, None] * target) / chars.sequence_length)
    first = chars.counts[chars.families[0]].toarray() / chars.sequence_length
    share = first.sum(axis=0) / first.sum()
    extras = {
        "norm": np.sqrt((first**2).sum(axis=1)),
        "floor": np.maximum(first - batch_size * share, 0).sum(axis=1),
    }
    for values, weight in zip(extras.values(), (objective.norm_weight, floor_weight), strict=True):
        columns.append(np.sqrt(weight) * (values - values.mean())[:, None])
    return np.hstack(columns)


def own_sum(excess: np.ndarray, indices: np.ndarray, cell: int, cells_per_window: int) -> float:
    """Σ ||E||² over all runs of so many cells, those that hang over an end with what they hold."""
    num_cells = len(indices) // cell
    sums = excess[indices[: num_cells * cell]].reshape(num_cells, cell, -1).sum(axis=1)
    empty = np.zeros((cells_per_window - 1, sums.shape[1]))
    sums = np.concatenate([empty, sums, empty])
    windows = [sums[first : first + cells_per_window].sum(axis=0) for first in range(len(sums) - cells_per_window + 1)]
    return float((np.array(windows) ** 2).sum())


@pytest.mark.parametrize(("cells_per_window", "cell", "first", "distance"), [(1, 6, 2, 3), (3, 4, 4, 2), (4, 3, 1, 9)])
def test_what_an_exchange_changes(
    unequal: Characteristics, cells_per_window: int, cell: int, first: int, distance: int
) -> None:
    objective, batch_size = Objective(), cell * cells_per_window
    excess = excess_matrix(unequal, objective, batch_size)
    indices = np.random.default_rng(0).permutation(60)
    features = Features.build(unequal, objective)
    tables = exchange.build_tables(features, unequal.sequence_length, refinement.floor_parts(unequal, batch_size))
    order_now = jnp.asarray(indices, jnp.int32)
    pairing = exchange.build_pairing(distance, cells_per_window, 60 // cell)
    positions = np.array([first, first + distance])[:, None] * cell + np.arange(cell)

    @jax.jit
    def terms(tables: exchange.Tables, pairing: exchange.Pairing) -> tuple[jax.Array, jax.Array]:
        drawn = exchange._draw(tables, order_now[positions])
        difference = exchange._difference(tables, order_now, jnp.int32(first), pairing, cell)
        return drawn.dense, 2 * exchange._along(tables, drawn, difference)

    dense, pulls = (np.asarray(values, np.float64) for values in terms(tables, pairing))
    np.testing.assert_allclose(dense, excess[indices[positions]], atol=1e-6)

    before = own_sum(excess, indices, cell, cells_per_window)
    for left in range(cell):
        for right in range(cell):
            swapped = indices.copy()
            pair = positions[0, left], positions[1, right]
            swapped[list(pair)] = indices[list(pair[::-1])]
            distance_squared = ((excess[indices[pair[1]]] - excess[indices[pair[0]]]) ** 2).sum()
            change = pulls[1, right] - pulls[0, left] + float(pairing.leverage) * distance_squared
            assert change == pytest.approx(own_sum(excess, swapped, cell, cells_per_window) - before, abs=1e-4)


@pytest.mark.parametrize("sliding", [False, True])
def test_the_sum_falls_and_all_stay(chars: Characteristics, start: Ordering, sliding: bool) -> None:
    objective = refinement.default_objective(chars)
    excess = excess_matrix(chars, objective, BATCH)
    cut = (16, BATCH // 16) if sliding else (1, BATCH)
    sums = [own_sum(excess, start.indices, cut[1], cut[0])]
    for num_sweeps in (1, 2):
        refined = refine(chars, start, batch_size=BATCH, sliding=sliding, num_sweeps=num_sweeps)
        np.testing.assert_array_equal(np.sort(refined.indices), np.arange(len(start)))
        sums.append(own_sum(excess, refined.indices, cut[1], cut[0]))
    assert sums[0] > sums[1] > sums[2]
    assert refined.info["num_exchanges"] > 0
    again = refine(chars, refined, batch_size=BATCH, sliding=sliding, seed=1)
    assert own_sum(excess, again.indices, cut[1], cut[0]) <= sums[2] + 1e-9


def test_a_sum_that_is_zero_stays(chars: Characteristics) -> None:
    """Nothing is exchanged for less than rounding errors, whatever the order is like."""
    alike = Characteristics.from_counts({"topic": np.full((40, 3), 7)})
    refined = refine(alike, Ordering(np.arange(40)), batch_size=4)
    np.testing.assert_array_equal(refined.indices, np.arange(40))
    assert refined.info["num_exchanges"] == 0


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_any_counts_and_order(seed: int, sliding: bool) -> None:
    rng = np.random.default_rng(seed)
    chars = Characteristics.from_counts({"topic": rng.integers(1, 9, (45, 4)) * 10 ** rng.integers(0, 4, (45, 1))})
    start = Ordering(rng.permutation(45))
    refined = refine(chars, start, batch_size=7, sliding=sliding, seed=seed)
    np.testing.assert_array_equal(np.sort(refined.indices), np.arange(45))
    if not sliding:  # seven cells of one sequence otherwise
        np.testing.assert_array_equal(refined.indices[42:], start.indices[42:])
    excess = excess_matrix(chars, refinement.default_objective(chars), 7)
    cut = (1, 7) if sliding else (7, 1)
    assert own_sum(excess, refined.indices, *cut) <= own_sum(excess, start.indices, *cut) * (1 + 1e-9)


def test_unequal_sequences_and_a_batch_that_no_cell_divides(unequal: Characteristics) -> None:
    cells_per_window, cell = refinement.cut(29, 10**6)
    start = Ordering(np.arange(60))
    excess = excess_matrix(unequal, Objective(), 29, floor_weight=0.5)
    refined = refine(unequal, start, batch_size=29, sliding=True, objective=Objective(), floor_weight=0.5)
    after, before = (own_sum(excess, it.indices, cell, cells_per_window) for it in (refined, start))
    assert after < 0.9 * before


def test_the_cut_comes_next_to_the_batch_size() -> None:
    for batch_size in range(2, 3000):
        cells_per_window, cell = refinement.cut(batch_size, 10**6)
        assert 1 <= cells_per_window <= 16
        assert cells_per_window >= min(batch_size, 8)
        assert abs(cells_per_window * cell - batch_size) <= max(1, 0.04 * batch_size)
    assert refinement.cut(256, 10**6) == (16, 16)
    assert refinement.cut(256, 5) == (4, 64)


def test_aligned_windows_gain_most_and_sliding_ones_at_every_offset(chars: Characteristics) -> None:
    first = order(chars, "greedy")
    aligned = refine(chars, first, batch_size=BATCH)
    sliding = refine(chars, first, batch_size=BATCH, sliding=True)

    def tv(ordering: Ordering, offset: int) -> float:
        kept = np.roll(ordering.indices, -offset)
        return float(measure(chars, kept, windows=(BATCH,)).window_tv["cluster"][BATCH][:-1].mean())

    assert tv(aligned, 0) < tv(sliding, 0) < tv(first, 0)
    for offset in (5, 8, 16, 24):
        assert tv(sliding, offset) < tv(first, offset)
        assert tv(sliding, offset) < tv(aligned, offset)


def test_the_floor_column_evens_out_what_no_order_can_better(chars: Characteristics, start: Ordering) -> None:
    floors = refinement.floor_parts(chars, BATCH)
    share = chars.target_share("cluster") * BATCH
    rows = chars.counts["cluster"].toarray() / chars.sequence_length
    expected = [sum(max(0.0, piece - limit) for piece, limit in zip(row, share, strict=True)) for row in rows]
    np.testing.assert_allclose(floors, expected, atol=1e-12)

    def spread(floor_weight: float) -> float:
        refined = refine(chars, start, batch_size=BATCH, floor_weight=floor_weight)
        return float(floors[refined.indices[: 10 * BATCH]].reshape(10, BATCH).sum(axis=1).std())

    assert spread(4.0) < 0.7 * spread(0.0)


def test_same_seed_same_order_another_seed_another(chars: Characteristics, start: Ordering) -> None:
    once, again, other = (refine(chars, start, batch_size=BATCH, seed=seed) for seed in (4, 4, 2**40))
    np.testing.assert_array_equal(once.indices, again.indices)
    assert dict(once.info) == dict(again.info)
    assert once.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("sliding", "bytes_at_once", "pairs_per_call"), [(False, 0, 64), (False, 10**5, 4), (True, 10**5, 4)]
)
def test_how_many_pairs_run_at_once_changes_nothing(
    chars: Characteristics,
    start: Ordering,
    sliding: bool,
    bytes_at_once: int,
    pairs_per_call: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = refine(chars, start, batch_size=BATCH, sliding=sliding, num_sweeps=1).indices
    monkeypatch.setattr(refinement, "_BYTES_AT_ONCE", {jax.default_backend(): bytes_at_once})
    monkeypatch.setattr(refinement, "_PAIRS_PER_CALL", pairs_per_call)
    found = refine(chars, start, batch_size=BATCH, sliding=sliding, num_sweeps=1).indices
    np.testing.assert_array_equal(found, expected)


def test_blocks_and_rows_that_fill_none(
    chars: Characteristics, start: Ordering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of 100 in blocks of 33, so that one row a cell stays out for a round."""
    monkeypatch.setattr(refinement, "_BLOCK_SIZE", 40)
    objective = Objective.f3()
    excess = excess_matrix(chars, objective, 100)
    refined = refine(chars, start, batch_size=100, objective=objective, reach=1)
    np.testing.assert_array_equal(np.sort(refined.indices), np.arange(len(start)))
    assert own_sum(excess, refined.indices, 100, 1) < 0.5 * own_sum(excess, start.indices, 100, 1)


def test_reach_keeps_sequences_near(chars: Characteristics, start: Ordering) -> None:
    refined = refine(chars, start, batch_size=BATCH, reach=1, num_sweeps=1)
    moved = np.argsort(refined.indices) // BATCH - np.argsort(start.indices) // BATCH
    assert np.abs(moved).max() <= 2  # once to the right, once to the left in each of two rounds


def test_info_tells_where_it_came_from_and_what_it_cost(
    chars: Characteristics, start: Ordering, tmp_path: Path
) -> None:
    refined = refine(chars, start, batch_size=BATCH, seed=6)
    assert refined.info["refined_from"] == {**start.info, "fingerprint": start.fingerprint}
    assert refined.info["options"]["batch_size"] == BATCH
    before, after = refined.info["deviation"]["before"], refined.info["deviation"]["after"]
    assert after["window_rms"]["32"]["0"] < 0.6 * before["window_rms"]["32"]["0"]
    assert set(before["window_rms"]["32"]) == {"0", "8", "16", "24"}
    excess = excess_matrix(chars, refinement.default_objective(chars), BATCH)[:, :-1]
    for found, ordering in ((before, start), (after, refined)):
        placed = excess[ordering.indices]
        prefixes = np.sqrt((np.cumsum(placed, axis=0)[7::8] ** 2).sum(axis=1))
        assert found["prefix_max"] == pytest.approx(prefixes.max(), rel=1e-6)
        shifted = placed[12 : 12 + 14 * 24].reshape(14, 24, -1).sum(axis=1)
        assert found["window_rms"]["24"]["12"] == pytest.approx(np.sqrt((shifted**2).sum() / 14), rel=1e-6)
    refined.save(tmp_path / "refined.npy")
    assert Ordering.load(tmp_path / "refined.npy").info["deviation"]["after"] == after


def test_measuring_in_parts_changes_nothing(
    chars: Characteristics, start: Ordering, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = Features.build(chars, Objective())
    whole = refinement.deviations(features, chars.sequence_length, start.indices, 30)
    monkeypatch.setattr(refinement, "_MAX_DENSE", 100)
    parts = refinement.deviations(features, chars.sequence_length, start.indices, 30)
    assert parts["prefix_max"] == pytest.approx(whole["prefix_max"])
    for size, by_offset in whole["window_rms"].items():
        assert parts["window_rms"][size] == pytest.approx(by_offset)


def test_the_other_families_weigh_a_quarter_by_default(unequal: Characteristics) -> None:
    assert refinement.default_objective(unequal).family_weights == (2.0, 0.125)


def test_progress_counts_every_position_once(chars: Characteristics, start: Ordering) -> None:
    told: list[int] = []
    refine(chars, start, batch_size=BATCH, advance=told.append)
    assert sum(told) == len(start)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 1}, "batch_size >= 2, found 1"),
        ({"batch_size": 177}, "at most half of the 353 sequences, found 177"),
        ({"batch_size": 32, "num_sweeps": 0}, "num_sweeps >= 1"),
        ({"batch_size": 32, "reach": 0}, "reach >= 1"),
        ({"batch_size": 32, "seed": -1}, "seed >= 0"),
        ({"batch_size": 32, "floor_weight": float("nan")}, "floor_weight to be finite"),
        ({"batch_size": 32, "objective": Objective(family_weights=(1, 1, 1))}, "weighs 3 families"),
    ],
)
def test_bad_options_are_refused(
    chars: Characteristics, start: Ordering, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        refine(chars, start, **options)


def test_other_datasets_and_oversized_batches_are_refused(chars: Characteristics) -> None:
    with pytest.raises(UserError, match="another dataset"):
        refine(chars, Ordering(np.arange(5)), batch_size=2)
    with pytest.raises(UserError, match="at most half of the 3 sequences"):
        refine(Characteristics.from_counts({"topic": np.ones((3, 2), int)}), Ordering(np.arange(3)), batch_size=2)
    long = Characteristics.from_counts({"topic": np.ones((8, 2), int)}, sequence_length=2**30)
    with pytest.raises(UserError, match="fewer than 2\\^31 tokens"):
        refine(long, Ordering(np.arange(8)), batch_size=2)


def test_lowers_for_tpu(chars: Characteristics) -> None:
    tables = exchange.build_tables(
        Features.build(chars, Objective()), chars.sequence_length, refinement.floor_parts(chars, BATCH)
    )
    sizes = exchange.Sizes(cell=BATCH, num_blocks=2, pairs_at_once=2)

    arguments = (
        tables,
        jnp.arange(350, dtype=jnp.int32),
        jnp.arange(4, dtype=jnp.int32),
        jnp.tile(jnp.arange(BATCH, dtype=jnp.int32), (4, 2, 1)),
        exchange.build_pairing(4, 1, 10),
    )
    assert export.export(exchange.exchange, platforms=["tpu"])(*arguments, sizes).platforms == ("tpu",)
