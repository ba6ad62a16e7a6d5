"""Addresses of e-mail and of machines, and card numbers: replaced, and counted by kind."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator

from jax_diversity.preparation.base import Candidate, Measured, Rules

# The local part as RFC 5322 writes it without quotes, then a domain of at least two labels.
_EMAIL = re.compile(
    r"(?<![\w.!#$%&*+/=?^`{|}~-])[\w!#$%&*+/=?^`{|}~-]+(?:\.[\w!#$%&*+/=?^`{|}~-]+){0,32}"
    r"@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_](?:[\w-]{0,61}[^\W_])?"
)
# Four numbers, or groups of hexadecimal digits; `ipaddress` decides. Versions such as 1.2.3.4.5 and v1.2.3.4 are none.
_IP = re.compile(
    r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\w)|(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])",
    re.IGNORECASE,
)
_CARD = re.compile(r"(?<![\w.,-])\d(?:[ -]?\d){12,18}(?![\w]|[.,-]\d)")
# First digits and lengths of the large issuers (ISO/IEC 7812): Visa, Mastercard, American Express, Diners, Discover,
# JCB, UnionPay, Maestro.
_ISSUER = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})$|5[1-5]\d{14}$|2(?:2[2-9]|[3-6]\d|7[01])\d{13}$|2720\d{12}$|3[47]\d{13}$"
    r"|3(?:0[0-5]|[689]\d)\d{11}$|6(?:011|5\d\d)\d{12}$|64[4-9]\d{13}$|35(?:2[89]|[3-8]\d)\d{12}$|62\d{14,17}$"
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])\d{8,15}$"
)


def personal_data(
    *,
    email: str = "<email>",
    ip: str = "<ip>",
    card: str = "<card>",
    private_addresses: bool = False,
) -> Rules:
    """Replaces addresses of e-mail, addresses of machines (IP) and card numbers by what stands for them.

    An empty text leaves a kind alone. Card numbers need an issuer's first digits and a right checksum (Luhn). Addresses
    of machines that no one outside a network can reach stay, unless `private_addresses`. What was
    found is counted by kind and never stored.
    """
    kinds = [
        ("email", "@", _EMAIL, lambda found: True, email),
        ("ip", "", _IP, lambda found: _is_address(found, private_addresses), ip),
        ("card", "", _CARD, _is_card, card),
    ]

    def rules(candidate: Candidate) -> Iterator[Measured]:
        text = candidate.text
        for kind, mark, pattern, is_one, placeholder in kinds:
            if placeholder and mark in text:
                text, number = _replaced(text, pattern, is_one, placeholder)
                if number:
                    candidate.found[kind] += number
        candidate.text = text
        yield from ()

    return rules


def masked(text: str) -> str:
    """A text to show to a person: addresses and card numbers are replaced."""
    for pattern, is_one, placeholder in (
        (_EMAIL, lambda found: True, "<email>"),
        (_IP, lambda found: _is_address(found, True), "<ip>"),
        (_CARD, _is_card, "<card>"),
    ):
        text, _ = _replaced(text, pattern, is_one, placeholder)
    return text


def _replaced(text: str, pattern: re.Pattern, is_one: Callable[[str], bool], placeholder: str) -> tuple[str, int]:
    number = 0

    def replace(match: re.Match) -> str:
        nonlocal number
        if not is_one(match[0]):
            return match[0]
        number += 1
        return placeholder

    return pattern.sub(replace, text), number


def _is_address(found: str, private_addresses: bool) -> bool:
    # `a::b` is an address to the standard, and a name in code.
    if ":" in found and (len(re.findall("[0-9a-f]+", found.lower())) < 3 or not re.search(r"\d", found)):
        return False
    try:
        address = ipaddress.ip_address(found)
    except ValueError:
        return False
    return private_addresses or address.is_global


def _is_card(found: str) -> bool:
    """The issuer's first digits, and Luhn's checksum: every second digit from the right is doubled."""
    digits = re.sub("[ -]", "", found)
    if not digits.isascii() or not _ISSUER.match(digits):
        return False
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    return sum(value - 9 * (value > 9) for value in doubled) % 10 == 0
