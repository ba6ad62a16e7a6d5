"""The corpora that benchmarks order, and what they make of their figures: what they promise, at small sizes."""

from __future__ import annotations

import importlib
import json
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks import corpora, picture, verdicts
from jax_diversity import UserError, open_dataset
from jax_diversity.sequences.characteristics.codes import length_bins
from tests.support.tiny_dataset import write_tiny_dataset

pytestmark = pytest.mark.campaign


def test_the_synthetic_corpus_has_the_promised_shape() -> None:
    chars = corpora.synthetic(6000)
    assert chars.num_sequences == 6000
    assert chars.sequence_length == 2048
    assert chars.families == ("cluster", "length")
    assert [chars.counts[family].shape for family in chars.families] == [(6000, 1000), (6000, 100)]
    assert (chars.tokens == 2048).all()
    assert sum(len(matrix.data) for matrix in chars.counts.values()) / 6000 == pytest.approx(5.7, abs=0.1)
    for matrix in chars.counts.values():
        assert matrix.indices.dtype == matrix.indptr.dtype == np.int32


def test_the_same_seed_gives_the_same_corpus() -> None:
    first, again, other = (corpora.synthetic(300, seed=seed).fingerprint for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize("chunk", [1, 7, 200])
def test_chunks_change_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = corpora.synthetic(200, num_clusters=20, num_bins=10).fingerprint
    monkeypatch.setattr(corpora, "SEQUENCES_PER_CHUNK", chunk)
    assert corpora.synthetic(200, num_clusters=20, num_bins=10).fingerprint == whole


def test_counts_are_those_of_documents_laid_back_to_back() -> None:
    chars = corpora.synthetic(60, sequence_length=700, num_clusters=9, num_bins=5, seed=4)
    lengths, clusters = corpora.draw_documents(60 * 700, 9, seed=4)
    assert lengths[:-1].sum() < 60 * 700 <= lengths.sum()
    assert lengths.min() >= corpora.SHORTEST
    for family, codes in {"cluster": clusters, "length": length_bins(lengths, 5).group}.items():
        tokens = np.repeat(codes, lengths)[: 60 * 700].reshape(60, 700)
        expected = [np.bincount(row, minlength=chars.counts[family].shape[1]) for row in tokens]
        np.testing.assert_array_equal(chars.counts[family].toarray(), expected)


def test_a_dataset_gives_its_own_characteristics(tmp_path: Path) -> None:
    root = write_tiny_dataset(tmp_path / "out").root
    assert corpora.from_dataset(root).fingerprint == open_dataset(root).characteristics.fingerprint
    with pytest.raises(UserError, match="nowhere"):
        corpora.from_dataset(tmp_path / "nowhere")


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A benchmark that finds its neighbours as it does when it is run."""
    monkeypatch.syspath_prepend(str(Path(corpora.__file__).parent))
    return importlib.import_module(name)


FAMILIES = ("cluster", "length")


def entry(method: str, seconds: float, prefix: float, tv: float, shifted: float | None, drift: float = 1.0) -> dict:
    """What the results hold of an order, with every family and window alike but for the length's halves."""

    def of_family(share: float) -> dict[str, Any]:
        offsets = {
            "0": {"tv_mean": tv * share, "tv_worst": 2 * tv * share},
            "half": {
                "tv_mean": shifted and shifted * share,
                "tv_worst": shifted and 2 * shifted * share,
            },
        }
        window = {"offsets": offsets, "tv_floor": 0.1, "tv_bound": 0.12, "gap_closed": 0.5}
        return {
            "prefix_l2_max": prefix * share,
            "norm_drift_max": drift,
            "windows": dict.fromkeys(("64", "256"), window),
        }

    families = {"cluster": of_family(1.0), "length": of_family(0.5)}
    offsets = {family: [tv, math.nan if shifted is None else shifted] for family in FAMILIES}
    about = {"method": method, "seconds": seconds, "compile_seconds": 0.0}
    return {**about, "families": families, "tv_mean_256_by_offset": offsets}


def entries() -> dict[str, Any]:
    return {
        "uniform shuffle": entry("uniform_shuffle", 0.002, 60.0, 0.5, 0.5),
        "balance 4096": entry("balance", 1.0, 7.0, 0.29, 0.303),
        "exact f3": entry("greedy", 40.0, 8.0, 0.3, 0.3, drift=490.0),
    }


def test_verdicts_say_reached_or_not_and_from_what_size_on() -> None:
    ratios = verdicts.all_ratios(entries(), FAMILIES)

    def judged(num_sequences: int, made: dict[str, Any]) -> dict[str, str]:
        lines = verdicts.judge(made, ratios, FAMILIES, num_sequences, True)
        return {line["measure"]: line["verdict"] for line in lines if line["order"] == "balance 4096"}

    assert judged(200_000, entries()) == {
        "seconds": "reached",
        "prefix max": "reached",
        "mean TV 64": "reached",
        "mean TV 256": "reached",
        "worst TV 64": "not reached: 1.010",
        "worst TV 256": "not reached: 1.010",
        "norm drift": "reached",
    }
    slow = {**entries(), "balance 4096": {**entries()["balance 4096"], "seconds": 20.0}}
    assert judged(20_000, slow)["seconds"] == "holds from 200,000 sequences on: 0.500"
    assert judged(200_000, slow)["seconds"] == "not reached: 0.500"


def test_a_table_of_real_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    orderings = script("orderings", monkeypatch)
    chars = corpora.synthetic(600, num_clusters=20, num_bins=5)
    runs: dict[str, Any] = {}
    for recipe in orderings.chosen_recipes(["stratified"]):
        runs[recipe.label] = orderings.make_order(chars, recipe, 1000)
    comparison, made = orderings.measured(chars, runs)
    assert made["stratified"]["families"]["cluster"]["windows"]["256"]["tv_floor"] >= 0
    assert all(len(made["stratified"]["tv_mean_256_by_offset"][family]) == 8 for family in chars.families)
    ratios = verdicts.all_ratios(made, chars.families)
    tables = [
        orderings.summary(made, *chars.families),
        orderings.ratio_tables(ratios, chars.families),
        orderings.verdict_table(verdicts.judge(made, ratios, chars.families, 600, True), chars.families),
    ]
    for text in tables:
        for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
            assert len({line.count("|") for line in block.splitlines()}) == 1
    assert comparison.orderings == ("uniform shuffle", "stratified", "exact f3")
    json.dumps(orderings.rounded({"orders": made, "ratios": ratios}), allow_nan=False)


def test_time_is_reckoned_from_some_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    orderings = script("orderings", monkeypatch)
    chars = corpora.synthetic(8300, sequence_length=256, num_clusters=10, num_bins=3)
    recipe = next(recipe for recipe in orderings.RECIPES if recipe.label == "exact f3")
    run = orderings.make_order(chars, recipe, exact_up_to=8000)
    assert run.ordering is None
    assert run.seconds > 0 <= run.compile_seconds
    _, made = orderings.measured(chars, {"uniform shuffle": shuffled(orderings, chars), "exact f3": run})
    assert made["exact f3"]["reckoned"]
    assert "(reckoned)" in orderings.summary(made, *chars.families)


def shuffled(orderings: ModuleType, chars: Any) -> Any:
    recipe = next(recipe for recipe in orderings.RECIPES if recipe.label == "uniform shuffle")
    return orderings.make_order(chars, recipe, 0)


def results() -> dict[str, Any]:
    corpus = {"name": "synthetic-20", "num_sequences": 20, "sequence_length": 2048, "num_groups_cluster": 1000}
    about = {"device": "cpu:0", "processor": "A & B", "cores": 2, "versions": {"jax": "1"}, "commit": "abc"}
    orders = {
        **entries(),
        "cluster sorted": entry("cluster_sorted", 0.01, 500.0, 0.9, 0.9),
        "one alignment": entry("balance", 2.0, 7.0, 0.2, 0.35),
        "exact f2": {"method": "greedy", "seconds": 99.0, "compile_seconds": 0.0, "reckoned": True},
    }
    return {**about, "corpus": corpus, "orders": orders}


def test_the_picture_shows_the_worse_offset() -> None:
    points, bound = picture.points_of(results())
    closed = {point.label: point.closed for point in points}
    assert closed["uniform shuffle"] == 0
    assert closed["balance 4096"] == pytest.approx((0.5 - 0.303) / 0.4)
    assert closed["one alignment"] == pytest.approx((0.5 - 0.35) / 0.4)
    assert "exact f2" not in closed
    assert bound == pytest.approx(0.38 / 0.4)
