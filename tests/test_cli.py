"""The command line as a user meets it: verbs, exit statuses, one clear sentence for a mistake."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jax_diversity.cli import main
from tests.tiny_corpus import write_corpus

TINY = [
    *("--quiet", "--tokenizer.vocab-size", "300", "--embedding.dimensions", "8", "--cluster.num-clusters", "4"),
    *("--packing.sequence-length", "32", "--characteristics.length-bins", "5", "--windows", "8", "32"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def built(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "out"
    assert main(["build", "--corpus.paths", f"{corpus}/*.jsonl", "--out", str(out), *TINY]) == 0
    return out


def fails(arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    """Run something that is a user's mistake; its one sentence."""
    capsys.readouterr()
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert error.startswith("jax-diversity: ")
    return error


def test_overview_lists_every_verb(capsys: pytest.CaptureFixture) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in ("build", "prepare", "tokenize", "pack", "characterize", "order", "write", "measure", "verify"):
        assert f"\n  {verb} " in text
    assert max(map(len, text.splitlines())) <= 80


def test_build_prints_what_it_made(built: Path, corpus: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["build", "--corpus.paths", f"{corpus}/*.jsonl", "--out", str(built), *TINY]) == 0
    text = capsys.readouterr().out
    assert text.count("kept") == 12
    assert "400 documents" in text
    assert "greedy" in text
    assert "report.html" in text


def test_stages_one_after_another_make_the_same(built: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["prepare", "--corpus.paths", f"{corpus}/*.jsonl", "--out", str(out), *TINY]) == 0
    for verb in ("tokenize", "embed", "cluster", "pack", "characterize"):
        assert main([verb, "--out", str(out), *TINY]) == 0
    assert main(["order", "--out", str(out), "--method", "greedy", "--quiet"]) == 0
    assert main(["write", "--out", str(out), "--quiet"]) == 0
    assert main(["report", "--out", str(out), "--quiet"]) == 0
    whole, parts = (json.loads((folder / "manifest.json").read_text())["stages"] for folder in (built, out))
    for stage in ("tokenize", "embed", "cluster", "pack", "characterize", "write"):
        assert parts[stage]["files"] == whole[stage]["files"]
    greedy = "orderings/greedy.npy"
    assert (out / greedy).read_bytes() == (built / greedy).read_bytes()


def test_measure_prints_a_table_and_json(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["measure", "--out", str(built), "--windows", "16", "--quiet"]) == 0
    table = capsys.readouterr().out
    assert "uniform_shuffle" in table
    assert max(map(len, table.splitlines())) <= 80
    order = np.load(built / "orderings" / "greedy.npy")
    np.save(tmp_path / "mine.npy", order[::-1])
    arguments = ["measure", "--out", str(built), "--windows", "16", "--json", "--orderings", "greedy"]
    assert main([*arguments, str(tmp_path / "mine.npy")]) == 0
    summaries = json.loads(capsys.readouterr().out)
    assert len(summaries) == 2
    assert summaries["greedy"]["families"]["cluster"]["windows"]["16"]["tv_mean"] > 0


def test_verify(built: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["verify", "--out", str(built), "--quiet"]) == 0
    assert "all as they were written" in capsys.readouterr().out
    path = built / "orderings" / "greedy.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        error = fails(["verify", "--out", str(built), "--quiet"], capsys)
    finally:
        path.write_bytes(content)
    assert "1 of" in error
    assert "orderings/greedy.npy: expected sha256" in error


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bild"], "Unknown verb 'bild': expected one of .*did you mean 'build'"),
        (["build"], "corpus.paths"),
        (["build", "--config"], "Expected a value after --config"),
        (["build", "--config", "absent.yaml"], "absent.yaml"),
        (["build", "--corpus.paths", "absent.jsonl"], "absent.jsonl"),
        (["verify", "--out", "absent"], "Expected a dataset in absent, found none"),
        (["measure", "--out", "absent"], "absent"),
        (["order", "--out", "absent"], "Expected a dataset in absent, found none"),
        (["report", "--out", "absent"], "Expected a dataset in absent, found none"),
        (["train", "--out", "absent"], "absent"),
    ],
)
def test_mistakes(arguments: list[str], sentence: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert re.search(sentence, fails(arguments, capsys))
    assert not list(tmp_path.glob("out/*.json"))


def test_mistakes_on_a_dataset(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = ["--out", str(built), "--quiet"]
    assert "did you mean 'greedy'" in fails(["order", *out, "--method", "gredy"], capsys)
    assert "plain file name" in fails(["order", *out, "--name", "../x"], capsys)
    assert "found 'topic'" in fails(["order", *out, "--name", "x", "--weights", "topic", "1"], capsys)
    assert "greedy" in fails(["measure", *out, "--orderings", "greeedy"], capsys)
    assert "found 99999" in fails(["measure", *out, "--windows", "99999"], capsys)
    np.save(tmp_path / "short.npy", np.arange(3))
    assert "another dataset" in fails(["measure", *out, "--orderings", str(tmp_path / "short.npy")], capsys)
    np.save(tmp_path / "bad.npy", np.zeros(3, int))
    assert "found 0 3 times" in fails(["measure", *out, "--orderings", str(tmp_path / "bad.npy")], capsys)


def test_unknown_options_end_with_status_2(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["build", "--packing.sequence-lenght", "3"])
    assert ending.value.code == 2
    assert "sequence-length" in capsys.readouterr().err + capsys.readouterr().out


def test_a_full_disk_is_a_sentence_and_the_build_goes_on_afterwards(corpus: Path, tmp_path: Path) -> None:
    """A limit on file sizes stands for the full disk: writing fails in the middle, with an error of the system."""
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "limit = int(sys.argv[1])\n"
        "if limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))\n"
        "from jax_diversity.cli import main\n"
        "sys.exit(main(sys.argv[2:]))"
    )
    out = tmp_path / "out"
    arguments = ["build", "--corpus.paths", f"{corpus}/*.jsonl", "--out", str(out), *TINY]
    for limit in (20_000, 60_000):
        done = subprocess.run(
            [sys.executable, "-c", program, str(limit), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert "space" in done.stderr
        assert "Traceback" not in done.stderr
    assert subprocess.run([sys.executable, "-c", program, "0", *arguments], check=False).returncode == 0
    assert main(["verify", "--out", str(out), "--quiet"]) == 0


def test_help_is_light() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "jax_diversity", "--help"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 0.9  # about 0.1 s where nothing else runs; the import of JAX alone takes more than this
