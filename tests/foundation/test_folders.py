"""A folder is held by one writer at a time, whatever became of those before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.locks import hold, is_locked, locked


def test_writers_take_turns_and_leave_nothing(tmp_path: Path) -> None:
    folder, number = tmp_path / "made" / "here", tmp_path / "number"
    number.write_text("0")

    def count() -> None:
        done = 0
        while done < 30:
            try:
                with hold(folder):
                    before = int(number.read_text())
                    number.write_text(str(before + 1))
            except UserError:
                continue
            done += 1

    with ThreadPoolExecutor(3) as writers:
        for writer in [writers.submit(count) for _ in range(3)]:
            writer.result()
    assert number.read_text() == "90"
    assert list(folder.iterdir()) == []


def hold_once(folder: Path) -> None:
    with hold(folder):
        pass


def test_the_holder_may_hold_it_again_and_others_may_not(tmp_path: Path) -> None:
    with hold(tmp_path), ThreadPoolExecutor(1) as other:
        with hold(tmp_path / "." / ".." / tmp_path.name):
            pass
        with pytest.raises(UserError, match=r"is being written by (this|another) process"):
            other.submit(hold_once, tmp_path).result()
    with ThreadPoolExecutor(1) as other:
        other.submit(hold_once, tmp_path).result()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from jax_diversity.foundation.locks import hold\n"
        "with hold(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    arguments = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"process \(id {holder.pid}\); wait for it"), hold(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with hold(tmp_path):
            pass


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("precious")
    folder.mkdir()
    (folder / ".lock").symlink_to(victim)
    with (
        pytest.raises(UserError, match=r"Expected a folder that can be written, found .*folder \(\.lock:"),
        hold(folder),
    ):
        pass
    assert victim.read_text() == "precious"


def test_a_forked_process_does_not_hold_what_its_parent_holds(tmp_path: Path) -> None:
    """The parent is killed, its child lives: the folder is free."""
    program = f"""
import os, signal, sys, time
from pathlib import Path
from jax_diversity.foundation.locks import is_locked, locked
folder = Path({str(tmp_path / "held")!r})
with locked(folder):
    if os.fork() == 0:
        assert is_locked(folder)  # by the parent
        print("forked", flush=True)
        time.sleep(60)
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"forked\n"
        assert is_locked(tmp_path / "held")
        process.kill()
        process.wait()
        assert not is_locked(tmp_path / "held")
        with locked(tmp_path / "held"):
            assert is_locked(tmp_path / "held")
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the child
