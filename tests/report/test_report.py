"""The report's values against slow references, its sentences, and its page against hostile text."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html.parser
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import jax_diversity as jd
from jax_diversity.foundation.figures.plain import as_json, clean_text, count_histogram, length_histogram, round_value
from jax_diversity.foundation.progress import Progress, ignore
from jax_diversity.foundation.wording import listing
from jax_diversity.ordering.measures.curves import envelope
from jax_diversity.ordering.measures.profile import window_profile
from jax_diversity.report import corpus, words
from jax_diversity.report.batches import document_values, shown_rows
from jax_diversity.report.corpus import corpus_values
from jax_diversity.report.orderings import (
    Shown,
    WindowSummary,
    curve_points,
    heat_map_bins,
    main_verdicts,
    mean_gaps_closed,
    orders_values,
    profile_and_timelines,
    recommended_ordering,
    reference_values,
    verdict_values,
)
from jax_diversity.report.page import embed_json, render, write_report
from jax_diversity.report.training import training_values
from jax_diversity.report.values import with_summary
from tests.support.report_values import (
    CLUSTERED,
    HOSTILE,
    PREPARED,
    make_clusters,
    make_documents,
    make_orderings,
    make_values,
    without_orderings,
)
from tests.support.synthetic import synthetic_characteristics

# ---- curves, histograms, tables


@given(
    hnp.arrays(np.float64, st.integers(0, 300), elements=st.floats(-1e6, 1e6)),
    st.integers(1, 40),
)
def test_envelope_equals_a_loop_over_buckets(values, max_points):
    curve = envelope(values, max_points=max_points)
    num_buckets = min(len(values), max_points)
    assert len(curve["mean"]) == num_buckets
    for bucket in range(num_buckets):
        start, stop = bucket * len(values) // num_buckets, (bucket + 1) * len(values) // num_buckets
        part = values[start:stop].tolist()
        assert curve["position"][bucket] == pytest.approx((start + 1 + stop) / 2)
        assert curve["mean"][bucket] == pytest.approx(sum(part) / len(part), rel=1e-5, abs=1e-5)
        assert curve["min"][bucket] == round_value(min(part))
        assert curve["max"][bucket] == round_value(max(part))


def test_one_peak_among_a_million_survives():
    values = np.zeros(1_000_000)
    values[[123_456, 987_654]] = 7.5, -3.25
    curve = envelope(values)
    assert len(curve["mean"]) == 600
    assert max(curve["max"]) == 7.5
    assert min(curve["min"]) == -3.25


def test_envelope_leaves_out_what_is_not_finite():
    curve = envelope(np.array([1.0, math.nan, math.inf, 4.0]))
    assert curve == {"position": [1.0, 4.0], "mean": [1.0, 4.0], "min": [1.0, 4.0], "max": [1.0, 4.0]}
    assert envelope(np.array([math.nan]))["mean"] == []


@given(hnp.arrays(np.int64, st.integers(0, 100), elements=st.integers(0, 10**7)))
def test_length_histogram_counts_every_document_once(lengths):
    histogram = length_histogram(lengths)
    edges = histogram["edges"]
    assert edges == sorted(set(edges))
    for low, high, documents, tokens in zip(
        edges, edges[1:], histogram["documents"], histogram["tokens"], strict=False
    ):
        inside = [length for length in lengths.tolist() if low <= length < high]
        assert (documents, tokens) == (len(inside), sum(inside))
    assert sum(histogram["documents"]) == int((lengths > 0).sum())
    if edges:
        assert histogram["documents"][0] > 0, "no empty ranges before the shortest document"
        assert histogram["documents"][-1] > 0, "nor after the longest"


@given(hnp.arrays(np.int64, st.integers(0, 100), elements=st.integers(0, 5000)), st.integers(1, 20))
def test_count_histogram_counts_every_value_once(counts, max_bins):
    histogram = count_histogram(counts, max_bins)
    edges = histogram["edges"]
    assert len(histogram["frequency"]) <= max_bins
    for low, high, frequency in zip(edges, edges[1:], histogram["frequency"], strict=False):
        assert frequency == sum(low <= count < high for count in counts.tolist())
    assert sum(histogram["frequency"]) == len(counts)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", "e", None]), st.integers(0, 9)), max_size=60))
def test_the_table_of_sources_keeps_the_largest_and_sums_the_rest(documents):
    names, lengths = ([document[part] for document in documents] for part in (0, 1))
    table = pa.table(
        {
            "num_tokens": pa.array(lengths, pa.int64()),
            "source": pa.array(names, pa.string()),
            "language": pa.array([None] * len(names), pa.string()),
            "duplicate_group": np.arange(len(names)),
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "MAX_GROUPS", 3)
        values = corpus_values(table, {**PREPARED, "text_bytes": 0}, 0)
    assert values["languages"] is None
    if set(names) <= {None}:
        assert values["sources"] is None
        return
    found, tokens = values["sources"], Counter[str]()
    for name, length in documents:
        tokens[name or "unknown"] += length
    assert [row["tokens"] for row in found["rows"]] == sorted(tokens.values(), reverse=True)[:3]
    assert all(row["tokens"] == tokens[row["name"]] for row in found["rows"])
    assert sum(row["tokens"] for row in found["rows"]) + found["rest"]["tokens"] == tokens.total()
    assert sum(row["documents"] for row in found["rows"]) + found["rest"]["documents"] == len(documents)
    assert len(found["rows"]) + found["rest"]["groups"] == found["num_groups"] == len(tokens)


@given(st.text(st.characters(), max_size=400))
def test_clean_text_can_be_printed_and_stored(text):
    cleaned = clean_text(text, 50)
    assert len(cleaned) <= 50
    cleaned.encode()
    assert not any(
        ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 or letter in "\u2028\u2029\u202e" for letter in cleaned
    )


def test_settings_become_plain_json():
    plain = as_json({"a": (1, float("nan")), 2: {"b": 3, "c": ["x"]}, "d": None, "e": True})
    assert plain == {"a": [1, None], "2": {"b": 3, "c": ["x"]}, "d": None, "e": True}
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


# ---- the verdict

SHUFFLE = {"cluster": {64: [0.5, 0.6], 256: [0.252, 0.3, 0.317]}, "length": {64: [0.4, 0.5], 256: [0.2, 0.22, 0.24]}}
GREEDY = {"cluster": {64: [0.4, 0.55], 256: [0.14, 0.15, 0.166]}, "length": {64: [0.2, 0.3], 256: [0.1, 0.1, 0.12]}}


def verdicts(**orders: dict[str, dict[int, list[float]]]) -> list[dict[str, Any]]:
    """Of orderings with such windows; the first is the shuffle, the floor is .05 everywhere."""
    window_tv = {
        name: {
            family: {size: WindowSummary(len(tv), float(np.mean(tv)), min(tv), max(tv)) for size, tv in by.items()}
            for family, by in families.items()
        }
        for name, families in orders.items()
    }
    shuffle = next(iter(orders))
    floors = {family: dict.fromkeys(by, 0.05) for family, by in orders[shuffle].items()}
    return verdict_values(window_tv, floors, [shuffle])


def the(found: Sequence[dict[str, Any]], family: str, size: int) -> dict[str, Any]:
    return next(row for row in found if (row["family"], row["window_size"]) == (family, size))


def test_the_claim_stands_where_it_is_true():
    found = verdicts(uniform_shuffle=SHUFFLE, greedy=GREEDY)
    verdict = the(found, "cluster", 256)
    assert verdict["holds"]
    assert verdict["sentence"] == (
        "By cluster, windows of 256 sequences have a mean TV of 0.152 with `greedy` and 0.290 with the shuffle; the "
        "worst windows have 0.166 and 0.317. The worst window (0.166) is better than the best of the shuffle (0.252)."
    )
    gap = (0.869 / 3 - 0.456 / 3) / (0.869 / 3 - 0.05)
    assert verdict["gap_closed"] == pytest.approx(gap, rel=1e-5)


def test_the_claim_is_not_made_where_it_is_false():
    found = verdicts(uniform_shuffle=SHUFFLE, greedy=GREEDY)
    verdict = the(found, "cluster", 64)
    assert not verdict["holds"]
    assert verdict["sentence"] == (
        "By cluster, windows of 64 sequences have a mean TV of 0.475 with `greedy` and 0.550 with the shuffle; the "
        "worst windows have 0.550 and 0.600."
    )


def test_the_head_of_the_page_is_the_verdict_on_the_main_ordering():
    values = make_values()
    summary = values["summary"]
    head, shuffle, order, floor, closed = summary["table"]
    assert head == [f"TV mean / worst, windows of {summary['main_window']}", *values["ordering"]["families"]]
    names = [each["name"] for each in values["ordering"]["orders"]]
    assert [shuffle[0], order[0], floor[0], closed[0]] == [*names, "floor", "gap closed"]
    windows = {
        (each["family"], each["window_size"]): (each["mean"], each["worst"])
        for each in next(each for each in values["ordering"]["orders"] if each["name"] == order[0])["windows"]
    }
    for family, cell in zip(head[1:], order[1:], strict=True):
        mean, worst = windows[family, summary["main_window"]]
        assert cell == f"{mean:.3f} / {worst:.3f}"
    assert summary["verdict"].startswith(f"`{order[0]}` is better than a shuffle in ")
    assert [each["ordering"] for each in summary["gaps_closed"]] == [order[0]]
    assert not any("shuffle" in sentence for sentence in summary["sentences"])


def test_the_page_begins_with_a_family_in_which_orders_differ():
    values = make_values()
    first, second, *_ = values["ordering"]["families"]
    flat = {"mean": 0.0, "baseline_mean": 0.0, "gap_closed": None}
    verdicts = [{**row, **flat} if row["family"] == first else row for row in values["verdicts"]]
    assert values["summary"]["main_family"] == first
    assert with_summary({**values, "verdicts": verdicts}, None)["summary"]["main_family"] == second


def test_the_gap_of_the_cards_is_that_of_the_head_and_few_windows_are_said():
    values = make_values()
    gap, worst = values["summary"]["cards"][-2:]
    assert (gap["label"], worst["label"]) == ("Gap closed", "Worst window of greedy")
    assert re.fullmatch(r"TV by cluster; worst window of uniform_shuffle: 0\.\d{3}; smaller is better", worst["detail"])
    assert f"it closes {gap['value']} of the gap" in values["summary"]["verdict"]
    assert not any("too little to judge" in sentence for sentence in values["summary"]["sentences"])
    few = with_summary({**values, "packing": {**values["packing"], "num_sequences": 600}}, None)["summary"]
    assert few["sentences"][0].startswith("This is too little to judge an order: 600 sequences, only 2 windows of 256;")


def test_the_page_says_what_to_do_next():
    values = make_values()
    first, batch, expected = values["summary"]["next"]
    share = words.percent(mean_gaps_closed(values["ordering"])["greedy"])
    assert first == (
        f"Train on `greedy`, which closes {share} of the gap between a shuffle and the floor over all families, "
        'window sizes and offsets: `jd.make_loader("DATASET", ordering="greedy")`.'
    )
    assert batch.startswith("Build with `--batch-size N`")
    assert "vary less than with a shuffle" in expected
    assert "The section on training" in expected

    def next_of(values: dict[str, Any], batch_size: int | None = None) -> list[str]:
        return with_summary({**values, "title": "my-data"}, None, batch_size)["summary"]["next"]

    told = next_of(values, 64)
    assert 'jd.make_loader("my-data", ordering="greedy", global_batch_size=64)' in told[0]
    assert len(told) == 2
    assert next_of(without_orderings(values)) == ["Make an order: `jax-diversity order --out my-data`."]
    untrained = next_of({**values, "training": []}, 64)[-1]
    assert (
        "`jax-diversity train --out my-data` and then `jax-diversity lab explain --out my-data` measure how many"
        in untrained
    )
    shuffle, greedy = values["ordering"]["orders"]
    ordering = {**values["ordering"], "orders": [shuffle, {**greedy, "profile": moved(greedy["profile"], 0.9)}]}
    (first, *_) = next_of({**values, "ordering": ordering}, 64)
    assert first == "Train on the shuffle: no order of this page is better over all families and window sizes."


def moved(profile: dict[str, Any], difference: float, where: str = "", *, least: int = 0) -> dict[str, Any]:
    """A profile whose means are larger by a difference, from a window size on, at all offsets or at one."""
    return {
        family: {
            offset: {
                **of_offset,
                "mean": [
                    mean + difference * (size >= least and where in ("", offset))
                    for size, mean in zip(of_offset["sizes"], of_offset["mean"], strict=True)
                ],
            }
            for offset, of_offset in offsets.items()
        }
        for family, offsets in profile.items()
    }


@pytest.mark.parametrize("harm", [{"where": "half"}, {"least": 256}])
def test_an_order_for_aligned_windows_of_one_size_alone_is_not_recommended(harm: dict[str, Any]):
    values = make_values()
    shuffle, greedy = values["ordering"]["orders"]
    balance = {**greedy, "name": "balance"}
    # The block shuffle is a bit better in aligned windows of 64 sequences, and worse elsewhere.
    profile = moved(moved(greedy["profile"], -0.002), 0.02, **harm)
    block = {**greedy, "name": "block", "profile": profile}
    section = {**values["ordering"], "orders": [shuffle, block, balance]}
    closed = mean_gaps_closed(section)
    assert closed.keys() == {"block", "balance"}
    assert closed["balance"] > closed["block"]
    assert recommended_ordering(closed, "balance") == recommended_ordering(closed, None) == "balance"
    assert recommended_ordering(closed, "block") == "balance"
    (first, *_) = with_summary({**values, "ordering": section}, None, 64)["summary"]["next"]
    assert first.startswith("Train on `balance`, which closes")


def test_an_order_with_targets_is_neither_judged_by_their_families_nor_recommended():
    values, chars = make_values(), synthetic_characteristics(300)
    family, *others = chars.families
    targets = {"starts": [0], "shares": {family: [chars.target_share(family).tolist()]}}
    names = {of: [str(group) for group in range(number)] for of, number in chars.num_groups.items()}
    shown = [
        Shown(jd.order(chars, method), {"name": name, "method": method, **info})
        for name, method, info in (
            ("uniform_shuffle", "uniform_shuffle", {}),
            ("curriculum", "balance", {"targets": targets}),
        )
    ]
    ordering, verdicts = orders_values(chars, shown, (16, 64), names, Progress(quiet=True))
    assert [order["targeted"] for order in ordering["orders"]] == [[], [family]]
    assert {row["family"] for row in verdicts} == {*others}
    assert mean_gaps_closed(ordering) == {}
    section = {**values["ordering"], **ordering, "batches": None}
    summary = with_summary({**values, "ordering": section, "verdicts": verdicts}, None)["summary"]
    assert f"By {family}, `curriculum` follows targets or weights of its own" in summary["verdict"]
    assert any(sentence.startswith(f"By {family}, `curriculum` follows") for sentence in summary["sentences"])
    assert not any(sentence.startswith("Train on") for sentence in summary["next"])
    everywhere = [{**order, "targeted": [*chars.families] * (not order["is_baseline"])} for order in section["orders"]]
    unjudged = with_summary({**values, "ordering": {**section, "orders": everywhere}, "verdicts": []}, None)["summary"]
    assert unjudged["verdict"].startswith(f"By {listing(list(chars.families))}, `curriculum` follows targets")


def test_the_main_ordering_is_recommended_unless_another_is_clearly_better():
    assert recommended_ordering({"balance": 0.7553, "f3": 0.7583}, "balance") == "balance"
    assert recommended_ordering({"balance": 0.70, "f3": 0.75}, "balance") == "f3"
    assert recommended_ordering({"a": 0.1, "b": 0.2}, "absent") == "b"
    assert recommended_ordering({}, "balance") is None


def test_families_that_are_not_balanced_are_named_with_the_reason():
    counts = {
        "families": ["cluster"],
        "num_groups": {"cluster": 9, "host": 3, "duplicate": 1},
        "other_fields": ["year"],
    }
    assert words.families_sentence(counts) == "The orderings balance `cluster`."
    assert words.unbalanced_sentence(counts) == (
        "They do not balance `host` (3 groups) or the metadata field `year`: each further family makes the others less "
        "even. List a family in `characteristics.families` if it matters for your model."
    )
    assert words.unbalanced_sentence({**counts, "num_groups": {"cluster": 9}, "other_fields": []}) == ""


def test_a_heat_map_has_only_groups_that_are_large_enough_for_its_bins():
    """Half of the sequences are of one group, the others of groups of 1, 2, 4 ... sequences."""
    groups = np.array([0] * 1024 + [min(int(math.log2(i + 1)) + 1, 10) for i in range(1023)])
    chars = jd.Characteristics.from_counts({"topic": np.eye(11, dtype=int)[groups] * 8})
    order = jd.Ordering(np.random.default_rng(0).permutation(len(groups)))
    found = profile_and_timelines(chars, order, 96, ignore)[1]["topic"]
    sizes = np.bincount(groups)[found.groups]
    assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)
    assert (sizes / found.share.shape[1] >= 7.5).all()  # eight in a bin, of which the last is shorter
    assert found.share.shape[1] == 12  # bins as wide as they may be, because the eighth group is small
    assert found.groups.tolist() == [0, 10, 9, 8]
    few = jd.Characteristics.from_counts({"topic": np.eye(40, dtype=int) * 8})
    assert profile_and_timelines(few, jd.Ordering(np.arange(40)), 96, ignore)[1]["topic"].groups.tolist() == []


def test_equal_windows_are_not_better_and_near_ones_are_told_apart():
    (verdict,) = verdicts(uniform_shuffle=SHUFFLE, twin={"cluster": {256: [0.252, 0.2]}})
    assert not verdict["holds"]
    (verdict,) = verdicts(uniform_shuffle=SHUFFLE, near={"cluster": {256: [0.25196, 0.2]}})
    assert verdict["holds"]
    assert "(0.25196) is better than the best of the shuffle (0.25200)" in verdict["sentence"]


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=5),
    st.lists(st.floats(0, 1), min_size=2, max_size=5),
)
@settings(max_examples=50)
def test_better_is_said_only_where_every_window_is(mine, others):
    (verdict,) = verdicts(shuffle={"cluster": {8: others}}, mine={"cluster": {8: mine}})
    better = all(one < other for one in mine for other in others)
    assert verdict["holds"] == better
    assert ("is better than the best" in verdict["sentence"]) == better


def test_a_shuffle_at_the_floor_leaves_no_gap():
    (verdict,) = verdicts(flat={"cluster": {8: [0.05, 0.05]}}, other={"cluster": {8: [0.06, 0.05]}})
    assert verdict["gap_closed"] is None


def test_without_a_comparison_the_reason_is_given():
    values = make_values()
    shuffle, greedy = values["ordering"]["orders"]

    def reason(baseline: str | None, *orders: dict[str, Any]) -> str:
        return words.nothing_to_compare({**values, "ordering": {"orders": orders, "baseline": baseline}})

    assert "No ordering was measured" in reason(None)
    assert "no shuffle to compare with" in reason(None, greedy)
    assert "Only shuffles" in reason("uniform_shuffle", shuffle)
    assert "too few" in reason("uniform_shuffle", shuffle, greedy)
    assert verdicts(s={"cluster": {64: [0.1]}}, g={"cluster": {64: [0.1]}}) == []


def test_the_ordering_of_training_is_judged_at_the_window_nearest_to_256():
    found = verdicts(uniform_shuffle=SHUFFLE, greedy=GREEDY, balance=GREEDY)
    for wanted, judged in ((None, "greedy"), ("balance", "balance"), ("uniform_shuffle", "greedy")):
        main = main_verdicts(found, wanted)
        assert [(row["ordering"], row["window_size"]) for row in main] == [(judged, 256)] * 2
    assert main_verdicts([], "balance") == []


def test_words_of_numbers():
    assert [words.size_in_words(size) for size in (1, 999, 1000, 63_049_000, 2 * 10**12)] == [
        "1 byte",
        "999 bytes",
        "1.0 kB",
        "63.0 MB",
        "2.0 TB",
    ]
    assert [words.compact(n) for n in (0, 9_999_999, 18_240_000, 999_990_000, 10**12)] == [
        "0",
        "9,999,999",
        "18.2 M",
        "1.0 B",
        "1.0 T",
    ]
    assert [words.percent(share) for share in (0.736, 0.998, 1.0, 0.0, -0.002, -0.31, -1e-9)] == [
        "74 %",
        "over 99 %",
        "100 %",
        "0.0 %",
        "-0.2 %",
        "-31 %",
        "0.0 %",
    ]
    assert listing(["a", "b", "c"]) == "a, b and c"


# ---- values and page


def test_values_are_strict_json_and_the_same_twice(tmp_path):
    values = make_values()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_report(tmp_path / name, make_values.__wrapped__())
    assert json.loads((tmp_path / "first" / "report.json").read_text()) == values
    assert values == json.loads(json.dumps(values, allow_nan=False))
    for name in ("report.json", "report.html"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == ["report.html", "report.json"]
    assert page_values((tmp_path / "first" / "report.html").read_text()) == values


def test_a_page_stays_small_whatever_the_corpus_and_the_number_of_orderings():
    """The largest parts are those of the orderings: a curve's points, a heat map's stretches."""
    names = [f"ordering {number}" for number in range(9)]
    ordering, _ = make_orderings(names, 3000, (64, 256, 1024))
    assert {len(row["curve"]["mean"]) for order in ordering["orders"] for row in order["prefix"]} == {172}
    assert len(json.dumps(ordering, separators=(",", ":"))) < 1_000_000
    assert (curve_points(2), curve_points(10_000)) == (600, 60)
    assert (heat_map_bins(2), heat_map_bins(36), heat_map_bins(1000)) == (96, 33, 32)


def test_the_map_shows_every_cluster_that_has_a_place():
    drawn = make_values()["clusters"]["map"]
    assert len(drawn["rows"]) == 69  # one has none
    assert len(drawn["labels"]) == 7
    assert drawn["labels"] == sorted(set(drawn["labels"]), key=drawn["labels"].index)
    assert [row["share"] for row in drawn["rows"]] == sorted((row["share"] for row in drawn["rows"]), reverse=True)
    assert {row["label"] for row in drawn["rows"]} == {-1, *range(7)}
    assert all(-1 <= row["x"] <= 1 and -1 <= row["y"] <= 1 and row["name"] for row in drawn["rows"])


def test_purity_in_words():
    assert words.purity_sentence(CLUSTERED, "tfidf_svd") == (
        "97 % of documents are in a cluster whose majority domain is their own, with 1,000 clusters of `tfidf_svd` "
        "vectors; 95 % with 100 clusters. One cluster of all documents would give 21 %."
    )
    one = words.purity_sentence({**CLUSTERED, "label_field": "source", "num_labels": 1}, "hashing")
    assert one == "The documents have fewer than two values of `source`, so clusters cannot be compared with it."


def test_numbers_of_the_corpus_and_its_clusters():
    documents = make_documents(300)
    values = corpus_values(documents, {**PREPARED, "text_bytes": 9, "num_broken_records": 2}, 4)
    lengths = documents["num_tokens"].to_numpy()
    assert values["num_tokens"] == lengths.sum()
    assert values["length_summary"]["longest"] == lengths.max()
    assert values["skipped"] == [{"reason": "broken", "records": 2}]
    assert (values["num_duplicate_groups"], values["largest_duplicate_group"]) == (1, 4)
    assert len(values["sources"]["rows"]) == 30
    sizes = [int(5000 / (1 + rank)) for rank in range(70)]
    clusters = make_clusters(sizes[::-1])
    assert [row["tokens"] for row in clusters["rows"]] == sizes[:60]
    assert [row["cluster"] for row in clusters["rows"]] == list(range(70))[::-1][:60]
    assert clusters["rest"] == {"groups": 10} | {name: sum(sizes[60:]) for name in ("documents", "tokens")} | {
        "share": round_value(sum(sizes[60:]) / sum(sizes))
    }


def test_window_curves_know_where_in_training_they_are():
    values = make_values()["ordering"]["orders"][1]["windows"]
    row = the(values, "cluster", 256)
    assert row["curve"]["position"] == [128.0 + 256 * window for window in range(7)]
    at = row["curve"]["mean"].index(row["worst"])
    assert row["worst_position"] == 256 * at


def test_the_band_of_shuffles_holds_every_seed():
    chars = synthetic_characteristics(150, num_clusters=9, num_bins=3)

    def shuffle(seed: int) -> jd.Ordering:
        return jd.order(chars, "uniform_shuffle", seed=seed)

    references = reference_values(chars, shuffle, lambda amount: None)["cluster"]
    seeds = [window_profile(chars, shuffle(seed))["cluster"] for seed in range(5)]
    assert references["shuffle"]["num_seeds"] == 5
    for offset in ("0", "half"):
        band = references["shuffle"][offset]
        for at in range(len(band["sizes"])):
            means, worst, best = (
                [getattr(seed[offset], name)[at] for seed in seeds] for name in ("mean", "worst", "best")
            )
            expected = {"mean_low": min(means), "mean_high": max(means), "mean": sum(means) / 5}
            expected |= {"worst_high": max(worst), "worst_low": min(worst), "best_low": min(best)}
            for name, value in expected.items():
                assert band[name][at] == pytest.approx(value, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([6.7114], "In 1 step on `greedy`, the training loss, measured once"),
        ([6.7114], "the validation loss, measured once, was 6.711 nats per token."),
        ([6.7, 6.7], "the validation loss stayed at 6.700 nats per token."),
        ([6.7, math.nan, 6.5], "In 3 steps on `greedy`"),
        (
            [6.7, math.nan, 6.5],
            "the validation loss went from 6.700 to 6.500 nats per token. 1 of its losses was not finite.",
        ),
    ],
)
def test_losses_in_words(losses, said):
    steps = [{"step": step, "loss": 9.0 / (step + 1), "validation_loss": loss} for step, loss in enumerate(losses)]
    assert said in training_values("greedy", steps)["sentence"]
    assert training_values("greedy", steps)["loss"]["curve"]["position"] == list(range(len(losses)))


def test_noise_spikes_and_hard_batches_in_words():
    rng = np.random.default_rng(0)
    hard = rng.normal(0, 0.02, 400)
    hard[250] += 1
    losses = 3 + hard + rng.normal(0, 0.05, 400)
    losses[300] += 2
    steps = [{"step": step, "loss": loss, "loss_expected": 2 + hard[step]} for step, loss in enumerate(losses.tolist())]
    values = training_values("greedy", steps)
    assert (values["spikes"], values["hard_batches"]) == ([300], [250])
    assert "spikes at step 300, which the content of the batches does not explain" in values["sentence"]
    assert "high at step 250, as the content of the batches explains" in values["sentence"]
    assert [each["steps"] for each in values["noise"]] == [1, 8]
    assert values["noise"][0]["deviation"] == pytest.approx(0.09, abs=0.03)  # with the hard batch, without the spike
    unknown = training_values("greedy", [{"step": step["step"], "loss": step["loss"]} for step in steps])
    assert (unknown["spikes"], unknown["hard_batches"]) == ([250, 300], None)
    assert "far above its course at steps 250 and 300: spikes, or batches that are hard" in unknown["sentence"]
    gaps = training_values("greedy", steps[::10])  # a mean of k values is not that of k steps
    assert gaps["noise"] == []


def test_the_validation_loss_has_an_interval_and_groups():
    steps = [
        {"step": step, "validation_loss": 3.0, "validation_loss_low": 2.9, "validation_loss_high": 3.2}
        | {f"validation_loss/source/{number:02}": 3.0 + step for number in range(14)}
        for step in (9, 19)
    ]
    values = training_values("greedy", steps)
    assert values["validation_interval"]["low"]["mean"] == [2.9, 2.9]
    assert values["validation_interval"]["high"]["position"] == [9, 19]
    assert list(values["groups"]) == [f"source/{number:02}" for number in range(12)]
    assert values["groups"]["source/00"]["last"] == 22
    assert "2 more groups of the validation loss are in its log." in values["sentence"]


def test_a_run_without_steps_says_so():
    assert "no finite loss" in training_values("greedy", [])["sentence"]


def test_ids_of_opened_batches_can_be_looked_up():
    """An id is kept whole: `inspect --document` takes it."""
    name = f"https://example.org/{'path/' * 30}page-17"
    about = {"id": name, "title": name, "source": "web", "language": None}
    shown = document_values(about, "a cluster")
    assert shown["document"] == name
    assert len(shown["title"]) == 60


@given(st.lists(st.integers(0, 40), min_size=1, max_size=40), st.integers(1, 5000))
def test_as_many_rows_are_opened_as_a_page_can_hold(segments_per_row, num_batches):
    rows = shown_rows(segments_per_row, num_batches)
    assert 1 <= rows <= min(len(segments_per_row), 12)
    shown = sum(min(number, 6) for number in segments_per_row[:rows])
    assert rows == 1 or shown <= 1200 / num_batches


def test_a_dataset_of_one_sequence_and_one_without_orderings_have_a_page():
    for values in (make_values(num_sequences=1), without_orderings(make_values())):
        assert values["verdicts"] == values["training"] == []
        assert page_values(render(values)) == values


class Elements(html.parser.HTMLParser):
    """All start tags of a page with their attributes, and the scripts' contents."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.comments: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def page_values(page: str) -> Any:
    elements = Elements(page)
    index = [attributes.get("id") for tag, attributes in elements.tags if tag == "script"].index("values")
    return json.loads(elements.scripts[index])


def test_the_page_asks_for_nothing_and_allows_only_its_own_scripts():
    elements = Elements(render(make_values()))
    for _, attributes in elements.tags:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith(("#", "data:"))
        assert not any(name.startswith("on") for name in attributes)
    (policy,) = (a["content"] for tag, a in elements.tags if tag == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy
    assert "unsafe" not in policy.split("script-src")[1].split(";")[0]
    kinds = [attributes.get("type") for tag, attributes in elements.tags if tag == "script"]
    scripts = [script for script, kind in zip(elements.scripts, kinds, strict=True) if kind is None]
    # The library of figures is unpacked by the page and inserted as a script.
    packed = elements.scripts[kinds.index("text/plain")]
    scripts.append(gzip.decompress(base64.b64decode(packed)).decode())
    assert len(scripts) == 4
    assert "plotly.js" in scripts[-1][:100]
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy


def test_hostile_text_stays_text():
    plain, hostile = (render(make_values(text)) for text in ((), HOSTILE))
    expected, found = Elements(plain), Elements(hostile)
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in expected.tags]
    assert found.comments == []
    values = page_values(hostile)
    assert values["clusters"]["rows"][0]["terms"][1] == "<!--<script>"
    assert hostile.count("<img") == plain.count("<img")
    titles = values["clusters"]["rows"][0]["titles"]
    assert all(len(title) <= 120 for title in titles)
    assert len(hostile) < len(plain) + 210_000


@settings(max_examples=40)
@given(st.recursive(st.text(st.characters()) | st.integers() | st.none(), lambda c: st.dictionaries(st.text(), c)))
def test_embedded_json_is_inert_and_parses_back(values):
    text = embed_json({"values": values})
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"values": values}


def test_values_with_nan_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        embed_json({"number": math.nan})


def test_a_corpus_of_tokens_has_no_size_of_text():
    values = make_values()
    values = with_summary({**values, "corpus": {**values["corpus"], "text_bytes": 0}}, None)
    (documents,) = (card for card in values["summary"]["cards"] if card["label"] == "Documents")
    assert documents["detail"] == "read as tokens"
    number = values["corpus"]["num_documents"]
    assert any(sentence.startswith(f"{number:,} documents became ") for sentence in values["summary"]["sentences"])
