"""The structure of the package: which folder may import which, no circles, and what a new stage or method touches."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import jax_diversity
from jax_diversity.foundation.methods import Methods

pytestmark = pytest.mark.core

PACKAGE = Path(jax_diversity.__file__).parent
ROOT = PACKAGE.parent

# A unit is a room, or a folder of a room with a part of its own. It may import itself and what is listed here, nothing
# else of the package. A stage never imports another stage: other stages' artifacts come in through the engine's
# context; only the list of stages knows them all.
BASE = {"foundation", "schema", "counts", "sequences.token_store"}
SEQUENCES = {
    f"sequences.{stage}" for stage in ("tokenization", "embedding", "clustering", "packing", "characteristics")
}
STAGES = {"preparation", *SEQUENCES, "ordering", "ordering.measures", "streaming.records"}
# Nothing but the list of stages and imports within the command line's functions knows the preparation.
KNOWN_STAGES = STAGES - {"preparation"}
BUILT = BASE | KNOWN_STAGES | {"streaming.dataset"}
RUNNING = BUILT | {"streaming.run", "streaming.loader"}
ALLOWED = {
    "foundation": set(),
    "schema": {"foundation"},
    "counts": {"foundation", "schema"},
    "sequences.token_store": {"foundation", "schema"},
    **dict.fromkeys(STAGES, BASE),
    "streaming.dataset": BASE | KNOWN_STAGES,
    "streaming.run": BUILT,
    "streaming.loader": BUILT | {"streaming.run"},
    "streaming.export": RUNNING,
    "lab.sampling": BUILT,
    "lab": RUNNING,
    "report": BUILT | {"streaming.run", "lab"},
    "pipeline": BUILT | {"preparation", "report", "lab", "streaming.run"},
    "cli": RUNNING | {"preparation", "report", "lab", "lab.sampling", "streaming.export", "pipeline"},
    "__main__": {"cli"},
    "__init__": set(),
}


def unit_of(module: str) -> str:
    """The unit of a module: its folder of a room if that is a unit, or its room."""
    room, _, rest = module.partition(".")
    inner = f"{room}.{rest.partition('.')[0]}"
    return inner if inner in ALLOWED else room


HEAVY = ("jax", "flax", "grain", "sklearn", "pyarrow", "scipy", "tokenizers", "plotly", "orbax", "optax")
MODULES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts if parts[-1] != "__init__" else parts[:-1])


NAMES = {module_name(path) for path in MODULES}


@cache
def imported(path: Path) -> frozenset[str]:
    """The package's modules that a module imports, those for checkers alone (under TYPE_CHECKING) among them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        assert not isinstance(node, ast.ImportFrom) or node.level == 0, f"{path}: relative import"
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        for name in names:
            if name.startswith("jax_diversity."):
                inner = name.removeprefix("jax_diversity.")
                found.add(inner if inner in NAMES else inner.rpartition(".")[0])
    return frozenset(found - {""})


def test_imports_stay_in_their_layer() -> None:
    for path in MODULES:
        module = module_name(path)
        unit = unit_of(module)
        rooms = {"", "sequences", "streaming"}  # have nothing but units
        assert unit in ALLOWED or module in rooms, f"{unit} has no layer yet: give it one in this test"
        beyond = {unit_of(name) for name in imported(path)} - ALLOWED.get(unit, set()) - {unit}
        assert not beyond, f"{module} may not import {sorted(beyond)}"


def test_two_doors_are_closed() -> None:
    """Only the list of stages knows the preparation, and functions of the command line; nothing knows the evidence."""
    for path in MODULES:
        module, text = module_name(path), path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(from|import) evidence\b", text, re.MULTILINE), module
        if unit_of(module) not in ("preparation", "pipeline", "cli"):
            assert "jax_diversity.preparation" not in text, module
        elif unit_of(module) == "cli":
            assert not re.search(r"^from jax_diversity\.preparation", text, re.MULTILINE), module


# `TokenCounts` names, for checkers alone, the class of its chunks, which is its form in memory.
OF_CHUNKS = ("counts.token_counts", "counts.characteristics")


def test_no_imports_go_in_a_circle() -> None:
    """Also not by an import within a function or for checkers alone, which would hide a circle."""
    waiting = {module_name(path): set(imported(path)) - {module_name(path)} for path in MODULES}
    waiting[OF_CHUNKS[0]].remove(OF_CHUNKS[1])
    # Neither a module that waits for no other one is part of a circle, nor one that no other one waits for.
    while free := [
        name
        for name, needs in waiting.items()
        if not needs & waiting.keys() or not any(name in others for others in waiting.values())
    ]:
        for name in free:
            del waiting[name]
    circles = {name: sorted(needs & waiting.keys()) for name, needs in waiting.items()}
    assert not circles, f"each of these waits for another: {circles}"


def test_the_package_does_not_import_the_evidence() -> None:
    """Also not for checkers alone: a release has no `evidence`."""
    for path in MODULES:
        assert not re.search(r"^\s*(from|import) evidence\b", path.read_text(encoding="utf-8"), re.MULTILINE), path


@pytest.mark.parametrize("folder", sorted(STAGES | {"report"}))
def test_two_lines_add_a_stage(folder: str) -> None:
    """Outside its folder, a stage is imported where the stages are listed, its settings where their tree is."""
    places = {
        part: [module_name(path) for path in MODULES if f"{folder}.{part}" in imported(path)]
        for part in ("stage", "settings")
    }
    outside = {part: [name for name in names if not name.startswith(folder)] for part, names in places.items()}
    assert "pipeline.stages" in outside["stage"]
    assert set(outside["stage"]) <= {"pipeline.stages", "ordering.measures.orderings", "report.stage"}
    # The settings of an ordering are also options of `order` and `schedule`; targets are also moving weights of a run.
    known = {
        "pipeline.settings",
        "pipeline.stages",
        "pipeline.build",
        "pipeline.commands",
        "streaming.run.settings",
        "streaming.run.mixture",
    }
    # A sample of a Parquet file has the families of a default build, with their weights.
    known |= {"lab.sampling.population"}
    assert set(outside["settings"]) <= known


def methods_tables() -> list[Methods]:
    from jax_diversity.ordering.base import METHODS as ordering
    from jax_diversity.preparation.steps.base import METHODS as preparation
    from jax_diversity.sequences.clustering.base import METHODS as clustering
    from jax_diversity.sequences.embedding.base import METHODS as embedding
    from jax_diversity.sequences.packing.base import METHODS as packing

    return [packing, ordering, embedding, clustering, preparation]


# Only Megatron's own packing has the indices that Megatron reads.
BY_NAME = {("sequences.packing.stage", "megatron"), ("streaming.export.megatron", "megatron")}


@cache
def methods_compared(path: Path) -> frozenset[str]:
    """The strings that a module compares with a value called `method` or `step`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject, *(case.pattern for case in node.cases)]
        else:
            continue
        if any(re.search(r"\b(method|step)('\])?$", ast.unparse(side)) for side in sides):
            found |= {each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)}
    return frozenset(found)


def test_one_line_adds_a_method() -> None:
    """Outside its own module and the table no code asks whether a method is a certain one."""
    compared = set()
    for table in methods_tables():
        assert all(callable(table.find(name)) for name in table)
        folder = table.package.removeprefix("jax_diversity.")
        own = {f"{folder}.base", *(f"{folder}.{module}" for module in table.values())}
        others = {module_name(path): methods_compared(path) for path in MODULES if module_name(path) not in own}
        compared |= {(module, name) for module, names in others.items() for name in names & table.keys()}
    assert compared == BY_NAME


def test_no_module_of_odds_and_ends() -> None:
    assert not [path for path in MODULES if path.stem in ("utils", "helpers", "common", "misc")]


def loaded_by(program: str) -> set[str]:
    code = f"{program}\nimport sys; print(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments", [None, ["--help"], ["--version"], ["build", "--help"], ["pack", "--help"], ["order", "--help"]]
)
def test_light_commands_load_nothing_heavy(arguments: list[str] | None) -> None:
    program = "import jax_diversity"
    if arguments is not None:
        program = f"from jax_diversity.cli.main import main\ntry: main({arguments})\nexcept SystemExit: pass"
    allowed = {"scipy"} if arguments == ["order", "--help"] else set()
    assert not loaded_by(program) & set(HEAVY) - allowed


def test_characteristics_and_shuffles_need_no_jax() -> None:
    program = (
        "import jax_diversity as jd\n"
        "chars = jd.Characteristics.from_counts({'topic': [[1, 2], [2, 1]]})\n"
        "jd.measure(chars, jd.order(chars, 'uniform_shuffle'), windows=(1,))"
    )
    assert not loaded_by(program) & {"jax", "grain", "sklearn", "pyarrow", "flax"}


def test_every_public_name_is_there_and_documented() -> None:
    for name in jax_diversity.__all__:
        assert getattr(jax_diversity, name).__doc__
    with pytest.raises(AttributeError, match="nothing"):
        _ = jax_diversity.nothing


def test_the_project_speaks_of_itself_alone() -> None:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    for name in names:
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".yaml", ".js", ".css", ".html", ".lock") and path.is_file():
            assert not re.search(r"(?<![\w.])/(home|root|Users)/\w", path.read_text(encoding="utf-8")), name
