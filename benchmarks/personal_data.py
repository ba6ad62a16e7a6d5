"""Measure the search for personal data: the share of planted data that is found, and other documents with finds.

    python benchmarks/personal_data.py FILES.jsonl.gz ... [--number 3000] [--write]

*recall*: the share of planted addresses, numbers and keys that are masked completely. They have correct checksums and
are put between words of the documents, in brackets, quotes, markup and similar contexts; 4,000 characters of each
document are used. *found*: documents without planted data in which a kind is found. Samples of these finds were checked
by eye, one find per document (`sample` of them). `wrong` is the number of finds that are not an address or number of
that kind; examples in manuals (alice@example.com, 8.8.8.8) are not wrong.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import planted
import results_file

from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.schema import Document

READ_BY_EYE = {
    "email": {"sample": 150, "wrong": 0, "ids of messages": 46, "examples of manuals": 1},
    "phone": {"sample": 110, "wrong": 0},
    "ip": {"sample": 88, "wrong": 1, "examples of manuals": 22},
}
_CHARACTERS = 4000


def read(paths: Sequence[Path]) -> list[str]:
    texts = []
    for path in sorted(paths):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts += [json.loads(line)["text"] for line in file]
    return texts


def recall(kind: str, number: int, texts: list[str]) -> dict[str, Any]:
    """Count the planted values that were replaced, and return some that were not."""
    pairs = list(planted.plants(kind, number, texts))
    chain = Chain([("personal_data", {})])
    left = list(chain.through(Document(str(index), text, "") for index, (text, _) in enumerate(pairs)))
    missed = [made for (_, made), document in zip(pairs, left, strict=True) if planted.bare(made) in document.text]
    return {
        "planted": number,
        "found": number - len(missed),
        "recall": round(1 - len(missed) / number, 4),
        "missed": missed[:3],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--number", type=int, default=3000)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/personal_data.json")
    options = parser.parse_args()
    texts = read(options.paths)
    short = [text[:_CHARACTERS] for text in texts]
    recalls = {}
    for kind in planted.KINDS:
        recalls[kind] = recall(kind, options.number, short)
        print(kind, json.dumps(recalls[kind]), flush=True)
    chain = Chain([("personal_data", {})])
    documents = Counter[str]()
    start = time.process_time()
    for index, text in enumerate(texts):
        for _ in chain.through([Document(str(index), text, "")]):
            pass
        documents.update(chain.funnel()[0]["found"].keys())
    seconds = time.process_time() - start
    found = {"documents": len(texts), "seconds": round(seconds, 2), "documents_with": dict(documents.most_common())}
    print(json.dumps(found))
    if options.write:
        values = {"recall": {kind: {k: v for k, v in each.items() if k != "missed"} for kind, each in recalls.items()}}
        values |= {"found": found, "read_by_eye": READ_BY_EYE}
        environment = {"environment": results_file.environment("phonenumbers")}
        results_file.write("personal_data", environment | values)


if __name__ == "__main__":
    main()
