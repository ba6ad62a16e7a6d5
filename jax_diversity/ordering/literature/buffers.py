"""Shuffles of streams: the orders of loaders that read only a part of the corpus at a time.

These methods mix sequences only within a buffer. In many corpora neighbours are similar, for example if one source was
written after another. Training windows then stay as uneven as parts of the corpus of the buffer's size. The methods
need only the number of sequences, not their token counts.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.progress import Advance, ignore


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
    """Return the order of a loader with workers that each fill a buffer, shuffle it and empty it before they read on.

    Sequence i goes to worker i mod W. A worker shuffles each full buffer of its sequences, and the last, smaller one.
    In this order it puts the sequences into batches of B. The workers are read in turn, one whole batch at a time, as
    PyTorch's `DataLoader` reads the workers of an iterable dataset: batch r of worker w follows batch r of worker
    w - 1. A worker's last batch may be smaller. It keeps its turn in the last round, because nothing is dropped. (With
    `drop_last=True`, PyTorch's loader drops such a batch of every worker:
    https://github.com/pytorch/pytorch/issues/33413.) With batches of 1, position p is filled by worker p mod W.

    Every worker has its own random generator, spawned from the seed by epoch and worker. If a buffer is large enough
    for all of a worker's sequences, they are fully shuffled; with one worker, this is a full shuffle of the corpus.

    Args:
        seed: for the generators.
        buffer_size: number of sequences in a worker's buffer; None and 0 mean no shuffle.
        num_workers: W.
        batch_size: B, the number of sequences per batch; all of them come from one worker.
        epoch: the number of the pass over the corpus; every pass has another order.

    Raises:
        ValueError: a buffer size or an epoch below 0, fewer workers than one, a batch size below 1, an option that is
            not a whole number.

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
        worker_indices = indices[worker::num_workers]
        if buffer_size:
            # Epoch and worker are a spawn key. In one list with the seed, two different lists could give one generator.
            rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch, worker)))
            indices[worker::num_workers] = _shuffle_runs(worker_indices, buffer_size, rng)
        advance(len(worker_indices))
    return _batches_in_turn(indices, num_workers, batch_size)


def window_shuffle(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    advance: Advance = ignore,
    window_size: int = 10_000,
) -> Int64[np.ndarray, " sequence"]:
    """Shuffle consecutive windows of the corpus's order separately, including the shorter last window.

    No sequence leaves its window. If the window is at least as large as the corpus, this is a full shuffle. A window of
    1 keeps the corpus's order.

    Args:
        seed: for the shuffles.
        window_size: number of sequences per window.

    Raises:
        ValueError: the window size is below 1 or not a whole number.
    """
    window_size = as_whole_number("window_size", window_size, 1)
    indices = np.arange(characteristics.num_sequences, dtype=np.int64)
    indices = _shuffle_runs(indices, window_size, np.random.default_rng(seed))
    advance(len(indices))
    return indices


def _shuffle_runs(
    indices: Int64[np.ndarray, " sequence"], size: int, rng: np.random.Generator
) -> Int64[np.ndarray, " sequence"]:
    """Shuffle every run of `size` sequences separately, also the shorter last run."""
    # All whole runs are rows of one matrix, so that one call shuffles all of them.
    size = min(size, max(len(indices), 1))
    whole = len(indices) // size * size
    runs = rng.permuted(indices[:whole].reshape(-1, size), axis=1)
    return np.concatenate([runs.ravel(), rng.permuted(indices[whole:])])


def _batches_in_turn(
    indices: Int64[np.ndarray, " sequence"], num_workers: int, batch_size: int
) -> Int64[np.ndarray, " sequence"]:
    """Convert an order in which workers give one sequence in turn to an order in which they give one batch in turn."""
    # More workers or larger batches than the number of sequences would not change the result.
    num_workers, batch_size = (min(number, max(len(indices), 1)) for number in (num_workers, batch_size))
    whole = len(indices) // (num_workers * batch_size) * num_workers * batch_size
    rounds = indices[:whole].reshape(-1, batch_size, num_workers).swapaxes(1, 2)
    # The workers' numbers of sequences differ by at most one. In the last round each worker gives its remaining
    # sequences.
    last = [indices[whole + worker :: num_workers] for worker in range(num_workers)]
    return np.concatenate([rounds.ravel(), *last])
