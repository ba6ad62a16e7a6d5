"""A built dataset, opened: its artifacts and its orderings, on this machine or on an object store."""

from jax_diversity.dataset.dataset import Dataset, open_dataset

__all__ = ["Dataset", "open_dataset"]
