"""What users bring to a packing, checked before any work."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64

from jax_diversity.foundation.errors import UserError

_MOST_TOKENS = 2**62


def whole_number(name: str, value: Any, least: int) -> int:
    """A plain int of at least `least`.

    Raises:
        UserError: no whole number, or a smaller one.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise UserError(f"Expected {name} to be a whole number >= {least}, found {value!r}.")
    return number


def one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Whether a setting is one of the words it may be.

    Raises:
        UserError: it is not; lists them.
    """
    if value not in known:
        raise UserError(f"Expected {name} to be one of {', '.join(known)}, found {value!r}.")


def checked_atom(atom_size: Any, sequence_length: int, least: int = 1) -> int:
    """The atom's size: `sequence_length` where it is None.

    Raises:
        UserError: it is neither a fraction nor a multiple of the sequence length, or below `least`.
    """
    if atom_size is None:
        return sequence_length
    size = whole_number("atom_size", atom_size, least)
    if size % sequence_length and sequence_length % size:
        raise UserError(
            f"Expected an atom_size that divides the sequence length {sequence_length} or is a multiple of it, "
            f"found {size}."
        )
    return size


def checked_lengths(document_lengths: Any) -> Int64[np.ndarray, " document"]:
    """Documents' token counts as int64.

    Raises:
        UserError: not one row of whole numbers >= 0, or more tokens than 64-bit positions can count.
    """
    lengths = _integers("document_lengths", document_lengths)
    if len(lengths) and lengths.min() < 0:
        place = int(np.argmin(lengths))
        raise UserError(f"Expected document_lengths >= 0, found {lengths[place]} for document {place}.")
    if (total := lengths.sum(dtype=np.float64)) > _MOST_TOKENS:
        raise UserError(f"Expected at most 2^62 tokens in all, found about {total:.3g} in document_lengths.")
    return lengths


def checked_order(document_order: Any, num_documents: int) -> Int64[np.ndarray, " chosen"]:
    """Which documents are packed, in their order: all of them in the corpus's where it is None.

    Raises:
        UserError: a document that is none of the corpus's or comes twice.
    """
    if document_order is None:
        return np.arange(num_documents)
    order = _integers("document_order", document_order)
    if len(order) and not (order.min() >= 0 and order.max() < num_documents):
        wrong = order[(order < 0) | (order >= num_documents)][0]
        raise UserError(f"Expected document_order to hold documents of 0 .. {num_documents - 1}, found {wrong}.")
    times = np.bincount(order, minlength=num_documents)
    if len(times) and times.max() > 1:
        raise UserError(f"Expected every document once in document_order, found {times.argmax()} again.")
    return order


def checked_clusters(clusters: Any, num_documents: int) -> Int32[np.ndarray, " document"] | None:
    """Every document's topic cluster, or None.

    Raises:
        UserError: not one whole number >= 0 a document.
    """
    if clusters is None:
        return None
    codes = _integers("clusters", clusters)
    if len(codes) != num_documents:
        raise UserError(f"Expected one cluster for each of {num_documents} documents, found {len(codes)}.")
    if len(codes) and not (codes.min() >= 0 and codes.max() <= np.iinfo(np.int32).max):
        raise UserError(f"Expected clusters of 0 .. 2^31 - 1, found {codes.min()} .. {codes.max()}.")
    return codes.astype(np.int32)


def checked_vectors(vectors: Any, num_documents: int) -> Float32[np.ndarray, "document feature"] | None:
    """Every document's embedding, or None.

    Raises:
        UserError: not one row of numbers a document.
    """
    if vectors is None:
        return None
    array = np.asarray(vectors)
    if array.ndim != 2 or array.dtype.kind not in "iuf" or len(array) != num_documents:
        raise UserError(
            f"Expected vectors to hold a row of numbers for each of {num_documents} documents, "
            f"found shape {array.shape} of {array.dtype}."
        )
    return array.astype(np.float32, copy=False)


def _integers(name: str, values: Any) -> Int64[np.ndarray, " entry"]:
    array = np.asarray(values)
    if array.ndim == 1 and not len(array):
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(f"Expected {name} to be one row of whole numbers, found shape {array.shape} of {array.dtype}.")
    return array.astype(np.int64, copy=False)
