"""Forms of wiki text for several scripts and regions, such as `-{zh-hans:计算机;zh-hant:電腦}-`.

A wiki in a language with several written forms (Chinese, Serbian, Kazakh ...) names the forms of a word in such marks.
See https://www.mediawiki.org/wiki/Writing_systems/Syntax.
"""

from __future__ import annotations

import re

_INNERMOST = re.compile(r"-\{(?!\{)((?>(?:(?!-\{|\}-).)*))\}-", re.DOTALL)
_MOST_NESTED = 10
_WITH_FORM = re.compile(r"-\{[^{}:]*+:")
_LANGUAGES = frozenset(("zh", "gan", "wuu", "sr", "sh", "kk", "ku", "uz", "tg", "iu", "shi", "crh", "ban", "mni"))
"""Languages whose wikis have such marks. Elsewhere `-{2}-` may be a part of a name."""
_FLAGS = re.compile(
    r"\s*+((?:[A-Z-]|[a-z]{2,3}(?>(?:-[a-z]+)*))(?>(?:\s*+;\s*+(?:[A-Z]|[a-z]{2,3}(?>(?:-[a-z]+)*)))*))\s*+\|"
)
"""Capital letters and `-`, or the variants for which a text is not converted."""
_FORM = re.compile(r"(?:[^:;]*+=>)?\s*+([a-z]{2,3}(?>(?:-[a-z]+)*))\s*+:(.*)", re.DOTALL)
_PART = re.compile(r"(?>(?:&#?\w{1,10}+;|[^;])+)")
_HIDDEN = frozenset("HT-")
"""Flags of marks that show nothing: a rule for the rest of the page, and the page's title."""
_REGIONS = {"zh-hans": ("zh-cn", "zh-sg", "zh-my"), "zh-hant": ("zh-tw", "zh-hk", "zh-mo")}


def in_one_variant(text: str, variant: str, language: str = "zh") -> str:
    """Replace every mark with its form for a variant.

    Without this form, the form of a region with the same script is taken (`zh-cn` for `zh-hans`), or else the first.

    Args:
        text: wiki text without templates.
        variant: the wanted form, such as `zh-hans`, `zh-hant`, `zh-tw` or `sr-el`.
        language: the language of the wiki; in other languages than those with such marks, the text must have a form.

    Example:
        >>> in_one_variant("-{zh-cn:计算机; zh-tw:電腦}-和-{H|zh-cn:甲;zh-tw:乙}--{音樂}-", "zh-hant")
        '電腦和音樂'
    """
    if "-{" not in text or (language.partition("-")[0] not in _LANGUAGES and not _WITH_FORM.search(text)):
        return text
    wanted_variants = (variant, *_wanted_regions(variant))
    for _ in range(_MOST_NESTED):
        text, number = _INNERMOST.subn(lambda mark: _form(mark[1], wanted_variants), text)
        if not number:
            break
    return text


def _wanted_regions(variant: str) -> tuple[str, ...]:
    for script, regions in _REGIONS.items():
        if variant in (script, *regions):
            return (script, *regions, "zh")
    return ()


def _form(content: str, wanted: tuple[str, ...]) -> str:
    flags = _FLAGS.match(content)
    if flags is not None:
        content = content[flags.end() :]
        names = frozenset(flags[1].replace(";", " ").split())
        if names & _HIDDEN:
            return ""
        if "R" in names:  # the text as it is
            return content
    forms: dict[str, str] = {}
    for part in _PART.findall(content):
        match = _FORM.match(part)
        if match is not None:
            forms.setdefault(match[1], match[2].strip())
        elif not forms and part.strip():
            return content.strip()  # a text that is not converted
    return next((forms[name] for name in wanted if name in forms), next(iter(forms.values()), ""))
