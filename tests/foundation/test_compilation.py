"""Compiled programs: options for loops of small steps, and JAX's own cache, which stores the programs of orders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation import compilation
from jax_diversity.foundation.compilation import call, keep_compiled_programs
from tests.support.many_devices import alike_characteristics
from tests.support.programs import ROOT

ORDERED = """
import sys, numpy as np, jax_diversity as jd
from tests.support.synthetic import synthetic_characteristics
if sys.argv[1]:
    jd.keep_compiled_programs(sys.argv[1])
chars = synthetic_characteristics(1100, num_clusters=12, num_bins=4)
np.savez(sys.argv[2], **{name: jd.order(chars, name).indices for name in ("balance", "greedy")})
"""


def in_new_process(program: str, *arguments: object, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    environment |= {"PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


def programs(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.glob("*-cache")}


@pytest.mark.campaign
def test_a_later_process_finds_the_programs_of_an_earlier_one(tmp_path: Path) -> None:
    folder, orders = tmp_path / "programs", [tmp_path / f"{name}.npz" for name in ("none", "first", "second", "cut")]
    off = {"HOME": str(tmp_path / "home"), "JAX_ENABLE_COMPILATION_CACHE": "false"}
    in_new_process(ORDERED, "", orders[0], **off)
    assert not (tmp_path / "home").exists()
    # The programs of users; the ones above have the tests' options of XLA, which change no order.
    in_new_process(ORDERED, folder, orders[1], XLA_FLAGS="")
    assert folder.stat().st_mode & 0o077 == 0
    kept = programs(folder)
    assert kept
    in_new_process(ORDERED, folder, orders[2], XLA_FLAGS="")
    assert programs(folder) == kept
    for path in folder.glob("*-cache"):
        path.write_bytes(path.read_bytes()[:1000])
    assert "Error reading persistent compilation cache" in in_new_process(ORDERED, folder, orders[3], XLA_FLAGS="")
    expected = np.load(orders[0])
    for path in orders[1:]:
        for name, indices in np.load(path).items():
            np.testing.assert_array_equal(indices, expected[name])


SETTINGS = """
import sys, jax, jax_diversity as jd
jd.keep_compiled_programs(*sys.argv[1:])
print(jax.config.jax_compilation_cache_dir)
"""


@pytest.mark.campaign
def test_the_users_own_choice_is_kept(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home")}
    assert in_new_process(SETTINGS, **home).split() == [str(tmp_path / "home/.cache/jax-diversity/compiled")]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "caches")}
    assert in_new_process(SETTINGS, **cache).split() == [str(tmp_path / "caches/jax-diversity/compiled")]
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own")}
    assert in_new_process(SETTINGS, tmp_path / "other", **own).split() == [str(tmp_path / "own")]
    (tmp_path / "file").write_text("no folder")
    assert in_new_process(SETTINGS, tmp_path / "file" / "programs").split() == ["None"]


def test_the_command_line_keeps_programs(tmp_path: Path) -> None:
    program = "from jax_diversity.cli.main import main; main(); import jax; print(jax.config.jax_compilation_cache_dir)"
    found = in_new_process(program, "--version", HOME=str(tmp_path)).split()
    assert found[-1] == str(tmp_path / ".cache/jax-diversity/compiled")


STORED = """
import sys, jax, jax.numpy as jnp
from jax_diversity.foundation import compilation
compilation._LEAST_SECONDS = 0.0
jax.jit(lambda x: x + 1)(jnp.zeros(3))  # JAX reads its settings when it compiles for the first time
compilation.call(jax.jit(lambda numbers: jnp.sin(numbers).sum()), jnp.arange(5.0))
print(jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size)
jax.jit(lambda x: x + 2)(jnp.zeros(3))
"""


def test_the_packages_programs_are_stored_by_default_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / ".cache/jax-diversity/compiled"
    assert in_new_process(STORED, HOME=str(tmp_path)).split() == ["None", "-1"]
    kept = programs(folder)
    assert len(kept) == 1
    in_new_process(STORED, HOME=str(tmp_path))
    assert programs(folder) == kept
    in_new_process(STORED, HOME=str(tmp_path / "other"), JAX_ENABLE_COMPILATION_CACHE="false")
    assert not (tmp_path / "other").exists()


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / ".cache/jax-diversity/compiled"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    in_new_process(STORED, HOME=str(tmp_path))
    assert not programs(folder)
    folder.chmod(0o700)
    (tmp_path / "file").write_text("no folder")
    in_new_process(STORED, XDG_CACHE_HOME=str(tmp_path / "file"))


def test_calls_in_a_process_with_a_cache_change_nothing(tmp_path: Path) -> None:
    keep_compiled_programs(tmp_path / "programs")
    assert not (tmp_path / "programs").exists()


def test_this_version_of_xla_has_an_option_for_one_thread() -> None:
    assert compilation._supported(compilation._FOR_ONE_THREAD)


def test_options_that_xla_does_not_know_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_FOR_ONE_THREAD", {"xla_of_another_year": True})
    assert call(jax.jit(lambda numbers: numbers.sum()), jax.numpy.arange(5), num_steps=5) == 10
    assert compilation._supported(compilation._FOR_ONE_THREAD) == {}


def test_orders_do_not_depend_on_how_their_programs_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    characteristics = alike_characteristics(1100)
    few = jd.order(characteristics).indices
    monkeypatch.setattr(compilation, "_FEW_STEPS", 0)
    np.testing.assert_array_equal(jd.order(characteristics).indices, few)
