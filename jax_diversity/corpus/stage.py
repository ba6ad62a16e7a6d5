"""The stage `prepare`: read the corpus, store its documents."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.foundation.artifacts import CACHE, write_array
from jax_diversity.foundation.stage import Context, Counts, Stage

# Counts of records that are no documents.
_SKIPPED = ("num_empty_documents", "num_broken_records", "num_without_text", "num_text_not_string", "num_invalid_utf8")


def prepare(context: Context, partial: Path) -> Counts:
    """Read the corpus and store its documents, and which of them are copies of one text."""
    from jax_diversity.corpus.reading import input_size, read_documents
    from jax_diversity.corpus.records import ReadReport
    from jax_diversity.corpus.store import DocumentStore, write_documents

    config: CorpusConfig = context.config.corpus
    report = ReadReport()  # filled while the documents are written: no list of them is ever made
    with context.progress.task("prepare documents", input_size(config), "bytes") as advance:
        stored = write_documents(read_documents(config, report, advance), partial, config.file_bytes)
    # Stored, so that no other stage needs the hashes of all texts.
    write_array(partial / "duplicate_groups.npy", DocumentStore.of_folder(partial).group_duplicates())
    return dataclasses.asdict(report) | dataclasses.asdict(stored)


def summary(counts: Counts) -> str:
    """What was read."""
    text = f"{counts['num_documents']:,} documents, {counts['text_bytes'] / 1e6:,.1f} MB of text"
    skipped = sum(counts[name] for name in _SKIPPED)
    first = f"; first: {counts['problems'][0]}" if counts["problems"] else ""
    return f"{text}, {skipped:,} records skipped{first}" if skipped else text


def _corpus_fingerprint(context: Context) -> str:
    from jax_diversity.corpus.reading import input_fingerprint

    cache = context.root / CACHE / "inputs.json"
    cache.parent.mkdir(parents=True, exist_ok=True)
    return input_fingerprint(context.config.corpus, cache)


PREPARE = Stage(
    "prepare",
    help="Read a corpus and store its documents.",
    section="corpus",
    destination="documents",
    run=prepare,
    summary=summary,
    settings=lambda config: {"corpus": dataclasses.asdict(config.corpus)},
    outside=_corpus_fingerprint,
    packages=("pyarrow",),
)
