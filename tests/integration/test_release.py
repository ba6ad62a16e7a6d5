"""What a release consists of: one version, one address, an archive and a wheel with all that the package needs."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml

import jax_diversity

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def citation() -> dict:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


@pytest.mark.core
def test_the_version_is_in_one_place_and_the_citation_repeats_it() -> None:
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT
    assert citation()["version"] == jax_diversity.__version__


@pytest.mark.core
def test_the_addresses_are_those_of_the_one_setting() -> None:
    address = PROJECT.get("urls", {}).get("Repository", "")
    assert citation().get("repository-code", "") == address
    package = f"git+{address}" if address else "jax_diversity-*.whl"
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert f'"%pip install --quiet {package} matplotlib pandas"' in path.read_text(encoding="utf-8"), path


@pytest.mark.core
def test_the_citation_names_the_article_of_the_published_objectives() -> None:
    article, code = citation()["references"]
    for page in ("docs/ordering.md", "docs/mathematics.md"):
        assert article["title"] in " ".join((ROOT / page).read_text(encoding="utf-8").split()), page
    assert code["repository-code"] in (ROOT / "docs/mathematics.md").read_text(encoding="utf-8")


@pytest.mark.core
def test_the_page_of_the_formats_has_their_versions() -> None:
    from evidence.settings import VERSION as ROWS
    from jax_diversity.foundation.artifacts import FORMAT_VERSION
    from jax_diversity.report.values import FORMAT_VERSION as REPORT
    from jax_diversity.streaming.loader.iteration import _STATE_VERSION
    from jax_diversity.streaming.records.codec import VERSION as RECORDS
    from jax_diversity.streaming.run.content import FORMAT

    page = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
    versions = dict(re.findall(r"^\| (.+?) \| (\d+)", page, re.MULTILINE))
    known = {"`manifest.json` of a dataset": FORMAT_VERSION, "`records/*.array_record`": RECORDS}
    known |= {"`schedule.json` of a run": FORMAT, "the state of a loader": _STATE_VERSION}
    known |= {"`report.json`": REPORT, "results of experiments": ROWS}
    assert {name: int(versions[name]) for name in known} == known


@pytest.mark.core
def test_former_names_say_what_to_write() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for name, today in jax_diversity._REPLACED.items():
        assert f"`jd.{name}" in changelog
        module, _, attribute = today.replace("jd.", "jax_diversity.", 1).partition("(")[0].rpartition(".")
        assert hasattr(importlib.import_module(module), attribute)
        with pytest.raises(AttributeError, match=f"has no '{name}' any more; write .* in place of jd.{name}"):
            getattr(jax_diversity, name)
    with pytest.raises(AttributeError, match="nothing"):
        _ = jax_diversity.nothing


@pytest.mark.core
def test_issue_templates_are_forms() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.stem != "config":
            assert {"name", "description", "body"} <= form.keys()
            assert all({"type", "id", "attributes"} <= part.keys() for part in form["body"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The archive and the wheel, built as `make dist` builds them, from the tracked and new files of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    maker = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [maker, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "hatchling>=1.27"]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip("there is no package index to get hatchling from")
    command = [maker, "-m", "hatchling", "build", "--directory", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (archive,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return archive, wheel


def files_of_the_package() -> set[str]:
    """The files of the package's folder that git does not ignore."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "jax_diversity"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in names if (ROOT / name).is_file()}


@pytest.mark.campaign
def test_the_wheel_has_the_whole_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert names == files_of_the_package()
        (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        about = message_from_bytes(wheel.read(metadata))
        (entries,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
        assert "jax-diversity = jax_diversity.cli.main:main" in wheel.read(entries).decode()
        assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    assert (about["Name"], about["Version"]) == (PROJECT["name"], jax_diversity.__version__)
    assert about["License-Expression"] == PROJECT["license"]
    assert about["Requires-Python"] == PROJECT["requires-python"]
    required = [text for text in about.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert sorted(map(plain, required)) == sorted(map(plain, PROJECT["dependencies"]))
    assert "every batch holds the corpus's own mixture" in " ".join(about.get_payload().split())


def plain(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", requirement.lower()).replace(" ", "")


@pytest.mark.campaign
def test_the_archive_has_what_a_reader_of_the_release_needs(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert files_of_the_package() <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {
        *(".gitignore", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "PKG-INFO", "README.md"),
        *("SECURITY.md", "configs", "jax_diversity", "pyproject.toml"),
    }


@pytest.mark.campaign
def test_the_command_of_the_wheel_runs_outside_of_the_tree(built: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(tmp_path / "installed")
    environment = {"PYTHONPATH": str(tmp_path / "installed"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    def run(program: str) -> str:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "--batch-size" in run("from jax_diversity.cli.main import main; main(['demo', '--help'])")
    # Files that are not Python: the page, its style and its scripts.
    drawn = "from jax_diversity.foundation.figures.embedding import drawing_script, resource as r\n"
    drawn += "import jax_diversity as jd\n"
    drawn += "print(len(drawing_script() + r('report', 'page.html') + r('report', 'page.css')), jd.__file__)"
    size, path = run(drawn).split()
    assert int(size) > 50_000
    assert path.startswith(str(tmp_path))
