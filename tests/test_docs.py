"""The examples of the README and of the pages run as they are written; their links and commands are real."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.embedding.settings import EmbeddingConfig
from jax_diversity.pipeline.build import Build
from jax_diversity.token_store.megatron import TokenWriter
from tests.tiny_corpus import tiny_config, write_corpus

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("**/*.md"))]
# Pages whose examples need a workplace of their own, and the tests that run them.
ELSEWHERE = {"embeddings.md": "test_docs.py", "exports.md": "test_export_docs.py", "training.md": "test_metrics.py"}


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


PAGES = [path for path in sorted(DOCS.glob("*.md")) if python_blocks(path) and path.name not in ELSEWHERE]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets, one of them packed as Megatron packs, and tokens in Megatron's format."""
    folder = tmp_path_factory.mktemp("readme")
    config = tiny_config(write_corpus(folder / "corpus", num_documents=800), folder / "dataset")
    Build(config).run_all()
    packing = dataclasses.replace(config.packing, method="megatron")
    build = Build(dataclasses.replace(config, out=str(folder / "out"), packing=packing))
    for stage in ("prepare", "tokenize", "embed", "cluster", "pack", "characterize"):
        build.run_stage(stage)
    for name in ("web", "books"):
        with TokenWriter(folder / "tokens" / f"{name}_text_document", np.dtype(np.uint16)) as writer:
            writer.add_documents(list(np.arange(20 * 5000).reshape(20, 5000) % 5000))
    return folder


def run_blocks(path: Path, names: dict[str, Any]) -> dict[str, Any]:
    for block in python_blocks(path):
        exec(compile(block, path.name, "exec"), names)
    return names


def test_examples_of_the_readme(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    rng = np.random.default_rng(0)
    names = {
        "jd": jd,
        "jax": jax,
        "topic_counts": rng.multinomial(32, np.full(8, 1 / 8), 1500),
        "source_counts": rng.multinomial(32, np.full(3, 1 / 3), 1500),
        "early": [0.5, 0.3, 0.2],
        "late": [0.2, 0.3, 0.5],
    }
    run_blocks(ROOT / "README.md", names)
    assert len(jd.Ordering.load("my-order.npy")) == 1500
    assert names["batch"]["inputs"].shape == (64, 32)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_examples_of_the_pages(workplace: Path, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.chdir(workplace)
    given = {
        "jd": jd,
        "jax": jax,
        "np": np,
        "dataset": jd.open_dataset("dataset"),
        "document_lengths": np.full(50, 300),
    }
    names = run_blocks(path, dict(given))
    assert set(names) > {*given, "__builtins__"}  # something was named, and nothing raised


def test_examples_that_are_run_elsewhere_are() -> None:
    assert {path.parent for path in DOCUMENTS if python_blocks(path)} <= {ROOT, DOCS, DOCS / "howto"}
    assert "howto" in (ROOT / "tests" / "test_howto.py").read_text(encoding="utf-8")
    for page, test in ELSEWHERE.items():
        assert python_blocks(DOCS / page)
        assert f'"{page}"' in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_the_embedder_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = python_blocks(DOCS / "embeddings.md")
    (tmp_path / "my_embedder.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    config = tiny_config(write_corpus(tmp_path / "corpus", num_documents=60), tmp_path / "dataset")
    own = EmbeddingConfig(method="my_embedder:letter_shares", options={"letters": "aeiou"})
    build = Build(dataclasses.replace(config, embedding=own))
    counts = [build.run_stage(stage).counts for stage in ("prepare", "tokenize", "embed")][-1]
    assert counts == {"num_documents": 60, "dimensions": 5, "num_zero_vectors": 0}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_pictures_exist(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


def test_shell_examples_name_real_verbs_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "site")
    command_line = __import__("command_line")
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    shell = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)).replace("\\\n", " ")
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^jax-diversity .+", shell, re.MULTILINE)]
    assert len(commands) > 10
    for _, verb, *words in commands:
        known = {option.name for _, found in command_line.options(verb) for option in found}
        if command_line.parsed(verb).hidden:  # a stage's verb takes the others' options too
            known |= {option.name for _, found in command_line.options("build") for option in found}
        switches = {re.sub(r"^--((?:[\w-]+\.)*)", r"--\1no-", name) for name in known}
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= known | switches | {"--config", "--quiet", "--open", "--help"}, verb
