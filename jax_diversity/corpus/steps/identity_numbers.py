"""Numbers that name a person or an account, found by their form and their checksum: cards, IBANs, national numbers.

A number whose form and checksum many other numbers share counts only where a word before it says what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from functools import lru_cache
from itertools import cycle

from jax_diversity.corpus.steps.base import Span
from jax_diversity.corpus.steps.replacing import Find, before, by_pattern, holding

# ---- Cards.
_GROUPS = re.compile(r"\d(?<![\w.,-].)\d*(?:[ -]\d+)*(?![\w]|[.,-]\d)")
_MOST_GROUPS, _SHORTEST_CARD = 7, 12
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

# ---- Tables of checksums.
_VERHOEFF = (
    *("0123456789", "1234067895", "2340178956", "3401289567", "4012395678"),
    *("5987604321", "6598710432", "7659821043", "8765932104", "9876543210"),
)
_VERHOEFF_TURNS = (
    *("0123456789", "1576283094", "5803796142", "8916043527"),
    *("9453126870", "4286573901", "2793806415", "7046913258"),
)
_SPANISH_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_ITALIAN_ODD = dict(
    zip(
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (
            *(1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17),
            *(19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23),
        ),
        strict=True,
    )
)
_CHINESE_PROVINCES = re.compile("1[1-5]|2[1-3]|3[1-7]|4[1-6]|5[0-4]|6[1-5]|71|8[1-3]")


def cards() -> Find:
    """Card numbers, in one run of digits or in groups: an issuer's first digits, and Luhn's checksum."""

    def find(text: str) -> Iterator[Span]:
        for run in _GROUPS.finditer(text):
            if run.end() - run.start() < _SHORTEST_CARD:
                continue
            # Other numbers may stand before and after it; a row of many is of something else.
            groups = [each.span() for each in re.finditer(r"\d+", run[0])]
            first = 0 if len(groups) <= _MOST_GROUPS else len(groups)
            while first < len(groups):
                last = next((last for last in range(len(groups), first, -1) if _is_card(run[0], groups[first:last])), 0)
                if last:
                    yield run.start() + groups[first][0], run.start() + groups[last - 1][1]
                first = last or first + 1

    return holding(_has_long_number, find)


def ibans() -> Find:
    """IBANs: the length of their country, and the checksum modulo 97 (ISO 13616)."""

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
            is_whole = len(characters) == length and not text[end : end + 1].isalnum()
            if is_whole and int("".join(str(int(each, 36)) for each in characters[4:] + characters[:4])) % 97 == 1:
                yield match.start(), end
                free = end

    return find


def national_numbers() -> dict[str, Find]:
    """The numbers by which states know their people, by country."""
    return {
        country: holding(_has_long_number, find) if country in _OF_DIGITS else find
        for country, find in _by_country().items()
    }


# The lookbehind stands behind the first character: a pattern that begins with a class of characters is searched fast.
_ALONE, _ENDS = r"(?<![\w.,/+-].)", r"(?![\w/]|[.,-]\d|-\w)"
_LONG = re.compile(r"\d(?:[ .-]?\d){7}")
_OF_DIGITS = frozenset(("BR", "CN", "DE", "FR", "IN", "PL", "US"))
_ITALIAN = r"[\dLMNP-V]"


@lru_cache(maxsize=1)
def _has_long_number(text: str) -> bool:
    """Whether there are eight digits, asked by many kinds of the same text."""
    return _LONG.search(text) is not None


def _by_country() -> dict[str, Find]:
    # Social Security: without a checksum; areas 000, 666 and 900 to 999, group 00 and serial 0000 are never given.
    hyphenated = rf"[0-8]{_ALONE}\d\d(?<!000)(?<!666)-(?!00)\d\d-(?!0000)\d{{4}}{_ENDS}"
    return {
        "US": _either(
            by_pattern(re.compile(hyphenated), _is_no_telephone),
            by_pattern(
                re.compile(hyphenated.replace("-(?!", " ?(?!")),
                _behind(r"\bssn\b|social[ -]security|tax[ -]?payer|\bi?tin\b"),
            ),
        ),
        # National Insurance: letters and prefixes that are never given (HMRC, NIM39110).
        "GB": by_pattern(
            re.compile(
                rf"[A-CEGHJ-PR-TW-Z]{_ALONE}[A-CEGHJ-NPR-TW-Z](?<!BG|GB|KN|NK|NT|TN|ZZ)"
                rf"( ?)\d\d\1\d\d\1\d\d\1[A-D]{_ENDS}"
            )
        ),
        "DE": by_pattern(
            re.compile(rf"[1-9]{_ALONE}\d( ?)\d{{3}}\1\d{{3}}\1\d{{3}}{_ENDS}"),
            lambda match: _is_german(_plain(match[0])),
        ),
        "ES": by_pattern(
            re.compile(rf"[\dXYZ]{_ALONE}(?:(?<=\d)|-?)\d{{7}}-?[A-HJ-NP-TV-Z]{_ENDS}"),
            lambda match: _is_spanish(_plain(match[0])),
        ),
        # Digits may be letters where two people would have the same code.
        "IT": by_pattern(
            re.compile(
                rf"[A-Z]{_ALONE}[A-Z]{{5}}{_ITALIAN}{{2}}[A-EHLMPRST]{_ITALIAN}{{2}}[A-Z]{_ITALIAN}{{3}}[A-Z]{_ENDS}"
            ),
            lambda match: _is_italian(match[0]),
        ),
        "FR": by_pattern(
            re.compile(rf"[1-478]{_ALONE}( ?)\d\d\1\d\d\1(?:\d\d|2[AB])\1\d{{3}}\1\d{{3}} ?\d\d{_ENDS}"),
            lambda match: _is_french(_plain(match[0])),
        ),
        "IN": by_pattern(
            re.compile(rf"[2-9]{_ALONE}\d{{3}}([ -]?)\d{{4}}\1\d{{4}}{_ENDS}"),
            _all(lambda match: _is_verhoeff(_plain(match[0])), _behind(r"a+dh?aa?r|uidai|\buid\b|आधार")),
        ),
        "BR": _either(
            by_pattern(
                re.compile(rf"\d{_ALONE}\d\d\.\d{{3}}\.\d{{3}}-\d\d{_ENDS}"),
                lambda match: _is_brazilian(_plain(match[0])),
            ),
            by_pattern(
                re.compile(rf"\d{_ALONE}\d{{10}}{_ENDS}"),
                _all(lambda match: _is_brazilian(match[0]), _behind(r"\bcpf\b")),
            ),
        ),
        "PL": by_pattern(
            re.compile(rf"\d{_ALONE}\d{{10}}{_ENDS}"), _all(lambda match: _is_polish(match[0]), _behind("pesel"))
        ),
        "CN": by_pattern(
            re.compile(rf"[1-8]{_ALONE}\d{{5}}(?:19|20)\d{{9}}[\dXx]{_ENDS}"), lambda match: _is_chinese(match[0])
        ),
    }


_TELEPHONE = re.compile(r"(?i:phone|fax|tel)\W*$")


def _either(*finds: Find) -> Find:
    """What the one or the other finds: places of the later ones that touch none of the earlier ones."""

    def find(text: str) -> Iterable[Span]:
        spans: list[Span] = []
        for each in finds:
            spans += [span for span in each(text) if all(span[1] <= start or stop <= span[0] for start, stop in spans)]
        return sorted(spans)

    return find


def _all(*checks: Callable[[re.Match], bool]) -> Callable[[re.Match], bool]:
    return lambda match: all(check(match) for check in checks)


def _behind(words: str, characters: int = 50) -> Callable[[re.Match], bool]:
    """Whether a word that says what the number is stands a little before it."""
    pattern = re.compile(words, re.IGNORECASE)
    return lambda match: pattern.search(before(match, characters)) is not None


def _is_no_telephone(match: re.Match) -> bool:
    return _TELEPHONE.search(before(match, 12)) is None


def _plain(number: str) -> str:
    return re.sub(r"[ .-]", "", number)


def _is_card(text: str, groups: Sequence[Span]) -> bool:
    """Groups as on cards, the issuer's first digits, and Luhn: every second digit from the right is doubled."""
    sizes = [end - start for start, end in groups]
    is_grouped = sizes in ([4, 6, 5], [4, 6, 4]) or (set(sizes[:-1]) <= {4} and (sizes[-1] <= 4 or len(sizes) == 1))
    digits = "".join(text[start:end] for start, end in groups)
    if not is_grouped or not digits.isascii() or not _ISSUER.match(digits):
        return False
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    return sum(value - 9 * (value > 9) for value in doubled) % 10 == 0


def _is_german(digits: str) -> bool:
    """Of the first ten digits just one comes twice or three times; ISO 7064, modulo 11, 10."""
    most = sorted((digits[:10].count(digit) for digit in set(digits[:10])), reverse=True)
    if most[0] not in (2, 3) or most[1] > 1:
        return False
    product = 10
    for digit in digits[:10]:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == int(digits[10])


def _is_spanish(number: str) -> bool:
    digits = number[:-1].translate(str.maketrans("XYZ", "012"))
    return _SPANISH_LETTERS[int(digits) % 23] == number[-1]


def _is_italian(code: str) -> bool:
    total = sum(
        _ITALIAN_ODD[letter] if place % 2 == 0 else int(letter) if letter.isdigit() else ord(letter) - ord("A")
        for place, letter in enumerate(code[:15])
    )
    return chr(ord("A") + total % 26) == code[15]


def _is_french(number: str) -> bool:
    """Month of birth, and the key: 97 less the rest of the number; departments 2A and 2B count as 19 and 18."""
    month = int(number[3:5])
    digits = number[:13].replace("2A", "19").replace("2B", "18")
    return (1 <= month <= 12 or 20 <= month <= 42 or month >= 50) and 97 - int(digits) % 97 == int(number[13:])


def _is_verhoeff(digits: str) -> bool:
    check = 0
    for place, digit in enumerate(reversed(digits)):
        check = int(_VERHOEFF[check][int(_VERHOEFF_TURNS[place % 8][int(digit)])])
    return check == 0


def _is_brazilian(digits: str) -> bool:
    if len(set(digits)) == 1:
        return False
    for length in (9, 10):
        total = sum(int(digit) * (length + 1 - place) for place, digit in enumerate(digits[:length]))
        if total * 10 % 11 % 10 != int(digits[length]):
            return False
    return True


def _is_polish(digits: str) -> bool:
    """Two digits each of year, month (plus 20 a century after the 20th, 80 before it) and day; weights 1, 3, 7, 9."""
    year, month, day = (int(digits[at : at + 2]) for at in (0, 2, 4))
    century = {0: 1900, 1: 2000, 2: 2100, 3: 2200, 4: 1800}[month // 20]
    total = sum(int(digit) * weight for digit, weight in zip(digits[:10], cycle((1, 3, 7, 9)), strict=False))
    return _is_date(century + year, month % 20, day) and (10 - total % 10) % 10 == int(digits[10])


def _is_chinese(number: str) -> bool:
    """Province, date of birth, and ISO 7064, modulo 11, 2."""
    born = int(number[6:10]), int(number[10:12]), int(number[12:14])
    if not _CHINESE_PROVINCES.match(number) or not _is_date(*born):
        return False
    total = sum(int(digit) * pow(2, 17 - place, 11) for place, digit in enumerate(number[:17]))
    return "10X98765432"[total % 11] == number[17].upper()


def _is_date(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True
