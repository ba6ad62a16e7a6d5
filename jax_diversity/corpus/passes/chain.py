"""Run the steps of a preparation over the documents, and count what every step does."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from jax_diversity.corpus.passes.account import Account
from jax_diversity.corpus.passes.notes import gather
from jax_diversity.corpus.passes.parts import read_part, split
from jax_diversity.corpus.passes.phases import (
    Phases,
    labelled,
    learned_folder,
    notes_path,
    part_path,
    removed_path,
    resolved_folder,
    run_phase,
)
from jax_diversity.corpus.passes.removed import REMOVED, gather_removed
from jax_diversity.corpus.passes.tracking import ended_files
from jax_diversity.corpus.settings import SECONDS_PER_DOCUMENT
from jax_diversity.corpus.steps.base import Candidate, LearningStep, Step
from jax_diversity.foundation.artifacts import atomic_folder, copy_file, read_json, write_json
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.libraries import MissingLibrary, together
from jax_diversity.foundation.processes import map_in_processes, num_cores
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.schema import Document

Engine = Literal["processes", "ray"]
Task = Callable[[str, int | None, str], AbstractContextManager[Advance]]
"""A function that shows progress. Its arguments are the name, size and unit of the work."""


class Chain:
    """The steps of a preparation, ready to run.

    Args:
        steps: names and options, in their order. Every step has the option `only`, such as `{"language": ["en"]}`.
        engine: processes of this machine, or tasks of a Ray cluster.
        num_processes: number of parts that are processed at a time; 0 means the number of cores. With the engine
            `processes`, a corpus of one part is processed in the calling process. The result does not depend on this
            number.
        seconds_per_document: the time limit of a step for a document; 0 means no limit.
        keep_removed: whether `through` writes the removed documents in full to `removed/STEP.RULE.parquet`.

    Raises:
        UserError: an unknown step, options that the step does not have, or libraries that are not installed.

    Example:
        >>> chain = Chain([("words", {"least": 3})])
        >>> documents = [Document("a", "too short", "web"), Document("b", "it is kept", "web")]
        >>> [document.id for document in chain.through(documents)]
        ['b']
        >>> chain.funnel()[0]["removed"]
        {'words': 1}
    """

    def __init__(
        self,
        steps: Sequence[tuple[str, Mapping[str, Any]]],
        engine: Engine = "processes",
        num_processes: int = 0,
        seconds_per_document: float = SECONDS_PER_DOCUMENT,
        keep_removed: bool = False,
    ) -> None:
        self._specs = labelled(steps)
        self._steps: list[Step] = []
        with together() as missing:
            for index, spec in enumerate(self._specs):
                try:
                    self._steps.append(spec.make())
                except MissingLibrary as error:
                    missing.append(error)
                except UserError as error:
                    raise UserError(f"preparation.steps[{index}]: {error}") from None
        self._engine, self._num_processes, self._seconds = engine, num_processes, seconds_per_document
        self._keep_removed = keep_removed
        self._forget()

    @property
    def group_fields(self) -> tuple[str, ...]:
        """The fields with which steps mark copies: documents with equal values are copies of one another."""
        pairs = zip(self._specs, self._steps, strict=True)
        return tuple(f"{spec.label}_group" for spec, step in pairs if getattr(step, "mark", False))

    def identities(self) -> list[tuple[str, Any]]:
        """Return pairs (name of the step, input) for the inputs that are not options, such as hashes of files."""
        pairs = zip(self._specs, self._steps, strict=True)
        found = ((spec.name, step.identity()) for spec, step in pairs)
        return [(name, identity) for name, identity in found if identity is not None]

    def _forget(self) -> None:
        self._accounts = [Account() for _ in self._specs]
        self._fields = set[str]()
        self.num_read = self.num_kept = self.kept_bytes = self._num_parts = 0

    def through(
        self, documents: Iterable[Document], folder: Path | None = None, task: Task | None = None
    ) -> Iterator[Document]:
        """Yield the kept documents after all steps, in the order in which they were read.

        Args:
            documents: the documents that were read. To continue an interrupted run, pass the same documents.
            folder: the folder for `decisions/*.parquet` (one row for each document read), `funnel.json`,
                `examples.json`, with `keep_removed` `removed/*.parquet`, and, during the run, finished parts; None
                writes nothing.
            task: shows the progress of passes after the first.

        Raises:
            UserError: no document is kept (only checked with `folder`); a worker process was killed.
        """
        self._forget()
        if folder is None:
            with tempfile.TemporaryDirectory(prefix="preparation-") as work:
                for candidate in self._passes(documents, Path(work), task):
                    if self._is_kept(candidate):
                        yield candidate.finished()
            self._check_account()
            return
        from jax_diversity.corpus.passes.decisions import decisions_writer

        work = folder.absolute() / "work"
        work.mkdir(parents=True, exist_ok=True)
        with decisions_writer(folder / "decisions") as write:
            for candidate in self._passes(documents, work, task):
                write(candidate)
                if self._is_kept(candidate):
                    yield candidate.finished()
        self._check_account()
        if self._keep_removed:
            phases = range(1 + sum(step.compares_documents for step in self._steps))
            paths = (removed_path(work, phase, index) for index in range(self._num_parts) for phase in phases)
            gather_removed(paths, folder / REMOVED)
        if not self.num_kept:
            raise UserError(
                f"Expected the steps of preparation to keep a document, found that they removed all {self.num_read} "
                f"({self._removed_in_words()}); look at `jax-diversity prepare --dry-run`."
            )
        write_json(folder / "funnel.json", self.account())
        write_json(folder / "examples.json", self.examples())
        self._keep_learned(work, folder / "learned")
        shutil.rmtree(work)

    def _keep_learned(self, work: Path, folder: Path) -> None:
        """Copy the `kept_files` of every step."""
        for spec, step in zip(self._specs, self._steps, strict=True):
            places = learned_folder(work, spec.label), resolved_folder(work, spec.label)
            for path in (place / name for name in step.kept_files for place in places):
                if path.exists():
                    (folder / spec.label).mkdir(parents=True, exist_ok=True)
                    copy_file(path, folder / spec.label / path.name)

    def _is_kept(self, candidate: Candidate) -> bool:
        if candidate.removed is not None:
            return False
        self.num_kept += 1
        self._fields.update(candidate.scores)
        self.kept_bytes += candidate.size[1]
        return True

    def _passes(self, documents: Iterable[Document], work: Path, task: Task | None) -> Iterator[Candidate]:
        """Run all phases on all parts, and yield the candidates of the last phase."""
        for spec, step in zip(self._specs, self._steps, strict=True):
            learned = learned_folder(work, spec.label)
            if isinstance(step, LearningStep) and not learned.exists():
                with atomic_folder(learned) as partial:
                    step.learn(partial)
        phases = Phases(self._specs, work, self._seconds, self._keep_removed)
        jobs = self._first_jobs(documents, phases, work)
        for phase in range(phases.last + 1):
            shown = nullcontext(ignore)
            if phase > 0:
                label = phases.survey_labels[phase - 1]
                starts = self._resolve(phases, phase - 1, work)
                jobs = ((phase, index, [], start) for index, start in enumerate(starts[:-1]))
                shown = shown if task is None else task(f"prepare: {label}", self._num_parts, "parts")
            with shown as advance:
                for index in self._run(phases, work, jobs):
                    advance(1)
                    if phase == phases.last:
                        accounts, candidates = read_part(part_path(work, phase, index))
                        for known, of_part in zip(self._accounts, accounts, strict=True):
                            known.merge(of_part)
                        yield from candidates

    def _first_jobs(self, documents: Iterable[Document], phases: Phases, work: Path) -> Iterator[tuple]:
        # A continued run reads the documents again, but does not send the documents of finished parts.
        for index, part in enumerate(split(documents)):
            self.num_read += len(part)
            self._num_parts += 1
            is_finished = any(part_path(work, phase, index).exists() for phase in range(phases.last + 1))
            yield 0, index, [] if is_finished else part, 0

    def _run(self, phases: Phases, work: Path, jobs: Iterator[tuple]) -> Iterator[int]:
        """Run a phase on parts, and yield the parts' numbers in order."""
        first = [*islice(jobs, 2)]
        jobs = chain(first, jobs)
        specs = json.dumps(self._specs)
        jobs_of_workers = ((specs, work, self._seconds, self._keep_removed, *job) for job in jobs)
        if self._engine == "ray":
            from jax_diversity.foundation.ray_cluster import map_in_ray

            return map_in_ray(run_phase, jobs_of_workers, self._num_processes)
        num_processes = self._num_processes or num_cores()
        if len(first) < 2 or num_processes == 1:
            return (phases.run(*job) for job in jobs)
        known = set(ended_files(work))

        def ended_at_a_document() -> bool:
            new = set(ended_files(work)) - known
            known.update(new)
            return bool(new)

        return map_in_processes(
            run_phase,
            jobs_of_workers,
            num_processes,
            what="preparing",
            setting="preparation.num_processes",
            restarts=ended_at_a_document,
        )

    def _resolve(self, phases: Phases, phase: int, work: Path) -> list[int]:
        """Resolve the notes of a survey. Return, for every part, the number of its first document in the survey."""
        resolved = resolved_folder(work, phases.survey_labels[phase])
        paths = [notes_path(work, phase, index) for index in range(self._num_parts)]
        if not resolved.exists():
            with tempfile.TemporaryDirectory(dir=work) as scratch, atomic_folder(resolved) as partial:
                notes = gather(paths, Path(scratch))
                phases.surveys[phase].resolve(notes, partial)
                write_json(partial / "starts.json", notes.starts.tolist())
        for path in paths:
            path.unlink(missing_ok=True)
        return read_json(resolved / "starts.json", "prepare")

    def funnel(self) -> list[dict[str, Any]]:
        """Return, for every step: documents, words and bytes in and out, removals by rule, and other counts."""
        return [
            {"step": spec.label, **account.total()} for spec, account in zip(self._specs, self._accounts, strict=True)
        ]

    def account(self) -> dict[str, Any]:
        """Return the funnel, for all documents, by source and by language."""
        parts = {
            name: {spec.label: account.by(part) for spec, account in zip(self._specs, self._accounts, strict=True)}
            for part, name in enumerate(("source", "language"))
        }
        return {"read": self.num_read, "kept": self.num_kept, "steps": self.funnel(), **parts}

    def examples(self) -> dict[str, Any]:
        """Return up to ten removed documents for each rule, and up to ten edited documents for each step.

        The documents are chosen by hash; personal data are masked. `removed` maps `step.rule` to documents: each has
        the id, the measured value, the threshold and the beginning of the text. `edited` maps a step to documents: each
        has lines with a sign, which is a space (kept), - (removed) or + (added).
        """
        removed, edited = {}, {}
        for spec, account in zip(self._specs, self._accounts, strict=True):
            for rule, examples in account.removed_examples().items():
                removed[f"{spec.label}.{rule}"] = examples
            if examples := account.edited_examples():
                edited[spec.label] = examples
        return {"removed": removed, "edited": edited}

    def counts(self) -> dict[str, Any]:
        """Return the counts of the stage: the stored documents, the fields that steps added, and the funnel."""
        fields = sorted(self._fields)
        preparation = {"num_documents_read": self.num_read, "fields": fields, "steps": self.funnel()}
        return {"num_documents": self.num_kept, "text_bytes": self.kept_bytes, "preparation": preparation}

    def _removed_in_words(self) -> str:
        removed = Counter[str]()
        for step in self.funnel():
            for rule, number in step["removed"].items():
                reasons = f" ({', '.join([*step['found']][:3])})" if rule == "raised" else ""
                removed[f"{step['step']}.{rule}{reasons}"] = number
        return ", ".join(f"{number} by {rule}" for rule, number in removed.most_common(3))

    def _check_account(self) -> None:
        """Check that documents read = kept + removed, at every step and in total."""
        flowing = self.num_read
        for step in self.funnel():
            entered, left = step["documents_in"], step["documents_out"]
            if entered != flowing or entered != left + sum(step["removed"].values()):
                raise RuntimeError(f"Documents are lost: {flowing} before {step['step']}, which counted {step}.")
            flowing = left
        if flowing != self.num_kept:
            raise RuntimeError(f"Documents are lost: {flowing} left the last step, {self.num_kept} were kept.")
        for step, total in zip(self._steps, self.funnel(), strict=True):
            step.check_account(total)
