"""Web addresses that are not wanted: a list of blocked ones, scored words, and sources that come in separately.

After RefinedWeb (Penedo et al. 2023, arXiv:2306.01116, appendix G.1): words that are always blocked, and others of
which one alone, as in the address of a medical page, is no reason.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_most
from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.errors import UserError, in_one_line

SOURCES = "wikipedia.org wiktionary.org wikisource.org arxiv.org stackexchange.com stackoverflow.com github.com"
_STRONG_WORDS = "porn pornos xxx hentai milf camgirl camgirls blowjob gangbang bukkake upskirt xvideos xhamster redtube"
_WEAK_WORDS = (
    "sex sexy sexcam sexcams adult adults nude nudes naked erotic erotica escort escorts fetish bdsm webcam cams hot "
    "teen teens babe babes hardcore dating casino casinos poker slots betting viagra cialis levitra pharmacy pills "
    "replica warez torrent crack keygen"
)
_STRONG, _WEAK = frozenset(_STRONG_WORDS.split()), frozenset(_WEAK_WORDS.split())
_WORD = re.compile(r"[a-z]+")
_STRONG_PART = re.compile("porn|hentai|xvideo|camgirl|blowjob")
"""What is never a part of another word."""


def addresses(
    *,
    blocked: str = "",
    words: bool = True,
    most_weak_words: int = 1,
    left_out: str = SOURCES,
    field: str = "url",
) -> Rules:
    """Removes pages by their addresses, which are in the field `field`; documents without one pass.

    `blocked` is a file of domains, whose subdomains are blocked as well, and of beginnings of addresses such as
    `example.org/shop`, one a line; it may be a .gz. `words` counts unwanted words: one strong word, or more weak ones
    than `most_weak_words`, remove a page. `left_out` names domains that are mixed in separately, between spaces.
    """
    domains, beginnings = _read(blocked) if blocked else (frozenset(), frozenset())
    separate = frozenset(left_out.lower().split())

    def rules(candidate: Candidate) -> Iterator[Measured]:
        url = candidate.document.metadata.get(field)
        if not isinstance(url, str) or not url.strip():
            return
        host, path = _parts(url)
        parents = _parents(host)
        yield at_most("left_out", int(not separate.isdisjoint(parents)), 0)
        if blocked:
            listed = not domains.isdisjoint(parents) or any(_begins(host, path, beginnings))
            yield at_most("blocked", int(listed), 0)
        if words:
            found = _WORD.findall(url.lower())
            strong = len(_STRONG.intersection(found)) or bool(_STRONG_PART.search(host))
            yield at_most("strong_words", int(strong), 0)
            yield at_most("weak_words", len(_WEAK.intersection(found)), most_weak_words)

    return rules


def identity(*, blocked: str = "", **options: object) -> str:
    """The hash of the list."""
    return file_hash(Path(blocked)) if blocked and Path(blocked).is_file() else ""


def _parts(url: str) -> tuple[str, str]:
    """Host and path of an address, which may lack its `http://`."""
    url = url.strip().lower()
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host = parts.hostname or ""
    except ValueError:  # such as a bracket that is not closed
        return "", ""
    return host.removeprefix("www.").rstrip("."), parts.path


def _parents(host: str) -> list[str]:
    """The host and the domains above it."""
    labels = host.split(".")
    return [".".join(labels[place:]) for place in range(len(labels))]


def _begins(host: str, path: str, beginnings: frozenset[str]) -> Iterator[bool]:
    if beginnings:
        folders = path.split("/")
        yield from (f"{host}{'/'.join(folders[:depth])}" in beginnings for depth in range(2, len(folders) + 1))


@cache
def _read(path: str) -> tuple[frozenset[str], frozenset[str]]:
    """Domains, and beginnings of addresses."""
    domains, beginnings = set[str](), set[str]()
    try:
        with gzip.open(path, "rt") if path.endswith(".gz") else open(path, encoding="utf-8") as file:
            for line in file:
                entry = line.partition("#")[0].strip()
                if not entry:
                    continue
                host, folder = _parts(entry)
                folder = folder.rstrip("/")
                if not host or " " in entry:
                    raise UserError(f"Expected a domain or an address a line in {path}, found {entry[:100]!r}.")
                (beginnings if folder else domains).add(f"{host}{folder}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"Expected a list of addresses in {path}, found: {in_one_line(error)}.") from None
    if not domains and not beginnings:
        raise UserError(f"Expected addresses in {path}, found none.")
    return frozenset(domains), frozenset(beginnings)
