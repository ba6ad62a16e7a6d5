"""Find telephone numbers: international numbers, numbers after a word such as "phone", and numbers of given regions.

The library phonenumbers decides which numbers are valid. This module searches the candidates itself: the library's own
search takes four times as long for each region, and it ignores words such as "phone" before a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain

from jax_diversity.foundation.errors import UserError, did_you_mean
from jax_diversity.foundation.libraries import optional
from jax_diversity.preparation.steps.base import Span
from jax_diversity.preparation.steps.replacing import Find, across_lines, before, has_long_number

_INTERNATIONAL = re.compile(r"\+(?<![\w+].)(?: (?=\d+\D{1,3}\d+\D))?\(?[1-9][\d ()./-]{6,24}(?<=\d)", re.ASCII)
# Groups of digits, not part of a longer row of numbers; an unbroken run of digits is ambiguous.
_NATIONAL = re.compile(
    r"[(\d](?<![\w.,:/+-].)(?<!\d \d)(?:(?<=\()\d{1,5}\) ?|\d{0,4}[ ./-])\d{2,5}(?:[ ./-]?\d{1,5}){1,5}"
    r"(?!\w|[.,:/-]\d| \d{1,5} \d)",
    re.ASCII,
)
# `Tel.030` has a word before the point.
_NUMBER = re.compile(r"[(\d+](?<![\w,+-].)(?:(?<!\..)|(?<=[^\d\s.,]\..))[\d ()./-]{5,22}\d(?![\w@]|[.,:]\d)", re.ASCII)
_LABEL = re.compile(
    r"(?:(?<![A-Za-z0-9_])(?:(?:tele)?phones?|ph(?=[.:])|tel|t[eé]l|tfno|telefone?|teléfono|téléphone|telefono|telefoon|tlf|puh(?:elin)?"
    r"|(?:telefon|telefoon|mobil|ruf)(?:nummer|nr)|facsimile|fax|telefax|mobile|mobil|mob(?=[.:])|gsm|móvil|fone|portable"
    r"|handy|cell(?:phone)?|celular|komórka|whatsapp|viber|sms|text(?= (?:me|us)\b)|toll[ -]free|hotline|voice|call"
    r"|dial)\b"
    r"|☎|📞|电话|電話|手机|手機|传真|傳真|座机|热线|熱線|拨打|撥打|致电|致電|联系方式|聯絡方式|携帯|連絡先|ファック?ス|フリーダイヤル"
    r"|전화|휴대폰|핸드폰|팩스|연락처|телефон[аеуы]?|тел|моб|факс|τηλ(?:έφωνο)?|โทร(?:ศัพท์)?|เบอร์|มือถือ|แฟกซ์|ទូរស័ព្ទ|ໂທ|ဖုန်း"
    r"|هاتف|جوال|טלפון|נייד|פקס|फ़ोन|फोन|मोबाइल)"
    r"[^\w\n+(]{0,5}(?:\(?(?:number|no|nr|num|us|me|him|her|at|on|is|work|home|office|toll|free|direct|or|and|fax|tel"
    r"|phone|voice|नंबर|номера?)\b[^\w\n+(]{0,5}|(?:番号|번호|号码|號碼|号|号|是|为|為|は|는|은|သည်|នេះ|คือ|ที่)[^\w\n+(]{0,5}){0,3}\Z",
    re.IGNORECASE,
)
_YEARS = re.compile(r"\D*(?:1[5-9]\d\d|20\d\d)(?:\D+(?:1[5-9]\d\d|20\d\d))+\D*")
_DAY, _MONTH, _YEAR = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])", r"(?:1[5-9]|20)\d\d"
# A date, perhaps with hours after it; hours from and to; millions with points; single digits; an IP address.
_NO_LABELLED = re.compile(
    rf"(?:{_YEAR}[./-]?{_MONTH}[./-]?{_DAY}|(?:{_DAY}[./-]{_MONTH}|{_MONTH}[./-]{_DAY})[./-]{_YEAR})(?:\D.*)?"
    rf"|{_YEARS.pattern}|(?:[01]\d|2[0-4])[0-5]\d ?- ?(?:[01]\d|2[0-4])[0-5]\d|\d{{1,3}}(?:\.\d{{3}})+"
    r"|\d(?:[./-]\d)+|(?=.*(?<!\d)\d(?!\d))\d{1,3}(?:\.\d{1,5}){3}"
)
_OF_THINGS = re.compile(
    r"\b(?:parts?|serial|model|order|item|catalog(?:ue)?|articles?|artikel|invoice|isbn|issn|sku|upc|ean|case|docket|grant"
    r"|ref(?:erence)?|patent|account|konto|version|pages?|section|aktenzeichen|az|ticket|id|lot|batch|processo|dossier)\b"
    r"\W{0,3}(?:(?:number|no|nr|num|id)\b\W{0,3})?\Z",
    re.IGNORECASE,
)
# Years, a decimal number, an American post code, an IP address, a date, rows of four digits.
_OTHER = re.compile(
    rf"{_YEARS.pattern}|\d+\.\d+|\d{{5}}-\d{{4}}|\d+(?:\.\d{{1,3}}){{3}}|\d{{1,2}}[./-]\d{{1,2}}[./-]\d{{4}}.*"
    r"|\d{4}[./-]\d\d?[./-]\d\d?.*|\d{4}(?: \d{4})+"
)
_REGIONS_OF_LANGUAGES = """
ar:EG,SA,AE,MA bg:BG bn:BD,IN ca:ES cs:CZ da:DK de:DE,AT,CH el:GR,CY en:US,GB,AU,IN,IE,NZ,ZA es:ES,MX,AR,CO,CL,PE et:EE
eu:ES fa:IR fi:FI fr:FR,BE,CH,CA gl:ES he:IL hi:IN hr:HR hu:HU id:ID it:IT,CH ja:JP ko:KR lt:LT lv:LV ms:MY nb:NO
nl:NL,BE nn:NO no:NO pl:PL pt:BR,PT ro:RO ru:RU sk:SK sl:SI sr:RS sv:SE,FI th:TH tr:TR uk:UA ur:PK vi:VN yue:HK
zh:CN,TW,HK
"""
_BY_LANGUAGE = {
    language: tuple(of.split(",")) for language, of in (e.split(":") for e in _REGIONS_OF_LANGUAGES.split())
}


def regions_of(language: str) -> tuple[str, ...]:
    """Return the regions of most speakers of a language, such as `de`; empty for other languages.

    Example:
        >>> regions_of("pt"), regions_of("")
        (('BR', 'PT'), ())
    """
    return _BY_LANGUAGE.get(language, ())


def telephone_numbers(regions: Sequence[str]) -> Find:
    """Make a search for numbers that begin with a plus, follow a word such as "phone", or have the form of a region.

    Raises:
        UserError: the library phonenumbers is missing, or a region is unknown.
    """
    phonenumbers = optional("phonenumbers", "preparation")
    supported = phonenumbers.SUPPORTED_REGIONS
    for region in regions:
        if region not in supported:
            near = did_you_mean(region, supported)
            raise UserError(
                "Expected regions of two capital letters, such as US DE GB, or the word language, found "
                f"{region!r}{near}"
            )
    exact = phonenumbers.Leniency.STRICT_GROUPING
    lengths = {region: _lengths(region) for region in regions}

    def find_sure(text: str) -> list[Span]:
        spans = [*chain.from_iterable(map(_longest, _INTERNATIONAL.finditer(text)))] if "+" in text else []
        if not has_long_number(text):
            return spans
        starts = {start for start, _ in spans}
        labelled = (match for match in _NUMBER.finditer(text) if match.start() not in starts)
        matches = filter(_is_labelled, labelled)
        return spans + [(match.start() + _is_left_open(match), match.end()) for match in matches]

    across = across_lines(find_sure)

    def find(text: str) -> Iterator[Span]:
        spans = [*across(text)]
        if regions and has_long_number(text):
            for match in filter(_is_grouped, _NATIONAL.finditer(text)):
                number = sum(map(str.isdigit, match[0]))
                # The library takes long for each region. Numbers of another length cannot be numbers of the region.
                fitting = [
                    region for region in regions if number in lengths[region] or match[0].startswith(("00", "011"))
                ]
                spans += next(filter(None, (_matches(match, region, exact) for region in fitting)), [])
        return _apart(spans)

    return find


@cache
def _lengths(region: str) -> frozenset[int]:
    """Return the numbers of digits of a region's telephone numbers, without and with the prefix of national calls."""
    from phonenumbers import PhoneMetadata

    metadata = PhoneMetadata.metadata_for_region(region, None)
    if metadata is None or metadata.general_desc is None:
        return frozenset()
    prefix = len(metadata.national_prefix or "")
    return frozenset(length + more for length in metadata.general_desc.possible_length for more in (0, prefix))


def _is_labelled(match: re.Match) -> bool:
    """Whether a match has as many digits as a telephone number, and a word such as "phone" before it."""
    if not 7 <= sum(map(str.isdigit, match[0])) <= 15 or _NO_LABELLED.fullmatch(match[0]):
        return False
    words = before(match, 40)
    return _LABEL.search(words.replace("\n", " ") if match[0].startswith("+") else words) is not None


def _is_grouped(match: re.Match) -> bool:
    """Return whether digits are grouped as in a telephone number: at least three groups, or a leading zero.

    Numbers after words such as "order" are numbers of things.
    """
    if _OF_THINGS.search(before(match, 30)):
        return False
    groups = re.findall(r"\d+", match[0])
    many = len(groups) > 2 or (match[0].startswith("0") and len(groups[0]) > 1)
    return many and sum(map(len, groups)) >= 8 and not _OTHER.fullmatch(match[0])


def _longest(match: re.Match) -> list[Span]:
    """The longest beginning of the match that is a valid number; another number may follow it."""
    import phonenumbers

    for end in [run.end() for run in re.finditer(r"\d+", match[0])][::-1]:
        try:
            if phonenumbers.is_valid_number(phonenumbers.parse(match[0][:end])):
                return [(match.start(), match.start() + end)]
        except phonenumbers.NumberParseException:
            break
    return []


def _is_left_open(match: re.Match) -> bool:
    """Return whether the match begins with a bracket that is not closed: it does not belong to the number."""
    return match[0].startswith("(") and ")" not in match[0]


def _matches(match: re.Match, region: str, leniency: int) -> list[Span]:
    from phonenumbers import PhoneNumberMatcher

    return [
        (match.start() + max(number.start, _is_left_open(match)), match.start() + number.end)
        for number in PhoneNumberMatcher(match[0], region, leniency, max_tries=10)
        if number.start <= 1  # not part of a longer number
    ]


def _apart(spans: list[Span]) -> Iterator[Span]:
    """The spans in order; of overlapping spans, only the first one stays."""
    end = 0
    for start, stop in sorted(spans):
        if start >= end:
            yield start, stop
            end = stop
