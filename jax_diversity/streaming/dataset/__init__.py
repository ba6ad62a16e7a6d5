"""Open a built dataset on this machine or on an object store, and read its artifacts and orderings."""

from jax_diversity.streaming.dataset.dataset import Dataset, open_dataset

__all__ = ["Dataset", "open_dataset"]
