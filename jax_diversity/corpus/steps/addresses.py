"""Remove unwanted web addresses: block lists, words with scores, and sources that the corpus gets from elsewhere.

We follow RefinedWeb (Penedo et al. 2023, arXiv:2306.01116, appendix G.1): one strong word blocks a page. One weak word,
as in the address of a medical page, does not block it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar
from urllib.parse import urlsplit

from jax_diversity.corpus.readers.files import InputFile
from jax_diversity.corpus.readers.named import find_named, hash_named, read_content
from jax_diversity.corpus.steps.base import Candidate, Measured, Step, at_most
from jax_diversity.foundation.errors import UserError

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

    `blocked` names files. Each of their lines has a domain or the beginning of an address (such as `example.org/shop`).
    Subdomains of a blocked domain are blocked too. `left_out` lists domains that the corpus gets from another source.
    One strong word or two weak words remove a page.
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
        self._domains, self._beginnings = _read(files)
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
            listed = not self._domains.isdisjoint(domains) or any(_begins(host, path, self._beginnings))
            yield at_most("blocked", int(listed), 0)
        found = _WORD.findall(url.lower())
        strong = len(_STRONG.intersection(found)) or bool(_STRONG_PART.search(host))
        yield at_most("strong_words", int(strong), 0)
        yield at_most("weak_words", len(_WEAK.intersection(found)), _MAX_WEAK_WORDS)


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


def _begins(host: str, path: str, beginnings: frozenset[str]) -> Iterator[bool]:
    if beginnings:
        folders = path.split("/", _most_folders(beginnings) + 1)
        yield from (f"{host}{'/'.join(folders[:depth])}" in beginnings for depth in range(2, len(folders) + 1))


@cache
def _most_folders(beginnings: frozenset[str]) -> int:
    return max(beginning.count("/") for beginning in beginnings)


@cache
def _read(addresses: tuple[str, ...]) -> tuple[frozenset[str], frozenset[str]]:
    """Read the domains and the beginnings of addresses. The result is cached, because a step is made several times."""
    domains, beginnings = set[str](), set[str]()
    for address in addresses:
        num_before = len(domains) + len(beginnings)
        for line in read_content(InputFile(address, address)).splitlines():
            entry = line.partition("#")[0].strip()
            if not entry:
                continue
            host, folder = _split(entry)
            folder = folder.rstrip("/")
            if not host or " " in entry:
                raise UserError(f"Expected a domain or an address a line in {address}, found {entry[:100]!r}.")
            (beginnings if folder else domains).add(f"{host}{folder}")
        if len(domains) + len(beginnings) == num_before:
            raise UserError(f"Expected addresses in {address}, found none.")
    return frozenset(domains), frozenset(beginnings)
