"""A step and the losses of the lab's model are what slow references give, and losses of groups add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.lab.compiled import compiled_model
from jax_diversity.lab.explaining.sketching import sketch
from jax_diversity.lab.group_losses import document_codes
from jax_diversity.lab.model import cross_entropy
from jax_diversity.lab.settings import Size


def test_losses_of_tokens_add_up_and_have_the_gradient_of_the_sum():
    rng = np.random.default_rng(0)
    hidden, embedding = rng.normal(size=(7, 5)).astype(np.float32), rng.normal(size=(9, 5)).astype(np.float32)
    targets, weight = rng.integers(9, size=7), rng.integers(2, size=7).astype(np.float32)
    hidden, embedding, targets, weight = map(jnp.asarray, (hidden, embedding, targets, weight))
    (loss, losses), gradient = jax.value_and_grad(cross_entropy, has_aux=True)(hidden, embedding, targets, weight)
    logits = np.asarray(hidden, np.float64) @ np.asarray(embedding).T
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(7), targets]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert float(loss) == pytest.approx(float(weight @ expected), rel=1e-5)
    plain = jax.grad(lambda h: weight @ -jax.nn.log_softmax(h @ embedding.T)[jnp.arange(7), targets])(hidden)
    np.testing.assert_allclose(gradient, plain, atol=1e-5)
    np.testing.assert_allclose(cross_entropy(hidden, embedding, targets, weight)[1], expected, rtol=1e-5)


def test_steps_of_adamw_are_those_of_a_slow_reference():
    """Loshchilov and Hutter 2019, algorithm 2, with clipped gradients; another weight decay compiles no new program."""
    made = compiled_model(50, Size(8, 1, 1))
    rng, rate = np.random.default_rng(0), 0.01
    tokens = rng.integers(1, 50, (3, 4, 17), dtype=np.int32)
    segments, places = np.ones((4, 16), np.int32), np.tile(np.arange(16, dtype=np.int32), (4, 1))
    alike = {"inputs_segmentation": segments, "targets_segmentation": segments, "inputs_position": places}
    batches = [{"inputs": each[:, :-1], "targets": each[:, 1:], **alike} for each in tokens]
    for decay in (0.1, 0.0, 2.0):
        parameters, state = made.start(0)
        weights = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(parameters)]
        first, second = ([np.zeros_like(leaf) for leaf in weights] for _ in range(2))
        for step, batch in enumerate(batches, 1):
            gradient = jax.grad(lambda tree, batch=batch: made.losses(tree, batch).mean)(parameters)
            leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(gradient)]
            norm = np.sqrt(sum(np.square(leaf).sum() for leaf in leaves))
            for place, leaf in enumerate(leaves):
                leaf = leaf / max(norm, 1)
                first[place] = 0.9 * first[place] + 0.1 * leaf
                second[place] = 0.95 * second[place] + 0.05 * leaf**2
                change = first[place] / (1 - 0.9**step) / (np.sqrt(second[place] / (1 - 0.95**step)) + 1e-8)
                if leaf.ndim > 1:
                    change += decay * weights[place]
                weights[place] = weights[place] - rate * change
            parameters, state, _ = made.step(parameters, state, batch, jnp.float32(rate), jnp.float32(decay))
        for found, expected in zip(jax.tree.leaves(parameters), weights, strict=True):
            np.testing.assert_allclose(found, expected, atol=3e-5)
    assert made.step._cache_size() == 1


def test_group_losses_add_up_to_the_loss(tiny_dataset: Path):
    dataset = jd.open_dataset(tiny_dataset)
    rows = np.arange(6)
    batch = dataset.records.read_batch(rows, expected=rows)
    losses = jnp.asarray(np.random.default_rng(0).random((6, dataset.sequence_length)), jnp.float32)
    groups = jd.segment_groups(dataset, "source", rows)
    number = len(dataset.group_names["source"])
    sums, counts = jax.jit(jd.group_losses, static_argnums=3)(losses, batch["targets_segmentation"], groups, number)
    held = batch["targets_segmentation"] > 0
    assert float(sums.sum()) == pytest.approx(float(losses[held].sum()), rel=1e-6)
    segments, codes = dataset.segments, np.zeros(held.shape, np.int64)
    for row, position, document, length in zip(
        segments.sequence_index, segments.position, segments.document_index, segments.length, strict=True
    ):
        if row < len(rows):
            codes[row, position : position + length] = document_codes(dataset, "source")[document]
    for group in range(number):
        mine = held & (codes == group)
        assert counts[group] == mine.sum()
        assert float(sums[group]) == pytest.approx(float(losses[mine].sum()), rel=1e-5)
    with pytest.raises(UserError, match="a family among"):
        jd.segment_groups(dataset, "sauce", rows)
    with pytest.raises(UserError, match="Expected sequences below"):
        jd.segment_groups(dataset, "source", np.array([10**6]))


def test_documents_codes_are_the_counts_of_the_sequences(tiny_dataset: Path):
    dataset = jd.open_dataset(tiny_dataset)
    segments = dataset.segments
    for family in ("source", "cluster", "length", "language"):
        codes = document_codes(dataset, family)
        counts = dataset.token_counts([family]).rows(0, dataset.num_sequences).counts[family].toarray()
        expected = np.zeros_like(counts)
        np.add.at(expected, (segments.sequence_index, codes[segments.document_index]), segments.length)
        assert (counts == expected).all()


def test_sketches_keep_inner_products_on_average():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(30, 30)), rng.normal(size=(30, 30))
    other = other + one
    found = [
        float(sketch({"a": jnp.asarray(one)}, 64, seed) @ sketch({"a": jnp.asarray(other)}, 64, seed))
        for seed in range(40)
    ]
    exact = float((one * other).sum())
    error = np.sqrt(2) * np.linalg.norm(one) * np.linalg.norm(other) / np.sqrt(64)
    assert abs(np.mean(found) - exact) < 4 * error / np.sqrt(40)
    assert np.std(found) < 2 * error


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"segmentation": [[1, 3, 0]]}, "of the 2 segments of a row and of the 2 groups, found 1 target of other ones"),
        ({"segmentation": [[-1, 1, 0]]}, "found 1 target of other ones"),
        ({"groups": [[0, 2]]}, "found 1 target of other ones"),
        ({"groups": [[-1, -1]]}, "found 2 targets of other ones"),
        ({"num_groups": 1}, "of the 1 groups, found 1 target of other ones"),
    ],
)
def test_targets_without_a_group_are_refused_and_are_nan_when_compiled(change: dict[str, Any], sentence: str) -> None:
    given = {"losses": [[1.0, 2.0, 4.0]], "segmentation": [[1, 2, 0]], "groups": [[0, 1]], "num_groups": 2}
    number = (given | change)["num_groups"]
    losses, *others = (jnp.asarray(value) for name, value in (given | change).items() if name != "num_groups")
    with pytest.raises(UserError, match=sentence):
        jd.group_losses(losses, *others, number)
    sums, _ = jax.jit(jd.group_losses, static_argnums=3)(losses, *others, number)
    assert np.isnan(sums).all()


def test_arrays_of_other_shapes_are_refused() -> None:
    ones = jnp.ones((2, 4), jnp.int32)
    for losses, segmentation, groups in ((ones[0], ones, ones), (ones, ones[:, :3], ones), (ones, ones, ones[:1])):
        with pytest.raises((UserError, TypeError), match=r"shapes|type"):
            jd.group_losses(losses.astype(jnp.float32), segmentation, groups, 2)
    with pytest.raises((UserError, TypeError), match=r"num_groups|type"):
        jd.group_losses(ones.astype(jnp.float32), ones, ones, 0)
