"""Words and sentences of all scripts, and the rules of steps for languages other than English."""

# ruff: noqa: RUF001
from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.foundation.text import words
from jax_diversity.foundation.text.languages import language_of_script, main_language
from jax_diversity.foundation.text.sentences import count_sentences, split_sentences
from jax_diversity.foundation.text.words import count_unspaced, split_spaced, split_words, word_spans
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.steps.published import published_thresholds, stop_words
from jax_diversity.schema import Document

ALPHABET = "ab3 _.,'/-#你好かなกิ่ข้าमि०ी\u0301\u200dé—。！？\n။ခ្មែ"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("我在2024年用Python写了3.5行。", ["我", "在", "2024", "年", "用", "Python", "写", "了", "3.5", "行", "。"]),
        ("กินข้าว", ["กิ", "น", "ข้", "า", "ว"]),
        ("မြန်မာစာ။", ["မြ", "န်", "မာ", "စာ", "။"]),
        ("ខ្មែរ។", ["ខ្", "មែ", "រ", "។"]),
        ("हिन्दी भाषा है।", ["हिन्दी", "भाषा", "है", "।"]),
        ("مَرْحَبًا بكم", ["مَرْحَبًا", "بكم"]),
        ("见https://a.b/c，然后", ["见", "https://a.b/c", "，", "然", "后"]),
        ("don't pay $3,500.50", ["don't", "pay", "$", "3,500.50"]),
        ("한국어 문장", ["한국어", "문장"]),
    ],
)
def test_words_of_many_scripts(text: str, expected: list[str]) -> None:
    assert split_words(text) == expected


@given(st.text(st.sampled_from(ALPHABET), max_size=60))
@settings(deadline=None)
def test_words_are_places_of_the_text(text: str) -> None:
    spans = word_spans(text)
    assert [text[start:end] for start, end in spans] == split_words(text)
    assert "".join(split_words(text)) == "".join(text.split())  # only spaces are left out
    assert "".join(split_spaced(text)) == "".join(text.split())
    assert count_unspaced(text) <= len(split_words(text))


@given(st.text(st.characters(max_codepoint=0x2FF), max_size=60) | st.text(st.sampled_from("ab’…— 3.,—€"), max_size=60))
@settings(deadline=None)
def test_texts_in_latin_scripts_have_the_same_words_in_both_patterns(text: str) -> None:
    assert words._ANY_WORD.findall(text) == words._WORD.findall(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("他说：“好。”然后走了！真的？！是", ["他说：“好。”", "然后走了！", "真的？！", "是"]),
        ("値は３．１４です。次．また", ["値は３．１４です。", "次．", "また"]),
        ("यह है।वह।", ["यह है।", "वह।"]),
        ("စာ။နောက်။", ["စာ။", "နောက်။"]),
        ("กินข้าว ๆ แล้ว นอน ok ไป", ["กินข้าว ๆ แล้ว", "นอน ok ไป"]),
        ("a!b c?d", ["a!b c?d"]),
    ],
)
def test_sentences_of_many_scripts(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


@given(st.text(st.sampled_from(ALPHABET + "!?\"')\u0e46 "), max_size=60))
@settings(deadline=None)
def test_sentences_are_counted_as_they_are_split(text: str) -> None:
    assert count_sentences(text) == len(split_sentences(text))


def test_names_of_languages() -> None:
    assert [*map(main_language, ("pt-BR", "zho_Hans", "eng", "deu-1901", "lzh", None, "code:python"))] == [
        *("pt", "zh", "en", "de", "lzh", "", "code:python")
    ]
    assert language_of_script("这是书") == "zh"
    assert language_of_script("กินข้าว") == "th"


def test_published_tables_are_complete() -> None:
    assert published_thresholds("ru")["least_alphabetic_words"] == 0.713  # type: ignore[index]
    assert published_thresholds("zh")["repeated_5"] == 0.198  # type: ignore[index]
    assert {"的", "在"} < stop_words("zh")  # type: ignore[operator]
    assert published_thresholds("en") is None
    assert stop_words("lzh") is None


def through(step: str, texts: Sequence[str], language: str | None = None, **options: Any) -> tuple[list[str], Chain]:
    chain = Chain([(step, options)])
    documents = [Document(f"d{index}", text, "web", language) for index, text in enumerate(texts)]
    return [document.id for document in chain.through(documents)], chain


CHINESE = (
    "城市的早晨从街角的面包店开始。师傅四点起床，把面粉、清水和酵母揉在一起，等它慢慢发起来。第一批客人多半是赶早班车的工人，"
    "他们买两个热馒头，站在门口吃完就走。稍晚一些，学校的孩子背着书包经过，空气里有芝麻和豆浆的味道。中午以后店里安静，"
    "掌柜坐下来看报纸，偶尔抬头望一眼窗外的梧桐树。到了傍晚，剩下的点心会便宜卖给邻居，谁也不愿意浪费粮食。"
)


def test_rules_for_prose_keep_chinese_prose() -> None:
    for step in ("words", "gopher", "c4", "line_corrections", "repetition", "fineweb"):
        kept, chain = through(step, [CHINESE])
        assert kept == ["d0"], (step, chain.funnel()[0]["removed"])
    _, chain = through("gopher", [CHINESE])
    assert chain.funnel()[0]["unjudged"] == {"least_mean_length": 1, "most_mean_length": 1}
    assert through("gopher", [CHINESE], by_language=False)[0] == []


GERMAN = "der Hund und die Katze " + " ".join(f"laufen{index}" for index in range(60))


def test_a_language_has_its_own_stop_words() -> None:
    assert through("gopher", [GERMAN])[0] == []  # a document without a language is judged as English
    assert through("gopher", [GERMAN], "de-DE")[0] == ["d0"]
    assert through("gopher", [GERMAN.replace("der", "le").replace("und", "et").replace("die", "la")], "de")[0] == []
    kept, chain = through("gopher", [GERMAN], "xx")
    assert kept == ["d0"]
    assert chain.funnel()[0]["unjudged"]["least_stop_words"] == 1
    assert chain.account()["language"]["gopher"]["xx"]["unjudged"]["least_stop_words"] == 1
    assert through("gopher", [GERMAN], "de", by_language=False)[0] == []


def test_a_changed_threshold_holds_for_all_languages() -> None:
    text = GERMAN + " 1" * 18  # .79 of the words have letters
    assert through("gopher", [text], "de")[0] == ["d0"]
    assert through("gopher", [text], "de", thresholds={"least_alphabetic_words": 0.85})[0] == []


def test_runs_of_words_have_several_characters_in_thai_and_japanese() -> None:
    rng = random.Random(3)
    for language, first, length in (("th", 0x0E01, 6), ("ja", 0x3042, 4)):
        known = ["".join(chr(first + rng.randrange(40)) for _ in range(length)) for _ in range(40)]
        words = [rng.choice(known) for _ in range(100)]
        assert through("repetition", ["".join(words)], language)[0] == ["d0"]
        assert through("repetition", ["".join(words[:50] + words[:50])], language)[0] == []


def test_words_between_spaces_in_the_alphabetic_rule() -> None:
    text = " ".join(f'"word{index}," (the)!' for index in range(40)) + " be and"
    assert through("gopher", [text])[0] == []
    assert through("gopher", [text], marks_are_words=False)[0] == ["d0"]


def near_copies(alphabet: Sequence[str], separator: str, share: float) -> list[str]:
    """Texts of 300 words, and a copy of each with a share of its words changed."""
    rng = random.Random(5)
    originals = [[rng.choice(alphabet) for _ in range(300)] for _ in range(40)]
    copies = [[rng.choice(alphabet) if rng.random() < share else word for word in text] for text in originals]
    return [separator.join(text) for text in (*originals, *copies)]


@pytest.mark.parametrize("share", [0.01, 0.02])
def test_near_copies_are_found_in_scripts_without_spaces(share: float) -> None:
    han = [chr(code) for code in range(0x4E00, 0x4E00 + 2000)]
    thai = [chr(0x0E01 + index) + mark for index in range(40) for mark in ("", "\u0e34", "\u0e38", "\u0e48")]
    english = [f"{letter}{other}x" for letter in "abcdefghijklmnopqrst" for other in "abcdefghijklmnopqrst"]
    found = [
        80 - len(through("minhash", near_copies(alphabet, separator, share))[0])
        for alphabet, separator in ((han, ""), (thai, ""), (english, " "))
    ]
    assert min(found) >= (39 if share == 0.01 else 36), found


def test_repeated_characters_are_cut_out_without_a_space() -> None:
    han = [chr(code) for code in range(0x4E00, 0x4E00 + 800)]
    passage = "".join(han[:60])
    texts = ["".join(han[100:130]) + passage + "".join(han[130:160]), "".join(han[200:230]) + passage + "尾。"]
    chain = Chain([("substrings", {})])
    left = [document.text for document in chain.through([Document(str(i), text, "a") for i, text in enumerate(texts)])]
    assert left == [texts[0], "".join(han[200:230]) + "尾。"]
    assert through("substrings", texts, least_left=0.5)[0] == ["d0"]
