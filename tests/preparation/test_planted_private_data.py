"""188 planted personal data in sentences of our own, and 311 decoys: almost all are found, and almost none is wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks import planted
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.schema import Document

pytestmark = pytest.mark.campaign

pytest.importorskip("phonenumbers", reason="telephone numbers are told with the extra `preparation`")

DECOYS = Path(__file__).parent / "data/private_data_decoys.txt"
SENTENCES = {
    "email": ("Write to {} before Monday.", "From: Jane Roe <{}>", "mailto:{}?subject=hello", "({}) is the editor"),
    "ip_4": ("the host {} does not answer", "Blocked {} for spam", "from {} port 22", "{} - - [01/Jan/2020] GET /"),
    "ip_6": ("ping6 {}", "AAAA {}", "the address [{}]:443"),
    "card": ("I paid with {} yesterday.", "Card: {}, valid until 10/29"),
    "iban": ("Bitte auf {} überweisen.", "IBAN: {}", "konto {}, termin 14 dni"),
    "secret_key": ("the key is {}", "{}"),
    "secret_service": ("curl -u {}: https://api.example.org", "KEY is {}", "('{}')"),
    "secret_assigned": ("{}", "config: {}\nother: 1"),
}
PHONES = {
    "en": ("The office is open until five, {}.", "Jane Roe, {}, New York", "For help: {} (weekdays)"),
    "de": ("Sie erreichen uns unter {} bis 17 Uhr.", "Praxis am Markt, {}"),
    "fr": ("Pour réserver : {} ou par courrier", "Mairie, {}"),
    "es": ("Reservas en el {} de lunes a viernes", "Taller, {}"),
    "pt": ("Fale com a gente: {}", "Loja do centro, {}"),
    "it": ("Prenotazioni allo {} dopo le 18", "Segreteria, {}"),
    "pl": ("Zapisy pod numerem {} do piątku",),
    "nl": ("Bel ons op {} voor vragen",),
    "ja": ("お問い合わせは {} まで",),
    "zh": ("咨询请拨打 {} 。",),
    "ru": ("Запись по номеру {} в будни",),
    "sv": ("Ring oss på {} före fem",),
    "tr": ("Bilgi için {} numara",),
}
COUNTS = {
    **{"email": 24, "ip_4": 16, "ip_6": 6, "card": 12, "iban": 12, "secret_key": 10, "secret_service": 20},
    **{"secret_assigned": 10, "setting": 12, "bearer": 6},
    **{f"national_id_{country}": 2 for country in ("us", "gb", "de", "es", "it", "fr", "in", "br", "pl", "cn")},
    "phone": 40,
}


def plants() -> list[tuple[Document, str]]:
    """Return documents with one planted value each, and these values."""
    rng = random.Random(29)
    made: list[tuple[str, str, str]] = []
    for kind, number in COUNTS.items():
        for index in range(number):
            language = "en"
            if kind == "phone":
                language = planted.LANGUAGES[index % len(planted.LANGUAGES)]
                value, sentences = planted.national_phone(rng, language), PHONES[language]
            elif kind in ("setting", "bearer"):
                value, sentences = getattr(planted, kind)(rng), ("{}", "# settings\n{}\nDEBUG=1")
            else:
                value, sentences = planted.KINDS[kind](rng), SENTENCES.get(kind, ("His number is {}.", "{} (copy)"))
            text = rng.choice(sentences).format(value)
            bare = value.partition("=")[2] if kind == "setting" else planted.bare(value)
            made.append((text, bare, language))
    return [(Document(str(index), text, "web", of), bare) for index, (text, bare, of) in enumerate(made)]


def test_planted_data_are_found() -> None:
    pairs = plants()
    assert len(pairs) == 188
    left = list(Chain([("personal_data", {})]).through([document for document, _ in pairs]))
    missed = [document.text for document, (_, bare) in zip(left, pairs, strict=True) if bare in document.text]
    assert len(missed) <= 0.03 * len(pairs), missed


# Between letters of other scripts, as people write: no spaces around the value.
WITHOUT_SPACES = {
    **{"zh": "\u8054\u7cfb\u6211\u4eec{}\u6216\u8005", "ja": "お\u554fい\u5408わせは{}まで"},
    **{"ko": "여기는{}입니다", "th": "ข้อมูล{}ครับ", "km": "សូមមើល{}ទៀត", "ru": "Данные{}или"},
}


@pytest.mark.parametrize("language", WITHOUT_SPACES)
def test_letters_of_another_script_may_touch_planted_data(language: str) -> None:
    """All kinds are found, and the letters around them stay."""
    rng, frame = random.Random(3), WITHOUT_SPACES[language]
    before, after = frame.split("{}")
    values = [make(rng) for make in planted.KINDS.values() for _ in range(6)]
    values += [make(rng) for make in (planted.key, planted.service_key) for _ in range(20)]
    documents = [Document(str(index), frame.format(value), "web", language) for index, value in enumerate(values)]
    missed = []
    for document, value in zip(Chain([("personal_data", {})]).through(documents), values, strict=True):
        assert document.text.startswith(before)
        assert document.text.endswith(after)
        if planted.bare(value) in document.text and '"/' not in value and "'/" not in value:  # values that may be paths
            missed.append(document.text)
    assert not missed


def test_decoys_stay() -> None:
    lines = [line.split("\t", 1) for line in DECOYS.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    documents = [Document(str(index), text, "web", language) for index, (language, text) in enumerate(lines)]
    assert len(documents) == 311
    left = Chain([("personal_data", {})]).through(documents)
    wrong = [after.text for after, before in zip(left, documents, strict=True) if after.text != before.text]
    assert len(wrong) <= 0.02 * len(documents), wrong
