"""Measure the stages `order` and `measure` of a build of a large dataset: seconds and peak memory.

    python benchmarks/large_build.py [--sequences 2000000] [--folder FOLDER] [--write]

The counts are those of `benchmarks/out_of_core.py`, ten for a sequence, in the folder of a dataset that has only the
stages that orders need. One process makes and measures the orderings `uniform_shuffle` and `balance`, as
`jax-diversity order` does. Above 2^20 sequences there are several chunks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import out_of_core
import results_file
from scipy import sparse

import jax_diversity as jd
from jax_diversity.counts.stored import CountFiles
from jax_diversity.foundation.artifacts import OutputFolder, write_json
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig

ORDERS = ("uniform_shuffle", "balance")


def publish(folder: OutputFolder, stage: str, destination: str, partial: Path, counts: dict[str, Any]) -> None:
    """Add a finished stage to a dataset."""
    mark = hashlib.sha256(stage.encode()).hexdigest()
    entry = {"fingerprint": mark, "config": {}, "inputs": {}, "counts": counts, "summary": stage}
    folder.publish(stage, partial, destination, entry, owns_folder=True)


def make_dataset(root: Path, counts: Path) -> None:
    """Make the folder of a dataset from files of counts."""
    files, folder = CountFiles.open(counts), OutputFolder(root)
    totals: dict[str, list[int]] = {}
    with folder.lock():
        folder.manifest["settings"] = {}
        partial = folder.partial("pack", "0" * 64, resume=False)
        (partial / "empty").write_text("")
        length = {"sequence_length": files.sequence_length, "overlap": 0, "num_sequences": files.num_sequences}
        publish(folder, "pack", "sequences", partial, length)
        partial = folder.partial("characterize", "0" * 64, resume=False)
        chars = files.rows(0, files.num_sequences)
        for family, whole in chars.counts.items():
            sparse.save_npz(partial / f"{family}.npz", whole, compressed=False)
            totals[family] = files.totals[family].tolist()
        documents = np.zeros(0, np.int64) if chars.documents is None else chars.documents
        np.save(partial / "sequence_documents.npy", documents)
        np.save(partial / "sequence_copies.npy", np.zeros((len(documents), 0), np.int64))
        write_json(partial / "totals.json", totals)
        names = {family: list(map(str, range(number))) for family, number in files.num_groups.items()}
        write_json(partial / "groups.json", names)
        about = {"families": [*names], "weights": dict(files.weights)}
        publish(folder, "characterize", "characteristics", partial, about)


def build(root: Path) -> dict[str, Any]:
    """Make and measure the orderings; return the seconds of each stage, and the mean TV of windows of 256."""
    found: dict[str, Any] = {}
    for method in ORDERS:
        results = Build(BuildConfig(out=str(root))).run_orders([OrderConfig(method)])
        found |= {result.stage: round(result.seconds, 1) for result in results}
        families = jd.open_dataset(root).orderings[method].info["balance"]["families"]
        found[f"tv_256/{method}"] = {
            family: [round(about["windows"]["256"][name], 4) for name in ("tv_mean", "tv_worst")]
            for family, about in families.items()
        }
    return found


def main() -> None:
    """Make, order and measure; print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    root = arguments.folder or Path(tempfile.mkdtemp())
    out_of_core.make_files(root / "counts", arguments.sequences)
    out_of_core.in_child(make_in_child, root)
    row = {"num_sequences": arguments.sequences, **out_of_core.in_child(build, root / "dataset")}
    print(json.dumps(row, indent=2), flush=True)
    shutil.rmtree(root)
    if arguments.write:
        results = results_file.read("large_build").get("results", {})
        about = results_file.environment("jax", "jaxlib", "numpy", "pyarrow")
        results[str(row["num_sequences"])] = row
        results_file.write("large_build", {"environment": about, "results": results})


def make_in_child(root: Path) -> dict[str, Any]:
    """Make the dataset in a process of its own, whose memory does not count."""
    make_dataset(root / "dataset", root / "counts")
    return {}


if __name__ == "__main__":
    main()
