"""The list of stages, in the order in which a build runs them: one line a stage."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from jax_diversity.characteristics.stage import CHARACTERIZE
from jax_diversity.clustering.stage import CLUSTER
from jax_diversity.corpus.stage import PREPARE
from jax_diversity.embedding.stage import EMBED
from jax_diversity.foundation.stage import Stage
from jax_diversity.measures.stage import measure_stage
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.ordering.stage import order_stage
from jax_diversity.packing.stage import PACK
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.records.stage import WRITE
from jax_diversity.report.stage import REPORT
from jax_diversity.tokenization.stage import TOKENIZE


def ordering_stages(order: OrderConfig) -> list[Stage]:
    """The stages of one ordering: the permutation, which may take long, and its measured balance."""
    return [order_stage(order), measure_stage(order.file_name)]


STAGES: tuple[Stage | Callable[[OrderConfig], list[Stage]], ...] = (
    PREPARE,
    TOKENIZE,
    EMBED,
    CLUSTER,
    PACK,
    CHARACTERIZE,
    ordering_stages,
    WRITE,
    REPORT,
)
"""A stage stands here itself; a function makes those that every ordering has."""


def all_stages(config: BuildConfig) -> list[Stage]:
    """All stages of a build."""
    stages: list[Stage] = []
    for entry in STAGES:
        stages += [entry] if isinstance(entry, Stage) else chain.from_iterable(map(entry, config.orders))
    return stages


def stages_by_name() -> dict[str, Stage]:
    """The stages that every dataset has once."""
    return {entry.name: entry for entry in STAGES if isinstance(entry, Stage)}
