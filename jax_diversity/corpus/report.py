"""What reading a corpus found: counts of every kind of record and the first problems, by file and line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from jax_diversity.corpus.files import InputFile

MAX_PROBLEMS = 20


class Place(NamedTuple):
    """The place of a record: its file and its line or row, counted from 1 (None: the file is one document)."""

    file: InputFile
    line: int | None

    @property
    def name(self) -> str:
        """The place without the corpus's own folder: the same on every machine."""
        return self.file.name if self.line is None else f"{self.file.name}:{self.line}"

    def __str__(self) -> str:
        return self.file.address if self.line is None else f"{self.file.address}:{self.line}"


class Problem(NamedTuple):
    """Why a record gives no document: the count of `ReadReport` that it belongs to, and a sentence."""

    kind: Literal["num_broken_records", "num_without_text", "num_text_not_string", "num_invalid_utf8"]
    what: str

    @classmethod
    def of_unicode(cls, error: UnicodeDecodeError | UnicodeEncodeError) -> Problem:
        """The problem of bytes that are no UTF-8, or of a string that cannot be written as UTF-8."""
        unit = "byte" if isinstance(error, UnicodeDecodeError) else "character"
        return cls("num_invalid_utf8", f"no valid UTF-8: {error.reason} at {unit} {error.start + 1}")


@dataclass
class ReadReport:
    """Counts that grow while a corpus is read.

    A record that is skipped is counted in exactly one of the kinds. `problems` holds the first faults as
    `file:line: what`.

    Attributes:
        num_documents: documents that were read.
        text_bytes: bytes of their text in UTF-8.
        num_tokens: tokens that came with them; 0 for a corpus of texts.
        num_empty_documents: records skipped because their text is empty or blank, or because they hold no token.
        num_broken_records: lines that are no JSON object, rows or files that cannot be read, records whose token
            ids are missing or invalid.
        num_without_text: records that lack the text field.
        num_text_not_string: records whose text field holds something else than a string.
        num_invalid_utf8: records that are no valid UTF-8, lone surrogates (`"\\ud800"`) included.
        num_renamed_ids: documents whose id had come before and got a number.
        problems: the first problems.
    """

    num_documents: int = 0
    text_bytes: int = 0
    num_tokens: int = 0
    num_empty_documents: int = 0
    num_broken_records: int = 0
    num_without_text: int = 0
    num_text_not_string: int = 0
    num_invalid_utf8: int = 0
    num_renamed_ids: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def num_problems(self) -> int:
        """Records skipped because something is wrong with them."""
        return self.num_broken_records + self.num_without_text + self.num_text_not_string + self.num_invalid_utf8

    def skip(self, place: Place, problem: Problem) -> None:
        """Count a record that is skipped."""
        setattr(self, problem.kind, getattr(self, problem.kind) + 1)
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"{place.name}: {problem.what}")
