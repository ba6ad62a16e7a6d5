"""Typed settings of a build: defaults, YAML files, dotted overrides on the command line, checks.

`BuildConfig` is a tree of frozen dataclasses, one for each stage; `load_config` reads a YAML file of the same
shape. The command line parses the same tree, so `--packing.sequence-length 512` overrides what a file says.
"""

from jax_diversity.config.checks import check_settings
from jax_diversity.config.reading import as_plain, config_from_plain, config_from_record, load_config
from jax_diversity.config.settings import (
    PYTHON_ENVIRONMENT,
    BuildConfig,
    CharacteristicsConfig,
    ClusterConfig,
    CorpusConfig,
    EmbeddingConfig,
    ExportConfig,
    MaxTextExportConfig,
    MegatronExportConfig,
    OlmoExportConfig,
    OrderConfig,
    PackingConfig,
    RecordsConfig,
    TokenizerConfig,
    TrainConfig,
    demo_config,
    tokenizer_files,
)

__all__ = [
    "PYTHON_ENVIRONMENT",
    "BuildConfig",
    "CharacteristicsConfig",
    "ClusterConfig",
    "CorpusConfig",
    "EmbeddingConfig",
    "ExportConfig",
    "MaxTextExportConfig",
    "MegatronExportConfig",
    "OlmoExportConfig",
    "OrderConfig",
    "PackingConfig",
    "RecordsConfig",
    "TokenizerConfig",
    "TrainConfig",
    "as_plain",
    "check_settings",
    "config_from_plain",
    "config_from_record",
    "demo_config",
    "load_config",
    "tokenizer_files",
]
