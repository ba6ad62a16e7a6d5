"""Measure, for every language of a folder of texts, which near copies are found and which documents are removed.

    python benchmarks/near_copies.py TEXTS --output benchmarks/results/near_copies.json

TEXTS is a folder of JSON Lines with the fields `text` and `language`, such as `data/mixed`. Originals are passages of at
least 300 words. In a copy, a share of the words is replaced by other words of the language; in a script without spaces,
a word is a character, so the share is also that of the changed characters. *dropped* omits one word in 200. Columns of
`minhash` count the copies that were removed, and whether it removed an original. `substrings` counts the copies that
lost at least half of their characters. The last columns are shares of the originals that a step removes.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results_file import write_results  # type: ignore[import-not-found]

from jax_diversity.corpus.passes.chain import Chain
from jax_diversity.corpus.readers.reading import read_documents
from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.schema import Document
from jax_diversity.text.languages import main_language
from jax_diversity.text.words import word_spans

LANGUAGES = {"en": "English", "zh": "Chinese", "ja": "Japanese", "th": "Thai", "ar": "Arabic"} | {
    "ru": "Russian",
    "hi": "Hindi",
}
