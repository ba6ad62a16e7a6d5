"""Parts of a stream that are ordered at the same time: one result for any number of threads, balanced at the cuts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_diversity import Characteristics, Objective, Targets, UserError, measure, order
from jax_diversity.ordering import parts
from jax_diversity.ordering.halving import balanced_stream
from jax_diversity.ordering.parts import CutSides, parts_of, repair_cuts
from jax_diversity.ordering.plan import Plan
from tests.support.many_devices import Interrupted, wide_characteristics
from tests.support.synthetic import synthetic_characteristics

SMALL = {"pool_size": 23, "part_size": 64}


def uneven(num_sequences: int = 500, seed: int = 0) -> Characteristics:
    """Sequences of 1 to 60 tokens in two families; documents of several sequences."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.gamma(0.3, 4.0, (num_sequences, 9)))
    counts[:, 0] += 1
    return Characteristics.from_counts(
        {"topic": counts, "half": np.stack([counts[:, :4].sum(axis=1), counts[:, 4:].sum(axis=1)], axis=1)},
        documents=rng.integers(-1, num_sequences // 3, num_sequences),
    )


@pytest.mark.core
@pytest.mark.parametrize(
    ("num_sequences", "expected"), [(0, 1), (1, 1), (32_768, 1), (46_000, 1), (47_000, 2), (10**6, 32), (10**9, 32_768)]
)
def test_the_number_of_parts_is_a_power_of_two(num_sequences: int, expected: int) -> None:
    assert parts_of(num_sequences, 32_768) == expected


@pytest.mark.first(2)
@pytest.mark.parametrize(("num_sequences", "part_size"), [(1, 1), (3, 1), (64, 2), (65, 16), (100, 50)])
def test_all_sequences_once(num_sequences: int, part_size: int) -> None:
    chars = uneven(num_sequences)
    for seed in range(3):
        ordering = order(chars, seed=seed, pool_size=7, part_size=part_size)
        assert sorted(ordering.indices) == list(range(num_sequences))
    assert ordering.info["options"]["part_size"] == part_size


TARGETS = Targets((0, 100, 333), {"half": np.array([[0.7, 0.3], [0.5, 0.5], [0.2, 0.8]])})
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "windows": {"objective": Objective(windows=(16,))},
    "consumed": {"consumed": np.arange(3, 90, 2), "objective": Objective(windows=(16,))},
    "targets": {"targets": TARGETS, "consumed": np.arange(40)},
    "previous": {"previous": np.random.default_rng(0).permutation(500)},
}


@pytest.mark.first(1)
@pytest.mark.parametrize("case", CASES)
def test_the_number_of_threads_does_not_matter(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chars = uneven()
    found = set()
    for num_threads in (1, 2, 5):
        monkeypatch.setattr(parts, "num_cores", lambda number=num_threads: number)
        found.add(order(chars, **CASES[case], **SMALL).fingerprint)
    assert len(found) == 1


@pytest.mark.parametrize("make", [uneven, lambda: wide_characteristics(500)])
def test_a_part_starts_from_the_deviation_of_all_earlier_sequences(make: Any) -> None:
    """The plans of the parts know exactly what the whole run has at their first positions."""
    chars = make()
    plan = Plan.build(chars, Objective(), None, np.arange(30))
    stream = balanced_stream(plan.features, plan.remaining, 0, 4)
    bounds = [len(stream) * part // 4 for part in range(5)]
    former = stream.copy()
    befores = repair_cuts(plan, stream, bounds)
    assert sorted(stream) == sorted(former)
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        placed = np.concatenate([plan.consumed, stream[:start]])
        np.testing.assert_allclose(befores[number].excess, plan.excess(placed), atol=1e-6)
        assert befores[number].tokens == chars.tokens[placed].sum()
        own = plan.part(stream[start:stop], len(placed), befores[number], placed[:0])
        after = plan.excess(np.concatenate([placed, stream[start:stop]]))
        np.testing.assert_allclose(own.carried + own.excess(np.arange(stop - start)), after, atol=1e-6)
        # Every group that is kept apart: its tokens before the part, minus its share of all tokens before the part.
        apart = plan.features.apart
        for own_groups, groups in zip(own.features.apart.group.T, apart.group[:, stream[start:stop]].T, strict=True):
            for own_group, group in zip(own_groups, groups, strict=True):
                if group < len(apart.share):
                    held = chars.tokens[placed][(apart.group[:, placed] == group).any(axis=0)].sum()
                    ahead = held - apart.share[group] * befores[number].tokens
                    assert own.head_start[own_group] == np.round(ahead)


def test_exchanges_lower_the_deviation_at_a_cut() -> None:
    chars = synthetic_characteristics(2000, num_clusters=60)
    plan = Plan.build(chars, Objective())
    stream = np.random.default_rng(0).permutation(2000)

    def deviation(cut: int) -> float:
        return float((plan.features.column_weights * plan.excess(stream[:cut]) ** 2).sum())

    before = [deviation(cut) for cut in (500, 1000, 1500)]
    repair_cuts(plan, stream, [0, 500, 1000, 1500, 2000])
    after = [deviation(cut) for cut in (500, 1000, 1500)]
    assert all(b < a / 20 for a, b in zip(before, after, strict=True))


def test_an_exchange_is_the_best_of_one_sequence_and_then_of_the_other() -> None:
    chars = uneven(60)
    plan = Plan.build(chars, Objective())
    rows, features = np.random.default_rng(1).permutation(60), plan.features
    start = plan.excess(rows[:30])

    def square(left: list[int], right: list[int]) -> float:
        change = plan.excess(rows[right]) - plan.excess(rows[left])
        return float((features.column_weights * (start + change) ** 2).sum())

    sides = CutSides(features, rows, features.targets, start)
    assert sides.exchange()
    arranged = sides.arranged()
    (left,), (right,) = np.flatnonzero(arranged[:30] != np.arange(30)), arranged[:30][arranged[:30] >= 30]
    assert left == min(range(30), key=lambda one: square([one], []))
    assert right == min(range(30, 60), key=lambda one: square([int(left)], [one]))


@pytest.mark.campaign
def test_windows_and_prefixes_are_as_balanced_as_without_parts() -> None:
    chars = synthetic_characteristics(4096, num_clusters=100)
    whole, cut = (
        measure(chars, order(chars, pool_size=256, part_size=size), windows=(64, 256), every_start=True)
        for size in (4096, 1024)
    )
    for family in chars.families:
        assert cut.prefix_l2[family].max() < 1.25 * whole.prefix_l2[family].max()
        for size in (64, 256):
            ours, theirs = cut.window_tv_every_start[family][size], whole.window_tv_every_start[family][size]
            assert ours.mean < 1.02 * theirs.mean
            assert ours.worst < 1.15 * theirs.worst


@pytest.mark.campaign
def test_moving_targets_are_followed_as_well_as_without_parts() -> None:
    chars = synthetic_characteristics(8192, num_clusters=20)
    share = chars.target_share("cluster")
    tilted = share * np.linspace(1.5, 0.5, 20)
    targets = Targets.linear({"cluster": tilted / tilted.sum()}, {"cluster": (2 * share - tilted / tilted.sum())}, 8192)
    plan = Plan.build(chars, Objective(), targets)

    def deviation(placed: np.ndarray, first_position: int = 0) -> float:
        return float(np.sqrt((plan.features.column_weights * plan.excess(placed, first_position) ** 2).sum()))

    whole, cut = (order(chars, targets=targets, pool_size=512, part_size=size).indices for size in (8192, 2048))
    prefixes = [max(deviation(each[:stop]) for stop in range(128, 8193, 128)) for each in (whole, cut)]
    assert prefixes[1] < 1.2 * prefixes[0]
    for size in (64, 256):
        starts = range(0, 8193 - size, 256)
        windows = [np.mean([deviation(each[i : i + size], i) for i in starts]) for each in (whole, cut)]
        assert windows[1] < 1.03 * windows[0]


def test_an_interrupted_run_continues_with_its_finished_parts(tmp_path: Path) -> None:
    chars, path = uneven(), tmp_path / "run"
    whole = order(chars, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        order(chars, folder=path, advance=Interrupted(200), **SMALL)
    told: list[int] = []
    rest = order(chars, folder=path, advance=told.append, **SMALL)
    assert rest.fingerprint == whole.fingerprint
    assert told[0] >= 62
    assert sum(told) == chars.num_sequences
    assert not list(path.iterdir())


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(parts, "drive", fail)
    with pytest.raises(OSError, match="no memory"):
        order(uneven(), **SMALL)


@pytest.mark.parametrize("part_size", [0, -1])
def test_bad_part_sizes(part_size: Any) -> None:
    with pytest.raises(UserError, match="part_size"):
        order(uneven(10), part_size=part_size)


@pytest.mark.campaign
@pytest.mark.parametrize("case", ["consumed", "targets", "wide"])
def test_an_accelerator_orders_many_parts_at_once_and_chooses_the_same(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of pools makes the choices of each pool alone; here a processor takes the place of the accelerator."""
    chars = wide_characteristics(500) if case == "wide" else uneven()
    alone = order(chars, **CASES.get(case, {}), **SMALL)
    together: list[int] = []
    run_together = parts.run_together

    def counted(pools: Any, *rest: Any) -> Any:
        together.append(len(pools))
        return run_together(pools, *rest)

    monkeypatch.setattr(parts, "is_accelerator", lambda device: True)
    monkeypatch.setattr(parts, "_STEPS_OF_A_CORE", 0)
    monkeypatch.setattr(parts, "run_together", counted)
    assert np.array_equal(order(chars, **CASES.get(case, {}), **SMALL), alone)
    assert together == ([] if case == "targets" else [8])
