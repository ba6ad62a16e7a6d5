"""Text -> terms: the words that embeddings count, and that names of clusters consist of.

Terms are lower-cased runs of at least two letters and digits; `snake_case` is two terms. Scripts without spaces between
words (Chinese, Japanese, Thai, Lao, Burmese, Khmer) give single characters and pairs of neighbours.
"""

from __future__ import annotations

import re
from itertools import islice
from operator import add

from jax_diversity.text.scripts import MARKS, UNSPACED

_RUN = re.compile(f"[{UNSPACED}]+")
_WORD = re.compile(f"[\\w{MARKS}]{{2,}}")
_WORD_OR_CHARACTER = re.compile(f"[{UNSPACED}]|(?:[^\\W{UNSPACED}]|[{MARKS}]){{2,}}")


def split_terms(text: str, most: int | None = None) -> list[str]:
    """A text's terms, fewer than two a character: `get_user(明月)` gives get, user, 明, 月, 明月.

    With `most`, only the terms of the first `most` words; in a script without spaces a character is a word.
    """
    text = text.lower().replace("_", " ")
    # Most texts are ASCII, in which there is no script without spaces to search for.
    if text.isascii() or not (runs := _RUN.findall(text)):
        return _WORD.findall(text)[:most]
    if most is not None:  # the list ends with the terms of runs, so that the text is cut, not the list
        beyond = next(islice(_WORD_OR_CHARACTER.finditer(text), most, None), None)
        text = text if beyond is None else text[: beyond.start()]
        runs = _RUN.findall(text)
    terms = _WORD.findall(_RUN.sub(" ", text))
    for run in runs:
        terms += run  # each character
        terms += map(add, run, run[1:])
    return terms
