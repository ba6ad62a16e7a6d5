"""Recognise documents whose text is markup (HTML, wiki markup, XML), so that no build tokenises it unnoticed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.warned import warn
from jax_diversity.foundation.wording import counted
from jax_diversity.schema import Document
from jax_diversity.schema.documents import TURN_SPANS

_BEGINNING = 4096
"""Number of characters that are looked at."""
_CHECKED = 1000
"""Number of documents after which a corpus of markup is refused, without reading the rest."""
_NAMED = 2
"""Number of documents that a message names."""
_REFUSED, _SHOWN = 0.1, 0.01
"""The shares of documents of one kind of markup that are refused, and that give a warning."""

_TAGS = "a|b|body|br|code|div|em|h[1-6]|head|i|img|li|ol|p|pre|span|strong|table|td|tr|ul"
_PAGE = re.compile(r"<(?:!doctype html|html|head|body)\b", re.IGNORECASE)
_FRAGMENT = re.compile(rf"<(?:{_TAGS})\b[^<>]*>", re.IGNORECASE)
_CLOSING = re.compile(rf"</(?:{_TAGS})>", re.IGNORECASE)
_XML = re.compile(r"<(?:\?xml|mediawiki|!DOCTYPE (?!html))\b|<\?xml", re.IGNORECASE)
_LINK = re.compile(r"\[\[[^\[\]\n]+\]\]")
_WIKI = re.compile(r"^==+[^=\n]+==+\s*$|\{\{[^{}\n]+(?:\}\}|\n\s*\|)", re.MULTILINE)
KINDS = {"HTML": "num_html", "wiki markup": "num_wiki_markup", "XML": "num_xml"}
"""Kind of markup -> its number of documents among the counts of the stage."""
_ADVICE = {
    "HTML": "add the step html (--preparation.steps '[{step: html, options: {always: true}}]')",
    "wiki markup": "add the step mediawiki (--preparation.steps '[{step: mediawiki, options: {always: true}}]')",
    "XML": "set corpus.format if it is a dump (mediawiki, stack_exchange), or extract its text first",
}


def markup_of(text: str) -> str | None:
    """Return the kind of markup of a document's text: `HTML`, `wiki markup` or `XML`; None for plain text.

    The first 4,096 characters decide. A few tags, as in Markdown, are not markup of their own.

    Example:
        >>> markup_of("<!DOCTYPE html><p>Hello</p>"), markup_of("Hello, <b>world</b>.")
        ('HTML', None)
    """
    if "<" not in text[:_BEGINNING] and "[[" not in text[:_BEGINNING]:  # nearly all documents
        return None
    begin = text[:_BEGINNING].lstrip("\ufeff \t\r\n")
    if _PAGE.match(begin):
        return "HTML"
    if _XML.match(begin):
        return "HTML" if _PAGE.search(begin) else "XML"  # XHTML begins like XML
    num_closing = len(_CLOSING.findall(begin))
    if num_closing >= 20 or (num_closing >= 3 and _FRAGMENT.match(begin)):
        return "HTML"
    if len(_LINK.findall(begin)) >= 3 and _WIKI.search(begin):
        return "wiki markup"
    return None


class MarkupCounts:
    """Counts the documents that are markup, by kind, and refuses a corpus of which a tenth is markup of one kind.

    Args:
        keep: refuse nothing.
        found: the numbers of documents by kind, of all documents, and the first ids of each kind, as `plain` returns.
    """

    def __init__(self, keep: bool, counts: Sequence[Any] = ((), 0, ())) -> None:
        self._keep = keep
        self._found, self._number, self._first = Counter[str](dict(counts[0])), int(counts[1]), dict(counts[2])

    def looked_at(self, documents: Iterable[Document], is_beginning: bool) -> Iterator[Document]:
        """Yield the documents and count them; source code and chats are not looked at.

        A chat may ask for markup, and a step that removes markup would change its answers.

        `is_beginning`: whether they are the first documents of the corpus.

        Raises:
            UserError: of the first 1,000 documents of the corpus, a tenth is markup of one kind.
        """
        for document in documents:
            self._number += 1
            is_text = TURN_SPANS not in document.metadata and not (document.language or "").startswith("code:")
            if is_text and (kind := markup_of(document.text)):
                self._found[kind] += 1
                self._first.setdefault(kind, []).extend([document.id] if self._found[kind] <= _NAMED else [])
            if is_beginning and self._number == _CHECKED and not self._keep:
                self._check(f"of the first {_CHECKED:,} documents")
            yield document

    def plain(self) -> list[Any]:
        """The counts as JSON values."""
        return [[*self._found.items()], self._number, [*self._first.items()]]

    def add(self, other: MarkupCounts) -> None:
        """Add the counts of the documents that follow."""
        self._found.update(other._found)
        self._number += other._number
        for kind, ids in other._first.items():
            self._first[kind] = [*self._first.get(kind, ()), *ids][:_NAMED]

    def check(self) -> dict[str, int]:
        """Check the whole corpus; returns the numbers of documents for the counts of the stage.

        Raises:
            UserError: a tenth of the documents is markup of one kind.

        Warns:
            UserWarning: a hundredth of the documents is markup of one kind.
        """
        if not self._keep:
            self._check(f"of {counted(self._number, 'document')}")
            for kind, times in self._found.items():
                if times >= _SHOWN * self._number:
                    warn(
                        f"{kind} in {times:,} of {self._number:,} documents (such as {self._names(kind)}): its tags "
                        f"become tokens; {_advice(kind)}, or set corpus.keep_markup.",
                    )
        return {KINDS[kind]: times for kind, times in self._found.items()}

    def _check(self, among: str) -> None:
        for kind, times in self._found.most_common(1):
            if times >= _REFUSED * self._number:
                raise UserError(
                    f"Expected documents of text, found {kind} in {times:,} {among} (such as "
                    f"{self._names(kind)}); {_advice(kind)}, or keep it with --corpus.keep-markup."
                )

    def _names(self, kind: str) -> str:
        return " and ".join(self._first[kind])


def _advice(kind: str) -> str:
    needed = kind == "HTML" and find_spec("trafilatura") is None
    return _ADVICE[kind] + (" after pip install 'jax-diversity[preparation]'" if needed else "")
