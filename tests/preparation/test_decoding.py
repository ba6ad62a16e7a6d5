"""Bytes of old encodings: labels as browsers understand them, detection, and the counts of what cannot be decoded."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from jax_diversity.preparation.readers.decoding import codec_of, decoded
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.readers.web import declared_encoding
from jax_diversity.preparation.settings import CorpusConfig

RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 5
JAPANESE = "これは日本語の文章です。文字コードを推定します。" * 8


@pytest.mark.parametrize(
    ("text", "encoding", "declared"),
    [
        (RUSSIAN, "utf-8", None),
        (RUSSIAN, "utf-8", "koi8-r"),  # valid UTF-8 is hardly ever anything else
        (RUSSIAN, "windows-1251", "windows-1251"),
        (RUSSIAN, "windows-1251", None),
        (RUSSIAN, "windows-1251", "utf-8"),
        (RUSSIAN, "koi8-r", "no-such-encoding"),
        (RUSSIAN, "utf-16", None),
        (JAPANESE, "shift_jis", None),
        (JAPANESE, "euc_jp", "EUC-JP"),
        (JAPANESE, "iso2022_jp", "iso-2022-jp"),
        ("caf\xe9 \u201cquoted\u201d", "windows-1252", "iso-8859-1"),
    ],
)
def test_pages_of_any_encoding(text: str, encoding: str, declared: str | None) -> None:
    assert decoded(text.encode(encoding), declared) == text


@pytest.mark.parametrize(
    "declaration",
    [
        '<meta charset="windows-1251">',
        "<meta http-equiv=Content-Type content='text/html; charset=win-1251'>",
        '<?xml version="1.0" encoding="cp1251"?>',
    ],
)
def test_a_page_says_its_encoding(declaration: str) -> None:
    page = f"{declaration}<p>{RUSSIAN}"
    bytes_of_page = page.encode("windows-1251")
    assert decoded(bytes_of_page, declared_encoding(bytes_of_page)) == page


@pytest.mark.parametrize("declared", [None, "utf-8", "utf-16", "base64", "idna", "utf-7", "x" * 300])
def test_bytes_that_are_no_text(declared: str | None) -> None:
    for page in (bytes(range(256)) * 20, b"\xff\xfe\x00\xd8", b"\xef\xbb\xbf\xff", b""):
        text = decoded(page, declared)
        text.encode()  # can be stored
        assert "\0" not in text
    broken = RUSSIAN.encode()[:-1] + b"\xff."
    assert decoded(broken, None).startswith(RUSSIAN[:-3])


# Label, the encoding that the writer had, and a text with characters that Python's codec of the label lacks.
@pytest.mark.parametrize(
    ("label", "encoding", "text"),
    [
        ("gb2312", "gbk", "朱镕基和喆字在这里。"),
        ("gb_2312-80", "gbk", "朱镕基和喆字在这里。"),
        ("GBK", "gb18030", "㐀字。"),
        ("euc-kr", "cp949", "똠방각하 펲시콜라"),
        ("ks_c_5601-1987", "cp949", "똠방각하"),
        ("euckr", "cp949", "똠방각하 펲시콜라"),
        ("windows-949", "cp949", "똠방각하"),
        ("shift_jis", "cp932", "①番の㈱山﨑と髙橋です。"),
        ("x-sjis", "cp932", "①番の㈱山﨑"),
        ("windows-31j", "cp932", "①番の㈱"),
        ("big5", "big5hkscs", "粵語 佢嘅嘢喺嗰度。"),
        ("big5", "cp950", "價格\u20ac5"),
        ("big5-hkscs", "big5hkscs", "嘢喺"),
        ("iso-8859-1", "cp1252", "\u201cquoted\u201d"),
        ("latin-1", "cp1252", "\u201cquoted\u201d"),
        ("us-ascii", "cp1252", "\u201cquoted\u201d"),
        ("iso-8859-9", "cp1254", "İstanbul\u2019da \u201cgüzel\u201d"),
        ("tis-620", "cp874", "สวัสดี \u201cครับ\u201d"),
        ("iso-8859-11", "cp874", "ครับ\u2026"),
        ("windows-874", "cp874", "สวัสดีครับ"),
        ("iso-8859-8-i", "iso8859-8", "שלום לכולם"),
        ("x-mac-cyrillic", "mac_cyrillic", "Привет"),
        ("win1251", "cp1251", "Привет"),
        ("cp-1250", "cp1250", "Žluťoučký"),
        ("iso-2022-kr", "iso2022_kr", "안녕하세요"),
        ("hz-gb-2312", "hz", "中文"),
        ("johab", "johab", "안녕하세요"),
        ("cp437", "cp437", "Größe"),
    ],
)
def test_labels_mean_what_browsers_take_them_for(label: str, encoding: str, text: str) -> None:
    assert decoded(f"abc {text} def".encode(encoding), label) == f"abc {text} def"


@pytest.mark.parametrize(
    ("label", "page", "text"),
    [
        # Rows of NEC and IBM, and the signs that JIS and Windows-31J map to different characters.
        ("euc-jp", b"\xad\xa1\xb1\xa6\xf9\xa2", "①右褜"),
        ("euc-jp", b"\xa1\xc1\xa1\xdd", "\uff5e\uff0d"),
        ("iso-2022-jp", b"\x1b$B-!1&\x1b(B end", "①右 end"),
        ("gb2312", b"\xa3\xa0\xa6\xd9\x80", "\u3000\ufe10\u20ac"),
        # What is unknown is replaced alone: the characters after it stay.
        ("shift_jis", b"\x82\xa0\x85\x40\x82\xa2", "あ\ufffd@い"),
        ("shift_jis", b"\x82\xa0\x85\xa1\x82\xa2", "あ\ufffdい"),
        ("gb2312", b"\xc4\xe3\xff\xba\xc3", "你\ufffd好"),
        ("euc-kr", b"\xb0\xa1\xc9\xa1\xb3\xaa" + "가나다라".encode("cp949") * 9, "가\ufffd나" + "가나다라" * 9),
    ],
)
def test_characters_that_the_codecs_of_python_lack(label: str, page: bytes, text: str) -> None:
    assert decoded(page, label) == text


@pytest.mark.parametrize("label", ["x-user-defined", "base64", "rot13", "idna", "unicode_escape", "none", "", "\ud800"])
def test_labels_of_no_encoding(label: str) -> None:
    assert codec_of(label) is None


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp949", "안녕하세요. 오늘은 날씨가 좋습니다."),
        ("cp949", "서울특별시 강남구에서 만나요."),
        ("cp932", "こんにちは。今日は天気がいいです。"),
        ("cp932", "会社概要とお問い合わせ"),
        ("euc_jp", "東京都港区で会いましょう。"),
        ("gb18030", "你好 今天天气很好。"),
        ("big5", "這是一個簡短的中文句子。"),
        ("cp1252", "caf\xe9"),
        ("cp855", "Это короткое предложение на русском языке, без указания кодировки."),
    ],
)
def test_short_pages_without_a_label(encoding: str, text: str) -> None:
    pytest.importorskip("resiliparse")
    page = f"<html><head><title>t</title></head><body><p>{text}</p><p>Plain words. More plain words.</p></body></html>"
    assert decoded(page.encode(encoding), None) == page


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        *(("cp1252", text) for text in ("niño", "El niño come pan", "it\u2019s fine", "Français", "l\u2019été déjà")),
        # Curly quotes beside letters are the letters \xf4 and \xf6 of DOS.
        *(
            ("cp1252", f"{text} plot was good.")
            for text in ("\u201cCasablanca\u201ds", "So-called \u201cexpert\u201ds")
        ),
        ("cp850", "Mots: été"),
        # Katakana of Shift_JIS are a byte beyond ASCII and a letter.
        *(("cp932", text) for text in ("テスト", "<title>アジア</title>", "ゲスト", "バス")),
        *(("cp1250", text) for text in ("też", "Dobrý večer všem")),
        ("cp852", "kůň"),
    ],
)
def test_texts_of_a_few_words_without_a_label(encoding: str, text: str) -> None:
    assert decoded(text.encode(encoding), None) == text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["<p>Привет, мир", "<p>plain words</p>", "你好 今天天气很好。\n" * 3 + "abc", RUSSIAN])
@pytest.mark.parametrize("label", [None, "utf-8"])
def test_wide_encodings_without_a_mark(encoding: str, text: str, label: str | None) -> None:
    assert decoded(text.encode(encoding), label) == text
    marks = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
    marks |= {"utf-32-le": codecs.BOM_UTF32_LE, "utf-32-be": codecs.BOM_UTF32_BE}
    assert decoded(marks[encoding] + text.encode(encoding), label) == text


def test_zero_bytes_in_a_page_do_not_make_it_wide() -> None:
    assert decoded("<p>Größe\0 und mehr".encode() * 20, None) == "<p>Größe und mehr" * 20
    assert decoded(b"\0" * 999, None) == ""


@pytest.mark.parametrize(
    ("text", "encoding", "label"),
    [
        (JAPANESE, "euc_jp", "shift_jis"),
        (JAPANESE, "cp932", "euc-kr"),
        ("이 문장은 한국어 문장입니다. " * 5, "cp949", "utf-8"),
        ("Сегодня хорошая погода, и мы пойдём гулять.", "cp1251", "iso-8859-1"),
        ("Сегодня хорошая погода, и мы пойдём гулять.", "koi8-r", "windows-1252"),
        (JAPANESE, "cp932", "iso-8859-1"),
        ("Σήμερα είναι καλός καιρός και θα πάμε βόλτα", "cp1253", "us-ascii"),
    ],
)
def test_a_wrong_label_gives_way_to_detection(text: str, encoding: str, label: str) -> None:
    assert decoded(text.encode(encoding), label) == text


def test_the_label_of_latin_letters_counts() -> None:
    page = "<p>«Été» : ÄÖÜ äöüß, l'été à côté de la forêt où les élèves étudiaient.</p>"
    assert decoded(page.encode("cp1252"), "iso-8859-1") == page


def test_a_page_in_utf_8_with_broken_characters_stays() -> None:
    page = "Größe und Maß".encode()
    assert decoded(page + b"\xff" + page, None) == "Größe und Maß\ufffdGröße und Maß"


def _read(folder: Path) -> tuple[list[str], ReadReport]:
    report = ReadReport()
    return [document.text for document in read_documents(CorpusConfig(paths=(str(folder),)), report)], report


def test_a_text_file_with_the_mark_of_utf_16(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Größe".encode("utf-16"))
    assert _read(tmp_path)[0] == ["Größe"]


def test_replaced_characters_are_counted_by_file_and_source(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text("<p>Größe")
    (tmp_path / "bad.html").write_bytes("<p>Größe, Maß, Übung".encode() + b"\xff\xfe.")
    (tmp_path / "web.jsonl").write_text('{"text": "lost \ufffd by an earlier program", "source": "other"}\n')
    texts, report = _read(tmp_path)
    assert len(texts) == 3
    assert report.num_replaced == 3
    assert report.replaced_by_file == {"bad.html": 2, "web.jsonl": 1}
    assert report.replaced_by_source == {tmp_path.name: 2, "other": 1}
    total = ReadReport()
    total.add(report.plain())
    total.add(report.plain())
    assert total.replaced_by_file == {"bad.html": 4, "web.jsonl": 2}
    assert total.num_replaced == 6


def test_a_page_that_cannot_be_decoded_is_removed_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>a page")
    # UTF-8 whose second bytes were lost: no encoding gives a text.
    head = b"\xef\xbb\xbf<p>"
    (tmp_path / "b.html").write_bytes(head + "Größe".encode() + b"\xc3" * 40)
    texts, report = _read(tmp_path)
    assert texts == ["<p>a page"]
    assert report.num_undecodable == 1
    assert "40 of 42 characters beyond ASCII cannot be decoded" in report.problems[0]
