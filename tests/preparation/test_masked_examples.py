"""Examples of removed and edited documents show no personal data, wherever a text is cut."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import pytest

from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.readers.files import InputFile
from jax_diversity.preparation.readers.records import Place, Problem, ReadReport
from jax_diversity.schema import Document

pytest.importorskip("stdnum", reason="numbers are told with the extra `preparation`")
KEY = base64.b64encode(random.Random(7).randbytes(1200)).decode()
LINES = [KEY[at : at + 64] for at in range(0, len(KEY), 64)]
PRIVATE_KEY = "\n".join(["-----BEGIN RSA PRIVATE KEY-----", *LINES, "-----END RSA PRIVATE KEY-----"])
LABELLED = "Her PESEL:\n44051401359"
SECRETS = [*LINES, "44051401359", "jane.doe@exam", "jane.doe@example.org"]


def examples_of(folder: Path, text: str, *steps: tuple[str, dict], id: str = "a") -> dict:
    """The examples, which must not contain any of the secrets."""
    kept = Document("kept", "a b c d e f g h i j. " * 900, "web")
    list(Chain(steps).through([Document(id, text, "web"), kept], folder))
    stored = (folder / "examples.json").read_text("utf-8")
    assert not [secret for secret in SECRETS if secret in stored]
    return json.loads(stored)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (PRIVATE_KEY, "<secret>"),
        (f"{LABELLED} is left", "Her PESEL:\n<national_id> is left"),
        (f"{'x' * 1982} jane.doe@example.org and more", f"{'x' * 1982} <email> and more"),
        (f"{'x' * 1990} jane.doe@example.org and more", f"{'x' * 1990} <email> a"),
        (f"{'x ' * 600}{PRIVATE_KEY}", f"{'x ' * 600}<secret>"),
        (f"{f'{PRIVATE_KEY} and ' * 30}{'jane.doe@example.org ' * 20}", None),
    ],
)
def test_removed_documents(tmp_path: Path, text: str, shown: str | None) -> None:
    examples = examples_of(tmp_path, text, ("words", {"least": 5000}))
    (example,) = examples["removed"]["words.words"]
    assert example["text"] == shown or shown is None


def test_removed_documents_where_the_masked_part_of_the_text_ends(tmp_path: Path) -> None:
    """Wherever a document is cut before it is masked, the cut find is not shown."""
    text = f"{PRIVATE_KEY}\n" * 40
    for more in range(0, 1400, 61):
        examples = examples_of(tmp_path / str(more), f"{'x' * more} {text}", ("words", {"least": 5000}))
        shown = examples["removed"]["words.words"][0]["text"]
        assert not shown.replace("<secret>", "").strip("x \n")


OWN = """
def unlabelled(document):
    text = document.text.replace("PESEL:", "number").replace("-----BEGIN RSA PRIVATE KEY-----", "A key")
    return text.replace("\\n", " .\\n")
"""


@pytest.mark.parametrize("text", [PRIVATE_KEY, LABELLED, f"jane.doe@example.org\n{LABELLED}\n{PRIVATE_KEY}"])
def test_edited_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Also of an edit that removes the label before a number, or the first line of a key."""
    (tmp_path / "unlabelling.py").write_text(OWN, "utf-8")
    monkeypatch.chdir(tmp_path)
    examples = examples_of(tmp_path / "own", text, ("python", {"function": "unlabelling:unlabelled"}))
    assert [line for sign, line in examples["edited"]["python"][0]["lines"] if sign == "+"]
    examples = examples_of(tmp_path / "masked", text, ("personal_data", {}))
    lines = examples["edited"]["personal_data"][0]["lines"]
    assert {line for sign, line in lines if sign == "+"} & {"<secret>", "<national_id>"}


def test_problems_of_records() -> None:
    report = ReadReport()
    place = Place(InputFile("corpus.jsonl", "corpus.jsonl"), 3)
    report.skip(place, Problem("num_broken_records", "a row with invalid numbers: 'jane.doe@example.org'"))
    assert report.problems == ["corpus.jsonl:3: a row with invalid numbers: '<email>'"]


def test_ids_of_examples(tmp_path: Path) -> None:
    examples = examples_of(tmp_path, "short", ("words", {"least": 50}), id="jane.doe@example.org")
    assert examples["removed"]["words.words"][0]["id"] == "<email>"
