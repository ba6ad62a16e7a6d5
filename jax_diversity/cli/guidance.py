"""Where the report lies and which commands to try next, each ready to be pasted."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from jax_diversity.foundation.progress import is_watched
from jax_diversity.pipeline.settings import BuildConfig


def next_steps(config: BuildConfig) -> str:
    """Three commands to try with a dataset that was just built and trained on, each under what it shows.

    Args:
        config: the settings that it was built with.
    """
    out = Path(config.out)
    quoted = shlex.quote(str(out))
    texts = shlex.quote(str(out / "documents" / "*.parquet"))
    again = shlex.quote(f"{out}-again")
    steps = (
        ("the ordering beside a shuffle, at all window sizes", f"measure --out {quoted} --profile"),
        (
            "the documents of one batch of training, and how good a batch it is",
            f"inspect --out {quoted} --batch-size {config.train.batch_size} --step {config.train.num_steps // 2}",
        ),
        (
            "a dataset of Parquet or JSONL files: these texts, until you name your own",
            f"build --corpus.paths {texts} \\\n    --cluster.num-clusters {config.cluster.num_clusters} --out {again}",
        ),
    )
    return "\n".join(f"  # {shows}\n  {_program()} {arguments}" for shows, arguments in steps)


def _program() -> str:
    """What runs this program again: its name where the shell finds it, else the path it was started by."""
    name = "jax-diversity"
    return name if shutil.which(name) or not sys.argv[0].endswith(name) else sys.argv[0]


def report_line(report: Path) -> str:
    """Where a report lies: an address to click on, on this machine's own terminal; its path everywhere else."""
    here = is_watched(sys.stdout) and "SSH_CONNECTION" not in os.environ
    return f"Report: {report.resolve().as_uri() if here else report}"


def open_report(report: Path) -> str | None:
    """Show a report in the browser; what to do instead where that is not possible, None where it is shown."""
    import webbrowser

    has_display = sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ)
    if has_display and webbrowser.open(report.resolve().as_uri()):
        return None
    return f"No browser could be opened here; copy {report} to a machine that has one: the page is that one file."
