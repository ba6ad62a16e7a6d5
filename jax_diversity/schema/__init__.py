"""The values that flow through the package; nothing here imports anything else of it.

    documents -> tokens -> segments -> sequences -> characteristics -> ordering

Every value is immutable. Arrays are NumPy; what runs on an accelerator is made from them inside a stage.
"""

from jax_diversity.schema.characteristics import Characteristics
from jax_diversity.schema.documents import Document, Segments
from jax_diversity.schema.orderings import Ordering, Schedule

__all__ = ["Characteristics", "Document", "Ordering", "Schedule", "Segments"]
