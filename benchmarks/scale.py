"""Measure what the jobs of a build cost a core, and what its host 0 does alone.

    taskset -c 1 python benchmarks/scale.py 'mixed/*.gz' [--write]

Processor time is measured, not the time of a clock, because other programs may share the core. For each kind of job the
script prints the rate in bytes of text for one core. For each stage it prints the share of its processor time that is
not in jobs: several hosts share the jobs, and host 0 does the rest. With the rates it computes the hours for a trillion
tokens on 32 hosts, as in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import results_file

from jax_diversity.foundation.executors import Here
from jax_diversity.foundation.jobs import Job, Work
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig, PreparationConfig
from jax_diversity.preparation.settings import CorpusConfig

STAGES = ("prepare", "tokenize", "embed", "cluster", "pack", "characterize", "order_validation", "write")
HOSTS, CORES, TOKENS, BYTES_PER_TOKEN = 32, 100, 1e12, 4.0


class Timed:
    """Runs jobs in this process, and adds up their processor time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def map(self, work: Work, jobs: Sequence[Job]) -> Iterator[Any]:
        results = Here().map(work, jobs)
        while True:
            begun = time.process_time()
            result = next(results, self)
            self.seconds[work.what] = self.seconds.get(work.what, 0.0) + time.process_time() - begun
            if result is self:
                return
            yield result


def measure(config: BuildConfig, stages: Sequence[str]) -> dict[str, Any]:
    """Run stages; returns the processor seconds of every kind of job, and of the rest of every stage."""
    found: dict[str, Any] = {}
    for stage in stages:
        executor, begun = Timed(), time.process_time()
        Build(config, executor=executor).run_stage(stage)
        whole = time.process_time() - begun
        found[stage] = {"jobs": executor.seconds, "rest": whole - sum(executor.seconds.values())}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", help="a corpus, such as 'mixed/*.gz'")
    parser.add_argument("--recipe", default="fineweb", help="the recipe of preparation")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/scale.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = BuildConfig(out=f"{folder}/plain", corpus=CorpusConfig(paths=(arguments.paths,)), orders=())
        stages = measure(config, STAGES)
        steps = PreparationConfig(recipe=arguments.recipe)
        prepared = dataclasses.replace(config, out=f"{folder}/prepared", preparation=steps)
        stages[f"prepare, {arguments.recipe}"] = measure(prepared, STAGES[:1])["prepare"]
        megabytes = Build(config).folder.stages["prepare"]["counts"]["text_bytes"] / 1e6
        size = sum(path.stat().st_size for path in Path(folder, "plain").rglob("*") if path.is_file()) / 1e6
    print(f"{megabytes:.1f} MB of text; the dataset has {size:.1f} MB\n")
    print(f"{'stage':20} {'jobs':22} {'seconds':>8} {'MB/s a core':>12} {'hours, 1e12 tokens':>19} {'rest, s':>8}")
    for stage, about in stages.items():
        if not about["jobs"]:
            print(f"{stage:20} {'':64} {about['rest']:8.2f}")
        for what, seconds in about["jobs"].items():
            rate = megabytes / seconds
            hours = TOKENS * BYTES_PER_TOKEN / 1e6 / rate / HOSTS / CORES / 3600
            print(f"{stage:20} {what:22} {seconds:8.2f} {rate:12.1f} {hours:19.2f} {about['rest']:8.2f}")
    if arguments.write:
        about = results_file.environment("jax", "numpy", "scikit-learn", "tokenizers", "pyarrow")
        results = {
            "environment": about,
            "megabytes": round(megabytes, 1),
            "dataset_megabytes": round(size, 1),
            "stages": stages,
        }
        results_file.write("scale", results)


if __name__ == "__main__":
    main()
