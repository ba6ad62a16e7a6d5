"""Dumps of MediaWiki and Stack Exchange: what is read of them, of damaged ones too, and what their steps make of it."""

from __future__ import annotations

import bz2
import gzip
import itertools
import random
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.errors import UserError
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.readers import mediawiki, stack_exchange
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema import Document

Read = tuple[list[Document], ReadReport]


def read(path: Path, **settings: object) -> Read:
    report = ReadReport()
    return list(read_documents(CorpusConfig(paths=(str(path),), **settings), report)), report


def texts_of(read: Read) -> list[str]:
    return [document.text for document in read[0]]


# ---- Compressed by bzip2.
LINES = b"".join(b'{"id": "%d", "text": "line %d"}\n' % (number, number) for number in range(500))


def test_bzip2_of_several_streams(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.bz2"
    path.write_bytes(b"".join(bz2.compress(LINES[at : at + 2000]) for at in range(0, len(LINES), 2000)))
    assert texts_of(read(path)) == [f"line {number}" for number in range(500)]


WHOLE = bz2.compress(LINES)


@pytest.mark.parametrize(
    "content",
    [WHOLE[:-7], WHOLE[:20], WHOLE + b"more", WHOLE + WHOLE[:30], LINES, b"", WHOLE[:60] + b"\0\0\0" + WHOLE[63:]],
    ids=["no end", "few bytes", "garbage behind", "a second one cut off", "plain", "empty", "bytes changed"],
)
def test_damaged_bzip2_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corpus.jsonl.bz2"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"corpus.jsonl.bz2 is cut off, damaged or not what its name says"):
        read(path)


def test_7z_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stats.stackexchange.com.7z"
    path.write_bytes(b"7z\xbc\xaf\x27\x1c")
    for form in ("auto", "stack_exchange"):
        with pytest.raises(UserError, match=r"unpack it with `7z x stats.stackexchange.com.7z`"):
            read(path, format=form)


# ---- Dumps of MediaWiki.
HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <dbname>dewiki</dbname>
    <base>https://de.wikipedia.org/wiki/Hauptseite</base>
    <namespaces><namespace key="0" case="first-letter" /><namespace key="6">Datei</namespace></namespaces>
  </siteinfo>
"""


def page(number: int, text: str, title: str = "", more: str = "", ns: int = 0) -> str:
    return (
        f"  <page>\n    <title>{escape(title or f'Title {number}')}</title>\n    <ns>{ns}</ns>\n    <id>{number}</id>\n"
        f"{more}    <revision>\n      <id>{number + 1000}</id>\n"
        f"      <timestamp>2024-01-0{number}T00:00:00Z</timestamp>\n"
        "      <model>wikitext</model>\n      <format>text/x-wiki</format>\n"
        f'      <text xml:space="preserve">{escape(text)}</text>\n    </revision>\n  </page>\n'
    )


PAGES = [
    page(1, "Erste <ref>Quelle</ref> & ''so'' weiter\n* eins"),
    page(2, "#REDIRECT [[Title 1]]", more='    <redirect title="Title 1" />\n'),
    page(3, "Talk", ns=1),
    page(4, "größer\u00a0\u2013 🙂", title="Ä & B/C?"),
]
TEXTS = ["Erste <ref>Quelle</ref> & ''so'' weiter\n* eins", "größer\u00a0\u2013 🙂"]


def dump(folder: Path, pages: list[str], name: str = "dewiki-20240101-pages-articles.xml", head: str = HEAD) -> Path:
    content = f"{head}{''.join(pages)}</mediawiki>\n".encode()
    compress = {".bz2": bz2.compress, ".gz": gzip.compress}.get(Path(name).suffix, bytes)
    (folder / name).write_bytes(compress(content))
    return folder / name


def test_pages_of_a_dump(tmp_path: Path) -> None:
    documents, report = read(dump(tmp_path, PAGES))
    assert [document.text for document in documents] == TEXTS
    assert documents[0] == Document(
        id="dewiki:1",
        text=TEXTS[0],
        source="dewiki",
        language="de",
        title="Title 1",
        metadata={
            "media_type": "text/x-wiki",
            "timestamp": "2024-01-01T00:00:00Z",
            "revision": 1001,
            "url": "https://de.wikipedia.org/wiki/Title_1",
        },
    )
    assert documents[1].metadata["url"] == "https://de.wikipedia.org/wiki/%C3%84_%26_B/C%3F"
    assert report.num_problems == 0


@pytest.mark.parametrize(
    "name",
    [
        "dewiki-20240101-pages-articles-multistream1.xml-p1p41242.bz2",
        "dewiki-latest-pages-articles.xml.gz",
        "dewiki-20240101-pages-meta-current.xml",
        "dewiki-20240101-pages-articles.xml.bz2",
    ],
)
def test_dumps_are_known_by_their_names(tmp_path: Path, name: str) -> None:
    assert texts_of(read(dump(tmp_path, PAGES, name))) == TEXTS
    bare = dump(tmp_path, PAGES, name, "<mediawiki>")
    documents, _ = read(bare)
    assert (documents[0].id, documents[0].source, documents[0].language) == ("dewiki:1", "dewiki", "de")
    assert "url" not in documents[0].metadata


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 20])
def test_pages_that_pieces_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(mediawiki, "_PIECE_BYTES", piece)
    assert texts_of(read(dump(tmp_path, PAGES))) == TEXTS


def test_a_page_is_given_before_the_next_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mediawiki, "_PIECE_BYTES", 512)
    path = dump(tmp_path, [page(number % 9 + 1, f"text {number}") for number in range(2000)])
    size, told = path.stat().st_size, []
    documents = read_documents(CorpusConfig((str(path),), duplicate_ids="rename"), ReadReport(), told.append)
    assert next(documents).text == "text 0"
    assert sum(told) < size / 20
    assert len(list(documents)) == 1999
    assert sum(told) == size


def test_the_last_revision_counts(tmp_path: Path) -> None:
    older = "<revision><id>7</id><text>old</text></revision>"
    documents, _ = read(dump(tmp_path, [page(1, "new", more=older)]))
    assert (documents[0].text, documents[0].metadata["revision"]) == ("new", 1001)
    (document,), _ = read(dump(tmp_path, [page(1, "new").replace("<id>1001", f"<id>{'9' * 5000}")]))
    assert "revision" not in document.metadata


def test_broken_pages_are_counted_and_the_others_read(tmp_path: Path) -> None:
    path = dump(
        tmp_path,
        [
            page(1, "one"),
            page(2, "two").replace("</revision>", ""),
            page(3, "three").replace("three", "&growing;"),
            page(4, "four"),
            page(5, ""),
            page(6, "f\0ur"),
        ],
    )
    path.write_bytes(path.read_bytes().replace(b"four", b"f\xffur"))
    documents, report = read(path)
    assert [document.text for document in documents] == ["one"]
    assert (report.num_broken_records, report.num_invalid_utf8, report.num_empty_documents) == (3, 1, 1)
    assert report.problems[0].startswith("dewiki-20240101-pages-articles.xml:2: not XML: mismatched tag")
    assert "undefined entity" in report.problems[1]
    with pytest.raises(UserError, match="mismatched tag"):
        read(path, strict=True)


LAUGHS = '<!DOCTYPE mediawiki [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: content[:-14], "is cut off: it has no </mediawiki>"),
        (lambda content: content[:-200], "is cut off: it has no </mediawiki>"),
        (lambda content: content[:100], "Expected an XML dump of MediaWiki"),
        (lambda content: LAUGHS.encode() + content, "Expected a dump without a document type"),
        (lambda content: b'<!DOCTYPE m SYSTEM "file:///etc/passwd">' + content, "without a document type"),
        (lambda content: content.replace(b"mediawiki", b"html"), "which begins with <mediawiki>, found '<html xmlns="),
        (lambda content: b"no XML at all", "Expected an XML dump of MediaWiki"),
        (lambda content: b"", "Expected an XML dump of MediaWiki"),
    ],
)
def test_files_that_are_no_whole_dump(tmp_path: Path, change, sentence: str) -> None:
    path = dump(tmp_path, PAGES)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=sentence):
        read(path)


def test_what_a_declaration_says_of_the_encoding_is_not_believed(tmp_path: Path) -> None:
    """Expat would read the head in it, and not see the document type that was looked for."""
    head = '<?xml version="1.0" encoding="cp037"?>' + HEAD
    assert texts_of(read(dump(tmp_path, PAGES, head=head))) == TEXTS


def test_a_page_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mediawiki, "MAX_DOCUMENT_BYTES", 5000)
    monkeypatch.setattr(mediawiki, "_PIECE_BYTES", 1000)
    with pytest.raises(UserError, match="Expected pages of at most 5000 bytes"):
        read(dump(tmp_path, [page(1, "long " * 2000)]))


# ---- Wiki text to plain text.
def through(step: str, document: Document, **options: object) -> str:
    """The text that a step makes of a document, or the rule that removes it in angle brackets."""
    chain = Chain([(step, options)])
    left = list(chain.through([document]))
    return left[0].text if left else f"<{next(iter(chain.funnel()[0]['removed']))}>"


def plain(text: str, title: str = "A title", language: str = "en", **options: object) -> str:
    document = Document("1", text, "enwiki", language, title, {"media_type": "text/x-wiki"})
    return through("mediawiki", document, **options)


WIKI_TEXTS = [
    ("'''Bold''' and ''italic'' and '''''both''''', l''''avion'''", "Bold and italic and both, l'avion"),
    ("A [[link]], [[Target (x)|its name]]s, [[:Category:All|all]], [[#Part]]", "A link, its names, all, #Part"),
    ("One[[Category:Things]] [[Kategorie:Dinge|x]][[de:Eins]] two [[wikt:word|word]].", "One two word."),
    ("[[File:a.jpg|thumb|300px|A [[nested]] ''caption'' [http://x y].]]Text.", "Text."),
    ("[[Datei:a.svg|mini|links]][[Bild:b.png]][[Файл:c.jpg|мини]][[Whatever:d.jpeg|thumb]] Text.", "Text."),
    ("See [http://a.org the site], [http://b.org] or http://c.org now.", "See the site, or http://c.org now."),
    ("A<!-- hidden\n<ref> --> B<ref name=a/> C<ref>[[x]] {{y}}</ref>.", "A B C."),
    ("It {{citation needed|date=May}} is {{a|{{b|{{c}}}}|d={{e}}}} so {{x|{y} z}}.", "It is so {y} z."),
    (
        "Born in {{lang|fr|Nice}} ({{IPA|fr|nis}}; {{nowrap|15 km}}), {{convert|5|to|7|km|mi}}.",
        "Born in Nice (nis; 15 km), 5 to 7 km.",
    ),
    ("{|class=x\n! Head\n|-\n| cell {{!}} || other\n{|\n| inner\n|}\n|}\nText.", "Text."),
    ("{|\n| a table without end\n== Next ==\nText.", "Next\n\nText."),
    ("__NOTOC__Text __NOEDITSECTION__here. {{DEFAULTSORT:Name}}", "Text here."),
    ("a<br />b <small>c</small> <span style='x'>d</span> x < y <foo> <nowiki>[[no]] {{link}}</nowiki>", None),
    ("So <math>\\frac{{a}}{b}\n + [[c]]</math> holds.", "So $\\frac{{a}}{b} + [[c]]$ holds."),
    ("<syntaxhighlight lang=c>\nif (a) {\n  {{b}}\n}\n</syntaxhighlight>\nEnd", "if (a) {\n  {{b}}\n}\n\nEnd"),
    ("Text.\n<gallery>\nFile:a.jpg|One\n</gallery>\n<references />\n<poem>\na\nb\n</poem>", "Text.\n\na\nb"),
    (
        "* a\n** b\n* c\n# one\n# two\n## deep\n# three\n: indented\n; term",
        "- a\n  - b\n- c\n1. one\n2. two\n  1. deep\n3. three\nindented\nterm",
    ),
    (
        "Lead.\n== A ==\n=== B ===\nText.\n== Empty ==\n{{x}}\n== C ==\n----\nMore.",
        "Lead.\n\nA\n\nB\n\nText.\n\nC\n\nMore.",
    ),
    ("A&nbsp;b &amp; &lt;c&gt; &#8211; &eacute; &unknown;", "A b & <c> \u2013 é &unknown;"),
    (
        "Text.\n== See also ==\n* [[x]]\n=== More ===\n* y\n== Life ==\nEnd.\n== ''References'' ==\n{{reflist}}\nold",
        "Text.\n\nLife\n\nEnd.",
    ),
    ("Name ({{lang-ru|Имя}}, {{x}}; {{y}}) ( ) [{{z}}] came , and went .", "Name (Имя) came, and went."),
    ("= A =\na\n==B= \nb\n=== C ===\t\nc\n==\nd\n= e", "A\n\na\n\n=B\n\nb\n\nC\n\nc\n==\nd\n= e"),
    ("{{lang|x= a| b =c|de|\n=d}} and {{lang| =|fr}}.", "=d and fr."),
    (f"A &#{'0' * 5000}65; <nowiki>&#{'9' * 5000};</nowiki> b.", "A \ufffd \ufffd b."),
    ("{{x", "x"),
    ("Broken [[link and {{template and <ref> and [http://x", None),
    (
        "Only text, with 'quotes' and 5 < 6 > 4; a {set} and [1, 2).",
        "Only text, with 'quotes' and 5 < 6 > 4; a {set} and [1, 2).",
    ),
]


@pytest.mark.parametrize(("wiki", "expected"), WIKI_TEXTS)
def test_wiki_text(wiki: str, expected: str | None) -> None:
    found = plain(wiki)
    if expected is not None:
        assert found == expected
    else:
        assert "nowiki" not in found
        assert found.startswith(("a\nb c d x < y", "Broken [[link and template and"))


def wrapped(rng: random.Random, names: Iterator[int], depth: int = 3) -> str:
    """Markup at random: words `kept1`, `kept2` ... that must stay, in their order, and `gone3` ... that must not."""

    def words(kind: str) -> str:
        return " ".join(f"{kind}{next(names)}" for _ in range(rng.randint(1, 3)))

    def inner() -> str:
        return wrapped(rng, names, depth - 1)

    def gone() -> str:
        return re.sub(r"</?ref[^>]*>|<!--|-->", "", inner()).replace("kept", "gone")

    kinds = [
        lambda: words("kept"),
        lambda: f"[[{words('kept')}]]",
        lambda: f"[[{words('gone')}|{words('kept')}]]",
        lambda: f"'''{words('kept')} ''{words('kept')}'''''",
        lambda: f"<span class=x>{inner()}</span>",
        lambda: f"<!-- {gone()} -->",
        lambda: f"<ref name={words('gone')}>{gone()}</ref>",
        lambda: "{{" + f"{words('gone')}|a={gone()}|" + "{{" + words("gone") + "}}}}",
        lambda: f"\n{{|\n|-\n| {words('gone')} || {words('gone')}\n|}}\n",
        lambda: f"[[File:{words('gone')}.jpg|thumb|{words('gone')} [[{words('gone')}]]]]",
        lambda: f"[http://example.org/{next(names)} {words('kept')}]",
        lambda: f"\n== {words('kept')} ==\n{words('kept')}\n",
        lambda: f"\n* {words('kept')}\n** {words('kept')}\n",
        lambda: (
            f"\n== See also ==\n{words('gone')}\n=== {words('gone')} ===\n{words('gone')}\n== {words('kept')} ==\nkept0"
        ),
    ]
    if depth == 0:
        return words("kept")
    return " ".join(rng.choice(kinds)() for _ in range(rng.randint(1, 4)))


def test_words_of_markup_made_at_random() -> None:
    for seed in range(120):
        wiki = wrapped(random.Random(seed), itertools.count(1))
        expected = ["kept0", *re.findall(r"kept\d+", wiki)]
        assert re.findall(r"(?:kept|gone)\d+", plain(f"kept0 {wiki}")) == expected, wiki


def test_text_without_markup_stays_as_it_is() -> None:
    text = "First paragraph, of words (and more): 3.5 %; a=b!\n\nSecond \u2013 with \u00abquotes\u00bb?\nThird line"
    assert plain(text) == text


@pytest.mark.parametrize(
    ("text", "title", "rule"),
    [
        ("#REDIRECT [[Other]]", "A", "redirects"),
        ("  # weiterleitung: [[Anderes]]", "A", "redirects"),
        ("#ПЕРЕНАПРАВЛЕНИЕ [[X]]", "A", "redirects"),
        ("'''A''' may be:\n* [[x]]\n{{disambiguation|geo}}", "A", "disambiguations"),
        ("'''A''' ist:\n* [[x]]\n{{Begriffsklärung}}", "A", "disambiguations"),
        ("* [[x]]\n{{Human name disambiguation}}", "A", "disambiguations"),
        ("* [[x]]", "A (disambiguation)", "disambiguations"),
        ("{{infobox|a=b}}\n[[Category:C]]", "A", "empty"),
        ("# item [[x]]\n{{disambiguation needed}} {{dablink}}", "A", None),
    ],
)
def test_pages_that_are_no_articles(text: str, title: str, rule: str | None) -> None:
    assert plain(text, title) == ("1. item x" if rule is None else f"<{rule}>")


def test_options_of_the_step() -> None:
    text = "A <math>x^2</math> b.\n== See also ==\n* [[C]]"
    assert plain(text) == "A $x^2$ b."
    assert plain(text, formulas=False) == "A b."
    assert plain(text, appendices=True) == "A $x^2$ b.\n\nSee also\n\n- C"
    assert plain(text, languages=["de", "EN"]) == "A $x^2$ b."
    assert plain("A '''b'''.", language="sr-ec", languages="sr") == "A b."
    assert plain(text, languages="de") == "<languages>"
    other = Document("1", "''x''", "web")
    assert through("mediawiki", other) == "''x''"
    assert through("mediawiki", other, always=True) == "x"


OPENINGS = ["{{", "{{a|", "{{{", "[[", "[[a|", "[http://a ", "<ref>", "<math>", "<!--", '<a b="', "<foo>", "\n*", "''"]


@pytest.mark.parametrize("opening", OPENINGS)
def test_markup_that_opens_and_never_closes(opening: str) -> None:
    """The parser alone takes minutes to hours for most of these."""
    assert plain(opening * 30_000 + "x") in ("<unclosed_markup>", "x", "- x")
    found = plain(f"One sentence.\n\n{opening}Another.")
    assert found.startswith("One sentence.")
    assert found.endswith("Another.")


@pytest.mark.parametrize("mark", [*'0?$%("+,.;=@^~', "\u4e2d"])
def test_a_sign_that_begins_no_tag_is_text(mark: str) -> None:
    """The parser takes it for a tag, and would scan to the end of the page for each."""
    text = f"a <{mark} b and x<{mark}y, "
    assert plain(text * 8_000).count(f"<{mark}") == 16_000


def test_a_line_with_many_ends_of_a_heading() -> None:
    """The parser crashed, and its process with it."""
    line = "== " * 107_000
    assert plain(f"One.\n== Two ==\nThree.\n{line}x\nFour.") == f"One.\n\nTwo\n\nThree.\n{line}x\nFour."


def test_private_characters_are_no_markup() -> None:
    assert plain("\ue0000\ue001 '''a''' \ue0005\ue001\n\ue002 b") == "\ue0000\ue001 a \ue0005\ue001\n b"


def test_a_page_at_which_the_parser_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    mwparserfromhell = pytest.importorskip("mwparserfromhell")

    def parse(text: str, **options: object) -> object:
        raise mwparserfromhell.parser.ParserError("no")

    monkeypatch.setattr(mwparserfromhell, "parse", parse)
    assert plain("text") == "<parser_failed>"


@pytest.mark.parametrize(("step", "library"), [("mediawiki", "mwparserfromhell"), ("stack_exchange", "resiliparse")])
def test_an_absent_library_is_told(monkeypatch: pytest.MonkeyPatch, step: str, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"Expected the library {library}, found no library .*; pip install"):
        Chain([(step, {})])


# ---- Dumps of Stack Exchange.
def row(number: int, kind: int, body: str, **fields: object) -> str:
    every = {"Id": number, "PostTypeId": kind, "Body": body, **fields}
    values = (f'{name}="{escape(str(value)).replace(chr(10), "&#xA;")}"' for name, value in every.items())
    return f"  <row {' '.join(values)} />"


ROWS = [
    row(1, 1, "<p>How &lt;b&gt;?</p>\n", Title="A < B & C?", Score=3, Tags="<a><b-c>", ContentLicense="CC BY-SA 3.0"),
    row(2, 1, "<p>Why?</p>", Title="Why", Score=-1, Tags="|x|y|", AnswerCount=0),
    row(3, 2, "<p>worst</p>", ParentId=1, Score=-2, ContentLicense="CC BY-SA 4.0"),
    row(4, 5, "<p>of a tag</p>"),
    row(6, 2, "<p>best, second</p>", ParentId=1, Score=7),
    row(5, 2, "<p>best, first</p>", ParentId=1, Score=7, ContentLicense="CC BY-SA 3.0"),
    row(1000000001, 1, "<p>no one asked</p>", Title="x"),
]


def posts(folder: Path, rows: list[str], name: str = "stats.stackexchange.com/Posts.xml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    content = '\ufeff<?xml version="1.0" encoding="utf-8"?>\r\n<posts>\r\n' + "\r\n".join([*rows, "</posts>"])
    compress = {".bz2": bz2.compress, ".gz": gzip.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(content.encode()))
    return path


FIRST = Document(
    id="stats.stackexchange.com:1",
    text="<h1>A &lt; B &amp; C?</h1>\n<p>How &lt;b&gt;?</p>\n"
    '\n<article data-score="7">\n<p>best, first</p></article>'
    '\n<article data-score="7">\n<p>best, second</p></article>'
    '\n<article data-score="-2">\n<p>worst</p></article>',
    source="stats.stackexchange.com",
    title="A < B & C?",
    metadata={
        "media_type": "text/x-stack-exchange",
        "site": "stats.stackexchange.com",
        "score": 3,
        "num_answers": 3,
        "tags": ["a", "b-c"],
        "licence": "CC BY-SA 3.0, CC BY-SA 4.0",
        "url": "https://stats.stackexchange.com/questions/1",
    },
)


@pytest.mark.parametrize(
    "name",
    [
        *("stats.stackexchange.com/Posts.xml", "stats.stackexchange.com/Posts.xml.bz2"),
        *("stats.stackexchange.com/posts.xml.gz", "stats.stackexchange.com-Posts.xml"),
    ],
)
def test_questions_with_their_answers(tmp_path: Path, name: str) -> None:
    documents, report = read(posts(tmp_path, ROWS, name))
    assert documents[0] == FIRST
    (second,) = documents[1:]
    assert (second.id, second.text) == ("stats.stackexchange.com:2", "<h1>Why</h1>\n<p>Why?</p>")
    assert [second.metadata.get(name) for name in ("score", "num_answers", "tags", "licence")] == [
        -1,
        0,
        ["x", "y"],
        None,
    ]
    assert report.num_problems == 0


def test_posts_are_sorted_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In many runs of a few posts, from any order of rows, the same documents as from one run."""
    rng = random.Random(5)
    rows = [row(10 * number, 1, f"question {number}", Title="T", Score=1) for number in range(1, 60)]
    answers = [
        row(10 * number + place, 2, f"answer {number} {place}", ParentId=10 * number, Score=rng.randint(-2, 2))
        for number in range(1, 60)
        for place in range(1, rng.randint(2, 9))
    ]
    rows += answers
    whole = read(posts(tmp_path, rows))[0]
    assert [document.id for document in whole] == [f"stats.stackexchange.com:{10 * number}" for number in range(1, 60)]
    assert sum(document.metadata["num_answers"] for document in whole) == len(answers)
    for document in whole:
        scores = [int(score) for score in re.findall(r'data-score="(-?\d)"', document.text)]
        assert scores == sorted(scores, reverse=True)
    monkeypatch.setattr(stack_exchange, "_RUN_BYTES", 3000)
    monkeypatch.setattr(stack_exchange, "_BLOCK_POSTS", 2)
    rng.shuffle(rows)
    assert read(posts(tmp_path, rows))[0] == whole


def test_broken_rows_are_counted_and_the_others_read(tmp_path: Path) -> None:
    broken = [
        row(20, 2, "lost", ParentId=99),
        '  <row Id="21" PostTypeId="1" Body="cut',
        row(22, 1, "&entity;").replace("&amp;", "&"),
        row(23, 2, "no parent"),
        row(24, 1, "s", Score="many"),
        '  <row PostTypeId="1" Body="no id" />',
        row(25, 1, "by\x03tes"),
        "  <comment />",
        row(26, 1, "f@ur"),
    ]
    path = posts(tmp_path, [*ROWS, *broken])
    path.write_bytes(path.read_bytes().replace(b"f@ur", b"f\xffur"))
    documents, report = read(path)
    assert [document.id.partition(":")[2] for document in documents] == ["1", "2"]
    assert (report.num_broken_records, report.num_invalid_utf8) == (8, 1)
    told = "\n".join(report.problems)
    assert "Posts.xml:10: answer 20 to question 99, which the file does not hold" in told
    for what in ("undefined entity", "without ParentId", "without Id", "with invalid numbers", "expected one row"):
        assert what in told


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: content[:-8], "is cut off: it has no </posts>"),
        (lambda content: content[:300], "is cut off: it has no </posts>"),
        (lambda content: content.replace(b"<posts>", LAUGHS.encode() + b"<posts>"), "one <row> a line within <posts>"),
        (lambda content: content.replace(b"\r\n", b" "), "one <row> a line within <posts>"),
        (lambda content: b"plain text\n" * 9, "one <row> a line within <posts>"),
        (lambda content: b"", "one <row> a line within <posts>"),
        (lambda content: b"<posts>\n</posts>", "Expected at least one document"),
    ],
)
def test_files_that_are_no_whole_posts(tmp_path: Path, change, sentence: str) -> None:
    path = posts(tmp_path, ROWS)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=sentence):
        read(path)


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dump(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stack_exchange.pickle, "dump", dump)
    with pytest.raises(UserError, match=r"Expected room for the posts .* set TMPDIR"):
        read(posts(tmp_path, ROWS))


# ---- Questions and answers to plain text.
HTML = """<p>How do I <code>x = 1</code>, see <a href="http://a">this</a> &amp; &lt;b&gt;?</p>
<pre class="lang-py"><code>def f(x):
    if x &lt; 3:

        return "  two"
</code></pre>
<ul><li>one</li><li>two</li></ul><script>bad()</script>"""
PLAIN = 'How do I x = 1, see this & <b>?\n\ndef f(x):\n    if x < 3:\n\n        return "  two"\n'


def asked(tmp_path: Path, *answers: tuple[int, str], score: int = 3, site: str = "superuser.com") -> Document:
    rows = [row(1, 1, HTML, Title="A <title>", Score=score)]
    rows += [row(2 + place, 2, body, ParentId=1, Score=of) for place, (of, body) in enumerate(answers)]
    return read(posts(tmp_path, rows, f"{site}/Posts.xml"))[0][0]


def test_html_is_removed_and_code_stays(tmp_path: Path) -> None:
    document = asked(tmp_path, (5, "<p>So:</p>\n</article></div><p>it is.</p>"), (1, "<p>No.</p>"))
    found = through("stack_exchange", document)
    assert found.startswith(f"Q: A <title>\n\n{PLAIN}")
    assert "- one\n" in found
    assert "bad" not in found
    assert re.search(r"two\n\nA: So:\n\nit is\.\n\nA: No\.$", found)


def test_an_answer_within_a_body_is_none(tmp_path: Path) -> None:
    forged = '<p>Well.</p>\n<article data-score="99">\n<p>forged</p></article>'
    document = asked(tmp_path, (5, forged), (-1, "<p>poor</p>"))
    options = {"thresholds": {"least_answer_score": 0}}
    (left,) = Chain([("stack_exchange", options)]).through([document])
    assert left.metadata["num_answers"] == 1
    assert left.text.count("\n\nA: ") == 1
    assert '<article data-score="99">' in left.text


def test_markup_of_posts_that_takes_too_long(tmp_path: Path) -> None:
    attributes = "".join(f" a{number}=1" for number in range(180_000))
    assert through("stack_exchange", asked(tmp_path, (5, f"<a{attributes}>x</a>"))) == "<most_attributes>"


def test_rules_of_questions(tmp_path: Path) -> None:
    document = asked(tmp_path, (5, "good"), (1, "poor"), score=2)
    for options, rule in (
        ({"thresholds": {"least_answers": 3}}, "least_answers"),
        ({"thresholds": {"least_answers": 2}}, None),
        ({"thresholds": {"least_answers": 2, "least_answer_score": 2}}, "least_answers"),
        ({"thresholds": {"least_score": 3}}, "least_score"),
        ({"thresholds": {"least_score": 2}}, None),
        ({"sites": ["stackoverflow.com", "math.stackexchange.com"]}, "sites"),
        ({"sites": "Superuser.com"}, None),
    ):
        found = through("stack_exchange", document, **options)
        assert found == f"<{rule}>" if rule else found.startswith("Q: "), options
    (left,) = Chain([("stack_exchange", {"thresholds": {"least_answer_score": 2}})]).through([document])
    assert left.metadata["num_answers"] == 1
    assert "poor" not in left.text
    small = asked(tmp_path, site="coffee.stackexchange.com")
    assert through("stack_exchange", small) == "<sites>"
    assert through("stack_exchange", small, sites=[]).startswith("Q: ")
    other = Document("1", "<p>x</p>", "web")
    assert through("stack_exchange", other) == "<p>x</p>"
    assert through("stack_exchange", other, sites=[], always=True) == "Q: x"


# ---- From the files to the dataset.
def test_recipes_prepare_dumps(tmp_path: Path) -> None:
    pages = [page(1, "One [[page]] of text."), page(2, "{{Begriffsklärung}}")]
    dump(tmp_path, pages, "dewiki-latest-pages-articles.xml.bz2")
    dump(tmp_path, [page(1, "Yksi")], "fiwiki-latest-pages-articles.xml", "<mediawiki xml:lang='fi'>")
    posts(tmp_path, ROWS, "superuser.com/Posts.xml")

    def prepare(files: str, recipe: str) -> list[tuple[str, str | None]]:
        out = tmp_path / recipe
        settings = ["--corpus.paths", f"{tmp_path}/{files}", "--preparation.recipe", recipe, "--out", str(out)]
        assert main(["prepare", *settings, "--quiet"]) == 0
        rows = pq.read_table(out / "preparation" / "decisions").to_pylist()
        return [(row["id"], row["rule"]) for row in rows]

    assert prepare("*wiki-*", "llama-wikipedia") == [
        *(("dewiki:1", None), ("dewiki:2", "disambiguations"), ("fiwiki:1", "languages"))
    ]
    stored = jd.open_dataset(tmp_path / "llama-wikipedia").documents.to_table().to_pylist()
    assert [(each["text"], each["language"]) for each in stored] == [("One page of text.", "de")]
    assert prepare("*/Posts.xml", "llama-stackexchange") == [("superuser.com:1", None), ("superuser.com:2", None)]


def test_parts_without_text_are_left_out() -> None:
    body = '<p><img src="a.png"></p>\n<article data-score="3">\n<p>Yes.</p>\n<article data-score="1">\n<p> </p>'
    document = Document("1", body, "se", "en", None, {"media_type": "text/x-stack-exchange"})
    assert through("stack_exchange", document, sites=[]) == "A: Yes."
