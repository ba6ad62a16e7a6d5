"""Settings that no corpus could satisfy, found before any work is done."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jax_diversity.config.settings import (
    BuildConfig,
    ClusterConfig,
    CorpusConfig,
    OrderConfig,
    PackingConfig,
    RecordsConfig,
    TokenizerConfig,
    TrainConfig,
)
from jax_diversity.errors import UserError


def check_settings(config: BuildConfig) -> None:
    """Refuse settings that no corpus could satisfy.

    Raises:
        UserError: the first such setting, by its dotted name.
    """
    _check_corpus(config.corpus)
    _check_tokenizer(config.tokenizer)
    _check_at_least(1, "embedding", config.embedding, "dimensions max_tokens fit_documents max_terms")
    _check_at_least(0, "embedding", config.embedding, "seed")
    _check_cluster(config.cluster)
    _check_packing(config.packing)
    _check_at_least(1, "characteristics", config.characteristics, "length_bins")
    if not config.characteristics.families:
        raise UserError("Expected characteristics.families to name at least one family, found none.")
    for index, order in enumerate(config.orders):
        _check_order(f"orders[{index}]", order, config.characteristics.families)
    names = [order.name or order.method for order in config.orders]
    if len(set(names)) != len(names):
        raise UserError(f"Expected orders with different names, found {names}; give them `name`.")
    _check_records(config.records, names)
    for size in config.windows:
        if size < 1:
            raise UserError(f"Expected windows >= 1, found {size}.")
    _check_train(config.train)


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
    for family, weight in order.weights.items():
        if family not in families:
            raise UserError(
                f"Expected {where}.weights to weigh families of characteristics.families ({', '.join(families)}), "
                f"found {family!r}; add it there or leave it out here."
            )
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
