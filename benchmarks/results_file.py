"""Benchmark results with their conditions: device, cores, versions, commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Compilation is timed separately, so programs of earlier runs must not be used.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")
RESULTS = Path(__file__).parent / "results"


def environment(*packages: str) -> dict[str, Any]:
    """The machine and the versions of a measurement."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
        "commit": _commit(),
    }


def write(name: str, values: dict[str, Any]) -> None:
    """Write `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def read(name: str) -> dict[str, Any]:
    """Read `results/NAME.json`; empty if there is no such file."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"
