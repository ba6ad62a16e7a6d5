"""The choice of validation documents: balanced or by a hash of the ids, and the same as in an earlier dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from jax_diversity.foundation.artifacts import fingerprint, is_as_written, read_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside
from jax_diversity.foundation.stage import Context
from jax_diversity.packing.stored import HELD_OUT, SEQUENCES, read_held_out

RECORD = np.dtype([("id", "<u8"), ("held_out", "?")])
"""What is stored of every document: a hash of its id, and whether it is kept for validation."""
_FAMILIES = ("cluster", "length", "source", "language")
"""The families that are balanced. With token counts beside them, the mixture of tokens was hardly better, all other
families were worse, and the mean loss of the chosen documents was further from that of all (docs/log.md)."""
_SETTINGS = ("validation_fraction", "validation_choice")
_FILE = f"{SEQUENCES}/{HELD_OUT}"


def split_documents(context: Context) -> Bool[np.ndarray, " document"]:
    """Choose the validation documents by the settings of packing.

    The choice depends on the documents, their tokens and clusters, and on an earlier dataset. It does not depend on the
    sequence length, the packing method, weights or seeds, so that other packings have the same validation documents.

    Raises:
        UserError: the earlier dataset does not exist, or its file is damaged.
    """
    dataset, config = context.dataset, context.config.packing
    groups = np.asarray(dataset.duplicate_groups)
    known, held = _earlier_documents(context, hash_ids(dataset.document_store.ids()))
    if config.validation_choice == "hash":
        chosen = validation_mask(dataset.document_store.ids(), groups, config.validation_fraction)
        chosen &= ~_in_groups(groups, known & ~held)
    else:
        chosen = _balanced(dataset, groups, config.validation_fraction, known, held)
    # A new copy of a held-out document is held out, too. Copies that an earlier dataset trained on stay in training.
    return held | ((chosen | _in_groups(groups, held)) & ~known)


def earlier_split(context: Context) -> str:
    """Return a fingerprint of the earlier choices that `split_documents` follows; an empty string without them."""
    remembered, origin = _remembered(context), _origin(context)
    marks = [] if remembered is None else [remembered["sha256"]]
    if origin is not None:
        marks.append(origin.stored.stage("pack")["files"].get(_FILE, {}).get("sha256", ""))
    return fingerprint(*marks) if marks else ""


def hash_ids(ids: Iterable[str]) -> UInt64[np.ndarray, " document"]:
    """Return a hash of each id; two of a million ids have the same hash with a probability of 3e-8."""
    digests = bytearray()
    for key in ids:
        digests += hashlib.blake2b(key.encode(), digest_size=8, person=b"held out").digest()
    return np.frombuffer(bytes(digests), "<u8").astype(np.uint64)


def validation_mask(
    ids: Iterable[str], duplicate_group: Int64[np.ndarray, " document"], fraction: float
) -> Bool[np.ndarray, " document"]:
    """Choose about `fraction` of the documents by a hash of their ids; a group of equal texts is chosen as a whole.

    The choice depends only on the ids within a group: a growing corpus keeps its validation documents.
    """
    digests = bytearray()
    for key in ids:
        digests += hashlib.blake2b(key.encode(), digest_size=16).digest()
    halves = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    # In each group, the document with the smallest first half decides, by its second half. If we used one half for
    # both, large groups would be chosen more often than single documents, because the smallest value of a large group
    # is small.
    by_group = np.lexsort((halves[:, 0], duplicate_group))
    first_of_group = np.diff(duplicate_group[by_group], prepend=-1) != 0
    deciding = np.empty(len(halves), np.int64)
    deciding[by_group] = by_group[np.maximum.accumulate(np.where(first_of_group, np.arange(len(halves)), 0))]
    return (halves[:, 1] / 2.0**64 < fraction)[deciding]


def _balanced(
    dataset: Any,
    groups: Int64[np.ndarray, " document"],
    fraction: float,
    known: Bool[np.ndarray, " document"],
    held: Bool[np.ndarray, " document"],
) -> Bool[np.ndarray, " document"]:
    """Choose groups of copies that together have the corpus's mixture."""
    from jax_diversity.packing.held_out import choose

    if not fraction or not len(groups):
        return np.zeros(len(groups), bool)
    counts, tokens = unit_counts(dataset, groups)
    num_units = len(tokens)
    is_held = np.bincount(groups, held, num_units) > 0
    barred = (np.bincount(groups, known, num_units) > 0) & ~is_held
    return choose(counts, tokens, fraction, held=is_held, barred=barred)[groups]


def unit_counts(
    dataset: Any, groups: Int64[np.ndarray, " document"]
) -> tuple[dict[str, Any], Int64[np.ndarray, " unit"]]:
    """Count the tokens of every group of copies (a unit): family -> CSR (unit, group), and all tokens."""
    from scipy import sparse

    lengths = dataset.tokens.document_lengths
    num_units = int(groups.max(initial=-1)) + 1
    counts = {}
    for family in _FAMILIES:
        codes = dataset.document_groups(family)
        shape = (num_units, int(codes.max(initial=-1)) + 1)
        counts[family] = sparse.csr_array((lengths.astype(np.float64), (groups, codes)), shape=shape)
    return counts, np.bincount(groups, lengths, num_units).astype(np.int64)


def _in_groups(
    groups: Int64[np.ndarray, " document"], mask: Bool[np.ndarray, " document"]
) -> Bool[np.ndarray, " document"]:
    """Whether each document's group contains a document of the mask."""
    return (np.bincount(groups, mask, int(groups.max(initial=-1)) + 1) > 0)[groups]


def _earlier_documents(
    context: Context, ids: UInt64[np.ndarray, " document"]
) -> tuple[Bool[np.ndarray, " document"], Bool[np.ndarray, " document"]]:
    """Whether each document was known earlier, and whether it was kept for validation then."""
    known, held = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
    for records in _earlier_records(context):
        records = np.sort(records, order="id")
        place = np.minimum(np.searchsorted(records["id"], ids), max(len(records) - 1, 0))
        found = records["id"][place] == ids if len(records) else np.zeros(len(ids), bool)
        known |= found
        held[found] |= records["held_out"][place[found]]
    return known, held


def _earlier_records(context: Context) -> list[np.ndarray]:
    found = []
    if (remembered := _remembered(context)) is not None:
        path = inside(context.root, remembered["file"])
        if not path.is_file() or not is_as_written(path, remembered):
            raise UserError(
                f"Expected the earlier validation documents in {path}, found no such file or a damaged one; restore "
                "it, or build into a new folder."
            )
        found.append(read_array(path, "pack"))
    if (origin := _origin(context)) is not None:
        found.append(read_held_out(origin.stored))
    return found


def _remembered(context: Context) -> Mapping[str, Any] | None:
    """The choice of the earlier build in this folder, if it had the same settings."""
    remembered = context.folder.remembered("pack")
    if remembered is None:
        return None
    packing = remembered["config"]["packing"]
    same = all(packing[name] == getattr(context.config.packing, name) for name in _SETTINGS)
    return remembered if same else None


def _origin(context: Context) -> Any:
    """The open dataset of `packing.validation_from`; None without it."""
    path = context.config.packing.validation_from
    if path is None:
        return None
    try:
        origin = context.open_dataset(path)
        origin.stored.stage("pack")
    except UserError as error:
        raise UserError(f"packing.validation_from: {error}") from None
    return origin
