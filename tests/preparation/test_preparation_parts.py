"""Preparation over parts of a corpus: any number of processes, a cluster, kills in between, the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Executor, Here, Processes
from jax_diversity.foundation.ray_cluster import RayCluster
from jax_diversity.preparation.passes import parts
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.schema import Document
from tests.support.prepared_parts import STEPS, made_documents


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def prepared(folder: Path, executor: Executor | None = None) -> tuple[list[Document], dict]:
    chain = Chain(STEPS, executor or Here())
    return list(chain.through(made_documents(), folder)), contents(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Document], dict]:
    """What comes out where one part holds the whole corpus."""
    return prepared(tmp_path_factory.mktemp("whole"))


def test_what_is_done_with_all_documents(whole: tuple[list[Document], dict]) -> None:
    left, files = whole
    assert set(files) == {"decisions/decisions-00000.parquet", "examples.json", "funnel.json"}
    funnel = json.loads(files["funnel.json"])
    assert [step["step"] for step in funnel["steps"]] == [
        "words",
        "exact_duplicates",
        "personal_data",
        "minhash",
        "words_2",
    ]
    assert funnel["read"] == 400
    assert funnel["kept"] == len(left)
    removed = [sum(step["removed"].values()) for step in funnel["steps"]]
    assert removed[0] >= 5
    assert removed[1] >= 20
    assert removed[3] >= 20
    assert sum(funnel["steps"][2]["found"].values()) == funnel["steps"][2]["edited"] > 10


@pytest.mark.parametrize("part_documents", [13, 400])
def test_parts_change_nothing(whole, part_documents: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_PART_DOCUMENTS", part_documents)
    assert prepared(tmp_path) == whole


@pytest.mark.campaign
def test_processes_change_nothing(whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_PART_DOCUMENTS", 37)
    assert prepared(tmp_path, Processes(2)) == whole


@pytest.mark.campaign
def test_a_cluster_changes_nothing(whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(parts, "_PART_DOCUMENTS", 100)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        assert prepared(tmp_path, RayCluster()) == whole
        slow = [Document("a", "kept", "web"), Document("b", "deaf", "web"), Document("c", "kept", "web")]
        chain = Chain([("python", {"function": "tests.support.faulty:act"})], RayCluster(), seconds_per_document=2.0)
        assert [document.id for document in chain.through(slow)] == ["a", "c"]
        assert chain.funnel()[0]["removed"] == {"took_too_long": 1}
    finally:
        ray.shutdown()


KILLED = """
import os, sys
from pathlib import Path
from jax_diversity.preparation.passes import parts
from tests.support.prepared_parts import STEPS, made_documents
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.foundation.executors import Processes
from jax_diversity.preparation.passes import phases, tally
from jax_diversity.preparation.steps import duplicates

parts._PART_DOCUMENTS = 37
moment, what = int(sys.argv[2]), 0

def counted(function):
    def call(*args, **kwargs):
        global what
        what += 1
        if what == moment:
            os.kill(os.getpid(), 9)
        return function(*args, **kwargs)
    return call

phases.write_part = counted(phases.write_part)
tally.read_part = counted(tally.read_part)
phases.NoteBook.write = counted(phases.NoteBook.write)
duplicates.write_json = counted(duplicates.write_json)
list(Chain(STEPS, Processes(int(sys.argv[3]))).through(made_documents(), Path(sys.argv[1])))
"""


@pytest.mark.campaign
@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_killed_run_goes_on(whole, num_processes: int, tmp_path: Path) -> None:
    """Killed while a part or its notes are written, a survey resolved, documents taken; two processes die together."""
    moments = (3, 16, 23, 9, 20) if num_processes == 1 else (2,)
    for moment in moments:
        arguments = [sys.executable, "-c", KILLED, str(tmp_path), str(moment), str(num_processes)]
        done = subprocess.run(arguments, check=False, env=os.environ | {"PYTHONPATH": os.getcwd()})
        assert done.returncode == -signal.SIGKILL
    finished = len(list((tmp_path / "work").glob("*.part")))
    assert finished > 3
    assert not (tmp_path / "funnel.json").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_PART_DOCUMENTS", 37)
        for leftover in tmp_path.rglob("*.tmp"):
            leftover.unlink()  # as the engine of the build does
        assert prepared(tmp_path) == whole


@pytest.mark.campaign
def test_a_killed_worker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_PART_DOCUMENTS", 37)
    chain = Chain([("python", {"function": "tests.preparation.test_preparation_parts:die"})], Processes(2))
    with pytest.raises(UserError, match=r"2 preparing processes .* smaller number of processes \(--processes\)"):
        list(chain.through(made_documents(), tmp_path))


def die(document: Document) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def test_who_takes_precedence_is_kept(tmp_path: Path) -> None:
    texts = ["same text here", "other", "Same  text here", "SAME TEXT HERE", "third", "same text HERE"]
    sources = ["web", "web", "wiki", "books", "books", "wiki"]
    documents = [Document(f"d{index}", *pair) for index, pair in enumerate(zip(texts, sources, strict=True))]
    for precedence, kept in (([], "d0"), (["books", "wiki"], "d3"), (["wiki", "books"], "d2"), (["news"], "d0")):
        folder = tmp_path / " ".join(["after", *precedence])
        left = list(Chain([("exact_duplicates", {"precedence": precedence})]).through(documents, folder))
        assert {document.id for document in left} == {"d1", "d4", kept}
        rows = pq.read_table(folder / "decisions").to_pylist()
        assert {row["duplicate_of"] for row in rows if row["id"] in ("d0", "d2", "d3", "d5")} == {kept}


def edited(rng: np.random.Generator, words: np.ndarray, share: float) -> np.ndarray:
    """Some words replaced by others that come nowhere else."""
    copy = words.astype(object)
    for place in np.flatnonzero(rng.random(len(words)) < share):
        copy[place] = f"new{rng.integers(10**9)}word"
    return copy


def test_planted_near_duplicates_are_found() -> None:
    """Of copies of which 5 % of the words were edited at least 95 %, and no others."""
    rng = np.random.default_rng(11)
    vocabulary = np.array([f"w{index:x}" for index in rng.zipf(1.3, 4000) % 3000])
    originals = [rng.choice(vocabulary, 200 + int(rng.integers(400))) for _ in range(200)]
    texts = [" ".join(words) for words in (*originals, *(edited(rng, words, 0.05) for words in originals))]
    documents = [Document(str(index), text, "web") for index, text in enumerate(texts)]
    options = {"bands": 28, "rows": 4, "similarity": 0.5, "mark": True}
    groups: dict[Any, set[int]] = {}
    for document in Chain([("minhash", options)]).through(documents):
        if (group := document.metadata.get("minhash_group")) is not None:
            groups.setdefault(group, set()).add(int(document.id))
    assert len(groups) >= 190
    assert all(group == {min(group), min(group) + 200} for group in groups.values())


def test_examples_are_masked_and_few(tmp_path: Path) -> None:
    documents = [Document(f"d{index}", f"write to name{index}@example.org", "web") for index in range(50)]
    documents.append(Document("kept", "a text that is long enough, of name@example.org", "web"))
    chain = Chain([("words", {"least": 6}), ("personal_data", {})])
    list(chain.through(documents, tmp_path))
    examples = json.loads((tmp_path / "examples.json").read_text())
    removed = examples["removed"]["words.words"]
    assert len(removed) == 10
    assert all((each["value"], each["threshold"]) == (5, 6) or each["value"] < 6 for each in removed)
    assert all(each["text"] == "write to <email>" for each in removed)
    assert examples["edited"]["personal_data"][0]["id"] == "kept"
    assert "example.org" not in (tmp_path / "examples.json").read_text()


def test_edited_lines_are_shown(tmp_path: Path) -> None:
    text = "\n".join(
        [*(f"This is the good line number {index}." for index in range(8)), "no sentence", "Another one is good."]
    )
    list(Chain([("c4", {})]).through([Document("a", text, "web")], tmp_path))
    lines = json.loads((tmp_path / "examples.json").read_text())["edited"]["c4"][0]["lines"]
    assert ["-", "no sentence"] in lines
    assert not [line for sign, line in lines if sign == "+"]


def documents_of(texts: list[str]) -> Iterator[Document]:
    for index, text in enumerate(texts):
        yield Document(f"d{index}", text, "web")
