"""Every notebook is what its text form says, runs from top to bottom without a network, and installs the package."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks run with the extra `dev`")
from nbclient.exceptions import CellExecutionError  # noqa: E402
from nbformat import NotebookNode  # noqa: E402
from nbformat.v4 import new_code_cell, new_notebook  # noqa: E402

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NAMES = ("corpus_to_order", "fine_tune_on_chats", "own_counts", "train_two_models")
SHORTER = {
    "corpus_to_order": {'"max_bytes": 8 * 2**20': '"max_bytes": 2 * 2**20'},
    "own_counts": {"1.2, 24_000": "1.2, 8_000"},
    "train_two_models": {
        '"max_bytes": 8 * 2**20': '"max_bytes": 2 * 2**20',
        "SEEDS = 32, (0, 1, 2)": "SEEDS = 32, (0, 1)",
        "num_steps=60": "num_steps=20",
        'batches("shuffle_0", every=1), 60)': 'batches("shuffle_0", every=1), 20)',
    },
}
"""Notebook -> what the test puts in place of its sizes; `make notebooks` runs it as it is."""
ADDRESS = "https://github.com/someone/some-name"
MACHINE_PATH = re.compile(r"(?<![\w.:/-])(/(tmp|root|home|Users|private|work|opt|mnt|content|var)/|[A-Z]:\\)")
NO_NETWORK = """\
import socket

def _guarded(function, address_of):
    def call(*arguments, **options):
        host = address_of(*arguments)
        if isinstance(host, str | bytes) and host not in ("localhost", "127.0.0.1", "::1"):
            raise OSError(f"Expected no use of the network, found a call for {host}.")
        return function(*arguments, **options)
    return call

def _peer(connection, address, *rest):
    return address[0] if isinstance(address, tuple) else None

socket.getaddrinfo = _guarded(socket.getaddrinfo, lambda host, *rest: host)
socket.socket.connect = _guarded(socket.socket.connect, _peer)
"""


def load_renew() -> ModuleType:
    """`notebooks/renew.py`, which is not part of a package."""
    spec = importlib.util.spec_from_file_location("renew", FOLDER / "renew.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


renew = load_renew()


def stored(name: str) -> NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def kinds(notebook: NotebookNode) -> list[set[str]]:
    """What every cell put out: MIME types, or the name of the stream."""
    return [
        {kind for output in cell.get("outputs", ()) for kind in output.get("data", [output.get("name")])}
        for cell in notebook.cells
    ]


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that start from now on find no host but their own, and the package of this tree."""
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "no_network.py").write_text(NO_NETWORK, encoding="utf-8")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_hold_the_same_cells_and_outputs_of_one_run(name: str) -> None:
    wanted, found = renew.read_source(FOLDER / f"{name}.py"), stored(name)
    for index, (text, cell) in enumerate(zip(wanted.cells, found.cells, strict=True)):
        assert (cell.cell_type, cell.source, cell.id) == (text.cell_type, text.source, text.id), (
            f"cell {index} differs from {name}.py: run `make notebooks`"
        )
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"display_data", "execute_result", "stream"}
    for output in outputs:
        text = {kind: value for kind, value in output.get("data", {}).items() if kind != "image/png"}
        assert not MACHINE_PATH.search(json.dumps([text, output.get("text", "")])), text or output


@pytest.mark.parametrize("name", NAMES)
def test_with_an_address_it_has_a_badge_and_installs_from_there(name: str, tmp_path: Path) -> None:
    plain = renew.with_address((FOLDER / f"{name}.py").read_text(encoding="utf-8"), name, "")
    with_badge = renew.with_address(plain, name, ADDRESS)
    target = f"https://colab.research.google.com/github/someone/some-name/blob/main/notebooks/{name}.ipynb"
    assert with_badge.count(f"]({target})") == 1
    assert renew.with_address(with_badge, name, "") == plain

    for text, package in ((plain, "jax_diversity-*.whl"), (with_badge, f"git+{ADDRESS}")):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        first = next(cell for cell in renew.read_source(tmp_path / f"{name}.py").cells if cell.cell_type == "code")
        assert first.source == f"%pip install --quiet {package} matplotlib pandas"


@pytest.mark.parametrize("name", NAMES)
def test_its_first_cell_installs_all_that_it_imports(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[^\w.-]", each)[0].lower().replace("-", "_") for each in project["dependencies"]}
    optional = {"datasets"}  # the cell says how to install it
    code = "\n".join(cell.source for cell in stored(name).cells if cell.cell_type == "code")
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE))
    assert imported <= {*sys.stdlib_module_names, "jax_diversity", *needed, *renew.DRAWING, *optional}


def test_a_cell_that_asks_the_network_is_an_error(tmp_path: Path, no_network: None) -> None:
    ask = "import urllib.request; urllib.request.urlopen('http://example.org')"
    with pytest.raises(CellExecutionError, match="Expected no use of the network"):
        renew.execute(new_notebook(cells=[new_code_cell(ask)]), tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str, tmp_path: Path, no_network: None) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    source = renew.read_source(FOLDER / f"{name}.py")
    for size, smaller in SHORTER.get(name, {}).items():
        (cell,) = [cell for cell in source.cells if size in cell.source]
        cell.source = cell.source.replace(size, smaller)
    notebook = renew.execute(source, folder)
    assert kinds(notebook) == kinds(stored(name))
