"""The language of a document, by py3langid (Lui and Baldwin 2012, *langid.py*; Barbaresi's fork)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError, did_you_mean
from jax_diversity.preparation.base import Candidate, Measured, Rules, at_least


def language(*, languages: str = "", probability: float = 0.65, characters: int = 4000) -> Rules:
    """Keeps documents whose most probable language has a probability of at least `probability`.

    With `languages`, such as `en de`, it must be one of these: the most probable of them counts. Documents get the
    fields `detected_language` and `language_probability`, and the language where they name none. The text's first
    `characters` characters are looked at. .65 is the threshold of RefinedWeb and FineWeb.
    """
    whole_number("characters", characters, 1)
    if find_spec("py3langid") is None:
        raise UserError("The step language needs the library py3langid; pip install 'jax-diversity[preparation]'.")
    wanted = languages.replace(",", " ").split()
    known = _identifier().labels if wanted else []
    for name in wanted:
        if name not in known:
            raise UserError(f"Expected languages among {', '.join(known)}, found {name!r}{did_you_mean(name, known)}")

    def rules(candidate: Candidate) -> Iterator[Measured]:
        text = candidate.text[:characters]
        if wanted:
            ranked = _identifier().rank(text)
            name, share = next(pair for pair in ranked if pair[0] in wanted)
        else:
            name, share = _identifier().classify(text)
        share = round(float(share), 4)
        candidate.scores |= {"detected_language": name, "language_probability": share}
        candidate.language = candidate.language or name
        yield at_least("probability", share, probability)

    return rules


def identity(**options: Any) -> str:
    """The library's version, which brings its model."""
    return version("py3langid")


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-not-found]

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
