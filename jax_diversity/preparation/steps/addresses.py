"""Remove unwanted web addresses: block lists, words with scores, and sources that the corpus gets from elsewhere.

We follow RefinedWeb (Penedo et al. 2023, arXiv:2306.01116, appendix G.1): one strong word blocks a page. One weak word,
as in the address of a medical page, does not block it.
"""

from __future__ import annotations

import io
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar
from urllib.parse import urlsplit

import numpy as np
import xxhash
from jaxtyping import UInt64

from jax_diversity.foundation.errors import UserError
from jax_diversity.preparation.readers.files import InputFile
from jax_diversity.preparation.readers.named import find_named, hash_named
from jax_diversity.preparation.readers.records import REPLACED
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_most

_STRONG_WORDS = "porn pornos xxx hentai milf camgirl camgirls blowjob gangbang bukkake upskirt xvideos xhamster redtube"
_WEAK_WORDS = (
    "sex sexy sexcam sexcams adult adults nude nudes naked erotic erotica escort escorts fetish bdsm webcam cams hot "
    "teen teens babe babes hardcore dating casino casinos poker slots betting viagra cialis levitra pharmacy pills "
    "replica warez torrent crack keygen"
)
_STRONG, _WEAK = frozenset(_STRONG_WORDS.split()), frozenset(_WEAK_WORDS.split())
_WORD = re.compile(r"[a-z]+")
_STRONG_PART = re.compile("porn|hentai|xvideo|camgirl|blowjob")
"""Parts of host names. No harmless word contains them."""
_MAX_WEAK_WORDS = 1
_LONGEST_HOST = 253  # characters (RFC 1035)


@dataclass
class Addresses(Step):
    """Removes pages by the field `url`. Documents without this field pass.

    `blocked` names files. Each of their lines has a domain or the beginning of an address (such as
    `example.org/shop`). Subdomains of a blocked domain are blocked too. An entry needs 8 bytes of memory.
    `left_out` lists domains that the corpus gets from another source. A page is also removed if its address has one
    clearly pornographic word, or two words that may be pornographic; a medical page has only one of these. The list
    of words is short and English.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "left_out": "address of a source that the corpus has from elsewhere",
        "blocked": "address in a list of blocked ones",
        "strong_words": "one strong word in the address",
        "weak_words": "several weak words in the address",
    }
    blocked: tuple[str, ...] = ()
    left_out: tuple[str, ...] = (
        "wikipedia.org",
        "wiktionary.org",
        "wikisource.org",
        "arxiv.org",
        "stackexchange.com",
        "stackoverflow.com",
        "github.com",
    )

    def __post_init__(self) -> None:
        files = tuple(file.address for file in find_named("blocked", self.blocked)) if self.blocked else ()
        self._domains, self._beginnings, self._most_folders = _read(files)
        self._left_out = frozenset(map(str.lower, self.left_out))

    def identity(self) -> list[str]:
        """Return the hashes of the lists."""
        return hash_named("blocked", self.blocked) if self.blocked else []

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Compare the address with the lists, then count its words."""
        url = candidate.document.metadata.get("url")
        if not isinstance(url, str) or not url.strip():
            return
        host, path = _split(url)
        domains = _domains_of(host)
        yield at_most("left_out", int(not self._left_out.isdisjoint(domains)), 0)
        if self.blocked:
            beginnings = _beginnings(host, path, self._most_folders)
            listed = _holds(self._domains, domains) or _holds(self._beginnings, beginnings)
            yield at_most("blocked", int(listed), 0)
        words = _WORD.findall(url.lower())
        strong = len(_STRONG.intersection(words)) or bool(_STRONG_PART.search(host))
        yield at_most("strong_words", int(strong), 0)
        yield at_most("weak_words", len(_WEAK.intersection(words)), _MAX_WEAK_WORDS)


def _split(url: str) -> tuple[str, str]:
    """Return host and path of an address, which may begin with `http://`."""
    url = url.strip().lower()
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host = parts.hostname or ""
    except ValueError:  # such as an unclosed bracket
        return "", ""
    return host.removeprefix("www.").rstrip("."), parts.path


def _domains_of(host: str) -> list[str]:
    """Return the host and the domains above it. If the text is too long for a host, only its last domains."""
    labels = host[-_LONGEST_HOST:].split(".")
    return [".".join(labels[place:]) for place in range(len(labels))]


def _beginnings(host: str, path: str, most_folders: int) -> list[str]:
    """Return the beginnings of an address, such as `example.org/a` and `example.org/a/b`."""
    folders = path.split("/", most_folders + 1) if most_folders else []
    return [f"{host}{'/'.join(folders[:depth])}" for depth in range(2, len(folders) + 1)]


def _holds(listed: UInt64[np.ndarray, " entry"], names: Sequence[str]) -> bool:
    """Return whether a sorted array has the hash of one of the names."""
    hashes = np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in names], np.uint64)
    places = np.searchsorted(listed, hashes)
    return any(place < len(listed) and listed[place] == value for place, value in zip(places, hashes, strict=True))


@cache
def _read(addresses: tuple[str, ...]) -> tuple[UInt64[np.ndarray, " domain"], UInt64[np.ndarray, " beginning"], int]:
    """Return the sorted hashes of the listed domains and beginnings, and the most folders of a beginning.

    Lists may have millions of lines: an entry needs 8 bytes, and the file is read line by line. The result is cached,
    because a step is made several times.
    """
    domains, beginnings, most_folders = array("Q"), array("Q"), 0
    for address in addresses:
        num_before = len(domains) + len(beginnings)
        for number, line in enumerate(_lines(InputFile(address, address)), start=1):
            entry = line.partition("#")[0].strip()
            if not entry:
                continue
            host, folder = _split(entry)
            folder = folder.rstrip("/")
            if not host or " " in entry or REPLACED in entry:
                raise UserError(
                    f"Expected a domain or an address in each line of {address}, "
                    f"found {entry[:100]!r} in line {number:,}."
                )
            (beginnings if folder else domains).append(xxhash.xxh3_64_intdigest(f"{host}{folder}".encode()))
            most_folders = max(most_folders, folder.count("/"))
        if len(domains) + len(beginnings) == num_before:
            raise UserError(f"Expected addresses in {address}, found none.")
    return np.unique(np.frombuffer(domains, np.uint64)), np.unique(np.frombuffer(beginnings, np.uint64)), most_folders


def _lines(file: InputFile) -> Iterator[str]:
    with file.stream() as content, io.TextIOWrapper(content, "utf-8-sig") as text:
        yield from text
