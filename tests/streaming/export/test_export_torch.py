"""PyTorch's dataset and batch sampler: the window contract, workers, resuming."""

from __future__ import annotations

import json
import pickle
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.export.pytorch import OrderedBatchSampler, TorchDataset
from tests.support.tiny_dataset import TinyDataset, reference_row, write_tiny_dataset


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("torch") / "dataset")


def batches(sampler: OrderedBatchSampler) -> list[list[int]]:
    drawn = list(sampler)
    assert len(drawn) <= len(sampler)
    return drawn


@given(st.integers(1, 30), st.integers(1, 3), st.booleans())
def test_batches_walk_the_ordering_over_all_epochs(
    tiny: TinyDataset, batch_size: int, num_epochs: int, drop_last: bool
) -> None:
    order = tiny.orders["balance"].tolist() * num_epochs
    batch_size = min(batch_size, tiny.segments.num_sequences)
    sampler = OrderedBatchSampler(tiny.root, "balance", batch_size, num_epochs=num_epochs, drop_last=drop_last)
    expected = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    if drop_last and len(expected[-1]) < batch_size:
        expected.pop()
    assert batches(sampler) == expected
    assert len(sampler) == len(expected)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_share_every_batch(tiny: TinyDataset, num_ranks: int, drop_last: bool) -> None:
    whole = batches(OrderedBatchSampler(tiny.root, "balance", 8, num_epochs=2, drop_last=drop_last))
    parts = [
        batches(
            OrderedBatchSampler(
                tiny.root, "balance", 8, rank=rank, num_ranks=num_ranks, num_epochs=2, drop_last=drop_last
            )
        )
        for rank in range(num_ranks)
    ]
    steps = [list(chain.from_iterable(part[step] for part in parts if step < len(part))) for step in range(len(whole))]
    assert steps == whole


def test_a_run_goes_on_anywhere_with_other_batches_and_ranks(tiny: TinyDataset) -> None:
    flat = tiny.orders["balance"].tolist() * 2
    for num_steps in range(len(flat) // 4):
        first = OrderedBatchSampler(tiny.root, "balance", 4, num_epochs=2)
        state = json.loads(json.dumps(first.state(num_steps)))
        second = OrderedBatchSampler(tiny.root, "balance", 6, num_epochs=2, num_ranks=3, rank=1)
        second.resume(state)
        taken = batches(second)
        start = 4 * num_steps
        assert taken == [flat[at + 2 : at + 4] for at in range(start, len(flat) - 5, 6)]
        assert second.state(1)["position"] == min(start + 6, 2 * tiny.segments.num_sequences)


def test_states_of_something_else_are_refused(tiny: TinyDataset, tmp_path: Path) -> None:
    sampler = OrderedBatchSampler(tiny.root, "balance", 4)
    other = write_tiny_dataset(tmp_path / "other", seed=5)
    with pytest.raises(UserError, match="a state of the dataset"):
        sampler.resume(OrderedBatchSampler(other.root, "balance", 4).state(1))
    with pytest.raises(UserError, match="a state of the ordering"):
        sampler.resume(OrderedBatchSampler(tiny.root, "uniform_shuffle", 4).state(1))
    for position in (-1, 10_000, "3", None):
        with pytest.raises(UserError, match="Expected the state's position"):
            sampler.resume({**sampler.state(0), "position": position})
    assert sampler.position == 0


@pytest.mark.parametrize(
    ("batch_size", "options", "message"),
    [
        (0, {}, "global_batch_size to be a whole number >= 1 and <= "),
        (10_000, {}, "global_batch_size .* found 10000"),
        (4, {"num_ranks": 3}, "num_ranks to divide the global batch of 4, found 3"),
        (4, {"num_ranks": 0}, "num_ranks .* >= 1, found 0"),
        (4, {"num_ranks": 2, "rank": 2}, "rank .* >= 0 and <= 1, found 2"),
        (4, {"num_epochs": 0}, "num_epochs .* >= 1, found 0"),
    ],
)
def test_what_cannot_be_is_refused(tiny: TinyDataset, batch_size: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        OrderedBatchSampler(tiny.root, "balance", batch_size, **options)


def test_without_pytorch_a_sentence_says_so(tiny: TinyDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    dataset = TorchDataset(tiny.root)
    assert len(dataset) == tiny.segments.num_sequences
    with pytest.raises(UserError, match="pip install 'torch'"):
        _ = dataset[0]


def check_rows(tiny: TinyDataset, sequences: list[int], batch: dict[str, Any]) -> None:
    for row, sequence in enumerate(sequences):
        expected = reference_row(tiny.segments, tiny.store, sequence)
        ignored = expected["targets_segmentation"] == 0
        assert batch["inputs"][row].tolist() == expected["inputs"].tolist()
        assert batch["targets"][row].tolist() == np.where(ignored, -100, expected["targets"]).tolist()
        assert batch["segment_ids"][row].tolist() == expected["inputs_segmentation"].tolist()
        assert batch["positions"][row].tolist() == expected["inputs_position"].tolist()


@pytest.mark.campaign
@pytest.mark.parametrize("num_workers", [0, 2])
def test_pytorch_s_loader_gets_every_batch(tiny: TinyDataset, num_workers: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not a dependency")
    dataset, sampler = TorchDataset(tiny.root), OrderedBatchSampler(tiny.root, "balance", 4)
    _ = dataset[0]  # the records are open here when workers are forked
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=num_workers)
    assert len(loader) == len(sampler)
    for sequences, batch in zip(sampler, loader, strict=True):
        assert all(values.dtype == torch.int64 for values in batch.values())
        check_rows(tiny, sequences, batch)


def test_one_sequence_at_a_time_and_merged(tiny: TinyDataset) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not a dependency")
    dataset = pickle.loads(pickle.dumps(TorchDataset(tiny.root)))
    one = dataset[np.int64(3)]
    check_rows(tiny, [3], {name: values[None] for name, values in one.items()})
    merged = TorchDataset(tiny.root, merge_segments=True)[3]
    assert set(merged["segment_ids"].tolist()) <= {0, 1}
    assert merged["positions"].tolist()[:4] == [0, 1, 2, 3]
    logits = torch.zeros(16, 64)
    assert torch.isfinite(torch.nn.functional.cross_entropy(logits, merged["targets"]))
    with pytest.raises(IndexError):
        _ = dataset[10_000]
