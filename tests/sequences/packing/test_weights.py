"""Weights: how often documents appear, where their appearances lie, in packing, orderings, schedules and batches."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.passes.settings import PreparationConfig, StepConfig
from jax_diversity.schema.weights import parse_rules
from jax_diversity.sequences.characteristics.counts import arrange_turns, full_rows, sequence_copies
from jax_diversity.sequences.packing.appearances import draw_appearances, intersperse
from jax_diversity.sequences.packing.base import METHODS, pack
from jax_diversity.sequences.packing.weighing import group_means, matching
from jax_diversity.streaming.run.inspection import Inspector
from jax_diversity.streaming.run.inspection_text import uses_table
from jax_diversity.streaming.run.joining import joined_characteristics
from tests.support.packing_cases import packings, registered, tokens_of
from tests.support.tiny_corpus import tiny_config, write_corpus

NAMES = [f"document {number}" for number in range(2000)]


# ---- how often


def test_fractions_are_kept_in_the_mean_and_over_seeds_in_a_row() -> None:
    weights = np.full(len(NAMES), 2.5)
    drawn = draw_appearances(weights, NAMES, 7)
    assert set(drawn.tolist()) == {2, 3}
    assert abs(drawn.mean() - 2.5) < 0.05
    # Every document on its own: the others and their order do not matter.
    some = np.random.default_rng(0).permutation(len(NAMES))[:300]
    np.testing.assert_array_equal(draw_appearances(weights[some], [NAMES[i] for i in some], 7), drawn[some])
    for weight, share in ((0.3, 0.3), (0.5, 0.5), (0.0, 0.0), (1.0, 1.0), (1e-9, 0.0)):
        drawn = draw_appearances(np.full(len(NAMES), weight), NAMES, 0)
        assert set(drawn.tolist()) <= {0, 1}
        assert abs(drawn.mean() - share) < 0.04
    weights = np.random.default_rng(1).uniform(0, 4, len(NAMES))
    total = sum(draw_appearances(weights, NAMES, seed) for seed in range(5, 12))
    assert (np.abs(total - 7 * weights) < 1).all()
    # A larger weight never takes an appearance away.
    assert (draw_appearances(weights + 0.2, NAMES, 0) >= draw_appearances(weights, NAMES, 0)).all()


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30)), max_size=30), st.integers(0, 2**16))
def test_appearances_are_interspersed(documents: list[tuple[int, int]], seed: int) -> None:
    times, lengths = np.array([*documents, (0, 0)], np.int64).T
    order = np.random.default_rng(seed).permutation(len(times))
    found = intersperse(order, times, lengths)
    np.testing.assert_array_equal(np.bincount(found, minlength=len(times)), times)
    single = order[times[order] == 1]
    np.testing.assert_array_equal(found[np.isin(found, single)], single)
    if (times <= 1).all():
        np.testing.assert_array_equal(found, order[times[order] > 0])


def test_the_appearances_of_a_document_are_far_apart_in_the_packed_order() -> None:
    rng = np.random.default_rng(0)
    times = np.where(np.arange(600) % 3 == 0, 3, 1)
    found = intersperse(rng.permutation(600), times, np.full(600, 10))
    for document in range(0, 600, 3):
        gaps = np.diff(np.flatnonzero(found == document))
        assert gaps.min() > 0.9 * len(found) / 3


# ---- packing


@st.composite
def weighed(draw: st.DrawFn, method: str) -> tuple[np.ndarray, int, dict[str, Any]]:
    lengths, _, length, arguments = draw(packings(method))
    arguments["appearances"] = np.array(draw(st.lists(st.integers(0, 4), min_size=len(lengths), max_size=len(lengths))))
    return lengths, length, arguments


@pytest.mark.parametrize("method", registered())
@settings(max_examples=25)
@given(st.data())
def test_every_method_packs_appearances(method: str, data: st.DataObject) -> None:
    lengths, length, arguments = data.draw(weighed(method))
    done = pack(lengths, length, **arguments)
    segments, about = done.segments, done.report
    order, times = arguments["document_order"], arguments["appearances"]
    epochs = 10**6 if "num_epochs" in METHODS.options(method) else 1
    inserted = segments.inserted_ends(lengths)
    taken = Counter(token for tokens in tokens_of(segments, lengths) for token in tokens if token[1] != "end")
    assert all(number <= times[document] * epochs for (document, _), number in taken.items())
    assert {document for document, _ in taken} <= set(order.tolist())
    assert (
        about.num_tokens == lengths[order[times[order] > 0]].sum() == about.num_tokens_kept + about.num_tokens_dropped
    )
    assert about.num_tokens_kept == len(taken)
    assert about.num_tokens_repeated == sum(taken.values()) - len(taken)
    filled = np.bincount(segments.sequence_index, segments.length, segments.num_sequences)
    assert ((filled > 0) & (filled <= segments.sequence_length)).all()
    assert (segments.document_offset + segments.length - inserted <= lengths[segments.document_index]).all()
    # Once each is as without appearances.
    arguments["appearances"] = np.ones(len(lengths), np.int64)
    once = pack(lengths, length, **arguments).segments
    del arguments["appearances"]
    plain = pack(lengths, length, **arguments).segments
    np.testing.assert_array_equal(once.document_index, plain.document_index)
    np.testing.assert_array_equal(once.sequence_index, plain.sequence_index)


APART: list[tuple[str, int | None]] = [
    (method, size)
    for method in registered()
    if method not in ("megatron", "partial_shuffle")  # Megatron's shuffle is kept; a rotated row begins where it ends
    for size in ([None, 16, 128] if "atom_size" in METHODS.options(method) else [None])
]


@pytest.mark.parametrize(("method", "atom_size"), APART)
def test_no_sequence_holds_two_appearances(method: str, atom_size: int | None) -> None:
    rng = np.random.default_rng(3)
    number = 300
    lengths = rng.lognormal(3.0, 0.9, number).astype(int) + 1
    times = rng.choice([0, 1, 2, 3, 6], number, p=[0.1, 0.5, 0.2, 0.15, 0.05])
    clusters = rng.integers(0, 4, number)
    arguments: dict[str, Any] = {"clusters": clusters}
    if METHODS.takes(method, "vectors"):
        arguments["vectors"] = np.eye(4)[clusters] + 0.3 * rng.normal(size=(number, 4))
    if atom_size:
        arguments["atom_size"] = atom_size
    segments = pack(lengths, 64, method=method, appearances=times, **arguments).segments
    for tokens in tokens_of(segments, lengths):
        held = Counter(token for token in tokens if token[1] != "end")
        assert max(held.values()) == 1
    begun = np.bincount(segments.document_index[segments.document_offset == 0], minlength=number)
    assert (begun <= times).all()
    assert (times - begun).sum() <= 8  # in the last sequence, which is dropped


def test_a_document_in_more_appearances_than_sequences_is_still_packed() -> None:
    for method in ("best_fit", "first_fit", "concat", "pad"):
        segments = pack([3, 2], 8, method=method, appearances=[5, 1]).segments
        assert np.bincount(segments.document_index).tolist()[1] == 1
        assert segments.length[segments.document_index == 0].sum() >= 12


@pytest.mark.parametrize(
    ("appearances", "sentence"),
    [
        ([1, 2], "the appearances of each of 3 documents, found 2"),
        ([1, -1, 1], "appearances >= 0 and below 2147483648, found -1 at place 1"),
        ([1, 0.5, 1], "appearances to be one axis of integers"),
        ([2**31, 1, 1], "appearances >= 0 and below 2147483648"),
    ],
)
def test_appearances_that_pack_refuses(appearances: list, sentence: str) -> None:
    with pytest.raises(jd.UserError, match=re.escape(sentence)):
        pack([3, 2, 4], 4, appearances=appearances)


def test_tokens_of_all_appearances_are_counted_before_they_are_packed() -> None:
    with pytest.raises(jd.UserError, match=r"at most 2\^62 tokens in all"):
        pack([2**61], 4, appearances=[4])


# ---- rules


def test_what_rules_hold_of() -> None:
    rules = {"source=web-*": 2, "quality>=0.5": 3, " quality @ cluster < 0.5": 2}
    by_name, by_number, by_mean = parse_rules(rules, "packing.weights")
    assert matching(by_name, ["web-1", "web", None, "a web-1"]).tolist() == [True, False, False, False]
    assert matching(by_number, [0.5, 0.4, None, 10**400, -(10**400)]).tolist() == [True, False, False, True, False]
    values, group = np.array([0.2, 0.4, np.nan, 0.9, np.nan]), np.array([0, 0, 0, 1, 2])
    assert by_mean.compare(group_means(values, group)).tolist() == [True, True, True, False, False]
    with pytest.raises(jd.UserError, match=r"Expected numbers for the rule 'quality>=0.5' .* found 'good'"):
        matching(by_number, ["good"])


# ---- in a build


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents, the texts of which are all different, with weights, qualities and a copy of some."""
    folder = write_corpus(tmp_path_factory.mktemp("corpus"), num_documents=160)
    for part in sorted(folder.glob("*.jsonl")):
        records = [json.loads(line) for line in part.read_text(encoding="utf-8").splitlines()]
        for record in records:
            number = int(record["id"][4:])
            record |= {"weight": [1, 3, None, 0.5, 0, 2.5, 1, 1][number % 8], "quality": number % 5}
        copies = [{**record, "id": f"copy-of-{record['id']}"} for record in records[:6]]
        part.write_text("".join(json.dumps(record) + "\n" for record in [*records, *copies]), encoding="utf-8")
    return folder


def config_of(corpus: Path, out: Path, **packing: Any) -> BuildConfig:
    config = tiny_config(corpus, out)
    packing = {"validation_fraction": 0.1, **packing}
    orders = (OrderConfig(method="uniform_shuffle"), OrderConfig(method="balance"))
    return dataclasses.replace(config, packing=dataclasses.replace(config.packing, **packing), orders=orders)


@pytest.fixture(scope="module")
def built(corpus: Path, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = shutil.copytree(prepared, tmp_path_factory.mktemp("built") / "out")
    config = config_of(corpus, out, weight_field="weight", weights={"source=music": 2.0, "cluster=0": 1.0})
    Build(config).run_all()
    return out


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose stages before packing are made."""
    out = tmp_path_factory.mktemp("prepared") / "out"
    for stage in ("prepare", "tokenize", "embed", "cluster"):
        Build(config_of(corpus, out)).run_stage(stage)
    return out


def documents_of(dataset: jd.Dataset) -> tuple[list[dict[str, Any]], np.ndarray]:
    """The documents' rows with their metadata, and their weights by the settings of `built`."""
    rows = dataset.documents.to_table(columns=["id", "source", "metadata"]).to_pylist()
    rows = [row | json.loads(row["metadata"]) for row in rows]
    weights = [(1 if row.get("weight") is None else row["weight"]) * (1 + (row["source"] == "music")) for row in rows]
    return rows, np.array(weights, float)


def test_documents_come_as_often_as_their_weights_say(built: Path) -> None:
    dataset = jd.open_dataset(built)
    assert dataset.verify() == []
    rows, weights = documents_of(dataset)
    validation = set(dataset.validation_segments.document_index.tolist())
    times = dataset.appearances
    assert times is not None
    for document, weight in enumerate(weights.tolist()):
        expected = {0} if document in validation else {int(np.floor(weight)), int(np.ceil(weight))}
        assert int(times[document]) in expected
    # The batches hold exactly these tokens: every token so often as its document appears, but for a last sequence.
    loader = jd.make_loader(built, ordering="balance", global_batch_size=1, num_epochs=1)
    found: Counter[tuple[int, ...]] = Counter()
    end = dataset.end_id
    stream = []
    by_sequence = {int(s): batch for s, batch in zip(dataset.orderings["balance"].indices, loader, strict=True)}
    for sequence in range(dataset.num_sequences):
        batch = by_sequence[sequence]
        stream += batch["inputs"][0][batch["inputs_segmentation"][0] > 0].tolist()
    document: list[int] = []
    for token in stream:
        document.append(token)
        if token == end:
            found[tuple(document)] += 1
            document = []
    expected: Counter[tuple[int, ...]] = Counter()
    for number in range(len(rows)):
        expected[tuple(dataset.tokens.document(number).tolist())] += int(times[number])
    missing = expected - found
    assert not found - expected
    assert missing.total() <= 1
    counts = dataset.counts("pack")
    assert counts["num_appearances"] == times.sum()
    assert counts["num_documents_repeated"] == (times > 1).sum()
    left_out = (times == 0) & ~np.isin(np.arange(len(times)), [*validation])
    assert counts["num_documents_left_out"] == left_out.sum() > 0
    assert "several times by weight" in dataset.manifest["stages"]["pack"]["summary"]
    page = json.loads((built / "report.json").read_text(encoding="utf-8"))
    assert page["packing"]["num_documents_repeated"] == counts["num_documents_repeated"]


def test_validation_keeps_all_copies_and_repeats_none(built: Path) -> None:
    dataset = jd.open_dataset(built)
    _, weights = documents_of(dataset)
    segments = dataset.validation_segments
    held = np.unique(segments.document_index)
    assert len(held) > 3
    assert not np.intersect1d(held, dataset.segments.document_index).size
    groups = dataset.duplicate_groups
    assert not np.intersect1d(groups[held], groups[dataset.segments.document_index]).size
    assert (np.bincount(segments.document_index[segments.document_offset == 0]) <= 1).all()
    assert (weights[held] > 0).all()
    np.testing.assert_array_equal(held, np.flatnonzero(dataset.held_out & (weights > 0)))


def recurrences(dataset: jd.Dataset, indices: np.ndarray) -> np.ndarray:
    """Positions between two that hold the same token of a document, as parts of an even spacing."""
    segments, times = dataset.segments, dataset.appearances
    assert times is not None
    position = np.empty(len(indices), int)
    position[indices] = np.arange(len(indices))
    places: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(times[segments.document_index] > 1).tolist():
        document, offset = int(segments.document_index[row]), int(segments.document_offset[row])
        for token in range(offset, offset + int(segments.length[row])):
            places.setdefault((document, token), []).append(int(position[segments.sequence_index[row]]))
    gaps = [
        (np.diff(sorted(held)) / (len(indices) / times[document])).tolist() for (document, _), held in places.items()
    ]
    return np.concatenate(gaps)


def test_the_balanced_order_keeps_appearances_apart_and_the_weighted_mixture(built: Path) -> None:
    dataset = jd.open_dataset(built)
    chars = dataset.characteristics
    shuffled, balanced = (
        recurrences(dataset, dataset.orderings[name].indices) for name in ("uniform_shuffle", "balance")
    )
    assert np.quantile(shuffled, 0.05) < 0.15
    assert np.quantile(balanced, 0.05) > 0.2
    assert np.median(balanced) > 0.85
    # Targets are the shares of what is read, every appearance counted.
    rows, _ = documents_of(dataset)
    names = dataset.group_names["source"]
    tokens = np.zeros(len(names))
    for document, length in zip(dataset.segments.document_index, dataset.segments.length, strict=True):
        tokens[names.index(rows[document]["source"])] += length
    np.testing.assert_allclose(chars.target_share("source"), tokens / tokens.sum())
    plain, summary = (
        jd.measure(chars, dataset.orderings[name], windows=(32,)) for name in ("uniform_shuffle", "balance")
    )
    assert summary.window_tv["source"][32].mean() < 0.5 * plain.window_tv["source"][32].mean()
    assert summary.copies is not None
    assert plain.copies is not None
    assert plain.copies.summary()["gap_low"] < 0.1
    assert summary.copies.summary()["gap_low"] > 0.3


def test_exchanges_by_turn_change_no_count(built: Path) -> None:
    chars = jd.open_dataset(built).characteristics
    assert chars.turns is not None
    assert (chars.turns >= 0).sum() > 20
    without = dataclasses.replace(chars, turns=None)
    for method in ("balance", "greedy"):
        first, second = jd.order(chars, method, seed=3).indices, jd.order(without, method, seed=3).indices
        assert (first != second).any()
        for family in set(chars.families) - {"tokens"}:  # sequences of one document differ in their tokens alone
            rows = chars.counts[family]
            assert (rows[first] != rows[second]).nnz == 0
        held = chars.documents
        assert held is not None
        np.testing.assert_array_equal(held[first], held[second])
        mine = first[(chars.turns[first] >= 0) & (held[first] == np.bincount(held[chars.turns >= 0]).argmax())]
        assert (np.diff(chars.turns[mine]) > 0).all()
    # Orders that take no account of documents, as published ones, stay as they are.
    published = jd.Objective.f3()
    np.testing.assert_array_equal(
        jd.order(chars, "greedy", objective=published).indices, jd.order(without, "greedy", objective=published).indices
    )
    assert chars.fingerprint != without.fingerprint
    np.testing.assert_array_equal(chars.take(np.array([5, 2])).turns, chars.turns[[5, 2]])
    with pytest.raises(jd.UserError, match="the turns of 2 sequences, found 1"):
        jd.Characteristics.from_counts({"topic": np.eye(2, dtype=int)}, turns=[1])


def test_turns_and_copies_of_segments() -> None:
    packed = pack([8, 2, 4], 4, appearances=[2, 1, 2], document_order=[0, 1, 2]).segments
    turns = arrange_turns(full_rows(packed, np.array([2, 1, 2])), packed.num_sequences)
    whole = (np.bincount(packed.sequence_index) == 1) & (np.bincount(packed.sequence_index, packed.length) == 4)
    np.testing.assert_array_equal(turns >= 0, whole)
    copies = sequence_copies(packed, np.arange(3), np.array([2, 1, 2]))
    assert set(copies[copies >= 0].tolist()) == {0, 2}
    assert sequence_copies(packed, np.arange(3)).shape[1] == 0


def test_inspect_shows_every_appearance(built: Path) -> None:
    dataset = jd.open_dataset(built)
    times, ids = dataset.appearances, list(dataset.document_store.ids())
    assert times is not None
    inspector = Inspector(jd.make_run(dataset, "balance"), 8)
    document = int(np.flatnonzero(times == 3)[0])
    uses = inspector.uses(ids[document])
    assert sum(use.document_offset == 0 for use in uses) == 3 == inspector.appearances(ids[document])
    assert "3 times by its weight" in uses_table(ids[document], inspector.run, uses, 3)
    never = int(np.flatnonzero(times == 0)[0])
    assert inspector.uses(ids[never]) == []
    assert inspector.absence(ids[never]) == "left out by its weight"
    assert "times by" not in uses_table(ids[document], inspector.run, uses, None)


@pytest.mark.campaign
def test_runs_other_packings_and_other_datasets(built: Path, corpus: Path, tmp_path: Path) -> None:
    dataset = jd.open_dataset(built)
    again = jd.repack(built, tmp_path / "packed-1", seed=1)
    _, weights = documents_of(dataset)
    both = np.stack([dataset.appearances, again.appearances])
    training = both.any(axis=0) & (weights % 1 == 0.5)
    assert training.sum() > 5
    np.testing.assert_array_equal(both.sum(axis=0)[training], 2 * weights[training])
    run = jd.create_schedule(tmp_path / "run", [dataset, again], consecutive=True)
    seen = run.seen().to_pylist()
    tokens = sum(row["tokens"] for row in seen)
    assert tokens == dataset.segments.length.sum() + again.segments.length.sum()
    batch = next(iter(jd.make_loader(run, global_batch_size=8)))
    assert batch["inputs"].shape == (8, 32)
    joint = jd.create_schedule(tmp_path / "joint", [dataset, again], joint=True, num_positions=256)
    assert len(joint) == 256
    # A dataset without weights beside one with them.
    plain = config_of(corpus, tmp_path / "plain", weight_field=None)
    for stage in ("prepare", "tokenize", "embed", "cluster", "pack", "characterize", "write"):
        Build(dataclasses.replace(plain, features_from=str(built))).run_stage(stage)
    other = jd.open_dataset(tmp_path / "plain")
    assert other.appearances is None
    joined = joined_characteristics([other, dataset])
    assert joined.turns is not None
    assert (joined.turns[: other.num_sequences] == -1).all()
    np.testing.assert_array_equal(joined.turns[other.num_sequences :], dataset.sequence_turns)
    assert joined_characteristics([other, other]).turns is None


@pytest.mark.parametrize("method", registered())
def test_every_method_in_a_build(method: str, corpus: Path, prepared: Path) -> None:
    config = config_of(corpus, prepared, method=method, weight_field="weight")
    Build(config).run_stage("pack")
    dataset = jd.open_dataset(prepared)
    times = dataset.appearances
    assert times is not None
    segments = dataset.segments
    begun = np.bincount(segments.document_index[segments.document_offset == 0], minlength=len(times))
    if "num_rows" not in METHODS.options(method) and not segments.overlap:
        assert (begun <= times).all()
        assert (times - begun).sum() <= 8
    lengths = dataset.tokens.document_lengths
    counts = dataset.counts("pack")
    packed = (times > 0) | np.isin(np.arange(len(times)), dataset.validation_segments.document_index)
    assert counts["num_tokens_kept"] + counts["num_tokens_dropped"] == lengths[packed].sum()
    assert counts["num_tokens_repeated"] > 0
    if method == "megatron":
        from jax_diversity.streaming.export.megatron import packed_indices

        indices = packed_indices(dataset)
        np.testing.assert_array_equal(np.bincount(indices.document_index, minlength=len(times)), times)
        np.testing.assert_array_equal(np.load(prepared / "sequences" / "shuffle_index.npy"), indices.shuffle_index)


def test_spacing_of_documents_counts_appearances(corpus: Path, prepared: Path) -> None:
    Build(config_of(corpus, prepared, weight_field="weight", document_order="spacing")).run_stage("pack")
    dataset = jd.open_dataset(prepared)
    times = dataset.appearances
    assert times is not None
    assert dataset.segments.length.sum() > (times * dataset.tokens.document_lengths).sum() - 32


# ---- which weights are in use


def test_a_foreign_field_changes_nothing_and_is_told(corpus: Path, prepared: Path) -> None:
    Build(config_of(corpus, prepared)).run_stage("pack")
    dataset = jd.open_dataset(prepared)
    assert dataset.appearances is None
    assert not (prepared / "sequences" / "appearances.npy").exists()
    assert dataset.counts("pack")["unused_weight_field"]
    assert "the field weight is not used" in dataset.manifest["stages"]["pack"]["summary"]
    lengths, held = dataset.tokens.document_lengths, dataset.validation_segments.document_index
    order = np.random.default_rng(0).permutation(len(lengths))
    expected = pack(lengths, 32, document_order=order[~np.isin(order, held)]).segments
    np.testing.assert_array_equal(dataset.segments.document_index, expected.document_index)


MODULE = """
def weigh(document):
    return {"weight": 2 if document.source == "law" else 1}
"""


def test_a_weight_that_a_step_adds_is_used_without_further_settings(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weighing_of_tests.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    steps = (StepConfig("python", {"function": "weighing_of_tests:weigh"}),)
    config = dataclasses.replace(config_of(corpus, tmp_path / "out"), preparation=PreparationConfig(steps))
    for stage in ("prepare", "tokenize", "embed", "cluster", "pack"):
        Build(config).run_stage(stage)
    dataset = jd.open_dataset(tmp_path / "out")
    assert dataset.counts("prepare")["preparation"]["fields"] == ["weight"]
    sources = np.array(dataset.documents.to_table(columns=["source"])["source"].to_pylist())
    times = dataset.appearances
    assert times is not None
    assert set(times[sources == "law"].tolist()) <= {0, 2}
    assert set(times[sources != "law"].tolist()) <= {0, 1}
    off = dataclasses.replace(config, packing=dataclasses.replace(config.packing, weight_field=None))
    Build(off).run_stage("pack")
    assert jd.open_dataset(tmp_path / "out").appearances is None


def test_rules_by_fields_clusters_and_means(corpus: Path, prepared: Path) -> None:
    def times_by(**weights: float) -> np.ndarray:
        Build(config_of(corpus, prepared, weights=weights, validation_fraction=0.0)).run_stage("pack")
        times = jd.open_dataset(prepared).appearances
        assert times is not None
        return times

    dataset = jd.open_dataset(prepared)
    rows, _ = documents_of(dataset)
    quality = np.array([row["quality"] for row in rows])
    np.testing.assert_array_equal(times_by(**{"quality>=3": 3.0}), np.where(quality >= 3, 3, 1))
    np.testing.assert_array_equal(
        times_by(**{"quality=3": 2.0, "quality<4": 2.0}), [4 if q == 3 else 1 + (q < 4) for q in quality]
    )
    clusters = dataset.assignments()
    np.testing.assert_array_equal(times_by(**{"cluster=1": 2.0}), np.where(clusters == 1, 2, 1))
    means = np.bincount(clusters, quality) / np.bincount(clusters)
    middle = float(np.median(means))
    expected = np.where(means[clusters] > middle, 2, 1)
    np.testing.assert_array_equal(times_by(**{f"quality@cluster>{middle!r}": 2.0}), expected)
    assert "cluster" in jd.open_dataset(prepared).manifest["stages"]["pack"]["inputs"]


@pytest.mark.parametrize(
    ("packing", "sentence"),
    [
        ({"weights": {"sauce=web": 2.0}}, "to name source, language, cluster or metadata fields .* found 'sauce=web'"),
        ({"weights": {"source=web": 2.0}}, "the rule 'source=web' of packing.weights to match a document, found none"),
        ({"weights": {"quality@topic>1": 2.0}}, "found 'quality@topic>1'"),
        ({"weights": {"source>=1": 2.0}}, "Expected numbers for the rule 'source>=1' .* compare texts by ="),
        ({"weight_field": "wait"}, "packing.weight_field to be a metadata field .* found 'wait'"),
        ({"weights": {"source=law": 999.0, "quality=1": 999.0}}, "at most 1,000, found 998,001 of document 'doc-"),
    ],
)
def test_settings_that_the_documents_refuse(packing: dict, sentence: str, corpus: Path, prepared: Path) -> None:
    with pytest.raises(jd.UserError, match=sentence):
        Build(config_of(corpus, prepared, **packing)).run_stage("pack")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("-1", "found -1 in document 'bad'"),
        ('"3"', "found '3' in document 'bad'"),
        ("true", "found True in document 'bad'"),
        ("[1]", r"found \[1\] in document 'bad'"),
        ("1" + "0" * 400, "in document 'bad'"),
        (
            "1e9",
            r"at most 1,000, found 1e\+09 of document 'bad' \(all 41 documents together would appear 1e\+09 times\)",
        ),
    ],
)
def test_hostile_weights(value: str, sentence: str, tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus", num_documents=40)
    with (folder / "part-0.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"id": "bad", "text": "a text of some words", "weight": ' + value + "}\n")
    config = config_of(folder, tmp_path / "out", weight_field="weight")
    with pytest.raises(jd.UserError, match=sentence):
        Build(config).run_all()
    assert not (tmp_path / "out" / "tokens").exists()  # as soon as the documents are known


@pytest.mark.campaign
def test_documents_that_a_step_marks_as_copies_are_copies(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus", num_documents=60)
    words = " ".join(f"word{number}" for number in range(60))
    near = [{"id": f"near-{n}", "text": f"{words} {'abcdefgh'[n]}", "source": "near"} for n in range(8)]
    with (folder / "part-1.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(record) + "\n" for record in near))
    steps = (StepConfig("minhash", {"mark": True}),)
    config = dataclasses.replace(
        config_of(folder, tmp_path / "out", validation_fraction=0.3),
        preparation=PreparationConfig(steps),
    )
    Build(config).run_all()
    dataset = jd.open_dataset(tmp_path / "out")
    ids = list(dataset.document_store.ids())
    members = [ids.index(record["id"]) for record in near]
    groups = dataset.duplicate_groups
    assert len(set(groups[members].tolist())) == 1
    assert sorted(set(groups.tolist())) == list(range(len(set(groups.tolist()))))
    in_validation = np.isin(members, dataset.validation_segments.document_index)
    assert in_validation.all() or not in_validation.any()
    # Their sequences are known to the orderings.
    if not in_validation.any():
        held = dataset.sequence_copies
        assert (held == groups[members[0]]).any(axis=1).sum() >= 8
        chars = dataset.characteristics
        balanced, shuffled = (
            jd.measure(chars, dataset.orderings[n], windows=(8,)) for n in ("balance", "uniform_shuffle")
        )
        assert balanced.copies is not None
        assert shuffled.copies is not None
        assert balanced.copies.summary()["gap_low"] > shuffled.copies.summary()["gap_low"]
