"""Typed settings of a build: defaults, YAML files, dotted overrides on the command line, checks.

`BuildConfig` is a tree of frozen dataclasses, one for each stage; `load_config` reads a YAML file of the same
shape. The command line parses the same tree, so `--packing.sequence-length 512` overrides what a file says.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jax_diversity.errors import UserError

PYTHON_ENVIRONMENT = "python-environment"


@dataclass(frozen=True)
class CorpusConfig:
    """Which documents, and which of their fields are what."""

    paths: tuple[str, ...] = ()
    """Files or globs (local or any fsspec address, `gs://bucket/*.jsonl.gz`), or the word `python-environment`
    for the modules, docstrings, READMEs and licences of the installed Python packages."""
    format: Literal["auto", "jsonl", "parquet", "text"] = "auto"
    """What the files are; `auto` goes by their names."""
    text_field: str = "text"
    """The field that holds a document's text."""
    id_field: str | None = "id"
    """The field that holds its id; where absent, an id is made of file name and place."""
    source_field: str = "source"
    """The field that names where it comes from; where absent, the file's name serves."""
    language_field: str = "language"
    """The field that holds its language."""
    title_field: str = "title"
    """The field that holds its title."""
    duplicate_ids: Literal["error", "rename"] = "error"
    """What to do when an id comes twice: stop, or append `#2`, `#3` ..."""
    strict: bool = False
    """Stop at the first broken record instead of counting it and going on."""
    max_bytes: int | None = None
    """Keep a part of the corpus of about this many bytes of text, chosen by a hash of the documents' ids
    (python-environment) or from the start (files)."""
    file_bytes: int = 16 * 2**20
    """Text bytes in a stored file of documents; also what is held in memory at a time."""


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes token ids."""

    kind: Literal["bpe", "bytes", "file"] = "bpe"
    """`bpe` trains byte-level BPE on the corpus, `bytes` takes UTF-8 bytes, `file` reads a tokenizer.json."""
    path: str | None = None
    """The tokenizer.json (kind `file`)."""
    end_token: str | None = None
    """The end-of-document token of a tokenizer.json; None looks for the usual names."""
    vocab_size: int = 16_384
    """Vocabulary of a trained BPE, the end token included."""
    train_bytes: int = 16 * 2**20
    """Text bytes that BPE is trained on, spread evenly over the corpus."""


@dataclass(frozen=True)
class EmbeddingConfig:
    """How documents become vectors (TF-IDF and truncated SVD)."""

    dimensions: int = 128
    """Width of a document's vector."""
    max_characters: int = 4096
    """Only a document's first characters are read (about 1,024 tokens)."""
    fit_documents: int = 20_000
    """Documents the vocabulary, the weights and the SVD are fitted on."""
    max_terms: int = 50_000
    """Terms kept, the most frequent first."""
    seed: int = 0
    """Seed of their choice and of the randomised SVD."""


@dataclass(frozen=True)
class ClusterConfig:
    """How vectors become topic clusters."""

    num_clusters: int = 1000
    """Number of clusters, k."""
    backend: Literal["jax", "sklearn"] = "jax"
    """`jax`: jit-compiled Lloyd k-means; `sklearn`: MiniBatchKMeans."""
    max_iterations: int = 25
    """Most passes of Lloyd's algorithm."""
    train_documents: int = 200_000
    """Documents the centroids are computed from; the rest are assigned to the nearest."""
    seed: int = 0
    """Seed of the starting centroids and of the choice of training documents."""


@dataclass(frozen=True)
class PackingConfig:
    """How documents become sequences of one length."""

    method: Literal["concat"] = "concat"
    """`concat`: documents end to end, cut every L tokens."""
    sequence_length: int = 512
    """L: tokens a sequence."""
    shuffle_documents: bool = True
    """Concatenate the documents in a random order instead of the corpus's own."""
    last_sequence: Literal["drop", "pad"] = "drop"
    """The unfilled last sequence is dropped, or padded."""
    validation_fraction: float = 0.01
    """Share of documents (by a hash of their ids) kept for validation; copies of a text stay together."""
    seed: int = 0
    """Seed of the documents' order."""


@dataclass(frozen=True)
class CharacteristicsConfig:
    """Which families an ordering balances."""

    families: tuple[Literal["cluster", "length", "source", "language"], ...] = ("cluster", "length")
    """The families that orderings see, the first being the one whose norm is balanced. All four are stored."""
    length_bins: int = 100
    """Quantile bins of the documents' token counts."""


@dataclass(frozen=True)
class OrderConfig:
    """One ordering: method, seed, objective."""

    method: str = "greedy"
    """A method's name; an unknown one lists them."""
    name: str | None = None
    """Name of the ordering; None takes the method's."""
    seed: int = 0
    """Seed of the methods that draw."""
    objective: Literal["default", "f1", "f2", "f3"] = "default"
    """`default`: families, norm column, self weight 0.5; f1, f2, f3: exactly as published."""
    weights: dict[str, float] = field(default_factory=dict)
    """λ per family; 1.0 where not given."""
    windows: tuple[int, ...] = ()
    """Window sizes that matter besides the whole prefix, such as the batch size, in sequences."""
    window_weight: float = 0.5
    """β, the weight of the windows."""
    norm_weight: float | None = None
    """λ of the norm column; None takes the objective's own."""
    self_weight: float | None = None
    """Weight of a sequence's own squared excess; None takes the objective's own."""


@dataclass(frozen=True)
class RecordsConfig:
    """How sequences are stored for training."""

    layout: Literal["packed", "ordered"] = "packed"
    """`packed`: as packed, any ordering reads through its permutation; `ordered`: in the order of `ordering`."""
    ordering: str = "greedy"
    """The ordering that the ordered layout follows."""
    sequences_per_file: int = 65_536
    """Records a file holds at most."""


@dataclass(frozen=True)
class TrainConfig:
    """The lab's small GPT and its training run."""

    ordering: str = "greedy"
    """The ordering that feeds the run."""
    num_steps: int = 200
    """Optimiser steps."""
    batch_size: int = 16
    """Sequences a step."""
    num_layers: int = 2
    """Transformer blocks."""
    num_heads: int = 4
    """Attention heads."""
    width: int = 128
    """Model width."""
    learning_rate: float = 3e-3
    """Peak of the cosine schedule."""
    warmup_steps: int = 20
    """Steps of linear warm-up."""
    checkpoint_every: int = 100
    """Steps between checkpoints; model, optimiser and input position together."""
    validate_every: int = 50
    """Steps between validation losses."""
    validation_batches: int = 8
    """Batches of validation sequences that a validation loss looks at, at most; 0 for none."""
    seed: int = 0
    """Seed of the weights."""


@dataclass(frozen=True)
class BuildConfig:
    """Everything from a corpus to an ordered, stored, measured dataset."""

    out: str = "out"
    """The dataset's folder."""
    corpus: CorpusConfig = CorpusConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    cluster: ClusterConfig = ClusterConfig()
    packing: PackingConfig = PackingConfig()
    characteristics: CharacteristicsConfig = CharacteristicsConfig()
    orders: tuple[OrderConfig, ...] = (OrderConfig(method="uniform_shuffle"), OrderConfig(method="greedy"))
    """The orderings to make."""
    records: RecordsConfig = RecordsConfig()
    windows: tuple[int, ...] = (64, 256, 1024)
    """Window sizes, in sequences, at which orderings are measured."""
    train: TrainConfig = TrainConfig()

    def check(self) -> None:
        """Settings that no corpus could satisfy.

        Raises:
            UserError: the first such setting, by its dotted name.
        """
        _check_corpus(self.corpus)
        _check_tokenizer(self.tokenizer)
        _check_at_least(1, "embedding", self.embedding, "dimensions max_characters fit_documents max_terms")
        _check_at_least(0, "embedding", self.embedding, "seed")
        _check_cluster(self.cluster)
        _check_packing(self.packing)
        _check_at_least(1, "characteristics", self.characteristics, "length_bins")
        if not self.characteristics.families:
            raise UserError("Expected characteristics.families to name at least one family, found none.")
        for index, order in enumerate(self.orders):
            _check_order(f"orders[{index}]", order, self.characteristics.families)
        names = [order.name or order.method for order in self.orders]
        if len(set(names)) != len(names):
            raise UserError(f"Expected orders with different names, found {names}; give them `name`.")
        _check_records(self.records, names)
        for size in self.windows:
            if size < 1:
                raise UserError(f"Expected windows >= 1, found {size}.")
        _check_train(self.train)


def _check_at_least(least: int, section: str, settings: Any, names: str) -> None:
    for name in names.split():
        value = getattr(settings, name)
        if value is not None and value < least:
            raise UserError(f"Expected {section}.{name} >= {least}, found {value}.")


def _check_weight(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise UserError(f"Expected {name} to be finite and >= 0, found {value}.")


def _check_corpus(corpus: CorpusConfig) -> None:
    if not corpus.paths:
        raise UserError(
            "Expected corpus.paths to name files or `python-environment`, found nothing; "
            "pass --corpus.paths 'texts/*.jsonl.gz'."
        )
    _check_at_least(1, "corpus", corpus, "max_bytes file_bytes")


def _check_tokenizer(tokenizer: TokenizerConfig) -> None:
    _check_at_least(1, "tokenizer", tokenizer, "train_bytes")
    if tokenizer.kind == "bpe" and tokenizer.vocab_size < 257:
        raise UserError(
            f"Expected tokenizer.vocab_size >= 257 (256 bytes and the end token), found {tokenizer.vocab_size}."
        )
    if tokenizer.kind == "file":
        if not tokenizer.path:
            raise UserError(
                "Expected tokenizer.path with tokenizer.kind=file, found nothing; name a tokenizer.json."
            )
        if "://" not in tokenizer.path and not Path(tokenizer.path).is_file():
            raise UserError(
                f"Expected tokenizer.path to be a tokenizer.json, found no file at {tokenizer.path}; "
                "name one that exists."
            )
    elif tokenizer.end_token is not None:
        raise UserError(
            f"Expected tokenizer.end_token only with tokenizer.kind=file, found {tokenizer.end_token!r} with "
            f"{tokenizer.kind}, which brings an end token of its own; leave the setting out."
        )


def _check_cluster(cluster: ClusterConfig) -> None:
    _check_at_least(1, "cluster", cluster, "num_clusters max_iterations train_documents")
    _check_at_least(0, "cluster", cluster, "seed")
    if cluster.num_clusters > cluster.train_documents:
        raise UserError(
            f"Expected cluster.num_clusters of at most cluster.train_documents ({cluster.train_documents}), "
            f"found {cluster.num_clusters}."
        )


def _check_packing(packing: PackingConfig) -> None:
    _check_at_least(2, "packing", packing, "sequence_length")
    _check_at_least(0, "packing", packing, "seed")
    if not 0 <= packing.validation_fraction < 1:
        raise UserError(f"Expected packing.validation_fraction in [0, 1), found {packing.validation_fraction}.")


def _check_order(where: str, order: OrderConfig, families: tuple[str, ...]) -> None:
    _check_at_least(0, where, order, "seed")
    unknown = sorted(set(order.weights) - set(families))
    if unknown:
        raise UserError(
            f"Expected {where}.weights to weigh characteristics.families ({', '.join(families)}), found unknown "
            f"families {unknown}; add them there or leave them out here."
        )
    for family, weight in order.weights.items():
        _check_weight(f"{where}.weights.{family}", weight)
    for name in ("window_weight", "norm_weight", "self_weight"):
        _check_weight(f"{where}.{name}", getattr(order, name))
    for size in order.windows:
        if size < 1:
            raise UserError(f"Expected {where}.windows >= 1, found {size}.")


def _check_records(records: RecordsConfig, orderings: list[str]) -> None:
    _check_at_least(1, "records", records, "sequences_per_file")
    if records.layout == "ordered" and records.ordering not in orderings:
        raise UserError(
            f"Expected records.ordering to be one of the orders ({', '.join(orderings) or 'none'}), "
            f"found {records.ordering!r}; add it to orders or choose records.layout=packed."
        )


def _check_train(train: TrainConfig) -> None:
    _check_at_least(1, "train", train, "num_steps batch_size num_layers num_heads width")
    _check_at_least(1, "train", train, "validate_every checkpoint_every")
    _check_at_least(0, "train", train, "warmup_steps validation_batches seed")
    if train.width % (2 * train.num_heads):
        raise UserError(
            f"Expected train.width to be a multiple of twice train.num_heads ({2 * train.num_heads}), "
            f"found {train.width}."
        )
    if not 0 < train.learning_rate < math.inf:
        raise UserError(f"Expected train.learning_rate to be finite and > 0, found {train.learning_rate}.")


def load_config(path: str | Path, base: BuildConfig | None = None) -> BuildConfig:
    """Read a YAML file of `BuildConfig`'s shape; what it leaves out is as in `base`, or else the default.

    Raises:
        UserError: no such file, no YAML, an unknown key, a value of the wrong type: the file is named.
    """
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"Expected a configuration file at {path}, found none.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    values = {} if values is None else values  # an empty file
    if base is not None and isinstance(values, dict):
        values = _overlaid(as_plain(base), values)
    try:
        return config_from_plain(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _overlaid(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Nested settings over others; lists and single values replace, sections merge."""
    merged = dict(base)
    for key, value in values.items():
        section = merged.get(key)
        merged[key] = _overlaid(section, value) if isinstance(section, dict) and isinstance(value, dict) else value
    return merged


def config_from_plain(values: Any) -> BuildConfig:
    """Plain nested values (of YAML, of a manifest) as a `BuildConfig`.

    Raises:
        UserError: an unknown key, a value of the wrong type.
    """
    return _build(BuildConfig, values, where="")


def _build(kind: Any, value: Any, where: str) -> Any:
    """Turn plain YAML values into the dataclass, tuple, literal or scalar that `kind` asks for."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise UserError(f"Expected settings below {where or 'the file'}, found {value!r}.")
        kinds = typing.get_type_hints(kind)
        names = [item.name for item in dataclasses.fields(kind)]
        for key in value:
            if key not in names:
                dotted = f"{where}.{key}".lstrip(".")
                raise UserError(f"Unknown setting {dotted}; expected one of {', '.join(names)}.")
        return typing.cast(Any, kind)(
            **{key: _build(kinds[key], item, f"{where}.{key}".lstrip(".")) for key, item in value.items()}
        )
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _build(next(item for item in arguments if item is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"Expected a list for {where}, found {value!r}.")
        return tuple(_build(arguments[0], item, where) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"Expected names and values for {where}, found {value!r}.")
        return {str(key): _build(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal:
        if value not in arguments:
            raise UserError(f"Expected {where} to be one of {', '.join(map(str, arguments))}, found {value!r}.")
        return value
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):  # YAML reads 3e-3, which lacks a point, as text
            return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"Expected {where} to be {kind.__name__}, found {value!r}.")
    return value


def as_plain(config: Any) -> dict[str, Any]:
    """A config as plain JSON-ready values, for fingerprints and manifests."""
    return dataclasses.asdict(config)


def demo_config() -> BuildConfig:
    """The demonstration: some megabytes of the installed Python packages' texts, and a short training run."""
    return BuildConfig(
        out="demo",
        corpus=CorpusConfig(paths=(PYTHON_ENVIRONMENT,), max_bytes=24 * 2**20),
        tokenizer=TokenizerConfig(vocab_size=8192, train_bytes=8 * 2**20),
        cluster=ClusterConfig(num_clusters=200),
        packing=PackingConfig(sequence_length=256, validation_fraction=0.02),
        characteristics=CharacteristicsConfig(families=("cluster", "length", "source"), length_bins=50),
        train=TrainConfig(num_steps=200, batch_size=8, validate_every=50, checkpoint_every=100),
    )
