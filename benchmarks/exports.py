"""Measure the speed of writing ordered sequences for MaxText, and the time to read them there.

    python benchmarks/exports.py [--num-sequences 100000] [--sequence-length 512] [--write]

A synthetic dataset is written to a temporary folder, exported in a random order, and read with Grain's own
source. Its time per record grows with the number of groups in the file. The growth of peak memory is measured for the
export alone.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from results_file import environment, write

import jax_diversity as jd
from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.schema import Ordering, Segments
from jax_diversity.streaming.export.maxtext import encode_examples, write_maxtext
from jax_diversity.streaming.export.pytorch import OrderedBatchSampler
from jax_diversity.streaming.records.writing import write_records

VOCABULARY = 50_000


def make_dataset(root: Path, num_sequences: int, length: int) -> None:
    """Write records, an ordering, and the part of a manifest that exports read."""
    rng = np.random.default_rng(0)
    index = np.arange(num_sequences)
    zeros = np.zeros(num_sequences, np.int64)
    whole = np.full(num_sequences, length)
    segments = Segments(index, zeros, index, zeros, whole, np.ones(num_sequences, bool), num_sequences, length)
    folder = OutputFolder(root)
    with folder.lock():
        partial = folder.partial("write", "0" * 64, resume=False)
        counts = write_records(
            segments,
            lambda document, offset, length: rng.integers(0, VOCABULARY, int(length.sum()), np.uint16),
            "uint16",
            index,
            partial,
            "train",
            sequences_per_file=65_536,
        )
        records = {"layout": "packed", "ordering": None, "dtype": "uint16", "identity": ""}
        publish(folder, "write", partial, "records", {**records, "records": {"train": counts, "validation": ()}})
        partial = folder.partial("order/balance", "0" * 64, resume=False)
        ordering = Ordering(rng.permutation(num_sequences))
        ordering.save(partial / "balance.npy")
        publish(folder, "order/balance", partial, "orderings", {"fingerprint": ordering.fingerprint})
        partial = folder.partial("pack", "0" * 64, resume=False)
        (partial / "none").write_bytes(b"")
        about = {"sequence_length": length, "num_sequences": num_sequences, "num_validation_sequences": 0}
        publish(folder, "pack", partial, "sequences", about)


def publish(folder: OutputFolder, stage: str, partial: Path, destination: str, counts: dict[str, Any]) -> None:
    mark = hashlib.sha256(stage.encode()).hexdigest()
    entry = {"fingerprint": mark, "config": {}, "inputs": {}, "counts": counts}
    folder.publish(stage, partial, destination, entry, owns_folder=True)


def export_alone(root: Path, target: Path) -> None:
    """Export in a separate process; return seconds and the growth of its peak memory."""
    run = jd.make_run(root, "balance")
    _ = jd.SequenceSource(run)[0]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    write_maxtext(run, target)
    seconds = time.perf_counter() - start
    print(seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def read_seconds(path: Path, num_reads: int = 300) -> float:
    """Measure seconds per record in random order through Grain's source, with a warm page cache."""
    source: Any = grain.sources.ArrayRecordDataSource([str(path)])
    places = np.random.default_rng(1).integers(0, len(source), num_reads).tolist()
    _ = source[0]
    start = time.perf_counter()
    for place in places:
        _ = source[place]
    return (time.perf_counter() - start) / num_reads


def grouped(path: Path, group_size: int, copy: Path) -> Path:
    """Write the same records with another group size."""
    reader = array_record_module.ArrayRecordReader(str(path))
    writer = array_record_module.ArrayRecordWriter(str(copy), f"group_size:{group_size},uncompressed")
    for first in range(0, reader.num_records(), 4096):
        for record in reader.read(first, min(first + 4096, reader.num_records())):
            writer.write(record)
    writer.close()
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-sequences", type=int, default=100_000)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--write", action="store_true", help="write results/exports.json")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        export_alone(Path(options.alone[0]), Path(options.alone[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_dataset(folder / "out", options.num_sequences, options.sequence_length)
        command = [sys.executable, __file__, "--alone", str(folder / "out"), str(folder / "maxtext")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds, mebibytes = map(float, done.stdout.split())
        num_tokens = options.num_sequences * options.sequence_length
        rows = np.random.default_rng(0).integers(0, VOCABULARY, (1024, 512)).astype(np.int32)
        start = time.perf_counter()
        for _ in range(5):
            encode_examples(rows, np.full(1024, 512))
        encoding = 5 * rows.size / (time.perf_counter() - start)
        figures: dict[str, Any] = {
            "export_million_tokens_per_second": round(num_tokens / seconds / 1e6, 2),
            "export_sequences_per_second": round(options.num_sequences / seconds),
            "export_memory_growth_mib": round(mebibytes, 1),
            "encode_million_tokens_per_second": round(encoding / 1e6, 2),
        }
        path = next((folder / "maxtext").glob("*.array_record"))
        for group_size in (1, 16, 64):
            copy = grouped(path, group_size, folder / f"groups-of-{group_size}.array_record")
            figures[f"grain_microseconds_per_record_groups_of_{group_size}"] = round(1e6 * read_seconds(copy), 1)
            copy.unlink()
        sampler = OrderedBatchSampler(folder / "out", "balance", 64)
        start = time.perf_counter()
        num_batches = sum(1 for _ in itertools.islice(sampler, 1000))
        figures["sampler_batches_per_second"] = round(num_batches / (time.perf_counter() - start))
    for name, value in figures.items():
        print(f"{name:<46}{value:>12,}")
    if options.write:
        about = {"num_sequences": options.num_sequences, "sequence_length": options.sequence_length}
        write("exports", {**environment("grain", "array_record", "numpy"), **about, "figures": figures})


if __name__ == "__main__":
    main()
