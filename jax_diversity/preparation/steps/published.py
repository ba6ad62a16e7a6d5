"""Stop words and thresholds of FineWeb2, by language (Penedo et al. 2025, arXiv:2506.20920).

They are from the files `configs/*.yml` of github.com/huggingface/fineweb-2 (commit d0defb24, Apache-2.0). Stop words
without a letter are left out. FineWeb2 computed the thresholds with a tokenizer for each language. Here a word of a
language with spaces is a run of letters, and a word of a language without spaces is a character. Korean and Vietnamese
are left out: FineWeb2 takes parts of words, or several words, as one word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache

from jax_diversity.preparation.steps.base import Candidate, Step

_NAMES = (
    *("least_mean_length", "most_mean_length", "least_alphabetic_words", "least_punctuated_lines"),
    *("most_line_ends_per_word", "lines", "top_2", "top_3", "top_4"),
    *(f"repeated_{length}" for length in range(5, 11)),
)
# `fineweb-2-pipeline.py` turns these rules off in all languages, or has one threshold for all of them.
_OF_ALL = {
    **{"paragraphs": 1.0, "paragraph_characters": 1.0, "line_characters": 1.0},
    **{"most_short_lines": 1.0, "most_duplicate_characters": 0.1},
}
# ruff: noqa: RUF001 (letters of other scripts that look like Latin letters)
_TABLE = {
    "ar": (
        "في من على إلى عام أن مع أو هو عن التي كان بين ما كانت هي المتحدة بعد",
        "2 9 .787 .143 .189 .304 .197 .172 .146 .165 .153 .142 .131 .12 .109",
    ),
    "bg": (
        "на и в е от за се г. с през да по",
        "3 10 .756 .154 .142 .317 .173 .157 .139 .17 .158 .144 .131 .12 .108",
    ),
    "bn": (
        "এবং ও হয় করে একটি তিনি করা থেকে",
        "3 24 .8 .125 .171 .203 .177 .158 .147 .118 .108 .099 .09 .082 .073",
    ),
    "ca": (
        "de el la a i d l' en d' que va els per un les una amb es",
        "2 11 .832 .154 .118 .294 .216 .189 .168 .159 .149 .137 .126 .116 .105",
    ),
    "cs": (
        "v a se na je z s do",
        "3 11 .781 .06 .182 .311 .206 .183 .165 .168 .157 .145 .133 .121 .109",
    ),
    "da": (
        "i og af en til er den at som på for med det blev var der fra de han et",
        "3 11 .798 .1 .182 .305 .367 .297 .232 .169 .158 .147 .134 .123 .112",
    ),
    "de": (
        "der und die in von im den des mit das er dem als wurde für",
        "0 15 .774 0 .152 .263 .169 .153 .137 .141 .134 .126 .117 .108 .098",
    ),
    "el": (
        "του και το της η την από ο με τον να που των στην για στο σε είναι τη τα οι",
        "3 11 .809 .167 .116 .31 .194 .175 .156 .174 .163 .153 .142 .13 .119",
    ),
    "es": (
        "de la en el y a que del los se por un con una las su",
        "3 14 .825 .182 .138 .252 .156 .14 .125 .145 .136 .127 .117 .108 .099",
    ),
    "fa": (
        "در و به از که است این را با یک",
        "2 9 .812 .2 .15 .246 .189 .164 .143 .157 .147 .137 .127 .117 .107",
    ),
    "fi": (
        "ja on oli hän vuonna myös joka se ei sen ovat sekä mutta että tai vuoden kanssa hänen s. jälkeen the",
        "3 14 .755 .114 .161 .293 .253 .202 .179 .153 .143 .133 .122 .112 .101",
    ),
    "fr": (
        "de la le et à en l' des du les est d' un une il dans par au",
        "2 11 .812 .1 .185 .264 .161 .149 .134 .15 .141 .131 .121 .111 .1",
    ),
    "he": (
        "של את על הוא עם בשנת גם היה היא לאחר לא ידי בין או כי",
        "2 9 .799 .2 .126 .34 .239 .202 .173 .16 .151 .14 .129 .118 .108",
    ),
    "hi": (
        "के में है की और से का को एक हैं पर",
        "2 21 .837 .091 .316 .206 .208 .198 .161 .135 .125 .116 .108 .099 .09",
    ),
    "hr": (
        "je u i se na su za od s a",
        "2 11 .751 .099 .198 .312 .215 .19 .165 .173 .162 .15 .138 .126 .113",
    ),
    "hu": (
        "a az és is egy volt hogy nem meg de magyar első el között",
        "3 15 .766 .067 .231 .322 .226 .198 .172 .169 .159 .148 .136 .124 .112",
    ),
    "id": (
        "dan yang di pada dari ini dengan adalah untuk dalam",
        "3 12 .805 .111 .157 .241 .194 .166 .145 .166 .155 .144 .133 .122 .111",
    ),
    "it": (
        "di e il la in a del che è della un per nel l' con da i una",
        "3 21 .807 .025 .2 .246 .198 .156 .133 .144 .136 .127 .118 .109 .1",
    ),
    "nl": (
        "de van in het een en is op voor met door zijn werd hij uit",
        "3 17 .828 .102 .154 .296 .213 .182 .158 .156 .146 .136 .126 .115 .104",
    ),
    "pl": (
        "w i na z do się roku od a jest przez po jako oraz o został był nie",
        "3 12 .726 .087 .158 .32 .222 .198 .176 .172 .16 .148 .136 .123 .111",
    ),
    "pt": (
        "de a e o em do da que um no uma com para na é foi",
        "3 13 .814 .077 .186 .287 .371 .191 .163 .163 .153 .141 .13 .119 .108",
    ),
    "ro": (
        "de în a și din la o cu este un pe fost care al",
        "1 14 .779 .081 .207 .289 .161 .146 .131 .16 .149 .138 .127 .117 .106",
    ),
    "ru": (
        "в и на с года по году из был к не от что за для его как а он также до после",
        "3 11 .713 .231 .139 .322 .184 .164 .146 .168 .156 .145 .133 .121 .109",
    ),
    "sl": (
        "je v in na so se ki za leta z",
        "2 12 .781 .045 .273 .317 .262 .225 .189 .17 .158 .146 .135 .123 .111",
    ),
    "sv": (
        "i och är av en som den med på till att för",
        "3 12 .841 .2 .135 .292 .242 .195 .174 .156 .147 .136 .125 .116 .105",
    ),
    "tr": (
        "ve bir olarak bu ile için olan da de tarafından yılında sonra en daha ilk the",
        "3 21 .773 .091 .222 .272 .214 .168 .147 .154 .144 .134 .124 .113 .103",
    ),
    "uk": (
        "у в на і з та до року за що",
        "3 11 .694 .167 .175 .3 .189 .172 .153 .16 .148 .136 .124 .113 .102",
    ),
    "ja": (
        "の に を は た て が と で 年 し 月 れ さ",
        "1 6 .759 .096 .13 .328 .239 .196 .172 .243 .225 .207 .19 .175 .159",
    ),
    "km": (
        "មាន បាន ដែល ជា និង នៅ របស់ ក្នុង ថា នេះ នៃ ហើយ ទៅ ដោយ",
        "2 13 .905 0 .361 .917 .594 .523 .438 .175 .16 .148 .135 .121 .109",
    ),
    "lo": (
        "ແລະ ໃນ ຂອງ ເປັນ ທີ່ ໄດ້ ມີ",
        "2 9 .85 0 .2 .327 .198 .175 .143 .187 .175 .163 .149 .135 .123",
    ),
    "my": (
        "သည် များ ကို တွင် ဖြစ် သော ခဲ့ နှင့် ရှိ တို့ မှာ ဦး က မ မှ",
        "2 21 .75 0 .07 .278 .161 .152 .133 .167 .155 .145 .134 .124 .113",
    ),
    "th": (
        "ใน ที่ และ ของ เป็น มี การ ได้",
        "2 10 .9 0 .153 .349 .221 .197 .162 .185 .168 .152 .137 .124 .111",
    ),
    "zh": (
        "的 年 在 月 是 和 日 了 於 為 有 被 人 中 为 他 與 後 也 而 由",
        "1 5 .735 .106 .178 .287 .256 .201 .171 .198 .182 .167 .154 .14 .127",
    ),
}

CHARACTERS_PER_WORD = {"ja": 2, "km": 3, "lo": 3, "my": 3, "th": 4}
"""Characters that count as one word of a run: about the mean length of the words for which FineWeb2 computed its
thresholds. For Chinese, runs of single characters agree best with runs of words (docs/log.md)."""


@cache
def stop_words(language: str) -> frozenset[str] | None:
    """Return the stop words of a language; None for a language without published stop words."""
    return frozenset(_TABLE[language][0].split()) if language in _TABLE else None


@cache
def published_thresholds(language: str) -> Mapping[str, float] | None:
    """Return the thresholds of a language by the names of rules; None for a language without published thresholds."""
    if language not in _TABLE:
        return None
    return dict(zip(_NAMES, map(float, _TABLE[language][1].split()), strict=True)) | _OF_ALL


class LanguageStep(Step):
    """A step whose thresholds depend on the document's language.

    Subclasses declare the options `thresholds`, with the thresholds of English texts as default, and `by_language`.
    """

    thresholds: Mapping[str, float]
    by_language: bool

    def limits(self, candidate: Candidate) -> Mapping[str, float]:
        """Return the thresholds for a document: published ones, but not in place of thresholds that a user changed."""
        published = published_thresholds(candidate.main_language) if self.by_language else None
        if published is None:
            return self.thresholds
        defaults = _defaults(type(self))
        return {
            name: published.get(name, limit) if limit == defaults[name] else limit
            for name, limit in self.thresholds.items()
        }


@cache
def _defaults(step: type[LanguageStep]) -> Mapping[str, float]:
    return next(field.default_factory() for field in fields(step) if field.name == "thresholds")  # type: ignore[misc]
