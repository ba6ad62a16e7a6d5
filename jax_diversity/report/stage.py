"""The stage `report`: draw one page on a dataset with finished orderings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.foundation.terminal import clean


def draw_report(context: Context, partial: Path) -> Counts:
    """Measure every ordering again and draw the page."""
    from jax_diversity.report.page import write_report
    from jax_diversity.report.values import report_values

    values = report_values(context, report_title(context), ordering_names(context))
    write_report(partial, values)
    return {
        "orderings": [order["name"] for order in values["ordering"]["orders"]],
        "training_runs": [run["ordering"] for run in values["training"]],
    }


def report_title(context: Context) -> str:
    """The page's title: the name of the dataset's folder."""
    return clean(context.root.resolve().name)


def ordering_names(context: Context) -> list[str]:
    """The finished orderings: first the orderings of the settings in their order, then the others."""
    finished = {name.removeprefix("order/") for name in context.folder.stages if name.startswith("order/")}
    names = [order.file_name for order in context.config.orders if order.file_name in finished]
    return [*names, *sorted(finished - set(names))]


def _inputs(context: Context) -> tuple[str, ...]:
    """All finished stages: the page shows their settings and fingerprints."""
    # The required stages come first, because the error names the first stage that is not finished.
    needed = ("prepare", "tokenize", "embed", "cluster", "pack", "characterize")
    unused = [name for name in context.folder.stages if name not in needed and name != "report"]
    return (*needed, *sorted(unused))


def _outside(context: Context) -> str:
    """A hash of the inputs of the page that no stage makes: the name of the folder, and the training runs."""
    from jax_diversity.report.training import explanations, logs_of_others, training_runs

    names = ordering_names(context)
    runs = training_runs(context, names)
    explained = {name: explanations(context, name) for name in runs}
    return fingerprint(report_title(context), runs, explained, logs_of_others(context, names))


def _settings(config: Any) -> dict[str, Any]:
    """The settings that only the page depends on."""
    return {
        "windows": list(config.windows),
        "main_ordering": config.train.ordering or "balance",
        "batch_sizes": [config.batch_size, config.train.batch_size],
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
    version=10,
)
