"""Show the path of the report, and commands to try next, ready to be pasted."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import webbrowser
from pathlib import Path

from jax_diversity.foundation.progress import is_watched
from jax_diversity.foundation.terminal import show
from jax_diversity.pipeline.settings import BuildConfig


def next_steps(config: BuildConfig) -> str:
    """Return three commands to try on a dataset after building and training, each with a comment."""
    out = Path(config.out)
    quoted = shlex.quote(str(out))
    texts = shlex.quote(str(out / "documents" / "*.parquet"))
    again = shlex.quote(f"{out}-again")
    steps = (
        ("the ordering compared with a shuffle, at all window sizes", f"measure --out {quoted} --profile"),
        (
            "the documents of one training batch, and its deviation",
            f"inspect --out {quoted} --batch-size {config.train.batch_size} --step {config.train.num_steps // 2}",
        ),
        (
            "a new dataset from Parquet or JSONL files, here from the demo's texts",
            f"build --corpus.paths {texts} \\\n    --out {again}",
        ),
    )
    # The program's name if the shell finds it, otherwise the path with which it was started.
    name = "jax-diversity"
    program = name if shutil.which(name) or not sys.argv[0].endswith(name) else sys.argv[0]
    return "\n".join(f"  # {shows}\n  {program} {arguments}" for shows, arguments in steps)


def show_report(folder: Path, opens: bool) -> None:
    """Print a report's address (over SSH or into a file: its path). With `opens`, open the report."""
    report = folder / "report.html"
    address = report.resolve().as_uri()
    # A click opens an address on the terminal's machine, which differs from this one over SSH.
    here = is_watched(sys.stdout) and "SSH_CONNECTION" not in os.environ
    show(f"\nReport: {address if here else report}")
    has_display = sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ)
    if opens and not (has_display and webbrowser.open(address)):
        advice = f"copy {report} to a machine with a browser: the page is a single file."
        show(f"No browser could be opened here; {advice}", sys.stderr)
