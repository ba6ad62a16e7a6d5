"""Prepare a web page for an extractor, and check its result: formulas, plain lists, titles, navigation, JavaScript.

Extractors drop formulas in scripts and images, flatten MathML (a square becomes `x2`), and drop short lists, such as
ingredients, and titles above the main part. All searches of this module take time proportional to the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from html import escape
from itertools import compress

from jax_diversity.foundation.text.entities import unescaped
from jax_diversity.foundation.text.sentences import split_sentences
from jax_diversity.foundation.text.words import split_words
from jax_diversity.preparation.steps.base import Measured, at_least, at_most
from jax_diversity.preparation.steps.elements import replaced
from jax_diversity.preparation.steps.mathml import formula_text, marked_tex
from jax_diversity.preparation.steps.page_code import with_marked_code
from jax_diversity.preparation.steps.raised import SIGNS_OF_RAISED, with_raised

_LONGEST_TAG, _LONGEST_FORMULA, _LONGEST_LIST, _LONGEST_ITEM, _LONGEST_LINK = 2000, 10_000, 20_000, 200, 200
_TAG = re.compile(rf"<[^<>]{{0,{_LONGEST_TAG}}}+>")
_MATH = re.compile(rf"<(math)(?![\w-])[^<>]{{0,{_LONGEST_TAG}}}+>", re.IGNORECASE)
_RENDERED = re.compile(
    r"<(span)\s[^<>]{0,500}?class=[\"']?MathJax(?:_Preview|_SVG|_CHTML|_PHTML)?[\"'\s][^<>]{0,2000}+>", re.IGNORECASE
)
_LONGEST_RENDERED = 200_000
_MATH_SCRIPT = re.compile(r"<(script)\s[^<>]{0,200}?type=[\"']?math/tex[^<>]{0,100}+>", re.IGNORECASE)
_IMAGE = re.compile(rf"<img\s[^<>]{{0,{_LONGEST_TAG}}}+>", re.IGNORECASE)
_TEX_CLASS = re.compile(r"\bclass=[\"'](?:[\w-]+ )*(?:tex|latex|mwe-math-[\w-]+)[\"' ]", re.IGNORECASE)
_ALT = re.compile(r"\balt=(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE)
_LIST = re.compile(rf"<(ul)(?![\w-])[^<>]{{0,{_LONGEST_TAG}}}+>", re.IGNORECASE)
_NO_PLAIN_LIST = re.compile(r"<(?:p|div|table|img|input|button|h\d)(?![\w-])", re.IGNORECASE)
_MOST_OF_LINKS = 0.5
_MOST_LEVELS = {"span": 400, "ul": 10}
"""One more than the largest number of elements of the same name in one that is replaced."""
_ITEM = re.compile(rf"<li(?![\w-])[^<>]{{0,{_LONGEST_TAG}}}+>", re.IGNORECASE)
_HEADING = re.compile(rf"<h1(?![\w-])[^<>]{{0,{_LONGEST_TAG}}}+>", re.IGNORECASE)
_HEADING_END = re.compile("</h1", re.IGNORECASE)
_ANCHOR = re.compile(rf"<(/?)a(?![\w-])[^<>]{{0,{_LONGEST_TAG}}}+>", re.IGNORECASE)
_SEPARATORS = (" - ", " | ", " \u2013 ", " \u2014 ", " \u00b7 ", ": ")
_MOST_LINKED = 0.8
"""The largest share of the characters in lines that are links."""
_ASKING_WORDS, _LEAST_OTHER_WORDS = 100, 10
"""A text of at most 100 words that mentions JavaScript must have ten words in sentences that do not."""


def prepared_page(page: str) -> tuple[str, list[str]]:
    """Return the page for an extractor, and the texts of its blocks of code.

    Formulas, exponents and indices become text, plain lists become paragraphs, and blocks of code lie between marks.
    """
    lowered = page.encode(errors="surrogatepass").lower()  # takes a fifth of the time of `str.lower`
    page, codes = with_marked_code(page, lowered)
    if any(sign.encode() in lowered for sign in SIGNS_OF_RAISED):
        page = with_raised(page)
    has_scripts = b"math/tex" in lowered
    if has_scripts and b"mathjax" in lowered:  # the formula is in a script beside what MathJax 2 made of it
        page = replaced(page, _RENDERED, _LONGEST_RENDERED, lambda *_: "", _MOST_LEVELS)
    if b"<math" in lowered:
        has_images = "mwe-math-fallback-image" in page  # each formula of MediaWiki has an image and hidden MathML
        page = replaced(page, _MATH, _LONGEST_FORMULA, (lambda *_: "") if has_images else _math, _MOST_LEVELS)
    if has_scripts:
        page = replaced(page, _MATH_SCRIPT, _LONGEST_FORMULA, _tex_script, _MOST_LEVELS)
    if b"<img" in lowered:
        page = _IMAGE.sub(_image, page)
    if b"<ul" in lowered:
        page = replaced(page, _LIST, _LONGEST_LIST, lambda _, content: _plain_list(content), _MOST_LEVELS)
    return page, codes


def with_title(page: str, title: str | None, text: str) -> str:
    """Return the text with its first heading, if the title has the heading and the text lacks it.

    The title may begin with the heading, or with a tag and a separator, as in `python - How to sort? - Stack Overflow`.
    A heading at the end of such a title is the name of the site.
    """
    for tag in _HEADING.finditer(page) if title else ():
        end = _HEADING_END.search(page, tag.end(), tag.end() + _LONGEST_TAG)
        heading = _plain(page[tag.end() : end.start()]) if end else ""
        before, heading_text, after = str(title).partition(heading) if heading else ("", "", "")
        if heading_text and (not before or (after and before.endswith(_SEPARATORS))):
            return text if heading in " ".join(text.split()) else f"{heading}\n{text}"
    return text


def without_navigation(page: str, text: str) -> tuple[str, float]:
    """Remove two or more links at the beginning and at the end of a text.

    Returns:
        The text, and the share of its characters in lines that are links of the page. The text of a page with more than
        .8 stays as it is.
    """
    lines, links = text.splitlines(), _links(page)
    lengths = [len(line.strip()) for line in lines]
    is_link = [" ".join(line.split()) in links for line in lines]
    share = sum(compress(lengths, is_link)) / max(sum(lengths), 1)
    if share <= _MOST_LINKED:
        start, stop = _run(is_link, lengths), len(lines) - _run(is_link[::-1], lengths[::-1])
        text = "\n".join(lines[start:stop]).strip()
    return text, share


def text_rules(text: str, linked: float) -> Iterator[Measured]:
    """Measure the rules against pages without a text of their own.

    Args:
        text: the extracted text.
        linked: the share of its characters in lines that are links.
    """
    yield at_most("navigation", linked, _MOST_LINKED)
    if "javascript" in text.lower() and len(text.split()) <= _ASKING_WORDS:
        other_sentences = [sentence for sentence in split_sentences(text) if "javascript" not in sentence.lower()]
        yield at_least(
            "needs_javascript", sum(len(split_words(sentence)) for sentence in other_sentences), _LEAST_OTHER_WORDS
        )


def _run(is_link: list[bool], lengths: list[int]) -> int:
    """Return the number of lines at the beginning that are links or empty; 0 if they have fewer than two links."""
    number = next((place for place, length in enumerate(lengths) if length and not is_link[place]), len(lengths))
    return number if sum(is_link[:number]) > 1 else 0


def _math(tag: re.Match[str], content: str) -> str:
    return escape(formula_text(tag[0], content), quote=False)


def _tex_script(_: re.Match[str], tex: str) -> str:
    return escape(marked_tex(tex), quote=False)


def _image(match: re.Match) -> str:
    alternative = _ALT.search(match[0]) if _TEX_CLASS.search(match[0]) else None
    return (
        escape(marked_tex(unescaped(alternative[1] or alternative[2] or "")), quote=False) if alternative else match[0]
    )


@lru_cache(maxsize=100)  # a page often has its menu twice, and the pages of a site have the same menus
def _plain_list(content: str) -> str | None:
    if _NO_PLAIN_LIST.search(content):
        return None
    links = _contents_of_links(f"{content}</a>", _LONGEST_LIST)  # the last link may have no end, icons are long
    if links and len(_plain(" ".join(links))) > _MOST_OF_LINKS * len(_plain(content)):
        return None
    items = [_plain(item) for item in _ITEM.split(content)[1:]]
    if len(items) < 2 or max(map(len, items)) > _LONGEST_ITEM:
        return None
    return "".join(f"<p>- {escape(item, quote=False)}</p>" for item in items if item)


def _links(page: str) -> set[str]:
    """Return the texts of the page's links, and the lines of these texts."""
    contents = set(_contents_of_links(page))
    contents |= {line for content in contents if "\n" in content for line in content.split("\n")}
    return {link for link in map(_plain, contents) if 0 < len(link) <= _LONGEST_LINK}


def _contents_of_links(markup: str, longest: int = _LONGEST_TAG) -> list[str]:
    """Return what is between the tag that opens a link and the next tag of a link."""
    pieces = _ANCHOR.split(markup)  # every second piece is what the tag before the next piece has before its name
    return [
        content
        for end, content in zip(pieces[1:-2:2], pieces[2:-1:2], strict=True)
        if not end and len(content) <= longest
    ]


def _plain(content: str) -> str:
    return " ".join(unescaped(_TAG.sub(" ", content) if "<" in content else content).split())
