"""Sequences are counted in ranges, by jobs; the files do not depend on the ranges."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from jax_diversity import UserError, measure, open_dataset, order
from jax_diversity.counts import token_counts
from jax_diversity.foundation.executors import Executor, Here, Processes
from jax_diversity.foundation.stage import Context
from jax_diversity.pipeline.build import Build
from jax_diversity.sequences.characteristics import counting, stored
from jax_diversity.sequences.characteristics.settings import CharacteristicsConfig
from jax_diversity.sequences.characteristics.stage import characterize_sequences
from tests.support.summaries import check_among
from tests.support.tiny_corpus import tiny_config, write_corpus

FAMILIES = ("cluster", "length", "source", "tokens", "sequence_cluster")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, Path]:
    """A dataset with weights, copies and clusters of sequences."""
    folder = tmp_path_factory.mktemp("ranges")
    corpus = write_corpus(folder / "corpus", 150)
    copied = (corpus / "part-0.jsonl").read_text(encoding="utf-8").replace('"doc-', '"copy-')
    (corpus / "part-2.jsonl").write_text(copied, encoding="utf-8")
    config = tiny_config(corpus, folder / "dataset")
    config = dataclasses.replace(
        config,
        orders=(),
        packing=dataclasses.replace(config.packing, weights={"source=law": 3.0}),
        characteristics=CharacteristicsConfig(families=FAMILIES, length_bins=5, sequence_clusters=4),
    )
    build = Build(config)
    build.run_all()
    return build, folder / "dataset"


@pytest.mark.campaign
@pytest.mark.parametrize(("size", "executor"), [(7, Here()), (64, Processes(2))])
def test_ranges_change_nothing(
    size: int, executor: Executor, built: tuple[Build, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, folder = built
    monkeypatch.setattr(counting, "SEQUENCES_PER_RANGE", size)
    context = Context(build.config, build.folder, build.progress, open_dataset, executor)
    counts = characterize_sequences(context, tmp_path)
    assert counts == context.counts("characterize")
    expected = {path.name: path.read_bytes() for path in (folder / stored.CHARACTERISTICS).iterdir()}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == expected


def test_the_files_are_those_of_scipy_and_their_rows_can_be_read(built: tuple[Build, Path]) -> None:
    dataset = open_dataset(built[1])
    assert dataset.num_sequences > 150
    for family in ("cluster", "length", "source", "duplicate"):
        whole = sparse.load_npz(built[1] / stored.CHARACTERISTICS / stored.counts_name(family))
        assert whole.dtype == np.int32
        assert isinstance(whole, sparse.csr_array)
        for first, stop in ((0, 0), (0, 1), (10, 75), (dataset.num_sequences - 1, dataset.num_sequences)):
            rows = stored.read_counts_between(dataset.stored, family, first, stop)
            np.testing.assert_array_equal(rows.toarray(), whole[first:stop].toarray())
            segments, taken = (
                dataset.segments_between("train", first, stop),
                dataset.segments.take(np.arange(first, stop)),
            )
            assert segments.num_sequences == stop - first
            for column in segments.COLUMNS:
                np.testing.assert_array_equal(getattr(segments, column), getattr(taken, column))


@pytest.mark.campaign
def test_a_dataset_is_ordered_and_measured_like_its_counts_in_files(
    built: tuple[Build, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in several chunks, where the family `tokens` is counted when a chunk is read."""
    dataset = open_dataset(built[1])
    chars, files = dataset.characteristics, tmp_path / "counts.parquet"
    chars.save(files)
    counts = dataset.token_counts()
    assert (counts.num_entries, counts.fingerprint) == (chars.num_entries, chars.fingerprint)
    for rows in (1 << 20, 64):
        monkeypatch.setattr(token_counts, "MOST_ROWS", rows)
        assert counts.chunk_bounds == chars.chunk_bounds
        expected = order(files, part_size=32, pool_size=8)
        summary = measure(files, expected, (8, 32)).summary()
        for given in (built[1], dataset, [files], chars) if rows > 64 else (dataset, [files]):
            ordering = order(given, part_size=32, pool_size=8)
            np.testing.assert_array_equal(ordering.indices, expected.indices)
            assert ordering.info["characteristics"] == expected.info["characteristics"]
            check_among(measure(given, ordering, (8, 32)).summary(), summary)
    assert len(order(dataset.validation)) == dataset.validation.num_sequences


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "File is not a zip file"),
        (b"PK", "not a zip file"),
        ("compressed", "indptr is compressed"),
        ("objects", "allow_pickle|type object"),
        ("shape", "arrays of 3, 2 and 2 numbers, a shape of"),
        ("cut", "not a zip file"),
    ],
)
def test_damaged_counts_are_one_sentence(content: bytes | str, message: str, tmp_path: Path) -> None:
    matrix, path = sparse.csr_array(np.array([[3, 0], [0, 4]], np.int32)), tmp_path / "topic.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "compressed":
        sparse.save_npz(path, matrix)
    elif content == "objects":
        np.savez(path, indptr=np.array([{}]), indices=matrix.indices, data=matrix.data, shape=np.array([2, 2]))
    elif content == "shape":
        np.savez(path, indptr=matrix.indptr, indices=matrix.indices, data=matrix.data, shape=np.array([7, 2]))
    else:
        sparse.save_npz(path, matrix, compressed=False)
        path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match=rf"topic\.npz does not contain counts \(.*({message})"):
        stored.map_counts(path)
