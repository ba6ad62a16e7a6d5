"""The installed Python packages as a corpus that exists on every machine.

There are four kinds of documents: the source of modules, their docstrings (one document per module), the READMEs of
packages, and licences. If only a part is needed, it is chosen by a hash of the documents' ids. So the same packages
give the same part on every machine, every package has its share, and only the chosen files are read.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import importlib.metadata
import json
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from jax_diversity.foundation.checks import number_in_data
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.files import InputFile
from jax_diversity.preparation.readers.records import Found, Place, Problem, converted
from jax_diversity.schema import Document

MIN_CHARACTERS = 200
MAX_FILE_BYTES = 400_000
_LONGEST_ROW = 10_000
_SKIPPED_FOLDERS = {"test", "tests", "_tests"}
_LICENCE_NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE")
# The share of docstrings in the size of source files, measured on about 600 modules. With it we estimate sizes without
# reading files.
_DOCSTRING_SHARE = 0.2


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    distribution: importlib.metadata.Distribution
    message: Any
    name: str

    @property
    def version(self) -> str:
        """The version that the package states."""
        return self.message.get("Version") or "unknown"

    @cached_property
    def files(self) -> list[tuple[str, int]]:
        """Installed files below site-packages with their sizes in bytes, sorted by path."""
        # RECORD contains the sizes, so we read no other file. Paths outside of site-packages begin with `..`.
        record = self.distribution.read_text("RECORD")
        if record is not None:
            rows = ((row[0], number_in_data(row[2])) for row in record_rows(record) if len(row) == 3)
            sizes = {path: size for path, size in rows if size is not None}
        else:  # old installations, and packages of Linux distributions
            paths = {str(path): str(self.distribution.locate_file(path)) for path in self.distribution.files or ()}
            sizes = {path: os.path.getsize(at) if os.path.exists(at) else 0 for path, at in paths.items()}
        return sorted((path, size) for path, size in sizes.items() if not path.startswith(("..", "/")))

    @cached_property
    def readme(self) -> str:
        """The long description; empty if there is none."""
        # New metadata have the description in the payload, old metadata in a field.
        payload = self.message.get_payload()
        text = self.message.get("Description") or (payload if isinstance(payload, str) else "")
        return "" if text.strip() == "UNKNOWN" else text

    @cached_property
    def about(self) -> dict[str, object]:
        """Version, summary and topics, as the package states them."""
        classifiers = self.message.get_all("Classifier") or []
        topics = sorted(name.removeprefix("Topic :: ") for name in classifiers if name.startswith("Topic :: "))
        return {"version": self.version, "summary": self.message.get("Summary"), "topics": topics}


class PackageText(NamedTuple):
    """A document that may be chosen, with its estimated length."""

    package: Package
    kind: Literal["source", "docstrings", "readme", "licence"]
    path: str
    text_bytes: int

    @property
    def id(self) -> str:
        """The id, which is equal on every machine."""
        return f"{self.package.name}/{self.kind}/{self.path}".rstrip("/")


def record_rows(record: str) -> Iterator[list[str]]:
    """Yield the rows of a package's RECORD (path, hash, size). Lines that are too long for a path are left out."""
    for line in record.splitlines():
        if 0 < len(line) <= _LONGEST_ROW:
            yield from csv.reader([line])  # each line separately, so that an unclosed quote ends with its line


def find_packages() -> list[Package]:
    """Find the installed distributions, sorted by name. Of several versions, the first on the path is used."""
    packages: dict[str, Package] = {}
    # We access `metadata` only once and store the result in `message`: the property parses the file at every access.
    for distribution in importlib.metadata.distributions():
        try:
            message: Any = distribution.metadata
        except UnicodeDecodeError:
            continue
        if not message or not message.get("Name"):  # a folder that remains after a broken uninstall
            continue
        name = re.sub(r"[-_.]+", "-", message["Name"]).lower()  # PEP 503
        # Files of this package and of editable installs change between builds.
        if name != "jax-diversity" and not _is_editable(distribution) and not _is_carried(distribution):
            packages.setdefault(name, Package(distribution, message, name))
    return [packages[name] for name in sorted(packages)]


def select_documents(max_bytes: int | None) -> list[PackageText]:
    """Return the documents to read, sorted by package, kind and path.

    With `max_bytes`, we choose one document of every package, then more documents by the hash of their ids, until the
    sum of the estimated sizes reaches `max_bytes`.
    """
    candidates = [candidate for package in find_packages() for candidate in _candidates(package)]
    if max_bytes is not None:
        candidates = _choose(candidates, max_bytes)
    return sorted(candidates, key=lambda candidate: (candidate.package.name, candidate.kind, candidate.path))


def read_python_environment(max_bytes: int | None, advance: Advance) -> Found:
    """Read documents with about `max_bytes` of text, or all documents. `advance` gets the estimated text bytes."""
    for candidate in select_documents(max_bytes):
        path = Path(str(candidate.package.distribution.locate_file(candidate.path)))
        place = Place(InputFile(str(path), candidate.id), None)
        document = converted(_read, candidate, path)
        if document is not None:
            yield place, document
        advance(candidate.text_bytes)


def _read(candidate: PackageText, path: Path) -> Document | Problem | None:
    """Read a document; None if it is too short."""
    try:
        text = _text(candidate, path)
    except UnicodeDecodeError as error:
        return Problem.of_unicode(error)
    except OSError as error:  # for example, the file is listed but was deleted
        return Problem("num_broken_records", f"unreadable: {error.strerror}")
    return _document(candidate, text) if len(text) >= MIN_CHARACTERS else None


def _candidates(package: Package) -> Iterator[PackageText]:
    readme_bytes = len(package.readme.encode("utf-8", "replace"))
    if readme_bytes >= MIN_CHARACTERS:
        yield PackageText(package, "readme", "", readme_bytes)
    for path, size in package.files:
        parts = PurePosixPath(path).parts
        if not MIN_CHARACTERS <= size <= MAX_FILE_BYTES or _SKIPPED_FOLDERS.intersection(parts[:-1]):
            continue
        if parts[0].endswith((".dist-info", ".egg-info")):
            if parts[-1].upper().startswith(_LICENCE_NAMES):
                yield PackageText(package, "licence", path, size)
        elif path.endswith(".py"):
            yield PackageText(package, "source", path, size)
            yield PackageText(package, "docstrings", path, int(size * _DOCSTRING_SHARE))


def _choose(candidates: list[PackageText], max_bytes: int) -> list[PackageText]:
    # We choose by hash and not at random, so that a further package does not change the choice in other packages.
    by_hash = sorted(candidates, key=lambda candidate: hashlib.blake2b(candidate.id.encode()).digest())
    firsts = {candidate.package.name: candidate for candidate in reversed(by_hash)}
    chosen, total = [], 0
    # The sort is stable: the first document of every package comes before all others, each in the order of the hashes.
    for candidate in sorted(by_hash, key=lambda candidate: candidate is not firsts[candidate.package.name]):
        if total >= max_bytes:
            break
        chosen.append(candidate)
        total += candidate.text_bytes
    return chosen


def _text(candidate: PackageText, path: Path) -> str:
    if candidate.kind == "readme":
        return candidate.package.readme
    text = path.read_bytes().decode("utf-8-sig")
    return _docstrings(text, _module_name(candidate.path)) if candidate.kind == "docstrings" else text


def _docstrings(source: str, module: str) -> str:
    """Return a module's docstrings, each after its dotted name; empty if the source is not valid in this Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the source may contain invalid escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return "\n\n".join(f"{name}\n\n{text}" for name, text in _walk_docstrings(tree, module))


def _walk_docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[tuple[str, str]]:
    if docstring := ast.get_docstring(node):
        yield name, docstring
    # Functions inside functions are left out: they are not part of an interface.
    for child in node.body if isinstance(node, ast.Module | ast.ClassDef) else ():
        named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if named and not child.name.startswith("_"):
            yield from _walk_docstrings(child, f"{name}.{child.name}")


def _document(candidate: PackageText, text: str) -> Document:
    package, path = candidate.package, candidate.path
    titles = {"readme": f"{package.name} README", "licence": f"{package.name} {PurePosixPath(path).name}"}
    return Document(
        id=candidate.id,
        text=text,
        source=package.name,
        language="code:python" if candidate.kind == "source" else "en",
        title=titles.get(candidate.kind) or _module_name(path),
        metadata={"kind": candidate.kind, **package.about},
    )


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_carried(distribution: importlib.metadata.Distribution) -> bool:
    """Whether a distribution lies in a folder of another package.

    When Ray is imported, it adds such a folder to the path. The corpus should not depend on what was imported.
    """
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return not installed.isdisjoint(Path(str(distribution.locate_file(""))).resolve().parents)


def _is_editable(distribution: importlib.metadata.Distribution) -> bool:
    try:  # PEP 610
        return bool(json.loads(distribution.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):  # not JSON, or JSON without objects
        return False
