"""The folder of a dataset that is written to an object store; see `jax_diversity.foundation.mirror`.

The store always has the files of its manifest. Files of new stages are written first, then the manifest that lists
them, then files that it does not list any more are deleted. A stage whose files are replaced leaves the manifest
before.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import (
    FORMAT_VERSION,
    PARTIAL,
    RECORD,
    Fault,
    OutputFolder,
    file_hash,
    form,
    is_temporary,
    json_text,
    manifest_files,
    parse_manifest,
    signed,
    stamp,
    write_text,
)
from jax_diversity.foundation.executors import Executor
from jax_diversity.foundation.folders import inside
from jax_diversity.foundation.jobs import Job, Work, read_done, recorded_files
from jax_diversity.foundation.mirror import Lease, Mirror, mirror_of, scratch_folder
from jax_diversity.foundation.object_store import is_address

_MANIFEST = "manifest.json"
_LARGEST_COPY = 5 * 10**9  # S3 does not copy larger objects in one request


def open_folder(out: str | Path) -> OutputFolder:
    """Open the folder of a dataset, or its address on an object store.

    Raises:
        UserError: this version cannot read the manifest, or the store gives no access.
    """
    return MirroredFolder(str(out)) if is_address(out) else OutputFolder(out)


class MirroredFolder(OutputFolder):
    """The folder of a dataset at an address; `root` is its scratch folder."""

    def __init__(self, address: str) -> None:
        root = scratch_folder(address)
        mirror = mirror_of(root)
        assert mirror is not None
        self.mirror: Mirror = mirror
        self._sizes: dict[str, int] | None = None
        self._lease: Lease | None = None
        self._uploaded: dict[str, str] = {}  # objects of the running stage -> SHA-256
        self._pushed: dict[str, Any] = {}  # files that no job wrote, as they were when they were uploaded
        self._content: bytes | None = None  # the manifest in the store
        self._stored: dict[str, dict[str, Any]] = {}  # the files of the manifest in the store
        super().__init__(root)

    def _read_manifest(self) -> dict[str, Any]:
        self._content = self.mirror.store.find(_MANIFEST)
        if self._content is None:
            manifest: dict[str, Any] = {"format_version": FORMAT_VERSION, "stages": {}}
        else:
            manifest = parse_manifest(self._content, f"{self.mirror.store.address}/{_MANIFEST}")
        self._stored = _all_files(manifest)
        return manifest

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the scratch folder and the address for writing; see `Lease`."""
        with super().lock():
            self._lease = Lease(self.mirror)
            with self._lease.held():
                self.manifest = self._read_manifest()  # another build may have ended just before
                self._sizes, self._uploaded, self._pushed = self.mirror.store.sizes(), {}, {}
                path = inside(self.root, _MANIFEST)
                if self._content is None:
                    path.unlink(missing_ok=True)
                else:
                    write_text(path, self._content.decode())
                yield

    def missing_files(self, stage: str) -> Iterator[Fault]:
        """Yield a finished stage's files that the store does not have, or has with another size."""
        if self._sizes is None:
            self._sizes = self.mirror.store.sizes()
        for name, about in self.stages[stage]["files"].items():
            if (size := self._sizes.get(name)) != about["bytes"]:
                found = "no such object" if size is None else f"{size} bytes"
                yield Fault(name, f"{about['bytes']} bytes", found)

    def partial(self, stage: str, key: str, *, resume: bool) -> Path:
        """See `OutputFolder.partial`. An empty folder is filled from the store: another machine may have begun."""
        folder = super().partial(stage, key, resume=resume)
        if resume and not any(folder.iterdir()):
            self._restore(folder)
        return folder

    def _restore(self, folder: Path) -> None:
        start = f"{self.mirror.name(folder)}/"
        listed = self.mirror.store.sizes(start)
        # In one step: a folder with a part of the files would look like one that was never here.
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="restored-") as temporary:
            new = Path(temporary) / folder.name
            new.mkdir()
            for name, size in listed.items():
                path = inside(new, name.removeprefix(start))
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    file.writelines(self.mirror.store.pieces(name, size))
            for record in new.rglob(f"*{RECORD}"):
                done = read_done(str(record)[: -len(RECORD)])
                paths = [(record.with_name(file), about) for file, about in (done.files if done else {}).items()]
                # A job whose files are damaged runs again. Files that later jobs have deleted are absent.
                if any(path.is_file() and file_hash(path) != about["sha256"] for path, about in paths):
                    record.unlink()
            folder.rmdir()
            os.rename(new, folder)

    def remove_partials(self, stage: str, kept: Path | None = None) -> None:
        """Remove the partial folders of a stage, but for one, also in the store."""
        super().remove_partials(stage, kept)
        start = f"{PARTIAL}/{stage.replace('/', '-')}-"
        for name in self.mirror.store.sizes(PARTIAL):
            folder = "/".join(name.split("/")[:2])
            is_of_stage = folder.startswith(start) and len(folder) == len(start) + 16
            if is_of_stage and (kept is None or folder != self.mirror.name(kept)):
                self.mirror.store.delete(name)
                self._uploaded.pop(name, None)

    def remembered(self, stage: str) -> Mapping[str, Any] | None:
        """See `OutputFolder.remembered`; the file is fetched."""
        about = super().remembered(stage)
        if about is not None:
            self.mirror.fetch(about["file"], about)
        return about

    def withdraw(self, stage: str, remembered: str = "") -> None:
        """See `OutputFolder.withdraw`."""
        if remembered and not any(self.missing_files(stage)):
            self.mirror.fetch(remembered, self.stages[stage]["files"][remembered])
        super().withdraw(stage, remembered)

    def write_manifest(self) -> None:
        """Write the files that are new in the manifest to the store, then the manifest, here and there."""
        assert self._sizes is not None
        assert self._lease is not None
        store, files = self.mirror.store, _all_files(self.manifest)
        new = [name for name, about in files.items() if self._stored.get(name, {}).get("sha256") != about["sha256"]]
        uploaded = {sha: name for name, sha in self._uploaded.items()}
        copied = {
            name: uploaded[sha]
            for name in new
            if (sha := files[name]["sha256"]) in uploaded and files[name]["bytes"] <= _LARGEST_COPY
        }
        for name, source in copied.items():
            store.copy(source, name)
        self.mirror.push([name for name in new if name not in copied])
        self._sizes |= {name: files[name]["bytes"] for name in new}
        self._lease.check()
        content = json_text(signed(self.manifest)).encode("utf-8", errors="backslashreplace")
        store.put(_MANIFEST, content)
        super().write_manifest()
        # Files of the former manifest, and files of a build that was killed before it wrote its manifest.
        forms = {form(name) for name in new}
        stale = self._stored.keys() | {name for name in self._sizes if form(name) in forms}
        for name in stale - files.keys():
            store.delete(name)
            self._sizes.pop(name, None)
        self._stored = files

    def begin_map(self) -> None:
        """Make the files of the stage that runs equal in the store: jobs on other hosts read them."""
        folder, mirror = inside(self.root, PARTIAL), self.mirror
        listed = mirror.store.sizes(PARTIAL)
        paths = [path for path in folder.rglob("*") if path.is_file() and not is_temporary(path)]
        of_jobs = {path for path, _ in recorded_files(folder)}
        names, mirror.plain = [], {}
        for path in paths:
            name = mirror.name(path)
            if path in of_jobs or path.name.endswith(RECORD):
                if name not in listed:
                    names.append(name)
                continue
            mirror.plain[name] = {"bytes": path.stat().st_size, "sha256": file_hash(path)}
            if self._pushed.get(name) != stamp(path):
                names.append(name)
                self._pushed[name] = stamp(path)
            self._uploaded[name] = mirror.plain[name]["sha256"]
        # A record that is not here was deleted with its files, for example since they were made with other inputs.
        for name in listed:
            if name.endswith(RECORD) and not (self.root / name).exists():
                mirror.store.delete(name)
        for is_record in (False, True):
            mirror.push([name for name in names if name.endswith(RECORD) == is_record])

    def note_job(self, name: str) -> None:
        """Note the objects of a finished job: the store copies them when the stage publishes them."""
        done = read_done(name)
        for file, about in (done.files if done else {}).items():
            self._uploaded[self.mirror.name(Path(name).with_name(file))] = about["sha256"]


class MirroringExecutor:
    """Runs the jobs of a stage whose files are kept in an object store."""

    def __init__(self, inner: Executor, folder: MirroredFolder) -> None:
        self._inner, self._folder = inner, folder

    def map(self, work: Work, jobs: Sequence[Job]) -> Iterator[Any]:
        """See `Executor.map`."""
        self._folder.begin_map()
        for (name, _), result in zip(jobs, self._inner.map(work, jobs), strict=True):
            if not work.is_passing:
                self._folder.note_job(name)
            yield result


def _all_files(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    remembered = manifest.get("remembered", {})
    return manifest_files(manifest) | {about["file"]: about for about in remembered.values()}
