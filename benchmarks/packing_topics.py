"""Measure the effect of packing by topic, and the recall and time of its search for neighbours.

    python benchmarks/packing_topics.py [--documents 20000 100000 ...] [--write]     # speed
    python benchmarks/packing_topics.py --dataset FOLDER [--sequence-length L ...]   # results for a built dataset

Speed: vectors of 128 features in 1,000 Zipf clusters. Vectors of a cluster are about equally far from one another, so
neighbours are harder to find than among texts. *Recall* is the share of the exact neighbours of 300 documents
that the search within cells finds. Seconds include the whole method; a million documents (`--documents 1000000`)
take some minutes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import results_file

import jax_diversity as jd
from jax_diversity.sequences.packing import neighbors
from jax_diversity.sequences.packing.report import cluster_mix

SEQUENCE_LENGTH, NUM_CLUSTERS, WIDTH, SPREAD = 2048, 1000, 128, 0.8
METHODS: list[tuple[str, tuple[str, ...]]] = [
    ("concat", ()),
    ("same_cluster", ("clusters",)),
    ("same_cluster", ("clusters", "vectors")),
    ("nearest", ("vectors",)),
    ("spread", ("clusters",)),
]


def draw_topics(num_documents: int) -> dict[str, np.ndarray]:
    """Log-normal lengths, clusters of unequal sizes, vectors around their centers, a random order."""
    rng = np.random.default_rng(0)
    odds = 1 / np.arange(1, NUM_CLUSTERS + 1)
    clusters = rng.choice(NUM_CLUSTERS, num_documents, p=odds / odds.sum()).astype(np.int32)
    vectors = rng.standard_normal((num_documents, WIDTH), np.float32)
    vectors *= SPREAD
    vectors += rng.standard_normal((NUM_CLUSTERS, WIDTH), np.float32)[clusters]
    return {
        "lengths": np.maximum(rng.lognormal(6.05, 1.0, num_documents), 2).astype(np.int64),
        "order": rng.permutation(num_documents),
        "clusters": clusters,
        "vectors": vectors,
    }


def pack(corpus: dict[str, np.ndarray], length: int, method: str, needs: tuple[str, ...]) -> tuple[Any, float]:
    """The packing, and the seconds that it took."""
    start = time.perf_counter()
    given: dict[str, Any] = {name: corpus[name] for name in needs}
    packed = jd.pack(corpus["lengths"], length, method=method, document_order=corpus["order"], **given)
    return packed.segments, time.perf_counter() - start


def neighbor_cosine(segments: Any, vectors: np.ndarray) -> float:
    """Mean cosine of documents that follow one another within a sequence."""
    document = segments.document_index
    follows = (np.diff(document) != 0) & (np.diff(segments.sequence_index) == 0)
    one, other = vectors[document[:-1][follows]], vectors[document[1:][follows]]
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float((np.einsum("df,df->d", one, other) / np.where(norms > 0, norms, 1)).mean())


def recall(vectors: np.ndarray, num_neighbors: int = 10, num_candidates: int = 4096, num_asked: int = 300) -> float:
    """Share of some documents' exact neighbours that the search finds."""
    whole = neighbors.rounded_units(vectors, np.arange(len(vectors)))
    graph = neighbors.nearest_rows(whole, num_neighbors, num_candidates)
    asked = np.random.default_rng(0).choice(len(vectors), num_asked, replace=False)
    found = []
    for row in asked.tolist():
        nearness = neighbors.products(whole[row : row + 1], whole)[0]
        nearness[row] = 0
        exact = np.argpartition(-nearness, num_neighbors)[:num_neighbors]
        found.append(np.isin(exact, graph.indices[graph.indptr[row] : graph.indptr[row + 1]]).mean())
    return float(np.mean(found))


def measure_speed(sizes: list[int]) -> list[dict[str, Any]]:
    """Measure every method's seconds, and the recall of `nearest`."""
    rows = []
    print(f"{'documents':>10}  {'method':<24}{'seconds':>9}{'cosine':>8}{'recall':>8}")
    for num_documents in sizes:
        corpus = draw_topics(num_documents)
        for method, needs in METHODS:
            segments, seconds = pack(corpus, SEQUENCE_LENGTH, method, needs)
            cosine = neighbor_cosine(segments, corpus["vectors"])
            found = recall(corpus["vectors"]) if method == "nearest" else None
            name = named(method, needs)
            last = "" if found is None else f"{found:>8.3f}"
            print(f"{num_documents:>10,}  {name:<24}{seconds:>9.2f}{cosine:>8.3f}{last}", flush=True)
            rows.append(
                {
                    "num_documents": num_documents,
                    "method": name,
                    "seconds": round(seconds, 3),
                    "cosine": cosine,
                    "recall": found,
                }
            )
    return rows


def measure_dataset(folder: Path, sequence_lengths: list[int]) -> list[dict[str, Any]]:
    """A Markdown table of every method's sequences for a built dataset."""
    lengths = jd.open_dataset(folder).tokens.document_lengths
    corpus = {
        "lengths": lengths,
        "order": np.random.default_rng(0).permutation(len(lengths)),
        "clusters": np.load(folder / "clusters" / "assignments.npy"),
        "vectors": np.asarray(jd.open_dataset(folder).embeddings),
    }
    print("| L | method | clusters per sequence | largest cluster | cosine of neighbours | tokens lost | seconds |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for length in sequence_lengths:
        for method, needs in METHODS:
            segments, seconds = pack(corpus, length, method, needs)
            clusters, largest = cluster_mix(segments, corpus["clusters"]) or (0.0, 0.0)
            row = {
                "sequence_length": length,
                "method": named(method, needs),
                "clusters_per_sequence": clusters,
                "largest_cluster_share": largest,
                "cosine": neighbor_cosine(segments, corpus["vectors"]),
                "num_tokens_lost": int(lengths.sum() - segments.length.sum()),
                "seconds": round(seconds, 3),
            }
            rows.append(row)
            print(
                f"| {length:,} | {row['method']} | {clusters:.3f} | {largest:.1%} | "
                f"{row['cosine']:.3f} | {row['num_tokens_lost']:,} | {seconds:.2f} |",
                flush=True,
            )
    return rows


def named(method: str, needs: tuple[str, ...]) -> str:
    """The label of a case, such as `same_cluster, vectors`: the method, and the vectors if they are optional."""
    return f"{method}, vectors" if needs == ("clusters", "vectors") else method


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[20_000, 100_000, 200_000])
    parser.add_argument("--dataset", type=Path, help="a built dataset: measure its packing, not speed")
    parser.add_argument("--sequence-length", type=int, nargs="+", default=[512, 4096], help="sequence lengths L")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/packing_topics[-NAME].json")
    arguments = parser.parse_args()
    environment = results_file.environment("numpy", "scipy")
    if arguments.dataset:
        rows = measure_dataset(arguments.dataset, arguments.sequence_length)
        name = f"packing_topics-{arguments.dataset.resolve().name}"
    else:
        rows, name = measure_speed(arguments.documents), "packing_topics"
    if arguments.write:
        results_file.write(name, {**environment, "rows": rows})


if __name__ == "__main__":
    main()
