"""Measure time, memory and size of the report on a built dataset, and window profiles of a million sequences.

    python benchmarks/report.py [--dataset FOLDER] [--num-sequences N] [--write]

Without a dataset, one is built first: documents of invented words, with the lengths and topics of `corpora.py`,
scaled to sequences of 128 bytes; 1,000 clusters and two orderings. Timed work runs in a separate process; on a busy
machine processor seconds are more reliable than wall time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import corpora
import numpy as np
import results_file

import jax_diversity as jd
from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.foundation.executors import Processes
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.stage import Context
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.report.stage import draw_report
from jax_diversity.sequences.characteristics.settings import CharacteristicsConfig
from jax_diversity.sequences.clustering.settings import ClusterConfig
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from jax_diversity.streaming.dataset.dataset import open_dataset

SEQUENCE_LENGTH = 128
SCALE = 2048 // SEQUENCE_LENGTH  # factor by which documents are shorter than in `corpora.py`
NUM_CLUSTERS = 1000
WORD_BYTES = 8
PROFILE_SEQUENCES = 1_000_000
_Made = TypeVar("_Made")


def documents(num_sequences: int) -> Iterator[dict[str, Any]]:
    """Records of documents that fill a number of sequences; half of the words belong to a document's topic."""
    lengths, topics = corpora.draw_documents(num_sequences * SEQUENCE_LENGTH * SCALE, NUM_CLUSTERS, seed=0)
    num_words = np.maximum(lengths // SCALE // WORD_BYTES, 1)
    rng = np.random.default_rng(0)
    for index, (number, topic) in enumerate(zip(num_words.tolist(), topics.tolist(), strict=True)):
        draws = rng.integers(0, 30, number).tolist()
        words = (f"w{topic:04d}{draw:02d}" if draw < 15 else f"common{draw % 10}" for draw in draws)
        source = f"source {index % 40}"
        yield {"id": str(index), "text": " ".join(words), "title": f"About {topic}", "source": source}


def build(num_sequences: int, folder: Path) -> Path:
    """A dataset of about this many sequences, with everything that the report reads."""
    texts = folder / "documents.jsonl"
    with texts.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(document) + "\n" for document in documents(num_sequences))
    config = BuildConfig(
        out=str(folder / "dataset"),
        corpus=CorpusConfig(paths=(str(texts),)),
        tokenizer=TokenizerConfig(kind="bytes"),
        embedding=EmbeddingConfig(method="hashing", options={"dimensions": 64}),
        cluster=ClusterConfig(
            num_clusters=NUM_CLUSTERS,
            options={"start": "random", "max_iterations": 3},
            train_documents=20_000,
            label_field="source",
        ),
        packing=PackingConfig(sequence_length=SEQUENCE_LENGTH, validation_fraction=0.0),
        characteristics=CharacteristicsConfig(families=("cluster", "length", "source"), length_bins=100),
        orders=(OrderConfig("uniform_shuffle"), OrderConfig("balance")),
    )
    Build(config, Progress(quiet=True)).run_all()
    return Path(config.out)


def report_figures(dataset: Path) -> dict[str, float]:
    """Write one report on a built dataset to another folder."""
    # The report's libraries are loaded before its time is measured: in a build they are loaded, too.
    import pyarrow.parquet  # noqa: F401

    context = Context(recorded_config(dataset), OutputFolder(dataset), Progress(quiet=True), open_dataset, Processes())
    with tempfile.TemporaryDirectory() as folder:
        figures = timed(lambda: draw_report(context, Path(folder)))
        sizes = {name: (Path(folder) / f"report.{name}").stat().st_size for name in ("html", "json")}
    chars = jd.open_dataset(dataset).characteristics
    return {
        "num_sequences": chars.num_sequences,
        "num_nonzeros": sum(len(counts.data) for counts in chars.counts.values()),
        **figures,
        **{f"{name}_megabytes": round(size / 1e6, 2) for name, size in sizes.items()},
    }


def profile_figures(num_sequences: int) -> dict[str, float]:
    """Profiles of one shuffle in both families: all powers of two, both offsets."""
    chars = corpora.synthetic(num_sequences)
    indices = np.random.default_rng(0).permutation(num_sequences)
    num_nonzeros = sum(len(counts.data) for counts in chars.counts.values())
    return {
        "num_sequences": num_sequences,
        "num_nonzeros": num_nonzeros,
        **timed(lambda: jd.window_profile(chars, indices)),
    }


def timed(run: Callable[[], object]) -> dict[str, float]:
    """Seconds of the clock and of the processor, and the process's peak of memory so far."""
    start, start_processor = time.perf_counter(), time.process_time()
    run()
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(time.process_time() - start_processor, 1),
        "peak_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
    }


def in_own_process(function: Callable[..., _Made], *arguments: object) -> _Made:
    """Run work in a new process: a peak of memory never falls, and a child starts with its parent's peak."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    """Print the results; with --write, store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, help="a built dataset; without it, one is built")
    parser.add_argument("--num-sequences", type=int, default=200_000, help="sequences of the dataset that is built")
    parser.add_argument("--write", action="store_true", help="write results/report.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dataset = options.dataset or in_own_process(build, options.num_sequences, Path(folder))
        figures = {"report": in_own_process(report_figures, dataset)}
    figures["profile"] = in_own_process(profile_figures, PROFILE_SEQUENCES)
    for name, values in figures.items():
        print(f"{name}: " + ", ".join(f"{key} {value:,}" for key, value in values.items()), flush=True)
    if options.write:
        results_file.write("report", {**results_file.environment("numpy", "scipy", "pyarrow"), **figures})


if __name__ == "__main__":
    main()
