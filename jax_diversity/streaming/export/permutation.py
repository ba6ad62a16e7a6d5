"""Write an order as plain numbers in a `.npy` file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from jax_diversity.schema.orderings import Order
from jax_diversity.streaming.export.files import Written, new_file
from jax_diversity.streaming.run.run import Run


def document_order(
    sequence_index: Int64[np.ndarray, " segment"],
    document_index: Int64[np.ndarray, " segment"],
    order: Order,
) -> Int64[np.ndarray, " document"]:
    """Return the documents in the order in which training first reads them, each document once.

    Documents that are in no sequence (kept for validation, or dropped by packing) are left out.

    Args:
        sequence_index: the sequence of every segment, ascending.
        document_index: the document of every segment.
        order: the order of the sequences; a run may repeat and leave out sequences.

    Example:
        >>> document_order(np.array([0, 0, 1]), np.array([4, 2, 2]), Ordering(np.array([1, 0])))
        array([2, 4])
    """
    starts = np.searchsorted(sequence_index, np.arange(order.num_sequences + 1))
    indices = order.indices
    sizes = np.diff(starts)[indices]
    # The segments of every sequence, in the order of the sequences.
    before = np.cumsum(sizes) - sizes
    rows = np.repeat(starts[:-1][indices] - before, sizes) + np.arange(sizes.sum())
    documents = document_index[rows]
    # `unique` gives the first place of each document; the sorted places are the order of the first reading.
    _, first = np.unique(documents, return_index=True)
    return documents[np.sort(first)]


def write_permutation(indices: Int64[np.ndarray, " position"], path: Path, *, overwrite: bool = False) -> Written:
    """Write indices as one .npy file of int64, one per position; raises a UserError if another file exists.

    Example:
        >>> write_permutation(ordering.indices, Path("order.npy"))
        >>> hugging_face_dataset.select(np.load("order.npy"))
    """
    with new_file(path, overwrite=overwrite) as temporary, temporary.open("wb") as file:
        np.save(file, np.ascontiguousarray(indices, "<i8"))
    return Written((path,), f"{path}: {len(indices):,} int64 indices; read it with numpy.load.")


def write_places(run: Run, path: Path, *, overwrite: bool = False) -> Written:
    """Write, as JSON, which sequence numbers of a run belong to which dataset.

    There is one object per dataset: `path` as in the run, `first` (the number of its first sequence), `num_sequences`
    and `fingerprint`. A UserError is raised if another file exists.
    """
    parts = [
        {"path": address, "first": first, "num_sequences": size, "fingerprint": dataset.fingerprint}
        for address, first, size, dataset in zip(
            run.addresses, run.offsets.tolist(), run.sizes, run.datasets, strict=False
        )
    ]
    with new_file(path, overwrite=overwrite) as temporary:
        temporary.write_text(json.dumps(parts, indent=2) + "\n", encoding="utf-8")
    return Written((path,), f"{path}: which of the {len(parts)} datasets a number belongs to.")
