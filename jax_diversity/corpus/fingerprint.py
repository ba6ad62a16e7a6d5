"""Whether the corpus has changed: a hash of what would be read."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from jax_diversity.artifacts import file_hash, fingerprint, write_json
from jax_diversity.config import PYTHON_ENVIRONMENT, CorpusConfig
from jax_diversity.corpus.files import InputFile, find_files, reading_faults
from jax_diversity.corpus.python_environment import find_packages
from jax_diversity.progress import Advance, ignore

_REMOTE_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "crc32c", "generation")


def input_fingerprint(config: CorpusConfig, cache: Path | None = None, advance: Advance = ignore) -> str:
    """Hash of the input files' names, sizes and contents, and of the Python environment's packages and version.

    Folders and settings are left out: the same files elsewhere have the same fingerprint, and the caller adds the
    settings. A remote file's content is known by the tag its store gives it (ETag, checksum, generation).

    Args:
        config: names the files.
        cache: a small JSON file that remembers content hashes by path, size and time of change; made if absent.
        advance: told the stored bytes that were looked at.

    Returns:
        64 hexadecimal digits.

    Raises:
        UserError: no such files, or one that cannot be read.
    """
    remembered = _read_cache(cache)
    known: dict[str, Any] = {}
    files = []
    for file in find_files(config):
        with reading_faults(file):
            size = file.size()
            content = _remote_tag(file) if file.filesystem is not None else _content_hash(file, remembered, known)
        files.append([file.name, size, content])
        advance(size)
    if cache is not None and known != remembered:
        write_json(cache, known)
    packages = []
    if PYTHON_ENVIRONMENT in config.paths:
        packages = [platform.python_version()]
        packages += sorted(f"{package.name}=={package.version}" for package in find_packages())
    return fingerprint(files, packages)


def _content_hash(file: InputFile, remembered: dict[str, Any], known: dict[str, Any]) -> str:
    """SHA-256 of a local file, computed anew only where size or time of change differ from what is remembered."""
    path = os.path.abspath(file.address)
    status = os.stat(path)
    entry = remembered.get(path)
    stamp = [status.st_size, status.st_mtime_ns]
    if not isinstance(entry, dict) or entry.get("stamp") != stamp or "sha256" not in entry:
        entry = {"stamp": stamp, "sha256": file_hash(Path(path))}
    known[path] = entry
    return entry["sha256"]


def _remote_tag(file: InputFile) -> str:
    about = file.filesystem.info(file.address)
    for name in _REMOTE_TAGS:
        if about.get(name):
            return f"{name} {about[name]}"
    return file.filesystem.ukey(file.address)


def _read_cache(cache: Path | None) -> dict[str, Any]:
    """What the cache remembers; a lost or damaged cache only costs time."""
    try:
        remembered = json.loads(cache.read_text(encoding="utf-8")) if cache is not None else {}
    except (OSError, ValueError):
        return {}
    return remembered if isinstance(remembered, dict) else {}
