"""Steps one after another, and the account of what each of them let through.

Documents pass all steps as they are read, one after another, so that memory does not grow with the corpus. Only a step
that looks at all documents holds them back, on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import write_json
from jax_diversity.foundation.errors import UserError
from jax_diversity.preparation.base import METHODS, Candidate
from jax_diversity.schema import Document

_FIGURES = ("documents_in", "words_in", "bytes_in", "documents_out", "words_out", "bytes_out")
_Place = tuple[str, str]
"""A source and a language; documents without one are of the language ``""."""


class Flow:
    """One step, and what went in and came out of it, by source and language."""

    def __init__(self, label: str, name: str, options: Mapping[str, Any]) -> None:
        self.label, self.name, self.options = label, name, options
        METHODS.find(name)(**options)  # refuses wrong values before any document is read
        self.reset()

    def reset(self) -> None:
        """Begin a new account."""
        self._figures: dict[_Place, list[int]] = {}
        self._removed: dict[_Place, Counter[str]] = {}
        self.found = Counter[str]()
        self.num_edited = 0

    def through(self, candidates: Iterable[Candidate], scratch: Path | None) -> Iterator[Candidate]:
        """Let candidates pass the step and count them."""
        given = {"scratch": scratch} if METHODS.takes(self.name, "scratch") else {}
        step = METHODS.find(self.name)(**self.options, **given)
        for candidate in step(self._entering(candidates)):
            # A candidate that was removed by an earlier step bears that step's name.
            if candidate.step == self.label:
                self._count(candidate)
            yield candidate

    def _entering(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        for candidate in candidates:
            if candidate.removed is None:
                candidate.step, candidate.entered = self.label, candidate.size
                candidate.found.clear()
            yield candidate

    def _count(self, candidate: Candidate) -> None:
        place = candidate.document.source, candidate.language or ""
        words_in, bytes_in = candidate.entered
        kept = candidate.removed is None
        words_out, bytes_out = candidate.size if kept else (0, 0)
        figures = (1, words_in, bytes_in, int(kept), words_out, bytes_out)
        known = self._figures.setdefault(place, [0] * len(figures))
        for index, figure in enumerate(figures):
            known[index] += figure
        if candidate.removed is not None:
            self._removed.setdefault(place, Counter())[candidate.removed.rule] += 1
        self.num_edited += kept and candidate.entered != candidate.size
        self.found += candidate.found

    def account(self, part: int | None = None) -> dict[str, Any]:
        """Figures and removed documents by rule: of all, or by source (0) or language (1)."""
        figures: dict[str, list[int]] = {}
        removed: dict[str, Counter[str]] = {}
        for place, values in self._figures.items():
            key = "" if part is None else place[part]
            figures[key] = [old + new for old, new in zip(figures.get(key, [0] * len(values)), values, strict=True)]
            removed.setdefault(key, Counter()).update(self._removed.get(place, {}))
        accounts = {
            key: dict(zip(_FIGURES, values, strict=True)) | {"removed": dict(sorted(removed[key].items()))}
            for key, values in sorted(figures.items())
        }
        if part is not None:
            return accounts
        empty = dict.fromkeys(_FIGURES, 0) | {"removed": {}}
        more = {"step": self.label, "found": dict(sorted(self.found.items())), "edited": self.num_edited}
        return accounts.get("", empty) | more


class Chain:
    """The steps of a preparation, ready to run.

    Args:
        steps: names and options, in their order.

    Raises:
        UserError: an unknown step, or options that it does not take.

    Example:
        >>> chain = Chain([("words", {"least": 3})])
        >>> documents = [Document("a", "too short", "web"), Document("b", "it is kept", "web")]
        >>> [document.id for document in chain.through(documents)]
        ['b']
        >>> chain.funnel()[0]["removed"]
        {'words': 1}
    """

    def __init__(self, steps: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self.flows: list[Flow] = []
        uses = Counter[str]()
        for index, (name, options) in enumerate(steps):
            METHODS.check_name(name)
            uses[name] += 1
            try:
                self.flows.append(Flow(name if uses[name] == 1 else f"{name}_{uses[name]}", name, options))
            except UserError as error:
                raise UserError(f"preparation.steps[{index}]: {error}") from None
        self.num_read = self.num_kept = self.kept_bytes = 0

    def through(self, documents: Iterable[Document], folder: Path | None = None) -> Iterator[Document]:
        """The documents that are kept, as the steps leave them, in the order of reading.

        Args:
            documents: what was read.
            folder: takes `decisions/*.parquet`, one row a document read, and `funnel.json`; None writes nothing.

        Raises:
            UserError: no document is kept, and there is a folder to write to.
        """
        self.num_read = self.num_kept = self.kept_bytes = 0
        candidates: Iterator[Candidate] = self._candidates(documents)
        if folder is not None:
            from jax_diversity.preparation.decisions import decisions_writer

            folder.mkdir(parents=True, exist_ok=True)
            store = decisions_writer(folder / "decisions")
        else:
            store = nullcontext(lambda candidate: None)
        for flow in self.flows:
            flow.reset()
            candidates = flow.through(candidates, folder)
        with store as write:
            for candidate in candidates:
                write(candidate)
                if candidate.removed is None:
                    self.num_kept += 1
                    self.kept_bytes += candidate.size[1]
                    yield candidate.finished()
        self._check_account()
        if folder is not None:
            if not self.num_kept:
                raise UserError(
                    f"Expected the steps of preparation to keep a document, found that they removed all "
                    f"{self.num_read} ({self._removed_in_words()}); look at `jax-diversity prepare --dry-run`."
                )
            write_json(folder / "funnel.json", self.account())

    def _candidates(self, documents: Iterable[Document]) -> Iterator[Candidate]:
        for document in documents:
            self.num_read += 1
            yield Candidate(document, document.language)

    def funnel(self) -> list[dict[str, Any]]:
        """Of every step: documents, words and bytes in and out, documents removed by each rule, and what was found."""
        return [flow.account() for flow in self.flows]

    def account(self) -> dict[str, Any]:
        """The funnel, and that of every source and language."""
        parts = {
            name: {flow.label: flow.account(part) for flow in self.flows}
            for part, name in enumerate(("source", "language"))
        }
        return {"read": self.num_read, "kept": self.num_kept, "steps": self.funnel(), **parts}

    def counts(self) -> dict[str, Any]:
        """For a stage's counts: the documents that are stored, and the funnel."""
        preparation = {"num_documents_read": self.num_read, "steps": self.funnel()}
        return {"num_documents": self.num_kept, "text_bytes": self.kept_bytes, "preparation": preparation}

    def _removed_in_words(self) -> str:
        removed = Counter[str]()
        for step in self.funnel():
            removed.update({f"{step['step']}.{rule}": number for rule, number in step["removed"].items()})
        return ", ".join(f"{number} by {rule}" for rule, number in removed.most_common(3))

    def _check_account(self) -> None:
        """Documents read = kept + removed by each rule, and no step loses one on the way to the next."""
        flowing = self.num_read
        for step in self.funnel():
            entered, left = step["documents_in"], step["documents_out"]
            if entered != flowing or entered != left + sum(step["removed"].values()):
                raise RuntimeError(f"Documents are lost: {flowing} before {step['step']}, whose account is {step}.")
            flowing = left
        if flowing != self.num_kept:
            raise RuntimeError(f"Documents are lost: {flowing} left the last step, {self.num_kept} were kept.")
