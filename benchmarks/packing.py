"""Measure time and memory of packing, and the tokens that every method keeps, loses, pads and cuts.

    python benchmarks/packing.py [--quick] [--write]            # seconds and memory
    python benchmarks/packing.py --dataset FOLDER [--write]     # results for a built dataset, as in docs/packing.md
    python benchmarks/packing.py --stage 10000000               # memory of the stage `pack` for so many documents

Speed: documents' lengths are log-normal with a mean of 700 tokens; L = 2048; topics are 1,000 clusters with Zipf sizes.
Every method runs in a separate process. Seconds include all of `jd.pack`, with the report and its counts. The peak of
resident memory is the peak of the process, with lengths, order and result. For comparison, a plain loop over fewer
documents runs in this process. It makes as many sequences, equally full; the table shows how many times longer it
takes.
"""

from __future__ import annotations

import argparse
import bisect
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import results_file

import jax_diversity as jd
from jax_diversity.foundation.progress import Progress
from jax_diversity.sequences.characteristics.codes import length_bins
from jax_diversity.sequences.packing.base import METHODS, Packed
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.packing.stage import pack_documents

SEQUENCE_LENGTH, NUM_CLUSTERS, WIDTH = 2048, 1000, 64
LOOP_DOCUMENTS = {"concat": 200_000, "pad": 200_000, "first_fit": 20_000, "best_fit": 200_000}


class Case(NamedTuple):
    """A method with options and a number of documents, and its limits."""

    method: str
    num_documents: int
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    seconds: float | None = None
    gigabytes: float | None = None


CASES = [
    Case("concat", 10_000_000, {}, 30, 2),
    Case("pad", 10_000_000, {}, 30, 2),
    Case("megatron", 10_000_000, {}, 30, 2),
    Case("best_fit", 1_000_000, {}, 20),
    Case("best_fit", 10_000_000),
    Case("first_fit", 1_000_000, {}, 60),
    Case("concat", 1_000_000, {"atom_size": 512}),
    Case("concat", 1_000_000, {"atom_size": 8192}),
    Case("pad", 1_000_000, {"atom_size": 512}),
    Case("pad", 1_000_000, {"atom_size": 8192}),
    Case("partial_shuffle", 1_000_000, {"num_rows": 64, "num_epochs": 2}),
    Case("same_cluster", 1_000_000),
    Case("spread", 1_000_000),
    Case("nearest", 50_000),
]
FIGURES: list[tuple[str, dict[str, Any]]] = [
    ("concat", {}),
    ("concat", {"atom_size": "L/4"}),
    ("concat", {"atom_size": "4L"}),
    ("pad", {}),
    ("pad", {"atom_size": "L/4"}),
    ("pad", {"atom_size": "4L"}),
    ("best_fit", {}),
    ("first_fit", {}),
    ("same_cluster", {}),
    ("nearest", {}),
    ("spread", {}),
    ("megatron", {}),
    ("partial_shuffle", {}),
]


class Corpus(NamedTuple):
    """Properties of the documents that packing methods may need."""

    lengths: np.ndarray
    order: np.ndarray
    clusters: np.ndarray | None = None
    vectors: np.ndarray | None = None


def draw_corpus(num_documents: int, needs: tuple[str, ...] = ()) -> Corpus:
    """Log-normal lengths, a random order; clusters and vectors around their centres where they are needed."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(rng.lognormal(6.05, 1.0, num_documents), 2).astype(np.int64)
    order = rng.permutation(num_documents)
    if not needs:
        return Corpus(lengths, order)
    weights = 1 / np.arange(1, NUM_CLUSTERS + 1)
    clusters = rng.choice(NUM_CLUSTERS, num_documents, p=weights / weights.sum()).astype(np.int32)
    if "vectors" not in needs:
        return Corpus(lengths, order, clusters)
    vectors = rng.normal(size=(num_documents, WIDTH), scale=0.1).astype(np.float32)
    vectors += rng.normal(size=(NUM_CLUSTERS, WIDTH)).astype(np.float32)[clusters]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Corpus(lengths, order, clusters, vectors)


def needs_of(method: str) -> tuple[str, ...]:
    """The facts that a method needs."""
    return {"nearest": ("clusters", "vectors"), "same_cluster": ("clusters",), "spread": ("clusters",)}.get(method, ())


def pack(corpus: Corpus, length: int, method: str, options: Mapping[str, Any]) -> Packed:
    """Call `jd.pack` for a corpus, with all facts on it."""
    return jd.pack(
        corpus.lengths,
        length,
        method=method,
        document_order=corpus.order,
        clusters=corpus.clusters,
        vectors=corpus.vectors,
        **options,
    )


def run_case(case: Case) -> dict[str, Any]:
    """Measure seconds and peak memory of one case, in this process."""
    corpus = draw_corpus(case.num_documents, needs_of(case.method))
    before = peak_gigabytes()
    start, cpu_start = time.perf_counter(), time.process_time()
    report = pack(corpus, SEQUENCE_LENGTH, case.method, case.options).report
    return {
        "method": case.method,
        "options": case.options,
        "num_documents": case.num_documents,
        "num_tokens": report.num_tokens,
        "num_sequences": report.num_sequences,
        "num_segments": report.num_segments,
        "seconds": round(time.perf_counter() - start, 3),
        "cpu_seconds": round(time.process_time() - cpu_start, 3),
        "input_gigabytes": round(before, 3),
        "gigabytes": round(peak_gigabytes(), 3),
    }


def peak_gigabytes() -> float:
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def in_a_process(case: Case) -> dict[str, Any]:
    """Measure one case in a separate process."""
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


# ---- Plain loops: they return the number of sequences, and the number of tokens in them.


def loop_concat(lengths: list[int], length: int) -> tuple[int, int]:
    rows, sequence, room = [], 0, length
    for document, number in enumerate(lengths):
        offset = 0
        while offset < number:
            taken = min(room, number - offset)
            rows.append((sequence, length - room, document, offset, taken, offset + taken == number))
            offset, room = offset + taken, room - taken
            if not room:
                sequence, room = sequence + 1, length
    return sequence, sum(row[4] for row in rows if row[0] < sequence)


def loop_pad(lengths: list[int], length: int) -> tuple[int, int]:
    rows: list[tuple[int, ...]] = []
    for document, number in enumerate(lengths):
        offset = 0
        while True:
            rest = number - offset
            rows.append((len(rows), 0, document, offset, min(rest, length), True))
            if rest <= length:
                break
            offset += length - 1
    return len(rows), sum(row[4] for row in rows)


def loop_first_fit(lengths: list[int], length: int) -> tuple[int, int]:
    rooms: list[int] = []
    num_full = 0
    for number in lengths:
        num_full += number // length
        rest = number % length
        for place, room in enumerate(rooms):
            if rest and room >= rest:
                rooms[place] -= rest
                break
        else:
            if rest:
                rooms.append(length - rest)
    return num_full + len(rooms), sum(lengths)


def loop_best_fit(lengths: list[int], length: int) -> tuple[int, int]:
    rooms: list[int] = []  # ascending
    for rest in sorted((number % length for number in lengths if number % length), reverse=True):
        place = bisect.bisect_left(rooms, rest)
        room = rooms.pop(place) if place < len(rooms) else length
        bisect.insort(rooms, room - rest)
    return sum(number // length for number in lengths) + len(rooms), sum(lengths)


LOOPS: dict[str, Callable[[list[int], int], tuple[int, int]]] = {
    "concat": loop_concat,
    "pad": loop_pad,
    "first_fit": loop_first_fit,
    "best_fit": loop_best_fit,
}


def against_loop(method: str) -> dict[str, float]:
    """Measure how many times longer the plain loop takes.

    Raises:
        ValueError: the loop makes other sequences.
    """
    corpus = draw_corpus(LOOP_DOCUMENTS[method])
    ordered = corpus.lengths[corpus.order].tolist()
    start = time.perf_counter()
    expected = LOOPS[method](ordered, SEQUENCE_LENGTH)
    loop_seconds = time.perf_counter() - start
    start = time.perf_counter()
    packed = pack(corpus, SEQUENCE_LENGTH, method, {})
    seconds = time.perf_counter() - start
    found = packed.segments.num_sequences, int(packed.segments.length.sum())
    if found != expected:
        raise ValueError(f"{method}: the loop makes {expected} sequences and tokens, packing {found}.")
    return {"num_documents": LOOP_DOCUMENTS[method], "loop_seconds": loop_seconds, "ratio": loop_seconds / seconds}


# ---- The stage, with the choice of validation documents, on documents without texts.


def measure_stage(num_documents: int) -> None:
    """Run the stage `pack` in this process, and print its processor time and its peak of memory."""
    corpus = draw_corpus(num_documents, ("clusters",))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "lengths.npy", corpus.lengths)
        np.save(folder / "clusters.npy", np.asarray(corpus.clusters))
        np.save(folder / "groups.npy", np.arange(num_documents))
        command = [sys.executable, __file__, "--stage-of", name]
        subprocess.run(command, check=True)


def run_stage(folder: Path) -> None:
    """Run the stage on a stand-in for a dataset, whose arrays are memory-mapped as those of a dataset."""
    lengths, clusters, groups = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("lengths", "clusters", "groups")
    )
    num_documents = len(lengths)
    families: dict[str, Callable[[], Any]] = {
        "length": lambda: length_bins(lengths, 20).group,
        "cluster": lambda: clusters,
        "source": lambda: clusters % 13,
        "language": lambda: clusters % 3,
    }
    dataset = SimpleNamespace(
        tokens=SimpleNamespace(document_lengths=lengths),
        duplicate_groups=groups,
        document_store=SimpleNamespace(ids=lambda: map(str, range(num_documents))),
        document_groups=lambda family: families[family](),
        has_loss_mask=False,
    )
    context: Any = SimpleNamespace(
        config=SimpleNamespace(packing=PackingConfig(sequence_length=SEQUENCE_LENGTH)),
        dataset=dataset,
        counts=lambda _: {"metadata_fields": []},
        folder=SimpleNamespace(remembered=lambda _: None),
        progress=Progress(quiet=True),
    )
    start = time.process_time()
    counts = pack_documents(context, folder)
    peak = peak_gigabytes()
    print(
        f"{len(lengths):,} documents, {counts['num_sequences']:,} sequences: "
        f"{(time.process_time() - start) / len(lengths) * 1e6:.1f} us and {peak / len(lengths) * 1e9:.0f} bytes per "
        f"document, {peak:.2f} GB in all"
    )


# ---- The two tables.


def measure_speed(quick: bool) -> dict[str, Any]:
    """Measure every case and print its row."""
    print(f"{'method':<44}{'documents':>12}{'seconds':>9}{'CPU s':>8}{'peak GB':>9}  verdict")
    rows = []
    for case in CASES:
        if case.method not in METHODS:
            continue
        if quick:
            case = Case(case.method, case.num_documents // 100, case.options)
        row = in_a_process(case)
        limits = [("seconds", case.seconds), ("gigabytes", case.gigabytes)]
        verdicts = [f"{name} {'<' if row[name] < most else 'NOT <'} {most:g}" for name, most in limits if most]
        rows.append({**row, "verdicts": verdicts})
        print(
            f"{named(case.method, case.options):<44}{row['num_documents']:>12,}{row['seconds']:>9.2f}"
            f"{row['cpu_seconds']:>8.2f}{row['gigabytes']:>9.2f}  {', '.join(verdicts)}",
            flush=True,
        )
    print("\nA plain loop takes longer by a factor of")
    loops = {method: against_loop(method) for method in LOOPS}
    for method, about in loops.items():
        print(f"  {method:<12}{about['ratio']:>8.1f}   on {about['num_documents']:,} documents")
    return {"cases": rows, "loops": loops}


def named(method: str, options: Mapping[str, Any]) -> str:
    """`pad, atom_size L/4`."""
    return ", ".join([method, *(f"{name} {value}" for name, value in options.items())])


def measure_dataset(folder: Path, length: int | None) -> dict[str, Any]:
    """A Markdown table of every method's packing of a built dataset."""
    dataset = jd.open_dataset(folder)
    length = length or dataset.sequence_length
    lengths = dataset.tokens.document_lengths
    clusters = np.load(folder / "clusters" / "assignments.npy")
    vectors = np.asarray(jd.open_dataset(folder).embeddings)
    corpus = Corpus(lengths, np.random.default_rng(0).permutation(len(lengths)), clusters, vectors)
    print(
        f"{len(lengths):,} documents of {lengths.sum():,} tokens, L = {length:,}, {clusters.max() + 1:,} clusters; "
        f"{(lengths > length).mean():.1%} of the documents are longer than L.\n"
    )
    print(
        "| method | sequences | tokens lost | padding | documents cut | segments per sequence | clusters per "
        "sequence | largest cluster |\n|---|---|---|---|---|---|---|---|"
    )
    rows = []
    for method, options in FIGURES:
        if method not in METHODS:
            continue
        in_tokens = {name: {"L/4": length // 4, "4L": 4 * length}.get(value, value) for name, value in options.items()}
        packed = pack(corpus, length, method, in_tokens)
        report = packed.report
        places = report.num_sequences * packed.segments.sequence_length
        rows.append({"method": method, "options": options, **vars(report)})
        print(
            f"| `{method}`{named('', options)} | {report.num_sequences:,} | {report.num_tokens_dropped:,} | "
            f"{share(report.num_padding_tokens / places)} | "
            f"{share(report.num_documents_cut / report.num_documents)} | "
            f"{report.mean_segments:.2f} | {report.clusters_per_sequence:.2f} | "
            f"{share(report.largest_cluster_share or 0.0)} |",
            flush=True,
        )
    return {
        "num_documents": len(lengths),
        "num_tokens": int(lengths.sum()),
        "sequence_length": length,
        "rows": rows,
    }


def share(value: float) -> str:
    """Per cent, with enough digits to show small values."""
    return f"{value:.1%}" if value >= 0.001 or not value else f"{value:.3%}"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, help="a built dataset: measure its packing, not speed")
    parser.add_argument("--sequence-length", type=int, help="L; default: the dataset's L")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the documents")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/packing[-NAME].json")
    parser.add_argument("--stage", type=int, help="number of documents: measure the stage `pack` instead")
    parser.add_argument("--stage-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_case(Case(*arguments.case))))
        return
    if arguments.stage:
        measure_stage(arguments.stage)
        return
    if arguments.stage_of:
        run_stage(arguments.stage_of)
        return
    environment = results_file.environment("numpy")
    if arguments.dataset:
        results = measure_dataset(arguments.dataset, arguments.sequence_length)
        name = f"packing-{arguments.dataset.resolve().name}"
    else:
        results, name = measure_speed(arguments.quick), "packing"
    if arguments.write:
        results_file.write(name, {**environment, **results})


if __name__ == "__main__":
    main()
