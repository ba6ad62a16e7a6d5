"""Settings that no corpus could satisfy, found before any work is done."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from jax_diversity.config.settings import (
    PYTHON_ENVIRONMENT,
    BuildConfig,
    CharacteristicsConfig,
    ClusterConfig,
    CorpusConfig,
    EmbeddingConfig,
    OrderConfig,
    PackingConfig,
    RecordsConfig,
    TokenizerConfig,
    TrainConfig,
    tokenizer_files,
)
from jax_diversity.errors import UserError

_MODEL_KINDS = ("sentencepiece", "tensorflow-text")
_FILE_KINDS = ("file", *_MODEL_KINDS)
_COLUMNS = ("id", "text", "num_tokens", "length_bin", "duplicate_group", "documents", "groups")
"""Names that the table and the files of the characteristics have for other things."""
_LONGEST_FAMILY = 200  # bytes, of a file's name
_EMBEDDERS = ("tfidf_svd", "hashing", "qwen3", "precomputed")
_MOST_DIMENSIONS = 8192
"""Beyond, the directions of the terms alone would take gigabytes; one document's topic needs a few hundred."""
_EMBEDDING_OPTIONS = {
    "max_terms": ("tfidf_svd",),
    "path": ("qwen3", "precomputed"),
    "column": ("precomputed",),
    "id_column": ("precomputed",),
    "batch_tokens": ("qwen3",),
    "dtype": ("qwen3",),
}
"""Settings that some embedders alone read; one of the user's own (`module:name`) may read any."""
_LONGEST_SEQUENCE = 2**24
_PACKING_OPTIONS = {
    "atom_size": ("concat", "pad"),
    "num_epochs": ("megatron", "partial_shuffle"),
    "num_samples": ("megatron",),
    "num_rows": ("partial_shuffle",),
    "num_neighbors": ("nearest",),
    "num_candidates": ("nearest",),
}
"""Settings that some packing methods alone have."""
_TOKENIZER_OPTIONS = {
    "path": (
        (*_FILE_KINDS, "stored"),
        "set tokenizer.kind=file for a tokenizer.json or vocab.json, sentencepiece or tensorflow-text for a "
        ".model, or leave the path out",
    ),
    "end_token": (
        (*_FILE_KINDS, "stored"),
        "leave the setting out: trained BPE and bytes bring an end token of their own",
    ),
    "end_id": (("stored",), "leave the setting out, or name the token in tokenizer.end_token"),
    "cut_at": (_MODEL_KINDS, "leave the setting out"),
    "normalization": (
        ("bpe", "bytes", *_FILE_KINDS),
        "leave the setting out: tokens that a corpus brings are not made from its text any more",
    ),
}
"""Settings that some kinds of tokenizers alone have, and what to do where another kind has them."""


def check_settings(config: BuildConfig) -> None:
    """Refuse settings that no corpus could satisfy.

    Raises:
        UserError: the first such setting, by its dotted name.
    """
    _check_corpus(config.corpus)
    _check_tokenizer(config.tokenizer)
    _check_stored_tokens(config.corpus, config.tokenizer)
    _check_embedding(config.embedding)
    _check_cluster(config.cluster)
    _check_packing(config.packing)
    _check_characteristics(config.characteristics)
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


def _check_seed(section: str, seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise UserError(f"Expected {section}.seed from 0 to 2^32 - 1, found {seed}.")


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
    _check_at_least(0, "tokenizer", tokenizer, "num_processes")
    for name, (kinds, advice) in _TOKENIZER_OPTIONS.items():
        value = getattr(tokenizer, name)
        if value != getattr(TokenizerConfig, name) and tokenizer.kind not in kinds:
            raise UserError(
                f"Expected tokenizer.{name} with tokenizer.kind={' or '.join(kinds)} only, found {value!r} with "
                f"{tokenizer.kind}; {advice}."
            )
    if tokenizer.kind in _FILE_KINDS:
        what = "a SentencePiece model" if tokenizer.kind in _MODEL_KINDS else "a tokenizer.json or vocab.json"
        _check_tokenizer_file(tokenizer, what)


def _check_stored_tokens(corpus: CorpusConfig, tokenizer: TokenizerConfig) -> None:
    """A corpus of tokens and `stored` go together, and neither with anything else."""
    if (corpus.format in ("megatron", "tokens")) != (tokenizer.kind == "stored"):
        raise UserError(
            f"Expected tokenizer.kind=stored with corpus.format=megatron or tokens and with no other, found "
            f"{tokenizer.kind} with {corpus.format}; set tokenizer.kind=stored where the corpus holds tokens, "
            "another kind where it holds texts."
        )
    if tokenizer.kind != "stored":
        return
    if PYTHON_ENVIRONMENT in corpus.paths:
        raise UserError(
            f"Expected files of tokens with corpus.format={corpus.format}, found {PYTHON_ENVIRONMENT}, which holds "
            "texts; leave it out of corpus.paths."
        )
    _check_at_least(0, "tokenizer", tokenizer, "end_id")
    if tokenizer.end_id is not None and tokenizer.end_id >= 2**31:
        raise UserError(f"Expected tokenizer.end_id below 2^31, found {tokenizer.end_id}.")
    if tokenizer.end_token is not None and tokenizer.end_id is None and tokenizer.path is None:
        raise UserError(
            f"Expected tokenizer.path with tokenizer.end_token, found {tokenizer.end_token!r} alone; name the "
            "tokenizer.json or vocab.json that has it, or set tokenizer.end_id."
        )
    if tokenizer.path is not None:
        _check_tokenizer_file(tokenizer, "the tokenizer.json or vocab.json that made the tokens")


def _check_tokenizer_file(tokenizer: TokenizerConfig, what: str) -> None:
    if not tokenizer.path:
        raise UserError(
            f"Expected tokenizer.path with tokenizer.kind={tokenizer.kind}, found nothing; name {what}."
        )
    if "://" in tokenizer.path or not Path(tokenizer.path).is_file():
        raise UserError(
            f"Expected tokenizer.path to be {what}, found no file at {tokenizer.path}; "
            "name a local one that exists."
        )
    if tokenizer.kind not in _MODEL_KINDS:
        for file in tokenizer_files(tokenizer.path):
            if not file.is_file():
                raise UserError(
                    f"Expected {file.name} beside {tokenizer.path}, found no such file; a vocabulary alone does "
                    "not say how words become tokens: put both files of the tokenizer into one folder."
                )


def _check_embedding(embedding: EmbeddingConfig) -> None:
    _check_at_least(1, "embedding", embedding, "dimensions max_tokens fit_documents max_terms batch_tokens")
    _check_seed("embedding", embedding.seed)
    if not embedding.method:
        raise UserError("Expected embedding.method to name a method, found nothing; leave it out for tfidf_svd.")
    if embedding.method not in _EMBEDDERS and ":" not in embedding.method:
        raise UserError(
            f"Expected embedding.method to be one of {', '.join(_EMBEDDERS)}, or `module:name` of an embedder of "
            f"your own, found {embedding.method!r}."
        )
    if embedding.dimensions > _MOST_DIMENSIONS:
        raise UserError(
            f"Expected embedding.dimensions <= {_MOST_DIMENSIONS}, found {embedding.dimensions}; 128 to 1024 are "
            "usual."
        )
    for name, methods in _EMBEDDING_OPTIONS.items():
        value = getattr(embedding, name)
        ignored = embedding.method in _EMBEDDERS and embedding.method not in methods
        if ignored and value != getattr(EmbeddingConfig, name):
            raise UserError(
                f"Expected embedding.{name} only with embedding.method={', '.join(methods)} or a `module:name` of "
                f"your own, found {value} with {embedding.method}; leave the setting out, or choose a method that "
                "reads it."
            )
    if embedding.method in ("qwen3", "precomputed") and not embedding.path:
        what = "the checkpoint's folder" if embedding.method == "qwen3" else "the file with the vectors"
        raise UserError(
            f"Expected embedding.path with embedding.method={embedding.method}, found nothing; name {what}."
        )
    if embedding.method == "qwen3" and not os.path.isdir(os.path.expanduser(embedding.path or "")):
        raise UserError(
            f"Expected embedding.path to be a checkpoint's folder with embedding.method=qwen3, found no folder at "
            f"{embedding.path}; name one that exists."
        )


def _check_cluster(cluster: ClusterConfig) -> None:
    _check_at_least(1, "cluster", cluster, "num_clusters max_iterations train_documents")
    _check_seed("cluster", cluster.seed)
    _check_at_least(0, "cluster", cluster, "coarse_clusters")
    for name, number in [("num_clusters", cluster.num_clusters), *(("also", number) for number in cluster.also)]:
        if not 1 <= number <= cluster.train_documents:
            raise UserError(
                f"Expected cluster.{name} from 1 to cluster.train_documents ({cluster.train_documents}), "
                f"found {number}."
            )
    if len({cluster.num_clusters, *cluster.also}) != 1 + len(cluster.also):
        raise UserError(
            f"Expected cluster.also to hold other numbers than cluster.num_clusters ({cluster.num_clusters}), each "
            f"once, found {', '.join(map(str, cluster.also))}; each makes a family of its own."
        )
    if cluster.coarse_clusters >= max(cluster.num_clusters, 2):
        raise UserError(
            f"Expected cluster.coarse_clusters below cluster.num_clusters ({cluster.num_clusters}), found "
            f"{cluster.coarse_clusters}; about the square root of their number is usual."
        )
    if cluster.backend == "sklearn" and (cluster.coarse_clusters > 1 or cluster.start == "k-means||"):
        raise UserError(
            "Expected cluster.coarse_clusters and cluster.start=k-means|| only with cluster.backend=jax, found "
            "sklearn; leave them out or change the backend."
        )


def _check_packing(packing: PackingConfig) -> None:
    _check_at_least(2, "packing", packing, "sequence_length")
    _check_at_least(0, "packing", packing, "seed")
    _check_at_least(1, "packing", packing, "num_epochs num_samples num_rows num_neighbors num_candidates")
    atom, length = packing.atom_size, packing.sequence_length
    if length > _LONGEST_SEQUENCE:
        raise UserError(
            f"Expected packing.sequence_length <= {_LONGEST_SEQUENCE} (2^24), found {length}; it is the number of "
            "tokens that the model sees at once."
        )
    if atom is not None and (atom < 1 or (atom % length and length % atom)):
        raise UserError(
            f"Expected packing.atom_size to divide packing.sequence_length={length} or to be a multiple of it, "
            f"found {atom}."
        )
    if packing.method == "pad" and atom == 1:
        raise UserError(
            "Expected packing.atom_size >= 2 with packing.method=pad, found 1; an atom ends with an end token."
        )
    if packing.method == "megatron" and packing.seed >= 2**32:
        raise UserError(
            f"Expected packing.seed of 0 .. 2^32 - 1, as Megatron takes it, with packing.method=megatron, found "
            f"{packing.seed}."
        )
    for name, methods in _PACKING_OPTIONS.items():
        value = getattr(packing, name)
        if value != getattr(PackingConfig, name) and packing.method not in methods:
            raise UserError(
                f"Expected packing.{name} with packing.method={' or '.join(methods)} only, found {value} with "
                f"{packing.method}; leave the setting out."
            )
    if not 0 <= packing.validation_fraction < 1:
        raise UserError(f"Expected packing.validation_fraction in [0, 1), found {packing.validation_fraction}.")


def _check_characteristics(characteristics: CharacteristicsConfig) -> None:
    _check_at_least(1, "characteristics", characteristics, "length_bins field_bins")
    _check_at_least(2, "characteristics", characteristics, "max_groups")
    families = characteristics.families
    if not families:
        raise UserError("Expected characteristics.families to name at least one family, found none.")
    if len(set(families)) != len(families):
        raise UserError(f"Expected characteristics.families without repeats, found {', '.join(families)}.")
    for family in families:  # each is the name of a file and of a column
        name_fits = family.isprintable() and 0 < len(family.encode()) <= _LONGEST_FAMILY
        if not name_fits or family.startswith(".") or "/" in family or family in _COLUMNS:
            raise UserError(
                f"Expected characteristics.families to name families or metadata fields, found {family!r}, which "
                "cannot be one's name; rename the field."
            )


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
    _check_at_least(0, "records", records, "num_writers")
    if records.layout == "ordered" and records.ordering not in orderings:
        raise UserError(
            f"Expected records.ordering to be one of the orders ({', '.join(orderings) or 'none'}), "
            f"found {records.ordering!r}; add it to orders or choose records.layout=packed."
        )


def _check_train(train: TrainConfig) -> None:
    _check_at_least(1, "train", train, "num_steps batch_size num_layers num_heads width")
    _check_at_least(1, "train", train, "validate_every checkpoint_every")
    _check_at_least(0, "train", train, "warmup_steps validation_batches diagnose_every seed")
    if train.width % (2 * train.num_heads):
        raise UserError(
            f"Expected train.width to be a multiple of twice train.num_heads ({2 * train.num_heads}), "
            f"found {train.width}."
        )
    if not 0 < train.learning_rate < math.inf:
        raise UserError(f"Expected train.learning_rate to be finite and > 0, found {train.learning_rate}.")
