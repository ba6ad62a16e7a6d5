"""Characteristics of several datasets as one: equal to a join row by row and name by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.streaming.run.joining import joined_characteristics
from tests.support.tiny_dataset import write_tiny_dataset


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[jd.Dataset]:
    """Three of other lengths, families, groups and widths of copies."""
    root = tmp_path_factory.mktemp("joined")
    for seed, (sequence_length, group_names) in enumerate(
        (
            (16, {"language": ("en", "de"), "source": ("web", "books", "code"), "topic": ("a", "b")}),
            (8, {"topic": ("b", "c", "a"), "other": ("x",), "source": ("code", "forum", "web")}),
            (64, {"source": ("mail",), "topic": ("d", "a")}),
        )
    ):
        write_tiny_dataset(root / str(seed), sequence_length=sequence_length, group_names=group_names, seed=seed)
    return [jd.open_dataset(root / str(seed)) for seed in range(3)]


def slow_counts(datasets: Sequence[jd.Dataset], family: str) -> tuple[list[str], np.ndarray]:
    """The groups' names, and the counts as a dense matrix, one count at a time."""
    names: list[str] = []
    for dataset in datasets:
        names += [name for name in dataset.group_names[family] if name not in names]
    rows = []
    for dataset in datasets:
        for row in dataset.characteristics.counts[family].toarray():
            rows.append([0] * len(names))
            for name, tokens in zip(dataset.group_names[family], row, strict=True):
                rows[-1][names.index(name)] += int(tokens)
    return names, np.array(rows)


def numbers_and_dataset(rows: np.ndarray, datasets: Sequence[jd.Dataset]) -> list[tuple[int, int]]:
    """Every number >= 0 with the dataset of its row."""
    of_row = np.repeat(np.arange(len(datasets)), [dataset.num_sequences for dataset in datasets])
    return [
        (int(number), int(dataset))
        for row, dataset in zip(rows, of_row, strict=True)
        for number in np.ravel(row)
        if number >= 0
    ]


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 2), (2, 1, 0), (1, 1)])
def test_counts_are_those_of_a_join_by_name(datasets: list[jd.Dataset], order: tuple[int, ...]) -> None:
    chosen = [datasets[index] for index in order]
    joined = joined_characteristics(chosen)
    assert joined.num_sequences == sum(dataset.num_sequences for dataset in chosen)
    first = chosen[0].characteristics
    shared = [name for name in first.families if all(name in each.characteristics.families for each in chosen)]
    assert list(joined.families) == shared
    assert dict(joined.weights) == {family: first.weights[family] for family in shared}
    assert joined.sequence_length == max(dataset.sequence_length for dataset in chosen)
    for family in shared:
        names, expected = slow_counts(chosen, family)
        assert joined.counts[family].shape[1] == len(names)
        np.testing.assert_array_equal(joined.counts[family].toarray(), expected)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 1)])
def test_documents_and_copies_of_different_datasets_stay_apart(
    datasets: list[jd.Dataset], order: tuple[int, ...]
) -> None:
    chosen = [datasets[index] for index in order]
    joined = joined_characteristics(chosen)
    width = max(dataset.sequence_copies.shape[1] for dataset in chosen)
    assert joined.documents is not None
    assert joined.copies is not None
    assert joined.copies.shape == (joined.num_sequences, width)
    for rows, own in (
        (joined.documents[:, None], [dataset.sequence_documents[:, None] for dataset in chosen]),
        (joined.copies, [dataset.sequence_copies for dataset in chosen]),
    ):
        found = numbers_and_dataset(rows, chosen)
        assert found
        dataset_of: dict[int, int] = {}
        for number, dataset in found:
            assert dataset_of.setdefault(number, dataset) == dataset
        # Within a dataset, what was equal is, and what was different is too.
        start = 0
        for before in own:
            after = rows[start : start + len(before), : before.shape[1]]
            start += len(before)
            np.testing.assert_array_equal(after < 0, before < 0)
            pairs = set(zip(before[before >= 0].tolist(), after[before >= 0].tolist(), strict=True))
            assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs})
        filled = np.concatenate(
            [np.pad(part, ((0, 0), (0, rows.shape[1] - part.shape[1])), constant_values=-1) for part in own]
        )
        assert (rows[filled < 0] < 0).all()


def test_one_dataset_gives_back_its_own(datasets: list[jd.Dataset]) -> None:
    for dataset in datasets:
        assert joined_characteristics([dataset]).fingerprint == dataset.characteristics.fingerprint


def test_joined_characteristics_are_ordered(datasets: list[jd.Dataset]) -> None:
    joined = joined_characteristics(datasets)
    assert sorted(jd.order(joined, "greedy").indices.tolist()) == list(range(joined.num_sequences))


def test_what_cannot_be_joined_is_a_sentence(datasets: list[jd.Dataset], tmp_path: Path) -> None:
    with pytest.raises(jd.UserError, match="at least one dataset"):
        joined_characteristics([])
    write_tiny_dataset(tmp_path / "other", group_names={"mood": ("good",)})
    with pytest.raises(jd.UserError, match=r"found none \(language, source, topic; mood\)"):
        joined_characteristics([datasets[0], jd.open_dataset(tmp_path / "other")])
