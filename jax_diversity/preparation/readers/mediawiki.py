"""Dumps of MediaWiki: XML with one page after another, read page by page.

Each page is cut out at its tags and parsed separately. So only one page is in memory, and a broken page does not affect
later pages. Wiki text is escaped in a dump, so it never contains these tags. Entities cannot expand: only the text
before the first page could declare them, and a document type in this text is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

from jax_diversity.foundation.checks import number_in_data
from jax_diversity.foundation.errors import UserError, in_one_line, quoted
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.files import MAX_DOCUMENT_BYTES, InputFile
from jax_diversity.preparation.readers.records import Found, Place, Problem, converted
from jax_diversity.schema import Document

_PIECE_BYTES = 1 << 20
_BEGIN, _END = b"<page>", b"</page>"
_ROOT = re.compile(r"\s*+(?:<\?xml[^>]*>)?\s*+<mediawiki[\s>]")
# The lookaheads accept only words, and only addresses without spaces. `.*` is greedy, so that the second match ends at
# the last `/` or `title=`.
_OF_DATABASE = re.compile(r"(?=\w+\Z)([a-z]{2,3}(?:_[a-z_]+)?)wik\w")
_BEFORE_TITLE = re.compile(r"(?=\S+\Z)https?://.*(?:/|title=)")
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


class _Wiki(NamedTuple):
    """The description of a wiki in its dump."""

    name: str
    language: str | None
    pages: str | None
    """The beginning of the addresses of pages."""


def read_mediawiki(file: InputFile, advance: Advance) -> Found:
    """Read the pages of the main namespace, with the wiki text of the last revision in the dump.

    Redirects and pages of other namespaces are left out. A page that is not XML or not UTF-8 is a `Problem`.

    Raises:
        UserError: the dump is truncated or declares a document type, or the file is not a dump.
    """
    wiki = None
    for number, part in enumerate(_parts(file, advance), 1):
        begin = part.find(_BEGIN)
        wiki = wiki or _read_head(file, part[: max(begin, 0) or len(part)])
        if not part.endswith(_END):  # after the last page
            if b"</mediawiki>" not in part:
                raise UserError(f"{file.address} is cut off: it has no </mediawiki> at its end; fetch it again.")
            return
        place = Place(file, number)
        page = converted(_read_page, part[max(begin, 0) :], wiki, place)
        if page is not None:
            yield place, page


def _parts(file: InputFile, advance: Advance) -> Iterator[bytes]:
    """Yield the content in parts. Each part ends at the end of a page."""
    buffer = bytearray()
    with file.stream(advance) as content:
        while piece := content.read(_PIECE_BYTES):
            searched = max(len(buffer) - len(_END), 0)
            buffer += piece
            start = 0
            while (place_of_end := buffer.find(_END, searched)) >= 0:
                searched = place_of_end + len(_END)
                yield bytes(buffer[start:searched])
                start = searched
            del buffer[:start]
            if len(buffer) > MAX_DOCUMENT_BYTES:
                raise UserError(
                    f"Expected pages of at most {MAX_DOCUMENT_BYTES} bytes in {file.address}, found a longer one; "
                    "take a dump of current revisions (pages-articles)."
                )
    yield bytes(buffer)


def _read_head(file: InputFile, head: bytes) -> _Wiki:
    try:
        text = head.decode("utf-8-sig")
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise UserError(
                f"Expected a dump without a document type, found one in {file.address}; dumps of MediaWiki declare "
                "none, and entities could name other files or grow without end."
            )
        if not _ROOT.match(text):
            raise _no_dump(file, quoted(text[:60]))
        # We give a string to the parser, so that it ignores the declared encoding.
        root = ElementTree.fromstring(text if "</mediawiki>" in text else f"{text}</mediawiki>")
    except (UnicodeDecodeError, ElementTree.ParseError) as error:
        raise _no_dump(file, in_one_line(error)) from None
    texts = {element.tag.rpartition("}")[2]: (element.text or "").strip() for element in root.iter()}
    name = texts.get("dbname") or re.sub(r"-\d{8}-.*|-latest-.*|-?pages-.*", "", file.stem) or file.stem
    of_name = _OF_DATABASE.match(name)
    language = root.get(_LANGUAGE) or (of_name and of_name[1].replace("_", "-"))
    pages = _BEFORE_TITLE.match(texts.get("base", ""))
    return _Wiki(name, language or None, pages and pages[0])


def _no_dump(file: InputFile, content: str) -> UserError:
    return UserError(
        f"Expected an XML dump of MediaWiki in {file.address}, which begins with <mediawiki>, found {content}; "
        "set corpus.format to its format."
    )


def _read_page(part: bytes, wiki: _Wiki, place: Place) -> Document | Problem | None:
    try:
        page = ElementTree.fromstring(part)
    except ElementTree.ParseError as error:
        return Problem.of_xml(part, error)
    is_article = page.findtext("ns", "0").strip() == "0" and page.find("redirect") is None
    return _document(page, wiki, place) if is_article else None


def _document(page: ElementTree.Element, wiki: _Wiki, place: Place) -> Document:
    revision = page.findall("revision")[-1:] or [page]
    texts = {name: (revision[0].findtext(name) or "").strip() for name in ("id", "timestamp", "format")}
    number, title = (page.findtext("id") or "").strip(), page.findtext("title")
    url = wiki.pages + quote(title.replace(" ", "_"), safe="/:(),'!~*;@") if wiki.pages and title else None
    metadata = {
        "media_type": texts["format"] or "text/x-wiki",
        "timestamp": texts["timestamp"],
        "revision": number_in_data(texts["id"]),
        "url": url,
    }
    return Document(
        id=f"{wiki.name}:{number}" if number else place.name,
        text=revision[0].findtext("text") or "",
        source=wiki.name,
        language=wiki.language,
        title=title,
        metadata={name: value for name, value in metadata.items() if value},
    )
