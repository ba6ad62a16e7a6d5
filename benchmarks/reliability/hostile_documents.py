"""Hostile documents in every format, and the chains of steps that they pass.

A document is a text of any size, or the bytes of a whole file; a `Format` writes texts as its files.
"""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tests.support.hostile import ACTING
from tests.support.pumped import PUMPED
from tests.support.web_records import record

Rng = np.random.Generator
Text = Callable[[int], str]
"""A text with about so many characters."""

PLAIN = (
    "The harbour lay still in the morning, and the boats waited for the wind that comes with the tide. "
    "People had bread and fish on the quay. It was the best time of the day, as the old captain said!\n"
) * 4


class Hostile(NamedTuple):
    """A document: its description and its text, or for `records` the JSON of its record."""

    about: str
    text: Text
    grows: bool = True
    """Whether its size can be chosen."""


# ---- Texts.

_REAL = {
    "html": "<!DOCTYPE html><html><head><meta charset='utf-8'><title>A page</title></head><body>"
    "<nav><a href='/'>Home</a></nav><article><h1>News</h1><p>{}</p><table><tr><td>1</td></tr></table>"
    "<ul><li>one</li></ul></article></body></html>",
    "latex": "\\documentclass{{article}}\n\\newcommand{{\\R}}[1]{{\\mathbb{{R}}^{{#1}}}}\n\\title{{On waves}}\n"
    "\\begin{{document}}\n\\section{{Introduction}} % begin\n{} $x \\in \\R{{3}}$\n\\begin{{thebibliography}}{{9}}"
    "\\bibitem{{a}} B\\end{{thebibliography}}\n\\end{{document}}\n",
    "wiki": "{{{{Infobox|name=A|b={{{{convert|3|km}}}}}}}}\n'''Wind''' is [[air|moving air]].<ref name=a>B</ref>\n"
    "== History ==\n{}\n{{|\n|-\n|a||b\n|}}\n* one\n[[Category:Air]]\n",
    "code": "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n# Copyright (c) 2020 A. Licensed under the MIT License.\n"
    'def f(x):\n    """{}"""\n    return x\n',
    "book": "Header\n*** START OF THE PROJECT GUTENBERG EBOOK WAVES ***\nProduced by A\n\n{}\n"
    "*** END OF THE PROJECT GUTENBERG EBOOK ***\n",
    "mail": "From: a.b@example.org\nCall +49 30 1234567 or card 4111 1111 1111 1111, IBAN DE89 3704 0044 0532 0130 00."
    "\npassword = hunter2XyZ9q; codice fiscale RSSMRA85T10A562S; 192.168.1.1\n{}\n",
    "plain": "{}",
}
_ODD = (
    *(
        "\0",
        "\ud800",
        "\udc80",
        "\u202e",
        "\u2066",
        "\ufeff",
        "\u200b",
        "\xa0",
        "\xad",
        "\u0301" * 50,
        "\u2028",
        "\r",
        "\x0c",
        "\x1b[31m",
    ),
    *(
        "\u0660\u0661\u0662",
        "\uff11\uff12\uff13",
        "\U0001d7d8",
        "9" * 5000,
        "1e400",
        "-" * 300,
        "\U0001f468\u200d\U0001f469",
        "\ufdfa",
    ),
    *(
        "\ue000",
        "\U0010ffff",
        "\u0130",
        "\xdf",
        "\u1e9e",
        "\u3000",
        "<",
        ">",
        "&",
        "{",
        "}",
        "[[",
        "]]",
        "\\",
        "%",
        "$",
        "@",
        "::",
        ACTING,
    ),
)
_DIGITS = (*"\u0660\u06f0\u0966\uff10\U0001d7ce",)


def _spliced(rng: Rng, about: str) -> Hostile:
    """Real documents that are cut, repeated, joined, and changed in some places."""
    names = list(_REAL)
    text = "".join(
        _REAL[names[rng.integers(len(names))]].format(PLAIN * int(rng.integers(1, 6)))
        for _ in range(rng.integers(1, 4))
    )
    pumped = list(PUMPED.values())
    for _ in range(rng.integers(1, 8)):
        start = int(rng.integers(len(text) + 1))
        stop = min(len(text), start + int(rng.integers(1, 400)))
        kind = rng.integers(7)
        if kind == 0:
            text = text[:start] or "a"
        elif kind == 1:
            text = text[:start] + text[stop:]
        elif kind == 2:
            text = text[:start] + text[start:stop] * int(rng.integers(2, 20)) + text[stop:]
        elif kind == 3:
            zero = ord(_DIGITS[rng.integers(len(_DIGITS))])
            text = text.translate({ord("0") + digit: zero + digit for digit in range(10)})
        elif kind == 4:
            text = text[:start] + pumped[rng.integers(len(pumped))].text(int(rng.integers(1, 2000))) + text[start:]
        else:
            text = text[:start] + _ODD[rng.integers(len(_ODD))] + text[start:]
    return Hostile(about, lambda size: text, grows=False)


def _many_names(size: int) -> str:
    """Macros that each name others."""
    number, others = size // 10, "".join(f"\\m{'abcdefghij'[k % 10]}{'abcdefghij'[k // 10 % 10]}" for k in range(250))
    names = (f"\\m{''.join('abcdefghij'[int(digit)] for digit in str(k))}" for k in range(number))
    return "\\documentclass{a}" + "".join(f"\\def{name}{{{others}}}" for name in names) + "\\section{A}" + others


# Texts whose size is not that of a pumped string: each needs megabytes, or many thousands of parts.
LARGE: dict[str, Text] = {
    "attributes of one element": lambda size: (
        "<html><body><p" + "".join(f" a{k}=b" for k in range(size * 9 // 4)) + ">text</p>"
    ),
    "nested elements": lambda size: "<div>" * (size * 3 // 8) + "text",
    "macros that name 250 others": _many_names,
    "a number of 100,000 digits": lambda size: "9" * size,
    "full-width digits": lambda size: "\uff14\uff11" * (size // 2),
    "codice fiscale of Arabic digits": lambda size: (
        "codice fiscale RSSMRA\u0668\u0665T\u0661\u0660A\u0665\u0666\u0662S " * (size // 30)
    ),
    "codice fiscale of full-width digits": lambda size: (
        "codice fiscale RSSMRA\uff18\uff15T\uff11\uff10A\uff15\uff16\uff12S " * (size // 30)
    ),
    "cards of Arabic digits": lambda size: "card \u0664\u0661\u0661\u0661 1111 1111 1111 " * (size // 25),
    "one long line": lambda size: PLAIN.replace("\n", " ") * (size // len(PLAIN)),
    "lines of one letter": lambda size: "a\n" * (size // 2),
    "nested JSON": lambda size: '{"a":' * (size // 5),
    "different words": lambda size: " ".join(f"w{k}" for k in range(size // 6)),
    "combining marks": lambda size: "e" + "\u0301\u0323" * (size // 2),
    "bidirectional marks": lambda size: "\u202ea\u202c\u2066b" * (size // 5),
    "NULs": lambda size: "\0" * size,
    "half surrogate pairs": lambda size: "a\ud800 " * (size // 3),
}

_FIELDS_FOLLOW = "\ue0ff"
_NAMES = """
    media_type url score licence license licenses quality weight language source title id text timestamp vector tags
    answers name path turn_spans loss_spans messages tokens role content
"""
_FIELDS = _NAMES.split()
_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**40, -(10**40), 10**4400, 1e308, float("nan"), float("inf"), 1e-320, 2**63, 2**64, 0.5),
    *(
        "",
        " ",
        "x" * 70_000,
        "9" * 5000,
        "1e400",
        "nan",
        "\ud800",
        "a\0b",
        ACTING,
        "\u0661\u0662",
        "\uff11\uff12",
        "\xb2",
    ),
    *(
        [],
        [[]],
        ["text/html"],
        ["text/html", 3],
        [None],
        [10**40, 1.5],
        [1.0, float("nan")],
        [[1, 2], [3]],
        ["x" * 9] * 900,
    ),
    *(
        {},
        {"a": 1},
        {"": {"": []}},
        {"MIT": "MIT"},
        "http://" + "a." * 32_000 + "org",
        "http://[::1",
        "http://a:99999999/",
    ),
    *(
        "http://\u0661.\u0662.\u0663.\u0664/",
        "MIT OR " * 5000,
        "(" * 5000,
        "(MIT) AND " * 3000 + "MIT",
        "text/html",
        "text/x-tex",
    ),
    *("text/x-wiki", "text/x-stack-exchange", "text/html; charset=" + "a" * 60_000, "code:python", "\u202egpj.exe"),
)


def odd_fields(rng: Rng) -> Iterator[Hostile]:
    """Records with odd values of one field, for all fields and values, then of several fields."""
    pairs = list(itertools.product(_FIELDS, _VALUES))
    for place in rng.permutation(len(pairs)):
        yield _with_fields(dict([pairs[place]]))
    while True:
        yield _with_fields(dict(pairs[place] for place in rng.integers(len(pairs), size=3)))


def _with_fields(fields: Mapping[str, Any]) -> Hostile:
    fields = _plain(fields)
    about = ", ".join(f"{name}={ascii(value)[:60]}" for name, value in fields.items())
    return Hostile(about, lambda size: _FIELDS_FOLLOW + _dumped(fields), grows=False)


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "9" * 4400 if value == 10**4400 else value for name, value in fields.items()}


def _dumped(fields: Mapping[str, Any]) -> str:
    """JSON in which the number of 4,400 digits has no quotes."""
    return json.dumps(fields).replace(f'"{"9" * 4400}"', "9" * 4400)


# ---- Formats.

_CODE_FILES = ("a.py", "LICENSE", "pyproject.toml", "Cargo.toml", "package.json", "METADATA", "a-1.0.dist-info/RECORD")


@dataclass(frozen=True)
class Format:
    """Writes texts as files of a format, together with a plain one; `drawn` are its own documents besides all texts."""

    write: Callable[[Path, Sequence[str]], None]
    settings: Mapping[str, Any] = field(default_factory=dict)
    pattern: str = "*"
    is_exact: bool = True
    """Whether every text is exactly one document, one problem or one empty document."""


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _xml(text: str) -> str:
    return escape(
        "".join(mark for mark in text if mark in "\t\n\r" or (mark >= " " and not "\ud800" <= mark <= "\udfff"))
    )


def _with(record: dict[str, Any], text: str) -> str:
    """The JSON of a record, with the fields of a text that `_with_fields` made in place of its own."""
    return f"{json.dumps(record)[:-1]}, {text[2:]}" if text.startswith(_FIELDS_FOLLOW) else json.dumps(record)


def _said(text: str) -> str:
    return PLAIN if text.startswith(_FIELDS_FOLLOW) else text


def _lines(folder: Path, records: Iterable[str]) -> None:
    (folder / "a.jsonl").write_text("".join(f"{each}\n" for each in records))


def _jsonl(folder: Path, texts: Sequence[str]) -> None:
    about = ({"id": f"d{k}", "text": _said(text), "source": f"s{k % 3}"} for k, text in enumerate(texts))
    _lines(folder, map(_with, about, texts))


def _parquet(folder: Path, texts: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    ids = [f"d{number}" for number in range(len(texts))]
    pq.write_table(pa.table({"id": ids, "text": texts, "title": texts, "url": texts}), folder / "a.parquet")


def _chat(folder: Path, texts: Sequence[str]) -> None:
    def chat(number: int, text: str) -> str:
        turn = _with({"role": "user", "content": _said(text)}, text)
        answer = json.dumps({"role": "assistant", "content": _said(text)[:3000]})
        return f'{{"id": "d{number}", "messages": [{turn}, {answer}]}}'

    _lines(folder, (chat(number, text) for number, text in enumerate(texts)))


def _files(ending: str, folder: Path, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        (folder / f"{number:03d}{ending}").write_bytes(_utf8(text))


def _warc(folder: Path, texts: Sequence[str]) -> None:
    kinds = ("text/html", "text/html; charset=iso-8859-1", "text/plain", "application/xhtml+xml")
    records = [record(number, _utf8(text), kinds[number % 4]) for number, text in enumerate(texts)]
    (folder / "a.warc.gz").write_bytes(b"".join(records))


def _latex(folder: Path, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        whole = text if "\\documentclass" in text else f"\\documentclass{{article}}\n\\begin{{document}}\n{text}\n"
        (folder / f"{number:03d}.tex").write_bytes(_utf8(whole))


def _archives(folder: Path, texts: Sequence[str]) -> None:
    """Papers of several files: many main files include the text."""
    for number, text in enumerate(texts):
        with tarfile.open(folder / f"{number:03d}.tar.gz", "w:gz") as archive:
            main = b"\\documentclass{a}\n\\input{body}\n\\input{body.tex}\n\\section{A}\n"
            for name, content in {
                "body.tex": _utf8(text),
                **{f"main{k}.tex": main for k in range(40 if len(text) > 2**20 else 2)},
            }.items():
                about = tarfile.TarInfo(name)
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))


def _mediawiki(folder: Path, texts: Sequence[str]) -> None:
    pages = "".join(
        f"<page><title>{_xml(text[:60]) if number % 3 == 0 else 'A'}</title><ns>0</ns><id>{number}</id>"
        f'<revision><id>1</id><text xml:space="preserve">{_xml(text)}</text></revision></page>\n'
        for number, text in enumerate(texts)
    )
    head = '<mediawiki xml:lang="en"><siteinfo><dbname>enwiki</dbname><base>https://en.wikipedia.org/wiki/M</base></siteinfo>'
    (folder / "a-pages-articles.xml").write_text(f"{head}\n{pages}</mediawiki>\n", encoding="utf-8")


def _stack_exchange(folder: Path, texts: Sequence[str]) -> None:
    site = folder / "stackoverflow.com"
    site.mkdir()
    rows = []
    for number, text in enumerate(texts, 1):
        is_broken, score = number % 20 == 0, ("3", "-2", "9" * 18)[number % 3]
        own = "9" * 5000 if is_broken else "1"
        body, short = (_xml(part).replace("\n", "&#xA;").replace("\r", "&#xD;") for part in (text, text[:500]))
        rows.append(f'<row Id="{number}" PostTypeId="1" Score="{own}" Title="Why?" Body="{body}" Tags="&lt;a&gt;" />')
        if is_broken:  # one problem
            continue
        rows.append(f'<row Id="{number + 10**6}" PostTypeId="2" ParentId="{number}" Score="{score}" Body="{short}" />')
    (site / "Posts.xml").write_text("<posts>\n" + "\n".join(rows) + "\n</posts>\n", encoding="utf-8")


def _code(folder: Path, texts: Sequence[str]) -> None:
    """The first line of a text may name its file: the source, or a file beside it that states its licence."""
    for number, text in enumerate(texts):
        first, _, rest = text.partition("\n")
        name, text = (first, rest) if first in _CODE_FILES else (_CODE_FILES[0], text)
        inner = folder / f"p{number:03d}"
        for path, content in {"a.py": "def f():\n    return 1\n", name: text}.items():
            (inner / path).parent.mkdir(parents=True, exist_ok=True)
            (inner / path).write_bytes(_utf8(content))


def _tokens(folder: Path, texts: Sequence[str]) -> None:
    about = ({"id": f"d{k}", "tokens": [ord(mark) for mark in _said(text)]} for k, text in enumerate(texts))
    _lines(folder, map(_with, about, texts))


FORMATS: dict[str, Format] = {
    "jsonl": Format(_jsonl),
    "parquet": Format(_parquet),
    "text": Format(partial(_files, ".txt")),
    "text in parts": Format(partial(_files, ".txt"), {"documents_begin": "^ = [^=]"}, is_exact=False),
    "html": Format(partial(_files, ".html")),
    "warc": Format(_warc),
    "latex": Format(_latex, is_exact=False),
    "latex archives": Format(_archives, {"format": "latex"}, is_exact=False),
    "mediawiki": Format(_mediawiki),
    "stack_exchange": Format(_stack_exchange, pattern="*/Posts.xml"),
    "chat": Format(_chat, {"format": "chat"}),
    "code": Format(_code, {"format": "code"}, "*/a.py"),
    "tokens": Format(_tokens, {"format": "tokens"}),
}


OWN: dict[str, dict[str, Text]] = {
    "latex archives": {"a file of 4 MB in 40 papers": lambda size: PLAIN * (size * 70 // len(PLAIN))},
    "html": {"a title of 64 KB": lambda size: "<title>" * (size // 7)},
    "code": {
        "a TOML key of many parts": lambda size: f"pyproject.toml\n{'a.' * (size // 2)}a=1",
        "nested lists in TOML": lambda size: f"pyproject.toml\na={'[' * size}",
        "nested tables in TOML": lambda size: f"Cargo.toml\na={'{a=' * (size // 3)}",
        "a number of 5,000 digits in TOML": lambda size: f"pyproject.toml\n[project]\nlicense={'9' * size}",
        "nested lists in JSON": lambda size: f"package.json\n{'[' * size}",
        "a number of 5,000 digits in JSON": lambda size: f'package.json\n{{"license":{"9" * size}}}',
        "a field of 200 KB in CSV": lambda size: f"a-1.0.dist-info/RECORD\n{'a' * (size * 4)},b,c",
        "encodings": lambda size: "#coding=" * (size // 8),
    },
}
"""Documents of one format."""


def batches(number: int, size: int, rng: Rng) -> Iterator[tuple[str, list[Hostile], Literal["none", "some", "all"]]]:
    """`number` documents in batches of one format each, and how many chains they should pass.

    Every eighth batch has records with odd fields. Of the other documents half are pumped or large, half are spliced.
    """
    pumped = [Hostile(f"pumped: {name}", text.text) for name, text in PUMPED.items()]
    pumped += [Hostile(about, text) for about, text in LARGE.items()]
    fields, drawn, left, names = odd_fields(rng), _endless(pumped, rng), number, itertools.cycle(FORMATS)
    for name, texts in OWN.items():
        own = [Hostile(about, text) for about, text in texts.items()][:left]
        left -= len(own)
        yield name, own, "none"
    for place in itertools.count():
        if left <= 0:
            return
        batch, left = min(size, left), left - size
        if place % 8 == 7:
            name = ("jsonl", "jsonl", "chat", "tokens")[place // 8 % 4]
            yield name, [*itertools.islice(fields, batch)], "none" if name == "tokens" else "all"
            continue
        name = next(names)
        documents = [next(drawn) if rng.random() < 0.5 else _spliced(rng, f"spliced {left}-{k}") for k in range(batch)]
        if name == "code":
            documents = [_in_some_file(each, rng) for each in documents]
        yield name, documents, "none" if name == "tokens" else "some"


def _in_some_file(document: Hostile, rng: Rng) -> Hostile:
    name = _CODE_FILES[rng.integers(len(_CODE_FILES))]
    return document._replace(about=f"{document.about} in {name}", text=lambda size: f"{name}\n{document.text(size)}")


def _endless(documents: Sequence[Hostile], rng: Rng) -> Iterator[Hostile]:
    while True:
        yield from (documents[place] for place in rng.permutation(len(documents)))


# ---- Chains.


def keep(document: Any) -> dict[str, int]:
    """A function for the step `python`."""
    return {"length": len(document.text)}


Steps = list[tuple[str, dict[str, Any]]]


def chains(folder: Path) -> dict[str, Steps]:
    """Every step with its defaults and with other options, and every recipe; `folder` gets the files that they name."""
    from jax_diversity.preparation.passes.settings import RECIPES, PreparationConfig
    from jax_diversity.preparation.steps.base import METHODS

    plain, other = str(folder / "plain.txt"), str(folder / "other.txt")
    for path, text in ((plain, PLAIN), (other, "Buy now and win a free prize, click on this link here today for more")):
        Path(path).write_text("".join(f"{number} {' '.join(text.split()[number % 9 :])}\n" for number in range(40)))
    given: dict[str, dict[str, Any]] = {
        "decontaminate": {"files": [plain]},
        "perplexity": {"reference": [plain]},
        "python": {"function": "benchmarks.reliability.hostile_documents:keep"},
        "quality": {"good": [plain], "bad": [other]},
        "weight": {"weights": {"source=s0": 2}},
        "fields": {"keep": ["source=s*"]},
    }
    varied: list[tuple[str, dict[str, Any]]] = [
        *((name, {"always": True}) for name in ("code", "html", "mediawiki", "stack_exchange")),
        ("html", {"always": True, "extractor": "resiliparse"}),
        ("latex", {"always": True, "abstract": True, "appendix": False}),
        ("mediawiki", {"always": True, "appendices": True, "formulas": False}),
        ("stack_exchange", {"always": True, "sites": [], "thresholds": {"least_answer_score": 1}}),
        ("licence", {"unknown": True}),
        ("lines", {"everywhere": True, "least_left": 0.5}),
        ("lines", {"mark": True}),
        ("sentences", {"run": 1}),
        ("sentences", {"mark": True}),
        ("substrings", {"length": 5}),
        ("substrings", {"mark": True, "length": 3}),
        ("minhash", {"mark": True, "bands": 450, "rows": 20}),
        ("minhash", {"similarity": 0.8, "bands": 28, "rows": 4}),
        ("exact_duplicates", {"mark": True}),
        ("semantic", {"mark": True}),
        ("similar_sentences", {"mark": True, "similarity": 0.5}),
        ("decontaminate", given["decontaminate"] | {"cut": True, "run": 5, "shortest": 2}),
        ("perplexity", given["perplexity"] | {"thirds": ["head"]}),
        ("quality", given["quality"] | {"least": 0.0, "pareto": 9.0}),
        ("weight", {"weights": {"quality>=0.5": 2, "weight<0.8": 3}}),
        ("weight", {"weights": {"score>=0.5": 2, "language=e*": 0.5, "score=a": 2}}),
        ("personal_data", {"regions": ["US", "DE", "GB"], "private_addresses": True}),
        ("c4", {"without": ["terminal_punctuation", "curly_brackets", "lorem_ipsum"]}),
    ]
    found: dict[str, Steps] = {name: [(name, given.get(name, {}))] for name in METHODS}
    found |= {f"{name} {json.dumps(options)[:60]}": [(name, options)] for name, options in varied}
    for path in sorted(RECIPES.glob("*.yaml")):
        listed = PreparationConfig(recipe=path.stem).listed()
        found[path.stem] = [
            (each.step, {**each.options, **given.get(each.step, {})})
            if each.step != "weight"
            else (each.step, dict(each.options))
            for each in listed
        ]
    return found
