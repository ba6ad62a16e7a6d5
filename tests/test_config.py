"""Settings from YAML, their checks, their way through a manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jax_diversity.config import BuildConfig, as_plain, config_from_plain, demo_config, load_config
from jax_diversity.errors import UserError

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))


def load(tmp_path: Path, text: str) -> BuildConfig:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_configurations_that_come_with_the_project(path: Path) -> None:
    load_config(path).check()
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# jax-diversity ")


def test_there_are_configurations() -> None:
    assert CONFIGS


def test_what_a_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    config = load(
        tmp_path, "corpus: {paths: [a.jsonl]}\npacking: {sequence_length: 128}\ntrain: {learning_rate: 1}\n"
    )
    assert config.packing.sequence_length == 128
    assert config.packing.seed == BuildConfig().packing.seed
    assert config.corpus.paths == ("a.jsonl",)
    assert config.train.learning_rate == 1.0
    assert load(tmp_path, "") == BuildConfig()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("packing: {length: 3}", "Unknown setting packing.length; expected one of method, sequence_length"),
        ("packing: {sequence_length: long}", "Expected packing.sequence_length to be int, found 'long'"),
        ("packing: {sequence_length: true}", "Expected packing.sequence_length to be int, found True"),
        ("packing: 3", "Expected settings below packing, found 3"),
        ("corpus: {paths: a.jsonl}", "Expected a list for corpus.paths, found 'a.jsonl'"),
        ("cluster: {backend: torch}", "cluster.backend to be one of jax, sklearn, found 'torch'"),
        ("orders: [{method: 3}]", "Expected orders.method to be str, found 3"),
        ("a: [", "is not YAML"),
        ("- 1", "Expected settings below the file"),
    ],
)
def test_broken_files(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        load(tmp_path, text)


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Expected a configuration file at .*absent\.yaml, found none"):
        load_config(tmp_path / "absent.yaml")


@pytest.mark.parametrize("config", [BuildConfig(), demo_config()], ids=["default", "demo"])
def test_settings_survive_json(config: BuildConfig) -> None:
    assert config_from_plain(json.loads(json.dumps(as_plain(config)))) == config


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "corpus.paths to name files or `python-environment`"),
        ("packing: {sequence_length: 1}", "packing.sequence_length >= 2, found 1"),
        ("packing: {validation_fraction: 1.0}", r"in \[0, 1\), found 1.0"),
        ("cluster: {num_clusters: 0}", "cluster.num_clusters >= 1, found 0"),
        ("tokenizer: {vocab_size: 256}", "tokenizer.vocab_size >= 257"),
        ("tokenizer: {kind: file}", "tokenizer.path"),
        ("characteristics: {families: []}", "at least one family"),
        ("orders: [{method: greedy}, {method: greedy}]", "different names"),
        ("windows: [0]", "windows >= 1, found 0"),
        ("train: {width: 100, num_heads: 3}", "train.width"),
    ],
)
def test_settings_that_no_corpus_could_satisfy(text: str, sentence: str, tmp_path: Path) -> None:
    paths = "" if text == "{}" else "corpus: {paths: [a.jsonl]}\n"
    with pytest.raises(UserError, match=sentence):
        load(tmp_path, paths + text).check()
