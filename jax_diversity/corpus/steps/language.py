"""The language of a document, by py3langid (Lui and Baldwin 2012, *langid.py*; Barbaresi's fork) or by fastText."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_least
from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError, did_you_mean
from jax_diversity.foundation.libraries import optional


def language(*, languages: str = "", probability: float = 0.65, characters: int = 4000, model: str = "") -> Rules:
    """Keeps documents whose most probable language has a probability of at least `probability`.

    With `languages`, such as `en de`, it must be one of these: the most probable of them counts. Documents get the
    fields `detected_language` and `language_probability`, and the language where they name none. The text's first
    `characters` characters are looked at. .65 is the threshold of RefinedWeb and FineWeb. `model` is a file of
    fastText, such as lid.176.bin, that tells languages in place of py3langid.
    """
    whole_number("characters", characters, 1)
    wanted = languages.replace(",", " ").split()
    ranked, known = _by_fasttext(model, len(wanted)) if model else _by_langid(bool(wanted))
    for name in wanted:
        if name not in known:
            raise UserError(f"Expected languages among {', '.join(known)}, found {name!r}{did_you_mean(name, known)}")

    def rules(candidate: Candidate) -> Iterator[Measured]:
        found = ranked(candidate.text[:characters])
        name, share = next(((name, share) for name, share in found if not wanted or name in wanted), (None, 0))
        share = round(float(share), 4)
        candidate.scores |= {"detected_language": name, "language_probability": share}
        candidate.language = candidate.language or name
        yield at_least("probability", share, probability)

    return rules


def identity(*, model: str = "", **options: Any) -> str:
    """The hash of the model's file, or the library's version, which brings its model."""
    return file_hash(Path(model).expanduser()) if model else version("py3langid")


Ranked = Callable[[str], Sequence[tuple[str, float]]]
"""The languages of a text with their probabilities, the most probable one first."""


def _by_fasttext(path: str, num_wanted: int) -> tuple[Ranked, list[str]]:
    from jax_diversity.corpus.steps.fasttext_model import fasttext_model

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
