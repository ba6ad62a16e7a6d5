"""Huge and foreign numbers, and values of other types, in the records of every reader."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jax_diversity.foundation.executors import Here
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.readers.python_environment import record_rows
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema import Document

NUMBERS = ["9" * 5000, "9" * 41, "\u0661\u0662", "\uff11\uff12", "1_2", "nan"]


def read(path: Path, **options: Any) -> tuple[list[Document], ReadReport]:
    report = ReadReport()
    return list(read_documents(CorpusConfig(paths=(str(path),), **options), report)), report


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:4])
def test_numbers_of_posts(tmp_path: Path, number: str) -> None:
    rows = [f'<row Id="{number}" PostTypeId="1" Body="a"/>', f'<row Id="1" PostTypeId="1" Score="{number}" Body="b"/>']
    rows += [f'<row Id="2" PostTypeId="2" ParentId="{number}" Body="c"/>', '<row Id="3" PostTypeId="1" Body="kept"/>']
    (tmp_path / "Posts.xml").write_text("\n".join(["<posts>", *rows, "</posts>"]), encoding="utf-8")
    documents, report = read(tmp_path / "Posts.xml")
    assert [document.id.rpartition(":")[2] for document in documents] == ["3"]
    assert report.num_broken_records == report.num_problems == 3
    assert report.problems[0] == "Posts.xml:2: a row with invalid numbers"


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:4])
def test_numbers_of_revisions(tmp_path: Path, number: str) -> None:
    page = f"<page><id>1</id><revision><id>{number}</id><text>words</text></revision></page>"
    (tmp_path / "wiki.xml").write_text(f"<mediawiki>{page}</mediawiki>", encoding="utf-8")
    (document,), report = read(tmp_path / "wiki.xml", format="mediawiki")
    assert "revision" not in document.metadata
    assert report.num_problems == 0


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:4])
def test_lengths_of_web_records(tmp_path: Path, number: str) -> None:
    def record(length: str) -> str:
        return (
            f"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\nkept\r\n"
        )

    (tmp_path / "a.warc").write_text(record(number) + record("4"), encoding="utf-8", newline="")
    documents, report = read(tmp_path / "a.warc")
    assert [document.text for document in documents] == ["kept"]
    assert "a WARC record without Content-Length" in report.problems[0]


def test_rows_of_a_record_are_read_one_by_one() -> None:
    rows = record_rows(f'a.py,,1\n{"x" * 200_000},,2\n"b.py,,3\nc.py,,4')
    assert [row[0] for row in rows] == ["a.py", "b.py,,3", "c.py"]


@pytest.mark.parametrize("name", ["pyproject.toml", "package.json", "x.dist-info/RECORD", "LICENSE"])
def test_hostile_descriptions_of_a_folder_tell_nothing(tmp_path: Path, name: str) -> None:
    content = {"pyproject.toml": "a = " + "[" * 100_000, "package.json": "[" * 100_000}.get(name, "x," * 200_000)
    (tmp_path / "a.py").write_text("print('a program')")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    (document,), report = read(tmp_path / "a.py", format="code")
    assert report.num_problems == 0
    assert not document.metadata


def test_a_named_pipe_is_not_read_for_a_licence(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print('a program')")
    os.mkfifo(tmp_path / "LICENSE")
    (document,), _ = read(tmp_path / "a.py", format="code")
    assert not document.metadata


@pytest.mark.parametrize("value", [["text/html"], {"a": 1}, 7, None, float("nan"), 10**40])
def test_a_type_of_any_value_is_no_page(value: Any) -> None:
    pytest.importorskip("resiliparse")
    pytest.importorskip("mwparserfromhell")
    steps: list[Any] = [
        ("html", {"extractor": "resiliparse"}),
        ("mediawiki", {}),
        ("latex", {}),
        ("stack_exchange", {}),
    ]
    document = Document("a", "the text", "web", metadata={"media_type": value, "score": 10**400})
    chain = Chain(steps, Here())
    assert [each.text for each in chain.through([document])] == ["the text"]


def test_a_score_beyond_all_floats_is_a_row(tmp_path: Path) -> None:
    pytest.importorskip("resiliparse")
    about = {"media_type": "text/x-stack-exchange", "site": "stackoverflow.com"}
    texts = [("a", 10**40), ("b", 10**400), ("c", 3), ("d", -(10**40))]
    documents = [Document(id, "<h1>t</h1>\n<p>q</p>", "s", metadata=about | {"score": score}) for id, score in texts]
    chain = Chain([("stack_exchange", {})], Here())
    assert [document.id for document in chain.through(documents, tmp_path)] == ["a", "c"]
    assert chain.funnel()[0]["removed"] == {"raised": 1, "least_score": 1}
