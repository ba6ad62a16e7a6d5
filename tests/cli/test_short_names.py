"""The short help of `build`, short names of settings, and what follows from other settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jax_diversity.cli.main import SHOWN, all_verbs, main
from jax_diversity.cli.parsing import SHORT, list_options, with_full_names
from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.foundation.errors import UserError
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.sequences.tokenization.settings import TokenizerConfig


def helped(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert ending.value.code == 0
    return capsys.readouterr().out


def test_the_help_of_build_is_short_and_names_the_whole(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = helped(["build", "--help"], capsys)
    assert len(text.splitlines()) < 80
    assert max(map(len, text.splitlines())) <= 80
    assert text.index("--corpus.paths, --corpus") < text.index("--batch-size") < text.index("--windows")
    assert "--lab" not in text
    whole = helped(["build", "--help-all"], capsys)
    assert "--train.learning-rate" in whole
    assert len(whole) > 4 * len(text)
    options = {name for name, *_ in list_options(all_verbs()["build"].options)}
    assert {f"--{name}" for name in SHOWN} <= options
    assert set(SHORT.values()) - {"--objective.base"} <= options


def test_short_names_are_replaced_where_the_command_has_the_setting() -> None:
    known = {"--packing.sequence-length", "--corpus.paths"}
    words = ["--sequence_length=64", "--corpus", "a", "--tokenizer", "b"]
    assert with_full_names(words, known) == ["--packing.sequence-length=64", "--corpus.paths", "a", "--tokenizer", "b"]
    assert with_full_names(["--sequence-length", "8"], {*known, "--sequence-length"}) == ["--sequence-length", "8"]


def test_short_names_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"words {number}"}) + "\n" for number in range(3)))
    out = tmp_path / "out"
    given = ["--corpus", str(tmp_path / "a.jsonl"), "--sequence-length", "64", "--vocab-size", "300"]
    assert main(["prepare", "--out", str(out), "--quiet", *given]) == 0
    settings = OutputFolder(out).manifest["settings"]
    assert settings["packing"]["sequence_length"] == 64
    assert settings["tokenizer"]["vocab_size"] == 300
    capsys.readouterr()
    assert main(["build", "--sequence-lenght", "64"]) == 2
    assert "has no option --sequence-lenght; did you mean --sequence-length?" in capsys.readouterr().err
    assert main(["report", "--dataset", str(out)]) == 2
    assert "has no option --dataset; did you mean --out?" in capsys.readouterr().err
    assert main(["schedule", "--dataset", str(out), "--path", str(tmp_path / "run")]) == 2
    assert "has no option --dataset; did you mean --datasets?" in capsys.readouterr().err
    assert main(["build", *given[:4], "--out", str(tmp_path / "b"), "--tokenizer", "gpt2"]) == 2
    assert "get it with `hf download gpt2 tokenizer.json --local-dir .`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "corpus_format", "kind"),
    [
        *((None, "auto", "bpe"), (None, "tokens", "stored"), (None, "megatron", "stored")),
        *(("a/tokenizer.json", "auto", "file"), ("vocab.json", "jsonl", "file"), ("a.model", "auto", "sentencepiece")),
        ("tokenizer.json", "tokens", "stored"),
    ],
)
def test_the_kind_of_tokenizer_follows(path: str | None, corpus_format, kind: str) -> None:
    config = BuildConfig(corpus=CorpusConfig(format=corpus_format), tokenizer=TokenizerConfig(path=path))
    assert config.tokenizer.kind == kind
    # A kind that is given stays.
    given = TokenizerConfig(kind="tensorflow-text", path=path)
    assert BuildConfig(corpus=CorpusConfig(format=corpus_format), tokenizer=given).tokenizer.kind == "tensorflow-text"


def test_a_stored_tokenizer_still_needs_tokens() -> None:
    config = BuildConfig(corpus=CorpusConfig(paths=("a.jsonl",)), tokenizer=TokenizerConfig(kind="stored"))
    with pytest.raises(UserError, match=r"set tokenizer.kind=stored if the corpus contains tokens"):
        config.check()


def test_the_help_names_the_orderings(capsys):
    with pytest.raises(SystemExit):
        main(["build", "--help-all"])
    shown = capsys.readouterr().out
    assert "\n  --orders YAML  (default: uniform_shuffle balance)\n" in shown


def test_a_message_on_an_ordering_says_its_name(tmp_path, capsys):
    (tmp_path / "build.yaml").write_text("corpus: {paths: [a.jsonl]}\norders: [{}, {name: mine, seed: -1}]\n")
    assert main(["build", "--config", str(tmp_path / "build.yaml")]) == 2
    assert "orders[1] is the ordering 'mine'." in capsys.readouterr().err
