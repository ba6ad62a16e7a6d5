"""The bounds of the dependencies: pip keeps the libraries of a machine that has the oldest allowed versions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BOUNDS = {found.name: found.specifier for found in map(Requirement, PROJECT["dependencies"])}


def pins(name: str) -> list[tuple[str, Version]]:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    return [(found[1], Version(found[2])) for found in re.finditer(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE)]


def test_the_oldest_versions_are_kept_and_are_the_bounds() -> None:
    """`make floor` tests exactly the bounds: a bound that nobody tests, or a test above the bound, fails here."""
    for name, version in pins("floor.txt"):
        (bound,) = BOUNDS[name]
        assert bound.operator == ">="
        assert Version(bound.version) in (version, Version(f"{version.major}.{version.minor}")), name
        assert BOUNDS[name].contains(version), f"pip would replace {name} {version}"


@pytest.mark.parametrize("file", ["core.lock", "dev.lock"])
def test_the_newest_versions_are_allowed(file: str) -> None:
    locked = pins(file)
    assert set(BOUNDS) <= {name.replace("_", "-") for name, _ in locked} | {"array_record"}
    for name, version in locked:
        for own in {name, name.replace("-", "_")} & set(BOUNDS):
            assert BOUNDS[own].contains(version), f"{name} {version}"


def test_no_dependency_has_an_upper_bound_that_would_replace_a_newer_version() -> None:
    for name, specifier in BOUNDS.items():
        assert {bound.operator for bound in specifier} == {">="}, name


@pytest.mark.campaign
def test_pip_replaces_neither_jax_nor_numpy_of_an_older_notebook_service(tmp_path: Path) -> None:
    """pip resolves the package in an environment that has the oldest versions, and installs none of them again."""
    made = subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=False)
    assert made.returncode == 0
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    oldest = dict(pins("floor.txt"))
    # pip reads only the description of an installed library, so that the libraries themselves need not be there.
    for name, version in {**oldest, "jaxlib": oldest["jax"]}.items():
        about = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (about / "INSTALLER").write_text("pip\n")
        (about / "RECORD").write_text("")
    wanted, report = tmp_path / "wanted.txt", tmp_path / "report.json"
    wanted.write_text("\n".join(PROJECT["dependencies"]))
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "venv", "--disable-pip-version-check"]
    options = ["--dry-run", "--quiet", "--only-binary", ":all:", "--report", report, "-r", wanted]
    try:
        done = subprocess.run(
            [*pip, "install", *options], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
        )
    except subprocess.TimeoutExpired:
        pytest.skip("the package index does not answer")
    if done.returncode and re.search(r"connection|No matching distribution|timed out", done.stderr):
        pytest.skip("there is no package index")
    assert done.returncode == 0, done.stderr
    installed = {
        each["metadata"]["name"].lower(): each["metadata"]["version"]
        for each in json.loads(report.read_text())["install"]
    }
    assert {"grain", "optax"} <= set(installed)
    assert {"jax", "jaxlib", *oldest} & set(installed) == set(), installed
