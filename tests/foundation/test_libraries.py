"""Optional libraries: all that are missing are named at once, with one command, before a build starts."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from jax_diversity.cli.main import main
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.libraries import MissingLibrary, check_installed, optional, together


def test_all_missing_libraries_are_named_before_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("py3langid", "phonenumbers", "sentencepiece"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "corpus.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "settings.yaml").write_text(
        f"corpus: {{paths: [{tmp_path}/corpus.jsonl]}}\n"
        "preparation: {steps: [{step: language}, {step: words}, {step: personal_data}]}\n"
    )
    model = tmp_path / "tokenizer.model"
    model.write_bytes(b"model")
    out = tmp_path / "out"
    arguments = ["build", "--config", str(tmp_path / "settings.yaml"), "--out", str(out), "--quiet"]
    assert main([*arguments, "--tokenizer.kind", "sentencepiece", "--tokenizer.path", str(model)]) == 2
    sentence = capsys.readouterr().err
    assert "Expected the libraries py3langid, phonenumbers, sentencepiece, found no libraries" in sentence
    assert "pip install 'jax-diversity[preparation]' 'jax-diversity[sentencepiece]'." in sentence
    assert not out.exists()


def test_errors_of_other_kinds_come_first() -> None:
    def check() -> None:
        with together() as missing:
            missing.append(MissingLibrary([("a", "a", "no a")]))
            raise UserError("another mistake")

    with pytest.raises(UserError, match="another mistake"):
        check()


def test_one_library_has_the_same_sentence_as_ever() -> None:
    with pytest.raises(MissingLibrary, match=r"Expected the library no_such_one, .*; pip install 'no-such-one'\."):
        optional("no_such_one", None, install="no-such-one")
    with pytest.raises(MissingLibrary, match=re.escape("pip install 'jax-diversity[ray]'.")):
        check_installed("no_such_one", "ray")
    check_installed("json", "ray")


def test_the_extra_names_what_trafilatura_imports_and_does_not_install() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    assert any(each.startswith("lxml_html_clean") for each in extras["preparation"])
