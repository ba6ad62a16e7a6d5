"""Why a document is not in training: the decision of preparation, edits, copies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.schema.prepared import Decision, find_decision
from jax_diversity.streaming.run.history import DocumentHistory, document_history
from jax_diversity.streaming.run.inspection_text import history_text


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    texts = {
        "few": "two words",
        "first": "these are several words",
        "again": "these are several words",
        "dots": "a... b",
    }
    lines = (json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items())
    (folder / "corpus.jsonl").write_text("".join(lines))
    steps = "[{step: words, options: {least: 3}}, {step: exact_duplicates}]"
    out = ["--out", str(folder / "out"), "--quiet", "--preparation.steps", steps]
    assert main(["prepare", "--corpus.paths", str(folder / "corpus.jsonl"), *out]) == 0
    return folder / "out"


def test_a_removed_document_has_its_step_rule_value_and_threshold(prepared: Path) -> None:
    stored = jd.open_dataset(prepared).stored
    few = find_decision(stored, "few")
    assert few is not None
    assert few.sentence == "The step words removed it by the rule words (too few words): 2, against a threshold of 3."
    again = find_decision(stored, "again")
    assert again is not None
    assert "The step exact_duplicates removed it by the rule duplicate" in again.sentence
    kept = find_decision(stored, "first")
    assert kept is not None
    assert (kept.kept, kept.sentence) == (True, "Preparation kept it.")
    assert find_decision(stored, "nobody") is None
    assert kept.edited_by == []


def test_the_command_shows_it(tiny_dataset: Path, prepared: Path, tmp_path: Path, capsys) -> None:
    """The decisions of one dataset beside the rest of another: what the command reads is there."""
    out = shutil.copytree(tiny_dataset, tmp_path / "out")
    shutil.copytree(prepared / "preparation", out / "preparation")
    manifest = json.loads((prepared / "manifest.json").read_text())["stages"]["prepare"]["files"]
    added = {name: about for name, about in manifest.items() if name.startswith("preparation/")}
    from tests.support.hostile import sign_manifest

    sign_manifest(out, lambda content: content["stages"]["prepare"]["files"].update(added))
    assert main(["inspect", "--out", str(out), "--document", "few"]) == 0
    assert capsys.readouterr().out == (
        "few, in no training sequence:\nThe step words removed it by the rule words (too few words): 2, against a\n"
        "threshold of 3.\n"
    )
    assert main(["inspect", "--out", str(out), "--document", "few", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["history"][0]["decision"]["threshold"] == 3
    assert found["uses"] == []
    capsys.readouterr()
    for wrong, words in (("texts/few", "did you mean 'few'?"), ("nobody", "found 'nobody'. An id is the field `id`")):
        assert main(["inspect", "--out", str(out), "--document", wrong]) == 2
        assert words in capsys.readouterr().err


def test_the_command_answers_after_preparation_alone(prepared: Path, capsys: pytest.CaptureFixture) -> None:
    for document, words in (("few", "The step words removed it"), ("first", "Preparation kept it. There is no order")):
        assert main(["inspect", "--out", str(prepared), "--document", document]) == 0
        assert capsys.readouterr().out.startswith(f"{document}, in no training sequence:\n{words}")
    assert main(["inspect", "--out", str(prepared), "--document", "few", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["history"][0]["decision"]["step"] == "words"
    assert main(["inspect", "--out", str(prepared), "--document", "nobody"]) == 2
    assert "Expected the id of a document, found 'nobody'" in capsys.readouterr().err


def test_the_sentence_on_a_removed_document_names_its_language() -> None:
    fields = json.dumps({"detected_language": "de", "language_probability": 0.98, "words": 9})
    decision = Decision("a", False, [], "language", "languages", 0.01, 0.65, None, fields, "not a wanted language")
    assert decision.sentence == (
        "The step language removed it by the rule languages (not a wanted language): 0.01, against a threshold of "
        "0.65. The language found is de, with a probability of 0.98."
    )


def test_a_document_without_steps_has_no_history(tiny_dataset: Path) -> None:
    dataset = jd.open_dataset(tiny_dataset)
    name = dataset.documents.to_table(columns=["id"])["id"][0].as_py()
    history = document_history(dataset, name)
    assert history.decision is None
    assert history.is_stored
    assert history.num_copies == len(history.copies) or history.num_copies > 5


def test_sentences() -> None:
    decision = Decision("x", True, ["lines", "personal_data"], None, None, None, None, None, None)
    history = DocumentHistory(decision, 7, ("a", "b", "c", "d", "e"), True)
    assert history.sentences == [
        "The steps that edited its text are lines, personal_data.",
        "It has 7 copies in the dataset: a, b, c, d, e and others.",
    ]
    assert history_text("x", [], "the table") == "the table"
