"""Find documents with evaluation data, by runs of words (Brown et al. 2020, arXiv:2005.14165, appendix C)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import xxhash
from jaxtyping import Bool, Int64, UInt64

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.text.normal_forms import normal_form
from jax_diversity.foundation.text.scripts import MARKS, UNSPACED, UNSPACED_MARKS
from jax_diversity.preparation.readers.files import InputFile
from jax_diversity.preparation.readers.named import find_named, hash_named, read_content, read_records
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_most

# Characters of scripts without spaces, with their marks; runs of letters, digits and combining marks.
_WORD = re.compile(
    rf"[{UNSPACED}][{UNSPACED_MARKS}]*+|(?:[^\W_{UNSPACED}]++|[\u0300-\u036f])(?>(?:[^\W_{UNSPACED}]++|[{MARKS}]++)*)"
)
_ASCII_WORD = re.compile("[a-z0-9]+")
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
_FACTOR = 0x9E3779B97F4A7C15
"""The hash of a run is a polynomial in this odd number, modulo 2^64. Its coefficients are the hashes of the words."""
_AROUND = 200
"""Number of characters that are cut out on both sides of a run, as in GPT-3. Shorter pieces are cut out too."""
_MAX_PIECES = 10


@dataclass
class Decontaminate(Step):
    """Removes documents that contain `run` consecutive words of an evaluation example, or cuts these words out.

    `files` names evaluation files: JSON Lines or text, plain or compressed. An example is a record (the texts of
    `fields`, or of all fields) or a paragraph of text. Case, punctuation and spaces are ignored; in scripts without
    spaces, each character is a word. Shorter examples with at least `shortest` words are searched as a whole. A
    document is removed if more than `most_share` of its words belong to such runs. With `cut`, the runs and 200
    characters on both sides are cut out. Remaining pieces below 200 characters are cut out too. A document that is
    split into more than ten pieces is removed. The counts `found` list the examples (`file:line`) with the number of
    documents that contain them. Common runs of words, such as the sentences of a licence, are found, too: leave out
    fields with such texts.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "share": "words of evaluation examples",
        "pieces": "would be split into too many pieces",
    }
    files: tuple[str, ...]
    fields: tuple[str, ...] = ()
    run: int = 13
    shortest: int = 8
    most_share: float = 0.0
    cut: bool = False

    def __post_init__(self) -> None:
        as_whole_number("run", self.run, 2, 100)
        as_whole_number("shortest", self.shortest, 2, self.run)
        files = tuple((file.address, _state(file)) for file in find_named("files", self.files))
        self._examples = _examples(files, self.fields, self.run, self.shortest)

    def identity(self) -> str:
        """Return the hashes of the evaluation files."""
        return " ".join(hash_named("files", self.files))

    def evaluation_lists(self) -> list[str]:
        """Return the files with the starts of their hashes."""
        names = (file.address for file in find_named("files", self.files))
        return [f"{name} ({mark[:8]})" for name, mark in zip(names, hash_named("files", self.files), strict=True)]

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Search the words for runs of the examples."""
        matches = self._examples.find(_words(candidate.text))
        for example in matches.examples:
            candidate.found[example] += 1
        if not self.cut:
            yield at_most("share", float(matches.inside.mean()) if matches.examples else 0.0, self.most_share)
        elif matches.examples:
            pieces = _pieces(candidate.text, matches.inside)
            yield at_most("pieces", len(pieces), _MAX_PIECES)
            candidate.text = "\n\n".join(pieces)


class _Found(NamedTuple):
    """The examples in a document, as `file:line`, and which words of the document belong to runs of the examples."""

    examples: list[str]
    inside: Bool[np.ndarray, " word"]


class _Examples:
    """The runs of words in evaluation examples, as sorted hashes. Each hash has the number of its example.

    Args:
        names: `file:line` of every example.
        texts: the normalised words of every example.
        run: number of words in a run.
        shortest: number of words of the shortest example that is searched as a whole.
    """

    def __init__(self, names: Sequence[str], texts: Sequence[list[str]], run: int, shortest: int) -> None:
        self._names = names
        # A word that is in no example has the code 0. Runs with such a word are skipped.
        self._codes = {word: _hash(word) for words in texts for word in words}
        self._runs: dict[int, tuple[UInt64[np.ndarray, " run"], Int64[np.ndarray, " run"]]] = {}
        by_length: dict[int, list[tuple[UInt64[np.ndarray, " run"], int]]] = {}
        for index, words in enumerate(texts):
            length = min(len(words), run)
            if length >= shortest:
                starts = np.arange(len(words) - length + 1)
                hashes = np.unique(_hashes(self._coded(words), starts, length))
                by_length.setdefault(length, []).append((hashes, index))
        for length, parts in sorted(by_length.items()):
            hashes = np.concatenate([part for part, _ in parts])
            examples = np.repeat([index for _, index in parts], [len(part) for part, _ in parts])
            order = np.argsort(hashes, kind="stable")
            self._runs[length] = hashes[order], examples[order]

    def _coded(self, words: Sequence[str]) -> UInt64[np.ndarray, " word"]:
        return np.fromiter(map(self._codes.get, words, repeat(0)), np.uint64, len(words))

    def find(self, words: Sequence[str]) -> _Found:
        """Search the words of a document for all runs."""
        codes = self._coded(words)
        inside = np.zeros(len(words), bool)
        examples: set[int] = set()
        unknown = np.append(0, np.cumsum(codes == 0))
        for length, (run_hashes, of_example) in self._runs.items():
            starts = np.flatnonzero(unknown[length:] == unknown[:-length])
            hashes = _hashes(codes, starts, length)
            low, high = (np.searchsorted(run_hashes, hashes, side) for side in ("left", "right"))
            for place in np.flatnonzero(low < high).tolist():
                inside[starts[place] : starts[place] + length] = True
                examples.update(of_example[low[place] : high[place]].tolist())
        return _Found([self._names[index] for index in sorted(examples)], inside)


def _words(text: str) -> list[str]:
    """Return the words in lower case and in the Unicode form NFKC."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return [word.lower() if word.isascii() else normal_form("NFKC", word.lower()) for word in _WORD.findall(text)]


def _hash(word: str) -> int:
    return xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass")) or 1


def _hashes(
    codes: UInt64[np.ndarray, " word"], starts: Int64[np.ndarray, " run"], length: int
) -> UInt64[np.ndarray, " run"]:
    """Compute a hash of each run of `length` words."""
    hashes = np.zeros(len(starts), np.uint64)
    for offset in range(length):
        hashes = hashes * np.uint64(_FACTOR) + codes[starts + offset]
    return hashes


def _pieces(text: str, inside: Bool[np.ndarray, " word"]) -> list[str]:
    """Return the pieces of a text that remain if the runs and their surroundings are cut out."""
    pieces, end = [], 0
    for match, is_inside in zip(_WORD.finditer(text), inside.tolist(), strict=True):
        if is_inside:
            pieces.append(text[end : max(match.start() - _AROUND, end)])
            end = max(end, match.end() + _AROUND)
    pieces.append(text[end:])
    return [piece.strip() for piece in pieces if len(piece) >= _AROUND]


def _state(file: InputFile) -> tuple[int, int]:
    """Return a file's time of change and its size. They change whenever the file is written."""
    status = os.stat(file.address)
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4)
def _examples(
    files: tuple[tuple[str, tuple[int, int]], ...], fields: tuple[str, ...], run: int, shortest: int
) -> _Examples:
    """Read the examples of all files. The result is cached, because a step is made several times."""
    read = [InputFile(address, Path(address).name) for address, _ in files]
    has_own_names = len({file.name for file in read}) == len(read)
    names, texts = [], []
    for file in read:
        examples = [(line, _words(text)) for line, text in _read(file, fields)]
        longest = max((len(words) for _, words in examples), default=0)
        if not longest:
            raise UserError(f"Expected evaluation examples in {file.address}, found none; the file is empty.")
        if longest < min(shortest, run):
            raise UserError(
                f"Expected an example of at least {shortest} words in {file.address}, found none of more than "
                f"{longest}; leave the file out, or lower the option 'shortest'."
            )
        names += [f"{file.name if has_own_names else file.address}:{line}" for line, _ in examples]
        texts += [words for _, words in examples]
    return _Examples(names, texts, run, shortest)


def _read(file: InputFile, fields: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the examples of a file, each with the line where it begins."""
    if file.format == "text":
        yield from _paragraphs(read_content(file))
        return
    if file.format != "jsonl":
        raise UserError(f"Expected evaluation files of JSON Lines or text, found {file.address}; convert it to .jsonl.")
    field_names: set[str] = set()
    for place, record in read_records(file):
        field_names.update(record)
        yield cast(int, place.line), " ".join(_texts([record.get(field) for field in fields] if fields else record))
    for field in fields:
        if field not in field_names:
            names = ", ".join(sorted(field_names)) or "no record"
            raise UserError(f"Expected the field {field!r} in the records of {file.address}, found {names}.")


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    line, start = 1, 0
    for end in [*_PARAGRAPH_END.finditer(text), None]:
        paragraph = text[start : end.start() if end else len(text)]
        if paragraph.strip():
            yield line, paragraph
        if end:
            line += text.count("\n", start, end.end())
            start = end.end()


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts of a JSON value, in their order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
