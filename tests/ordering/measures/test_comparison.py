"""Comparing several orders: the same numbers as measuring each, as rows, tables and JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from jax_diversity import Characteristics, Comparison, Ordering, compare, measure, order
from jax_diversity.ordering.measures.verdict import gap_closed
from jax_diversity.schema.orderings import Positions
from tests.support.synthetic import synthetic_characteristics


@pytest.fixture(scope="module")
def chars() -> Characteristics:
    return synthetic_characteristics(300, num_clusters=30, num_bins=6)


@pytest.fixture(scope="module")
def orders(chars: Characteristics) -> dict:
    return {
        "greedy": order(chars, "greedy"),
        "shuffled": order(chars, "uniform_shuffle", seed=3),
        "as stored": np.arange(chars.num_sequences),
    }


@pytest.fixture(scope="module")
def compared(chars: Characteristics, orders: dict) -> Comparison:
    return compare(chars, orders, windows=(16, 50), offsets=("0", "half", "every"))


def test_rows_are_what_measure_says(chars: Characteristics, orders: dict, compared: Comparison) -> None:
    assert compared.orderings == tuple(orders)
    for name, ordering in orders.items():
        balance = measure(chars, ordering, (16, 50), every_start=True)
        assert compared.value(name, "cluster", "norm_drift_max") == np.abs(balance.norm_drift).max()
        for family in chars.families:
            assert compared.value(name, family, "prefix_l2_max") == balance.prefix_l2[family].max()
            for size in (16, 50):
                figures = balance.summary()["families"][family]["windows"][str(size)]
                tv, shifted = balance.window_tv[family][size], balance.window_tv_shifted[family][size]
                every = balance.window_tv_every_start[family][size]
                expected: dict[tuple[str, str | None], float | None] = {
                    ("tv_mean", "0"): tv.mean(),
                    ("tv_worst", "0"): tv.max(),
                    ("tv_best", "0"): tv.min(),
                    ("tv_mean", "half"): shifted.mean(),
                    ("tv_worst", "half"): shifted.max(),
                    ("tv_best", "half"): shifted.min(),
                    ("tv_mean", "every"): every.mean,
                    ("tv_worst", "every"): every.worst,
                    ("tv_best", "every"): None,
                }
                expected |= {
                    (measured, None): figures[measured]
                    for measured in ("tv_floor", "tv_bound", "l2_best", "l2_worst", "max_share_deviation")
                }
                expected["groups_per_batch_min", None] = balance.groups_per_batch[family][size].min()
                for (measured, offset), value in expected.items():
                    found = compared.value(name, family, measured, size, offset)
                    assert found == (None if value is None else pytest.approx(value, rel=1e-12))


def test_the_gap_is_closed_from_the_shuffle_among_them(compared: Comparison) -> None:
    shuffle, floor = (
        compared.value("shuffled", "cluster", measured, 16, offset)
        for measured, offset in (("tv_mean", "0"), ("tv_floor", None))
    )
    tv = compared.value("greedy", "cluster", "tv_mean", 16, "0")
    assert tv is not None
    assert shuffle is not None
    assert floor is not None
    assert compared.value("greedy", "cluster", "gap_closed", 16) == pytest.approx(gap_closed(tv, shuffle, floor))
    assert compared.value("shuffled", "cluster", "gap_closed", 16) == 0
    assert gap_closed(tv, shuffle, floor) > 0.5


def test_a_shuffle_is_made_where_there_is_none(chars: Characteristics, orders: dict) -> None:
    alone = compare(chars, {"greedy": orders["greedy"]}, windows=(16,))
    shuffle = Ordering(np.random.default_rng(0).permutation(chars.num_sequences))
    named = compare(chars, {"greedy": orders["greedy"], "uniform_shuffle": shuffle}, windows=(16,))
    assert alone.orderings == ("greedy",)
    for family in chars.families:
        closed = alone.value("greedy", family, "gap_closed", 16)
        assert closed == pytest.approx(named.value("greedy", family, "gap_closed", 16))


def test_json_holds_every_row(compared: Comparison) -> None:
    nested = json.loads(json.dumps(compared.as_dict(), allow_nan=False))
    assert nested["relative_to"] is None
    for row in compared.rows:
        values = nested["orderings"][row.ordering][row.family]
        if row.window is not None:
            values = values["windows"][str(row.window)]
        if row.offset is not None:
            values = values["offsets"][row.offset]
        assert values[row.measure] == row.value


def test_rows_as_a_frame_of_pandas(compared: Comparison) -> None:
    pytest.importorskip("pandas")
    frame = compared.to_frame()
    assert list(frame) == ["ordering", "family", "measure", "value", "window", "offset"]
    assert len(frame) == len(compared.rows)
    chosen = frame.query("ordering == 'greedy' and family == 'cluster' and measure == 'prefix_l2_max'")
    assert chosen["value"].tolist() == [compared.value("greedy", "cluster", "prefix_l2_max")]


def test_ratios(compared: Comparison) -> None:
    ratios = compared.relative_to("shuffled")
    assert ratios.base == "shuffled"
    for row, ratio in zip(compared.rows, ratios.rows, strict=True):
        assert row.key == ratio.key
        base = compared.value("shuffled", *row.key)
        if row.value is None or not base:
            assert ratio.value is None
        else:
            assert ratio.value == row.value / base
    greedy = ratios.value("greedy", "cluster", "tv_mean", 16, "0")
    assert greedy is not None
    assert 0 < greedy < 1


def test_tables_are_aligned_and_fit(compared: Comparison) -> None:
    text = compared.table()
    for block in text.split("\n\n"):
        _, *lines = block.splitlines()
        assert len({len(line) for line in lines}) == 1, "columns end where the header's do"
        assert len(lines[0]) <= 80
    worst = compared.value("greedy", "cluster", "tv_worst", 50, "0")
    mean = compared.value("greedy", "cluster", "tv_mean", 50, "0")
    assert f"{mean:.4f} / {worst:.4f}" in text
    assert text.count("\nbound ") == len({"cluster", "length"})
    assert "relative to greedy" in compared.relative_to("greedy").table()


def test_markdown_has_the_same_cells(compared: Comparison, chars: Characteristics, orders: dict) -> None:
    text, markdown = compared.table(), compared.markdown()
    for title, *lines in (block.splitlines() for block in text.split("\n\n")):
        assert f"**{title}**" in markdown
        for line in lines[1:]:
            name = next(name for name in (*orders, "floor", "bound") if line.startswith(name))
            assert (
                f"| {name} | {' | '.join(line.removeprefix(name).replace(' / ', '/').split())}".replace("/", " / ")
                in markdown
            )
    piped = compare(chars, {"a|b": orders["greedy"]}, windows=(16,)).markdown()
    assert "| a\\|b |" in piped


def test_schedules_are_compared_too(chars: Characteristics, orders: dict) -> None:
    half = Positions(orders["greedy"].indices[:150], num_sequences=chars.num_sequences)
    twice = Positions(np.tile(orders["greedy"].indices, 2), num_sequences=chars.num_sequences)
    compared = compare(chars, {"half": half, "twice": twice, "once": orders["greedy"]}, windows=(16,))
    for name, schedule in (("half", half), ("twice", twice)):
        balance = measure(chars, schedule, (16,))
        assert compared.value(name, "cluster", "tv_bound", 16) == balance.window_tv_bound["cluster"][16]
    assert "floor of half" in compared.table(), "what a schedule holds has a floor of its own"


def test_given_targets_reach_every_order(chars: Characteristics, orders: dict) -> None:
    uniform = np.full(chars.counts["cluster"].shape[1], 1 / chars.counts["cluster"].shape[1])
    compared = compare(chars, {"greedy": orders["greedy"]}, windows=(16,), targets={"cluster": uniform})
    balance = measure(chars, orders["greedy"], (16,), targets={"cluster": uniform})
    assert compared.value("greedy", "cluster", "tv_mean", 16, "0") == balance.window_tv["cluster"][16].mean()


@pytest.mark.parametrize(
    "counts", [np.zeros((0, 3), int), np.array([[4, 1]]), np.full((7, 1), 2), np.zeros((4, 2), int)]
)
def test_corpora_of_nothing_of_one_and_of_equals(counts: np.ndarray) -> None:
    chars = Characteristics.from_counts({"topic": counts})
    compared = compare(chars, {"as stored": np.arange(len(counts))}, offsets=("0", "half", "every"))
    json.dumps(compared.as_dict(), allow_nan=False)
    assert "as stored" in compared.table()
    assert compared.value("as stored", "topic", "prefix_l2_max") == pytest.approx(0, abs=1e-12)
    assert compared.relative_to("as stored").markdown()
    assert all(row.value is None or math.isfinite(row.value) for row in compared.rows)


def test_the_usual_windows_are_those_that_fit() -> None:
    chars = synthetic_characteristics(230, num_clusters=5, num_bins=3)
    compared = compare(chars, {"as stored": np.arange(chars.num_sequences)})
    assert {row.window for row in compared.rows} - {None} == {64, 192}


def test_progress_counts_positions_of_every_order(chars: Characteristics, orders: dict) -> None:
    told: list[int] = []
    compare(chars, orders, windows=(16,), advance=told.append)
    assert sum(told) == len(orders) * chars.num_sequences


def test_mistakes(chars: Characteristics, orders: dict, compared: Comparison) -> None:
    with pytest.raises(ValueError, match="at least one order to compare, found none"):
        compare(chars, {})
    with pytest.raises(ValueError, match="every offset to be one of 0, half, every, tokens, found 'third'"):
        compare(chars, orders, offsets=("0", "third"))
    with pytest.raises(ValueError, match=r"every window size to be a whole number >= 1 and <= .* found 100000"):
        compare(chars, orders, windows=(100_000,))
    with pytest.raises(ValueError, match="found 'balanced'"):
        compared.relative_to("balanced")
    with pytest.raises(ValueError, match="has no value of 'tv_mean' for 'greedy'"):
        compared.value("greedy", "cluster", "tv_mean", 17, "0")
    with pytest.raises(ValueError, match="made for another dataset"):
        compare(chars, {"other": np.arange(5)}, windows=(2,))


def test_the_tables_have_the_measures_of_the_article() -> None:
    chars = Characteristics.from_counts({"topic": [[2, 0], [0, 2], [2, 0], [2, 0]]})
    table = compare(chars, {"mine": np.arange(4)}, windows=(2,)).table()
    # The shares are .75 and .25: a window without the second topic deviates by .25 in both groups.
    title, _, row = table[table.index("topic: window L2") :].splitlines()[:3]
    assert title == "topic: window L2, best / worst, / window maximum"
    balance = measure(chars, np.arange(4), windows=(2,))
    assert balance.window_max["topic"][2] == 0.25
    l2 = balance.window_l2["topic"][2]
    assert row.split() == ["mine", f"{l2.min():.4f}", "/", f"{l2.max():.4f}", "/", "0.2500"]
