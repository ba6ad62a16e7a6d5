"""The verdict on an order: its sentence, its table, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.ordering.measures import verdict as verdicts
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
        "`balance` is better than a shuffle in 3 of 4 comparisons (2 families at 2 window sizes), and worse in 1: by "
        "source at 64 (TV 0.110 against 0.100). At your batch of 64 sequences it closes 20 % of the gap between a "
        "shuffle and the floor (mean of 2 families: -10 % by source to 50 % by topic). Compared with the "
        "worst batch of the shuffle, its worst batch is better by topic (TV 0.330 against 0.440), worse by source (TV "
        "0.121 against 0.110). Compared with the best batch of the shuffle, a harder test, it is better by topic "
        "(TV 0.330 against 0.360), worse by source (TV 0.121 against 0.090)."
    )
    overlap = judge({SHUFFLE: means(topic={9: (0.4, 0.2)}), "f1": means(topic={9: (0.38, 0.2)})}, SHUFFLE).sentence
    assert overlap.endswith(
        " its worst window is better by topic (TV 0.418 against 0.440). Compared with the best window of the shuffle, "
        "a harder test, it is worse by topic (TV 0.418 against 0.360)."
    )
    assert verdict.mean_gap_closed == pytest.approx((0.5 - 0.1) / 2)
    assert verdict.cells == [
        ["TV mean / worst, batches of 64", "topic", "source"],
        [SHUFFLE, "0.400 / 0.440", "0.100 / 0.110"],
        ["balance", "0.300 / 0.330", "0.110 / 0.121"],
        ["floor", "0.200", "0.000"],
        ["gap closed", "50 %", "-10 %"],
    ]
    assert max(map(len, str(verdict).splitlines())) <= 80
    assert str(verdict).count("\n") == 14  # the sentence, a blank line, a table of a head and four lines, the legend


def test_an_order_that_is_never_better_and_one_that_cannot_be() -> None:
    shuffle = means(topic={64: (0.4, 0.2)})
    worse = judge({SHUFFLE: shuffle, "sorted": means(topic={64: (0.8, 0.2)})}, SHUFFLE)
    assert worse.sentence == (
        "`sorted` is worse than a shuffle in 1 of 1 comparisons (1 family at 1 window size). In windows of 64 "
        "sequences it is further from the floor than a shuffle (gap closed -200 %). Compared with the worst window of "
        "the shuffle, its worst window is worse by topic (TV 0.880 against 0.440). Compared with the best window of "
        "the shuffle, a harder test, it is worse by topic (TV 0.880 against 0.360)."
    )
    assert "`twin` is equal to a shuffle in 1 of 1" in judge({SHUFFLE: shuffle, "twin": shuffle}, SHUFFLE).sentence
    even = means(topic={64: (0.2, 0.2)})
    assert "cannot be better than a shuffle here" in judge({SHUFFLE: even, "balance": even}, SHUFFLE).sentence
    assert "There is only a shuffle" in judge({SHUFFLE: even}, SHUFFLE).sentence
    assert "cannot be better" in str(judge({SHUFFLE: {}, "balance": {}}, SHUFFLE))


def test_many_families_and_sizes_are_named_in_part() -> None:
    sizes, families = (64, 256), ("a", "b", "c", "d")
    shuffle = means(**{name: dict.fromkeys(sizes, (0.4, 0.2)) for name in families})
    order = means(**{name: dict.fromkeys(sizes, (0.2 if name == "d" else 0.44, 0.2)) for name in families})
    sentence = judge({SHUFFLE: shuffle, "mixed": order}, SHUFFLE, batch_size=64).sentence
    assert sentence.startswith(
        "`mixed` is worse than a shuffle in 6 of 8 comparisons (4 families at 2 window sizes), and better in 2: by d "
        "at 64 (TV 0.200 against 0.400), by d at 256 (TV 0.200 against 0.400). At your batch"
    )
    named = ", ".join(f"{name} (TV 0.484 against 0.440)" for name in "ab")
    assert f"its worst batch is better by d (TV 0.220 against 0.440), worse by {named} and c. Compared" in sentence
    alike = dict.fromkeys(families, (0.2, 0.1))
    assert verdicts._by_family(alike) == "worse by all 4 families"
    worse = {**order, **means(d=dict.fromkeys(sizes, (0.41, 0.2)))}
    assert (
        "it is further from the floor than a shuffle (gap closed -16 %, mean of 4 families: -20 % by a to -5 % by d)."
    ) in judge({SHUFFLE: shuffle, "mixed": worse}, SHUFFLE, batch_size=64).sentence


def test_the_gap_closed_of_every_order_is_a_line_of_its_own() -> None:
    order, other = means(topic={64: (0.3, 0.2)}), means(topic={64: (0.42, 0.2)})
    verdict = judge({SHUFFLE: means(topic={64: (0.4, 0.2)}), "balance": order, "f1": other}, SHUFFLE, ordering="f1")
    assert verdict.cells[-2:] == [["gap closed, balance", "50 %"], ["gap closed, f1", "-10 %"]]


def test_numbers_have_the_digits_that_distinguish_them() -> None:
    nearly = judge({SHUFFLE: means(topic={64: (0.4, 0.2)}), "f1": means(topic={64: (0.40001, 0.2)})}, SHUFFLE).sentence
    assert "its worst window is worse by topic (TV 0.44001 against 0.44000)" in nearly


def test_an_order_is_not_judged_by_the_families_in_which_it_follows_targets() -> None:
    rng = np.random.default_rng(0)
    labels = {"topic": rng.integers(0, 4, 600), "source": rng.integers(0, 3, 600)}
    chars = jd.Characteristics.from_counts(labels)
    early = {"topic": chars.target_share("topic") * [1.3, 1, 1, 1]}
    targets = jd.Targets.linear(early, {"topic": chars.target_share("topic")}, 600)
    with pytest.warns(UserWarning, match="used up"):
        curriculum = jd.order(chars, targets=targets)
    orders = {"curriculum": curriculum, "balance": jd.order(chars), SHUFFLE: jd.order(chars, SHUFFLE)}
    verdict = jd.compare(chars, orders, windows=(16, 64)).verdict()
    assert verdict is not None
    assert (verdict.ordering, dict(verdict.targeted)) == ("balance", {"curriculum": ("topic",)})
    assert {family for family, _ in verdict.comparisons} == {"topic", "source"}
    of_curriculum = replace(verdict, ordering="curriculum")
    assert {family for family, _ in of_curriculum.comparisons} == {"source"}
    assert "By topic, `curriculum` follows targets or weights of its own" in of_curriculum.sentence
    table = {name: cells for name, *cells in of_curriculum.cells}
    assert (table["curriculum"][0], table["gap closed, curriculum"][0]) == ("-", "-")
    assert "-" not in table["balance"]
    everywhere = replace(of_curriculum, targeted={"curriculum": ("topic", "source")})
    assert everywhere.sentence.startswith("By topic and source, `curriculum` follows targets or weights of its own")
    # Given targets are the measure of all orders.
    against_targets = jd.compare(chars, orders, windows=(16, 64), targets=targets).verdict()
    assert against_targets is not None
    assert not against_targets.targeted


def test_a_family_of_one_group_is_not_in_the_table() -> None:
    found = means(topic={64: (0.4, 0.2)}, source={64: (0.0, 0.0)})
    assert judge({SHUFFLE: found, "balance": found}, SHUFFLE).cells[0][1:] == ["topic"]
    alone = means(source={64: (0.0, 0.0)})
    assert judge({SHUFFLE: alone, "balance": alone}, SHUFFLE).cells[0][1:] == ["source"]


def test_the_table_shows_the_batch_size_or_the_size_nearest_to_256() -> None:
    found = means(topic=dict.fromkeys((32, 192, 1024), (0.4, 0.2)))
    for batch_size, window in ((None, 192), (100, 192), (1024, 1024)):
        verdict = judge({SHUFFLE: found, "balance": found}, SHUFFLE, batch_size)
        assert (verdict.window, verdict.is_batch) == (window, batch_size == window)
    nearest = "In windows of 192 sequences (the measured size nearest to your batch of 100) it closes 0 % of the gap"
    assert nearest in judge({SHUFFLE: found, "balance": found}, SHUFFLE, 100).sentence


def test_a_batch_larger_than_the_corpus_is_not_replaced_in_silence() -> None:
    chars = jd.Characteristics.from_counts({"topic": np.arange(20) % 7}, batch_size=64)
    text = str(jd.compare(chars, {name: jd.order(chars, name) for name in ("balance", SHUFFLE)}))
    assert "windows of 10 sequences (the measured size nearest to your batch of 64)" in " ".join(text.split())


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
    assert len(text.splitlines()) < 16
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
