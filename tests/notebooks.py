"""The notebooks, read and run as `make notebooks` does, but without a network."""

from __future__ import annotations

import importlib.util
import resource
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbformat import NotebookNode

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"
MOST_CPU_SECONDS = 2 * 180.0
"""Three minutes of two cores: what a notebook may take, however busy the machine is that runs it."""

_NO_NETWORK = """\
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
    """`notebooks/renew.py`, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("renew", FOLDER / "renew.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name: str) -> NotebookNode:
    """A notebook as it lies there, with its outputs."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def kinds(notebook: NotebookNode) -> list[set[str]]:
    """What every cell put out: MIME types, or the name of the stream."""
    return [
        {kind for output in cell.get("outputs", ()) for kind in output.get("data", [output.get("name")])}
        for cell in notebook.cells
    ]


def forbid_network(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Kernels that start from now on find no host but their own, and the package of this tree."""
    startup = folder / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "no_network.py").write_text(_NO_NETWORK, encoding="utf-8")
    monkeypatch.setenv("IPYTHONDIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def check_that_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a notebook's text form in a folder of its own; it puts out what the stored one does, in time."""
    renew = load_renew()
    forbid_network(monkeypatch, tmp_path / "ipython")
    folder = tmp_path / "work"
    folder.mkdir()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    notebook = renew.execute(renew.read_source(FOLDER / f"{name}.py"), folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert kinds(notebook) == kinds(read(name))
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert 1 < seconds < MOST_CPU_SECONDS
