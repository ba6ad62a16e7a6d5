"""Measure decontamination: the share of planted examples that is found, other removals, and documents per second.

    python benchmarks/decontamination.py FILES.jsonl.gz ... [--number 1000] [--write]

*planted*: examples are made of random words of the corpus, so that no document contains them. 13 words of each are put
into one document, in other case, with other punctuation, and between other words. *natural*: passages of documents
that are taken out of the corpus. They are searched in all other documents; matches are copies and common phrases.
Seconds are processor time.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import results_file
from personal_data import read

from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.schema import Document


def through(texts: list[str], examples: list[str]) -> tuple[float, list[int], dict[str, int]]:
    """Return seconds, the removed documents, and the number of documents in which each example was found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "examples.jsonl"
        path.write_text("".join(json.dumps({"text": example}) + "\n" for example in examples), encoding="utf-8")
        start = time.process_time()
        chain = Chain([("decontaminate", {"files": str(path)})])
        documents = (Document(str(index), text, "") for index, text in enumerate(texts))
        kept = {int(document.id) for document in chain.through(documents)}
        seconds = time.process_time() - start
    return seconds, [index for index in range(len(texts)) if index not in kept], chain.funnel()[0]["found"]


def dressed(rng: random.Random, words: list[str]) -> str:
    """Join the words in other case and with other marks between them."""
    shown = [rng.choice([str.upper, str.title, str])(word) for word in words]
    return "".join(word + rng.choice([" ", ", ", " - ", "; ", "\n", ' "', ") "]) for word in shown)


def planted(texts: list[str], number: int) -> dict[str, Any]:
    rng = random.Random(0)
    vocabulary = sorted({word for text in texts[::7] for word in text.split() if word.isascii() and word.isalpha()})
    examples = [[rng.choice(vocabulary) for _ in range(rng.randint(13, 60))] for _ in range(number)]
    places = rng.sample(range(len(texts)), number)
    changed = list(texts)
    for place, words in zip(places, examples, strict=True):
        start = rng.randrange(len(words) - 12)
        before, after = ([rng.choice(vocabulary) for _ in range(5)] for _ in range(2))
        at = rng.randrange(len(texts[place]) + 1)
        inner = dressed(rng, [*before, *words[start : start + 13], *after])
        changed[place] = f"{texts[place][:at]} {inner} {texts[place][at:]}"
    seconds, removed, found = through(changed, [" ".join(words) for words in examples])
    right = set(removed) & set(places)
    return {
        "planted": number,
        "found": len(right),
        "examples_found": len(found),
        "other_documents_removed": len(removed) - len(right),
        "seconds": round(seconds, 2),
        "documents_per_second": round(len(texts) / seconds),
    }


def natural(texts: list[str], number: int) -> dict[str, Any]:
    rng = random.Random(1)
    long = [index for index, text in enumerate(texts) if len(text.split()) > 80]
    out = set(rng.sample(long, number))
    examples = []
    for index in sorted(out):
        words = texts[index].split()
        length = rng.randint(13, 60)
        start = rng.randrange(len(words) - length)
        examples.append(" ".join(words[start : start + length]))
    rest = [text for index, text in enumerate(texts) if index not in out]
    _, removed, found = through(rest, examples)
    return {"examples": number, "found": len(found), "documents_removed": len(removed)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/decontamination.json")
    options = parser.parse_args()
    texts = read(options.paths)
    values: dict[str, Any] = {"documents": len(texts)}
    for name, measure in (("planted", planted), ("natural", natural)):
        values[name] = measure(texts, options.number)
        print(name, json.dumps(values[name]), flush=True)
    if options.write:
        results_file.write("decontamination", {"environment": results_file.environment("numpy", "xxhash"), **values})


if __name__ == "__main__":
    main()
