"""Find documents with the same address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import quote, unquote, urlsplit

import xxhash

from jax_diversity.preparation.steps.base import Candidate
from jax_diversity.preparation.steps.duplicates import HashedGroups

# Parameters that only count visitors.
_TRACKING = re.compile(
    r"(?:utm_\w+|gclid|dclid|gbraid|wbraid|fbclid|msclkid|yclid|mc_[ce]id|igshid|_ga|_gl|_hs(?:enc|mi)|vero_id|mkt_tok"
    r"|phpsessid|jsessionid|sessionid|sid)\Z",
    re.IGNORECASE,
)
_INDEX = re.compile(r"/(?:index|default)\.(?:html?|php|aspx?|jsp)\Z", re.IGNORECASE)
_SESSION = re.compile(r";jsessionid=[^/?]*", re.IGNORECASE)
_SAFE = "/!$&'()*+,;=:@~-._"
_PORTS = ("80", "443")
_LONGEST = 10_000


@dataclass
class UrlDuplicates(HashedGroups):
    """Keeps one of the documents whose addresses in the field `url` are equal after normalisation.

    http and https, `www.`, capital letters in the host, the usual ports, the part after `#`, a last slash,
    `index.html`, the order of parameters, and parameters that only count visitors (`utm_source`, `gclid`) do not
    matter. Documents without an address have no duplicates. The other options are as in `exact_duplicates`.
    """

    STEP: ClassVar[str] = "url_duplicates"
    field: str = "url"
    mark: bool = False
    precedence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    keep_signatures: bool = False

    def sign(self, candidate: Candidate) -> bytes:
        """Compute a hash of the address."""
        url = candidate.document.metadata.get(self.field)
        normal = normal_url(url) if isinstance(url, str) else ""
        return xxhash.xxh3_128_digest(normal.encode(errors="surrogatepass")) if normal else b""


def normal_url(url: str) -> str:
    """Return the normal form of an address, without its scheme; an empty text for a text that is not an address.

    Example:
        >>> normal_url("HTTP://www.Example.org:80/a/../b/index.html?y=2&utm_source=x&x=1#top")
        'example.org/b?x=1&y=2'
    """
    url = url.strip()[:_LONGEST]
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = (parts.hostname or "").removeprefix("www.").rstrip("."), parts.netloc.rpartition(":")[2]
    except ValueError:  # such as an unclosed bracket
        return ""
    if not host:
        return ""
    if port.isascii() and port.isdigit() and port not in _PORTS:
        host = f"{host}:{port}"
    folders = list[str]()
    for folder in _SESSION.sub("", parts.path).split("/"):
        if folder == ".." and folders:
            folders.pop()
        elif folder not in ("", ".", ".."):
            folders.append(quote(unquote(folder, errors="surrogateescape"), _SAFE, errors="surrogateescape"))
    path = _INDEX.sub("", "/" + "/".join(folders)).rstrip("/")
    pairs = sorted(pair for pair in parts.query.split("&") if pair and not _TRACKING.match(pair.partition("=")[0]))
    return f"{host}{path}{'?' if pairs else ''}{'&'.join(pairs)}"
