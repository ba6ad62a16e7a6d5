"""Compare two ways to write records in an order: sorting in two sequential passes, and reads at random places.

    taskset -c 1 python benchmarks/ordered_layout.py [--sequences 1000000] [--length 128] [--write]

A dataset of short documents is packed end to end. Its order is random. `random reads` gathers the tokens of the
sequences in the order of the records, in this process (`write_records`). `two passes` is the stage `write`, also in
this process, with the hashes of the records, which the other way does not compute. Both write the same bytes; this is
checked. Ways alternate, and the best of three runs counts, in seconds of a clock and of processor time.

`warm`: the tokens are in the page cache. `cold`: their pages are dropped before each run (`posix_fadvise`); the disk's
own cache may still have them. `MB` is the growth of the process's resident memory in the run, mapped files
included.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import results_file

import jax_diversity as jd
from jax_diversity.foundation.artifacts import OutputFolder, write_array
from jax_diversity.foundation.executors import Here
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.stage import Context
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.schema import Ordering, Segments
from jax_diversity.sequences.token_store.megatron import TokenWriter
from jax_diversity.streaming.records import sorting
from jax_diversity.streaming.records.settings import RecordsConfig
from jax_diversity.streaming.records.stage import write_sequences
from jax_diversity.streaming.records.writing import write_records

NUM_FILES, SEED = 16, 0


def make_dataset(root: Path, num_sequences: int, length: int) -> None:
    """Store the stages that `write` reads: tokens in files, segments, and a random order."""
    rng = np.random.default_rng(SEED)
    lengths = rng.lognormal(np.log(4 * length), 1.0, num_sequences // 4).astype(np.int64) + 1
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), num_sequences * length)) + 1]
    segments = jd.pack(lengths, length).segments
    folder = OutputFolder(root)

    def publish(stage: str, destination: str, counts: dict[str, Any], fill: Callable[[Path], object]) -> None:
        partial = folder.partial(stage, "0" * 64, resume=False)
        fill(partial)
        entry = {"fingerprint": "0" * 64, "config": {}, "inputs": {}, "counts": counts, "summary": ""}
        folder.publish(stage, partial, destination, entry, owns_folder=False)

    def write_tokens(partial: Path) -> None:
        for number, part in enumerate(np.array_split(lengths, NUM_FILES)):
            with TokenWriter(partial / f"tokens-{number:05d}", np.dtype(np.uint16)) as writer:
                writer.add_runs(rng.integers(0, 60_000, int(part.sum())).astype(np.uint16), part)

    def write_segments(partial: Path) -> None:
        table = pa.table({column: getattr(segments, column) for column in Segments.COLUMNS})
        pq.write_table(table, partial / "segments.parquet", compression="zstd")
        empty = table.slice(0, 0)
        pq.write_table(empty, partial / "validation.parquet", compression="zstd")

    order = Ordering(rng.permutation(segments.num_sequences), {"method": "random"})
    counts = {"sequence_length": length, "overlap": 0, "num_sequences": segments.num_sequences}
    with folder.lock():
        publish("tokenize", "tokens", {"token_dtype": "uint16", "end_id": 0}, write_tokens)
        publish("pack", "sequences", {**counts, "num_validation_sequences": 0, "num_inserted_ends": 0}, write_segments)
        about = {"fingerprint": order.fingerprint}
        publish("order/random", "orderings", about, lambda to: write_array(to / "random.npy", order.indices))


def kilobytes(name: str) -> int:
    """A number of the process's status, such as VmRSS."""
    found = re.search(name + r":\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1])


def drop_pages(folder: Path) -> None:
    """Remove the files of a folder from the page cache."""
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def timed(way: Callable[[Path], object], to: Path) -> dict[str, float]:
    """Run one way into an empty folder, in a fork of this process, whose memory other runs have not touched."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        try:
            before, begun, used = kilobytes("VmRSS"), time.perf_counter(), time.process_time()
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak of memory
            way(to)
            seconds, processor = time.perf_counter() - begun, time.process_time() - used
            megabytes = (kilobytes("VmHWM") - before) / 1024
            os.write(theirs, json.dumps({"seconds": seconds, "processor": processor, "megabytes": megabytes}).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return json.loads(found)


def measure(root: Path, to: Path, per_file: int, repeats: int, cold: bool) -> dict[str, dict[str, float]]:
    """Measure both ways, and check that they write the same bytes."""
    config = BuildConfig(records=RecordsConfig(layout="ordered", ordering="random", sequences_per_file=per_file))

    def two_passes(folder: Path) -> None:
        write_sequences(Context(config, OutputFolder(root), Progress(quiet=True), jd.open_dataset, Here()), folder)

    def random_reads(folder: Path) -> None:
        dataset = jd.open_dataset(root)
        order, gather = dataset.orderings["random"].indices, dataset.tokens.gather
        identity = OutputFolder(root).stages["pack"]["fingerprint"]
        arguments: Any = (dataset.segments, gather, "uint16", order, folder, "train")
        write_records(*arguments, sequences_per_file=per_file, identity=identity)

    ways = {"random reads": random_reads, "two passes": two_passes}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    contents: dict[str, list[Path]] = {}
    for _ in range(repeats):
        for name, way in ways.items():
            if cold:
                drop_pages(root / "tokens")
            found[name].append(timed(way, to / name))
            contents[name] = sorted((to / name).glob("*.array_record"))
    for one, other in zip(*contents.values(), strict=True):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes()
    return {name: {key: round(min(run[key] for run in runs), 3) for key in runs[0]} for name, runs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write results/ordered_layout.json")
    arguments = parser.parse_args()
    about = results_file.environment("array_record", "numpy", "pyarrow")
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        root, to = Path(name) / "dataset", Path(name)
        make_dataset(root, arguments.sequences, arguments.length)
        per_file = -(-arguments.sequences // 16)
        usual = sorting._BUCKET_BYTES
        print(f"{arguments.sequences:,} sequences of {arguments.length} uint16 tokens, in 16 files\n")
        print(f"{'':37}{'seconds':>10}{'processor s':>13}{'MB':>8}")
        for bucket, caches in ((usual, (False, True)), (usual // 16, (False,))):
            sorting._BUCKET_BYTES = bucket
            for cold in caches:
                label = f"{'cold' if cold else 'warm'}, buckets of {bucket // 2**20} MiB"
                rows[label] = measure(root, to, per_file, arguments.repeats, cold)
                for way, row in rows[label].items():
                    numbers = f"{row['seconds']:>10.2f}{row['processor']:>13.2f}{row['megabytes']:>8.0f}"
                    print(f"{label:25}{way:>12}{numbers}", flush=True)
                one, other = rows[label]["random reads"], rows[label]["two passes"]
                rows[label]["ratio"] = {key: round(one[key] / other[key], 3) for key in ("seconds", "processor")}
                print(
                    f"{label:25}{'ratio':>12}{one['seconds'] / other['seconds']:>10.2f}"
                    f"{one['processor'] / other['processor']:>13.2f}",
                    flush=True,
                )
    if arguments.write:
        shape = {"num_sequences": arguments.sequences, "sequence_length": arguments.length}
        results_file.write("ordered_layout", {**about, **shape, "ways": rows})


if __name__ == "__main__":
    main()
