"""The report's values against slow references, its sentences, and its page against hostile text."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html.parser
import json
import math
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jax_diversity.measures.curves import envelope, shorten
from jax_diversity.report import words
from jax_diversity.report.aggregate import (
    as_json,
    clean_text,
    count_histogram,
    group_table,
    length_histogram,
    round_value,
)
from jax_diversity.report.batch_values import shown_rows
from jax_diversity.report.inputs import (
    ClusterInputs,
    CorpusInputs,
    DocumentGroups,
    OrderingInputs,
    PurityInputs,
    TrainingInputs,
)
from jax_diversity.report.ordering_values import heat_map_bins
from jax_diversity.report.page import embed_json, render, write_report
from jax_diversity.report.values import report_values
from tests.report_inputs import (
    GREEDY,
    HOSTILE,
    SHUFFLE,
    make_inputs,
    make_ordering,
    nothing_inputs,
    tiny_inputs,
    with_details,
)

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


def test_one_peak_among_a_million_survives_and_quickly():
    values = np.zeros(1_000_000)
    values[[123_456, 987_654]] = 7.5, -3.25
    began = time.process_time()
    curve = envelope(values)
    assert time.process_time() - began < 1.0
    assert len(curve["mean"]) == 600
    assert max(curve["max"]) == 7.5
    assert min(curve["min"]) == -3.25


@given(
    hnp.arrays(np.float64, st.integers(1, 300), elements=st.floats(-1e6, 1e6)),
    st.integers(1, 60),
    st.integers(1, 20),
)
def test_a_curve_that_is_shortened_twice_keeps_its_mean_and_its_peaks(values, first, second):
    curve = shorten(shorten(values, max_points=first), max_points=second)
    assert len(curve.mean) == min(len(values), first, second)
    assert curve.number.sum() == len(values)
    assert (curve.mean * curve.number).sum() == pytest.approx(values.sum(), abs=1e-3)
    assert (curve.position * curve.number).sum() == pytest.approx(len(values) * (len(values) + 1) / 2)
    assert (curve.low.min(), curve.high.max()) == (values.min(), values.max())
    assert (curve.low <= curve.mean + 1e-6).all()
    assert (curve.mean <= curve.high + 1e-6).all()


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


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(0, 9)), max_size=60), st.integers(1, 8))
def test_group_table_keeps_the_largest_and_sums_the_rest(documents, max_rows):
    groups = DocumentGroups.from_names([name for name, _ in documents])
    lengths = np.array([length for _, length in documents], np.int64)
    table = group_table(groups.codes, groups.names, lengths, max_rows)
    tokens: Counter[str] = Counter()
    for name, length in documents:
        tokens[name] += length
    assert [row["tokens"] for row in table["rows"]] == sorted(tokens.values(), reverse=True)[:max_rows]
    assert all(row["tokens"] == tokens[row["name"]] for row in table["rows"])
    assert sum(row["tokens"] for row in table["rows"]) + table["rest"]["tokens"] == tokens.total()
    assert sum(row["documents"] for row in table["rows"]) + table["rest"]["documents"] == len(documents)
    assert len(table["rows"]) + table["rest"]["groups"] == table["num_groups"] == len(tokens)


@given(st.text(st.characters(), max_size=400))
def test_clean_text_can_be_printed_and_stored(text):
    cleaned = clean_text(text, 50)
    assert len(cleaned) <= 50
    cleaned.encode()
    assert not any(
        ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 or letter in "\u2028\u2029\u202e" for letter in cleaned
    )


def test_settings_become_plain_json():
    plain = as_json({"a": (1, np.float64("nan")), 2: {"b": np.int64(3), "c": {"y", "x"}}, "d": None, "e": True})
    assert plain == {"a": [1, None], "2": {"b": 3, "c": ["x", "y"]}, "d": None, "e": True}
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_inputs_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match=r"codes in 0 \.\. 1"):
        DocumentGroups(np.array([0, 2]), ("a", "b"))
    with pytest.raises(ValueError, match="one a document"):
        CorpusInputs(3, np.array([1, 2]), DocumentGroups(np.array([0]), ("a",)))
    with pytest.raises(ValueError, match="one entry a cluster"):
        ClusterInputs(np.array([1]), np.array([1]), [["a"]], [])
    with pytest.raises(ValueError, match="main_ordering"):
        report_values(replace(make_inputs(), main_ordering="nothing"))
    with pytest.raises(ValueError, match="different names"):
        report_values(replace(make_inputs(), orderings=(SHUFFLE, SHUFFLE)))


# ---- the verdict


def test_the_claim_stands_where_it_is_true():
    values = report_values(make_inputs())
    verdict = next(row for row in values["verdicts"] if (row["family"], row["window_size"]) == ("cluster", 256))
    assert verdict["holds"]
    assert verdict["sentence"] == (
        "With `greedy`, the worst 256-sequence window by cluster (TV 0.166) is better than the best window of the "
        "shuffle (0.252)."
    )
    gap = (0.869 / 3 - 0.456 / 3) / (0.869 / 3 - 0.05)
    assert verdict["gap_closed"] == pytest.approx(gap, rel=1e-5)
    assert values["summary"]["sentences"][1:] == [
        "With `greedy`, the worst 256-sequence window is better than the best window of the shuffle in both "
        "families: cluster (TV 0.166 against 0.252) and length (TV 0.120 against 0.200).",
        "On average over 256-sequence windows, `greedy` closes 57 % (by cluster) and 67 % (by length) of the gap "
        "between the shuffle and the floor, below which no ordering's mean can lie.",
    ]


def test_the_opposite_is_said_with_the_figures_where_it_is_true():
    values = report_values(replace(make_inputs(), main_window=64))
    verdict = next(row for row in values["verdicts"] if (row["family"], row["window_size"]) == ("cluster", 64))
    assert not verdict["holds"]
    assert verdict["sentence"] == (
        "With `greedy`, the worst 64-sequence window by cluster (TV 0.550) is not better than the best window of "
        "the shuffle (0.500); the mean is better (0.475 against 0.550)."
    )
    assert values["summary"]["sentences"][1] == (
        "With `greedy`, the worst 64-sequence window is better than the best window of the shuffle by length "
        "(TV 0.300 against 0.400), but not by cluster (TV 0.550 against 0.500)."
    )


def test_a_worse_ordering_is_called_worse():
    worse = make_ordering("sorted", "sorted", {"cluster": {256: [0.4, 0.6]}, "length": {256: [0.3, 0.5]}})
    sentences = report_values(replace(make_inputs(), orderings=(SHUFFLE, worse)))["summary"]["sentences"]
    assert "is not better than the best window of the shuffle in any family" in sentences[1]
    assert "a negative share is worse than the shuffle" in sentences[2]


def test_equal_windows_are_not_better_and_near_ones_are_told_apart():
    equal = make_ordering("twin", "greedy", {"cluster": {256: [0.252, 0.2]}})
    (verdict,) = report_values(replace(make_inputs(), orderings=(SHUFFLE, equal)))["verdicts"]
    assert not verdict["holds"]
    near = make_ordering("near", "greedy", {"cluster": {256: [0.25196, 0.2]}})
    (verdict,) = report_values(replace(make_inputs(), orderings=(SHUFFLE, near)))["verdicts"]
    assert verdict["holds"]
    assert "(TV 0.25196) is better than the best window of the shuffle (0.25200)" in verdict["sentence"]


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=5),
    st.lists(st.floats(0, 1), min_size=2, max_size=5),
)
@settings(max_examples=50)
def test_better_is_said_only_where_every_window_is(mine, others):
    orderings = (
        make_ordering("shuffle", "uniform_shuffle", {"cluster": {8: others}}, num_sequences=4),
        make_ordering("mine", "greedy", {"cluster": {8: mine}}, num_sequences=4),
    )
    (verdict,) = report_values(replace(make_inputs(5, 2), orderings=orderings))["verdicts"]
    better = all(one < other for one in mine for other in others)
    assert verdict["holds"] == better
    assert ("is better than the best" in verdict["sentence"]) == better


def test_a_shuffle_at_the_floor_leaves_no_gap():
    flat = make_ordering("flat", "uniform_shuffle", {"cluster": {8: [0.05, 0.05]}})
    other = make_ordering("other", "greedy", {"cluster": {8: [0.06, 0.05]}})
    values = report_values(replace(make_inputs(), orderings=(flat, other)))
    assert values["verdicts"][0]["gap_closed"] is None
    assert "no ordering could have a better mean" in values["summary"]["sentences"][2]


@pytest.mark.parametrize(
    ("orderings", "words_expected"),
    [
        ((), "No ordering was measured"),
        ((GREEDY,), "no shuffle to compare with"),
        ((SHUFFLE,), "Only shuffles"),
        (
            (
                make_ordering("s", "uniform_shuffle", {"cluster": {64: [0.1], 256: []}}, num_sequences=70),
                make_ordering("g", "greedy", {"cluster": {64: [0.1], 256: []}}, num_sequences=70),
            ),
            "too few",
        ),
    ],
)
def test_without_a_comparison_the_reason_is_given(orderings, words_expected):
    values = report_values(replace(make_inputs(), orderings=orderings))
    assert values["verdicts"] == []
    assert words_expected in values["summary"]["sentences"][1]
    assert render(values)


def test_the_main_ordering_and_window_can_be_chosen_and_have_defaults():
    balance = make_ordering("balance", "balance", dict(GREEDY.window_tv))  # pyright: ignore[reportArgumentType]
    inputs = replace(make_inputs(), orderings=(SHUFFLE, GREEDY, balance))
    summary = report_values(inputs)["summary"]
    assert (summary["main_ordering"], summary["main_window"]) == ("greedy", 256)
    summary = report_values(replace(inputs, main_ordering="balance", main_window=64))["summary"]
    assert (summary["main_ordering"], summary["main_window"]) == ("balance", 64)
    summary = report_values(replace(inputs, main_window=999))["summary"]
    assert summary["main_window"] == 256


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
    assert words.listing(["a", "b", "c"]) == "a, b and c"


# ---- values and page


def test_values_are_strict_json_and_the_same_twice(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        values = write_report(folder, make_inputs())
    assert json.loads((first / "report.json").read_text()) == values == json.loads(json.dumps(values, allow_nan=False))
    for name in ("report.json", "report.html"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert sorted(path.name for path in first.iterdir()) == ["report.html", "report.json"]
    assert page_values((first / "report.html").read_text()) == values


def test_values_stay_small_for_a_large_corpus():
    rng = np.random.default_rng(0)
    large = replace(
        make_inputs(200_000, 5000),
        orderings=tuple(
            OrderingInputs(
                name,
                method,
                {family: rng.random(500_000) for family in ("cluster", "length")},
                {family: {n: rng.random(500_000 // n) for n in (64, 256)} for family in ("cluster", "length")},
                {},
                {},
                rng.normal(size=500_000),
            )
            for name, method in (("shuffle", "uniform_shuffle"), ("greedy", "greedy"))
        ),
    )
    began = time.process_time()
    text = json.dumps(report_values(large), allow_nan=False)
    assert time.process_time() - began < 10
    assert len(text) < 600_000


def test_the_map_shows_every_cluster_that_has_a_place():
    inputs = make_inputs()
    drawn = report_values(inputs)["clusters"]["map"]
    assert len(drawn["rows"]) == 69  # one has none
    assert drawn["labels"] == sorted(set(drawn["labels"]), key=drawn["labels"].index)
    assert [row["share"] for row in drawn["rows"]] == sorted((row["share"] for row in drawn["rows"]), reverse=True)
    assert {row["label"] for row in drawn["rows"]} == {-1, *range(len(drawn["labels"]))}
    assert all(-1 <= row["x"] <= 1 and -1 <= row["y"] <= 1 and row["name"] for row in drawn["rows"])
    plain = replace(inputs.clusters, names=None, labels=None, positions=None, purity=None)
    values = report_values(replace(inputs, clusters=plain))["clusters"]
    assert values["map"] == {"labels": [], "rows": []}
    assert values["purity"] is None


def test_the_map_names_the_commonest_labels_alone():
    inputs = make_inputs()
    many = replace(inputs.clusters, labels=[f"label {index}" for index in range(70)])
    drawn = report_values(replace(inputs, clusters=many))["clusters"]["map"]
    assert len(drawn["labels"]) == 7
    assert sum(row["label"] == -1 for row in drawn["rows"]) == 69 - 7


def test_purity_in_words():
    inputs = make_inputs()
    assert report_values(inputs)["clusters"]["purity"] == (
        "97 % of documents lie in a cluster whose majority domain is their own, with 1,000 clusters of `tfidf_svd` "
        "vectors; 95 % with 100 clusters. One cluster of all documents would give 21 %."
    )
    one = replace(inputs.clusters, purity=PurityInputs("source", 1, 1.0, {50: 1.0}, "hashing"))
    words = report_values(replace(inputs, clusters=one))["clusters"]["purity"]
    assert words == "The documents have no two different values of `source` that clusters could be compared with."


def test_numbers_of_the_corpus_clusters_and_packing():
    inputs = make_inputs()
    values = report_values(inputs)
    lengths = inputs.corpus.document_lengths
    assert values["corpus"]["num_tokens"] == lengths.sum()
    assert values["corpus"]["length_summary"]["longest"] == lengths.max()
    assert values["corpus"]["skipped"] == [{"reason": "not JSON", "records": 2}]
    assert len(values["corpus"]["sources"]["rows"]) == 30
    clusters = values["clusters"]
    assert len(clusters["rows"]) == 60
    assert sum(row["tokens"] for row in clusters["rows"]) + clusters["rest"]["tokens"] == lengths.sum()
    assert [row["tokens"] for row in clusters["rows"]] == sorted(inputs.clusters.num_tokens, reverse=True)[:60]
    row = clusters["rows"][0]
    assert row["documents"] == inputs.clusters.num_documents[row["cluster"]]
    assert values["packing"]["mean_segments"] == pytest.approx(inputs.packing.segments_per_sequence.mean(), rel=1e-5)


def test_window_curves_know_where_in_training_they_are():
    (row,) = (
        row
        for row in report_values(make_inputs())["ordering"]["orders"][1]["windows"]
        if (row["family"], row["window_size"]) == ("cluster", 256)
    )
    assert row["curve"]["position"] == [128.0, 384.0, 640.0]
    assert (row["best"], row["worst"], row["worst_position"]) == (0.14, 0.166, 512)


def test_long_curves_may_come_shortened():
    walk = np.cumsum(np.random.default_rng(0).normal(size=50_000))
    long = replace(SHUFFLE, prefix_l2=dict.fromkeys(("cluster", "length"), np.abs(walk)), norm_drift=walk)
    short = replace(
        long,
        prefix_l2={family: shorten(curve, max_points=2400) for family, curve in long.prefix_l2.items()},
        norm_drift=shorten(walk, max_points=2400),
    )
    drawn = [
        report_values(replace(make_inputs(), orderings=(order, GREEDY)))["ordering"]["orders"][0]
        for order in (long, short)
    ]
    for whole, shortened in ((order["prefix"][0], order["norm_drift"]) for order in drawn):
        assert whole["max"] == round_value(np.abs(walk).max())
        assert shortened["max"] == whole["max"]
        assert max(whole["curve"]["max"]) == whole["max"]
        assert len(shortened["curve"]["mean"]) == 600
    assert drawn[0]["norm_drift"]["curve"]["min"][0] == round_value(walk[:83].min())


def test_the_band_of_shuffles_holds_every_seed():
    inputs = make_inputs()
    references = report_values(inputs)["ordering"]["profile_references"]["cluster"]
    given_references = inputs.profile_references["cluster"]
    assert references["shuffle"]["num_seeds"] == len(given_references.shuffles) == 5
    for offset in ("0", "half"):
        band = references["shuffle"][offset]
        for at, size in enumerate(band["sizes"]):
            seeds = [shuffle[offset] for shuffle in given_references.shuffles]
            means = [profile.mean[list(profile.sizes).index(size)] for profile in seeds]
            assert band["mean_low"][at] == pytest.approx(min(means), rel=1e-5)
            assert band["mean_high"][at] == pytest.approx(max(means), rel=1e-5)
            assert band["mean"][at] == pytest.approx(sum(means) / 5, rel=1e-5)
            assert band["worst_high"][at] == pytest.approx(max(profile.worst[at] for profile in seeds), rel=1e-5)
            assert band["worst_low"][at] == pytest.approx(min(profile.worst[at] for profile in seeds), rel=1e-5)
            assert band["best_low"][at] == pytest.approx(min(profile.best[at] for profile in seeds), rel=1e-5)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([6.7114], "the validation loss, measured once, was 6.711 nats a token."),
        ([6.7, 6.7], "the validation loss stayed at 6.700 nats a token."),
        ([6.7, math.nan, 6.5], "the validation loss went from 6.700 to 6.500 nats a token."),
    ],
)
def test_a_loss_that_was_measured_once_stayed_nowhere(losses, said):
    steps = [{"step": step, "loss": 9.0 / step} | {"validation_loss": loss} for step, loss in enumerate(losses, 1)]
    (run,) = report_values(replace(make_inputs(), training=(TrainingInputs("greedy", steps),)))["training"]
    assert said in run["sentence"]


def test_ids_of_opened_batches_can_be_looked_up():
    """An id is kept whole: `inspect --document` takes it."""
    inputs = make_inputs()
    name = f"https://example.org/{'path/' * 30}page-17"
    shuffle, greedy = inputs.orderings
    extremes = greedy.batches["cluster"]
    row = extremes.worst[0].rows[0]
    row = replace(row, segments=[replace(row.segments[0], document=name)])
    extremes = replace(extremes, worst=[replace(extremes.worst[0], rows=[row])])
    values = report_values(replace(inputs, orderings=(shuffle, replace(greedy, batches={"cluster": extremes}))))
    (shown,) = values["ordering"]["batches"]["orders"]["greedy"]["cluster"]["worst"][0]["rows"]
    assert shown["segments"][0]["document"] == name


def test_batches_and_heat_maps_are_shown_as_they_are_given():
    inputs = make_inputs()
    ordering = report_values(inputs)["ordering"]
    (given_batch, *_), shown = (
        inputs.orderings[1].batches["cluster"].worst,
        ordering["batches"]["orders"]["greedy"]["cluster"]["worst"][0],
    )
    assert (shown["step"], shown["position"], shown["tv"]) == (90, 90 * 16, round_value(given_batch.tv))
    assert len(shown["rows"]) + shown["num_more_rows"] == ordering["batches"]["batch_size"] == 16
    for row, given_row in zip(shown["rows"], given_batch.rows, strict=True):
        assert (row["row"], row["sequence_index"]) == (given_row.row, given_row.sequence_index)
        assert row["num_more_segments"] == given_row.num_more_segments
        assert [segment["title"] for segment in row["segments"]] == [part.title for part in given_row.segments]
    heat_map, given_map = ordering["orders"][1]["heat_map"]["cluster"], inputs.orderings[1].heat_maps["cluster"]
    assert [group["name"] for group in heat_map["groups"]] == list(given_map.names)
    np.testing.assert_allclose(heat_map["share"], given_map.share, rtol=1e-2)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=40), st.integers(1, 5000))
def test_as_many_rows_are_opened_as_a_page_can_hold(segments_per_row, num_batches):
    rows = shown_rows(segments_per_row, num_batches)
    assert 1 <= rows <= min(len(segments_per_row), 12)
    shown = sum(min(number, 6) for number in segments_per_row[:rows])
    assert rows == 1 or shown <= 1200 / num_batches


def test_a_page_of_many_orderings_stays_small():
    rng = np.random.default_rng(0)
    families = ("cluster", "length", "source", "language")
    curve = rng.random(50_000)

    def order(number: int) -> OrderingInputs:
        bare = OrderingInputs(
            f"ordering {number}",
            "greedy" if number else "uniform_shuffle",
            dict.fromkeys(families, curve),
            {family: {n: rng.random(50_000 // n) for n in (64, 256, 1024)} for family in families},
            {},
            {},
            curve,
        )
        full = with_details(bare)
        bins = heat_map_bins(9 * len(families))
        short = {
            family: replace(heat_map, bin_size=50_000 // bins, share=heat_map.share[:, :bins])
            for family, heat_map in full.heat_maps.items()
        }
        return replace(full, heat_maps=short, batches={})

    inputs = replace(make_inputs(), orderings=[order(number) for number in range(9)], training=())
    text = json.dumps(report_values(inputs), separators=(",", ":"))
    assert len(text) < 1_000_000
    assert heat_map_bins(2) == 96  # of few there are all


def test_a_run_that_diverged_says_so():
    run = TrainingInputs("greedy", [{"step": 1, "loss": 7.0}, {"step": 2, "loss": math.nan}])
    (training,) = report_values(replace(make_inputs(), training=(run,)))["training"]
    assert training["num_nonfinite"] == 1
    assert "1 of its losses was not finite" in training["sentence"]
    empty = TrainingInputs("greedy", [])
    (training,) = report_values(replace(make_inputs(), training=(empty,)))["training"]
    assert "no finite loss" in training["sentence"]


@pytest.mark.parametrize("make", [tiny_inputs, nothing_inputs])
def test_tiny_and_empty_corpora_have_a_report(make):
    values = report_values(make())
    json.dumps(values, allow_nan=False)
    assert values["training"] == []
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
    elements = Elements(render(report_values(make_inputs())))
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
    plain, hostile = (render(report_values(make_inputs(text=text))) for text in ((), HOSTILE))
    expected, found = Elements(plain), Elements(hostile)
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in expected.tags]
    assert found.comments == []
    values = page_values(hostile)
    assert values["clusters"]["rows"][0]["terms"][1] == "<!--<script>"
    assert hostile.count("<img") == plain.count("<img")
    titles = values["clusters"]["rows"][0]["titles"]
    assert all(len(title) <= 120 for title in titles)
    assert len(hostile) < len(plain) + 200_000


@given(st.recursive(st.text(st.characters()) | st.integers() | st.none(), lambda c: st.dictionaries(st.text(), c)))
def test_embedded_json_is_inert_and_parses_back(values):
    text = embed_json({"values": values})
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"values": values}


def test_values_with_nan_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        embed_json({"number": math.nan})
