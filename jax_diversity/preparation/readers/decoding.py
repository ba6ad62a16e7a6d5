"""Decode bytes of old encodings, by a declared label or by detection.

Labels have the meaning that browsers give them (the Encoding Standard of WHATWG): `gb2312` is GB18030, `shift_jis` is
Windows-31J. Python's codecs of these names lack characters. Each missing character would also change the characters
after it.
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from string import ascii_letters

import webencodings

from jax_diversity.preparation.readers.records import REPLACED, Problem

_MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\0\0", "utf-32-le"),
    (b"\0\0\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_OLD_NAMES = re.compile(r"(?:win|windows|cp|ansi|x)[-_ ]?(125\d|874|949)")
"""Names such as `win1251` and `cp-1252`, which the standard does not list."""
_NO_ENCODINGS = frozenset(("x-user-defined", "idna", "punycode", "raw_unicode_escape", "unicode_escape", "undefined"))
_SEVEN_BIT = ("iso2022", "hz")
_OF_PAIRS, _SINGLE = ("big5hkscs", "cp932", "cp949", "euc_jp", "gb18030"), b"\x80\xa0\xfd\xfe\xff"
_JAPANESE = ("euc_jp", "iso2022_jp", "iso2022_jp_ext")
_BEYOND_ASCII = re.compile(rb"[^<>]*[\x80-\xff\x1b][^<>]*")
_LONGEST_SAMPLE = 100_000
"""Number of bytes from which an encoding is detected."""
_LEAST_BEYOND_ASCII = 0.02
"""Share of a text's bytes beyond ASCII from which detection is reliable. English words such as `façade` are below."""
_LATIN = ("cp1252", "cp1250", "iso8859-2", "cp850", "cp852", "cp437")
"""Encodings of Windows, ISO and DOS that detection confuses with one another."""
_LETTER = r"[^\W\d_\u1100-\uffff]"
_SIGN = r"[\xa1-\xac\xae-\xb6\xb8-\xbf\xd7\xf7\u02b0-\u036f\u201a\u201e-\u2bff]"
_SIGN_IN_WORD = re.compile(rf"[\x80-\x9f\ufffd]|(?<={_LETTER}){_SIGN}(?={_LETTER})")
_UNLIKELY, _FEW = frozenset((*_OF_PAIRS, "cp437", "cp850", "cp852", "iso8859-10")), 3
_AMONG_LETTERS = re.compile(rb"(?>(?:[\0-\x7f]|(?:(?<=[A-Za-z]).|.(?=[A-Za-z]))(?![\x80-\xff]))*)", re.DOTALL)
"""Encodings that a few bytes, each beside an ASCII letter, do not show: `it\x92s` is not Big5."""
_RARE_IN_1252 = re.compile(rb"[\x81-\x84\x86-\x90\x98\x9a-\x9f]|(?<=[A-Za-z])[\x93\x94](?=[A-Za-z])")
"""Bytes that short texts in Windows-1252 do not have: katakana of Shift_JIS are 0x83 and a letter, `\x82t\x82` is `été`
in cp850. Curly quotes stand between letters in DOS words alone."""
_MOST_ODD = 0.05
"""The largest share of characters that words do not have, such as signs between letters, in the right encoding."""
_LEAST_OTHER, _ASCII_LETTERS = 30, [letter.encode() for letter in ascii_letters]
"""The least number of bytes beyond ASCII that contradict the label ISO-8859-1, if they outnumber the ASCII letters."""
_LEAST_NULS = 0.02
"""Share of a text's 16-bit units that are ASCII, at least, if it is UTF-16 without a mark."""
_LEAST_REPLACED, _DOUBTFUL, _MOST_REPLACED = 10, 0.03, 0.1
"""Numbers of replaced characters, and shares of the characters beyond ASCII: a label is doubted, a page is removed."""
_CONTROLS = bytes({*range(32), 127} - {*b"\b\t\n\v\f\r\x1b"})
_MOST_CONTROLS, _LOOKED_AT = 0.01, 10_000
"""Control characters that texts do not have, their largest share, and the number of characters that are examined.

Manual pages have backspaces, for bold letters.
"""
_HANDLER = "jax_diversity.web"
# Characters that Python's codecs take for others than browsers do: full-width signs of Japanese, and characters of
# GB18030 that have a place in Unicode since 2005.
_SIGNS = str.maketrans("\u301c\u2016\u2212\u00a2\u00a3\u00ac", "\uff5e\u2225\uff0d\uffe0\uffe1\uffe2")
_PRIVATE = str.maketrans(
    "\ue5e5\ue78d\ue78e\ue78f\ue790\ue791\ue792\ue793\ue794\ue795\ue796\ue7c7",
    "\u3000\ufe10\ufe12\ufe11\ufe13\ufe14\ufe15\ufe16\ufe17\ufe18\ufe19\u1e3f",
)


def decoded(page: bytes, declared: str | None) -> str:
    """Decode a page; see `decoded_by`."""
    return decoded_by(page, declared)[0]


def decoded_by(page: bytes, declared: str | None) -> tuple[str, str]:
    """Decode a page by its byte order mark, as UTF-8, by the declared encoding, or by detection.

    Args:
        page: the bytes. Bytes that cannot be decoded are replaced by U+FFFD.
        declared: the label of the encoding, if there is one. If the label is unknown or its encoding does not fit, the
            encoding is detected.

    Returns:
        The text, and the name of Python's codec.

    Example:
        >>> decoded_by("喆".encode("gbk"), "gb2312")
        ('喆', 'gb18030')
    """
    for mark, name in _MARKS:
        if page.startswith(mark):
            return _as_text(page[len(mark) :], name), name
    # Bytes beyond ASCII that are valid UTF-8 are hardly ever anything else. The zero bytes are then stray.
    has_zeros = b"\0" in page
    if has_zeros and (page.isascii() or not _is_utf_8(page)) and (name := _wide_encoding(page)):
        return _as_text(page, name), name
    codec = codec_of(declared) if declared else None
    try:
        # Text in other encodings is rarely valid UTF-8 by chance, except in encodings that use ASCII bytes only.
        text = page.decode("utf-8")
        if b"\x1b" not in page and not (codec or "").startswith(_SEVEN_BIT):
            return text.replace("\0", "") if has_zeros else text, "utf-8"
    except UnicodeDecodeError:
        text = _as_text(page, "utf-8")
        replaced = text.count(REPLACED)
        # A page in UTF-8 may have a few broken characters; in other encodings few characters are valid UTF-8.
        if replaced <= _beyond_ascii(text) - replaced:
            return text, "utf-8"
    name = "utf-8"
    if codec == "cp1252" and _has_other_letters(page):
        codec = None
    if codec not in (None, "utf-8"):
        text, name = _as_text(page, codec), codec
        if not _is_poor(text, _DOUBTFUL):
            return text, name
    other = detected(page)
    return min(
        (text, name),
        (_as_text(page, other), other),
        key=lambda candidate: (candidate[0].count(REPLACED), candidate[0] is text),
    )


def undecodable(text: str) -> Problem | None:
    """Return a problem for binary data, and if more than a tenth of the characters beyond ASCII cannot be decoded."""
    begin = text[:_LOOKED_AT].encode()
    num_controls = len(begin) - len(begin.translate(None, _CONTROLS))
    if num_controls > _LEAST_REPLACED and num_controls > _MOST_CONTROLS * min(len(text), _LOOKED_AT):
        return Problem("num_undecodable", "binary data, not text")
    if not _is_poor(text, _MOST_REPLACED):
        return None
    replaced, number = text.count(REPLACED), _beyond_ascii(text)
    reason = f"the encoding is unknown: {replaced} of {number} characters beyond ASCII cannot be decoded"
    return Problem("num_undecodable", reason)


@lru_cache(maxsize=1000)
def codec_of(label: str) -> str | None:
    """Return Python's codec for a label; None if it names no encoding.

    Example:
        >>> codec_of("ks_c_5601-1987"), codec_of("latin-1"), codec_of("base64")
        ('cp949', 'cp1252', None)
    """
    label = label.strip().lower()
    if not label.isascii():
        return None
    if old := _OLD_NAMES.fullmatch(label):
        label = f"windows-{old[1]}"
    codec = webencodings.lookup(label)
    if codec is None or codec.name == "replacement":  # Python has codecs that the standard does not list
        try:
            name = codecs.lookup(label).name
            b"a".decode(name, "replace")
        except (LookupError, ValueError):  # unknown, or not an encoding of text
            return None
        codec = webencodings.lookup(name) or webencodings.lookup(name.replace("_", "-"))
        if codec is None or codec.name == "replacement":
            return None if name.replace("-", "_") in _NO_ENCODINGS else name
    if codec.name in _NO_ENCODINGS:
        return None
    # The package takes gbk for Python's codec, which lacks characters of GB18030.
    other = {"gbk": "gb18030", "iso-2022-jp": "iso2022_jp_ext"}
    return other.get(codec.name) or codec.codec_info.name


def detected(page: bytes) -> str:
    """Return the codec of a page that declares none, from the parts of its text that are not ASCII."""
    sample = b"\n".join(_BEYOND_ASCII.findall(page[:_LONGEST_SAMPLE])) or page[:_LONGEST_SAMPLE]
    num_beyond = len(sample) - len(sample.decode("ascii", "ignore"))
    if b"\x1b" not in sample and num_beyond < _LEAST_BEYOND_ASCII * len(sample):
        return "cp1252"
    name = None
    if find_spec("resiliparse") is not None:
        from resiliparse.parse.encoding import detect_encoding

        # With the standard's names the library takes Korean, IBM's and Apple's encodings for UTF-8.
        name = detect_encoding(sample, html5_compatible=False)
    if name is None and find_spec("charset_normalizer") is not None:
        from charset_normalizer import from_bytes

        best = from_bytes(sample).best()
        name = best.encoding if best else None
    codec = (codec_of(name) if name else None) or "cp1252"
    if b"\x1b" in sample:
        return codec
    odd = {other: _num_odd(sample.decode(other, "replace")) for other in (codec, *_LATIN)}
    is_short = codec in _UNLIKELY and num_beyond <= _FEW and not _RARE_IN_1252.search(sample)
    if is_short and not odd["cp1252"] and _AMONG_LETTERS.fullmatch(sample):
        return "cp1252"
    return codec if odd[codec] <= _MOST_ODD * num_beyond else min(odd, key=lambda other: odd[other])


def _num_odd(text: str) -> int:
    """Count characters that words do not have: signs between letters, capital letters after small ones."""
    odd = sum(1 for _ in _SIGN_IN_WORD.finditer(text))
    return odd + sum(small.islower() and capital.isupper() and capital > "\x7f" for small, capital in pairwise(text))


def _wide_encoding(page: bytes) -> str | None:
    """Return the encoding of 16-bit or 32-bit units without a mark, by the places of the zero bytes."""
    even, odd = page[::2].count(0), page[1::2].count(0)
    least = _LEAST_NULS * len(page) / 2
    candidates = []
    if page[2:4] == b"\0\0" or page[:2] == b"\0\0":
        candidates = ["utf-32-le" if page[2:4] == b"\0\0" else "utf-32-be"]
    elif max(even, odd) > max(least, 20 * min(even, odd)):
        candidates = ["utf-16-le" if odd > even else "utf-16-be"]
    for name in candidates:
        try:
            page.decode(name)
        except UnicodeDecodeError:
            continue
        return name
    return None


def _as_text(page: bytes, codec: str) -> str:
    text = page.decode(codec, _HANDLER)
    if codec in _JAPANESE:
        text = text.translate(_SIGNS)
    elif codec == "gb18030":
        text = text.translate(_PRIVATE)
    # Some encodings give lone surrogates, which cannot be stored.
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")


def _has_other_letters(page: bytes) -> bool:
    """Return whether text is not in Latin letters: servers declare ISO-8859-1 for pages in any encoding."""
    sample = b"".join(_BEYOND_ASCII.findall(page[:_LONGEST_SAMPLE]))
    num_beyond = len(sample) - len(sample.decode("ascii", "ignore"))
    return num_beyond > max(_LEAST_OTHER, sum(map(sample.count, _ASCII_LETTERS)))


def _is_utf_8(page: bytes) -> bool:
    try:
        page.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _is_poor(text: str, share: float) -> bool:
    replaced = text.count(REPLACED) if REPLACED in text else 0  # the search is faster than the count
    return replaced > _LEAST_REPLACED and replaced > share * _beyond_ascii(text)


def _beyond_ascii(text: str) -> int:
    return len(text) - len(text.encode("ascii", "ignore"))


def _replacement(error: UnicodeError) -> tuple[str, int]:
    """Return the characters of browsers' encodings that Python's codecs lack, or U+FFFD; and the place after them."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    start, pair = error.start, error.object[error.start : error.start + 2]
    other = ""
    if error.encoding in _JAPANESE and len(pair) == 2:
        # The characters of NEC and IBM have a place in Windows-31J.
        row, cell = (pair[0] | 0x80) - 0xA1, (pair[1] | 0x80) - 0xA1
        if 0 <= row < 94 and 0 <= cell < 94:
            lead, trail = row // 2, cell + 94 * (row % 2)
            shifted = bytes([lead + (0x81 if lead < 0x1F else 0xC1), trail + (0x40 if trail < 0x3F else 0x41)])
            other = shifted.decode("cp932", "ignore")
    elif error.encoding == "big5hkscs":
        other = pair.decode("cp950", "ignore") if pair[0] >= 0xA1 else ""
    elif error.encoding == "gb18030" and pair[:1] == b"\x80":
        return "\u20ac", start + 1
    if len(other) == 1:
        return other, start + 2
    # Python would read on at the second byte of an unknown pair, and misread all pairs after it.
    is_pair = error.encoding in _OF_PAIRS and len(pair) == 2 and pair[0] not in _SINGLE and pair[1] >= 0x80
    return REPLACED, start + 2 if is_pair else error.end


codecs.register_error(_HANDLER, _replacement)
