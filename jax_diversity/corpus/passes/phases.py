"""Parts of the corpus pass the steps: what happens to one part, in any process.

The steps run in phases. A survey, which looks at all documents, ends one and begins the next:

    part 0 - rules - survey notes                        survey judges - rules - part 0
    part 1 - rules - survey notes  -> survey resolves -> survey judges - rules - part 1
    part 2 - rules - survey notes                        survey judges - rules - part 2

In a phase every part passes on its own, and its result is a file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from jax_diversity.corpus.passes.account import Account
from jax_diversity.corpus.passes.notes import NoteBook
from jax_diversity.corpus.passes.parts import read_part, write_part
from jax_diversity.corpus.steps.base import METHODS, Candidate, Measured, Rules, Survey, at_least
from jax_diversity.schema import Document

_Judge = Callable[[Candidate, int], Iterator[Measured]]


class StepSpec(NamedTuple):
    """A step as settings give it, with a label of its own: its name, and a number where it comes again."""

    label: str
    name: str
    options: Mapping[str, Any]

    @property
    def module(self) -> ModuleType:
        """The step's module."""
        return import_module(f"{METHODS.package}.{METHODS[self.name]}")

    @property
    def learns(self) -> bool:
        """Whether it learns something before documents are read."""
        return METHODS.takes(self.name, "learned")

    def make(self, work: Path) -> Rules | Survey:
        """The step, ready to run."""
        learned = {"learned": learned_folder(work, self.label)} if self.learns else {}
        return METHODS.find(self.name)(**self.options, **learned)


def labelled(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[StepSpec, ...]:
    """Steps with labels that differ from one another."""
    uses = Counter[str]()
    specs = []
    for name, options in steps:
        uses[name] += 1
        specs.append(StepSpec(name if uses[name] == 1 else f"{name}_{uses[name]}", name, dict(options)))
    return tuple(specs)


def learned_folder(work: Path, label: str) -> Path:
    """What a step has learned."""
    return work / f"learned-{label}"


def plan_folder(work: Path, label: str) -> Path:
    """What a survey has resolved."""
    return work / f"plan-{label}"


def part_path(work: Path, phase: int, index: int) -> Path:
    """The file of a part as a phase has left it."""
    return work / f"part-{phase}-{index:06d}"


def notes_path(work: Path, phase: int, index: int) -> Path:
    """The file of what the survey at a phase's end has noted of a part."""
    return work / f"notes-{phase}-{index:06d}"


class Phases:
    """The steps, made in this process; the files of a run are in the folder `work`."""

    def __init__(self, specs: Sequence[StepSpec], work: Path) -> None:
        self._specs, self._work = specs, work
        self._steps = [spec.make(work) for spec in specs]
        surveys = [index for index, step in enumerate(self._steps) if isinstance(step, Survey)]
        self._bounds = [-1, *surveys, len(specs)]
        self.surveys: list[Survey] = [self._steps[index] for index in surveys]  # type: ignore[misc]
        self.survey_labels = [specs[index].label for index in surveys]
        self.last = len(surveys)
        self._judging: tuple[int, _Judge | None] | None = None

    def run(self, phase: int, index: int, documents: Sequence[Document], first_number: int) -> int:
        """Let a part pass a phase; nothing is done where that is done already. Returns the part's index.

        Args:
            phase: which one.
            index: the part's number.
            documents: of the first phase, the part's documents; none where the part's file is there, or was.
            first_number: of later phases, the number of the part's first document in the survey's count.
        """
        result = part_path(self._work, phase, index)
        before = part_path(self._work, phase - 1, index)
        # A run that goes on may have finished later phases of this part.
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
        judge = self._judge_of(phase)
        steps = [(self._specs[place].label, self._steps[place], accounts[place]) for place in range(first + 1, stop)]
        survey = None if notes is None else self.surveys[phase]
        for candidate in candidates:
            if candidate.removed is not None:
                continue
            if judge is not None:
                # It has entered the survey in the phase before.
                _judge(candidate, judge(candidate, number), accounts[first])
                number += 1
            for label, rules, account in steps:
                if candidate.removed is not None:
                    break
                candidate.enter(label)
                _judge(candidate, rules(candidate), account)  # type: ignore[operator]
            if survey is not None and notes is not None and candidate.removed is None:
                candidate.enter(self._specs[stop].label)
                notes.add(candidate, survey.note(candidate))
            candidate.forget_words()

    def _judge_of(self, phase: int) -> _Judge | None:
        """The second pass of the survey with which a phase begins; what it has resolved is read once."""
        if self._judging is None or self._judging[0] != phase:
            plan = plan_folder(self._work, self.survey_labels[phase - 1]) if phase else None
            self._judging = phase, None if plan is None else self.surveys[phase - 1].rules(plan)
        return self._judging[1]


def _judge(candidate: Candidate, rules: Iterator[Measured], account: Account) -> None:
    text = candidate.text
    # `text` is the object that is kept where nothing is edited: comparing them costs nothing.
    if all(map(candidate.judge, rules)) and candidate.text is not text:
        _ = candidate.text.strip() or candidate.judge(at_least("empty", 0, 1))
    account.add(candidate, text)


@cache
def _phases(specs: str, work: Path) -> Phases:
    return Phases([StepSpec(*spec) for spec in json.loads(specs)], work)


def run_phase(specs: str, work: Path, *job: Any) -> int:
    """`Phases.run` in a process that makes the steps once; `specs` is their JSON."""
    return _phases(specs, work).run(*job)
