"""Questions and answers of Stack Exchange as plain text, of the largest sites, as in LLaMA (Touvron et al. 2023)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import ClassVar

from jax_diversity.foundation.libraries import optional
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_least, entries
from jax_diversity.preparation.steps.html import markup_limits
from jax_diversity.preparation.steps.raised import with_raised

_TYPE = "text/x-stack-exchange"
# The paper names no sites. These had the 28 largest archives of posts, comments and votes in June 2017 on archive.org,
# without sites about sites (meta).
LARGEST = (
    *("stackoverflow.com", "math.stackexchange.com", "superuser.com", "askubuntu.com", "serverfault.com"),
    *("tex.stackexchange.com", "ru.stackoverflow.com", "unix.stackexchange.com", "codereview.stackexchange.com"),
    *("physics.stackexchange.com", "stats.stackexchange.com", "mathoverflow.net", "english.stackexchange.com"),
    *("electronics.stackexchange.com", "softwareengineering.stackexchange.com", "pt.stackoverflow.com"),
    *("gis.stackexchange.com", "scifi.stackexchange.com", "gaming.stackexchange.com", "dba.stackexchange.com"),
    *("apple.stackexchange.com", "wordpress.stackexchange.com", "codegolf.stackexchange.com"),
    *("mathematica.stackexchange.com", "security.stackexchange.com", "drupal.stackexchange.com"),
    *("salesforce.stackexchange.com", "sharepoint.stackexchange.com"),
)
_ANSWER = re.compile(r'\n<article data-score="(-?[0-9]{1,19})">\n')
_BULLET = re.compile(r"^([^\S\n]*+)• ", re.MULTILINE)


@dataclass
class StackExchange(Step):
    """Converts questions with their answers to plain text, and keeps the questions of the listed `sites`.

    The default is the 28 largest sites; an empty list keeps all sites. Tags are removed; code keeps its lines, and
    lists keep their items. `Q: ` is written before the question, `A: ` before every answer. Answers with a score below
    `least_answer_score` are left out. Questions with fewer than `least_answers` answers or a score below `least_score`
    are removed. The limits of markup are the same as in the step html. If the field `media_type` of a document is not
    text/x-stack-exchange, the document passes unchanged, except with `always`.
    """

    is_filter = False
    PHRASES: ClassVar[Mapping[str, str]] = {
        "sites": "question of a site that is not wanted",
        "least_score": "question with a low score",
        "least_answers": "question with too few answers",
    }
    sites: tuple[str, ...] = LARGEST
    thresholds: Mapping[str, float] = entries(least_answers=0, least_score=-1_000_000, least_answer_score=-1_000_000)
    always: bool = False

    def __post_init__(self) -> None:
        optional("resiliparse", "preparation")
        self._sites = frozenset(map(str.lower, self.sites))

    def identity(self) -> str:
        """Return the version of the library that reads HTML."""
        return version("resiliparse")

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Choose site, score and answers, then extract the text."""
        metadata = candidate.document.metadata
        if not self.always and metadata.get("media_type") != _TYPE:
            return
        if self._sites:
            site = str(metadata.get("site", candidate.document.source))
            yield at_least("sites", int(site.lower() in self._sites), 1)
        score, limits = metadata.get("score", 0), self.thresholds
        yield at_least("least_score", score if isinstance(score, int) else 0, limits["least_score"])
        yield from markup_limits(candidate.text)
        question, *rest = _ANSWER.split(candidate.text)
        pairs = zip(rest[::2], rest[1::2], strict=True)
        answers = [body for of, body in pairs if int(of) >= limits["least_answer_score"]]
        yield at_least("least_answers", len(answers), limits["least_answers"])
        parts = [("Q: ", question), *(("A: ", body) for body in answers)]
        # A part may have no text: a question of images alone, an answer that was deleted.
        texts = (before + text for before, html in parts if (text := _text(html)))
        candidate.text = _BULLET.sub(r"\1- ", "\n\n".join(texts))
        if len(answers) != len(rest) // 2:
            candidate.scores["num_answers"] = len(answers)


def _text(html: str) -> str:
    from resiliparse.extract.html2text import extract_plain_text  # type: ignore[import-not-found]

    return extract_plain_text(with_raised(html), alt_texts=False).strip()
