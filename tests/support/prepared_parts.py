"""Documents, and steps that all have some of them to remove or to edit."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_diversity.schema import Document

STEPS: list[tuple[str, dict[str, Any]]] = [
    ("words", {"least": 3}),
    ("exact_duplicates", {}),
    ("personal_data", {}),
    ("minhash", {"bands": 28, "rows": 4, "similarity": 0.5, "precedence": ["books"]}),
    ("words", {"least": 5}),
]


SOURCES = ("web", "books", "news")


def made_documents(number: int = 400) -> list[Document]:
    """Texts of three sources: short ones, copies, near copies, and some with an address."""
    rng = np.random.default_rng(7)
    vocabulary = [f"{stem}{ending}" for stem in ("bar", "lun", "sim", "tor", "vel") for ending in "abcdefghijklmnop"]
    texts: list[str] = []
    for index in range(number):
        kind = index % 8
        words = [*rng.choice(vocabulary, 2 + int(rng.integers(60)))]
        if kind == 5 and texts:
            texts.append(texts[int(rng.integers(len(texts)))].upper())
        elif kind == 6 and texts:
            texts.append(texts[int(rng.integers(len(texts)))] + " one more word")
        else:
            texts.append(" ".join(words) + (f" write to me{index}@example.org" if kind == 7 else ""))
    return [Document(f"d{index}", text, SOURCES[index % 3]) for index, text in enumerate(texts)]
