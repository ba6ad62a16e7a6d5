"""What the steps that look for parts of documents that come again have in common.

A document is a row of spans: lines, sentences or words. In the first pass each run of so many spans is noted as a hash
of 64 bits. Between the passes equal hashes are brought together, in the order of documents: those of the sources that
take precedence first, then as they were read. What came before in this order is cut out in the second pass.

On disk a run takes 8 bytes, and one that tells whether it came before. Hashes are sorted in blocks by their value: the
memory is some 600 MB, however many there are.
"""

from __future__ import annotations

import re
import string
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash
from jaxtyping import Bool, Int64, UInt64
from numpy.lib.format import open_memmap

from jax_diversity.corpus.passes.notes import Notes
from jax_diversity.corpus.steps.base import Candidate, Measured, Survey, at_least, size_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.text.words import SYMBOLS

Span = tuple[int, int]
"""Where a part of a text begins and ends."""

_BLOCK = 2**23
"""Hashes that are sorted together, on average."""
_CHUNK = 2**22
_FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(32)
# ASCII letters are lowered, digits are 0; punctuation, spaces and control characters but the line feed are taken out.
_NORMAL = bytes(range(256)).lower().translate(bytes.maketrans(b"123456789", b"000000000"))
_LEFT_OUT = bytes({*range(33), 127, *string.punctuation.encode()} - {10})
_SPACES = "\x80-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
# Of the basic plane alone, in which Python searches ten times as fast.
_MARKS = "".join(sorted(mark for mark in SYMBOLS if "\x7f" < mark < "\U00010000"))
_OTHERS = re.compile(f"[{_SPACES}{re.escape(_MARKS)}]+")
_OTHER_DIGIT = re.compile(r"[^\D\x00-\x7f]")


class Repeats(Survey):
    """The survey that cuts out runs of spans that came before, or marks documents with their share of words.

    Args:
        run: spans in a run.
        kind: what spans are called where those that were cut out are counted.
        least_left: documents of which a smaller share of the words is left are removed.
        mark: whether all are kept as they are, with the field `repeated_STEP_share`.
        precedence: sources between spaces, the first one's documents come before those of the next; sources that are
            not named come last.
    """

    def __init__(self, run: int, kind: str, *, least_left: float, mark: bool, precedence: str) -> None:
        if not 0 <= least_left <= 1:
            raise UserError(f"Expected least_left of 0 to 1, found {least_left}.")
        self.run, self._kind, self._least_left, self._mark = run, kind, least_left, mark
        self._precedence = precedence

    @abstractmethod
    def hashes(self, candidate: Candidate) -> UInt64[np.ndarray, " run"]:
        """A hash of every run of spans; 0 for one that is left alone."""

    @abstractmethod
    def spans(self, text: str) -> Sequence[Span]:
        """The spans, one a run, and behind the last run's first span the others of that run."""

    def again(
        self, begins: Bool[np.ndarray, " place"], documents: Int64[np.ndarray, " place"]
    ) -> Bool[np.ndarray, " place"]:
        """Which places are cut out; places of equal hashes are neighbours, `begins` tells each group's first."""
        return ~begins

    def note(self, candidate: Candidate) -> bytes:
        """The hashes."""
        return self.hashes(candidate).tobytes()

    def resolve(self, notes: Notes, folder: Path) -> None:
        """Write for every run whether it is cut out, and where each document's runs end."""
        hashes, ends = notes.data.view(np.uint64), notes.ends // 8
        np.save(folder / "ends.npy", ends)
        again = open_memmap(folder / "again.npy", "w+", bool, hashes.shape)
        ranks = notes.ranks(self._precedence)
        for places, values in _blocks(hashes):
            documents = np.searchsorted(ends, places, side="right")
            # Sorting is stable: within a group places of one rank stay in the order of reading.
            order = np.lexsort((ranks[documents], values) if self._precedence else (values,))
            begins = np.diff(values[order], prepend=~values[order[:1]]) != 0
            again[places[order[self.again(begins, documents[order])]]] = True
        again.flush()

    def rules(self, folder: Path) -> Callable[[Candidate, int], Iterator[Measured]]:
        """What came before is cut out, where enough is left."""
        again, ends = (np.load(folder / name, mmap_mode="r") for name in ("again.npy", "ends.npy"))

        def judge(candidate: Candidate, number: int) -> Iterator[Measured]:
            of_document = again[ends[number - 1] if number else 0 : ends[number]]
            text, num_cut = candidate.text, 0
            if of_document.any():
                spans = self.spans(text)
                gone = _covered(of_document, len(spans), self.run)
                text, num_cut = cut(text, spans, gone), np.count_nonzero(gone)
            share = size_of(text)[0] / max(candidate.size[0], 1) if num_cut else 1.0
            if self._mark:
                candidate.scores[f"repeated_{candidate.step}_share"] = round(1 - share, 4)
                return
            yield at_least("least_left", share, self._least_left)
            if num_cut:
                candidate.text = text
                candidate.found[self._kind] += int(num_cut)

        return judge


def _blocks(
    hashes: UInt64[np.ndarray, " run"],
) -> Iterator[tuple[Int64[np.ndarray, " place"], UInt64[np.ndarray, " place"]]]:
    """Places and values of the hashes that are not 0, in blocks; equal ones are in one block, places ascend."""
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
    """Which spans belong to a run that came before."""
    changes = np.zeros(num_spans + 1, np.int64)
    starts = np.flatnonzero(again)
    changes[starts] += 1
    changes[starts + run] -= 1
    return np.cumsum(changes)[:-1] > 0


def cut(text: str, spans: Sequence[Span], gone: Bool[np.ndarray, " span"]) -> str:
    """A text without some spans. What stays on both sides is divided by the widest gap that was between them.

    Example:
        >>> cut("one two. three four", [(0, 3), (4, 8), (9, 14), (15, 19)], np.array([False, True, True, False]))
        'one four'
    """
    # Spans in a row that stay are taken as they are, with what is between them.
    edges = np.flatnonzero(np.diff(gone, prepend=not gone[0], append=not gone[-1])).tolist()
    kept: list[str] = []
    for first, stop in pairwise(edges):
        if not gone[first]:
            begin = spans[first][0] if first else 0
            kept.append(text[begin : spans[stop - 1][1] if stop < len(spans) else None])
        elif first > 0 and stop < len(spans):
            gaps = (text[spans[place - 1][1] : spans[place][0]] for place in range(first, stop + 1))
            kept.append(max(gaps, key=lambda gap: (gap.count("\n"), len(gap))) or " ")
    return "".join(kept)


def line_hashes(lines: str, least_letters: int = 0) -> UInt64[np.ndarray, " line"]:
    """A hash of every line: case, spaces and punctuation do not count, and every digit is 0.

    It is 0 for a line of fewer letters and digits, or of none.
    """
    lowered = lines
    if not lines.isascii():
        lowered = _OTHER_DIGIT.sub("0", _OTHERS.sub("", lines.lower()))
    parts = lowered.encode(errors="surrogatepass").translate(_NORMAL, _LEFT_OUT).split(b"\n")
    hashes = np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, parts)), np.uint64)
    lengths = map(len, parts)
    if least_letters > 1 and not lowered.isascii():
        lengths = (len(part.decode(errors="surrogatepass")) for part in parts)
    return np.where(np.fromiter(lengths, np.int64, len(parts)) >= max(least_letters, 1), hashes, 0)


def run_hashes(hashes: UInt64[np.ndarray, " span"], run: int) -> UInt64[np.ndarray, " run"]:
    """A hash of every `run` neighbours: those of twice as many are made of two, the last two overlap."""
    if len(hashes) < run:
        return np.zeros(0, np.uint64)
    length = 1
    while length < run:
        step = min(length, run - length)
        hashes = hashes[:-step] * _FACTORS[0] + hashes[step:]
        hashes = (hashes ^ (hashes >> _SHIFT)) * _FACTORS[1]
        length += step
    return hashes
