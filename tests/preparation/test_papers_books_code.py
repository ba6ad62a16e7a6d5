"""LaTeX, books and code: readers of archives and trees, macros, licences, headers; and input that means harm."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Here
from jax_diversity.foundation.text.licences import is_permitted, licence_named, licence_of_source, licence_of_text
from jax_diversity.pipeline.settings import PreparationConfig
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.readers import latex as latex_reader
from jax_diversity.preparation.readers.reading import input_fingerprint, read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig, Format
from jax_diversity.preparation.steps.macros import expand_macros
from jax_diversity.schema import Document

CLASS = "\\documentclass{article}\n"
MIT = "Permission is hereby granted, free of charge, to any person obtaining a copy\n# of this software and {}"
MIT = MIT.format("associated documentation files ... The above copyright notice and this permission notice shall be")
BSD = "Redistribution and use in source and binary forms, with or without modification, are permitted"
GPL = "GNU GENERAL PUBLIC LICENSE\n Version 3, 29 June 2007"


def read(path: Path | str, format: Format = "auto") -> tuple[dict[str, Document], ReadReport]:
    report = ReadReport()
    found = {document.id: document for document in read_documents(CorpusConfig((str(path),), format), report)}
    return found, report


def archive(files: Mapping[str, bytes | str], compressed: bool = False) -> bytes:
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w:gz" if compressed else "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            whole = content.encode() if isinstance(content, str) else content
            member.size = len(whole)
            tar.addfile(member, io.BytesIO(whole))
    return stored.getvalue()


def papers(folder: Path, files: Mapping[str, bytes | str]) -> tuple[dict[str, Document], ReadReport]:
    """The documents of an archive of papers."""
    folder.mkdir(exist_ok=True)
    (folder / "papers.tar").write_bytes(
        archive(dict(files) | {"1001/1001.9999.gz": gzip.compress(b"\\section{x} last")})
    )
    found, report = read(folder / "papers.tar", "latex")
    assert found.pop("papers.tar/1001/1001.9999.gz").text == "\\section{x} last"  # what is wrong with one is no others'
    return found, report


def paper(folder: Path, files: Mapping[str, bytes | str]) -> str:
    """The text of one paper in an archive of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "paper.tar.gz").write_bytes(archive(files, compressed=True))
    (document,) = read(folder / "paper.tar.gz", "latex")[0].values()
    return document.text


def run(
    step: str, texts: Iterable[str | Document], **options: Any
) -> tuple[list[Document | None], dict[str, int], dict[str, int]]:
    """What a step makes of each text, what it counts, and what its rules remove."""
    given = [text if isinstance(text, Document) else Document("", text, "made") for text in texts]
    named = [Document(str(i), d.text, d.source, d.language, d.title, d.metadata) for i, d in enumerate(given)]
    chain = Chain([(step, options)], Here())
    left = {document.id: document for document in chain.through(named)}
    (account,) = chain.funnel()
    return [left.get(str(index)) for index in range(len(given))], account["found"], account["removed"]


def after(step: str, text: str, **options: Any) -> str:
    (document,), _, _ = run(step, [text], **options)
    assert document is not None
    return document.text


def prepared(text: str, **options: Any) -> str:
    return after("latex", text, always=True, **options)


# ---- Reading LaTeX.
def test_an_archive_of_papers(tmp_path: Path) -> None:
    several = {
        "main.tex": CLASS + "\\title[short]{A {nice} title\\thanks{us}}\\begin{document}\\input{a}\\include{parts/b}!"
        "\\end{document}\n",
        "a.tex": "Section a\n",
        "parts/b.tex": "Section b \\input{c}",
        "parts/c.tex": "c",
        "answer.tex": CLASS + "short",
        "fig.pdf": b"%PDF",
        "fig1.eps.gz": gzip.compress(b"%!PS"),
    }
    found, report = papers(
        tmp_path,
        {
            "0001/hep-th0001001.gz": gzip.compress(archive(several)),
            "0001/0704.0001v2.gz": gzip.compress(b"\\section{One} file"),
            "0001/0001002.pdf": b"%PDF-1.4",
            "0001/0001003.gz": gzip.compress(b"%!PS-Adobe"),
            "0001/0001004.gz": gzip.compress(archive({"fig.pdf": b"%PDF"})),
            "0001/0001005.gz": gzip.compress(archive(several))[:-200],
            "0001/0001006.gz": b"\x1f\x8b no gzip",
            "0001/plain.tar.gz": archive({"x.tex": "\\def\\x{y}"}, compressed=True),
        },
    )
    texts = {id.removeprefix("papers.tar/0001/"): document.text for id, document in found.items()}
    assert texts.keys() == {"hep-th0001001.gz", "0704.0001v2.gz", "plain.tar.gz"}
    assert texts["0704.0001v2.gz"] == "\\section{One} file"
    assert re.sub(r"\s+", " ", texts["hep-th0001001.gz"]).endswith("{document}Section a Section b c !\\end{document} ")
    document = found["papers.tar/0001/hep-th0001001.gz"]
    assert document.title == "A {nice} title"
    assert document.metadata == {"media_type": "text/x-tex", "main_file": "main.tex"}
    assert document.source == tmp_path.name
    assert (report.num_without_text, report.num_broken_records) == (3, 2)


def test_names_in_an_archive_are_names_alone(tmp_path: Path) -> None:
    outside = tmp_path / "secret.tex"
    outside.write_text("secret")
    before = sorted(tmp_path.rglob("*"))
    files = {
        "d/main.tex": CLASS + f"\\input{{../../secret}}\\input{{{outside}}}\\input{{../b}}\\input{{../../x}}",
        "b.tex": "B",
        "../../x.tex": "only a name",
        "/etc/y.tex": "another",
    }
    text = paper(tmp_path / "papers", files)
    assert text == CLASS + f"\\input{{../../secret}}\\input{{{outside}}}B\nonly a name\n"
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "papers", tmp_path / "papers" / "paper.tar.gz"])


def test_files_that_are_taken_in(tmp_path: Path) -> None:
    files = {
        "main.tex": CLASS + "% \\input{a}\n\\% \\input a \\input{missing}\\import{sub/}{b}\\includegraphics{a}",
        "a.tex": "A \\input{main}\\input{a}% end",
        "sub/b.tex": "\\documentclass[main]{subfiles}\\begin{document}B\\end{document}no",
    }
    assert paper(tmp_path, files) == (
        CLASS + "% \\input{a}\n\\% A \\input{main}\\input{a}% end\n \\input{missing}B\n\\includegraphics{a}"
    )
    assert (
        paper(tmp_path, {"m.tex": CLASS + "x\\input{a}", "a.tex": "a\\endinput b"})
        == CLASS + "xa\\endinput\n"[:2] + "\n"
    )


def test_files_that_take_in_one_another_without_end(tmp_path: Path) -> None:
    """2^n copies of a file, of which each is small or empty."""
    doubling = {f"f{n}.tex": f"\\input{{f{n + 1}}}" * 40 for n in range(14)} | {"f14.tex": ""}
    found, report = papers(tmp_path, {"a.gz": gzip.compress(archive({"m.tex": CLASS + "\\input{f0}"} | doubling))})
    assert found == {}
    assert report.num_broken_records == 1
    assert "bytes of LaTeX" in report.problems[0]


def test_what_is_read_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only what is kept of it, and for all main files together; also commands that name no file."""
    monkeypatch.setattr(latex_reader, "MAX_TEXT_BYTES", 200_000)
    part = f"{'x' * 20_000}\\begin{{document}}y\\end{{document}}"
    ended = "a\\endinput " + "x" * 20_000
    many = {f"m{number}.tex": f"{CLASS}{number}\\input{{a}}" for number in range(12)}
    found, report = papers(
        tmp_path,
        {
            "a.gz": gzip.compress(archive({"m.tex": CLASS + "\\input{a}" * 4, "a.tex": part})),
            "b.gz": gzip.compress(archive({"m.tex": CLASS + "\\input{a}" * 12, "a.tex": part})),
            "c.gz": gzip.compress(archive({"m.tex": CLASS + "\\input{a}" * 12, "a.tex": ended})),
            "d.gz": gzip.compress(archive(many | {"a.tex": part})),
            "e.gz": gzip.compress(archive({"m.tex": CLASS + "\\input{absent}" * 60})),
        },
    )
    assert [document.text for document in found.values()] == [CLASS + "y\n" * 4]
    assert report.num_broken_records == 4


def test_encodings_and_line_ends(tmp_path: Path) -> None:
    files = {"m.tex": (CLASS + "é\r\n\\input{b}").encode(), "b.tex": "ü\rß".encode("latin-1")}
    assert paper(tmp_path, files) == CLASS + "é\nü\nß\n"
    (tmp_path / "one.tex").write_bytes("\ufeffan é".encode())
    (tmp_path / "two.tex.gz").write_bytes(gzip.compress("an é".encode("latin-1")))
    (tmp_path / "three.tgz").write_bytes(archive({"m.tex": "an é"}, compressed=True))
    found, _ = read(tmp_path / "*.tex*")
    assert {id: document.text for id, document in found.items()} == {"one.tex": "an é", "two.tex.gz": "an é"}
    assert next(iter(read(tmp_path / "three.tgz", "latex")[0].values())).text == "an é"


@pytest.mark.parametrize(
    ("declaration", "codec", "text"),
    [
        ("\\usepackage[cp1251]{inputenc}", "cp1251", "Пусть дано число"),
        ("\\usepackage[koi8-r]{inputenc} % [cp1251]{inputenc}", "koi8-r", "Пусть дано число"),
        (
            "% \\usepackage[cp1251]{inputenc}\n\\usepackage [T1, latin2] {babel,inputenc}",
            "iso-8859-2",
            "Źdźbło łąki ścięte",
        ),
        ("\\RequirePackage[latin9]{inputenc}", "iso-8859-15", "cœur à 5 €"),
        ("\\usepackage[latin5]{inputenc}", "iso-8859-9", "Ağaç ve güneş"),
        ("\\inputencoding{applemac}", "mac_roman", "Élève déçu"),
        ("\\usepackage{CJK}\\begin{CJK*}{GBK}{song}", "gbk", "设随机变量服从正态分布"),
        ("\\begin{CJK}[dnp]{Bg5}{bsmi}", "big5", "設隨機變數服從常態分佈"),
        ("\\begin{CJK}{SJIS}{min}", "shift_jis", "確率変数が正規分布に従う"),
        ("\\begin{CJK}{KS}{mj}", "euc-kr", "확률변수가 정규분포를 따른다"),
        ("\\usepackage[maccyr]{inputenc}", "mac_cyrillic", "Пусть дано число"),
        ("\\documentclass[GBK,a4paper]{ctexart}", "gb18030", "你好这是一篇论文"),
        ("\\usepackage[GBK]{ctex}", "gb18030", "你好这是一篇论文"),
        ("\\begin{CJK}{Bg5+}{bsmi}", "big5", "設隨機變數服從常態分佈"),
        ("% nothing is declared", "cp1251", "Пусть дано число, и пусть оно больше нуля"),
        ("% nothing is declared", "gb18030", "设随机变量服从正态分布"),
        ("\\usepackage[utf8]{inputenc}", "latin-1", "Élève déçu"),
        ("\\usepackage[unknown]{inputenc}", "latin-1", "Élève déçu"),
    ],
)
def test_a_declared_encoding_is_that_of_all_files(tmp_path: Path, declaration: str, codec: str, text: str) -> None:
    begin = CLASS + declaration + "\n"
    files = {"a.tex": f"{text}.\n".encode(codec), "m.tex": (begin + "\\input{a}" + text).encode(codec)}
    assert paper(tmp_path, files) == f"{begin}{text}.\n{text}"


def test_what_unpacks_without_bounds_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latex_reader, "MAX_UNPACKED_BYTES", 100_000)
    monkeypatch.setattr(latex_reader, "MAX_TEXT_BYTES", 50_000)
    zeros = bytes(150_000)
    _, report = papers(
        tmp_path,
        {
            "a.gz": gzip.compress(archive({"m.tex": CLASS, "fig.eps": zeros})),
            "b.gz": gzip.compress(archive({"m.tex": CLASS + "x" * 60_000})),
            "c.gz": gzip.compress(b"\\section{x}" + b" " * 60_000),
        },
    )
    assert report.num_broken_records == 3
    # In a compressed archive of papers, what lies behind cannot be reached.
    (tmp_path / "all.tar.gz").write_bytes(
        archive({"a.gz": gzip.compress(b"\\x y"), "big": zeros, "b.gz": gzip.compress(b"\\x z")}, compressed=True)
    )
    found, report = read(tmp_path / "all.tar.gz", "latex")
    assert list(found) == ["all.tar.gz/a.gz"]
    assert report.num_broken_records == 1


def test_a_damaged_archive_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = archive({f"{index}.gz": gzip.compress(b"\\section{x}" * 100) for index in range(3)})
    end = whole.rindex(b"2.gz")
    path = tmp_path / "papers.tar"
    for size in (
        end,
        end + 100,
        end + 512,
        end + 530,
        1024,
        700,
    ):  # also between two files, where tarfile sees no fault
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match="cut off, damaged"):
            read(path, "latex")
    path.write_bytes(whole[:end] + b"no header" * 60 + whole[end + 540 :])
    with pytest.raises(UserError, match="cut off, damaged"):
        read(path, "latex")


def test_noise_in_a_paper_is_never_more_than_a_problem(tmp_path: Path) -> None:
    rng = random.Random(0)
    whole = gzip.compress(archive({"m.tex": CLASS + "\\input{b}", "b.tex": "x" * 3000, "c.pdf": "y"}), mtime=0)
    inner = archive({"m.tex": CLASS + "\\input{b}", "b.tex": "x" * 3000})
    noisy: dict[str, bytes] = {}
    for index in range(60):
        content = bytearray(rng.choice((whole, inner)))
        for _ in range(rng.randrange(1, 6)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        noisy[f"n{index}.tar"] = bytes(content[: rng.randrange(1, len(content))] if index % 3 else content)
    found, report = papers(tmp_path, noisy)
    assert len(found) + report.num_problems + report.num_empty_documents == 60
    assert report.num_broken_records > 10


# ---- Preparing LaTeX.
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("50\\% % no\nof it", "50\\% \nof it"),
        ("a\n% whole\n  % lines\nb", "a\nb"),
        ("wo%\n  rd \\x%\ny \\\\% c\n\nz", "word \\x\ny \\\\\n\nz"),
        ("\\begin{minted}\n% x\n\\end{minted} \\verb|%| %", "\\begin{minted}\n% x\n\\end{minted} \\verb|%|"),
        ("a\\begin{comment}\nb\n\\end{comment}c\\iffalse d\\else e\\fi f", "ac ef"),
        ("\\iffalse a $\\iff$ \\fi b", "b"),
        ("\\verb|\nx% c", "\\verb|\nx"),
        ("\\begin{verbatim} % c\nx", "\\begin{verbatim} \nx"),
    ],
)
def test_comments(text: str, left: str) -> None:
    assert prepared(text) == left.strip()


DOCUMENT = r"""\documentclass{a}\newcommand{\R}{\mathbb{R}}
\renewcommand{\section}{\@startsection{section}}
\begin{document}\maketitle
\begin{abstract}We study $\R$.\end{abstract}
\section{One} It is $\R$.
\begin{thebibliography}{9}\bibitem{a} A.\end{thebibliography}
\bibliographystyle{plain}\bibliography{all}
\section*{References} [1] B.
\appendix
\section{More} End.
\end{document} no"""


def test_parts_of_a_document() -> None:
    more = "\\appendix\n\\section{More} End."
    one = "\\section{One} It is $\\mathbb{R}$."
    assert prepared(DOCUMENT) == f"{one}\n\n{more}"
    assert prepared(DOCUMENT, appendix=False) == one
    abstract = "\\begin{abstract}We study $\\mathbb{R}$.\\end{abstract}"
    assert prepared(DOCUMENT, abstract=True) == f"{abstract}\n\n{one}\n\n{more}"
    letter = DOCUMENT.replace("\\section{One}", "").replace("\\section{More}", "")
    assert prepared(letter, appendix=False) == one.removeprefix("\\section{One} ")
    assert prepared("no section, no document") == "no section, no document"


def test_other_documents_pass() -> None:
    page = Document("", "50% off\n% said they", "made", metadata={"media_type": "text/html"})
    tex = Document("", "a % b\n\\bibliography{x}", "made", metadata={"media_type": "text/x-tex"})
    kept, _, removed = run("latex", [page, tex, Document("", "% all", "", metadata=tex.metadata)])
    assert [document and document.text for document in kept] == [page.text, "a", None]
    assert removed == {"empty": 1}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (r"\newcommand{\norm}[2][p]{|#2|_#1}\norm{x} \norm[q]y \norm[{]}]\z", r"|x|_p |y|_q |\z|_{]}"),
        (r"\def\be{\begin{equation}}\def\ee{\end{equation}}\be x\ee", r"\begin{equation} x\end{equation}"),
        (r"\def\e{\epsilon}$\e x$ \e{} \e\x {\e}", r"$\epsilon x$ \epsilon \epsilon\x {\epsilon}"),
        (r"\def\f#1{\e#1}\def\e{\epsilon}\f x\f1", r"\epsilon x\epsilon1"),
        (r"\DeclareMathOperator*{\argmin}{arg\,min}\argmin_x", r"\operatorname*{arg\,min}_x"),
        (r"\newcommand\ours{Net\xspace}\ours is \ours{}, \ours.", r"Net is Net, Net."),
        (r"\def\eps{e}\eps\let\eps=\varepsilon\eps", r"e\let\eps=\varepsilon\eps"),
        (r"\newcommand{\a}[1]{<#1>}\a{\a{x}\a\b} \a\a x", r"<<x><\b>> <<>> x"),
        (r"\def\a#1{\b}\def\b#1{[#1]}\a1{tail}", r"[tail]"),
        (r"\def\a{1}\a\def\a{2}\a\providecommand{\a}{3}\a", r"122"),
        (r"\newcommand{\a}{\newcommand{\b}[1]{(##1)}}\a\b{x}", r"(x)"),
        (r"\long\def\a#1{#1!}\a{x}", r"x!"),
        (r"\def\a(#1){x}\a(y) \def\b{\ifmmode x\fi}\b", r"\def\a(#1){x}\a(y) \def\b{\ifmmode x\fi}\b"),
        (r"\renewcommand{\section}{\oops}\section{x}", r"\renewcommand{\section}{\oops}\section{x}"),
        ("a\n\\def\\x{y}\nb \\x", "a\nb y"),
        ("\\newcommand{\\a}[1]{<#1>}\\a\n\n{x} \\a", "\\a\n\n{x} \\a"),
        (r"\\newcommand \newcommand{\n}{x}\\n \n", r"\\newcommand \\n x"),
    ],
)
def test_macros(text: str, left: str) -> None:
    assert expand_macros(text)[0] == left


def test_macros_mean_what_was_defined_last() -> None:
    """A slow reference replaces macros, whose bodies name earlier ones, until none is left."""
    rng = random.Random(1)
    names = [f"m{letter}" for letter in "abcdefgh"]
    for _ in range(100):
        bodies = {
            name: " ".join(
                rng.choices(["{x}", "y.", *(f"\\{known}." for known in names[:index])], k=rng.randrange(1, 4))
            )
            for index, name in enumerate(names)
        }
        use = " ".join(f"\\{name}." for name in rng.choices(names, k=6))
        expected = use
        while "\\" in expected:
            for name, body in bodies.items():
                expected = expected.replace(f"\\{name}", body)
        definitions = [f"\\newcommand{{\\{name}}}{{{body}}}" for name, body in bodies.items()]
        rng.shuffle(definitions)
        assert expand_macros("".join(definitions) + use)[0] == expected


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (r"\def\a{x\a}\a", r"\def\a{x\a}\a"),
        (r"\def\b{y\a}\def\a{x\b}\a", r"\def\a{xy\a}\a"),
        (r"\renewcommand{\emph}[1]{\a{\emph{#1}}}\emph{x}", r"\renewcommand{\emph}[1]{\a{\emph{#1}}}\emph{x}"),
    ],
)
def test_macros_that_lead_back_to_themselves_are_left(text: str, left: str) -> None:
    found, counts = expand_macros(text)
    assert found.replace(" ", "") == left
    assert counts["recursive_macros"] == 1


def letters(number: int) -> str:
    return "".join("abcdefghij"[int(digit)] for digit in str(number))


def test_definitions_that_read_one_another_without_bounds() -> None:
    """Each of many macros names macros that name many others; definitions stay once they have read enough."""
    leaves = [f"\\z{letters(number)}" for number in range(140)]
    inner = [f"\\y{letters(number)}" for number in range(140)]
    defined = "".join(f"\\def{name}{{{''.join(leaves)}}}" for name in inner)
    outer = "".join(f"\\def\\x{letters(number)}{{{''.join(inner)}}}" for number in range(1000))
    found, _ = expand_macros(defined + outer)
    assert "\\def\\xjjj" in found
    assert "\\def\\xa{" not in found
    nested = "\\def\\a{" * 2000 + "}" * 2000
    assert expand_macros(nested)[0].count("\\def") == 2000


def test_text_that_would_grow_without_bounds() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    laughs = "\\def\\za{ha}" + "".join(f"\\def\\z{b}{{\\z{a}\\z{a}}}" for a, b in itertools.pairwise(letters))
    omega = r"\def\a#1{#1#1}\a\a"
    doubling = r"\def\a#1{#1#1}" + r"\a{" * 40 + "x" * 40 + "}" * 40
    unclosed = r"\newcommand{\a}[2][x]{#1#2}" + r"\a[]{" * 3000
    for text in (laughs + "\\zz", omega, doubling, unclosed):
        found, counts = expand_macros(text)
        assert len(found) <= 5 * len(text) + 30_000
        assert counts["macros_left"]


@pytest.mark.parametrize(
    "part",
    [
        "\\begin{verbatim}",
        "\\verb|",
        "\\iffalse ",
        "\\section{References}",
        "\\begin{thebibliography}",
        "\\title{",
        "%\n",
    ],
)
def test_nothing_that_is_opened_again_and_again_takes_long(part: str) -> None:
    """Quadratic time would be minutes; the clock of a document would end it."""
    _, _, removed = run("latex", [part * 100_000], always=True)
    assert not removed.keys() & {"took_too_long", "raised"}


# ---- Books.
BOOK = "THE BOOK\n\nby A. Writer\n\nIt ends well."
HEADER = "The Project Gutenberg eBook of The Book\n\nThis ebook is for the use of anyone.\n\n"
START = "*** START OF THIS PROJECT GUTENBERG EBOOK THE BOOK ***\n\n"
END = "\n\n*** END OF THIS PROJECT GUTENBERG EBOOK THE BOOK ***\n\n*** START: FULL LICENSE ***\n"
SMALL = "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n"


@pytest.mark.parametrize(
    "text",
    [
        HEADER + START + BOOK + END,
        HEADER + START.replace("THE BOOK", "THE\nLONG BOOK") + "Produced by A and\nB at pgdp.net\n\n\n" + BOOK + END,
        HEADER + SMALL + BOOK + "\n\nEnd of The Project Gutenberg Etext of The Book\n",
        HEADER + START + BOOK + END + "***START**THE SMALL PRINT!**\n" + SMALL,
        (HEADER + START + BOOK + END).replace("\n", "\r\n").replace("eBook of", "eBook of"),
        BOOK + "\nEnd of Project Gutenberg's The Book",
        HEADER + START.replace("*** ", "***").replace(" ***", "***") + BOOK,
        BOOK,
        "x" * 60_000 + "\n" + START + BOOK,
    ],
)
def test_books(text: str) -> None:
    left = after("gutenberg", text).replace("\r\n", "\n")
    assert left == (BOOK if not text.startswith("x") else text)


def test_several_books_in_a_text() -> None:
    one = HEADER + START + BOOK + END
    kept, found, _ = run("gutenberg", [one + one, HEADER + START + END])
    assert [document and document.text for document in kept] == [f"{BOOK}\n\n{BOOK}", None]
    assert found == {"headers": 3, "footers": 3}


# ---- Licences.
@pytest.mark.parametrize(
    ("text", "licence"),
    [
        (MIT, "MIT"),
        (MIT.partition("The above")[0], "MIT-0"),
        ("/* Licensed under the Apache License,\n * Version 2.0 */", "Apache-2.0"),
        (BSD + ": 1. ... 2. ...", "BSD-2-Clause"),
        (BSD + ": 3. Neither the name of", "BSD-3-Clause"),
        (BSD + ": All advertising materials mentioning features", "BSD-4-Clause"),
        (BSD + ": 1. 2. " + "word " * 400 + "Neither the name", "BSD-2-Clause"),
        (
            "Permission to use, copy, modify, and/or distribute this software for any purpose with or without\n"
            "fee is hereby granted, provided that the above copyright notice",
            "ISC",
        ),
        (GPL, "GPL-3.0-only"),
        (
            "under the terms of the GNU Lesser General Public License as published by the Free Software Foundation;\n"
            "// either version 2.1 of the License, or (at your option) any later version.",
            "LGPL-2.1-or-later",
        ),
        ("GNU AFFERO GENERAL PUBLIC LICENSE\nVersion 3", "AGPL-3.0-only"),
        ("subject to the terms of the Mozilla Public License, v. 2.0.", "MPL-2.0"),
        ("This is free and unencumbered software released into the public domain.", "Unlicense"),
        ("CC0 1.0 Universal", "CC0-1.0"),
        ('1. This LICENSE AGREEMENT is between the Python Software Foundation ("PSF"), and', None),
        ("All rights reserved.", None),
        ("word " * 1000 + MIT, None),  # of a part that comes along
    ],
)
def test_texts_of_licences(text: str, licence: str | None) -> None:
    assert licence_of_text(text) == licence


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("#!/bin/sh\n# SPDX-License-Identifier: MIT OR Apache-2.0\nx", "MIT OR Apache-2.0"),
        ("/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */", "GPL-2.0 WITH Linux-syscall-note"),
        ("// A file.\n\n// Licensed under the Apache License, Version 2.0\n", "Apache-2.0"),
        ('# A tool\nTEXT = """\nLicensed under the Apache License, Version 2.0"""', None),
        ("#include <x>\n// Licensed under the MIT License", None),
    ],
)
def test_sources_name_their_licence(text: str, licence: str | None) -> None:
    assert licence_of_source(text) == licence


def test_expressions() -> None:
    allowed = {"MIT", "Apache-2.0", "GPL-2.0"}
    for expression, answer in {
        "MIT": True,
        "mit": True,
        "ISC": False,
        "ISC OR MIT": True,
        "ISC AND MIT": False,
        "ISC OR MIT AND Apache-2.0": True,
        "(ISC OR MIT) AND (Apache-2.0 OR ISC)": True,
        "Apache-2.0 WITH LLVM-exception": True,
        "GPL-2.0-or-later WITH x": True,
        "GPL-3.0-or-later": False,
        "GPL-2.0-only": True,
        "MIT AND (ISC OR (ISC AND MIT))": False,
    }.items():
        assert is_permitted(expression, allowed) is answer, expression
    for name, answer in {"GPL-2.0": False, "GPL-2.0-only": False, "GPL-2.0+": True, "GPL-2.0-or-later": True}.items():
        assert is_permitted(name, {"GPL-2.0-or-later"}) is answer, name
    for wrong in ("", "(", "MIT)", "MIT OR", "AND MIT", "MIT MIT", "MIT WITH", "()", "unknown", "MIT OR other"):
        with pytest.raises(ValueError, match=r"not a licence|brackets"):
            is_permitted(wrong, allowed)
    # A deep one is not a problem, and a long one is none.
    assert licence_named("(" * 300 + "MIT" + ")" * 300) is not None
    assert licence_named("(" * 5000 + "MIT" + ")" * 5000) is None
    names = {"The MIT License (MIT)": "MIT", "Apache Software License": "Apache-2.0", "GPLv3+": "GPL-3.0-or-later"}
    names |= {"gfdl 1.2": "GFDL-1.2", "3-Clause BSD License": "BSD-3-Clause", "MIT/Apache-2.0": "MIT OR Apache-2.0"}
    assert {name: licence_named(name) for name in names} == names
    assert [licence_named(name) for name in ("BSD", "public domain", "SEE LICENSE IN x")] == [None] * 3


def test_licences_of_a_tree(tmp_path: Path) -> None:
    """The file's own header, then the nearest folder that tells one, and no further up than the tree."""
    tree = tmp_path / "tree"
    files = {
        "../LICENSE": GPL,
        "alone.py": "x",
        "mit/LICENSE.md": MIT,
        "mit/a.py": "x",
        "mit/deep/er/b.py": "x",
        "mit/deep/own.py": "# SPDX-License-Identifier: ISC\nx",
        "mit/vendor/COPYING": GPL,
        "mit/vendor/license.py": "x",
        "mit/odd/LICENCE": "Ask us.",
        "mit/odd/c.py": "x",
        "dual/LICENSE-MIT": MIT,
        "dual/LICENSE-APACHE": "Apache License\nVersion 2.0, January 2004",
        "dual/LICENSE-THIRD-PARTY": GPL,
        "dual/a.rs": "x",
        "prefix/MIT-LICENSE": MIT,
        "prefix/a.rb": "x",
        "reuse/LICENSES/MIT.txt": MIT,
        "reuse/LICENSES/BSD.txt": BSD,
        "reuse/a.c": "x",
        "lesser/COPYING": GPL,
        "lesser/COPYING.LESSER": "GNU LESSER GENERAL PUBLIC LICENSE Version 3",
        "lesser/a.c": "x",
        "py/pyproject.toml": '[project]\nlicense = {text = "BSD 3-Clause License"}',
        "py/a.py": "x",
        "js/package.json": '{"license": "(MIT OR CC0-1.0)"}',
        "js/a.js": "x",
        "rs/Cargo.toml": '[package]\nlicense = "MIT/Apache-2.0"',
        "rs/a.rs": "x",
        "broken/package.json": "[" * 100_000,
        "broken/pyproject.toml": "= no",
        "broken/a.js": "x",
        "site/pack-1.0.dist-info/METADATA": "Name: pack\nLicense-Expression: Apache-2.0\n\nLicense: GPL",
        "site/pack-1.0.dist-info/RECORD": f'"{"x" * 200_000}\npack/a.py,sha256=x,1\n"pack/b.py",,\n',
        "site/pack/a.py": "x",
        "site/other.py": "x",
    }
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    found, _ = read(tree / "**" / "*.[pjrc]*", "code")
    assert {id: document.metadata.get("licence") for id, document in found.items() if document.text.endswith("x")} == {
        "alone.py": None,
        "mit/a.py": "MIT",
        "mit/deep/er/b.py": "MIT",
        "mit/deep/own.py": "ISC",
        "mit/vendor/license.py": "GPL-3.0-only",
        "mit/odd/c.py": None,
        "dual/a.rs": "Apache-2.0 OR MIT",
        "prefix/a.rb": "MIT",
        "reuse/a.c": "BSD-2-Clause AND MIT",
        "lesser/a.c": "LGPL-3.0-only",
        "py/a.py": "BSD-3-Clause",
        "js/a.js": "(MIT OR CC0-1.0)",
        "rs/a.rs": "MIT OR Apache-2.0",
        "broken/a.js": None,
        "site/pack/a.py": "Apache-2.0",
        "site/other.py": None,
    }
    # A licence counts for the fingerprint, though it is none of the files that are read.
    config = CorpusConfig((str(tree / "mit" / "*.py"),), "code")
    before = input_fingerprint(config)
    (tree / "mit" / "LICENSE.md").write_text(BSD)
    assert input_fingerprint(config) != before


@pytest.mark.parametrize(
    "text",
    ["a = [" * 5000, "a = " + "[" * 5000, "a = " + "{a = " * 5000, "a" + ".a" * 100_000 + " = 1", "a = " + "1" * 5000],
)
def test_descriptions_that_no_parser_reads(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int x;")
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "package.json").write_text('{"license": "MIT"}')
    found, _ = read(tmp_path / "a.c", "code")
    assert found["a.c"].metadata == {"licence": "MIT"}


def test_permitted_documents() -> None:
    def of(**metadata: Any) -> Document:
        return Document("", "text", "made", metadata=metadata)

    documents = [
        of(licence="MIT License"),
        of(license="Apache-2.0 OR GPL-3.0-only"),
        of(licenses=["MIT", "BSD-3-Clause"]),
        of(licenses=["MIT", "ISC"]),
        of(licence="GFDL 1.2"),
        of(),
        of(licence=3),
    ]
    kept, found, removed = run("licence", documents)
    assert [document and document.metadata["licence"] for document in kept] == [
        *("MIT", "Apache-2.0 OR GPL-3.0-only", "MIT AND BSD-3-Clause"),
        *(None, None, None, None),
    ]
    assert removed == {"permitted": 2, "known": 2}
    assert found["unknown"] == 2
    assert found["GFDL-1.2"] == 1
    kept, _, removed = run("licence", documents, allowed=["isc", "mit", "gfdl-1.2"], unknown=True)
    assert removed == {"permitted": 2}
    for wrong in ([], "", "MIT (or", ["MIT", "unknown"]):
        with pytest.raises(UserError, match="SPDX identifiers"):
            Chain([("licence", {"allowed": wrong})])


# ---- Code.
def code_reference(text: str) -> str | None:
    lines = text.splitlines()
    if len([line for line in lines[:10] if "generated" in line]):
        return "generated"
    if sum(len(line) for line in lines) / len(lines) > 100:
        return "most_mean_line"
    if max(len(line) for line in lines) > 1000:
        return "longest_line"
    return "least_alphanumeric" if len([c for c in text if c.isalnum()]) / len(text) < 0.25 else None


def test_rules_of_code() -> None:
    rng = random.Random(2)
    lines = ["x = compute(1)", "=" * 90, "é" * 99, "a" * 101, "b" * 999, "c" * 1001, "", "# auto-generated", "{}[]()"]
    texts = [
        "\n".join(rng.choices(lines, rng.choices(range(1, 9), k=len(lines)), k=rng.randrange(1, 30))) + "\n;"
        for _ in range(300)
    ]
    documents = [Document("", text, "made", "code:c") for text in texts]
    kept, _, removed = run("code", documents)
    expected = [code_reference(text) for text in texts]
    assert [document is None for document in kept] == [rule is not None for rule in expected]
    assert removed == {rule: expected.count(rule) for rule in set(expected) if rule is not None}
    assert len(removed) == 4
    kept, _, removed = run("code", [Document("", text, "made", "en") for text in texts])
    assert removed == {}
    by_name = Document("", "x = 1", "made", "code:javascript", title="lib/jquery.min.js")
    assert run("code", [by_name])[2] == {"generated": 1}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("# Copyright 2020 X\n# All rights reserved.\n\n\nimport x\n", "import x\n"),
        ("#!/bin/x\n# -*- coding: utf-8 -*-\n# Copyright X\nx", "#!/bin/x\n# -*- coding: utf-8 -*-\nx"),
        ("/*\n * Copyright X\n */\n\n/* About. */\nint x;", "/* About. */\nint x;"),
        ("// About this.\n\n// Licensed under the MIT License\n#include <x>\n", "// About this.\n\n#include <x>\n"),
        ("<?php\n/** Copyright */\necho 1;", "<?php\necho 1;"),
        ("<!-- Copyright X -->\n<p>", "<p>"),
        ("-- Copyright X\nSELECT 1", "SELECT 1"),
        ("#[cfg(x)] // Copyright\nfn x() {}", "#[cfg(x)] // Copyright\nfn x() {}"),
        ("#define X // Copyright\n", "#define X // Copyright\n"),
        ("# Counts words.\nx = 1  # Copyright", "# Counts words.\nx = 1  # Copyright"),
        ("/* Copyright without an end\nint x;", "/* Copyright without an end\nint x;"),
        ("int x; /* Copyright */", "int x; /* Copyright */"),
        ("=begin\nCopyright X\n=end\nputs 1", "puts 1"),
        ("@echo off\nREM Copyright X", "@echo off\nREM Copyright X"),
        ("REM Copyright X\nrem All rights reserved.\n@echo off\n", "@echo off\n"),
        (":: (c) 2020 X\n@echo off\n", "@echo off\n"),
        ("--[[\nCopyright X\n]]\nlocal x = 1", "local x = 1"),
        ("#=\nCopyright X\n=#\nx = 1", "x = 1"),
        ("<#\nCopyright X\n#>\n$x = 1", "$x = 1"),
        ("! Copyright X\nprogram x\n", "program x\n"),
        ("/*! tiny 1.0 | (c) X and others | x.org/terms */\n!function(){}", "!function(){}"),
        ("/*! tiny 1.0 (c) X */!function(){}", "!function(){}"),
        ("/* @license tiny */ var x = 1;", " var x = 1;"),
        ("/* (a) one (b) two (c) three */\nint x;", "/* (a) one (b) two (c) three */\nint x;"),
        (
            '"""\n    mod\n    ~~~\n\n    About it.\n\n    :copyright: (c) 2010 by X.\n    :license: BSD, see\n'
            '        LICENSE.\n"""\nx = 1\n',
            '"""\n    mod\n    ~~~\n\n    About it.\n\n"""\nx = 1\n',
        ),
        ('# Copyright X\n"""About.\n\n:copyright: X\n"""\nx', '"""About.\n\n"""\nx'),
        ('x = 1\n"""\n:copyright: X\n"""', 'x = 1\n"""\n:copyright: X\n"""'),
    ],
)
def test_notices_at_the_beginning(text: str, left: str) -> None:
    assert after("code", text, always=True) == left


def test_a_file_of_a_notice_alone_is_removed() -> None:
    assert run("code", [Document("", "# Copyright X\n", "made", "code:python")])[2] == {"empty": 1}


# ---- Recipes.
def test_recipe_of_repositories(tmp_path: Path) -> None:
    files = {"a/LICENSE": MIT, "a/x.py": "# Copyright\nx = 1\n", "a/y.py": "X  =  1\n", "b/z.py": "z = 1"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    chain = PreparationConfig(recipe="llama-github").chain()
    assert chain is not None
    documents = read_documents(CorpusConfig((str(tmp_path / "**/*.py"),), "code"), ReadReport())
    assert [(document.id, document.text) for document in chain.through(documents)] == [("a/x.py", "x = 1\n")]
    assert [step["removed"] for step in chain.funnel()] == [{"known": 1}, {}, {"duplicate": 1}]


def test_recipe_of_papers_and_books(tmp_path: Path) -> None:
    (tmp_path / "paper.gz").write_bytes(gzip.compress(archive({"main.tex": DOCUMENT})))
    chain = PreparationConfig(recipe="llama-arxiv").chain()
    assert chain is not None
    documents = list(chain.through(read(tmp_path / "paper.gz", "latex")[0].values()))
    assert [document.text for document in documents] == [prepared(DOCUMENT)]
    books = PreparationConfig(recipe="llama-books").chain()
    assert books is not None
    rng = random.Random(3)
    words = [str(rng.choice("abcdefgh")) * rng.randrange(1, 9) for _ in range(3000)]
    editions = [
        HEADER + START + " ".join(words) + END,
        SMALL + " ".join([*words[:2950], "new"]),
        " ".join(words[:1500]),
    ]
    kept = [document.id for document in books.through(Document(str(i), text, "b") for i, text in enumerate(editions))]
    assert kept == ["0", "2"]
