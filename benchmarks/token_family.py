"""Cost of the family `tokens`: time and memory of an ordering, and the balance of the other families.

    python benchmarks/token_family.py [--lengths 128 512 2048] [--sequences 10000 100000] [--datasets DATASET ...]
                                      [--write]

Synthetic sequences have the clusters and lengths of `corpora.py`, and token ids of a Zipf vocabulary of 2,048 whose
shares depend on the sequence. `balance` with clusters and lengths is compared with `balance` with `tokens`, in the same
run: microseconds a sequence and tokens a second, best of three runs after one that compiles. Every case runs in its own
process, whose peak of resident memory is read before and after the ordering. For built datasets, the window TV of every
other family and the repeats are compared, mean of two seeds; counting their token ids is timed, too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from typing import Any

import corpora
import numpy as np
import results_file
from scipy import sparse

import jax_diversity as jd
from jax_diversity.sequences.characteristics.settings import default_families

VOCAB_SIZE = 2048
WINDOWS = (64, 256, 1024)
SEEDS = (0, 1)
NUM_RUNS = 3


def peak_gigabytes() -> float:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def zipf_tokens(num_sequences: int, length: int) -> sparse.csr_array:
    """Counts of token ids in every sequence: a Zipf distribution, mixed with another rotation of it by sequence."""
    rng = np.random.default_rng(0)
    shares = (np.arange(VOCAB_SIZE) + 2.0) ** -1.1
    edges = np.cumsum(shares / shares.sum())
    parts = []
    for start in range(0, num_sequences, block := max(2**22 // length, 1)):
        rows = min(block, num_sequences - start)
        ids = np.searchsorted(edges, rng.random((rows, length))).clip(max=VOCAB_SIZE - 1)
        own = rng.random((rows, length)) < 0.3
        ids = np.where(own, (ids + rng.integers(0, VOCAB_SIZE, (rows, 1))) % VOCAB_SIZE, ids)
        ids.sort(axis=1)
        begins = np.diff(ids, axis=1, prepend=-1) != 0
        starts = np.flatnonzero(begins)
        counts = np.diff(starts, append=ids.size).astype(np.int32)
        ends = np.append(0, begins.sum(axis=1).cumsum())
        parts.append(sparse.csr_array((counts, ids.ravel()[starts].astype(np.int32), ends), shape=(rows, VOCAB_SIZE)))
    return sparse.csr_array(sparse.vstack(parts, format="csr"))


def cost(case: tuple[int, int, bool]) -> dict[str, float]:
    """Time one ordering; the case is the number of sequences, their length, and whether `tokens` is balanced."""
    num_sequences, length, with_tokens = case
    chars = corpora.synthetic(num_sequences, sequence_length=length)
    counts: dict[str, Any] = {**chars.counts}
    weights = default_families({"cluster": 2, "length": 2, "tokens": 2})
    if with_tokens:
        # Padded sequences are shortened to the tokens that the other families count.
        counts["tokens"] = _with_totals(zipf_tokens(num_sequences, length), chars.tokens)
    weights = {family: weights[family] for family in counts}
    chars = jd.Characteristics.from_counts(counts, weights=weights, sequence_length=length, documents=chars.documents)
    del counts
    before = peak_gigabytes()
    start = time.perf_counter()
    jd.order(chars, seed=1)
    first = time.perf_counter() - start
    seconds = np.inf
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        jd.order(chars, seed=0)
        seconds = min(seconds, time.perf_counter() - start)
    return {
        "num_sequences": num_sequences,
        "sequence_length": length,
        "tokens_family": with_tokens,
        "groups_per_sequence": round(sum(each.nnz for each in chars.counts.values()) / num_sequences, 1),
        "seconds": round(seconds, 2),
        "compile_seconds": round(first - seconds, 1),
        "microseconds_per_sequence": round(seconds / num_sequences * 1e6, 1),
        "million_tokens_per_second": round(num_sequences * length / seconds / 1e6, 1),
        "bytes_per_token": round((peak_gigabytes() - before) * 1e9 / (num_sequences * length), 2),
    }


def _with_totals(counts: sparse.csr_array, totals: np.ndarray) -> sparse.csr_array:
    """The counts, with rows changed in one group to have the given totals; only few rows have padding."""
    excess = np.asarray(counts.sum(axis=1)).ravel() - totals
    rows = np.flatnonzero(excess)
    lil = counts[rows].toarray()
    for row, number in zip(lil, excess[rows], strict=True):
        taken = np.minimum(np.cumsum(row), number)
        row -= np.diff(taken, prepend=0)
    if not len(rows):
        return counts
    keep = sparse.diags_array((excess == 0).astype(np.int32)) @ counts
    place = sparse.csr_array(
        (np.ones(len(rows), np.int32), (rows, np.arange(len(rows)))), shape=(len(excess), len(rows))
    )
    return sparse.csr_array(keep + place @ sparse.csr_array(lil))


def balance_of(path: str) -> dict[str, Any]:
    """Compare the default families with the default families but for `tokens` on a built dataset."""
    dataset = jd.open_dataset(path)
    start = time.perf_counter()
    dataset.count_segments(dataset.segments)
    counting = time.perf_counter() - start
    after = dataset.characteristics
    after = after.with_weights(default_families(dict.fromkeys(after.families, 2)))
    others = {family: counts for family, counts in after.counts.items() if family != "tokens"}
    old = {"cluster": 1.0, "length": 1.5, "source": 0.3, "language": 0.3}
    before = jd.Characteristics.from_counts(
        others,
        weights={family: old[family] for family in others},
        sequence_length=after.sequence_length,
        documents=after.documents,
        copies=after.copies,
        turns=after.turns,
    )
    found: dict[str, Any] = {
        "num_sequences": after.num_sequences,
        "counting_million_tokens_per_second": round(after.num_sequences * after.sequence_length / counting / 1e6, 1),
    }
    values: dict[str, list[list[list[float]]]] = {}  # family -> seed -> before, after -> window size
    for seed in SEEDS:
        for chars in (before, after):
            measured = jd.measure(before, jd.order(chars, seed=seed), WINDOWS)
            own = {family: [float(measured.window_tv[family][size].mean()) for size in WINDOWS] for family in others}
            if measured.documents is not None:
                own["repeats"] = [float(measured.documents.repeats[size].mean()) for size in WINDOWS]
            for name, each in own.items():
                values.setdefault(name, [[] for _ in SEEDS])[SEEDS.index(seed)].append(each)
    means = {name: np.mean(each, axis=0) for name, each in values.items()}
    found["mean_before_and_after"] = {
        name: {str(size): np.round(pair, 4).tolist() for size, pair in zip(WINDOWS, each.T, strict=True)}
        for name, each in means.items()
    }
    return found


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="*", type=int, default=[128, 512, 2048])
    parser.add_argument("--sequences", nargs="+", type=int, default=[10_000, 100_000])
    parser.add_argument("--datasets", nargs="*", default=[])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    costs, balances = [], {}
    context = multiprocessing.get_context("spawn")
    for length in options.lengths:
        for number in options.sequences:
            for with_tokens in (False, True):
                with context.Pool(1) as pool:
                    found = pool.apply(cost, ((number, length, with_tokens),))
                costs.append(found)
                print(json.dumps(found), flush=True)
    for path in options.datasets:
        balances[path.rstrip("/").rpartition("/")[2]] = found = balance_of(path)
        print(path, json.dumps(found), flush=True)
    conditions = results_file.environment("jax", "jaxlib", "numpy")
    if options.write and costs:
        results_file.write("token_family_cost", {**conditions, "results": costs})
    if options.write and balances:
        results_file.write("token_family_balance", {**conditions, "results": balances})


if __name__ == "__main__":
    main()
