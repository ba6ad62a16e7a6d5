"""Language models of KenLM (Heafield 2011), such as CCNet's: `en.arpa.bin`, with the SentencePiece model `en.sp.model`.

Texts are normalised as in CCNet's code (`text_normalizer.normalize`), and a document is one row of pieces.
"""

from __future__ import annotations

import math
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.libraries import optional
from jax_diversity.foundation.text.normal_forms import normal_form

# ruff: noqa: RUF001 (marks of other scripts that look like ASCII)
LARGEST = 1e300
"""The largest perplexity of a text."""
_DIGIT = re.compile(r"\d")
_ASCII_MARKS = str.maketrans(
    {
        **dict(zip("，。、「」《》∶：？！（）；～〈〉【】％", ',.,""""::?!();~<>[]%', strict=True)),
        **dict.fromkeys("„”“«»", '"'),
        **dict.fromkeys("´’", "'"),
        **{"–": "-", "—": " - ", "．": ". ", "…": "...", "━": "-", "►": "-"},
        **dict.fromkeys(map(chr, (*range(32), *range(127, 160))), ""),
    }
)
"""The table of CCNet. It also removes control characters and line ends."""


def normalised(text: str) -> str:
    """Return a text in lower case, without accents and control characters, with 0 for digits and ASCII marks.

    Example:
        >>> normalised("Zoë\\n paid 3.50…")
        'zoe paid 0.00...'
    """
    lower = normal_form("NFD", text.strip().lower())
    if not lower.isascii():
        lower = "".join(character for character in lower if unicodedata.category(character) != "Mn")
    return _DIGIT.sub("0", lower).translate(_ASCII_MARKS)


class KenlmModel:
    """A loaded language model of KenLM.

    Args:
        model: a file of KenLM, binary or ARPA.
        pieces: a SentencePiece model that divides texts; empty for a model of the words between spaces.

    Raises:
        UserError: a library is missing, or a file is not such a model.
    """

    def __init__(self, model: str, pieces: str) -> None:
        kenlm = optional("kenlm", None)
        settings = kenlm.Config()
        # Otherwise every process draws a progress bar while it reads an ARPA file.
        settings.show_progress, settings.arpa_complain = False, kenlm.ARPALoadComplain.NONE
        self._model: Any = _loaded(
            "model", model, "a model of KenLM (binary or ARPA)", lambda path: kenlm.Model(path, settings)
        )
        self._pieces: Any = None
        if pieces:
            make = optional("sentencepiece", "sentencepiece").SentencePieceProcessor
            self._pieces = _loaded("pieces", pieces, "a SentencePiece model", lambda path: make(model_file=path))

    def perplexity(self, text: str) -> float:
        """Return 10 to the power of the mean negative log10-probability of a piece; the end of the text is a piece."""
        line = normalised(text).encode(errors="replace").decode()  # UTF-8 cannot encode a lone surrogate
        if self._pieces is not None:
            line = " ".join(self._pieces.encode(line, out_type=str))
        mean = self._model.score(line) / (len(line.split()) + 1)
        return 10 ** min(-mean, math.log10(LARGEST))


@cache
def kenlm_model(model: str, pieces: str) -> KenlmModel:
    """Load a model; each process loads its files only once."""
    return KenlmModel(model, pieces)


def _loaded(option: str, path: str, what: str, load: Any) -> Any:
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"Expected the option {option!r} to name {what}, found no file at {path}.")
    try:
        return load(str(file))
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"Expected {what} at {path}, found: {in_one_line(error)}.") from None
