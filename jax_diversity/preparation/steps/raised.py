"""Write raised and lowered text of markup in one line: exponents, indices, ordinals."""

from __future__ import annotations

import re

from jax_diversity.foundation.text.entities import unescaped

# The content may have tags and comments, such as `<sup><b><i>n</i></b></sup>`. Ordinals and abbreviations (1st, XIXe,
# TM) stay letters, and notes in brackets are left alone. Word processors write a style in place of the element.
_INLINE = "a|abbr|b|bdi|bdo|big|cite|code|del|em|font|i|ins|kbd|mark|nobr|s|samp|small|span|strong|tt|u|var|wbr"
_INNER = rf"(?:[^<>\[\]{{}}\n]|\n|<!--[^<>\n]{{0,300}}-->|</?(?:{_INLINE})\b[^<>\n]{{0,300}}>){{1,200}}?"
_RAISED = re.compile(rf"<su(?P<kind>[pb])(?:\s[^<>]*)?>(?P<content>{_INNER})</su(?P=kind)\s*>", re.IGNORECASE)
_STYLED = re.compile(
    r"<(?P<tag>span|font)\s[^<>]{0,300}?(?:vertical-align:\s?su(?P<style>per|b)|class=[\"']su(?P<class>p|b)(?:erscript|script)?[\"'])"
    r"[^<>]{0,300}>(?P<content>[^<>\[\]{}\n]{1,60})</(?P=tag)>",
    re.IGNORECASE,
)
SIGNS_OF_RAISED = ("<su", "l-align", 'class="su', "class='su")
"""Markup without any of these signs (compared in lower case) does not change."""
_LONGEST_PHRASE = 60
_TAG, _MOST_NESTED = re.compile(r"<[^<>]+>"), 3
_UNICODE = {
    "p": str.maketrans("0123456789+-\u2212\u2013=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻⁼⁽⁾ⁿ"),
    "b": str.maketrans("0123456789+-\u2212\u2013=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₋₌₍₎"),
}
# A dash between numbers is a range, not a minus.
_NUMERIC = {
    "p": re.compile(r"(?:[0-9+\u2212=()n-]|(?<![0-9n)])\u2013)+"),
    "b": re.compile(r"(?:[0-9+\u2212=()-]|(?<![0-9)])\u2013)+"),
}
_LEFT_ALONE = re.compile(r"[<&\[\]{}]")
_ABBREVIATION = re.compile(r"[^\W\d_]{2,}\.?|[eoªº]")


def with_raised(markup: str) -> str:
    """Return markup with Unicode's superscripts and subscripts in place of `<sup>` and `<sub>`, or `^` and `_`.

    Example:
        >>> with_raised("10<sup>6</sup> x<sub>i</sub> 1<sup>st</sup>")
        '10⁶ x_i 1st'
    """
    if any(map(markup.__contains__, SIGNS_OF_RAISED[1:])):
        markup = _STYLED.sub(lambda match: f"<su{_kind(match)}>{match['content']}</su{_kind(match)}>", markup)
    for _ in range(_MOST_NESTED):  # the innermost first
        markup, number = _RAISED.subn(_written, markup)
        if not number:
            break
    return markup


def _kind(match: re.Match) -> str:
    return (match["style"] or match["class"])[0].lower()


def _written(match: re.Match) -> str:
    kind, content = match["kind"].lower(), unescaped(_TAG.sub("", match["content"])).strip().replace("''", "")
    if _NUMERIC[kind].fullmatch(content):
        return content.translate(_UNICODE[kind])
    # Brackets may be written as entities.
    if not content or _LEFT_ALONE.search(content) or (len(content) > _LONGEST_PHRASE and " " in content):
        return match[0]
    if kind == "p" and _ABBREVIATION.fullmatch(content):
        return content
    sign = "^" if kind == "p" else "_"
    return f"{sign}{content}" if content.isalnum() else f"{sign}({content})"
