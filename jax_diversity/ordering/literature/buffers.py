"""Shuffles of streams: orders of loaders that read only a part of the corpus at a time.

They mix sequences within their buffer. If neighbours in the corpus are similar, as in a corpus that was written source
by source, training windows stay as uneven as the corpus is at the scale of the buffer. They use the number of
sequences, not their counts.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.schema import Characteristics


def buffer_shuffle(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    advance: Advance = ignore,
    buffer_size: int | None = 10_000,
    num_workers: int = 1,
    batch_size: int = 1,
    epoch: int = 0,
) -> Int64[np.ndarray, " sequence"]:
    """The order of a loader with workers: each fills a buffer, shuffles it and empties it before it continues to read.

    Sequence i goes to worker i mod W. A worker shuffles each bufferful of its sequences, including the last, smaller
    one, and puts them into batches of B in that order. The workers are read in turn, a whole batch at a time, as
    PyTorch's `DataLoader` reads the workers of an iterable dataset: batch r of worker w follows batch r of worker w -
    1. A worker's last batch may be smaller; it keeps its turn in the last round, since nothing is dropped. (With
    `drop_last=True` PyTorch's loader drops it, one of every worker: https://github.com/pytorch/pytorch/issues/33413.)
    With batches of 1, position p is filled by worker p mod W.

    Every worker has its own random generator, spawned from the seed by epoch and worker. A buffer that holds all
    of a worker's sequences is a full shuffle of them; with one worker, of the corpus.

    Args:
        seed: for the generators.
        buffer_size: sequences that a worker's buffer holds; None and 0 mean no shuffle.
        num_workers: W.
        batch_size: B, the sequences of a batch, which all come from one worker.
        epoch: which pass over the corpus; every pass has another order.

    Raises:
        ValueError: a buffer or an epoch below 0, fewer than one worker, a batch below 1, an option that is not a
            whole number.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[1]] * 6})
        >>> buffer_shuffle(chars, buffer_size=None, num_workers=2).tolist()
        [0, 1, 2, 3, 4, 5]
        >>> buffer_shuffle(chars, buffer_size=None, num_workers=2, batch_size=2).tolist()
        [0, 2, 1, 3, 4, 5]
    """
    buffer_size = 0 if buffer_size is None else as_whole_number("buffer_size", buffer_size, 0)
    num_workers = as_whole_number("num_workers", num_workers, 1)
    batch_size = as_whole_number("batch_size", batch_size, 1)
    epoch = as_whole_number("epoch", epoch, 0)
    indices = np.arange(characteristics.num_sequences, dtype=np.int64)
    for worker in range(min(num_workers, len(indices))):
        own = indices[worker::num_workers]
        if buffer_size:
            # Epoch and worker as a spawn key: as words of one seed, [seed, epoch] could equal another [seed, epoch].
            rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch, worker)))
            indices[worker::num_workers] = _shuffle_runs(own, buffer_size, rng)
        advance(len(own))
    return _batches_in_turn(indices, num_workers, batch_size)


def window_shuffle(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    advance: Advance = ignore,
    window_size: int = 10_000,
) -> Int64[np.ndarray, " sequence"]:
    """Consecutive windows of the corpus's order, each shuffled separately, including the shorter last one.

    No sequence leaves its window. A window of at least the whole corpus gives a full shuffle, a window of 1
    keeps the corpus's order.

    Args:
        seed: for the shuffles.
        window_size: sequences that a window holds.

    Raises:
        ValueError: a window below 1, or one that is not a whole number.
    """
    window_size = as_whole_number("window_size", window_size, 1)
    indices = np.arange(characteristics.num_sequences, dtype=np.int64)
    indices = _shuffle_runs(indices, window_size, np.random.default_rng(seed))
    advance(len(indices))
    return indices


def _shuffle_runs(
    indices: Int64[np.ndarray, " sequence"], size: int, rng: np.random.Generator
) -> Int64[np.ndarray, " sequence"]:
    """Shuffle every run of `size` sequences separately, and the shorter last one."""
    # All whole runs are rows of one matrix, so that one call shuffles them.
    size = min(size, max(len(indices), 1))
    whole = len(indices) // size * size
    runs = rng.permuted(indices[:whole].reshape(-1, size), axis=1)
    return np.concatenate([runs.ravel(), rng.permuted(indices[whole:])])


def _batches_in_turn(
    indices: Int64[np.ndarray, " sequence"], num_workers: int, batch_size: int
) -> Int64[np.ndarray, " sequence"]:
    """Convert turns of one sequence per worker to turns of one batch per worker."""
    # The number of sequences bounds a worker's sequences, and the number of workers that have any.
    num_workers, batch_size = (min(number, max(len(indices), 1)) for number in (num_workers, batch_size))
    whole = len(indices) // (num_workers * batch_size) * num_workers * batch_size
    rounds = indices[:whole].reshape(-1, batch_size, num_workers).swapaxes(1, 2)
    # Numbers of sequences differ by one at most: in the last round each worker gives its remaining sequences.
    last = [indices[whole + worker :: num_workers] for worker in range(num_workers)]
    return np.concatenate([rounds.ravel(), *last])
