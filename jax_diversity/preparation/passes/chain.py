"""Run the steps of a preparation over the documents, and count what every step does."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import atomic_folder, copy_file, read_json, write_json
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Executor, Processes
from jax_diversity.foundation.jobs import Job, read_done
from jax_diversity.foundation.libraries import MissingLibrary, together
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.preparation.passes.notes import gather
from jax_diversity.preparation.passes.parts import split, write_documents_part
from jax_diversity.preparation.passes.phases import (
    Phases,
    job_name,
    labelled,
    learned_folder,
    notes_path,
    part_path,
    removed_path,
    resolved_folder,
    run_phase,
    write_steps,
)
from jax_diversity.preparation.passes.removed import REMOVED, gather_removed
from jax_diversity.preparation.passes.tally import Tally
from jax_diversity.preparation.settings import SECONDS_PER_DOCUMENT
from jax_diversity.preparation.steps.base import Candidate, LearningStep, Step, rule_phrase
from jax_diversity.schema import Document

Task = Callable[[str, int | None, str], AbstractContextManager[Advance]]
"""A function that shows progress. Its arguments are the name, size and unit of the work."""


class Chain:
    """The steps of a preparation, ready to run.

    Args:
        steps: names and options, in their order. Every step has the option `only`, such as `{"language": ["en"]}`.
        executor: processes the parts of the corpus; the result does not depend on it. None means processes of this
            machine; then a corpus of one part is processed in the calling process.
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
        executor: Executor | None = None,
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
        self._executor, self._seconds = executor or Processes(), seconds_per_document
        self._keep_removed = keep_removed
        self._tally, self._num_parts = Tally(len(self._specs)), 0

    @property
    def group_fields(self) -> tuple[str, ...]:
        """The fields with which steps mark copies: documents with equal values are copies of one another."""
        pairs = zip(self._specs, self._steps, strict=True)
        return tuple(f"{spec.label}_group" for spec, step in pairs if getattr(step, "mark", False))

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self._steps)

    @property
    def num_kept(self) -> int:
        """Number of documents that are kept."""
        return self._tally.num_kept

    def identities(self) -> list[tuple[str, Any]]:
        """Return pairs (name of the step, input) for the inputs that are not options, such as hashes of files."""
        pairs = zip(self._specs, self._steps, strict=True)
        identities = ((spec.name, step.identity()) for spec, step in pairs)
        return [(name, identity) for name, identity in identities if identity is not None]

    def through(
        self, documents: Iterable[Document], folder: Path | None = None, task: Task | None = None
    ) -> Iterator[Document]:
        """Yield the kept documents after all steps, in the order in which they were read.

        Args:
            documents: the documents that were read. To continue an interrupted run, pass the same documents.
            folder: the folder for `decisions/*.parquet` (one row for each document read), `funnel.json`,
                `examples.json`, with `keep_removed` `removed/*.parquet`, and, during the run, finished parts; None
                writes nothing.
            task: shows the progress of the phases.

        Raises:
            UserError: no document is kept (only checked with `folder`); a worker process was killed.
        """
        self._tally = Tally(len(self._specs))
        if folder is None:
            with tempfile.TemporaryDirectory(prefix="preparation-") as work:
                for candidate in self._candidates(documents, Path(work), task):
                    if candidate.removed is None:
                        yield candidate.finished()
            self._check_account()
            return
        from jax_diversity.preparation.passes.decisions import decisions_writer

        work = folder.absolute() / "work"
        work.mkdir(parents=True, exist_ok=True)
        with decisions_writer(folder / "decisions") as write:
            for candidate in self._candidates(documents, work, task):
                write(candidate)
                if candidate.removed is None:
                    yield candidate.finished()
        self.finish(work, folder)
        shutil.rmtree(work)

    def _candidates(self, documents: Iterable[Document], work: Path, task: Task | None) -> Iterator[Candidate]:
        """Write the documents to parts, run all phases on the parts, and yield the candidates of the last phase."""
        sources = []
        for index, part in enumerate(split(documents)):
            sources.append(work / f"read.{index:06d}")
            # A continued run reads the documents again, but does not store the documents of finished parts.
            if not self._is_begun(work, index):
                write_documents_part(sources[-1], part)
        last = self.run(work, sources, task)
        yield from self._tally.of_parts(work, last, range(len(sources)))

    def add(self, of_group: Tally) -> None:
        """Add the counts of the parts that follow."""
        self._tally.add(of_group)

    def finish(self, work: Path, folder: Path) -> None:
        """Check the counts, and write the results of a run other than documents and decisions.

        Raises:
            UserError: no document is kept.
        """
        self._check_account()
        if self._keep_removed:
            phases = range(1 + sum(step.compares_documents for step in self._steps))
            paths = (removed_path(work, phase, index) for index in range(self._num_parts) for phase in phases)
            gather_removed(paths, folder / REMOVED)
        if not self._tally.num_kept:
            raise UserError(
                f"Expected the steps of preparation to keep a document, found that they removed all "
                f"{self._tally.num_read} ({self._removed_in_words()}); look at `jax-diversity prepare --dry-run`."
            )
        write_json(folder / "funnel.json", self.account())
        write_json(folder / "examples.json", self.examples())
        self._keep_learned(work, folder / "learned")

    def _keep_learned(self, work: Path, folder: Path) -> None:
        """Copy the `kept_files` of every step."""
        for spec, step in zip(self._specs, self._steps, strict=True):
            places = learned_folder(work, spec.label), resolved_folder(work, spec.label)
            for path in (place / name for name in step.kept_files for place in places):
                if path.exists():
                    (folder / spec.label).mkdir(parents=True, exist_ok=True)
                    copy_file(path, folder / spec.label / path.name)

    def run(self, work: Path, sources: Sequence[Path], task: Task | None = None) -> int:
        """Run all phases on parts that were read. Returns the number of the last phase, whose parts remain.

        Args:
            work: the folder of the run's files.
            sources: the files of the parts, which are deleted when they are not needed any more.
            task: shows the progress of the phases.
        """
        for spec, step in zip(self._specs, self._steps, strict=True):
            learned = learned_folder(work, spec.label)
            if isinstance(step, LearningStep) and not learned.exists():
                with atomic_folder(learned) as partial:
                    step.learn(partial)
        write_steps(work, self._specs, self._seconds, self._keep_removed)
        phases, run = Phases(self._specs, work, self._seconds, self._keep_removed), secrets.token_hex(4)
        self._num_parts, starts = len(sources), [0] * len(sources)
        for phase in range(phases.last + 1):
            label = phases.survey_labels[phase - 1] if phase else "steps"
            if phase:
                starts = self._resolve(phases, phase - 1, work)
                sources = [part_path(work, phase - 1, index) for index in range(len(sources))]
            jobs: list[Job] = [
                (job_name(work, phase, index), (str(work), run, phase, index, str(source), start))
                for index, (source, start) in enumerate(zip(sources, starts, strict=False))
                if not self._is_begun(work, index, phase + 1)  # a continued run may have finished later phases
            ]
            with nullcontext(ignore) if task is None else task(f"prepare: {label}", len(jobs), "parts") as advance:
                for _ in self._executor.map(run_phase, jobs):
                    advance(1)
        return phases.last

    def _is_begun(self, work: Path, index: int, phase: int = 0) -> bool:
        """Whether this phase of a part, or a later one, is finished."""
        last = sum(step.compares_documents for step in self._steps)
        return any(read_done(job_name(work, later, index)) is not None for later in range(phase, last + 1))

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
            {"step": spec.label, **account.total()}
            for spec, account in zip(self._specs, self._tally.accounts, strict=True)
        ]

    def account(self) -> dict[str, Any]:
        """Return the funnel, for all documents, by source and by language."""
        parts = {
            name: {
                spec.label: account.by(part) for spec, account in zip(self._specs, self._tally.accounts, strict=True)
            }
            for part, name in enumerate(("source", "language"))
        }
        steps = self.funnel()
        # Readers of the account need no step to say why a rule removes documents.
        phrases = {
            f"{step['step']}.{rule}": phrase
            for step in steps
            for rule in step["removed"]
            if (phrase := rule_phrase(step["step"], rule))
        }
        return {"read": self._tally.num_read, "kept": self._tally.num_kept, "steps": steps, "phrases": phrases, **parts}

    def examples(self) -> dict[str, Any]:
        """Return up to ten removed documents for each rule, and up to ten edited documents for each step.

        The documents are chosen by hash; personal data are masked. `removed` maps `step.rule` to documents: each has
        the id, the measured value, the threshold and the beginning of the text. `edited` maps a step to documents: each
        has lines with a sign, which is a space (kept), - (removed) or + (added).
        """
        removed, edited = {}, {}
        for spec, account in zip(self._specs, self._tally.accounts, strict=True):
            for rule, examples in account.removed_examples().items():
                removed[f"{spec.label}.{rule}"] = examples
            if examples := account.edited_examples():
                edited[spec.label] = examples
        return {"removed": removed, "edited": edited}

    def counts(self) -> dict[str, Any]:
        """Return the counts of the stage: the stored documents, the fields that steps added, and the funnel."""
        fields = sorted(self._tally.fields)
        preparation = {"num_documents_read": self._tally.num_read, "fields": fields, "steps": self.funnel()}
        if lists := self._evaluation_lists():
            preparation["evaluation_lists"] = lists
        return {"num_documents": self._tally.num_kept, "text_bytes": self._tally.kept_bytes, "preparation": preparation}

    def _evaluation_lists(self) -> list[str]:
        """The files of evaluation texts of all steps, and how far a step does not apply to all documents."""
        lists = []
        for spec, step in zip(self._specs, self._steps, strict=True):
            limits = ["only some documents"] * (spec.only is not None) + ["marked, not removed"] * spec.mark
            lists += [", ".join([file, *limits]) for file in step.evaluation_lists()]
        return lists

    def _removed_in_words(self) -> str:
        removed = Counter[str]()
        for step in self.funnel():
            for rule, number in step["removed"].items():
                reasons = f" ({', '.join([*step['found']][:3])})" if rule == "raised" else ""
                removed[f"{step['step']}.{rule}{reasons}"] = number
        return ", ".join(f"{number} by {rule}" for rule, number in removed.most_common(3))

    def _check_account(self) -> None:
        """Check that documents read = kept + removed, at every step and in total."""
        flowing = self._tally.num_read
        for step in self.funnel():
            entered, left = step["documents_in"], step["documents_out"]
            if entered != flowing or entered != left + sum(step["removed"].values()):
                raise RuntimeError(f"Documents are lost: {flowing} before {step['step']}, which counted {step}.")
            flowing = left
        if flowing != self._tally.num_kept:
            raise RuntimeError(f"Documents are lost: {flowing} left the last step, {self._tally.num_kept} were kept.")
        for step, total in zip(self._steps, self.funnel(), strict=True):
            step.check_account(total)
