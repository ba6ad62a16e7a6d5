"""The common parts of all steps. A step reads documents and decides which documents are removed.

A step is a dataclass. Its fields are its options; `__post_init__` checks them. `judge` measures one document and yields
a value for each rule. It may edit the document's `text`, set its `language` and add `scores`, which become fields of
the stored metadata. The evaluation of a document stops at the first failed rule.

Three kinds of steps do more:

- A `Survey` compares all documents. In a first pass it makes a note about each document. Then it resolves all notes
  into a small artifact. In a second pass it judges the documents.
- A `LearningStep` learns from files before documents are read.
- If the decisions of a step depend on more than its options, such as a file or a library, the step returns this as its
  `identity`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from jax_diversity.foundation.methods import Methods
from jax_diversity.foundation.text.languages import language_of_script, main_language
from jax_diversity.foundation.text.words import SYMBOLS, count_unspaced, split_words
from jax_diversity.schema import Document

if TYPE_CHECKING:
    from jax_diversity.preparation.passes.notes import Notes

METHODS = Methods(
    "preparation step",
    "jax_diversity.preparation.steps",
    {
        "addresses": "addresses",
        "c4": "c4",
        "code": "code",
        "decontaminate": "decontaminate",
        "exact_duplicates": "exact_duplicates",
        "fields": "fields",
        "fineweb": "fineweb",
        "gopher": "gopher",
        "gutenberg": "gutenberg",
        "html": "html",
        "language": "language",
        "latex": "latex",
        "licence": "licence",
        "line_corrections": "line_corrections",
        "lines": "lines",
        "mediawiki": "mediawiki",
        "minhash": "minhash",
        "perplexity": "perplexity",
        "personal_data": "personal_data",
        "python": "python",
        "quality": "quality",
        "repetition": "repetition",
        "semantic": "semantic",
        "sentences": "sentences",
        "similar_sentences": "similar_sentences",
        "stack_exchange": "stack_exchange",
        "substrings": "substrings",
        "url_duplicates": "url_duplicates",
        "weight": "weight",
        "words": "words",
    },
)
"""Name -> module in this package. For a new step, write a class in a module, and add a line here."""

_ANY_STEP = {"raised": "the step raised an exception", "took_too_long": "the step took too long"}
"""Phrases of the rules that every step has."""
Span = tuple[int, int]
"""Begin and end of a part of a text."""

_SPACES_AND_OTHERS = bytes(ord(" ") if byte in b"\t\n\v\f\r " else ord("x") for byte in range(256))


def size_of(text: str) -> tuple[int, int]:
    """Return the numbers of words (separated by spaces) and of UTF-8 bytes of a text.

    Example:
        >>> size_of("It costs 3.50 \\N{EURO SIGN}")
        (4, 17)
    """
    # During the edits of a step, a text may contain a lone surrogate.
    encoded = text.encode(errors="surrogatepass")
    marked = encoded.translate(_SPACES_AND_OTHERS)
    return marked.count(b" x") + marked.startswith(b"x"), len(encoded)


class Measured(NamedTuple):
    """The value that a rule measured for one document."""

    rule: str
    value: float
    threshold: float
    passes: bool


def at_least(rule: str, value: float, threshold: float) -> Measured:
    """Return the result of a rule that removes documents below its threshold."""
    return Measured(rule, value, threshold, value >= threshold)


def at_most(rule: str, value: float, threshold: float) -> Measured:
    """Return the result of a rule that removes documents above its threshold."""
    return Measured(rule, value, threshold, value <= threshold)


def unknown(rule: str) -> Measured:
    """Return the result of a rule that cannot judge the document, for example because of its language.

    The document passes. The funnel counts it as not judged by this rule.
    """
    return Measured(rule, math.nan, math.nan, passes=True)


class Removal(NamedTuple):
    """The rule that removed a document."""

    step: str
    rule: str
    value: float
    threshold: float


@dataclass(slots=True)
class Candidate:
    """A document during the steps, with the results of the steps.

    Attributes:
        document: the document as it was read.
        language: the document's language. A step may set it if the document has no language.
        scores: fields to add to the document's metadata.
        measured: `step.rule` -> the value that the rule measured.
        removed: the rule that removed the document; None while the document is kept.
        duplicate_group: the number of the group of duplicates, from the last step that searched for duplicates; None
            for a document without duplicates.
        duplicate_of: the id of the kept document of the group.
        number: the document's number, from 0, among the documents of the survey that judges it now.
        step: the label of the current step.
        entered: the numbers of words and bytes at the start of the current step.
        edited_by: the labels of the steps that changed the text.
        unjudged: the rules of the current step that could not judge the document.
    """

    document: Document
    language: str | None
    scores: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    removed: Removal | None = None
    duplicate_group: int | None = None
    duplicate_of: str | None = None
    number: int = 0
    step: str = ""
    entered: tuple[int, int] = (0, 0)
    edited_by: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    _found: Counter[str] | None = None
    _text: str | None = None
    _words: list[str] | None = None
    _proper_words: list[str] | None = None
    _size: tuple[int, int] | None = None
    _is_unspaced: bool | None = None

    @property
    def text(self) -> str:
        """The text after the previous steps."""
        return self.document.text if self._text is None else self._text

    @text.setter
    def text(self, text: str) -> None:
        if text != self.text:
            self._text, self._size = text, None
            if self.step not in self.edited_by:
                self.edited_by.append(self.step)
            self.forget_words()

    @property
    def words(self) -> list[str]:
        """The words and punctuation marks of the text, split once for all steps."""
        if self._words is None:
            self._words = split_words(self.text)
        return self._words

    @property
    def proper_words(self) -> list[str]:
        """The words without punctuation marks."""
        if self._proper_words is None:
            self._proper_words = list(filterfalse(SYMBOLS.issuperset, self.words))
        return self._proper_words

    @property
    def is_unspaced(self) -> bool:
        """Whether most words of the text are characters of a script without spaces."""
        if self._is_unspaced is None:
            number = count_unspaced(self.text)
            self._is_unspaced = number > 0 and 2 * number > len(self.words)
        return self._is_unspaced

    @property
    def main_language(self) -> str:
        """The language, such as `pt` for `pt-BR`. If no language is set, it may follow from the script; else `""`."""
        if not self.language and self.is_unspaced:
            return language_of_script(self.text)
        return main_language(self.language)

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of words (separated by spaces) and of UTF-8 bytes."""
        if self._size is None:
            self._size = size_of(self.text)
        return self._size

    @property
    def found(self) -> Counter[str]:
        """Counts of the current step by kind, such as e-mail addresses."""
        if self._found is None:
            self._found = Counter()
        return self._found

    @property
    def has_found(self) -> bool:
        """Whether the current step has counted anything."""
        return bool(self._found)

    def enter(self, step: str) -> None:
        """Begin a step."""
        self.step, self.entered, self._found = step, self.size, None
        self.unjudged.clear()

    def restore(self, text: str) -> None:
        """Undo the edits of the current step: set the text before it."""
        self.text = text
        if self.step in self.edited_by:
            self.edited_by.remove(self.step)

    def forget_words(self) -> None:
        """Free the memory of the split words. If words are needed again, the text is split again."""
        self._words = self._proper_words = self._is_unspaced = None

    def judge(self, measured: Measured) -> bool:
        """Record the value of a rule of the current step. Return False if the rule removes the document."""
        value = float(measured.value)  # raises an error for an int that is too large
        if math.isnan(value) and measured.passes:
            self.unjudged.append(measured.rule)
            return True
        self.measured[f"{self.step}.{measured.rule}"] = value
        if not measured.passes:
            self.removed = Removal(self.step, measured.rule, value, measured.threshold)
        return measured.passes

    def finished(self) -> Document:
        """Return the document to store."""
        if self._text is None and not self.scores and self.language == self.document.language:
            return self.document
        metadata = {**self.document.metadata, **self.scores}
        return replace(self.document, text=self.text, language=self.language, metadata=metadata)


class Step(ABC):
    """A step: a dataclass whose fields are its options."""

    kept_files: ClassVar[tuple[str, ...]] = ()
    """The names of learned or resolved files that are stored in the dataset, if the step has written them."""
    is_filter: ClassVar[bool] = True
    """Whether the step removes documents by rules. Only then it can be marked; other steps edit or add fields."""
    PHRASES: ClassVar[Mapping[str, str]] = {}
    """Rule -> why it removes a document, in a few words."""

    @property
    def compares_documents(self) -> bool:
        """Whether the step makes notes about all documents before it judges the first document, as a `Survey` does."""
        return False

    def identity(self) -> Any:
        """Return the inputs of the decisions that are not options, as JSON values; None if there are no such inputs."""
        return None

    def evaluation_lists(self) -> list[str]:
        """Return the files of evaluation texts that the step searches for, each with the start of its SHA-256."""
        return []

    @abstractmethod
    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Measure a document, one rule after another. The iteration ends at the first failed rule."""

    def check_account(self, total: Mapping[str, Any]) -> None:  # noqa: B027  # most steps have nothing to check
        """Check the counts of the step over all documents, as in the funnel.

        Raises:
            UserError: the counts show that the step could not do its work.
        """


def rule_phrase(label: str, rule: str) -> str:
    """Return why a rule removes a document, in a few words; empty if nothing is known about the rule.

    Args:
        label: the label of a step, which is its name, or its name and a number.
        rule: the name of the rule.

    Example:
        >>> rule_phrase("repetition_2", "top_4")
        'too much text in the most frequent run of 4 words'
    """
    name, _, number = label.rpartition("_")
    name = name if number.isdecimal() and name in METHODS else label
    if rule in _ANY_STEP or name not in METHODS:
        return _ANY_STEP.get(rule, "")
    return METHODS.find(name).PHRASES.get(rule, "")


class LearningStep(Step):
    """A step that learns from files before documents are read."""

    @abstractmethod
    def learn(self, folder: Path) -> None:
        """Write the learned files into a folder."""

    @abstractmethod
    def load_learned(self, folder: Path) -> None:
        """Read the learned files, before the first document is judged."""


class Survey(Step):
    """A step that compares all documents. Documents that earlier steps removed do not take part."""

    @property
    def compares_documents(self) -> bool:
        """Whether the step makes notes about all documents before it judges the first document."""
        return True

    @abstractmethod
    def note(self, candidate: Candidate) -> bytes:
        """First pass: return the note about a document. It may be empty."""

    @abstractmethod
    def resolve(self, notes: Notes, folder: Path) -> None:
        """Between the passes: convert all notes to files that the second pass reads."""

    @abstractmethod
    def load_resolved(self, folder: Path) -> None:
        """Second pass: read these files, before the first document is judged."""


def entries(**values: float | str) -> Any:
    """Return the default of an option that is a mapping. Every step gets its own copy."""
    return field(default_factory=lambda: dict(values))
