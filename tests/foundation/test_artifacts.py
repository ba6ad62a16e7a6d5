"""Files that are damaged, planted or written at the same time: each is refused, none is followed or mixed."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation import artifacts
from jax_diversity.foundation.artifacts import OutputFolder, atomic_path, remove_leftovers
from jax_diversity.foundation.errors import UserError
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.streaming.run.inspection import Inspector
from tests.support.hostile import sign_manifest
from tests.support.tiny_dataset import write_tiny_dataset

pytestmark = pytest.mark.core


@pytest.fixture
def dataset(tiny_dataset: Path, tmp_path: Path) -> Path:
    """A copy of the built dataset that a test may damage."""
    return Path(shutil.copytree(tiny_dataset, tmp_path / "dataset"))


def flip(path: Path) -> bytes:
    """Change one bit in the middle of a file, and keep its size and time; returns what it held."""
    sound, status = path.read_bytes(), path.stat()
    content = bytearray(sound)
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return sound


READS: list[tuple[str, Callable[[jd.Dataset], object]]] = [
    ("documents/documents-00000.parquet", lambda dataset: dataset.documents),
    ("documents/documents-00001.parquet", lambda dataset: dataset.document_store),
    ("duplicates/groups.npy", lambda dataset: dataset.duplicate_groups),
    ("tokens/tokens-00000.bin", lambda dataset: dataset.tokens),
    ("tokens/tokens-00000.idx", lambda dataset: dataset.tokens),
    ("tokens/tokenizer.json", lambda dataset: dataset.tokenizer),
    ("tokens/tokenizer.meta.json", lambda dataset: dataset.tokenizer),
    ("embeddings/embeddings-00000.npy", lambda dataset: dataset.embeddings),
    ("clusters/assignments.npy", lambda dataset: dataset.assignments()),
    ("clusters/clusters.json", lambda dataset: dataset.clusters()),
    ("sequences/segments.parquet", lambda dataset: dataset.segments),
    ("sequences/validation.parquet", lambda dataset: dataset.validation_segments),
    ("characteristics/cluster.npz", lambda dataset: dataset.characteristics),
    ("characteristics/groups.json", lambda dataset: dataset.group_names),
    ("characteristics/totals.json", lambda dataset: dataset.group_tokens),
    ("characteristics/documents.parquet", lambda dataset: Inspector(jd.make_run(dataset, "balance"), 8).batch(0)),
    ("characteristics/codes.parquet", lambda dataset: Inspector(jd.make_run(dataset, "balance"), 8).batch(0)),
    ("orderings/balance.npy", lambda dataset: dataset.orderings["balance"]),
    ("orderings/balance.json", lambda dataset: dataset.orderings["balance"]),
]


def test_no_attribute_reads_a_damaged_file(dataset: Path) -> None:
    for name, read in READS:
        sound = flip(dataset / name)
        with pytest.raises(UserError) as caught:
            read(jd.open_dataset(dataset))
        assert name.split("/")[1].split(".")[0] in str(caught.value), name
        (dataset / name).write_bytes(sound)
        read(jd.open_dataset(dataset))


@pytest.mark.parametrize("change", [-1, 1], ids=["shorter", "longer"])
def test_a_file_of_another_size_is_a_fault_of_its_stage(dataset: Path, change: int) -> None:
    folder, name = OutputFolder(dataset), "embeddings/embeddings-00000.npy"
    assert not list(folder.missing_files("embed"))
    sound = (dataset / name).read_bytes()
    (dataset / name).write_bytes(sound[:-1] if change < 0 else sound + b"\0")
    (fault,) = folder.missing_files("embed")
    assert (fault.file, fault.expected, fault.found) == (name, f"{len(sound)} bytes", f"{len(sound) + change} bytes")
    assert not folder.is_current("embed", folder.stages["embed"]["fingerprint"])


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("tokenize", "documents/documents-00000.parquet"),
        ("cluster", "embeddings/embeddings-00000.npy"),
        ("pack", "tokens/tokens-00001.idx"),
        ("characterize", "clusters/assignments.npy"),
        ("characterize", "sequences/segments.parquet"),
        ("order/balance", "characteristics/length.npz"),
        ("write", "tokens/tokens-00000.bin"),
    ],
)
def test_no_stage_makes_anything_of_a_damaged_input(dataset: Path, stage: str, name: str) -> None:
    folder = OutputFolder(dataset)
    for file in folder.stages[stage]["files"]:
        (dataset / file).unlink()
    flip(dataset / name)
    build = Build(recorded_config(dataset))
    with pytest.raises(UserError, match=f"{Path(name).name} is damaged: its SHA-256 .* run `jax-diversity"):
        build.run_all()
    assert {fault.file for fault in OutputFolder(dataset).verify()} == {name, *folder.stages[stage]["files"]}


@pytest.mark.parametrize("name", ["../victim.txt", "/tmp/victim.txt", "records/../../victim.txt", "", "a\0b"])
def test_a_manifest_cannot_name_files_outside_its_folder(dataset: Path, name: str) -> None:
    victim = dataset.parent / "victim.txt"
    victim.write_text("mine")
    entry = {name: {"bytes": 4, "sha256": "a" * 64}}
    sign_manifest(dataset, lambda manifest: manifest["stages"]["prepare"]["files"].update(entry))
    with pytest.raises(UserError, match="names a file outside its folder"):
        OutputFolder(dataset)
    assert main(["build", "--out", str(dataset), "--corpus.paths", str(victim), "--quiet"]) == 2
    assert victim.read_text() == "mine"


def test_every_change_of_a_manifest_is_found(dataset: Path) -> None:
    path = dataset / "manifest.json"
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(len(sound), size=60).tolist():
        content = bytearray(sound)
        content[place] ^= 1 << int(rng.integers(7))
        path.write_bytes(content)
        try:
            manifest = OutputFolder(dataset).manifest
        except UserError:
            continue
        assert manifest == json.loads(sound), place  # white space


def test_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    orderings = [jd.Ordering(np.random.default_rng(seed).permutation(500)) for seed in range(4)]
    faults: list[BaseException] = []

    def save(ordering: jd.Ordering) -> None:
        try:
            for _ in range(20):
                ordering.save(tmp_path / "order.npy")
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=save, args=(ordering,)) for ordering in orderings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert {path.name for path in tmp_path.iterdir()} == {"order.npy", "order.json"}
    assert any(np.array_equal(np.load(tmp_path / "order.npy"), each.indices) for each in orderings)


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    (tmp_path / "file.00000000.tmp").symlink_to(victim)
    names = iter(("00000000", "00000001"))
    monkeypatch.setattr(artifacts.secrets, "token_hex", lambda _: next(names))
    with atomic_path(tmp_path / "file") as temporary:
        temporary.write_text("new")
    assert (victim.read_text(), (tmp_path / "file").read_text()) == ("mine", "new")
    remove_leftovers(tmp_path)
    assert victim.read_text() == "mine"


def test_leftovers_of_killed_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "file.0123dead.tmp").write_text("half")
    with atomic_path(tmp_path / "file") as temporary:
        temporary.write_text("whole")
        remove_leftovers(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [temporary.name]
    assert (tmp_path / "file").read_text() == "whole"


def test_records_of_swapped_files_are_not_shown(tmp_path: Path) -> None:
    root = write_tiny_dataset(tmp_path / "out").root
    first, second = sorted((root / "records").glob("train-*.array_record"))[:2]
    contents = first.read_bytes(), second.read_bytes()
    assert len(contents[0]) == len(contents[1])
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    with pytest.raises(UserError, match=r"sequence \d+ expected, \d+ found"):
        Inspector(jd.make_run(root, "balance"), 16).batch(0)


def test_an_ordering_of_another_dataset_is_not_measured(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = Path(shutil.copytree(dataset, tmp_path / "other"))
    sign_manifest(other, lambda manifest: manifest["stages"]["pack"].update(fingerprint="f" * 64))
    theirs = str(other / "orderings" / "balance.npy")
    for arguments in (["--order", theirs], ["--orderings", theirs]):
        assert main(["measure", "--out", str(dataset), "--quiet", *arguments]) == 2
        assert "Expected an ordering of this dataset's sequences" in capsys.readouterr().err
