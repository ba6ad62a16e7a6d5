"""The base class of steps that remove repeated parts of documents.

A document is a row of spans: lines, sentences or words. A run is a fixed number of neighbouring spans. The first pass
stores a note about each run. Between the passes, runs are compared in the order of documents: first the sources named
in `precedence`, then the order of reading. The second pass cuts out every run that repeats an earlier one.

Most steps compare hashes of 64 bits. Then a run takes 9 bytes on disk: the hash, and whether the run occurs earlier.
Hashes are sorted in blocks by value; the memory is about 600 MB for any number of hashes.
"""

from __future__ import annotations

import re
import string
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import xxhash
from jaxtyping import Bool, Int64, UInt64
from numpy.lib.format import open_memmap

from jax_diversity.foundation.checks import share
from jax_diversity.foundation.text.words import SYMBOLS, split_spaced
from jax_diversity.preparation.passes.notes import Notes
from jax_diversity.preparation.steps.base import Candidate, Measured, Span, Survey, at_least, size_of

_BLOCK = 2**23
"""Mean number of hashes in a block; a block is sorted in memory."""
_CHUNK = 2**22
_FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(32)
# ASCII letters become lower case, digits become 0; punctuation, spaces and control characters except \n are removed.
_NORMAL = bytes(range(256)).lower().translate(bytes.maketrans(b"123456789", b"000000000"))
_LEFT_OUT = bytes({*range(33), 127, *string.punctuation.encode()} - {10})
_SPACES = "\x80-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
# Only characters of 16 bits: Python searches them ten times as fast as the others.
_MARKS = "".join(sorted(mark for mark in SYMBOLS if "\x7f" < mark < "\U00010000"))
_OTHERS = re.compile(f"[{_SPACES}{re.escape(_MARKS)}]+")
_CONTROLS = bytes({*range(32)} - {10})
_CCNET_MARKS = re.compile(
    "[\x7f-\x9f\xab\xb4\xbb\u2013\u2014\u2019\u201c-\u201e\u2026\u2236\u2501\u25ba\u3001\u3002\u3008-\u300d\u3010\u3011"
    "\uff01\uff05\uff08\uff09\uff0c\uff0e\uff11\uff1a\uff1b\uff1f\uff5e]+"
)
_OTHER_DIGIT = re.compile(r"[^\D\x00-\x7f]")


class Repeats(Survey):
    """Cuts out runs of spans that repeat an earlier run, or stores each document's share of words in such runs.

    Subclasses declare the options `least_left`, `mark` and `precedence`.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "least_left": "too few words left after repeats were cut out",
    }
    least_left: float
    mark: bool
    precedence: tuple[str, ...]
    kind: ClassVar[str]
    """The name of the spans in the report's counts, such as `sentences`."""

    def __post_init__(self) -> None:
        share("least_left", self.least_left)

    @property
    def run_length(self) -> int:
        """Number of spans in a run."""
        return 1

    @abstractmethod
    def spans(self, text: str) -> Sequence[Span]:
        """Return the spans in order: span i is the first span of run i."""

    def load_resolved(self, folder: Path) -> None:
        """Map the files that `resolve` wrote: whether each run is cut out, and the end of each document's runs."""
        self._again, self._ends = (np.load(folder / name, mmap_mode="r") for name in ("again.npy", "ends.npy"))

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Cut out the repeated runs if enough text is left; with `mark`, only store their share."""
        number = candidate.number
        again = self._again[self._ends[number - 1] if number else 0 : self._ends[number]]
        text, num_cut = candidate.text, 0
        if again.any():
            spans = self.spans(text)
            gone = _covered(again, len(spans), self.run_length)
            text, num_cut = cut(text, spans, gone), int(np.count_nonzero(gone))
        unit = 1 if candidate.is_unspaced else 0  # bytes where spaces do not separate words
        share_left = size_of(text)[unit] / max(candidate.size[unit], 1) if num_cut else 1.0
        if self.mark:
            candidate.scores[f"repeated_{candidate.step}_share"] = round(1 - share_left, 4)
            return
        yield at_least("least_left", share_left, self.least_left)
        if num_cut:
            candidate.text = text
            candidate.found[self.kind] += num_cut


class HashedRepeats(Repeats):
    """Cuts out runs whose hash occurs earlier."""

    @abstractmethod
    def hashes(self, candidate: Candidate) -> UInt64[np.ndarray, " run"]:
        """Return a hash for every run of spans; 0 for a run that is never cut out."""

    def repeated(
        self, begins: Bool[np.ndarray, " place"], documents: Int64[np.ndarray, " place"]
    ) -> Bool[np.ndarray, " place"]:
        """Return which places are cut out. Equal hashes are neighbours; `begins` marks the first place of each hash."""
        return ~begins

    def note(self, candidate: Candidate) -> bytes:
        """Return the hashes of the runs as bytes."""
        return self.hashes(candidate).tobytes()

    def resolve(self, notes: Notes, folder: Path) -> None:
        """Write for each run whether it is cut out, and for each document the index after its last run."""
        hashes, ends = notes.data.view(np.uint64), notes.ends // 8
        np.save(folder / "ends.npy", ends)
        again = open_memmap(folder / "again.npy", "w+", bool, hashes.shape)
        ranks = notes.ranks(self.precedence)
        for places, values in _blocks(hashes):
            documents = np.searchsorted(ends, places, side="right")
            # The sort is stable: places with equal hash and equal rank stay in the order of reading.
            order = np.lexsort((ranks[documents], values) if self.precedence else (values,))
            begins = np.diff(values[order], prepend=~values[order[:1]]) != 0
            again[places[order[self.repeated(begins, documents[order])]]] = True
        again.flush()


def _blocks(
    hashes: UInt64[np.ndarray, " run"],
) -> Iterator[tuple[Int64[np.ndarray, " place"], UInt64[np.ndarray, " place"]]]:
    """Yield places and values of the non-zero hashes in blocks. Equal hashes are in one block; its places ascend."""
    number = np.uint64(-(-len(hashes) // _BLOCK))
    for block in range(int(number)):
        places, values = [], []
        for start in range(0, len(hashes), _CHUNK):
            chunk = hashes[start : start + _CHUNK]
            inside = np.flatnonzero(((chunk >> _SHIFT) * number >> _SHIFT == block) & (chunk != 0))
            places.append(start + inside)
            values.append(chunk[inside])
        yield np.concatenate(places), np.concatenate(values)


def _covered(again: Bool[np.ndarray, " run"], num_spans: int, run: int) -> Bool[np.ndarray, " span"]:
    """Return which spans belong to at least one repeated run."""
    changes = np.zeros(num_spans + 1, np.int64)
    starts = np.flatnonzero(again)
    changes[starts] += 1
    changes[starts + run] -= 1
    return np.cumsum(changes)[:-1] > 0


def cut(text: str, spans: Sequence[Span], gone: Bool[np.ndarray, " span"]) -> str:
    """Remove the spans where `gone` is True. Of the gaps around removed neighbours, only the widest one stays.

    Example:
        >>> cut("one two. three four", [(0, 3), (4, 8), (9, 14), (15, 19)], np.array([False, True, True, False]))
        'one four'
    """
    # Neighbouring spans that stay are copied together with the gaps between them.
    edges = np.flatnonzero(np.diff(gone, prepend=not gone[0], append=not gone[-1])).tolist()
    kept: list[str] = []
    for first, stop in pairwise(edges):
        if not gone[first]:
            begin = spans[first][0] if first else 0
            kept.append(text[begin : spans[stop - 1][1] if stop < len(spans) else None])
        elif first > 0 and stop < len(spans):
            gaps = (text[spans[place - 1][1] : spans[place][0]] for place in range(first, stop + 1))
            gap = max(gaps, key=lambda gap: (gap.count("\n"), len(gap)))
            around = text[spans[first - 1][1] - 1] + text[spans[stop][0]]
            kept.append(gap or ("" if len(split_spaced(around)) == 2 else " "))
    return "".join(kept)


def line_hashes(lines: str, least_letters: int = 0, keep_marks: bool = False) -> UInt64[np.ndarray, " line"]:
    """Return a hash for every line. Case, spaces and punctuation are ignored, and each digit is read as 0.

    The hash is 0 if a line has no letters and digits, or fewer than `least_letters` of them. With `keep_marks`, spaces
    and ASCII punctuation marks count like letters, as in CCNet's code (`text_normalizer.normalize_for_dedup`).
    """
    lowered = lines
    if not lines.isascii():
        lowered = _OTHER_DIGIT.sub("0", (_CCNET_MARKS if keep_marks else _OTHERS).sub("", lines.lower()))
    left_out = _CONTROLS if keep_marks else _LEFT_OUT
    parts = lowered.encode(errors="surrogatepass").translate(_NORMAL, left_out).split(b"\n")
    if keep_marks:
        parts = [*map(bytes.strip, parts)]
    hashes = np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, parts)), np.uint64)
    lengths = map(len, parts)
    if least_letters > 1 and not lowered.isascii():
        lengths = (len(part.decode(errors="surrogatepass")) for part in parts)
    return np.where(np.fromiter(lengths, np.int64, len(parts)) >= max(least_letters, 1), hashes, 0)


def run_hashes(hashes: UInt64[np.ndarray, " span"], run: int) -> UInt64[np.ndarray, " run"]:
    """Return a hash for every `run` neighbouring spans, by doubling: two hashes of n spans give a hash of 2n spans."""
    if len(hashes) < run:
        return np.zeros(0, np.uint64)
    length = 1
    while length < run:
        step = min(length, run - length)
        hashes = hashes[:-step] * _FACTORS[0] + hashes[step:]
        hashes = (hashes ^ (hashes >> _SHIFT)) * _FACTORS[1]
        length += step
    return hashes
