"""Web pages: archives of crawls (WARC) and HTML files. Pages stay unchanged; a step extracts the text.

A WARC file (ISO 28500) is a sequence of records: header lines, an empty line, and a block of Content-Length bytes. The
block of a `response` is a server's HTTP answer. We read the records here and do not use FastWARC, because it does not
detect a truncated file.
"""

from __future__ import annotations

import io
import lzma
import re
import zlib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from jax_diversity.foundation.checks import number_in_data
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.progress import Advance
from jax_diversity.foundation.text.entities import unescaped
from jax_diversity.foundation.text.languages import main_language
from jax_diversity.preparation.readers.compression import GzipMembers, PieceStream
from jax_diversity.preparation.readers.decoding import decoded, undecodable
from jax_diversity.preparation.readers.files import InputFile
from jax_diversity.preparation.readers.records import Found, Place, Problem, converted
from jax_diversity.schema import Document

MAX_PAGE_BYTES = 100 * 2**20
"""Maximum size of a page. Without a limit, a small record could be decompressed to any size."""
_MAX_HEADERS = 1000
_LONGEST_LINE = 2**16
_PIECE_BYTES = 2**20
_HTML = ("text/html", "application/xhtml+xml")
_CHARSET = re.compile(
    r"""(?:charset|\A\s*+<\?xml\s[^<>]{0,200}?encoding)\s*+=\s*+["']?\s*+([\w.:+-]+)""", re.IGNORECASE
)
_DECLARED_IN = 2048
"""Number of bytes in which we search for a page's encoding. HTML requires it within the first 1,024 bytes."""
_TITLE = re.compile(r"<title\b", re.IGNORECASE)
_TITLE_END = re.compile("</title", re.IGNORECASE)
_TITLE_IN = 2**16
_GZIP = b"\x1f\x8b"
_CUT_OFF = (EOFError, zlib.error, lzma.LZMAError, pa.ArrowException, OSError)


class _Record(NamedTuple):
    """A record's headers, by their names in lower case, and its block."""

    headers: Mapping[str, str]
    block: bytes


def read_warc(file: InputFile, advance: Advance) -> Found:
    """Read the HTML pages and plain texts among the responses of a crawl, and the texts of a WET file.

    Other kinds of records, other statuses than 200 and other types are left out. A record that is broken or too long is
    a `Problem`. Damaged members of gzip are left out and counted. The place where a file is truncated, or otherwise
    damaged, is also a `Problem`; documents before this place are kept.

    Raises:
        UserError: the file has no record.
    """
    number = num_pages = num_metadata = 0
    with file.stream(advance, by_member=True) as content:
        pieces = _Decompressed(content)
        try:
            for record in _records(io.BufferedReader(pieces, _PIECE_BYTES)):
                number += 1
                document = record if isinstance(record, Problem) else converted(_document, record, Place(file, number))
                num_metadata += isinstance(record, _Record) and _is_wat(record)
                if document is not None:
                    num_pages += 1
                    yield Place(file, number), document
            for _ in range(content.raw.num_damaged if isinstance(content.raw, GzipMembers) else 0):
                yield Place(file, None), Problem("num_broken_records", "a damaged member of gzip was left out")
            if pieces.fault is not None:
                raise pieces.fault
        except _CUT_OFF as error:
            if not number:
                raise
            reason = f"the file is cut off or damaged here ({in_one_line(error)})"
            yield Place(file, number + 1), Problem("num_broken_records", reason)
    if num_metadata and not num_pages:
        raise UserError(
            f"Expected pages in {file.address}, found only metadata of pages (a WAT file); name .warc.gz or .wet.gz "
            "files of the crawl."
        )
    if not number:
        raise UserError(
            f"Expected WARC records in {file.address}, found none; fetch it again, or set corpus.format to its format."
        )


def _is_wat(record: _Record) -> bool:
    headers = record.headers
    return headers.get("warc-type") == "metadata" and headers.get("content-type", "").startswith("application/json")


_ENDS = (b"", b"\r", b"\n", b"W")
"""What follows a record: nothing, an empty line, or another record."""
_NEXT_RECORD, _LONGEST_MARK = re.compile(rb"\r?\n\r?\nWARC/[01]\.\d"), 12


class _Decompressed(PieceStream):
    """The decompressed bytes of a file. The exception of a damaged file is stored in `fault`.

    If it were raised at once, a buffer would lose the content before the fault.
    """

    def __init__(self, content: io.BufferedReader) -> None:
        super().__init__(self._read(content))
        self.fault: Exception | None = None

    def _read(self, content: io.BufferedReader) -> Iterator[bytes]:
        try:
            while piece := content.read1(_PIECE_BYTES):
                yield piece
        except _CUT_OFF as fault:
            self.fault = fault


def read_html(file: InputFile, advance: Advance) -> Found:
    """Read the file as one page."""
    place = Place(file, None)
    with file.stream(advance) as content:
        whole = content.read(MAX_PAGE_BYTES + 1)
    if len(whole) > MAX_PAGE_BYTES:
        yield place, Problem("num_broken_records", f"a page of more than {MAX_PAGE_BYTES} bytes")
        return
    yield place, converted(_page, whole, place)


def _page(whole: bytes, place: Place) -> Document | Problem:
    text = decoded(whole, declared_encoding(whole))
    return undecodable(text) or Document(
        place.name, text, place.file.folder, title=title_of(text), metadata={"media_type": _HTML[0]}
    )


def _records(content: io.BufferedReader) -> Iterator[_Record | Problem]:
    """Yield the records of a file. After a broken record we search for the next record."""
    was_found, following = False, b""  # the first line of a record that was read already
    while line := following or content.readline(_LONGEST_LINE):
        following = b""
        if not line.strip():
            continue
        if not line.startswith(b"WARC/"):
            # We report only the first line between two records. Before the first record we report nothing: if there is
            # no record at all, the file is not a WARC file.
            if line.startswith(b"filedesc://"):
                raise UserError(
                    "Expected WARC records, found the older format ARC; convert the file with `warcio recompress`."
                )
            if was_found:
                yield Problem("num_broken_records", "expected a WARC record, found other bytes")
                was_found = False
            continue
        headers = _headers(content)
        length = number_in_data(headers.get("content-length", ""))
        if length is None or length < 0:
            yield Problem("num_broken_records", "a WARC record without Content-Length")
            continue
        if length > MAX_PAGE_BYTES:
            _skip(content, length)
            yield Problem("num_broken_records", f"a record of {length} bytes, more than {MAX_PAGE_BYTES}")
            continue
        block = content.read(length)
        if len(block) < length:
            raise EOFError("it ends within a record")
        was_found = True
        if content.peek(1)[:1] in _ENDS:
            yield _Record(headers, block)
            continue
        # Content-Length is wrong. The record ends where another one begins: in the block, or after it.
        rest, following = _rest(content)
        within = _NEXT_RECORD.search(block + rest[:_LONGEST_MARK])
        yield _Record(headers, block[: within.start()] if within else (block + rest.rstrip())[:MAX_PAGE_BYTES])
        yield Problem("num_broken_records", "a WARC record with a wrong Content-Length")


def _rest(content: io.BufferedReader) -> tuple[bytes, bytes]:
    """Return the lines before the next record, at most `MAX_PAGE_BYTES`, and the first line of this record."""
    lines, size = list[bytes](), 0
    while (line := content.readline(_LONGEST_LINE)) and not line.startswith(b"WARC/"):
        size += len(line)
        lines += [line] if size <= MAX_PAGE_BYTES else []
    return b"".join(lines), line


def _headers(content: io.BufferedReader | io.BytesIO) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(_MAX_HEADERS):
        line = content.readline(_LONGEST_LINE)
        if not line.strip():
            break
        name, _, value = line.decode("utf-8", "replace").partition(":")
        headers.setdefault(name.strip().lower(), value.strip())
    return headers


def _skip(content: io.BufferedReader, length: int) -> None:
    while length > 0:
        piece = content.read(min(length, _PIECE_BYTES))
        if not piece:
            raise EOFError("it ends within a record")
        length -= len(piece)


def _document(record: _Record, place: Place) -> Document | Problem | None:
    headers, block = record.headers, io.BytesIO(record.block)
    kind = headers.get("warc-type")
    if kind == "response" and headers.get("content-type", "").startswith("application/http"):
        status = block.readline(_LONGEST_LINE).split()
        if len(status) < 2 or status[1] != b"200":
            return None
        http = _headers(block)
    elif kind in ("conversion", "resource"):
        http = {"content-type": headers.get("content-type", "")}
    else:
        return None
    media_type = http.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (*_HTML, "text/plain"):
        return None
    try:
        body, is_cut = _decompressed(block.read(), http)
    except ValueError as error:
        return Problem("num_broken_records", str(error))
    declared = _CHARSET.search(http["content-type"])
    text = decoded(body, declared[1] if declared else declared_encoding(body))
    if problem := undecodable(text):
        return problem
    url, date = headers.get("warc-target-uri", "").strip("<>"), headers.get("warc-date", "")
    id = headers.get("warc-record-id", "").strip("<>").removeprefix("urn:uuid:") or place.name
    title = title_of(text) if media_type in _HTML else None
    metadata = {"url": url, "date": date, "media_type": media_type}
    if truncated := headers.get("warc-truncated") or ("compression" if is_cut else ""):
        metadata["truncated"] = truncated
    language = None
    if languages := headers.get("warc-identified-content-language", ""):  # such as `eng,deu`, the main one first
        language = main_language(languages.partition(",")[0].strip()) or None
        metadata["languages"] = languages
    return Document(id, text, place.file.source, language, title, metadata)


def _decompressed(body: bytes, headers: Mapping[str, str]) -> tuple[bytes, bool]:
    """Return the body as it was before chunking and compression by the server, and whether its end is missing.

    Common Crawl and other crawls already store this body and rename the headers. A damaged body is a ValueError.
    """
    codings = [headers.get(name, "").lower().split(",") for name in ("content-encoding", "transfer-encoding")]
    names = [name.strip() for name in chain(*codings)]
    if "chunked" in names:
        body = _joined(body)
    names = [name for name in names if name not in ("", "chunked", "identity")]
    if not names and body.startswith(_GZIP):  # a header is missing
        names = ["gzip"]
    is_cut = False
    for name in reversed(names):
        if body.lstrip()[:1] == b"<":  # the crawler may have decoded it and kept the header
            break
        body, is_short = _plain(body, name)
        is_cut |= is_short
    return body, is_cut


def _plain(body: bytes, encoding: str) -> tuple[bytes, bool]:
    """Return a decompressed body, and whether its end is missing."""
    if encoding in ("br", "zstd"):
        kind = "brotli" if encoding == "br" else "zstd"
        try:
            with pa.CompressedInputStream(pa.BufferReader(body), kind) as content:
                text = content.read(MAX_PAGE_BYTES + 1)
        except (pa.ArrowException, OSError):
            raise ValueError(f"a page that is not compressed by {encoding}, as its header says") from None
        if len(text) > MAX_PAGE_BYTES:
            raise ValueError(f"a page of more than {MAX_PAGE_BYTES} bytes")
        return text, False
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"a page compressed by {encoding!r}, which is not known here")
    for window in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):  # with a header of gzip or zlib, or without one
        text, rest, is_cut = b"", body, False
        try:
            while rest and (not text or rest.startswith(_GZIP)):  # gzip may have several members
                stream = zlib.decompressobj(window)
                text += stream.decompress(rest, MAX_PAGE_BYTES + 1 - len(text))
                if len(text) > MAX_PAGE_BYTES or stream.unconsumed_tail:
                    raise ValueError(f"a page of more than {MAX_PAGE_BYTES} bytes")
                rest, is_cut = stream.unused_data, not stream.eof
        except zlib.error:
            if text:  # a later member is damaged
                return text, True
            continue
        if text or not body:
            return text, is_cut
    raise ValueError(f"a page that is not compressed by {encoding}, as its header says")


def _joined(body: bytes) -> bytes:
    """Join the pieces of a chunked body; a body that is not chunked is returned unchanged."""
    pieces, rest = [], io.BytesIO(body)
    while True:
        size = rest.readline(_LONGEST_LINE).partition(b";")[0].strip()
        if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", size) or not int(size, 16):
            return b"".join(pieces) if pieces or size == b"0" else body
        pieces.append(rest.read(int(size, 16)))
        rest.readline(_LONGEST_LINE)


def declared_encoding(page: bytes) -> str | None:
    """Return the label that a page gives for its encoding, in its first bytes or its XML declaration."""
    match = _CHARSET.search(page[:_DECLARED_IN].decode("ascii", "replace"))
    return match[1] if match else None


def title_of(text: str) -> str | None:
    """Return the title of a page in one line; None if it has no title.

    We search only for the first title: if it has no end, no later title has an end.
    """
    tag = _TITLE.search(text, 0, _TITLE_IN)
    start = text.find(">", tag.end(), _TITLE_IN) + 1 if tag else 0
    end = _TITLE_END.search(text, start, _TITLE_IN) if start else None
    return " ".join(unescaped(text[start : end.start()]).split())[:1000] or None if end else None
