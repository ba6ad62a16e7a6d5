"""Source code: one document per file, with its licence."""

from __future__ import annotations

import dataclasses
import json
import os
import posixpath
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from jax_diversity.foundation.attempts import Failure, attempt
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.foundation.text.licences import all_of, licence_named, licence_of_source, licence_of_text
from jax_diversity.preparation.readers.files import InputFile
from jax_diversity.preparation.readers.python_environment import record_rows
from jax_diversity.preparation.readers.records import Found, converted
from jax_diversity.preparation.readers.text import is_source, read_text
from jax_diversity.schema import Document

_LICENCE_FILE = re.compile(
    r"(?:(?:mit|apache|bsd|isc|[al]?gpl|mpl)[-_.])?(?:un)?licen[cs]es?(?:[-_. ].*)?$|copying(?:[-_.].*)?$",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"(?:un)?licen[cs]e(?:\.(?:txt|md|rst))?$|copying(?:\.(?:txt|md|rst|lesser))?$", re.IGNORECASE)
_OF_PARTS = re.compile(r"third|3rd|external|bundled|vendor|\.(?:json|ya?ml|toml|html?|spdx)$", re.IGNORECASE)
# Python's parser of TOML takes quadratic time for keys of many parts. Descriptions of packages do not have such keys.
_LONG_KEY = re.compile(r"""(?<![\w"'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")
_LONGEST_RECORD = 2**26  # maximum size of the RECORD file of an installed package


class Licences:
    """Finds the licences of files in their folders. Every folder is read once."""

    def __init__(self) -> None:
        self._folders: dict[str, tuple[bool, str | None]] = {}
        self._installed: dict[str, dict[str, str | None]] = {}

    def of(self, file: InputFile) -> str | None:
        """Return the SPDX expression of the nearest folder with a licence, up to the fixed folder of the glob."""
        tree = _Tree(file)
        folder = posixpath.dirname(file.address)
        for _ in range(file.name.count("/") + 1):
            if folder not in self._folders:
                nearest_licence, installed = (
                    attempt(tree.licence_in, folder),
                    attempt(tree.licences_of_installed, folder),
                )
                # Files that cannot be read are ignored. They are not read again for every file of the folder.
                self._folders[folder] = (False, None) if isinstance(nearest_licence, Failure) else nearest_licence
                self._installed[folder] = {} if isinstance(installed, Failure) else installed
            licences = self._installed[folder]
            if licences and (inner := posixpath.relpath(file.address, folder)) in licences:
                return licences[inner]
            tells, licence = self._folders[folder]
            if tells:
                return licence
            folder = posixpath.dirname(folder)
        return None


def read_code(file: InputFile, licences: Licences, advance: Advance) -> Found:
    """Read the file as one document, as in `read_text`, with its licence in the field `licence`.

    We look for the licence in the file's first comments, then in the licence files of the nearest folder, then in the
    folder's package description. If there is no licence, there is no such field.
    """
    for place, document in read_text(file, advance):
        yield (
            place,
            converted(_nearest_licence, document, licences, file) if isinstance(document, Document) else document,
        )


def _nearest_licence(document: Document, licences: Licences, file: InputFile) -> Document:
    licence = licence_of_source(document.text) or licences.of(file)
    return dataclasses.replace(document, metadata={"licence": licence} if licence else {})


class _Tree:
    """The folders above a file, on its file system."""

    def __init__(self, file: InputFile) -> None:
        self._filesystem = file.filesystem

    def _names(self, folder: str) -> list[str]:
        try:
            if self._filesystem is None:
                return sorted(os.listdir(folder or "."))
            return sorted(posixpath.basename(path.rstrip("/")) for path in self._filesystem.ls(folder, detail=False))
        except OSError:
            return []

    def _read(self, folder: str, name: str, most_bytes: int = 2**20) -> str:
        try:
            with InputFile(posixpath.join(folder, name), name, self._filesystem).open() as stored:
                return stored.read(most_bytes).decode("utf-8", "replace")
        except (OSError, UserError):  # a folder of this name, or no permission to read it
            return ""

    def licence_in(self, folder: str) -> tuple[bool, str | None]:
        """Return whether a folder names a licence, and the licence's identifier if it is known."""
        names = self._names(folder)
        files = [name for name in names if _LICENCE_FILE.match(name)]
        texts = self._texts(folder, files)
        licence = _of_texts(texts)
        for name in names:
            if licence is None and name.lower() in ("licenses", "licences"):
                inner = posixpath.join(folder, name)
                within = self._texts(inner, self._names(inner))
                texts |= within
                licence = _of_texts(within)
        declared = False
        for name, find in _DECLARATIONS.items():
            if licence is None and name in names:
                stated = list(find(self._read(folder, name)))
                declared = declared or bool(stated)
                licence = next(filter(None, map(licence_named, stated)), None)
        return bool(texts) or declared, licence

    def _texts(self, folder: str, names: list[str]) -> dict[str, str]:
        named = [name for name in names if not is_source(name) and not _OF_PARTS.search(name)]
        return {name: text for name in named if (text := self._read(folder, name))}

    def licences_of_installed(self, folder: str) -> dict[str, str | None]:
        """Return file -> licence for a folder of installed Python packages, from the packages' RECORD files."""
        texts_by_name: dict[str, str | None] = {}
        for name in self._names(folder):
            if name.endswith(".dist-info"):
                path = posixpath.join(folder, name)
                _, licence = self.licence_in(path)
                for row in record_rows(self._read(path, "RECORD", _LONGEST_RECORD)):
                    texts_by_name[row[0]] = licence
        return texts_by_name


def _of_texts(texts: dict[str, str]) -> str | None:
    licences = {name: licence_of_text(text) for name, text in texts.items()}
    # COPYING.LESSER refers to COPYING if both exist.
    plain = [name for name in sorted(licences, key=lambda name: ".lesser" not in name.lower()) if _PLAIN.match(name)]
    known_licences = sorted({licence for licence in licences.values() if licence})
    if first := next(filter(None, (licences[name] for name in plain)), None):
        return first
    if all(map(_LICENCE_FILE.match, licences)):  # such as LICENSE-MIT and LICENSE-APACHE: users may choose one licence
        return " OR ".join(known_licences) or None
    # Such as MIT.txt and Apache-2.0.txt: together they are the licences of all files of the tree.
    return all_of(known_licences) if all(licences.values()) else None


def _of_toml(*places: tuple[str, ...], text: str) -> Iterator[str]:
    if _LONG_KEY.search(text):
        return
    try:
        described: Any = tomllib.loads(text)
    except (ValueError, RecursionError):
        return
    for place in places:
        value = described
        for key in place:
            value = value.get(key) if isinstance(value, dict) else None
        yield from _stated(value)


def _of_package_json(text: str) -> Iterator[str]:
    try:
        described = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(described, dict):
        yield from _stated(described.get("license"))
        several = described.get("licenses")
        if isinstance(several, list):
            yield all_of([name for text in several for name in _stated(text)] or ["unknown"])


def _stated(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = value.get("text") or value.get("type")
    if isinstance(value, str):
        yield value


def _of_metadata(text: str) -> Iterator[str]:
    head = text.partition("\n\n")[0]
    for field in ("License-Expression", "License"):
        yield from re.findall(rf"^{field}: *(\S.*)$", head, re.MULTILINE)
    several = re.findall(r"^Classifier: License ::.*:: (.*)$", head, re.MULTILINE)
    if len(several) == 1:
        yield from several


_PROJECT = (("project", "license"), ("tool", "poetry", "license"))
_CRATE = (("package", "license"), ("workspace", "package", "license"))
_DECLARATIONS = {
    "pyproject.toml": lambda text: _of_toml(*_PROJECT, text=text),
    "Cargo.toml": lambda text: _of_toml(*_CRATE, text=text),
    "package.json": _of_package_json,
    "METADATA": _of_metadata,
    "PKG-INFO": _of_metadata,
}
