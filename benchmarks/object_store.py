"""Count the requests and bytes of builds whose out is an address, against the bytes of the dataset.

    python benchmarks/object_store.py 'texts/*.gz' [--write]

The store is a folder behind fsspec's protocol `local`: the counts are those of any store, the times are not. Three
builds of one corpus: by one host; by one host that loses its scratch folder after half of the PUTs; by two hosts that
share only the store. Files of documents have 1 MB of text, so that there are jobs to share. Requests of leases and of
the hosts' signs depend on the time and are counted apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import results_file

KINDS = {"write": "PUT", "read": "GET", "copy": "COPY", "delete": "DELETE", "_size": "HEAD", "sizes": "LIST"}


class Requests:
    """The requests of this process, by kind, and their bytes."""

    def __init__(self) -> None:
        from jax_diversity.foundation.object_store import ObjectStore

        self.counts: Counter[str] = Counter()
        self.left = float("inf")
        for method, kind in KINDS.items():
            setattr(ObjectStore, method, self._counted(getattr(ObjectStore, method), kind))

    def _counted(self, method: Any, kind: str) -> Any:
        def request(store: Any, *given: Any, **more: Any) -> Any:
            found = method(store, *given, **more)
            name = str(given[0]) if given else ""
            if name.startswith((".lease", ".shards")):
                self.counts["signs of life"] += 1
                return found
            self.counts[kind] += 1
            if kind == "PUT":
                content = given[1]
                size = content.stat().st_size if isinstance(content, Path) else len(content)
                self.counts["PUT bytes"] += size
                self.left -= 1
                if self.left < 0:
                    os._exit(9)
            elif kind == "GET":
                self.counts["GET bytes"] += len(found)
            return found

        return request


def build(settings: Path, shard: str | None, left: float) -> None:
    """Build, or do the jobs of another host, and print the counts."""
    from jax_diversity.foundation.settings import settings_from_plain
    from jax_diversity.pipeline.build import Build
    from jax_diversity.pipeline.execution import ExecutionConfig, executing, follow_build
    from jax_diversity.pipeline.settings import BuildConfig

    config = settings_from_plain(BuildConfig, json.loads(settings.read_text()))
    requests, execution = Requests(), ExecutionConfig(processes=1, shard=shard)
    requests.left = left
    start = time.perf_counter()
    if execution.place()[0]:
        follow_build(config, execution)
    else:
        with executing(config, execution) as executor:
            Build(config, executor=executor).run_all()
    print(json.dumps({**requests.counts, "seconds": round(time.perf_counter() - start, 1)}))


def start(folder: Path, out: str, scratch: str, corpus: list[str], *more: str) -> subprocess.Popen[str]:
    """Start a build in a process with its own scratch folder."""
    from jax_diversity.corpus.settings import CorpusConfig
    from jax_diversity.pipeline.settings import BuildConfig

    settings = folder / "settings.json"
    config = BuildConfig(out=out, corpus=CorpusConfig(paths=tuple(corpus), file_bytes=2**20))
    settings.write_text(json.dumps(dataclasses.asdict(config)))
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / scratch), "FSSPEC_LOCAL_AUTO_MKDIR": "1"}
    command = [sys.executable, __file__, *corpus, "--settings", str(settings), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def counts(process: subprocess.Popen[str]) -> dict[str, float]:
    """The counts that a process prints in the end; none if it was killed."""
    said = process.communicate()[0]
    return json.loads(said.splitlines()[-1]) if said.strip() else {}


def total(*each: dict[str, float]) -> dict[str, float]:
    """The sum of the counts of some processes."""
    return dict(sum((Counter(one) for one in each), Counter()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--shard")
    parser.add_argument("--left", type=float, default=float("inf"))
    given = parser.parse_args()
    if given.settings is not None:
        build(given.settings, given.shard, given.left)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder_of = {name: folder / name / "dataset" for name in ("folder", "one", "killed", "two")}
        one = counts(start(folder, str(folder_of["folder"]), "cache", given.corpus))
        rows = {"folder": {"seconds": one["seconds"]}}
        rows["one host"] = counts(start(folder, f"local://{folder_of['one']}", "a", given.corpus))
        half = str(rows["one host"]["PUT"] // 2)
        counts(start(folder, f"local://{folder_of['killed']}", "b", given.corpus, "--left", half))
        rows["after half of the PUTs on another machine"] = counts(
            start(folder, f"local://{folder_of['killed']}", "c", given.corpus)
        )
        hosts = [
            start(folder, f"local://{folder_of['two']}", f"host-{index}", given.corpus, "--shard", f"{index}/2")
            for index in range(2)
        ]
        of_hosts = [counts(host) for host in hosts]
        rows |= {f"host {index} of two": found for index, found in enumerate(of_hosts)}

        def files(out: Path) -> dict[str, bytes]:
            paths = (path for path in out.rglob("*") if path.is_file())
            named = {path.relative_to(out).as_posix(): path.read_bytes() for path in paths}
            return {name: content for name, content in named.items() if not name.startswith((".", "build.log"))}

        expected = files(folder_of["folder"])
        same = {name: files(out) == expected for name, out in folder_of.items()}
    size = sum(map(len, expected.values()))
    print(f"{len(expected)} files, {size / 1e6:.1f} MB; equal bytes: {same}")
    for name, row in rows.items():
        shown = {kind: value for kind, value in row.items() if "bytes" not in kind}
        moved = {kind: f"{row.get(kind, 0) / size:.2f}" for kind in ("PUT bytes", "GET bytes")}
        print(f"{name}: {shown}, bytes against the dataset's: {moved}")
    if given.write:
        values = {"num_files": len(expected), "bytes": size, "equal_bytes": same, "requests": rows}
        results_file.write("object_store", {**results_file.environment("fsspec"), **values})


if __name__ == "__main__":
    main()
