"""Find telephone numbers: international numbers, numbers after a word such as "phone", and numbers of given regions.

The library phonenumbers decides which numbers are in use. Candidates are searched here: the library's own search takes
four times as long for each region, and does not use words such as "phone" before a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from jax_diversity.corpus.steps.base import Span
from jax_diversity.corpus.steps.replacing import Find, across_lines, before
from jax_diversity.foundation.errors import UserError, did_you_mean
from jax_diversity.foundation.libraries import optional

_INTERNATIONAL = re.compile(r"\+(?<![\w+].)(?: (?=\d+\D{1,3}\d+\D))?\(?[1-9][\d ()./-]{6,24}(?<=\d)")
# Groups of digits, not part of a longer row of numbers; an unbroken run of digits is ambiguous.
_NATIONAL = re.compile(
    r"[(\d](?<![\w.,:/+-].)(?<!\d \d)(?:(?<=\()\d{1,5}\) ?|\d{0,4}[ ./-])\d{2,5}(?:[ ./-]?\d{1,5}){1,5}"
    r"(?!\w|[.,:/-]\d| \d{1,5} \d)"
)
_NUMBER = re.compile(r"[(\d+](?<![\w.,+-].)[\d ()./-]{5,22}\d(?![\w@]|[.,:]\d)")
_LABEL = re.compile(
    r"(?:\b(?:(?:tele)?phones?|ph(?=[.:])|tel|telefone?|teléfono|téléphone|telefono|tlf|facsimile|fax|telefax|mobile|mobil"
    r"|móvil|fone|portable|handy|cell(?:phone)?|celular|whatsapp|toll[ -]free|hotline|voice|call|dial)\b"
    r"|☎|📞|电话|電話|手机|传真|телефон)"
    r"[^\w\n+(]{0,5}(?:\(?(?:number|no|nr|num|us|me|him|her|at|on|is|work|home|office|toll|free|direct|or|and|fax|tel"
    r"|phone|voice)\b[^\w\n+(]{0,5}){0,3}\Z",
    re.IGNORECASE,
)
_YEARS = re.compile(r"\D*(?:1[5-9]\d\d|20\d\d)(?:\D+(?:1[5-9]\d\d|20\d\d))+\D*")
# Years, a decimal number, an American post code, an IP address, a date, rows of four digits.
_OTHER = re.compile(
    rf"{_YEARS.pattern}|\d+\.\d+|\d{{5}}-\d{{4}}|\d+(?:\.\d{{1,3}}){{3}}|\d{{1,2}}[./-]\d{{1,2}}[./-]\d{{4}}.*"
    r"|\d{4}[./-]\d\d?[./-]\d\d?.*|\d{4}(?: \d{4})+"
)


def telephone_numbers(regions: Sequence[str]) -> Find:
    """Numbers that begin with a plus, follow a word for a telephone, or have the usual form of a region.

    Raises:
        UserError: the library phonenumbers is missing, or a region is unknown.
    """
    phonenumbers = optional("phonenumbers", "preparation")
    known = phonenumbers.SUPPORTED_REGIONS
    for region in regions:
        if region not in known:
            near = did_you_mean(region, known)
            raise UserError(f"Expected regions of two capital letters, such as US DE GB, found {region!r}{near}")
    exact = phonenumbers.Leniency.STRICT_GROUPING

    def find_sure(text: str) -> list[Span]:
        spans = [*chain.from_iterable(map(_longest, _INTERNATIONAL.finditer(text)))] if "+" in text else []
        starts = {start for start, _ in spans}
        labelled = (match for match in _NUMBER.finditer(text) if match.start() not in starts)
        return spans + [match.span() for match in labelled if _is_labelled(match)]

    across = across_lines(find_sure)

    def find(text: str) -> Iterator[Span]:
        spans = [*across(text)]
        if regions:
            for match in filter(_is_grouped, _NATIONAL.finditer(text)):
                spans += next(filter(None, (_matches(match, region, exact) for region in regions)), [])
        return _apart(spans)

    return find


def _is_labelled(match: re.Match) -> bool:
    """Whether there are as many digits as in a telephone number, and a word for a telephone before them."""
    if not 7 <= sum(map(str.isdigit, match[0])) <= 15 or _YEARS.fullmatch(match[0]):
        return False
    words = before(match, 40)
    return _LABEL.search(words.replace("\n", " ") if match[0].startswith("+") else words) is not None


def _is_grouped(match: re.Match) -> bool:
    """Whether digits are grouped as in a telephone number: at least three groups, or a leading zero."""
    groups = re.findall(r"\d+", match[0])
    many = len(groups) > 2 or (match[0].startswith("0") and len(groups[0]) > 1)
    return many and sum(map(len, groups)) >= 8 and not _OTHER.fullmatch(match[0])


def _longest(match: re.Match) -> list[Span]:
    """The longest beginning that is a number in use; another number may follow it."""
    import phonenumbers

    for end in [each.end() for each in re.finditer(r"\d+", match[0])][::-1]:
        try:
            if phonenumbers.is_valid_number(phonenumbers.parse(match[0][:end])):
                return [(match.start(), match.start() + end)]
        except phonenumbers.NumberParseException:
            break
    return []


def _matches(match: re.Match, region: str, leniency: int) -> list[Span]:
    from phonenumbers import PhoneNumberMatcher

    return [
        (match.start() + each.start, match.start() + each.end)
        for each in PhoneNumberMatcher(match[0], region, leniency, max_tries=10)
        if each.start <= 1  # not part of a longer number
    ]


def _apart(spans: list[Span]) -> Iterator[Span]:
    """The spans in order; of overlapping spans only the first."""
    end = 0
    for start, stop in sorted(spans):
        if start >= end:
            yield start, stop
            end = stop
