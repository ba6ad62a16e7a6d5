"""Sorted halving and the linear-time method: parts that are a partition, balance that is measured."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from scipy.sparse import csr_array

from jax_diversity import Balance, Characteristics, Objective, UserError, measure, order
from jax_diversity.ordering import halving
from jax_diversity.ordering.features import Features
from jax_diversity.ordering.halving import balanced_stream, halve
from jax_diversity.sequences.characteristics.codes import length_bins
from tests.support.ordering_cases import excess_matrix
from tests.support.synthetic import synthetic_characteristics


@functools.cache
def corpus() -> Characteristics:
    return synthetic_characteristics(4100, num_clusters=100, num_bins=20)


@functools.cache
def unequal_corpus() -> Characteristics:
    """4,200 sequences of 0 to 480 tokens."""
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 40, (4200, 12)) * (rng.random((4200, 12)) < 0.3)
    counts[5] = 0
    return Characteristics.from_counts({"topic": counts, "half": counts.reshape(4200, 2, 6).sum(axis=2)})


CORPORA = {"equal": corpus, "unequal": unequal_corpus}


def features_of(chars: Characteristics) -> Features:
    return Features.build(chars, Objective())


# Halving


@pytest.mark.parametrize("num_sequences", [0, 1, 37])
@pytest.mark.parametrize("num_levels", [0, 3])
def test_blocks_are_a_partition(num_sequences: int, num_levels: int) -> None:
    rng = np.random.default_rng(num_sequences)
    chars = Characteristics.from_counts({"topic": rng.integers(0, 3, (50, 4))})
    arranged = rng.permutation(50)[:num_sequences]
    blocks = halve(features_of(chars), arranged, num_levels)
    assert blocks.shape == (1 << num_levels, -(-max(num_sequences, 1) // (1 << num_levels)))
    np.testing.assert_array_equal(np.sort(blocks[blocks >= 0]), np.sort(arranged))


@pytest.mark.parametrize("kind", CORPORA)
@pytest.mark.parametrize("num_left_out", [0, 511])
def test_large_blocks_are_a_partition(kind: str, num_left_out: int) -> None:
    chars = CORPORA[kind]()
    arranged = np.random.default_rng(0).permutation(chars.num_sequences)[num_left_out:]
    blocks = halve(features_of(chars), arranged, 3)
    np.testing.assert_array_equal(np.sort(blocks[blocks >= 0]), np.sort(arranged))
    # What the last block of all would lack is spread over all of them.
    sizes = (blocks >= 0).sum(axis=1)
    assert sizes.max() - sizes.min() <= 3


def boundary_deviations(chars: Characteristics, blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Norm of the deviation in sequence lengths after every block but the last."""
    excess = excess_matrix(chars, Objective())
    sums = np.stack([excess[block[block >= 0]].sum(axis=0) for block in blocks])
    return np.linalg.norm(np.cumsum(sums, axis=0)[:-1], axis=1)


@pytest.mark.parametrize("kind", CORPORA)
def test_blocks_are_far_more_balanced_than_random_ones(kind: str) -> None:
    chars = CORPORA[kind]()
    features = features_of(chars)
    rng = np.random.default_rng(0)
    everyone = np.arange(chars.num_sequences)
    arranged = everyone[halving.sort_by_group(features, everyone, rng)]
    halved = boundary_deviations(chars, halve(features, arranged, 3))
    random = boundary_deviations(chars, np.array_split(rng.permutation(everyone), 8))
    assert halved.max() < 0.35 * random.mean()
    # Likes beside one another are what makes it so good, not only the walk.
    unsorted = boundary_deviations(chars, halve(features, rng.permutation(everyone), 3))
    assert halved.mean() < unsorted.mean() < 0.5 * random.mean()


@pytest.mark.parametrize("kind", CORPORA)
def test_every_stretch_of_the_stream_is_balanced(kind: str) -> None:
    chars = CORPORA[kind]()
    excess = excess_matrix(chars, Objective())

    def stretches(stream: np.ndarray) -> float:
        sums = np.cumsum(excess[stream], axis=0)
        return float(np.linalg.norm(sums[1024:] - sums[:-1024], axis=1).mean())

    everyone = np.arange(chars.num_sequences)
    stream = balanced_stream(features_of(chars), everyone, seed=1)
    np.testing.assert_array_equal(np.sort(stream), everyone)
    assert stretches(stream) < 0.6 * stretches(np.random.default_rng(1).permutation(everyone))


def test_streams_of_a_part_of_the_corpus() -> None:
    chars = corpus()
    features = features_of(chars)
    part = np.random.default_rng(0).permutation(chars.num_sequences)[:1500]
    stream = balanced_stream(features, part, seed=1)
    np.testing.assert_array_equal(np.sort(stream), np.sort(part))
    excess = excess_matrix(chars, Objective())
    half = excess[stream[:750]].sum(axis=0) - excess[part].sum(axis=0) / 2
    shuffled = excess[part[:750]].sum(axis=0) - excess[part].sum(axis=0) / 2
    assert np.linalg.norm(half) < 0.6 * np.linalg.norm(shuffled)


@pytest.mark.parametrize("num_sequences", [0, 1, 2, 511, 512, 1023])
def test_streams_of_less_than_two_blocks_are_drawn(num_sequences: int) -> None:
    features = features_of(corpus())
    part = np.arange(num_sequences)
    streams = [balanced_stream(features, part, seed=seed) for seed in (0, 0, 1)]
    for stream in streams:
        assert stream.dtype == np.int64
        np.testing.assert_array_equal(np.sort(stream), part)
    np.testing.assert_array_equal(streams[0], streams[1])
    assert num_sequences < 500 or (streams[0] != streams[2]).any()


def test_seeds_give_different_streams() -> None:
    features = features_of(corpus())
    everyone = np.arange(features.num_sequences)
    streams = {balanced_stream(features, everyone, seed=seed).tobytes() for seed in (0, 0, 1, 2**63)}
    assert len(streams) == 3


@pytest.mark.parametrize("num_groups", [1, 3])
def test_all_alike_or_empty(num_groups: int) -> None:
    for counts in (np.full((1100, num_groups), 2), np.zeros((1100, num_groups), int)):
        features = features_of(Characteristics.from_counts({"topic": counts}))
        stream = balanced_stream(features, np.arange(1100), seed=0)
        np.testing.assert_array_equal(np.sort(stream), np.arange(1100))


# Rows of many groups


def one_heavy_group_and_many_light_ones() -> Characteristics:
    """1,100 rows of 41 groups, one of which, behind the others, holds 1,000 of 1,040 tokens."""
    rng = np.random.default_rng(0)
    counts = np.zeros((1100, 60), int)
    counts[:, :40] = 1
    counts[np.arange(1100), rng.integers(40, 60, 1100)] = 1000
    return Characteristics.from_counts({"topic": counts})


def test_a_walk_reads_the_heaviest_groups() -> None:
    chars = one_heavy_group_and_many_light_ones()
    features = features_of(chars)
    rows = np.array([7, 3, 1000])
    entries, used = halving._heaviest_entries(features, rows, 2)
    assert used.all()
    for row, own in zip(rows.tolist(), entries, strict=True):
        assert ((features.row_starts[row] <= own) & (own < features.row_starts[row + 1])).all()
        assert features.values[own].tolist() == [1000, 1]
    entries, used = halving._heaviest_entries(features, rows, 99)
    assert used.sum(axis=1).tolist() == [41, 41, 41]


def test_rows_wider_than_what_a_walk_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the tokens are enough to balance by."""
    chars = corpus()
    features = features_of(chars)
    monkeypatch.setattr(halving, "_COVERED", 0.5)
    rng = np.random.default_rng(0)
    everyone = np.arange(chars.num_sequences)
    assert halving._covering_width(features, everyone) < np.diff(features.row_starts).max() / 4
    arranged = everyone[halving.sort_by_group(features, everyone, rng)]
    halved = boundary_deviations(chars, halve(features, arranged, 3))
    random = boundary_deviations(chars, np.array_split(rng.permutation(everyone), 8))
    assert halved.max() < 0.5 * random.mean()


def test_rows_of_hundreds_of_groups() -> None:
    counts = np.random.default_rng(0).integers(0, 3, (1100, 450))
    features = features_of(Characteristics.from_counts({"topic": counts}))
    stream = balanced_stream(features, np.arange(1100), seed=0)
    np.testing.assert_array_equal(np.sort(stream), np.arange(1100))


# The walk


def test_signs_do_not_depend_on_which_lane_comes_first() -> None:
    """Sums are exact, so that devices that add in another order find the same."""
    chars = unequal_corpus()
    features = features_of(chars)
    arranged = np.arange(4096)
    table = halving.build_walk_table(features, arranged)
    lanes = np.arange(4096, dtype=np.int32).reshape(64, -1, 2)

    def walked(order_of_lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pairs = lanes[order_of_lanes]
        firsts, seconds = jnp.asarray(pairs[..., 0].T), jnp.asarray(pairs[..., 1].T)
        start = jnp.zeros((16, len(features.targets)), jnp.float32)
        signs, sums = halving._walk(table, firsts, seconds, jnp.zeros(64, jnp.int32), start, 2)
        return np.asarray(signs)[:, np.argsort(order_of_lanes)], np.asarray(sums)[0]

    signs, sums = walked(np.arange(64))
    assert set(np.unique(signs)) == {-1, 1}
    for seed in range(3):
        other_signs, other_sums = walked(np.random.default_rng(seed).permutation(64))
        np.testing.assert_array_equal(other_signs, signs)
        np.testing.assert_array_equal(other_sums, sums)


def test_a_walk_of_one_lane_against_a_slow_reference() -> None:
    """One sweep in float64: each pair goes where the sum of all excesses so far wants it."""
    chars = unequal_corpus()
    features, objective = features_of(chars), Objective()
    arranged = np.arange(200)
    table = halving.build_walk_table(features, arranged)
    targets = np.asarray(table.targets, np.float64)
    counts = np.hstack([chars.counts[name].toarray() for name in chars.families])[:200].astype(np.float64)
    norms = np.round(features.norms[:200] - features.norms[:200].astype(np.float64).mean())
    excess = np.column_stack([counts - chars.tokens[:200, None] * targets[:-1], norms])
    pairs = arranged.reshape(-1, 2).astype(np.int32)
    signs, _ = halving._walk(
        table,
        jnp.asarray(pairs[:, :1]),
        jnp.asarray(pairs[:, 1:]),
        jnp.zeros(1, jnp.int32),
        jnp.zeros((1, len(targets)), jnp.float32),
        1,
    )
    sum_so_far = np.zeros(len(targets))
    weights = np.append(np.ones(len(targets) - 1), objective.norm_weight)
    wrong = 0
    for (first, second), sign in zip(pairs, np.asarray(signs)[:, 0], strict=True):
        difference = excess[first] - excess[second]
        product = float((weights * sum_so_far) @ difference)
        wrong += abs(product) > 1e-3 * np.abs(weights * sum_so_far * difference).sum() and np.sign(product) == sign
        sum_so_far += int(sign) * difference
    assert wrong == 0


# Quality

WINDOWS = (64, 192, 256)


@functools.cache
def quality_corpus() -> Characteristics:
    return synthetic_characteristics(4000, num_clusters=300, num_bins=20)


@functools.cache
def measured(method: str, pool_size: int | None = None) -> Balance:
    options: dict[str, Any] = {"pool_size": pool_size} if pool_size else {}
    objective = Objective.f3() if method == "greedy" else Objective()
    chars = quality_corpus()
    return measure(chars, order(chars, method, objective=objective, **options), windows=WINDOWS)


@pytest.mark.campaign
def test_balance_is_as_good_as_exact_greedy() -> None:
    exact, balance = measured("greedy"), measured("balance", 1024)
    assert balance.prefix_l2["cluster"].max() <= 1.1 * exact.prefix_l2["cluster"].max()
    for size in WINDOWS:
        for windows in ("window_tv", "window_tv_shifted"):
            ours, theirs = (getattr(balanced, windows)["cluster"][size] for balanced in (balance, exact))
            assert ours.mean() <= 1.05 * theirs.mean(), (windows, size)
    assert np.abs(balance.norm_drift).max() < 5 < np.abs(exact.norm_drift).max()


def test_balance_is_better_than_the_same_small_pool_over_a_shuffle() -> None:
    pool, balance = measured("greedy_pool", 128), measured("balance", 128)
    assert balance.prefix_l2["cluster"].max() < 0.7 * pool.prefix_l2["cluster"].max()
    for size in WINDOWS:
        assert balance.window_tv["cluster"][size].mean() < pool.window_tv["cluster"][size].mean()
        assert balance.window_tv["length"][size].mean() < pool.window_tv["length"][size].mean()


@pytest.mark.campaign
def test_the_pool_makes_the_stream_better() -> None:
    chars = quality_corpus()
    stream = order(chars, "balance", pool_size=1).indices
    np.testing.assert_array_equal(stream, balanced_stream(features_of(chars), np.arange(chars.num_sequences), seed=0))
    alone = measure(chars, stream, windows=WINDOWS)
    for size in WINDOWS:
        assert measured("balance", 1024).window_tv["cluster"][size].mean() < alone.window_tv["cluster"][size].mean()


# Accelerators


def test_walk_lowers_for_tpu() -> None:
    features = features_of(unequal_corpus())
    table = halving.build_walk_table(features, np.arange(256))
    pairs = jax.ShapeDtypeStruct((8, 16), jnp.int32)
    arguments = (
        jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), table),
        pairs,
        pairs,
        jax.ShapeDtypeStruct((16,), jnp.int32),
        jax.ShapeDtypeStruct((4, len(features.targets)), jnp.float32),
    )
    for num_sweeps in (1, 2):
        exported = export.export(halving._walk, platforms=["tpu"])(*arguments, num_sweeps)
        assert exported.platforms == ("tpu",)


def document_rows(num_documents: int, num_clusters: int) -> Characteristics:
    """Documents as sequences, without packing: 16 to 16,384 tokens, each of one cluster and one length bin."""
    rng = np.random.default_rng(0)
    tokens = np.clip(rng.lognormal(6.25, 1.2, num_documents), 16, 16_384).astype(np.int64)
    clusters = zipf_clusters(rng, num_documents, num_clusters)
    codes = {"cluster": clusters, "length": length_bins(tokens, 50).group}
    rows = np.arange(num_documents)
    return Characteristics.from_counts({name: csr_array((tokens, (rows, group))) for name, group in codes.items()})


def zipf_clusters(rng: np.random.Generator, number: int, num_clusters: int) -> np.ndarray:
    popularity = 1 / np.arange(1, num_clusters + 1)
    return rng.choice(num_clusters, number, p=popularity / popularity.sum())


@pytest.mark.campaign
def test_the_worst_window_of_documents_as_rows_is_no_worse_than_a_mean_shuffle() -> None:
    chars = document_rows(12_000, 200)
    shuffle, found = (measure(chars, order(chars, method), windows=(256,)) for method in ("uniform_shuffle", "balance"))
    without = measure(chars, order(chars, "balance", aging=0), windows=(256,))
    for windows in ("window_tv", "window_tv_shifted", "window_tv_tokens"):
        of = {name: getattr(b, windows)["cluster"][256] for name, b in (("s", shuffle), ("b", found), ("p", without))}
        assert of["b"].mean() < 0.9 * of["s"].mean(), windows
        assert of["b"].max() <= of["s"].mean(), windows
        assert of["b"].max() < of["p"].max(), windows


@pytest.mark.campaign
def test_aging_counts_only_where_sequences_differ_in_tokens() -> None:
    whole = order(corpus(), "balance").indices
    np.testing.assert_array_equal(whole, order(corpus(), "balance", aging=50).indices)
    chars = unequal_corpus()
    assert not np.array_equal(order(chars, "balance").indices, order(chars, "balance", aging=50).indices)
    with pytest.raises(UserError, match="aging"):
        order(chars, "balance", aging=-1)
