"""Find the dataset that a user names."""

from __future__ import annotations

import difflib
from pathlib import Path

from jax_diversity.foundation.checks import check_folder_name
from jax_diversity.foundation.errors import UserError


def existing_dataset(out: str) -> str:
    """A dataset's folder or address as given; if there is no dataset, the error suggests one in the working folder."""
    check_folder_name("out", out)
    folder = Path(out)
    if "://" in out or (folder / "manifest.json").is_file():
        return out
    found = "no manifest.json in it" if folder.is_dir() else "a file" if folder.exists() else "no such folder"
    others = sorted(path.parent.name for path in Path().glob("*/manifest.json"))
    near = difflib.get_close_matches(out, others, n=1) or (others if len(others) == 1 else [])
    advice = f"did you mean --out {near[0]}?" if near else "make one with `jax-diversity build` or `demo`."
    raise UserError(f"Expected a dataset in {out}, found {found}; {advice}")
