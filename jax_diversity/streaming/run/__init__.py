"""A run assigns a sequence of a dataset to every position of training."""
