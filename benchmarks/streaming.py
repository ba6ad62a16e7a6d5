"""Measure the time to open a large dataset, and the rate of reading records in their stored order.

    python benchmarks/streaming.py [--num-sequences 10000000] [--num-records 100000] [--write]
    python benchmarks/streaming.py --hosts [--num-sequences 100000000] [--write]      # only the hosts of a pod

Opening: a dataset of ten million sequences in files of 65,536, in the packed layout read through a random ordering and
in the ordered layout, each in a separate process that has imported everything: the time until the first batch of 64,
and the largest growth of the process's resident memory. Record files that the batches do not read are sparse files of
full size. With a cold cache, add the disk's time to read the pieces of the ordering (8 MiB each) that the batch needs.

Hosts: a dataset of a hundred million sequences, made in the same way, and a run on 64 hosts with a global batch of
1,024 sequences. The hosts 0, 13 and 63 start one after another, each in its own process: `make_loader` for the packed
layout, `stream_batches` for the ordered layout. We measure the time until the host's first batch, from the middle of
the run (in the ordered layout also from the beginning), the growth of the resident memory, and the peak memory of the
process with all libraries.

Streaming: records of 2,048 uint16 tokens (4 KiB) in files of 16,384, in the ordered layout, batches of 64, all in
the page cache. For comparison, NumPy gathers whole batches from a memory map of the tokens alone, in the same
sequence (little more than a copy) and in random order. `token rows` do the same work; `inputs` are converted to int32,
and the numbers of their sequences are checked. The object store is fsspec's memory file system: this measures
the cost of the requests without a network.

Ranges of bytes (with obstore): a server on the loopback interface, in its own process, sends the same records. We count
its bytes for 1, 2, 4 and 8 hosts, without failures and with one failure in 20 requests (503, half a body, a closed
connection). The share of a host is the size of its records. Then requests take 50 ms, one in 100 takes 1 s, and a
consumer uses 1,000,000 tokens per second. We count the batches after the first one for which it waits more than 10 ms,
and the largest number of bytes that were fetched in advance. The same consumer with files of this machine shows how
long it waits for processors alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from results_file import environment, write

import jax_diversity as jd
from jax_diversity.foundation.artifacts import describe_file, signed
from jax_diversity.schema import Ordering, Segments
from jax_diversity.streaming.loader import ranges
from jax_diversity.streaming.records.reading import RecordReader
from jax_diversity.streaming.records.writing import file_counts, record_paths, write_records

B = 64
SHORT, LONG = 16, 2048
PER_FILE, PER_STREAMED_FILE = 65_536, 16_384
IDENTITY = "5a" * 32
POD_HOSTS, POD_BATCH, SOME_HOSTS = 64, 1024, (0, 13, 63)
NUM_WAITS = 1000  # batches of the consumer with slow requests


def make_dataset(
    root: Path, order: np.ndarray, layout: str, length: int, per_file: int, files: Iterable[int], gather: Any
) -> None:
    """Write only the files that the loader reads: records (only some files), an ordering, a manifest."""
    counts = file_counts(len(order), per_file)
    (root / "records").mkdir(parents=True)
    paths = record_paths(root / "records", "train", len(counts))
    lies = order if layout == "ordered" else np.arange(len(order))
    files = sorted(set(files))
    for file in files:
        write_one(paths[file], lies[file * per_file : file * per_file + counts[file]], len(order), length, gather)
    size = paths[files[0]].stat().st_size
    for path in set(paths) - {paths[file] for file in files}:
        with path.open("wb") as hole:
            hole.truncate(size)
    (root / "orderings").mkdir()
    ordering = Ordering(order, {"method": "random"})
    ordering.save(root / "orderings" / "random.npy")
    whole = len(files) == len(paths)  # only fetched files need hashes
    about = {"layout": layout, "ordering": "random" if layout == "ordered" else None, "dtype": "uint16"}
    stages = {
        "pack": stage({"sequence_length": length, "num_sequences": len(order), "overlap": 0}),
        "order/random": stage({"fingerprint": ordering.fingerprint}, entries(root, "orderings")),
        "write": stage(
            {**about, "records": {"train": counts, "validation": []}, "identity": IDENTITY},
            entries(root, "records", hashed=whole),
        ),
    }
    (root / "manifest.json").write_text(json.dumps(signed({"format_version": 1, "stages": stages})))


def write_one(path: Path, sequences: np.ndarray, num_sequences: int, length: int, gather: Any) -> None:
    """Write one file of one-segment sequences, through a folder in which it is the only file."""
    rows = np.sort(sequences)
    zeros = np.zeros(len(rows), np.int64)
    lengths, ends = np.full(len(rows), length), np.ones(len(rows), bool)
    segments = Segments(rows, zeros, rows, zeros, lengths, ends, num_sequences, length)
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        write_records(
            segments,
            gather,
            "uint16",
            sequences,
            Path(name),
            "one",
            sequences_per_file=len(rows),
            identity=IDENTITY,
        )
        record_paths(Path(name), "one", 1)[0].rename(path)


def stage(counts: dict[str, Any], files: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"fingerprint": "00" * 32, "summary": "", "config": {}, "inputs": {}, "counts": counts, "files": files or {}}


def entries(root: Path, folder: str, hashed: bool = True) -> dict[str, Any]:
    return {
        f"{folder}/{path.name}": describe_file(path) if hashed else {"bytes": path.stat().st_size, "sha256": "00" * 32}
        for path in sorted((root / folder).iterdir())
    }


OPENING = """
import re, sys, time
from contextlib import contextmanager
from pathlib import Path
import jax_diversity as jd
import jax, grain, array_record.python.array_record_module
from jax_diversity.streaming import loader

def kilobytes(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

Path("/proc/self/clear_refs").write_text("5")  # resets the peak of memory
before, start = kilobytes("VmRSS"), time.perf_counter()
options = dict(zip(("start_position", "global_batch_size", "num_hosts", "host_index"), map(int, sys.argv[3:])))
if sys.argv[2] == "stream":
    loader = jd.stream_batches(sys.argv[1], num_prefetch=0, **options)
else:
    loader = jd.make_loader(sys.argv[1], ordering="random", num_prefetch=0, **options)
opened = time.perf_counter()
batch = next(iter(loader))
done = time.perf_counter()
print(opened - start, done - start, (kilobytes("VmHWM") - before) / 1024, kilobytes("VmHWM") / 1024)
"""


def measure_opening(folder: Path, num_sequences: int) -> dict[str, dict[str, float]]:
    order = np.random.default_rng(0).permutation(num_sequences)
    tokens = np.ones(2**22, np.uint16)

    def gather(document_index: np.ndarray, document_offset: np.ndarray, length: np.ndarray) -> np.ndarray:
        return tokens[: int(length.sum())]

    middle = num_sequences // 2 // B * B
    touched = {
        "packed": np.unique(order[:B] // PER_FILE),
        "ordered": np.unique(np.array([0, middle]) // PER_FILE),
    }
    found = {}
    for layout, start in (("packed", 0), ("ordered", 0), ("ordered", middle)):
        root = folder / layout
        if not root.exists():
            make_dataset(root, order, layout, SHORT, PER_FILE, touched[layout].tolist(), gather)
        opened, seconds, megabytes, _ = best_opening(root, "loader", start, B, 1, 0)
        name = f"{layout}, from position {start}"
        found[name] = {
            "seconds_to_open": round(opened, 3),
            "seconds_to_first_batch": round(seconds, 3),
            "resident_megabytes": round(megabytes, 1),
        }
    return found


def best_opening(root: Path, way: str, *options: int) -> tuple[float, ...]:
    """Open a dataset in three processes; return the numbers that the fastest one prints."""
    command = [sys.executable, "-c", OPENING, str(root), way, *map(str, options)]
    runs = [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout for _ in range(3)]
    return min(tuple(map(float, run.split())) for run in runs)


def measure_hosts(folder: Path, num_sequences: int) -> list[dict[str, Any]]:
    """Start some hosts of a pod, each in its own process."""
    order = np.random.default_rng(0).permutation(num_sequences)
    tokens = np.ones(2**22, np.uint16)

    def gather(document_index: np.ndarray, document_offset: np.ndarray, length: np.ndarray) -> np.ndarray:
        return tokens[: int(length.sum())]

    share, middle = POD_BATCH // POD_HOSTS, num_sequences // 2 // POD_BATCH * POD_BATCH
    rows = []
    for layout, way, starts in (("packed", "loader", (middle,)), ("ordered", "stream", (0, middle))):
        root = folder / layout
        read = np.array([[start + host * share + np.arange(share) for host in SOME_HOSTS] for start in starts]).ravel()
        touched = np.unique((order[read] if layout == "packed" else read) // PER_FILE)
        make_dataset(root, order, layout, SHORT, PER_FILE, touched.tolist(), gather)
        for start in starts:
            for host in SOME_HOSTS:
                opened, seconds, grown, peak = best_opening(root, way, start, POD_BATCH, POD_HOSTS, host)
                about = {"layout": layout, "start": start, "host": host}
                numbers = {"seconds_to_open": round(opened, 3), "seconds_to_first_batch": round(seconds, 3)}
                rows.append({**about, **numbers, "grown_megabytes": round(grown), "peak_megabytes": round(peak)})
        shutil.rmtree(root)
    return rows


def token_rows(reader: RecordReader) -> Iterator[np.ndarray]:
    """Use only the reader: whole records' tokens as a matrix, checked."""
    for start in range(0, len(reader) - B + 1, B):
        yield reader.read_tokens(np.arange(start, start + B))


def memmap_batches(path: Path, order: np.ndarray) -> Iterator[np.ndarray]:
    tokens = np.memmap(path, np.uint16, "r").reshape(-1, LONG)
    for start in range(0, len(order) - B + 1, B):
        yield tokens[order[start : start + B]]


def rate(batches: Callable[[], Iterable[Any]], repeats: int = 3) -> float:
    """Megabytes of stored tokens per second over a whole pass, with opening; the best of some passes."""
    best = 0.0
    for _ in range(repeats):
        start, done = time.perf_counter(), 0
        for _batch in batches():
            done += 1
        best = max(best, done * B * LONG * 2 / 1e6 / (time.perf_counter() - start))
    return best


def measure_streaming(folder: Path, num_records: int) -> dict[str, float]:
    order = np.random.default_rng(1).permutation(num_records)
    raw = folder / "tokens.bin"  # in the stored order, so that both readers read forwards
    raw.write_bytes(np.random.default_rng(2).integers(1, 60_000, num_records * LONG, np.uint16).tobytes())
    tokens = np.memmap(raw, np.uint16, "r").reshape(-1, LONG)
    place = np.argsort(order)

    def gather(document_index: np.ndarray, document_offset: np.ndarray, length: np.ndarray) -> np.ndarray:
        return tokens[place[document_index]].reshape(-1)

    root = folder / "streamed"
    files = range(len(file_counts(num_records, PER_STREAMED_FILE)))
    make_dataset(root, order, "ordered", LONG, PER_STREAMED_FILE, files, gather)
    memory = fsspec.filesystem("memory")
    for path in root.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/streamed/{path.relative_to(root)}", path.read_bytes())
    inputs: dict[str, Any] = {"global_batch_size": B, "fields": ("inputs",)}
    remote = {**inputs, "cache_folder": folder / "cache"}
    readers: dict[str, Callable[[], Iterable[Any]]] = {
        "memmap, gather of batches": lambda: memmap_batches(raw, np.arange(num_records)),
        "memmap, gather, random order": lambda: memmap_batches(raw, order),
        "token rows": lambda: token_rows(jd.open_dataset(root).records.forward()),
        "token rows, no read-ahead": lambda: token_rows(jd.open_dataset(root).records),
        "make_loader, inputs": lambda: jd.make_loader(root, ordering="random", num_prefetch=0, **inputs),
        "stream, inputs": lambda: jd.stream_batches(root, num_prefetch=0, **inputs),
        "stream, inputs, prefetched": lambda: jd.stream_batches(root, **inputs),
        "stream, all six arrays": lambda: jd.stream_batches(root, global_batch_size=B),
        "stream, inputs, object store": lambda: jd.stream_batches("memory://streamed", **remote),
    }
    first = next(iter(readers["memmap, gather of batches"]()))
    np.testing.assert_array_equal(next(iter(readers["token rows"]())), first)
    np.testing.assert_array_equal(next(iter(readers["stream, inputs, object store"]()))["inputs"], first)
    return {label: rate(reader) for label, reader in readers.items()}


@contextmanager
def served(root: Path, *options: str) -> Iterator[tuple[str, Callable[[], dict[str, int]]]]:
    """Serve a dataset from another process. Yields the address, and a function that returns the server's counts."""
    command = [sys.executable, "-m", "tests.support.range_server", str(root), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address, read, write_line = process.stdout.readline().strip(), process.stdout.readline, process.stdin

        def counts() -> dict[str, int]:
            write_line.write("\n")
            write_line.flush()
            return json.loads(read())

        yield address, counts
        process.stdin.close()


def waits(batches: Iterable[Any], ahead: Callable[[int], float] = lambda step: 0.0) -> dict[str, float]:
    """Measure how long a consumer of 1,000,000 tokens per second waits after the first batch."""
    iterator, seconds, most = iter(batches), [], 0.0
    for step in range(NUM_WAITS + 1):
        asked = time.perf_counter()
        next(iterator)
        seconds.append(time.perf_counter() - asked)
        if step % 50 == 0:
            most = max(most, ahead(step))
        time.sleep(B * LONG / 1e6)
    iterator.close()  # pyright: ignore[reportAttributeAccessIssue]
    late = np.array(seconds[1:])
    return {
        "batches": NUM_WAITS,
        "first_batch_seconds": round(seconds[0], 3),
        "num_over_10_ms": int((late > 0.01).sum()),
        "num_over_100_ms": int((late > 0.1).sum()),
        "worst_milliseconds": round(1e3 * float(late.max()), 2),
        "most_megabytes_ahead": round(most, 1),
    }


def measure_ranges(root: Path, cache: Path, num_batches: int) -> dict[str, Any]:
    """Measure the fetched bytes relative to the share of the hosts, and the waits of a consumer with slow requests."""
    record_bytes = jd.open_dataset(root).records.record_bytes
    share = num_batches * B * record_bytes
    found: dict[str, Any] = {"batches": num_batches, "fetched_by_share": {}, "requests_by_batch_and_host": {}}
    choices: dict[str, Any] = {"global_batch_size": B, "fields": ("inputs",), "cache_folder": cache}
    for fail_every in (0, 20):
        with served(root, "--fail-every", str(fail_every)) as (address, counts):
            for num_hosts in (1, 2, 4, 8):
                before = counts()
                for host in range(num_hosts):
                    stream = jd.stream_batches(address, num_hosts=num_hosts, host_index=host, **choices)
                    # A slice of the whole stream would also count what is requested in advance.
                    assert sum(1 for _ in stream) == num_batches
                after = counts()
                label = f"hosts: {num_hosts}" + (", one failure in 20" if fail_every else "")
                found["fetched_by_share"][label] = round((after["bytes"] - before["bytes"]) / share, 4)
                requests = (after["requests"] - before["requests"]) / (num_batches * num_hosts)
                found["requests_by_batch_and_host"][label] = round(requests, 3)
    with served(root, "--delay", "0.05", "--slow", "1") as (address, counts):

        def ahead(step: int) -> float:
            return counts()["bytes"] / 1e6 - (step + 1) * B * record_bytes / 1e6

        found["waits"] = waits(jd.stream_batches(address, num_epochs=None, **choices), ahead)
    found["waits_for_files_of_this_machine"] = waits(jd.stream_batches(root, num_epochs=None, **choices))
    found["limit_megabytes_ahead"] = ranges.MOST_AHEAD_BYTES / 1e6
    return found


def report_hosts(num_sequences: int, about: dict[str, Any], stores: bool) -> None:
    """Print the start of some hosts; `stores` also writes it to a file."""
    with tempfile.TemporaryDirectory() as name:
        rows = measure_hosts(Path(name), num_sequences)
    print(f"{num_sequences:,} sequences, {POD_HOSTS} hosts, a global batch of {POD_BATCH:,}\n")
    print(f"{'layout':10}{'position':>12}{'host':>6}{'open s':>9}{'first batch s':>15}{'grown MB':>10}{'peak MB':>9}")
    for row in rows:
        print(
            f"{row['layout']:10}{row['start']:>12,}{row['host']:>6}{row['seconds_to_open']:>9.3f}"
            f"{row['seconds_to_first_batch']:>15.3f}{row['grown_megabytes']:>10}{row['peak_megabytes']:>9}"
        )
    if stores:
        write("hosts", {**about, "num_sequences": num_sequences, "hosts": POD_HOSTS, "batch": POD_BATCH, "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-sequences", type=int, help="sequences of the dataset that is opened")
    parser.add_argument("--hosts", action="store_true", help="measure only the start of the hosts of a pod")
    parser.add_argument("--num-records", type=int, default=100_000, help="records of 4 KiB that are streamed")
    parser.add_argument("--write", action="store_true", help="write results/streaming.json or results/hosts.json")
    arguments = parser.parse_args()
    before = environment("grain", "array_record", "numpy", "fsspec")
    if arguments.hosts:
        report_hosts(arguments.num_sequences or 100_000_000, before, arguments.write)
        return
    arguments.num_sequences = arguments.num_sequences or 10_000_000
    with tempfile.TemporaryDirectory() as name:
        opening = measure_opening(Path(name) / "opening", arguments.num_sequences)
        print(f"{arguments.num_sequences:,} sequences{'':<8}{'open s':>10}{'first batch s':>15}{'resident MB':>13}")
        for label, values in opening.items():
            print(f"{label:<28}{''.join(f'{value:>12.3f}' for value in values.values())}")
    with tempfile.TemporaryDirectory() as name:
        rates = measure_streaming(Path(name), arguments.num_records)
        by_ranges = measure_ranges(Path(name) / "streamed", Path(name) / "ranges", arguments.num_records // B)
        gathered, scattered = rates["memmap, gather of batches"], rates["memmap, gather, random order"]
        print(f"\n{'records as they lie':<32}{'MB/s':>9}{'x gather':>10}{'x gather, random order':>24}")
        for label, value in rates.items():
            print(f"{label:<32}{value:>9,.0f}{value / gathered:>10.2f}{value / scattered:>24.2f}")
    print(f"\n{'ranges of bytes':<40}{'fetched / share':>18}{'requests a batch and host':>28}")
    for label, value in by_ranges["fetched_by_share"].items():
        print(f"{label:<40}{value:>18.4f}{by_ranges['requests_by_batch_and_host'][label]:>28.3f}")
    print(f"a consumer of 1,000,000 tokens/s behind 50 ms a request, 1 s for one in 100: {by_ranges['waits']}")
    print(f"the same consumer with files of this machine: {by_ranges['waits_for_files_of_this_machine']}")
    if arguments.write:
        about = {
            "num_sequences": arguments.num_sequences,
            "opening": opening,
            "num_records": arguments.num_records,
            "ranges": by_ranges,
            "megabytes_per_second": {label: round(value) for label, value in rates.items()},
            "times_gather": {label: round(value / gathered, 3) for label, value in rates.items()},
            "times_random_gather": {label: round(value / scattered, 3) for label, value in rates.items()},
        }
        write("streaming", {**before, **about})


if __name__ == "__main__":
    main()
