"""Batches in an ordering's order, as a Grain dataset that resumes by one integer.

The window contract: the global batch at position p is the sequences `order[p : p + B]`, row j of it at row j,
however many hosts, threads or epochs there are; host h of H holds the rows h*B/H .. (h + 1)*B/H - 1. Positions run
on from epoch to epoch, so a batch may begin in one epoch and end in the next, and no sequence is left out between.
"""

from jax_diversity.loader.batches import Batch, OrderedBatches
from jax_diversity.loader.iteration import Ahead, BatchIterator, Loader
from jax_diversity.loader.making import make_loader
from jax_diversity.loader.orders import EpochOrders, OrderFile, OrderIndex
from jax_diversity.loader.placing import Placement
from jax_diversity.loader.replanning import replanned_state
from jax_diversity.loader.sources import ConcatenatedSource, RecordSource
from jax_diversity.loader.stock import OrderSampler, SequenceRows
from jax_diversity.loader.streaming import StreamedSource, StreamOrder, stream_batches
from jax_diversity.loader.watching import BatchMetrics, MetricsWriter, WatchedBatches, Writers, watch_batches
from jax_diversity.loader.windows import Windows
from jax_diversity.loader.workers import WorkerDied

__all__ = [
    "Ahead",
    "Batch",
    "BatchIterator",
    "BatchMetrics",
    "ConcatenatedSource",
    "EpochOrders",
    "Loader",
    "MetricsWriter",
    "OrderFile",
    "OrderIndex",
    "OrderSampler",
    "OrderedBatches",
    "Placement",
    "RecordSource",
    "SequenceRows",
    "StreamOrder",
    "StreamedSource",
    "WatchedBatches",
    "Windows",
    "WorkerDied",
    "Writers",
    "make_loader",
    "replanned_state",
    "stream_batches",
    "watch_batches",
]
