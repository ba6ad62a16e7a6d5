"""The README's and the docstrings' examples run as they are written."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.config import EmbeddingConfig
from jax_diversity.pipeline import Build
from tests.tiny_corpus import tiny_config, write_corpus

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    config = tiny_config(write_corpus(folder / "corpus", num_documents=800), folder / "dataset")
    Build(config).run_all()
    return folder


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
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    assert len(jd.Ordering.load("my-order.npy")) == 1500
    assert names["batch"]["inputs"].shape == (64, 32)


@pytest.mark.parametrize("page", ["loading.md"])
def test_examples_of_the_pages(workplace: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    monkeypatch.chdir(workplace)
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    names = {"jd": jd, "jax": jax, "np": np}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_embedder_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "embeddings.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "my_embedder.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    config = tiny_config(write_corpus(tmp_path / "corpus", num_documents=60), tmp_path / "dataset")
    own = EmbeddingConfig(method="my_embedder:LetterShares")
    build = Build(dataclasses.replace(config, embedding=own))
    counts = [build.run_stage(stage).counts for stage in ("prepare", "tokenize", "embed")][-1]
    assert counts == {"num_documents": 60, "dimensions": 26, "num_zero_vectors": 0}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_pictures_exist(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


def test_shell_examples_name_real_verbs_and_options(capsys: pytest.CaptureFixture) -> None:
    from jax_diversity.cli import _VERBS

    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    used = set(re.findall(r"^\s*jax-diversity ([a-z]+)", text, flags=re.MULTILINE))
    assert used
    assert used <= set(_VERBS)
