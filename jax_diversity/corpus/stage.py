"""The stage `prepare`: it reads the corpus, applies the steps of preparation, and stores the kept documents."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path

from jax_diversity.corpus.markup import KINDS, without_markup
from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.corpus.stored import DOCUMENTS, DUPLICATE_GROUPS, PREPARATION
from jax_diversity.foundation.artifacts import CACHE, fingerprint, write_array
from jax_diversity.foundation.attempts import time_limit
from jax_diversity.foundation.folders import inside
from jax_diversity.foundation.stage import Context, Counts, Stage

# Counts of records that gave no document.
_SKIPPED = (
    *("num_empty_documents", "num_broken_records", "num_without_text", "num_text_not_string", "num_invalid_utf8"),
    *("num_raised", "num_took_too_long"),
)

_FEW = 0.2
"""The share of kept documents below which preparation warns."""


def prepare(context: Context, partial: Path) -> Counts:
    """Read the corpus, store its documents, and group copies of one text."""
    from jax_diversity.corpus.readers.chat import with_loss_spans
    from jax_diversity.corpus.readers.reading import input_size, read_documents
    from jax_diversity.corpus.readers.records import ReadReport
    from jax_diversity.corpus.store import DocumentStore, write_documents

    config: CorpusConfig = context.config.corpus
    chain = context.config.preparation.chain()  # None means that there are no steps
    folder = partial / DOCUMENTS
    further: dict[str, int] = {}
    report = ReadReport()  # its counts grow while the documents are written; we never make a list of all documents
    limit = time_limit(context.config.preparation.seconds_per_document)
    with limit, context.progress.task("prepare documents", input_size(config), "bytes") as advance:
        documents = read_documents(config, report, advance)
        if chain is not None:
            documents = chain.through(documents, partial / PREPARATION, context.progress.task)
        if config.format == "chat":
            documents = with_loss_spans(documents, config, further)
        if config.format not in ("megatron", "tokens"):
            documents = without_markup(documents, config.keep_markup, further)
        stored = write_documents(documents, folder, config.file_bytes)
    # We store the groups here, so that other stages do not have to read the hashes of all texts.
    groups = DocumentStore.of_folder(folder).group_duplicates(() if chain is None else chain.group_fields)
    (partial / DUPLICATE_GROUPS).parent.mkdir(exist_ok=True)
    write_array(partial / DUPLICATE_GROUPS, groups)
    if report.num_documents == 1:
        warnings.warn(
            "The corpus is one document, so that no order can mix documents; if the file has several, name the lines "
            "with which they begin, such as --corpus.documents-begin '\\S' for every line.",
            stacklevel=2,
        )
    counts = dataclasses.asdict(report) | dataclasses.asdict(stored) | further
    if chain is None:
        return counts
    counts |= chain.counts()
    _warn_of_few(counts["num_documents"], counts["preparation"])
    return counts


def _warn_of_few(num_kept: int, preparation: Counts) -> None:
    """Warn if the steps kept a small share of the documents, and name the rule that removed most of them."""
    num_read = preparation["num_documents_read"]
    removed = {
        (step["step"], rule): number for step in preparation["steps"] for rule, number in step["removed"].items()
    }
    if removed and num_kept < _FEW * num_read:
        step, rule = max(removed, key=lambda name: removed[name])
        warnings.warn(
            f"Preparation kept {num_kept:,} of {num_read:,} documents; the rule {rule} of the step {step} removed "
            f"{removed[step, rule]:,}. `jax-diversity prepare --dry-run` with the same options shows every rule; "
            "choose steps that fit these texts.",
            stacklevel=2,
        )


def summary(counts: Counts) -> str:
    """Return a sentence about the documents that were read."""
    text = f"{counts['num_documents']:,} documents, {counts['text_bytes'] / 1e6:,.1f} MB of text"
    if "preparation" in counts:
        text += f", of {counts['preparation']['num_documents_read']:,} read"
    text += "".join(f", {counts[name]:,} of them {kind}" for kind, name in KINDS.items() if name in counts)
    if unknown := counts.get("num_chats_without_turns"):
        text += f"; the turns of {unknown:,} edited chats are not certain: their answers do not count towards the loss"
    if media := counts.get("num_media_parts"):
        text += f"; {media:,} images and other parts of chats became placeholders such as <image>"
    if failed := [*_failed(counts)]:
        text += f"; removed because {' and '.join(failed)}"
    skipped = sum(counts[name] for name in _SKIPPED)
    first = f"; first: {counts['problems'][0]}" if counts["problems"] else ""
    return f"{text}, {skipped:,} records skipped{first}" if skipped else text


def _failed(counts: Counts) -> Iterator[str]:
    """Yield the steps that raised exceptions or took too long, with their numbers of documents."""
    steps = counts["preparation"]["steps"] if "preparation" in counts else ()
    for rule, words in (("raised", "raised an exception"), ("took_too_long", "took too long")):
        by_step = {step["step"]: step["removed"][rule] for step in steps if rule in step["removed"]}
        if by_step:
            yield ", ".join(f"{name} {words} ({number:,})" for name, number in by_step.items())


def _corpus_fingerprint(context: Context) -> str:
    from jax_diversity.corpus.readers.chat_template import load_template
    from jax_diversity.corpus.readers.reading import input_fingerprint

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
    packages=("pyarrow",),
    methods="corpus.steps.base",
    resumable=True,
    also=("preparation",),
)
