"""Split a text into terms: embeddings count these words, and names of clusters consist of them.

A term is a lower-case run of at least two letters and digits; `snake_case` is two terms. In scripts without spaces
between words (Chinese, Japanese, Thai, Lao, Burmese, Khmer), the terms are single characters and pairs of neighbours.
"""

from __future__ import annotations

import re
from itertools import islice
from operator import add

from jax_diversity.foundation.text.scripts import MARKS, UNSPACED

_RUN = re.compile(f"[{UNSPACED}]+")
_WORD = re.compile(f"[\\w{MARKS}]{{2,}}")
_WORD_OR_CHARACTER = re.compile(f"[{UNSPACED}]|(?:[^\\W{UNSPACED}]|[{MARKS}]){{2,}}")


def split_terms(text: str, most: int | None = None) -> list[str]:
    """Return the terms of a text, fewer than two per character: `get_user(明月)` gives get, user, 明, 月, 明月.

    With `most`, only the first `most` words are read; in a script without spaces, a character is a word.
    """
    text = text.lower().replace("_", " ")
    # Most texts are ASCII: they contain no script without spaces, and need no search for one.
    if text.isascii() or not (runs := _RUN.findall(text)):
        return _WORD.findall(text)[:most]
    if most is not None:  # cut the text, not the list: the list would end with the terms of runs
        beyond = next(islice(_WORD_OR_CHARACTER.finditer(text), most, None), None)
        text = text if beyond is None else text[: beyond.start()]
        runs = _RUN.findall(text)
    terms = _WORD.findall(_RUN.sub(" ", text))
    for run in runs:
        terms += run  # each character
        terms += map(add, run, run[1:])
    return terms
