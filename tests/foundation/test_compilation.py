"""Compiled programs in the user's cache folder: found by later processes, never trusted when damaged."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

import jax_diversity as jd
from jax_diversity.foundation import compilation
from jax_diversity.foundation.compilation import VARIABLE, cache_folder, call, forget_programs
from tests.support.programs import ROOT
from tests.support.synthetic import synthetic_characteristics


@partial(jax.jit, static_argnames="power")
def weighed(values: dict, factor: jax.Array, power: int) -> dict:
    return {"sum": factor * jnp.sum(values["a"] ** power), "b": values["b"] + 1}


ARGUMENTS = ({"a": np.arange(5, dtype=np.float32), "b": jnp.int32(3)}, np.float32(2))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for programs, in place of the cache that JAX itself has in these tests."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "programs"))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    reset_cache()
    forget_programs()
    yield tmp_path / "programs"
    jax.config.update("jax_compilation_cache_dir", before)
    reset_cache()
    forget_programs()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of the programs that were compiled, in their order."""
    paths: list[Path] = []
    write = compilation._write

    def watched(path: Path, program: object) -> None:
        paths.append(path)
        write(path, program)

    monkeypatch.setattr(compilation, "_write", watched)
    return paths


def call_it(power: int = 2) -> tuple[float, int]:
    result = call(weighed, *ARGUMENTS, power=power)
    return float(result["sum"]), int(result["b"])


def test_a_later_process_finds_what_an_earlier_one_compiled(folder: Path, compiled: list[Path]) -> None:
    assert call_it() == (60.0, 4)
    assert call_it() == (60.0, 4)
    assert len(compiled) == 1
    forget_programs()  # as a new process
    assert call_it() == (60.0, 4)
    assert [path.parent for path in compiled] == [folder]
    assert [path.name for path in folder.iterdir()] == [compiled[0].name]
    assert folder.stat().st_mode & 0o077 == 0


def test_what_differs_is_another_program(folder: Path, compiled: list[Path]) -> None:
    call_it()
    assert call_it(power=3) == (200.0, 4)
    values = {"a": np.arange(6, dtype=np.float32), "b": jnp.int32(3)}
    assert float(call(weighed, values, np.float32(1), power=2)["sum"]) == 55
    with jax.enable_x64(True):
        assert call(weighed, {"a": np.arange(5.0), "b": 3 * np.ones(1)}, np.float32(1), power=2)["sum"].dtype == "f8"
    assert len(set(compiled)) == 4


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "another program's", "no program"])
def test_a_damaged_file_is_compiled_again(folder: Path, compiled: list[Path], damage: str) -> None:
    call_it()
    path, content = compiled[0], bytearray(compiled[0].read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    elif damage == "no program":  # whole by its hash, and yet of no use
        content = bytearray(hashlib.sha256(b"text").digest() + b"text")
    elif damage == "another program's":
        call_it(power=3)
        content = bytearray(compiled.pop().read_bytes())[:-1]
    else:
        content = content[: len(content) // 2 if damage == "cut" else 0]
    path.write_bytes(content)
    forget_programs()
    assert call_it() == (60.0, 4)
    assert compiled == [path, path]
    forget_programs()
    assert call_it() == (60.0, 4)
    assert len(compiled) == 2


def test_a_program_that_cannot_run_is_compiled_again(
    folder: Path, compiled: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise jax.errors.JaxRuntimeError("NOT_FOUND")

    call_it()
    forget_programs()
    monkeypatch.setattr(compilation, "_read", lambda *_: fails)
    assert call_it() == (60.0, 4)
    assert len(compiled) == 2


def test_a_folder_that_cannot_be_written_costs_only_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "programs"))
    assert call_it() == (60.0, 4)
    forget_programs()
    assert call_it() == (60.0, 4)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    forget_programs()
    assert cache_folder() is None
    assert call_it() == (60.0, 4)


def test_files_of_other_users_are_not_loaded(
    folder: Path, compiled: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    call_it()
    forget_programs()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert call_it() == (60.0, 4)
    assert len(compiled) == 2


def test_where_programs_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == folder
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "jax-diversity" / "compiled"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert cache_folder() == tmp_path / "home" / ".cache" / "jax-diversity" / "compiled"
    monkeypatch.setenv(VARIABLE, "off")
    assert cache_folder() is None
    monkeypatch.setenv(VARIABLE, str(folder))
    jax.config.update("jax_enable_compilation_cache", False)
    assert cache_folder() is None
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "of-the-user"))
    assert cache_folder() is None
    forget_programs()
    assert call_it() == (60.0, 4)
    assert not folder.exists()


def test_the_files_used_longest_ago_are_removed(
    folder: Path, compiled: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for power in (2, 3):
        call_it(power)
    for age, path in enumerate(compiled):
        os.utime(path, (1000 - age, 1000 - age))
    forget_programs()
    call_it(3)  # the older one is used again
    monkeypatch.setattr(compilation, "_MOST_BYTES", 5 * compiled[0].stat().st_size // 2)  # two, not three
    call_it(4)
    assert {path.name for path in folder.iterdir()} == {compiled[1].name, compiled[2].name}


def test_what_jax_is_told_to_do_otherwise_is_left_to_it(folder: Path) -> None:
    with jax.disable_jit():
        assert call_it() == (60.0, 4)
    assert not folder.exists()


def test_orders_are_the_same_by_programs_of_another_process(folder: Path) -> None:
    chars = synthetic_characteristics(1100, num_clusters=12, num_bins=4)
    expected = {name: jd.order(chars, name).indices for name in ("balance", "greedy")}
    files = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert len(files) == 3  # the pool, the greedy, and one walk for all halvings
    program = """
import sys, numpy as np, jax_diversity as jd
from tests.support.synthetic import synthetic_characteristics
chars = synthetic_characteristics(1100, num_clusters=12, num_bins=4)
np.savez(sys.argv[1], **{name: jd.order(chars, name).indices for name in ("balance", "greedy")})
"""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(ROOT)}
    found = folder.parent / "orders.npz"
    subprocess.run([sys.executable, "-c", program, str(found)], check=True, env=environment)
    with np.load(found) as orders:
        for name, indices in expected.items():
            np.testing.assert_array_equal(orders[name], indices)
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == files
