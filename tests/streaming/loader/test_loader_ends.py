"""How loaders end: with the program that reads, whichever way it goes, and at the end of a run that is to go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.streaming.records.decoding import BufferPool
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out")


def start(script: Path, text: str) -> subprocess.Popen[str]:
    """A program of its own session, so that whatever it leaves can be ended with it."""
    script.write_text("import jax_diversity as jd\n" + text)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, str(script)], stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    )


def finish(program: subprocess.Popen[str], seconds: float = 120) -> tuple[str, str]:
    """What it printed, once it and all processes that it started are gone: these hold its pipes, too."""
    try:
        return program.communicate(timeout=seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


@pytest.mark.campaign
@pytest.mark.parametrize("settings", ["num_threads=2", "num_workers=1", "num_prefetch=0"])
@pytest.mark.parametrize("pipeline", ["", ".map(dict)"])
def test_a_script_that_ends_with_its_iterator_open_ends_in_silence(
    tiny: TinyDataset, tmp_path: Path, settings: str, pipeline: str
) -> None:
    text = f"""
if __name__ == "__main__":
    it = iter(jd.make_loader({str(tiny.root)!r}, global_batch_size=4, {settings}){pipeline})
    print(next(it)["inputs"].shape)
"""
    program = start(tmp_path / "script.py", text)
    printed, errors = finish(program)
    assert (printed, errors, program.returncode) == ("(4, 16)\n", "", 0)


@pytest.mark.campaign
def test_workers_go_with_a_parent_that_is_killed(tiny: TinyDataset, tmp_path: Path) -> None:
    text = f"""
import time
if __name__ == "__main__":
    it = iter(jd.make_loader({str(tiny.root)!r}, global_batch_size=4, num_workers=2))
    next(it)
    print("reading", flush=True)
    time.sleep(600)
"""
    program = start(tmp_path / "script.py", text)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "reading\n"
        program.kill()
    finally:
        finish(program, seconds=20)  # raises if any is left
    assert program.returncode == -signal.SIGKILL


@pytest.mark.campaign
def test_a_script_without_a_guard_is_told_so(tiny: TinyDataset, tmp_path: Path) -> None:
    program = start(
        tmp_path / "script.py",
        f"next(iter(jd.make_loader({str(tiny.root)!r}, global_batch_size=4, num_workers=1)))",
    )
    _, errors = finish(program)
    assert program.returncode == 1
    (sentence,) = [
        line for line in errors.splitlines() if line.startswith("jax_diversity.streaming.loader.workers.WorkerDied")
    ]
    assert 'if __name__ == "__main__":' in sentence


def test_a_finished_run_goes_on_with_more_epochs(tiny: TinyDataset) -> None:
    number = tiny.segments.num_sequences
    settings: dict[str, Any] = {"global_batch_size": 5, "drop_remainder": False}
    finished = iter(jd.make_loader(tiny.root, num_epochs=1, **settings))
    list(finished)
    state = json.loads(json.dumps(finished.get_state()))
    assert state["position"] == number
    longer = iter(jd.make_loader(tiny.root, num_epochs=None, **settings))
    longer.set_state(state)
    np.testing.assert_array_equal(next(longer)["inputs"], next(iter(jd.make_loader(tiny.root, **settings)))["inputs"])
    longer.close()


def held_bytes(pool: BufferPool) -> int:
    return sum(memory.nbytes for free in pool._free.values() for memory in free)


def test_memory_of_batches_that_were_kept_goes_back_to_the_system() -> None:
    pool = BufferPool()
    kept = [pool.empty((64, 256)) for _ in range(54 * 6)]
    size = kept[0].nbytes
    del kept
    assert 6 * size <= held_bytes(pool) <= 48 * size
    # Parts of batches, as blends of datasets have them, come in many sizes.
    for num_rows in range(1, 65):
        del [pool.empty((num_rows, 256)) for _ in range(6)][:]
    assert held_bytes(pool) <= 4 * 6 * size


def test_memory_is_used_again() -> None:
    pool = BufferPool()
    rows = pool.empty((64, 256))
    address = rows.ctypes.data
    view = rows[3:]
    del rows
    assert pool.empty((64, 256)).ctypes.data != address
    del view
    assert pool.empty((64, 256)).ctypes.data == address
