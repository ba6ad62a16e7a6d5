"""How likely a document is to a language model that was trained on texts of the user's choice (Wenzek et al. 2020, CCNet).

The model is of words, which the chain has split already. It is open: words that come once in the reference stand for
all that it does not have, and such a word also costs its spelling, under a model of the characters of words. So
no word is impossible, an invented one costs as much as it is long, and a text of unknown words does not seem
likely, as it does where nothing but a common token stands for them. Of scripts without spaces between words, every
character is a word.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import write_json
from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.preparation.base import Candidate, Measured, Step, at_least, at_most, each
from jax_diversity.preparation.kneser_ney import BEGIN, END, NgramModel, train
from jax_diversity.preparation.own_texts import find_texts, read_texts, texts_hash
from jax_diversity.preparation.text import cut_unspaced, plain_word, split_words

_UNKNOWN = 2
"""The token of what is not in a vocabulary; those that are come behind it."""
_NUM_CHARACTERS = sys.maxunicode + 1
_LARGEST = 1e9
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
    learned: Path | None = None,
) -> Step:
    """Keeps documents whose perplexity is from `least` to `most` under a model of n-grams of the files `reference`.

    The perplexity is that of a word, e to the mean negative log-probability, 1e9 at most; it becomes the field
    `perplexity`. The first `reference_words` words of the reference are learned, in n-grams of up to `order`. With
    `languages`, such as `en de`, documents of other languages pass without being measured.
    """
    _check(reference, order, reference_words)
    wanted = languages.replace(",", " ").split()
    if learned is None:
        return each(lambda candidate: iter(()))
    model = _LanguageModel(learned)

    def rules(candidate: Candidate) -> Iterator[Measured]:
        if wanted and candidate.language not in wanted:
            return
        words = cut_unspaced(candidate.words)
        mean = model.log_probability(words) / (len(words) + 1)
        value = round(math.exp(min(-mean, math.log(_LARGEST))), 2)
        candidate.scores["perplexity"] = value
        yield at_least("least", value, least)
        yield at_most("most", value, most)

    return each(rules)


def _check(reference: str, order: int, reference_words: int) -> None:
    whole_number("order", order, 1, 10)
    whole_number("reference_words", reference_words, 1)
    find_texts("reference", reference)


def identity(*, reference: str, **options: Any) -> list[str]:
    """The hashes of the reference's files."""
    return texts_hash("reference", reference)


def learn(
    folder: Path, *, reference: str, order: int = 5, reference_words: int = 10_000_000, **options: Any
) -> None:
    """Train the models of words and of their spelling, and write them to a folder."""
    _check(reference, order, reference_words)
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
    _learn(folder / "words", texts, numbers, order)
    # Every word once: rare ones, as most unknown words are, are spelled like one another, frequent ones are odd.
    characters = _Numbers()
    spelled = [characters.of(word[:_MOST_SPELLED]) for word in numbers]
    _learn(folder / "spelling", spelled, characters, order)


class _Numbers(dict[str, int]):
    """Symbols (words, or characters), numbered as they come."""

    def __missing__(self, symbol: str) -> int:
        self[symbol] = number = len(self)
        return number

    def of(self, symbols: Sequence[str]) -> Int64[np.ndarray, " symbol"]:
        """Their numbers."""
        return np.fromiter(map(self.__getitem__, symbols), np.int64, len(symbols))


def _learn(folder: Path, texts: Sequence[Int64[np.ndarray, " symbol"]], numbers: _Numbers, order: int) -> None:
    """Train a model in which all symbols that come once are the unknown one."""
    known = np.bincount(np.concatenate(texts), minlength=len(numbers)) > 1
    tokens = np.where(known, _UNKNOWN + np.cumsum(known), _UNKNOWN)
    framed = [np.concatenate([[BEGIN], tokens[text], [END]]) for text in texts]
    folder.mkdir(parents=True)
    train(framed, _UNKNOWN + 1 + int(known.sum()), order).save(folder)
    write_json(folder / "vocabulary.json", [symbol for symbol, number in numbers.items() if known[number]])


class _LanguageModel:
    """The models of words and of their spelling."""

    def __init__(self, folder: Path) -> None:
        self._words, self._word_tokens = _load(folder / "words")
        self._characters, self._character_tokens = _load(folder / "spelling")
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


def _load(folder: Path) -> tuple[NgramModel, dict[str, int]]:
    symbols = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    return NgramModel.load(folder), {symbol: token for token, symbol in enumerate(symbols, start=_UNKNOWN + 1)}
