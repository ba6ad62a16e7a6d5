"""The account of one step: documents in and out, and examples to look at."""

from __future__ import annotations

from collections import Counter
from typing import Any

import xxhash

from jax_diversity.preparation.passes.examples import (
    EDITED_CHARACTERS,
    REMOVED_CHARACTERS,
    shown_edited,
    shown_removed,
)
from jax_diversity.preparation.steps.base import Candidate

_FIGURES = ("documents_in", "words_in", "bytes_in", "documents_out", "words_out", "bytes_out")
_Place = tuple[str, str]
"""Source and language. The language of a document without a language is ``""``."""
_EXAMPLES = 10


class Account:
    """Counts of one step by source and language, with examples of removed and edited documents.

    Examples are chosen by the hash of their id, so that the choice does not depend on the division of the work.
    """

    def __init__(self) -> None:
        self._figures: dict[_Place, list[int]] = {}
        self._removed: dict[_Place, Counter[str]] = {}
        self._unjudged: dict[_Place, Counter[str]] = {}
        self.found = Counter[str]()
        self.num_edited = 0
        self._examples: dict[str, list[tuple[int, dict[str, Any]]]] = {}  # rule -> examples; "" -> edited documents

    def add(self, candidate: Candidate, before: str) -> None:
        """Count a document after the step; `before` was its text before the step."""
        place = candidate.document.source, candidate.language or ""
        figures = self._figures.get(place)
        if figures is None:
            figures = self._figures[place] = [0] * len(_FIGURES)
        words_in, bytes_in = candidate.entered
        figures[0] += 1
        figures[1] += words_in
        figures[2] += bytes_in
        if candidate.removed is None:
            words_out, bytes_out = candidate.size
            figures[3] += 1
            figures[4] += words_out
            figures[5] += bytes_out
            if candidate.text is not before:
                self.num_edited += 1
                self._show("", candidate, before)
        else:
            self._removed.setdefault(place, Counter())[candidate.removed.rule] += 1
            self._show(candidate.removed.rule, candidate, before)
        if candidate.unjudged:
            self._unjudged.setdefault(place, Counter()).update(candidate.unjudged)
        if candidate.has_found:
            self.found += candidate.found

    def _show(self, rule: str, candidate: Candidate, before: str) -> None:
        document, removed = candidate.document, candidate.removed
        examples = self._examples.setdefault(rule, [])
        key = xxhash.xxh3_64_intdigest(document.id.encode())
        if len(examples) == _EXAMPLES and key >= examples[-1][0]:
            return
        # We do not mask the text now: only the ten examples that remain at the end are masked and compared.
        example: dict[str, Any] = {"id": document.id, "source": document.source}
        if removed is None:
            example |= {"before": before[:EDITED_CHARACTERS], "after": candidate.text[:EDITED_CHARACTERS]}
        else:
            example |= {"language": candidate.language, "value": removed.value, "threshold": removed.threshold}
            example["text"] = before[:REMOVED_CHARACTERS]
        examples.append((key, example))
        examples.sort(key=lambda pair: (pair[0], pair[1]["id"]))
        del examples[_EXAMPLES:]

    def merge(self, other: Account) -> None:
        """Add the account of another part of the corpus."""
        for place, figures in other._figures.items():
            before = self._figures.get(place, [0] * len(_FIGURES))
            self._figures[place] = [old + new for old, new in zip(before, figures, strict=True)]
        for place, removed in other._removed.items():
            self._removed.setdefault(place, Counter()).update(removed)
        for place, unjudged in other._unjudged.items():
            self._unjudged.setdefault(place, Counter()).update(unjudged)
        self.found += other.found
        self.num_edited += other.num_edited
        for rule, examples in other._examples.items():
            merged = self._examples.setdefault(rule, [])
            merged += examples
            merged.sort(key=lambda pair: (pair[0], pair[1]["id"]))
            del merged[_EXAMPLES:]

    def plain(self) -> list[Any]:
        """Return the account as JSON values."""
        by_place = ([*counts.items()] for counts in (self._figures, self._removed, self._unjudged))
        return [*by_place, self.found, self.num_edited, self._examples]

    @classmethod
    def of_plain(cls, plain: list[Any]) -> Account:
        """Make an account from the result of `plain`."""
        figures, removed, unjudged, kinds, num_edited, examples = plain
        account = cls()
        account._figures = {(source, language): [*map(int, numbers)] for (source, language), numbers in figures}
        account._removed = {(source, language): Counter(rules) for (source, language), rules in removed}
        account._unjudged = {(source, language): Counter(rules) for (source, language), rules in unjudged}
        account.found, account.num_edited = Counter(kinds), int(num_edited)
        account._examples = {rule: [(key, example) for key, example in entries] for rule, entries in examples.items()}
        return account

    def total(self) -> dict[str, Any]:
        """Return the numbers of documents, words and bytes, removed and unjudged documents by rule, finds, edits."""
        figures = [sum(column) for column in zip(*self._figures.values(), strict=True)] or [0] * len(_FIGURES)
        removed, unjudged = (sum(counts.values(), Counter[str]()) for counts in (self._removed, self._unjudged))
        return {
            **dict(zip(_FIGURES, figures, strict=True)),
            "removed": dict(sorted(removed.items())),
            "unjudged": dict(sorted(unjudged.items())),
            "found": dict(sorted(self.found.items())),
            "edited": self.num_edited,
        }

    def by(self, part: int) -> dict[str, dict[str, Any]]:
        """Return the same numbers without finds and edits, by source (`part` 0) or language (1)."""
        accounts: dict[str, Account] = {}
        for place, figures in self._figures.items():
            one = accounts.setdefault(place[part], Account())
            one._figures[place] = figures
            one._removed[place] = self._removed.get(place, Counter())
            one._unjudged[place] = self._unjudged.get(place, Counter())
        totals = {key: accounts[key].total() for key in sorted(accounts)}
        return {
            key: {name: total[name] for name in (*_FIGURES, "removed", "unjudged")} for key, total in totals.items()
        }

    def removed_examples(self) -> dict[str, list[dict[str, Any]]]:
        """Return rule -> examples of removed documents, with personal data masked."""
        return {
            rule: [shown_removed(example) for _, example in entries]
            for rule, entries in sorted(self._examples.items())
            if rule
        }

    def edited_examples(self) -> list[dict[str, Any]]:
        """Return examples of edited documents, as lines with a sign. Personal data are masked."""
        return [shown_edited(example) for _, example in self._examples.get("", [])]
