"""The files besides the corpus that vectors depend on: a checkpoint, stored vectors, an embedder's own source."""

from __future__ import annotations

import glob
import importlib.util
import os
from pathlib import Path

from jax_diversity.embedding.settings import EmbeddingConfig
from jax_diversity.foundation.errors import UserError


def outside_files(config: EmbeddingConfig) -> list[Path]:
    """Files whose change makes other vectors, sorted: what `embedding.path` names, and the module of `module:name`.

    Raises:
        UserError: `precomputed` or `qwen3` without files.
    """
    if config.method == "precomputed":
        return find_vector_files(config)
    if config.method == "qwen3":
        files = _files_in(config.path or "")
        if not files:
            raise UserError(
                f"Expected a checkpoint's folder at embedding.path={config.path}, found no files there; name "
                "another one."
            )
        return files
    if ":" in config.method:
        return _source_files(config.method.partition(":")[0]) + _files_in(config.path or "")
    return []


def find_vector_files(config: EmbeddingConfig) -> list[Path]:
    """The files of stored vectors that `config.path` names, sorted by name.

    Raises:
        UserError: there are none.
    """
    pattern = os.path.expanduser(config.path or "")
    found = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern, recursive=True))
    paths = [Path(path) for path in found if os.path.isfile(path)]
    if not paths:
        raise UserError(
            f"Expected embedding.path to name a .npy file, Parquet files or a glob of them, found no file at "
            f"{config.path!r}; name the vectors."
        )
    return paths


def _files_in(where: str) -> list[Path]:
    """The file, or the files of the folder that are not hidden; none where there is nothing."""
    path = Path(os.path.expanduser(where))
    if where and path.is_file():
        return [path]
    if not where or not path.is_dir():
        return []
    return sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))


def _source_files(module: str) -> list[Path]:
    try:
        found = importlib.util.find_spec(module)
    except (Exception, SystemExit):  # a module with dots: its package is imported, and may do anything
        return []  # `make_embedder` says what is wrong
    source = Path(found.origin) if found is not None and found.origin else None
    return [source] if source is not None and source.is_file() else []
