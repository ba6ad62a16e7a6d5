"""How likely a document is to a language model of the user's own texts (CCNet; Wenzek et al. 2020, LREC).

The model is of words, which the chain has split already. It is open: words that come once in the reference stand for
all that it does not have, and such a word also costs its spelling, under a model of the characters of words. So
no word is impossible, an invented one costs as much as it is long, and a text of unknown words does not seem
likely, as it does where nothing but a common token stands for them. Of scripts without spaces between words, every
character is a word.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.corpus.passes.notes import Notes
from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, Survey, at_least, at_most
from jax_diversity.corpus.steps.kneser_ney import BEGIN, END, NgramModel, train
from jax_diversity.corpus.steps.own_texts import find_texts, read_texts, texts_hash
from jax_diversity.foundation.artifacts import read_json, write_json
from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.text.words import cut_unspaced, plain_word, split_words

_UNKNOWN = 2
"""The token of what is not in a vocabulary; those that are come behind it."""
_NUM_CHARACTERS = sys.maxunicode + 1
_LARGEST = 1e300
"""No text has as much: a word costs at most some 450 in natural logarithms."""
_THIRDS = ("head", "middle", "tail")
_MOST_REMEMBERED = 2**20
_MOST_SPELLED = 20
"""Characters of an unknown word that count: without a bound, one address outweighs a paragraph."""


def perplexity(
    *,
    reference: str,
    order: int = 5,
    reference_words: int = 10_000_000,
    languages: str = "",
    least: float = 0.0,
    most: float = _LARGEST,
    thirds: str = "",
    learned: Path,
) -> Rules | Survey:
    """Keeps documents whose perplexity is from `least` to `most` under a model of n-grams of the files `reference`.

    The perplexity is that of a word, e to the mean negative log-probability; it becomes the field `perplexity`. The
    first `reference_words` words of the reference are learned, in n-grams of up to `order`. With `languages`, such as
    `en de`, documents of other languages pass without being measured. `thirds`, such as `head middle`, compares all
    documents of a language, and keeps those of these thirds: the head has the lowest perplexities, then come middle
    and tail. The third becomes the field `perplexity_third`.
    """
    check(reference=reference, order=order, reference_words=reference_words, thirds=thirds)
    wanted = languages.replace(",", " ").split()
    model = _LanguageModel(learned)

    def measure(candidate: Candidate) -> float | None:
        if wanted and candidate.language not in wanted:
            return None
        words = cut_unspaced(candidate.words)
        mean = model.log_probability(words) / (len(words) + 1)
        candidate.scores["perplexity"] = value = round(math.exp(min(-mean, math.log(_LARGEST))), 2)
        return value

    def rules(candidate: Candidate) -> Iterator[Measured]:
        value = measure(candidate)
        if value is not None:
            yield at_least("least", value, least)
            yield at_most("most", value, most)

    return _Thirds(measure, least, most, thirds.split()) if thirds else rules


class _Thirds(Survey):
    """The thirds of the documents of every language, by their perplexities."""

    def __init__(
        self, measure: Callable[[Candidate], float | None], least: float, most: float, kept: Sequence[str]
    ) -> None:
        self._measure, self._least, self._most, self._kept = measure, least, most, kept

    def note(self, candidate: Candidate) -> bytes:
        """The perplexity."""
        value = self._measure(candidate)
        return b"" if value is None else struct.pack("<d", value)

    def resolve(self, notes: Notes, folder: Path) -> None:
        """Write the bounds of every language: where its middle and its tail begin."""
        values = notes.data.view("<f8")
        by_language: dict[str, list[float]] = {}
        for document, value in zip(notes.noted.tolist(), values.tolist(), strict=True):
            if self._least <= value <= self._most:
                by_language.setdefault(notes.languages[document] or "", []).append(value)
        bounds = {
            language: [found[-(-len(found) * share // 3) - 1] for share in (1, 2)]
            for language, found in ((language, sorted(found)) for language, found in by_language.items())
        }
        write_json(folder / "bounds.json", bounds)

    def rules(self, folder: Path) -> Callable[[Candidate, int], Iterator[Measured]]:
        """Documents of other thirds go."""
        bounds = read_json(folder / "bounds.json", "prepare")

        def judge(candidate: Candidate, number: int) -> Iterator[Measured]:
            value = candidate.scores.get("perplexity")
            if value is None:
                return
            yield at_least("least", value, self._least)
            yield at_most("most", value, self._most)
            upper = bounds[candidate.language or ""]
            place = sum(value > bound for bound in upper)
            candidate.scores["perplexity_third"] = third = _THIRDS[place]
            yield Measured(third, value, [0, *upper][place], third in self._kept)

        return judge


def check(
    *, reference: str, order: int = 5, reference_words: int = 10_000_000, thirds: str = "", **options: Any
) -> None:
    """Refuse wrong options and absent files."""
    whole_number("order", order, 1, 10)
    whole_number("reference_words", reference_words, 1)
    if not set(thirds.split()) <= set(_THIRDS):
        raise UserError(f"Expected the option 'thirds' to be some of {' '.join(_THIRDS)}, found {quoted(thirds)}.")
    find_texts("reference", reference)


def identity(*, reference: str, **options: Any) -> list[str]:
    """The hashes of the reference's files."""
    return texts_hash("reference", reference)


def learn(folder: Path, *, reference: str, order: int = 5, reference_words: int = 10_000_000, **options: Any) -> None:
    """Train the models of words and of their spelling, and write them to a folder.

    Raises:
        UserError: a reference without a word.
    """
    check(reference=reference, order=order, reference_words=reference_words)
    numbers = _Numbers()
    texts, num_words = [], 0
    for text in read_texts("reference", reference):
        words = list(map(plain_word, cut_unspaced(split_words(text))))[: reference_words - num_words]
        texts.append(numbers.of(words))
        num_words += len(words)
        if num_words == reference_words:
            break
    if not num_words:
        raise UserError(f"Expected words in the files of the option 'reference', found none in {reference}.")
    _learn(folder, "words", texts, numbers, order)
    # Every word once: rare ones, as most unknown words are, are spelled like one another, frequent ones are odd.
    characters = _Numbers()
    _learn(folder, "spelling", [characters.of(word[:_MOST_SPELLED]) for word in numbers], characters, order)


class _Numbers(dict[str, int]):
    """Symbols (words, or characters), numbered as they come."""

    def __missing__(self, symbol: str) -> int:
        self[symbol] = number = len(self)
        return number

    def of(self, symbols: Sequence[str]) -> Int64[np.ndarray, " symbol"]:
        """Their numbers."""
        return np.fromiter(map(self.__getitem__, symbols), np.int64, len(symbols))


def _learn(folder: Path, name: str, texts: Sequence[Int64[np.ndarray, "_"]], numbers: _Numbers, order: int) -> None:
    """Train a model in which all symbols that come once are the unknown one."""
    known = np.bincount(np.concatenate(texts), minlength=len(numbers)) > 1
    tokens = np.where(known, _UNKNOWN + np.cumsum(known), _UNKNOWN)
    framed = [np.concatenate([[BEGIN], tokens[text], [END]]) for text in texts]
    train(framed, _UNKNOWN + 1 + int(known.sum()), order).save(folder, name)
    write_json(folder / f"{name}.json", [symbol for symbol, number in numbers.items() if known[number]])


class _LanguageModel:
    """The models of words and of their spelling."""

    def __init__(self, folder: Path) -> None:
        self._words, self._word_tokens = _load(folder, "words")
        self._characters, self._character_tokens = _load(folder, "spelling")
        self._tokens = dict[str, int]()
        self._spelling = dict[str, float]()

    def log_probability(self, words: Sequence[str]) -> float:
        """Of a text, its end included."""
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
        """Note the log-probabilities of words as characters."""
        words = sorted(words)
        if not words:
            return
        plain = [plain_word(word)[:_MOST_SPELLED] for word in words]
        # One text behind another: no n-gram reaches over a beginning, which itself is not counted.
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
