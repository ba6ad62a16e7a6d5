"""C4's rules (Raffel et al. 2020, JMLR 21(140), section 2.2, and the code that came with the paper)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_least, at_most
from jax_diversity.text.words import split_sentences

_ENDS = (".", "?", "!", '"', "'")
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_POLICY = re.compile(r"terms of use|(?:privacy|cookie) policy|uses cookies|use (?:of )?cookies")


def c4(
    *,
    least_sentences: int = 5,
    least_words_a_line: int = 3,
    longest_word: int = 1000,
    terminal_punctuation: bool = True,
    citations: bool = True,
    javascript: bool = True,
    policy: bool = True,
    lorem_ipsum: bool = True,
    curly_brackets: bool = True,
) -> Rules:
    """Removes lines that are no sentences, then documents with few sentences left, dummy text or code.

    A line goes that does not end a sentence (`terminal_punctuation`), has few words or a word of more than
    `longest_word` characters, or speaks of Javascript or of terms and cookies; marks of citation are cut out
    (`citations`). False turns a rule off. The words of a line are what spaces divide. The list of bad words is no part.
    """

    def is_kept(line: str, words: list[str]) -> bool:
        if terminal_punctuation and (not line.endswith(_ENDS) or line.endswith("...")):
            return False
        return len(words) >= least_words_a_line

    def rules(candidate: Candidate) -> Iterator[Measured]:
        kept, num_sentences = [], 0
        for line in map(str.strip, candidate.text.splitlines()):
            words = line.split()
            if len(line) > longest_word and any(len(word) > longest_word for word in words):
                continue
            if citations and "[" in line:
                line = _CITATION.sub("", line)
            if not is_kept(line, words):
                continue
            lower = line.lower()
            if lorem_ipsum and "lorem ipsum" in lower:
                yield at_most("lorem_ipsum", 1, 0)
            if javascript and "javascript" in lower:
                continue
            if curly_brackets and "{" in line:
                yield at_most("curly_brackets", 1, 0)
            if policy and _POLICY.search(lower):
                continue
            num_sentences += len(split_sentences(line))
            kept.append(line)
        yield at_least("least_sentences", num_sentences, least_sentences)
        candidate.text = "\n".join(kept).strip()

    return rules
