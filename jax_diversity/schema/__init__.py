"""The values that flow through the package; of the package it imports only `foundation`.

    documents -> tokens -> segments -> sequences -> characteristics -> ordering

Every value is immutable. Arrays are NumPy's; a stage that uses an accelerator copies them to it.
"""

from jax_diversity.schema.characteristics import Characteristics
from jax_diversity.schema.documents import Document, Segments
from jax_diversity.schema.orderings import Ordering, Schedule

__all__ = ["Characteristics", "Document", "Ordering", "Schedule", "Segments"]
