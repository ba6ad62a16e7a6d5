"""The text of templates that stand in running text: numbers, units, currencies, dates, names, words of languages.

The templates are those of the English Wikipedia, and a few of other wikis. Templates are not expanded: each entry
writes the arguments as the template shows them, without links and notes. An unknown template in running text is
replaced by its first argument; an unknown template that fills its line, such as a box, is removed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

Arguments = tuple[Sequence[str], Mapping[str, str]]
"""The positional arguments, and the named arguments in lower case."""

_LINK, _BAR = re.compile(r"\[\[[^\[\]]*+\]\]"), "\ue003"
"""A link, and the character that stands for its `|` while arguments are separated."""
_NAMED = re.compile(r"\s*+([\w -]++|(?<= ))=")
_QUANTITY = re.compile(r"[-\u2212+±]?[\d.,/+ ]+|to|and|or|by|x|\u00d7|\+/-|±|\u2013|-")
_POWER, _SQUARE = re.compile(r"^([a-z]{1,2})([23])$"), re.compile(r"^(sq|cu)(?=[a-z])")
_SMALLER_UNITS = frozenset(("in", "ft", "yd", "ch", "furlong", "lb", "oz"))
"""Units that follow a larger one, as in six feet two inches."""
_CHARGE = re.compile(r"\d*[+\u2212-]")
_LISTS, _ITEM = frozenset(("plainlist", "flatlist", "plain list", "flat list")), re.compile(r"(?:\A|\n)[ \t]*[*#]+")
_LANGUAGE = re.compile(r"[a-z]{2,3}(?>(?:-[a-z]+)*)")
_COUNT = re.compile(r"(?<=[A-Za-z)\]])(\d+)")
_EXPONENT = re.compile(r"(?<=[\d.)])[eE]([-+\u2212]?\d+)")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


def _words(listed: str) -> list[str]:
    return [name.strip() for name in listed.replace("\n", ";").split(";") if name.strip()]


SIGNS = {
    **dict.fromkeys(_words("ndash; \u2013; en dash; endash; nsndns; nsndn"), "\u2013"),
    **dict.fromkeys(_words("snd; spnd; spaced ndash; dash; spaced en dash"), " \u2013 "),
    **dict.fromkeys(_words("mdash; \u2014; em dash; emdash; mdashb; spaced em dash"), "\u2014"),
    **dict.fromkeys(_words("nbsp; spaces; -; space; thinsp; thin space; hsp; hair space; ensp; pad"), " "),
    **{
        "'": "'",
        "'s": "\u2019s",
        "\u00d7": "\u00d7",
        "okina": "\u02bb",
        "hamza": "\u02be",
        "!": "|",
        "=": "=",
        "pipe": "|",
        "(": "{",
        ")": "}",
        "*": "*",
        "\u00b7": " \u00b7 ",
        "\u2022": " \u2022 ",
    },
    **{"pi": "\u03c0", "tau": "\u03c4", "phi": "\u03c6", "e (mathematical constant)": "e", "times": "\u00d7"},
    **{"minus": "\u2212", "half": "1/2", "dot": " \u00b7 ", "bullet": " \u2022 ", "sic": "[sic]", "degree": "\u00b0"},
    **{"yes": "Yes", "no": "No", "won": "Won", "nom": "Nominated", "n/a": "N/A", "tba": "TBA", "unknown": "Unknown"},
    **{"bc": "BC", "bce": "BCE", "ad": "AD", "ce": "CE", "0": ""},
}
"""Templates without arguments."""

# The number of the argument that is the text.
_PLACES = {
    **dict.fromkeys(
        _words("lang; langx; transl; transliteration; color; font color; fontcolor; colored text; audio"), -1
    ),
    **dict.fromkeys(_words("langx; audio; audio-nohelp; colour; text color; hover title; official url"), 1),
}
# Signs and words before and after the first argument.
_AROUND = {
    **dict.fromkeys(_words("us$; usd; us dollar; usdollar"), ("US$", "")),
    **dict.fromkeys(_words("\u00a3; gbp; pound; pound sterling; gbp-"), ("\u00a3", "")),
    **dict.fromkeys(_words("\u20ac; eur; euro"), ("\u20ac", "")),
    **dict.fromkeys(_words("\u00a5; jpy; yen; jp\u00a5; jpy convert"), ("\u00a5", "")),
    **dict.fromkeys(_words("cny; rmb; cn\u00a5"), ("CN\u00a5", "")),
    **dict.fromkeys(_words("\u20b9; inr; indian rupee; inrconvert; indian rupees"), ("\u20b9", "")),
    **dict.fromkeys(_words("a$; aud; au$"), ("A$", "")),
    **dict.fromkeys(_words("c$; cad; ca$; can$"), ("C$", "")),
    **dict.fromkeys(_words("nz$; nzd"), ("NZ$", "")),
    **dict.fromkeys(_words("hk$; hkd"), ("HK$", "")),
    **dict.fromkeys(_words("s$; sgd"), ("S$", "")),
    **dict.fromkeys(_words("nt$; ntd; twd"), ("NT$", "")),
    **dict.fromkeys(_words("r$; brl"), ("R$", "")),
    **dict.fromkeys(_words("$; mex$; mxn"), ("$", "")),
    **dict.fromkeys(_words("chf; swiss franc; swiss francs"), ("CHF ", "")),
    **dict.fromkeys(_words("\u20a9; krw; skw; south korean won"), ("\u20a9", "")),
    **dict.fromkeys(_words("\u20bd; rub; rur; ruble"), ("\u20bd", "")),
    **dict.fromkeys(_words("\u20b1; php; philippine peso; philpeso"), ("\u20b1", "")),
    **dict.fromkeys(_words("\u20aa; ils; nis; israeli new shekel"), ("\u20aa", "")),
    **dict.fromkeys(_words("\u20ba; try; turkish lira"), ("\u20ba", "")),
    **dict.fromkeys(_words("\u20a6; ngn; naira"), ("\u20a6", "")),
    **dict.fromkeys(_words("sek; nok; dkk"), ("", " kr")),
    **{"pln": ("z\u0142", ""), "zar": ("R", "")},
    **dict.fromkeys(_words("circa; c.; ca.; ca"), ("c. ", "")),
    **dict.fromkeys(_words("floruit; fl.; fl"), ("fl. ", "")),
    **dict.fromkeys(_words("sup; superscript"), ("<sup>", "</sup>")),
    **dict.fromkeys(_words("sub; subscript"), ("<sub>", "</sub>")),
    **dict.fromkeys(_words("e; e-; 10^; exp; x10^; esp"), ("\u00d710<sup>", "</sup>")),
    "10^": ("10<sup>", "</sup>"),
    **{
        "sqrt": ("\u221a", ""),
        "radic": ("\u221a", ""),
        "abs": ("|", "|"),
        "norm": ("\u2016", "\u2016"),
        "ceil": ("\u2308", "\u2309"),
    },
    **{"floor": ("\u230a", "\u230b"), "angbr": ("\u27e8", "\u27e9"), "angle bracket": ("\u27e8", "\u27e9")},
    **{"bra": ("\u27e8", "|"), "ket": ("|", "\u27e9"), "deg": ("", "\u00b0"), "gloss": ("\u2018", "\u2019")},
    **{
        "lit": ("lit.\u2009\u2018", "\u2019"),
        "literal translation": ("lit.\u2009\u2018", "\u2019"),
        "translation": ("transl. ", ""),
    },
    **{"numero": ("No. ", ""), "no.": ("No. ", ""), "isbn": ("ISBN ", ""), "issn": ("ISSN ", ""), "doi": ("doi:", "")},
    **{"arxiv": ("arXiv:", ""), "oclc": ("OCLC ", ""), "pmid": ("PMID ", ""), "oeis": ("OEIS ", "")},
    '"': ("\u201c", "\u201d"),
    "sic": ("", " [sic]"),
}
_SHIPS = {
    name.lower(): name
    for name in _words("""
    USS; HMS; SS; MV; RMS; HMAS; HMCS; HMNZS; SMS; USCGC; USNS; INS; MS; PS; ROKS; HNLMS; USAT; RV; RFA; HDMS; HNoMS
    """)
}

_DROPPED = frozenset(
    _words("""
    efn; efn-ua; efn-lr; efn-la; refn; sfn; sfnp; sfnm; sfnmp; harv; harvnb; harvp; harvcol; harvcoltxt; r; rp; ref
    note; notetag; cn; fact; citation needed; cite; citation; clarify; who; when; where; which; why; how; by whom
    dubious; vague; specify; page needed; verify source; failed verification; better source needed
    original research inline; or; pov-inline; weasel inline; according to whom; examples; update inline; dead link
    webarchive; self-published inline; anchor; anchors; coord; coordinates; flagicon; flag icon; flagicon image
    short description; inflation; audio icon; listen; hatnote; main; see also; further; details; about; for
    distinguish; redirect; other uses; pronunciation needed; clear; reflist; toc; authority control
    commons category; portal; noteta; sister project; image; wide image; multiple image; increase; decrease; steady
    gain; loss; rating; age in years and days; time ago; currentyear; shy; wbr; zwj; zwnj; wikisource; wikiquote
    wiktionary; use dmy dates; use mdy dates; use british english; use american english
    """)
)
_DROPPED_BEGINNINGS = ("cite ", "citation", "infobox", "navbox", "refimprove", "harv", "sfn", "taxobox", "#", "sidebar")


def arguments(parts: Sequence[str]) -> Arguments:
    """Divide the parts between `|` into positional and named arguments. `1=text` is the first positional argument."""
    positional, named = list[str](), dict[str, str]()
    for part in parts:
        match = _NAMED.match(part)
        if match is None:
            positional.append(part.strip())
            continue
        key, value = match[1].strip().lower(), part[match.end() :].strip()
        if key.isascii() and key.isdigit() and int(key[:3]) == len(positional) + 1:
            positional.append(value)
        else:
            named[key] = value
    return positional, named


def text_of_template(content: str, is_inline: bool) -> str:
    """Return the text that replaces a template.

    Args:
        content: the text between the braces, without templates within it.
        is_inline: whether other text is on the template's line.

    Example:
        >>> text_of_template("frac|3|4", True), text_of_template("US$|5", True), text_of_template("odd|word|x", True)
        ('3/4', 'US$5', 'word')
    """
    hidden = _LINK.sub(lambda link: link[0].replace("|", _BAR), content) if "[[" in content else content
    name, *parts = (part.replace(_BAR, "|") for part in hidden.split("|"))
    name = " ".join(name.replace("_", " ").split()).lower()
    positional, named = arguments(parts)
    if name in SIGNS and not any(positional):
        return SIGNS[name]
    if name in _RAW:
        return _RAW[name](content.partition("|")[2])
    if name in _FUNCTIONS:
        if is_inline and name in _LISTS:  # a line of a list cannot begin within a line
            positional = [item.strip() for part in positional for item in _ITEM.split(part)]
        return _FUNCTIONS[name](positional, named)
    if name.startswith(("link-", "internal link helper/")) and name not in _FIRST:
        return _helped_link(positional, named)
    text = next(
        (text_of_field for text_of_field in (named.get("text", ""), named.get("quote", "")) if text_of_field), ""
    )
    if name.startswith("formatnum:"):
        return name.removeprefix("formatnum:").strip()
    if not positional:
        return text if name in _QUOTES else ""
    if name in _AROUND:
        before, after = _AROUND[name]
        return f"{before}{positional[0]}{after}" if positional[0] else ""
    if name in _SHIPS:
        return _ship([_SHIPS[name], *positional], {})
    if name in _PLACES:
        place = _PLACES[name]
        return positional[place] if place < len(positional) else positional[0]
    if name.startswith(("lang-", "ipa-")) or name in _FIRST:
        return positional[0]
    if not is_inline or ":" in name or name in _DROPPED or name.startswith(_DROPPED_BEGINNINGS):
        return ""
    return "" if "\n" in positional[0] else positional[0]


def _joined(separator: str) -> Callable[[Sequence[str], Mapping[str, str]], str]:
    return lambda parts, _: separator.join(filter(None, parts))


def _fraction(parts: Sequence[str], _: Mapping[str, str]) -> str:
    match [*filter(None, parts)]:
        case [whole, over, under]:
            return f"{whole}\u00a0{over}/{under}"
        case [over, under]:
            return f"{over}/{under}"
        case [under]:
            return f"1/{under}"
    return ""


def _value(parts: Sequence[str], named: Mapping[str, str]) -> str:
    """Return a number with its uncertainty, exponent and unit, as `{{val|1.5|0.2|e=6|u=km/s|ul=...|p=~}}`."""
    if not parts:
        return ""
    number = _EXPONENT.sub("\u00d710<sup>\\1</sup>", parts[0])
    exponent = named.get("e", "")
    uncertainty = f" \u00b1 {parts[1]}" if len(parts) > 1 and parts[1] else ""
    if uncertainty and exponent:
        number = f"({number}{uncertainty})"
        uncertainty = ""
    power = f"\u00d710<sup>{exponent}</sup>" if exponent else ""
    unit = named.get("u") or named.get("ul") or named.get("up") or named.get("upl") or ""
    per = named.get("up") or named.get("upl")
    unit = f"{named.get('u') or named.get('ul') or ''}/{per}" if per else unit
    before = named.get("p", "")
    return f"{before}{number}{uncertainty}{power}{named.get('s', '')}" + (f"\u00a0{unit}" if unit else "")


def _quantity(parts: Sequence[str], _: Mapping[str, str]) -> str:
    """Return the given quantity, without the converted one: `{{convert|5|to|7|km|mi}}`, `{{convert|6|ft|2|in|m}}`."""
    unit = next((at for at, part in enumerate(parts) if not _QUANTITY.fullmatch(part)), len(parts))
    written = [*parts[:unit], *map(_unit, parts[unit : unit + 1])]
    for at in range(unit + 1, len(parts) - 1, 2):
        if parts[at + 1] not in _SMALLER_UNITS or not _QUANTITY.fullmatch(parts[at]):
            break
        written += parts[at : at + 2]
    return " ".join(written)


def _unit(name: str) -> str:
    """Write a unit as `convert` shows it.

    Example:
        >>> [_unit(name) for name in ("C", "sqmi", "km2", "mph")]
        ['\u00b0C', 'sq mi', 'km<sup>2</sup>', 'mph']
    """
    if name in ("C", "F", "C-change", "F-change"):
        return f"\u00b0{name[0]}"
    return _POWER.sub(r"\1<sup>\2</sup>", _SQUARE.sub(r"\1 ", name))


def _percentage(parts: Sequence[str], named: Mapping[str, str]) -> str:
    """Return `25%` for `{{percentage|1|4}}`; the third argument is the number of decimals."""
    share, whole, digits = (*parts, "", "", "")[:3]
    try:
        percent = 100 * float(share) / float(whole)
        return f"{percent:.{min(int(digits or 0), 9)}f}%" if math.isfinite(percent) else ""
    except (ArithmeticError, ValueError):
        return ""


def _age(parts: Sequence[str], _: Mapping[str, str]) -> str:
    """Return the years between two dates; without a second date they depend on the day of reading."""
    if len(parts) < 6 or not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts[:6]):
        return ""
    numbers = [*map(int, parts[:6])]
    return str(numbers[3] - numbers[0] - (numbers[4:] < numbers[1:3]))


def _chemical(parts: Sequence[str], _: Mapping[str, str]) -> str:
    written = (
        f"<sub>{part}</sub>" if part.isdecimal() else f"<sup>{part}</sup>" if _CHARGE.fullmatch(part) else part
        for part in parts
        if part
    )
    return "".join(written)


def _scripts(parts: Sequence[str], named: Mapping[str, str]) -> str:
    below = named.get("b", "") or (parts[1] if len(parts) > 1 else "")
    above = named.get("p", "") or (parts[0] if parts else "")
    return (f"<sub>{below}</sub>" if below else "") + (f"<sup>{above}</sup>" if above else "")


def _date(parts: Sequence[str], named: Mapping[str, str]) -> str:
    """Return a date from year, month and day, as `{{start date|1969|7|20|df=y}}`; a written date is unchanged."""
    numbers = [part for part in parts[:3] if part]
    if not numbers or not all(part.isascii() and part.isdigit() for part in numbers):
        return " ".join(numbers)
    year, *rest = numbers
    if not rest or not 1 <= int(rest[0][:4]) <= 12:
        return " ".join(numbers)
    month = _MONTHS[int(rest[0]) - 1]
    if len(rest) == 1:
        return f"{month} {year}"
    day = rest[1].lstrip("0")
    return f"{day} {month} {year}" if named.get("df", "n")[:1] in "yY" else f"{month} {day}, {year}"


def _as_of(parts: Sequence[str], named: Mapping[str, str]) -> str:
    start = "as of" if named.get("lc", "n")[:1] in "yY" else "As of"
    return f"{start} {_date(parts, {'df': 'y'})}"


def _ordinal(parts: Sequence[str], _: Mapping[str, str]) -> str:
    number = parts[0] if parts else ""
    ending = "th" if number[-2:-1] == "1" else {"1": "st", "2": "nd", "3": "rd"}.get(number[-1:], "th")
    return f"{number}{ending}" if number else ""


def _ship(parts: Sequence[str], _: Mapping[str, str]) -> str:
    """Return a ship's name: prefix, name, number or year. The form `2` omits the prefix, the form `6` the number."""
    prefix, name, number, form = (*parts, "", "", "", "")[:4]
    if form == "2":
        return name
    named = " ".join(filter(None, (prefix, name)))
    return f"{named} ({number})" if number and form not in ("6", "1", "5") else named


def _ship_class(parts: Sequence[str], _: Mapping[str, str]) -> str:
    name, kind = (*parts, "", "")[:2]
    return f"{name}-class {kind}".strip() if name else ""


def _nihongo(parts: Sequence[str], named: Mapping[str, str]) -> str:
    name, *other_parts = parts or [""]
    within = ", ".join(filter(None, [*other_parts, named.get("extra", "")]))
    return f"{name} ({within})" if name and within else name or within


def _translated_link(parts: Sequence[str], _: Mapping[str, str]) -> str:
    """Return the words of `{{tsl|en|foreign title|title|shown words}}`, a link to a page of another wiki."""
    return next((part for part in reversed(parts[1:]) if part), "")


def _interlanguage_link(parts: Sequence[str], named: Mapping[str, str]) -> str:
    """Return the words of `{{ill|title|de|foreign title|lt=shown words}}`, and of the older `{{ill|de|title|...}}`."""
    is_older = len(parts) > 1 and _LANGUAGE.fullmatch(parts[0]) and not _LANGUAGE.fullmatch(parts[1])
    return named.get("lt") or (parts[1] if is_older else "".join(parts[:1]))


def _helped_link(parts: Sequence[str], named: Mapping[str, str]) -> str:
    """Return the words of `{{link-en|title|foreign title|shown words}}` and of its sisters."""
    shown = (named.get("d", ""), *parts[2:3], *parts[:1])
    return next((words for words in shown if words), "")


def _chinese(_: Sequence[str], named: Mapping[str, str]) -> str:
    """Return the forms that `{{zh|s=..|t=..|p=..}}` and `{{korean|hangul=..}}` name."""
    labels = ("c", "t", "s", "p", "w", "hangul", "hanja", "rr", "mr")
    return ", ".join(named[name] for name in labels if named.get(name))


def _ipa_parts(parts: Sequence[str], _: Mapping[str, str]) -> str:
    sounds = [part for part in parts if part not in ("", "pron", "local", "lang", "us", "uk", "also", "UK", "US")]
    return f"/{''.join(sounds)}/" if sounds else ""


def _ipa(parts: Sequence[str], _: Mapping[str, str]) -> str:
    """Return the sounds of `{{IPA|[x]}}` and of `{{IPA|fr|x}}`."""
    has_language = len(parts) > 1 and re.fullmatch("[a-z]{2,3}(?:-[A-Za-z]+)*", parts[0])
    return parts[1] if has_language else "".join(parts[:1])


def _height(_: Sequence[str], named: Mapping[str, str]) -> str:
    return " ".join(f"{named[unit]} {unit}" for unit in ("m", "cm", "ft", "in") if named.get(unit))


def _bible(parts: Sequence[str], _: Mapping[str, str]) -> str:
    book, verse = (*parts, "", "")[:2]
    return " ".join(filter(None, (book, verse)))


def _list(parts: Sequence[str], _: Mapping[str, str]) -> str:
    return ", ".join(filter(None, parts))


def _bullets(parts: Sequence[str], _: Mapping[str, str]) -> str:
    return "\n".join(["", *(f"* {part}" for part in parts if part), ""])


def _raw(text: str) -> str:
    return re.sub(r"^\s*+1\s*+=", "", text).strip()


def _formula(text: str) -> str:
    return _COUNT.sub(r"<sub>\1</sub>", _raw(text).partition("|")[0])


def _code(text: str) -> str:
    parts = [part for part in text.split("|") if not part.strip().startswith(("lang=", "lang =", "class="))]
    return _raw("|".join(parts[:1]))


_RAW: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(_words("code; tt; kbd; samp; mono"), _code),
    **dict.fromkeys(_words("math; mvar; var; bigmath; math-bold"), _raw),
    **dict.fromkeys(_words("chem2; ce"), _formula),
}
"""Templates whose argument may contain equals signs."""
_FUNCTIONS: dict[str, Callable[[Sequence[str], Mapping[str, str]], str]] = {
    **dict.fromkeys(_words("frac; fraction; sfrac; tfrac; efrac; fract; vfrac; bruch; sortfrac"), _fraction),
    **dict.fromkeys(_words("convert; cvt; conv"), _quantity),
    **dict.fromkeys(_words("percentage; percent; pct"), _percentage),
    **dict.fromkeys(_words("chem; chemf"), _chemical),
    **dict.fromkeys(
        _words("""
        start date; start date and age; end date; birth date; birth date and age; death date; death date and age
        film date; dts; date; release date; start-date; birth-date; death-date; birth date and age2; bda
        """),
        _date,
    ),
    **dict.fromkeys(_words("ordinal; ord; ordinal to word"), _ordinal),
    **dict.fromkeys(_words("sclass; sclass-; sclass2; sclass2-"), _ship_class),
    **dict.fromkeys(_words("nihongo; nihongo krt; nihongo foot; nihongo title"), _nihongo),
    **dict.fromkeys(_words("zh; zh-cn; korean; ko-hhrm; lang-zh; korean/auto"), _chinese),
    **dict.fromkeys(_words("ipac-en; ipac-fr; ipac-de; ipac-pl"), _ipa_parts),
    **dict.fromkeys(
        _words("hlist; unbulleted list; ubl; ublist; plainlist; flatlist; plain list; flat list; cslist"), _list
    ),
    **dict.fromkeys(_words("bulleted list; blist"), _bullets),
    **dict.fromkeys(_words("bibleverse; bibleref; bibleref2; bibleverse-nb; quran-usc"), _bible),
    **dict.fromkeys(
        _words("currency; unit\u00e9; unit\u00e9/2; unite; nombre; einheit; gaps; key press; keypress"), _joined(" ")
    ),
    **dict.fromkeys(_words("sortname; sort name; sn"), lambda parts, _: " ".join(filter(None, parts[:2]))),
    "sort": lambda parts, _: "".join(parts[1:2] or parts[:1]),
    **dict.fromkeys(_words("tsl; translink; tsla"), _translated_link),
    **dict.fromkeys(_words("ill; illm; interlanguage link; interlanguage link multi"), _interlanguage_link),
    **dict.fromkeys(_words("le; ilh; internal link helper"), _helped_link),
    "reign": lambda parts, _: "r. " + "\u2013".join(filter(None, parts)) if any(parts) else "",
    "flagathlete": lambda parts, _: f"{parts[0]} ({parts[1]})" if len(parts) > 1 else "".join(parts),
    "respell": _joined("-"),
    "age": _age,
    "val": _value,
    "as of": _as_of,
    "asof": _as_of,
    "su": _scripts,
    "ship": _ship,
    "ipa": _ipa,
    "height": _height,
}
_QUOTES = frozenset(_words("quote; blockquote; cquote; quotation; poemquote; poem; rquote; quote box; zitat"))
_FIRST = _QUOTES | frozenset(
    _words("""
    nowrap; nobr; small; big; larger; smaller; abbr; tooltip; link-interwiki
    visible anchor; vanchor; term; defn; strong; em; strike; strikethrough; s; underline; overline; u; code; tt; kbd
    mono; samp; key; tag; tl; tlx; smallcaps; sc; sc2; nobold; noitalic; normal; nihongo2; hangul; flag; flagu
    flagcountry; flaglist; fb; nft; cr; rws; stnlnk; station; linktext; not a typo; typo; proper name; script
    unicode; polytonic; wikt-lang; nastaliq; script/hebrew; script/arabic; resize; ruby; no italic; dfn; ipa link
    pron; bold; italic; won; nom; yes; no; n/a
    """)
)
