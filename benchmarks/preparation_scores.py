"""Measure the steps that learn from the user's texts: documents per second on one core, seconds to learn, medians.

    python benchmarks/preparation_scores.py FILES.jsonl.gz ... --good GOOD --bad BAD --reference TEXTS [--write]

Seconds are processor time, because other programs may use the machine. Documents are in memory already, and each step
splits their words itself; learning is timed separately.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import results_file

from jax_diversity.foundation.executors import Here
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.steps.base import METHODS, LearningStep
from jax_diversity.schema import Document


def read(paths: list[Path]) -> list[Document]:
    documents = []
    for path in sorted(paths):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file):
                text = json.loads(line)["text"]
                documents.append(Document(f"{path.name}:{number}", text, path.name.removesuffix(".jsonl.gz")))
    return documents


def measured(step: str, options: dict[str, Any], learning: float, documents: list[Document]) -> dict[str, Any]:
    """Apply a step that learned for some seconds to the documents."""
    chain = Chain([(step, options)], Here())
    start = time.process_time()
    left = list(chain.through(documents))
    seconds = time.process_time() - start - learning
    by_source = defaultdict(list)
    for document in left:
        if step in document.metadata:
            by_source[document.source].append(document.metadata[step])
    return {
        "learning_seconds": round(learning, 2),
        "documents_per_second": round(len(documents) / seconds),
        "removed": chain.funnel()[0]["removed"],
        "medians_of_kept": {source: median(values) for source, values in sorted(by_source.items())},
    }


def seconds_to_learn(step: LearningStep) -> tuple[float, dict[str, Any]]:
    """Return seconds, and the step's report with its megabytes on disk."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        step.learn(Path(folder))
        seconds = time.process_time() - start
        about = Path(folder) / "quality.json"
        told = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
        megabytes = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
    return seconds, told | {"model_megabytes": round(megabytes, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    for name in ("good", "bad", "reference"):
        parser.add_argument(f"--{name}", required=True, nargs="+", help="files for the step's option")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/preparation_scores.json")
    given = parser.parse_args()
    documents = read(given.paths)
    steps: dict[str, Any] = {}
    for name, options in (
        ("quality", {"good": given.good, "bad": given.bad}),
        ("perplexity", {"reference": given.reference}),
    ):
        learning, told = seconds_to_learn(METHODS.find(name)(**options))
        steps[name] = measured(name, options, learning, documents) | told
        print(name, json.dumps(steps[name]), flush=True)
    steps["weight"] = measured("weight", {"weights": {"source=web": 2}}, 0.0, documents)
    print("weight", json.dumps(steps["weight"]), flush=True)
    if given.write:
        environment = results_file.environment("numpy", "scikit-learn")
        results_file.write(
            "preparation_scores", {"environment": environment, "documents": len(documents), "steps": steps}
        )


if __name__ == "__main__":
    main()
