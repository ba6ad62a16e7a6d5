"""The bounds of the dependencies: pip keeps the libraries of a machine that has the oldest allowed versions."""

from __future__ import annotations

import re
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
