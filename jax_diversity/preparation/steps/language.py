"""Detect a document's language, with py3langid (Lui and Baldwin 2012, *langid.py*; Barbaresi's fork) or fastText."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.errors import UserError, did_you_mean
from jax_diversity.foundation.libraries import optional
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_least

_CHARACTERS = 4000
"""Number of characters at the start of a text that are read."""


UNKNOWN = "unknown"
"""The value of `detected_language` for a text with fewer than three words."""
_LEAST_WORDS, _MOST_CHARACTERS = 3, 100
"""The words of a text with more characters are not counted. The probabilities of one or two words mean little."""


@dataclass
class Language(Step):
    """Keeps documents whose most probable language has a probability of at least `probability`.

    With `languages`, such as `[en, de]`, this language must be one of these. Documents get the fields
    `detected_language` and `language_probability`. If a document has no language, the detected language is set. Only
    the first 4,000 characters are read. The language of one or two words is `unknown`, with a probability of 0.
    RefinedWeb and FineWeb use the threshold .65, too. `model` is a file of fastText, such as lid.176.bin, which is then
    used instead of py3langid (`pip install fasttext-predict`); a damaged file is an error before documents are read.

    py3langid knows 140 languages. It detects Tigrinya as `am` (Amharic) and Kirundi as `rw` (Kinyarwanda), with a
    probability of nearly 1. Sentences in Croatian, Bosnian, Serbian, Indonesian and Malay often have no language above
    .65: use a lower threshold for them.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "probability": "language uncertain, or not a wanted one",
        "languages": "not a wanted language",
    }
    languages: tuple[str, ...] = ()
    probability: float = 0.65
    model: str = ""

    def __post_init__(self) -> None:
        by = _by_fasttext(self.model, len(self.languages)) if self.model else _by_langid(bool(self.languages))
        self._ranked, supported = by
        for name in self.languages:
            if name not in supported:
                near = did_you_mean(name, supported)
                raise UserError(f"Expected languages among {', '.join(supported)}, found {name!r}{near}")

    def identity(self) -> str:
        """Return the hash of the model's file, or the version of py3langid, which contains its model."""
        return file_hash(Path(self.model).expanduser()) if self.model else version("py3langid")

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Detect the language."""
        text, least, languages = candidate.text, self.probability, self.languages
        is_short = len(text) <= _MOST_CHARACTERS and len(candidate.proper_words) < _LEAST_WORDS
        ranked = [] if is_short else self._ranked(text[:_CHARACTERS])
        best = next(((name, share) for name, share in ranked if not languages or name in languages), (None, 0.0))
        # With a threshold below .5, the most probable of the wanted languages may be the second of all languages.
        name, share = best if ranked and best[1] >= least else ranked[0] if ranked else (None, 0.0)
        share = round(float(share), 4)
        candidate.scores |= {"detected_language": name or UNKNOWN, "language_probability": share}
        candidate.language = candidate.language or name
        yield at_least("probability", share, least)
        if languages:
            yield at_least("languages", round(float(best[1]), 4), least)


Ranked = Callable[[str], Sequence[tuple[str, float]]]
"""Text -> languages with their probabilities, the most probable language first."""


def _by_fasttext(path: str, num_wanted: int) -> tuple[Ranked, list[str]]:
    from jax_diversity.preparation.steps.fasttext_model import fasttext_model

    model = fasttext_model(path)
    return lambda text: model.ranked(text, len(model.labels) if num_wanted else 1), model.labels


def _by_langid(is_ranked: bool) -> tuple[Ranked, list[str]]:
    optional("py3langid", "preparation")
    if is_ranked:
        return _identifier().rank, _identifier().labels
    return lambda text: [_identifier().classify(text)], []


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-not-found]

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
