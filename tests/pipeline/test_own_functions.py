"""Functions of users: a name runs only if the user gave it, never because a dataset's manifest has it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.own_functions import find_function
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.schema import Document
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from tests.support.hostile import name_command

OWN = f"{__name__}:Lengths"
REFUSED = "only in a dataset's manifest, which may come from elsewhere and runs no code"


class Lengths:
    """An embedder that can end the program."""

    dimensions = 1

    def __init__(self, *, status: int | None = None, command: str = "") -> None:
        self.status = status

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        if self.status is not None:
            raise SystemExit(self.status)
        return np.array([[len(text)] for text in texts], np.float32)


@pytest.fixture
def corpus(tiny_dataset: Path) -> str:
    return f"{tiny_dataset.parent}/corpus/*"


@pytest.fixture
def copy(tiny_dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_dataset, tmp_path / "copy"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    return tmp_path / "victim"


VERBS = ("tokenize", "embed", "cluster", "pack", "characterize", "order", "write", "report", "measure", "inspect")


@pytest.mark.first(4)
@pytest.mark.parametrize("verb", [*VERBS, "verify", "repack", "export", "schedule", "train"])
def test_no_verb_runs_a_function_that_a_manifest_names(verb: str, copy: Path, victim: Path, tmp_path: Path) -> None:
    name_command(copy, victim)
    more = {
        "order": ["--method", "balance", "--name", "again"],
        "repack": ["--to", str(tmp_path / "packed"), "--seed", "7"],
        "export": ["--target", str(tmp_path / "exported"), "--format", "permutation"],
        "train": ["--train.num-steps", "1", "--train.batch-size", "2"],
    }
    place = [str(tmp_path / "run"), "--datasets", str(copy)] if verb == "schedule" else ["--out", str(copy)]
    main([verb, *place, "--quiet", *more.get(verb, [])])
    assert not victim.exists()


def test_the_sentence_says_what_to_repeat(copy: Path, victim: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name_command(copy, victim)
    assert main(["embed", "--out", str(copy), "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"embedding.method=os:system {REFUSED}" in line
    assert "repeat this setting on the command line or in the file of --config" in line
    assert main(["embed", "--out", str(copy), "--quiet", "--embedding.max-tokens", "7"]) == 2
    assert not victim.exists()


def test_features_from_runs_no_function(
    copy: Path, victim: Path, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name_command(copy, victim)
    given = ["--out", str(tmp_path / "new"), "--features-from", str(copy), "--corpus.paths", corpus, "--quiet"]
    assert main(["build", *given]) == 2
    assert REFUSED in capsys.readouterr().err
    with pytest.raises(jd.UserError, match=REFUSED):
        Build(BuildConfig(out=str(tmp_path / "new"), features_from=str(copy))).run_stage("embed")
    assert not victim.exists()


def test_recorded_settings_run_no_function(copy: Path, victim: Path) -> None:
    name_command(copy, victim)
    config = recorded_config(copy)
    for changed in (config, dataclasses.replace(config, windows=(8,))):
        for work in (Build(changed).run_all, lambda: Build(config).run_stage("embed")):
            with pytest.raises(jd.UserError, match=REFUSED):
                work()
    assert not victim.exists()


@pytest.mark.parametrize("form", ["word", "joined", "file", "program"])
def test_a_function_that_the_user_repeats_runs(form: str, copy: Path, tmp_path: Path) -> None:
    name_command(copy, tmp_path / "victim", method=OWN)
    embed = ["embed", "--out", str(copy), "--quiet"]
    assert main(embed) == 2
    file = tmp_path / "mine.yaml"
    file.write_text(f"embedding: {{method: '{OWN}'}}")
    match form:
        case "word":
            assert main([*embed, "--embedding.method", OWN]) == 0
        case "joined":
            assert main([*embed, f"--embedding.method={OWN}"]) == 0
        case "file":
            assert main([*embed, "--config", str(file)]) == 0
        case "program":
            given = vars(recorded_config(copy)) | {"embedding": EmbeddingConfig(method=OWN)}
            Build(BuildConfig(**given)).run_stage("embed")
    assert jd.open_dataset(copy).embeddings.shape == (400, 1)


def test_steps_of_the_command_line_are_given(corpus: str, tmp_path: Path) -> None:
    prepare = ["prepare", "--out", str(tmp_path / "new"), "--corpus.paths", corpus, "--quiet"]
    steps = f"[{{step: python, options: {{function: '{__name__}:keep'}}}}]"
    assert main([*prepare, "--preparation.steps", steps]) == 0
    assert jd.open_dataset(tmp_path / "new").counts("prepare")["num_documents"] == 400


def keep(document: Document) -> bool:
    return True


def leave(document: Document) -> bool:
    raise SystemExit(0) if document.id.endswith("0") else KeyError(document.text)


@pytest.mark.parametrize("status", [0, 3])
def test_a_function_that_ends_the_program_is_an_error(
    status: int, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--embedding.method", OWN, "--embedding.options", "status", str(status)]
    assert main(["embed", "--out", str(copy), "--quiet", *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"Expected --embedding.method={OWN} to embed the documents, found SystemExit from {__file__}:" in line


def test_a_step_that_ends_the_program_removes_the_document(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare = ["prepare", "--out", str(tmp_path / "new"), "--corpus.paths", corpus, "--quiet"]
    steps = f"[{{step: python, options: {{function: '{__name__}:leave'}}}}]"
    assert main([*prepare, "--preparation.steps", steps]) == 2
    assert "400 by python.raised" in capsys.readouterr().err


def test_a_module_that_ends_the_program_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving_module.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(jd.UserError, match="leaving_module:f to name a function in a module, found: 0"):
        find_function("leaving_module:f", "embedding.method")


def test_any_end_of_the_program_is_an_error(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name_command(copy, copy, method=OWN)
    monkeypatch.setattr(Lengths, "dimensions", property(lambda self: exec("raise SystemExit(0)")))
    assert main(["embed", "--out", str(copy), "--quiet", "--embedding.method", OWN]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "found that it ended the program (sys.exit(0))" in line
