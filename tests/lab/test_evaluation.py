"""Mean losses of documents: as a slow reference has them, on any loader, with intervals that hold the truth."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

import jax_diversity as jd
from jax_diversity.lab.calibration import Composition, Family, tokens_by_group
from jax_diversity.lab.evaluation import Evaluated, MeanLoss
from jax_diversity.lab.group_losses import document_families
from jax_diversity.pipeline.tables import held_out_line
from tests.lab.test_calibration import reference

FAMILIES = ("cluster", "host", "language", "source")


@pytest.fixture(scope="module")
def built(tiny_dataset: Path) -> jd.Dataset:
    return jd.open_dataset(tiny_dataset)


def loss_of(token: Any, target: Any) -> Any:
    """A loss that depends on nothing but a token and the next one."""
    return 1 + (7 * token + 3 * target) % 11 / 4


@jax.jit
def token_losses(batch: dict[str, Any]) -> jax.Array:
    losses = loss_of(batch["inputs"].astype(jnp.float32), batch["targets"].astype(jnp.float32))
    return jnp.where(batch["targets_segmentation"] > 0, losses, jnp.nan)  # of other tokens nothing is read


def reference_sums(dataset: jd.Dataset, segments: jd.Segments, rows: range) -> dict[int, tuple[float, int]]:
    """Document -> summed loss and number of targets, token by token."""
    found: dict[int, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for index in range(len(segments)):
        if segments.sequence_index[index] not in rows:
            continue
        document, start = int(segments.document_index[index]), int(segments.document_offset[index])
        tokens = dataset.tokens.document(document)[start : start + segments.length[index]].tolist()
        losses = [loss_of(token, target) for token, target in pairwise(tokens)]
        found[document] = (found[document][0] + sum(losses), found[document][1] + len(losses))
    return found


def plain_mean(units: list[tuple[float, int]]) -> float:
    return sum(loss for loss, _ in units) / sum(count for _, count in units)


def calibrated(
    dataset: jd.Dataset, sums: dict[int, tuple[float, int]], of_all: np.ndarray | None = None
) -> tuple[float, float]:
    """The mean and its error, from whole matrices over all documents, or over those of one group."""
    table = pq.read_table(dataset.root / "characteristics" / "documents.parquet")
    every = np.arange(table.num_rows) if of_all is None else of_all
    codes = {}
    for family in FAMILIES:
        known, values = dataset.group_names[family], table[family].to_pylist()
        if family != "cluster":  # rare values are one group
            values = [value if value in known else "(other)" for value in values]
        codes[family] = np.unique(values, return_inverse=True)[1]
    units: dict[int, list[int]] = defaultdict(list)
    for document, (_, count) in sorted(sums.items()):
        if count:
            units[int(dataset.duplicate_groups[document])].append(document)
    losses = [sum(sums[each][0] for each in unit) for unit in units.values()]
    counts = np.array([sum(sums[each][1] for each in unit) for unit in units.values()])
    mean, variance = reference(
        np.array(losses) / counts,
        counts,
        np.asarray(dataset.tokens.document_lengths)[every],
        {} if of_all is not None else codes,
        np.zeros(len(every), int),
        np.searchsorted(every, [unit[0] for unit in units.values()]),
    )
    return mean, variance**0.5


def by_copies(dataset: jd.Dataset, sums: dict[int, tuple[float, int]]) -> list[tuple[float, int]]:
    units: dict[int, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for document, (loss, count) in sums.items():
        group = int(dataset.duplicate_groups[document])
        units[group] = (units[group][0] + loss, units[group][1] + count)
    return list(units.values())


def assert_is(found: MeanLoss, plain: float, expected: tuple[float, float]) -> None:
    assert found.plain == pytest.approx(plain, rel=1e-5)
    if found.num_documents < 4:
        assert (found.mean, np.isnan(found.error)) == (found.plain, True)
        return
    assert (found.mean, found.error) == pytest.approx(expected, rel=1e-4)


def evaluator(dataset: jd.Dataset, size: int = 8, by: Any = (), **options: Any) -> jd.Evaluator:
    return jd.Evaluator(jd.make_loader(dataset, split="validation", global_batch_size=size, **options), by=by)


def test_means_and_errors_are_those_of_a_slow_reference(built: jd.Dataset) -> None:
    segments = built.validation_segments
    sums = reference_sums(built, segments, range(segments.num_sequences))
    found = evaluator(built, by=("source", "length"))(token_losses)
    assert set(document_families(built)) == {*FAMILIES, "length"}
    assert_is(found.loss, plain_mean(by_copies(built, sums)), calibrated(built, sums))
    assert found.loss.num_targets == sum(count for _, count in sums.values())
    student = stats.t.ppf(0.975, found.loss.num_documents - 1)
    assert found.loss.low + found.loss.high == pytest.approx(2 * found.loss.mean)
    assert 1 <= found.loss.reach / (student * found.loss.error) <= 1 + 2 / 3 * student  # wider for skewed losses
    sources = built.documents.to_table(columns=["source"])["source"].to_pylist()
    by_source = found.by_group("source")
    assert set(by_source) == {sources[document] for document, (_, count) in sums.items() if count}
    for name, mean in by_source.items():
        own = {document: each for document, each in sums.items() if sources[document] == name}
        members = np.flatnonzero(np.array(sources) == name)
        assert_is(mean, plain_mean(by_copies(built, own)), calibrated(built, own, members))
    assert sum(mean.num_targets for mean in found.by_group("length").values()) == found.loss.num_targets
    values = found.values()
    assert values["validation_loss"] == found.loss.mean
    assert values["validation_loss_high"] == found.loss.high
    assert {f"validation_loss/source/{name}" for name in by_source} < set(values)
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_mean_losses_as_a_frame_of_pandas(built: jd.Dataset) -> None:
    pytest.importorskip("pandas")
    found = evaluator(built, by=("source", "length"))(token_losses)
    by_source = found.by_group("source")
    frame = found.to_frame()
    assert len(frame) == 1 + len(by_source) + len(found.by_group("length"))
    assert frame["mean"][0] == found.loss.mean
    of_sources = frame.query("family == 'source'").set_index("group")
    assert of_sources["high"].to_dict() == {name: mean.high for name, mean in by_source.items()}
    assert of_sources["num_targets"].sum() == found.loss.num_targets


@pytest.mark.parametrize("size", [1, 5, 64])
def test_batch_size_order_and_names_change_nothing(built: jd.Dataset, size: int) -> None:
    whole = evaluator(built)(token_losses)
    order = np.random.default_rng(0).permutation(built.validation.num_sequences)
    other = evaluator(built, size, ordering=order, num_prefetch=0)(token_losses)
    np.testing.assert_allclose(other.sums, whole.sums, rtol=1e-5)
    assert (other.counts == whole.counts).all()
    names = {"inputs": "tokens", "targets_segmentation": "mask"}
    renamed = evaluator(built, size, names=names)

    def of_renamed(batch: dict[str, Any]) -> jax.Array:
        return token_losses({**batch, "inputs": batch["tokens"], "targets_segmentation": batch["mask"]})

    assert astuple(renamed(of_renamed).loss) == pytest.approx(astuple(whole.loss), rel=1e-6)


def test_merged_segments_count_the_first_tokens_of_documents(built: jd.Dataset) -> None:
    part = built.validation
    expected: dict[int, int] = defaultdict(int)
    for index in range(len(part.segments)):
        first = part.segments.position[index] == 0
        expected[int(part.segments.document_index[index])] += int(part.segments.length[index]) - int(first)
    found = evaluator(built, merge_segments=True)(token_losses)
    assert found.counts.tolist() == [expected[document] for document in sorted(expected)]


def test_the_first_batches_alone(built: jd.Dataset) -> None:
    sums = reference_sums(built, built.validation_segments, range(16))
    order = np.arange(built.validation.num_sequences)
    found = evaluator(built, ordering=order)(token_losses, num_batches=2)
    assert_is(found.loss, plain_mean(by_copies(built, sums)), calibrated(built, sums))
    endless = jd.Evaluator(jd.make_loader(built, global_batch_size=8, num_epochs=None))
    assert endless(token_losses, num_batches=1).loss.num_targets > 0
    with pytest.raises(jd.UserError, match="found num_epochs=None; give num_batches"):
        endless(token_losses)


def test_several_loaders_and_several_datasets_are_one_evaluation(built: jd.Dataset) -> None:
    one = evaluator(built, by="source")(token_losses)
    loader = jd.make_loader(built, split="validation", global_batch_size=8)
    both = jd.Evaluator(loader, loader, by="source")(token_losses)
    joined = jd.make_loader([built, built], split="validation", global_batch_size=8)
    for found in (both, jd.Evaluator(joined, by="source")(token_losses)):
        assert found.loss.num_documents == 2 * one.loss.num_documents
        assert found.loss.plain == pytest.approx(one.loss.plain)
        assert found.loss.mean == pytest.approx(one.loss.mean, rel=1e-2)  # twice the documents: less is shrunk
        assert found.by_group("source").keys() == one.by_group("source").keys()


def test_a_difference_of_two_models_is_paired(built: jd.Dataset) -> None:
    evaluate = evaluator(built)
    before = evaluate(token_losses)
    after = evaluate(lambda batch: token_losses(batch) - 0.25)
    difference = (after - before).loss
    assert difference.mean == pytest.approx(-0.25, rel=1e-5)
    assert difference.error < 1e-5 < before.loss.error
    with pytest.raises(jd.UserError, match="Expected losses of the same documents"):
        _ = after - evaluate(token_losses, num_batches=1)


def test_groups_without_an_interval_say_so() -> None:
    codes = np.array([0, 0, 1, 1])
    found = Evaluated(
        np.array([6.0, 8.0, 1.0, 0.0]),
        np.array([2, 4, 1, 0]),
        np.array([0, 0, 1, 2]),
        {"source": (("a", "b"), codes)},
        Composition(
            np.zeros(4, int), np.arange(4), codes, np.ones((1, 128)), {"source": Family(codes, np.ones((1, 2, 128)))}
        ),
    )
    assert found.loss.mean == pytest.approx(15 / 7)
    assert found.loss.num_documents == 2
    one = found.by_group("source")["a"]  # two copies are one document
    assert (one.mean, one.num_documents) == (pytest.approx(14 / 6), 1)
    assert np.isnan([one.error, one.low, one.high]).all()
    assert "validation_loss_low/source/a" not in found.values()
    assert str(one) == "2.3333 nats per token (6 tokens, 1 document; too few for an interval)"


def test_bad_input_is_one_sentence(built: jd.Dataset) -> None:
    with pytest.raises(jd.UserError, match="Expected a loader of make_loader, found none"):
        jd.Evaluator()
    with pytest.raises(jd.UserError, match="found one of host 1 of 2; give make_loader a sharding"):
        evaluator(built, num_hosts=2, host_index=1)
    with pytest.raises(jd.UserError, match="targets_segmentation among its fields, found inputs; add it"):
        evaluator(built, fields=("inputs",))
    with pytest.raises(jd.UserError, match=r"Expected a family among .*, found 'topic'"):
        evaluator(built, by="topic")
    evaluate = evaluator(built, by="source")
    with pytest.raises(jd.UserError, match=r"an array \(8, 32\), found \(\); return the losses before their mean"):
        evaluate(lambda batch: token_losses(batch).mean())
    with pytest.raises(jd.UserError, match="num_batches to be a whole number >= 1, found 0"):
        evaluate(token_losses, num_batches=0)
    with pytest.raises(jd.UserError, match=r"family of the evaluator \(source\), found 'cluster'; make it with by="):
        evaluate(token_losses).by_group("cluster")


def of_sources(names: tuple[str, ...], sources: list[int]) -> Evaluated:
    number = len(sources)
    sums, counts, codes = np.random.default_rng(0).normal(30, 1, number), np.full(number, 10), np.array(sources)
    family = Family(codes, tokens_by_group(codes, len(names), counts)[None])
    whole = Composition(np.zeros(number, int), np.arange(number), counts, family.tokens.sum(axis=1), {"source": family})
    return Evaluated(sums, counts, np.arange(number), {"source": (names, codes)}, whole)


def test_the_table_names_groups_without_documents_and_puts_small_ones_below() -> None:
    found = of_sources(("small", "web", "absent", "code"), [0, 1, 1, 1, 1, 3, 3, 3, 3])
    lines = str(found).splitlines()
    assert lines[0] == str(found.loss)
    assert [line.split()[0] for line in lines[1:4]] == ["source:", "web", "code"]
    assert lines[4] == "source, too few documents for an interval:"
    assert lines[5].split()[0] == "small"
    assert "±" not in lines[5]
    assert lines[6:] == ["source, no document was evaluated: absent"]
    assert found.without_documents("source") == ["absent"]
    many = of_sources((*map(str, range(30)), "web"), [30, 30])
    assert str(many).splitlines()[-1].endswith("7, 8, 9 and 20 more")
    with pytest.raises(jd.UserError, match="Expected a family of the evaluator"):
        found.without_documents("cluster")


def test_a_difference_says_that_it_is_of_one_pair_of_models() -> None:
    found = of_sources(("web", "code"), [0] * 4 + [1] * 4)
    words = "of this pair of models on these documents, without the noise of seeds"
    assert words not in str(found)
    difference = found - found
    assert difference.is_difference
    assert words in str(difference.loss)
    assert words in str(difference.by_group("source")["web"])
    assert str(difference).count(words) == 1


def test_the_last_lines_of_a_build_name_sources_without_a_held_out_document(built: jd.Dataset) -> None:
    sources = np.array(built.documents.to_table(columns=["source"])["source"].to_pylist())
    absent = sorted(set(sources) - set(sources[built.held_out]))
    assert bool(absent) == bool(line := held_out_line(built))
    assert all(name in line for name in absent)
    held_out = np.zeros(len(sources), bool)
    other = jd.open_dataset(built.root)
    vars(other)["held_out"] = held_out
    assert held_out_line(other) == ""
    held_out[np.flatnonzero(sources == sources[0])[:1]] = True
    words = " ".join(held_out_line(other).split())
    rest = sorted(set(sources) - {sources[0]})
    number = "source" if len(rest) == 1 else "sources"
    assert words.startswith(f"{len(rest)} {number} of {len(rest) + 1} without a held-out document: ")
    assert all(name in words for name in rest)
