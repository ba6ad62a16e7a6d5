"""Personal data: replaced, and counted by kind. What was found is never stored or shown."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from jax_diversity.corpus.steps.access_keys import access_keys
from jax_diversity.corpus.steps.base import Candidate, Measured, Rules
from jax_diversity.corpus.steps.identity_numbers import cards, ibans, national_numbers
from jax_diversity.corpus.steps.replacing import Find, Span, before, by_pattern, holding, replaced
from jax_diversity.corpus.steps.telephone import telephone_numbers
from jax_diversity.foundation.errors import UserError, did_you_mean

# The local part as it is used, which is less than RFC 5322 allows, then a domain of at least two labels.
_LOCAL = re.compile(r"[\w!$%*+^~-]+(?:\.[\w!$%*+^~-]+)*\Z")
_DOMAIN = re.compile(
    r"@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}(?!(?:png|jpe?g|gif|svg|webp|css|js)\b)[^\W\d_][\w-]{0,61}[^\W_](?!\()"
)
# The longest local part, which RFC 5321 allows.
_LONGEST_LOCAL = 64
# name [at] host [dot] org
_SPELT_AT = re.compile(r"[\[({<] ?(?:at|AT) ?[\])}>]")
_SPELT_LOCAL = re.compile(r"[\w+-]+(?:\.[\w+-]+)* ?\Z")
_SPELT_DOMAIN = re.compile(r" ?[\w-]{1,63}(?:(?: ?[\[({<] ?(?:dot|DOT) ?[\])}>] ?|\.)[\w-]{1,63}){1,6}")
# Four numbers, or groups of hexadecimal digits; `ipaddress` decides. Versions such as 1.2.3.4.5 and v1.2.3.4 are none.
_IP_4 = re.compile(r"\d(?<![\w.].)\d{0,2}(?:\.\d{1,3}){3}(?!\w|\.\w)")
_IP_6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}(?:[0-9a-f]{1,4}|(?<=::))(?!\w|:\w)", re.IGNORECASE)
_TWO_COLONS = re.compile(r":[0-9A-Fa-f]{0,4}:")
# What is numbered by four numbers, and words and marks after which four small numbers are an address nevertheless.
_NUMBERED = re.compile(
    r"(?:\b(?:sections?|sec|chapters?|clauses?|articles?|appendix|annex|figures?|fig|tables?|version|ver|v|release|rev|kernel"
    r"|theorem|lemma|corollary|proposition|definition|remark|abschnitt|ziffer|nummer|nr|art|kapitel)\b|§)\W{0,3}\Z",
    re.IGNORECASE,
)
_ADDRESSED = re.compile(
    r"(?:(?:[@\[]|://|\b(?:ips?|ipv4|hosts?|hostname|servers?|dns|nameservers?|resolver|gateway|proxy|peer|address(?:es)?|addr|ping"
    r"|traceroute|whois|dig|ssh|telnet|ftp|from|to|via|at|is)\b)\W{0,4}|\()\Z",
    re.IGNORECASE,
)
_MASKED_REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "IN", "BR", "PL", "CN")


def personal_data(
    *,
    email: str = "<email>",
    phone: str = "<phone>",
    ip: str = "<ip>",
    card: str = "<card>",
    iban: str = "<iban>",
    national_id: str = "<national_id>",
    secret: str = "<secret>",
    regions: str = "",
    countries: str = "BR CN DE ES FR GB IN IT PL US",
    private_addresses: bool = False,
) -> Rules:
    """Replaces addresses of e-mail and of machines, numbers of telephones, cards, accounts and persons, and keys.

    An empty text leaves a kind alone. `phone`: numbers that begin with + or follow a word such as *phone*; with
    `regions`, such as `US DE GB`, also those written as is usual there. `ip`: addresses that no one outside a network
    can reach stay, unless `private_addresses`. `card`, `iban` and `national_id` (of `countries`) need a right form and
    checksum, and a word before them where these say little. `secret`: keys of known services, passwords in addresses,
    random values of names such as *password*. What was found is counted by kind and never stored.
    """
    finds = _finds(
        {"email": email, "phone": phone, "ip": ip, "card": card, "iban": iban, "national_id": national_id}
        | {"secret": secret},
        _listed(regions),
        _listed(countries),
        private_addresses,
    )

    def rules(candidate: Candidate) -> Iterator[Measured]:
        text = candidate.text
        for kind, find, placeholder in finds:
            text, number = replaced(text, find, placeholder)
            if number:
                candidate.found[kind] += number
        candidate.text = text
        yield from ()

    return rules


def identity(*, phone: str = "<phone>", **options: Any) -> str:
    """The version of phonenumbers, which knows the numbers that are in use."""
    return version("phonenumbers") if phone and find_spec("phonenumbers") else ""


def masked(text: str) -> str:
    """The text with all kinds of personal data replaced, for excerpts that are shown: rather too much than too little.

    Example:
        >>> masked("Write to jane@example.org or 10.0.0.1.")
        'Write to <email> or <ip>.'
    """
    for _, find, placeholder in _masking():
        text, _ = replaced(text, find, placeholder)
    return text


@cache
def _masking() -> list[tuple[str, Find, str]]:
    placeholders = {kind: f"<{kind}>" for kind in ("email", "phone", "ip", "card", "iban", "national_id", "secret")}
    if find_spec("phonenumbers") is None:
        placeholders["phone"] = ""
    return _finds(placeholders, _MASKED_REGIONS, sorted(national_numbers()), private_addresses=True)


def _listed(names: str) -> list[str]:
    return names.replace(",", " ").split()


def _finds(
    placeholders: Mapping[str, str], regions: Any, countries: Any, private_addresses: bool
) -> list[tuple[str, Find, str]]:
    """What is looked for, in this order: what comes first takes what others would take a part of."""
    known = national_numbers()
    for country in countries:
        if country not in known:
            near = did_you_mean(country, known)
            raise UserError(f"Expected countries among {' '.join(known)}, found {country!r}{near}")
    finds: list[tuple[str, Find, str]] = []

    def add(kind: str, found: Mapping[str, Find]) -> None:
        if placeholders[kind]:
            finds.extend((name, find, placeholders[kind]) for name, find in found.items())

    add("secret", {f"secret_{service}": find for service, find in access_keys().items()})
    add("email", {"email": _emails})
    add("email", {"email": _spelt_emails})
    add("iban", {"iban": ibans()})
    add("card", {"card": cards()})
    add("national_id", {f"national_id_{country.lower()}": known[country] for country in countries})
    if placeholders["phone"]:
        add("phone", {"phone": telephone_numbers(regions)})
    is_address = partial(_is_address, private_addresses=private_addresses)
    add("ip", {"ip": by_pattern(_IP_4, is_address)})
    add("ip", {"ip": holding(_TWO_COLONS.search, by_pattern(_IP_6, is_address))})
    return finds


def _emails(text: str) -> Iterator[Span]:
    free, at = 0, text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at)
        local = _LOCAL.search(text, max(at - _LONGEST_LOCAL, free), at) if domain else None
        if domain and local:
            free = domain.end()
            yield local.start(), free
        at = text.find("@", max(at + 1, free))


def _spelt_emails(text: str) -> Iterator[Span]:
    free = 0
    for at in _SPELT_AT.finditer(text):
        domain = _SPELT_DOMAIN.match(text, at.end())
        local = _SPELT_LOCAL.search(text, max(at.start() - _LONGEST_LOCAL, free), at.start()) if domain else None
        if domain and local:
            free = domain.end()
            yield local.start(), free


def _is_address(match: re.Match, private_addresses: bool) -> bool:
    found = match[0]
    if ":" in found:
        # `a::b` is an address to the standard, and a name in code.
        groups = re.findall("[0-9a-f]+", found.lower())
        if (len(groups) < 3 and not re.match("[23][0-9a-f]{3}:", found)) or not re.search(r"\d", found):
            return False
    elif _is_version(match):
        return False
    try:
        address = ipaddress.ip_address(found)
    except ValueError:
        return False
    return private_addresses or address.is_global


def _is_version(match: re.Match) -> bool:
    """Whether it begins with a small number behind such a word, or with two smaller ones and no word says address."""
    first, second, *_ = map(int, match[0].split("."))
    words = before(match, 20)
    return (first < 100 and bool(_NUMBERED.search(words))) or (max(first, second) < 10 and not _ADDRESSED.search(words))
