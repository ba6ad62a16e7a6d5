"""A build in this process and on a Ray cluster: the same bytes, also after the loss of a machine."""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.ray_cluster import run_on_machine
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.pipeline.building import build
from jax_diversity.pipeline.execution import ExecutionConfig
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.streaming.records.settings import RecordsConfig
from tests.support.jobs import RELEASED
from tests.support.tiny_corpus import tiny_config, write_corpus

STAGES = ("prepare", "tokenize", "embed", "cluster")
"""The first stages, all with jobs."""


@pytest.fixture(scope="module")
def whole(tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildConfig:
    """The settings of a corpus of two groups of files, and a build of it in one process."""
    out = shutil.copytree(tiny_dataset, tmp_path_factory.mktemp("whole") / "out")
    config = tiny_config(tiny_dataset.parent / "corpus", out)
    Build(config).run_stage("report")  # it names the folder
    return config


def contents(out: str | Path) -> dict[str, bytes]:
    paths = (path for path in sorted(Path(out).rglob("*")) if path.is_file())
    names = {path.relative_to(out).as_posix(): path for path in paths}
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith((".", "build.log"))}


@pytest.mark.campaign
def test_a_ray_cluster_builds_the_same_dataset(whole: BuildConfig, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    from jax_diversity.foundation.ray_cluster import RayCluster

    config = dataclasses.replace(whole, out=str(tmp_path / "out"))
    records = RecordsConfig(layout="ordered", sequences_per_file=300)
    ordered = [
        dataclasses.replace(whole, out=str(shutil.copytree(whole.out, tmp_path / name)), records=records)
        for name in ("ordered", "ordered-here")
    ]
    Build(ordered[1]).run_stage("write")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        for stage in STAGES:
            Build(config, executor=RayCluster()).run_stage(stage)
        Build(ordered[0], executor=RayCluster()).run_stage("write")
    finally:
        ray.shutdown()
    expected = contents(whole.out)
    found = contents(config.out)
    assert len(found) > 20
    assert all(expected[name] == content for name, content in found.items() if name != "manifest.json")
    found, expected = (contents(each.out) for each in ordered)
    assert found == expected
    assert "records/train-00008-of-00009.array_record" in found


ONE_CORE = ("--block", "--num-cpus", "1", "--disable-usage-stats", "--object-store-memory", "100000000")


class Machine:
    """A node of a Ray cluster on this machine, with its own processes."""

    def __init__(self, environment: dict[str, str], *options: str) -> None:
        command = [str(Path(sys.executable).with_name("ray")), "start", *ONE_CORE, *options]
        # From another folder: relative paths of a build are those of its command.
        self._start = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment, cwd="/")

    def processes(self) -> list[psutil.Process]:
        if self._start.poll() is not None:
            return []
        first = psutil.Process(self._start.pid)
        return [first, *first.children(recursive=True)]

    def is_at_work(self) -> bool:
        """Whether one of its processes runs a job; Ray gives a process the name of its task."""
        for process in self.processes():
            with suppress(psutil.Error):
                if "run_on_machine" in " ".join(process.cmdline()):
                    return True
        return False

    def kill(self) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        self._start.wait(60)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[dict[str, str], Machine]]:
    """The environment of the commands of a cluster of two machines, and its second machine."""
    pytest.importorskip("ray")
    # Not below `tmp_path`: the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 32, "PYTHONPATH": os.getcwd()}
        machines = [Machine(environment, "--head", "--port", "0", "--include-dashboard", "false", "--temp-dir", folder)]
        try:
            address = Path(folder, "ray_current_cluster")
            wait_until(lambda: address.exists() and address.read_text())  # Ray makes the file before it writes it
            environment["RAY_ADDRESS"] = address.read_text()
            machines.append(Machine(environment, "--address", environment["RAY_ADDRESS"]))
            yield environment, machines[1]
        finally:
            for machine in machines:
                machine.kill()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.campaign
def test_a_machine_of_a_ray_cluster_is_lost(cluster: tuple[dict[str, str], Machine], tmp_path: Path) -> None:
    environment, second = cluster
    write_corpus(tmp_path / "corpus")
    for out in ("here", "lost"):
        config = tiny_config(Path("corpus"), Path(out, "dataset"))
        config = dataclasses.replace(config, embedding=EmbeddingConfig(method="tests.support.jobs:LengthsOnceReleased"))
        (tmp_path / f"{out}.json").write_text(json.dumps(dataclasses.asdict(config)))
    command = [sys.executable, "-m", "jax_diversity", "build", "--quiet", "--config"]
    about: dict[str, Any] = {
        "cwd": tmp_path,
        "env": environment,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    build = subprocess.Popen([*command, "lost.json", "--ray"], text=True, **about)
    records = str(tmp_path / "lost" / "dataset" / ".partial" / "embed-*" / "*.done.json")
    # The first job of the stage ends, the others wait. So each machine runs a job when the second one is lost.
    # (`Path.glob` would raise if the build removes a folder meanwhile.)
    wait_until(lambda: build.poll() is not None or (glob.glob(records) and second.is_at_work()))
    assert build.poll() is None, build.communicate()
    second.kill()
    (tmp_path / RELEASED).touch()
    said, _ = build.communicate(timeout=300)
    assert build.returncode == 0, said
    subprocess.run([*command, "here.json"], check=True, **about)
    assert contents(tmp_path / "lost" / "dataset") == contents(tmp_path / "here" / "dataset")


def test_a_machine_without_the_folder_of_the_build_is_one_sentence(tmp_path: Path) -> None:
    sentence = r"^Expected all machines of the Ray cluster to share .*, found no .*/absent on .*; name a folder"
    with pytest.raises(UserError, match=sentence):
        run_on_machine(str(tmp_path), "tests.support.jobs:count", "absent/count", ["x"])


TOKENS = """
import os, subprocess, sys, ray

corpus, folder, *tokens = sys.argv[1:]
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
address = ray.get_runtime_context().gcs_address
commands = [
    subprocess.Popen(
        [sys.executable, "-m", "jax_diversity", "prepare", "--ray", "--quiet", "--corpus", corpus]
        + ["--out", f"{folder}/{number}"],
        env={**os.environ, "RAY_ADDRESS": address, "RAY_AUTH_TOKEN": token},
        stderr=subprocess.PIPE,
        text=True,
    )
    for number, token in enumerate(tokens)
]
for command in commands:
    print(command.communicate(timeout=200)[1].strip().rpartition("\\n")[2])
    print(command.returncode)
"""


@pytest.mark.campaign
def test_a_ray_cluster_may_ask_for_a_token(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "text.txt").write_text("A text of a few words.")
    right, wrong = "a" * 32, "b" * 32
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": right}
    done = subprocess.run(
        [sys.executable, "-c", TOKENS, tmp_path / "text.txt", tmp_path, right, wrong],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, first, sentence, second = done.stdout.splitlines()
    assert (first, second) == ("0", "2"), done.stdout
    assert sentence.startswith("jax-diversity: Expected a Ray cluster (RAY_ADDRESS names one), found none that can be")
    assert sentence.endswith("or set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN if it asks for a token.")
    assert (tmp_path / "0" / "manifest.json").is_file()
    assert not (tmp_path / "1" / "manifest.json").exists()


def test_a_negative_number_of_processes_is_one_sentence() -> None:
    with pytest.raises(UserError, match="Expected processes to be a whole number >= 0, found -1"):
        ExecutionConfig(processes=-1).executor()


def test_an_address_is_no_folder_to_build_in(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", 20)
    sentence = r"^Expected a folder to build in \(out\), found the address memory://bucket/out; build into a folder"
    with pytest.raises(UserError, match=sentence):
        build(tmp_path / "corpus" / "*.jsonl", "memory://bucket/out", quiet=True)
    with pytest.raises(UserError, match=sentence):
        recorded_config("memory://bucket/out")


def test_a_file_that_changes_while_it_is_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jax_diversity.preparation.readers import reading

    corpus = write_corpus(tmp_path / "corpus", 20)
    read_jsonl = reading.read_jsonl

    def growing(file, *given):  # type: ignore[no-untyped-def]
        yield from read_jsonl(file, *given)
        with open(file.address, "a") as stored:
            stored.write("{}\n")

    monkeypatch.setattr(reading, "read_jsonl", growing)
    with pytest.raises(UserError, match=r"Expected .*part-0\.jsonl to stay as it is while it is read, found that it"):
        build(corpus / "*.jsonl", tmp_path / "out", quiet=True)


def test_groups_of_files_change_only_the_files_of_documents(
    whole: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax_diversity.preparation.readers import reading
    from jax_diversity.streaming.dataset import open_dataset

    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    config = dataclasses.replace(whole, out=str(tmp_path / "out"))
    Build(config).run_stage("prepare")
    found, expected = open_dataset(config.out), open_dataset(whole.out)
    assert found.num_document_files >= 2
    assert found.documents.to_table().equals(expected.documents.to_table())
    counts, others = dict(found.counts("prepare")), dict(expected.counts("prepare"))
    assert counts.pop("num_files") == found.num_document_files
    others.pop("num_files")
    assert counts == others


def test_an_id_of_two_groups_of_files_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jax_diversity.preparation.readers import reading

    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"id": "one", "text": "some text"}\n')
    with pytest.raises(UserError, match=r"own id, found 'one' at .*a\.jsonl:1 and again at .*b\.jsonl:1"):
        build(tmp_path / "*.jsonl", tmp_path / "out", quiet=True)
