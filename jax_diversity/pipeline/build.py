"""Running stages: fingerprints, skipping what is done, resuming what was cut off, a log of times."""

from __future__ import annotations

import dataclasses
import json
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jax_diversity import __version__
from jax_diversity.dataset import open_dataset
from jax_diversity.foundation.artifacts import FORMAT_VERSION, OutputFolder, fingerprint
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.settings import as_plain, settings_from_plain
from jax_diversity.foundation.stage import Context, Stage
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.pipeline.stages import STAGES, all_stages, ordering_stages


@dataclass(frozen=True)
class StageResult:
    """What became of one stage.

    Attributes:
        stage: its name.
        kept: whether it was current already.
        seconds: how long it ran; 0 where it was kept.
        summary: one line on what there is.
        counts: what it counted.
    """

    stage: str
    kept: bool
    seconds: float
    summary: str
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

    @property
    def _context(self) -> Context:
        return Context(self.config, self.folder, self.progress, open_dataset)

    def run_all(self) -> list[StageResult]:
        """Make every stage that is not current: the whole dataset with its orderings and report.

        Raises:
            UserError: bad settings or input; what was finished before stays.
        """
        return self._run(all_stages(self.config))

    def run_stage(self, name: str) -> StageResult:
        """Make one stage from what its predecessors left.

        Raises:
            UserError: a predecessor is missing; bad settings or input.
        """
        self._check_other_settings(name)
        return self._run([STAGES[name]])[0]

    def run_order(self, order: OrderConfig) -> list[StageResult]:
        """Make and measure one ordering, which joins the dataset's settings; others stay.

        Raises:
            UserError: there are no characteristics yet; bad settings.
        """
        others = [other for other in self.config.orders if other.file_name != order.file_name]
        self.config = dataclasses.replace(self.config, orders=(*others, order))
        return self._run(ordering_stages(order))

    def _check_other_settings(self, name: str) -> None:
        """Settings of the stages that this one reads, which are made already and would not follow them.

        Raises:
            UserError: the first such setting, and the stage that it belongs to.
        """
        for other in STAGES[name].inputs(self._context):
            made = self.folder.stages.get(other)
            if made is None or other not in STAGES:
                continue
            asked = _flat(STAGES[other].settings(self.config))
            for setting, value in _flat(made["config"]).items():
                if setting in asked and asked[setting] != value:
                    raise UserError(
                        f"Expected settings of stage {name!r}, or such as {self.folder.root} was made with, found "
                        f"{setting}={asked[setting]} where stage {other!r} was made with {value}; run "
                        f"`jax-diversity {other}` with it first, or `jax-diversity build`."
                    )

    def _run(self, stages: Sequence[Stage]) -> list[StageResult]:
        self.config.check()
        with self.folder.lock():
            settings = {key: value for key, value in as_plain(self.config).items() if key != "out"}
            former_settings = self.folder.manifest.get("settings")
            self.folder.manifest["settings"] = settings
            results = []
            for stage in self.progress.numbered(stages):
                results.append(self._run_one(stage))
                if stage is STAGES["prepare"]:  # known from here on: before hours of work rather than after
                    for other in stages:
                        other.check(self._context)
            if settings != former_settings and all(result.kept for result in results):
                self.folder.write_manifest()
        return results

    def _run_one(self, stage: Stage) -> StageResult:
        context = self._context
        self._check_inputs(stage, context)
        inputs = {need: self.folder.stages[need]["fingerprint"] for need in stage.inputs(context)}
        stage_fingerprint = fingerprint(
            stage.name, stage.version, stage.settings(self.config), inputs, stage.outside(context)
        )
        if self.folder.is_current(stage.name, stage_fingerprint):
            counts = self.folder.stages[stage.name]["counts"]
            return StageResult(stage.name, True, 0.0, stage.summary(counts), counts)
        start = time.monotonic()
        versions = {package: version(package) for package in stage.packages}
        # Files of a try with other versions of the libraries are not gone on with: their bytes may differ.
        key = fingerprint(stage_fingerprint, versions)
        partial = self.folder.partial(stage.name, key, resume=stage.resumable)
        try:
            counts = stage.run(context, partial)
        except MemoryError as error:
            reason = " ".join(str(error).split()) or "there was no more"
            raise UserError(
                f"Stage {stage.name!r} ran out of memory ({reason}); "
                "look for a setting of it that is too large, or take a machine with more; what is finished is kept."
            ) from error
        self._withdraw_dependents(stage.name, stage_fingerprint)
        self.folder.manifest["format_version"] = FORMAT_VERSION
        entry = {
            "fingerprint": stage_fingerprint,
            "config": stage.settings(self.config),
            "inputs": inputs,
            "counts": counts,
            "summary": stage.summary(counts),
            "versions": {"jax-diversity": __version__} | versions,
        }
        self.folder.publish(stage.name, partial, stage.destination, entry, owns_folder=stage.owns_folder)
        result = StageResult(stage.name, False, time.monotonic() - start, stage.summary(counts), counts)
        self._log(result)
        return result

    def _check_inputs(self, stage: Stage, context: Context) -> None:
        for need in stage.inputs(context):
            verb = need.split("/")[0]
            if need not in self.folder.stages:
                raise UserError(
                    f"Stage {stage.name!r} needs {need!r}, which {self.folder.root} does not have; run "
                    f"`jax-diversity {verb}` first, or `jax-diversity build` for all."
                )
            fault = next(self.folder.missing_files(need), None)
            if fault is not None:
                raise UserError(
                    f"{self.folder.root}: {fault}; restore it, or make it again with `jax-diversity build`."
                )

    def _withdraw_dependents(self, name: str, new_fingerprint: str) -> None:
        """What was made from a stage's former output, directly or not, does not belong to its new one."""
        former = self.folder.stages.get(name)
        if former is None or former["fingerprint"] == new_fingerprint:
            return
        gone, grown = {name}, True
        while grown:
            dependents = {other for other, entry in self.folder.stages.items() if gone & set(entry["inputs"])}
            grown = not dependents <= gone
            gone |= dependents
        for other in sorted(gone - {name}):
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


def _flat(settings: Any, where: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    if not isinstance(settings, dict) or not settings:
        return {where: json.loads(json.dumps(settings))}  # a tuple is a list in a manifest
    parts = (_flat(value, f"{where}.{key}" if where else str(key)) for key, value in settings.items())
    return {name: value for part in parts for name, value in part.items()}


def recorded_config(out: str | Path) -> BuildConfig:
    """The settings that a dataset was last made with, as its manifest keeps them.

    Raises:
        UserError: no dataset there; settings that this version does not know.
    """
    folder = OutputFolder(out)
    if not folder.stages or "settings" not in folder.manifest:
        raise UserError(f"Expected a dataset in {folder.root}, found none; run `jax-diversity build` first.")
    try:
        return dataclasses.replace(settings_from_plain(BuildConfig, folder.manifest["settings"]), out=str(out))
    except UserError as error:
        raise UserError(f"{folder.root / 'manifest.json'}: {error}") from None
