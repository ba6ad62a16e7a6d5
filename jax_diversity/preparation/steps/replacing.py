"""Find and replace spans of a text; all kinds of personal data use these functions.

Searches use a plain copy of the text. In this copy, spaces, dashes, digits and full-width characters of any script are
ASCII. Invisible characters such as soft hyphens are removed. References of HTML (`&#64;`) and
escapes of JSON (`\\"`, `\\u0040`), of URLs (`%40`) and of mails (`=40`) become the characters that they mean. The found
spans are mapped back to the original text.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from itertools import chain
from typing import NamedTuple

from jax_diversity.preparation.steps.base import Span

Find = Callable[[str], Iterable[Span]]
"""A function: text -> the spans of one kind, in their order."""


def by_pattern(pattern: re.Pattern, is_one: Callable[[re.Match], bool] | None = None) -> Find:
    """Make a search for the matches of a pattern, or for their group `value`.

    Args:
        pattern: the regular expression.
        is_one: a further check of a match, such as a checksum.
    """
    group = "value" if "value" in pattern.groupindex else 0
    if is_one is None:
        return lambda text: (match.span(group) for match in pattern.finditer(text))
    return lambda text: (match.span(group) for match in pattern.finditer(text) if is_one(match))


def holding(may_match: Callable[[str], object], find: Find) -> Find:
    """Make a search that reads only the texts that pass the fast check `may_match`."""
    return lambda text: find(text) if may_match(text) else ()


_SEVEN_DIGITS = re.compile(r"\d(?:[ ()./+-]{0,18}\d){6}")


@lru_cache(maxsize=2)
def has_long_number(text: str) -> bool:
    """Return whether there are seven digits with only spaces, brackets and marks of numbers between them.

    Few texts have such a number, and many searches ask for it: the answers for a text and for its copy with joined
    lines are cached.
    """
    return _SEVEN_DIGITS.search(text) is not None


def before(match: re.Match, characters: int) -> str:
    """Return the text directly before a match, at most `characters` characters."""
    return match.string[max(match.start() - characters, 0) : match.start()]


def replaced(text: str, find: Find, placeholder: str | Callable[[str], str]) -> tuple[str, int]:
    """Replace every found span with a placeholder; return the new text and the number of spans.

    Args:
        text: the text.
        find: the search for one kind of personal data.
        placeholder: a text, or a function from the found characters to the placeholder.

    Example:
        >>> replaced("call 911 or 112", by_pattern(re.compile(r"\\d+")), "<number>")
        ('call <number> or <number>', 2)
    """
    parts, end, number = [], 0, 0
    for start, stop in find(text):
        parts += [text[end:start], placeholder if isinstance(placeholder, str) else placeholder(text[start:stop])]
        end, number = stop, number + 1
    return ("".join([*parts, text[end:]]), number) if number else (text, 0)


# ---- Copies that are searched instead of the text.
class _Copy(NamedTuple):
    """An edited copy of a text. From `places[i]` on, a place in the copy plus `shifts[i]` is the place in the text."""

    text: str
    places: list[int]
    shifts: list[int]

    def spans(self, find: Find) -> Iterator[Span]:
        """Search the copy; return the found spans as spans of the original text."""
        return ((self._original(start), self._original(stop)) for start, stop in find(self.text))

    def _original(self, place: int) -> int:
        index = bisect_right(self.places, place)
        return place + self.shifts[index - 1] if index else place


def _edited(text: str, edits: Iterable[tuple[int, int, str]]) -> _Copy:
    """Make a copy with replaced spans. An edit is (begin, end, new characters); edits are in the order of the text."""
    parts, places, shifts = list[str](), list[int](), list[int]()
    end, length, shift = 0, 0, 0
    for start, stop, new in edits:
        parts += text[end:start], new
        length += start - end + len(new)
        shift += stop - start - len(new)
        places.append(length)
        shifts.append(shift)
        end = stop
    return _Copy("".join([*parts, text[end:]]), places, shifts)


_SPACES = "\u00a0\u2000-\u200a\u202f\u205f\u3000"
_DASHES = "\u2010-\u2013\u2212\ufe63\uff0d"
_INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe0e\ufe0f\ufeff"
_FULL_WIDTH = "".join(map(chr, chain((0xFF20, 0xFF0E, 0xFF0B, 0xFF08, 0xFF09, 0xFF3F, 0xFF0F), range(0xFF21, 0xFF3B))))
_FULL_WIDTH += _FULL_WIDTH[7:].lower()  # @ . + ( ) _ / and letters
_BEYOND = re.compile("[\U00010000-\U0010ffff]")
_ESCAPES = tuple(
    re.compile(pattern) for pattern in (r"&[#A-Za-z]", r"%[0-9A-Fa-f]{2}", r"\\[\"'/nrtux]", "<wbr", r"=(?:40|3[dD])")
)
"""Patterns that begin with one character, which are searched fast. Few texts have one of them."""
_HEX = "[0-9a-fA-F]"
_SHRINKING = re.compile(
    rf"[&<\\%+={_INVISIBLE}](?:(?<=&)(?:amp;){{0,3}}(?:#\d{{2,6}}|#[xX]{_HEX}{{2,5}}|[A-Za-z]{{2,20}});|(?<=<)wbr ?/?>"
    rf"|(?<=\\)\\{{0,7}}(?:[\"'/nrt]|u{_HEX}{{4}}|x{_HEX}{{2}})|(?<=%)(?:(?:25)?[0-7]{_HEX}|[89A-Fa-f]{_HEX}(?:%[89A-Fa-f]{_HEX})*)"
    # `+` is a space in a number of a URL. A mail's `=40` is followed by a domain.
    r"|(?<=\d\+)(?=\d)|(?<==)(?:40(?=[A-Za-z][\w=-]{0,60}(?:\.|=2[eE])[A-Za-z])|2[eE](?=[A-Za-z])|3[dD])|(?<=\w=)\n(?=\w)"
    rf"|(?<=[{_INVISIBLE}])[{_INVISIBLE}]*)"
)
_URL_PLUS = 25
"""The number of characters before a `+` in which a `%2B` makes it a space."""


def in_plain_copy(find: Find) -> Find:
    """Make a search of the plain copy of a text."""

    def find_plain(text: str) -> Iterable[Span]:
        copy = plain_copy(text)
        return copy.spans(find) if copy.places else find(copy.text)

    return find_plain


def in_text_and_copy(find: Find) -> Find:
    """Make a search of the text and of its plain copy; overlapping spans are joined.

    A secret may consist of characters that only look like an escape, so its characters in the text count too.
    """

    def find_both(text: str) -> Iterable[Span]:
        copy = plain_copy(text)
        if not copy.places:
            return find(copy.text)
        spans: list[Span] = []
        for start, stop in sorted((*find(text), *copy.spans(find))):
            if spans and start < spans[-1][1]:
                spans[-1] = (spans[-1][0], max(stop, spans[-1][1]))
            else:
                spans.append((start, stop))
        return spans

    return find_both


@lru_cache(maxsize=1)
def plain_copy(text: str) -> _Copy:
    """The plain copy of a text; cached because all kinds search it."""
    shrinks = any(escape.search(text) for escape in _ESCAPES)
    if not text.isascii():
        special, table = _one_to_one()
        if _BEYOND.search(text):
            text, shrinks = text.translate(table), True
        else:  # `translate` looks up every character that is not ASCII
            text, number = special.subn(lambda match: table.get(ord(match[0]), match[0]), text)
            shrinks = shrinks or number > 0
    return _edited(text, filter(None, map(_plain_edit, _SHRINKING.finditer(text)))) if shrinks else _Copy(text, [], [])


@cache
def _one_to_one() -> tuple[re.Pattern, dict[int, str]]:
    """Return a pattern of special 16-bit characters, and a table: special character -> its ASCII character."""
    digits = "".join(character for character in map(chr, range(128, 0x20000)) if character.isdecimal())
    table = {ord(digit): str(int(digit)) for digit in digits}
    table |= {ord(letter): chr(ord(letter) - 0xFEE0) for letter in _FULL_WIDTH}
    for characters, plain in ((_SPACES, " "), (_DASHES, "-")):
        table |= dict.fromkeys(map(ord, re.findall(f"[{characters}]", "".join(map(chr, range(0x10000))))), plain)
    # The search for a character class is fast only if all characters of the class have 16 bits.
    known = "".join(chr(code) for code in table if code < 0x10000)
    return re.compile(f"[{_INVISIBLE}{re.escape(known)}]"), table


_HIDDEN = re.compile(f"[{_INVISIBLE}]")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}


def _plain_edit(match: re.Match) -> tuple[int, int, str] | None:
    escape, start = match[0], match.start()
    if escape == "+":
        if "%2B" not in match.string[max(start - _URL_PLUS, 0) : start].upper():
            return None
        new = " "
    elif escape[0] in "&%\\=<":
        new = _resolved(escape)
        if new is None:
            return None
    else:
        # After a word in another script, an invisible character may separate two words: it becomes a space.
        new = "" if match.string[start - 1 : start].isascii() else " "
    return start, match.end(), new


@lru_cache(maxsize=1024)
def _resolved(reference: str) -> str | None:
    """Return the plain characters of a reference or an escape; None if they are not one character."""
    if reference[0] == "&":
        new = html.unescape("&" + reference[1:].replace("amp;", "") if reference != "&amp;" else reference)
        if len(new) > 1:
            return None
    elif reference[0] == "%":
        # `%2540` is `%40` in the address of an address.
        escape = reference[3:] if len(reference) == 5 and reference[:3] == "%25" else reference
        new = bytes.fromhex(escape.replace("%", "")).decode("utf-8", "replace")
    elif reference[0] == "\\":
        escape = reference.lstrip("\\")
        new = _CONTROLS.get(escape, escape) if len(escape) == 1 else chr(int(escape[1:], 16))
    elif reference[0] == "=" and len(reference) == 3:
        new = chr(int(reference[1:], 16))
    else:  # the end of a line of a mail, or a place where a page may break a word
        new = ""
    return "" if _HIDDEN.match(new) else new.translate(_one_to_one()[1])


def across_lines(find: Find) -> Find:
    """Make a search that also finds numbers with line breaks: one line break, or only line breaks between the groups.

    Such a number is left out if it overlaps a number that is found without joining lines.
    """

    def find_both(text: str) -> Iterable[Span]:
        joined = _joined(text)
        if not joined.places:
            return find(text)
        spans = [*find(text)]
        for start, stop in joined.spans(find):
            is_new = all(stop <= other or other_stop <= start for other, other_stop in spans)
            part = text[start:stop]
            if is_new and (part.count("\n") == 1 or ("\n" in part and not _SEPARATED.search(part))):
                spans.append((start, stop))
        return sorted(spans)

    return find_both


_LINE_BREAK = re.compile(r"\n(?<=[\dA-Z) \r-].)[ \t]{0,8}(?=\d)", re.DOTALL)
_LAST_GROUPS, _FIRST_GROUPS = re.compile(r"[\dA-Z+][\dA-Z ()\r\n-]*\Z"), re.compile(r"[\dA-Z ()\r\n-]{1,30}")
_SEPARATED = re.compile(r"(?<!\+\d)(?<!\+\d\d)(?<!\+\d\d\d)[ -](?=[\dA-Z])")
"""A separator between groups on one line, except after the code of a country."""
_LONGEST_NUMBER, _LEAST_CHARACTERS = 40, 8
_ROWS = re.compile(r"(?:[ .,:;|()\t-]*+[\dA-Fa-f]++[ .,:;|()\t-]++[\dA-Fa-f][\dA-Fa-f .,:;|()\t\r-]*+(?:\n|\Z)){3}")
"""Three lines of several numbers, as in a table."""


@lru_cache(maxsize=1)
def _joined(text: str) -> _Copy:
    """A copy without line breaks between groups of digits; cached because many kinds search it."""
    return _edited(text, filter(None, map(_joint, _LINE_BREAK.finditer(text))))


def _joint(match: re.Match) -> tuple[int, int, str] | None:
    text, start = match.string, match.start()
    ahead = _LAST_GROUPS.search(text, max(start - _LONGEST_NUMBER, 0), start)
    behind = _FIRST_GROUPS.match(text, match.end())
    if not ahead or not behind or sum(map(str.isalnum, ahead[0] + behind[0])) < _LEAST_CHARACTERS:
        return None
    line = text.rfind("\n", 0, start) + 1
    if any(_ROWS.match(text, first) for first in (line, text.rfind("\n", 0, max(line - 1, 0)) + 1)):
        return None
    number = ahead[0].rstrip("\r\n")
    return start - len(ahead[0]) + len(number), match.end(), "" if number[-1] in " -" else " "
