"""Invented personal data of every kind, with correct checksums, and typical contexts of such data in texts.

Check digits follow the published rules and do not use the measured code: random numbers are drawn until one satisfies
its rule, or every check digit is tried.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import random
import string
from collections.abc import Callable, Iterator
from datetime import date, timedelta

_NAMES = ["anna", "ben", "carla", "david", "elif", "farid", "grace", "hiro", "ines", "jonas", "katya", "liam", "maria"]
_HOSTS = ["mail", "example-shop", "uni-town", "cs.college", "web", "provider", "post", "office", "lab", "network"]
_ENDS = ["com", "org", "net", "de", "co.uk", "fr", "edu", "info", "io", "com.br", "ac.jp", "museum"]
_CARDS = [("4", 16), ("4", 16), ("51", 16), ("55", 16), ("2221", 16), ("34", 15), ("37", 15), ("6011", 16), ("36", 14)]
_CARDS += [("3530", 16), ("62", 16), ("6759", 16), ("4", 19), ("4", 13)]
_IBANS = [("DE", 22, string.digits), ("FR", 27, string.digits), ("ES", 24, string.digits), ("NO", 15, string.digits)]
_IBANS += [("PL", 28, string.digits), ("NL", 18, ""), ("GB", 22, ""), ("MT", 31, "")]
_CAPITALS = string.ascii_uppercase

Make = Callable[[random.Random], str]


def digits(rng: random.Random, number: int, first: str = "0123456789") -> str:
    return rng.choice(first) + "".join(rng.choice(string.digits) for _ in range(number - 1))


def letters(rng: random.Random, number: int, of: str = string.ascii_letters + string.digits) -> str:
    return "".join(rng.choice(of) for _ in range(number))


def day(rng: random.Random) -> date:
    return date(1930, 1, 1) + timedelta(days=rng.randrange(27_000))


# ---- Addresses.
def email(rng: random.Random) -> str:
    first, last = rng.choice(_NAMES), rng.choice(_NAMES)
    local = rng.choice(["{0}.{1}", "{0}_{1}{2}", "{0}{2}", "{0}-{1}", "{0}+{1}", "{2}{0}", "{0}"])
    host = f"{rng.choice(_HOSTS)}{rng.choice(['', str(rng.randint(1, 99))])}.{rng.choice(_ENDS)}"
    made = f"{local.format(first, last, rng.randint(1, 9999))}@{host}"
    return rng.choice([made, made, made.upper(), made.title()])


def ip_4(rng: random.Random) -> str:
    while True:
        address = ipaddress.IPv4Address(rng.getrandbits(32))
        if address.is_global and not address.is_multicast:
            return str(address)


def ip_6(rng: random.Random) -> str:
    """Return an address of a real network, in its short form, in full, or in capitals."""
    network = rng.choice([0x2001_4860, 0x2A00_1450, 0x2606_4700, 0x2620_0000, 0x2804_0014, 0x2C0F_F248, 0x2400_CB00])
    host = rng.getrandbits(96) if rng.random() < 0.6 else rng.getrandbits(16)
    address = ipaddress.IPv6Address((network << 96) + host)
    return rng.choice([str(address), address.exploded, str(address).upper()])


# ---- Numbers with checksums.
def luhn_sum(number: str) -> int:
    """Double every second digit from the right, then add the digits of all results."""
    total = 0
    for place, digit in enumerate(reversed(number)):
        total += sum(map(int, str(int(digit) * (2 if place % 2 else 1))))
    return total


def card(rng: random.Random) -> str:
    prefix, length = rng.choice(_CARDS)
    body = prefix + digits(rng, length - len(prefix) - 1)
    number = next(body + check for check in string.digits if luhn_sum(body + check) % 10 == 0)
    groups = (
        [number[:4], number[4:10], number[10:]]
        if length in (14, 15)
        else [number[at : at + 4] for at in range(0, length, 4)]
    )
    return rng.choice([number, " ".join(groups), "-".join(groups)])


def iban(rng: random.Random) -> str:
    country, length, of = rng.choice(_IBANS)
    body = letters(rng, length - 4, of) if of else letters(rng, 4, _CAPITALS) + letters(rng, length - 8, string.digits)
    remainder = int("".join(str(int(each, 36)) for each in f"{body}{country}00")) % 97
    made = f"{country}{98 - remainder:02}{body}"
    return rng.choice([made, " ".join(made[at : at + 4] for at in range(0, length, 4))])


def us(rng: random.Random) -> str:
    area = rng.choice([each for each in range(1, 900) if each != 666])
    return f"{area:03}-{rng.randint(1, 99):02}-{rng.randint(1, 9999):04}"


def gb(rng: random.Random) -> str:
    while True:
        prefix = letters(rng, 1, "ABCEGHJKLMNOPRSTWXYZ") + letters(rng, 1, "ABCEGHJKLMNPRSTWXYZ")
        if prefix not in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ"):
            break
    parts = [prefix, digits(rng, 2), digits(rng, 2), digits(rng, 2), rng.choice("ABCD")]
    return rng.choice([" ", ""]).join(parts)


def de(rng: random.Random) -> str:
    """Return a German tax number: one digit occurs twice, one does not occur; the last digit is a check digit."""
    while True:
        chosen = rng.sample(string.digits, 9)
        chosen.insert(rng.randrange(10), rng.choice(chosen))
        if chosen[0] != "0":
            break
    product = 10
    for digit in chosen:
        total = (int(digit) + product) % 10
        product = (2 * (10 if total == 0 else total)) % 11
    check = 11 - product
    number = "".join(chosen) + str(0 if check == 10 else check)
    return rng.choice([number, f"{number[:2]} {number[2:5]} {number[5:8]} {number[8:]}"])


def es(rng: random.Random) -> str:
    number, start = digits(rng, 8), rng.choice(["", "X", "Y", "Z"])
    shown = number if not start else start + number[1:]
    value = int(number if not start else str("XYZ".index(start)) + number[1:])
    return shown + "TRWAGMYFPDXBNJZSQVHLCKE"[value % 23]


def it(rng: random.Random) -> str:
    born = day(rng)
    body = (
        letters(rng, 6, "BCDFGLMNPRSTV")
        + f"{born.year % 100:02}{'ABCDEHLMPRST'[born.month - 1]}{born.day + 40 * rng.randint(0, 1):02}"
        + letters(rng, 1, "ABCDEFGHILM")
        + digits(rng, 3)
    )
    odd = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
    value = {letter: place for place, letter in enumerate(_CAPITALS)} | {str(digit): digit for digit in range(10)}
    total = sum(odd[value[each]] if place % 2 == 0 else value[each] for place, each in enumerate(body))
    return body + _CAPITALS[total % 26]


def fr(rng: random.Random) -> str:
    born = day(rng)
    place = rng.choice(["75", "13", "69", "2A", "2B", "33"])
    body = (
        f"{rng.choice('12')}{born.year % 100:02}{born.month:02}{place}{rng.randint(1, 900):03}{rng.randint(1, 999):03}"
    )
    # For Corsica, the letter is read as 0, and one or two million are subtracted.
    value = int(body.replace(place, "20")) - 10**6 * " AB".index(place[1]) if place[1].isalpha() else int(body)
    key = 97 - value % 97
    spaced = f"{body[0]} {body[1:3]} {body[3:5]} {body[5:7]} {body[7:10]} {body[10:]} {key:02}"
    return rng.choice([f"{body}{key:02}", spaced])


def dihedral(one: int, other: int) -> int:
    """The product in the group of rotations and reflections of a pentagon, used by Verhoeff's scheme."""
    if one < 5:
        return (one + other) % 5 if other < 5 else 5 + (one + other) % 5
    return 5 + (one - other) % 5 if other < 5 else (one - other) % 5


def india(rng: random.Random) -> str:
    turns = [list(range(10))]
    for _ in range(7):
        turns.append([[1, 5, 7, 6, 2, 8, 3, 0, 9, 4][each] for each in turns[-1]])
    while True:
        number, total = digits(rng, 12, "23456789"), 0
        for place, digit in enumerate(reversed(number)):
            total = dihedral(total, turns[place % 8][int(digit)])
        if total == 0:
            return rng.choice([number, f"{number[:4]} {number[4:8]} {number[8:]}"])


def brazil(rng: random.Random) -> str:
    number = digits(rng, 9)
    for _ in range(2):
        total = sum(int(digit) * weight for digit, weight in zip(reversed(number), range(2, 12), strict=False))
        number += str(0 if total % 11 < 2 else 11 - total % 11)
    return f"{number[:3]}.{number[3:6]}.{number[6:9]}-{number[9:]}"


def poland(rng: random.Random) -> str:
    born = day(rng)
    month = born.month + (20 if born.year >= 2000 else 0)
    body = f"{born.year % 100:02}{month:02}{born.day:02}{digits(rng, 4)}"
    total = sum(int(digit) * weight for digit, weight in zip(body, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3), strict=True))
    return body + str(-total % 10)


def china(rng: random.Random) -> str:
    body = rng.choice(["110101", "310104", "440305", "510107", "330106"]) + day(rng).strftime("%Y%m%d") + digits(rng, 3)
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    return body + "10X98765432"[sum(int(digit) * weight for digit, weight in zip(body, weights, strict=True)) % 11]


def behind(words: str, make: Make) -> Make:
    """The number after one of the words."""
    return lambda rng: f"{rng.choice(words.split('|'))} {make(rng)}"


# ---- Telephones.
def phone(rng: random.Random) -> str:
    """A possible telephone number, in international form or after a word."""
    import phonenumbers

    while True:
        region = rng.choice(["US", "GB", "DE", "FR", "ES", "IT", "IN", "BR", "PL", "CN", "JP", "AU"])
        known = phonenumbers.example_number_for_type(region, rng.choice([0, 1]))
        national = str(known.national_number)
        drawn = phonenumbers.PhoneNumber(known.country_code, int(national[:3] + digits(rng, len(national) - 3)))
        if phonenumbers.is_valid_number(drawn):
            break
    form = phonenumbers.PhoneNumberFormat
    if rng.random() < 0.4:
        word = rng.choice(["Tel:", "phone", "Fax:", "call", "Mobile:"])
        return f"{word} {phonenumbers.format_number(drawn, form.NATIONAL)}"
    return phonenumbers.format_number(drawn, rng.choice([form.INTERNATIONAL, form.E164]))


# ---- Keys.
def key(rng: random.Random) -> str:
    word = string.ascii_letters + string.digits
    return rng.choice(
        [
            lambda: "AKIA" + letters(rng, 16, _CAPITALS + "234567"),
            lambda: rng.choice(["ghp_", "gho_", "ghs_"]) + letters(rng, 36),
            lambda: f"xoxb-{digits(rng, 12)}-{digits(rng, 12)}-{letters(rng, 24)}",
            lambda: "AIza" + letters(rng, 35, word + "-_"),
            lambda: rng.choice(["sk_live_", "rk_test_"]) + letters(rng, 24),
            lambda: ".".join(
                ["eyJ" + letters(rng, 33), "eyJ" + letters(rng, 80, word + "-_"), letters(rng, 43, word + "-_")]
            ),
            lambda: pem(rng),
        ]
    )()


def pem(rng: random.Random) -> str:
    body = base64.b64encode(rng.randbytes(600)).decode()
    lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    kind = rng.choice(["", "RSA ", "EC ", "OPENSSH "])
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{lines}\n-----END {kind}PRIVATE KEY-----"


def assigned(rng: random.Random) -> str:
    """Return a random value, as a generator of passwords or keys makes it, assigned to a name."""
    value = rng.choice(
        [
            lambda: letters(rng, rng.randint(20, 64)),
            lambda: f"{rng.getrandbits(160):040x}",
            lambda: base64.b64encode(rng.randbytes(30)).decode(),
            lambda: letters(rng, 10) + rng.choice("!#%&*") + digits(rng, 2) + rng.choice("Ab") + "x",
        ]
    )()
    name = rng.choice(
        ["password", "API_KEY", "client_secret", "authToken", "db-password", "SECRET_KEY", "access_token"]
    )
    return rng.choice(['{0} = "{1}"', "{0}: '{1}'", '"{0}": "{1}"', '{0}="{1}"']).format(name, value)


def service_key(rng: random.Random) -> str:
    """Return a key in the form of one of further services."""
    word, hexadecimal = string.ascii_letters + string.digits, "0123456789abcdef"
    return rng.choice(
        [
            lambda: "dop_v1_" + letters(rng, 64, hexadecimal),
            lambda: "dapi" + letters(rng, 32, hexadecimal),
            lambda: "shpat_" + letters(rng, 32, hexadecimal),
            lambda: "SK" + letters(rng, 32, hexadecimal),
            lambda: f"{letters(rng, 32, hexadecimal)}-us{rng.randint(1, 21)}",
            lambda: "key-" + letters(rng, 32, hexadecimal),
            lambda: f"{digits(rng, 10, '123456789')}:AA{letters(rng, 33, word + '_-')}",
            lambda: "figd_" + letters(rng, 40, word),
            lambda: f"glsa_{letters(rng, 32)}_{letters(rng, 8, hexadecimal)}",
            lambda: "gsk_" + letters(rng, 52),
            lambda: "lin_api_" + letters(rng, 40),
            lambda: "NRAK-" + letters(rng, 27, _CAPITALS + string.digits),
            lambda: f"PMAK-{letters(rng, 24, hexadecimal)}-{letters(rng, 34, hexadecimal)}",
            lambda: "r8_" + letters(rng, 37),
            lambda: "hvs." + letters(rng, 30),
            lambda: "rubygems_" + letters(rng, 48, hexadecimal),
            lambda: "sq0atp-" + letters(rng, 22),
            lambda: "dckr_pat_" + letters(rng, 27),
            lambda: "ntn_" + letters(rng, 46),
            lambda: "glrt-" + letters(rng, 20),
        ]
    )()


def bearer(rng: random.Random) -> str:
    """Return a header with a random token."""
    form = rng.choice(["Authorization: Bearer {}", 'auth = "Bearer {}"', "X-Auth: bearer {}"])
    return form.format(letters(rng, rng.randint(24, 60)))


def setting(rng: random.Random) -> str:
    """Return a line of a file of settings, with a random value of 16 to 24 characters without quotes."""
    name = rng.choice(["DB_PASSWORD", "MYSQL_ROOT_PASSWORD", "API_SECRET", "export SMTP_PASSWORD", "AUTH_TOKEN"])
    marks = rng.choice(["", "", "!%+*"])
    return f"{name}={letters(rng, rng.randint(16, 24), string.ascii_letters + string.digits + marks)}"


_REGIONS = {"en": "US GB AU", "de": "DE AT", "fr": "FR BE", "es": "ES MX", "pt": "BR PT", "it": "IT", "pl": "PL"}
_REGIONS |= {"nl": "NL", "ja": "JP", "zh": "CN", "ru": "RU", "sv": "SE", "tr": "TR"}


def national_phone(rng: random.Random, language: str) -> str:
    """Return a valid number of a region of the language, in its national form, without a word before it."""
    import phonenumbers

    while True:
        region = rng.choice(_REGIONS[language].split())
        known = phonenumbers.example_number_for_type(region, rng.choice([0, 1]))
        national = str(known.national_number)
        drawn = phonenumbers.PhoneNumber(known.country_code, int(national[:3] + digits(rng, len(national) - 3)))
        if phonenumbers.is_valid_number(drawn):
            return phonenumbers.format_number(drawn, phonenumbers.PhoneNumberFormat.NATIONAL)


LANGUAGES = tuple(_REGIONS)
"""The languages of `national_phone`."""

KINDS: dict[str, Make] = {
    "email": email,
    "ip_4": ip_4,
    "ip_6": ip_6,
    "card": card,
    "iban": iban,
    "phone": phone,
    "national_id_us": us,
    "national_id_gb": gb,
    "national_id_de": de,
    "national_id_es": es,
    "national_id_it": it,
    "national_id_fr": fr,
    "national_id_in": behind("Aadhaar|Aadhaar no.|UIDAI number:", india),
    "national_id_br": brazil,
    "national_id_pl": behind("PESEL|PESEL:|nr PESEL", poland),
    "national_id_cn": china,
    "secret_key": key,
    "secret_assigned": assigned,
    "secret_service": service_key,
}
"""Kind -> its generator. A word may come first; the part after its last space must not be left in the text."""


def bare(made: str) -> str:
    """The planted value, without the word before it."""
    first, _, rest = made.partition(" ")
    return made if first[-1:].isdigit() or "@" in made or "=" in made or not rest else rest


CONTEXTS = [
    *("{}", "{}", "{}.", "{},", "({})", "<{}>", '"{}"', "'{}'", "[{}]", "{};", "{}!", "{}?", "**{}**", "|{}|", "- {}"),
    *("contact: {}", "is {} now", "{} or", "{}\n", "\n{}\n", "\t{}\t", "{}:", "<td>{}</td>", '{{"value": "{}"}}'),
]
"""The text around the planted value; spaces are around both."""


def plant(rng: random.Random, text: str, made: str) -> str:
    """The text with a planted value between two words, in one of the contexts."""
    gaps = [at for at, letter in enumerate(text) if letter.isspace()] or [len(text)]
    at = rng.choice(gaps)
    return f"{text[:at]} {rng.choice(CONTEXTS).format(made)} {text[at:]}"


def plants(kind: str, number: int, texts: list[str], seed: int = 0) -> Iterator[tuple[str, str]]:
    """Texts with a planted value each, and these values."""
    rng = random.Random(json.dumps([kind, seed]))
    for _ in range(number):
        made = KINDS[kind](rng)
        yield plant(rng, rng.choice(texts), made), made
