"""Web pages: crawls and HTML files are read, whatever is in them; their text, their addresses and lines."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Here
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.readers import compression, web
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.preparation.steps.addresses import Addresses
from jax_diversity.preparation.steps.base import Candidate
from jax_diversity.schema import Document
from tests.support.web_records import compressed, record

PAGE = """<html><head><title>Tea &amp; coffee</title></head><body>
<nav><a href="/">Home</a> <a href="/shop">Shop</a> <a href="/about">About us</a></nav>
<article><h1>Tea and coffee</h1>
<p>Tea is made of leaves that were dried, and coffee of beans that were roasted. Both hold caffeine.</p>
<p>Water for green tea should not boil. It takes two or three minutes, and longer where it is cooler.</p>
<p>Coffee is ground before it is brewed: finely for an espresso, and more coarsely for a filter.</p></article>
<footer>All rights reserved. Sign in. 3 likes</footer></body></html>"""


def read(path: Path, **options: object) -> tuple[list[Document], ReadReport]:
    report = ReadReport()
    return list(read_documents(CorpusConfig(paths=(str(path),), **options), report)), report  # type: ignore[arg-type]


def chunked(body: bytes) -> bytes:
    return b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# ---- Crawls.
def test_a_crawl_gives_its_pages(tmp_path: Path) -> None:
    records = [
        record(0, b"software: x", "application/warc-fields", "warcinfo"),
        record(1, PAGE.encode()),
        record(2, b"GET / HTTP/1.1", "application/http", "request"),
        record(3, b"\x89PNG", "image/png"),
        record(4, "Grüße".encode("latin-1"), "text/plain; charset=ISO-8859-1"),
        record(5, b"plain text of a WET file", "text/plain", "conversion"),
    ]
    for name, content in (
        ("crawl.warc.gz", b"".join(records)),
        ("crawl.warc", b"".join(map(gzip.decompress, records))),
    ):
        documents, report = read(written(tmp_path / name, content))
        assert [document.id for document in documents] == ["1", "4", "5"]
        assert documents[0].text == PAGE
        assert documents[0].title == "Tea & coffee"
        assert documents[0].source == "crawl"
        assert documents[0].metadata == {
            "url": "http://example.org/1",
            "date": "2024-05-01T00:00:00Z",
            "media_type": "text/html",
        }
        assert documents[1].text == "Grüße"
        assert report.num_problems == 0


def test_other_answers_are_no_pages(tmp_path: Path) -> None:
    moved = record(1, b"x").replace(b"x", b"x")
    moved = compressed(gzip.decompress(moved).replace(b"200 OK", b"301 No"))
    documents, _ = read(written(tmp_path / "a.warc.gz", moved + record(2, b"page", "TEXT/HTML ; charset=utf-8")))
    assert [document.id for document in documents] == ["2"]


@pytest.mark.parametrize("cut", [1, 30, 150])
def test_what_was_read_before_a_cut_is_kept(cut: int, tmp_path: Path) -> None:
    content = b"".join(record(number, PAGE.encode()) for number in range(5))
    documents, report = read(written(tmp_path / "a.warc.gz", content[:-cut]))
    # Only the trailer of gzip may be gone: then the page itself is whole.
    assert [document.id for document in documents] == ["0", "1", "2", "3", "4"][: len(documents)]
    assert len(documents) >= 4
    assert report.num_broken_records == 1
    assert "cut off or damaged here" in report.problems[0]
    plain = gzip.decompress(content)
    documents, report = read(written(tmp_path / "a.warc", plain[: -cut - 10]))
    assert len(documents) == 4
    assert "it ends within a record" in report.problems[0]
    with pytest.raises(UserError, match="correct the record"):
        read(tmp_path / "a.warc", strict=True)


def test_damage_in_the_middle(tmp_path: Path) -> None:
    first, second = record(1, PAGE.encode()), bytearray(record(2, PAGE.encode()))
    second[200:210] = bytes(10)
    documents, report = read(written(tmp_path / "a.warc.gz", first + bytes(second) + record(3, PAGE.encode())))
    assert [document.id for document in documents] == ["1", "3"]  # no text of the damaged member
    assert report.problems == ["a.warc.gz: a damaged member of gzip was left out"]
    # Bytes between two records, and a record that does not say its length, cost only themselves.
    plain = [gzip.decompress(record(number, b"page")) for number in range(3)]
    for written_as in (b"Content-Longth: ", b"Content-Length: " + b"9" * 5000):
        broken = plain[1].replace(b"Content-Length: ", written_as)
        documents, report = read(written(tmp_path / "b.warc", plain[0] + b"noise\nmore noise\n" + broken + plain[2]))
        assert [document.id for document in documents] == ["0", "2"]
        assert report.num_broken_records >= 2


@pytest.mark.parametrize("content", [b"no crawl\n" * 50, compressed(b"no crawl\n" * 50), b"", b"WARC"])
def test_a_file_that_is_no_crawl(content: bytes, tmp_path: Path) -> None:
    for name in ("a.warc", "a.warc.gz"):
        with pytest.raises(UserError, match=r"a\.warc"):
            read(written(tmp_path / name, content))


def test_a_record_that_grows_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MAX_PAGE_BYTES", 100_000)
    bomb = record(1, b"a" * 2_000_000)
    inner = record(2, compressed(b"b" * 2_000_000), more="Content-Encoding: gzip\r\n")
    documents, report = read(written(tmp_path / "a.warc.gz", bomb + inner + record(3, b"a page")))
    assert [document.id for document in documents] == ["3"]
    assert report.num_broken_records == 2
    assert all("more than 100000" in problem for problem in report.problems)
    with pytest.raises(UserError, match="more than 100000 bytes"):
        read(written(tmp_path / "large.html", b"<p>" * 50_000))


@pytest.mark.parametrize("damaged", [(0,), (0, 1), (2, 5), (9,), tuple(range(10))])
@pytest.mark.parametrize("change", ["bytes", "checksum", "cut"])
def test_damaged_members_are_left_out(
    damaged: tuple[int, ...], change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [record(number, PAGE.encode() + os.urandom(3000).hex().encode()) for number in range(10)]
    for number in damaged:
        if change == "bytes":
            members[number] = members[number][:300] + bytes(20) + members[number][320:]
        elif change == "checksum":
            members[number] = members[number][:-6] + b"\0\0" + members[number][-4:]
        else:
            members[number] = members[number][:-900]
    path = written(tmp_path / "a.warc.gz", b"".join(members))
    whole = [str(number) for number in range(10) if number not in damaged]
    if not whole or (change == "cut" and damaged[-1] == 9):
        return
    documents, report = read(path)
    assert [document.id for document in documents] == whole
    assert report.num_broken_records >= 1
    # A member that is too long to be held is given before its end: the rest of the file is then left out.
    monkeypatch.setattr(compression, "_LONGEST_HELD", 100)
    try:
        documents, report = read(path)
    except UserError:
        return
    assert {document.id for document in documents} <= {str(number) for number in range(10)}
    assert report.num_broken_records >= 1


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (compressed(PAGE.encode()), "Content-Encoding: gzip\r\n"),
        (zlib.compress(PAGE.encode()), "Content-Encoding: deflate\r\n"),
        (zlib.compress(PAGE.encode())[2:-4], "Content-Encoding: deflate\r\n"),
        (pa.compress(PAGE.encode(), "brotli", asbytes=True), "Content-Encoding: br\r\n"),
        (pa.compress(PAGE.encode(), "zstd", asbytes=True), "Content-Encoding: zstd\r\n"),
        (compressed(compressed(PAGE.encode())), "Content-Encoding: gzip, gzip\r\n"),
        (compressed(PAGE.encode()), "Content-Encoding: identity, X-Gzip\r\n"),
        (compressed(PAGE[:99].encode()) + compressed(PAGE[99:].encode()), "Content-Encoding: gzip\r\n"),
        (compressed(PAGE.encode()), ""),  # the crawler has lost the header
        (chunked(compressed(PAGE.encode())), "Transfer-Encoding: gzip, chunked\r\n"),
        (PAGE.encode(), "Content-Encoding: gzip\r\n"),  # the crawler has left the header
        (b"5\r\n<html\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(PAGE) - 5, PAGE[5:].encode()), "Transfer-Encoding: chunked\r\n"),
        (PAGE.encode(), "Transfer-Encoding: chunked\r\n"),
    ],
)
def test_pages_as_servers_send_them(body: bytes, headers: str, tmp_path: Path) -> None:
    documents, _ = read(written(tmp_path / "a.warc.gz", record(1, body, more=headers)))
    assert documents[0].text == PAGE


def test_a_page_without_its_end_says_so(tmp_path: Path) -> None:
    cut = record(1, compressed(PAGE.encode())[:-150], more="Content-Encoding: gzip\r\n")
    said = gzip.decompress(record(2, PAGE.encode())).replace(b"WARC-Type", b"WARC-Truncated: length\r\nWARC-Type", 1)
    (one, two, three), _ = read(written(tmp_path / "a.warc.gz", cut + compressed(said) + record(3, PAGE.encode())))
    assert PAGE.startswith(one.text)
    assert [each.metadata.get("truncated") for each in (one, two, three)] == ["compression", "length", None]


def test_a_file_of_one_damaged_member_keeps_what_was_read(tmp_path: Path) -> None:
    pages = [gzip.decompress(record(number, PAGE.encode() + os.urandom(3000).hex().encode())) for number in range(4)]
    whole = gzip.compress(b"".join(pages))
    damaged = whole[:-900] + bytes(20) + whole[-880:]
    documents, report = read(written(tmp_path / "a.warc.gz", damaged))
    assert [document.id for document in documents[:2]] == ["0", "1"]
    assert report.num_problems


def test_zero_bytes_between_members_are_padding(tmp_path: Path) -> None:
    members = [record(number, PAGE.encode()) for number in range(3)]
    content = members[0] + bytes(20_000) + members[1] + bytes(9) + members[2] + bytes(70_000)
    documents, report = read(written(tmp_path / "a.warc.gz", content))
    assert [document.id for document in documents] == ["0", "1", "2"]
    assert not report.num_problems


def test_a_body_with_a_damaged_later_member_keeps_its_beginning(tmp_path: Path) -> None:
    body = compressed(PAGE.encode()) + b"\x1f\x8bjunk"
    documents, _ = read(written(tmp_path / "a.warc.gz", record(1, body, more="Content-Encoding: gzip\r\n")))
    assert [(document.text, document.metadata["truncated"]) for document in documents] == [(PAGE, "compression")]


def test_binary_data_called_a_page(tmp_path: Path) -> None:
    _, report = read(written(tmp_path / "a.warc.gz", record(1, bytes(range(1, 256)) * 9) + record(2, PAGE.encode())))
    assert report.problems == ["a.warc.gz:1: binary data, not text"]


def test_compressions_that_are_not_known(tmp_path: Path) -> None:
    content = record(1, b"\0\1\2", more="Content-Encoding: compress\r\n") + record(
        2, b"\0\1", more="Content-Encoding: gzip\r\n"
    )
    content += record(4, b"\0\1", more="Content-Encoding: br\r\n")
    documents, report = read(written(tmp_path / "a.warc.gz", content + record(3, b"page")))
    assert len(documents) == 1
    assert "not compressed by br" in report.problems[2]
    assert "compressed by 'compress'" in report.problems[0]
    assert "not compressed by gzip" in report.problems[1]


# ---- The text of pages.
def documents_of(*texts: str, **metadata: str) -> list[Document]:
    return [
        Document(str(index), text, "web", metadata={"media_type": "text/html"} | metadata)
        for index, text in enumerate(texts)
    ]


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_text_is_taken_out(extractor: str) -> None:
    chain = Chain([("html", {"extractor": extractor})])
    (left,) = chain.through(documents_of(PAGE, "<html><body><script>1</script></body></html>"))
    assert "Water for green tea should not boil." in left.text
    assert "<p>" not in left.text
    assert "Shop" not in left.text
    assert chain.funnel()[0]["removed"] == {"characters_found": 1}


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_broken_pages_do_no_harm(extractor: str) -> None:
    pages = [
        PAGE[:300],
        PAGE.replace("</p>", ""),
        "<div>" * 5000 + "a text that is nested deeply" + "</div>" * 5000,
        "<" * 3000,
        "<p>" + "word " * 20 + "<![CDATA[ <!-- </p>",
        "no page at all, but a text",
        "<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'cccc'>]><html><p>&b;&b;</p></html>",
        "\x01\x02" * 50,
        "<html><frameset></html>",
    ]
    chain = Chain([("html", {"extractor": extractor})], Here())
    left = list(chain.through(documents_of(*pages)))
    (funnel,) = chain.funnel()
    assert funnel["documents_in"] == len(pages) == len(left) + sum(funnel["removed"].values())


def test_only_pages_are_taken_apart() -> None:
    text = "a < b and b > c, says a <p>plain</p> text"
    (left,) = Chain([("html", {})]).through([Document("a", text, "notes")])
    assert left.text == text
    (left,) = Chain([("html", {"always": True})]).through([Document("a", PAGE, "field of JSON")])
    assert "<p>" not in left.text


@pytest.mark.parametrize(("number", "is_large"), [(10_000, False), (10_001, True)])
def test_one_extractor_reads_a_page_of_many_elements(
    number: int, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trafilatura = pytest.importorskip("trafilatura")
    given: list[bool] = []
    monkeypatch.setattr(trafilatura, "extract", lambda page, *, fast, **options: given.append(fast) or "a text")
    document = Document("a", "<li>a</li>" * number, "web", metadata={"media_type": "text/html"})
    assert [each.text for each in Chain([("html", {})], Here()).through([document])] == ["a text"]
    assert given == [is_large]


def test_pages_too_large_to_take_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax_diversity.preparation.steps.html._MOST_CHARACTERS", 500)
    chain = Chain([("html", {"extractor": "resiliparse"})])
    assert len(list(chain.through(documents_of(PAGE, "<p>A text that is short enough for this.</p>")))) == 1
    assert chain.funnel()[0]["removed"] == {"most_characters": 1}
    with pytest.raises(UserError, match="'extractor' to be one of trafilatura, resiliparse"):
        Chain([("html", {"extractor": "regex"})])


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_markup_that_takes_too_long(extractor: str) -> None:
    """The libraries take quadratic time for it, in which no signal reaches Python."""
    attributes = "".join(f" a{number}='>'" for number in range(150_000))
    lists = "<ol><li>a" * 3_000
    pages = [f"<p>a</p><a{attributes}>", "<DIV>" * 30_000, "<div class=a>" * 30_000 + "</div>" * 30_000, lists]
    chain = Chain([("html", {"extractor": extractor})])
    many = "<div><p a=1 b='2' c>" + "A text of several words. " * 20 + "</p><ul><li>a</ul></div>"
    assert len(list(chain.through(documents_of(many * 2000, *pages)))) == 1
    assert chain.funnel()[0]["removed"] == {"most_attributes": 1, "most_levels": 3}


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_soft_hyphens_are_not_part_of_words(extractor: str) -> None:
    page = PAGE.replace(
        "</article>", "<p>The Donau\u00addampf&shy;schiff leaves the harbour at noon, as it always does.</p></article>"
    )
    (document,) = Chain([("html", {"extractor": extractor})]).through(documents_of(page))
    assert "Donaudampfschiff" in document.text


@pytest.mark.parametrize("more", [-9, -1, 1, 5, 8, 40])
@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
def test_a_wrong_content_length_changes_no_page(tmp_path: Path, more: int, line_end: bytes) -> None:
    """The page ends where the next record begins. A record whose head is in the page before is counted."""

    def stored(number: int, more: int) -> bytes:
        block = b"HTTP/1.1 200 OK\nContent-Type: text/html\n\n<p>Words of page %d.</p>" % number
        head = b"WARC/1.0\nWARC-Type: response\nWARC-Target-URI: http://e.org/%d\n" % number
        block = block.replace(b"\n", line_end)
        head += b"Content-Type: application/http\nContent-Length: %d\n\n" % (len(block) + more)
        return head.replace(b"\n", line_end) + block + line_end * 2

    (tmp_path / "a.warc").write_bytes(stored(0, 0) + stored(1, more) + stored(2, 0) + stored(3, 0))
    documents, report = read(tmp_path / "a.warc")
    texts = [document.text.strip() for document in documents]
    assert texts == [f"<p>Words of page {number}.</p>" for number in range(4) if number != 2 or len(texts) == 4]
    assert len(texts) + report.num_problems >= 4
    if more < 0:
        assert report.problems == ["a.warc:3: a WARC record with a wrong Content-Length"]


# ---- Addresses.
@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("https://en.wikipedia.org/wiki/Tea", "left_out"),
        ("arxiv.org/abs/2306.01116", "left_out"),
        ("https://notwikipedia.org/wiki", None),
        ("http://www.bad.example/page", "blocked"),
        ("http://sub.bad.example", "blocked"),
        ("http://notbad.example", None),
        ("http://good.example/shop/tea?x=1", "blocked"),
        ("http://good.example/shopping", None),
        ("http://freeporntube.example/", "strong_words"),
        ("http://x.example/xxx/1", "strong_words"),
        ("http://health.example/sex-education-for-parents", None),
        ("http://clinic.example/breast-cancer", None),
        ("http://x.example/hot-casino-poker", "weak_words"),
        ("http://sussex.example/essex/hotel", None),
        ("http://[broken", None),
        ("", None),
    ],
)
def test_addresses(url: str, rule: str | None, tmp_path: Path) -> None:
    blocked = written(
        tmp_path / "list.txt.gz", compressed(b"# bad ones\nbad.example\n\nhttp://www.good.example/shop/\n")
    )
    chain = Chain([("addresses", {"blocked": str(blocked)})])
    list(chain.through(documents_of("text", url=url)))
    assert chain.funnel()[0]["removed"] == ({rule: 1} if rule else {})


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        (f"http://{'a.' * 32_768}bad.example/", "blocked"),
        (f"http://{'a.' * 32_768}org/", None),
        (f"http://good.example{'/a' * 32_768}", None),
        (f"http://good.example/shop{'/a' * 32_768}", "blocked"),
    ],
)
def test_long_addresses_take_little_memory(url: str, rule: str | None, tmp_path: Path) -> None:
    blocked = written(tmp_path / "list.txt", b"bad.example\ngood.example/shop\n")
    step = Addresses((str(blocked),), ())
    (document,) = documents_of("text", url=url)
    tracemalloc.start()
    removed = [each.rule for each in step.judge(Candidate(document, None)) if not each.passes]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert removed == ([rule] if rule else [])
    assert peak < 20 * 2**20  # all domains, or all folders, of 64 KB are 1 GB


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "found none"),
        (b"", "found none"),
        (b"# nothing\n", "found none"),
        (b"one.example\ntwo words\n", "'two words' in line 2"),
        (b"\xff\xfe\n", ""),
    ],
)
def test_lists_that_are_none(content: bytes | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"(?s)(?=.*list\.txt)(?=.*{sentence})"):
        Chain([("addresses", {"blocked": str(path)})])


def test_a_changed_list_runs_again(tmp_path: Path) -> None:
    path = written(tmp_path / "list.txt", b"a.example\n")
    first = Addresses((str(path),)).identity()
    path.write_bytes(b"b.example\n")
    assert Addresses((str(path),)).identity() != first
    assert Addresses().identity() == []


# ---- Lines.
PROSE = "A line of prose that has more than a few words in it, and that goes on for a while."


@pytest.mark.parametrize(
    "line",
    [
        "12",
        "1,234 - 56",
        "Home",
        "SIGN UP FOR OUR NEWSLETTER TODAY",
        "3 likes",
        "1.2k followers",
        "2 days ago",
        "Sign in",
        "2 items in cart",
        "5 minute read",
        "Read more",
    ],
)
def test_lines_that_are_no_text_go(line: str) -> None:
    text = "\n".join([*[PROSE] * 6, "", line, "", *[PROSE] * 6])
    chain = Chain([("line_corrections", {})])
    (left,) = chain.through([Document("a", text, "web")])
    assert left.text == "\n".join([*[PROSE] * 6, "", *[PROSE] * 6])
    assert chain.funnel()[0]["found"] == {"lines": 1}
    chain = Chain([("line_corrections", {})])
    assert not list(chain.through([Document("a", f"{PROSE}\n{line}\n{line}", "web")]))
    assert chain.funnel()[0]["removed"] == {"edited_words": 1}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Log out of your account", "of your account"),
        ("The whole story in one place: read more...", "The whole story in one place:"),
        ("You have 2 items in cart now", "You have 2  now"),
    ],
)
def test_words_of_buttons_are_cut_out_of_short_lines(line: str, expected: str) -> None:
    text = "\n".join([*[PROSE] * 12, line])
    chain = Chain([("line_corrections", {})])
    (left,) = chain.through([Document("a", text, "web")])
    assert left.text.split("\n")[-1] == expected
    assert chain.funnel()[0]["found"] == {"lines": 1}


@pytest.mark.parametrize(
    "line",
    [
        PROSE,
        "In 1984 he wrote 3 books.",
        "NASA and ESA agreed on it.",
        "He liked it, and 3 likes are few for so good a book.",
        "The register of voters is long and nobody reads it, as people say, to its very end.",
        "",
        "茶は葉から 作られます",
    ],
)
def test_lines_of_text_stay(line: str) -> None:
    text = "\n".join([PROSE, line, PROSE])
    (left,) = Chain([("line_corrections", {})]).through([Document("a", text, "web")])
    assert left.text == text
