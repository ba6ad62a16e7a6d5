"""A classifier that is trained on the user's good and bad texts.

It is a logistic regression on words and pairs of neighbouring words, which are hashed into a million features. GPT-3's
filter of the Common Crawl is of this kind (Brown et al. 2020, arXiv:2005.14165, appendix A). Skywork's filter is too:
it predicts whether Wikipedia would cite a page (Wei et al. 2023, arXiv:2310.19341).
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import nsmallest
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xxhash
from jaxtyping import Bool, Float32, Int32

from jax_diversity.foundation.artifacts import atomic_path, copy_file, file_hash, write_json
from jax_diversity.foundation.errors import UserError, in_one_line, quoted
from jax_diversity.foundation.text.words import plain_word, split_words
from jax_diversity.preparation.readers.named import find_named, hash_named, read_texts_of_files
from jax_diversity.preparation.steps.base import Candidate, LearningStep, Measured, at_least

MODEL = "quality.npz"
"""The file that `learn` writes; the option `model` reads it on another machine."""
_ABOUT = "quality.json"
_MOST_TEXTS = 100_000

_NUM_FEATURES = 2**20
_PAIR_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_FEWEST = 20
"""Minimum number of good texts, and of bad texts."""
_MOST_REMEMBERED = 2**20


@dataclass
class Quality(LearningStep):
    """Keeps documents that resemble your texts in the files `good` more than your texts in `bad`.

    The metadata field `field` gets the probability that the text is good; good and bad texts are assumed to be equally
    frequent. Documents below `least` are removed. With `pareto`, such as 9 in GPT-3, `least` is not used: a document is
    kept if a draw from this Pareto distribution exceeds 1 - probability. So some documents with a low probability stay.
    The draw depends only on the document's id. `model` is a file that was learned before; it replaces `good` and `bad`.
    At most 100,000 texts of each kind are learned; they are chosen by a hash.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "pareto": "too unlike your good texts, by a draw",
        "probability": "too unlike your good texts",
    }
    kept_files: ClassVar[tuple[str, ...]] = (MODEL, _ABOUT)
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    model: str = ""
    least: float = 0.5
    pareto: float = 0.0
    field: str = "quality"

    def __post_init__(self) -> None:
        if [bool(self.model), bool(self.good), bool(self.bad)] not in ([True, False, False], [False, True, True]):
            raise UserError(
                "Expected the options 'good' and 'bad' of the step quality, or 'model' alone, found "
                f"good {quoted(list(self.good))}, bad {quoted(list(self.bad))} and model {quoted(self.model)}."
            )
        if not self.field.isidentifier():
            raise UserError(f"Expected the option 'field' to be a name such as toxicity, found {quoted(self.field)}.")
        if not (self.pareto >= 0 and math.isfinite(self.pareto)):
            raise UserError(f"Expected the option 'pareto' to be a number >= 0, found {self.pareto}.")
        if self.model:
            _Classifier.load(Path(self.model).expanduser())
        else:
            find_named("good", self.good)
            find_named("bad", self.bad)

    def identity(self) -> list[list[str]]:
        """Return the hashes of the files."""
        if self.model:
            return [[file_hash(Path(self.model).expanduser())]]
        return [hash_named("good", self.good), hash_named("bad", self.bad)]

    def learn(self, folder: Path) -> None:
        """Train the classifier on four fifths of the texts, measure it on the other texts, and write it.

        `quality.json` contains the numbers of texts and the accuracy on the held-out texts. The accuracy is the mean of
        two shares: the share of good texts and the share of bad texts that are classified correctly. With at least two
        files of each kind, it also contains `auc_on_other_files`, as in `_auc_on_other_files`.

        Raises:
            UserError: there are too few texts, or the classifier is hardly better than chance.
        """
        if self.model:
            copy_file(Path(self.model).expanduser(), folder / MODEL)
            return
        texts = {"good": _distinct("good", self.good), "bad": _distinct("bad", self.bad)}
        in_both = texts["good"].keys() & texts["bad"].keys()
        for name, texts_of_class in texts.items():
            if len(texts_of_class.keys() - in_both) < _FEWEST:
                also = f", and {len(in_both)} that are both good and bad" if in_both else ""
                raise UserError(
                    f"Expected at least {_FEWEST} different texts in the files of the option {name!r}, found "
                    f"{len(texts_of_class.keys() - in_both)}{also}; a good classifier needs some thousands of "
                    "each kind."
                )
        features, is_good, held_out, half = [], [], [], []
        for name, texts_of_class in texts.items():
            # In the order of the hashes, one of five texts is held out.
            for number, key in enumerate(sorted(texts_of_class.keys() - in_both)):
                file, text = texts_of_class[key]
                half.append(file % 2)
                features.append(_features(split_words(text)))
                is_good.append(name == "good")
                held_out.append(number % 5 == 0)
        matrix, used = _matrix(features)
        classifier, accuracy = _train(matrix, used, np.array(is_good), np.array(held_out))
        counts = {
            "good": len(texts["good"]) - len(in_both),
            "bad": len(texts["bad"]) - len(in_both),
            "both": len(in_both),
            "held_out": int(np.sum(held_out)),
            "accuracy": round(accuracy, 4),
        }
        if (auc := _auc_on_other_files(matrix, np.array(is_good), np.array(half))) is not None:
            counts["auc_on_other_files"] = round(auc, 4)
        if accuracy < 0.6:
            raise UserError(
                f"Expected good and bad texts that can be told apart, found {accuracy:.0%} of the held-out texts "
                f"classified correctly, half of them by chance ({counts['good']} good, {counts['bad']} bad); give more "
                "texts, or others."
            )
        classifier.save(folder / MODEL)
        write_json(folder / _ABOUT, counts)

    def load_learned(self, folder: Path) -> None:
        """Read the classifier."""
        self._classifier = _Classifier.load(folder / MODEL)

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Compute the probability."""
        candidate.scores[self.field] = probability = self._classifier.probability(candidate.words)
        if self.pareto:
            yield at_least("pareto", pareto_draw(candidate.document.id, self.pareto), 1 - probability)
        else:
            yield at_least("probability", probability, self.least)


def pareto_draw(id: str, shape: float) -> float:
    """Return a draw from the Lomax distribution (as `numpy.random.pareto`), computed from a hash of an id."""
    uniform = (xxhash.xxh3_64_intdigest(id.encode("utf-8", "surrogatepass"), seed=1) + 1) / 2.0**64
    return uniform ** (-1 / shape) - 1


def _distinct(option: str, patterns: Sequence[str]) -> dict[int, tuple[int, str]]:
    """Return hash -> (number of the file, text), without repeated texts: the texts with the smallest hashes."""
    texts = read_texts_of_files(option, patterns)
    hashes = ((xxhash.xxh3_64_intdigest(text.encode()), (file, text)) for file, text in texts)
    return dict(nsmallest(_MOST_TEXTS, hashes))


def _matrix(features: Sequence[Int32[np.ndarray, "_"]]) -> tuple[Any, Bool[np.ndarray, " feature"]]:
    """Return the values of the used features (text, used feature), sparse, and which features are used."""
    from scipy.sparse import csr_array

    lengths = np.array(list(map(len, features)))
    places = np.concatenate(features)
    used = np.bincount(places, minlength=_NUM_FEATURES) > 0  # features that occur in no text have weight 0
    columns = (np.cumsum(used, dtype=np.int32) - 1)[places]
    values = np.repeat((1 / np.sqrt(np.maximum(lengths, 1))).astype(np.float32), lengths)
    return csr_array((values, columns, np.concatenate([[0], np.cumsum(lengths)])), (len(features), used.sum())), used


def _auc_on_other_files(matrix: Any, is_good: Any, half: Any) -> float | None:
    """Train on one half of the files, compare the scores of the other half, and exchange the halves.

    Returns:
        The probability that a good text has a higher score than a bad text, the mean of both ways; None if a half has
        no file of one kind.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    if len({*zip(is_good.tolist(), half.tolist(), strict=True)}) < 4:
        return None
    scores = []
    for tested in (0, 1):
        learned = half != tested
        fitted = LogisticRegression(C=10, class_weight="balanced", max_iter=1000).fit(matrix[learned], is_good[learned])
        scores.append(roc_auc_score(is_good[~learned], fitted.decision_function(matrix[~learned])))
    return float(np.mean(scores))


def _train(matrix: Any, used: Bool[np.ndarray, " feature"], is_good: Any, held_out: Any) -> tuple[_Classifier, float]:
    """Train a classifier. Return it and its accuracy on the held-out texts."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=10, class_weight="balanced", max_iter=1000).fit(matrix[~held_out], is_good[~held_out])
    scores = fitted.decision_function(matrix[held_out])
    # The probabilities of learned texts are too close to 0 or 1. We calibrate with the held-out texts (Platt 1999).
    truth = is_good[held_out]
    calibrated = LogisticRegression(class_weight="balanced").fit(scores[:, None], truth)
    right = calibrated.predict(scores[:, None]) == truth
    accuracy = (right[truth].mean() + right[~truth].mean()) / 2
    factor = float(calibrated.coef_[0, 0])
    weights = np.zeros(_NUM_FEATURES, np.float32)
    weights[used] = fitted.coef_[0] * factor
    offset = float(fitted.intercept_[0]) * factor + float(calibrated.intercept_[0])
    return _Classifier(weights, offset), float(accuracy)


class _Classifier:
    """The weights of the features."""

    def __init__(self, weights: Float32[np.ndarray, " feature"], offset: float) -> None:
        self._weights, self._offset = weights, offset

    def probability(self, words: list[str]) -> float:
        """Return the probability that a text is good."""
        features = _features(words)
        score = self._offset + float(self._weights[features].sum(dtype=np.float64)) / math.sqrt(max(len(features), 1))
        return round(1 / (1 + math.exp(-max(min(score, 50), -50))), 4)

    def save(self, path: Path) -> None:
        """Write the weights as NumPy arrays."""
        features = np.flatnonzero(self._weights).astype(np.int32)
        with atomic_path(path) as partial, partial.open("wb") as file:
            np.savez_compressed(
                file,
                features=features,
                weights=self._weights[features],
                offset=np.float64(self._offset),
            )

    @classmethod
    def load(cls, path: Path) -> _Classifier:
        """Read a saved classifier. Any other file is a `UserError`."""
        try:
            with np.load(path, allow_pickle=False) as file:
                weights = np.zeros(_NUM_FEATURES, np.float32)
                weights[file["features"]] = file["weights"].astype(np.float32)
                return cls(weights, float(file["offset"]))
        except (OSError, ValueError, LookupError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise UserError(
                f"Expected a model that the step quality has learned ({MODEL}) at {path}, found: {in_one_line(error)}."
            ) from None


def _features(words: list[str]) -> Int32[np.ndarray, " feature"]:
    """Return the different features of a text: its words and pairs of neighbouring words."""
    hashes = _hashes()
    if len(hashes) > _MOST_REMEMBERED:
        hashes.clear()
    values = np.fromiter(map(hashes.__getitem__, words), np.uint64, len(words))
    pairs = (values[:-1] ^ (values[1:] * _PAIR_FACTOR)) * _PAIR_FACTOR
    features = np.concatenate([values, pairs]) >> np.uint64(64 - (_NUM_FEATURES - 1).bit_length())
    return np.unique(features.astype(np.int32))


class _Hashes(dict[str, int]):
    """Word -> hash of its plain form, computed once."""

    def __missing__(self, word: str) -> int:
        self[word] = value = xxhash.xxh3_64_intdigest(plain_word(word).encode(errors="surrogatepass"))
        return value


@cache
def _hashes() -> _Hashes:
    return _Hashes()
