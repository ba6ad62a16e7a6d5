"""Documents packed anew, and runs that read another packing in every epoch."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build
from jax_diversity.streaming.run.mixture import _as_read
from tests.support.hostile import sign_manifest
from tests.support.runs import batches, whole
from tests.support.tiny_corpus import tiny_config, write_corpus
from tests.support.tiny_dataset import write_tiny_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset and two further packings of it."""
    root = tmp_path_factory.mktemp("packings")
    write_corpus(root / "texts", 90, 0)
    config = dataclasses.replace(
        tiny_config(root / "texts", root / "first"), orders=(OrderConfig(method="uniform_shuffle"),)
    )
    Build(config).run_all()
    shutil.rmtree(root / "texts")  # it is not needed again
    for seed in (1, 2):
        jd.repack(root / "first", root / f"packed-{seed}", seed=seed)
    return root


def packings(folder: Path) -> list[jd.Dataset]:
    return [jd.open_dataset(folder / name) for name in ("first", "packed-1", "packed-2")]


def documents_of(dataset: jd.Dataset) -> dict[str, list[int]]:
    """Every training document's tokens by its id, put together from the segments."""
    ids, segments = list(dataset.document_store.ids()), dataset.segments
    tokens: dict[str, list[int]] = {}
    order = np.lexsort((segments.document_offset, segments.document_index))
    rows = segments.document_index[order], segments.document_offset[order], segments.length[order]
    for index, offset, length in zip(*(column.tolist() for column in rows), strict=True):
        found = dataset.tokens.gather(np.array([index]), np.array([offset]), np.array([length]))
        tokens.setdefault(ids[index], []).extend(found.tolist())
    return tokens


@pytest.mark.campaign
def test_a_packing_holds_the_same_documents_in_other_sequences(folder: Path) -> None:
    first, *others = packings(folder)
    expected = documents_of(first)
    # What is cut off at the end of the last sequence may be of another document.
    for other in others:
        assert other.feature_space == first.feature_space
        assert other.fingerprint != first.fingerprint
        assert other.sequence_length == first.sequence_length
        found = documents_of(other)
        assert found.keys() == expected.keys()
        for name, tokens in found.items():
            shorter = min(len(tokens), len(expected[name]))
            assert tokens[:shorter] == expected[name][:shorter]
        assert Path(other.root / "tokens/tokens-00000.bin").samefile(first.root / "tokens/tokens-00000.bin")
        rows = [
            {tuple(row) for row in each.records.read_sequences(np.arange(3))["inputs"].tolist()}
            for each in (first, other)
        ]
        assert not rows[0] & rows[1]
    assert main(["verify", "--out", str(folder / "packed-1"), "--quiet"]) == 0


def test_a_packing_is_made_once_and_needs_nothing_of_the_first(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "first", tmp_path / "first")
    made = jd.repack(tmp_path / "first", tmp_path / "again", seed=7, sequence_length=48)
    log = (tmp_path / "again" / "build.log").read_text()
    again = jd.repack(tmp_path / "first", tmp_path / "again", seed=7, sequence_length=48)
    assert (tmp_path / "again" / "build.log").read_text() == log
    assert (again.fingerprint, again.sequence_length) == (made.fingerprint, 48)
    shutil.rmtree(tmp_path / "first")
    assert len(batches(jd.create_schedule(tmp_path / "run", again), 4)) == again.num_sequences // 4
    assert main(["order", "--out", str(tmp_path / "again"), "--quiet"]) == 0
    other = jd.repack(folder / "first", tmp_path / "other", seed=8)
    changed = jd.repack(folder / "first", tmp_path / "other", seed=9)
    assert other.fingerprint != changed.fingerprint


@pytest.mark.campaign
def test_every_epoch_reads_another_packing(folder: Path, tmp_path: Path) -> None:
    datasets = packings(folder)
    run = jd.create_schedule(tmp_path / "run", datasets, consecutive=True)
    sizes = [each.num_sequences for each in datasets]
    assert len(run) == sum(sizes)
    for index, (first, end) in enumerate(zip(run.offsets[:-1], run.offsets[1:], strict=True)):
        assert sorted(whole(run)[first:end].tolist()) == list(range(first, end)), index
    np.testing.assert_array_equal(whole(run)[: sizes[0]], jd.order(datasets[0].characteristics).indices)
    # Extended where an epoch ends it begins again with the first; elsewhere it says what to do.
    longer = jd.extend_schedule(run, consecutive=True, num_positions=sizes[0] + 5)
    rest = whole(longer)[len(run) :]
    assert sorted(rest[: sizes[0]].tolist()) == list(range(sizes[0]))
    assert not (rest[: sizes[0]] == whole(run)[: sizes[0]]).all()
    assert (np.searchsorted(run.offsets, rest[sizes[0] :], side="right") - 1 == 1).all()
    with pytest.raises(jd.UserError, match="Expected a position between two epochs"):
        jd.extend_schedule(longer, position=3, consecutive=True)
    for refused in ({"weights": [1, 1, 1]}, {"joint": True}, {"temperature": 2}, {"max_repeats": 2}):
        with pytest.raises(jd.UserError, match="Expected only consecutive"):
            jd.create_schedule(tmp_path / "new", datasets, consecutive=True, **refused)
    line = ["schedule", "--path", str(tmp_path / "line"), "--consecutive", "--quiet", "--datasets"]
    assert main([*line, *(str(each.root) for each in datasets)]) == 0
    np.testing.assert_array_equal(whole(jd.open_schedule(tmp_path / "line")), whole(run))


def test_the_other_packing_is_read_as_its_documents_were(folder: Path) -> None:
    """What the seam of two packings is ordered by: the places at which documents were read, each as often as it was."""
    first, second, _ = packings(folder)
    documents = [each.characteristics.documents for each in (first, second)]
    numbers = jd.order(first.characteristics).indices
    as_read = _as_read(second, first, numbers)
    assert as_read is not None
    assert sorted(as_read.tolist()) == list(range(second.num_sequences))
    before, after = documents[0][numbers], documents[1][as_read]
    longer = [each for each in np.unique(after[after >= 0]) if (after == each).sum() > 1]
    assert longer
    for document in longer:
        # At most as many places off as the packings differ in sequences of several documents.
        last = [int(np.flatnonzero(held == document)[-1]) for held in (before, after)]
        assert abs(last[0] - last[1]) <= abs(np.diff([(held < 0).sum() for held in (before, after)])[0]) + 12
    np.testing.assert_array_equal(_as_read(first, first, numbers), numbers)


@pytest.mark.campaign
def test_documents_of_other_corpora_have_no_seam(folder: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path / "texts", 20, 3)
    Build(dataclasses.replace(tiny_config(tmp_path / "texts", tmp_path / "other"), orders=())).run_all()
    other = jd.open_dataset(tmp_path / "other")
    first = packings(folder)[0]
    assert _as_read(other, first, np.arange(first.num_sequences)) is None
    run = jd.create_schedule(tmp_path / "run", [first, other], consecutive=True)
    np.testing.assert_array_equal(
        whole(run)[first.num_sequences :] - first.num_sequences, jd.order(other.characteristics).indices
    )


def test_refusals(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(jd.UserError, match="another seed or sequence length"):
        jd.repack(folder / "first", tmp_path / "x", seed=0)
    write_corpus(tmp_path / "texts", 20, 3)
    Build(dataclasses.replace(tiny_config(tmp_path / "texts", tmp_path / "other"), orders=())).run_all()
    with pytest.raises(jd.UserError, match="Expected an empty folder, or a dataset packed from"):
        jd.repack(folder / "first", tmp_path / "other", seed=1)
    write_tiny_dataset(tmp_path / "tiny")
    sign_manifest(tmp_path / "tiny", lambda manifest: manifest.pop("settings"))
    with pytest.raises(jd.UserError, match="run `jax-diversity build` first"):
        jd.repack(tmp_path / "tiny", tmp_path / "x", seed=1)
    for name in ("prepare", "pack"):
        shutil.copytree(folder / "first", tmp_path / name)
        sign_manifest(tmp_path / name, lambda manifest, name=name: manifest["stages"].pop(name))
        with pytest.raises(jd.UserError, match=f"without stage '{name}'; finish it with"):
            jd.repack(tmp_path / name, tmp_path / "x", seed=1)
    with pytest.raises(jd.UserError, match="sequence_length <= 16777216"):
        jd.repack(folder / "first", tmp_path / "x", seed=1, sequence_length=10**9)
    assert not (tmp_path / "x").exists()
    assert main(["repack", "--out", str(tmp_path / "none"), "--to", str(tmp_path / "x")]) == 2
    assert "Expected a dataset" in capsys.readouterr().err
    assert main(["repack", "--out", str(folder / "first"), "--to", str(tmp_path / "y"), "--seed", "3", "--quiet"]) == 0
    assert "sequences of" in capsys.readouterr().out


@pytest.mark.first(1)
@pytest.mark.parametrize("linked", [True, False])
def test_a_damaged_file_is_not_repacked(
    linked: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another disk")

    if not linked:
        monkeypatch.setattr("os.link", refuse)
    first = Path(shutil.copytree(folder / "first", tmp_path / "first"))
    name = "embeddings/embeddings-00000.npy"
    content = bytearray(sound := (first / name).read_bytes())
    content[len(content) // 2] ^= 4
    (first / name).write_bytes(content)
    with pytest.raises(
        jd.UserError, match=r"first/embeddings/embeddings-00000.npy is damaged: its SHA-256 differs from the mani"
    ):
        jd.repack(first, tmp_path / "again", seed=5)
    assert not (tmp_path / "again" / name).exists()
    (first / name).write_bytes(sound)
    again = jd.repack(first, tmp_path / "again", seed=5)
    assert again.verify() == []
    (tmp_path / "again" / name).unlink()
    (tmp_path / "again" / name).write_bytes(content)
    assert jd.repack(first, tmp_path / "again", seed=6).verify() == []
