"""Executors: the same files and results, what is finished is kept, and no process is left however a run ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jax_diversity.foundation.artifacts import OutputFolder, file_hash
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Executor, Here, Processes
from jax_diversity.foundation.jobs import Work, gather, read_done, recorded_files
from tests.support import jobs


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


@pytest.mark.core
@pytest.mark.parametrize(
    ("executor", "work"), [(Here(), jobs.count_in_threads), (Processes(1), jobs.count), (Processes(2), jobs.count)]
)
def test_every_executor_writes_the_same_files(tmp_path: Path, executor: Executor, work: Work) -> None:
    for folder in (tmp_path / "here", tmp_path / "other"):
        folder.mkdir()
    expected = list(Here().map(jobs.count, jobs.counted(tmp_path / "here")))
    assert list(executor.map(work, jobs.counted(tmp_path / "other"))) == expected == [*range(7)]
    assert files(tmp_path / "other") == files(tmp_path / "here")
    done = read_done(str(tmp_path / "other" / "count-00003"))
    assert done is not None
    about = {"bytes": 3, "sha256": file_hash(tmp_path / "other" / "count-00003.txt")}
    assert (done.result, done.files) == (3, {"count-00003.txt": about})


@pytest.mark.core
def test_finished_jobs_do_not_run_again(tmp_path: Path) -> None:
    list(Here().map(jobs.count, jobs.counted(tmp_path)))
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    (tmp_path / "count-00002.done.json").write_text("{")
    (tmp_path / "count-00004.txt").unlink()
    (tmp_path / "count-00005.done.json").write_text(json.dumps({"result": 9, "files": [["/etc/passwd", {}]]}))
    with pytest.warns(UserWarning, match=r"Expected 4 bytes in .*count-00004\.txt.*no such file; the job runs again"):
        assert list(Here().map(jobs.count, jobs.counted(tmp_path))) == [*range(7)]
    changed = {name for name, time_ns in times.items() if (tmp_path / name).stat().st_mtime_ns != time_ns}
    assert changed == {f"count-0000{number}.{ending}" for number in (2, 4, 5) for ending in ("txt", "done.json")}


@pytest.mark.core
def test_files_get_other_names_and_keep_their_hashes(tmp_path: Path) -> None:
    work, target = tmp_path / "work", tmp_path / "all"
    work.mkdir()
    list(Here().map(jobs.count, jobs.counted(work, 3)))
    gather(str(target / "all"), {"num": 3}, {work / f"count-0000{n}.txt": target / f"{n}.txt" for n in (2, 1)})
    assert dict(recorded_files(target)).keys() == {target / "1.txt", target / "2.txt"}
    assert read_done(str(target / "all")).result == {"num": 3}  # type: ignore[union-attr]
    assert all(file_hash(path) == about["sha256"] for path, about in recorded_files(target))


def test_a_file_that_was_lost_before_it_is_published_is_named(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    with folder.lock():
        partial = folder.partial("tokenize", "0" * 16, resume=True)
        list(Here().map(jobs.count, jobs.counted(partial, 3)))
        known = dict(recorded_files(partial))
        (partial / "count-00002.txt").unlink()
        with pytest.raises(UserError, match=r"2 bytes in .*count-00002\.txt.*found no such file; run the same command"):
            folder.publish("tokenize", partial, "tokens", {}, owns_folder=True, known=known)
        list(Here().map(jobs.count, jobs.counted(partial, 2)))
        (partial / "count-00002.done.json").unlink()
        (partial / "count-00001.txt.0123dead.tmp").write_text("half")  # of a process that was killed on another host
        folder.publish("tokenize", partial, "tokens", {}, owns_folder=True, known=dict(recorded_files(partial)))
    assert sorted(files(tmp_path / "tokens")) == ["count-00000.txt", "count-00001.txt"]


def test_little_or_whole_work_stays_in_this_process(tmp_path: Path) -> None:
    names = [(str(tmp_path / f"{index}"), ()) for index in range(3)]
    assert set(Processes().map(jobs.process, names)) == {os.getpid()}
    alone = [(str(tmp_path / f"alone-{index}"), ()) for index in range(3)]
    assert set(Processes(2).map(jobs.process_alone, alone)) == {os.getpid()}


def test_what_a_job_finds_wrong_arrives_as_it_is(tmp_path: Path) -> None:
    for executor in (Here(), Processes(2)):
        wrong = [(str(tmp_path / f"wrong-{index}"), ("Expected one, found two.",)) for index in range(2)]
        with pytest.raises(UserError, match=r"^Expected one, found two\.$"):
            list(executor.map(jobs.refuse, wrong))
    begun = time.monotonic()
    with pytest.raises(UserError, match="one of two failed"):
        list(Here().map(jobs.fail_or_tell, [(str(tmp_path / "a"), (False,)), (str(tmp_path / "b"), (True,))]))
    assert time.monotonic() - begun < 30


def waiting(folder: Path, number: int = 2) -> list[tuple[str, tuple]]:
    """Jobs that read from pipes which nobody writes to."""
    for index in range(number):
        os.mkfifo(folder / f"pipe-{index}")
    return [(str(folder / f"job-{index}"), (str(folder / f"pipe-{index}"),)) for index in range(number)]


@pytest.mark.campaign
@pytest.mark.parametrize(("which", "delay"), [(0, 0.0), (1, 1.0)])
def test_a_killed_worker_is_an_error_at_once(tmp_path: Path, which: int, delay: float) -> None:
    errors, given = list[BaseException](), waiting(tmp_path)

    def run() -> None:
        try:
            list(Processes(2).map(jobs.read, given))
        except UserError as error:
            errors.append(error)

    before = set(multiprocessing.active_children())
    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: len(set(multiprocessing.active_children()) - before) == 2)
    time.sleep(delay)
    worker = sorted(set(multiprocessing.active_children()) - before, key=lambda child: child.name)[which]
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    thread.join(120)
    assert not thread.is_alive()
    assert "ended from outside" in str(errors[0])
    wait_for(lambda: not set(multiprocessing.active_children()) - before)


_SCRIPT = """
import signal, sys
from pathlib import Path
from jax_diversity.foundation.executors import Processes
from tests.support import jobs

def main():
    # A job that a shell put in the background ignores interrupts; this one is to hear them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(sys.argv[1])
    names = [(str(folder / f"job-{index}"), (str(folder / f"pipe-{index}"),)) for index in range(2)]
    list(Processes(2).map(jobs.read, names))
"""


def started(folder: Path, ending: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(_SCRIPT + ending)
    command = [sys.executable, str(folder / "script.py"), str(folder)]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(["", os.getcwd()])}
    )


@pytest.mark.campaign
def test_a_script_without_its_guard_is_told_so(tmp_path: Path) -> None:
    done = started(tmp_path, "\nmain()\n")
    said = done.communicate(timeout=120)[1]
    assert done.returncode == 1
    # Python's tracker of semaphores may warn of the worker that ended early.
    lines = [line for line in said.strip().splitlines() if "resource_tracker" not in line]
    assert "a script that starts processes without `if __name__ == '__main__':`" in lines[-1]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.campaign
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_however_it_ends_no_process_is_left(tmp_path: Path, how: signal.Signals) -> None:
    waiting(tmp_path)
    main = started(tmp_path, "\nif __name__ == '__main__':\n    main()\n")
    wait_for(lambda: len(children(main.pid)) == 3)  # two workers, and what counts multiprocessing's resources
    processes = children(main.pid)
    time.sleep(1)  # so that they have begun
    main.send_signal(how)
    main.communicate(timeout=120)
    assert main.returncode == (-signal.SIGKILL if how == signal.SIGKILL else -signal.SIGINT)
    wait_for(lambda: not any(map(is_alive, processes)))
