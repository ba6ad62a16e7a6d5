"""A run: which sequence of which dataset comes at every position of training."""
