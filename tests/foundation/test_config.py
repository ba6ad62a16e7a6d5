"""Settings from YAML, their checks, their way through a manifest."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from pathlib import Path

import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.settings import read_settings, settings_from_plain
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.settings import BuildConfig, PreparationConfig, demo_config
from jax_diversity.preparation.passes.settings import RECIPES as RECIPES_FOLDER

pytestmark = pytest.mark.core

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
RECIPES = sorted(RECIPES_FOLDER.glob("*.yaml"))


def load(tmp_path: Path, text: str) -> BuildConfig:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return read_settings(path, BuildConfig())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_configurations_that_come_with_the_project(path: Path) -> None:
    read_settings(path, BuildConfig()).check()
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# jax-diversity ")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_recipes_of_preparation(path: Path) -> None:
    """Each is a file of settings, and goes by its name."""
    if "step: language" in path.read_text(encoding="utf-8"):
        pytest.importorskip("py3langid", reason="languages are told with the extra `preparation`")
    config = load_corpus(read_settings(path, BuildConfig()))
    # Files of the user's own that its first line names; any file will do here.
    own = re.findall(r"(\w+\.\w+) '", path.read_text(encoding="utf-8").splitlines()[0].partition("--corpus")[0])
    options = dict.fromkeys(own, str(path))
    dataclasses.replace(config, preparation=dataclasses.replace(config.preparation, options=options)).check()
    named = BuildConfig(preparation=PreparationConfig(recipe=path.stem))
    assert named.preparation.listed() == config.preparation.steps
    assert path.read_text(encoding="utf-8").startswith(f"# jax-diversity build --recipe {path.stem} ")


def load_corpus(config: BuildConfig) -> BuildConfig:
    return dataclasses.replace(config, corpus=dataclasses.replace(config.corpus, paths=("texts/*.jsonl.gz",)))


def test_there_are_configurations() -> None:
    assert CONFIGS
    assert RECIPES


def test_what_a_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    config = load(tmp_path, "corpus: {paths: [a.jsonl]}\npacking: {sequence_length: 128}\ntrain: {learning_rate: 1}\n")
    assert config.packing.sequence_length == 128
    assert config.packing.seed == BuildConfig().packing.seed
    assert config.corpus.paths == ("a.jsonl",)
    assert config.train.learning_rate == 1.0
    assert load(tmp_path, "") == BuildConfig()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("packing: {length: 3}", "Unknown setting packing.length; expected one of method, options, sequence_length"),
        ("packing: {sequence_length: long}", "Expected packing.sequence_length to be int, found 'long'"),
        ("packing: {sequence_length: true}", "Expected packing.sequence_length to be int, found True"),
        ("packing: 3", "Expected settings below packing, found 3"),
        ("corpus: {paths: a.jsonl}", "Expected a list for corpus.paths, found 'a.jsonl'"),
        ("orders: [{objective: f9}]", r"orders\[0\].objective.base to be one of f1, f2, f3, found 'f9'"),
        ("orders: [{method: 3}]", r"Expected orders\[0\].method to be str, found 3"),
        ("train: {learning_rate: fast}", "Expected train.learning_rate to be float, found 'fast'"),
        ("train: {learning_rate: true}", "Expected train.learning_rate to be float, found True"),
        ("orders: [{objective: {windows: 256}}]", r"a list for orders\[0\].objective.windows, found 256"),
        ("orders: [{options: [pool_size]}]", r"Expected names and values for orders\[0\].options"),
        (
            "orders: [{options: {pool_size: [8]}}]",
            r"Expected orders\[0\].options.pool_size to be one of int, float, bool, str, found \[8\]",
        ),
        ("packing: {shuffle_documents: true}", "Unknown setting packing.shuffle_documents"),
        ("packing: {sequence_lenght: 3}", r"sequence_lenght; expected one of .*; did you mean 'sequence_length'\?"),
        ("a: [", "line 1, column 5 is not YAML: expected the node content"),
        ("- 1", "Expected settings as names and values, such as `out: dataset`, found"),
    ],
)
def test_broken_files(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence) as failure:
        load(tmp_path, text)
    assert str(tmp_path / "config.yaml") in str(failure.value)


@pytest.mark.parametrize("number", ["3e-3", "'0.003'", "3.0e-3"])
def test_numbers_that_yaml_reads_as_text(number: str, tmp_path: Path) -> None:
    assert load(tmp_path, f"train: {{learning_rate: {number}}}").train.learning_rate == 0.003


def test_options_keep_their_types(tmp_path: Path) -> None:
    text = "orders: [{method: m, options: {size: 8, share: 0.5, shuffle: false, how: fast}}]"
    (order,) = load(tmp_path, text).orders
    assert order.options == {"size": 8, "share": 0.5, "shuffle": False, "how": "fast"}
    assert [type(value) for value in order.options.values()] == [int, float, bool, str]


def test_an_option_that_is_none(tmp_path: Path) -> None:
    (order,) = load(tmp_path, "orders: [{method: buffer_shuffle, options: {buffer_size: null}}]").orders
    assert order.options == {"buffer_size": None}
    order.check("orders[0]", ("cluster",))
    with pytest.raises(UserError, match="option 'batch_size' to be a whole number, found None"):
        dataclasses.replace(order, options={"batch_size": None}).check("orders[0]", ("cluster",))


def test_settings_can_be_pickled() -> None:
    config = BuildConfig(orders=(OrderConfig(objective=Objective(windows=(64,), family_weights={"cluster": 2.0})),))
    assert pickle.loads(pickle.dumps(config)) == config


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Expected a configuration file at .*absent\.yaml, found none"):
        read_settings(tmp_path / "absent.yaml", BuildConfig())


_WINDOWED = BuildConfig(
    orders=(
        OrderConfig(
            objective=Objective(windows=(64, 256), norm_weight=0.0), options={"pool_size": 9, "shuffle": False}
        ),
    )
)


@pytest.mark.parametrize("config", [BuildConfig(), demo_config(), _WINDOWED], ids=["default", "demo", "windowed"])
def test_settings_survive_json(config: BuildConfig) -> None:
    assert settings_from_plain(BuildConfig, json.loads(json.dumps(dataclasses.asdict(config)))) == config


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "corpus.paths to name files or `python-environment`"),
        ("packing: {sequence_length: 1}", "packing.sequence_length >= 2, found 1"),
        ("packing: {validation_fraction: 1.1}", r"in \[0, 1\], found 1.1"),
        ("cluster: {num_clusters: many}", "cluster.num_clusters to be one of auto, int, found 'many'"),
        ("cluster: {num_clusters: 2.5}", "cluster.num_clusters to be int, found 2.5"),
        ("cluster: {num_clusters: 0}", "cluster.num_clusters from 1 to .* found 0"),
        ("tokenizer: {vocab_size: 256}", "tokenizer.vocab_size >= 257"),
        ("tokenizer: {kind: file}", "tokenizer.path"),
        ("characteristics: {families: []}", "at least one family"),
        ("characteristics: {families: source}", "characteristics.families to be one of auto, a list, found 'source'"),
        ("orders: [{method: greedy}, {method: greedy}]", "different names"),
        ("batch_size: 0", "batch_size to be a whole number >= 1 and <= 2147483647, found 0"),
        ("windows: [0]", "windows to be a whole number >= 1, found 0"),
        ("train: {width: 100, num_heads: 3}", "train.width"),
        ("train: {width: 12, num_heads: 4}", r"multiple of twice train.num_heads \(8\), found 12"),
        ("train: {num_heads: 0}", "train.num_heads >= 1, found 0"),
        ("train: {validate_every: 0}", "train.validate_every >= 1, found 0"),
        ("train: {checkpoint_every: 0}", "train.checkpoint_every >= 1, found 0"),
        ("train: {warmup_steps: -1}", "train.warmup_steps >= 0, found -1"),
        ("train: {validation_batches: -1}", "train.validation_batches >= 0, found -1"),
        ("train: {learning_rate: 0}", "train.learning_rate to be finite and > 0, found 0.0"),
        ("train: {learning_rate: .nan}", "train.learning_rate to be finite and > 0, found nan"),
        ("train: {seed: -1}", "train.seed >= 0, found -1"),
        ("embedding: {seed: -1}", r"embedding.seed from 0 to 2\^32 - 1, found -1"),
        ("cluster: {seed: -1}", r"cluster.seed from 0 to 2\^32 - 1, found -1"),
        ("packing: {seed: -1}", "packing.seed >= 0, found -1"),
        ("orders: [{method: greedy}, {name: b, seed: -1}]", r"orders\[1\].seed >= 0, found -1"),
        (
            "orders: [{objective: {family_weights: {host: 1}}}]",
            r"family_weights .* \(cluster, length, source, language, loss, tokens\), found 'host'",
        ),
        (
            "orders: [{objective: {family_weights: {length: -1}}}]",
            r"orders\[0\].objective: .*family_weights.length to be finite and >= 0, found -1.0",
        ),
        (
            "orders: [{objective: {family_weights: "
            "{cluster: 0, length: 0, source: 0, language: 0, loss: 0, tokens: 0}}}]",
            "zeros",
        ),
        ("orders: [{objective: {windows: [0]}}]", r"orders\[0\].objective: .*windows .*>= 1, found 0"),
        ("orders: [{objective: {window_weight: -1}}]", "window_weight to be finite and >= 0, found -1.0"),
        ("orders: [{objective: {norm_weight: .inf}}]", "norm_weight to be finite and >= 0, found inf"),
        ("orders: [{objective: {self_weight: .nan}}]", "self_weight to be finite and >= 0, found nan"),
        (
            "orders: [{objective: {base: f3, family_weights: {length: 1}}}]",
            "as a list with the base f3, .* found names",
        ),
        ("orders: [{devices: 0}]", r"orders\[0\].devices to be a whole number >= 1, found 0"),
        (
            "orders: [{reverse: true, targets: {shares: {cluster: [[1]]}}}]",
            r"orders\[0\].reverse without targets and after, .* found it with targets; give their phases in reverse",
        ),
        ("orders: [{targets: {starts: [0]}}]", r"orders\[0\].targets.shares with .* found none"),
        ("orders: [{targets: {shares: {host: [[1]]}}}]", r"targets.shares to name families .* found 'host'"),
        (
            "orders: [{targets: {shares: {cluster: []}}}]",
            "targets.shares of 0 phases in every family, found 0 of 'cluster'",
        ),
        (
            "orders: [{targets: {shares: {cluster: [[1], [2]], length: [[1]]}}}]",
            "targets.shares of 2 phases in every family, found 1 of 'length'",
        ),
        ("orders: [{targets: {shares: {cluster: [[-1]]}}}]", "every share .* finite and >= 0, found -1.0"),
        ("orders: [{targets: {shares: {cluster: [[0]]}}}]", r"shares.cluster\[0\] to have a share above zero"),
        ("orders: [{targets: {shares: {cluster: [{a: 0.7, b: 0.5}]}}}]", "add up to at most 1, found 1.2"),
        (
            "orders: [{targets: {shares: {cluster: [[1]]}, linear: true}}]",
            "of two phases, .* found 1 phases and 0 starts",
        ),
        ("orders: [{targets: {shares: {cluster: [[1], [2]]}, starts: [0]}}]", "starts of 2 phases, found 1"),
        (
            "orders: [{targets: {shares: {cluster: [[1], [2]]}, starts: [0, 1.5]}}]",
            r"a fraction in \[0, 1\), found 1.5",
        ),
        ("orders: [{targets: {shares: {cluster: [[1], [2]]}, starts: [0, -1]}}]", "a whole number >= 0, found -1"),
        ("orders: [{targets: {shares: {cluster: [[1], [2]]}, starts: [1, 2]}}]", "to ascend from 0, found 1, 2"),
        (
            "orders: [{targets: {shares: {cluster: [[1], [2], [1]]}, starts: [0, 0.5, 0.5]}}]",
            "to ascend from 0, found 0, 0.5, 0.5",
        ),
        ("orders: [{after: {order: a}}]", r"orders\[0\].after.position with orders\[0\].after.order, found none"),
        ("orders: [{after: {position: 3}}]", r"orders\[0\].after.order with orders\[0\].after.position, found none"),
        ("orders: [{after: {order: b, position: 3}}, {name: b}]", r"made before it \(there is none\), found 'b'"),
        (
            "records: {layout: ordered, ordering: mine}",
            r"one of the orders \(uniform_shuffle, balance\), found 'mine'",
        ),
        ("cluster: {num_clusters: 9, train_documents: 8}", r"cluster.train_documents \(8\), found 9"),
        ("corpus: {paths: [a.jsonl], max_bytes: 0}", "corpus.max_bytes >= 1, found 0"),
        ("tokenizer: {end_token: END}", "tokenizer.end_token with tokenizer.kind=file or .* found 'END' with bpe"),
        ("tokenizer: {path: t.json}", "a tokenizer.json or vocab.json, found no file at t.json"),
        ("tokenizer: {kind: bytes, path: t.json}", "only, found 't.json' with bytes; set tokenizer.kind=file"),
        ("tokenizer: {kind: sentencepiece}", "tokenizer.path .*kind=sentencepiece, found nothing; name a Sentence"),
        ("tokenizer: {kind: tensorflow-text, path: absent.model}", "found no file at absent.model"),
        ("tokenizer: {kind: bytes, cut_at: sentences}", "tokenizer.cut_at with .* found 'sentences' with bytes"),
        (
            "tokenizer: {kind: file, path: absent.json}",
            "a tokenizer.json or vocab.json, found no file at absent.json",
        ),
    ],
)
def test_settings_that_no_corpus_could_satisfy(text: str, sentence: str, tmp_path: Path) -> None:
    if "tensorflow-text" in text:  # its missing library would be named first
        pytest.importorskip("tensorflow_text")
    paths = "" if text == "{}" or text.startswith("corpus") else "corpus: {paths: [a.jsonl]}\n"
    with pytest.raises(UserError, match=sentence):
        load(tmp_path, paths + text).check()


def test_settings_that_some_corpus_could_satisfy(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    config = load(
        tmp_path,
        f"""
        corpus: {{paths: [a.jsonl]}}
        tokenizer: {{kind: file, path: "{tokenizer}", end_token: END}}
        cluster: {{num_clusters: 8, train_documents: 8}}
        records: {{layout: ordered, ordering: mine}}
        orders:
          - name: mine
            objective: {{windows: [16], window_weight: 1, norm_weight: 0, family_weights: {{length: 0}}}}
        train: {{width: 8, num_heads: 4, warmup_steps: 0, validation_batches: 0}}
        """,
    )
    config.check()
