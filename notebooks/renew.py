"""Run the notebooks' text forms and write the .ipynb files beside them: `make notebooks`.

A notebook is written as text (`NAME.py`, cells in the percent format) and read as `NAME.ipynb`, which holds the
same cells with the outputs of one run. The cell that says where the package and the notebook are to be had is the
same in all of them, and follows `[project.urls] Repository` in pyproject.toml.
"""

from __future__ import annotations

import re
import sys
import tempfile
import tomllib
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
SOURCES = sorted(path for path in FOLDER.glob("*.py") if path.name != Path(__file__).name)
MOST_SECONDS = 600
"""A cell that takes longer hangs; on two cores a notebook takes one minute."""

DRAWING = ("matplotlib", "pandas")
"""Packages that the notebooks import and the package does not need. Colab has them, other services may not."""
_METADATA = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_BADGE = "https://colab.research.google.com/assets/colab-badge.svg"


def repository() -> str:
    """The project's public address, such as `https://github.com/OWNER/NAME`; empty where it has none yet."""
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository", "").rstrip("/")


def with_address(text: str, name: str, address: str) -> str:
    """A notebook's text form with the badge and the place to install from that belong to an address."""
    where = (
        "In Colab, upload this notebook and the package's wheel (`make dist` makes it); the first cell fails without "
        "a wheel."
    )
    if address:
        where = "In Colab, upload this notebook; the first cell installs the package."
    if found := re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", address):
        target = f"https://colab.research.google.com/github/{found[1]}/blob/main/notebooks/{name}.ipynb"
        where = f"[![Open in Colab]({_BADGE})]({target})"
    text = re.sub(r"^# (\[!\[Open in Colab\]|In Colab,).*$", lambda _: f"# {where}", text, flags=re.MULTILINE)
    package = f"{f'git+{address}' if address else 'jax_diversity-*.whl'} {' '.join(DRAWING)}"
    return re.sub(r"^(# %pip install --quiet) .*$", lambda found: f"{found[1]} {package}", text, flags=re.MULTILINE)


def read_source(path: Path) -> NotebookNode:
    """A notebook without outputs, from its text form."""
    notebook = jupytext.read(path, fmt="py:percent")
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index}"  # drawn at random otherwise
        cell.metadata = {}
    notebook.metadata = nbformat.from_dict(_METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run all cells in a folder; a cell that raises ends it with a `CellExecutionError` that shows the cell."""
    # The package is there: the cell that installs it is not run.
    installing = [cell for cell in notebook.cells if cell.source.startswith("%pip ")]
    lines = [cell.source for cell in installing]
    for cell in installing:
        cell.source = "pass"
    client = NotebookClient(
        notebook,
        timeout=MOST_SECONDS,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    for cell, line in zip(installing, lines, strict=True):
        cell.source = line
    for cell in notebook.cells:
        cell.metadata = {}
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = nbformat.from_dict(_METADATA)
    nbformat.validate(notebook)
    return notebook


def main(names: list[str]) -> None:
    """Renew the named notebooks, or all."""
    for path in SOURCES:
        if names and path.stem not in names:
            continue
        path.write_text(with_address(path.read_text(encoding="utf-8"), path.stem, repository()), encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(read_source(path), Path(folder))
        target = path.with_suffix(".ipynb")
        nbformat.write(notebook, target)
        print(f"{target.name}: {target.stat().st_size / 1000:,.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
