"""C4's rules for lines and documents (Raffel et al. 2020, JMLR 21(140), section 2.2, and the code of the paper)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.text.scripts import ends_without_mark
from jax_diversity.foundation.text.sentences import CLOSERS, FREE_TERMINALS, count_sentences
from jax_diversity.foundation.text.words import split_spaced
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_least, at_most, entries, unknown

_ENDS = (".", "?", "!", '"', "'")
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_POLICY = re.compile(r"terms of use|(?:privacy|cookie) policy|uses cookies|use (?:of )?cookies")
_POLICY_WORDS = ("policy", "cookies", "terms of use")  # one of them is in every match of the pattern
_RULES = ("terminal_punctuation", "citations", "javascript", "policy", "lorem_ipsum", "curly_brackets")


@dataclass
class C4(Step):
    """Removes lines that are not sentences, then documents with too few remaining sentences, dummy text or code.

    A line is removed if it does not end a sentence (`terminal_punctuation`), has few words or a word that is too long,
    or mentions Javascript (`javascript`) or terms and cookies (`policy`). Citation marks are cut out (`citations`).
    Documents with dummy text (`lorem_ipsum`) or a curly bracket (`curly_brackets`) are removed. `without` lists rules
    that are turned off. Spaces separate the words of a line; in documents in a script without spaces, each character is
    a word. Marks of all scripts end a sentence. Thai and Lao have no such marks: `terminal_punctuation` does not judge
    their lines. The paper's list of bad words is not included.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "lorem_ipsum": "contains dummy text",
        "curly_brackets": "contains a curly bracket",
        "least_sentences": "too few sentences",
    }
    thresholds: Mapping[str, float] = entries(least_sentences=5, least_words_a_line=3, longest_word=1000)
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for rule in self.without:
            check_one_of("without", rule, _RULES)
        self._on = frozenset(_RULES).difference(self.without)

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Choose the lines, then count the sentences."""
        kept, num_sentences, has_marks = [], 0, True
        longest_word, least_words = self.thresholds["longest_word"], self.thresholds["least_words_a_line"]
        # A text has many lines, so the rules are looked up once per text.
        names = ("terminal_punctuation", "citations", "javascript", "policy")
        needs_mark, cuts_citations, no_javascript, no_policy = map(self._on.__contains__, names)
        split = split_spaced if candidate.is_unspaced else str.split
        for line in map(str.strip, candidate.text.splitlines()):
            words = split(line)
            if len(line) > longest_word and any(len(word) > longest_word for word in words):
                continue
            if cuts_citations and "[" in line:
                line = _CITATION.sub("", line)
            if len(words) < least_words:
                continue
            if needs_mark and not _ends_sentence(line):
                if not ends_without_mark(line):
                    continue
                has_marks = False
            lower = line.lower()
            if "lorem ipsum" in lower and "lorem_ipsum" in self._on:
                yield at_most("lorem_ipsum", 1, 0)
            if no_javascript and "javascript" in lower:
                continue
            if "{" in line and "curly_brackets" in self._on:
                yield at_most("curly_brackets", 1, 0)
            # Most lines have none of these words, and a search for a word is faster than one for a pattern.
            if no_policy and any(map(lower.__contains__, _POLICY_WORDS)) and _POLICY.search(lower):
                continue
            num_sentences += count_sentences(line)
            kept.append(line)
        if not has_marks:
            yield unknown("terminal_punctuation")
        yield at_least("least_sentences", num_sentences, self.thresholds["least_sentences"])
        candidate.text = "\n".join(kept).strip()


def _ends_sentence(line: str) -> bool:
    if line.endswith(_ENDS):
        return not line.endswith("...")
    return line.rstrip(CLOSERS)[-1:] in FREE_TERMINALS
