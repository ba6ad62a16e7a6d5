"""Orderings are read where they lie: in no memory to speak of, and never taken for others."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.foundation import artifacts
from jax_diversity.foundation.artifacts import PIECE_BYTES, describe_file, manifest_files, signed
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.dataset.orderings import OrderingFile
from jax_diversity.streaming.records.reading import RecordReader
from tests.support.tiny_dataset import write_tiny_dataset


def saved(folder: Path, order: np.ndarray) -> tuple[Path, jd.Ordering]:
    ordering = jd.Ordering(order)
    ordering.save(folder / "mine.npy")
    return folder / "mine.npy", ordering


@given(size=st.integers(0, 300), seed=st.integers(0, 5))
def test_a_file_is_the_ordering(tmp_path_factory, size, seed):
    path, ordering = saved(tmp_path_factory.mktemp("order"), np.random.default_rng(seed).permutation(size))
    file = OrderingFile(path, ordering.fingerprint, size)
    positions = np.random.default_rng(seed).integers(0, size, 20) if size else np.zeros(0, np.int64)
    np.testing.assert_array_equal(file.at(positions), ordering[positions])
    np.testing.assert_array_equal(file.indices, ordering.indices)
    assert file.fingerprint == ordering.fingerprint
    other = pickle.loads(pickle.dumps(file))
    np.testing.assert_array_equal(other.at(positions), ordering[positions])
    assert len(pickle.dumps(file)) < 500


def test_opening_takes_no_memory_and_reading_takes_what_is_read(tmp_path):
    path, ordering = saved(tmp_path, np.random.default_rng(0).permutation(2_000_000))
    fingerprint = ordering.fingerprint
    tracemalloc.start()
    try:
        file = OrderingFile(path, fingerprint, 2_000_000)
        file.at(np.arange(1000, 1064))
        assert tracemalloc.get_traced_memory()[1] < 2e6
        reader = RecordReader([path], [2_000_000], sequence_length=4, dtype="uint16", layout=path)
        places = reader.places_of(np.arange(64))
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(ordering.indices[places], np.arange(64))


@pytest.mark.parametrize("value", [7, 10**12, -1])
def test_a_changed_number_is_refused_at_opening(tmp_path, value):
    path, ordering = saved(tmp_path, np.arange(100))
    mapped = np.load(path, mmap_mode="r+")
    mapped[5] = value
    mapped.flush()
    with pytest.raises(UserError, match=f"ordering of fingerprint {ordering.fingerprint[:16]} at .*mine.npy, found"):
        OrderingFile(path, ordering.fingerprint, 100)


def test_a_file_written_to_in_place_is_refused_from_then_on(tmp_path):
    path, ordering = saved(tmp_path, np.random.default_rng(0).permutation(5000))
    file = OrderingFile(path, ordering.fingerprint, 5000)
    np.save(path, np.arange(3))  # shorter: what is mapped behind its end is gone
    with pytest.raises(UserError, match="found that it was written to"):
        file.at(np.arange(4900, 4910))


def test_a_file_made_anew_beside_does_not_disturb(tmp_path):
    order = np.random.default_rng(0).permutation(5000)
    path, ordering = saved(tmp_path, order)
    file = OrderingFile(path, ordering.fingerprint, 5000)
    saved(tmp_path, np.arange(5000))
    np.testing.assert_array_equal(file.at(np.arange(5000)), order)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"no array at all", "int32", "two axes", "shorter"])
def test_other_files_are_refused(tmp_path, content):
    path, ordering = saved(tmp_path, np.arange(100))
    arrays = {
        "int32": np.arange(100, dtype=np.int32),
        "two axes": np.arange(100)[:, None],
        "shorter": np.arange(99),
    }
    if isinstance(content, str):
        np.save(path, arrays[content])
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"mine\.npy"):
        OrderingFile(path, ordering.fingerprint, 100)


def test_a_dataset_changed_by_hand_is_refused_before_the_first_batch(tmp_path):
    root = write_tiny_dataset(tmp_path / "out").root
    path = root / "orderings" / "balance.npy"
    order = np.load(path)
    np.save(path, order[::-1])
    for make in (jd.make_loader, lambda root, **choices: jd.make_loader(root, ordering="balance", **choices)):
        with pytest.raises(UserError, match=r"ordering of fingerprint .*balance\.npy.*was changed"):
            make(root, global_batch_size=4)
    np.save(path, order)
    assert next(iter(jd.make_loader(root, global_batch_size=4)))["inputs"].shape == (4, 16)
    with pytest.raises(UserError, match="Unknown ordering 'best'; the dataset has balance"):
        jd.make_loader(root, ordering="best", global_batch_size=4)


@pytest.mark.parametrize(("stage", "name"), [("pack", "overlap"), ("pack", "sequence_length"), ("tokenize", "end_id")])
@pytest.mark.parametrize("wrong", [None, "12", 1.5, -1, True])
def test_counts_of_a_manifest_that_are_no_numbers(
    stage: str, name: str, wrong: object, tiny_dataset: Path, tmp_path: Path
) -> None:
    path = tmp_path / "manifest.json"
    manifest = json.loads((tiny_dataset / "manifest.json").read_bytes())
    manifest["stages"][stage]["counts"][name] = wrong
    path.write_text(json.dumps(signed(manifest)))
    with pytest.raises(UserError, match=f"'{name}' in .*manifest.json to be a whole number >= 0"):
        getattr(jd.open_dataset(tmp_path), name)


@pytest.mark.parametrize("name", ["summary", "fingerprint"])
def test_a_manifest_whose_stage_lacks_a_text(name: str, tiny_dataset: Path, tmp_path: Path) -> None:
    manifest = json.loads((tiny_dataset / "manifest.json").read_bytes())
    for wrong in ({name: 5}, {}):
        entry = manifest["stages"]["pack"]
        manifest["stages"]["pack"] = {key: value for key, value in entry.items() if key != name} | wrong
        (tmp_path / "manifest.json").write_text(json.dumps(signed(manifest)))
        with pytest.raises(UserError, match="is not a dataset's manifest"):
            jd.open_dataset(tmp_path)


def test_settings_in_a_manifest_of_another_form(tiny_dataset: Path, tmp_path: Path) -> None:
    manifest = json.loads((tiny_dataset / "manifest.json").read_bytes())
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(signed(manifest | {"settings": [{}]})))
    with pytest.raises(UserError, match="its settings are not a mapping"):
        jd.open_dataset(tmp_path)
    path.write_text(json.dumps(signed(manifest | {"settings": {"batch_size": "many"}})))
    with pytest.raises(UserError, match=r"Expected batch_size in manifest\.json"):
        _ = jd.open_dataset(tmp_path).batch_size


def test_a_damaged_header_of_an_ordering_is_a_sentence(tmp_path: Path) -> None:
    ordering, path = jd.Ordering(np.arange(40)), tmp_path / "order.npy"
    ordering.save(path)
    whole, num_read = path.read_bytes(), 0
    for place in range(128):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with contextlib.suppress(UserError):  # NumPy's parser raises many other kinds
                np.testing.assert_array_equal(OrderingFile(path, ordering.fingerprint, 40).indices, ordering.indices)
                num_read += 1
    assert num_read < 200  # blanks that become other blanks, such as the header's last ones


SEVERAL_PIECES = 2 * PIECE_BYTES // 8 + 100


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> tuple[Path, jd.Ordering]:
    return saved(tmp_path_factory.mktemp("large"), np.random.default_rng(0).permutation(SEVERAL_PIECES))


def test_a_piece_is_hashed_before_its_first_read_and_no_other(large, tmp_path) -> None:
    path, ordering = large
    pieces = describe_file(path)["pieces"]
    assert len(pieces) == 3
    damaged = tmp_path / "order.npy"
    content = bytearray(path.read_bytes())
    content[PIECE_BYTES + 5] ^= 1  # in the second piece
    damaged.write_bytes(content)
    file = OrderingFile(damaged, ordering.fingerprint, SEVERAL_PIECES, pieces)
    assert len(file) == SEVERAL_PIECES
    last_of_first = (PIECE_BYTES - 128) // 8 - 1
    for positions in (np.array([0, last_of_first]), np.array([SEVERAL_PIECES - 1]), np.zeros(0, np.int64)):
        np.testing.assert_array_equal(file.at(positions), ordering[positions])
    for read in (lambda: file.at(np.array([0, last_of_first + 1])), lambda: file.indices):
        with pytest.raises(UserError, match=r"ordering of fingerprint .*order\.npy, found a part \(piece 1\)"):
            read()


def test_pieces_that_were_read_are_not_hashed_again(large, monkeypatch) -> None:
    path, ordering = large
    file = OrderingFile(path, ordering.fingerprint, SEVERAL_PIECES, describe_file(path)["pieces"])
    np.testing.assert_array_equal(file.indices, ordering.indices)
    monkeypatch.setattr("hashlib.sha256", None)
    np.testing.assert_array_equal(file.at(np.arange(9)), ordering[:9])
    monkeypatch.undo()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(file)).at(np.arange(9)), ordering[:9])


@pytest.mark.parametrize("pieces", [["aa"], ["a" * 64], [7], "a" * 64, ["g" * 64] * 3])
def test_wrong_pieces_in_a_manifest_are_refused(pieces, tmp_path) -> None:
    root = write_tiny_dataset(tmp_path / "out").root
    manifest = json.loads((root / "manifest.json").read_bytes())
    about = manifest["stages"]["order/balance"]["files"]["orderings/balance.npy"]
    assert "pieces" not in about  # a small file has one hash
    about |= {"bytes": 2 * PIECE_BYTES + 1, "pieces": pieces}
    (root / "manifest.json").write_text(json.dumps(signed(manifest)))
    with pytest.raises(UserError, match="not a dataset's manifest"):
        jd.open_dataset(root)


def test_every_array_of_several_pieces_gets_their_hashes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(artifacts, "PIECE_BYTES", 256)
    root = write_tiny_dataset(tmp_path / "out").root
    for name, about in manifest_files(jd.open_dataset(root).manifest).items():
        large_array = name.endswith(".npy") and about["bytes"] > 256
        assert len(about.get("pieces", [])) == (-(-about["bytes"] // 256) if large_array else 0)
    assert jd.open_dataset(root).verify() == []


def test_a_piece_that_is_not_written_whole_is_not_read(large, tmp_path, monkeypatch) -> None:
    path, ordering = large
    about, content = describe_file(path), path.read_bytes()
    positions = np.arange(SEVERAL_PIECES - 9, SEVERAL_PIECES)

    def opened(name: str) -> OrderingFile:
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, len(content))
        pieces = [content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES)]
        return OrderingFile(
            tmp_path / name, ordering.fingerprint, SEVERAL_PIECES, about["pieces"], lambda piece: pieces[piece]
        )

    write, full = os.pwrite, opened("full")
    monkeypatch.setattr(os, "pwrite", lambda file, rest, place: write(file, rest[: -(-len(rest) // 2)], place))
    np.testing.assert_array_equal(opened("halves").at(positions), ordering[positions])
    for failing in (lambda file, rest, place: 0, fail(OSError(errno.EFBIG, "File too large"))):
        monkeypatch.setattr(os, "pwrite", failing)
        with pytest.raises(UserError, match=r"Could not write .*full: .*; free space or choose another cache_folder"):
            full.at(positions)
    monkeypatch.setattr(os, "pwrite", lambda file, rest, place: len(rest))  # a disk that loses bytes
    with pytest.raises(UserError, match=r"found a part \(piece 2\)"):
        full.at(positions)
    monkeypatch.undo()
    np.testing.assert_array_equal(full.at(positions), ordering[positions])


def fail(error: Exception) -> Callable[..., Any]:
    def failing(*_: Any) -> Any:
        raise error

    return failing
