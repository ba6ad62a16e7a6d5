"""Links in folders from elsewhere: nothing is written, removed or read where they lead."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.artifacts import OutputFolder, remove_leftovers
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside, open_to_append, refuse_links
from jax_diversity.foundation.locks import locked
from tests.support.hostile import LINKS, contents, plant_link, sign_manifest

pytestmark = pytest.mark.core


@pytest.fixture
def copy(tiny_dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_dataset, tmp_path / "copy"))


@pytest.fixture
def corpus(tiny_dataset: Path) -> str:
    return f"{tiny_dataset.parent}/corpus/*"


@pytest.mark.first(4)
@pytest.mark.parametrize("name", LINKS)
def test_a_build_follows_no_link(
    name: str, copy: Path, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = plant_link(copy, name, tmp_path)
    before = contents(elsewhere)
    for verb in (
        ["build", "--corpus.paths", corpus],
        ["embed", "--embedding.seed", "5"],
        ["order", "--name", "again"],
        ["measure"],
        ["train", "--train.num-steps", "1", "--train.batch-size", "2"],
        ["verify"],
    ):
        status = main([*verb, "--out", str(copy), "--quiet"])
        told = capsys.readouterr().err.splitlines()
        assert status in (0, 2)
        assert status == 0 or len([line for line in told if ": warning: " not in line]) == 1, told
        assert contents(elsewhere) == before


def test_the_sentence_names_the_link(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_link(copy, "embeddings", tmp_path)
    assert main(["embed", "--embedding.seed", "5", "--out", str(copy), "--quiet"]) == 2
    assert f"Expected no links and devices in {copy}, found a link or device at embeddings" in capsys.readouterr().err
    with pytest.raises(
        UserError, match="found a link or device at embeddings, which could lead to any file; remove it, or make a"
    ):
        _ = jd.open_dataset(copy).embeddings


def test_a_dataset_may_be_a_link_itself(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(copy)
    assert main(["embed", "--embedding.seed", "5", "--out", str(tmp_path / "link"), "--quiet"]) == 0
    assert main(["verify", "--out", str(tmp_path / "link"), "--quiet"]) == 0
    assert (tmp_path / "link").is_symlink()


def test_files_of_users_stay(copy: Path) -> None:
    mine = [copy / name for name in ("embeddings/notes.txt", "embeddings/mine/x.npy", "mine.v1.tmp", ".partial/mine/x")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    assert main(["embed", "--embedding.seed", "5", "--out", str(copy), "--quiet"]) == 0
    assert {path.read_text() for path in mine} == {"mine"}


def test_a_manifest_names_no_files_behind_a_link(copy: Path, tmp_path: Path) -> None:
    elsewhere = plant_link(copy, "embeddings/extra", tmp_path)
    entry = {"embeddings/extra/mine.txt": {"bytes": 4, "sha256": "0" * 64}}
    sign_manifest(copy, lambda manifest: manifest["stages"]["embed"]["files"].update(entry))
    before = contents(elsewhere)
    assert main(["embed", "--embedding.seed", "5", "--out", str(copy), "--quiet"]) == 2
    with pytest.raises(UserError, match="found a link or device at embeddings/extra"):
        OutputFolder(copy).withdraw("embed")
    assert "embed" in OutputFolder(copy).stages
    assert contents(elsewhere) == before


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x"])
def test_names_lead_nowhere_else(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which is outside it"):
        inside(tmp_path, name)


def test_loops_and_dangling_links_are_refused(tmp_path: Path) -> None:
    for name, target in (("loop", "loop"), ("nowhere", "absent")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(UserError, match=f"found a link or device at {name}, "):
            refuse_links(tmp_path)
        (tmp_path / name).unlink()


@pytest.mark.parametrize("kind", ["link", "hard link", "folder", "pipe"])
def test_a_log_is_appended_to_a_file_alone(kind: str, tmp_path: Path) -> None:
    victim, log = tmp_path / "victim", tmp_path / "build.log"
    victim.write_text("mine")
    match kind:
        case "link":
            log.symlink_to(victim)
        case "hard link":
            os.link(victim, log)
        case "folder":
            log.mkdir()
        case "pipe":
            os.mkfifo(log)
    with pytest.raises(UserError, match="Expected a log that can be written at"):
        open_to_append(log)
    assert victim.read_text() == "mine"


def test_a_lock_is_no_second_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "folder").mkdir()
    os.link(tmp_path / "victim", tmp_path / "folder" / ".lock")
    with pytest.raises(UserError, match="found a hard link"), locked(tmp_path / "folder"):
        pass
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize("name", ["manifest.json", ".lock", "build.log", "characteristics/cluster.npz"])
def test_a_named_pipe_is_not_waited_for(name: str, copy: Path) -> None:
    (copy / name).unlink(missing_ok=True)
    os.mkfifo(copy / name)
    assert main(["order", "--name", "again", "--out", str(copy), "--quiet"]) in (0, 2)
    if name == "manifest.json":
        with pytest.raises(UserError, match="found a link or device at manifest"):
            OutputFolder(copy)


def test_a_named_pipe_in_a_run_is_not_waited_for(copy: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", [copy], num_positions=20)
    for name in (run.content.parts[0].file, "schedule.json"):
        (tmp_path / "run" / name).unlink()
        os.mkfifo(tmp_path / "run" / name)
        with pytest.raises(UserError, match=f"found a link or device at {name}"):
            jd.open_schedule(tmp_path / "run").history(3)


def test_the_layout_of_records_names_no_other_file(copy: Path, tmp_path: Path) -> None:
    counts = {"layout": "ordered", "ordering": "../../elsewhere"}
    sign_manifest(copy, lambda manifest: manifest["stages"]["write"]["counts"].update(counts))
    with pytest.raises(UserError, match="an ordering's name to be a plain file name"):
        _ = jd.open_dataset(copy).records


def test_only_temporary_names_are_leftovers(tmp_path: Path) -> None:
    for name in ("mine.v1.tmp", "mine.tmp", "file.0123abcd.tmp"):
        (tmp_path / name).write_text("x")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.tmp", "mine.v1.tmp"]


def test_a_run_follows_no_link(copy: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "run", [copy], num_positions=20)
    part = tmp_path / "run" / run.content.parts[0].file
    part.rename(tmp_path / "elsewhere.npy")
    part.symlink_to(tmp_path / "elsewhere.npy")
    with pytest.raises(UserError, match="found a link or device at part-"):
        jd.open_schedule(tmp_path / "run").history(3)
