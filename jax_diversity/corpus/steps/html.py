"""The text of web pages, extracted by trafilatura (Barbaresi 2021, ACL demonstrations) or resiliparse.

RefinedWeb and FineWeb use trafilatura (Penedo et al. 2023, 2024); DCLM and others use resiliparse (Li et al. 2024).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from jax_diversity.corpus.steps.base import Candidate, Measured, Step, at_least, at_most
from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.libraries import optional

MEDIA_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_MOST_CHARACTERS = 2_000_000


@dataclass
class Html(Step):
    """Extracts the text of a page, without menus, banners and comments.

    The extractor trafilatura is more exact; resiliparse is some ten times as fast. A page is removed if it has more
    than two million characters or if it has no text. Documents whose field `media_type` is not
    that of HTML pass, unless `always`.
    """

    extractor: Literal["trafilatura", "resiliparse"] = "trafilatura"
    always: bool = False

    def __post_init__(self) -> None:
        check_one_of("extractor", self.extractor, ("trafilatura", "resiliparse"))
        optional(self.extractor, "preparation")
        self._extract = _trafilatura() if self.extractor == "trafilatura" else _resiliparse()

    def identity(self) -> str:
        """The library's version."""
        return version(self.extractor)

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Extract the text."""
        if not self.always and candidate.document.metadata.get("media_type") not in MEDIA_TYPES:
            return
        yield at_most("most_characters", len(candidate.text), _MOST_CHARACTERS)
        text = self._extract(candidate.text)
        yield at_least("characters_found", len(text), 1)
        candidate.text = text


def _trafilatura() -> Callable[[str], str]:
    from trafilatura import extract
    from trafilatura.settings import use_config

    # The step counts unreadable pages; the library would also log each of them.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    config = use_config()
    config.set("DEFAULT", "EXTRACTION_TIMEOUT", "0")  # it uses a signal, which needs the main thread

    def found(page: str) -> str:
        return (extract(page, include_comments=False, include_tables=True, config=config) or "").strip()

    return found


def _resiliparse() -> Callable[[str], str]:
    from resiliparse.extract.html2text import extract_plain_text

    def found(page: str) -> str:
        return extract_plain_text(page, main_content=True, alt_texts=False).strip()

    return found
