"""Megatron's samples: equal to what Megatron-LM's own code built, and to the obvious way of cutting a stream."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.base import METHODS, pack
from jax_diversity.sequences.packing.megatron import (
    MegatronIndices,
    megatron,
    megatron_indices,
    megatron_segments,
    plan_epochs,
    sample_index,
)
from jax_diversity.sequences.token_store.megatron import TokenFile
from jax_diversity.streaming.run.interleaving import interleave
from jax_diversity.streaming.run.weights import phases_of

GOLDENS = Path(__file__).parents[2] / "support" / "data" / "megatron"
CASES = json.loads((GOLDENS / "cases.json").read_text())


def golden_indices(case: dict[str, Any], lengths: np.ndarray) -> MegatronIndices:
    documents = np.arange(*case.get("documents", (0, len(lengths))))
    return megatron_indices(
        lengths, documents, case["sequence_length"], num_samples=case["num_samples"], seed=case["seed"]
    )


def assert_same(found: np.ndarray, golden: np.ndarray) -> None:
    assert found.dtype == golden.dtype
    np.testing.assert_array_equal(found, golden)


@pytest.mark.parametrize("name", CASES["indices"])
def test_indices_are_those_of_megatron_lm(name: str) -> None:
    case, golden = CASES["indices"][name], np.load(GOLDENS / f"indices_{name}.npz")
    store = TokenFile(GOLDENS / case["store"])
    lengths = store.sequence_lengths
    indices = golden_indices(case, lengths)
    for index in MegatronIndices._fields:
        assert_same(getattr(indices, index), golden[index])
    if "padded_sample_index" in golden:
        everything = np.arange(len(lengths), dtype=np.int32)
        assert_same(sample_index(lengths, everything, case["sequence_length"], "pad"), golden["padded_sample_index"])
    # The segments are the same samples: their tokens are what Megatron hands to training.
    segments = megatron_segments(lengths, indices, case["sequence_length"])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    for sequence, tokens in zip(indices.shuffle_index, golden["first_samples"], strict=False):
        rows = segments.sequence_index == sequence
        begins = starts[segments.document_index[rows]] + segments.document_offset[rows]
        runs = zip(begins, segments.length[rows], strict=True)
        assert [token for begin, length in runs for token in store.tokens[begin : begin + length]] == tokens.tolist()


def test_the_cases_hold_a_last_epoch_of_its_own_and_one_that_is_none() -> None:
    apart = {}
    for name, case in CASES["indices"].items():
        lengths = TokenFile(GOLDENS / case["store"]).sequence_lengths[slice(*case.get("documents", (None,)))]
        apart[name] = plan_epochs(int(lengths.sum()), case["sequence_length"], 1, case["num_samples"])
    assert apart["last_epoch_apart"].last_apart
    assert not apart["last_epoch_mixed"].last_apart
    assert apart["last_epoch_mixed"].num_epochs == 2
    assert apart["longer_than_an_epoch"].num_epochs == 6


def test_an_installed_megatron_core_builds_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="compares with Megatron-LM, which is not a dependency")
    pytest.importorskip("megatron.core.datasets.helpers", reason="compares with Megatron-LM, which is not a dependency")
    sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
    try:
        import megatron_goldens as theirs  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.pop(0)
    theirs.write_stores(tmp_path)
    rng = np.random.default_rng(5)
    for number in range(30):
        store = TokenFile(tmp_path / sorted(theirs.STORES)[number % len(theirs.STORES)])
        lengths = store.sequence_lengths
        case = {
            "store": store.prefix.name,
            "sequence_length": int(rng.integers(1, 60)),
            "seed": int(rng.integers(2**32)),
            "num_samples": int(rng.integers(1, 400)),
        }
        built = theirs.gpt_indices(tmp_path, case)
        for name, index in golden_indices(case, lengths)._asdict().items():
            assert_same(index, built[name])
        blend = {"weights": rng.random(int(rng.integers(1, 40))) + 1e-3, "size": int(rng.integers(1, 3000))}
        found = interleave(*phases_of(blend["weights"]), blend["size"], rule="megatron")
        np.testing.assert_array_equal(found, theirs.blended_datasets(blend))


LENGTHS = st.lists(st.one_of(st.just(0), st.integers(0, 30)), min_size=1, max_size=25).map(
    lambda lengths: np.array(lengths, np.int64)
)


def slow_samples(lengths: np.ndarray, order: np.ndarray, length: int, pad: bool) -> list[list[tuple[int, int]]]:
    """The documents end to end, cut every `length` tokens, one token more taken each time."""
    stream = [(int(document), offset) for document in order for offset in range(lengths[document])]
    samples = [stream[start : start + length + 1] for start in range(0, max(len(stream) - 1, 0), length)]
    return samples if pad else [sample for sample in samples if len(sample) == length + 1]


def tokens_of(segments: Segments) -> list[list[tuple[int, int]]]:
    samples: list[list[tuple[int, int]]] = [[] for _ in range(segments.num_sequences)]
    for sequence, position, document, offset, length in zip(
        segments.sequence_index,
        segments.position,
        segments.document_index,
        segments.document_offset,
        segments.length,
        strict=True,
    ):
        assert length > 0
        assert position == len(samples[sequence])
        samples[sequence] += [(int(document), int(offset + step)) for step in range(length)]
    return samples


@given(LENGTHS, st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**32 - 1), st.booleans(), st.data())
def test_every_token_stands_where_the_stream_is_cut(
    lengths: np.ndarray, length: int, num_epochs: int, seed: int, pad: bool, data: st.DataObject
) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    documents = np.flatnonzero(mask)
    last = "pad" if pad else "drop"
    indices = megatron_indices(lengths, documents, length, num_epochs=num_epochs, seed=seed, last_sequence=last)
    assert np.bincount(indices.document_index, minlength=len(lengths)).tolist() == [num_epochs * m for m in mask]
    (segments,) = megatron(
        lengths,
        data.draw(st.permutations(documents.tolist()).map(lambda order: np.array(order, np.int64))),
        length,
        num_epochs=num_epochs,
        seed=seed,
        last_sequence=last,
    )
    assert (segments.sequence_length, segments.overlap) == (length + 1, 1)
    assert tokens_of(segments) == slow_samples(lengths, indices.document_index, length, pad)
    assert segments.num_sequences == len(indices.shuffle_index)
    ends = segments.document_offset + segments.length == lengths[segments.document_index]
    assert segments.ends_with_eos.tolist() == ends.tolist()
    assert sorted(indices.shuffle_index.tolist()) == list(range(segments.num_sequences))


@given(LENGTHS.filter(lambda lengths: lengths.sum() > 0), st.integers(1, 40), st.integers(1, 200))
def test_as_many_epochs_as_the_samples_need(lengths: np.ndarray, length: int, num_samples: int) -> None:
    total = int(lengths.sum())
    epochs = plan_epochs(total, length, num_samples=num_samples)
    assert epochs.num_samples >= num_samples
    assert epochs.num_epochs == 1 or (total * (epochs.num_epochs - 1) - 1) // length < num_samples
    indices = megatron_indices(lengths, np.arange(len(lengths)), length, num_samples=num_samples)
    first, last = indices.shuffle_index[: epochs.num_first], indices.shuffle_index[epochs.num_first :]
    assert sorted(first.tolist()) == list(range(epochs.num_first))
    assert (last >= epochs.num_first).all()
    if epochs.last_apart:
        assert sorted(indices.document_index[-len(lengths) :].tolist()) == list(range(len(lengths)))


def test_blocks_of_samples_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(0, 20, 200)
    indices = megatron_indices(lengths, np.arange(200), 7, seed=3)
    whole = megatron_segments(lengths, indices, 7)
    monkeypatch.setattr("jax_diversity.sequences.packing.megatron._SAMPLES_AT_A_TIME", 5)
    for name in Segments.COLUMNS:
        assert getattr(megatron_segments(lengths, indices, 7), name).tolist() == getattr(whole, name).tolist()


def test_wide_places_need_wide_indices() -> None:
    lengths = np.array([2**31 + 5, 3], np.int64)
    index = sample_index(lengths, np.array([1, 0], np.int32), 2**30)
    assert index.dtype == np.int64
    assert index.tolist() == [[0, 0], [1, 2**30 - 3], [1, 2**31 - 3]]


def test_the_epochs_of_a_number_of_epochs_are_shuffled_together() -> None:
    lengths = np.full(50, 10)
    assert not plan_epochs(500, 16, num_epochs=4).last_apart
    order = megatron_indices(lengths, np.arange(50), 16, num_epochs=4, seed=1).document_index
    assert len(set(order[:50].tolist())) < 50
    (segments,) = megatron(lengths, np.arange(50), 16, num_epochs=4)
    assert segments.num_sequences == 1999 // 16


def test_the_method_is_one_of_all() -> None:
    packed = pack([3, 2, 4, 0], 4, method="megatron", seed=1)
    assert packed.segments.overlap == 1
    assert packed.report.num_tokens_kept + packed.report.num_tokens_dropped == 9
    assert packed.report.num_tokens_repeated == 1
    assert METHODS.options("megatron") == {"num_epochs": 1, "num_samples": None, "last_sequence": "drop"}


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"seed": 2**32}, r"seed to be a whole number >= 0 and <= 4294967295, found 4294967296"),
        ({"num_epochs": 0}, "num_epochs to be a whole number >= 1, found 0"),
        ({"num_samples": 0}, "num_samples to be a whole number >= 1, found 0"),
        ({"num_samples": 5, "documents": [1]}, "documents with tokens for 5 samples"),
    ],
)
def test_what_megatron_could_not_build_is_refused(settings: dict[str, Any], what: str) -> None:
    documents = np.array(settings.pop("documents", [0, 1]), np.int64)
    with pytest.raises(UserError, match=what):
        megatron_indices(np.array([5, 0]), documents, 2, **settings)
