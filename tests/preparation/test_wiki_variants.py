"""Words in several written forms: one form is kept, marks that show nothing go, other texts stay."""

from __future__ import annotations

import pytest

from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.schema import Document


def plain(text: str, language: str = "zh", **options: object) -> str:
    [document] = Chain([("mediawiki", {"always": True, **options})]).through([Document("a", text, "wiki", language)])
    return document.text


CASES = [
    ("-{zh-hans:计算机;zh-hant:電腦}-很快。", "计算机很快。", "電腦很快。"),
    ("-{zh-cn:内存; zh-tw:記憶體; zh-hk:記憶體;}-和-{zh:甲}-", "内存和甲", "記憶體和甲"),
    ("-{音樂}-不变", "音樂不变", "音樂不变"),
    ("-{H|zh-hans:甲;zh-hant:乙}--{T|zh-hans:丙;zh-hant:丁}-文。", "文。", "文。"),
    ("-{A|zh-hans:甲;zh-hant:乙}-文", "甲文", "乙文"),
    ("-{R|zh:x}-", "zh:x", "zh:x"),
    ("-{zh-hans:外-{zh-hans:内;zh-hant:裡}-;zh-hant:外裡}-", "外内", "外裡"),
    ("-{zh-hans:[[计算机|机]]&amp;;zh-hant:電腦}-", "机&", "電腦"),
    ("-{zh-hans:{{lang|en|CPU}};zh-hant:處理器}-", "CPU", "處理器"),
    ("{{NoteTA|G1=IT|1=zh-hans:甲;zh-hant:乙}}文{{noteTA|1=zh-cn:甲}}字。", "文字。", "文字。"),
    ("-{-|zh-hans:甲;zh-hant:乙}-文", "文", "文"),
    ("-{zh-hans;zh-hant|書}-文", "書文", "書文"),
    ("-{zh-hant:只有}-", "只有", "只有"),
    ("-{}-空-{zh-hans:;zh-hant:有}-", "空", "空有"),
    ("-{zh-hans:甲", "-{zh-hans:甲", "-{zh-hans:甲"),
]


@pytest.mark.parametrize(("wiki", "hans", "hant"), CASES)
def test_one_form_is_kept(wiki: str, hans: str, hant: str) -> None:
    assert plain(wiki) == hans
    assert plain(wiki, variant="zh-hant") == hant
    assert plain(wiki, variant="zh-tw") == hant


def test_other_languages() -> None:
    assert plain("-{sr-ec:реч; sr-el:reč}-", "sr", variant="sr-el") == "reč"
    assert plain("Poly-{2}-ol stays.", "en") == "Poly-{2}-ol stays."
    assert plain("<nowiki>-{zh-hans:a;zh-hant:b}-</nowiki>") == "-{zh-hans:a;zh-hant:b}-"


def test_links_to_other_wikis() -> None:
    assert plain("看{{tsl|en|Turing machine|图灵机}}和{{tsl|en|Tape|带子|那条带}}。") == "看图灵机和那条带。"
    assert plain(
        "{{link-en|图灵机|Turing machine}}、{{le|带|Tape|那带}}、{{Internal link helper/en|机|Machine|d=那机}}"
    ) == ("图灵机、那带、那机")
    assert plain("{{ill|Ann Lee|de|Anna Lee}}, {{ill|Ann|lt=Miss Ann|de}}, {{ill|de|Bo|Bo (Fluss)}}", "en") == (
        "Ann Lee, Miss Ann, Bo"
    )


def test_signs_of_templates() -> None:
    assert plain("The ''Titanic''{{'s}} bow, 3 {{\u00d7}} 4, {{okina}}Iolani", "en") == (
        "The Titanic\u2019s bow, 3 \u00d7 4, \u02bbIolani"
    )


def test_an_unclosed_reference_takes_no_text_with_it() -> None:
    text = "One<ref>Smith 1999.\nTwo<ref>[http://x y]</ref> three<ref name=a/> and<ref name=b>z</ref>.\nFour"
    assert plain(text, "en") == "OneSmith 1999.\nTwo three and.\nFour"


def test_an_invisible_zero_is_nothing() -> None:
    assert plain("From {{0}}5 to {{0}}7.", "en") == "From 5 to 7."
