"""The way of one part of the corpus through the steps, in any process.

The steps run in phases. A survey, which compares all documents, ends a phase and begins the next one:

    part 0 - steps - survey notes                        survey judges - steps - part 0
    part 1 - steps - survey notes  -> survey resolves -> survey judges - steps - part 1
    part 2 - steps - survey notes                        survey judges - steps - part 2

In a phase every part passes independently, and its result is a file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jax_diversity.corpus.passes.account import Account
from jax_diversity.corpus.passes.notes import NoteBook
from jax_diversity.corpus.passes.parts import read_part, write_part
from jax_diversity.corpus.steps.base import METHODS, Candidate, LearningStep, Step, Survey, at_least
from jax_diversity.schema import Document


class StepSpec(NamedTuple):
    """A step of the settings, with a label of its own: its name, and a number from the second use on."""

    label: str
    name: str
    options: Mapping[str, Any]

    def make(self) -> Step:
        """The step; a `UserError` for wrong options."""
        return METHODS.find(self.name)(**METHODS.complete(self.name, self.options))


def labelled(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[StepSpec, ...]:
    """Steps with different labels."""
    uses = Counter[str]()
    specs = []
    for name, options in steps:
        uses[name] += 1
        specs.append(StepSpec(name if uses[name] == 1 else f"{name}_{uses[name]}", name, dict(options)))
    return tuple(specs)


def learned_folder(work: Path, label: str) -> Path:
    """The folder of the files that a step has learned."""
    return work / f"learned-{label}"


def resolved_folder(work: Path, label: str) -> Path:
    """The folder of the files that a survey has resolved."""
    return work / f"resolved-{label}"


def part_path(work: Path, phase: int, index: int) -> Path:
    """The file of a part after a phase."""
    return work / f"part-{phase}-{index:06d}"


def notes_path(work: Path, phase: int, index: int) -> Path:
    """The file of the notes of a phase's survey on a part."""
    return work / f"notes-{phase}-{index:06d}"


class Phases:
    """The steps of a run in this process; `work` is the folder of its files."""

    def __init__(self, specs: Sequence[StepSpec], work: Path) -> None:
        self._specs, self._work = specs, work
        self._steps = [spec.make() for spec in specs]
        for spec, step in zip(specs, self._steps, strict=True):
            if isinstance(step, LearningStep):
                step.load_learned(learned_folder(work, spec.label))
        surveys = [index for index, step in enumerate(self._steps) if step.compares_documents]
        self._bounds = [-1, *surveys, len(specs)]
        self.surveys: list[Survey] = [self._steps[index] for index in surveys]  # type: ignore[misc]
        self.survey_labels = [specs[index].label for index in surveys]
        self.last = len(surveys)
        self._resolved_phase = 0

    def run(self, phase: int, index: int, documents: Sequence[Document], first_number: int) -> int:
        """Let a part pass a phase, unless its result exists. Returns the part's index.

        Args:
            phase: the phase.
            index: the part's number.
            documents: in the first phase, the documents of the part; empty if this part was already written.
            first_number: in later phases, the number of the part's first document in the survey's count.
        """
        result = part_path(self._work, phase, index)
        before = part_path(self._work, phase - 1, index)
        # A continued run may have finished later phases of this part.
        is_finished = any(part_path(self._work, done, index).exists() for done in range(phase, self.last + 1))
        if is_finished or (phase == 0 and not documents):
            before.unlink(missing_ok=True)
            return index
        if phase == 0:
            accounts = [Account() for _ in self._specs]
            candidates = [Candidate(document, document.language) for document in documents]
        else:
            accounts, candidates = read_part(before)
        notes = NoteBook() if phase < self.last else None
        self._pass(phase, candidates, accounts, first_number, notes)
        if notes is not None:
            notes.write(notes_path(self._work, phase, index))
        write_part(result, accounts, candidates)
        before.unlink(missing_ok=True)
        return index

    def _pass(
        self,
        phase: int,
        candidates: Sequence[Candidate],
        accounts: Sequence[Account],
        number: int,
        notes: NoteBook | None,
    ) -> None:
        first, stop = self._bounds[phase : phase + 2]
        if phase and self._resolved_phase != phase:  # once in a process
            self.surveys[phase - 1].load_resolved(resolved_folder(self._work, self.survey_labels[phase - 1]))
            self._resolved_phase = phase
        steps = [(self._specs[place].label, self._steps[place], accounts[place]) for place in range(first + 1, stop)]
        survey = None if notes is None else self.surveys[phase]
        for candidate in candidates:
            if candidate.removed is not None:
                continue
            if phase:  # the candidate has entered the survey in the previous phase
                candidate.number = number
                number += 1
                _judge(candidate, self._steps[first], accounts[first])
            for label, step, account in steps:
                if candidate.removed is not None:
                    break
                candidate.enter(label)
                _judge(candidate, step, account)
            if survey is not None and notes is not None and candidate.removed is None:
                candidate.enter(self._specs[stop].label)
                notes.add(candidate, survey.note(candidate))
            candidate.forget_words()


def _judge(candidate: Candidate, step: Step, account: Account) -> None:
    text = candidate.text
    # Without an edit `text` is the same object: the comparison costs nothing.
    if all(map(candidate.judge, step.judge(candidate))) and candidate.text is not text:
        _ = candidate.text.strip() or candidate.judge(at_least("empty", 0, 1))
    account.add(candidate, text)


@cache
def _phases(specs: str, work: Path) -> Phases:
    return Phases([StepSpec(*spec) for spec in json.loads(specs)], work)


def run_phase(specs: str, work: Path, *job: Any) -> int:
    """`Phases.run` in a process that makes the steps once; `specs` is their JSON."""
    return _phases(specs, work).run(*job)
