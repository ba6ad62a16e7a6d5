"""Replace personal data and count it by kind. The data that was found is never stored or shown."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

from jax_diversity.foundation.errors import UserError, did_you_mean
from jax_diversity.foundation.signatures import default_of
from jax_diversity.preparation.steps.access_keys import assigned_secrets, marked_services, service_keys
from jax_diversity.preparation.steps.base import Candidate, Measured, Span, Step, entries
from jax_diversity.preparation.steps.identity_numbers import HAS_CHECKSUMS, cards, ibans, national_numbers
from jax_diversity.preparation.steps.replacing import (
    Find,
    across_lines,
    before,
    by_pattern,
    holding,
    in_plain_copy,
    in_text_and_copy,
    plain_copy,
    replaced,
)
from jax_diversity.preparation.steps.telephone import regions_of, telephone_numbers

# The local part in common use, which is less than RFC 5322 allows, then a domain of at least two labels. An address in
# Latin letters ends at a letter of another script: in a text without spaces, words touch it.
_LATIN = "A-Za-z\u00c0-\u024f"
_LOCAL = re.compile(r"[\w!$%*+^~-]+(?:\.[\w!$%*+^~-]+)*\Z")
_LOCAL_OF_LATIN = re.compile(rf"[{_LATIN}\d_!$%*+^~-]+(?:\.[{_LATIN}\d_!$%*+^~-]+)*\Z")
_NO_FILE = r"(?!(?:png|jpe?g|gif|svg|webp|css|js)(?![A-Za-z0-9_]))"
_DOMAIN = re.compile(
    rf"@(?:(?:[{_LATIN}\d](?:[{_LATIN}\d-]{{0,61}}[{_LATIN}\d])?\.){{1,8}}{_NO_FILE}"
    rf"[{_LATIN}][{_LATIN}\d-]{{0,61}}[{_LATIN}\d](?![\d_-])"
    rf"|(?:[^\W_](?:[\w-]{{0,61}}[^\W_])?\.){{1,8}}{_NO_FILE}[^\W\d_][\w-]{{0,61}}[^\W_])(?!\()"
)
_LONGEST_LOCAL, _MOST_LOCAL = 64, 1024  # RFC 5321; some addresses in use are longer
# The address of a repository: `git@host:project/name`, `user@host:project/name.git`, `svn+ssh://user@host/project`.
_PROGRAMS, _REPOSITORY = ("git", "hg", "svn"), re.compile(r"(?::\d{1,5})?[:/]~?[\w.-]+(?:/|\.git\b)")
_REPOSITORY_OF_USER = re.compile(r"(?::\d{1,5})?[:/](?:~?[\w.-]+/){0,8}[\w.-]+\.git\b")
_OVER_SSH = re.compile(r"\b(?:git|hg|svn|bzr)\+ssh://\Z")
# name [at] host [dot] org
_SPELT_AT = re.compile(r"[\[({<] ?(?:at|AT) ?[\])}>]")
_SPELT_LOCAL = re.compile(r"[\w+-]+(?:\.[\w+-]+)* ?\Z")
_SPELT_DOMAIN = re.compile(r" ?[\w-]{1,63}(?:(?: ?[\[({<] ?(?:dot|DOT) ?[\])}>] ?|\.)[\w-]{1,63}){1,6}")
# Four numbers, or groups of hexadecimal digits; `ipaddress` decides. 1.2.3.4.5 and v1.2.3.4 are versions.
# A letter of another script may touch a number, so `\w` means ASCII.
_IP_4 = re.compile(r"\d(?<![\w.].)\d{0,2}(?:\.\d{1,3}){3}(?!\w|\.\w)", re.ASCII)
_IP_6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}(?:[0-9a-f]{1,4}|(?<=::))(?!\w|:\w)", re.IGNORECASE | re.ASCII)
_THREE_POINTS = re.compile(r"\.\d{1,3}\.\d{1,3}\.\d")
_TWO_COLONS = re.compile(r":[0-9A-Fa-f]{0,4}:")
# Words before a number of four parts that is not an address, and words and marks before one that is.
_NUMBERED = re.compile(
    r"(?:\b(?:sections?|sec|chapters?|clauses?|articles?|appendix|annex|figures?|fig|tables?|versions?|ver|v|release|rev"
    r"|kernel|build|driver|firmware|theorem|lemma|corollary|proposition|definition|remark|abschnitt|ziffer|nummer|nr|art"
    r"|kapitel|firefox|thunderbird|mozilla|seamonkey|chrome|chromium|opera|safari|vivaldi|netscape|flash|flash player"
    r"|acrobat|adobe reader|java|jre|jdk|skype|itunes|quicktime|silverlight|edge|edg|brave|opr|webkit|applewebkit"
    r"|electron|msie|trident|gecko|ubuntu|debian|fedora|centos|macos|android|openwrt|nginx|apache|tomcat|iis|mysql"
    r"|mariadb|postgresql|postgres|oracle|redis|mongodb|elasticsearch|kafka|php|python|ruby|npm|gcc|clang|llvm|cmake"
    r"|openssl|openssh|curl|git|kubernetes|helm|terraform|jenkins|gitlab|wordpress|drupal|magento|sap|cuda|directx"
    r"|bios|uefi|sdk|library|package|plugin|patch|hotfix|fixpack|libreoffice|ffmpeg|vlc|unity|unreal|matlab|autocad"
    r"|photoshop)\b|§|版本|バージョン|버전|верси[яиюей]+)"
    r"[^\w@]{0,3}\Z",
    re.IGNORECASE,
)
# A requirement (`name==`, `~> `), a file or agent (`name-`, `name/` outside of an address), or a change of versions.
_REQUIRED = re.compile(
    r"(?:\w[=~!<>]=|~>|(?<!\w)\^|(?<![\w:/.])(?!(?i:ip|host|addr|server|node|client|from|to|by)\b)[A-Za-z][\w+]*[-/_])"
    r"[\"' ]?\Z"
)
_CHANGED = re.compile(r"\b(?i:upgrad|updat|downgrad|bump)\w* (?:\w+ ){0,3}(?:from|to) (?:v?[\d.]+ to )?\Z")
_SMALL = 100
"""First numbers of versions are below this."""
_NAME = re.compile(r"\b[A-Z]\w+[ /]\Z")
_ADDRESSED = re.compile(
    r"(?:(?:[@\[]|://|\b(?:ips?|ipv4|hosts?|hostname|servers?|dns|nameservers?|resolver|gateway|proxy|peer|address(?:es)?|addr|ping"
    r"|traceroute|whois|dig|ssh|telnet|ftp|from|to|via|at|is)\b)\W{0,4}|\()\Z",
    re.IGNORECASE,
)
_LINE_BREAKS = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # of `str.splitlines`
_WORDS, _SHORTEST_PART = re.compile(r"\w+"), 6  # characters of a find's part that is replaced in all versions
_LANGUAGE = "language"
"""The entry of `regions` for the regions of the document's language."""
_MASKED_REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "IN", "BR", "PL", "CN")


@dataclass
class PersonalData(Step):
    """Replaces e-mail and IP addresses, numbers of telephones, cards, accounts and persons, and secret keys.

    `placeholders` maps each kind to its replacement; an empty text leaves the kind unchanged. `phone`: numbers that
    begin with + or follow a word such as *phone*, and numbers in the usual form of a region in `regions`. There,
    `language` means the regions of the document's language; `[US, DE, GB]` names regions. `ip`: private addresses
    stay, unless `private_addresses`. `card`, `iban` and `national_id` (of `countries`) need the right form and
    checksum; weak forms also need a word before them. `secret`: keys of known services, passwords in addresses, and
    random values of names such as *password*. Finds are counted by kind and never stored.

    `fields` are replaced too: the title, and fields of the metadata (texts, also in lists and mappings). Other metadata
    stay. Ids are not changed, because they must be unique; ids with personal data are counted as `left_in_id`: give
    these documents other ids.

    The kinds in detail:

    - `email`: also `jane [at] host [dot] org`. Message ids have the same form and are replaced, too.
    - `phone`: a valid number after `+`; after a word such as *phone*, 7 to 15 digits, but no dates and hours.
    - `ip`: versions 4 and 6. Numbers after words such as *version*, *section* or *Firefox* stay, and so do numbers
      after `name==`, `name-` or `name/`, small numbers after a name, and addresses whose first two numbers are below
      10, unless a word such as *host* is before them.
    - `national_id`: a number whose form and checksum are common needs a word such as *PESEL* before it.
    - `secret`: keys of 43 services, private keys (PEM), JSON web tokens, passwords in addresses, headers such as
      `Authorization: Bearer`, and values of names such as `api_key` or `DB_PASSWORD=`.

    The search ignores invisible characters and `<wbr>`, and converts the spaces, dashes and digits of all scripts to
    ASCII. It resolves `%40`, `&#64;`, `&quot;`, `\\u0040`, `\\"` and `=40`. Letters of another script may touch data.
    Numbers with a line break between their digits are found, except in tables. Of planted
    addresses of version 4, .7 % look like version numbers and are not found.
    """

    is_filter = False

    placeholders: Mapping[str, str] = entries(
        email="<email>",
        phone="<phone>",
        ip="<ip>",
        card="<card>",
        iban="<iban>",
        national_id="<national_id>",
        secret="<secret>",
    )
    regions: tuple[str, ...] = (_LANGUAGE,)
    countries: tuple[str, ...] = ("BR", "CN", "DE", "ES", "FR", "GB", "IN", "IT", "PL", "US")
    private_addresses: bool = False
    fields: tuple[str, ...] = ("title", "url")

    def __post_init__(self) -> None:
        needed = [kind for kind in ("card", "national_id") if self.placeholders[kind]]
        if needed and not HAS_CHECKSUMS:
            raise UserError(
                "The step personal_data needs the library python-stdnum; pip install 'jax-diversity[preparation]', or "
                f"set the placeholders of {' and '.join(needed)} to empty texts."
            )
        if unfit := {"id", "text", "source", "language"}.intersection(self.fields):
            raise UserError(
                f"Expected fields to be title or fields of the metadata, found {min(unfit)}; the text is always "
                "replaced, and the others name the document."
            )
        self._by_regions: dict[tuple[str, ...], _Finds] = {}
        self._finds_for("")  # checks the options

    def identity(self) -> str:
        """The version of phonenumbers, which contains the numbers in use."""
        return version("phonenumbers") if self.placeholders["phone"] else ""

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Replace and count every kind."""
        finds = self._finds_for(candidate.main_language if _LANGUAGE in self.regions else "")
        candidate.text = _replaced(candidate, candidate.text, finds)
        document = candidate.document
        old = {name: document.title if name == "title" else document.metadata.get(name) for name in self.fields}
        new = {name: _replaced(candidate, value, finds) for name, value in old.items() if value}
        if any(value != old[name] for name, value in new.items()):
            title = new.pop("title", document.title)
            candidate.document = dataclasses.replace(document, title=title, metadata={**document.metadata, **new})
        if any(any(find(document.id)) for _, find, _ in finds.of(document.id)):
            candidate.found["left_in_id"] += 1
        yield from ()

    def _finds_for(self, language: str) -> _Finds:
        """Return the searches for a document in a language. They are made once for the same regions."""
        regions = tuple(region for region in self.regions if region != _LANGUAGE)
        if _LANGUAGE in self.regions:
            regions = tuple(dict.fromkeys((*regions, *regions_of(language))))
        if regions not in self._by_regions:
            self._by_regions[regions] = _finds(self.placeholders, regions, self.countries, self.private_addresses)
        return self._by_regions[regions]


class _Finds(NamedTuple):
    """Searches as (kind, search, placeholder), in the order of replacement: `services` by service, then `others`."""

    services: Mapping[str, tuple[str, Find, str]]
    others: Sequence[tuple[str, Find, str]]

    def of(self, text: str) -> list[tuple[str, Find, str]]:
        """Return the searches for a text."""
        marked = marked_services(plain_copy(text).text) if self.services else ()
        return [*(self.services[service] for service in marked), *self.others]


def _replaced(candidate: Candidate, value: Any, finds: _Finds) -> Any:
    """Return a value with all kinds replaced in its texts."""
    if isinstance(value, str):
        for kind, find, placeholder in finds.of(value):
            value, number = replaced(value, find, placeholder)
            if number:
                candidate.found[kind] += number
    elif isinstance(value, list | tuple):
        return [_replaced(candidate, entry, finds) for entry in value]
    elif isinstance(value, dict):
        return {name: _replaced(candidate, entry, finds) for name, entry in value.items()}
    return value


def masked(text: str) -> str:
    """The text with all kinds of personal data replaced, for excerpts that are shown; doubtful cases are replaced, too.

    Example:
        >>> masked("Write to jane@example.org or 10.0.0.1.")
        'Write to <email> or <ip>.'
    """
    for _, find, placeholder in _masking().of(text):
        text, _ = replaced(text, find, placeholder)
    return text


def masked_versions(*texts: str) -> list[str]:
    r"""Versions of one text with all kinds of personal data replaced; the versions have as many lines as the texts.

    Data that is found in one version is replaced in all versions, also its lines and words: an edit may remove the
    label before a number, or a part of an address.

    Example:
        >>> masked_versions("PESEL\n44051401359", "44051401359")
        ['PESEL\n<national_id>', '<national_id>']
    """
    replacements: dict[str, str] = {}
    versions = []
    for text in texts:
        for _, find, placeholder in _masking().of(text):

            def replace(characters: str, placeholder: str = placeholder) -> str:
                parts = (*characters.splitlines(), *characters.split(), *_WORDS.findall(characters))
                replacements.update(dict.fromkeys(parts, placeholder))
                return placeholder + "".join(_LINE_BREAKS.findall(characters))

            text, _ = replaced(text, find, replace)
        versions.append(text)
    for part in sorted((part for part in replacements if len(part) >= _SHORTEST_PART), key=len, reverse=True):
        versions = [text.replace(part, replacements[part]) for text in versions]
    return versions


@cache
def _masking() -> _Finds:
    step = PersonalData.__dataclass_fields__["placeholders"]
    placeholders = default_of(step) | ({} if find_spec("phonenumbers") else {"phone": ""})
    return _finds(placeholders, _MASKED_REGIONS, sorted(national_numbers()), private_addresses=True)


def _finds(
    placeholders: Mapping[str, str], regions: Sequence[str], countries: Sequence[str], private_addresses: bool
) -> _Finds:
    """The kinds in the order of replacement: a kind comes before kinds that would match parts of it."""
    numbers = national_numbers()
    for country in countries:
        if country not in numbers:
            near = did_you_mean(country, numbers)
            raise UserError(f"Expected countries among {' '.join(numbers)}, found {country!r}{near}")
    finds: list[tuple[str, Find, str]] = []

    def add(kind: str, searches: Mapping[str, Find]) -> None:
        if placeholders[kind]:
            search = in_text_and_copy if kind == "secret" else in_plain_copy
            finds.extend((name, search(find), placeholders[kind]) for name, find in searches.items())

    secret = placeholders["secret"]
    services = {name: (f"secret_{name}", in_text_and_copy(find), secret) for name, find in service_keys().items()}
    add("secret", {"secret_assigned": assigned_secrets})
    add("email", {"email": _emails})
    add("email", {"email": _spelt_emails})
    add("iban", {"iban": across_lines(ibans())})
    add("card", {"card": across_lines(cards())})
    add("national_id", {f"national_id_{country.lower()}": across_lines(numbers[country]) for country in countries})
    if placeholders["phone"]:
        add("phone", {"phone": telephone_numbers(regions)})
    is_address = partial(_is_address, private_addresses=private_addresses)
    add("ip", {"ip": holding(_THREE_POINTS.search, by_pattern(_IP_4, is_address))})
    add("ip", {"ip": holding(_TWO_COLONS.search, by_pattern(_IP_6, is_address))})
    return _Finds(services if secret else {}, finds)


def _emails(text: str) -> Iterator[Span]:
    free, at = 0, text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at)
        local = _LOCAL.search(text, max(at - _LONGEST_LOCAL, free), at) if domain else None
        if domain and local:
            if local.start() == at - _LONGEST_LOCAL:
                local = _LOCAL.search(text, max(at - _MOST_LOCAL, free), at) or local
            if _is_repository(text, local.start(), at, domain.end()):
                free, at = domain.end(), text.find("@", domain.end())
                continue
            local = _LOCAL_OF_LATIN.search(text, local.start(), at) or local
            free = domain.end()
            yield local.start(), free
        at = text.find("@", max(at + 1, free))


def _is_repository(text: str, start: int, at: int, end: int) -> bool:
    """Return whether `user@host` belongs to the address of a repository."""
    is_program = text[start:at] in _PROGRAMS and _REPOSITORY.match(text, end)
    is_of_user = _REPOSITORY_OF_USER.match(text, end) or _OVER_SSH.search(text[max(start - 10, 0) : start])
    return bool(is_program or is_of_user)


def _spelt_emails(text: str) -> Iterator[Span]:
    free = 0
    for at in _SPELT_AT.finditer(text):
        domain = _SPELT_DOMAIN.match(text, at.end())
        local = _SPELT_LOCAL.search(text, max(at.start() - _LONGEST_LOCAL, free), at.start()) if domain else None
        if domain and local:
            free = domain.end()
            yield local.start(), free


def _is_address(match: re.Match, private_addresses: bool) -> bool:
    text = match[0]
    if ":" in text:
        # `a::b` is a valid address, but in code it is a name.
        groups = re.findall("[0-9a-f]+", text.lower())
        if (len(groups) < 3 and not re.match("[23][0-9a-f]{3}:", text)) or not re.search(r"\d", text):
            return False
        if "::" not in text and all(len(group) == 2 for group in groups):  # the address of a network card
            return False
    elif _is_version(match):
        return False
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return private_addresses or (address.is_global and not address.is_multicast)


def _is_version(match: re.Match) -> bool:
    """Return whether it is a version: after a name or a word such as *section*, or, without *host*, small numbers."""
    parts = [int(part) for part in match[0].split(".")]
    words = before(match, 40)
    if _NUMBERED.search(words) or (parts[0] < _SMALL and _CHANGED.search(words)):
        return True
    if _ADDRESSED.search(words):
        return False
    is_port_behind = match.string.startswith(":", match.end())  # `name/81.185.99.189:443` is a host with its address
    if _REQUIRED.search(words) and not is_port_behind:
        return True
    has_small_part = parts[0] < _SMALL and min(parts[1:]) < 10
    return max(parts[:2]) < 10 or bool((parts[1] == 0 or has_small_part) and _NAME.search(words))
