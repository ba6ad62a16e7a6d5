"""Every notebook is what its text form says, was run, tells nothing of the machine, and opens in Colab."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from tests.notebooks import FOLDER, check_that_it_runs, forbid_network, load_renew, read

NAMES = ("corpus_to_order", "own_counts", "train_two_models")
ADDRESS = "https://github.com/someone/some-name"
MACHINE_PATH = re.compile(r"(?<![\w.:/-])(/(tmp|root|home|Users|private|work|opt|mnt|content|var)/|[A-Z]:\\)")

renew = load_renew()


def source(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def first_code(name: str) -> str:
    cells = renew.read_source(FOLDER / f"{name}.py").cells
    return next(cell.source for cell in cells if cell.cell_type == "code")


def test_the_folder_holds_the_notebooks_in_pairs() -> None:
    assert sorted(path.stem for path in renew.SOURCES) == sorted(NAMES)
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_hold_the_same_cells(name: str) -> None:
    wanted, found = renew.read_source(FOLDER / f"{name}.py"), read(name)
    assert len(wanted.cells) > 10
    for index, (text, stored) in enumerate(zip(wanted.cells, found.cells, strict=True)):
        assert (stored.cell_type, stored.source, stored.id) == (text.cell_type, text.source, text.id), (
            f"cell {index} differs from {name}.py: run `make notebooks`"
        )


@pytest.mark.parametrize("name", NAMES)
def test_it_was_run_from_top_to_bottom_without_an_error(name: str) -> None:
    cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert {output.output_type for output in outputs} <= {"display_data", "execute_result", "stream"}
    assert all(output.name == "stdout" for output in outputs if output.output_type == "stream")
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 400_000


@pytest.mark.parametrize("name", NAMES)
def test_its_outputs_name_no_place_of_the_machine(name: str) -> None:
    for cell in read(name).cells:
        for output in cell.get("outputs", ()):
            text = {kind: value for kind, value in output.get("data", {}).items() if kind != "image/png"}
            found = MACHINE_PATH.search(json.dumps([text, output.get("text", "")]))
            assert found is None, f"{found} in {text or output}"


@pytest.mark.parametrize("name", NAMES)
def test_its_address_is_that_of_the_project(name: str) -> None:
    assert renew.with_address(source(name), name, renew.repository()) == source(name)


@pytest.mark.parametrize("name", NAMES)
def test_with_an_address_it_has_a_badge_and_installs_from_there(name: str) -> None:
    plain = renew.with_address(source(name), name, "")
    with_badge = renew.with_address(plain, name, ADDRESS)
    target = f"https://colab.research.google.com/github/someone/some-name/blob/main/notebooks/{name}.ipynb"
    head = with_badge[: with_badge.index("# %%\n")]
    assert head.count(f"]({target})") == 1
    assert head.count("[![Open in Colab](") == 1
    assert with_badge.count(f'REPOSITORY = "{ADDRESS}"') == 1
    assert renew.with_address(with_badge, name, "") == plain
    elsewhere = renew.with_address(plain, name, "https://example.org/project")  # Colab opens from GitHub alone
    assert "colab.research.google.com" not in elsewhere
    assert 'REPOSITORY = "https://example.org/project"' in elsewhere


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("address", "wheels", "package"),
    [
        (ADDRESS, (), f"git+{ADDRESS}"),
        ("", ("jax_diversity-0.1.0-py3-none-any.whl",), "jax_diversity-0.1.0-py3-none-any.whl"),
    ],
)
def test_the_first_cell_installs_the_package_where_it_is_missing(
    name: str, address: str, wheels: tuple[str, ...], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = renew.with_address(first_code(name), name, address)
    commands: list[list[str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    exec(compile(code, name, "exec"), {})
    assert commands == []  # the package is there

    for wheel in wheels:
        Path(wheel).touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    exec(compile(code, name, "exec"), {})
    assert [command[1:4] for command in commands] == [["-m", "pip", "install"]]
    assert package in commands[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_cell_asks_no_index_for_a_package_of_that_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = renew.with_address(first_code(name), name, "")
    commands: list[list[str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(RuntimeError, match=r"upload jax_diversity-\*\.whl .* or set REPOSITORY"):
        exec(compile(code, name, "exec"), {})
    assert commands == []


def test_the_cell_for_hugging_face_was_run() -> None:
    cell = next(cell for cell in read("own_counts").cells if cell.source.startswith("try:\n    import datasets"))
    found = "".join(output.get("text", "") for output in cell.outputs)
    assert re.fullmatch(r"\[\d+(, \d+){7}\]\n", found), "run `make notebooks` where `datasets` is installed"


@pytest.mark.parametrize("name", NAMES)
def test_it_imports_nothing_that_the_first_cell_does_not_bring(name: str) -> None:
    nodes = list(ast.walk(ast.parse(source(name))))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = {re.split(r"[^\w]", dependency)[0] for dependency in project["dependencies"]}
    brought |= {"jax_diversity", "matplotlib", "IPython"} | set(sys.stdlib_module_names)
    brought |= {"datasets"}  # the one cell that takes it says what to do without
    assert {module.split(".")[0] for module in modules} <= brought


def test_a_cell_that_raises_or_asks_the_network_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_network(monkeypatch, tmp_path / "ipython")
    ask = "import urllib.request; urllib.request.urlopen('http://example.org')"
    with pytest.raises(CellExecutionError, match="Expected no use of the network"):
        renew.execute(new_notebook(cells=[new_code_cell(ask)]), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["corpus_to_order", "own_counts"])
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_runs(name, tmp_path, monkeypatch)
