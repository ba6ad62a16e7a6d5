"""Several hosts with one folder: the same results, and one sentence for everything that can be wrong between them."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jax_diversity.foundation import jobs as package_jobs
from jax_diversity.foundation import shards
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Here
from jax_diversity.foundation.shards import FirstShard, follow, parse_shard
from tests.support import jobs
from tests.support.followers import ABOUT, Follower


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_jobs, "_PACKAGE", "tests")  # hosts run the work of this package only
    monkeypatch.setattr(shards, "_BEAT_SECONDS", 0.05)
    monkeypatch.setattr(shards, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(shards, "_OVER_SECONDS", 0.3)


def first(root: Path, count: int = 2, seconds: float = 10.0) -> FirstShard:
    return FirstShard(root, count, Here(), ABOUT, seconds)


@pytest.mark.parametrize("count", [2, 3])
def test_hosts_share_the_jobs_of_every_map(tmp_path: Path, count: int) -> None:
    followers = [Follower(tmp_path, index, count) for index in range(1, count)]
    with first(tmp_path, count) as executor:
        assert list(executor.map(jobs.count, jobs.counted(tmp_path))) == [*range(7)]
        assert list(executor.map(jobs.count, jobs.counted(tmp_path, 2))) == [0, 1]  # finished jobs
        again = [(str(tmp_path / f"again-{index}"), ("x",)) for index in range(4)]
        assert list(executor.map(jobs.count_in_threads, again)) == [1] * 4
    assert all(follower.end().error is None for follower in followers)
    assert sum(follower.num_jobs for follower in followers) >= 4
    assert len(list(tmp_path.glob("*.txt"))) == 11


def test_a_host_that_starts_again_after_a_stage_looks_for_no_job_of_it(tmp_path: Path) -> None:
    """The stage has moved the files of its jobs away."""
    follower, partial = Follower(tmp_path), tmp_path / "partial"
    partial.mkdir()
    with first(tmp_path) as executor:
        assert list(executor.map(jobs.count, jobs.counted(partial))) == [*range(7)]
        shutil.rmtree(partial)
        again = Follower(tmp_path)
        time.sleep(0.2)
    assert follower.end().error is None
    assert (again.end().error, again.num_jobs) == (None, 0)


def test_a_host_that_comes_after_the_end_has_nothing_to_do(tmp_path: Path) -> None:
    with first(tmp_path, 1):
        pass
    assert Follower(tmp_path, 1, 2).end().error is None


def test_a_host_that_never_started_is_named_and_finished_jobs_are_kept(tmp_path: Path) -> None:
    with (
        pytest.raises(
            UserError,
            match=r"Expected shard 1 of 2 to do its 3 counting jobs, found that it was never started .*count-00001.* "
            r"--shard 1/2 .* kept",
        ),
        first(tmp_path, seconds=0.2) as executor,
    ):
        list(executor.map(jobs.count, jobs.counted(tmp_path)))
    assert len(list(tmp_path.glob("*.txt"))) == 4
    follower = Follower(tmp_path)
    with first(tmp_path) as executor:
        assert list(executor.map(jobs.count, jobs.counted(tmp_path))) == [*range(7)]
    assert follower.end().num_jobs == 3


def test_a_host_without_the_first_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Expected shard 0 of 2 to build .* found that it was never started"):
        follow(tmp_path, 1, 2, Here(), ABOUT, 0.2)


@pytest.mark.parametrize(
    ("count", "about", "sentence"),
    [
        (2, ABOUT | {"tokenizer.vocab_size": 600}, "same settings and versions on all shards, found tokenizer.vocab"),
        (2, ABOUT | {"version of jax": "2"}, "found version of jax='[12]' on shard"),
        (3, ABOUT, r"Expected [23] shards, as of shard \d/[23], found shard \d/[23] in the same folder"),
    ],
)
def test_hosts_with_other_settings_are_refused(
    tmp_path: Path, count: int, about: dict[str, Any], sentence: str
) -> None:
    follower = Follower(tmp_path, 1, count, about)
    with pytest.raises(UserError) as raised, first(tmp_path) as executor:
        list(executor.map(jobs.count, jobs.counted(tmp_path)))
    # The host that looks first names the difference, and the other one repeats its sentence.
    for said in (str(raised.value), follower.end().error):
        assert re.search(sentence, str(said)), said


def test_what_fails_on_one_host_ends_all_with_its_sentence(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    names = [(str(tmp_path / "done"), ("x",)), (str(tmp_path / "wrong"), ("Expected a, found b.",))]
    list(Here().map(jobs.count, names[:1]))
    with pytest.raises(UserError, match=r"Shard 1 of 2 failed: Expected a, found b\."), first(tmp_path) as executor:
        list(executor.map(jobs.refuse, names))
    assert follower.end().error == "Expected a, found b."


@pytest.fixture
def announced(tmp_path: Path) -> Iterator[Path]:
    """The list of jobs of a first host that is running."""
    with first(tmp_path) as executor:
        assert executor is not None
        yield tmp_path / ".shards" / "jobs.json"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"work": "os:system"}, "Expected work of this package in .*jobs.json, found 'os:system'"),
        ({"work": "tests.support.jobs:nothing"}, "Expected the name of work of this version"),
        ({"work": "tests.support.jobs:counted"}, "Expected the name of work of this version"),
        ({"jobs": 7}, "Expected a list of jobs"),
        ({"jobs": [["a", []], ["/somewhere/else", ["x"]]]}, "which is outside it"),
    ],
)
def test_a_list_of_jobs_that_others_made_runs_no_code(
    tmp_path: Path, announced: Path, changes: dict[str, Any], sentence: str
) -> None:
    token = json.loads((tmp_path / ".shards" / "0.json").read_text())["token"]
    name = str(tmp_path / "count")
    plain = {"token": token, "number": 1, "work": "tests.support.jobs:count", "jobs": [[name, ["x"]]] * 2}
    announced.write_text(json.dumps(plain | changes))
    follower = Follower(tmp_path).end()
    assert follower.error is not None
    assert re.search(sentence, follower.error), follower.error


@pytest.mark.core
@pytest.mark.parametrize(
    ("text", "expected"), [("0/1", (0, 1)), ("7/8", (7, 8)), ("auto", (2, 4))], ids=["one", "last", "auto"]
)
def test_the_number_of_a_host(monkeypatch: pytest.MonkeyPatch, text: str, expected: tuple[int, int]) -> None:
    monkeypatch.setenv("SLURM_PROCID", "2")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert parse_shard(text) == expected
    for name, value in {"ID": "7", "MIN": "3", "STEP": "2", "COUNT": "5"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    assert parse_shard("auto") == (2, 5)


@pytest.mark.core
@pytest.mark.parametrize("text", ["8/8", "9/8", "0/0", "-1/8", "1", "1/", "a/b", "", "1/8/9"])
def test_a_number_out_of_range_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="Expected a shard "):
        parse_shard(text)


def test_the_number_of_a_host_on_gke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a.b,c.d,e.f")
    assert parse_shard("auto") == (1, 3)


def test_no_number_to_take_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"Expected the number of this host from Slurm .* give --shard i/n"):
        parse_shard("auto")
    monkeypatch.setenv("SLURM_NTASKS", "many")
    with pytest.raises(UserError, match="Expected a number in SLURM_NTASKS, found 'many'"):
        parse_shard("auto")
