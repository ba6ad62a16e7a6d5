"""Measure, for the languages of a folder of texts, which near copies are found, and which documents are removed.

    python benchmarks/near_copies.py FOLDER [--languages en zh ja] [--write]

The files `FOLDER/*.jsonl.gz` have the fields `text`, `source` and `language`. A file should contain the same texts in
every language, because the languages of a source are compared.

**Near copies.** The texts of a language are joined and cut into passages of 200 words and punctuation marks; in scripts
without spaces, a word is one character. Every passage gets five copies of each kind:

- `words 1%`: this share of the words is replaced by other words of the same language, so about this share of the
  characters changes.
- `letters 1%`: this share of the letters is replaced by other letters of the same language. In a language with spaces,
  a changed letter changes a whole word.
- `dropped`: one word in 200 is omitted.

*minhash* is the share of the copies that the step removes. *substrings* is the share of the copies of which the step
cuts out at least a third.

**Removed documents.** Every document passes through the steps of the recipes `fineweb` and `skywork` that judge texts,
with all languages allowed. `quality` is left out, because it depends on the user's texts. For every source, language
and rule, the result has the share of the documents that the rule removes, alone (each step gets all documents) and in
the recipe's order.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import results_file

from jax_diversity.foundation.executors import Here
from jax_diversity.foundation.text.words import split_words, word_spans
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.schema import Document

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
WORDS, PASSAGES, COPIES = 200, 200, 5
SHARES = (0.01, 0.02, 0.05)
RECIPES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "fineweb": [
        ("language", {"probability": 0.65}),
        ("repetition", {}),
        ("gopher", {}),
        ("c4", {"without": ("terminal_punctuation",)}),
        ("fineweb", {}),
        ("minhash", {}),
    ],
    "skywork": [("minhash", {}), ("language", {"probability": 0.5})],
}


def read(folder: Path) -> Mapping[str, list[Document]]:
    """Return the documents of every language."""
    of_name = {name: language for language, names in LANGUAGES.items() for name in names}
    documents: dict[str, list[Document]] = {language: [] for language in LANGUAGES}
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file):
                found = json.loads(line)
                if language := of_name.get(found["language"]):
                    document = Document(f"{path.name}:{number}", found["text"], found["source"], language)
                    documents[language].append(document)
    return {language: own for language, own in documents.items() if own}


def passages(text: str) -> list[str]:
    """Passages of 200 words, evenly distributed over the text."""
    places = [start for start, _ in word_spans(text)]
    starts = range(0, len(places) - WORDS, WORDS)
    step = max(len(starts) // PASSAGES, 1)
    return [text[places[start] : places[start + WORDS]].strip() for start in starts[::step][:PASSAGES]]


def changed_words(texts: Sequence[str], share: float, rng: random.Random) -> list[str]:
    """Replace a share of the words by words of the other passages, or omit one in 200 for a share of 0."""
    known = [word for text in texts for word in split_words(text)]

    def changed(text: str) -> str:
        parts, end = [], 0
        for start, stop in word_spans(text):
            if rng.random() < (share or 1 / 200):
                parts += [text[end:start], rng.choice(known) if share else ""]
                end = stop
        return "".join([*parts, text[end:]])

    return list(map(changed, texts))


def changed_letters(texts: Sequence[str], share: float, rng: random.Random) -> list[str]:
    """Replace a share of the letters by letters of the other passages."""
    known = [letter for text in texts for letter in text if letter.isalpha()]
    return [
        "".join(rng.choice(known) if each.isalpha() and rng.random() < share else each for each in text)
        for text in texts
    ]


def near_copies(language: str, text: str) -> dict[str, Any]:
    """Return the shares of the copies that are found."""

    def left(step: str, texts: Sequence[str]) -> dict[int, str]:
        documents = [Document(str(index), text, "texts", language) for index, text in enumerate(texts)]
        return {int(each.id): each.text for each in Chain([(step, {})], Here()).through(documents)}

    # Passages that are near copies of one another would be counted as found.
    originals = passages(text)
    originals = [originals[index] for index in left("minhash", originals)]
    number = len(originals)
    ways: dict[str, Callable[[random.Random], list[str]]] = {"dropped": lambda rng: changed_words(originals, 0, rng)}
    for share in SHARES:
        ways[f"words {share:.0%}"] = lambda rng, share=share: changed_words(originals, share, rng)
        ways[f"letters {share:.0%}"] = lambda rng, share=share: changed_letters(originals, share, rng)
    found: dict[str, Any] = {"passages": number, "minhash": Counter(), "substrings": Counter()}
    for name, make in ways.items():
        for seed in range(COPIES):
            copies = make(random.Random(seed))
            found["minhash"][name] += 2 * number - len(left("minhash", [*originals, *copies]))
            cut = left("substrings", [*originals, *copies])
            found["substrings"][name] += sum(
                len(cut.get(number + index, "")) < 2 / 3 * len(copy) for index, copy in enumerate(copies)
            )
    for step in ("minhash", "substrings"):
        found[step] = {name: round(count / number / COPIES, 3) for name, count in found[step].items()}
    return found


def removals(documents: Sequence[Document]) -> dict[str, Any]:
    """Return, for every recipe and rule, the share of removed documents, alone and in the order of the recipe."""

    def shares(steps: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, float]:
        chain = Chain(steps, Here())
        left = len(list(chain.through(documents)))
        removed = {
            f"{each['step']}.{rule}": count for each in chain.funnel() for rule, count in each["removed"].items()
        }
        removed["all"] = len(documents) - left
        return {rule: round(count / len(documents), 3) for rule, count in removed.items() if count}

    found = {}
    for recipe, steps in RECIPES.items():
        alone = {rule: share for step in steps for rule, share in shares([step]).items() if rule != "all"}
        found[recipe] = {"alone": alone, "in order": shares(steps)}
    return {"documents": len(documents), **found}


def measure(language: str, documents: Sequence[Document]) -> dict[str, Any]:
    by_source = {
        source: [each for each in documents if each.source == source]
        for source in sorted({each.source for each in documents})
    }
    return {
        **near_copies(language, "\n\n".join(each.text for each in documents)),
        "removed": {source: removals(own) for source, own in by_source.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--languages", nargs="+", default=list(LANGUAGES))
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/near_copies.json")
    options = parser.parse_args()
    found = {}
    for language, documents in read(options.folder).items():
        if language in options.languages:
            found[language] = measure(language, documents)
            print(language, json.dumps(found[language]), flush=True)
    if options.write:
        results_file.write("near_copies", {"environment": results_file.environment("numpy"), "languages": found})


if __name__ == "__main__":
    main()
