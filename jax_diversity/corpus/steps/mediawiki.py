"""Wiki text to plain text.

A parser of wiki text reads on to the end of a page wherever a template or a tag opens, so that it is slow, and a page
of openings alone takes hours. So what can be found without it is taken first, in time that is linear in the page:
comments, references and formulas (elements whose content is no wiki text), templates from the innermost outwards,
tables line by line, tags of formatting. mwparserfromhell reads what is left: links, addresses, entities, odd markup.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_least, at_most
from jax_diversity.corpus.steps.wiki_names import APPENDICES, DISAMBIGUATIONS, FILES_AND_CATEGORIES, REDIRECTS
from jax_diversity.foundation.libraries import optional

_TYPE = "text/x-wiki"
_MOST_NESTED = 40
"""Levels of templates, as in the parser."""
_MOST_READ_AGAIN = 20e6
"""Characters that the parser would read once more: some seconds."""

# ---- Elements whose content is no wiki text, and comments.
_KEPT = "nowiki pre syntaxhighlight source math chem ce"
_DROPPED = (
    "ref references gallery imagemap timeline score graph hiero mapframe maplink categorytree inputbox templatestyles "
    "templatedata section indicator includeonly table"
)
_NAMES = f"{_KEPT} {_DROPPED}".split()
_OPENING = re.compile(rf"<!--|<(?P<name>{'|'.join(_NAMES)})(?=[\s/>])[^<>]*>", re.IGNORECASE)
_CLOSING = {"": re.compile("-->")} | {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in _NAMES}
# What is kept stands aside in a place of its own, so that nothing looks like markup in it.
_ASIDE = "\ue000{}\ue001"
_PLACE = re.compile("\ue000(\\d{1,9})\ue001")

# ---- Templates.
_TEMPLATE = re.compile(r"\{\{([^{}]*+(?:[{}](?![{}])[^{}]*+)*+)\}\}")
_PARAMETER = re.compile(r"\{\{\{[^{}]*+\}\}\}")
_NAMED = re.compile(r"\s*[\w -]+=")
_QUANTITY = re.compile(r"[-\u2212+±]?[\d.,/+ ]+|to|and|or|by|x|\u00d7|\+/-|±|\u2013|-")
# Templates that stand for words of the sentence: which of their parts. Without them it would have holes.
_WORDS = {
    **dict.fromkeys(("nowrap", "nobr", "small", "big", "abbr", "tooltip", "ill", "quote", "blockquote"), 0),
    **dict.fromkeys(("lang", "transl", "transliteration"), -1),
}
_SIGNS = {
    **dict.fromkeys(("ndash", "\u2013", "en dash", "endash"), "\u2013"),
    **dict.fromkeys(("snd", "spnd", "spaced ndash", "dash"), " \u2013 "),
    **dict.fromkeys(("mdash", "\u2014", "em dash", "emdash", "mdashb"), "\u2014"),
    **dict.fromkeys(("nbsp", "spaces", "-"), " "),
    **{"'": "'", "!": "|", "=": "=", "pipe": "|"},
}

# ---- Pages that are no articles, and links to what is none.
_REDIRECT = re.compile(rf"\s*#\s*(?:{'|'.join(REDIRECTS)})\s*:?\s*\[\[", re.IGNORECASE)
_MEANINGS = "|".join(map(re.escape, DISAMBIGUATIONS))
_DISAMBIGUATION = re.compile(
    rf"\{{\{{\s*(?:[\w -]{{1,40}} )?(?:{_MEANINGS})\s*(?:\|[^{{}}]*)?\}}\}}|__DISAMBIG__", re.IGNORECASE
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
_MAGIC = re.compile(r"__[^\W\da-z_]+__")
_HEADING = re.compile(r"(={1,6})[ \t]*(.+?)[ \t]*\1[ \t]*$")
# Items of lists are hidden from the parser: its time grows with the square of their number.
_ITEM, _ITEM_MARK = re.compile(r"^(?=[*#:;])", re.MULTILINE), "\ue002"
_LIST = re.compile(rf"{_ITEM_MARK}([*#:;]+)[ \t]*(.*)")
_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_ODD_TAG = re.compile("<[a-zA-Z/!]")
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


def mediawiki(*, languages: str = "", appendices: bool = False, formulas: bool = True, always: bool = False) -> Rules:
    """Makes plain text of wiki text: without templates, tables, references, files, categories and formatting.

    Headings stay as lines of their own, items of lists begin with `- ` or their number, formulas stay as TeX between
    dollars (`formulas`). Sections such as See also, References and External links are left out in 20 languages
    (`appendices` keeps them). Removes wikis of other languages than `languages`, such as `en de`, redirects, pages of
    disambiguation, and pages with markup so broken that the parser fails or needs hours. Documents pass as they are if
    their field `media_type` is not text/x-wiki, unless `always`.
    """
    optional("mwparserfromhell", "preparation")
    wanted = frozenset(languages.replace(",", " ").lower().split())

    def rules(candidate: Candidate) -> Iterator[Measured]:
        if not always and candidate.document.metadata.get("media_type") != _TYPE:
            return
        if wanted:  # of `sr-ec` the language is `sr`
            yield at_least("languages", int((candidate.language or "").lower().split("-")[0] in wanted), 1)
        text = candidate.text
        yield at_most("redirects", int(bool(_REDIRECT.match(text))), 0)
        is_disambiguation = _DISAMBIGUATION.search(text) or _DISAMBIGUATION_TITLE.search(candidate.document.title or "")
        yield at_most("disambiguations", int(bool(is_disambiguation)), 0)
        aside: list[str] = []
        text = _without_elements(text, aside, formulas)
        text = _without_tables(_without_templates(text))
        if not appendices:
            text = _without_appendices(text)
        text = _TAG.sub("", _BREAK.sub("\n", text))
        text = _QUOTES.sub(lambda quotes: "'" if len(quotes[0]) == 4 else "", _MAGIC.sub("", text))
        yield at_most("unclosed_markup", _num_unclosed(text) * len(text), _MOST_READ_AGAIN)
        try:
            text = _parsed(_ITEM.sub(_ITEM_MARK, text))
        except Exception:  # whatever the parser raises, the page has a row that says so
            yield at_most("parser_failed", 1, 0)
            return
        text = _PLACE.sub(lambda place: _content(aside, place), _in_lines(text))
        candidate.text = _EMPTY_LINES.sub("\n\n", text).strip()

    return rules


def identity(**options: Any) -> str:
    """The parser's version."""
    return version("mwparserfromhell")


def _without_elements(text: str, aside: list[str], formulas: bool) -> str:
    """Without comments, references and the like; what is kept of nowiki, formulas and code goes to `aside`."""
    parts, position = [], 0
    unclosed = set()  # not looked for again: the search would go through the rest of the page each time
    for opening in _OPENING.finditer(text):
        name = (opening["name"] or "").lower()
        if opening.start() < position or name in unclosed:
            continue
        parts.append(text[position : opening.start()])
        if opening[0].endswith("/>"):
            position = opening.end()
            continue
        closing = _CLOSING[name].search(text, opening.end())
        if closing is None:
            unclosed.add(name)
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
            aside.append(html.unescape(content))
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
    name, *parts = template[1].split("|")
    name = name.strip().lower()
    if name in _SIGNS:
        return _SIGNS[name]
    parts = [part.strip() for part in parts if not _NAMED.match(part)]
    if not parts:
        return ""
    if name in ("convert", "cvt"):  # 5|to|7|km|mi
        unit = next((at for at, part in enumerate(parts) if not _QUANTITY.fullmatch(part)), len(parts))
        return " ".join(parts[: unit + 1])
    if name in ("circa", "c.", "ca."):
        return f"c. {parts[0]}"
    place = 0 if name.startswith("lang-") else _WORDS.get(name)
    return parts[place] if place is not None else ""


def _without_tables(text: str) -> str:
    """A table begins and ends with a line; one that does not end goes on to the next heading."""
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
    kept, left_out = [], None  # the level of the heading whose section is left out
    for line in text.split("\n"):
        heading = line.startswith("=") and _HEADING.match(line)
        if heading and (left_out is None or len(heading[1]) <= left_out):
            is_appendix = heading[2].strip(" '[]:").casefold() in APPENDICES
            left_out = len(heading[1]) if is_appendix else None
        if left_out is None:
            kept.append(line)
    return "\n".join(kept)


def _num_unclosed(text: str) -> int:
    """About the number of times that the parser reads on to the end of the page in vain."""
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
    """The text of a page as the parser sees it; headings keep their marks."""
    from mwparserfromhell import nodes  # type: ignore[import-not-found]

    parts = []
    for node in code.nodes:
        if isinstance(node, nodes.Text):
            parts.append(node.value)
        elif isinstance(node, nodes.Wikilink):
            parts.append(_words_of_link(node))
        elif isinstance(node, nodes.HTMLEntity):
            parts.append(html.unescape(str(node)))
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
    """Headings without marks, and only those that have text below them; items of lists; no empty lines in a row."""
    text = text.replace("\xa0", " ")
    for pattern, instead in _HOLES:
        text = pattern.sub(instead, text)
    lines: list[str] = []
    headings: list[tuple[int, str]] = []
    numbers: dict[str, int] = {}
    for line in text.split("\n"):
        line = line.rstrip()
        heading = line.startswith("=") and _HEADING.match(line)
        if heading:
            level = len(heading[1])
            headings = [*(above for above in headings if above[0] < level), (level, heading[2])]
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
            if line.startswith("|") or _RULE.fullmatch(line):  # rows of a table that a template begins
                continue
        if line:
            for _, title in headings:
                lines += ["", title, ""] if lines and lines[-1] else [title, ""]
            headings = []
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).replace("{{", "").replace("}}", "").replace(_ITEM_MARK, "")
