"""Find numbers of cards, accounts (IBAN) and persons, by form and checksum (python-stdnum).

If many other numbers have the same form and checksum, a word before the number is also required. IBANs are checked
here: the text must be read up to the length for the country, and the checksum is one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from jax_diversity.preparation.steps.base import Span
from jax_diversity.preparation.steps.replacing import Find, before, by_pattern, has_long_number, holding

HAS_CHECKSUMS = find_spec("stdnum") is not None
"""Whether python-stdnum is installed. Without it, every number of the right form is found."""

# ---- Cards, of at least twelve digits.
_GROUPS = re.compile(r"\d(?<![\w.,-].)(?=(?:[ -]?\d){11})\d*(?:[ -]\d+)*(?![\w]|[.,-]\d)", re.ASCII)
_MOST_GROUPS = 7
# First digits and lengths of the large issuers (ISO/IEC 7812): Visa, Mastercard, American Express, Diners, Discover,
# JCB, UnionPay, Maestro.
_ISSUER = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})$|5[1-5]\d{14}$|2(?:2[2-9]|[3-6]\d|7[01])\d{13}$|2720\d{12}$|3[47]\d{13}$"
    r"|3(?:0[0-5]|[689]\d)\d{11}$|6(?:011|5\d\d)\d{12}$|64[4-9]\d{13}$|35(?:2[89]|[3-8]\d)\d{12}$|62\d{14,17}$"
    r"|(?:50(?:18|20|38)|6304|6390|6759|676[1-3])\d{8,15}$|(?:1800|2131)\d{11}$"
)

# ---- Accounts: the lengths of IBANs by country (SWIFT's registry).
_IBAN = re.compile(r"[A-Z](?<![A-Za-z0-9].)[A-Z]\d{2}(?=[ -]?[A-Z0-9])")
_IBAN_LENGTHS = {
    country: length
    for length, countries in {
        **{15: "NO", 16: "BE", 18: "DK FI FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK", 21: "CH HR LI LV"},
        **{22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG"},
        **{25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HN HU LB NI PL SV"},
        **{29: "BR EG PS QA UA", 30: "JO KW MU", 31: "MT SC", 32: "LC", 33: "RU"},
    }.items()
    for country in countries.split()
}


def cards() -> Find:
    """Return the search for card numbers, in one run of digits or in groups."""

    def find(text: str) -> Iterator[Span]:
        for run in _GROUPS.finditer(text):
            # There may be other numbers before and after a card number. A row of many groups is not a card.
            groups = [match.span() for match in re.finditer(r"\d+", run[0])]
            first = 0 if len(groups) <= _MOST_GROUPS else len(groups)
            while first < len(groups):
                last = next((last for last in range(len(groups), first, -1) if _is_card(run[0], groups[first:last])), 0)
                if last:
                    yield run.start() + groups[first][0], run.start() + groups[last - 1][1]
                first = last or first + 1

    return holding(has_long_number, find)


def ibans() -> Find:
    """Return the search for IBANs, by the length for the country and the checksum modulo 97 (ISO 13616)."""

    def find(text: str) -> Iterator[Span]:
        free = 0
        for match in _IBAN.finditer(text):
            length = _IBAN_LENGTHS.get(match[0][:2])
            if length is None or match.start() < free:
                continue
            characters, end = [*match[0]], match.end()
            while len(characters) < length and end < len(text):
                if text[end] in " -" and text[end - 1] not in " -":
                    end += 1
                elif (letter := text[end]).isascii() and (letter.isupper() or letter.isdigit()):
                    characters.append(letter)
                    end += 1
                else:
                    break
            following = text[end : end + 1]
            is_whole = len(characters) == length and not (following.isascii() and following.isalnum())
            if (
                is_whole
                and int("".join(str(int(character, 36)) for character in characters[4:] + characters[:4])) % 97 == 1
            ):
                yield match.start(), end
                free = end

    return find


def national_numbers() -> dict[str, Find]:
    """Return country -> search for national identity numbers."""
    return {
        country: holding(has_long_number, find) if country in _OF_DIGITS else find
        for country, find in _by_country().items()
    }


# The lookbehind follows the first character: a pattern that begins with a class of characters is searched fast.
_ALONE, _ENDS = r"(?<![\w.,/+-].)", r"(?![\w/]|[.,-]\d|-\w)"
_OF_DIGITS = frozenset(("BR", "CN", "DE", "ES", "FR", "IN", "PL", "US"))
_ITALIAN = r"[\dLMNP-V]"
_FRENCH_MONTH = r"(?:0[1-9]|1[0-2]|[23]\d|4[0-2]|[5-9]\d)"
_CHINESE_PROVINCE = r"(?<=1[1-5]|2[1-3]|3[1-7]|4[1-6]|5[0-4]|6[1-5]|71|8[1-3])"


def _by_country() -> dict[str, Find]:
    # Social Security has no checksum; areas 000, 666 and 900 to 999, group 00 and serial 0000 are never assigned.
    hyphenated = rf"[0-8]{_ALONE}\d\d(?<!000)(?<!666)-(?!00)\d\d-(?!0000)\d{{4}}{_ENDS}"
    unhyphenated = hyphenated.replace("-(?!", " ?(?!")
    social_security = _behind(r"\bssn\b|social[ -]security|tax[ -]?payer|\bi?tin\b")
    return {
        "US": _either(_numbers(hyphenated, _follows_no_telephone), _numbers(unhyphenated, social_security)),
        # National Insurance: letters and prefixes that are never assigned (HMRC, NIM39110).
        "GB": _numbers(
            rf"[A-CEGHJ-PR-TW-Z]{_ALONE}[A-CEGHJ-NPR-TW-Z](?<!BG|GB|KN|NK|NT|TN|ZZ)( ?)\d\d\1\d\d\1\d\d\1[A-D]{_ENDS}"
        ),
        "DE": _numbers(rf"[1-9]{_ALONE}\d( ?)\d{{3}}\1\d{{3}}\1\d{{3}}{_ENDS}", _valid("de.idnr")),
        "ES": _numbers(rf"[\dXYZ]{_ALONE}(?:(?<=\d)|-?)\d{{7}}-?[A-HJ-NP-TV-Z]{_ENDS}", _valid("es.dni", "es.nie")),
        # If two people would have the same code, letters replace digits.
        "IT": _numbers(
            rf"[A-Z](?=[A-Z]{{5}}){_ALONE}[A-Z]{{5}}{_ITALIAN}{{2}}[A-EHLMPRST]{_ITALIAN}{{2}}[A-Z]{_ITALIAN}{{3}}[A-Z]{_ENDS}",
            _valid("it.codicefiscale"),
        ),
        "FR": _numbers(
            rf"[1-478]{_ALONE}( ?)\d\d\1{_FRENCH_MONTH}\1(?:\d\d|2[AB])\1\d{{3}}\1\d{{3}} ?\d\d{_ENDS}",
            _valid("fr.nir"),
        ),
        "IN": _numbers(
            rf"[2-9]{_ALONE}\d{{3}}([ -]?)\d{{4}}\1\d{{4}}{_ENDS}",
            _valid("in_.aadhaar"),
            _behind(r"a+dh?aa?r|uidai|\buid\b|आधार"),
        ),
        "BR": _either(
            _numbers(rf"\d{_ALONE}\d\d\.\d{{3}}\.\d{{3}}-\d\d{_ENDS}", _valid("br.cpf")),
            _numbers(rf"\d{_ALONE}\d{{10}}{_ENDS}", _valid("br.cpf"), _behind(r"\bcpf\b")),
        ),
        "PL": _numbers(rf"\d{_ALONE}\d{{10}}{_ENDS}", _valid("pl.pesel"), _behind("pesel")),
        "CN": _numbers(
            rf"[1-8]{_ALONE}\d{_CHINESE_PROVINCE}\d{{4}}(?:19|20)\d{{9}}[\dXx]{_ENDS}",
            _valid("iso7064.mod_11_2"),
            _has_chinese_birthday,
        ),
    }


_TELEPHONE = re.compile(r"(?i:phone|fax|tel)\W*$")


def _either(*finds: Find) -> Find:
    """Join several searches. A later search adds only spans that do not overlap earlier spans."""

    def find(text: str) -> Iterable[Span]:
        spans: list[Span] = []
        for find in finds:
            spans += [span for span in find(text) if all(span[1] <= start or stop <= span[0] for start, stop in spans)]
        return sorted(spans)

    return find


def _numbers(pattern: str, *checks: Callable[[re.Match], bool]) -> Find:
    return by_pattern(re.compile(pattern, re.ASCII), lambda match: all(check(match) for check in checks))


def _valid(*modules: str) -> Callable[[re.Match], bool]:
    """Return a check by modules of python-stdnum, one of which must accept the number. Without the library: True."""

    def check(match: re.Match) -> bool:
        number = re.sub(r"[ .-]", "", match[0]).upper()
        is_one_digit = len(set(number)) == 1  # such a number has a right checksum in some countries
        return not is_one_digit and any(_module(name).is_valid(number) for name in modules)

    return check if HAS_CHECKSUMS else lambda match: True


@cache
def _module(name: str) -> Any:
    return import_module(f"stdnum.{name}")


def _has_chinese_birthday(match: re.Match) -> bool:
    """Return whether the date is valid. stdnum.cn.ric would also refuse counties outside its list."""
    try:
        date.fromisoformat(f"{match[0][6:10]}-{match[0][10:12]}-{match[0][12:14]}")
    except ValueError:
        return False
    return True


def _behind(words: str, characters: int = 50) -> Callable[[re.Match], bool]:
    """Return a check whether a word that names the kind of number is shortly before the number."""
    pattern = re.compile(words, re.IGNORECASE)
    return lambda match: pattern.search(before(match, characters)) is not None


def _follows_no_telephone(match: re.Match) -> bool:
    return _TELEPHONE.search(before(match, 12)) is None


def _is_card(text: str, groups: Sequence[Span]) -> bool:
    """Return whether groups of digits have the form of a card, the first digits of an issuer, and Luhn's checksum."""
    sizes = [end - start for start, end in groups]
    is_grouped = sizes in ([4, 6, 5], [4, 6, 4]) or (set(sizes[:-1]) <= {4} and (sizes[-1] <= 4 or len(sizes) == 1))
    digits = "".join(text[start:end] for start, end in groups)
    if not is_grouped or not digits.isascii() or not _ISSUER.match(digits):
        return False
    return not HAS_CHECKSUMS or _module("luhn").is_valid(digits)
