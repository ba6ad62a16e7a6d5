"""What a sample is taken from: token counts of all sequences, or counts of all documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array, vstack

from jax_diversity.counts import Characteristics, TokenCounts
from jax_diversity.foundation.checks import check_mapping, check_one_of
from jax_diversity.foundation.errors import UserError, in_one_line, quoted
from jax_diversity.schema import Segments
from jax_diversity.schema.orderings import as_floats
from jax_diversity.sequences.characteristics.codes import Codes, FieldValues, length_bins, numeric_bins
from jax_diversity.sequences.characteristics.stored import CODES, TOKENS
from jax_diversity.streaming.dataset import Dataset, open_dataset

Kind = Literal["sequences", "documents"]
Source = TokenCounts | Dataset | str | Path
"""Token counts of sequences, in memory or stored, a built dataset or its folder, or a Parquet file of documents."""
VALUE_BINS = 50
"""Number of quantile bins of a user's own values."""
_VALUE_WEIGHT = 4.0
"""λ of a family of a user's own values; docs/log.md shows how it was chosen."""
_UNITS = 4096
"""Every document counts equally: its counts in a family have this sum."""
_WORD_GROUPS = 2048
_WORD_WEIGHT = 12.0
"""λ of the hashed words: their squares are small, because a document's words are spread over many groups."""
_LARGEST = 1e100
"""The largest size of a user's number: its square, and sums of squares, are finite."""
_LENGTH_BINS = 20
_FIELD_BINS, _FIELD_GROUPS = 10, 100
_ROWS = 4096
_TEXT, _ID = "text", "id"


@dataclass(frozen=True)
class Population:
    """All sequences or documents that a sample may contain.

    Attributes:
        kind: sequences or documents.
        characteristics: their counts; one row per sequence or document.
        names: family -> names of its groups; a family without names has none here.
        numbers: the number of every row in the dataset; None if rows are numbered from 0.
        num_numbers: the number of all sequences or documents of the dataset, also without a row.
        ids: returns the ids of some documents by their numbers; None for sequences.
    """

    kind: Kind
    characteristics: Characteristics
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    numbers: Int64[np.ndarray, " row"] | None = None
    num_numbers: int = 0
    ids: Callable[[Int64[np.ndarray, " chosen"]], tuple[str, ...]] | None = None

    def with_values(self, values: Mapping[str, Any]) -> Population:
        """Add a family for every array of a user's own values, in quantile bins.

        Raises:
            UserError: a name that is a family already; values of another length, not finite or all equal.
        """
        check_mapping("values", values, "name -> one number for every sequence")
        chars = self.characteristics
        counts, weights = dict(chars.counts), dict(chars.weights)
        for name, value in values.items():
            if name in counts:
                raise UserError(f"Expected a new name for the values, found {name!r}, which is a family; rename it.")
            codes = numeric_bins(self.rows_of(f"values[{name!r}]", value), VALUE_BINS)
            if len(codes.names) < 2:
                raise UserError(f"Expected values[{name!r}] that differ, found equal values; leave them out.")
            counts[name], weights[name] = _one_group(codes, chars.tokens), _VALUE_WEIGHT
        return replace(self, characteristics=replace(chars, counts=counts, weights=weights))

    def rows_of(self, what: str, values: Any) -> Float64[np.ndarray, " row"]:
        """Check numbers of all sequences or documents, and return those of the rows."""
        numbers = as_numbers(what, values, self.num_numbers, f"one for each of the {self.kind}")
        return numbers if self.numbers is None else numbers[self.numbers]


def as_numbers(what: str, numbers: Any, number: int, words: str) -> Float64[np.ndarray, " number"]:
    """Check that a user's array has `number` finite numbers; `words` say what they are."""
    values = as_floats(what, numbers)
    if values.shape != (number,):
        raise UserError(f"Expected {what} to be {number:,} numbers, {words}, found the shape {values.shape}.")
    if not np.isfinite(values).all():
        place = int(np.argmin(np.isfinite(values)))
        raise UserError(f"Expected {what} to be finite, found {values[place]} at place {place}; repair or remove it.")
    if number and np.abs(values).max() > _LARGEST:
        place = int(np.abs(values).argmax())
        raise UserError(
            f"Expected {what} of at most {_LARGEST:g}, found {values[place]:g} at place {place}; repair or scale them."
        )
    return values


def find_population(source: Source, kind: Kind | None) -> Population:
    """Return all sequences or documents of a source; None means sequences, and documents for a Parquet file.

    Raises:
        UserError: another kind of source, or documents of own counts.
    """
    if kind is not None:
        check_one_of("of", kind, ("sequences", "documents"))
    if isinstance(source, TokenCounts):
        if kind == "documents":
            raise UserError(
                "Expected a dataset or a Parquet file for a sample of documents, found token counts; give counts with "
                "one row per document and leave `of` out."
            )
        number = source.num_sequences
        return Population("sequences", source.rows(0, number), source.names, num_numbers=number)
    if is_parquet(source):
        if kind == "sequences":
            raise UserError(
                f"Expected a dataset for a sample of sequences, found the documents of {source}; ask for documents."
            )
        return _of_parquet(Path(str(source)))
    if not isinstance(source, Dataset):
        if not isinstance(source, str | os.PathLike):
            raise UserError(
                "Expected token counts (jd.Characteristics), a dataset, its folder or a Parquet file of documents, "
                f"found {quoted(source)}."
            )
        source = open_dataset(source)
    return _of_sequences(source) if kind != "documents" else _of_documents(source)


def is_parquet(source: Any) -> bool:
    """Whether a source is a Parquet file, by its name."""
    return isinstance(source, str | Path) and str(source).endswith(".parquet")


def _of_sequences(dataset: Dataset) -> Population:
    chars = dataset.characteristics
    names = {family: dataset.shown_groups[family] for family in chars.families if family != TOKENS}
    return Population("sequences", chars, names, num_numbers=chars.num_sequences)


def _of_documents(dataset: Dataset) -> Population:
    """Documents that training reads; a validation document must not get into a sample for a proxy run."""
    import pyarrow.parquet as pq

    numbers = np.unique(dataset.segments.document_index)
    lengths = dataset.tokens.document_lengths
    table = pq.read_table(CODES.path(dataset.stored))
    counts, names = {}, {}
    for family in dataset.families:
        if family == TOKENS:
            counts[family] = _token_shares(dataset, numbers, lengths)
        elif family in table.column_names:
            codes = Codes(table[family].to_numpy()[numbers].astype(np.int32), dataset.group_names[family])
            counts[family] = _one_group(codes, np.full(len(numbers), _UNITS))
            names[family] = dataset.shown_groups[family]
    weights = {family: dataset.counts("characterize")["weights"][family] for family in counts}
    store = dataset.document_store

    def ids(chosen: Int64[np.ndarray, " chosen"]) -> tuple[str, ...]:
        ascending = np.sort(chosen)
        ids = [row[_ID] for row in store.rows(ascending, [_ID])]
        return tuple(ids[place] for place in np.searchsorted(ascending, chosen).tolist())

    chars = Characteristics.from_counts(counts, weights=weights, sequence_length=_UNITS)
    return Population("documents", chars, names, numbers, len(lengths), ids)


def _token_shares(
    dataset: Dataset, numbers: Int64[np.ndarray, " row"], lengths: Int64[np.ndarray, " document"]
) -> csr_array:
    """Return the shares of the token ids of some documents, in `_UNITS`."""
    # `count_segments` counts the sequences of a packing. We cut every document into pieces of at most L tokens, so
    # that a long document does not need a long row for all.
    size = max(dataset.sequence_length, 1)
    parts = []
    for start in range(0, len(numbers), _ROWS):
        chosen = numbers[start : start + _ROWS]
        number = np.maximum(-(-lengths[chosen].astype(np.int64) // size), 1)
        document = np.repeat(chosen, number)
        offset = (np.arange(len(document)) - np.repeat(np.cumsum(number) - number, number)) * size
        length = np.minimum(lengths[document].astype(np.int64) - offset, size)
        total, zero = len(document), np.zeros(len(document), np.int64)
        ends = offset + length == lengths[document]
        pieces = Segments(np.arange(total), zero, document, offset, length, ends, total, size)
        # A document without tokens has no segment.
        kept = length > 0
        pieces = replace(pieces, **{name: getattr(pieces, name)[kept] for name in Segments.COLUMNS})
        counts = dataset.count_segments(pieces)
        of_document = csr_array(
            (np.ones(total, np.int64), (np.repeat(np.arange(len(chosen)), number), np.arange(total))),
            shape=(len(chosen), total),
        )
        parts.append(_in_units(csr_array(of_document @ counts)))
    return csr_array(vstack(parts))


def _in_units(counts: csr_array) -> csr_array:
    """Scale every row to the sum `_UNITS`, in whole numbers; a row without counts gets all of it in group 0."""
    counts.sum_duplicates()
    totals = np.asarray(counts.sum(axis=1)).ravel()
    rows = np.repeat(np.arange(len(totals)), np.diff(counts.indptr))
    before = np.concatenate([[0], np.cumsum(counts.data, dtype=np.int64)])
    within = before[1:] - before[counts.indptr[:-1]][rows]
    # Rounding the running sum keeps the sum of the row exact.
    scaled = within * _UNITS // np.maximum(totals[rows], 1)
    values = np.diff(scaled, prepend=0)
    first = counts.indptr[:-1][np.diff(counts.indptr) > 0]
    values[first] = scaled[first]
    empty = np.flatnonzero(totals == 0)
    parts = (np.append(values, np.full(len(empty), _UNITS)), np.append(rows, empty))
    columns = np.append(counts.indices, np.zeros(len(empty), np.int64))
    ascending = csr_array((parts[0], (parts[1], columns)), shape=counts.shape)
    ascending.eliminate_zeros()
    return ascending


def _one_group(codes: Codes, tokens: Int64[np.ndarray, " row"]) -> csr_array:
    """Put all tokens of every row into the group of its code."""
    index = np.arange(len(tokens) + 1)
    return csr_array(
        (tokens.astype(np.int64), codes.group.astype(np.int64), index), shape=(len(tokens), len(codes.names))
    )


def _of_parquet(path: Path) -> Population:
    """Documents of a Parquet file: families of its columns, of the length of the text, and of hashed words."""
    import pyarrow as pa

    if not path.is_file():
        raise UserError(f"Expected a Parquet file of documents at {path}, found no such file.")
    lengths, words, fields, ids = [], [], dict[str, FieldValues](), []
    for batch in _batches(path):
        types = {field.name: field.type for field in batch.schema}
        if _TEXT not in types or not (pa.types.is_string(types[_TEXT]) or pa.types.is_large_string(types[_TEXT])):
            raise UserError(f"Expected a column {_TEXT!r} of texts in {path}, found {', '.join(types) or 'no column'}.")
        texts = [text or "" for text in batch[_TEXT].to_pylist()]
        lengths.append(np.array([len(text) for text in texts], np.int64))
        words.append(_word_shares(texts))
        ids += batch[_ID].to_pylist() if _ID in types else range(len(ids), len(ids) + len(texts))
        for name, kind in types.items():
            is_plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind)
            if name not in (_TEXT, _ID) and (is_plain or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                fields.setdefault(name, FieldValues(name)).add(batch[name].to_pylist())
    if not ids:
        raise UserError(f"Expected documents in {path}, found no rows.")
    families = {"length": length_bins(np.concatenate(lengths), _LENGTH_BINS)}
    for name, values in fields.items():
        try:
            families.setdefault(name, values.codes(_FIELD_BINS, _FIELD_GROUPS))
        except UserError:
            continue  # a column of ids, addresses or missing values puts no documents into groups
    units = np.full(len(ids), _UNITS)
    counts = {name: _one_group(codes, units) for name, codes in families.items() if len(codes.names) > 1}
    counts["words"] = csr_array(vstack(words))
    chars = Characteristics.from_counts(counts, weights={"words": _WORD_WEIGHT}, sequence_length=_UNITS)
    names = {name: families[name].names for name in counts if name in families}
    return Population("documents", chars, names, None, len(ids), lambda chosen: tuple(str(ids[row]) for row in chosen))


def _batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(_ROWS)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"Expected a Parquet file of documents at {path}: {in_one_line(error)}") from None


def _word_shares(texts: Sequence[str]) -> csr_array:
    """Return the shares of hashed words of some texts, in `_UNITS`."""
    from sklearn.feature_extraction.text import HashingVectorizer

    settings: dict[str, Any] = {"n_features": _WORD_GROUPS, "alternate_sign": False, "norm": None}
    return _in_units(csr_array(HashingVectorizer(**settings).transform(texts), dtype=np.int64))
