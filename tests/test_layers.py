"""The import layers of the design, and what light commands must not load."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jax_diversity

PACKAGE = Path(jax_diversity.__file__).parent

# Every part of the package may import itself and what is listed here, nothing else of the project. A stage never
# imports another stage: what it needs comes in as arrays, and only the pipeline composes.
FOUNDATION = {"errors", "schema", "artifacts", "config", "progress"}
FORMATS = {"token_store", "records"}
ALLOWED: dict[str, set[str]] = {
    "__init__": {"*"},  # names of other modules, imported when asked for
    "errors": set(),
    "methods": {"errors"},
    "devices": {"errors"},
    "schema": set(),
    "progress": set(),
    "artifacts": {"errors"},
    "protobuf": set(),
    "remote": {"errors", "artifacts"},
    "config": {"errors"},
    "token_store": FOUNDATION,
    "records": FOUNDATION,
    "corpus": FOUNDATION | {"token_store", "protobuf"},
    "tokenization": FOUNDATION | {"protobuf"},
    "terms": set(),
    "embedding": FOUNDATION | {"terms"},
    "clustering": FOUNDATION | {"devices", "terms"},
    "packing": FOUNDATION | {"methods"},
    "characteristics": FOUNDATION,
    "ordering": FOUNDATION | {"devices", "methods"},
    "measures": FOUNDATION,
    "report": FOUNDATION,
    "stored_orderings": {"errors", "schema"},
    "dataset": FOUNDATION | FORMATS | {"remote", "stored_orderings"},
    "loader": FOUNDATION | FORMATS | {"dataset", "remote", "stored_orderings"},
    "training": FOUNDATION | FORMATS | {"dataset", "loader"},
    "inspection": FOUNDATION | FORMATS | {"dataset"},
    "export": FOUNDATION | FORMATS | {"dataset"},
    "options": {"config", "errors"},
    "terminal": FOUNDATION | {"inspection", "ordering", "pipeline", "training"},
    "pipeline": {"*"},
    "__main__": {"cli"},
    "cli": FOUNDATION | {"dataset", "inspection", "options", "pipeline", "terminal"},
}
HEAVY = ("jax", "flax", "grain", "sklearn", "pyarrow", "scipy", "tokenizers", "plotly", "orbax", "optax")


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("jax_diversity."):
                parts.add(name.split(".")[1])
    return parts


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_stay_in_their_layer(path: Path) -> None:
    part = part_of(path)
    assert part in ALLOWED, f"{part} has no layer yet: give it one in this test"
    if "*" in ALLOWED[part]:
        return
    beyond = imported_parts(path) - ALLOWED[part] - {part, "__version__"}
    assert not beyond, f"{part} may not import {sorted(beyond)}"


def test_no_module_of_odds_and_ends() -> None:
    assert not [path for path in PACKAGE.rglob("*.py") if path.stem in ("utils", "helpers", "common", "misc")]


def loaded_by(program: str) -> set[str]:
    code = f"{program}\nimport sys; print(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "program",
    [
        "import jax_diversity",
        "from jax_diversity.cli.main import main; main(['--help'])",
        "from jax_diversity.cli.main import main; main(['--version'])",
        "from jax_diversity.cli.main import main\ntry: main(['build', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_light_commands_load_nothing_heavy(program: str) -> None:
    assert not loaded_by(program) & set(HEAVY)


def test_the_methods_are_listed_without_loading_them() -> None:
    program = "from jax_diversity.cli.main import main\ntry: main(['order', '--help'])\nexcept SystemExit: pass"
    assert not loaded_by(program) & (set(HEAVY) - {"scipy"})


def test_characteristics_and_shuffles_need_no_jax() -> None:
    program = (
        "import jax_diversity as jd\n"
        "chars = jd.Characteristics.from_counts({'topic': [[1, 2], [2, 1]]})\n"
        "jd.measure(chars, jd.order(chars, 'uniform_shuffle'), windows=(1,))"
    )
    assert not loaded_by(program) & {"jax", "grain", "sklearn", "pyarrow", "flax"}


def test_every_public_name_is_there_and_documented() -> None:
    assert set(jax_diversity.__all__) == set(jax_diversity._HOMES)
    for name in jax_diversity.__all__:
        assert getattr(jax_diversity, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = jax_diversity.nothing


def test_the_project_speaks_of_itself_alone() -> None:
    root = PACKAGE.parent
    names = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=False).stdout.split()
    for name in names:
        path = root / name
        if path.suffix in (".py", ".md", ".toml", ".yaml", ".js", ".css", ".html", ".lock") and path.is_file():
            assert not re.search(r"(?<![\w.])/(home|root|Users)/\w", path.read_text(encoding="utf-8")), name
