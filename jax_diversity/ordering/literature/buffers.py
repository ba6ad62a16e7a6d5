"""Shuffles of streams: what a loader does that never sees more than a part of the corpus at a time.

They mix as far as their buffer reaches. Where neighbours in the corpus are alike, as in a corpus that was written
source by source, windows of training stay as uneven as the corpus is at the buffer's scale.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.objective import Objective
from jax_diversity.schema import Characteristics


def buffer_shuffle(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
    buffer_size: int = 10_000,
    num_workers: int = 1,
    epoch: int = 0,
) -> Int64[np.ndarray, " sequence"]:
    """What the workers of a loader make of a stream: each fills a buffer, shuffles it and drains it whole.

    Sequence i goes to worker i mod W. A worker shuffles its sequences by the bufferful, what is left at the end
    likewise, and the workers are read in turn: position p comes from worker p mod W. Where W does not divide the
    sequences, the first workers have one more than the rest; they are also the first to be read, so that all run
    dry in the same, last round and no turn is ever empty.

    Every worker draws from a stream of its own, spawned from the seed by epoch and worker. A buffer that holds all
    of a worker's sequences is a full shuffle of them; with one worker, of the corpus.

    Args:
        characteristics: only their number of sequences is read.
        seed: of the streams.
        objective: not used; every method takes one.
        advance: told the number of sequences placed since it was last called.
        buffer_size: sequences that a worker's buffer holds; 0 keeps the corpus's order.
        num_workers: W.
        epoch: which pass over the corpus; every pass has an order of its own.

    Raises:
        ValueError: a buffer or an epoch below 0, fewer than one worker, an option that is no whole number.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[1]] * 6})
        >>> buffer_shuffle(chars, objective=Objective(), buffer_size=0, num_workers=4).tolist()
        [0, 1, 2, 3, 4, 5]
    """
    buffer_size = _whole_number("buffer_size", buffer_size, least=0)
    num_workers = _whole_number("num_workers", num_workers, least=1)
    epoch = _whole_number("epoch", epoch, least=0)
    indices = np.arange(characteristics.num_sequences, dtype=np.int64)
    for worker in range(min(num_workers, len(indices))):
        own = indices[worker::num_workers]
        if buffer_size:
            # By spawn key: numbers side by side as one seed would let different seeds and epochs meet.
            stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch, worker)))
            indices[worker::num_workers] = _shuffle_runs(own, buffer_size, stream)
        advance(len(own))
    return indices


def window_shuffle(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
    window_size: int = 10_000,
) -> Int64[np.ndarray, " sequence"]:
    """Consecutive windows of the corpus's order, each shuffled by itself, the last and shorter one as well.

    No sequence leaves its window. A window of the whole corpus or more is a full shuffle, a window of 1 the
    corpus's order.

    Args:
        characteristics: only their number of sequences is read.
        seed: of the shuffles.
        objective: not used; every method takes one.
        advance: told the number of sequences placed.
        window_size: sequences that a window holds.

    Raises:
        ValueError: a window below 1, or that is no whole number.
    """
    window_size = _whole_number("window_size", window_size, least=1)
    indices = np.arange(characteristics.num_sequences, dtype=np.int64)
    indices = _shuffle_runs(indices, window_size, np.random.default_rng(seed))
    advance(len(indices))
    return indices


def _shuffle_runs(
    indices: Int64[np.ndarray, " sequence"], size: int, rng: np.random.Generator
) -> Int64[np.ndarray, " sequence"]:
    """Shuffle every run of `size` by itself, and what is left."""
    size = min(size, max(len(indices), 1))
    whole = len(indices) // size * size
    runs = rng.permuted(indices[:whole].reshape(-1, size), axis=1)
    return np.concatenate([runs.ravel(), rng.permuted(indices[whole:])])


def _whole_number(option: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"Expected {option} to be a whole number >= {least}, found {value!r}.") from None
    if number < least:
        raise UserError(f"Expected {option} >= {least}, found {number}.")
    return number
