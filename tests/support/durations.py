"""A pytest plugin: processor seconds of every case, the processes that it started included.

`python -m tests.durations` runs the tests with this plugin. Seconds of the clock depend on what else a machine does,
and leave out the work of other threads and processes. A fixture that several cases share counts for the case that
needed it first. With the variable DURATIONS_FILE, the seconds of every case are written to that file.
"""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from typing import Any

import pytest

SLOWEST = 100


def processor_seconds() -> float:
    """Seconds of user and system time of this process and of the processes that it waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Durations:
    """Adds the processor seconds since the last report to every report, and prints two tables at the end."""

    def __init__(self) -> None:
        self.last = processor_seconds()
        self.imports: list[float] = []  # seconds before the first case, one value per process
        self.cases: defaultdict[str, float] = defaultdict(float)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.last = processor_seconds()
        if "PYTEST_XDIST_WORKER" in os.environ:
            session.config.workeroutput["import_seconds"] = self.last  # type: ignore[attr-defined]
        else:
            self.imports.append(self.last)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.imports.append(getattr(node, "workeroutput", {}).get("import_seconds", 0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        report = yield
        now = processor_seconds()
        report.processor_seconds, self.last = now - self.last, now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.cases[report.nodeid] += report.processor_seconds

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.cases:
            terminalreporter.write_line(table(self.cases, self.imports))
            if path := os.environ.get("DURATIONS_FILE"):
                with open(path, "w") as file:
                    file.writelines(f"{seconds:.3f}\t{case}\n" for case, seconds in self.cases.items())


def table(cases: dict[str, float], imports: list[float]) -> str:
    """Two Markdown tables: the folders, and the slowest cases."""
    folders: defaultdict[str, list[float]] = defaultdict(list)
    for case, seconds in cases.items():
        folders["/".join(case.split("::")[0].split("/")[1:-1]) or "."].append(seconds)
    total = sum(cases.values())
    lines = ["", "| folder | cases | processor seconds | slowest case |", "|---|---|---|---|"]
    for folder, all_seconds in sorted(folders.items(), key=lambda row: -sum(row[1])):
        lines.append(f"| {folder} | {len(all_seconds):,} | {sum(all_seconds):.0f} | {max(all_seconds):.1f} |")
    lines.append(f"| imports in {len(imports)} processes | | {sum(imports):.0f} | |")
    lines.append(f"| all | {len(cases):,} | {total + sum(imports):.0f} | |")
    slowest = sorted(cases.items(), key=lambda row: -row[1])[:SLOWEST]
    share = sum(seconds for _, seconds in slowest) / (total or 1)
    lines += ["", f"| the slowest {len(slowest)} cases ({share:.0%}) | seconds |", "|---|---|"]
    lines += [f"| {case} | {seconds:.1f} |" for case, seconds in slowest]
    return "\n".join(lines)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin, in the process that prints and in each process that runs cases."""
    config.pluginmanager.register(Durations(), "durations")
