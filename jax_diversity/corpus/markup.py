"""Recognise documents whose text is markup (HTML, wiki markup, XML), so that no build tokenises it unnoticed."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Document

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


def without_markup(documents: Iterator[Document], keep: bool, counts: dict[str, int]) -> Iterator[Document]:
    """Yield the documents; refuse a corpus of which a tenth is markup of one kind. Source code is not looked at.

    With `keep`, nothing is refused. `counts` gets the number of documents of every kind that was found.

    Raises:
        UserError: after the first 1,000 documents, or at the end, a tenth of the documents is markup of one kind.

    Warns:
        UserWarning: a hundredth of the documents is markup of one kind.
    """
    found, number, first = Counter[str](), 0, dict[str, list[str]]()
    for document in documents:
        number += 1
        if not (document.language or "").startswith("code:") and (kind := markup_of(document.text)):
            found[kind] += 1
            first.setdefault(kind, []).extend([document.id] if found[kind] <= _NAMED else [])
        if number == _CHECKED and not keep:
            _check(found, number, first, "of the first {:,} documents")
        yield document
    if not keep:
        _check(found, number, first, "of {:,} documents")
        for kind, times in found.items():
            if times >= _SHOWN * number:
                warnings.warn(
                    f"{times:,} of {number:,} documents are {kind} (such as {' and '.join(first[kind])}), whose tags "
                    f"become tokens; {_advice(kind)}, or set corpus.keep_markup.",
                    stacklevel=2,
                )
    counts.update({KINDS[kind]: times for kind, times in found.items()})


def _advice(kind: str) -> str:
    needed = kind == "HTML" and find_spec("trafilatura") is None
    return _ADVICE[kind] + (" after pip install 'jax-diversity[preparation]'" if needed else "")


def _check(found: Counter[str], number: int, first: dict[str, list[str]], among: str) -> None:
    for kind, times in found.most_common(1):
        if times >= _REFUSED * number:
            raise UserError(
                f"Expected documents of text, found that {times:,} {among.format(number)} are {kind} (such as "
                f"{' and '.join(first[kind])}); {_advice(kind)}, or keep it with --corpus.keep-markup."
            )
