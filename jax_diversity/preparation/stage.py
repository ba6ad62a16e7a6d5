"""The stage `prepare`: it reads the corpus, applies the steps of preparation, and stores the kept documents."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.foundation.artifacts import CACHE, fingerprint, read_array, write_array
from jax_diversity.foundation.attempts import time_limit
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside
from jax_diversity.foundation.jobs import Job, gather, read_done
from jax_diversity.foundation.progress import reached
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.foundation.warned import warn
from jax_diversity.foundation.wording import counted
from jax_diversity.preparation.markup import KINDS
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema.prepared import DOCUMENTS, PREPARATION, DocumentArtifacts

if TYPE_CHECKING:
    from jax_diversity.preparation.passes.chain import Chain
    from jax_diversity.preparation.readers.records import ReadReport
    from jax_diversity.schema.document_store import StoredCorpus

_WORK = "work"
"""The folder of the jobs' files until the stage has finished."""
# Counts of records that gave no document.
_SKIPPED = (
    *("num_empty_documents", "num_broken_records", "num_without_text", "num_text_not_string", "num_invalid_utf8"),
    *("num_undecodable", "num_raised", "num_took_too_long"),
)

_FEW = 0.2
"""The share of kept documents below which preparation warns."""
_SHOWN_PROBLEMS = 3
TEMPLATE = "chat_template"
"""The count with the fingerprint of the chat template; no such count without chats."""
_MANY_WITHOUT_ANSWERS = 0.05
"""The share of chats without answers above which preparation warns."""
_MANY_BROKEN, _LEAST_BROKEN = 0.01, 10
"""The share and the number of broken records above which preparation warns."""


def prepare(context: Context, partial: Path) -> Counts:
    """Read the corpus, store its documents, and group copies of one text."""
    from jax_diversity.preparation.passes.decisions import decisions_file
    from jax_diversity.preparation.passes.groups import decision_files, document_files, read_into_parts, store_group
    from jax_diversity.preparation.readers.chat_template import load_template
    from jax_diversity.preparation.readers.reading import Reading, groups_of_files, input_size
    from jax_diversity.schema.document_store import DocumentStore, document_file

    all_documents = str(partial / DOCUMENTS / "all")
    work = partial / _WORK
    if (done := read_done(all_documents)) is not None:  # an earlier run ended before its files were published
        shutil.rmtree(work, ignore_errors=True)
        return done.result
    config, seconds = context.config.corpus, context.config.preparation.seconds_per_document
    chain = context.config.preparation.chain(context.executor)  # None means that there are no steps
    corpus, groups, reading = dataclasses.asdict(config), groups_of_files(config), Reading(config)
    work.mkdir(exist_ok=True)
    names = [work / f"read-{number:05d}" for number in range(len(groups))]
    jobs: list[Job] = [
        (str(name), (corpus, list(group), seconds, *([number == 0] if chain is None else [])))
        for number, (name, group) in enumerate(zip(names, groups, strict=True))
    ]
    results, num_bytes = list[dict[str, Any]](), 0
    with context.progress.task("prepare documents", input_size(config), "byte") as advance:
        for result in context.executor.map(store_group if chain is None else read_into_parts, jobs):
            reading.add(result["reading"])
            num_bytes += result["num_bytes"]
            reached(advance, num_bytes)
            results.append(result)
    _check_ids(config, names)
    reading.check()
    if chain is not None:
        names, results = _run_steps(context, chain, work, names, results)
    stored, further = _join(config, results)
    if further.get("num_chats") == 0:
        raise UserError(
            f"Expected chats in {', '.join(config.paths)} with corpus.format=chat, found none among "
            f"{counted(reading.report.num_documents, 'document')}; leave corpus.format out if they are texts."
        )
    files = [
        path
        for name, result in zip(names, results, strict=True)
        for path in document_files(name, result["stored"]["num_files"])
    ]
    if chain is not None:
        decisions = [path for name in names for path in decision_files(name)]
        folder = partial / PREPARATION / "decisions"
        gather(str(folder / "all"), None, {path: folder / decisions_file(n) for n, path in enumerate(decisions)})
        chain.finish(work, partial / PREPARATION)
    # We store the groups here, so that other stages do not have to read the hashes of all texts.
    groups_of_copies = DocumentStore(tuple(files)).group_duplicates(() if chain is None else chain.group_fields)
    groups = partial / DocumentArtifacts.duplicate_groups.file
    groups.parent.mkdir(exist_ok=True)
    write_array(groups, groups_of_copies)
    report = reading.report
    if report.num_documents == 1:
        advice = (
            "; if the file has several, name the lines with which they begin, such as --corpus.documents-begin '\\S' "
        )
        advice = f"{advice}for every line" if report.num_text_files else ""
        warn(f"The corpus is one document, so that no order can mix documents{advice}.")
    _warn_of_broken(report)
    _warn_of_chats_without_answers(further)
    counts = report.plain() | dataclasses.asdict(stored) | further
    if config.format == "chat":
        counts[TEMPLATE] = fingerprint(load_template(config.chat_template).identity)
    if chain is not None:
        counts |= chain.counts()
        _warn_of_few(counts["num_documents"], counts["preparation"])
        _warn_of_empty_scopes(counts["preparation"])
    renamed = {path: partial / DOCUMENTS / document_file(number) for number, path in enumerate(files)}
    gather(all_documents, counts, renamed)
    shutil.rmtree(work)
    return counts


def _check_ids(config: CorpusConfig, names: Sequence[Path]) -> None:
    """Check that no two groups of files have documents with the same id; each job has checked its own group."""
    from jax_diversity.preparation.passes.groups import IDS
    from jax_diversity.preparation.readers.reading import read_documents
    from jax_diversity.preparation.readers.records import ReadReport

    if len(names) == 1:
        return
    hashes = np.sort(np.concatenate([read_array(Path(f"{name}{IDS}"), "prepare") for name in names]))
    if (hashes[1:] == hashes[:-1]).any():
        # Reading the corpus again finds the two documents, or that two different ids have the same hash.
        for _ in read_documents(config, ReadReport()):
            pass


def _run_steps(
    context: Context, chain: Chain, work: Path, names: Sequence[Path], results: Sequence[dict[str, Any]]
) -> tuple[list[Path], list[dict[str, Any]]]:
    """Run the steps on the parts that were read, and store the documents and decisions of every group of files.

    Returns the names of the jobs that stored the documents, and their results.
    """
    from jax_diversity.preparation.passes.groups import TALLY, raw_part, store_parts
    from jax_diversity.preparation.passes.tally import Tally

    corpus, num_parts = dataclasses.asdict(context.config.corpus), [result["num_parts"] for result in results]
    parts = [raw_part(name, part) for name, number in zip(names, num_parts, strict=True) for part in range(number)]
    last = chain.run(work, parts, context.progress.task)
    names = [work / f"store-{number:05d}" for number in range(len(names))]
    bounds = np.cumsum([0, *num_parts]).tolist()
    jobs: list[Job] = [
        (str(name), (corpus, str(work), chain.num_steps, last, start, stop, start == 0))
        for name, (start, stop) in zip(names, pairwise(bounds), strict=True)
    ]
    with context.progress.task("prepare: store documents", len(jobs), "file group") as advance:
        stored = []
        for result in context.executor.map(store_parts, jobs):
            stored.append(result)
            advance(1)
    for name in names:
        chain.add(Tally.read(Path(f"{name}{TALLY}")))
    return [*names], stored


def _check_template(context: Context) -> None:
    """Warn if the chats have another template than those of the dataset of `features_from`."""
    if context.reference is None:
        return
    entries = context.folder.stages["prepare"], context.reference.manifest["stages"]["prepare"]
    templates = [entry["counts"].get(TEMPLATE) for entry in entries]
    if all(templates) and templates[0] != templates[1]:
        used, other = (entry["config"]["corpus"]["chat_template"] for entry in entries)
        edited = ", or as this file was then" if used == other else ""
        warn(
            f"The chats are joined by the chat template {used}, those of the dataset of features_from by another one; "
            f"a model is tested with the template of its training: --corpus.chat-template {other}{edited}."
        )


def _join(config: CorpusConfig, results: Sequence[dict[str, Any]]) -> tuple[StoredCorpus, dict[str, int]]:
    """Join the counts of the groups of files, and check that the corpus is not markup."""
    from jax_diversity.preparation.markup import MarkupCounts
    from jax_diversity.schema.document_store import StoredCorpus

    further, markup = Counter[str](), MarkupCounts(config.keep_markup)
    for result in results:
        further.update(result["further"])
        markup.add(MarkupCounts(config.keep_markup, result["markup"]))
    return StoredCorpus.joined([StoredCorpus(**result["stored"]) for result in results]), dict(further) | markup.check()


def _warn_of_broken(report: ReadReport) -> None:
    """Warn if many records were skipped because they are broken."""
    number = report.num_problems
    num_records = report.num_documents + report.num_empty_documents + number
    if number >= _LEAST_BROKEN and number > _MANY_BROKEN * num_records:
        warn(
            f"{number:,} of {num_records:,} records ({number / num_records:.0%}) were skipped because they are broken, "
            f"such as {report.problems[0]}; correct the records, or refuse such files with corpus.strict."
        )


def _warn_of_chats_without_answers(counts: Counts) -> None:
    """Warn if many chats have no answer that counts towards the loss."""
    from jax_diversity.preparation.readers.chat import WITHOUT_ANSWERS

    number, num_chats = counts.get(WITHOUT_ANSWERS, 0), counts.get("num_chats", 0)
    if number > _MANY_WITHOUT_ANSWERS * num_chats:
        warn(
            f"{number:,} of {num_chats:,} chats ({number / num_chats:.0%}) have no answer that counts towards the "
            "loss; check the roles and the weights of their turns, or leave these chats out."
        )


def _warn_of_few(num_kept: int, preparation: Counts) -> None:
    """Warn if the steps kept a small share of the documents, and name the rule that removed most of them."""
    num_read = preparation["num_documents_read"]
    removed = {
        (step["step"], rule): number for step in preparation["steps"] for rule, number in step["removed"].items()
    }
    if removed and num_kept < _FEW * num_read:
        step, rule = max(removed, key=lambda name: removed[name])
        warn(
            f"Preparation kept {num_kept:,} of {num_read:,} documents; the rule {rule} of the step {step} removed "
            f"{removed[step, rule]:,}. `jax-diversity prepare --dry-run` with the same options shows every rule; "
            "choose steps that fit these texts.",
        )


def _warn_of_empty_scopes(preparation: Counts) -> None:
    """Warn of steps whose option `only` excludes all documents, such as by a misspelt source."""
    from jax_diversity.schema.prepared import OUT_OF_SCOPE

    for step in preparation["steps"]:
        if 0 < step["documents_in"] == step["unjudged"].get(OUT_OF_SCOPE):
            warn(
                f"The option `only` of the step {step['step']} excludes all {step['documents_in']:,} documents; check "
                "the names of sources and languages.",
            )


def summary(counts: Counts) -> str:
    """Return a sentence about the documents that were read."""
    from jax_diversity.preparation.readers.records import kind_of_problem

    size = f"{counts['text_bytes'] / 1e6:,.1f} MB of" if counts["text_bytes"] else "without"
    text = f"{counted(counts['num_documents'], 'document')}, {size} text"
    if "preparation" in counts:
        text += f", of {counts['preparation']['num_documents_read']:,} read"
    if counts.get("num_chats", counts["num_documents"]) < counts["num_documents"]:
        text += f", {counts['num_chats']:,} of them chats"
    text += "".join(f", {counts[name]:,} of them {kind}" for kind, name in KINDS.items() if name in counts)
    if unknown := counts.get("num_chats_without_turns"):
        text += f"; the turns of {unknown:,} edited chats are not certain: their answers do not count towards the loss"
    text += "".join(_hidden(counts))
    if media := counts.get("num_media_parts"):
        text += f"; {media:,} images and other parts of chats became placeholders such as <image>"
    if number := counts.get("num_other_encodings"):
        text += f"; {counted(number, 'document')} not in UTF-8, read in the encoding of the field `encoding`"
    if replaced := counts["num_replaced"]:
        text += f"; {counted(replaced, 'character')} could not be decoded (U+FFFD)"
        for place in ("source", "file"):
            name, number = max(counts[f"replaced_by_{place}"].items(), key=lambda pair: pair[1])
            text += f", {number:,} of them in the {place} {name}"
    if failed := [*_failed(counts)]:
        text += f"; removed because {' and '.join(failed)}"
    skipped = sum(counts[name] for name in _SKIPPED)
    if not skipped:
        return text
    first_of_kind = dict[str, str]()
    for problem in counts["problems"]:
        first_of_kind.setdefault(kind_of_problem(problem), problem)
    shown = [*first_of_kind.values()][:_SHOWN_PROBLEMS]
    first = f", such as {'; '.join(shown)}" if skipped > len(shown) else f": {'; '.join(shown)}"
    return f"{text}; {counted(skipped, 'record')} skipped{first if shown else ''}"


def _hidden(counts: Counts) -> Iterator[str]:
    """Yield what the template leaves out of chats, and how the marks of turns were understood."""
    from jax_diversity.preparation.readers.chat import HIDDEN, WITHOUT_ANSWERS
    from jax_diversity.preparation.readers.turns import REASONING

    # A template may show the reasoning of the last answer alone.
    hidden = [name.removeprefix(HIDDEN) for name in sorted(counts) if name.startswith(HIDDEN)]
    shown = [f"{'some ' * (name in REASONING)}{name} of {counts[f'{HIDDEN}{name}']:,}" for name in hidden]
    if shown:
        yield f"; the chat template does not show {', '.join(shown)} chats"
    if number := counts.get("num_chats_with_quoted_arguments"):
        yield (
            f"; the chat template quotes the arguments of calls in {counted(number, 'chat')}, because they are text in "
            "the records: write them as objects if your model expects objects"
        )
    if number := counts.get(WITHOUT_ANSWERS):
        yield f"; {counted(number, 'chat')} without an answer that counts towards the loss"
    if number := counts.get("num_empty_answers"):
        yield f"; {counted(number, 'empty answer')} not counted towards the loss"
    if number := counts.get("num_excluded_answers"):
        yield f"; {counted(number, 'answer')} with weight 0 not counted towards the loss"
    if number := counts.get("num_other_loss_weights"):
        yield f"; {counted(number, 'loss weight')} of turns other than 0 and 1 count as 1"
    if number := counts.get("num_loss_masks"):
        yield f"; the field 'mask' of {counted(number, 'turn')} was read so: 0 leaves the turn out of the loss"


def _failed(counts: Counts) -> Iterator[str]:
    """Yield the steps that raised exceptions or took too long, with their numbers of documents."""
    steps = counts["preparation"]["steps"] if "preparation" in counts else ()
    for rule, words in (("raised", "raised an exception"), ("took_too_long", "took too long")):
        by_step = {step["step"]: step["removed"][rule] for step in steps if rule in step["removed"]}
        if by_step:
            yield ", ".join(f"{name} {words} ({number:,})" for name, number in by_step.items())


def _corpus_fingerprint(context: Context) -> str:
    from jax_diversity.preparation.readers.chat_template import load_template
    from jax_diversity.preparation.readers.reading import input_fingerprint

    cache = inside(context.root, CACHE, "inputs.json")
    cache.parent.mkdir(parents=True, exist_ok=True)
    config: CorpusConfig = context.config.corpus
    with time_limit(context.config.preparation.seconds_per_document):  # reading the licence files may take too long
        files = input_fingerprint(config, cache)
    if config.format == "chat":
        files = fingerprint(files, load_template(config.chat_template).identity)
    return context.config.preparation.fingerprint_with(files)


PREPARE = Stage(
    "prepare",
    help="Read a corpus, filter it and store its documents.",
    section="corpus",
    destination="",  # documents/, duplicates/, and preparation/ if there are steps
    run=prepare,
    summary=summary,
    settings=lambda config: {"corpus": config.corpus.made_of()} | config.preparation.made_of(),
    outside=_corpus_fingerprint,
    check=_check_template,
    packages=("pyarrow",),
    methods="preparation.steps.base",
    resumable=True,
    also=("preparation",),
    version=9,
)
