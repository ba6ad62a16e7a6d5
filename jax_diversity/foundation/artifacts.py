"""Write the folder of a dataset: atomic artifacts with fingerprints and hashes, one writer at a time.

An artifact is written into a *partial* folder, flushed to disk, then renamed into place, and only then entered
in `manifest.json`. After a kill at any moment the next build finds either the whole artifact, or a partial folder whose
finished files it can keep (the folder's name contains the fingerprint of the settings and inputs). Nothing in an
artifact or in the manifest depends on time: an interrupted build gives the same bytes as an uninterrupted one.

The manifest contains the SHA-256 of every file and of itself. Before a process first reads a file, it compares the file
with its hash (`is_as_written`) and raises if they differ. Otherwise artifacts made from a damaged file would have valid
hashes.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.folders import as_path, inside, refuse_links
from jax_diversity.foundation.locks import lock, locked

if TYPE_CHECKING:
    import numpy as np

FORMAT_VERSION = 1
NO_ARRAY = (OSError, ValueError, EOFError, OverflowError, TypeError, SyntaxError, TokenError)
"""The exceptions that NumPy raises for damaged files, including those of Python's parser, which reads the headers."""
PARTIAL = ".partial"
"""The folder in a dataset's folder for the files of unfinished stages."""
_TEMPORARY = ".tmp"
_REMEMBERED = "earlier"
_IS_TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.tmp\Z")
PIECE_BYTES = 2**23
"""The size of a piece of a large array: 2^20 positions of an ordering. The manifest has a SHA-256 of every piece, so
that a process that reads a part of the array checks this part alone."""
RECORD = ".done.json"
"""The ending of the records of jobs (see `jax_diversity.foundation.jobs`), which are not published."""
CACHE = ".cache"
"""The folder in a dataset's folder for files that only save time."""
_checked: dict[str, tuple[Any, ...]] = {}
"""Files whose content this process has compared with a hash: path -> the file's stamp (`stamp`) and hash."""


def fingerprint(*parts: Any) -> str:
    """Return the SHA-256 of values that can be written as JSON."""
    # Keys are sorted, so the hash does not depend on the order of a dataclass's fields.
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_hash(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file, which is read in pieces; `advance` is called with the number of bytes read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            if advance is not None:
                advance(len(piece))
    return digest.hexdigest()


def describe_file(path: Path) -> dict[str, Any]:
    """Return a file's entry in the manifest: its size, its SHA-256, and the SHA-256 of each piece of a large array."""
    digest, pieces = hashlib.sha256(), list[str]()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            pieces.append(hashlib.sha256(piece).hexdigest())
    description = {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}
    return description | {"pieces": pieces} if path.suffix == ".npy" and len(pieces) > 1 else description


def stamp(path: str | Path) -> list[int]:
    """Values that change when a file is written or replaced, even if its time of modification is set back."""
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def is_as_written(path: Path, about: Mapping[str, Any]) -> bool:
    """Whether a file has the SHA-256 of its entry in the manifest.

    A process hashes a file once (about a second per gigabyte), and again only if the file has changed.
    """
    stamp_and_hash = (stamp(path), about["sha256"])
    if _checked.get(str(path)) != stamp_and_hash:
        if file_hash(path) != about["sha256"]:
            return False
        _checked[str(path)] = stamp_and_hash
    return True


def note_hash(path: Path, sha256: str) -> None:
    """Note the hash of a file that this process has computed while it wrote the file; see `is_as_written`."""
    _checked[str(path)] = (stamp(path), sha256)


class HashMemory:
    """Compute the SHA-256 of files, again only for files whose size or times differ from the JSON file `cache`.

    If the cache is lost or damaged, all hashes are computed again. If `cache` is None, no hash is stored.
    """

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._remembered, self._known = dict[str, Any](), dict[str, Any]()
        if cache is not None:
            with suppress(OSError, ValueError, TypeError):  # TypeError: JSON, but not an object
                self._remembered = dict(json.loads(cache.read_text(encoding="utf-8")))

    def hash(self, path: str | Path) -> str:
        """The hash of a file's bytes."""
        path = os.path.abspath(path)
        now = stamp(path)
        remembered = self._remembered.get(path)
        if not isinstance(remembered, dict) or remembered.get("stamp") != now or "sha256" not in remembered:
            remembered = {"stamp": now, "sha256": file_hash(Path(path))}
        self._known[path] = remembered
        return remembered["sha256"]

    def save(self) -> None:
        """Write the hashes that `hash` returned; all other hashes are removed from the cache."""
        if self._cache is not None and self._known != self._remembered:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._cache, self._known)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; renamed to `path` when the block ends, removed after an error."""
    temporary, handle = _open_temporary(as_path("the file", path))
    try:
        yield temporary
        # The content is flushed first, then the name: after a power failure a file of this name is always complete.
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`; it is renamed to `path` when the block ends, and removed after an error."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            _flush(file)
        os.rename(temporary, path)
        _flush(path.parent)
    except BaseException:
        shutil.rmtree(temporary)
        raise


def _open_temporary(path: Path) -> tuple[Path, int]:
    """A new, empty file with a unique name beside `path`, and a descriptor that holds a lock on it."""
    while True:
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
        try:
            # O_EXCL: a link that was put there is not followed, and two writers never share a file.
            handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"Expected a folder at {path.parent}, found none; make it, or name another file.") from None
        lock(handle)
        # Between these two calls another process may have removed the file as a leftover.
        if os.fstat(handle).st_nlink:
            return temporary, handle
        os.close(handle)


def is_temporary(path: Path) -> bool:
    """Whether a file has the name of an unfinished file."""
    return path.name.endswith(_TEMPORARY)


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove the temporary files of killed writers; the files of running writers are locked and are kept.

    `name`: the final name of the files, without the temporary suffix.
    """
    for leftover in folder.glob(f"{name if name == '*' else glob.escape(name)}.*{_TEMPORARY}"):
        if not _IS_TEMPORARY.search(leftover.name):
            continue
        with suppress(OSError):  # removed by another process
            handle = os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if lock(handle, wait=False):  # otherwise its writer runs
                    leftover.unlink()
            finally:
                os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    with atomic_path(path) as temporary:
        # File names that are not UTF-8 contain lone surrogates, which JSON writes as escapes.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_array(path: Path, values: np.ndarray) -> None:
    """Write a .npy file atomically."""
    import numpy as np

    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, values)


def read_array(path: Path, stage: str, *, mmap: bool = False) -> np.ndarray:
    """Read or map an array of `write_array`; if the file is absent or damaged, the `UserError` names the stage."""
    import numpy as np

    try:
        # Unlike np.load, open_memmap refuses archives, and compares shape and file size before it allocates memory.
        mapped = np.lib.format.open_memmap(path, mode="r")
        return mapped if mmap else np.array(mapped)
    except FileNotFoundError:
        raise UserError(f"Expected an array at {path}, found no such file; run `jax-diversity {stage}`.") from None
    except NO_ARRAY as error:
        raise UserError(f"{path} is damaged ({in_one_line(error)}); run `jax-diversity {stage}` again.") from None


def copy_file(source: Path, target: Path) -> None:
    """Copy a file atomically."""
    with atomic_path(target) as temporary:
        shutil.copyfile(source, temporary)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys sorted."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """The text of a JSON file, keys sorted."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def read_json(path: Path, stage: str) -> Any:
    """Read a file of `write_json`; if the file is damaged, the `UserError` names the stage."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); run `jax-diversity {stage}` again.") from None


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)  # flushing a folder makes the renames in it permanent
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Fault:
    """A stored file that is missing or damaged."""

    file: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.file}: expected {self.expected}, found {self.found}"


def parse_manifest(content: bytes, where: str) -> dict[str, Any]:
    """The manifest in a file's bytes; a `UserError` if it is damaged, edited or of a newer format.

    Stages replace and delete the files that a manifest names, so all names must be inside the dataset's folder.
    """
    try:
        manifest = json.loads(content)
        version = int(manifest["format_version"])
        if version <= FORMAT_VERSION:  # a newer format may contain anything; it is refused below
            if manifest["sha256"] != fingerprint(_unsigned(manifest)):
                raise ValueError("its content does not have its own SHA-256, so it was changed after it was written")
            if not isinstance(manifest.get("settings", {}), dict):
                raise ValueError("its settings are not a mapping")
            for entry in manifest["stages"].values():
                if not (isinstance(entry["fingerprint"], str) and isinstance(entry["summary"], str)):
                    raise ValueError("a stage's fingerprint or summary is not a text")
                _ = dict(entry["inputs"])
                entry["counts"] = _Counts(entry["counts"].items())
            for name, description in manifest_files(manifest).items():
                path = PurePosixPath(name.encode().decode())  # encoding a lone surrogate raises a ValueError
                if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
                    raise ValueError(f"it names a file outside its folder, {name!r}")
                if not isinstance(description["bytes"], int) or not re.fullmatch("[0-9a-f]{64}", description["sha256"]):
                    raise ValueError(f"it has no size and SHA-256 of {name!r}")
                pieces = description.get("pieces", [])
                num_pieces = -(-description["bytes"] // PIECE_BYTES)
                if pieces and (len(pieces) != num_pieces or not all(re.fullmatch("[0-9a-f]{64}", it) for it in pieces)):
                    raise ValueError(f"it does not have the SHA-256 of every piece of {name!r}")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else in_one_line(error)
        raise UserError(
            f"{where} is not a dataset's manifest ({reason}); restore it, or delete it and build again."
        ) from None
    if version > FORMAT_VERSION:
        raise UserError(
            f"{where} was written in format {version}, this version reads up to {FORMAT_VERSION}; "
            "upgrade jax-diversity."
        )
    return manifest


class _Counts(dict[str, Any]):
    """The counts of a finished stage; an absent count is a `UserError`."""

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"Expected {name!r} among the counts of every stage in manifest.json, found no such count; restore the "
            "file, or delete it and build again."
        )


def manifest_files(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The files of all stages: name -> bytes, sha256."""
    return {name: description for entry in manifest["stages"].values() for name, description in entry["files"].items()}


def signed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with its own SHA-256, which `parse_manifest` checks."""
    content = _unsigned(manifest)
    # The hash is of the content after a round trip through JSON: integer keys become strings, which sort differently.
    return {**content, "sha256": fingerprint(json.loads(json.dumps(content)))}


def _unsigned(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in manifest.items() if name != "sha256"}


class OutputFolder:
    """The folder of one dataset and its manifest; raises a `UserError` if this version cannot read the manifest."""

    def __init__(self, root: str | Path) -> None:
        self.root = as_path("the dataset's folder", root)
        if self.root.exists() and not self.root.is_dir():
            raise UserError(f"Expected a folder for the dataset, found a file at {self.root}; name another folder.")
        self.manifest = self._read_manifest()

    def _read_manifest(self) -> dict[str, Any]:
        path = inside(self.root, "manifest.json")
        if not path.exists():
            return {"format_version": FORMAT_VERSION, "stages": {}}
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"Expected a dataset's manifest at {path}, found: {error.strerror}.") from None
        return parse_manifest(content, str(path))

    @property
    def stages(self) -> Mapping[str, Any]:
        """Finished stages: name -> fingerprint, settings, counts and files."""
        return self.manifest["stages"]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for writing; the operating system releases the lock when the process ends."""
        with locked(self.root):
            # Another process may have changed the manifest before this process got the lock.
            self.manifest = self._read_manifest()
            for folder in (self.root, inside(self.root, CACHE)):
                remove_leftovers(folder)
            yield

    def is_current(self, stage: str, stage_fingerprint: str) -> bool:
        """Whether the stage is finished for this fingerprint and all its files exist with the right size."""
        # Hashes are not compared: a build that has nothing to do should not read the whole dataset; only `verify` does.
        entry = self.stages.get(stage)
        return entry is not None and entry["fingerprint"] == stage_fingerprint and not any(self.missing_files(stage))

    def missing_files(self, stage: str) -> Iterator[Fault]:
        """Yield a finished stage's files that are missing or have another size."""
        for name, description in self.stages[stage]["files"].items():
            path = inside(self.root, name)
            if not path.is_file():
                yield Fault(name, f"{description['bytes']} bytes", "no such file")
            elif path.stat().st_size != description["bytes"]:
                yield Fault(name, f"{description['bytes']} bytes", f"{path.stat().st_size} bytes")

    def verify(self, advance: Callable[[int], None] | None = None) -> list[Fault]:
        """Compare every stored file with the manifest: whether it exists, its size and its SHA-256."""
        faults = []
        for stage, entry in self.stages.items():
            missing = {fault.file: fault for fault in self.missing_files(stage)}
            faults.extend(missing.values())
            for name, description in entry["files"].items():
                if name not in missing and (present := file_hash(self.root / name, advance)) != description["sha256"]:
                    faults.append(Fault(name, f"sha256 {description['sha256']}", f"sha256 {present}"))
        return faults

    def partial(self, stage: str, key: str, *, resume: bool) -> Path:
        """The folder to write a stage's files into; `key` is a hash of everything that determines their bytes.

        Folders of runs with other keys are removed. `resume` keeps the finished files of a run with the same key.
        """
        folder = refuse_links(self.root, PARTIAL) / f"{stage.replace('/', '-')}-{key[:16]}"
        self.remove_partials(stage, folder if resume else None)
        folder.mkdir(parents=True, exist_ok=True)
        for subfolder in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            remove_leftovers(subfolder)  # a worker on another machine may be writing
        return folder

    def remove_partials(self, stage: str, kept: Path | None = None) -> None:
        """Remove the partial folders of a stage, but for one."""
        start, partials = stage.replace("/", "-"), refuse_links(self.root, PARTIAL)
        for other in partials.glob(f"{start}-*"):
            # `order/long` and `order/long-2` have a common beginning, so the whole name is compared.
            if re.fullmatch(f"{re.escape(start)}-[0-9a-f]{{16}}", other.name) and other != kept:
                shutil.rmtree(other)
        with suppress(OSError):  # there is none, or it has folders of other stages
            partials.rmdir()

    def publish(
        self,
        stage: str,
        partial: Path,
        destination: str,
        entry: Mapping[str, Any],
        *,
        owns_folder: bool,
        known: Mapping[Path, Mapping[str, Any]] | None = None,
    ) -> None:
        """Put a finished partial folder in place and enter it in the manifest.

        The stage has no entry in the manifest while its files are replaced, so that a kill cannot leave a wrong entry.
        `entry` is the rest of the stage's entry in the manifest; `owns_folder` also removes the files of an unfinished
        run, whose names differ from the new files' names only in numbers. `known` has the sizes and hashes of files
        that jobs have written; these files are not hashed again.

        Raises:
            UserError: a file of a job is absent or has another size.
        """
        refuse_links(partial)
        # A process of another host that was killed leaves temporary files, which do not belong to the stage.
        written_paths = (path for path in partial.rglob("*") if path.is_file() and not is_temporary(path))
        paths = sorted(path for path in written_paths if not path.name.endswith(RECORD))
        names = sorted(str(path.relative_to(partial)) for path in paths)
        known = known or {}
        for path, description in known.items():
            num_bytes = path.stat().st_size if path.is_file() else None
            if num_bytes != description["bytes"]:
                raise UserError(
                    f"Expected {description['bytes']} bytes in {path}, which a finished job wrote, found "
                    f"{'no such file' if num_bytes is None else num_bytes}; run the same command again, which "
                    "repeats this job."
                )
        files = {}
        for name in names:
            path = partial / name
            _flush(path)
            files[str(Path(destination) / name)] = dict(known.get(path) or describe_file(path))
        for name in (*files, *self.stages.get(stage, {"files": ()})["files"]):
            inside(self.root, name)
        # The previous artifact is complete up to this line. From here on the stage is unfinished.
        previous = self._remove_entry(stage)
        target = self.root / destination
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial / name, target / name)
            # These hashes are new: later stages of this process need not compute them again.
            note_hash(target / name, files[str(Path(destination) / name)]["sha256"])
        # Files of the previous artifact that the new artifact lacks, for example if it has fewer document files.
        stale = set(previous)
        if owns_folder:
            forms = {form(name) for name in files}
            folders = {(self.root / name).parent for name in files}
            beside = (path for folder in folders for path in folder.iterdir() if path.is_file())
            stale |= {name for path in beside if form(name := path.relative_to(self.root).as_posix()) in forms}
        for name in stale - files.keys():
            inside(self.root, name).unlink(missing_ok=True)
        for folder in {(target / name).parent for name in names}:
            _flush(folder)  # the names reach the disk before the manifest that lists them
        self.manifest["stages"][stage] = {**entry, "files": files}
        self.write_manifest()
        named = {description["file"] for description in self.manifest.get("remembered", {}).values()}
        for path in (self.root / _REMEMBERED).glob("*"):
            if path.is_file() and path.relative_to(self.root).as_posix() not in named:
                inside(self.root, _REMEMBERED, path.name).unlink(missing_ok=True)
        with suppress(OSError):  # the stage is finished; the next build removes what is left
            self.remove_partials(stage)

    def withdraw(self, stage: str) -> None:
        """Remove the files of a stage, then its entry: after a kill in between, `is_current` is False."""
        paths = [inside(self.root, name) for name in self.stages[stage]["files"]]
        for path in paths:
            with suppress(FileNotFoundError):
                os.lstat(path)  # a name that cannot exist is an error before anything is changed
        for path in paths:
            path.unlink(missing_ok=True)
        self._remove_entry(stage)

    def remember(self, stage: str, name: str) -> None:
        """Keep a copy of a stage's file in the folder under another name, for later runs of the stage.

        The manifest changes in memory only: if the stage is not made again, its earlier fingerprint still holds. A file
        that is absent or incomplete is not kept.
        """
        entry = self.stages[stage]
        if (description := entry["files"].get(name)) is None or any(
            fault.file == name for fault in self.missing_files(stage)
        ):
            return
        # The name has the file's hash: the copy never replaces the one that the manifest still names.
        kept = f"{_REMEMBERED}/{description['sha256'][:16]}-{Path(name).name}"
        inside(self.root, kept).parent.mkdir(exist_ok=True)
        copy_file(inside(self.root, name), inside(self.root, kept))
        self.manifest["remembered"] = self.manifest.get("remembered", {}) | {
            stage: {"file": kept, "config": entry["config"], **description}
        }

    def remembered(self, stage: str) -> Mapping[str, Any] | None:
        """The kept file of a stage: `file` (its name), `bytes`, `sha256` and the stage's `config` at that time."""
        return self.manifest.get("remembered", {}).get(stage)

    def _remove_entry(self, stage: str) -> Mapping[str, Any]:
        """Take a stage out of the manifest; returns its files."""
        entry = self.manifest["stages"].pop(stage, None)
        if entry is None:
            return {}
        self.write_manifest()
        return entry["files"]

    def write_manifest(self) -> None:
        """Write the manifest as it is in memory, with its own SHA-256."""
        write_text(self.root / "manifest.json", json_text(signed(self.manifest)))


def form(name: str) -> str:
    """A file's name without its digits, because numbers in names are numbers of files, clusters or documents."""
    return re.sub("[0-9]+", "0", name)
