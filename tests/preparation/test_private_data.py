"""Personal data of every kind, planted and published; evaluation data in documents; nothing in clear anywhere."""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from benchmarks import planted
from jax_diversity.foundation.artifacts import file_hash, fingerprint
from jax_diversity.foundation.errors import UserError
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.tables import funnel_table
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.passes.settings import PreparationConfig, StepConfig
from jax_diversity.preparation.steps import personal_data
from jax_diversity.report.preparation import preparation_values, stored_preparation
from jax_diversity.schema import Document
from tests.support.limits import processor_limit
from tests.support.tiny_corpus import tiny_config, write_corpus

phonenumbers = pytest.importorskip("phonenumbers", reason="telephone numbers are told with the extra `preparation`")


def through(step: str, texts: list[str], **options: object) -> tuple[dict[str, str], dict]:
    """The texts that are left by number, and the step's account."""
    chain = Chain([(step, options)])
    left = {document.id: document.text for document in chain.through(numbered(texts))}
    return left, chain.funnel()[0]


def numbered(texts: list[str]) -> list[Document]:
    return [Document(str(index), text, "web") for index, text in enumerate(texts)]


def masks(text: str, **options: object) -> tuple[str, dict[str, int]]:
    left, account = through("personal_data", [text], **options)
    return left["0"], account["found"]


# ---- Personal data.
PUBLISHED = [
    # Numbers that the authorities themselves, or articles on them, give as examples.
    ("IBAN DE89 3704 0044 0532 0130 00 BIC X", "IBAN <iban> BIC X", {"iban": 1}),
    ("GB29NWBK60161331926819, FR1420041010050500013M02606.", "<iban>, <iban>.", {"iban": 2}),
    ("his SSN is 078-05-1120.", "his SSN is <national_id>.", {"national_id_us": 1}),
    ("NINO QQ123456C AB123456C", "NINO QQ123456C <national_id>", {"national_id_gb": 1}),
    ("IdNr. 86095742719, 47 036 892 816", "IdNr. <national_id>, <national_id>", {"national_id_de": 2}),
    ("DNI 12345678Z y NIE X1234567L", "DNI <national_id> y NIE <national_id>", {"national_id_es": 2}),
    ("C.F. RSSMRA85T10A562S", "C.F. <national_id>", {"national_id_it": 1}),
    ("NIR 2 55 08 14 168 025 38", "NIR <national_id>", {"national_id_fr": 1}),
    ("Aadhaar 2341 2341 2347", "Aadhaar 2341 2341 2347", {}),
    ("Aadhaar: 2341 2341 2346", "Aadhaar: <national_id>", {"national_id_in": 1}),
    ("CPF 529.982.247-25 ou 52998224725", "CPF <national_id> ou <national_id>", {"national_id_br": 2}),
    ("PESEL 44051401359", "PESEL <national_id>", {"national_id_pl": 1}),
    ("身份证 11010519491231002X。", "身份证 <national_id>。", {"national_id_cn": 1}),
    ("+1 650-253-0000, +49 (0)30 901820!", "<phone>, <phone>!", {"phone": 2}),
    ("Tel.030 1234567, T\u00e9l.01 23 45 67 89", "Tel.<phone>, T\u00e9l.<phone>", {"phone": 2}),
    ("\u0442\u0435\u043b.8(495)123-45-67, v.030 1234567", "\u0442\u0435\u043b.<phone>, v.030 1234567", {"phone": 1}),
    ("\u05d8\u05dc\u05e4\u05d5\u05df050-234-5678", "\u05d8\u05dc\u05e4\u05d5\u05df<phone>", {"phone": 1}),
    ("?e=john.doe%2540example.org, 100%25 sure", "?e=<email>, 100%25 sure", {"email": 1}),
    ("Tel.: (030) 90 18 20 - Fax 901821", "Tel.: <phone> - Fax 901821", {"phone": 1}),
    ("jane [at] example [dot] org, jo.doe(at)uni.edu", "<email>, <email>", {"email": 2}),
    ("mail=a@b.com&x, {{c@d.org}}", "mail=<email>&x, {{<email>}}", {"email": 2}),
    ("PING 2001:4860:4860::8888: icmp_seq", "PING <ip>: icmp_seq", {"ip": 1}),
    ("aws AKIAIOSFODNN7EXAMPLE", "aws <secret>", {"secret_aws": 1}),
    ("postgres://me:hunter2!@db.net/x", "postgres://me:<secret>@db.net/x", {"secret_url_password": 1}),
    ("the key AKIALHQWERTZUIOPASDF", "the key <secret>", {"secret_aws": 1}),
    ("<b>DB_PASSWORD=D8$rAl3dGD</b>", "<b>DB_PASSWORD=<secret></b>", {"secret_assigned": 1}),
    ("<password>hK8wqZp2x7Lm</password>", "<password><secret></password>", {"secret_assigned": 1}),
    ('password: "hK8$wq!Zp2"', 'password: "<secret>"', {"secret_assigned": 1}),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
        "<secret>",
        {"secret_private_key": 1},
    ),
]
OTHER_CHARACTERS = [
    # Spaces, dashes, digits and marks of other scripts, invisible characters, character references.
    ("4111\u00a01111\u202f1111\u30001111.", "<card>.", {"card": 1}),
    ("4111\u20131111\u20111111\u20101111.", "<card>.", {"card": 1}),
    ("41\u00ad11 1111 11\u200b11 1111\ufeff.", "<card>.", {"card": 1}),
    ("\uff14" + "\uff11" * 15, "<card>", {"card": 1}),
    ("DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000 BIC", "<iban> BIC", {"iban": 1}),
    ("DE\u00ad89 3704 0044 05\u200d32 0130 00 BIC", "<iban> BIC", {"iban": 1}),
    ("\u202a+49\u00a030\u2011901820\u202c!", "\u202a<phone>!", {"phone": 1}),
    ("Tel.: \uff08030\uff09 90\u201318\u201320", "Tel.: <phone>", {"phone": 1}),
    ("tel \u0660\u0663\u0660 \u0669\u0660\u0661\u0668\u0662\u0660", "tel <phone>", {"phone": 1}),
    ("jane%40example.org, jo&#64;b.com, jo&#x40;b.com, c&commat;d.de", ", ".join(["<email>"] * 4), {"email": 4}),
    ("\uff4aane\uff20example\uff0eorg; jane.\u00addoe@ex\u200bample.org", "<email>; <email>", {"email": 2}),
    (
        "RSSMRA\uff18\u0665T10A562S, 078\u201105\u20131120",
        "<national_id>, <national_id>",
        {"national_id_it": 1, "national_id_us": 1},
    ),
    (
        "RSSMRA\U0001d7ff5T10A562S, RSSMRA\U0001d7d65T10A562S",
        "RSSMRA\U0001d7ff5T10A562S, <national_id>",
        {"national_id_it": 1},
    ),
    ("password: 'EApYaihGGf%40bx'", "password: '<secret>'", {"secret_assigned": 1}),
    ("\u043a\u0430\u0440\u0442\u0430\u200b4111111111111111", "\u043a\u0430\u0440\u0442\u0430\u200b<card>", {"card": 1}),
]
ACROSS_LINES = [
    ("card 4111 1111\n1111 1111 it is", "card <card> it is", {"card": 1}),
    ("card 4111-1111-\r\n  1111-1111 it is", "card <card> it is", {"card": 1}),
    ("IBAN DE89 3704\n0044 0532 0130 00", "IBAN <iban>", {"iban": 1}),
    ("call +49 30\n901820 now", "call <phone> now", {"phone": 1}),
    ("GB29 NWBK\n6016 1331 9268 19", "<iban>", {"iban": 1}),
    ("Fax: (201)\n755-3380 or AB 12\n34 56 C", "Fax: <phone> or <national_id>", {"phone": 1, "national_id_gb": 1}),
    ("his SSN is 078-05-\n1120.", "his SSN is <national_id>.", {"national_id_us": 1}),
    ("card 4111\n1111\n1111\n1111\nwords", "card <card>\nwords", {"card": 1}),
    ("phone: +49 2935\n4492\n959", "phone: <phone>", {"phone": 1}),
    # A number that ends before the line break, and tables.
    ("+49 30 901820\n10115 Berlin", "<phone>\n10115 Berlin", {"phone": 1}),
    ("4111 1111 1111 1111\n5500 0000 0000 0004", "<card>\n<card>", {"card": 2}),
    ("1234 5678\n4111 1111\n1111 1111\n1234 5678", "1234 5678\n4111 1111\n1111 1111\n1234 5678", {}),
]
RUN = "MIIEpAIBAAKCAQEAtF5cXz3vQ0aB1cD2"
MORE = [
    ("Authorization: Bearer 0aB1cD2eF3gH4iJ5.", "Authorization: Bearer <secret>", {"secret_authorization": 1}),
    ("{'authorization': 'Basic dXNlcjpwYXNzdw=='}", "{'authorization': 'Basic <secret>'}", {"secret_authorization": 1}),
    (
        f"-----BEGIN RSA PRIVATE KEY-----\n{RUN}\n{RUN}\n\nOther words.",
        "<secret>\n\nOther words.",
        {"secret_private_key": 1},
    ),
    (f'k = "-----BEGIN PRIVATE KEY-----\\n{RUN}\\n{RUN}\\nMA==";', 'k = "<secret>";', {"secret_private_key": 1}),
    (f"-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{RUN}\nab", "<secret>", {"secret_private_key": 1}),
    ("TOKEN=iJS0GxtAES3e5GwPJptSKFuVyu3qoSMd", "TOKEN=<secret>", {"secret_assigned": 1}),
    ("api_key:\n  iJS0GxtAES3e5GwPJptSKFuVyu3qoSMd", "api_key:\n  <secret>", {"secret_assigned": 1}),
    (
        "Tel +44 666 832023, Fax:\n+44 666 832024, phone +1 650-253-0000x118",
        "Tel <phone>, Fax:\n<phone>, phone <phone>x118",
        {"phone": 3},
    ),
    (f"{'bounce-' * 20}jane@example.org", "<email>", {"email": 1}),
    ("host 121.0.1.2, is 100.2.3.4", "host <ip>, is <ip>", {"ip": 2}),
]
UNTOUCHED = [
    "Firefox 121.0.1.2, Firefox/121.3.1.2, chapter 100.2.3.4, section 1.2.3.4, v1.2.3.4, Program 101.0.2.3",
    "Authorization: Bearer YOUR_TOKEN_HERE, Authorization: Bearer ${TOKEN_1}, Basic authorization of 12345678",
    "-----BEGIN PRIVATE KEY-----\n...",
    "12\u201315 1990\u20131991 \u00a7\u00a712\u201315, &#8211;&amp;&#64; %40 medium.com/%40user/4 \uff20",
    "x @pytest.mark.slow and y@2x.png, A@B.T(x), git log HEAD@{1}",
    "version 1.2.3.4, section 5.6.7.8, Firefox 2.0.0.11, v 1.72.1.1, OID 2.5.4.3, 1.2.3.4.5",
    "from 1990-1991 to 2001-2002, call 1990 1991, 10 000 000, 2020-01-02 03:04:05",
    "4111 1111 1111 1112, 40 66 66 00 02 40 77 77, 0x4111111111111111, 3.4111111111111111",
    "44051401359 2341 2341 2346 52998224725 in no country's words",
    "000-12-3456, 666-12-3456, 900-12-3456, 123-00-4567, 123-45-0000, 123-45-6789.5",
    "DE89 3704 0044 0532 0130 01, XX12 3456, GB29NWBK6016133192681",
    "12345678A, X1234567A, RSSMRA85T10A562T, 529.982.247-26, 110105194912310021, 11010519491331002X",
    "np.arange(6) + 98172488, a + 12 + 44, +1 is more, C++11, std::vector::a::b, 12:30:45, ab:cd",
    'password = os.environ["PASSWORD"], token = get_token(user_id), secret: ${SECRET}, key = "primary-key-name"',
    "password: changeme, api_key = your_api_key_goes_here, http://user:password@host/, AKIA-NO",
    "eyJ.eyJ.x, sk-short, hf_model_name, github_pat_, xoxb-",
    "call 1-2-3-4-5-6-7, or call 1.2.3.4.5.6.7.8",
]

OPENAI = "sk-proj-Ab3dEf6hIj9lMn2pQr5tUv8xYz1Bc4De"
AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzz12345678"
# Language, text, text after the step: data next to letters of scripts without spaces.
UNSPACED = [
    ("zh", "身份证号是11010519491231002X\u3002", "身份证号是<national_id>\u3002"),
    ("zh", "手机13800138000。", "手机<phone>。"),
    ("zh", "手机号码是13800138000请", "手机号码是<phone>请"),
    ("zh", "电话010-62345678转", "电话<phone>转"),
    ("zh", "电话+49 30 1234567或者", "电话<phone>或者"),
    ("zh", "热线010-62345678请", "热线<phone>请"),
    ("zh", "卡号4111111111111111的", "卡号<card>的"),
    ("zh", "服务器203.0.114.77的", "服务器<ip>的"),
    ("zh", "邮箱jane.roe@example.org联系", "邮箱<email>联系"),
    ("zh", "邮箱用户@例子.中国", "<email>"),  # where an address of Chinese letters begins is unknown
    ("zh", f"密钥{OPENAI}的", "密钥<secret>的"),
    ("ja", "電話03-6234-5678まで", "電話<phone>まで"),
    ("ja", "携帯は090-1234-5678です", "携帯は<phone>です"),
    ("ko", "전화번호는010-1234-5678입니다", "전화번호는<phone>입니다"),
    ("th", "โทรศัพท์0812345678ครับ", "โทรศัพท์<phone>ครับ"),
    # Versions, amounts, numbers of things, dates.
    *(
        ("zh", text, text)
        for text in (
            "版本12.13.14.15的更新",
            "共13800138000元",
            "订单20231105123456已发货",
            "2023年11月05日12时",
            "手机型号SM1234567890",
            "电话会议2023-11-05开始",
        )
    ),
]
# Data inside other text.
ESCAPED = [
    (r'{"config": "{\"password\": \"Xk9#mPq2!vLr\"}"}', r'{"config": "{\"password\": \"<secret>\"}"}'),
    (r'"DB_PASSWORD=Xk9mPq2vLrT7\nDEBUG=1"', r'"DB_PASSWORD=<secret>\nDEBUG=1"'),
    ("&quot;password&quot;: &quot;Xk9#mPq2!vLr&quot;", "&quot;password&quot;: &quot;<secret>&quot;"),
    (f"&quot;aws_secret_access_key&quot;:&quot;{AWS}&quot;", "&quot;aws_secret_access_key&quot;:&quot;<secret>&quot;"),
    (f'{{\\"aws_secret_access_key\\": \\"{AWS}\\"}}', '{\\"aws_secret_access_key\\": \\"<secret>\\"}'),
    ("key AKIAQWERT\u200bYUIOP234567 end", "key <secret> end"),
    (f"key {OPENAI[:12]}\u00ad{OPENAI[12:]} end", "key <secret> end"),
    (f"key {OPENAI[:12]}<wbr>{OPENAI[12:]} end", "key <secret> end"),
    (f"key {OPENAI[:2]}&#8203;{OPENAI[2:]} end", "key <secret> end"),
    ("tel=%2B49301234567&x=1", "tel=<phone>&x=1"),
    ("tel=%2B49%2030%201234567", "tel=<phone>"),
    ("?tel=%2B49+30+1234567&b", "?tel=<phone>&b"),
    ("?password=Xk9%23mPq2%21vLr&x=1", "?password=<secret>&x=1"),
    ("https://user:Xk9%23mPq2@host.example.org/", "https://user:<secret>@host.example.org/"),
    ("mail jane.roe=40example.org now", "mail <email> now"),
    ("jane.roe=40example=2Eorg", "<email>"),
    ("mailto%3Ajane%2Eroe%40example%2Eorg", "mailto%3A<email>"),
    ("jane.roe&commat;example&period;org, jane.roe&amp;#64;example.org", "<email>, <email>"),
    (r'"jane.roe\u0040example.org"', '"<email>"'),
    (r'"text": "call\n+49 30 1234567\nnow"', r'"text": "call\n<phone>\nnow"'),
    ("DE89&nbsp;3704&nbsp;0044&nbsp;0532&nbsp;0130&nbsp;00", "<iban>"),
    ("4111%201111%201111%201111", "<card>"),
    # Addresses of repositories, and of people.
    *(
        (text, None)
        for text in (
            "git clone git@github.com:org/project.git",
            "url = git@gitlab.com:group/sub/project.git",
            "ssh://git@bitbucket.org/team/repo.git, ssh://git@host.example.org:7999/team/repo.git",
            "pip install git+ssh://git@github.com/org/project.git@v1.2",
            "gitea@host.example.org:org/repo.git, ssh://forgejo@example.org:2222/org/repo.git",
            "svn+ssh://jane@svn.example.org/project/trunk",
        )
    ),
    ("jane@github.com:org/project, git@example.org", "<email>:org/project, <email>"),
    # What only looks like an escape.
    ("x=4012888888881881, width=40px, 100%2 and 1+2+3+4+5+6+7", "x=<card>, width=40px, 100%2 and 1+2+3+4+5+6+7"),
    (r"\nu + \rho, C:\temp\new, &notanentity; &amp;&lt;&gt; %zz =zz \u12", None),
]


@pytest.mark.parametrize(("language", "text", "expected"), UNSPACED)
def test_letters_without_spaces_may_touch_data(language: str, text: str, expected: str) -> None:
    (left,) = Chain([("personal_data", {})]).through([Document("a", text, "web", language)])
    assert left.text == expected


@pytest.mark.parametrize(("text", "expected"), ESCAPED)
def test_data_inside_other_text(text: str, expected: str | None) -> None:
    document = Document("a", text, "web", title=text, metadata={"url": text})
    (left,) = Chain([("personal_data", {})]).through([document])
    assert (left.text, left.title, left.metadata["url"]) == (expected or text,) * 3


@pytest.mark.parametrize(("text", "expected", "found"), [*PUBLISHED, *OTHER_CHARACTERS, *ACROSS_LINES, *MORE])
def test_published_examples_of_every_kind(text: str, expected: str, found: dict[str, int]) -> None:
    assert masks(text) == (expected, found)


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_only_looks_like_it_stays(text: str) -> None:
    assert masks(text) == (text, {})


WORDS = [
    "the",
    "of",
    "and",
    "words",
    "that",
    "stand",
    "for",
    "a",
    "text,",
    "12",
    "numbers;",
    "1994",
    "(more).\n",
    "yes:",
]


@pytest.mark.parametrize("kind", planted.KINDS)
def test_planted_things_are_found_wherever_they_stand(kind: str) -> None:
    """Of random ones in random contexts all, or all but one."""
    rng = random.Random(5)
    texts = [" ".join(rng.choices(WORDS, k=60)) for _ in range(20)]
    pairs = list(planted.plants(kind, 60, texts))
    left, account = through("personal_data", [text for text, _ in pairs])
    values = [planted.bare(made) for _, made in pairs]
    missed = [value for index, value in enumerate(values) if value in left[str(index)]]
    assert len(missed) <= 1, missed
    assert sum(account["found"].values()) >= 59


@pytest.mark.parametrize("kind", ["iban", "national_id_de", "national_id_es", "national_id_it", "national_id_fr"])
def test_a_wrong_digit_makes_it_a_number_like_any_other(kind: str) -> None:
    rng = random.Random(6)
    texts = []
    for _ in range(60):
        made = planted.KINDS[kind](rng)
        at = max(place for place, letter in enumerate(made[: 4 if kind == "iban" else None]) if letter.isdigit())
        texts.append(f"it is {made[:at]}{(int(made[at]) + 1) % 10}{made[at + 1 :]} here")
    _, account = through("personal_data", texts)
    assert kind not in account["found"]


def test_regions_find_numbers_as_they_are_written_there() -> None:
    text = "Ring 020 7946 0958 or 010-12345678 or 01 23 45 67 89 or 650-253-0000."
    assert masks(text) == (text, {})
    assert masks(text, regions=["US", "GB"])[0] == "Ring <phone> or 010-12345678 or 01 23 45 67 89 or <phone>."
    assert masks(text, regions=["FR", "US"])[0] == "Ring 020 7946 0958 or 010-12345678 or <phone> or <phone>."
    assert masks("Jo (404.240.4204), fax (404.240.4205)", regions=["US"])[0] == "Jo (<phone>), fax (<phone>)"
    # By default the regions are those of the document's language.
    for language, expected in (("en-GB", "Ring <phone> or 010-12345678 or 01 23 45 67 89 or <phone>."), ("xx", text)):
        (left,) = Chain([("personal_data", {})]).through([Document("0", text, "web", language)])
        assert left.text == expected
    (left,) = Chain([("personal_data", {"regions": []})]).through([Document("0", text, "web", "en")])
    assert left.text == text
    with pytest.raises(UserError, match=r"Expected regions of two capital letters.* found 'us'"):
        masks("", regions=["us"])


def test_kinds_can_be_left_alone_and_countries_chosen() -> None:
    text = (
        "a@b.com +1 650-253-0000 81.185.99.189 4111111111111111 GB29NWBK60161331926819 12345678Z AKIAIOSFODNN7EXAMPLE"
    )
    kinds = ("email", "phone", "ip", "card", "iban", "national_id", "secret")
    none = dict.fromkeys(kinds, "")
    assert masks(text, placeholders=none) == (text, {})
    for kind, value in zip(kinds, ("a@b.com", "+1 650-253-0000", *text.split()[3:]), strict=True):
        assert masks(text, placeholders=none | {kind: "[gone]"})[0] == text.replace(value, "[gone]")
    assert masks("12345678Z", countries=["DE", "US"])[1] == {}
    with pytest.raises(UserError, match=r"Expected countries among .* found 'XX'"):
        masks("", countries=["XX"])


def test_the_title_and_named_fields_are_replaced() -> None:
    """Ids stay, and are counted."""
    about = {
        "url": "https://x.org/?q=jane%40example.org",
        "author": {"names": ["jane@example.org"]},
        "by": "jo@b.com",
        "n": 1,
    }
    document = Document("jane@example.org", "text", "web", title="Mail jane@example.org", metadata=about)
    for options, author, by, url in (
        ({}, about["author"], "jo@b.com", "https://x.org/?q=<email>"),
        ({"fields": ["author", "by", "title"]}, {"names": ["<email>"]}, "<email>", about["url"]),
    ):
        chain = Chain([("personal_data", options)])
        (left,) = chain.through([document])
        assert (left.id, left.text, left.title) == ("jane@example.org", "text", "Mail <email>")
        assert left.metadata == {"url": url, "author": author, "by": by, "n": 1}
        assert chain.funnel()[0]["found"]["left_in_id"] == 1
    with pytest.raises(UserError, match="fields to be title or fields of the metadata, found id"):
        masks("", fields=["id"])


def test_without_the_library_telephones_must_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setitem(sys.modules, "phonenumbers", None)
    with pytest.raises(UserError, match="Expected the library phonenumbers"):
        Chain([("personal_data", {})])
    assert masks("a@b.com", placeholders={"phone": ""})[0] == "<email>"


def test_without_the_library_of_checksums_numbers_must_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(personal_data, "HAS_CHECKSUMS", False)
    with pytest.raises(UserError, match=r"needs the library python-stdnum.* placeholders of card and national_id"):
        Chain([("personal_data", {})])
    assert masks("a@b.com", placeholders={"card": "", "national_id": ""})[0] == "<email>"


@pytest.mark.parametrize(
    ("number", "is_one"),
    [
        ("CPF 111.111.111-11", False),  # the checksum of br.cpf alone is right
        ("RSSMRA85T10A562S", True),
        ("RSSMRA85T40A562V", False),  # the days are 1 to 31 and, of women, 41 to 71
        ("11010519491231002X", True),
        ("110105194913310021", False),  # of the 13th month
    ],
)
def test_checksums_are_not_all(number: str, is_one: bool) -> None:
    assert any(kind.startswith("national_id") for kind in masks(number)[1]) is is_one


def test_masked_leaves_nothing_to_see() -> None:
    text = 'Jo (212) 736-5000, jo@b.com, 10.0.0.1, 4111-1111-1111-1111, ssn 078-05-1120, api_key="aB3dE5fG7hI9kL1mN3pQ"'
    shown = personal_data.masked(text)
    assert shown == 'Jo <phone>, <email>, <ip>, <card>, ssn <national_id>, api_key="<secret>"'
    assert personal_data.masked(shown) == shown
    assert personal_data.masked("") == ""


def test_hostile_texts_take_no_longer_than_others() -> None:
    """A part that is repeated must not be searched again from each of its places."""
    parts = [
        "1",
        "1 ",
        "12 ",
        "a@",
        "a@b.",
        ":",
        "ab:",
        "-----BEGIN PRIVATE KEY-----",
        "+1",
        "eyJ",
        "eyJabcdefgh.",
        "1.2.",
    ]
    parts += [
        "password=",
        "(",
        "(1) ",
        "DE89 ",
        "a://",
        "http://a:",
        "A",
        "tel ",
        "sk-",
        "a (at) b ",
        "2020-01-02 ",
        ".",
    ]
    texts = [part * (20_000 // len(part)) for part in parts] + ["a." * 10_000 + "@b.com", "@" + "a." * 10_000]
    with processor_limit(20):  # some hundredths of a second each; with a square it is minutes
        through("personal_data", texts, regions=["US", "DE", "GB", "FR"])


# ---- Evaluation data.
def words_of(rng: np.random.Generator, number: int) -> list[str]:
    return [
        f"{word}{index}"
        for word, index in zip(rng.choice(list("abcdefgh"), number), rng.integers(0, 500, number), strict=True)
    ]


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    """Examples of 9, 12, 13, 14 and 40 words, and one that is too short."""
    rng = np.random.default_rng(0)
    lengths = [9, 12, 13, 14, 40, 5] * 5
    lines = [
        json.dumps({"id": index, "question": " ".join(words_of(rng, length))}) for index, length in enumerate(lengths)
    ]
    with gzip.open(tmp_path / "exam.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n\n".join(lines) + "\n")
    return tmp_path


def examples(folder: Path) -> dict[int, str]:
    """Line -> text."""
    with gzip.open(folder / "exam.jsonl.gz", "rt", encoding="utf-8") as file:
        return {number: json.loads(line)["question"] for number, line in enumerate(file, 1) if line.strip()}


def test_all_planted_examples_are_found_and_nothing_else(evaluation: Path) -> None:
    """With edits outside of thirteen words, other case and punctuation."""
    rng = np.random.default_rng(1)
    clean = [" ".join(words_of(rng, 300)) for _ in range(50)]
    known = {line: text.split() for line, text in examples(evaluation).items()}
    texts, lines = [*clean], []
    for line, words in known.items():
        start = int(rng.integers(0, max(len(words) - 13, 0) + 1))
        kept = words[start : start + 13]
        edited = ["edited", *kept, "too"] if len(words) >= 13 else kept
        dressed = [f"{word.upper()}," if index % 2 else f"«{word}»" for index, word in enumerate(edited)]
        texts.append(" ".join([*words_of(rng, 50), *dressed, *words_of(rng, 50)]))
        lines.append(line)
    left, account = through("decontaminate", texts, files=str(evaluation / "*.gz"))
    found = [line for line in lines if len(known[line]) >= 8]
    assert account["removed"] == {"share": len(found)}
    assert account["found"] == {f"exam.jsonl.gz:{line}": 1 for line in found}
    assert set(left) == {str(index) for index in range(50)} | {
        str(50 + index) for index, line in enumerate(lines) if line not in found
    }


def test_twelve_of_thirteen_words_are_no_run(evaluation: Path) -> None:
    long = next(text for text in examples(evaluation).values() if len(text.split()) == 40).split()
    parts = [" ".join(long[start : start + 12]) for start in range(0, 29, 12)]
    assert through("decontaminate", [" and ".join(parts)], files=str(evaluation / "*.gz"))[1]["removed"] == {}
    # Nor the same words in another order.
    assert through("decontaminate", [" ".join(long[::-1])], files=str(evaluation / "*.gz"))[1]["removed"] == {}


def test_a_share_of_the_words_may_be_contaminated(evaluation: Path) -> None:
    text = next(text for text in examples(evaluation).values() if len(text.split()) == 40)
    document = f"{text} {'word ' * 60}"
    files = str(evaluation / "*.gz")
    assert through("decontaminate", [document], files=files, most_share=0.4)[1]["removed"] == {}
    assert through("decontaminate", [document], files=files, most_share=0.39)[1]["removed"] == {"share": 1}


def test_places_are_cut_out(evaluation: Path) -> None:
    text = next(text for text in examples(evaluation).values() if len(text.split()) == 13)
    before, after = "Before it. " * 100, " After it." * 100
    files = str(evaluation / "*.gz")
    left, account = through("decontaminate", [f"{before}{text.upper()}{after}"], files=files, cut=True)
    assert account["edited"] == 1
    first, second = left["0"].split("\n\n")
    assert first == before[:-200].strip()
    assert second == after[200:].strip()
    assert through("decontaminate", [text], files=files, cut=True)[1]["removed"] == {"empty": 1}
    many = f" {'x' * 700} ".join([text] * 12)
    assert through("decontaminate", [many], files=files, cut=True)[1]["removed"] == {"pieces": 1}


def test_texts_without_spaces_and_of_other_forms(tmp_path: Path) -> None:
    (tmp_path / "exam.txt").write_text(
        "床前明月光疑是地上霜举头望明月低头思故乡\n\nEin Café für über zwölf Gäste, sagt Élodie heute", "utf-8"
    )
    texts = [
        "诗「床前明月光。疑是地上霜。举头望明月。低头思故乡。」",
        "EIN CAFE\u0301 FU\u0308R u\u0308ber zwölf Ga\u0308ste - sagt E\u0301lodie heute!",
        "床前明月光",
    ]
    left, account = through("decontaminate", texts, files=str(tmp_path / "exam.txt"))
    assert set(left) == {"2"}
    assert account["found"] == {"exam.txt:1": 1, "exam.txt:3": 1}


def test_fields_are_chosen(tmp_path: Path) -> None:
    secret = " ".join(f"answer{index}" for index in range(10))
    record = {"question": " ".join(f"asked{index}" for index in range(10)), "meta": {"choices": ["no", secret]}}
    (tmp_path / "a.jsonl").write_text(json.dumps(record), "utf-8")
    files = str(tmp_path / "a.jsonl")
    assert through("decontaminate", [f"x {secret} y"], files=files, run=10)[1]["removed"] == {"share": 1}
    assert through("decontaminate", [f"x {secret} y"], files=files, fields="question")[1]["removed"] == {}
    with pytest.raises(UserError, match=r"Expected the field 'query' in the records of .*, found meta, question"):
        Chain([("decontaminate", {"files": files, "fields": ["question", "query"]})])


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b"", "Expected evaluation examples in .*a.jsonl, found none; the file is empty"),
        ("a.txt", b" \n\n ", "the file is empty"),
        ("a.jsonl", b'{"n": 1}', "found none"),
        ("a.jsonl", b'{"q": "two plus two"}', "of at least 8 words in .* found none of more than 3"),
        ("a.jsonl", b"no json", "a.jsonl:1: not JSON"),
        ("a.jsonl", b"[1]", "a.jsonl:1: expected a JSON object, found list"),
        ("a.jsonl.gz", b"no gzip", "damaged or not what its name says"),
        ("a.txt", b"a \xff b", "damaged or not what its name says"),
        ("a.parquet", b"x", "Expected evaluation files of JSON Lines or text"),
    ],
)
def test_wrong_evaluation_files_are_refused(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        Chain([("decontaminate", {"files": str(tmp_path / name)})])


def test_files_that_are_not_there_are_refused() -> None:
    for files, sentence in (
        ([], "to name files, found none"),
        (["nowhere/*.jsonl"], "found none at 'nowhere/"),
    ):
        with pytest.raises(UserError, match=sentence):
            Chain([("decontaminate", {"files": files})])


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    config = PreparationConfig(steps=(StepConfig("decontaminate", {"files": str(path)}),))
    found = []
    fingerprints = set()
    for word in ("one", "other"):
        text = " ".join(f"{word}{index}" for index in range(20))
        path.write_text(text, "utf-8")
        fingerprints.add(config.fingerprint_with("corpus"))
        found.append(through("decontaminate", [text], files=str(path))[1]["removed"])
    assert found == [{"share": 1}] * 2
    assert len(fingerprints) == 2


def test_examples_that_were_found_do_not_fill_the_screen() -> None:
    found = {f"exam.jsonl:{line}": line for line in range(1, 2000)}
    printed = funnel_table(account_of(step_of("a", 9, 9, found=found), source={"a": {}}, language={"a": {}}))
    assert "a found 1,999 exam.jsonl:1999, 1,998 exam.jsonl:1998, " in printed
    assert printed.endswith("1,989 kinds more")


# ---- The report's part.
def account_of(*steps: dict, **places: dict) -> dict:
    return {"read": 10, "kept": 5, "steps": list(steps), "source": {}, "language": {}, **places}


def step_of(name: str, before: int, after: int, **more: object) -> dict:
    figures = {f"{figure}_in": before for figure in ("documents", "words", "bytes")}
    figures |= {f"{figure}_out": after for figure in ("documents", "words", "bytes")}
    return {"step": name, **figures, "removed": {}, "found": {}, "edited": 0, "unjudged": {}, **more}


def test_the_printed_funnel_counts_documents_with_the_language_that_a_step_set() -> None:
    language = {
        "a": {"": step_of("a", 10, 6, removed={"few": 4})},
        "b": {"en": step_of("b", 4, 4), "de": step_of("b", 2, 1, removed={"one": 1})},
    }
    steps = step_of("a", 10, 6, removed={"few": 4}), step_of("b", 6, 5, removed={"one": 1})
    rows = funnel_table(account_of(*steps, language=language)).split("language")[1].splitlines()[1:]
    assert [row.split() for row in rows] == [
        ["(none)", "4", "0", "0.0", "%"],
        ["en", "4", "4", "100.0", "%"],
        ["de", "2", "1", "50.0", "%"],
    ]


def test_the_funnel_of_every_place_has_a_number_a_step() -> None:
    """Also of a source that a step removed whole, and of a language that a step told."""
    source = {"a": {"x": step_of("a", 7, 6), "y": step_of("a", 3, 0)}, "b": {"x": step_of("b", 6, 5)}}
    language = {"a": {"": step_of("a", 10, 6)}, "b": {"en": step_of("b", 6, 5)}}
    steps = step_of("a", 10, 6, removed={"few": 1, "many": 3}), step_of("b", 6, 5, removed={"one": 1})
    values = preparation_values(account_of(*steps, source=source, language=language), {})
    left = {(place["kind"], place["name"]): place["documents"] for place in values["places"]}
    assert left == {
        ("all", ""): [10, 6, 5],
        ("source", "x"): [7, 6, 5],
        ("source", "y"): [3, 0, 0],
        ("language", ""): [10, 6, 0],
        ("language", "en"): [0, 0, 5],
    }
    assert [(rule["step"], rule["rule"], rule["removed"]) for rule in values["rules"]] == [
        ("a", "many", 3),
        ("a", "few", 1),
        ("b", "one", 1),
    ]
    assert values["rules"][2]["share"] == round(1 / 6, 6)
    assert not any(rule["examples"] for rule in values["rules"])


def edits(*lines: tuple[str, str]) -> list[list[str]]:
    steps = step_of("s", 5, 5, edited=3)
    examples = {"edited": {"s": [{"id": "i", "source": "w", "lines": [[*line] for line in lines]}]}}
    (step,) = preparation_values(account_of(steps), examples)["edited"]
    return step["examples"][0]["lines"] if step["examples"] else []


def test_edits_are_shown_as_differences() -> None:
    context = [(" ", f"line {index}") for index in range(5)]
    shown = [["…", ""], [" ", "line 4"], ["-", "menu"], ["+", "text"], [" ", "line 0"], ["…", ""]]
    assert edits(*context, ("-", "menu"), ("+", "text"), *context) == shown
    # A difference in spaces and empty lines is not shown.
    assert edits(*context, ("-", ""), ("-", "a "), ("-", "b"), ("+", "a"), ("+", "b ")) == []
    # Equal lines differed in personal data, which is masked in both.
    assert edits(("-", "to <email>"), ("+", "to <email>")) == [["+", "to <email>"]]
    # What differs is in sight, however far behind in its line.
    (_, old), (_, new) = edits(("-", "word " * 300 + "here old"), ("+", "word " * 300 + "here new"))
    assert old.endswith("here old")
    assert new.endswith("here new")
    assert max(len(old), len(new)) < 60
    assert edits(("-", "   if x:"), ("?", "odd")) == [["-", "\u00a0\u00a0\u00a0if x:"], [" ", "odd"]]


def test_examples_of_many_rules_stay_small() -> None:
    """A hundred rules with ten documents of two thousand characters each."""
    steps = [step_of(f"s{index}", 9, 8, removed={f"r{rule}": 1 for rule in range(10)}) for index in range(10)]
    document = {"id": "i" * 5000, "source": "w" * 5000, "language": "l" * 5000, "value": 1e300, "threshold": 0.1}
    examples = {
        f"s{step}.r{rule}": [{**document, "text": f"{'long ' * 400}"}] * 30 for step in range(10) for rule in range(10)
    }
    values = preparation_values(account_of(*steps), {"removed": examples})
    assert all(len(rule["examples"]) == 10 for rule in values["rules"])
    assert len(json.dumps(values)) < 750_000


def test_a_built_dataset_shows_its_preparation(tmp_path: Path) -> None:
    """From the stored funnel; the documents to look at come from `examples.json`, where there is one."""
    out = tmp_path / "out"
    config = tiny_config(write_corpus(tmp_path / "corpus", 60), out)
    steps = (StepConfig("words", {"least": 20}), StepConfig("personal_data", {"placeholders": {"phone": ""}}))
    Build(dataclasses.replace(config, preparation=PreparationConfig(steps=steps))).run_stage("prepare")
    values = stored_preparation(jd.open_dataset(out))
    assert values is not None
    assert values["steps"] == ["words", "personal_data"]
    assert values["read"] == 60 > values["kept"]
    assert values["places"][0]["documents"] == [60, values["kept"], values["kept"]]
    add_examples(out, {"words.words": [{"id": "a", "source": "b", "value": 3.0, "threshold": 20.0, "text": "c\nd"}]})
    values = stored_preparation(jd.open_dataset(out))
    assert values is not None
    assert values["rules"][0]["examples"] == [
        {"id": "a", "source": "b", "language": None, "value": 3.0, "threshold": 20.0, "text": ["c", "d"]}
    ]
    Build(config).run_stage("prepare")
    assert stored_preparation(jd.open_dataset(out)) is None


def add_examples(out: Path, removed: dict) -> None:
    """As if the stage had written them."""
    path = out / "preparation" / "examples.json"
    path.write_text(json.dumps({"removed": removed}), "utf-8")
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    about = {"bytes": path.stat().st_size, "sha256": file_hash(path)}
    manifest["stages"]["prepare"]["files"]["preparation/examples.json"] = about
    del manifest["sha256"]
    (out / "manifest.json").write_text(json.dumps({**manifest, "sha256": fingerprint(manifest)}), "utf-8")
