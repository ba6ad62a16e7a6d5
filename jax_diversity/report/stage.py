"""The stage `report`: one page on a dataset whose orderings are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.stage import Context, Counts, Stage


def draw_report(context: Context, partial: Path) -> Counts:
    """Measure every ordering again and draw the page."""
    from jax_diversity.report.gathering import gather_inputs
    from jax_diversity.report.page import write_report

    inputs = gather_inputs(context)
    write_report(partial, inputs)
    return {
        "orderings": [ordering.name for ordering in inputs.orderings],
        "training_runs": [run.ordering for run in inputs.training],
    }


def _inputs(context: Context) -> tuple[str, ...]:
    """Every finished stage: the page shows all their settings and fingerprints."""
    needed = ("prepare", "tokenize", "embed", "cluster", "pack", "characterize")
    others = [name for name in context.folder.stages if name not in needed and name != "report"]
    return (*needed, *sorted(others))


def _outside(context: Context) -> str:
    """A hash of what the page shows besides: the folder's name, the training runs' losses."""
    from jax_diversity.report.gathering import report_title, training_runs

    runs = [[run.ordering, list(run.steps)] for run in training_runs(context)]
    return fingerprint(report_title(context), runs)


def _settings(config: Any) -> dict[str, Any]:
    """The settings that the page depends on, besides those of the stages before."""
    return {
        "windows": list(config.windows),
        "main_ordering": config.train.ordering,
        "batch_size": config.train.batch_size,
    }


REPORT = Stage(
    "report",
    help="Draw the report page.",
    section="windows",
    destination="",
    run=draw_report,
    summary=lambda counts: "report.html, report.json",
    settings=_settings,
    inputs=_inputs,
    outside=_outside,
    owns_folder=False,
    packages=("plotly",),
    version=2,
)
