"""Measure the steps of preparation: documents per second on one core, removed documents, and the ratio to datatrove.

    python benchmarks/preparation.py FILES.jsonl.gz ... [--peer-documents 1000] [--write]

Seconds are processor time, because other programs may use the machine. Every step gets all documents, which are in
memory already, with their languages, and splits their words itself. `filters` are the four rules of FineWeb's recipe in
sequence; they split the words only once. *peer* is datatrove (pip install datatrove spacy 'xxhash<4'), if it is
installed. It gets some English documents from all files; for the ratio our step gets the same documents. datatrove runs
with its default word tokenizer (spaCy), and with the words and sentences of this package, which shows the time of the
rules alone. `equal_verdicts` is the share of documents that both packages keep or both remove.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import results_file

from jax_diversity.foundation.executors import Here
from jax_diversity.foundation.text.sentences import split_sentences
from jax_diversity.foundation.text.words import split_words
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.schema import Document

Steps = Sequence[tuple[str, Mapping[str, Any]]]
FILTERS: Steps = (
    ("repetition", {}),
    ("gopher", {}),
    ("c4", {"without": ["terminal_punctuation"]}),
    ("fineweb", {}),
)
CASES: dict[str, Steps] = {
    "words": [("words", {})],
    "repetition": [("repetition", {})],
    "gopher": [("gopher", {})],
    "c4": [("c4", {})],
    "fineweb": [("fineweb", {})],
    "filters": FILTERS,
    "exact_duplicates": [("exact_duplicates", {})],
    "minhash": [("minhash", {})],
    "lines": [("lines", {})],
    "sentences": [("sentences", {})],
    "substrings": [("substrings", {})],
    "semantic": [("semantic", {})],
    "similar_sentences": [("similar_sentences", {})],
    "personal_data": [("personal_data", {})],
    "language": [("language", {})],
}


def read(paths: Sequence[str]) -> list[Document]:
    documents = []
    for path in sorted(paths):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for row in map(json.loads, file):
                documents.append(Document(str(len(documents)), row["text"], "", row.get("language")))
    return documents


def ours(steps: Steps, documents: Iterable[Document]) -> tuple[float, set[str], Chain]:
    """Return seconds, the kept documents, and the chain with its counts."""
    chain = Chain(steps, Here())
    start = time.process_time()
    kept = {document.id for document in chain.through(documents)}
    return time.process_time() - start, kept, chain


def peers() -> dict[str, Callable[[str | Any], list[Any]]]:
    """datatrove's version of a step, made with a language or a word tokenizer."""
    from datatrove.pipeline import filters  # type: ignore[import-not-found]

    made: dict[str, Callable[[str | Any], list[Any]]] = {
        "repetition": lambda words: [filters.GopherRepetitionFilter(language=words)],
        "gopher": lambda words: [filters.GopherQualityFilter(language=words)],
        "c4": lambda words: [filters.C4QualityFilter(language=words)],
        "fineweb": lambda words: [filters.FineWebQualityFilter(language=words)],
    }
    without_marks = lambda words: [filters.C4QualityFilter(language=words, filter_no_terminal_punct=False)]  # noqa: E731
    made["filters"] = lambda words: [
        *made["repetition"](words),
        *made["gopher"](words),
        *without_marks(words),
        *made["fineweb"](words),
    ]
    return made


def same_words() -> Any:
    """This package's words and sentences in datatrove's interface."""
    from datatrove.utils.word_tokenizers import WordTokenizer  # type: ignore[import-not-found]

    class SameWords(WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return split_words(text)

        def sent_tokenize(self, text: str) -> list[str]:
            return split_sentences(text)

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return [(0, 0)] * len(split_sentences(text))

    return SameWords()


def theirs(rules: Sequence[Any], documents: Sequence[Document]) -> tuple[float, set[str]]:
    """Return seconds and the kept documents; a document that makes a rule fail is removed."""
    from datatrove.data import Document as Theirs  # type: ignore[import-not-found]

    start, kept = time.process_time(), set()
    for document in documents:
        same = Theirs(text=document.text, id=document.id)
        try:
            if all(rule.filter(same) is True for rule in rules):
                kept.add(document.id)
        except ZeroDivisionError:
            continue
    return time.process_time() - start, kept


def signatures(words: Any, documents: Sequence[Document]) -> float:
    """Seconds of datatrove's MinHash for signatures, without sorting and joining."""
    import tempfile

    from datatrove.pipeline.dedup.minhash import MinhashDedupSignature  # type: ignore[import-not-found]

    signer = MinhashDedupSignature(tempfile.mkdtemp(), language=words)
    start = time.process_time()
    for document in documents:
        shingles = signer.get_shingles(document.text)
        if shingles.size:
            signer.get_signature(shingles)
    return time.process_time() - start


def compare(name: str, steps: Steps, documents: Sequence[Document], made: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a step with datatrove's, with datatrove's words and with ours."""
    seconds, kept, _ = ours(steps, documents)
    found = {}
    for words, tokenizer in (("spacy", "en"), ("same_words", same_words())):
        if name == "minhash":
            found[words] = {"speed_by_peer": round(signatures(tokenizer, documents) / seconds, 2)}
            continue
        other, left = theirs(made[name](tokenizer), documents)
        equal = 1 - len(kept ^ left) / len(documents)
        found[words] = {"speed_by_peer": round(other / seconds, 2), "equal_verdicts": round(equal, 4)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--peer-documents", type=int, default=1000)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/preparation.json")
    options = parser.parse_args()
    documents = read([str(path) for path in options.paths])
    has_peer = find_spec("datatrove") is not None
    made = peers() if has_peer else {}
    english = [document for document in documents if document.language == "en"]
    some = english[:: max(len(english) // options.peer_documents, 1)]
    steps: dict[str, Any] = {}
    for name, listed in CASES.items():
        if name == "language" and find_spec("py3langid") is None:
            continue
        seconds, kept, chain = ours(listed, documents)
        removed = {f"{each['step']}.{rule}": n for each in chain.funnel() for rule, n in each["removed"].items()}
        steps[name] = {
            "seconds": round(seconds, 2),
            "documents_per_second": round(len(documents) / seconds),
            "kept": len(kept),
            "removed": removed,
            "found": chain.funnel()[-1]["found"],
        }
        if has_peer and (name in made or name == "minhash"):
            steps[name]["peer"] = compare(name, listed, some, made)
        print(name, json.dumps(steps[name]), flush=True)
    if options.write:
        packages = ["numpy", *(["datatrove", "spacy"] if has_peer else [])]
        about = {
            "documents": len(documents),
            "megabytes": round(sum(len(each.text.encode()) for each in documents) / 1e6, 1),
        }
        about |= {"peer_documents": len(some)} if has_peer else {}
        results_file.write("preparation", {"environment": results_file.environment(*packages), **about, "steps": steps})


if __name__ == "__main__":
    main()
