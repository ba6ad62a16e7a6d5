"""The examples of docs/exports.md run as they are written."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

from jax_diversity.cli.main import main
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build
from jax_diversity.sequences.token_store.megatron import TokenFile, TokenWriter
from jax_diversity.streaming.export.settings import MegatronExportConfig
from tests.support.tiny_corpus import tiny_config, write_corpus

pytestmark = pytest.mark.campaign

TEXT = (Path(__file__).parents[3] / "docs" / "exports.md").read_text(encoding="utf-8")
SECTIONS = {part.split("\n", 1)[0].strip("# "): part for part in re.split(r"\n(?=##+ )", TEXT)}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    config = tiny_config(write_corpus(folder / "corpus", num_documents=200), folder / "out")
    packing = dataclasses.replace(config.packing, method="megatron")
    build = Build(dataclasses.replace(config, packing=packing))
    for stage in ("prepare", "tokenize", "embed", "cluster", "pack", "characterize", "write"):
        build.run_stage(stage)
    build.run_orders([OrderConfig()])
    with TokenWriter(folder / "tokens" / "web", np.dtype(np.uint16)) as writer:
        writer.add_documents(list(np.arange(40 * 25).reshape(40, 25)))
    (folder / "records").mkdir()
    for name in ("a", "b"):
        writer = array_record_module.ArrayRecordWriter(str(folder / "records" / f"{name}.array_record"), "group_size:1")
        for index in range(12):
            writer.write(name.encode() * (index + 1))
        writer.close()
    return folder


def run_section(title: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    names: dict[str, Any] = {"np": np, "rows": [rng.integers(0, 99, size).tolist() for size in range(1, 25)]}
    blocks = re.findall(r"```python\n(.*?)```", SECTIONS[title], flags=re.DOTALL)
    assert blocks
    for block in blocks:
        if needed := re.match(r"# needs (\w+)\n", block):
            pytest.importorskip(needed[1], reason="no dependency of the project")
        exec(compile(block, f"exports.md, {title}", "exec"), names)
    return names


def run_command(section: str, place: int, *more: str) -> None:
    """The place-th shell command of a section, on the tiny dataset."""
    command = re.findall(r"```sh\n(.*?)```", SECTIONS[section], flags=re.DOTALL)[place]
    words = re.sub(r"\\\n", " ", command).split()
    assert words[0] == "jax-diversity"
    assert main([*words[1:], "--quiet", *more]) == 0


def test_a_permutation_for_anything(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    run_command("A permutation, for any stack", 0)
    names = run_section("A permutation, for any stack")
    assert sorted(names["order"]) == list(range(len(names["order"])))
    assert len(set(names["documents"].tolist())) == len(names["documents"])


def test_commands_that_write_for_other_stacks(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    run_command("MaxText", 0)
    assert (workplace / "for-maxtext" / "train-00000-of-00001.array_record").is_file()
    run_command("OLMo-core", 0)
    assert (workplace / "work-dir" / "sequences.npy").is_file()


def test_megatron_s_options_are_as_shown() -> None:
    commands = re.findall(r"```sh\n(.*?)```", SECTIONS["Megatron-LM and NeMo"], flags=re.DOTALL)
    assert len(commands) == 2
    known = {field.name.replace("_", "-") for field in dataclasses.fields(MegatronExportConfig)}
    assert {name for command in commands for name in re.findall(r"--megatron\.([a-z-]+)", command)} <= known


def test_levanter(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    examples = run_section("Levanter")["examples"]
    assert len(examples) == 8
    assert examples[0]["tokens"].shape == (32,)


def test_pytorch(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    names = run_section("PyTorch")
    assert names["state"]["position"] == names["again"].position == 24


def test_a_hugging_face_dataset() -> None:
    names = run_section("A Hugging Face dataset")
    expected = [names["rows"][index] for index in names["ordering"].indices]
    assert list(names["in_order"]["input_ids"]) == expected


def test_a_megatron_prefix(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    names = run_section("A Megatron prefix")
    (shuffle,) = (workplace / "token-cache").glob("*-GPTDataset-train-shuffle_index.npy")
    assert np.array_equal(np.load(shuffle), names["ordering"].indices)
    (text,) = (workplace / "token-cache").glob("*-description.txt")
    assert json.loads(text.read_text())["dataset_path"] == "tokens/web"
    assert names["counts"].sum() == 33 * len(names["ordering"])
    assert TokenFile(workplace / "tokens" / "web").num_tokens == 1000


def test_a_folder_of_array_records(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    names = run_section("A folder of ArrayRecord files, as TFDS writes them")
    sizes = [len(names["in_order"][position]) for position in range(24)]
    assert sizes == names["lengths"][names["order"]].tolist()
