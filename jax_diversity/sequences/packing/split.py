"""The choice of validation documents: balanced or by a hash of the ids, and the same as in an earlier dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Integer, UInt64

from jax_diversity.foundation.artifacts import fingerprint, is_as_written
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside
from jax_diversity.foundation.stage import Context
from jax_diversity.foundation.wording import counted
from jax_diversity.sequences.packing.pieces import ROWS
from jax_diversity.sequences.packing.stored import PackingArtifacts, read_split

_FAMILIES = ("cluster", "length", "source", "language")
"""The families that are balanced. With token counts beside them, the mixture of tokens was hardly better, all other
families were worse, and the mean loss of the chosen documents was further from that of all (docs/log.md)."""
_LEAST_CANDIDATES = 1 << 20
_CANDIDATES = 8
"""Of more than `_LEAST_CANDIDATES` groups of copies, this multiple of the wanted share are candidates, and at least
`_LEAST_CANDIDATES`. Four times as many gave no better mixture (docs/log.md)."""
_SETTINGS = ("validation_fraction", "validation_choice", "keep_validation")
_FILE = PackingArtifacts.document_hashes.file


@dataclass(frozen=True)
class Split:
    """The choice of the validation documents.

    Attributes:
        validation: whether each document is kept for validation.
        num_gone: the number of documents that the earlier build in this folder held out and that have left the corpus.
        nothing: why no document is kept for validation; empty if there are such documents, or if none are wanted.
    """

    validation: Bool[np.ndarray, " document"]
    num_gone: int
    nothing: str


def split_documents(context: Context, records: np.ndarray) -> Split:
    """Choose the validation documents by the settings of packing.

    The choice depends on the documents, their tokens and clusters, and on earlier choices. It does not depend on the
    sequence length, the packing method, weights or seeds, so that other packings have the same validation documents.

    Args:
        context: the context of the stage `pack`.
        records: the hashes of the documents' ids and texts (`SPLIT`).

    Raises:
        UserError: the earlier dataset does not exist, or its file is damaged.
    """
    dataset, config = context.dataset, context.config.packing
    groups, fraction = np.asarray(dataset.duplicate_groups), config.validation_fraction
    make = _hashed if config.validation_choice == "hash" else _balanced
    remembered, origin = _remembered(context), _origin(context)
    is_known, is_held_out = _matched(records, None if origin is None else origin.document_hashes)
    # A copy of a held-out document is held out, too.
    is_held_out, num_gone = _in_groups(groups, is_held_out), 0
    if remembered is not None:
        earlier = _read_remembered(context, remembered)
        own_known, own_held = _matched(records, earlier)
        own_held = _in_groups(groups, own_held)
        lost = earlier[earlier["held_out"]]
        num_gone = int((~np.isin(lost["id"], records["id"]) & ~np.isin(lost["text"], records["text"])).sum())
        before = remembered["config"]["packing"]["validation_fraction"]
        if fraction < before:  # a smaller share keeps a part of the earlier choice
            own_held = make(dataset, groups, fraction, is_held_out, ~own_held & ~is_held_out, within=fraction / before)
        is_held_out = is_held_out | own_held
        if fraction <= before:  # a larger share adds documents that were in training
            is_known = is_known | own_known
    if config.holds_out_all:
        return Split(np.ones(len(groups), bool), num_gone, "")
    validation = make(dataset, groups, fraction, is_held_out, is_known & ~is_held_out)
    nothing = ""
    if fraction and not validation.any():
        nothing = "every document is too large for this share"
        if len(is_known) and is_known.all():
            trains = "the earlier build in this folder" if origin is None else "an earlier dataset"
            option = "keep_validation" if origin is None else "validation_from"
            left = f"{counted(num_gone, 'held-out document')} left the corpus, and " if num_gone else ""
            nothing = f"{left}{trains} trains on every document that is there (packing.{option})"
    return Split(validation, num_gone, nothing)


def earlier_split(context: Context) -> str:
    """Return a fingerprint of the earlier choices that `split_documents` follows; an empty string without them."""
    remembered, origin = _remembered(context), origin_mark(context)
    marks = [] if remembered is None else [remembered["sha256"], remembered["config"]["packing"]["validation_fraction"]]
    marks += [origin] if origin else []
    return fingerprint(*marks) if marks else ""


def origin_mark(context: Context) -> str:
    """Return the hash of the choice of `packing.validation_from`; an empty string without it."""
    origin = _origin(context)
    return "" if origin is None else origin.stored.stage("pack")["files"].get(_FILE, {}).get("sha256", "none")


def is_other_choice(context: Context, entry: Mapping[str, Any]) -> bool:
    """Whether the current settings choose the validation documents in another way than a finished stage `pack`."""
    before, now = entry["config"]["packing"], context.config.packing
    if any(before.get(name) != getattr(now, name) for name in _SETTINGS):
        return True
    return entry["counts"].get("validation_from") != origin_mark(context)


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
    return _hash_values(ids, duplicate_group) < fraction


def _hash_values(
    ids: Iterable[str], duplicate_group: Int64[np.ndarray, " document"]
) -> Float64[np.ndarray, " document"]:
    """Return a number in [0, 1) for each document, from a hash of an id; the documents of a group have one number."""
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
    return (halves[:, 1] / 2.0**64)[deciding]


def _hashed(
    dataset: Any,
    groups: Int64[np.ndarray, " document"],
    fraction: float,
    held_out: Bool[np.ndarray, " document"],
    barred: Bool[np.ndarray, " document"],
    within: float | None = None,
) -> Bool[np.ndarray, " document"]:
    """Choose groups of copies by hashes; `within` is the share of the documents that are not barred, if it is given."""
    values = _hash_values(dataset.document_store.ids(), groups)
    free = ~_in_groups(groups, barred) & ~held_out
    if within is not None:
        fraction = float(np.quantile(values[free], within)) if free.any() else 0.0
    return held_out | (free & (values < fraction))


def _balanced(
    dataset: Any,
    groups: Int64[np.ndarray, " document"],
    fraction: float,
    held_out: Bool[np.ndarray, " document"],
    barred: Bool[np.ndarray, " document"],
    within: float | None = None,
) -> Bool[np.ndarray, " document"]:
    """Choose groups of copies that together have the corpus's mixture, and `fraction` of its tokens.

    With `within`, few groups are not barred, and all of them are candidates.
    """
    from jax_diversity.sequences.packing.held_out import choose

    if not fraction or not len(groups):
        return held_out
    unit, num_units = groups, int(groups.max()) + 1
    is_held = _units_with(groups, held_out)
    barred = _units_with(groups, barred) & ~is_held
    share = max(_CANDIDATES * fraction, _LEAST_CANDIDATES / num_units)
    # Of many units, a random part are candidates. All others are one unit that cannot be chosen, so that the mixture is
    # still the corpus's, and time and memory grow with the candidates.
    chance = np.random.default_rng(0).random(num_units, np.float32)
    candidate = is_held | (chance < share if within is None else ~barred)
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
    in_units = np.flatnonzero(unit < num_units)
    rows, tokens = unit[in_units], lengths[in_units].astype(np.float64)
    has_others = len(in_units) < len(unit)
    counts = {}
    for family in _FAMILIES:
        codes = dataset.document_groups(family)
        num_groups = int(codes.max(initial=-1)) + 1
        matrix = sparse.csr_array((tokens, (rows, codes[in_units])), shape=(num_units, num_groups))
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


def _matched(
    records: np.ndarray, earlier: np.ndarray | None
) -> tuple[Bool[np.ndarray, " document"], Bool[np.ndarray, " document"]]:
    """Whether each document was known earlier, and whether it was kept for validation then.

    A document is known by its id or by its text: a mirror of a corpus has the same texts under other ids. A document
    with the text of an earlier validation document is held out, also if its id was one of a training document.
    """
    is_known, is_held_out = np.zeros(len(records), bool), np.zeros(len(records), bool)
    for key in ("id", "text") if earlier is not None else ():
        is_known |= np.isin(records[key], earlier[key])
        is_held_out |= np.isin(records[key], earlier[key][earlier["held_out"]])
    return is_known, is_held_out


def _read_remembered(context: Context, remembered: Mapping[str, Any]) -> np.ndarray:
    path = inside(context.root, remembered["file"])
    if not path.is_file() or not is_as_written(path, remembered):
        raise UserError(
            f"Expected the earlier validation documents in {path}, found no such file or a damaged one; restore it, "
            "set packing.keep_validation to false to choose new ones, or build into a new folder."
        )
    return read_split(path)


def _remembered(context: Context) -> Mapping[str, Any] | None:
    """The choice of the earlier build in this folder, unless it is given up."""
    return context.folder.remembered("pack") if context.config.packing.keep_validation else None


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
