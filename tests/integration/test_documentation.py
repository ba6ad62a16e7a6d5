"""The documentation: its examples run as they are written, links and options are real, the site builds."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

import jax_diversity as jd
from evidence.__main__ import VERBS as EXPERIMENT_VERBS
from jax_diversity.cli.main import main
from jax_diversity.cli.parsing import Signature, list_options, with_full_names
from jax_diversity.pipeline.build import Build
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.sequences.packing.base import METHODS, pack
from tests.conftest import MakeFolder
from tests.support.documented_model import train_on
from tests.support.example_datasets import build_examples
from tests.support.tiny_corpus import tiny_config, write_corpus

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("**/*.md"))]
# Pages whose examples need files of their own, and the tests that run them.
ELSEWHERE = {
    "embeddings.md": __name__,
    "exports.md": "tests.streaming.export.test_export_docs",
    "training.md": "tests.lab.test_metrics",
}


def blocks(path: Path, language: str = "python") -> list[str]:
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


PAGES = [path for path in sorted(DOCS.glob("*.md")) if blocks(path) and path.name not in ELSEWHERE]


@pytest.fixture
def workplace(make_once: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, to work in, of two datasets (one packed as Megatron packs) and of tokens in Megatron's format."""

    folder = shutil.copytree(make_once("examples", build_examples), tmp_path / "work")
    monkeypatch.chdir(folder)
    return folder


def run_blocks(path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Run a page's blocks one after another; the documented model trains on every batch that they show."""
    for block in blocks(path):
        before = names.get("batch")
        exec(compile(block, path.name, "exec"), names)
        if names.get("batch") is not before:
            train_on(names["batch"])
    return names


def test_examples_of_the_readme(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = []
    signature = inspect.signature(jd.build)
    monkeypatch.setattr(jd, "build", lambda *arguments, **options: builds.append((arguments, options)))
    names = run_blocks(ROOT / "README.md", {"train_step": train_on})
    assert builds == [(("texts/*.jsonl.gz", "dataset"), {"batch_size": 64})]  # the workplace has this dataset
    assert signature.bind(*builds[0][0], **builds[0][1])
    assert len(jd.Ordering.load("my-order.npy")) == 2000
    assert names["batch"]["inputs"].shape == (64, 32)
    # "Row j of the batch at position p is sequence `ordering[p + j]`": of the last batch, that which the loop left.
    ordering = jd.open_dataset("dataset").orderings["balance"]
    position, every = 64 * (len(ordering) // 64 - 1), np.arange(len(ordering))
    rows = next(iter(jd.make_loader("dataset", ordering=every, global_batch_size=len(every))))["inputs"]
    for row in range(64):
        np.testing.assert_array_equal(names["batch"]["inputs"][row], rows[ordering[position + row]])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_examples_of_the_pages(workplace: Path, path: Path) -> None:
    assert set(run_blocks(path, {})) > {"__builtins__"}  # something was named, and nothing raised


def test_pages_name_everything_that_they_use(tmp_path: Path) -> None:
    """A page can be pasted into an empty session: its blocks import and make what they use."""
    pages = [path for path in DOCUMENTS if path.parent in (DOCS, DOCS / "howto") and blocks(path)]
    for path in pages:
        (tmp_path / f"{path.stem}.py").write_text("\n".join(blocks(path)), encoding="utf-8")
    assert len(pages) > 15
    ruff = [str(Path(sys.executable).with_name("ruff")), "check", "--isolated", "--select", "F821", "--quiet"]
    done = subprocess.run([*ruff, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_pages_in_one_folder_keep_their_runs_and_checkpoints_apart() -> None:
    """Pages that are pasted one after another in one folder do not meet: each makes folders of its own."""
    made: dict[str, str] = {}
    for path in DOCUMENTS:
        text = "\n".join(blocks(path))
        if path.parent not in (DOCS, DOCS / "howto"):
            continue
        found = re.findall(r'(?:create_schedule\(|repack\(\w+, |repack\("dataset", |Path\()"([\w-]+)"', text)
        for name in {name for name in found if name not in ("dataset", "tokens", "corpus")}:
            assert made.setdefault(name, path.name) == path.name, f"{name} is made by {made[name]} and {path.name}"
    assert {"run", "three-epochs", "moving-run", "checkpoints", "mesh-checkpoints"} <= set(made)


def test_every_mesh_of_a_training_loop_has_axes_that_flax_takes() -> None:
    """Flax NNX refuses the Explicit axes that `make_mesh` makes by itself; blocks that are not run show meshes too."""
    meshes = [
        line for path in DOCUMENTS for line in path.read_text(encoding="utf-8").splitlines() if '("data",)' in line
    ]
    assert len(meshes) >= 4
    assert [line for line in meshes if "make_mesh" in line and "AxisType.Auto" not in line] == []


def test_examples_that_are_run_elsewhere_are() -> None:
    assert {path.parent for path in DOCUMENTS if blocks(path)} <= {ROOT, DOCS, DOCS / "howto"}
    for page, test in ELSEWHERE.items():
        assert blocks(DOCS / page)
        assert f'"{page}"' in (ROOT / f"{test.replace('.', '/')}.py").read_text(encoding="utf-8")


def test_the_embedder_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks(DOCS / "embeddings.md")
    (tmp_path / "my_embedder.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    config = tiny_config(write_corpus(tmp_path / "corpus", num_documents=60), tmp_path / "dataset")
    own = EmbeddingConfig(method="my_embedder:letter_shares", options={"letters": "aeiou"})
    build = Build(dataclasses.replace(config, embedding=own))
    counts = [build.run_stage(stage).counts for stage in ("prepare", "tokenize", "embed")][-1]
    found = [counts[name] for name in ("num_documents", "dimensions", "num_zero_vectors")]
    assert found == [60, 5, 0]


def test_the_packing_method_of_the_contributors_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worked example: a file of its own and one line in the table, and the method is there with its option."""
    (block,) = (block for block in blocks(ROOT / "CONTRIBUTING.md") if "def longest_first(" in block)
    (tmp_path / "longest_first.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    folders = [*sys.modules["jax_diversity.sequences.packing"].__path__, str(tmp_path)]
    monkeypatch.setattr("jax_diversity.sequences.packing.__path__", folders)
    monkeypatch.setitem(METHODS, "longest_first", "longest_first")
    assert METHODS.describe("longest_first")[1] == {"last_sequence": "'drop'"}
    packed = pack([3, 9, 4], 4, method="longest_first", last_sequence="pad")
    assert packed.segments.document_index.tolist() == [1, 1, 1, 2, 2, 0]
    with pytest.raises(jd.UserError, match="no option 'atom_size': expected one of last_sequence"):
        pack([3], 4, method="longest_first", atom_size=2)


def test_the_published_objectives_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands as they are: the orders are those of the objectives with norms, on bins of equal tokens."""
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "texts", num_documents=300)
    build, loop = blocks(DOCS / "which-order.md", "sh")[0].replace(".jsonl.gz", ".jsonl").split("\n", 1)
    sizes = ["--tokenizer.vocab-size", "300", "--sequence-length", "32", "--windows", "8", "--quiet"]
    assert main([*shlex.split(build)[1:], *sizes]) == 0
    names, command = re.fullmatch(r"for name in (.+); do\n(.+)\ndone\n", loop, re.DOTALL).groups()  # type: ignore[union-attr]
    for name in names.split():
        assert main([*shlex.split(command.replace("$name", name))[1:], "--no-page", "--quiet"]) == 0
    dataset = jd.open_dataset("published")
    assert dataset.settings["characteristics"]["length_bins_equal"] == "tokens"
    objectives = {"f1": jd.Objective.f1(), "f2": jd.Objective.f2(form="norms"), "f3": jd.Objective.f3(form="norms")}
    for name, objective in objectives.items():
        expected = jd.order(dataset, "greedy", objective=objective, ties="lowest")
        np.testing.assert_array_equal(dataset.orderings[name], expected)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_pictures_exist(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS / "site")
    return __import__("command_line")


def test_tables_of_steps_and_recipes_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "site")
    steps = __import__("steps")
    text = steps.PAGE.read_text(encoding="utf-8")
    assert steps.renewed(text) == text, "run `python docs/site/steps.py`"
    names = [*steps.METHODS, *(path.stem for path in steps.RECIPES.glob("*.yaml"))]
    assert [name for name in names if f"[`{name}`]" not in text] == []


def test_shell_examples_name_real_verbs_and_options(command_line: ModuleType) -> None:
    shell = "\n".join(block for path in DOCUMENTS for block in blocks(path, "sh")).replace("\\\n", " ")
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^jax-diversity .+", shell, re.MULTILINE)]
    assert len(commands) > 10
    for _, verb, *words in commands:
        if verb == "lab":  # the one verb of two words
            verb = f"lab {words[0]}"
        known = {option.name for _, found in command_line.options(verb) for option in found}
        if command_line.all_verbs()[verb].sections:  # a stage's verb takes the others' options too
            known |= {option.name for _, found in command_line.options("build") for option in found}
        switches = {re.sub(r"^--((?:[\w-]+\.)*)", r"--\1no-", name) for name in known}
        full = with_full_names(words, known)
        used = {word.split("=")[0] for word in full if word.startswith("--")}
        assert used <= known | switches | {"--help"}, verb


def test_commands_of_experiments_name_files_and_real_options() -> None:
    shell = "\n".join(block for path in DOCUMENTS for block in blocks(path, "sh"))
    commands = re.findall(r"^(?:\.venv/bin/)?python -m evidence (\w+) (\S+)(.*)", shell, re.MULTILINE)
    assert len(commands) > 20
    for verb, file, rest in commands:
        known = {option.name for option in list_options(Signature(EXPERIMENT_VERBS[verb]).default)}
        assert {word for word in rest.split() if word.startswith("--")} <= known, verb
        assert (ROOT / file).is_file(), file


class Page(HTMLParser):
    """A page's anchors, and what it links to or loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.ids, self.links = path, set[str](), list[str]()
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids.add(found.get("id", ""))
        self.links += [found[name] for name in ("href", "src") if found.get(name)]


def test_the_site_builds_without_a_warning_and_holds_together(tmp_path: Path, command_line: ModuleType) -> None:
    pytest.importorskip("sphinx", reason="the site is built with the extra `dev`")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(tmp_path / "trees")]
    done = subprocess.run([*command, str(DOCS), str(tmp_path / "html")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = (tmp_path / "html").resolve()
    pages = {str(path.relative_to(folder)): Page(path) for path in folder.rglob("*.html")}
    sources = {path.relative_to(DOCS) for path in DOCS.rglob("*.md") if "_build" not in path.parts}
    left_out = {str(path) for path in sources if str(path.with_suffix(".html")) not in pages}
    assert left_out == {"log.md"}
    for name, page in pages.items():
        for target in page.links:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            assert path.exists(), f"{name}: {target}"
            if parts.fragment and path.suffix == ".html":
                assert unquote(parts.fragment) in pages[str(path.relative_to(folder))].ids, f"{name}: {target}"
    for public in jd.__all__:
        homes = [path for path, page in pages.items() if f"jax_diversity.{public}" in page.ids]
        assert len(homes) == 1, public
    described = pages["reference/command-line.html"]
    assert "#lab-explain" in described.links
    assert "](#" not in described.text  # a link in Markdown that is none
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        notebook = pages[f"notebooks/{path.stem}.html"]
        assert any(link.startswith("data:image/png;base64,") for link in notebook.links)
        assert any(link.endswith(path.name) for link in notebook.links)  # the file itself
        assert '<div class="output">' in notebook.text
        assert notebook.text.count("<h1>") == 1
        assert f"notebooks/{path.stem}.html" in pages["index.html"].links
    for _, found in command_line.options("build"):
        for option in found:
            assert option.meaning, option.name
            assert f">{option.name}<" in described.text, option.name
