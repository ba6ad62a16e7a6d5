"""Concatenate and split: documents end to end, cut every L tokens.

No token is lost but the unfilled last sequence's (dropped or padded, as asked); documents are cut wherever a
sequence ends. The method of GPT-3 (Brown et al., 2020, https://arxiv.org/abs/2005.14165).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Int64

from jax_diversity.schema import Segments


def concat(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    last_sequence: Literal["drop", "pad"] = "drop",
) -> Segments:
    """Pack the documents of `document_order`, in that order.

    Args:
        document_lengths: tokens of every document of the corpus, each ending with its end token.
        document_order: which documents, and in which order; need not hold all.
        sequence_length: L.
        last_sequence: what becomes of the last sequence where it is not full.

    Example:
        >>> segments = concat(np.array([3, 2]), np.array([1, 0]), sequence_length=2)
        >>> segments.document_index.tolist(), segments.length.tolist()
        ([1, 0], [2, 2])
    """
    lengths = document_lengths[document_order]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    num_sequences = total // sequence_length if last_sequence == "drop" else -(-total // sequence_length)
    used = min(total, num_sequences * sequence_length)
    # A segment begins wherever a document or a sequence does.
    starts = np.union1d(ends - lengths, np.arange(num_sequences) * sequence_length)
    starts = starts[starts < used].astype(np.int64)
    # Empty documents share their start with the next one and hold nothing: the search passes over them.
    place = np.searchsorted(ends, starts, side="right")
    length = np.diff(np.append(starts, used))
    offset = starts - (ends - lengths)[place]
    return Segments(
        sequence_index=starts // sequence_length,
        position=starts % sequence_length,
        document_index=document_order[place],
        document_offset=offset,
        length=length,
        ends_with_eos=offset + length == lengths[place],
        num_sequences=num_sequences,
        sequence_length=sequence_length,
    )
