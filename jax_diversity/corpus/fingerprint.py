"""Whether the corpus has changed: a hash of what would be read."""

from __future__ import annotations

import platform
from pathlib import Path

from jax_diversity.corpus.files import InputFile, find_files, reading_faults
from jax_diversity.corpus.python_environment import find_packages
from jax_diversity.corpus.settings import PYTHON_ENVIRONMENT, CorpusConfig
from jax_diversity.foundation.artifacts import HashMemory, fingerprint
from jax_diversity.foundation.progress import Advance, ignore

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
    memory = HashMemory(cache)
    files = []
    for file in find_files(config):
        with reading_faults(file):
            size = file.size()
            content = memory.hash(file.address) if file.filesystem is None else _remote_tag(file)
        files.append([file.name, size, content])
        advance(size)
    memory.save()
    packages = []
    if PYTHON_ENVIRONMENT in config.paths:
        packages = [platform.python_version()]
        packages += sorted(f"{package.name}=={package.version}" for package in find_packages())
    return fingerprint(files, packages)


def _remote_tag(file: InputFile) -> str:
    about = file.filesystem.info(file.address)
    for name in _REMOTE_TAGS:
        if about.get(name):
            return f"{name} {about[name]}"
    return file.filesystem.ukey(file.address)
