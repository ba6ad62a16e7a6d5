"""A build in this process, on two hosts with one folder, and on a Ray cluster: the same bytes, also after kills."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.building import build
from jax_diversity.pipeline.execution import ExecutionConfig
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.records.settings import RecordsConfig
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


def shard(config: BuildConfig, out: Path, number: str, *more: str) -> subprocess.Popen[str]:
    settings = out.with_suffix(".json")
    settings.write_text(json.dumps({**dataclasses.asdict(config), "out": str(out)}))
    command = [sys.executable, "-m", "jax_diversity", "build", "--config", str(settings), "--shard", number, *more]
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.campaign
def test_two_hosts_build_the_same_dataset_though_one_is_killed(whole: BuildConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first, second = shard(whole, out, "0/2", "--quiet"), shard(whole, out, "1/2", "--quiet")
    deadline = time.monotonic() + 200
    while not list(out.glob(".partial/tokenize-*/*.done.json")):
        assert time.monotonic() < deadline
        assert first.poll() is second.poll() is None, (first.communicate(), second.communicate())
        time.sleep(0.01)
    second.send_signal(signal.SIGKILL)
    second.communicate(timeout=60)
    again = shard(whole, out, "1/2", "--quiet")
    said = [host.communicate(timeout=300) for host in (first, again)]
    assert (first.returncode, again.returncode) == (0, 0), said
    assert "jobs done; shard 0 has finished" in said[1][0]
    assert contents(out) == contents(whole.out)


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


@pytest.mark.parametrize(
    ("execution", "sentence"),
    [
        (ExecutionConfig(shard="2/2"), "i from 0 to n - 1, found 2/2"),
        (ExecutionConfig(shard="0/2", ray=True), "either shard or ray, found both"),
        (ExecutionConfig(processes=-1), "Expected processes to be a whole number >= 0, found -1"),
        (ExecutionConfig(shard_minutes=-1.0), "shard_minutes"),
    ],
)
def test_wrong_numbers_are_one_sentence(execution: ExecutionConfig, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        execution.place()


def test_a_file_that_changes_while_it_is_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jax_diversity.corpus.readers import reading

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
    from jax_diversity.corpus.readers import reading
    from jax_diversity.dataset import open_dataset

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
    from jax_diversity.corpus.readers import reading

    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"id": "one", "text": "some text"}\n')
    with pytest.raises(UserError, match=r"own id, found 'one' at .*a\.jsonl:1 and again at .*b\.jsonl:1"):
        build(tmp_path / "*.jsonl", tmp_path / "out", quiet=True)
