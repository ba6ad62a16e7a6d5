"""Planted secrets: preparation may write them nowhere but into texts that it was not asked to mask.

A document holds one secret in one disguise and in one place. Chains with the step `personal_data` must mask it in the
stored documents, too; all other chains must mask it in what they write besides. Only ids stay in documents and
decisions, where they are keys. Texts that only look like secrets must stay. `count` is the number of documents.
"""

from __future__ import annotations

import html
import json
import re
import string
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from benchmarks.reliability import small
from benchmarks.reliability.forks import in_fork
from benchmarks.reliability.hostile_documents import PLAIN, Steps
from benchmarks.reliability.small import Place
from benchmarks.reliability.tally import Tally
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Here
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.schema import Document

Rng = np.random.Generator

_BATCH = 9
"""Fewer documents than there are examples of a rule, so that all are shown."""
_LEAKED = 10
"""So many characters of a secret in a row are a leak."""
_SEPARATORS = {
    "": "nothing",
    " ": "a space",
    "\xa0": "a no-break space",
    "\u202f": "a narrow space",
    "-": "a hyphen",
    "\u2013": "an en dash",
    "\u2011": "a no-break hyphen",
    "\xad": "a soft hyphen",
    "\u200b": "a zero-width space",
    "\n": "a line end",
}
_PLACES = ("alone", "at the cut of a text", "at the cut of a line", "in an edited line", "title", "url", "id")


class Secret(NamedTuple):
    """A secret: its kind and disguise, the text that holds it, and its letters and digits."""

    about: str
    text: str
    core: str


# ---- Secrets.


def _drawn(rng: Rng, characters: str, number: int) -> str:
    return "".join(characters[place] for place in rng.integers(len(characters), size=number))


def _separated(rng: Rng, digits: str, size: int) -> tuple[str, str]:
    """Digits in groups with a separator, or as full-width digits; the text and the disguise."""
    separators = [*_SEPARATORS, "full-width"]
    separator = separators[rng.integers(len(separators))]
    if separator == "full-width":
        return digits.translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)}), "full-width digits"
    groups = [digits[start : start + size] for start in range(0, len(digits), size)]
    if separator == "\n":
        return f"{groups[0]}\n{' '.join(groups[1:])}", _SEPARATORS[separator]
    return separator.join(groups), _SEPARATORS[separator]


def _card(rng: Rng) -> Secret:
    digits = "4" + _drawn(rng, string.digits, 14)
    total = sum(int(digit) if place % 2 else sum(divmod(2 * int(digit), 10)) for place, digit in enumerate(digits))
    digits += str(-total % 10)
    text, disguise = _separated(rng, digits, 4)
    label = ("card ", "Card number:\n", "credit card: ")[rng.integers(3)]
    return Secret(f"card, {disguise}, after {label!r}", label + text, digits)


def _iban(rng: Rng) -> Secret:
    account = _drawn(rng, string.digits, 18)
    iban = f"DE{98 - int(account + '131400') % 97:02d}{account}"
    text, disguise = _separated(rng, iban, 4)
    return Secret(f"IBAN, {disguise}", ("IBAN: ", "IBAN\n", "pay to ")[rng.integers(3)] + text, iban)


def _phone(rng: Rng) -> Secret:
    digits = f"7{_drawn(rng, '23456789', 7)}"
    text, disguise = _separated(rng, digits, 4)
    label, area = (("phone: +49 30 ", "30"), ("Telephone\n+49 89 ", "89"), ("call +44 20 ", "20"))[rng.integers(3)]
    return Secret(f"telephone, {disguise}, after {label!r}", label + text, area + digits)


def _email(rng: Rng) -> Secret:
    local = _drawn(rng, string.ascii_lowercase, 70 if rng.random() < 0.15 else 14)
    signs = ("@", "%40", "&#64;", "\uff20", "@\u200b", "@\xad")
    sign = signs[rng.integers(len(signs))]
    return Secret(f"e-mail of {len(local)} letters, {sign!a}", f"mail {local}{sign}example.org", local)


def _key(rng: Rng) -> Secret:
    value = _drawn(rng, string.ascii_letters, 4) + _drawn(rng, string.digits, 2)  # words have no digits
    value += _drawn(rng, string.ascii_letters + string.digits, 34)
    account = _drawn(rng, f"{string.ascii_uppercase}234567", 16)
    forms = {
        "ghp": f"ghp_{value[:36]}",
        "AKIA": f"AKIA{account}",
        "Bearer": f"Authorization: Bearer {value}",
        "header": f"curl -H 'authorization: bearer {value}'",
        "password": f"password = '{value[:20]}'",
        "label on the line before": f"api_key:\n{value}",
        "URL": f"https://user:{value[:20]}@example.org/",
        "token": f"ACCESS_TOKEN={value}",
        "slack": f"xoxb-1234567890-{value[:24]}",
    }
    name = list(forms)[rng.integers(len(forms))]
    return Secret(f"key, {name}", forms[name], account if name == "AKIA" else value[:20])


def _private_key(rng: Rng) -> Secret:
    kind = ("RSA ", "EC ", "OPENSSH ", "")[rng.integers(4)]
    letters = string.ascii_letters + string.digits
    lines = [_drawn(rng, letters, 64) for _ in range(int(rng.integers(3, 26)))]
    end = f"-----END {kind}PRIVATE KEY-----" if rng.random() < 0.6 else ""
    text = "\n".join([f"-----BEGIN {kind}PRIVATE KEY-----", *lines, end])
    return Secret(f"private key of {len(lines)} lines{'' if end else ' without its end'}", text, "".join(lines))


_KINDS: tuple[Callable[[Rng], Secret], ...] = (_card, _iban, _phone, _email, _key, _private_key)
_NO_SECRETS = """
    Firefox 121.0.1.2 is here
    Mozilla/5.0 Chrome/120.0.6099.109 Safari
    version 2.14.0.1 of it
    chapter 100.2.3.4
    see section 10.20.30.40 of the law
    v1.2.3.4
    release 8.8.4.4
    Windows 10.0.19041.1
    ISBN 978-3-16-148410-0
    the year 2024-05-01 12:30:45
    pi is 3.14159265358979
    ticket 12345678901
    a@b
    @property
    x = y@z
    password: hunter
    token = get_token()
    secret: none
    price 1 234 567 890
    0.0.0.0
    127.0.0.1
    10 000 000 000
"""


# ---- Documents and chains.


def _document(number: int, secret: Secret, place: str, rng: Rng) -> Document:
    id = f"{number} {secret.text}" if place == "id" else f"d{number}"
    about: dict[str, Any] = {"id": id, "source": "web", "language": "en"}
    if place == "id":
        return Document(**about, text=PLAIN)
    if place == "title":
        return Document(**about, text=PLAIN, title=secret.text)
    if place == "url":
        return Document(**about, text=PLAIN, metadata={"url": f"https://example.org/{secret.text}"})
    inside = int(rng.integers(1, len(secret.text)))
    if place == "at the cut of a text":
        before = (PLAIN * 4)[: 1999 - inside] + " "
    elif place == "at the cut of a line":
        before = PLAIN + "word " * 80
        before = before[: len(PLAIN) + 299 - inside] + " "
    else:
        before = PLAIN + ("{ Javascript must be on, click here " if place == "in an edited line" else "")
    return Document(**about, text=f"{before}{secret.text}\n{PLAIN}")


def raising(document: Any) -> None:
    """A function for the step `python` whose error has the text of the document."""
    raise ValueError(document.text[-2000:])


def missing(document: Any) -> None:
    """A function for the step `python` whose error has the end of the text."""
    raise KeyError(document.text[-len(PLAIN) - 60 :], document.title, document.id)


_MASKED = ["title", "url"]
MASKING: dict[str, Steps] = {
    "personal_data": [("personal_data", {"fields": _MASKED}), ("words", {"least": 150})],
    "personal_data, regions": [("personal_data", {"fields": _MASKED, "regions": ["US", "DE", "GB"]}), ("c4", {})],
}
OTHERS: dict[str, Steps] = {
    "words": [("words", {"least": 100_000})],
    "c4": [("c4", {"thresholds": {"least_sentences": 0}})],
    "line_corrections": [("line_corrections", {})],
    "lines": [("lines", {"everywhere": True})],
    "sentences": [("sentences", {"run": 1})],
    "substrings": [("substrings", {"length": 5})],
    "html": [("html", {"always": True})],
    "gopher": [("gopher", {})],
    "minhash": [("minhash", {})],
    "python": [("python", {"function": f"{__name__}:raising"})],
    "python, another error": [("python", {"function": f"{__name__}:missing"})],
}


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """Batches of documents through every chain, then some through the command line."""
    tally, rng = Tally(seed), np.random.default_rng(seed)
    for text in map(str.strip, _NO_SECRETS.strip().splitlines()):
        tally.begin()
        document = Document("a", f"{PLAIN}{text}.\n{PLAIN}", "web", "en")
        [kept] = Chain([("personal_data", {})], Here()).through([document])
        if kept.text != document.text:
            tally.fail("false_finds", text=text, stored=ascii(kept.text[len(PLAIN) : -len(PLAIN)]))
    for number in range(0, count, _BATCH):
        secrets = [_KINDS[(number + k) % len(_KINDS)](rng) for k in range(min(_BATCH, count - number))]
        places = [_PLACES[place] for place in rng.integers(len(_PLACES), size=len(secrets))]
        documents = [_document(number + k, each, places[k], rng) for k, each in enumerate(secrets)]
        tally.begin(len(documents))
        fail = partial(_fail, tally, secrets, places)
        for name, steps in (MASKING | OTHERS).items():
            outcome = in_fork(partial(_prepare, folder / "out", steps, documents, name in MASKING))
            if outcome.fault is not None:
                tally.fail(outcome.fault, chain=name, said=outcome.said)
                continue
            fail(name, outcome.value | {"terminal": outcome.output + outcome.error})
        if number % (30 * _BATCH) == 0:
            for name, steps in (*MASKING.items(), ("words", OTHERS["words"]), ("python", OTHERS["python"])):
                fail(f"{name}, command line", dict(_written_by_commands(folder, documents, steps, name in MASKING)))
    return tally.result


def _fail(tally: Tally, secrets: Sequence[Secret], places: Sequence[str], chain: str, written: dict[str, str]) -> None:
    """Search texts for the secrets."""
    for where, text in written.items():
        found = _normal(text)
        for secret, place in zip(secrets, places, strict=True):
            if place == "id" and {"documents", "decisions"} & set(Path(where).parts):
                continue
            parts = (secret.core[start : start + _LEAKED] for start in range(len(secret.core) - _LEAKED + 1))
            if part := next((part for part in parts if part in found), ""):
                tally.fail(
                    "leaks",
                    chain=chain,
                    file=where,
                    secret=secret.about,
                    place=place,
                    text=ascii(secret.text)[:100],
                    part=part,
                )
            else:
                tally.add("masked")


def _prepare(folder: Path, steps: Steps, documents: Sequence[Document], with_texts: bool) -> dict[str, str]:
    """All that a chain writes, for a fork; with the documents that it stores, if they should be masked."""
    small.remove(folder)
    filler = [Document(f"plain {number}", f"{number} {PLAIN * 2}", "web", "en") for number in range(2)]
    chain, kept = Chain(steps, Here()), list[Document]()
    try:
        kept.extend(chain.through([*documents, *filler], folder))
    except UserError as error:
        print(error)
    written = dict(_texts(folder))
    if "examples.json" not in written:  # no document was kept
        written["account"] = _strings([chain.account(), chain.examples(), chain.counts()])
    if with_texts:
        written["documents"] = _strings([[each.text, each.title, each.metadata] for each in kept])
    return written


def _written_by_commands(
    folder: Path, documents: Sequence[Document], steps: Steps, with_texts: bool
) -> Iterator[tuple[str, str]]:
    """What `prepare` prints and writes, and what its dry run prints."""
    place = Place(folder / "command")
    small.remove(place.root)
    place.corpus.mkdir(parents=True)
    records = [{"id": each.id, "text": each.text, "title": each.title, **each.metadata} for each in documents]
    records += [{"id": f"plain {number}", "text": f"{number} {PLAIN * 2}"} for number in range(2)]
    (place.corpus / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    listed = [{"step": name, "options": options} for name, options in steps]
    (place.root / "settings.yaml").write_text(json.dumps({"preparation": {"steps": listed}}))
    arguments = ["prepare", "--config", str(place.root / "settings.yaml"), "--out", str(place.dataset)]
    arguments += ["--corpus.paths", f"{place.corpus}/*.jsonl"]
    for more in (["--dry-run"], []):
        outcome = in_fork(small.command([*arguments, *more]))
        yield f"terminal of {' '.join(more) or 'prepare'}", outcome.output + outcome.error
    for name, text in _texts(place.dataset):
        if with_texts or not name.startswith("documents/"):
            yield name, text


# ---- Texts of files.


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or "work" in path.relative_to(folder).parts:  # the parts of a run that did not end
            continue
        if path.suffix == ".parquet":
            text = _strings(pq.read_table(path).to_pylist())
        elif path.suffix == ".json":
            text = _strings(json.loads(path.read_bytes()))
        else:
            text = path.read_bytes().decode("utf-8", "replace")
        yield str(path.relative_to(folder)), text


def _strings(value: Any) -> str:
    """All texts in a value."""
    if isinstance(value, dict):
        return "\n".join(map(_strings, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple):
        return "\n".join(map(_strings, value))
    return str(value)


def _normal(text: str) -> str:
    """Letters and digits alone, in their usual forms."""
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text).replace("\\n", " ")
    text = unicodedata.normalize("NFKC", html.unescape(text))
    return "".join(filter(str.isalnum, text))
