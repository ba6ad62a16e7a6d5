"""Compare k-means with faiss and scikit-learn; measure memory for a million rows, assignment, and two levels.

    python benchmarks/clustering.py [--write] [--parts passes,memory,assign,levels] [--vectors embeddings.npy ...]

- passes: 100,000 x 384 synthetic clustered vectors, k = 1,000, from the same starting centroids for the same number
  of passes as faiss.Clustering without subsampling: seconds per pass and inertia; also MiniBatchKMeans. With
  --vectors, files of real vectors are measured too, with all their rows.
- memory: peak memory of a child process that clusters a memory map of 1,000,000 x 384; all rows are used for training.
- assign: documents per second when 1,000,000 rows of a memory map are assigned to 1,000 centroids.
- levels: inertia and seconds of two levels and of one level, for k = 10,000 and 100,000 rows.

Needs faiss-cpu for `passes`. Timings need a quiet machine: the load average is stored with them. All parts together
take some minutes on two cores; ten thousand clusters in one level take most of this time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

NUM_ROWS, WIDTH, NUM_CLUSTERS, NUM_PASSES = 100_000, 384, 1_000, 5
MANY_ROWS, MANY_CLUSTERS, MANY_PASSES = 1_000_000, 10_000, 5
WHOLE_PASSES = 10
PARTS = ("passes", "memory", "assign", "levels")
LARGEST_RATIO, LARGEST_EXCESS, MOST_GIGABYTES = 1.2, 0.005, 4.0


def clustered_rows(num_rows: int, num_topics: int = 3000, seed: int = 0) -> np.ndarray:
    """Rows of length one around centres of unequal weights, similar to embeddings of documents."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((num_topics, WIDTH)).astype(np.float32)
    weights = 1 / np.arange(1, num_topics + 1) ** 0.7
    rows = np.empty((num_rows, WIDTH), np.float32)
    fill_rows(rows, centres, weights / weights.sum(), rng)
    return rows


def fill_rows(rows: np.ndarray, centres: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> None:
    for start in range(0, len(rows), 20_000):
        count = min(20_000, len(rows) - start)
        part = centres[rng.choice(len(centres), count, p=weights)]
        part = part + 1.2 * rng.standard_normal((count, WIDTH), np.float32)
        rows[start : start + count] = part / np.linalg.norm(part, axis=1, keepdims=True)


def inertia_of(rows: np.ndarray, centroids: np.ndarray) -> float:
    from jax_diversity.sequences.clustering.assignment import assign

    return float(assign(rows, centroids)[1].sum(dtype=np.float64))


def measure_passes(rows: np.ndarray, num_passes: int, repeats: int) -> dict[str, Any]:
    """Measure seconds per pass and inertia, from the same starting centroids for all."""
    start = rows[np.sort(np.random.default_rng(1).choice(len(rows), NUM_CLUSTERS, replace=False))]
    found: dict[str, Any] = {"rows": list(rows.shape), "num_clusters": NUM_CLUSTERS, "num_passes": num_passes}
    by_name = {"ours": ours, "faiss": faiss_kmeans}
    best = dict.fromkeys(by_name, float("inf"))
    centroids: dict[str, np.ndarray] = {}
    for run in by_name.values():
        run(rows[:2048], start, 1)  # compiles, and starts threads
    for _ in range(repeats):  # alternately, so that other work on the machine affects both
        for name, run in by_name.items():
            seconds, centroids[name] = run(rows, start, num_passes)
            best[name] = min(best[name], seconds / num_passes)
    for name, run_centroids in centroids.items():
        found[name] = {"seconds_a_pass": round(best[name], 4), "inertia": inertia_of(rows, run_centroids)}
    found["time_ratio"] = round(best["ours"] / best["faiss"], 3)
    found["inertia_ratio"] = round(found["ours"]["inertia"] / found["faiss"]["inertia"], 5)
    found["reached"] = found["time_ratio"] <= LARGEST_RATIO and found["inertia_ratio"] <= 1 + LARGEST_EXCESS
    found["whole runs"] = {method: whole_run(rows, method) for method in ("kmeans", "minibatch_kmeans")}
    return found


def ours(rows: np.ndarray, start: np.ndarray, num_passes: int) -> tuple[float, np.ndarray]:
    from jax_diversity.sequences.clustering import lloyd
    from jax_diversity.sequences.clustering.rows import Rows

    settled, lloyd.SETTLED_SHARE = lloyd.SETTLED_SHARE, sys.maxsize  # no early stop
    began = time.perf_counter()
    centroids, passes = lloyd.lloyd(Rows(rows), start, num_passes, lloyd.Passes(lloyd.row_mesh(None)))
    seconds = time.perf_counter() - began
    lloyd.SETTLED_SHARE = settled
    return seconds * num_passes / passes, centroids


def faiss_kmeans(rows: np.ndarray, start: np.ndarray, num_passes: int) -> tuple[float, np.ndarray]:
    import faiss

    clustering = faiss.Clustering(rows.shape[1], len(start))
    clustering.niter = num_passes
    clustering.max_points_per_centroid, clustering.min_points_per_centroid = 10**9, 1
    faiss.copy_array_to_vector(start.ravel(), clustering.centroids)
    index = faiss.IndexFlatL2(rows.shape[1])
    began = time.perf_counter()
    clustering.train(rows, index)
    seconds = time.perf_counter() - began
    return seconds, faiss.vector_to_array(clustering.centroids).reshape(start.shape)


def whole_run(rows: np.ndarray, method: str) -> dict[str, Any]:
    """Measure start, training and assignment with the default settings but fewer passes."""
    from jax_diversity.sequences.clustering.base import cluster

    began = time.perf_counter()
    found = cluster(rows, NUM_CLUSTERS, method=method, max_iterations=WHOLE_PASSES)
    seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 2), "inertia": found.inertia, "num_iterations": found.num_iterations}


def write_map(path: Path) -> None:
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (MANY_ROWS, WIDTH))
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((3000, WIDTH)).astype(np.float32)
    fill_rows(rows, centres, np.full(3000, 1 / 3000), rng)
    rows.flush()


def in_child(name: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", name, "--map", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def memory_child(path: Path) -> dict[str, Any]:
    """Measure the peak memory of clustering the whole map; two passes, because memory does not grow with them."""
    from jax_diversity.sequences.clustering.base import cluster

    vectors = np.load(path, mmap_mode="r")
    began = time.perf_counter()
    cluster(vectors, NUM_CLUSTERS, max_iterations=2, train_documents=len(vectors))
    seconds = time.perf_counter() - began
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    reached = gigabytes < MOST_GIGABYTES
    return {
        "rows": list(vectors.shape),
        "peak_gigabytes": round(gigabytes, 2),
        "seconds": seconds,
        "reached": reached,
    }


def assign_child(path: Path) -> dict[str, Any]:
    """Measure the documents per second that are assigned to the nearest of a thousand centroids."""
    from jax_diversity.sequences.clustering.assignment import assign

    vectors = np.load(path, mmap_mode="r")
    centroids = np.array(vectors[:: len(vectors) // NUM_CLUSTERS][:NUM_CLUSTERS])
    assign(vectors[:2048], centroids)
    began = time.perf_counter()
    assign(vectors, centroids)
    seconds = time.perf_counter() - began
    return {"num_clusters": NUM_CLUSTERS, "seconds": seconds, "documents_per_second": round(len(vectors) / seconds)}


def measure_levels(rows: np.ndarray, num_clusters: int, max_iterations: int) -> dict[str, Any]:
    """Compare two levels with one."""
    from jax_diversity.sequences.clustering.base import cluster

    found: dict[str, Any] = {
        "rows": list(rows.shape),
        "num_clusters": num_clusters,
        "max_iterations": max_iterations,
    }
    both: dict[str, dict[str, Any]] = {
        "two levels": {"coarse_clusters": int(num_clusters**0.5)},
        "one level": {"coarse_clusters": 1, "start": "k-means||"},
    }
    for name, options in both.items():
        began = time.perf_counter()
        clustering = cluster(rows, num_clusters, max_iterations=max_iterations, **options)
        seconds = time.perf_counter() - began
        found[name] = {"seconds": round(seconds, 1), "inertia": clustering.inertia}
        print(f"  {name}: {seconds:.1f} s, inertia {clustering.inertia:.1f}", flush=True)
    found["inertia_ratio"] = round(found["two levels"]["inertia"] / found["one level"]["inertia"], 4)
    found["time_ratio"] = round(found["two levels"]["seconds"] / found["one level"]["seconds"], 4)
    return found


def main() -> None:
    """Measure the requested parts; with --write, store the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write results/clustering.json")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--vectors", nargs="*", default=[], help=".npy files of real vectors, float32")
    parser.add_argument("--rows", type=int, default=NUM_ROWS)
    parser.add_argument("--passes", type=int, default=NUM_PASSES)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--many", type=int, default=MANY_CLUSTERS, help="clusters of the part `levels`")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--map", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps({"memory": memory_child, "assign": assign_child}[arguments.child](arguments.map)))
        return
    parts, found = arguments.parts.split(","), {}
    if "passes" in parts:
        sets = {"synthetic": clustered_rows(arguments.rows)} | {path: np.load(path) for path in arguments.vectors}
        found["passes"] = {}
        for name, rows in sets.items():
            label = name if name == "synthetic" else Path(name).stem
            found["passes"][label] = measure_passes(rows, arguments.passes, arguments.repeats)
            print(f"passes, {label}:", json.dumps(found["passes"][label], indent=1), flush=True)
    if {"memory", "assign"} & set(parts):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vectors.npy"
            write_map(path)
            for name in ("memory", "assign"):
                if name in parts:
                    found[name] = in_child(name, path)
                    print(f"{name}:", json.dumps(found[name]), flush=True)
    if "levels" in parts:
        found["levels"] = measure_levels(clustered_rows(arguments.rows), arguments.many, MANY_PASSES)
        print("levels:", json.dumps(found["levels"]), flush=True)
    if arguments.write:
        import results_file

        packages = ("jax", "numpy", "scikit-learn", *(("faiss-cpu",) if "passes" in parts else ()))
        about = {**results_file.environment(*packages), "threads": len(os.sched_getaffinity(0))}
        results_file.write("clustering", {**about, **found})


if __name__ == "__main__":
    main()
