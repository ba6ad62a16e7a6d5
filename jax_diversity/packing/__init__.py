"""Packing: which run of which document's tokens stands in which sequence, as an index; one method a file.

A method is a pure function from the documents' lengths (and an order of the documents) to `Segments`. Tokens are
not touched: they are gathered through the index when records are written. `pack` calls any method by its name and
tells what it kept and lost.
"""

from jax_diversity.packing.base import METHODS, Packed, check_options, find_method, method_options, pack, takes
from jax_diversity.packing.concat import concat
from jax_diversity.packing.report import (
    ClusterMix,
    PackingReport,
    cluster_mix,
    documents_cut,
    report_packing,
)
from jax_diversity.packing.split import validation_mask
from jax_diversity.packing.store import write_segments

__all__ = [
    "METHODS",
    "ClusterMix",
    "Packed",
    "PackingReport",
    "check_options",
    "cluster_mix",
    "concat",
    "documents_cut",
    "find_method",
    "method_options",
    "pack",
    "report_packing",
    "takes",
    "validation_mask",
    "write_segments",
]
