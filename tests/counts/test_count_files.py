"""Counts in Parquet files: what is written is read, in blocks of any size; bad files are one sentence."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jax_diversity import Characteristics, UserError
from jax_diversity.counts.spool import Rows
from jax_diversity.counts.stored import CountFiles


def random_counts(num_sequences: int = 700, seed: int = 0, most: int = 9) -> Characteristics:
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, most, (num_sequences, 40)) * (rng.random((num_sequences, 40)) < 0.2)
    halves = np.stack([topics[:, :20].sum(axis=1), topics[:, 20:].sum(axis=1)], axis=1)
    return Characteristics.from_counts(
        {"topic": topics, "half": halves},
        weights={"half": 0.5},
        sequence_length=most * 60,
        documents=rng.integers(-1, 90, num_sequences),
        turns=rng.integers(-1, 90, num_sequences),
        copies=np.sort(rng.integers(-1, 50, (num_sequences, 1)), axis=1),
        batch_size=8,
    )


def save_in_files(chars: Characteristics, folder: Path, bounds: list[int]) -> None:
    folder.mkdir()
    for number, (first, stop) in enumerate(itertools.pairwise(bounds)):
        chars.take(np.arange(first, stop)).save(folder / f"part-{number:05}.parquet")


@pytest.mark.parametrize("bounds", [[0, 700], [0, 1, 300, 300, 700]])
@pytest.mark.parametrize("most", [9, 70_000, 2**33])
def test_what_is_saved_is_read(bounds: list[int], most: int, tmp_path: Path) -> None:
    chars = random_counts(most=most)
    save_in_files(chars, tmp_path / "counts", bounds)
    read = Characteristics.from_files(tmp_path / "counts")
    assert read.fingerprint == chars.fingerprint
    assert read.batch_size == 8
    files = CountFiles.open(tmp_path / "counts")
    assert files.num_sequences == 700
    assert files.num_groups == {"topic": 40, "half": 2}
    for first, stop in ((0, 1), (299, 302), (5, 700)):
        assert files.rows(first, stop).fingerprint == chars.take(np.arange(first, stop)).fingerprint
    assert files.rows(5, 5).num_sequences == 0
    joined = Characteristics.joined([files.rows(3, 4), files.rows(4, 9)])
    assert files.rows(3, 9).fingerprint == joined.fingerprint == chars.rows(3, 9).fingerprint
    assert (files.num_entries, files.fingerprint) == (chars.num_entries, chars.fingerprint)
    assert {name: each.tolist() for name, each in files.totals.items()} == {
        name: each.tolist() for name, each in chars.totals.items()
    }


def test_narrow_arrays_hold_the_same_rows() -> None:
    numbers = np.random.default_rng(1).permutation(700)[:99]
    rows = Rows(numbers, random_counts().take(numbers))
    arrays = rows.arrays()
    again = Rows.from_arrays(arrays, random_counts(3))
    np.testing.assert_array_equal(again.numbers, numbers)
    assert again.counts.fingerprint == rows.counts.fingerprint
    assert arrays["tokens/topic"].dtype == np.uint16


def test_one_file_and_a_list_of_files(tmp_path: Path) -> None:
    chars = random_counts(20)
    save_in_files(chars, tmp_path / "counts", [0, 5, 20])
    paths = sorted((tmp_path / "counts").iterdir())
    assert Characteristics.from_files(paths[1]).num_sequences == 15
    assert Characteristics.from_files(paths[::-1]).fingerprint == chars.take(np.r_[5:20, 0:5]).fingerprint


def test_names_of_groups_are_saved_and_compared(tmp_path: Path) -> None:
    """Every file numbers its labels in their own order, so files of other labels have other groups."""
    chars = Characteristics.from_counts({"source": ["web", "code", "web", "wiki"], "half": [[1], [1], [1], [1]]})
    chars.take(np.array([0, 1])).save(tmp_path / "a.parquet")
    chars.take(np.array([2, 3])).save(tmp_path / "b.parquet")
    read = Characteristics.from_files(tmp_path)
    assert read.names == chars.names == {"source": ("code", "web", "wiki")}
    assert read.fingerprint == chars.fingerprint
    Characteristics.from_counts({"source": ["web", "law", "wiki"], "half": [[1]] * 3}).save(tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"the groups of 'source' to have the same names in .*a\.parquet and .*c\.parq"):
        Characteristics.from_files(tmp_path)


@pytest.mark.parametrize("names", [5, {"topic": 5}, {"topic": ["a"]}, {"topic": ["a", 5]}, {"other": ["a", "b"]}])
def test_bad_names_of_groups(names: Any, tmp_path: Path) -> None:
    Characteristics.from_counts({"topic": [[3, 1], [0, 4]]}).save(tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    about = json.loads(table.schema.metadata[b"jax_diversity.counts"]) | {"names": names}
    table = table.replace_schema_metadata({"jax_diversity.counts": json.dumps(about)})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="Expected a description of families"):
        Characteristics.from_files(tmp_path)


def test_bad_files(tmp_path: Path) -> None:
    chars = random_counts(20)
    path = tmp_path / "a.parquet"
    with pytest.raises(UserError, match=r"ends in \.parquet"):
        chars.save(tmp_path / "a.npz")
    with pytest.raises(UserError, match="Expected a folder"):
        chars.save(tmp_path / "absent" / "a.parquet")
    for files, message in (
        (tmp_path, "found none"),
        (path, "no such file"),
        ([], "found none"),
        (5, "found int"),
    ):
        with pytest.raises(UserError, match=message):
            Characteristics.from_files(files)
    chars.save(path)
    chars.with_weights({"half": 2.0}).save(tmp_path / "b.parquet")
    with pytest.raises(UserError, match="equal families"):
        Characteristics.from_files(tmp_path)
    whole = path.read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    damaged = other / "a.parquet"
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:size])
        with pytest.raises(UserError, match="Parquet"):
            Characteristics.from_files(other)
    place = len(whole) // 3
    damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(UserError, match="damaged or was changed"):
        Characteristics.from_files(other)
    pq.write_table(pa.table({"a": [1]}), damaged)
    with pytest.raises(UserError, match="without a description"):
        Characteristics.from_files(other)


def test_bad_counts_in_files(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    Characteristics.from_counts({"topic": [[3, 1], [0, 4]], "half": [[4], [4]]}).save(path)
    table = pq.read_table(path)
    lists = pa.list_(pa.int64())
    for name, values, message in (
        ("topic.group", [[0, 2], [1]], "groups 0 .. 2 of 2"),
        ("topic.group", [[0, 2**40], [1]], "groups 0 .. 1099511627776 of 2"),
        ("topic.group", [[-1, 1], [1]], "groups -1 .. 1 of 2"),
        ("topic.group", [[0, 1], []], "different lengths"),
        ("topic.tokens", [[3, -1], [4]], "counts -1 .. 4"),
        ("topic.tokens", [[3, None], [4]], "null"),
        ("topic.tokens", [None, [4]], "null"),
        ("topic.tokens", [[3, 2], [4]], "count all tokens"),
    ):
        index = table.schema.get_field_index(name)
        pq.write_table(table.set_column(index, name, pa.array(values, lists)), path)
        with pytest.raises(UserError, match=message):
            Characteristics.from_files(path)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("topic.group", [[1, 0], [2]], "do not ascend"),
        ("topic.group", [[1, 1], [2]], "do not ascend"),
        ("topic.tokens", [[3, 0], [2]], "counts 0 .. 3"),
        ("topic.tokens", [3, 2], "int64 in place of lists"),
        ("document", [1.5, 2.0], "numbers of the type double"),
        ("document", [1, None], "1 of them null"),
    ],
)
def test_other_forms_of_the_same_counts_are_refused(column: str, values: Any, message: str, tmp_path: Path) -> None:
    """Files of others: lists in another order or with repeated groups would give other orders of the same counts."""
    path = tmp_path / "a.parquet"
    Characteristics.from_counts({"topic": [[1, 2, 0], [0, 0, 4]]}, documents=np.array([0, 1])).save(path)
    table = pq.read_table(path)
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, column, pa.array(values)), path)
    with pytest.raises(UserError, match=message):
        Characteristics.from_files(path)
