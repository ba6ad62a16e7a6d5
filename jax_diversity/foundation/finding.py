"""Find the dataset that a user names."""

from __future__ import annotations

import difflib
from pathlib import Path

from jax_diversity.foundation.checks import check_folder_name
from jax_diversity.foundation.errors import UserError


def existing_dataset(out: str) -> str:
    """A dataset's folder or address as given; if there is no dataset, the error suggests one in the same folder."""
    check_folder_name("out", out)
    folder = Path(out)
    if "://" in out or (folder / "manifest.json").is_file():
        return out
    raise UserError(f"Expected a dataset in {out}, {not_found(folder, '--out ')}")


def not_found(folder: Path, option: str = "") -> str:
    """The end of the error for a folder without a dataset: what it is, and a dataset beside it that may be meant."""
    content = "no manifest.json in it" if folder.is_dir() else "a file" if folder.exists() else "no such folder"
    datasets = sorted(path.parent.name for path in folder.parent.glob("*/manifest.json"))
    near = difflib.get_close_matches(folder.name, datasets, n=1) or (datasets if len(datasets) == 1 else [])
    if not near:
        return f"found {content}; make one with `jax-diversity build` or `demo`."
    return f"found {content}; did you mean {option}{folder.parent / near[0]}?"
