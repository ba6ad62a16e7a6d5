"""The stages of a build, in the order in which they run: a new stage is one line in `STAGES`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from jax_diversity.foundation.stage import Stage
from jax_diversity.ordering.measures.stage import measure_stage
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.ordering.stage import ORDER_VALIDATION, order_stage
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.stage import PREPARE
from jax_diversity.report.stage import REPORT
from jax_diversity.sequences.characteristics.stage import CHARACTERIZE
from jax_diversity.sequences.clustering.stage import CLUSTER
from jax_diversity.sequences.embedding.stage import EMBED
from jax_diversity.sequences.packing.stage import PACK
from jax_diversity.sequences.tokenization.stage import TOKENIZE
from jax_diversity.streaming.records.stage import WRITE


def ordering_stages(order: OrderConfig) -> list[Stage]:
    """The two stages of one ordering: one makes the permutation, the other measures its balance."""
    return [order_stage(order), measure_stage(order.file_name)]


STAGES: tuple[Stage | Callable[[OrderConfig], list[Stage]], ...] = (
    PREPARE,
    TOKENIZE,
    EMBED,
    CLUSTER,
    PACK,
    CHARACTERIZE,
    ORDER_VALIDATION,
    ordering_stages,
    WRITE,
    REPORT,
)
"""A build runs each `Stage` once. It calls each function once for every ordering, and runs the returned stages."""


def all_stages(config: BuildConfig) -> list[Stage]:
    """All stages of a build with these settings, in order.

    A dataset that holds out all documents has no orders of training, and no report, which compares them.
    """
    entries = STAGES
    if config.packing.holds_out_all:
        entries = [entry for entry in STAGES if entry not in (ordering_stages, REPORT)]
    stages: list[Stage] = []
    for entry in entries:
        stages += [entry] if isinstance(entry, Stage) else chain.from_iterable(map(entry, config.orders))
    return stages


def stages_by_name() -> dict[str, Stage]:
    """The stages that a build runs once, by name; the stages of orderings, such as `order/balance`, are left out."""
    return {entry.name: entry for entry in STAGES if isinstance(entry, Stage)}
