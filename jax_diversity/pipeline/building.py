"""Build a dataset from Python with one call."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jax_diversity.foundation.checks import check_type
from jax_diversity.foundation.errors import UserError, did_you_mean, quoted, shortened
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.settings import settings_from_plain
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.execution import ExecutionConfig
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.streaming.dataset import Dataset, open_dataset

_LONGEST_PATH = 4096  # in characters; Linux allows no longer one
_LIKE_A_FILE = re.compile(r"/|\.\w{1,8}$")


def build(
    paths: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    quiet: bool = False,
    processes: int = 0,
    ray: bool = False,
    **settings: Any,
) -> Dataset:
    """Make a dataset with its orderings and its report, as `jax-diversity build` does.

    Finished stages are kept if their inputs and settings are unchanged; an interrupted build continues.

    Args:
        paths: files, globs, folders or addresses of documents, or `python-environment`. Texts of a Python list are
            written to a file first, for example with `pandas.DataFrame({"text": texts}).to_parquet("texts.parquet")`.
        out: the dataset's folder.
        batch_size: the global batch size of your training, in sequences over all hosts.
        sequence_length: L, the number of tokens in a sequence; None means the default, 512.
        quiet: show no progress.
        processes: the number of processes; 0 means one per core, if they save time.
        ray: whether the work runs on a Ray cluster.
        settings: the other sections of the settings, as in a YAML file: mappings such as
            `tokenizer={"vocab_size": 32_768}`, or the settings' own classes.

    Raises:
        UserError: bad settings or input; finished stages are kept.

    Example:
        >>> dataset = build("texts/*.jsonl.gz", "dataset", batch_size=256)
        >>> loader = make_loader(dataset, global_batch_size=256)
    """
    check_type("paths", paths, str | os.PathLike | Iterable, "names of files, or `python-environment`")
    check_type("out", out, str | os.PathLike, "the dataset's folder")
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    for path in listed:  # a list of texts, or of records, is a common mistake
        if not isinstance(path, str | os.PathLike) or _is_text(os.fspath(path)):
            raise UserError(
                f"Expected paths to be names of files, found {shortened(quoted(path), 80)}; write texts to a file "
                "first, for example with pandas.DataFrame({'text': texts}).to_parquet('texts.parquet')."
            )
    sections = [section.name for section in dataclasses.fields(BuildConfig) if section.name != "out"]
    arguments = [*dict.fromkeys(("batch_size", "sequence_length", "quiet", "processes", "ray", *sections))]
    if unknown := [name for name in settings if name not in arguments]:
        owner = _section_with(unknown[0])
        advice = f'; write {owner}={{"{unknown[0]}": ...}}.' if owner else did_you_mean(unknown[0], arguments)
        raise UserError(f"Unknown setting {unknown[0]}; expected one of {', '.join(arguments)}{advice}")
    plain: dict[str, Any] = {name: _plain(value) for name, value in settings.items()}
    for section, name, value in (
        ("corpus", "paths", [os.fspath(path) for path in listed]),
        ("packing", "sequence_length", sequence_length),
    ):
        if value is None:
            continue
        section_values = plain.setdefault(section, {})
        if not isinstance(section_values, Mapping):
            raise UserError(f"Expected {section} to be a mapping of settings, found {type(section_values).__name__}.")
        plain[section] = {**section_values, name: value}
    plain |= {"out": os.fspath(out)} | ({} if batch_size is None else {"batch_size": batch_size})
    config, execution = settings_from_plain(BuildConfig, plain), ExecutionConfig(processes, ray)
    Build(config, Progress(quiet), execution.executor()).run_all()
    return open_dataset(out)


def _is_text(path: str) -> bool:
    """Whether a path is a text: it has several lines, is too long, or has words and is not like a file's name."""
    if "\n" in path or len(path) > _LONGEST_PATH:
        return True
    return " " in path.strip() and not _LIKE_A_FILE.search(path) and not glob.glob(f"{path}*")


def _section_with(name: str) -> str | None:
    """The first section of the settings that has a setting of this name."""
    for section in dataclasses.fields(BuildConfig):
        if dataclasses.is_dataclass(section.default) and hasattr(section.default, name):
            return section.name
    return None


def _plain(value: Any) -> Any:
    """Settings as mappings; an instance of a settings' class becomes a mapping."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(cast(Any, value))
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
