"""Compare two datasets that should be equal, such as the datasets of two versions of the package from one corpus.

    python benchmarks/compare_builds.py BEFORE AFTER

Documents, tokens, clusters, segments, counts, orderings, measured values and exports are compared by their values:
tables by columns, arrays by elements, all other files by bytes. Records contain the fingerprint of their packing. So
the loader's batches are compared instead, in every ordering. Files with versions or settings (manifest, report,
fingerprints) may differ. The script prints the compared amount and the differences; the status is 1 if there are any.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.sparse import load_npz

import jax_diversity as jd

_FREE = ("manifest.json", "report.html", "report.json", "build.log", ".lock", "order.json")
_FREE_KEYS = ("fingerprint", "characteristics", "identity", "options", "dataset_fingerprint", "plan")


def difference(before: Path, after: Path) -> str | None:
    """Describe the difference of two files; None if they are equal."""
    if before.suffix == ".parquet":
        tables = pq.read_table(before), pq.read_table(after)
        if tables[0].column_names != tables[1].column_names:
            return f"columns {tables[0].column_names} and {tables[1].column_names}"
        unequal = [name for name in tables[0].column_names if not tables[0][name].equals(tables[1][name])]
        return f"columns {unequal}" if unequal else None
    if before.suffix == ".npz":
        try:
            first, second = load_npz(before), load_npz(after)
            pairs = [(getattr(first, part), getattr(second, part)) for part in ("data", "indices", "indptr")]
        except (KeyError, ValueError):
            stored = np.load(before), np.load(after)
            pairs = [(stored[0][name], stored[1][name]) for name in stored[0].files]
        return None if all(map(_same_array, *zip(*pairs, strict=True))) else "values"
    if before.suffix == ".npy" and before.read_bytes()[:6] == b"\x93NUMPY":  # OLMo-core's files have no header
        arrays = np.load(before, mmap_mode="r"), np.load(after, mmap_mode="r")
        return None if _same_array(*arrays) else "values"
    if before.suffix == ".json":
        values = [_without_free_keys(json.loads(path.read_text(encoding="utf-8"))) for path in (before, after)]
        return None if values[0] == values[1] else "values"
    return None if before.read_bytes() == after.read_bytes() else "bytes"


def _same_array(first: np.ndarray, second: np.ndarray) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first.tobytes() == second.tobytes()


def _without_free_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_free_keys(each) for key, each in value.items() if key not in _FREE_KEYS}
    return [_without_free_keys(each) for each in value] if isinstance(value, list) else value


def compare(before: Path, after: Path) -> int:
    """Print the compared amount and the differences; return the number of files that differ."""
    files = sorted(path.relative_to(before) for path in before.rglob("*") if path.is_file())
    num_bytes, faults = 0, []
    for name in files:
        if name.name in _FREE or name.parts[0] in (".cache", "training") or name.parts[0] == "records":
            continue
        num_bytes += (before / name).stat().st_size
        found = difference(before / name, after / name) if (after / name).is_file() else "no such file"
        if found is not None:
            faults.append(f"{name}: {found}")
    if (before / "records").is_dir():
        faults += differing_batches(before, after)
    print(f"{before} and {after}: {len(files)} files, {num_bytes:,} bytes compared, {len(faults)} differ")
    print("\n".join(faults))
    return len(faults)


def differing_batches(before: Path, after: Path) -> list[str]:
    """Find the orderings in which the batches of two datasets differ, each with the first different step."""
    faults = []
    for name in jd.open_dataset(before).orderings:
        loaders = [jd.make_loader(root, ordering=name, global_batch_size=64, num_epochs=1) for root in (before, after)]
        for step, batches in enumerate(zip(*loaders, strict=True)):
            if not all(np.array_equal(batches[0][key], batches[1][key]) for key in batches[0] | batches[1]):
                faults.append(f"{name}: batch {step}")
                break
    return faults


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("Expected two folders: python benchmarks/compare_builds.py BEFORE AFTER")
    sys.exit(1 if compare(Path(sys.argv[1]), Path(sys.argv[2])) else 0)
