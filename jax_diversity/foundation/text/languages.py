"""Names of languages, and the language that follows from a script."""

from __future__ import annotations

import re
from functools import lru_cache

from jax_diversity.foundation.text.scripts import UNSPACED

_PAIRS = """
ara:ar arb:ar bul:bg ben:bn cat:ca ces:cs dan:da deu:de ell:el eng:en spa:es fas:fa pes:fa fin:fi fra:fr heb:he hin:hi
hrv:hr hun:hu ind:id ita:it jpn:ja khm:km lao:lo mya:my nld:nl pol:pl por:pt ron:ro rus:ru slv:sl swe:sv tha:th tur:tr
ukr:uk cmn:zh zho:zh
"""
_TWO_LETTERS: dict[str, str] = {pair[:3]: pair[4:] for pair in _PAIRS.split()}
_BY_SCRIPT = (
    ("ja", "\u3040-\u30ff"), ("th", "\u0e00-\u0e7f"), ("lo", "\u0e80-\u0eff"), ("my", "\u1000-\u109f"),
    ("km", "\u1780-\u17ff"), ("zh", UNSPACED),
)  # fmt: skip


@lru_cache(maxsize=1024)
def main_language(language: str | None) -> str:
    """Return the part of a language's name that names the language, if possible in two letters.

    Example:
        >>> main_language("pt-BR"), main_language("zho_Hans"), main_language(None)
        ('pt', 'zh', '')
    """
    first = re.split("[-_]", (language or "").lower(), maxsplit=1)[0]
    return _TWO_LETTERS.get(first, first)


def language_of_script(text: str) -> str:
    """Return the language of a text in a script without spaces; Chinese if there are only Chinese characters.

    Example:
        >>> language_of_script("これは本です"), language_of_script("这是书")
        ('ja', 'zh')
    """
    return next((language for language, script in _BY_SCRIPT if re.search(f"[{script}]", text)), "")
