"""What a new stage touches, and what light verbs leave alone."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import jax_diversity as jd
from jax_diversity.cli import main as command_line
from jax_diversity.cli.main import main
from jax_diversity.foundation.checks import check_at_least
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.pipeline import build, commands, stages
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from tests.support.tiny_corpus import tiny_config


# ---- A stage's folder: its settings, what it runs, and one Stage.
@dataclass(frozen=True)
class ShoutConfig:
    """How documents are shouted."""

    num_marks: int = 1
    """Exclamation marks behind a document."""

    def check(self) -> None:
        """Refuse settings that no corpus could satisfy."""
        check_at_least(1, "shout", self, "num_marks")


def shout(context: Context, partial: Path) -> Counts:
    texts = context.dataset.documents.to_table(columns=["text"])["text"].to_pylist()
    shouted = [text.upper() + "!" * context.config.shout.num_marks for text in texts]
    (partial / "shouted.txt").write_text("\n".join(shouted), encoding="utf-8")
    return {"num_shouted": len(shouted)}


SHOUT = Stage(
    "shout",
    help="Write the documents in capitals.",
    section="shout",
    destination="shouted",
    run=shout,
    summary=lambda counts: f"{counts['num_shouted']} documents shouted",
    settings=lambda config: {"shout": dataclasses.asdict(config.shout)},
    inputs=lambda context: ("prepare",),
)


# ---- The two places that know of it: the tree of settings and the list of stages.
@dataclass(frozen=True)
class WithShout(BuildConfig):
    """All settings, those of the new stage included."""

    shout: ShoutConfig = ShoutConfig()


@dataclass(frozen=True)
class RecordedWithShout(build.RecordedConfig, WithShout):
    """The settings of a manifest."""


@pytest.fixture
def with_shout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "STAGES", (*stages.STAGES[:6], SHOUT, *stages.STAGES[6:]))
    for module in (build, command_line, commands):  # where `pipeline.settings.BuildConfig` is used by its name
        monkeypatch.setattr(module, "BuildConfig", WithShout)
    monkeypatch.setattr(build, "RecordedConfig", RecordedWithShout)


def test_a_new_stage_needs_its_folder_and_two_lines(
    with_shout: None, tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = shutil.copytree(tiny_dataset, tmp_path / "out")
    config = WithShout(**vars(tiny_config(tiny_dataset.parent / "corpus", out)))
    results = Build(config).run_all()
    assert ("shout", "400 documents shouted") in [(result.stage, result.summary) for result in results]
    assert all(result.kept for result in Build(config).run_all())
    # It is fingerprinted, verified, shown and reported like every other stage.
    dataset = jd.open_dataset(out)
    assert dataset.verify() == []
    assert "400 documents shouted" in repr(dataset)
    assert '"shout"' in (out / "report.json").read_text(encoding="utf-8")
    assert (out / "shouted" / "shouted.txt").read_text(encoding="utf-8").count("!") == 400
    # Its verb has its sentence, its options and their checks.
    assert main(["--help"]) == 0
    assert "  shout         Write the documents in capitals.\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["shout", "--help"])
    assert "--shout.num-marks INT" in capsys.readouterr().out
    assert main(["shout", "--out", str(out), "--quiet", "--shout.num-marks", "3"]) == 0
    assert "400 documents shouted" in capsys.readouterr().out
    assert (out / "shouted" / "shouted.txt").read_text(encoding="utf-8").count("!") == 1200
    assert json.loads((out / "manifest.json").read_text())["settings"]["shout"] == {"num_marks": 3}
    assert main(["shout", "--out", str(out), "--quiet", "--shout.num-marks", "0"]) == 2
    assert "Expected --shout.num-marks >= 1, found 0" in capsys.readouterr().err
    # What it reads is made again: so is it, and its former output goes.
    changed = dataclasses.replace(config.corpus, file_bytes=10**6)
    Build(dataclasses.replace(config, corpus=changed)).run_stage("prepare")
    assert "shout" not in jd.open_dataset(out).manifest["stages"]
    assert not (out / "shouted" / "shouted.txt").exists()


WITHOUT_ACCELERATOR = """
import json, sys
from jax_diversity.cli.main import main
for command in json.loads(sys.argv[1]):
    assert main(command) == 0
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge._backends:
        sys.exit(f"{command[0]} started the accelerator")
"""


@pytest.mark.campaign
def test_light_verbs_start_no_accelerator(tmp_path: Path, tiny_dataset: Path) -> None:
    """JAX takes the memory of a device when its backend starts; one that another program uses would fail."""
    out, dataset = ["--out", str(tmp_path / "out"), "--quiet"], ["--out", str(tiny_dataset)]
    by_hash = ["--packing.validation-choice", "hash"]  # a balanced choice needs clusters
    commands = [
        ["prepare", *out, "--corpus.paths", f"{tiny_dataset.parent}/corpus/*.jsonl"],
        ["tokenize", *out, "--tokenizer.vocab-size", "300"],
        *(
            ["pack", *out, "--packing.method", method, "--packing.sequence-length", "32", *by_hash]
            for method in ("concat", "best_fit", "partial_shuffle")
        ),
        ["verify", *dataset, "--quiet"],
        ["inspect", *dataset, "--batch-size", "8"],
    ]
    arguments = [sys.executable, "-c", WITHOUT_ACCELERATOR, json.dumps(commands)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The program notices a backend that runs.
    arguments = [sys.executable, "-c", f"import jax; jax.devices()\n{WITHOUT_ACCELERATOR}", json.dumps(commands[-2:])]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.stderr.endswith("verify started the accelerator\n")


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Before Python 3.11.5, `(...)*+` finds nothing if the group can go back; `(?>(...)*)` is right everywhere."""
    root = Path(__file__).parents[2]
    files = [path for folder in ("jax_diversity", "evidence") for path in (root / folder).rglob("*.py")]
    found = {
        f"{path.name}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\)(?:[*+?]|\{[0-9,]+\})\+", line) and "!$&" not in line  # a list of characters
    }
    assert found == set()
