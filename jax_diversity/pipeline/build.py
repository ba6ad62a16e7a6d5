"""Run stages. Finished stages are skipped, interrupted stages are continued, and a log stores the times."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeGuard

from jax_diversity import __version__
from jax_diversity.foundation.artifacts import FORMAT_VERSION, OutputFolder, fingerprint
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.executors import Executor, Processes
from jax_diversity.foundation.folders import inside, open_to_append
from jax_diversity.foundation.jobs import recorded_files
from jax_diversity.foundation.object_store import is_address
from jax_diversity.foundation.own_functions import only_given
from jax_diversity.foundation.progress import Progress, peak_bytes
from jax_diversity.foundation.settings import settings_from_plain
from jax_diversity.foundation.stage import Context, Stage
from jax_diversity.foundation.warned import warn
from jax_diversity.lab.metrics import logs_of_runs, read_log
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.pipeline.stages import all_stages, ordering_stages, stages_by_name
from jax_diversity.streaming.dataset import Dataset, open_dataset

_MOST_CHANGES = 3


@dataclass(frozen=True)
class StageResult:
    """The result of one stage.

    `kept` is true if the stage was up to date and did not run. Then `seconds` is 0, and summary and counts are from the
    stage's last run.
    """

    stage: str
    kept: bool
    seconds: float
    summary: str
    counts: dict[str, Any]


class Build:
    """A dataset's folder and the settings that it is built with; the folder is locked while stages run."""

    def __init__(self, config: BuildConfig, progress: Progress | None = None, executor: Executor | None = None) -> None:
        self.config = config
        self.folder = _open_folder(config.out)
        self.executor = executor or Processes()
        # The result of `features_from`: the dataset and sections of the settings.
        self._reference: Dataset | None = None
        self._adopted: dict[str, Any] = {}
        self.progress = progress or Progress(quiet=True)

    def run_all(self, *, report: bool = True) -> list[StageResult]:
        """Make every stage that is not up to date: the whole dataset with its orderings and report.

        Args:
            report: whether to draw the report, too; False if it is drawn later, with `run_stage("report")`.

        Raises:
            UserError: bad settings or input; finished stages are kept.
        """
        stages = [stage for stage in all_stages(self.config) if report or stage.name != "report"]
        self._adopt_settings(stages)
        return self._run(stages)

    def run_stage(self, name: str) -> StageResult:
        """Make one stage from the artifacts of earlier stages.

        Raises:
            UserError: an earlier stage is missing; bad settings or input.
        """
        stage = stages_by_name()[name]
        self._adopt_settings([stage])
        self._check_other_settings(stage)
        return self._run([stage])[0]

    def run_orders(self, added: Sequence[OrderConfig]) -> list[StageResult]:
        """Make and measure orderings and add them to the dataset's settings; other orderings are kept.

        Raises:
            UserError: there are no characteristics yet; bad settings.
        """
        if self.config.packing.holds_out_all:
            raise UserError(
                f"Expected a dataset with training sequences in {self.folder.root}, found one that holds out all "
                "documents (packing.validation_fraction=1); its build has made their order."
            )
        # An ordering of the same name is replaced in its place: later orderings may be made from it.
        orders = {order.file_name: order for order in (*self.config.orders, *added)}
        self.config = dataclasses.replace(self.config, orders=tuple(orders.values()))
        stages = [stage for order in added for stage in ordering_stages(order)]
        self._adopt_settings(stages)
        return self._run(stages)

    @property
    def _context(self) -> Context:
        return Context(self._settings, self.folder, self.progress, open_dataset, self.executor, self._reference)

    @property
    def _settings(self) -> BuildConfig:
        """The given settings, with the settings that come from another dataset."""
        return dataclasses.replace(self.config, **self._adopted)

    def _adopt_settings(self, stages: Sequence[Stage]) -> None:
        """Look up the settings that come from another dataset.

        The dataset is opened if a stage takes something from it. All other stages get the settings of this dataset's
        own finished stages: the other dataset may be gone.
        """
        self._reference, self._adopted = None, {}
        if self.config.features_from is None:
            return
        adopting = [stage for stage in stages_by_name().values() if stage.adopt is not None]
        if any(stage.adopt is not None for stage in stages):
            self._reference = self._open_reference(self.config.features_from, adopting)
        made = self.folder.stages if self._reference is None else self._reference.manifest["stages"]
        for stage in adopting:
            if stage.adopt is not None and stage.name in made:
                kind = type(getattr(self.config, stage.section))
                other = settings_from_plain(kind, made[stage.name]["config"][stage.section], stage.section)
                self._adopted[stage.section] = stage.adopt(self.config, other)

    def _open_reference(self, path: str, adopting: Sequence[Stage]) -> Dataset:
        is_own = path.rstrip("/") == self.config.out.rstrip("/")
        if is_own or os.path.realpath(path) == os.path.realpath(self.folder.root):
            raise UserError(
                f"Expected features_from to name another dataset, found the dataset that is built ({path}); omit it."
            )
        try:
            reference = open_dataset(path)
        except UserError as error:
            raise UserError(f"features_from: {error}") from None
        for stage in adopting:
            if stage.name not in reference.manifest["stages"]:
                raise UserError(
                    f"Expected features_from to name a finished dataset, found {path} without stage {stage.name!r}; "
                    "finish it with `jax-diversity build`."
                )
        return reference

    def _run(self, stages: Sequence[Stage]) -> list[StageResult]:
        settings = {} if isinstance(self.config, RecordedConfig) else dataclasses.asdict(self.config)
        with only_given(settings):
            return self._run_given(stages)

    def _run_given(self, stages: Sequence[Stage]) -> list[StageResult]:
        # Settings of other stages are not checked: files that a finished stage has read may be gone.
        self._settings.check({section for stage in stages for section in (stage.section, *stage.also)} | {"train"})
        inside(self.folder.root, "build.log")  # before any work
        with self.folder.lock():
            # The settings as given, because another dataset in them may change. Without `out`, because a dataset may be
            # moved, and its manifest stays the same.
            settings = {key: value for key, value in dataclasses.asdict(self.config).items() if key != "out"}
            stored_settings = self.folder.manifest.get("settings")
            # The settings are changed in memory only. The first stage that finishes writes them, so a manifest never
            # records settings that were not used.
            self.folder.manifest["settings"] = settings
            self._keep_orderings_of_runs(stages)
            results = []
            for stage in self.progress.numbered(stages):
                results.append(self._run_one(stage))
                if stage.name == "prepare":  # the documents are known now: check at once, not after hours of work
                    for other in stages:
                        other.check(self._context)
            # A stage that ran has written the manifest; settings that no stage reads, such as `train`, follow here.
            if settings != stored_settings and all(result.kept for result in results):
                self.folder.write_manifest()
        return results

    def _run_one(self, stage: Stage) -> StageResult:
        context = self._context
        self._check_inputs(stage)
        inputs, settings, stage_fingerprint = self._identity(stage)
        if self.folder.is_current(stage.name, stage_fingerprint):
            self.folder.remove_partials(stage.name)  # a kill may have left the records of its jobs
            counts = self.folder.stages[stage.name]["counts"]
            return StageResult(stage.name, True, 0.0, stage.summary(counts), counts)
        entry = self.folder.stages.get(stage.name)
        if entry is not None and stage.must_remember(context, entry):
            self.folder.remember(stage.name, stage.remembered)
            inputs, settings, stage_fingerprint = self._identity(stage)
        start = time.monotonic()
        versions = {package: version(package) for package in stage.packages}
        # Other versions of the libraries may write other bytes, so their finished files are not kept.
        partial = self.folder.partial(stage.name, fingerprint(stage_fingerprint, versions), resume=stage.resumable)
        try:
            counts = stage.run(context, partial)
        except BaseException as error:
            with suppress(OSError):  # an empty folder has nothing to continue
                partial.rmdir()
                partial.parent.rmdir()
            if not isinstance(error, MemoryError):
                raise
            reason = " ".join(str(error).split()) or "there was no more"
            raise UserError(
                f"Stage {stage.name!r} ran out of memory ({reason}); choose smaller settings of it, or a machine with "
                "more; what is finished is kept."
            ) from error
        # Before the new files replace the old ones: after a kill in between, later stages are absent, not outdated.
        self._withdraw_dependents(stage, stage_fingerprint)
        self.folder.manifest["format_version"] = FORMAT_VERSION
        entry = {
            "fingerprint": stage_fingerprint,
            "config": settings,
            "inputs": inputs,
            "counts": counts,
            "summary": stage.summary(counts),
            "versions": {"jax-diversity": __version__} | versions,
        }
        recorded = dict(recorded_files(partial))
        self.folder.publish(
            stage.name, partial, stage.destination, entry, owns_folder=stage.owns_folder, known=recorded
        )
        seconds = time.monotonic() - start
        self._log(stage.name, seconds)
        return StageResult(stage.name, False, seconds, entry["summary"], counts)

    def _identity(self, stage: Stage) -> tuple[dict[str, str], dict[str, Any], str]:
        """Return the fingerprints of a stage's inputs, its settings, and the fingerprint of its result."""
        context = self._context
        inputs = {need: self.folder.stages[need]["fingerprint"] for need in stage.inputs(context)}
        settings = stage.settings(context.config)
        return inputs, settings, fingerprint(stage.name, stage.version, settings, inputs, stage.outside(context))

    def _check_other_settings(self, stage: Stage) -> None:
        """Check that the finished stages that this stage reads have the current settings."""
        stages = stages_by_name()
        for other in (name for name in stage.inputs(self._context) if name in self.folder.stages and name in stages):
            wanted_settings = flat(stages[other].settings(self._settings))
            for setting, value in flat(self.folder.stages[other]["config"]).items():
                if setting in wanted_settings and wanted_settings[setting] != value:
                    raise UserError(
                        f"Expected settings of stage {stage.name!r}, or those with which {self.folder.root} was made, "
                        f"found {setting}={wanted_settings[setting]}, but stage {other!r} was made with {value}; run "
                        f"`jax-diversity {other}` with it first, or `jax-diversity build`."
                    )

    def _check_inputs(self, stage: Stage) -> None:
        for need in stage.inputs(self._context):
            if need not in self.folder.stages:
                raise UserError(
                    f"Stage {stage.name!r} needs {need!r}, which {self.folder.root} does not have; run "
                    f"`jax-diversity {need.split('/')[0]}` first, or `jax-diversity build` for all stages."
                )
            for fault in self.folder.missing_files(need):
                raise UserError(f"{self.folder.root}: {fault}; restore it, or run `jax-diversity build` again.")
        # This stage reads the sequences: their number is known and belongs to the current settings.
        if "pack" in self.folder.stages and {"pack", "characterize"} & {*stage.inputs(self._context)}:
            self._check_batch_size()

    def _check_batch_size(self) -> None:
        size, packed = self.config.batch_size, self._context.counts("pack")["num_sequences"]
        # A dataset for evaluation has no training batches; a batch of its loader may be larger than the dataset.
        if size is not None and size > packed and not self.config.packing.holds_out_all:
            raise UserError(
                f"Expected batch_size of at most the {packed} training sequences, found {size}; set it to the global "
                "batch size of your training, shorten the sequences, or add more text."
            )

    def _outdated(self, name: str) -> set[str]:
        """Return a stage and all stages that were made, directly or indirectly, from its output."""
        # `reached` are the new stages of the last round; the loop ends because each stage is found once.
        outdated, reached = set[str](), {name}
        while reached:
            outdated |= reached
            reached = {
                other for other, entry in self.folder.stages.items() if reached & set(entry["inputs"])
            } - outdated
        return outdated

    def _keep_orderings_of_runs(self, stages: Sequence[Stage]) -> None:
        """Refuse, before any work, to replace the ordering of a training run: the run could not be continued."""
        followed = {}
        for ordering, path in logs_of_runs(self.folder.root).items():
            header, steps = read_log(path)
            entry = self.folder.stages.get(f"order/{ordering}")
            if steps and entry is not None and header.get("ordering") == entry["counts"]["fingerprint"]:
                followed[f"order/{ordering}"] = path.parent, steps[-1]["step"] + 1
        first = next(iter(stages_by_name()))
        for stage in stages if followed else ():
            entry = self.folder.stages.get(stage.name)
            if entry is None or set(stage.inputs(self._context)) - self.folder.stages.keys():
                continue
            _, settings, new_fingerprint = self._identity(stage)
            if entry["fingerprint"] == new_fingerprint:
                continue
            # A corpus whose files were moved gives the same ordering. One that grew is read here for the first time.
            if stage.name == first and _without_files(entry["config"]) == _without_files(settings):
                continue
            for lost in sorted(self._outdated(stage.name) & followed.keys()):
                changes = [*_changes(flat(entry["config"]), flat(settings))]
                first_changes = ", ".join(changes[:_MOST_CHANGES])
                first_changes += (
                    f" and {len(changes) - _MOST_CHANGES} more changes" if len(changes) > _MOST_CHANGES else ""
                )
                folder, num_steps = followed[lost]
                raise UserError(
                    f"Expected settings that keep the ordering {quoted(folder.name)}, because the training run in "
                    f"{folder} ({num_steps:,} steps) follows it, found "
                    f"{first_changes or f'other files or versions for stage {stage.name!r}'}: the run could "
                    f"not be continued; build into another folder (out), keep the settings, or move {folder} away."
                )

    def _withdraw_dependents(self, changed: Stage, new_fingerprint: str) -> None:
        """Remove the stages that were made, directly or indirectly, from the previous output of a stage."""
        name, stages = changed.name, stages_by_name()
        previous = self.folder.stages.get(name)
        if previous is None or previous["fingerprint"] == new_fingerprint:
            return
        outdated = self._outdated(name)
        if "pack" in outdated and any(other.startswith("order/") for other in outdated):
            warn(
                f"The sequences of {self.folder.root} are made again: states of loaders, stored runs and your own "
                "orders of the earlier sequences do not fit them.",
            )
        for other in sorted(outdated - {name}):
            if other in stages and stages[other].must_remember(self._context, None):
                self.folder.remember(other, stages[other].remembered)
                self.folder.write_manifest()  # before the file is removed
            self.folder.withdraw(other)

    def _log(self, stage: str, seconds: float) -> None:
        # The memory is the peak of the whole process so far. To measure one stage, the kernel's number must be reset,
        # which would also change the report of `time` and batch systems.
        now, memory = datetime.now(UTC).isoformat(timespec="seconds"), peak_bytes()
        line = {"time": now, "stage": stage, "seconds": round(seconds, 3), "process_peak_memory_bytes": memory}
        with open_to_append(inside(self.folder.root, "build.log")) as log:
            log.write(json.dumps(line) + "\n")


def _open_folder(out: str | Path) -> OutputFolder:
    # Stages map arrays into memory and rename files, which objects of a store do not allow.
    if is_address(out):
        raise UserError(
            f"Expected a folder to build in (out), found the address {out}; build into a folder, then copy this folder "
            "to the address (docs/scale.md)."
        )
    return OutputFolder(out)


def _changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Yield the settings that differ with both values; of a list of mappings (steps), what differs in it."""
    for setting in sorted(before.keys() | after.keys()):
        was, now = before.get(setting), after.get(setting)
        if was == now:
            continue
        if _is_list_of_mappings(was) and _is_list_of_mappings(now):
            entries = [{f"{setting}[{place}]": part for place, part in enumerate(value)} for value in (was, now)]
            yield from _changes(*map(flat, entries))
        else:
            yield f"{setting} {'absent' if now is None else now} (it was {'absent' if was is None else was})"


def _is_list_of_mappings(value: Any) -> TypeGuard[list[dict]]:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def _without_files(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the documents but for the corpus's files and how much of them is read."""
    return {name: value for name, value in flat(settings).items() if name not in ("corpus.paths", "corpus.max_bytes")}


def flat(settings: Any, where: str = "") -> dict[str, Any]:
    """Nested settings as a flat mapping from dotted names to values, as read from a manifest's JSON."""
    if not isinstance(settings, dict) or not settings:
        return {where: json.loads(json.dumps(settings))}  # tuples become lists
    parts = (flat(value, f"{where}.{key}" if where else str(key)) for key, value in settings.items())
    return {name: value for part in parts for name, value in part.items()}


@dataclass(frozen=True)
class RecordedConfig(BuildConfig):
    """Settings from a dataset's manifest. It may come from elsewhere, so a build with them calls no functions of users.

    To run a function that you trust, name it in a `BuildConfig`.
    """


def recorded_config(out: str | Path) -> RecordedConfig:
    """The settings of a dataset's last build; a `UserError` if they are absent or unknown to this version."""
    folder = _open_folder(out)
    if not folder.stages or "settings" not in folder.manifest:
        raise UserError(f"Expected a dataset in {folder.root}, found none; run `jax-diversity build` first.")
    try:
        return dataclasses.replace(settings_from_plain(RecordedConfig, folder.manifest["settings"]), out=str(out))
    except UserError as error:
        raise UserError(f"{folder.root / 'manifest.json'}: {error}") from None
