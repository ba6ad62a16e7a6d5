"""What a user gives by mistake is refused or said: markup, one document, absent fields; tables and folders are read."""

from __future__ import annotations

import gzip
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from jax_diversity.cli.main import main
from jax_diversity.foundation.errors import UserError
from jax_diversity.preparation.markup import markup_of
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import MAX_PROBLEMS, ReadReport
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema import Document

PAGE = "<!DOCTYPE html>\n<html><head><title>A</title></head><body><p>Some words.</p></body></html>"
POST = "<p>How do I</p>\n<pre><code>x = 1</code></pre>\n<p>do it?</p>"
WIKI = "'''Word''' is a [[noun]] of [[grammar]].\n\n== Use ==\nSee [[Other|others]] {{cite|a=1}}."


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((PAGE, "HTML"), (f"\n {POST}", "HTML"), (WIKI, "wiki markup"), ("<page><title>a</title></page>", None)),
        *(('<?xml version="1.0"?>\n<text>a</text>', "XML"), ("<mediawiki><page/></mediawiki>", "XML")),
        ('<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x"><html></html>', "HTML"),
        *(("a < b and c > d", None), ("# Title\n\n<p align=center><img src=a></p>\nText with <b>bold</b> words", None)),
        *(
            ("if [[ -f a ]]; then [[ -d b ]] || [[ c ]]", None),
            ("An array [[1, 2], [3, 4]] of {{x}}", None),
            ("", None),
        ),
    ],
)
def test_markup(text: str, kind: str | None) -> None:
    assert markup_of(text) == kind


def write(path: Path, texts: list[str], **fields: str) -> Path:
    path.write_text("".join(json.dumps({"id": str(i), "text": text, **fields}) + "\n" for i, text in enumerate(texts)))
    return path


def prepare(path: Path, out: Path, *more: str) -> int:
    return main(["prepare", "--corpus.paths", str(path), "--out", str(out), "--quiet", *more])


def test_markup_is_refused_unless_it_is_kept_or_extracted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = write(tmp_path / "pages.jsonl", [PAGE] * 3 + ["plain words"] * 7)
    out = tmp_path / "out"
    assert prepare(pages, out) == 2
    error = capsys.readouterr().err
    assert "found HTML in 3 of 10 documents (such as 0 and 1); add the step html (--preparation.steps" in error
    assert ("after pip install 'jax-diversity[preparation]'" in error) == (find_spec("trafilatura") is None)
    assert not (out / "documents").exists()
    assert prepare(pages, out, "--corpus.keep-markup") == 0
    assert "10 documents, 0.0 MB of text, 3 of them HTML" in " ".join(capsys.readouterr().out.split())
    # The setting changes no document: the stage is kept.
    assert prepare(pages, out) == 0
    assert "kept" in capsys.readouterr().out
    pytest.importorskip("trafilatura", reason="pages are extracted with the extra `preparation`")
    step = "[{step: html, options: {always: true}}, {step: words, options: {least: 1}}]"
    assert prepare(write(tmp_path / "b.jsonl", [PAGE] * 3), tmp_path / "b", "--preparation.steps", step) == 0


def test_little_markup_gives_a_warning_and_source_code_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = write(tmp_path / "few.jsonl", [WIKI, *["plain words"] * 50])
    assert prepare(few, tmp_path / "out") == 0
    assert "warning: wiki markup in 1 of 51 documents (such as 0)" in capsys.readouterr().err
    code = write(tmp_path / "code.jsonl", [PAGE] * 2, language="code:html")
    assert prepare(code, tmp_path / "code") == 0
    assert not capsys.readouterr().err


def test_chats_may_contain_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step that removes markup would change their answers, so none is suggested."""
    chats = tmp_path / "chats.jsonl"
    answers = [{"role": "assistant", "content": text} for text in (WIKI, PAGE, POST)]
    rows = [{"messages": [{"role": "user", "content": answer["content"]}, answer]} for answer in answers]
    chats.write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert (
        prepare(chats, tmp_path / "out", "--corpus.format", "chat", "--corpus.chat-template", str(tmp_path / "t.jinja"))
        == 0
    )
    assert not capsys.readouterr().err


def test_a_large_corpus_of_markup_is_refused_at_its_beginning() -> None:
    from jax_diversity.preparation.markup import MarkupCounts

    read = []

    def documents():
        for number in range(5000):
            read.append(number)
            yield Document(str(number), POST, "web")

    with pytest.raises(UserError, match="HTML in 1,000 of the first 1,000 documents"):
        list(MarkupCounts(False).looked_at(documents(), is_beginning=True))
    assert len(read) == 1000


def test_one_document_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "book.txt"
    book.write_text("One line.\nAnother line.\n")
    assert prepare(book, tmp_path / "out") == 0
    assert "The corpus is one document" in capsys.readouterr().err
    assert prepare(book, tmp_path / "lines", "--corpus.documents-begin", r"\S") == 0
    assert not capsys.readouterr().err


def test_a_corpus_of_which_little_is_left_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = write(tmp_path / "a.jsonl", ["two words", "only", "one", "word", "here", "now"])
    assert prepare(texts, tmp_path / "out", "--preparation.steps", "[{step: words, options: {least: 2}}]") == 0
    assert "kept 1 of 6 documents; the rule words of the step words removed 5." in capsys.readouterr().err


def test_many_broken_records_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary shows problems of one kind once."""
    texts = tmp_path / "a.jsonl"
    good = "".join(f'{{"text": "text {number}"}}\n' for number in range(50))
    broken = ['{"text": "' + "a" * number for number in range(29)]
    for lines, is_warned in (([*broken, '{"other": 5}'], True), (broken[:9], False)):
        texts.write_text(good + "".join(f"{line}\n" for line in lines))
        assert main(["prepare", "--corpus.paths", str(texts), "--out", str(tmp_path / "out")]) == 0
        output = capsys.readouterr()
        line = " ".join(output.out.split())
        assert f"{len(lines)} records skipped, such as " in line
        assert line.count("a.jsonl:") == len({line[:9] for line in lines})
        warning = "warning: 30 of 80 records (38%) were skipped because they are broken, such as a.jsonl:51: "
        assert (warning in output.err) == is_warned


def test_problems_of_groups_are_joined() -> None:
    """A full list has room for the first problem of each further kind."""
    joined = ReadReport()
    numbered = [f"a:{line}: no {line}" for line in range(MAX_PROBLEMS - 1)]
    for problems in (numbered, ["b:1: no 8", "b:2: no 7", "b:3: new"]):
        joined.add(ReadReport(problems=problems).plain())
    assert joined.problems == [*numbered, "b:3: new"]


def found(path: Path | str, **settings: object) -> list[Document]:
    return list(read_documents(CorpusConfig(paths=(str(path),), **settings), ReadReport()))  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["id_field", "source_field", "language_field", "title_field"])
def test_a_named_field_must_exist(setting: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ["one", "two"], kind="web")
    sentence = rf"field 'meta.lang' of a record \(corpus.{setting}\), found none in 2 .* are text, id, kind; name one"
    with pytest.raises(UserError, match=sentence):
        found(path, **{setting: "meta.lang"})
    with pytest.raises(UserError, match=r"whose fields are text, id, kind; did you mean 'kind'\?"):
        found(path, **{setting: "Kind"})
    # One record that has it is enough, and so are the usual names, which may be absent.
    with path.open("a") as file:
        file.write(json.dumps({"text": "three", "meta.lang": "x"}) + "\n")
    assert len(found(path, **{setting: "meta.lang"})) == 3
    assert len(found(path)) == 3


def test_tables_are_read(tmp_path: Path) -> None:
    rows = 'text,source,stars\r\n"Two lines,\nand ""quotes""",web,3\r\nwords,,4\r\ntoo,few\r\n\r\n'
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + rows.encode())
    with gzip.open(tmp_path / "b.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("id\ttext\nx\tà, b; c\n")
    (tmp_path / "c.csv").write_bytes("text;id\nün;y\n".encode() + b"\xff;z\n")
    report = ReadReport()
    documents = [*read_documents(CorpusConfig(paths=(str(tmp_path),)), report)]
    assert [(each.id, each.text, each.source) for each in documents] == [
        ("a.csv:2", 'Two lines,\nand "quotes"', "web"),
        ("a.csv:4", "words", "a"),
        ("x", "à, b; c", "b"),
        ("y", "ün", "c"),
    ]
    assert documents[0].metadata == {"stars": "3"}
    assert (report.num_broken_records, report.num_invalid_utf8) == (1, 1)
    assert report.problems[0] == "a.csv:5: expected 3 cells, found 2"
    (tmp_path / "c.csv").write_text("body,id\na,b\n")
    with pytest.raises(UserError, match=r"the text in field 'text' of .*c.csv, found only body, id; set corpus.text_f"):
        found(tmp_path / "c.csv")
    with pytest.raises(UserError, match=r"prepare --corpus.text-field FIELD --out PART`\) and name PART/documents/"):
        found(tmp_path / "c.csv")
    assert found(tmp_path / "c.csv", text_field="body")[0].text == "a"
    (tmp_path / "c.csv").write_text("a,a\nb,b\n")
    with pytest.raises(UserError, match=r"different names of columns in the first line of .*, found a, a; name every"):
        found(tmp_path / "c.csv")


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "pl[a]in"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "c.txt").write_text("hidden")
    (folder / "a.txt").write_text("first")
    (folder / "deep" / "b.txt").write_text("second")
    assert [(each.id, each.text) for each in found(folder)] == [("a.txt", "first"), ("deep/b.txt", "second")]
    assert found(f"{folder}/") == found(folder)
    remote = folder.rename(tmp_path / "plain")
    assert [(each.id, each.text) for each in found(f"file://{remote}")] == [
        ("a.txt", "first"),
        ("deep/b.txt", "second"),
    ]
    folder = remote
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"found the dataset .*; name its documents, as in '.*/documents/\*.parquet'"):
        found(folder)
