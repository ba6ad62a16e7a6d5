"""The installed Python packages as a corpus, on a small made-up environment and on the real one."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.preparation.readers.reading import input_fingerprint, input_size, read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import PYTHON_ENVIRONMENT, CorpusConfig
from jax_diversity.schema import Document

PROSE = "A sentence about matrices and how they are multiplied. " * 5
MODULE = f'''"""The module says: {PROSE}"""

class Public:
    """The class says: {PROSE}"""

    def method(self):
        r"""The method says \\d."""

        def inner():
            """Nobody sees this."""

class _Hidden:
    """Nobody sees this."""

async def run():
    """The coroutine says."""
'''

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a distribution of some files; only such distributions are seen."""
    everything = importlib.metadata.distributions
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: everything(path=[str(tmp_path)]))

    def make(name: str, files: dict[str, str | bytes], *, readme: str = "", origin: dict | None = None) -> Path:
        about = tmp_path / f"{name}-1.2.dist-info"
        about.mkdir()
        header = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\nSummary: Does {name}\n"
        header += "Classifier: Topic :: Scientific/Engineering\nClassifier: License :: Free\n"
        (about / "METADATA").write_text(f"{header}\n{readme}", encoding="utf-8")
        rows = [f"{about.name}/METADATA,,{1}"]
        for path, content in files.items():
            path = path.replace("INFO", about.name)
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            content = content.encode() if isinstance(content, str) else content
            target.write_bytes(content)
            rows.append(f'"{path}",sha256=x,{len(content)}')
        odd = ["a.py,,\u00b2", f"b.py,,{'9' * 5000}", f'"{"c" * 200_000}', '"unclosed.py,,5', "", "d.py"]
        (about / "RECORD").write_text("\n".join([*odd, *rows, f"../../bin/{name},,500"]), encoding="utf-8")
        if origin is not None:
            (about / "direct_url.json").write_text(json.dumps(origin))
        return tmp_path

    return make


def read(max_bytes: int | None = None, *, strict: bool = False) -> tuple[dict[str, Document], ReadReport]:
    report = ReadReport()
    config = CorpusConfig(paths=(PYTHON_ENVIRONMENT,), max_bytes=max_bytes, strict=strict)
    documents = list(read_documents(config, report))
    return {document.id: document for document in documents}, report


def test_packages_in_folders_of_other_packages_are_left_out(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install("own", {"own.py": MODULE})
    assert "own/source/own.py" in read()[0]
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(folder))
    assert "own/source/own.py" in read()[0]
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(folder.parent))
    with pytest.raises(UserError, match="Expected"):
        read()


def test_the_four_kinds_of_documents(install: Install) -> None:
    licence = "Permission is granted. " * 20
    install("My_Pkg", {"my/__init__.py": MODULE, "INFO/licenses/LICENSE.txt": licence}, readme=PROSE)
    documents, report = read()
    assert list(documents) == [
        "my-pkg/docstrings/my/__init__.py",
        "my-pkg/licence/My_Pkg-1.2.dist-info/licenses/LICENSE.txt",
        "my-pkg/readme",
        "my-pkg/source/my/__init__.py",
    ]
    docstrings, licence_text, readme, source = documents.values()
    assert (source.text, source.language, source.title, source.source) == (MODULE, "code:python", "my", "my-pkg")
    assert source.metadata == {
        "kind": "source",
        "version": "1.2",
        "summary": "Does My_Pkg",
        "topics": ["Scientific/Engineering"],
    }
    assert (docstrings.language, docstrings.title, docstrings.metadata["kind"]) == ("en", "my", "docstrings")
    assert docstrings.text.startswith("my\n\nThe module says")
    assert "my.Public.method\n\nThe method says \\d." in docstrings.text
    assert docstrings.text.endswith("my.run\n\nThe coroutine says.")
    assert "Nobody" not in docstrings.text
    assert (readme.title, readme.text.strip(), readme.language) == ("my-pkg README", PROSE.strip(), "en")
    assert (licence_text.text, licence_text.title) == (licence, "my-pkg LICENSE.txt")
    assert report.num_documents == 4


def test_what_is_left_out(install: Install) -> None:
    code = "x = 1  # a comment\n" * 30
    files = {
        "a/short.py": "x = 1",
        "a/long.py": "x = 1\n" * 80_000,
        "a/tests/test_a.py": code,
        "a/data.json": code,
        "a/kept.py": code,
        "a/python2.py": "print 'hello'\n" * 30,
    }
    install("a", files)
    install("editable", {"b/b.py": code}, origin={"url": "file:///x", "dir_info": {"editable": True}})
    install("jax_diversity", {"c/c.py": code})
    documents, report = read()
    assert list(documents) == ["a/source/a/kept.py", "a/source/a/python2.py"]
    assert report.num_problems == 0


def test_broken_files_are_counted(install: Install) -> None:
    half_pair = '"""' + PROSE + '\\ud800"""\nx = 1\n'
    root = install("a", {"a/latin.py": b"# \xe9\n" * 100, "a/half.py": half_pair, "a/gone.py": MODULE})
    (root / "a" / "gone.py").unlink()
    documents, report = read()
    assert list(documents) == ["a/source/a/half.py"]
    assert (report.num_invalid_utf8, report.num_broken_records) == (3, 2)
    assert any(problem.startswith("a/source/a/latin.py: invalid UTF-8") for problem in report.problems)
    with pytest.raises(UserError, match="unreadable"):
        read(strict=True)


def test_a_part_has_something_of_every_package(install: Install) -> None:
    for package in "abcdefgh":
        install(package, {f"{package}/m{n}.py": f"x = {n}  # {package}\n" * 50 for n in range(20)})
    whole, _ = read()
    part, report = read(20_000)
    assert {document.source for document in part.values()} == set("abcdefgh")
    assert 15_000 < report.text_bytes < 30_000
    assert part == read(20_000)[0]
    assert list(part) == [id for id in whole if id in part]
    larger, _ = read(40_000)
    assert set(part) < set(larger)


def test_the_fingerprint_is_of_versions(install: Install) -> None:
    config = CorpusConfig(paths=(PYTHON_ENVIRONMENT,))
    root = install("a", {"a/m.py": MODULE})
    first = input_fingerprint(config)
    (root / "a" / "m.py").write_text("changed")
    assert input_fingerprint(config) == first
    metadata = root / "a-1.2.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.2", "1.3"))
    assert input_fingerprint(config) != first


def test_an_environment_without_text_is_refused(install: Install) -> None:
    install("a", {})
    with pytest.raises(UserError, match="at least one document"):
        read()


def test_the_real_environment_gives_many_topics() -> None:
    documents, report = read(2_000_000)
    sources = {document.source for document in documents.values()}
    kinds = {document.metadata["kind"] for document in documents.values()}
    assert len(sources) > 20
    assert kinds == {"source", "docstrings", "readme", "licence"}
    assert 1_000_000 < report.text_bytes < 4_000_000
    config = CorpusConfig(paths=(PYTHON_ENVIRONMENT,), max_bytes=2_000_000)
    told: list[int] = []
    list(read_documents(config, ReadReport(), told.append))
    assert sum(told) == input_size(config)
