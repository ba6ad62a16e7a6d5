"""Questions and answers of Stack Exchange to plain text, of the largest sites, as in LLaMA (Touvron et al. 2023)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_least
from jax_diversity.foundation.libraries import optional

_TYPE = "text/x-stack-exchange"
# The paper names none. These have the 28 largest archives of posts, comments and votes in June 2017, by the list of
# archive.org, without sites about sites (meta).
_LARGEST = """
    stackoverflow.com math.stackexchange.com superuser.com askubuntu.com serverfault.com tex.stackexchange.com
    ru.stackoverflow.com unix.stackexchange.com codereview.stackexchange.com physics.stackexchange.com
    stats.stackexchange.com mathoverflow.net english.stackexchange.com electronics.stackexchange.com
    softwareengineering.stackexchange.com pt.stackoverflow.com gis.stackexchange.com scifi.stackexchange.com
    gaming.stackexchange.com dba.stackexchange.com apple.stackexchange.com wordpress.stackexchange.com
    codegolf.stackexchange.com mathematica.stackexchange.com security.stackexchange.com drupal.stackexchange.com
    salesforce.stackexchange.com sharepoint.stackexchange.com
"""
_ANSWER = re.compile(r'\n<article data-score="(-?\d+)">\n')
_BULLET = re.compile(r"^(\s*)• ", re.MULTILINE)


def stack_exchange(
    *,
    sites: str = "largest",
    least_answers: int = 0,
    least_score: int = -1_000_000,
    least_answer_score: int = -1_000_000,
    question: str = "Q: ",
    answer: str = "A: ",
    always: bool = False,
) -> Rules:
    """Makes plain text of questions with their answers, and keeps those of the 28 largest sites.

    `sites` names others, such as `stats.stackexchange.com math.stackexchange.com`; an empty text keeps all. Tags are
    removed; code keeps its lines, lists their items. `question` and `answer` stand before each. Answers
    below `least_answer_score` are left out; then questions with fewer than `least_answers`, or themselves below
    `least_score`, are removed. Documents pass as they are if their field `media_type` is not text/x-stack-exchange,
    unless `always`.
    """
    optional("resiliparse", "preparation")
    wanted = frozenset((_LARGEST if sites == "largest" else sites).replace(",", " ").lower().split())

    def rules(candidate: Candidate) -> Iterator[Measured]:
        from resiliparse.extract.html2text import extract_plain_text  # type: ignore[import-not-found]

        metadata = candidate.document.metadata
        if not always and metadata.get("media_type") != _TYPE:
            return
        if wanted:
            site = str(metadata.get("site", candidate.document.source))
            yield at_least("sites", int(site.lower() in wanted), 1)
        score = metadata.get("score", 0)
        yield at_least("least_score", score if isinstance(score, int) else 0, least_score)
        asked, *rest = _ANSWER.split(candidate.text)
        answers = [body for of, body in zip(rest[::2], rest[1::2], strict=True) if int(of) >= least_answer_score]
        yield at_least("least_answers", len(answers), least_answers)
        parts = [(question, asked), *((answer, body) for body in answers)]
        texts = (before + extract_plain_text(html, alt_texts=False).strip() for before, html in parts)
        candidate.text = _BULLET.sub(r"\1- ", "\n\n".join(texts))
        if len(answers) != len(rest) // 2:
            candidate.scores["num_answers"] = len(answers)

    return rules


def identity(**options: Any) -> str:
    """The version of the library that reads HTML."""
    return version("resiliparse")
