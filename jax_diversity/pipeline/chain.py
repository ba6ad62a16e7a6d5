"""Running stages: fingerprints, skipping what is done, resuming what was cut off, a log of times."""

from __future__ import annotations

import json
import resource
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jax_diversity.artifacts import FORMAT_VERSION, OutputFolder, fingerprint
from jax_diversity.config import BuildConfig, OrderConfig
from jax_diversity.errors import UserError
from jax_diversity.pipeline.context import Context, Stage
from jax_diversity.pipeline.stages import STAGES, order_stage
from jax_diversity.progress import Progress

# Versions that decide what an artifact holds; the manifest names them.
_PACKAGES = ("array_record", "jax", "numpy", "pyarrow", "scikit-learn", "scipy", "tokenizers")


@dataclass(frozen=True)
class StageResult:
    """What became of one stage: counts, seconds (0 where it was kept as it was)."""

    stage: str
    kept: bool
    seconds: float
    counts: dict[str, Any]


class Build:
    """A dataset's folder and the settings that it is built with; hold its lock while stages run.

    Args:
        config: all settings.
        progress: where work is shown.
    """

    def __init__(self, config: BuildConfig, progress: Progress | None = None) -> None:
        self.config = config
        self.folder = OutputFolder(config.out)
        self.progress = progress or Progress(quiet=True)

    def run_all(self) -> list[StageResult]:
        """Make every stage that is not current: the whole dataset with its orderings and report.

        Raises:
            UserError: bad settings or input; what was finished before stays.
        """
        self.config.check()
        with self.folder.lock():
            results = [self._run(STAGES[name]) for name in ("prepare", "tokenize", "embed", "cluster")]
            results += [self._run(STAGES[name]) for name in ("pack", "characterize")]
            results += [self._run(order_stage(order)) for order in self.config.orders]
            results += [self._run(STAGES[name]) for name in ("write", "report")]
        return results

    def run_stage(self, name: str) -> StageResult:
        """Make one stage from what its predecessors left.

        Raises:
            UserError: a predecessor is missing; bad settings or input.
        """
        self.config.check()
        with self.folder.lock():
            return self._run(STAGES[name])

    def run_order(self, order: OrderConfig) -> StageResult:
        """Make one ordering; others stay."""
        with self.folder.lock():
            return self._run(order_stage(order))

    def _run(self, stage: Stage) -> StageResult:
        context = Context(self.config, self.folder, self.progress)
        stage_fingerprint = self._fingerprint(stage, context)
        if self.folder.is_current(stage.name, stage_fingerprint):
            return StageResult(stage.name, True, 0.0, self.folder.stages[stage.name]["counts"])
        start = time.monotonic()
        partial = self.folder.partial(stage.name, stage_fingerprint, resume=stage.resumable)
        counts = stage.run(context, partial)
        self._withdraw_dependents(stage.name, stage_fingerprint)
        self.folder.manifest["format_version"] = FORMAT_VERSION
        self.folder.manifest["versions"] = {"jax-diversity": _own_version()} | {
            package: version(package) for package in _PACKAGES
        }
        entry = {
            "fingerprint": stage_fingerprint,
            "config": stage.settings(self.config),
            "inputs": {need: self.folder.stages[need]["fingerprint"] for need in stage.inputs(context)},
            "counts": counts,
        }
        self.folder.publish(stage.name, partial, stage.destination, entry)
        result = StageResult(stage.name, False, time.monotonic() - start, counts)
        self._log(result)
        return result

    def _fingerprint(self, stage: Stage, context: Context) -> str:
        needs = {}
        for need in stage.inputs(context):
            if need not in self.folder.stages:
                verb = need.split("/")[0]
                raise UserError(
                    f"Stage {stage.name!r} needs {need!r}, which {self.folder.root} does not have; run "
                    f"`jax-diversity {verb}` first, or `jax-diversity build` for all."
                )
            needs[need] = self.folder.stages[need]["fingerprint"]
        return fingerprint(stage.name, stage.version, stage.settings(self.config), needs, stage.outside(context))

    def _withdraw_dependents(self, name: str, new_fingerprint: str) -> None:
        """What was made from a stage's former output does not belong to its new one."""
        former = self.folder.stages.get(name)
        if former is None or former["fingerprint"] == new_fingerprint:
            return
        gone = {name}
        for other, entry in list(self.folder.stages.items()):
            if other != name and gone & set(entry["inputs"]):
                gone.add(other)
                self.folder.withdraw(other)

    def _log(self, result: StageResult) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "stage": result.stage,
            "seconds": round(result.seconds, 3),
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        with (self.folder.root / "build.log").open("a") as log:
            log.write(json.dumps(line) + "\n")


def recorded_config(out: str | Path) -> BuildConfig:
    """The settings that a dataset's stages were made with, as its manifest keeps them.

    Raises:
        UserError: no dataset there.
    """
    from jax_diversity.config import config_from_plain

    folder = OutputFolder(out)
    if not folder.stages:
        raise UserError(f"Expected a dataset in {folder.root}, found none; run `jax-diversity build` first.")
    values: dict[str, Any] = {"out": str(out)}
    orders = []
    for name, entry in folder.stages.items():
        if name.startswith("order/"):
            orders.append(entry["config"]["order"])
        else:
            values |= {key: value for key, value in entry["config"].items() if value is not None}
    if orders:
        values["orders"] = orders
    return config_from_plain(values)


def _own_version() -> str:
    from jax_diversity import __version__

    return __version__
