"""One document that raises an exception, or takes too long, is left out and counted; the run goes on."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jax_diversity.foundation.attempts import time_limit
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Here, Processes
from jax_diversity.preparation.passes import parts
from jax_diversity.preparation.passes.account import Account
from jax_diversity.preparation.passes.blocks import write_blocks
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.passes.notes import NoteBook, gather
from jax_diversity.preparation.readers import jsonl, latex, mediawiki, stack_exchange, text, web
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.preparation.stage import summary
from jax_diversity.preparation.steps.base import Candidate, at_least
from jax_diversity.preparation.steps.exact_duplicates import ExactDuplicates
from jax_diversity.preparation.steps.words import Words
from jax_diversity.schema import Document
from tests.support.faulty import FAULTS, PUMPED, SECRET, raising

QUICK = ["raising", "leaving", "recursing", "filling"]
SLOW = ["sleeping", "spinning"]
ACT = "tests.support.faulty:act"


def documents_with(*faults: str, number: int = 40) -> list[Document]:
    """Documents in parts of ten; one document of every part with a fault has it."""
    texts = [f"document number {index} of the corpus" for index in range(number)]
    for place, fault in enumerate(faults):
        texts[10 * place + 4] = f"{fault} {SECRET}"
    return [Document(f"d{index}", each, "web") for index, each in enumerate(texts)]


def run(folder: Path, documents: list[Document], num_processes: int, seconds: float = 1.0, steps: Any = None) -> Any:
    own = ("python", {"function": ACT})
    chain = Chain(steps or [("words", {"least": 1}), own, ("exact_duplicates", {})], Processes(num_processes), seconds)
    left = list(chain.through(documents, folder))
    return left, json.loads((folder / "funnel.json").read_text())


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_PART_DOCUMENTS", 10)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("faults", "num_processes", "rule"),
    [(QUICK, 1, "raised"), (QUICK, 2, "raised"), (SLOW, 1, "took_too_long"), (SLOW, 2, "took_too_long")],
    ids=str,
)
def test_a_document_is_a_row(tmp_path: Path, faults: list[str], num_processes: int, rule: str) -> None:
    documents = documents_with(*faults)
    left, account = run(tmp_path, documents, num_processes)
    assert [document.id for document in left] == [each.id for each in documents if SECRET not in each.text]
    step = account["steps"][1]
    assert step["removed"] == {rule: len(faults)}
    assert step["documents_in"] == step["documents_out"] + len(faults) == 40
    rows = {row["id"]: row for row in pq.read_table(tmp_path / "decisions").to_pylist()}
    values = (1, 0) if rule == "raised" else (1, 1)
    for place in range(len(faults)):
        row = rows[f"d{10 * place + 4}"]
        assert (row["step"], row["rule"], row["value"], row["threshold"]) == ("python", rule, *values)
    assert SECRET not in (tmp_path / "funnel.json").read_text()


def test_the_place_of_an_exception_is_counted(tmp_path: Path) -> None:
    _, account = run(tmp_path, documents_with(*QUICK), 1)
    lines = {name: FAULTS[name].__code__.co_firstlineno + 1 for name in QUICK}
    assert account["steps"][1]["found"] == {
        f"KeyError at tests.support.faulty:{lines['raising']}": 1,
        f"SystemExit at tests.support.faulty:{lines['leaving']}": 1,
        "RecursionError": 1,
        "MemoryError": 1,
    }


@pytest.mark.campaign
def test_code_in_c_ends_with_its_worker(tmp_path: Path) -> None:
    """The other documents and the account are those of a run without a slow document."""
    documents = documents_with("deaf", "raising", "deaf")
    left, account = run(tmp_path / "slow", documents, 2)
    expected, without = run(tmp_path / "quick", documents_with("raising", "raising", "raising"), 2)
    assert [document.id for document in left] == [document.id for document in expected]
    assert account["steps"][1]["removed"] == {"raised": 1, "took_too_long": 2}
    assert without["steps"][1]["removed"] == {"raised": 3}
    assert account["steps"][2] == without["steps"][2]


@pytest.mark.campaign
@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_document_that_crashes_its_process_is_a_row(tmp_path: Path, seconds: float) -> None:
    documents = documents_with("raising", "crashing", "crashing")
    left, account = run(tmp_path, documents, 2, seconds)
    assert len(left) == 37
    assert account["steps"][1]["removed"] == {"raised": 3}
    assert account["steps"][1]["found"]["Segmentation fault"] == 2
    assert not (tmp_path / "work").exists()


@pytest.mark.campaign
def test_a_process_that_was_paused_once_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAUSED", str(tmp_path / "paused"))
    left, account = run(tmp_path / "run", documents_with("pausing"), 2, 0.5)
    assert (tmp_path / "paused").exists()
    assert len(left) == 40
    assert account["steps"][1]["removed"] == {}


@pytest.mark.campaign
def test_a_continued_run_knows_the_documents_that_took_too_long(tmp_path: Path) -> None:
    """The second run of an interrupted run has the bytes of an uninterrupted one, and ends no process again."""
    documents = documents_with("raising", "deaf")
    run(tmp_path / "whole", documents, 2)
    generator = Chain(
        [("words", {"least": 1}), ("python", {"function": ACT}), ("exact_duplicates", {})],
        Processes(2),
        1.0,
    ).through(documents, tmp_path / "parts")
    next(generator)
    generator.close()
    run(tmp_path / "parts", documents, 2)
    for name in ("funnel.json", "examples.json", "decisions/decisions-00000.parquet"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_every_step_has_its_own_time(tmp_path: Path) -> None:
    naps = ("python", {"function": f"{__name__}:nap"})
    left, _ = run(tmp_path, documents_with(number=2), 1, 0.8, [naps] * 4)
    assert len(left) == 2


def nap(document: Document) -> None:
    time.sleep(0.3)


@pytest.mark.parametrize("fault", ["raising", "sleeping"])
def test_a_survey_may_fail_too(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its notes and in its judgement; the numbers of the other documents are theirs."""
    note, judge = ExactDuplicates.note, ExactDuplicates.judge

    def noted(self: Any, candidate: Candidate) -> bytes:
        if candidate.document.id == "d3":
            FAULTS[fault]()
        return note(self, candidate)

    def judged(self: Any, candidate: Candidate) -> Iterator:
        if candidate.document.id == "d5":
            FAULTS[fault]()
        return judge(self, candidate)

    monkeypatch.setattr(ExactDuplicates, "note", noted)
    monkeypatch.setattr(ExactDuplicates, "judge", judged)
    documents = [Document(f"d{index}", f"text {index % 10}", "web") for index in range(20)]
    left, account = run(tmp_path, documents, 1, 0.3, [("exact_duplicates", {}), ("words", {"least": 1})])
    # d3's copy d13 stays; d15, the copy of d5, was compared with d5 before d5 failed.
    assert [document.id for document in left] == ["d0", "d1", "d2", "d4", "d6", "d7", "d8", "d9", "d13"]
    rule = "raised" if fault == "raising" else "took_too_long"
    assert account["steps"][0]["removed"] == {"duplicate": 9, rule: 2}
    assert account["steps"][0]["documents_in"] == 20


def test_an_edit_that_cannot_be_stored_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(self: Words, candidate: Candidate) -> Iterator:
        if candidate.document.id == "d1":
            candidate.text = "half \ud800 a pair"
        yield from ()

    monkeypatch.setattr(Words, "judge", judge)
    left, account = run(tmp_path, documents_with(number=3), 1, steps=[("words", {"least": 1})])
    assert [document.id for document in left] == ["d0", "d2"]
    assert account["steps"][0]["removed"] == {"raised": 1}


# ---- Readers.
TEXTS = (b"one", b"two", b"three")
RECORD = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n"
PAGE = b"<page><title>t</title><id>%d</id><revision><text>%s</text></revision></page>"
ROW = b'<row Id="%d" PostTypeId="1" Title="t" Body="%s" />\n'
FILES = {
    "jsonl": ("a.jsonl", b"".join(b'{"text": "%s"}\n' % each for each in TEXTS)),
    "warc": ("a.warc", b"".join(RECORD % (len(each), each) for each in TEXTS)),
    "mediawiki": ("a.xml", b"<mediawiki>%s</mediawiki>" % b"".join(PAGE % pair for pair in enumerate(TEXTS))),
    "stack_exchange": ("site/Posts.xml", b"<posts>\n%s</posts>" % b"".join(ROW % pair for pair in enumerate(TEXTS, 1))),
    "latex": ("a.tex", b"\\documentclass{article} text"),
    "html": ("a.html", b"<p>one</p>"),
}
PLACES = {
    "jsonl": (jsonl, "_parse"),
    "warc": (web, "_document"),
    "mediawiki": (mediawiki, "_document"),
    "stack_exchange": (stack_exchange, "_parse"),
    "latex": (latex, "_title"),
    "html": (web, "title_of"),
}


@pytest.mark.parametrize("fault", ["raising", "recursing", "sleeping", "spinning"])
@pytest.mark.parametrize("format", PLACES)
def test_a_record_that_fails_is_a_problem(
    tmp_path: Path, format: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second record of a file, or its only one; another file is read."""
    name, content = FILES[format]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    (tmp_path / "b.txt").write_text("another")
    module, function = PLACES[format]
    make, calls = getattr(module, function), itertools.count(1)
    failing = 1 if format in ("latex", "html") else 2

    def faulty(*arguments: Any) -> Any:
        if next(calls) == failing:
            FAULTS[fault]()
        return make(*arguments)

    monkeypatch.setattr(module, function, faulty)
    report = ReadReport()
    paths = (str(tmp_path / name), str(tmp_path / "b.txt"))
    config = CorpusConfig(paths=paths, format="auto")
    if format == "mediawiki":
        monkeypatch.setattr("jax_diversity.preparation.readers.files._NAMES", {"mediawiki": re.compile(r"a\.xml$")})
    with time_limit(0.3):
        found = [document.text for document in read_documents(config, report)]
    assert "another" in found
    assert len(found) == (1 if failing == 1 else 3)
    count = report.num_raised if fault in ("raising", "recursing") else report.num_took_too_long
    assert count == report.num_problems == 1
    assert SECRET not in report.problems[0]
    reason = {"raising": "KeyError at tests.support.faulty:", "recursing": "RecursionError"}
    assert reason.get(fault, "more than 0.3 seconds") in report.problems[0]
    counts = {**vars(report), "preparation": {"steps": [], "num_documents_read": 0}}
    assert "; 1 record skipped: " in summary(counts)
    calls = itertools.count(1)
    with time_limit(0.3), pytest.raises(UserError, match=r"read without corpus\.strict"):
        list(read_documents(CorpusConfig(paths=paths, strict=True), ReadReport()))


def test_a_pattern_that_takes_too_long_ends_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"one\nab\n{'a' * 60}\nfour\n")
    (tmp_path / "b.txt").write_text("another\n")
    config = CorpusConfig(paths=(str(tmp_path / "*.txt"),), documents_begin=PUMPED.pattern)
    report = ReadReport()
    with time_limit(0.3):
        assert [document.text for document in read_documents(config, report)] == ["one", "another"]
    assert report.problems == ["a.txt: more than 0.3 seconds; the rest of the file is left out"]


def test_a_reader_that_fails_between_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    whole = text.read_text

    def faulty(file: Any, *arguments: Any, **options: Any) -> Iterator:
        yield from whole(file, *arguments, **options)
        if file.name == "a.txt":
            raising()

    monkeypatch.setattr("jax_diversity.preparation.readers.reading.read_text", faulty)
    report = ReadReport()
    config = CorpusConfig(paths=(str(tmp_path / "*.txt"),))
    assert [document.text for document in read_documents(config, report)] == ["a.txt", "b.txt"]
    assert report.num_raised == 1
    assert report.problems[0].endswith("; its rest is left out")


# ---- Files of an unfinished preparation.
@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was ended while it yielded documents, after a survey."""
    folder = tmp_path_factory.mktemp("unfinished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_PART_DOCUMENTS", 10)
        generator = surveyed().through(documents_with(), folder)
        next(generator)
        generator.close()
    return folder


def surveyed() -> Chain:
    return Chain([("words", {"least": 1}), ("exact_duplicates", {})], Here())


class Attack:
    """A pickle that makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def damaged(content: bytes, kind: str, mark: Path) -> bytes:
    if kind == "pickle":
        return pickle.dumps(Attack(mark))
    if kind == "flipped":
        return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]
    if kind == "cut off":
        return content[: len(content) // 2]
    if kind == "huge":
        return b"\xff" * 16 + content[16:]
    return b""


@pytest.mark.parametrize("kind", ["pickle", "flipped", "cut off", "huge", "empty"])
def test_a_damaged_part_is_an_error(unfinished: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(unfinished, tmp_path / "run")
    part = sorted((tmp_path / "run" / "work").glob("*.part"))[-1]
    part.write_bytes(damaged(part.read_bytes(), kind, tmp_path / "mark"))
    with pytest.raises(UserError, match=r"unfinished preparation at .*\.part.*delete the folder .*work, and run"):
        list(surveyed().through(documents_with(), tmp_path / "run"))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("plain", [[], {}, [[], []], [1, 2, 3], [[], [], [[1]] * 13], [[[]], [], []], None])
def test_a_part_that_others_made_is_an_error(tmp_path: Path, plain: Any) -> None:
    write_blocks(tmp_path / "part", json.dumps(plain).encode(), b"", b"\0" * 40, b"")
    with pytest.raises(UserError, match="Expected a file of an unfinished preparation"):
        parts.read_part(tmp_path / "part")


@pytest.mark.parametrize("kind", ["pickle", "flipped", "cut off", "huge", "empty"])
def test_damaged_notes_are_an_error(tmp_path: Path, kind: str) -> None:
    book = NoteBook()
    book.add("0", "web", None, b"note")
    book.write(tmp_path / "notes")
    content = (tmp_path / "notes").read_bytes()
    (tmp_path / "notes").write_bytes(damaged(content, kind, tmp_path / "mark"))
    with pytest.raises(UserError, match="Expected a file of an unfinished preparation"):
        gather([tmp_path / "notes"], tmp_path)
    assert not (tmp_path / "mark").exists()


def test_a_part_keeps_everything(tmp_path: Path) -> None:
    odd = Document("d\ud800", "half \udfff, \N{EURO SIGN}", "web", "en", None, {"a": {"b": [1, None, 2.5, 10**30]}})
    first, second = Candidate(odd, "de", {"score": 0.1}), Candidate(documents_with()[1], None)
    first.enter("words")
    first.judge(at_least("words", 7, 3))
    second.enter("words_2")
    second.text = "another"
    second.judge(at_least("least", 10**17 + 1, math.inf))
    second.duplicate_group, second.duplicate_of = 3, "d7"
    account = Account()
    account.add(first, odd.text)
    account.add(second, "text before")
    parts.write_part(tmp_path / "part", [account, Account()], [first, second])
    (found, empty), (one, other) = parts.read_part(tmp_path / "part")
    assert (one.document, one.text, one.language) == (odd, odd.text, "de")
    assert (one.scores, one.measured, one.removed) == ({"score": 0.1}, {"words.words": 7.0}, None)
    assert (other.text, other.removed, other.edited_by) == ("", second.removed, ["words_2"])
    assert (other.duplicate_group, other.duplicate_of) == (3, "d7")
    assert (other.entered, other.size, other.step) == (second.entered, second.size, "words_2")
    assert found.plain() == account.plain()
    assert (found.total(), found.by(0), found.removed_examples()) == (
        account.total(),
        account.by(0),
        account.removed_examples(),
    )
    assert empty.total() == Account().total()
