"""Documents' codes: the group of every document in a family.

A *family* is a kind of characteristics, such as document lengths or sources. A *group* is one value of a family. A
document's *code* is the number of its group. Groups come from names (source, language, host of the address, a metadata
field), from quantiles of numbers (length, a quality score) or from equal texts. Names are dictionary-encoded Arrow
columns: there is one Python object for each different name, not for each document.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int32, Int64

from jax_diversity.foundation.errors import UserError

UNKNOWN = "unknown"
"""The group of documents without a value."""
OTHER = "(other)"
"""The group of documents whose value is too rare for a separate group."""
UNIQUE = "unique"
"""The group of documents without a copy."""
_BARE_HOST = re.compile(r"(localhost|[^\s/:@?#\\]+\.[^\s/:@?#\\]+)(:\d+)?([/?#]|$)", re.IGNORECASE)
"""An address without a scheme; `mailto:`, `urn:` and file paths do not match."""


@dataclass(frozen=True)
class Bins:
    """Bins of a number, in ascending order.

    Attributes:
        names: the names of the bins' groups.
        highest: the highest value of every bin. Larger values belong to the last bin.
    """

    names: tuple[str, ...]
    highest: tuple[float, ...]

    def places(self, values: np.ndarray) -> Int32[np.ndarray, " document"]:
        """Return every value's bin; a value between two bins belongs to the upper bin."""
        return np.searchsorted(np.array(self.highest[:-1]), values, side="left").astype(np.int32)


@dataclass(frozen=True)
class Codes:
    """The group of every document in one family, and the groups' names.

    Attributes:
        group: the number of the group, for every document of the corpus.
        names: the groups' names.
        num_missing: number of documents without a value; they are in the group `unknown`.
        num_joined: number of documents whose value is too rare for its own group; they are in the group `(other)`.
        bins: the bins, if the family's values are numbers; None for names.
    """

    group: Int32[np.ndarray, " document"]
    names: tuple[str, ...]
    num_missing: int = 0
    num_joined: int = 0
    bins: Bins | None = None


def encoded(values: Iterable[Any]) -> pa.DictionaryArray:
    """Encode some documents' names or numbers as text: a block of a column for `categorical`. None stays None."""
    # We use `large_string`, because the different values of all blocks may have more than 2^31 bytes together.
    return pa.array([None if value is None else str(value) for value in values], pa.large_string()).dictionary_encode()


def joined(blocks: Sequence[pa.DictionaryArray]) -> pa.ChunkedArray:
    """Join the blocks of one column; the result has one dictionary for all blocks."""
    return pa.chunked_array(blocks, pa.dictionary(pa.int32(), pa.large_string())).unify_dictionaries()


def categorical(column: pa.ChunkedArray, max_groups: int | None = None) -> Codes:
    """Make a group for each value of a column from `joined`, sorted by name. A missing or blank value is `unknown`.

    If there are more than `max_groups` groups (including `unknown` and `(other)`), only the values with the most
    documents keep their groups; in a tie, the first by name. All other values form the group `(other)`.
    """
    values = [
        *(column.chunk(0).dictionary.to_pylist() if column.num_chunks else []),
        "",
    ]  # the last entry for missing values
    place = np.concatenate([np.zeros(0, np.int32), *map(_places, column.chunks)])
    sizes = np.bincount(place, minlength=len(values)).tolist()
    missing = sum(size for value, size in zip(values, sizes, strict=True) if not value.strip())
    labels = [value if value.strip() else UNKNOWN for value in values]
    documents: Counter[str] = Counter()  # a value may itself be `unknown` or `(other)`
    for label, size in zip(labels, sizes, strict=True):
        if size:
            documents[label] += size
    kept = set(documents)
    # `unknown` (if it has documents) and `(other)` are among the groups, even if they are small.
    if max_groups is not None and len(documents) > max_groups:
        by_size = sorted(documents.keys() - {UNKNOWN, OTHER}, key=lambda label: (-documents[label], label))
        always = [OTHER, *([UNKNOWN] if UNKNOWN in documents else [])]
        kept = {*always, *by_size[: max(max_groups - len(always), 0)]}
    names = tuple(sorted(kept))
    number = {name: index for index, name in enumerate(names)}
    # Only labels without documents get -1, such as the entry for missing values if no value is missing.
    of_place = np.array([number.get(label, number.get(OTHER, -1)) for label in labels], np.int32)
    num_joined = sum(size for label, size in documents.items() if label not in kept)
    return Codes(of_place[place], names, missing, num_joined)


def column_codes(store: Any, name: str, max_groups: int | None) -> Codes:
    """Make a group for each value of a column of the stored documents, such as `source`."""
    # The column of one file is encoded before the next file is read. Only four bytes per document stay in memory.
    columns = (store.columns([name], path)[name].cast("large_string") for path in store.paths)
    return categorical(joined([chunk.dictionary_encode() for column in columns for chunk in column.chunks]), max_groups)


def _places(block: pa.DictionaryArray) -> Int32[np.ndarray, " document"]:
    """Return the place of every document's value in the dictionary. Without a value, it is the place after the last."""
    return block.indices.fill_null(len(block.dictionary)).to_numpy(zero_copy_only=False)


EqualParts = Literal["documents", "tokens"]


def length_bins(
    document_lengths: Int64[np.ndarray, " document"], bins: int | Bins, equal: EqualParts = "documents"
) -> Codes:
    """Divide the documents into bins by their token counts: quantile bins, or given bins.

    Quantile bins have about equal numbers of documents, or with `equal="tokens"` of tokens. Equal lengths belong to one
    bin, so there may be fewer bins than the number in `bins`.
    """
    if isinstance(bins, int):
        bins = _quantile_bins(document_lengths, bins, "{}-{}", document_lengths if equal == "tokens" else None)
    return Codes(bins.places(document_lengths), bins.names, bins=bins)


def numeric_bins(values: Float64[np.ndarray, " document"], bins: int | Bins) -> Codes:
    """Divide the documents into bins by a number, such as a quality score, as in `length_bins`. NaN is `unknown`."""
    is_known = ~np.isnan(values)
    if isinstance(bins, int):
        bins = _quantile_bins(values[is_known], bins, "{:.6g} to {:.6g}")
    group = np.full(len(values), len(bins.names), np.int32)
    group[is_known] = bins.places(values[is_known])
    missing = int((~is_known).sum())
    return Codes(group, (*bins.names, UNKNOWN) if missing else bins.names, missing, bins=bins)


def _quantile_bins(values: np.ndarray, num_bins: int, name: str, weights: np.ndarray | None = None) -> Bins:
    """Make bins with about equal numbers of values, or equal sums of their weights.

    The pattern `name` makes a bin's name from its lowest and highest value.
    """
    if not len(values):
        return Bins((), ())
    ordered = np.sort(values)
    parts = np.arange(1, num_bins + 1) / num_bins
    # A bin ends with a value that occurs in the data, and equal values are in the same bin. Without any weight, the
    # values count equally.
    if weights is not None and weights.any():
        highest = np.quantile(values, parts, method="inverted_cdf", weights=weights)
    else:
        highest = np.quantile(ordered, parts, method="inverted_cdf")
    stops = np.unique(np.searchsorted(ordered, highest, side="right"))
    lowest, highest = ordered[np.append(0, stops[:-1])].tolist(), ordered[stops - 1].tolist()
    return Bins(tuple(name.format(*ends) for ends in zip(lowest, highest, strict=True)), tuple(highest))


def host_of(address: Any) -> str | None:
    """Return the host of an address, in lower case, without `www.`, user and port. None if there is no host."""
    if not isinstance(address, str):
        return None
    address = address.strip()
    # urlsplit finds a host only after `//`. Without it, `example.org/b` would be a path.
    if "//" not in address:
        if not _BARE_HOST.match(address):
            return None
        address = f"//{address}"
    try:
        host = urlsplit(address).hostname
    except ValueError:  # brackets without an address between them
        return None
    return host.removeprefix("www.").rstrip(".") if host else None


def copies(duplicate_group: Int64[np.ndarray, " document"]) -> Codes:
    """Make a group for each set of documents with equal texts. All documents without a copy are the group `unique`."""
    sizes = np.bincount(duplicate_group, minlength=1)
    repeated = np.flatnonzero(sizes > 1)
    of_group = np.zeros(len(sizes), np.int32)  # group 0: no copy
    of_group[repeated] = np.arange(1, len(repeated) + 1)
    return Codes(of_group[duplicate_group], (UNIQUE, *(f"copies {index + 1}" for index in range(len(repeated)))))


class FieldValues:
    """A metadata field's values. They are added in blocks of documents.

    Only after all documents can we decide whether a field has numbers or names. If it has names, a number among them
    must keep its spelling (`3` or `3.0`). Therefore a block is stored as names; the same numbers can be made from the
    names again. A block that contains only floats, such as scores, is stored as floats. This is faster and also loses
    nothing.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._blocks: list[pa.DictionaryArray | pa.DoubleArray] = []
        self._kinds: set[type] = set()
        self._num_documents = 0

    def add(self, values: Sequence[Any]) -> None:
        """Add the next documents' values: text, numbers or booleans; None for documents without a value."""
        kinds = {type(value) for value in values} - {type(None)}
        if strange := kinds - {str, bool, int, float}:
            place = next(place for place, value in enumerate(values) if type(value) in strange)
            raise UserError(
                f"Expected text, numbers or booleans in the metadata field {self.name!r}, found {values[place]!r} in "
                f"document {self._num_documents + place}; name another field in characteristics.families."
            )
        self._kinds |= kinds
        self._blocks.append(pa.array(values, pa.float64()) if kinds == {float} else encoded(values))
        self._num_documents += len(values)

    def codes(self, bins: int | Bins, max_groups: int) -> Codes:
        """Make the field's groups: quantile bins if all values are numbers, otherwise one group for each value.

        With given `bins` (for numbers) or 0 (for names), the kind of groups does not depend on the values. A field
        without values then has only the group `unknown`.
        """
        if isinstance(bins, Bins):
            if not self._kinds <= {int, float}:
                raise UserError(
                    f"Expected numbers in the metadata field {self.name!r}, as in the dataset of features_from, found "
                    "text or booleans; use a field of numbers, or leave it out of the records."
                )
            return numeric_bins(self._numbers(), bins)
        if not self._kinds and bins:
            raise UserError(
                f"Expected documents with a value in the metadata field {self.name!r}, found none among "
                f"{self._num_documents}; name another field in characteristics.families."
            )
        if bins and self._kinds <= {int, float}:
            return numeric_bins(self._numbers(), bins)
        column = joined(
            [encoded(block.to_pylist()) if isinstance(block, pa.DoubleArray) else block for block in self._blocks]
        )
        num_known, num_different = len(column) - column.null_count, len(column.chunk(0).dictionary)
        if num_different > max(max_groups, num_known // 2):
            raise UserError(
                f"Expected the metadata field {self.name!r} to put documents into groups, found {num_different} "
                f"different values in {num_known} documents, like an id; name another field in "
                "characteristics.families."
            )
        return categorical(column, max_groups)

    def _numbers(self) -> Float64[np.ndarray, " document"]:
        """Return every document's number, or NaN if it has no number."""
        numbers, stop = np.empty(self._num_documents), 0
        for block in self._blocks:
            start, stop = stop, stop + len(block)
            if isinstance(block, pa.DoubleArray):
                numbers[start:stop] = block.to_numpy(zero_copy_only=False)
                continue
            texts, place = block.dictionary.to_pylist(), _places(block)
            different = np.array([*map(float, texts), math.nan])
            # JSON has no infinite numbers, so an infinite number means an overflow.
            for index in np.flatnonzero(np.isinf(different)).tolist():
                document = start + int(np.argmax(place == index))
                raise UserError(
                    f"Expected numbers that fit into float64 in the metadata field {self.name!r}, found a number of "
                    f"{len(texts[index])} digits in document {document}; repair the record or name another field in "
                    "characteristics.families."
                )
            numbers[start:stop] = different[place]
        return numbers
