"""A built dataset, opened: its artifacts, its orderings, what is in a batch, and where its files are fetched from."""

from jax_diversity.dataset.dataset import Dataset, open_dataset

__all__ = ["Dataset", "open_dataset"]
