"""How one part of the corpus goes through the steps, in any process.

The steps run in phases. A survey is a step that compares all documents. It ends a phase and begins the next phase:

    part 0 - steps - survey.note                       survey.judge - steps - part 0
    part 1 - steps - survey.note  -> survey.resolve -> survey.judge - steps - part 1
    part 2 - steps - survey.note                       survey.judge - steps - part 2

In a phase every part is processed independently, and its result is a file. If a step raises an exception or takes too
long, the document is removed (rules `raised` and `took_too_long`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from jax_diversity.foundation import processes
from jax_diversity.foundation.artifacts import read_json, write_json
from jax_diversity.foundation.attempts import Failure, attempt, time_limit
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.jobs import work as work_of_jobs
from jax_diversity.preparation.passes.account import Account
from jax_diversity.preparation.passes.notes import NoteBook
from jax_diversity.preparation.passes.parts import read_part, write_part
from jax_diversity.preparation.passes.removed import Row, removed_row, write_removed
from jax_diversity.preparation.passes.scope import Scope, is_in_scope, parse_scope
from jax_diversity.preparation.passes.tracking import Tracker, ended_files, forget, tracking
from jax_diversity.preparation.steps.base import (
    METHODS,
    Candidate,
    LearningStep,
    Measured,
    Step,
    Survey,
    at_least,
)
from jax_diversity.schema.prepared import OUT_OF_SCOPE

_STEPS = "steps.json"
"""The file of the steps in the folder of a run's files."""


class StepSpec(NamedTuple):
    """A step of the settings, with a unique label: its name, and from the second use on also a number.

    With `only`, the step is applied to the documents of these sources and languages. With `mark`, the values of its
    rules become fields, and the documents stay as they are.
    """

    label: str
    name: str
    options: Mapping[str, Any]
    only: Scope | None = None
    mark: bool = False

    def make(self) -> Step:
        """Make the step. Wrong options are a `UserError`."""
        step = METHODS.find(self.name)(**METHODS.complete(self.name, self.options))
        if self.mark and not step.is_filter:
            raise UserError(
                f"Expected the option 'mark' with a step that removes documents, found it with {self.name}; leave it "
                "out."
            )
        return step


def labelled(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[StepSpec, ...]:
    """Give the steps different labels.

    The option `only`, which every step has, becomes the scope of the step. The option `mark` belongs to the step itself
    if the step has an option of this name, such as the steps that find copies.

    Raises:
        UserError: `only` does not name sources or languages, or `mark` is not True or False.
    """
    uses = Counter[str]()
    specs = []
    for name, step_options in steps:
        uses[name] += 1
        options = dict(step_options)
        only = parse_scope(options.pop("only"), name) if "only" in options else None
        mark = False
        if "mark" in options and not (name in METHODS and METHODS.takes(name, "mark")):
            mark = options.pop("mark")
            if not isinstance(mark, bool):
                raise UserError(f"Expected the option 'mark' of {name} to be True or False, found {quoted(mark)}.")
        specs.append(StepSpec(name if uses[name] == 1 else f"{name}_{uses[name]}", name, options, only, mark))
    return tuple(specs)


def learned_folder(work: Path, label: str) -> Path:
    """Return the folder of the files that a step has learned."""
    return work / f"learned-{label}"


def resolved_folder(work: Path, label: str) -> Path:
    """Return the folder of the files that a survey has resolved."""
    return work / f"resolved-{label}"


def job_name(work: Path, phase: int, index: int) -> str:
    """Return the name of the job of a part in a phase; the names of its files begin with it."""
    return str(work / f"{phase}-{index:06d}")


def part_path(work: Path, phase: int, index: int) -> Path:
    """Return the file of a part after a phase."""
    return Path(f"{job_name(work, phase, index)}.part")


def removed_path(work: Path, phase: int, index: int) -> Path:
    """Return the file of the documents of a part that a phase removed."""
    return Path(f"{job_name(work, phase, index)}.removed")


def notes_path(work: Path, phase: int, index: int) -> Path:
    """Return the file of the notes that the survey of a phase made on a part."""
    return Path(f"{job_name(work, phase, index)}.notes")


class Phases:
    """The steps of a run in this process.

    Args:
        specs: the steps.
        work: the folder of the run's files.
        seconds: the time limit of a step for a document; 0 means no limit.
        keep_removed: whether removed documents are stored in full.
    """

    def __init__(self, specs: Sequence[StepSpec], work: Path, seconds: float, keep_removed: bool = False) -> None:
        self._specs, self._work, self._seconds = specs, work, seconds
        self._removed: list[Row] | None = [] if keep_removed else None
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

    def run(self, phase: int, index: int, source: Path, first_number: int) -> None:
        """Run a phase on a part.

        Args:
            phase: the phase.
            index: the part's number.
            source: the file of the part before this phase.
            first_number: in later phases, the number of the part's first document among all documents of the survey.
        """
        result = part_path(self._work, phase, index)
        accounts, candidates = read_part(source)
        accounts = accounts or [Account() for _ in self._specs]  # there are no accounts before the first phase
        if phase and self._resolved_phase != phase:  # once in a process
            self.surveys[phase - 1].load_resolved(resolved_folder(self._work, self.survey_labels[phase - 1]))
            self._resolved_phase = phase
        notes = NoteBook() if phase < self.last else None
        # The process that this one works for repeats a part after the end of this process.
        tracked = tracking(result, self._seconds) if processes.is_worker else nullcontext(Tracker())
        if self._removed is not None:
            self._removed.clear()
        with tracked as tracker, time_limit(self._seconds):
            self._pass(phase, candidates, accounts, first_number, notes, tracker)
        if notes is not None:
            notes.write(notes_path(self._work, phase, index))
        if self._removed:
            write_removed(removed_path(self._work, phase, index), self._removed)
        write_part(result, accounts, candidates)
        if processes.is_worker:
            forget(result)

    def _pass(
        self,
        phase: int,
        candidates: Sequence[Candidate],
        accounts: Sequence[Account],
        number: int,
        notes: NoteBook | None,
        tracker: Tracker,
    ) -> None:
        first, stop = self._bounds[phase : phase + 2]
        survey = None if notes is None else self.surveys[phase]
        for position, candidate in enumerate(candidates):
            if candidate.removed is not None:
                continue
            if phase:  # the previous phase has already given the candidate to the survey
                candidate.number = number
                number += 1
            for place in range(first if phase else 0, stop):
                if place != first:
                    candidate.enter(self._specs[place].label)
                text, only = candidate.text, self._specs[place].only
                if only is not None and not is_in_scope(candidate, only):
                    candidate.unjudged.append(OUT_OF_SCOPE)
                    accounts[place].add(candidate, text)
                    continue
                judge = _mark if self._specs[place].mark else _judge
                failure = tracker.begin((position, place)) or attempt(judge, candidate, self._steps[place], text)
                if failure is not None:
                    self._remove(candidate, failure)
                accounts[place].add(candidate, text)
                if candidate.removed is not None:
                    self._keep_removed(candidate, text)
                    break
            if survey is not None and notes is not None and candidate.removed is None:
                candidate.enter(self._specs[stop].label)
                only = self._specs[stop].only
                is_left_out = only is not None and not is_in_scope(candidate, only)
                note = b"" if is_left_out else tracker.begin((position, stop)) or attempt(survey.note, candidate)
                if isinstance(note, Failure):
                    self._remove(candidate, note)
                    accounts[stop].add(candidate, candidate.text)
                    self._keep_removed(candidate, candidate.text)
                else:
                    notes.add(candidate.document.id, candidate.document.source, candidate.language, note)
            candidate.forget_words()

    def _keep_removed(self, candidate: Candidate, text: str) -> None:
        if self._removed is not None:
            self._removed.append(removed_row(candidate, text))

    def _remove(self, candidate: Candidate, failure: Failure) -> None:
        if failure.rule == "raised":
            candidate.found[failure.what] += 1
            candidate.judge(Measured(failure.rule, 1, 0, passes=False))
        else:  # we record the limit, not the measured time, so that the same input gives the same rows
            candidate.judge(Measured(failure.rule, self._seconds, self._seconds, passes=False))


def _judge(candidate: Candidate, step: Step, text: str) -> None:
    # Without an edit, `text` is the same object, so this comparison is fast.
    if all(map(candidate.judge, step.judge(candidate))) and candidate.text is not text:
        # `encode` raises an error if the step has left half of a surrogate pair, which cannot be stored.
        _ = candidate.text.isascii() or candidate.text.encode()
        _ = candidate.text.strip() or candidate.judge(at_least("empty", 0, 1))


def _mark(candidate: Candidate, step: Step, text: str) -> None:
    """Store the values of all rules as fields. The text and the document stay as they are before the step."""
    document = candidate.document
    passes = True
    for measured in step.judge(candidate):
        value = float(measured.value)
        if math.isnan(value) and measured.passes:
            candidate.unjudged.append(measured.rule)
            continue
        candidate.measured[f"{candidate.step}.{measured.rule}"] = value
        candidate.scores[f"{candidate.step}_{measured.rule}"] = round(value, 6) if math.isfinite(value) else None
        if not measured.passes:
            candidate.found[f"fails {measured.rule}"] += 1
            passes = False
    candidate.scores[f"{candidate.step}_passes"] = passes
    candidate.document = document
    candidate.restore(text)


def write_steps(work: Path, specs: Sequence[StepSpec], seconds: float, keep_removed: bool) -> None:
    """Write the steps for the processes that run them."""
    write_json(work / _STEPS, [[list(spec) for spec in specs], seconds, keep_removed])


def _traces(names: Sequence[str]) -> set[Path]:
    return {path for folder in {Path(name).parent for name in names} for path in ended_files(folder)}


@work_of_jobs(
    "preparing", is_passing=True, sources=lambda work, run, phase, index, source, first: [source], traces=_traces
)
def run_phase(name: Path, work: str, run: str, phase: int, index: int, source: str, first_number: int) -> None:
    """Run a phase on a part; the steps are made once in a process.

    Args:
        name: see `job_name`.
        work: the folder of the run's files.
        run: differs for every run.
        phase: see `Phases.run`, also for the other arguments.
    """
    _phases(work, run).run(phase, index, Path(source), first_number)


@lru_cache(1)
def _phases(work: str, run: str) -> Phases:
    specs, seconds, keep_removed = read_json(Path(work) / _STEPS, "prepare")
    return Phases([StepSpec(*spec) for spec in specs], Path(work), seconds, keep_removed)
