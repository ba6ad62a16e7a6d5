"""Documents that hold evaluation data, by runs of words (Brown et al. 2020, arXiv:2005.14165, appendix C)."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from glob import glob
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
import xxhash
from jaxtyping import Bool, Int64, UInt64

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_most
from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError, in_one_line, quoted

# Where spaces do not divide words (Thai, Lao, Burmese, Khmer, Japanese, Chinese) every character is one.
_UNDIVIDED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Letters and digits, with the accents that are characters of their own.
_WORD = re.compile(rf"[{_UNDIVIDED}]|(?:[^\W_{_UNDIVIDED}]|[\u0300-\u036f])+")
_ASCII_WORD = re.compile("[a-z0-9]+")
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
_FACTOR = 0x9E3779B97F4A7C15
"""A run's hash is the polynomial in this odd number whose coefficients are its words' hashes, modulo 2^64."""
_ENDINGS = (".jsonl", ".txt", ".jsonl.gz", ".txt.gz")


def decontaminate(
    *,
    files: str,
    fields: str = "",
    run: int = 13,
    shortest: int = 8,
    most_share: float = 0.0,
    cut: bool = False,
    around: int = 200,
    most_pieces: int = 10,
) -> Rules:
    """Removes documents that hold a run of `run` words of an evaluation example, or cuts these places out.

    `files`: globs of `.jsonl` and `.txt` files, also `.gz`, with spaces between; of records the texts of `fields`, of
    all fields where it is empty; of `.txt` files every paragraph is an example. Case, punctuation and spaces do not
    count. Examples of fewer words, but at least `shortest`, are looked for as a whole. A document goes if more than
    `most_share` of its words are in such runs. With `cut`, the runs and `around` characters on both sides are cut out,
    and pieces of fewer characters; a document goes that falls into more than `most_pieces`.
    """
    whole_number("run", run, 2, 100)
    whole_number("shortest", shortest, 2, run)
    whole_number("around", around)
    whole_number("most_pieces", most_pieces, 1)
    known = _examples(tuple((str(path), _state(path)) for path in _paths(files)), fields, run, shortest)

    def rules(candidate: Candidate) -> Iterator[Measured]:
        words = _words(candidate.text)
        found = known.find(words)
        share = float(found.inside.mean()) if found.examples else 0.0
        for example in found.examples:
            candidate.found[example] += 1
        if not cut:
            yield at_most("share", share, most_share)
        elif found.examples:
            pieces = _pieces(candidate.text, found.inside, around)
            yield at_most("pieces", len(pieces), most_pieces)
            candidate.text = "\n\n".join(pieces)

    return rules


def identity(*, files: str, **options: Any) -> str:
    """The hashes of the evaluation files."""
    return " ".join(file_hash(path) for path in _paths(files))


class _Found(NamedTuple):
    """What a document holds: the examples by file and line, and which of its words are in a run of one."""

    examples: list[str]
    inside: Bool[np.ndarray, " word"]


class _Examples:
    """The runs of words of evaluation examples, as sorted hashes, and the examples that they come from.

    Args:
        names: of every example, `file:line`.
        texts: their normalised words.
        run: words of a run.
        shortest: words of the shortest example that is looked for as a whole.
    """

    def __init__(self, names: Sequence[str], texts: Sequence[list[str]], run: int, shortest: int) -> None:
        self._names = names
        # A word that is in no example is 0: no run with it is looked at.
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
        """Look for all runs in the words of a document."""
        codes = self._coded(words)
        inside = np.zeros(len(words), bool)
        examples: set[int] = set()
        unknown = np.append(0, np.cumsum(codes == 0))
        for length, (known, of_example) in self._runs.items():
            starts = np.flatnonzero(unknown[length:] == unknown[:-length])
            hashes = _hashes(codes, starts, length)
            low, high = (np.searchsorted(known, hashes, side) for side in ("left", "right"))
            for place in np.flatnonzero(low < high).tolist():
                inside[starts[place] : starts[place] + length] = True
                examples.update(of_example[low[place] : high[place]].tolist())
        return _Found([self._names[index] for index in sorted(examples)], inside)


def _words(text: str) -> list[str]:
    """The words, without case and forms of Unicode characters."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return [word.lower() if word.isascii() else normalize("NFKC", word.lower()) for word in _WORD.findall(text)]


def _hash(word: str) -> int:
    return xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass")) or 1


def _hashes(
    codes: UInt64[np.ndarray, " word"], starts: Int64[np.ndarray, " run"], length: int
) -> UInt64[np.ndarray, " run"]:
    """A hash of each run of so many words."""
    hashes = np.zeros(len(starts), np.uint64)
    for offset in range(length):
        hashes = hashes * np.uint64(_FACTOR) + codes[starts + offset]
    return hashes


def _pieces(text: str, inside: Bool[np.ndarray, " word"], around: int) -> list[str]:
    """What is left of a text without the words that are inside a run, and so many characters around each of them."""
    pieces, end = [], 0
    for match, is_inside in zip(_WORD.finditer(text), inside.tolist(), strict=True):
        if is_inside:
            pieces.append(text[end : max(match.start() - around, end)])
            end = max(end, match.end() + around)
    pieces.append(text[end:])
    return [piece.strip() for piece in pieces if len(piece) >= max(around, 1)]


# ---- The files.
def _paths(files: str) -> list[Path]:
    try:
        patterns = shlex.split(files)
    except ValueError as error:
        raise UserError(f"Expected globs of evaluation files, found {quoted(files)}: {error}.") from None
    if not patterns:
        raise UserError("Expected globs of evaluation files in the option 'files', found none.")
    paths: dict[Path, None] = {}
    for pattern in patterns:
        found = sorted(Path(path) for path in glob(str(Path(pattern).expanduser()), recursive=True))
        if not found:
            raise UserError(f"Expected evaluation files at {pattern}, found none; check the option 'files'.")
        paths |= dict.fromkeys(found)
    for path in paths:
        if not path.name.endswith(_ENDINGS) or not path.is_file():
            raise UserError(f"Expected evaluation files that end with {', '.join(_ENDINGS)}, found {path}.")
    return list(paths)


def _state(path: Path) -> tuple[int, int]:
    """What differs once a file is written to."""
    about = path.stat()
    return about.st_mtime_ns, about.st_size


@lru_cache(maxsize=4)
def _examples(files: tuple[tuple[str, tuple[int, int]], ...], fields: str, run: int, shortest: int) -> _Examples:
    """The examples of all files; kept, since a step is made several times."""
    paths = [Path(path) for path, _ in files]
    names, texts = [], []
    has_own_names = len({path.name for path in paths}) == len(paths)
    for path in paths:
        known = [(line, _words(text)) for line, text in _read(path, fields.replace(",", " ").split())]
        if not any(words for _, words in known):
            raise UserError(f"Expected evaluation examples in {path}, found none; the file is empty.")
        longest = max(len(words) for _, words in known)
        if longest < min(shortest, run):
            raise UserError(
                f"Expected an example of at least {shortest} words in {path}, found none of more than {longest}; leave "
                "the file out, or lower the option 'shortest'."
            )
        names += [f"{path.name if has_own_names else path}:{line}" for line, _ in known]
        texts += [words for _, words in known]
    return _Examples(names, texts, run, shortest)


def _read(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The examples of a file, with the line at which they begin."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"Expected a readable file of evaluation examples at {path}: {in_one_line(error)}.") from None
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        return _records(path, text, fields)
    return _paragraphs(text)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    line, start = 1, 0
    for end in [*_PARAGRAPH_END.finditer(text), None]:
        paragraph = text[start : end.start() if end else len(text)]
        if paragraph.strip():
            yield line, paragraph
        if end:
            line += text.count("\n", start, end.end())
            start = end.end()


def _records(path: Path, text: str, fields: Sequence[str]) -> Iterator[tuple[int, str]]:
    known: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"Expected a JSON object in {path}:{number}, found none: {in_one_line(error)}.") from None
        if not isinstance(record, dict):
            raise UserError(f"Expected a JSON object in {path}:{number}, found {quoted(record)}.")
        known.update(record)
        yield number, " ".join(_texts([record.get(field) for field in fields] if fields else record))
    for field in fields:
        if field not in known:
            names = ", ".join(sorted(known)) or "no record"
            raise UserError(f"Expected the field {field!r} in the records of {path}, found {names}.")


def _texts(value: Any) -> Iterator[str]:
    """All texts of a JSON value, in their order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
