"""Counts the tokens of a range of sequences in all families: the work of one job.

A *family* is a kind of characteristics, such as topic clusters. A *group* is one value of a family. Memory grows with
the range. The groups of all documents are memory-mapped, so the processes of a machine share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jax_diversity.foundation.artifacts import read_array, write_array
from jax_diversity.foundation.jobs import Opened, opened, work
from jax_diversity.foundation.progress import tell
from jax_diversity.sequences.characteristics.codes import Codes
from jax_diversity.sequences.characteristics.counts import (
    copied_parts,
    count_loss,
    count_tokens,
    full_rows,
    sequence_documents,
    total_own_tokens,
)
from jax_diversity.sequences.characteristics.stored import LOSS, CharacteristicArtifacts, counts_name

SEQUENCES_PER_RANGE = 1 << 18
"""Number of sequences of a job. The files of the stage do not depend on it."""
TOKEN_TOTALS = "token_totals.npy"
COPIED_GROUPS = "copied_groups.npy"
"""The file with every document's group of copies, beside the files of the ranges."""


def codes_file(folder: Path, number: int) -> Path:
    """Return the path of the file with every document's group in a family of this number."""
    return folder / f"codes-{number:05}.npy"


def range_file(name: Path, what: str) -> Path:
    """Return the path of a file of the range `name`; `what` is the name of the file that has all sequences."""
    return name.with_name(f"{name.name}.{what}")


@work("counting tokens", patience=10.0)
def count_range(
    name: Path, dataset: Opened, first: int, stop: int, num_groups: Mapping[str, int], has_loss: bool
) -> int:
    """Store the counts, the documents and the copies of the sequences `first` up to `stop`; a job.

    Args:
        name: the path that the names of the files begin with. Its folder has the groups of every document.
        dataset: the dataset of the segments and the tokens.
        first: the first sequence.
        stop: the sequence after the last one.
        num_groups: family -> its number of groups, for the families of documents.
        has_loss: whether to count the family `loss` too.

    Returns:
        The number of sequences.
    """
    from scipy import sparse

    def of_documents(path: Path) -> np.ndarray:
        return read_array(path, "characterize", mmap=True)

    whole = opened(dataset)
    segments, appearances = whole.segments_between("train", first, stop), whole.appearances
    for number, (family, size) in enumerate(num_groups.items()):
        codes = Codes(of_documents(codes_file(name.parent, number)), ("",) * size)
        file = range_file(name, counts_name(family))
        sparse.save_npz(file, count_tokens(segments, codes), compressed=False)
    if has_loss:
        sparse.save_npz(range_file(name, counts_name(LOSS)), count_loss(segments, whole.tokens), compressed=False)
    # The counts of tokens are not stored: they are larger than the tokens, and counting them again is fast.
    totals = total_own_tokens(segments, whole.tokens, whole.vocab_size, whole.end_id)
    pairs = copied_parts(segments, of_documents(name.parent / COPIED_GROUPS))
    arrays = {
        TOKEN_TOTALS: totals,
        CharacteristicArtifacts.sequence_documents.name: sequence_documents(segments),
        CharacteristicArtifacts.sequence_copies.name: pairs + np.array([first, 0]),
    }
    if appearances is not None:
        arrays[CharacteristicArtifacts.sequence_turns.name] = full_rows(segments, appearances) + np.array([first, 0, 0])
    for kind, array in arrays.items():
        write_array(range_file(name, kind), array)
    tell(stop - first)
    return stop - first
