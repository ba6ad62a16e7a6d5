"""Templates in running text keep their content: hand-made pages with what must stay and what must go."""

# ruff: noqa: E501, RUF001

from __future__ import annotations

import pytest

from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.steps.wiki_templates import text_of_template
from jax_diversity.schema import Document


def plain(text: str) -> str:
    [document] = Chain([("mediawiki", {"always": True})]).through([Document("a", text, "wiki", "en")])
    return document.text


PAGES = [
    (
        "It is 10<sup>3</sup> and {{frac|3|4}} of {{val|6e23}} costs {{US$|5}}.",
        "It is 10³ and 3/4 of 6×10²³ costs US$5.",
    ),
    (
        "The '''ark''' ({{lang-la|arca}}) is {{convert|135|by|22|m|ft}} long, {{frac|1|3|8}} {{nowrap|times its width}}.",
        "The ark (arca) is 135 by 22 m long, 1 3/8 times its width.",
    ),
    (
        "Water, H<sub>2</sub>O, has {{val|1.5|0.2|e=-3|u=g/L}} of {{chem|SO|4|2-}}; {{chem2|H2SO4}} does not.",
        "Water, H₂O, has (1.5 ± 0.2)×10⁻³ g/L of SO₄²⁻; H₂SO₄ does not.",
    ),
    (
        "At {{convert|20|C|F}}, {{convert|6|ft|2|in|m|2}} of {{convert|5|sqmi|km2|1}}, {{cvt|10|km2}} for {{currency|7|USD}}; "
        "{{percentage|1|3|1}} at {{age|1980|5|2|2020|5|1}}, {{percentage|1|0}}{{age|1980|1|1}}not nine.",
        "At 20 °C, 6 ft 2 in of 5 sq mi, 10 km² for 7 USD; 33.3% at 39, not nine.",
    ),
    (
        "If {{math|1=''x'' = 5}} then e<sup>''x''</sup> and a<sub>''i''</sub> and m<sup>&minus;2</sup> and x<sup>a+b</sup>.",
        "If x = 5 then e^x and a_i and m⁻² and x^(a+b).",
    ),
    (
        "The 1<sup>st</sup> and {{ordinal|22}} of the XIX<sup>e</sup> century; Coca<sup>TM</sup>; V<sub>max</sub>.",
        "The 1st and 22nd of the XIXe century; CocaTM; V_max.",
    ),
    (
        "{{Infobox ship\n| name = {{USS|Gone|CV-0}}\n| cost = {{US$|9}}\n}}\nThe {{USS|Enterprise|CV-6}}, {{HMS|Hood|51|6}} and "
        "{{ship|HMS|Victory}} were no {{sclass|Nimitz|aircraft carrier}}s.",
        "The USS Enterprise (CV-6), HMS Hood and HMS Victory were no Nimitz-class aircraft carriers.",
    ),
    (
        "{{flagicon|FRA}} {{flag|France}} beat {{flagathlete|[[Ann Lee]]|GER}} on {{start date|1969|7|20|df=y}}.",
        "France beat Ann Lee (GER) on 20 July 1969.",
    ),
    (
        "{{Nihongo|'''Tokyo'''|東京|Tōkyō|{{lit|East capital}}}} has {{as of|2020|5|lc=y}} {{formatnum:14000000}} people.",
        "Tokyo (東京, Tōkyō, lit.\u2009‘East capital’) has as of May 2020 14000000 people.",
    ),
    (
        "{{Short description|gone}}\n{{Use dmy dates|date=May}}{{good article}}\n{{Main|Gone}}\nText {{odd|word|x}} more.{{sfn|Gone|2001}}"
        "{{efn|gone}} So {{clarify|gone}} it {{cite web|gone}} is.{{rp|55}}\n{{Navbox|gone}}",
        "Text word more. So it is.",
    ),
    (
        "Prices: {{£|3}}, {{EUR|4}}, {{INR|5}}, {{CHF|6}}, {{SEK|7}}, {{PLN|8}}, {{A$|9|link=yes}} in {{circa|1900}}.",
        "Prices: £3, €4, ₹5, CHF 6, 7 kr, zł8, A$9 in c. 1900.",
    ),
    (
        "He ({{IPAc-en|h|iː}}; {{zh|s=他|p=tā}}; {{IPA|fr|il}}) wrote {{code|a {{=}} b;}} and {{angbr|x}} {{reign|1900|1910}}.",
        "He (/hiː/; 他, tā; il) wrote a = b; and ⟨x⟩ r. 1900–1910.",
    ),
    (
        "Press {{key press|Ctrl|C}}: {{color|red|stop}}, {{abbr|etc.|et cetera}} {{ill|Ann Lee|de}} {{sic|teh}} "
        "{{hlist|a|b}} {{bibleverse|John|3:16}} {{ISBN|978-3}}.",
        "Press Ctrl C: stop, etc. Ann Lee teh [sic] a, b John 3:16 ISBN 978-3.",
    ),
    (
        "* {{Official website|http://gone}}\n* See {{odd|this}}\n* {{cite book|title=gone}}\n# {{lang|de|eins}}\n: {{nowrap|two words}}",
        "- See this\n1. eins\ntwo words",
    ),
    (
        "{{Quote|text=So it is.|author=gone}}\n\n{{blockquote|It was.|Ann}}\nA{{snd}}b{{'}}s {{10^|4}} {{su|p=1|b=2}}x{{e|-7}}.",
        "So it is.\n\nIt was.\nA – b's 10⁴ ₂¹x×10⁻⁷.",
    ),
    (
        "{| class=x\n| {{val|1}} || 2<sup>3</sup>\n|}\nAfter {{sqrt|2}} {{abs|y}} {{frac|5}} {{sfrac|''a''|''b''}} {{pi}}.",
        "After √2 |y| 1/5 a/b π.",
    ),
    ("By {{sortname|Jane|Doe|Jane Doe (actor)}} and {{sort|Doe, Ann|Ann}}, {{sortfrac|1|2}}.", "By Jane Doe and Ann, 1/2."),
    ("On {{flatlist|* [[a|A]]\n* [[B]]}} and {{Plainlist|\n* one\n* two = 2\n}} too.\n{{plainlist|\n* x\n* y\n}}",
     "On A, B and one, two = 2 too.\n- x\n- y"),
    ("The {{unknown|\nlong\nbox}} ends {{unknown|[[a|link]]|b=c}}.", "The ends link."),
    ("A note<sup>[[#n|[1]]]</sup> and <sup>a<b>c</b></sup> stay.", "A note[1] and ac stay."),
    ("{{odd|alone}}{{odd|beside}}\n{{nowrap|known alone}}", "known alone"),
    ("Born {{birth date|1950|1|2}}, died {{death date and age|2001|12|24|1950|1|2}}, {{dts|March 2002}}.",
     "Born January 2, 1950, died December 24, 2001, March 2002."),
    ("{{nombre|50|étudiants}} {{unité|300|km/s}} {{lang|fr|{{nobr|à 5}}}} {{Inflation|US|5|1900}}x", "50 étudiants 300 km/s à 5 x"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PAGES)
def test_pages(text: str, expected: str) -> None:
    assert plain(text).replace("\xa0", " ") == expected
    assert "gone" not in plain(text).lower()


def test_arguments_of_any_form_do_no_harm() -> None:
    names = [
        *("frac", "val", "convert", "chem", "su", "start date", "as of", "ordinal", "ship", "uss", "sclass", "nihongo"),
        *(
            "zh",
            "ipac-en",
            "ipa",
            "height",
            "bibleverse",
            "hlist",
            "bulleted list",
            "math",
            "chem2",
            "us$",
            "lang",
            "x",
        ),
        *("reign", "flagathlete", "respell", "url", "key press", "formatnum:", "sic", "quote", "lang-fr", ""),
    ]
    for name in names:
        for rest in (
            "",
            "|",
            "||",
            "|||||||",
            "|=",
            "|1=",
            "|2=b|1=a",
            "|a=b",
            "|\u0663|99999999|0",
            "|x|y|z|w|v|u",
            "|-1|13|45",
        ):
            assert isinstance(text_of_template(name + rest, True), str)
