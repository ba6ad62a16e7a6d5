"""Measure orders of counts in files: seconds and peak memory, for a million to a hundred million sequences.

    python benchmarks/out_of_core.py [--sequences 1000000] [--folder FOLDER] [--keep] [--write]
    python benchmarks/out_of_core.py --sequences 100000000 --folder /large/disk --write

Files of 2^20 sequences with ten non-zero counts each (1,000 clusters by Zipf, 100 length bins, 2,048 tokens, documents
of log-normal length) are made one after another. They are ordered in one child process and measured in another, so that
the peak memory of each is known. Files that already exist in the folder are used again, and an order that was killed
continues. Both the elapsed seconds and the seconds of processor time are stored; they differ on a machine with other
work. The quality is measured in windows of 64, 256 and 1,024 positions, at all starts of some random ranges and of
ranges around the joints of the parts.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import results_file
from scipy import sparse

import jax_diversity as jd
from jax_diversity.counts.stored import CountFiles
from jax_diversity.ordering.measures.balance import Measurer
from jax_diversity.ordering.parts import parts_of
from jax_diversity.sequences.characteristics.codes import Codes
from jax_diversity.sequences.characteristics.counts import count_tokens, sequence_documents

LENGTH, CLUSTERS, BINS = 2048, 1000, 100
FILE = 1 << 20
# The median is 270 tokens, the mean 450: a sequence has 5.5 segments, and ten counts above zero in both families.
LOG_MEAN, LOG_DEVIATION = 5.6, 1.02
WINDOWS = (64, 256, 1024)
RANGES, RANGE = 24, 8192


def make_file(path: Path, number: int, num_sequences: int) -> None:
    """Make one file; its content depends only on its number and size."""
    rng = np.random.default_rng([7, number])
    edges = np.exp(LOG_MEAN + LOG_DEVIATION * np.linspace(-2.2, 2.2, BINS - 1))
    popularity = np.cumsum(1 / np.arange(1, CLUSTERS + 1))
    parts: dict[str, list[sparse.csr_array]] = {"cluster": [], "length": []}
    documents = []
    for first in range(0, num_sequences, FILE // 8):
        size = min(FILE // 8, num_sequences - first)
        lengths, clusters = np.zeros(0, np.int64), None
        while lengths.sum() < size * LENGTH:
            drawn = rng.lognormal(LOG_MEAN, LOG_DEVIATION, size * 5)
            lengths = np.append(lengths, np.maximum(drawn, 8).astype(np.int64))
        lengths = lengths[: np.searchsorted(np.cumsum(lengths), size * LENGTH) + 1]
        lengths[-1] -= lengths.sum() - size * LENGTH
        clusters = np.searchsorted(popularity, rng.random(len(lengths)) * popularity[-1], side="right")
        segments = jd.pack(lengths, LENGTH).segments
        own = sequence_documents(segments)
        documents.append(np.where(own < 0, -1, own + (number * FILE + first) * 64))
        codes = {"cluster": (clusters, CLUSTERS), "length": (np.searchsorted(edges, lengths), BINS)}
        for family, (group, total) in codes.items():
            counts = count_tokens(segments, Codes(group.astype(np.int32), tuple(map(str, range(total)))))
            parts[family].append(corpora.with_int32_indices(counts))
    stacked = {family: sparse.vstack(parts.pop(family), format="csr") for family in list(parts)}
    chars = jd.Characteristics.from_counts(stacked, sequence_length=LENGTH, documents=np.concatenate(documents))
    chars.save(path)


def make_files(folder: Path, num_sequences: int) -> None:
    """Make the files that do not exist in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(-(-num_sequences // FILE)):
        path = folder / f"part-{number:05}.parquet"
        if not path.exists():
            make_file(path, number, min(FILE, num_sequences - number * FILE))


def _measured(work: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], pipe: Any) -> None:
    start, processors = time.perf_counter(), time.process_time()
    found = work(*arguments)
    found |= {
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(time.process_time() - processors, 1),
        "peak_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
    }
    pipe.send(found)


def in_child(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run a function in a new process. The result includes its seconds and its peak of resident memory."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measured, args=(work, arguments, theirs))
    process.start()
    theirs.close()
    found = ours.recv()
    process.join()
    return found


def order(folder: Path, path: Path) -> dict[str, Any]:
    """Order the files."""
    ordering = jd.order(folder, folder=path.with_suffix(".state"))
    ordering.save(path)
    return {"fingerprint": ordering.fingerprint[:16]}


def measure(folder: Path, path: Path) -> dict[str, Any]:
    """Measure all positions, without curves of all positions."""
    measurer = Measurer(CountFiles.open(folder), WINDOWS)
    return {"measured": measurer.measure_in_short(np.load(path)).summary}


def shuffle(path: Path, num_sequences: int) -> dict[str, Any]:
    """Write a uniform shuffle, for comparison."""
    np.save(path, np.random.default_rng(0).permutation(num_sequences))
    return {}


def quality_at_joints(folder: Path, path: Path, num_sequences: int) -> dict[str, Any]:
    """Compare windows around the joints with windows elsewhere: mean TV, mean of each range's worst, and worst TV."""
    files, indices = CountFiles.open(folder), np.load(path, mmap_mode="r")
    num_parts = parts_of(num_sequences, -(-num_sequences // (len(files.chunk_bounds) - 1)))
    rng = np.random.default_rng(0)
    joints = [num_sequences * part // num_parts for part in range(1, num_parts)]
    # The parts have nearly equal sizes: a range of 8,192 positions contains its joint.
    starts = {
        "joints": [max(joint - RANGE // 2, 0) for joint in rng.permutation(joints)[:RANGES]],
        "elsewhere": rng.integers(0, max(num_sequences - RANGE, 1), RANGES).tolist(),
    }
    wanted = {name: [np.array(indices[start : start + RANGE]) for start in each] for name, each in starts.items()}
    flat = np.concatenate([np.zeros(0, np.int64), *(rows for each in wanted.values() for rows in each)])
    if not len(flat):
        return {}
    ordered = np.sort(flat)
    blocks = []
    for (first, stop), chunk in zip(itertools.pairwise(files.chunk_bounds), files.chunks(), strict=True):
        own = ordered[(first <= ordered) & (ordered < stop)]
        blocks.append(chunk.take(own - first))
    chars = jd.Characteristics.joined(blocks)
    shares = {family: files.target_share(family) for family in files.families}
    found: dict[str, Any] = {}
    for name, ranges in wanted.items():
        for family in chars.families:
            for size in WINDOWS:
                each = []
                for rows in ranges:
                    own = chars.take(np.searchsorted(ordered, rows))
                    balance = jd.measure(own, np.arange(len(rows)), (size,), targets=shares, every_start=True)
                    each.append(balance.window_tv_every_start[family][size])
                if each:
                    # The largest of all grows with the number of ranges with a joint; the mean of each range's worst
                    # does not.
                    worst = [a.worst for a in each]
                    values = [float(np.mean([a.mean for a in each])), float(np.mean(worst)), max(worst)]
                    found.setdefault(family, {}).setdefault(str(size), {})[name] = [round(v, 4) for v in values]
    return {"mean_and_mean_worst_and_worst": found}


def main() -> None:
    """Make, order and measure; print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the files and the orders")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    root = arguments.folder or Path(tempfile.mkdtemp())
    results = results_file.read("out_of_core").get("results", {})
    for number in arguments.sequences:
        folder = root / str(number)
        counts, ordered, shuffled = folder / "counts", folder / "order.npy", folder / "shuffle.npy"
        make_files(counts, number)
        files = CountFiles.open(counts)
        row: dict[str, Any] = {
            "num_sequences": number,
            "counts_per_sequence": round(files.num_entries / number, 2),
            "file_bytes_per_sequence": round(sum(each.stat().st_size for each in files.files.paths) / number, 1),
            "num_parts": parts_of(number, -(-number // (len(files.chunk_bounds) - 1))),
        }
        row["order"] = in_child(order, counts, ordered)
        print(row, flush=True)
        row["order_measured"] = in_child(measure, counts, ordered)
        print(row["order_measured"], flush=True)
        in_child(shuffle, shuffled, number)
        row["shuffle_measured"] = in_child(measure, counts, shuffled)
        print(row["shuffle_measured"], flush=True)
        row["joints"] = in_child(quality_at_joints, counts, ordered, number)
        print(row["joints"], flush=True)
        results[str(number)] = row
        if not arguments.keep:
            shutil.rmtree(folder)
    if arguments.write:
        about = results_file.environment("jax", "jaxlib", "numpy", "pyarrow")
        results_file.write("out_of_core", {"environment": about, "results": results})


if __name__ == "__main__":
    main()
