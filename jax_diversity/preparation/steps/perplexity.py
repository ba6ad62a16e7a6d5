"""Measure the perplexity of documents under a language model of the user's own texts (CCNet; Wenzek et al. 2020, LREC).

The model predicts words, which the chain has already split. Its vocabulary is open: words that occur once in the
reference become one token for all unknown words. The probability of an unknown word is the probability of this token
times the probability of the word's spelling, from a second model of the characters of words. Therefore no word is
impossible, and a long invented word has a lower probability than a short one. A text of unknown words is improbable;
with the token alone it would seem probable. In scripts without spaces every character is a word.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import file_hash, read_json, write_json
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.text.words import plain_word, split_words
from jax_diversity.preparation.passes.notes import Notes
from jax_diversity.preparation.readers.named import find_named, hash_named, read_texts
from jax_diversity.preparation.steps.base import Candidate, LearningStep, Measured, Survey, at_least, at_most
from jax_diversity.preparation.steps.kenlm_model import LARGEST, kenlm_model
from jax_diversity.preparation.steps.kneser_ney import BEGIN, END, NgramModel, train

_UNKNOWN = 2
"""The token of unknown symbols; the tokens of the vocabulary follow it."""
_NUM_CHARACTERS = sys.maxunicode + 1
_THIRDS = ("head", "middle", "tail")
_ORDER = 5
_REFERENCE_WORDS = 10_000_000
_MOST_REMEMBERED = 2**20
_MOST_SPELLED = 20
"""An unknown word is read up to this number of characters; otherwise one web address could outweigh a paragraph."""


@dataclass
class Perplexity(LearningStep, Survey):
    """Keeps documents with a perplexity from `least` to `most` under a model of n-grams of the files `reference`.

    The perplexity is e to the power of the mean negative log-probability of a word. It becomes the field `perplexity`.
    The model learns the first ten million words of the reference, in n-grams of at most five words. With `languages`,
    such as `[en, de]`, documents of other languages pass and are not measured. `thirds`, such as `[head, middle]`,
    compares all documents of a language and keeps these thirds: the head has the lowest perplexities, the middle has
    higher ones, and the tail has the highest. The name of a document's third becomes the field `perplexity_third`.

    `model` is a file of KenLM that replaces `reference`, such as CCNet's en.arpa.bin, with `pieces`, the SentencePiece
    model en.sp.model; without `pieces` it is a model of words (`pip install kenlm sentencepiece`). Texts are then
    normalised as in CCNet, and the perplexity is computed per piece, as in CCNet.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "least": "perplexity too low",
        "most": "perplexity too high",
        "head": "in the third with the lowest perplexity",
        "middle": "in the middle third of the perplexities",
        "tail": "in the third with the highest perplexity",
    }
    reference: tuple[str, ...] = ()
    model: str = ""
    pieces: str = ""
    languages: tuple[str, ...] = ()
    least: float = 0.0
    most: float = 1e300
    thirds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not set(self.thirds) <= set(_THIRDS):
            raise UserError(
                f"Expected the option 'thirds' to list some of {', '.join(_THIRDS)}, found {', '.join(self.thirds)}."
            )
        if bool(self.reference) == bool(self.model) or (self.pieces and not self.model):
            values = f"{quoted(list(self.reference))}, {quoted(self.model)} and {quoted(self.pieces)}"
            raise UserError(
                "Expected the step perplexity to have the option 'reference', or 'model' with 'pieces', found "
                f"reference, model and pieces {values}."
            )
        if self.model:
            self._kenlm = kenlm_model(self.model, self.pieces)
        else:
            find_named("reference", self.reference)

    @property
    def compares_documents(self) -> bool:
        """Whether a first pass measures all documents: thirds need the perplexities of all documents."""
        return bool(self.thirds)

    def identity(self) -> list[str]:
        """The hashes of the files."""
        if self.model:
            return [file_hash(Path(path).expanduser()) for path in (self.model, self.pieces) if path]
        return hash_named("reference", self.reference)

    def learn(self, folder: Path) -> None:
        """Train the models of words and of their spelling.

        Raises:
            UserError: the reference contains no word.
        """
        if self.model:
            return
        numbers = _Numbers()
        texts, num_words = [], 0
        for text in read_texts("reference", self.reference):
            words = list(map(plain_word, split_words(text)))[: _REFERENCE_WORDS - num_words]
            texts.append(numbers.of(words))
            num_words += len(words)
            if num_words == _REFERENCE_WORDS:
                break
        if not num_words:
            files = ", ".join(self.reference)
            raise UserError(f"Expected words in the files of the option 'reference', found no word in {files}.")
        _learn(folder, "words", texts, numbers)
        # The spelling model is trained on every different word once. Most unknown words are rare, and their spelling is
        # like the spelling of other rare words; frequent words have an unusual spelling.
        characters = _Numbers()
        _learn(folder, "spelling", [characters.of(word[:_MOST_SPELLED]) for word in numbers], characters)

    def load_learned(self, folder: Path) -> None:
        """Load the trained models."""
        if not self.model:
            self._model = _LanguageModel(folder)

    def note(self, candidate: Candidate) -> bytes:
        """The perplexity as 8 bytes; empty if the document is not measured."""
        value = self._measure(candidate)
        return b"" if value is None else struct.pack("<d", value)

    def resolve(self, notes: Notes, folder: Path) -> None:
        """Write the bounds of every language: the largest perplexity of the head and of the middle."""
        by_language: dict[str, list[float]] = {}
        for document, value in zip(notes.noted.tolist(), notes.data.view("<f8").tolist(), strict=True):
            if self.least <= value <= self.most:
                by_language.setdefault(notes.languages[document] or "", []).append(value)
        bounds = {
            language: [losses[-(-len(losses) * share // 3) - 1] for share in (1, 2)]
            for language, losses in ((language, sorted(losses)) for language, losses in by_language.items())
        }
        write_json(folder / "bounds.json", bounds)

    def load_resolved(self, folder: Path) -> None:
        """Load the bounds of the thirds."""
        self._bounds = read_json(folder / "bounds.json", "prepare")

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Compare the perplexity with the bounds. If there are two passes, the first pass has measured it."""
        value = candidate.scores.get("perplexity") if self.thirds else self._measure(candidate)
        if value is None:
            return
        yield at_least("least", value, self.least)
        yield at_most("most", value, self.most)
        if self.thirds:
            upper = self._bounds[candidate.language or ""]
            place = sum(value > bound for bound in upper)
            candidate.scores["perplexity_third"] = third = _THIRDS[place]
            yield Measured(third, value, [0, *upper][place], third in self.thirds)

    def _measure(self, candidate: Candidate) -> float | None:
        """The perplexity, which becomes a field; None for a document of another language."""
        if self.languages and candidate.language not in self.languages:
            return None
        if self.model:
            value = self._kenlm.perplexity(candidate.text)
        else:
            mean = self._model.log_probability(candidate.words) / (len(candidate.words) + 1)
            value = math.exp(min(-mean, math.log(LARGEST)))
        candidate.scores["perplexity"] = value = round(value, 2)
        return value


class _Numbers(dict[str, int]):
    """Symbol (word or character) -> its number, in the order of first occurrence."""

    def __missing__(self, symbol: str) -> int:
        self[symbol] = number = len(self)
        return number

    def of(self, symbols: Sequence[str]) -> Int64[np.ndarray, " symbol"]:
        """The numbers of symbols."""
        return np.fromiter(map(self.__getitem__, symbols), np.int64, len(symbols))


def _learn(folder: Path, name: str, texts: Sequence[Int64[np.ndarray, "_"]], numbers: _Numbers) -> None:
    """Train and write a model; symbols that occur once become the unknown symbol."""
    is_frequent = np.bincount(np.concatenate(texts), minlength=len(numbers)) > 1
    tokens = np.where(is_frequent, _UNKNOWN + np.cumsum(is_frequent), _UNKNOWN)
    framed = [np.concatenate([[BEGIN], tokens[text], [END]]) for text in texts]
    train(framed, _UNKNOWN + 1 + int(is_frequent.sum()), _ORDER).save(folder, name)
    write_json(folder / f"{name}.json", [symbol for symbol, number in numbers.items() if is_frequent[number]])


class _LanguageModel:
    """The trained models of words and of their spelling."""

    def __init__(self, folder: Path) -> None:
        self._words, self._word_tokens = _load(folder, "words")
        self._characters, self._character_tokens = _load(folder, "spelling")
        self._tokens = dict[str, int]()
        self._spelling = dict[str, float]()

    def log_probability(self, words: Sequence[str]) -> float:
        """The log-probability of a text, including the token for its end."""
        for remembered in (self._tokens, self._spelling):
            if len(remembered) > _MOST_REMEMBERED:
                remembered.clear()
        for word in set(words).difference(self._tokens):
            self._tokens[word] = self._word_tokens.get(plain_word(word), _UNKNOWN)
        tokens = np.fromiter(chain((BEGIN,), map(self._tokens.__getitem__, words), (END,)), np.int64, len(words) + 2)
        total = float(self._words.log_probabilities(tokens).sum())
        unknown = [words[place] for place in np.flatnonzero(tokens[1:] == _UNKNOWN).tolist()]
        if unknown:
            self._spell(set(unknown).difference(self._spelling))
            total += sum(map(self._spelling.__getitem__, unknown))
        return total

    def _spell(self, words: Iterable[str]) -> None:
        """Compute and store the log-probabilities of the spellings of words."""
        words = sorted(words)
        if not words:
            return
        plain = [plain_word(word)[:_MOST_SPELLED] for word in words]
        # All words are one row of tokens. No n-gram crosses a `BEGIN`, and `BEGIN` itself adds nothing to the sum.
        tokens = np.fromiter(
            chain.from_iterable(
                (BEGIN, *map(self._character_tokens.get, word, repeat(_UNKNOWN)), END) for word in plain
            ),
            np.int64,
        )
        costs = self._characters.log_probabilities(tokens)
        costs = np.where(tokens[1:] == BEGIN, 0, costs) - (tokens[1:] == _UNKNOWN) * math.log(_NUM_CHARACTERS)
        starts = np.flatnonzero(tokens == BEGIN)
        self._spelling.update(zip(words, np.add.reduceat(costs, starts).tolist(), strict=True))


def _load(folder: Path, name: str) -> tuple[NgramModel, dict[str, int]]:
    symbols = read_json(folder / f"{name}.json", "prepare")
    return NgramModel.load(folder, name), {symbol: token for token, symbol in enumerate(symbols, start=_UNKNOWN + 1)}
