"""The verdict on an order: its sentence, its table, and what it leaves out."""

from __future__ import annotations

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.ordering.measures.verdict import WindowTV, judge

SHUFFLE = "uniform_shuffle"


def means(**families: dict[int, tuple[float, float]]) -> dict[tuple[str, int], WindowTV]:
    """The TV of windows that differ by a tenth of their mean."""
    return {
        (family, size): WindowTV(mean, floor, 0.9 * mean, 1.1 * mean)
        for family, sizes in families.items()
        for size, (mean, floor) in sizes.items()
    }


def test_a_better_order() -> None:
    verdict = judge(
        {
            SHUFFLE: means(topic={64: (0.4, 0.2), 256: (0.2, 0.1)}, source={64: (0.1, 0.0), 256: (0.05, 0.0)}),
            "balance": means(topic={64: (0.3, 0.2), 256: (0.12, 0.1)}, source={64: (0.11, 0.0), 256: (0.01, 0.0)}),
        },
        SHUFFLE,
        batch_size=64,
    )
    assert verdict.sentence == (
        "`balance` is better than a shuffle in 3 of 4 comparisons (2 families at 2 window sizes), but not by source at "
        "64 (TV 0.1100 against 0.1000). At your batch of 64 sequences it closes 20 % of the gap between a shuffle and "
        "the floor (mean of 2 families: -10 % by source to 50 % by topic). By topic, even its worst batch is better "
        "than the best batch of the shuffle; by source it is not."
    )
    assert verdict.mean_gap_closed == pytest.approx((0.5 - 0.1) / 2)
    assert verdict.cells == [
        ["mean TV, batches of 64", "topic", "source"],
        [SHUFFLE, "0.400", "0.100"],
        ["balance", "0.300", "0.110"],
        ["floor", "0.200", "0.000"],
        ["gap closed", "50 %", "-10 %"],
    ]
    assert max(map(len, str(verdict).splitlines())) <= 80
    assert str(verdict).count("\n") == 11  # the sentence, a blank line, a table of a head and four lines, the legend


def test_an_order_that_is_never_better_and_one_that_cannot_be() -> None:
    shuffle = means(topic={64: (0.4, 0.2)})
    worse = judge({SHUFFLE: shuffle, "sorted": means(topic={64: (0.8, 0.2)})}, SHUFFLE)
    assert "`sorted` is not better than a shuffle in 1 of 1 comparisons (1 family at 1 window size)." in worse.sentence
    assert worse.sentence.endswith(" Its worst window is not better than the best window of the shuffle by any family.")
    even = means(topic={64: (0.2, 0.2)})
    assert "cannot be better than a shuffle here" in judge({SHUFFLE: even, "balance": even}, SHUFFLE).sentence
    assert "There is only a shuffle" in judge({SHUFFLE: even}, SHUFFLE).sentence
    assert "cannot be better" in str(judge({SHUFFLE: {}, "balance": {}}, SHUFFLE))


def test_the_table_shows_the_batch_size_or_the_size_nearest_to_256() -> None:
    found = means(topic=dict.fromkeys((32, 192, 1024), (0.4, 0.2)))
    for batch_size, window in ((None, 192), (100, 192), (1024, 1024)):
        verdict = judge({SHUFFLE: found, "balance": found}, SHUFFLE, batch_size)
        assert (verdict.window, verdict.is_batch) == (window, batch_size == window)


def test_comparisons_and_balances_print_a_short_table() -> None:
    labels = np.random.default_rng(0).integers(0, 8, 600)
    chars = jd.Characteristics.from_counts({"topic": labels, "source": np.arange(600) % 2})
    orders = {"balance": jd.order(chars), SHUFFLE: jd.order(chars, SHUFFLE)}
    compared = jd.compare(chars, orders, windows=(16, 64))
    text = repr(compared)
    assert text == str(compared)
    assert " ".join(text.split()).startswith(
        "`balance` is better than a shuffle in 4 of 4 comparisons (2 families at 2 window sizes)"
    )
    assert len(text.splitlines()) < 14
    assert max(map(len, text.splitlines())) <= 80
    verdict = compared.verdict(batch_size=16)
    assert verdict is not None
    assert verdict.window == 16
    assert verdict.means["balance"]["topic", 16].mean == compared.value("balance", "topic", "tv_mean", 16, "0")
    assert "<p><code>balance</code> is better" in compared._repr_html_()
    assert '<td style="text-align:right">' in compared._repr_html_()
    alone = jd.compare(chars, {"balance": orders["balance"]}, windows=(16,))
    assert "topic, 16" in repr(alone)
    renamed = jd.compare(chars, {"mine": orders["balance"], "a shuffle": orders[SHUFFLE]}, windows=(16, 64))
    assert renamed.shuffle == "a shuffle"  # known by its method
    assert repr(renamed).startswith("`mine` is better than a shuffle in 4 of 4 comparisons")
    assert "a shuffle" in renamed.plot()._repr_html_()
    assert "relative to balance" in repr(compared.relative_to("balance"))
    shown = repr(jd.measure(chars, orders["balance"], windows=(16, 64)))
    assert shown.splitlines()[2].split() == ["family", "16", "64", "prefix", "L2"]
    assert len(shown) < 400
