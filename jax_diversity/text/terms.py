"""Text -> terms: the words that embeddings count and that names of clusters are made of.

Terms are lower-cased runs of at least two letters and digits, so that `snake_case` is two terms. Scripts that put
no spaces between words (Chinese, Japanese, Thai, Lao, Burmese, Khmer) give single characters and pairs of
neighbours instead.
"""

from __future__ import annotations

import re
from itertools import islice
from operator import add

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
"""Characters of scripts without spaces, for the class of a regular expression."""
MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0963\u0966-\u0dff"
    "\u0f71-\u0f84\u0f8d-\u0fbc\u200c\u200d"
)
r"""Combining marks: words of Indic, Arabic, Hebrew and Tibetan scripts contain them, but `\w` does not match them."""
_RUN = re.compile(f"[{UNSPACED}]+")
_WORD = re.compile(f"[\\w{MARKS}]{{2,}}")
_WORD_OR_CHARACTER = re.compile(f"[{UNSPACED}]|(?:[^\\W{UNSPACED}]|[{MARKS}]){{2,}}")


def split_terms(text: str, most: int | None = None) -> list[str]:
    """A text's terms, fewer than two a character: `get_user(明月)` gives get, user, 明, 月, 明月.

    With `most`, those of its first so many words; in a script without spaces a character is a word.
    """
    text = text.lower().replace("_", " ")
    # Most texts are ASCII, in which there is no script without spaces to search for.
    if text.isascii() or not (runs := _RUN.findall(text)):
        return _WORD.findall(text)[:most]
    if most is not None:  # terms of runs come after the others: the text is cut, not the list
        beyond = next(islice(_WORD_OR_CHARACTER.finditer(text), most, None), None)
        text = text if beyond is None else text[: beyond.start()]
        runs = _RUN.findall(text)
    terms = _WORD.findall(_RUN.sub(" ", text))
    for run in runs:
        terms += run  # each character
        terms += map(add, run, run[1:])
    return terms
