"""Choose the checkpoint and the sequences that are explained. JAX is not imported, so that mistakes appear at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.lab.checkpoints import find_checkpoints
from jax_diversity.lab.explaining.regression import Basis, basis_of, enough_sequences
from jax_diversity.streaming.dataset import Dataset

ALL = "all families"
"""The name of the share that all families explain together."""
_NUM_BLOCKS = 32  # of the jackknife


def find_checkpoint(dataset: Dataset, checkpoint: Path | None) -> Path:
    """Return the folder of a checkpoint: the given one, or the last one of the given run, or of all runs.

    Raises:
        UserError: there is no checkpoint.
    """
    runs = sorted(dataset.root.glob("training/*")) if checkpoint is None else [checkpoint]
    folders: list[Path] = []
    for run in runs:
        if (run / "checkpoint.json").exists():
            return run
        folders += find_checkpoints(run / "checkpoints").values()
    if not folders:
        place = f"{dataset.root}/training" if checkpoint is None else checkpoint
        raise UserError(
            f"Expected a checkpoint of the lab in {place}, found none; run `jax-diversity train --out {dataset.root}` "
            "first, or name the folder of a checkpoint."
        )
    return max(folders, key=lambda path: int(path.name))


def choose_sequences(dataset: Dataset, num_sequences: int, batch_size: int) -> Int64[np.ndarray, " row"]:
    """Return random training sequences, ascending, so that records are read almost in the order of the files.

    Raises:
        UserError: there are too few sequences for a batch or for their groups, or they have too few documents.
    """
    number = min(as_whole_number("num_sequences", num_sequences, 2), dataset.num_sequences)
    chosen = np.sort(np.random.default_rng(0).permutation(dataset.num_sequences)[:number])
    check_batch(batch_size, number)
    characteristics = dataset.characteristics.take(chosen)
    document_blocks(characteristics)
    # The bases take seconds. They are computed only if the number of sequences may be too small for these counts.
    if number < enough_sequences(sum(counts.shape[1] for counts in characteristics.counts.values())):
        family_bases(characteristics)
    return chosen


def batch_or_usual(batch_size: int | None, dataset: Dataset, num_sequences: int) -> int:
    """Return the given batch size; None means that of the dataset's build, or 256 if it is unknown or too large."""
    if batch_size is not None:
        return batch_size
    stored_size = dataset.batch_size
    return 256 if stored_size is None or stored_size > min(num_sequences, dataset.num_sequences) else stored_size


def check_batch(batch_size: int, num_sequences: int) -> None:
    """Raise an error if a batch is larger than the number of sequences."""
    as_whole_number("batch_size", batch_size, 1)
    if batch_size > num_sequences:
        raise UserError(
            f"Expected a batch of at most the {num_sequences:,} sequences that are explained, found {batch_size:,}; "
            "give more sequences or a smaller batch."
        )


def family_bases(characteristics: Characteristics) -> dict[str, Basis]:
    """Return the bases of each family and of all together, in shares of a sequence.

    Raises:
        UserError: there are too few sequences for the groups.
    """
    dense = {family: counts.toarray() for family, counts in characteristics.counts.items()}
    # The largest basis comes first: its error names a number of sequences that is enough for every family.
    together = basis_of(np.concatenate(list(dense.values()), axis=1), ALL)
    return {**{family: basis_of(matrix, family) for family, matrix in dense.items()}, ALL: together}


def document_blocks(characteristics: Characteristics) -> np.ndarray:
    """Return the block of every sequence. Sequences of one document have one block, so that blocks are independent.

    Raises:
        UserError: there are fewer documents than blocks.
    """
    number = characteristics.num_sequences
    documents = characteristics.documents
    # A sequence of several documents has a block of its own number.
    numbers = -1 - np.arange(number)
    units = numbers if documents is None else np.where(documents < 0, numbers, documents)
    names, codes = np.unique(units, return_inverse=True)
    if len(names) < _NUM_BLOCKS:
        raise UserError(
            f"Expected sequences of at least {_NUM_BLOCKS} documents, found {len(names)}; give sequences of more "
            "documents."
        )
    return np.random.default_rng(0).permutation(len(names))[codes] % _NUM_BLOCKS
