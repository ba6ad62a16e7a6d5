"""The command `export`."""

from __future__ import annotations

from jax_diversity.foundation.checks import check_folder_name
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.terminal import show
from jax_diversity.streaming.export.settings import ExportConfig
from jax_diversity.streaming.run.commands import open_run


def export(config: ExportConfig, *, out: str = "out", version: int | None = None, quiet: bool = False) -> None:
    """Write an order or ordered sequences for another stack.

    Args:
        out: The dataset's folder, or the folder of a run.
        version: The version of a run; the last by default.
        quiet: Show no progress.
    """
    from jax_diversity.streaming.export import export as exporting

    check_folder_name("target", config.target)
    for line in exporting.export(open_run(out, version, config.ordering), config, Progress(quiet)):
        show(line)
