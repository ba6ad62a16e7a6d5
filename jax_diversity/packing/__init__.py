"""Packing: which run of which document's tokens stands in which sequence, as an index; one method a file.

A method is a pure function from the documents' lengths (and an order of the documents) to `Segments`. Tokens are
not touched: they are gathered through the index when records are written.
"""

from jax_diversity.packing.concat import concat
from jax_diversity.packing.split import validation_mask
from jax_diversity.packing.store import num_documents_cut, write_segments

__all__ = ["concat", "num_documents_cut", "validation_mask", "write_segments"]
