"""Extract the text of web pages with trafilatura (Barbaresi 2021, ACL demonstrations) or resiliparse.

RefinedWeb and FineWeb use trafilatura (Penedo et al. 2023, 2024); DCLM and others use resiliparse (Li et al. 2024).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from typing import ClassVar, Literal

from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.libraries import optional
from jax_diversity.foundation.text.entities import unescaped
from jax_diversity.preparation.readers.web import title_of
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_least, at_most
from jax_diversity.preparation.steps.page_code import with_code
from jax_diversity.preparation.steps.page_parts import prepared_page, text_rules, with_title, without_navigation

_MEDIA_TYPES = ("text/html", "application/xhtml+xml")  # not a set, because the field may have any type of value
_MOST_CHARACTERS = 2_000_000
_LEAST_CHECKED = 20_000
"""The markup is only checked from this number of characters on. Shorter pages take little time with any content."""
# The time of the libraries grows with the square of these numbers, and they do not return to Python meanwhile.
_MOST_ATTRIBUTES = 1000
_MOST_LEVELS = {"div|article": 1000, "ul|ol": 100}
"""The largest number of levels. Resiliparse indents each line of a list by its level, so that texts grow with the
square of the levels."""
_MANY_ELEMENTS = 10_000
"""The comparison of extractions looks for the neighbours of each short paragraph, in time that grows with the square of
their number."""
_MANY_ATTRIBUTES = re.compile(
    r"""<[a-zA-Z][^\s<>/]*+(?:[\s/]++[^\s"'<>/=]++(?>(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s"'<>]++))?))"""
    rf"{{{_MOST_ATTRIBUTES + 1}}}"
)
_BLOCKS = re.compile(rf"<(/?)(?:{'|'.join(f'({names})' for names in _MOST_LEVELS)})(?![\w-])", re.IGNORECASE)


@dataclass
class Html(Step):
    """Extracts the text of a page, without menus, banners and comments.

    The extractor trafilatura is more exact. The extractor resiliparse is about eight times as fast (210 pages of 50 kB
    per second in place of 25) and keeps more text around the article. Trafilatura compares several extractions of a
    page, but makes only one of a page of more than 10,000 elements. A page is removed if it has no text or more than
    two million characters. A page with at least 20,000 characters is also removed if it has more than 1,000 attributes
    in a tag, 1,000 levels of nested blocks or 100 levels of nested lists. If the field `media_type` of a document is
    not that of HTML, the document passes, except with `always`. Two options of trafilatura are on in datatrove:
    `favor_precision` keeps less text around the article, and `deduplicate` removes paragraphs that occur more than
    twice in a page. (In datatrove, they are counted over many pages, so the result depends on the order of the pages.)

    Formulas become TeX between dollar signs, or text such as `x^2`. Exponents become raised digits, as in 10⁶. Code
    keeps its lines and indentation, and loses numbers of lines. Plain lists, such as ingredients, and the title stay.
    Two or more links at the beginning and end of the text are left out. A page is removed if more than .8 of its
    characters are in lines that are links (`navigation`), or if it only asks for JavaScript (`needs_javascript`). With
    `extractor_only`, the text is the output of the library, but with the joiners of letters and emoji, which
    trafilatura removes. `metadata` adds the fields `page_title`, `page_author`, `page_date` and `page_site`.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "most_characters": "page too large",
        "characters_found": "page without text",
        "most_attributes": "too many attributes in a tag",
        "most_levels": "blocks nested too deeply",
        "navigation": "page of links without text",
        "needs_javascript": "page that only asks for JavaScript",
    }
    extractor: Literal["trafilatura", "resiliparse"] = "trafilatura"
    favor_precision: bool = False
    deduplicate: bool = False
    extractor_only: bool = False
    metadata: bool = False
    always: bool = False

    def __post_init__(self) -> None:
        check_one_of("extractor", self.extractor, ("trafilatura", "resiliparse"))
        optional(self.extractor, "preparation")
        if self.metadata:
            optional("trafilatura", "preparation")
        is_trafilatura = self.extractor == "trafilatura"
        self._extract = _trafilatura(self.favor_precision, self.deduplicate) if is_trafilatura else _resiliparse()

    def identity(self) -> str:
        """Return the version of the library."""
        return version(self.extractor)

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Extract the text."""
        if not self.always and candidate.document.metadata.get("media_type") not in _MEDIA_TYPES:
            return
        yield at_most("most_characters", len(candidate.text), _MOST_CHARACTERS)
        yield from markup_limits(candidate.text)
        page = candidate.text
        if self.extractor_only:
            text = self._extract(page)
            yield at_least("characters_found", len(text), 1)
        else:
            prepared, codes = prepared_page(page)
            text, linked = without_navigation(page, with_code(self._extract(prepared), codes))
            yield at_least("characters_found", len(text), 1)
            yield from text_rules(text, linked)
            text = with_title(page, candidate.document.title or title_of(page), text)
        if self.metadata:
            candidate.scores |= page_metadata(page)
        candidate.text = text


def page_metadata(page: str) -> dict[str, str]:
    """Return the title, author, date (year-month-day) and site of a page, as far as its markup has them."""
    from trafilatura import extract_metadata

    metadata = extract_metadata(page)
    names = {"title": "title", "author": "author", "date": "date", "site": "sitename"}
    values = {name: getattr(metadata, attribute, None) for name, attribute in names.items()}
    return {f"page_{name}": str(value) for name, value in values.items() if value}


def markup_limits(page: str) -> Iterator[Measured]:
    """Yield the failed rules against markup that the libraries cannot read in reasonable time."""
    if len(page) < _LEAST_CHECKED:
        return
    if _MANY_ATTRIBUTES.search(page):
        yield at_most("most_attributes", _MOST_ATTRIBUTES + 1, _MOST_ATTRIBUTES)
    tags = _BLOCKS.findall(page)  # "/" for the end of a block, an empty text for its beginning; then the names
    for place, most in enumerate(_MOST_LEVELS.values(), 1):
        ends = [tag[0] for tag in tags if tag[place]]
        if len(ends) > most and (levels := max(accumulate(-1 if end else 1 for end in ends))) > most:
            yield at_most("most_levels", levels, most)


def _trafilatura(favor_precision: bool, deduplicate: bool) -> Callable[[str], str]:
    from trafilatura import extract
    from trafilatura.deduplication import LRU_TEST
    from trafilatura.settings import use_config

    # The step counts unreadable pages. The library would also log each of these pages.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    config = use_config()
    config.set("DEFAULT", "EXTRACTION_TIMEOUT", "0")  # it uses a signal, which needs the main thread

    def found(page: str) -> str:
        is_large = page.count("<") - page.count("</") > _MANY_ELEMENTS
        marked, is_marked = _with_marked_joiners(page)
        LRU_TEST.clear()  # the library remembers the paragraphs of earlier pages
        text = extract(
            marked,
            fast=is_large,
            include_comments=False,
            favor_precision=favor_precision,
            deduplicate=deduplicate,
            config=config,
        )
        return ((text or "").translate(_JOINERS_OF_MARKS) if is_marked else text or "").strip()

    return found


# Characters without width that words and emoji need: joiners, marks of direction, tags of flags. In Thai, Lao, Burmese
# and Khmer, U+200B separates words; elsewhere it is only a place for a line break. Trafilatura removes them.
_JOINERS = "\u061c\u180e\u200c\u200d\u200e\u200f\u2060" + "".join(map(chr, range(0xE0020, 0xE0080)))
_COMMON_JOINERS = "\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u2060\U000e007f"
_SIGNS_OF_JOINERS = ("&zw", "&ZeroW", "&lrm", "&rlm", "&#820", "&#x200", "&#X200")
_MARKS_OF_JOINERS = {ord(joiner): 0x10640 + place for place, joiner in enumerate(_JOINERS + "\u200b")}
_JOINERS_OF_MARKS = {mark: joiner for joiner, mark in _MARKS_OF_JOINERS.items()}
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WITHOUT_WIDTH = re.compile(
    rf"[{_JOINERS}]|\u200b(?=[{_UNSPACED}])|\u200b(?<=[{_UNSPACED}]\u200b)|&(?:zwn?j|[lr]rm|#820[4-7]|#x200[c-f]);"
    rf"|&(?:ZeroWidthSpace|#8203|#x200b);(?=[{_UNSPACED}])",
    re.IGNORECASE,
)


def _with_marked_joiners(page: str) -> tuple[str, bool]:
    """Return the page with letters of Linear A in place of joiners, and whether there are any."""
    # The pattern takes longer than the extractor resiliparse, and few pages need it.
    if not any(map(page.__contains__, _SIGNS_OF_JOINERS if page.isascii() else (*_SIGNS_OF_JOINERS, *_COMMON_JOINERS))):
        return page, False
    return _WITHOUT_WIDTH.sub(lambda match: unescaped(match[0]).translate(_MARKS_OF_JOINERS), page), True


def _resiliparse() -> Callable[[str], str]:
    from resiliparse.extract.html2text import extract_plain_text

    def found(page: str) -> str:
        # Trafilatura removes soft hyphens too. Browsers show them only at the end of a line.
        return extract_plain_text(page, main_content=True, alt_texts=False).replace("\xad", "").strip()

    return found
