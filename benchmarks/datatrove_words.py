"""Compare the verdicts of three steps with datatrove's, with the words that each package takes for a language.

    python benchmarks/datatrove_words.py FILES.jsonl.gz ... [--documents 150]

Both packages use their thresholds for English, without the rules of stop words and mean length, so only the words
differ. A file's records have the fields `text` and `language`; the first 6,000 characters of a text are used. Needs
datatrove, spacy, jieba, sudachipy and sudachidict-core, pythainlp, indic-nlp-library.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

from jax_diversity.foundation.executors import Here
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.schema import Document

LANGUAGES = {  # ours: datatrove's name, and further names in the files
    "zh": ("cmn_Hani", "cmn-hans"),
    "ja": ("jpn_Jpan", "jpn"),
    "th": ("tha_Thai", "tha"),
    "ar": ("arb_Arab", "arb"),
    "ru": ("rus_Cyrl", "rus"),
    "hi": ("hin_Deva", "hin"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "repetition": {"by_language": False},
    "gopher": {"by_language": False, "thresholds": {"least_stop_words": 0, "least_mean_length": 0}},
    "fineweb": {"by_language": False},
}


def peers(language: str) -> dict[str, Any]:
    """Return datatrove's version of every step with its own words."""
    from datatrove.pipeline import filters  # type: ignore[import-not-found]

    return {
        "repetition": filters.GopherRepetitionFilter(language=language),
        "gopher": filters.GopherQualityFilter(
            language=language, min_stop_words=0, stop_words=["-"], min_avg_word_length=0
        ),
        "fineweb": filters.FineWebQualityFilter(language=language),
    }


def keeps(rule: Any, text: str) -> bool:
    from datatrove.data import Document as Theirs  # type: ignore[import-not-found]

    try:
        return rule.filter(Theirs(text=text, id="")) is True
    except ZeroDivisionError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--documents", type=int, default=150)
    options = parser.parse_args()
    names = {name: ours for ours, (_, other) in LANGUAGES.items() for name in (ours, other)}
    texts: dict[str, list[str]] = {language: [] for language in LANGUAGES}
    for path in sorted(options.paths):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for record in map(json.loads, file):
                if language := names.get(record["language"]):
                    texts[language].append(record["text"][:6000])
    for language, every in texts.items():
        some = every[:: max(len(every) // options.documents, 1)][: options.documents]
        if not some:
            continue
        found: dict[str, Any] = {"documents": len(some)}
        for step, rule in peers(LANGUAGES[language][0]).items():
            documents = [Document(str(index), text, "", language) for index, text in enumerate(some)]
            ours = {int(each.id) for each in Chain([(step, OPTIONS[step])], Here()).through(documents)}
            theirs = {index for index, text in enumerate(some) if keeps(rule, text)}
            equal = round(1 - len(ours ^ theirs) / len(some), 3)
            found[step] = {"equal_verdicts": equal, "kept": len(ours), "kept_by_peer": len(theirs)}
        print(language, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
