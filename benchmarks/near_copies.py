"""Measure, for the languages of a folder of texts, which near copies are found, and which originals are removed.

    python benchmarks/near_copies.py FOLDER [--languages en zh ja] [--write]

The files `FOLDER/*.jsonl.gz` have the fields `text` and `language`. For every language, its texts are joined and cut
into passages of 200 words; in scripts without spaces, a word is one character. Every passage gets copies:

- `words 1 %`: this share of the words is replaced by other words of the same language, so about this share of the
  characters changes.
- `letters 1 %`: this share of the letters is replaced by other letters of the same language. In a language with spaces,
  a changed letter changes a whole word.
- `dropped`: one word in 200 is omitted.

*minhash* is the share of the copies that the step removes. *substrings* is the share of the copies of which the step
cuts out at least a third. *removed* is the share of the passages that a step, or the filters of a recipe, removes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import results_file

from jax_diversity.corpus.passes.chain import Chain
from jax_diversity.foundation.executors import Here
from jax_diversity.schema import Document
from jax_diversity.text.scripts import UNSPACED

LANGUAGES = {
    "en": ("en", "eng"),
    "zh": ("zh", "cmn-hans", "cmn-hant"),
    "ja": ("ja", "jpn"),
    "th": ("th", "tha"),
    "lo": ("lo", "lao"),
    "ar": ("ar", "arb"),
    "ru": ("ru", "rus"),
    "hi": ("hi", "hin"),
}
PROSE = ("human-rights", "office-help", "textbook", "recipes", "web")
WORDS, PASSAGES = 200, 100
FILTERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "words": [("words", {})],
    "gopher": [("gopher", {})],
    "repetition": [("repetition", {})],
    "c4": [("c4", {})],
    "fineweb (step)": [("fineweb", {})],
    "line_corrections": [("line_corrections", {})],
    "filters of fineweb": [
        ("repetition", {}),
        ("gopher", {}),
        ("c4", {"without": ("terminal_punctuation",)}),
        ("fineweb", {}),
    ],
}
_UNIT = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


def read(folder: Path) -> Mapping[str, str]:
    """The texts of prose of every language, joined."""
    of_name = {name: language for language, names in LANGUAGES.items() for name in names}
    texts: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.glob("*.jsonl.gz")):
        if path.name.startswith(PROSE):
            with gzip.open(path, "rt", encoding="utf-8") as file:
                for document in map(json.loads, file):
                    if document["language"] in of_name:
                        texts[of_name[document["language"]]].append(document["text"])
    return {language: "\n\n".join(texts[language]) for language in LANGUAGES if texts[language]}


def passages(text: str) -> list[str]:
    """Passages of 200 words, evenly distributed over the text."""
    places = [match.start() for match in _UNIT.finditer(text)]
    starts = range(0, len(places) - WORDS, WORDS)
    step = max(len(starts) // PASSAGES, 1)
    return [text[places[start] : places[start + WORDS]].strip() for start in starts[::step][:PASSAGES]]


def changed_words(texts: Sequence[str], share: float, rng: random.Random) -> list[str]:
    """Replace a share of the words by words of the other passages, or omit one in 200 for a share of 0."""
    known = [word for text in texts for word in _UNIT.findall(text)]

    def replaced(match: re.Match) -> str:
        if not share:
            return "" if rng.random() < 1 / 200 else match[0]
        return rng.choice(known) if rng.random() < share else match[0]

    return [_UNIT.sub(replaced, text) for text in texts]


def changed_letters(texts: Sequence[str], share: float, rng: random.Random) -> list[str]:
    """Replace a share of the letters by letters of the other passages."""
    known = [letter for text in texts for letter in text if letter.isalpha()]
    return [
        "".join(rng.choice(known) if each.isalpha() and rng.random() < share else each for each in text)
        for text in texts
    ]


def through(steps: list[tuple[str, dict[str, Any]]], texts: Sequence[str], language: str) -> dict[int, str]:
    documents = [Document(str(index), text, "texts", language) for index, text in enumerate(texts)]
    return {int(document.id): document.text for document in Chain(steps, Here()).through(documents)}


def measure(language: str, text: str) -> dict[str, Any]:
    originals = passages(text)
    # Passages that are near copies of one another would be counted as found.
    originals = [originals[index] for index in through([("minhash", {})], originals, language)]
    number = len(originals)
    ways: dict[str, Callable[[random.Random], list[str]]] = {"dropped": lambda rng: changed_words(originals, 0, rng)}
    for share in (0.01, 0.02, 0.05):
        ways[f"words {share:.0%}"] = lambda rng, share=share: changed_words(originals, share, rng)
        ways[f"letters {share:.0%}"] = lambda rng, share=share: changed_letters(originals, share, rng)
    found: dict[str, Any] = {"passages": number, "minhash": {}, "substrings": {}}
    for name, make in ways.items():
        copies = make(random.Random(7))
        left = through([("minhash", {})], [*originals, *copies], language)
        found["minhash"][name] = round(1 - (len(left) - number) / number, 3)
        cut = through([("substrings", {})], [*originals, *copies], language)
        lost = [len(cut.get(number + index, "")) < 2 / 3 * len(copy) for index, copy in enumerate(copies)]
        found["substrings"][name] = round(sum(lost) / number, 3)
    found["removed"] = {
        name: round(1 - len(through(steps, originals, language)) / number, 3) for name, steps in FILTERS.items()
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--languages", nargs="+", default=list(LANGUAGES))
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/near_copies.json")
    options = parser.parse_args()
    found = {}
    for language, text in read(options.folder).items():
        if language in options.languages:
            found[language] = measure(language, text)
            print(language, json.dumps(found[language]), flush=True)
    if options.write:
        results_file.write("near_copies", {"environment": results_file.environment("numpy"), "languages": found})


if __name__ == "__main__":
    main()
