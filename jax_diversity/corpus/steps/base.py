"""The contract of all steps: documents in, decisions out.

A step is made by a function of its name, whose keyword parameters are its options. The function checks them and returns
the step. Most steps look at one document at a time: they are `Rules`, a function that measures a document, may edit its
`text`, set its `language` and add `scores`, which become fields of the stored document's metadata. The chain runs them
fused, in one pass. A step that looks at all documents is a `Survey`: two passes, with a small artifact between them.

A step's module may have two functions of the same options. `identity` returns what else the decisions depend on, such
as the hash of a file. `learn` writes what the step needs to know before documents are read into the folder that is its
first argument; the step gets that folder as the keyword parameter `learned`, and `check` of the same options refuses
wrong ones before that. Files of the folder that the module names in `KEPT` stay in the dataset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    contract=frozenset({"learned"}),
)
"""Name -> module below this package. A new step is a function of this name in its module, and one line here."""


_SPACES_AND_OTHERS = bytes(ord(" ") if byte in b"\t\n\v\f\r " else ord("x") for byte in range(256))


def size_of(text: str) -> tuple[int, int]:
    """A text's number of words, which are what spaces divide, and of UTF-8 bytes.

    Example:
        >>> size_of("It costs 3.50 \\N{EURO SIGN}")
        (4, 17)
    """
    # A surrogate without its other half, which a step may have made, is found where the document is stored.
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
    """A rule that removes what is below its threshold."""
    return Measured(rule, value, threshold, value >= threshold)


def at_most(rule: str, value: float, threshold: float) -> Measured:
    """A rule that removes what is above its threshold."""
    return Measured(rule, value, threshold, value <= threshold)


class Removal(NamedTuple):
    """Why a document is gone."""

    step: str
    rule: str
    value: float
    threshold: float


@dataclass(slots=True)
class Candidate:
    """A document on its way through the steps, and what they have found.

    Attributes:
        document: as it was read.
        language: its language, which a step may set where the document names none.
        scores: fields that its metadata gets.
        measured: what the rules measured, by `step.rule`.
        removed: why it is gone; None while it is kept.
        duplicate_group: of documents that are duplicates of one another the same number, from the last step that
            looked for them; None for a document without duplicates.
        duplicate_of: the id of that group's document that is kept.
        step: the step that looks at it now.
        entered: its words and bytes when it came to that step.
        is_edited: whether a step has changed its text.
    """

    document: Document
    language: str | None
    scores: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    removed: Removal | None = None
    duplicate_group: int | None = None
    duplicate_of: str | None = None
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
        """The text as the steps before have left it."""
        return self.document.text if self._text is None else self._text

    @text.setter
    def text(self, text: str) -> None:
        if text != self.text:
            self._text, self._size, self.is_edited = text, None, True
            self.forget_words()

    @property
    def words(self) -> list[str]:
        """The words and marks of the text, split once for all steps."""
        if self._words is None:
            self._words = split_words(self.text)
        return self._words

    @property
    def proper_words(self) -> list[str]:
        """The words that are not punctuation alone."""
        if self._proper_words is None:
            self._proper_words = list(filterfalse(SYMBOLS.issuperset, self.words))
        return self._proper_words

    @property
    def size(self) -> tuple[int, int]:
        """Number of words, which are what spaces divide, and of UTF-8 bytes."""
        if self._size is None:
            self._size = size_of(self.text)
        return self._size

    @property
    def found(self) -> Counter[str]:
        """What the present step counts in it, by kind, such as addresses of e-mail."""
        if self._found is None:
            self._found = Counter()
        return self._found

    @property
    def has_found(self) -> bool:
        """Whether the present step has counted anything."""
        return bool(self._found)

    def enter(self, step: str) -> None:
        """Come to a step."""
        self.step, self.entered, self._found = step, self.size, None

    def forget_words(self) -> None:
        """Free the memory of the split words, which can be split again."""
        self._words = self._proper_words = None

    def judge(self, measured: Measured) -> bool:
        """Note what a rule of the present step measured; False where it removes the document."""
        self.measured[f"{self.step}.{measured.rule}"] = measured.value
        if not measured.passes:
            self.removed = Removal(self.step, measured.rule, measured.value, measured.threshold)
        return measured.passes

    def finished(self) -> Document:
        """The document to store."""
        if self._text is None and not self.scores and self.language == self.document.language:
            return self.document
        metadata = {**self.document.metadata, **self.scores}
        return replace(self.document, text=self.text, language=self.language, metadata=metadata)


Rules = Callable[[Candidate], Iterator[Measured]]
"""Measures one document, a rule after another; after the first that it does not pass it is not asked for more."""


class Survey(ABC):
    """A step that looks at all documents.

    Documents are counted from 0 in the order of reading, those that earlier steps have removed left out.
    """

    @abstractmethod
    def note(self, candidate: Candidate) -> bytes:
        """In the first pass: what is to be known of a document; empty where nothing is."""

    @abstractmethod
    def resolve(self, notes: Notes, folder: Path) -> None:
        """Between the passes: make of all notes what the second pass needs, as files in a folder."""

    @abstractmethod
    def rules(self, folder: Path) -> Callable[[Candidate, int], Iterator[Measured]]:
        """In the second pass: rules that measure a document, of which they get the number as well."""


Step = Rules | Survey
