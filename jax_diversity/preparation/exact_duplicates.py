"""Documents of one text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import xxhash
from jaxtyping import Int64

from jax_diversity.preparation.base import Candidate, Step
from jax_diversity.preparation.duplicates import without_duplicates


def exact_duplicates(*, mark: bool = False, scratch: Path | None = None) -> Step:
    """Keeps the first of the documents whose texts are equal but for case, spaces and forms of Unicode characters.

    `mark` removes none and gives those of a group the field `exact_duplicates_group`. Texts are compared by hashes of
    128 bits.
    """

    def step(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        return without_duplicates(candidates, _sign, _join, mark=mark, scratch=scratch)

    return step


def _sign(candidate: Candidate) -> bytes:
    text = candidate.text
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return xxhash.xxh3_128_digest(" ".join(text.casefold().split()).encode())


def _join(signatures: bytearray) -> Int64[np.ndarray, " signed"]:
    halves = np.frombuffer(bytes(signatures), np.uint64).reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable: equal texts stay in the order of reading
    is_new = np.diff(halves[order], axis=0, prepend=~halves[order[:1]]).any(axis=1)
    firsts = np.empty(len(order), np.int64)
    firsts[order] = order[is_new][np.cumsum(is_new) - 1]
    return firsts
