"""Write raised and lowered text of markup in one line: exponents, indices, ordinals."""

from __future__ import annotations

import re

from jax_diversity.foundation.text.entities import unescaped

# The content may be in one further tag, such as `<sup><i>n</i></sup>`. Ordinals and abbreviations (1st, XIXe, TM) stay
# letters, and notes in brackets are left alone.
_RAISED = re.compile(
    r"<su(?P<kind>[pb])(?:\s[^<>]*)?>\s*+(?P<tag><(?:i|b|em|strong|var|span|small|font|mi|mn)(?:\s[^<>]*)?>)?"
    r"(?P<content>[^<>\[\]{}\n]{1,60})(?(tag)</[a-z]{1,6}>)\s*+</su(?P=kind)\s*>",
    re.IGNORECASE,
)
_UNICODE = {
    "p": str.maketrans("0123456789+-\u2212=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿ"),
    "b": str.maketrans("0123456789+-\u2212=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎"),
}
_NUMERIC = {"p": re.compile(r"[0-9+\u2212=()n-]+"), "b": re.compile(r"[0-9+\u2212=()-]+")}
_ABBREVIATION = re.compile(r"[^\W\d_]{2,}\.?|[eoªº]")


def with_raised(markup: str) -> str:
    """Return markup with Unicode's superscripts and subscripts in place of `<sup>` and `<sub>`, or `^` and `_`.

    Example:
        >>> with_raised("10<sup>6</sup> x<sub>i</sub> 1<sup>st</sup>")
        '10⁶ x_i 1st'
    """
    return _RAISED.sub(_written, markup)


def _written(match: re.Match) -> str:
    kind, content = match["kind"].lower(), unescaped(match["content"]).strip().replace("''", "")
    if _NUMERIC[kind].fullmatch(content):
        return content.translate(_UNICODE[kind])
    if "<" in content or "&" in content:
        return match[0]
    if not content or (kind == "p" and _ABBREVIATION.fullmatch(content)):
        return content
    sign = "^" if kind == "p" else "_"
    return f"{sign}{content}" if content.isalnum() else f"{sign}({content})"
