"""The choice of validation documents: balanced or by a hash of the ids, and the same as in an earlier dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt64

from jax_diversity.foundation.artifacts import fingerprint, is_as_written, read_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside
from jax_diversity.foundation.stage import Context
from jax_diversity.packing.pieces import ROWS
from jax_diversity.packing.stored import HELD_OUT, SEQUENCES, read_held_out

RECORD = np.dtype([("id", "<u8"), ("held_out", "?")])
"""What is stored of every document: a hash of its id, and whether it is kept for validation."""
_FAMILIES = ("cluster", "length", "source", "language")
"""The families that are balanced. With token counts beside them, the mixture of tokens was hardly better, all other
families were worse, and the mean loss of the chosen documents was further from that of all (docs/log.md)."""
_LEAST_CANDIDATES = 1 << 20
_CANDIDATES = 8
"""Of more than `_LEAST_CANDIDATES` groups of copies, this multiple of the wanted share are candidates, and at least
`_LEAST_CANDIDATES`. Four times as many gave no better mixture (docs/log.md)."""
_SETTINGS = ("validation_fraction", "validation_choice")
_FILE = f"{SEQUENCES}/{HELD_OUT}"


def split_documents(context: Context, ids: UInt64[np.ndarray, " document"]) -> Bool[np.ndarray, " document"]:
    """Choose the validation documents by the settings of packing.

    The choice depends on the documents, their tokens and clusters, and on an earlier dataset. It does not depend on the
    sequence length, the packing method, weights or seeds, so that other packings have the same validation documents.

    Args:
        context: the context of the stage `pack`.
        ids: the hashes of the documents' ids (`hash_ids`).

    Raises:
        UserError: the earlier dataset does not exist, or its file is damaged.
    """
    dataset, config = context.dataset, context.config.packing
    groups = np.asarray(dataset.duplicate_groups)
    known, held = _earlier_documents(context, ids)
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
    return np.frombuffer(digests, "<u8").astype(np.uint64, copy=False)


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
    unit, num_units = groups, int(groups.max()) + 1
    is_held = _units_with(groups, held)
    barred = _units_with(groups, known) & ~is_held
    share = max(_CANDIDATES * fraction, _LEAST_CANDIDATES / num_units)
    # Of many units, a random part are candidates. All others are one unit that cannot be chosen, so that the mixture is
    # still the corpus's, and time and memory grow with the candidates.
    candidate = is_held | (np.random.default_rng(0).random(num_units, np.float32) < share)
    if not candidate.all():
        candidate &= ~barred
        place = np.cumsum(candidate, dtype=np.min_scalar_type(-num_units - 1))
        place -= 1
        place[~candidate] = num_units = int(candidate.sum())
        unit = place[groups]
        is_held, barred = np.append(is_held[candidate], False), np.arange(num_units + 1) == num_units
    counts, tokens = unit_counts(dataset, unit, num_units)
    return choose(counts, tokens, fraction, held=is_held, barred=barred)[unit]


def unit_counts(
    dataset: Any, unit: Integer[np.ndarray, " document"], num_units: int
) -> tuple[dict[str, Any], Int64[np.ndarray, " unit"]]:
    """Count the tokens of every unit of documents: family -> CSR (unit, group), and all tokens.

    Documents with the number `num_units` are counted together, as one more unit.
    """
    from scipy import sparse

    lengths = dataset.tokens.document_lengths
    own = np.flatnonzero(unit < num_units)
    rows, tokens = unit[own], lengths[own].astype(np.float64)
    has_others = len(own) < len(unit)
    counts = {}
    for family in _FAMILIES:
        codes = dataset.document_groups(family)
        num_groups = int(codes.max(initial=-1)) + 1
        matrix = sparse.csr_array((tokens, (rows, codes[own])), shape=(num_units, num_groups))
        if has_others:
            blocks = (slice(first, first + ROWS) for first in range(0, len(codes), ROWS))
            total = sum(np.bincount(codes[block], lengths[block], num_groups) for block in blocks)
            matrix = sparse.vstack([matrix, sparse.csr_array((total - matrix.sum(axis=0))[None])], format="csr")
        counts[family] = matrix
    sums = np.bincount(rows, tokens, num_units).astype(np.int64)
    return counts, np.append(sums, int(lengths.sum()) - int(sums.sum())) if has_others else sums


def _units_with(
    groups: Int64[np.ndarray, " document"], mask: Bool[np.ndarray, " document"]
) -> Bool[np.ndarray, " unit"]:
    """Whether each group contains a document of the mask."""
    units = np.zeros(int(groups.max(initial=-1)) + 1, bool)
    units[groups[mask]] = True
    return units


def _in_groups(
    groups: Int64[np.ndarray, " document"], mask: Bool[np.ndarray, " document"]
) -> Bool[np.ndarray, " document"]:
    """Whether each document's group contains a document of the mask."""
    return _units_with(groups, mask)[groups]


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
