"""Orders made on many devices and by several processes are one device's; parts ordered apart merge as measured."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_diversity import Characteristics, Ordering, UserError, measure, order
from jax_diversity.counts import token_counts
from jax_diversity.ordering import mesh, running
from jax_diversity.ordering.composition.hosts import merge_orderings, partition_sequences, select_sequences
from jax_diversity.ordering.running import Checkpoint
from tests.support import two_processes
from tests.support.many_devices import alike_characteristics
from tests.support.programs import answers, free_port, start
from tests.support.synthetic import synthetic_characteristics


@pytest.mark.campaign
def test_eight_devices_give_one_devices_order(tmp_path: Path) -> None:
    [answer] = answers(start("many_devices", str(tmp_path), num_devices=8))
    assert answer["num_devices"] == 8
    assert len(answer["cases"]) == 22
    assert [case for case, same in answer["cases"].items() if not same] == []
    assert answer["platforms"] == [["tpu"], ["tpu"]]


@pytest.mark.campaign
def test_two_processes_give_one_devices_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = f"127.0.0.1:{free_port()}"
    first, second = answers(
        *(start("two_processes", str(process), "2", coordinator, str(tmp_path), num_devices=2) for process in range(2))
    )
    assert first["num_devices"] == second["num_devices"] == 4
    # The pool's scores are computed again at every call.
    monkeypatch.setattr(running, "STEPS_PER_CALL", two_processes.STEPS_PER_CALL)
    chars = alike_characteristics(two_processes.NUM_SEQUENCES)
    for method, options in two_processes.CASES.items():
        alone = order(chars, method, objective=two_processes.OBJECTIVE, **options).indices.tolist()
        for answer in (first, second):
            assert answer["orders"][method] == alone
            continued = [found for case, found in answer["orders"].items() if case.startswith(f"{method}, continued")]
            assert continued == [alone]
    # Whether the run that was cut off and the one that went on left a file.
    assert first["kept"] == [*[True, False] * len(two_processes.CASES), False]
    assert second["kept"] == [*[False, False] * len(two_processes.CASES), False]
    monkeypatch.setattr(token_counts, "MOST_ROWS", two_processes.SEQUENCES_PER_CHUNK)
    in_chunks = order(chars, objective=two_processes.OBJECTIVE, **two_processes.CASES["balance"]).indices.tolist()
    assert in_chunks != alone
    for process, answer in enumerate((first, second)):
        assert answer["chunked"] == in_chunks
        assert f"chunks-{process}" in answer["states"]


def test_the_mesh_leaves_no_trace() -> None:
    chars = alike_characteristics(40)
    shared, alone = order(chars, "greedy", mesh=jax.make_mesh((1,), ("sequences",))), order(chars, "greedy")
    np.testing.assert_array_equal(shared.indices, alone.indices)
    assert shared.info == alone.info


@pytest.mark.parametrize("method", ["greedy", "greedy_pool"])
def test_nothing_to_order(method: str) -> None:
    chars = Characteristics.from_counts({"topic": np.zeros((0, 3), int)})
    assert len(order(chars, method, mesh=jax.make_mesh((1,), ("sequences",)))) == 0


def test_what_is_no_mesh_is_refused() -> None:
    with pytest.raises(UserError, match=r"Expected mesh to be a jax.sharding.Mesh, found str; make one"):
        mesh.flat_mesh("eight devices")
    with pytest.raises(UserError, match="found AbstractMesh"):
        mesh.flat_mesh(jax.sharding.AbstractMesh((8,), ("sequences",)))


def test_a_mesh_of_other_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = jax.make_mesh((1,), ("sequences",))
    monkeypatch.setattr(jax, "process_index", lambda: 3)
    with pytest.raises(UserError, match=r"devices of this process, number 3, found devices of processes \[0\]"):
        mesh.flat_mesh(shared)


def test_a_checkpoint_is_told_to_all(tmp_path: Path) -> None:
    shared = mesh.flat_mesh(jax.make_mesh((1,), ("sequences",)))
    path = tmp_path / "run.checkpoint"
    told = mesh.SharedCheckpoint(Checkpoint(path, "this run"), shared)
    assert told.load() is None
    arrays = {"placed": np.arange(5), "sum_0": np.ones((2, 3), np.float32)}
    told.save(arrays)
    loaded = told.load()
    assert loaded is not None
    for name, values in arrays.items():
        np.testing.assert_array_equal(loaded[name], values)
    with pytest.raises(UserError, match="belongs to another run"):
        mesh.SharedCheckpoint(Checkpoint(path, "another run"), shared).load()
    told.remove()
    assert not path.exists()


@given(st.integers(0, 90), st.integers(1, 9), st.integers(0, 2**16))
def test_parts_cover_all_sequences_once(num_sequences: int, num_parts: int, seed: int) -> None:
    chars = alike_characteristics(num_sequences + num_parts)
    parts = partition_sequences(chars, num_parts, seed)
    sizes = [len(part) for part in parts]
    assert len(parts) == num_parts
    assert max(sizes) - min(sizes) <= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(chars.num_sequences))
    for part in parts:
        np.testing.assert_array_equal(part, np.sort(part))


def imbalance(chars: Characteristics, sequences: np.ndarray) -> float:
    """Norm of a set's summed excess over all families, in sequence lengths."""
    total = 0.0
    for family, counts in chars.counts.items():
        held = np.asarray(counts[sequences].sum(axis=0)).ravel()
        total += (((held - chars.target_share(family) * held.sum()) / chars.sequence_length) ** 2).sum()
    return float(np.sqrt(total))


def test_parts_hold_the_corpus_mixture() -> None:
    chars = synthetic_characteristics(4000)
    parts = partition_sequences(chars, 4)
    drawn = np.array_split(np.random.default_rng(0).permutation(chars.num_sequences), 4)
    assert np.mean([imbalance(chars, part) for part in parts]) < 0.6 * np.mean(
        [imbalance(chars, part) for part in drawn]
    )
    again = partition_sequences(chars, 4)
    assert all(np.array_equal(part, same) for part, same in zip(parts, again, strict=True))


@pytest.mark.campaign
def test_the_merged_stream_is_measured() -> None:
    """What four hosts lose by not knowing of each other, and what they still have over a shuffle."""
    chars = synthetic_characteristics(4000, num_clusters=40)
    parts = partition_sequences(chars, 4)
    merged = merge_orderings([(part, order(select_sequences(chars, part), "greedy")) for part in parts])
    balances = {
        name: measure(chars, ordering, windows=(256,))
        for name, ordering in {
            "merged": merged,
            "one host": order(chars, "greedy"),
            "shuffle": order(chars, "uniform_shuffle"),
        }.items()
    }
    for family in chars.families:
        prefix = {name: balance.prefix_l2[family].max() for name, balance in balances.items()}
        windows = {name: balance.window_tv[family][256].mean() for name, balance in balances.items()}
        assert prefix["one host"] < prefix["merged"] < 0.5 * prefix["shuffle"]
        # Independent deviations of four parts add up to about twice one's.
        assert prefix["merged"] < 3.5 * prefix["one host"]
        assert windows["one host"] < windows["merged"] < 0.9 * windows["shuffle"]


def test_parts_of_one_size_take_turns() -> None:
    parts = [(np.arange(12)[first::3], Ordering(np.array([3, 1, 0, 2]))) for first in range(3)]
    merged = merge_orderings(parts)
    np.testing.assert_array_equal(merged.indices % 3, np.arange(12) % 3)
    np.testing.assert_array_equal(merged.indices[::3], [9, 3, 0, 6])
    assert merged.info["method"] == "merge_orderings"


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(0, 2**16))
def test_parts_of_any_sizes_are_spread_evenly(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    sequences = np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    parts = [(held, Ordering(rng.permutation(len(held)))) for held in sequences]
    indices = merge_orderings(parts).indices
    position = np.empty(len(indices), np.int64)
    position[indices] = np.arange(len(indices))
    for held, ordering in parts:
        own = position[held[ordering.indices]]
        assert (np.diff(own) > 0).all()
        due = (np.arange(len(held)) + 0.5) / max(len(held), 1) * len(indices)
        assert np.abs(own + 0.5 - due).max(initial=0) <= len(parts)


def test_hosts_mistakes_are_explained() -> None:
    chars = alike_characteristics(10)
    with pytest.raises(UserError, match="num_parts to be a whole number >= 1 and <= 10, found 0"):
        partition_sequences(chars, 0)
    with pytest.raises(UserError, match="num_parts to be a whole number >= 1 and <= 10, found 11"):
        partition_sequences(chars, 11)
    with pytest.raises(UserError, match="seed to be a whole number >= 0, found -1"):
        partition_sequences(chars, 2, -1)
    with pytest.raises(UserError, match="sequences >= 0 and below 10, found 10"):
        select_sequences(chars, np.array([3, 10]))
    three = Ordering(np.arange(3))
    with pytest.raises(UserError, match="at least one part"):
        merge_orderings([])
    with pytest.raises(UserError, match="part 1's ordering to have its 2 sequences, found 3"):
        merge_orderings([([0, 1, 2], three), ([3, 4], three)])
    with pytest.raises(UserError, match=r"with each sequence in one part: .* found 2 2 times"):
        merge_orderings([([0, 1, 2], three), ([2, 3, 4], three)])
    with pytest.raises(UserError, match=r"all parts of one corpus, .* below 6, found"):
        merge_orderings([([0, 1, 2], three), ([5, 6, 7], three)])
    with pytest.raises(UserError, match="one axis of integers, found float64"):
        merge_orderings([([0.0, 1.0, 2.0], three)])


def test_selected_sequences_keep_their_counts_and_units() -> None:
    chars = alike_characteristics(20)
    chosen = np.array([7, 3, 3])
    part = select_sequences(chars, chosen)
    assert part.sequence_length == chars.sequence_length
    assert part.weights == chars.weights
    for family in chars.families:
        np.testing.assert_array_equal(part.counts[family].toarray(), chars.counts[family].toarray()[chosen])
