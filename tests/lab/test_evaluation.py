"""Mean losses of documents: as a slow reference has them, on any loader, with intervals that hold the truth."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jax_diversity as jd


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


def reference_mean(units: list[tuple[float, int]]) -> tuple[float, float]:
    """The mean, and its standard error by leaving out one unit after another."""
    units = [unit for unit in units if unit[1]]
    total, targets = sum(loss for loss, _ in units), sum(count for _, count in units)
    others = [(total - loss) / (targets - count) for loss, count in units] if len(units) > 1 else []
    centre = sum(others) / max(len(others), 1)
    variance = (len(others) - 1) / max(len(others), 1) * sum((other - centre) ** 2 for other in others)
    return total / targets, variance**0.5 if others else float("nan")


def by_copies(dataset: jd.Dataset, sums: dict[int, tuple[float, int]]) -> list[tuple[float, int]]:
    units: dict[int, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for document, (loss, count) in sums.items():
        group = int(dataset.duplicate_groups[document])
        units[group] = (units[group][0] + loss, units[group][1] + count)
    return list(units.values())


def assert_is(found: jd.MeanLoss, expected: tuple[float, float]) -> None:
    assert (found.mean, found.error) == pytest.approx(expected, rel=1e-5, nan_ok=True)


def evaluator(dataset: jd.Dataset, size: int = 8, by: Any = (), **options: Any) -> jd.Evaluator:
    return jd.Evaluator(jd.make_loader(dataset, split="validation", global_batch_size=size, **options), by=by)


def test_means_and_errors_are_those_of_a_slow_reference(built: jd.Dataset) -> None:
    segments = built.validation_segments
    sums = reference_sums(built, segments, range(segments.num_sequences))
    found = evaluator(built, by=("source", "length"))(token_losses)
    assert_is(found.loss, reference_mean(by_copies(built, sums)))
    assert found.loss.num_targets == sum(count for _, count in sums.values())
    counts = np.array([count for _, count in by_copies(built, sums)])
    reach = stats.t.ppf(0.975, counts.sum() ** 2 / (counts**2).sum() - 1) * found.loss.error
    assert (found.loss.low, found.loss.high) == pytest.approx((found.loss.mean - reach, found.loss.mean + reach))
    sources = built.documents.to_table(columns=["source"])["source"].to_pylist()
    by_source = found.by_group("source")
    assert set(by_source) == {sources[document] for document, (_, count) in sums.items() if count}
    for name, mean in by_source.items():
        own = {document: each for document, each in sums.items() if sources[document] == name}
        assert_is(mean, reference_mean(by_copies(built, own)))
    assert sum(mean.num_targets for mean in found.by_group("length").values()) == found.loss.num_targets
    values = found.values()
    assert values["validation_loss"] == found.loss.mean
    assert values["validation_loss_high"] == found.loss.high
    assert {f"validation_loss/source/{name}" for name in by_source} < set(values)
    assert json.loads(json.dumps(values, allow_nan=False)) == values


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

    assert renamed(of_renamed).loss == pytest.approx(whole.loss, rel=1e-6)


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
    assert_is(found.loss, reference_mean(by_copies(built, sums)))
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
        assert found.loss.mean == pytest.approx(one.loss.mean)
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


def evaluated(rng: np.random.Generator, number: int) -> jd.Evaluated:
    """Documents of a population whose mean loss is 3: of very different lengths, longer ones with lower losses."""
    counts = rng.lognormal(5, 1, number).astype(np.int64) + 1
    levels = 3 - 0.2 * (np.log(counts) - 6) + rng.normal(0, 0.5, number)  # 6: the mean over tokens of log lengths
    return jd.Evaluated(counts * levels, counts, np.arange(number), {})


@pytest.mark.parametrize("number", [25, 200])
def test_intervals_hold_the_truth(number: int) -> None:
    """Of 95 % intervals 92 to 97 % hold the mean of the population, which a million documents have almost exactly."""
    rng = np.random.default_rng(0)
    truth = evaluated(rng, 1_000_000).loss.mean
    found = [evaluated(rng, number).loss for _ in range(1000)]
    share = np.mean([each.low <= truth <= each.high for each in found])
    assert 0.92 <= share <= 0.97


def test_groups_without_an_interval_say_so() -> None:
    codes = np.array([0, 0, 1, 1])
    found = jd.Evaluated(
        np.array([6.0, 8.0, 1.0, 0.0]),
        np.array([2, 4, 1, 0]),
        np.array([0, 0, 1, 2]),
        {"source": (("a", "b"), codes)},
    )
    assert found.loss.mean == pytest.approx(15 / 7)
    assert found.loss.num_documents == 2
    one = found.by_group("source")["a"]  # two copies are one document
    assert (one.mean, one.num_documents) == (pytest.approx(14 / 6), 1)
    assert np.isnan([one.error, one.low, one.high]).all()
    assert "validation_loss_low/source/a" not in found.values()
    assert str(one) == "2.3333 nats per token (6 tokens, 1 document)"


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
