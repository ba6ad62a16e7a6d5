"""Every step and every reader as a function of one text, for limits and measurements of time and memory."""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Here
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import PYTHON_ENVIRONMENT, CorpusConfig
from jax_diversity.preparation.steps.base import METHODS
from jax_diversity.preparation.steps.quality import MODEL, Quality
from jax_diversity.schema import Document
from tests.support.web_records import record

Use = Callable[[str], object]


def steps(folder: Path) -> dict[str, Use]:
    """Every step; `folder` gets the files that its options name."""
    good, bad, plain = folder / "good.txt", folder / "bad.txt", folder / "plain.txt"
    good.write_text("".join(f"a theorem has proof number {number}\n" for number in range(40)))
    bad.write_text("".join(f"buy cheap offers now, {number} of them\n" for number in range(40)))
    plain.write_text("the words of a short reference, which are few\n")
    always: dict[str, Any] = {"always": True}
    options: dict[str, list[dict[str, Any]]] = {
        "c4": [{"without": ["terminal_punctuation"], "thresholds": {"least_words_a_line": 0, "least_sentences": 0}}],
        "code": [always],
        "decontaminate": [{"files": [str(plain)]}, {"files": [str(plain)], "cut": True, "run": 2, "shortest": 2}],
        "html": [always, always | {"extractor": "resiliparse"}],
        "latex": [always | {"abstract": True}, always | {"appendix": False}],
        "lines": [{}, {"everywhere": True}, {"mark": True}],
        "mediawiki": [always],
        "minhash": [{}, {"similarity": 0.8}],
        "perplexity": [{"reference": [str(plain)]}],
        "python": [{"function": "builtins:bool"}],
        "quality": [{"model": str(folder / MODEL)}],
        "sentences": [{"run": 1}],
        "stack_exchange": [always | {"sites": []}],
        "substrings": [{"length": 2}],
        "weight": [{"weights": {"source=web": 1.0}}],
        "fields": [{"keep": ["source=web"], "remove": ["licence=x*y*z"]}],
    }
    Quality(good=(str(good),), bad=(str(bad),)).learn(folder)
    return {
        f"{name} {number}" if number else name: partial(_judge, name, each)
        for name in METHODS
        for number, each in enumerate(options.get(name, [{}]))
    }


def _judge(step: str, options: Mapping[str, Any], text: str) -> None:
    """The text is a document, the beginning of a second one, and the title and a field of both."""
    metadata = {"licence": text, "license": text}
    documents = [Document(name, text + name, "web", title=text, metadata=metadata) for name in "ab"]
    for _ in Chain([(step, options)], Here()).through(documents):
        pass


def readers(folder: Path) -> dict[str, Use]:
    """Every reader, with the text in every place where a file may have it."""
    uses: dict[str, Use] = {}
    for name, make in READERS.items():
        place = folder / name.replace(" ", "_")
        place.mkdir()
        uses[f"read {name}"] = partial(_read, place, make)
    return uses


def _read(folder: Path, make: Callable[[Path, str], Mapping[str, Any]], text: str) -> None:
    try:
        config = CorpusConfig(**make(folder, text))
        only_here = partial(importlib.metadata.distributions, path=[str(folder)])
        with mock.patch.object(importlib.metadata, "distributions", only_here):
            for _ in read_documents(config, ReadReport()):
                pass
    except UserError:
        pass


def _files(folder: Path, contents: Mapping[str, str | bytes], **settings: Any) -> dict[str, Any]:
    """Write files and return the settings that read the first of them."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return {"paths": (str(folder / next(iter(contents))),), **settings}


def _records(text: str) -> list[dict[str, Any]]:
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    about = {"title": text, "language": text, "source": text, "about": {text[:1000]: [text]}}
    return [{"id": text, "text": text, "messages": turns, "tokens": [1, 2], **about}]


def _lines(text: str) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in _records(text))


def _table(text: str) -> bytes:
    stored = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(_records(text)), stored)
    return stored.getvalue()


def _paper(**files: str) -> bytes:
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{name}.tex")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return stored.getvalue()


def _dump(head: str, title: str, text: str) -> str:
    page = f"<page><title>{title}</title><ns>0</ns><id>1</id><revision><id>2</id><text>{text}</text></revision></page>"
    return f"<mediawiki><siteinfo>{head}</siteinfo>{page}</mediawiki>"


def _posts(title: str, body: str, tags: str) -> str:
    values = f'Title="{title}" Body="{body}" Tags="{tags}" ContentLicense="{title}"'
    rows = f'<row Id="1" PostTypeId="1" {values} />\n<row Id="2" PostTypeId="2" ParentId="1" {values} />'
    return f"<posts>\n{rows}\n</posts>"


def _xml(text: str) -> str:
    """The text within XML, which has no control characters."""
    return escape("".join(mark for mark in text if mark >= " " or mark in "\t\n")).replace("\n", "&#xA;")


def _with_licences(folder: Path, text: str) -> dict[str, Any]:
    row = f"{text.splitlines()[0] if text.strip() else ''},,\n"
    contents = {
        "package/a.py": "x = 1\n",
        "package/LICENSE": text,
        "package/a-1.0.dist-info/RECORD": row * 2 + text,
        "package/a-1.0.dist-info/METADATA": f"Name: a\n{text}",
    }
    return _files(folder, contents, format="code")


def _package(folder: Path, text: str) -> dict[str, Any]:
    contents = {
        "a-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: a\nVersion: 1\n\n{text}",
        "a-1.0.dist-info/RECORD": f"a.py,,5000\n{text}\na-1.0.dist-info/LICENSE,,5000",
        "a-1.0.dist-info/LICENSE": text,
        "a.py": text,
    }
    return _files(folder, contents) | {"paths": (PYTHON_ENVIRONMENT,)}


READERS: dict[str, Callable[[Path, str], dict[str, Any]]] = {
    "text": lambda folder, text: _files(folder, {"a.txt": text}),
    "text, lines": lambda folder, text: _files(folder, {"a.txt": text}, documents_begin=r"\S"),
    "text, articles": lambda folder, text: _files(folder, {"a.txt": text}, documents_begin="^ = [^=]"),
    "code": lambda folder, text: _files(folder, {"a.py": text}, format="code"),
    "code, licences": _with_licences,
    "code, pyproject.toml": lambda folder, text: _files(folder, {"a.c": "x", "pyproject.toml": text}, format="code"),
    "code, Cargo.toml": lambda folder, text: _files(
        folder, {"a.rs": "x", "Cargo.toml": f'[package]\nlicense = """{text}"""'}, format="code"
    ),
    "python_environment": _package,
    "code, package.json": lambda folder, text: _files(folder, {"a.js": "x", "package.json": text}, format="code"),
    "jsonl": lambda folder, text: _files(folder, {"a.jsonl": _lines(text)}),
    "jsonl, raw": lambda folder, text: _files(folder, {"a.jsonl": text}),
    "jsonl, a raw value": lambda folder, text: _files(folder, {"a.jsonl": f'{{"text": "a", "b": {text}}}'}),
    "jsonl, tokens": lambda folder, text: _files(folder, {"a.jsonl": _lines(text)}, format="tokens"),
    "parquet": lambda folder, text: _files(folder, {"a.parquet": _table(text)}),
    "parquet, raw": lambda folder, text: _files(folder, {"a.parquet": text}),
    **{
        f"chat, {template}": partial(
            lambda template, folder, text: _files(
                folder, {"a.jsonl": _lines(text)}, format="chat", chat_template=template
            ),
            template,
        )
        for template in ("chatml", "llama-3", "alpaca", "plain")
    },
    "html": lambda folder, text: _files(folder, {"a.html": text}),
    "html, not UTF-8": lambda folder, text: _files(folder, {"a.html": b"\xff\xfa" + text.encode()}),
    "warc": lambda folder, text: _files(folder, {"a.warc.gz": record(1, text.encode(), more=f"{text[:60_000]}\r\n")}),
    "warc, raw": lambda folder, text: _files(folder, {"a.warc": text}),
    "warc, raw headers": lambda folder, text: _files(folder, {"a.warc": f"WARC/1.0\r\n{text}"}),
    "warc, chunks": lambda folder, text: _files(
        folder, {"a.warc.gz": record(1, text.encode(), more="Transfer-Encoding: chunked\r\n")}
    ),
    "latex": lambda folder, text: _files(folder, {"a.tex": text}),
    "latex, a paper": lambda folder, text: _files(
        folder, {"a.tar": _paper(**{f"main{number}": r"\documentclass{a}" + text for number in range(2)}, a=text)}
    ),
    "latex, raw": lambda folder, text: _files(folder, {"a.gz": gzip.compress(text.encode(), mtime=0)}, format="latex"),
    "mediawiki": lambda folder, text: _files(folder, {"a.xml": _dump("", _xml(text), _xml(text))}, format="mediawiki"),
    "mediawiki, raw": lambda folder, text: _files(folder, {"a.xml": _dump("", "", text)}, format="mediawiki"),
    "mediawiki, raw head": lambda folder, text: _files(folder, {"a.xml": _dump(text, "", "")}, format="mediawiki"),
    "mediawiki, before": lambda folder, text: _files(
        folder, {"a.xml": f"{text}x" + _dump("", "a", "a")}, format="mediawiki"
    ),
    "stack_exchange, before": lambda folder, text: _files(
        folder, {"a/Posts.xml": f'<?xml version="1.0"?>{text}x<posts>\n</posts>'}, format="stack_exchange"
    ),
    "warc, a type": lambda folder, text: _files(
        folder, {"a.warc.gz": record(1, b"a", f"text/html; charset={text[:60_000]};".replace("\n", " "))}
    ),
    "mediawiki, a base": lambda folder, text: _files(
        folder,
        {"a.xml": _dump(f"<base>http://{_xml(text)}</base><dbname>{_xml(text)}wik</dbname>", "a", "a")},
        format="mediawiki",
    ),
    "stack_exchange": lambda folder, text: _files(
        folder, {"a/Posts.xml": _posts(_xml(text), _xml(text), _xml(text))}, format="stack_exchange"
    ),
    "stack_exchange, raw": lambda folder, text: _files(
        folder, {"a/Posts.xml": f"<posts>\n{text}\n</posts>"}, format="stack_exchange"
    ),
    "stack_exchange, a raw row": lambda folder, text: _files(
        folder, {"a/Posts.xml": f'<posts>\n<row {text}="1"/>\n</posts>'}, format="stack_exchange"
    ),
}
