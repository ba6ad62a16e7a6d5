"""Vectors from files: every form they come in, matching by id and by order, hostile and broken files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.embedding import precomputed as module
from jax_diversity.sequences.embedding.precomputed import precomputed

IDS = [f"doc-{index}" for index in range(10)]
VECTORS = np.arange(30, dtype=np.float32).reshape(10, 3)


def read(path: Path | str, ids: Sequence[str] = IDS, **settings: Any) -> np.ndarray:
    """All vectors in the documents' order; every document exactly once."""
    found = precomputed(document_ids=lambda: ids, path=str(path), **settings)
    vectors = np.full((len(ids), found.dimensions), np.nan, np.float32)
    for documents, rows in found.blocks():
        assert np.isnan(vectors[documents]).all()
        vectors[documents] = rows
    assert not np.isnan(vectors).any()
    return vectors


def table(vectors: np.ndarray, kind: Any = None, **columns: Any) -> pa.Table:
    kind = kind or pa.list_(pa.float32())
    return pa.table({"embedding": pa.array([list(row) for row in vectors], kind), **columns})


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_is_read_in_order(tmp_path, dtype, order):
    np.save(tmp_path / "v.npy", np.asarray(VECTORS, dtype, order=order))
    np.testing.assert_array_equal(read(tmp_path / "v.npy"), VECTORS)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float32()),
        pa.list_(pa.float64()),
        pa.list_(pa.float16()),
        pa.large_list(pa.float32()),
        pa.list_(pa.float32(), 3),
    ],
    ids=str,
)
def test_a_column_is_read_whatever_its_lists_are(tmp_path, kind):
    rows = VECTORS.astype(np.float16) if kind.value_type == pa.float16() else VECTORS
    pq.write_table(table(rows, kind), tmp_path / "v.parquet")
    np.testing.assert_array_equal(read(tmp_path / "v.parquet"), VECTORS)


@given(order=st.permutations(range(10)), cuts=st.tuples(st.integers(0, 10), st.integers(0, 10)), extra=st.booleans())
@settings(max_examples=25)
def test_rows_are_matched_by_id_over_many_files(tmp_path_factory, order, cuts, extra):
    folder = tmp_path_factory.mktemp("vectors")
    low, high = sorted(cuts)
    for index, part in enumerate((order[:low], order[low:high], order[high:])):
        names = [IDS[place] for place in part]
        rows = VECTORS[list(part)]
        if extra and index == 1:
            names, rows = [*names, "of another corpus"], np.concatenate([rows, np.full((1, 3), np.nan, np.float32)])
        pq.write_table(table(rows, id=pa.array(names, pa.string())), folder / f"part-{index}.parquet")
    np.testing.assert_array_equal(read(folder / "*.parquet"), VECTORS)
    assert precomputed(document_ids=lambda: pa.array(IDS), path=str(folder / "*.parquet")).num_unused == extra


def test_without_ids_files_follow_one_another_by_name(tmp_path):
    pq.write_table(table(VECTORS[6:]), tmp_path / "b.parquet")
    pq.write_table(table(VECTORS[:6]), tmp_path / "a.parquet")
    np.testing.assert_array_equal(read(tmp_path / "*.parquet"), VECTORS)


def test_ids_may_be_numbers_under_another_name_or_left_aside(tmp_path):
    pq.write_table(table(VECTORS[::-1], key=np.arange(10)[::-1]), tmp_path / "v.parquet")
    np.testing.assert_array_equal(read(tmp_path / "v.parquet", [*map(str, range(10))], id_column="key"), VECTORS)
    np.testing.assert_array_equal(read(tmp_path / "v.parquet", id_column=None), VECTORS[::-1])


def test_blocks_do_not_show(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_ROWS", 4)
    np.save(tmp_path / "v.npy", VECTORS)
    pq.write_table(table(VECTORS[::-1], id=IDS[::-1]), tmp_path / "v.parquet", row_group_size=3)
    np.testing.assert_array_equal(read(tmp_path / "v.npy"), VECTORS)
    np.testing.assert_array_equal(read(tmp_path / "v.parquet"), VECTORS)


def test_zero_vectors_are_vectors(tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((10, 2)))
    assert not read(tmp_path / "v.npy").any()


def with_value(row: int, value: float, dtype: str = "float32") -> np.ndarray:
    vectors = VECTORS.astype(dtype)
    vectors[row, 1] = value
    return vectors


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (VECTORS[:9], r"each of the 10 documents, found 9 rows in .*v\.npy"),
        (np.concatenate([VECTORS, VECTORS]), r"found 20 rows in .*v\.npy"),
        (VECTORS.astype(np.int32), r"v\.npy, found int32 \(10, 3\)"),
        (VECTORS[:, 0], r"v\.npy, found float32 \(10,\)"),
        (VECTORS[:, :0], r"v\.npy, found float32 \(10, 0\)"),
        (with_value(7, np.nan), r"found NaN.* in row 7 of .*v\.npy"),
        (with_value(9, -np.inf), r"in row 9 of .*v\.npy"),
        (with_value(2, 1e300, "float64"), r"beyond float32 in row 2 of .*v\.npy"),
        (np.array([[None]] * 10), r"v\.npy, found: .*Python objects"),
    ],
)
def test_arrays_that_cannot_be_are_named(tmp_path, array, message):
    np.save(tmp_path / "v.npy", array, allow_pickle=True)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "v.npy")


RAGGED = [*VECTORS[:5], VECTORS[5][:2], *VECTORS[6:]]
HOLED = [*VECTORS[:5], None, *VECTORS[6:]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"embedding": RAGGED}, r"of 3 numbers .* found 2 numbers in row 5 of .*v\.parquet"),
        ({"embedding": HOLED}, r"found null in row 5 of .*v\.parquet"),
        ({"embedding": [None, *VECTORS[1:]]}, r"found null in row 0"),
        ({"embedding": pa.array([[]] * 10, pa.list_(pa.float32()))}, r"found an empty vector in row 0"),
        ({"embedding": [[1.0, None, 2.0]] * 10}, r"found NaN.* in row 0 of .*v\.parquet"),
        ({"embedding": with_value(6, np.inf).tolist(), "id": IDS[::-1]}, r"in row 6 of .*v\.parquet"),
        ({"embedding": VECTORS[:8].tolist()}, r"found 8 rows in 1 file \(the first is .*v\.parquet"),
        ({"embedding": VECTORS[:8].tolist(), "id": IDS[2:]}, r"found none for 2 documents \(the first is 'doc-0'\)"),
        ({"embedding": VECTORS.tolist(), "id": [*IDS[:9], "doc-3"]}, r"a second one for 'doc-3' in row 9 of"),
        ({"embedding": [1.0] * 10}, r"column 'embedding' of .*v\.parquet, found double"),
        ({"embedding": [["a"]] * 10}, r"found list<"),
        ({"embedding": [[1, 2]] * 10}, r"found list<.*int64"),
        ({"vectors": VECTORS.tolist()}, r"column 'embedding' in .*v\.parquet, found vectors"),
        ({"embedding": pa.array([], pa.list_(pa.float32()))}, r"found 0 rows in 1 file"),
    ],
)
def test_columns_that_cannot_be_are_named(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    with pytest.raises(UserError, match=message):
        read(tmp_path / "v.parquet")


def test_widths_that_differ_between_files_are_named(tmp_path):
    pq.write_table(table(VECTORS[:5]), tmp_path / "a.parquet")
    pq.write_table(table(VECTORS[5:, :2]), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"found 2 numbers in row 0 of .*b\.parquet"):
        read(tmp_path / "*.parquet")


def test_files_that_do_not_go_together_are_named(tmp_path):
    pq.write_table(table(VECTORS[:5], id=IDS[:5]), tmp_path / "a.parquet")
    pq.write_table(table(VECTORS[5:]), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"no file to have the column 'id', found .*b\.parquet"):
        read(tmp_path / "*.parquet")
    np.save(tmp_path / "a.npy", VECTORS)
    np.save(tmp_path / "b.npy", VECTORS)
    with pytest.raises(UserError, match="found 2 files"):
        read(tmp_path / "*.npy")
    with pytest.raises(UserError, match=r"found no file at '.*nothing\*'"):
        read(tmp_path / "nothing*")


@pytest.mark.parametrize("name", ["v.npy", "v.parquet"])
@given(place=st.integers(0, 10_000), change=st.integers(1, 255), cut=st.booleans())
@settings(max_examples=60)
def test_corrupt_files_are_refused_or_harmless(tmp_path_factory, name, place, change, cut):
    """A file whose structure is broken raises nothing but a UserError; numbers have no checksum to fail."""
    path = tmp_path_factory.mktemp("corrupt") / name
    if name == "v.npy":
        np.save(path, VECTORS)
    else:
        pq.write_table(table(VECTORS, id=IDS), path)
    content = bytearray(path.read_bytes())
    place %= len(content)
    if cut:
        content = content[:place]
    else:
        content[place] ^= change
    path.write_bytes(content)
    with suppress(UserError):
        assert read(path).shape[0] == 10
