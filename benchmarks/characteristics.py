"""Measure time and memory of making characteristics: the documents' codes are joined with the segments.

    python benchmarks/characteristics.py [--sequences 1000000] [--write]

A synthetic corpus with log-normal document lengths, packed by `concat` into sequences of 2,048 tokens, about five
segments each; families of 1,000 clusters, 100 length bins, 20 sources and 100,000 hosts, 1,000 of them as groups.
The plain reference joins the same codes with a dictionary, one segment at a time, on the first sequences. The ratio
compares the times per segment. The peak of resident memory includes the segments and the counts of all families.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import results_file

from jax_diversity.schema import Segments
from jax_diversity.sequences.characteristics.codes import Codes, categorical, encoded, host_of, joined, length_bins
from jax_diversity.sequences.characteristics.counts import count_tokens
from jax_diversity.sequences.packing.base import pack

LENGTH = 2048
REFERENCE_SEQUENCES = 20_000


def peak_gigabytes() -> float:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def make_corpus(num_sequences: int) -> tuple[np.ndarray, Segments]:
    """Documents' lengths and their packing: about four segment boundaries within a sequence."""
    rng = np.random.default_rng(0)
    num_documents = 4 * num_sequences
    lengths = np.maximum(rng.lognormal(5.74, 1.0, num_documents), 2).astype(np.int64)
    return lengths, pack(lengths, LENGTH, document_order=rng.permutation(num_documents)).segments


def dictionary_join(segments: Segments, group: np.ndarray, num_sequences: int) -> float:
    """Return the seconds per segment of the plain loop."""
    num_segments = int(np.searchsorted(segments.sequence_index, num_sequences))
    columns = (segments.sequence_index, segments.document_index, segments.length)
    rows = list(zip(*(column[:num_segments].tolist() for column in columns), strict=True))
    counts: Counter[tuple[int, int]] = Counter()
    start = time.perf_counter()
    for sequence, document, tokens in rows:
        counts[sequence, int(group[document])] += tokens
    return (time.perf_counter() - start) / num_segments


def blocks(values: list[str]) -> Iterator[list[str]]:
    """Yield the values as the pipeline reads them, one stored group at a time."""
    for start in range(0, len(values), 1000):
        yield values[start : start + 1000]


def run(num_sequences: int) -> dict[str, float]:
    """Measure one size."""
    lengths, segments = make_corpus(num_sequences)
    rng = np.random.default_rng(1)
    clusters = np.minimum(rng.zipf(1.3, len(lengths)) - 1, 999).astype(np.int32)
    sources = [f"source {number}" for number in rng.integers(0, 20, len(lengths)).tolist()]
    addresses = [f"https://site{number}.example/x" for number in (rng.zipf(1.2, len(lengths)) % 100_000).tolist()]
    packed_gigabytes = peak_gigabytes()
    start = time.perf_counter()
    codes = {
        "cluster": Codes(clusters, tuple(map(str, range(1000)))),
        "length": length_bins(lengths, 100),
        "source": categorical(joined([encoded(block) for block in blocks(sources)]), 1000),
        "host": categorical(joined([encoded(map(host_of, block)) for block in blocks(addresses)]), 1000),
    }
    coded = time.perf_counter()
    counts = {family: count_tokens(segments, family_codes) for family, family_codes in codes.items()}
    counted = time.perf_counter()
    loop = dictionary_join(segments, clusters, min(REFERENCE_SEQUENCES, num_sequences))
    per_segment = (counted - coded) / len(codes) / len(segments)
    return {
        "num_sequences": segments.num_sequences,
        "num_segments": len(segments),
        "num_documents": len(lengths),
        "num_families": len(codes),
        "num_nonzeros": sum(len(matrix.data) for matrix in counts.values()),
        "codes_seconds": round(coded - start, 2),
        "counts_seconds": round(counted - coded, 2),
        "times_faster_than_loop": round(loop / per_segment, 1),
        "before_gigabytes": round(packed_gigabytes, 2),
        "peak_gigabytes": round(peak_gigabytes(), 2),
    }


def main() -> None:
    """Print the results; with --write, store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=1_000_000)
    parser.add_argument("--write", action="store_true", help="write results/characteristics.json")
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # so that its peak is measured separately
        values = pool.apply(run, (options.sequences,))
    for name, value in values.items():
        print(f"{name:<24}{value:>14,}")
    if options.write:
        results_file.write("characteristics", {**results_file.environment("numpy", "scipy"), **values})


if __name__ == "__main__":
    main()
