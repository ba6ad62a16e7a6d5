"""What all steps have in common: documents in, decisions out.

A step is a dataclass whose fields are its options; `__post_init__` checks them. `judge` measures one document and
yields what each rule measured. It may edit the document's `text`, set its `language` and add `scores`, which become
fields of the stored metadata. Evaluation of a document stops at the first failed rule.

Three kinds of steps do more:

- A `Survey` compares all documents. In a first pass it notes something of each document, then it resolves all notes
into
  a small artifact, and in a second pass it judges.
- A `LearningStep` learns from files before documents are read.
- A step whose decisions depend on more than its options, such as a file or a library, returns that as its `identity`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from jax_diversity.foundation.methods import Methods
from jax_diversity.schema import Document
from jax_diversity.text.words import SYMBOLS, split_words

if TYPE_CHECKING:
    from jax_diversity.corpus.passes.notes import Notes

METHODS = Methods(
    "preparation step",
    "jax_diversity.corpus.steps",
    {
        "addresses": "addresses",
        "c4": "c4",
        "code": "code",
        "decontaminate": "decontaminate",
        "exact_duplicates": "exact_duplicates",
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
        "stack_exchange": "stack_exchange",
        "substrings": "substrings",
        "weight": "weight",
        "words": "words",
    },
)
"""Name -> module below this package. A new step is a class in its module, and one line here."""

Span = tuple[int, int]
"""Begin and end of a part of a text."""

_SPACES_AND_OTHERS = bytes(ord(" ") if byte in b"\t\n\v\f\r " else ord("x") for byte in range(256))


def size_of(text: str) -> tuple[int, int]:
    """The numbers of words (separated by spaces) and of UTF-8 bytes of a text.

    Example:
        >>> size_of("It costs 3.50 \\N{EURO SIGN}")
        (4, 17)
    """
    # A text may hold a lone surrogate while a step edits it.
    encoded = text.encode(errors="surrogatepass")
    marked = encoded.translate(_SPACES_AND_OTHERS)
    return marked.count(b" x") + marked.startswith(b"x"), len(encoded)


class Measured(NamedTuple):
    """What a rule measured of one document."""

    rule: str
    value: float
    threshold: float
    passes: bool


def at_least(rule: str, value: float, threshold: float) -> Measured:
    """A rule that removes documents below its threshold."""
    return Measured(rule, value, threshold, value >= threshold)


def at_most(rule: str, value: float, threshold: float) -> Measured:
    """A rule that removes documents above its threshold."""
    return Measured(rule, value, threshold, value <= threshold)


class Removal(NamedTuple):
    """The rule that removed a document."""

    step: str
    rule: str
    value: float
    threshold: float


@dataclass(slots=True)
class Candidate:
    """A document while it passes the steps, with the steps' findings.

    Attributes:
        document: the document as it was read.
        language: its language; a step may set it if the document names none.
        scores: fields to add to its metadata.
        measured: the rules' values, by `step.rule`.
        removed: the rule that removed it; None while it is kept.
        duplicate_group: a number that all duplicates of one another share, from the last step that looked for
            duplicates; None for a document without duplicates.
        duplicate_of: the id of the kept document of that group.
        number: the position in the count of the survey that judges it now, from 0.
        step: the label of the current step.
        entered: its words and bytes at the start of the current step.
        is_edited: whether a step has changed its text.
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
    is_edited: bool = False
    _found: Counter[str] | None = None
    _text: str | None = None
    _words: list[str] | None = None
    _proper_words: list[str] | None = None
    _size: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        """The text as the previous steps left it."""
        return self.document.text if self._text is None else self._text

    @text.setter
    def text(self, text: str) -> None:
        if text != self.text:
            self._text, self._size, self.is_edited = text, None, True
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

    def forget_words(self) -> None:
        """Free the memory of the split words; they are split again if needed."""
        self._words = self._proper_words = None

    def judge(self, measured: Measured) -> bool:
        """Record the value of a rule of the current step; False if the rule removes the document."""
        value = self.measured[f"{self.step}.{measured.rule}"] = float(
            measured.value
        )  # raises for an int beyond all floats
        if not measured.passes:
            self.removed = Removal(self.step, measured.rule, value, measured.threshold)
        return measured.passes

    def finished(self) -> Document:
        """The document to store."""
        if self._text is None and not self.scores and self.language == self.document.language:
            return self.document
        metadata = {**self.document.metadata, **self.scores}
        return replace(self.document, text=self.text, language=self.language, metadata=metadata)


class Step(ABC):
    """A step: a dataclass whose fields are its options."""

    @property
    def compares_documents(self) -> bool:
        """Whether all documents are noted before the first is judged, as in a `Survey`."""
        return False

    def identity(self) -> Any:
        """What the decisions depend on besides the options, as plain values; None if nothing."""
        return None

    @abstractmethod
    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Measure a document, one rule after another; the iteration ends at the first failed rule."""


class LearningStep(Step):
    """A step that learns from files before documents are read."""

    kept_files: ClassVar[tuple[str, ...]] = ()
    """Learned files that stay in the dataset."""

    @abstractmethod
    def learn(self, folder: Path) -> None:
        """Write the learned files into a folder."""

    @abstractmethod
    def load_learned(self, folder: Path) -> None:
        """Read the learned files, before the first document is judged."""


class Survey(Step):
    """A step that compares all documents; its count leaves out documents that earlier steps removed."""

    @property
    def compares_documents(self) -> bool:
        """Whether all documents are noted before the first is judged."""
        return True

    @abstractmethod
    def note(self, candidate: Candidate) -> bytes:
        """First pass: the note of a document; empty if there is nothing to note."""

    @abstractmethod
    def resolve(self, notes: Notes, folder: Path) -> None:
        """Between the passes: turn all notes into files that the second pass reads."""

    @abstractmethod
    def load_resolved(self, folder: Path) -> None:
        """Second pass: read these files, before the first document is judged."""


def entries(**values: float | str) -> Any:
    """The default of an option that is a mapping: every step gets its own copy."""
    return field(default_factory=lambda: dict(values))
