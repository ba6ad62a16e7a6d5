"""A whole build whose out is an address: the bytes of a build into a folder, after kills and on hosts without one."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import fsspec.config
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.corpus.passes.settings import PreparationConfig, StepConfig
from jax_diversity.corpus.readers import reading
from jax_diversity.foundation import mirror, object_store
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.mirror import local_folder
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.building import build
from jax_diversity.pipeline.execution import ExecutionConfig, executing
from jax_diversity.records import sorting
from jax_diversity.records.settings import RecordsConfig
from tests.support.store_faults import ADDRESS, Faults, KilledError
from tests.support.tiny_corpus import tiny_config


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(object_store, "_FIRST_WAIT_SECONDS", 1e-4)
    monkeypatch.setattr(mirror, "_DEAD_SECONDS", 0.01)
    monkeypatch.setattr(os, "fsync", lambda file: None)


def contents(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if not name.startswith((".", "build.log"))}


def read_folder(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return contents({path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})


@pytest.mark.campaign
def test_a_build_killed_again_and_again_ends_like_one_in_a_folder(
    tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(monkeypatch)
    config = dataclasses.replace(tiny_config(tiny_dataset.parent / "corpus", tiny_dataset), out=ADDRESS)
    rng = np.random.default_rng(0)
    num_kills = 0
    while True:
        faults.left = int(rng.integers(5, 60))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the lease of the killed build
            try:
                Build(config).run_all()
                break
            except KilledError:
                num_kills += 1
        faults.left = None
        if num_kills % 2:
            shutil.rmtree(local_folder(ADDRESS).parent)
    faults.left = None
    assert num_kills >= 3
    assert contents(faults.objects()) == read_folder(tiny_dataset)
    assert {name for name in faults.objects() if name.startswith(".")} == {f".lease/{num_kills + 1:08d}"}
    dataset = jd.open_dataset(ADDRESS)
    assert dataset.verify() == []
    found, expected = (
        np.concatenate([batch["inputs"] for batch in jd.make_loader(each, global_batch_size=8)])
        for each in (dataset, tiny_dataset)
    )
    np.testing.assert_array_equal(found, expected)
    # A verb goes on with what is in the store, and without the files of an earlier machine.
    shutil.rmtree(local_folder(ADDRESS).parent)
    results = Build(config).run_all()
    assert all(result.kept for result in results)
    assert not list(local_folder(ADDRESS).rglob("*.bin"))  # nothing was fetched


@pytest.mark.campaign
@pytest.mark.parametrize("stage", ["prepare", "write"])
def test_hosts_that_share_only_a_store_make_the_same(
    tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "local", {"auto_mkdir": True})
    folder, bucket = tmp_path / "folder" / "dataset", tmp_path / "bucket" / "dataset"
    config = tiny_config(tiny_dataset.parent / "corpus", folder)
    if stage == "write":  # from the files of the other stages
        config = dataclasses.replace(config, records=RecordsConfig(layout="ordered", sequences_per_file=100))
        shutil.copytree(tiny_dataset, folder)
        shutil.copytree(tiny_dataset, bucket)
    else:
        steps = StepConfig("words", {"least": 12}), StepConfig("minhash", {})
        config = dataclasses.replace(config, preparation=PreparationConfig(steps=steps))
    # Host 0 divides the work: a job for every file of the corpus, and several runs of sequences.
    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    monkeypatch.setattr(sorting, "_BUCKET_BYTES", 10_000)
    Build(config).run_stage(stage)
    shared = dataclasses.replace(config, out=f"local://{bucket}")
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(dataclasses.asdict(shared)))
    command = [sys.executable, "-m", "jax_diversity", stage, "--config", str(settings), "--out", shared.out]
    command += ["--shard", "1/2", "--quiet"]
    others = {"PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu", "FSSPEC_LOCAL_AUTO_MKDIR": "1"}
    environment = os.environ | others | {"XDG_CACHE_HOME": str(tmp_path / "elsewhere")}
    second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    with executing(shared, ExecutionConfig(processes=1, shard="0/2", shard_minutes=1.0)) as executor:
        Build(shared, executor=executor).run_stage(stage)
    said = second.communicate(timeout=100)
    assert second.returncode == 0, said
    assert int(said[0].split(": ")[1].split()[0]) >= 4, said
    assert read_folder(bucket) == read_folder(folder)
    assert not list(bucket.rglob("*.done.json"))


def test_a_ray_cluster_needs_a_folder(tiny_dataset: Path) -> None:
    with pytest.raises(UserError, match="Expected a folder that all machines of the Ray cluster share"):
        build(tiny_dataset.parent / "corpus" / "*.jsonl", ADDRESS, quiet=True, ray=True)
