"""Megatron's samples: documents shuffled over whole epochs, cut every L tokens, each sample L + 1 tokens long.

The three indices of Megatron-LM's `GPTDataset`, with equal values and types for the same seed (checked against
megatron-core 0.16.1). A *sample* is Megatron's word for a sequence: its last token is the next one's first, so that
every token but the very first is a target.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, Integer

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.pieces import cut_stream, end_to_end, joined_segments, num_filled, whole_documents

_LEAST_SHARE_OF_LAST_EPOCH = 0.80
_SAMPLES_AT_A_TIME = 1 << 18


class Epochs(NamedTuple):
    """The number of passes over the documents, and of their samples.

    The first `num_first` samples are shuffled among themselves, then the others. Usually `num_first` is all samples. If
    only few samples of the last epoch are needed, it is the number of samples in the earlier epochs; their documents
    are then shuffled separately, too.
    """

    num_epochs: int
    num_samples: int
    num_first: int

    @property
    def last_apart(self) -> bool:
        """Whether the last epoch is shuffled separately."""
        return self.num_first < self.num_samples


class MegatronIndices(NamedTuple):
    """The indices in the cache of `GPTDataset`: `document_index.npy`, `sample_index.npy`, `shuffle_index.npy`.

    Attributes:
        document_index: the documents of all epochs, end to end.
        sample_index: the beginning of each sample, as a place in `document_index` and an offset in tokens; one more
            row for the end of the last sample.
        shuffle_index: the sample at every position of training.
    """

    document_index: Int32[np.ndarray, " place"]
    sample_index: Integer[np.ndarray, "boundary 2"]
    shuffle_index: Integer[np.ndarray, " sample"]


def megatron(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    num_epochs: int = 1,
    num_samples: int | None = None,
    seed: int = 0,
    last_sequence: Literal["drop", "pad"] = "drop",
) -> Iterable[Segments]:
    """Pack the documents of `document_order` into Megatron's samples of L + 1 tokens.

    Args: see `megatron_indices`, which also gives the order in which Megatron would read the sequences.

    Example:
        >>> (segments,) = megatron(np.array([3, 2, 4]), np.arange(3), sequence_length=4, seed=1)
        >>> segments.num_sequences, segments.sequence_length, segments.length.tolist()
        (2, 5, [3, 2, 3, 2])
    """
    indices = megatron_indices(
        document_lengths,
        document_order,
        sequence_length,
        num_epochs=num_epochs,
        num_samples=num_samples,
        seed=seed,
        last_sequence=last_sequence,
    )
    return [megatron_segments(document_lengths, indices, sequence_length)]


def megatron_indices(
    document_lengths: Int64[np.ndarray, " document"],
    documents: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    num_epochs: int = 1,
    num_samples: int | None = None,
    seed: int = 0,
    last_sequence: Literal["drop", "pad"] = "drop",
) -> MegatronIndices:
    """All three indices of a `GPTDataset`.

    Args:
        document_lengths: tokens of every document of the store. Megatron counts each *stored sequence* as a
            document here: `TokenFile.sequence_lengths`, equal to `lengths` unless documents were split.
        documents: the documents to take; their order does not matter, because Megatron's splits are ascending.
        sequence_length: L, Megatron's `--seq-length`.
        num_epochs: passes over the documents; ignored with `num_samples`.
        num_samples: take the epochs that are needed for at least this many samples (steps times global batch size).
        seed: Megatron's `--seed`, below 2^32.
        last_sequence: drop or pad the last sample if it is not full; Megatron drops it in training.

    Raises:
        UserError: samples of documents without tokens; numbers below one; a seed that Megatron does not accept.

    Example:
        >>> indices = megatron_indices(np.array([3, 2, 4]), np.arange(3), sequence_length=4, seed=1)
        >>> indices.sample_index.tolist()
        [[0, 0], [1, 1], [2, 1]]
    """
    # Megatron's old generator: both shuffles draw from it, the documents' shuffle first.
    random = np.random.RandomState(as_whole_number("Megatron's seed", seed, most=2**32 - 1))
    total = int(document_lengths[documents].sum()) if len(documents) else None
    epochs = plan_epochs(total, sequence_length, num_epochs, num_samples, last_sequence)
    order = np.tile(np.sort(documents).astype(np.int32), epochs.num_epochs)
    num_first = len(documents) * (epochs.num_epochs - epochs.last_apart)
    # Slices are views: both parts are shuffled in place.
    random.shuffle(order[:num_first])
    random.shuffle(order[num_first:])  # without a separate last epoch this part is empty, and nothing is drawn
    begins = sample_index(document_lengths, order, sequence_length, last_sequence)
    wide = epochs.num_samples >= np.iinfo(np.uint32).max - 1
    samples = np.arange(epochs.num_samples, dtype=np.int64 if wide else np.uint32)
    random.shuffle(samples[: epochs.num_first])
    random.shuffle(samples[epochs.num_first :])
    return MegatronIndices(order, begins, samples)


def plan_epochs(
    tokens_per_epoch: int | None,
    sequence_length: int,
    num_epochs: int = 1,
    num_samples: int | None = None,
    last_sequence: Literal["drop", "pad"] = "drop",
) -> Epochs:
    """The number of samples in the epochs, and whether the last epoch is shuffled separately; see `megatron_indices`.

    It is shuffled separately if the requested samples need less than four fifths of the last epoch. Without documents
    (`tokens_per_epoch` is None) there are no samples.
    """
    as_whole_number("sequence_length", sequence_length, least=1)
    num_epochs = as_whole_number("num_epochs", num_epochs, least=1)
    if num_samples is not None:
        num_samples = as_whole_number("num_samples", num_samples, least=1)
    if tokens_per_epoch is None:
        return Epochs(0, 0, 0)
    if num_samples is not None:
        if not tokens_per_epoch:
            raise UserError(f"Expected documents with tokens for {num_samples} samples, found none.")
        num_epochs = -(-(num_samples * sequence_length + 1) // tokens_per_epoch)
    # The very first token is not a target: it is not counted.
    total = num_filled(max(num_epochs * tokens_per_epoch - 1, 0), sequence_length, last_sequence)
    before_last = ((num_epochs - 1) * tokens_per_epoch - 1) // sequence_length
    per_epoch = (tokens_per_epoch - 1) // sequence_length
    from_last = (total if num_samples is None else num_samples) - before_last
    apart = num_epochs > 1 and from_last < int(_LEAST_SHARE_OF_LAST_EPOCH * per_epoch)  # rounded down as Megatron does
    return Epochs(num_epochs, total, before_last if apart else total)


def sample_index(
    document_lengths: Int64[np.ndarray, " document"],
    document_index: Int32[np.ndarray, " place"],
    sequence_length: int,
    last_sequence: Literal["drop", "pad"] = "drop",
) -> Integer[np.ndarray, "boundary 2"]:
    """The beginning of every sample: the place in `document_index` and the offset in that document's tokens.

    Boundary k is the document that holds token k·L of the documents end to end, so never a document without tokens.
    An unfilled last sample ends at the last token. The type is int32, or int64 if that is too narrow.
    """
    lengths = document_lengths[document_index]
    ends = np.cumsum(lengths)
    num_targets = max(int(ends[-1]) - 1, 0) if len(ends) else 0
    num_samples = num_filled(num_targets, sequence_length, last_sequence)
    # All indices are counted in int64; only the result is as narrow as Megatron's.
    boundaries = np.minimum(np.arange(num_samples + 1, dtype=np.int64) * sequence_length, num_targets)
    wide = max(len(document_index), int(lengths.max(initial=0))) > np.iinfo(np.int32).max
    index = np.zeros((num_samples + 1, 2), np.int64 if wide else np.int32)
    # The first sample begins at the first document, even if that is empty.
    index[1:, 0] = np.searchsorted(ends, boundaries[1:], side="right")
    index[1:, 1] = boundaries[1:] - (ends - lengths)[index[1:, 0]]
    return index


def megatron_segments(
    document_lengths: Int64[np.ndarray, " document"], indices: MegatronIndices, sequence_length: int
) -> Segments:
    """The samples of `megatron_indices` as segments, in the samples' own order (not the shuffled one).

    Sequences hold L + 1 tokens; the last token is the first of the next sequence.
    """
    num_samples = len(indices.sample_index) - 1
    blocks = []
    for first in range(0, num_samples, _SAMPLES_AT_A_TIME):
        place, offset = indices.sample_index[first : first + _SAMPLES_AT_A_TIME + 1].astype(np.int64).T
        order = indices.document_index[place[0] : place[-1] + 1].astype(np.int64)
        documents = whole_documents(document_lengths, order)
        # The samples' beginnings in the stream of these documents; each sample ends with the first token of the next.
        edges = end_to_end(documents.length)[place - place[0]] + offset
        length = np.diff(edges) + 1
        pieces, sample = cut_stream(documents, edges[:-1], length)
        position = end_to_end(pieces.length) - end_to_end(length)[sample]
        blocks.append([first + sample, position, *pieces])
    return joined_segments(blocks, num_samples, sequence_length + 1, overlap=1)
