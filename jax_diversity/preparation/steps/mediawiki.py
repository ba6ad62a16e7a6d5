"""Convert wiki text to plain text.

The parser scans to the end of the page at every unclosed template or tag. This takes quadratic time: hours for some
pages. Therefore most markup is removed first, in linear time: comments, references and formulas (elements whose content
is not wiki text), templates from the innermost outwards, tables line by line, and formatting tags. The parser
(the library mwparserfromhell) reads the rest: links, addresses, entities, and broken markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar

from jax_diversity.foundation.libraries import optional
from jax_diversity.foundation.text.entities import unescaped
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_least, at_most
from jax_diversity.preparation.steps.raised import with_raised
from jax_diversity.preparation.steps.wiki_names import APPENDICES, DISAMBIGUATIONS, FILES_AND_CATEGORIES, REDIRECTS
from jax_diversity.preparation.steps.wiki_templates import text_of_template
from jax_diversity.preparation.steps.wiki_variants import in_one_variant

_TYPE = "text/x-wiki"
_MOST_NESTED = 40
"""Largest depth of nested templates; the parser has the same limit."""
_MOST_READ_AGAIN = 20e6
"""The largest number of characters that the parser may scan again; this takes a few seconds."""

# ---- Comments, and elements whose content is not wiki text.
_KEPT = "nowiki pre syntaxhighlight source math chem ce"
_DROPPED = (
    "ref references gallery imagemap timeline score graph hiero mapframe maplink categorytree inputbox templatestyles "
    "templatedata section indicator includeonly table"
)
_NAMES = f"{_KEPT} {_DROPPED}".split()
_OPENING = re.compile(rf"<!--|<(?P<name>{'|'.join(_NAMES)})(?=[\s/>])[^<>]*>", re.IGNORECASE)
_REFERENCE = re.compile(r"<ref(?=[\s>])[^<>]*+(?<!/)>", re.IGNORECASE)
_CLOSING = {"": re.compile("-->")} | {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in _NAMES}
# Kept content is replaced by a placeholder, so that it is not read as markup.
_ASIDE = "\ue000{}\ue001"
_PLACE = re.compile("\ue000([0-9]{1,9})\ue001")

# ---- Templates.
_TEMPLATE = re.compile(r"\{\{([^{}]*+(?>(?:[{}](?![{}])[^{}]*+)*))\}\}")
_PARAMETER = re.compile(r"\{\{\{[^{}]*+\}\}\}")
# What is beside a template that fills its line: nothing, marks of a list, another template.
_EDGES_BEFORE, _EDGES_AFTER = frozenset(("", *"\n*#:;}")), frozenset(("", *"\n{"))

# ---- Non-article pages and links to them.
_REDIRECT = re.compile(rf"\s*+#\s*+(?:{'|'.join(REDIRECTS)})\s*+:?\s*+\[\[", re.IGNORECASE)
_MEANINGS = "|".join(map(re.escape, DISAMBIGUATIONS))
_DISAMBIGUATION = re.compile(
    rf"\{{\{{\s*+(?:[\w -]{{1,40}} )?(?:{_MEANINGS})\s*+(?:\|[^{{}}]*+)?\}}\}}|__DISAMBIG__", re.IGNORECASE
)
_DISAMBIGUATION_TITLE = re.compile(rf" \((?:{_MEANINGS})\)$", re.IGNORECASE)
_MEDIA = re.compile(r"\.(?:jpe?g|png|svg|gif|tiff?|webp|xcf|djvu|pdf|og[gav]|mp3|midi?|flac|wav|webm|mp4)\s*$", re.I)
_OTHER_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*$|simple$")

# ---- Formatting.
_BREAKS = "br hr p pre div li ul ol dl dd dt blockquote center poem tr h1 h2 h3 h4 h5 h6"
_INLINE = (
    "b i u s em strong small big sub sup span font tt code kbd samp var cite q abbr dfn del ins mark bdi bdo ruby rb "
    "rt rp noinclude onlyinclude nowiki time data a strike wbr section ref td th tbody caption"
)
_BREAK = re.compile(rf"</?(?:{_BREAKS.replace(' ', '|')})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_TAG = re.compile(rf"</?(?:{_INLINE.replace(' ', '|')})(?:[\s/][^<>]*)?>", re.IGNORECASE)
_QUOTES = re.compile("'{2,}")
_MOST_HEADINGS = 6
"""The number of heading levels."""
_MAGIC = re.compile(r"__[^\W\da-z_]+__")
# List items are hidden from the parser, because its time grows with the square of their number. Lines that begin like a
# heading and have 100 possible ends are hidden too: the parser calls itself for each end and crashes at about 100,000.
_ITEM, _ITEM_MARK = re.compile(r"^(?=[*#:;]|(?:=++[^=\n]++){100})", re.MULTILINE), "\ue002"
_LIST = re.compile(rf"{_ITEM_MARK}([*#:;]+)[ \t]*(.*)")
_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_ODD_TAG = re.compile("<[a-zA-Z/!]")
# The parser takes `<` before a digit or another mark for a tag, and scans to the end of the page for each. It is hidden
# as a character that Unicode reserves for programs.
_NO_TAG, _LESS = re.compile("<(?![a-zA-Z/!])"), "\ufdd0"
_EMPTY_LINES = re.compile(r"\n{3,}")
_RULE = re.compile("-{4,}")
_HOLES = (
    (re.compile(r"\[\s*\]|\([\s,;:/|\u2013-]*\)"), ""),
    (re.compile(r"(?<=\S)[ \t]{2,}"), " "),
    (re.compile(r"([,;:])(?: ?[,;])+"), r"\1"),
    (re.compile(r"\( ?[,;:][ ,;:]*"), "("),
    (re.compile(r"(?<![ ,;:])[ ,;:]++\)"), ")"),
    (re.compile(r"(?<=\S) (?=[,.](?:\s|$))"), ""),
)


@dataclass
class Mediawiki(Step):
    """Turns wiki text into plain text; removes boxes, tables, references, files, categories and formatting.

    Headings stay as separate lines, and list items begin with `- ` or their number. `formulas` keeps formulas as TeX
    between dollar signs. Sections such as See also, References and External links are left out in 20 languages, unless
    `appendices`. Of a word in several written forms (`-{zh-hans:..;zh-hant:..}-`) the form of `variant` stays, such as
    `zh-hans`, `zh-tw` or `sr-el`. The step removes redirects and disambiguation pages. It also removes pages of wikis
    whose language is not in `languages` (such as `[en, de]`), and pages on which the parser fails or would need hours.
    Documents whose field `media_type` is not text/x-wiki pass unchanged, unless `always`.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "languages": "wiki in a language that is not wanted",
        "redirects": "redirect page",
        "disambiguations": "disambiguation page",
        "unclosed_markup": "markup that would take hours to parse",
        "parser_failed": "markup that the parser cannot read",
    }
    languages: tuple[str, ...] = ()
    appendices: bool = False
    formulas: bool = True
    variant: str = "zh-hans"
    always: bool = False

    def __post_init__(self) -> None:
        optional("mwparserfromhell", "preparation")
        self._languages = frozenset(map(str.lower, self.languages))

    def identity(self) -> str:
        """The parser's version."""
        return version("mwparserfromhell")

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Check the language and the kind of the page, then remove the markup."""
        if not self.always and candidate.document.metadata.get("media_type") != _TYPE:
            return
        language = (candidate.language or "").lower().split("-")[0]  # the language of `sr-ec` is `sr`
        if self._languages:
            yield at_least("languages", int(language in self._languages), 1)
        text = candidate.text
        yield at_most("redirects", int(bool(_REDIRECT.match(text))), 0)
        is_disambiguation = _DISAMBIGUATION.search(text) or _DISAMBIGUATION_TITLE.search(candidate.document.title or "")
        yield at_most("disambiguations", int(bool(is_disambiguation)), 0)
        aside: list[str] = []
        text = _without_elements(text, aside, self.formulas)
        text = _without_tables(in_one_variant(_without_templates(text), self.variant, language))
        if not self.appendices:
            text = _without_appendices(text)
        text = _TAG.sub("", _BREAK.sub("\n", with_raised(text)))
        text = _QUOTES.sub(lambda quotes: "'" if len(quotes[0]) == 4 else "", _MAGIC.sub("", text))
        yield at_most("unclosed_markup", _num_unclosed(text) * len(text), _MOST_READ_AGAIN)
        try:
            text = _parsed(_ITEM.sub(_ITEM_MARK, _NO_TAG.sub(_LESS, text)))
        except Exception:  # the parser may raise anything; the document's row records the failure
            yield at_most("parser_failed", 1, 0)
            return
        text = _PLACE.sub(lambda place: _content(aside, place), _in_lines(text))
        candidate.text = _EMPTY_LINES.sub("\n\n", text).strip()


def _without_elements(text: str, aside: list[str], formulas: bool) -> str:
    """The text without comments, references and similar elements; kept content (nowiki, code ...) goes to `aside`."""
    parts, position = [], 0
    closings: dict[str, re.Match | None] = {}  # the next closing tag: each search could scan the rest of the page
    for opening in _OPENING.finditer(text):
        name = (opening["name"] or "").lower()
        if opening.start() < position:
            continue
        closing = closings.get(name, opening)
        if closing is not None and closing.start() < opening.end():
            closing = closings[name] = _CLOSING[name].search(text, opening.end())
        parts.append(text[position : opening.start()])
        # If a reference begins before the closing tag, the tag is that of the later one.
        if (
            closing is None
            or opening[0].endswith("/>")
            or (name == "ref" and _REFERENCE.search(text, opening.end(), closing.start()))
        ):
            position = opening.end()
            continue
        content, position = text[opening.end() : closing.start()], closing.end()
        if name in ("math", "chem", "ce"):
            content = f"${' '.join(content.split())}$" if formulas else ""
        elif name in ("pre", "syntaxhighlight", "source"):
            content = f"\n{content.strip(chr(10))}\n"
        elif name != "nowiki":
            content = ""
        if content:
            parts.append(_ASIDE.format(len(aside)))
            aside.append(unescaped(content))
    return "".join((*parts, text[position:]))


def _content(aside: list[str], place: re.Match) -> str:
    number = int(place[1])
    return aside[number] if number < len(aside) else place[0]


def _without_templates(text: str) -> str:
    text = _PARAMETER.sub("", text)
    for _ in range(_MOST_NESTED):
        text, number = _TEMPLATE.subn(_words_of_template, text)
        if not number:
            break
    return text


def _words_of_template(template: re.Match) -> str:
    return text_of_template(template[1], _is_inline(template.string, *template.span()))


def _is_inline(text: str, start: int, end: int) -> bool:
    """Tell whether text stands before or after a template on its line."""
    while start > 0 and text[start - 1] in " \t":
        start -= 1
    while end < len(text) and text[end] in " \t":
        end += 1
    return text[max(start - 1, 0) : start] not in _EDGES_BEFORE or text[end : end + 1] not in _EDGES_AFTER


def _without_tables(text: str) -> str:
    """The text without its tables; an unclosed table ends at the next heading."""
    if "{|" not in text:
        return text
    kept, depth = [], 0
    for line in text.split("\n"):
        bare = line.lstrip(" \t:*#;")
        if bare.startswith("{|"):
            depth += 1
        elif depth and bare.startswith("|}"):
            depth -= 1
            kept += [bare[2:]] if not depth else []
        elif not depth or line.startswith("=="):
            depth = 0
            kept.append(line)
    return "\n".join(kept)


def _without_appendices(text: str) -> str:
    kept, left_out = [], None  # the heading level of the section that is left out
    for line in text.split("\n"):
        level, title = _heading(line)
        if level and (left_out is None or level <= left_out):
            left_out = level if title.strip(" '[]:").casefold() in APPENDICES else None
        if left_out is None:
            kept.append(line)
    return "\n".join(kept)


def _heading(line: str) -> tuple[int, str]:
    """The level of a heading (1 is the highest) and its title; level 0 if the line is not a heading."""
    if line.startswith("="):
        line = line.rstrip(" \t")
        for level in range(_MOST_HEADINGS, 0, -1):
            marks = "=" * level
            if line.startswith(marks) and line.endswith(marks) and len(line) > 2 * level:
                within = line[level:-level]
                return level, within.strip(" \t") or within[-1]
    return 0, ""


def _num_unclosed(text: str) -> int:
    """Estimate how many times the parser will scan to the end of the page without success."""
    num_tags = len(_ODD_TAG.findall(text))
    for _ in range(5):
        text, number = _BRACKETS.subn("", text)
        if not number:
            break
    return num_tags + text.count("[") + text.count("{{") + text.count("{|")


def _parsed(text: str) -> str:
    import mwparserfromhell  # type: ignore[import-not-found]

    return _rendered(mwparserfromhell.parse(text, skip_style_tags=True))


def _rendered(code: Any) -> str:
    """The text of a parsed page; headings keep their marks."""
    from mwparserfromhell import nodes  # type: ignore[import-not-found]

    parts = []
    for node in code.nodes:
        if isinstance(node, nodes.Text):
            parts.append(node.value)
        elif isinstance(node, nodes.Wikilink):
            parts.append(_words_of_link(node))
        elif isinstance(node, nodes.HTMLEntity):
            parts.append(unescaped(str(node)))
        elif isinstance(node, nodes.ExternalLink):
            parts.append(_rendered(node.title) if node.title is not None else "" if node.brackets else str(node.url))
        elif isinstance(node, nodes.Heading):
            marks = "=" * node.level
            parts.append(f"{marks} {_rendered(node.title).strip()} {marks}")
        elif isinstance(node, nodes.Tag) and node.contents is not None:
            parts.append(_rendered(node.contents))
    return "".join(parts)


def _words_of_link(link: Any) -> str:
    target = str(link.title).strip()
    text = _rendered(link.text).strip() if link.text is not None else ""
    prefix, colon, rest = target.partition(":")
    if colon and prefix:
        if prefix.strip().lower().replace("_", " ") in FILES_AND_CATEGORIES or _MEDIA.search(target):
            return ""
        if not text and _OTHER_LANGUAGE.match(prefix) and not rest.startswith(" "):
            return ""
    return text or target.removeprefix(":")


def _in_lines(text: str) -> str:
    """The final lines: headings with text below them, without marks; items of lists; single empty lines."""
    text = text.replace("\xa0", " ")
    for pattern, instead in _HOLES:
        text = pattern.sub(instead, text)
    lines: list[str] = []
    headings: list[tuple[int, str]] = []
    numbers: dict[str, int] = {}
    for line in text.split("\n"):
        line = line.rstrip()
        level, title = _heading(line)
        if level:
            headings = [*(above for above in headings if above[0] < level), (level, title)]
            numbers = {}
            continue
        if item := _LIST.match(line):
            marks, words = item.groups()
            numbers = {above: number for above, number in numbers.items() if marks.startswith(above)}
            if not words:
                continue
            if marks.endswith("#"):
                numbers[marks] = numbers.get(marks, 0) + 1
                words = f"{numbers[marks]}. {words}"
            elif marks.endswith("*"):
                words = f"- {words}"
            line = "  " * (len(marks) - 1) + words
        elif line:
            numbers = {}
            if line.startswith("|") or _RULE.fullmatch(line):  # rows of a table that began in a template
                continue
        if line:
            for _, title in headings:
                lines += ["", title, ""] if lines and lines[-1] else [title, ""]
            headings = []
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).replace("{{", "").replace("}}", "").replace(_ITEM_MARK, "").replace(_LESS, "<")
