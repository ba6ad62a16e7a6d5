"""Runs that go on with sequences of another length: every batch has the length of its position, or is refused."""

from __future__ import annotations

import inspect
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.loader.settings import ENDLESS, LoaderSettings, Windows
from tests.support.tiny_dataset import TinyDataset, reference_row, write_tiny_dataset

SIZE = 8
"""Of batches."""
FIRST, SECOND, END = 40, 64, 83
"""Positions: sequences of 16 tokens, of 32 from `FIRST`, of 16 again from `SECOND`; the last batch is not full."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[TinyDataset]:
    """Two datasets of one length, and one of twice that."""
    root = tmp_path_factory.mktemp("lengths")
    lengths = {"web": 16, "code": 16, "books": 32}
    return [
        write_tiny_dataset(root / name, sequence_length=length, seed=seed)
        for seed, (name, length) in enumerate(lengths.items())
    ]


@pytest.fixture(scope="module")
def run(tiny: list[TinyDataset]) -> jd.Run:
    """The third version of a schedule."""
    web, code, books = (each.root for each in tiny)
    run = jd.create_schedule(web.parent / "run", [web, code], weights=[2, 1], num_positions=FIRST)
    run = jd.extend_schedule(run, datasets=books, weights=[0, 0, 1], num_positions=SECOND - FIRST)
    return jd.extend_schedule(run, weights=[1, 2, 0], num_positions=END - SECOND)


@pytest.fixture(scope="module")
def rows(tiny: list[TinyDataset], run: jd.Run) -> list[dict[str, np.ndarray]]:
    """The arrays of every position, token by token."""
    found = []
    for dataset, sequence in np.transpose(run.places(np.arange(len(run)))).tolist():
        row = reference_row(tiny[dataset].segments, tiny[dataset].store, sequence)
        found.append({**row, "dataset_index": np.array(dataset), "sequence_index": np.array(sequence)})
    return found


def loader(run: jd.Run, **settings: Any) -> Any:
    return jd.make_loader(run, **{"global_batch_size": SIZE, **settings})


def reference_batch(rows: list[dict[str, np.ndarray]], position: int, size: int = SIZE) -> dict[str, np.ndarray]:
    """Rows of several epochs of positions, filled up with padding."""
    batch = {name: np.stack([row[name] for row in rows[position : position + size]]) for name in rows[position]}
    missing = size - len(batch["inputs"])
    return {
        name: np.concatenate([part, np.full((missing, *part.shape[1:]), 0 if part.ndim > 1 else -1)])
        for name, part in batch.items()
    }


def assert_batches(
    found: list[dict[str, Any]], rows: list[dict[str, np.ndarray]], start: int = 0, size: int = SIZE
) -> None:
    for step, batch in enumerate(found):
        expected = reference_batch(rows, start + step * size, size)
        assert batch.keys() == expected.keys()
        for name, part in expected.items():
            np.testing.assert_array_equal(batch[name], part)


def of_all_hosts(hosts: list[list[dict[str, np.ndarray]]]) -> list[dict[str, np.ndarray]]:
    """The global batches."""
    return [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*hosts, strict=True)
    ]


def test_lengths_are_those_of_the_positions(run: jd.Run) -> None:
    assert run.lengths == ((0, 16), (FIRST, 32), (SECOND, 16))
    assert run.with_version(1).lengths == ((0, 16),)
    assert jd.open_schedule(run.root, 2).lengths == ((0, 16), (FIRST, 32))


def slow_lengths(run: jd.Run) -> tuple[tuple[int, int], ...]:
    dataset, _ = run.places(np.arange(len(run)))
    lengths = [run.members[index].sequence_length for index in dataset.tolist()]
    return tuple((next(group)[0], length) for length, group in groupby(enumerate(lengths), lambda pair: pair[1]))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_lengths_follow_every_change(tiny: list[TinyDataset], tmp_path_factory: Any, data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("changed")
    run = jd.create_schedule(root / "run", tiny[0].root, num_positions=30, method="uniform_shuffle")
    run = jd.extend_schedule(
        run, datasets=tiny[2].root, weights=[0, 1], position=data.draw(st.integers(0, 30)), method="greedy"
    )
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(run)))
        if data.draw(st.booleans()):
            run = jd.skip_positions(run, place, data.draw(st.integers(place, len(run))))
        else:
            weights = data.draw(st.sampled_from([[1, 0], [0, 1]]))
            length = data.draw(st.integers(1, 20))
            run = jd.extend_schedule(run, position=place, weights=weights, num_positions=length, method="greedy")
        assert run.lengths == slow_lengths(run)


@pytest.mark.parametrize("num_hosts", [1, 2, 4])
def test_batches_are_the_rows_of_their_positions(run: jd.Run, rows: list, num_hosts: int) -> None:
    """With a last batch of 3 rows, of which the last of four hosts have none."""
    hosts = [list(loader(run, num_hosts=num_hosts, host_index=h, drop_remainder=False)) for h in range(num_hosts)]
    found = of_all_hosts(hosts)
    assert [batch["inputs"].shape[1] for batch in found] == [16] * 5 + [32] * 3 + [16] * 3
    assert_batches(found, rows)


def test_settings_hold_for_every_length(run: jd.Run, rows: list) -> None:
    assert_batches(list(loader(run, num_workers=1)), rows)
    assert_batches(list(loader(run, num_prefetch=0)), rows)
    assert_batches(list(loader(run, start_position=SECOND - SIZE)), rows, SECOND - SIZE)
    numbers = loader(run).batches  # Grain's dataset of batches by number
    assert len(numbers) == len(loader(run)) == END // SIZE
    assert_batches([numbers[number] for number in range(len(numbers))], rows)
    whole = list(loader(run, merge_segments=True, names={"inputs": "tokens"}, dtype="float32", fields=("inputs",)))
    assert [batch["tokens"].shape for batch in whole][4:6] == [(SIZE, 16), (SIZE, 32)]
    for step, batch in enumerate(whole):
        np.testing.assert_array_equal(batch["tokens"], reference_batch(rows, step * SIZE)["inputs"])


def test_epochs_of_a_schedule(run: jd.Run, rows: list) -> None:
    even = run.with_version(2)
    rows = rows[:SECOND]
    assert_batches(list(loader(even, num_epochs=2)), rows * 2)
    endless = iter(loader(even, num_epochs=None, start_position=SECOND))
    assert_batches([next(endless) for _ in range(17)], rows * 4, SECOND)
    # 83 positions: the second epoch's change lies within a batch, at 83 + 40.
    with pytest.raises(UserError, match=r"begin at position 123, where sequences of 32 tokens .* that divides 123"):
        loader(run, num_epochs=2)


@pytest.mark.parametrize("num_hosts", [1, 2])
def test_a_run_goes_on_over_both_changes(run: jd.Run, rows: list, num_hosts: int) -> None:
    """Interrupted at every second batch; up to each change an older version is followed."""
    versions = [run.with_version(1), run.with_version(2), run]
    ends = [FIRST, SECOND, END]
    hosts = []
    for host in range(num_hosts):
        found: list[dict[str, np.ndarray]] = []
        state = None
        while len(found) * SIZE + SIZE <= END:
            version = versions[int(np.searchsorted(ends, len(found) * SIZE, side="right"))]
            iterator = iter(loader(version, num_hosts=num_hosts, host_index=host))
            if state is not None:
                iterator.set_state(state)
            found += [batch for _, batch in zip(range(2), iterator, strict=False)]
            state = json.loads(json.dumps(iterator.get_state()))
            iterator.close()
        hosts.append(found)
    assert all(len(found) == END // SIZE for found in hosts)
    assert_batches(of_all_hosts(hosts), rows)


def test_a_state_goes_on_with_another_batch_size_where_it_fits(run: jd.Run, rows: list) -> None:
    first = iter(loader(run))
    for _ in range(3):
        next(first)
    smaller = iter(loader(run, global_batch_size=4))
    smaller.set_state(first.get_state())
    assert_batches(list(smaller), rows, 24, 4)
    next(first)
    at_32 = first.get_state()
    # From position 32 on batches of 12 would hold positions 32 to 43.
    larger = iter(loader(run, global_batch_size=12, start_position=SECOND))
    with pytest.raises(UserError, match=r"position 40, .* batches of 12 from position 32 on; .* that divides 8,"):
        larger.set_state(at_32)
    assert_batches(list(larger), rows, SECOND, 12)  # as if nothing had been asked for


def test_a_batch_of_two_lengths_is_refused(tiny: list[TinyDataset], run: jd.Run, rows: list, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"position 40, where sequences of 32 tokens follow .* 16.* divides 40,"):
        loader(run, global_batch_size=16)
    with pytest.raises(UserError, match=r"position 64, where sequences of 16 tokens follow .* 32.* divides 56,"):
        loader(run, global_batch_size=16, start_position=8)
    assert_batches(list(loader(run, global_batch_size=16, start_position=48)), rows, 48, 16)
    # A batch that is dropped holds no sequences.
    short = jd.create_schedule(tmp_path / "run", tiny[0].root, num_positions=FIRST)
    short = jd.extend_schedule(short, datasets=tiny[2].root, weights=[0, 1], num_positions=4)
    assert len(loader(short, global_batch_size=9)) == 4
    with pytest.raises(UserError, match="position 40"):
        loader(short, global_batch_size=9, drop_remainder=False)


def test_the_length_that_a_model_expects(run: jd.Run, rows: list) -> None:
    for length, found in ((16, "32 from position 40"), (32, "16 from position 0"), (24, "16 from position 0")):
        with pytest.raises(UserError, match=f"sequences of {length} tokens, found {found} on"):
            loader(run, sequence_length=length)
    version = run.with_version(2)
    ahead = iter(loader(version, sequence_length=32, start_position=FIRST))
    with pytest.raises(UserError, match="found 16 from position 16 on"):
        ahead.set_state({**ahead.get_state(), "position": 16})
    assert_batches(list(ahead), rows, FIRST)


def test_an_element_spec_is_of_one_length(run: jd.Run) -> None:
    spec = grain.experimental.get_element_spec
    with pytest.raises(UserError, match="16 tokens at position 0 and of 32 from position 40 on; use the shape"):
        spec(loader(run))
    last = loader(run.with_version(2), start_position=FIRST)
    assert {name: (each.shape, each.dtype) for name, each in spec(last).items()} == {
        name: (array.shape, array.dtype) for name, array in next(iter(last)).items()
    }
    assert {name: each.shape for name, each in spec(loader(run.with_version(1))).items()} == {
        name: array.shape for name, array in next(iter(loader(run.with_version(1)))).items()
    }


@pytest.mark.campaign
@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_what_is_refused_is_a_batch_of_two_lengths_and_nothing_else(data: st.DataObject) -> None:
    """Against all batches of a run, one position at a time."""
    size, num_positions = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 9))
    firsts = [0, *sorted(data.draw(st.sets(st.integers(1, num_positions - 1), max_size=2)))]
    lengths = tuple((first, (16, 32)[place % 2]) for place, first in enumerate(firsts))
    num_epochs = data.draw(st.sampled_from([1, 2, 3, 5, None]))
    end = ENDLESS if num_epochs is None else num_epochs * num_positions
    start = data.draw(st.integers(0, min(end, 2 * num_positions)))
    drop = data.draw(st.booleans())
    if drop and size > end:
        return
    chosen = LoaderSettings.checked(
        global_batch_size=size, num_epochs=num_epochs, start_position=start, drop_remainder=drop
    )
    of_position = [max(pair for pair in lengths if pair[0] <= place)[1] for place in range(num_positions)]
    last = min(end, start + (size + 2) * num_positions)  # without an end: until all remainders have come
    fits = True
    for first in range(start, last, size):
        batch = range(first, min(first + size, end))
        if len(batch) == size or not drop:
            fits = fits and len({of_position[place % num_positions] for place in batch}) == 1
    if fits:
        windows = Windows(num_positions, chosen, lengths)
        for place in range(start, last):
            assert windows.length_at(place) == of_position[place % num_positions]
    else:
        with pytest.raises(UserError, match="Expected a batch to begin at position"):
            Windows(num_positions, chosen, lengths)


def test_what_comes_together_has_one_length(tiny: list[TinyDataset], tmp_path: Path) -> None:
    web, code, books = (each.root for each in tiny)
    said = r"sequences of one length, found lengths \[16, 32\]; give datasets of another length weight 0"
    said += r", and .*, or build them again with --packing\.sequence-length (16|32)\."
    for weights in (None, [1, 1], jd.Targets((0, 5), {"dataset": np.array([[1.0, 0.0], [0.0, 1.0]])})):
        with pytest.raises(UserError, match=said):
            jd.create_schedule(tmp_path / "run", [web, books], weights=weights)
    assert not (tmp_path / "run" / "schedule.json").exists()
    run = jd.create_schedule(tmp_path / "run", [web, code, books], weights=[1, 1, 0], num_positions=20)
    assert run.lengths == ((0, 16),)
    for weights in (None, [0, 1, 1]):
        with pytest.raises(UserError, match=said):
            jd.extend_schedule(run, weights=weights)
    assert jd.open_schedule(tmp_path / "run").version == 1
    assert jd.extend_schedule(run, weights=[0, 0, 1]).lengths == ((0, 16), (20, 32))
    assert jd.skip_positions(jd.open_schedule(tmp_path / "run"), 0, 20).lengths == ((0, 32),)


@pytest.mark.campaign
def test_other_readers_say_what_they_take(tiny: list[TinyDataset], run: jd.Run) -> None:
    with pytest.raises(UserError, match=r"sequences of one length, found lengths \[16, 32\]"):
        jd.make_loader([each.root for each in tiny], ordering=run.indices, global_batch_size=SIZE)
    stream: Any = inspect.unwrap(jd.stream_batches)  # without the type checker of the tests
    with pytest.raises(UserError, match="a dataset, its folder or address, or several of them, found StoredRun"):
        stream(run, global_batch_size=SIZE)
