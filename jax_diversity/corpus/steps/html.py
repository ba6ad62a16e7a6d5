"""The text of web pages: extracted by trafilatura (Barbaresi 2021, ACL demonstrations), or faster by resiliparse.

RefinedWeb and FineWeb take trafilatura (Penedo et al. 2023, 2024), DCLM and others resiliparse (Li et al. 2024).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Literal, get_args

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_least, at_most
from jax_diversity.foundation.checks import one_of, whole_number
from jax_diversity.foundation.errors import in_one_line
from jax_diversity.foundation.libraries import optional

Extractor = Literal["trafilatura", "resiliparse"]
MEDIA_TYPES = frozenset({"text/html", "application/xhtml+xml"})


def html(
    *, extractor: str = "trafilatura", tables: bool = True, most_characters: int = 2_000_000, always: bool = False
) -> Rules:
    """Takes the text out of a page, without menus, banners and comments.

    `extractor` trafilatura finds the text more exactly, resiliparse is some ten times as fast. A page of more than
    `most_characters`, one in which no text is found, and one that the library cannot read are removed. Documents
    whose field `media_type` is not that of HTML pass, unless `always`.
    """
    one_of("extractor", extractor, get_args(Extractor))
    whole_number("most_characters", most_characters, 1)
    optional(extractor, "preparation")
    extract = _trafilatura(tables) if extractor == "trafilatura" else _resiliparse()

    def rules(candidate: Candidate) -> Iterator[Measured]:
        if not always and candidate.document.metadata.get("media_type") not in MEDIA_TYPES:
            return
        page = candidate.text
        yield at_most("most_characters", len(page), most_characters)
        try:
            text = extract(page)
        except Exception as error:  # of a parser in C and much code around it; the document has a row that says so
            candidate.found[f"{type(error).__name__}: {in_one_line(error)}"[:100]] += 1
            yield at_most("raised", 1, 0)
            return
        yield at_least("characters_found", len(text), 1)
        candidate.text = text

    return rules


def identity(*, extractor: str = "trafilatura", **options: object) -> str:
    """The library's version."""
    return version(extractor) if find_spec(extractor) else ""


def _trafilatura(tables: bool) -> Callable[[str], str]:
    from trafilatura import extract
    from trafilatura.settings import use_config

    # Pages that it cannot read are counted here; it would also log each of them.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    config = use_config()
    config.set("DEFAULT", "EXTRACTION_TIMEOUT", "0")  # its clock is a signal, which only a main thread can take

    def found(page: str) -> str:
        return (extract(page, include_comments=False, include_tables=tables, config=config) or "").strip()

    return found


def _resiliparse() -> Callable[[str], str]:
    from resiliparse.extract.html2text import extract_plain_text

    def found(page: str) -> str:
        return extract_plain_text(page, main_content=True, alt_texts=False).strip()

    return found
