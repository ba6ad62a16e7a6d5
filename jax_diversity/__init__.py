"""Order language-model training data so that every window of training holds the corpus's own mixture.

>>> import jax_diversity as jd
>>> chars = jd.Characteristics.from_counts({"topic": counts})   # token counts (sequence, group)
>>> ordering = jd.order(chars, method="balance")
>>> jd.measure(chars, ordering, windows=(256,)).window_tv["topic"][256].mean()

Names are imported when first used, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_diversity.dataset import Dataset as Dataset
    from jax_diversity.dataset import open_dataset as open_dataset
    from jax_diversity.errors import UserError as UserError
    from jax_diversity.loader import BatchMetrics as BatchMetrics
    from jax_diversity.loader import make_loader as make_loader
    from jax_diversity.loader import replanned_state as replanned_state
    from jax_diversity.loader import stream_batches as stream_batches
    from jax_diversity.loader import watch_batches as watch_batches
    from jax_diversity.measures import Balance as Balance
    from jax_diversity.measures import Comparison as Comparison
    from jax_diversity.measures import compare as compare
    from jax_diversity.measures import duplicate_gaps as duplicate_gaps
    from jax_diversity.measures import group_timeline as group_timeline
    from jax_diversity.measures import measure as measure
    from jax_diversity.measures import window_profile as window_profile
    from jax_diversity.ordering import Objective as Objective
    from jax_diversity.ordering import order as order
    from jax_diversity.ordering.composition.blending import Blend as Blend
    from jax_diversity.ordering.composition.blending import blend as blend
    from jax_diversity.ordering.composition.compose import concatenate as concatenate
    from jax_diversity.ordering.composition.compose import repeat as repeat
    from jax_diversity.ordering.composition.compose import reverse as reverse
    from jax_diversity.ordering.composition.compose import shuffle_blocks as shuffle_blocks
    from jax_diversity.ordering.composition.compose import truncate as truncate
    from jax_diversity.ordering.composition.duplicates import separate_duplicates as separate_duplicates
    from jax_diversity.ordering.composition.hosts import merge_orderings as merge_orderings
    from jax_diversity.ordering.composition.hosts import partition_sequences as partition_sequences
    from jax_diversity.ordering.composition.hosts import select_sequences as select_sequences
    from jax_diversity.ordering.composition.replanning import replan as replan
    from jax_diversity.ordering.plan import Targets as Targets
    from jax_diversity.ordering.refinement import refine as refine
    from jax_diversity.packing import Packed as Packed
    from jax_diversity.packing import PackingReport as PackingReport
    from jax_diversity.packing import pack as pack
    from jax_diversity.schema import Characteristics as Characteristics
    from jax_diversity.schema import Document as Document
    from jax_diversity.schema import Ordering as Ordering
    from jax_diversity.schema import Schedule as Schedule
    from jax_diversity.schema import Segments as Segments
    from jax_diversity.training import JsonLinesWriter as JsonLinesWriter
    from jax_diversity.training import TensorBoardWriter as TensorBoardWriter

__version__ = "0.1.0"

_HOMES = {
    "Balance": "measures",
    "BatchMetrics": "loader",
    "Blend": "ordering.composition.blending",
    "Characteristics": "schema",
    "Comparison": "measures",
    "Dataset": "dataset",
    "Document": "schema",
    "JsonLinesWriter": "training",
    "Objective": "ordering",
    "Ordering": "schema",
    "Packed": "packing",
    "PackingReport": "packing",
    "Schedule": "schema",
    "Segments": "schema",
    "Targets": "ordering.plan",
    "TensorBoardWriter": "training",
    "UserError": "errors",
    "blend": "ordering.composition.blending",
    "compare": "measures",
    "concatenate": "ordering.composition.compose",
    "duplicate_gaps": "measures",
    "group_timeline": "measures",
    "make_loader": "loader",
    "measure": "measures",
    "merge_orderings": "ordering.composition.hosts",
    "open_dataset": "dataset",
    "order": "ordering",
    "pack": "packing",
    "partition_sequences": "ordering.composition.hosts",
    "refine": "ordering.refinement",
    "repeat": "ordering.composition.compose",
    "replan": "ordering.composition.replanning",
    "replanned_state": "loader",
    "reverse": "ordering.composition.compose",
    "select_sequences": "ordering.composition.hosts",
    "separate_duplicates": "ordering.composition.duplicates",
    "stream_batches": "loader",
    "shuffle_blocks": "ordering.composition.compose",
    "truncate": "ordering.composition.compose",
    "watch_batches": "loader",
    "window_profile": "measures",
}
__all__ = [
    "Balance",
    "BatchMetrics",
    "Blend",
    "Characteristics",
    "Comparison",
    "Dataset",
    "Document",
    "JsonLinesWriter",
    "Objective",
    "Ordering",
    "Packed",
    "PackingReport",
    "Schedule",
    "Segments",
    "Targets",
    "TensorBoardWriter",
    "UserError",
    "blend",
    "compare",
    "concatenate",
    "duplicate_gaps",
    "group_timeline",
    "make_loader",
    "measure",
    "merge_orderings",
    "open_dataset",
    "order",
    "pack",
    "partition_sequences",
    "refine",
    "repeat",
    "replan",
    "replanned_state",
    "reverse",
    "select_sequences",
    "separate_duplicates",
    "shuffle_blocks",
    "stream_batches",
    "truncate",
    "watch_batches",
    "window_profile",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
