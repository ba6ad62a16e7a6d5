"""The interface of token counts: what orderings, measures and samples read, whatever holds the counts.

A *family* is a kind of characteristics, such as topic clusters, document lengths or sources. A *group* is one value of
a family, such as one cluster.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.foundation.checks import as_weight, check_mapping
from jax_diversity.foundation.errors import UserError

if TYPE_CHECKING:
    from jax_diversity.counts.characteristics import Characteristics

MOST_ROWS, MOST_ENTRIES = 1 << 20, 1 << 25
"""The largest numbers of sequences and of entries of a chunk, about. They decide which order a large corpus gets, so
they are constants: neither the memory of the machine nor a setting changes them."""
_HASHED_TOGETHER = 1 << 20
MOST_GROUPS = 2**31
MAX_COUNT = 2**53  # float64 represents all whole numbers up to this value exactly


class TokenCounts(ABC):
    """Token counts of every sequence of a corpus in every group of every family.

    Attributes:
        num_groups: family -> its number of groups.
        weights: family -> λ, the weight of the family's squared deviations.
        sequence_length: L in tokens, the unit of every measure.
        batch_size: the global batch size of training, in sequences; None if it is unknown.
        names: family -> the names of its groups, of families whose groups have names.
    """

    num_groups: Mapping[str, int]
    weights: Mapping[str, float]
    sequence_length: int
    batch_size: int | None
    names: Mapping[str, tuple[str, ...]]

    @property
    @abstractmethod
    def num_sequences(self) -> int:
        """Number of sequences."""

    @property
    @abstractmethod
    def num_entries(self) -> int:
        """Number of counts above zero, over all families; a sequence without tokens has one entry in every family."""

    @abstractmethod
    def rows(self, first: int, stop: int) -> Characteristics:
        """Return the counts of the sequences `first` up to `stop`, in memory.

        Raises:
            UserError: a stored file is damaged, or was changed after it was opened.
        """

    @abstractmethod
    def with_weights(self, weights: Mapping[str, float]) -> TokenCounts:
        """Return the same counts with other weights.

        Args:
            weights: family name -> λ >= 0. Families without an entry have 1.0.

        Raises:
            ValueError: weights that are negative, all zero or of an unknown family.
        """

    @property
    def families(self) -> tuple[str, ...]:
        """Names of the families. Objectives use the norm of the first family's counts."""
        return tuple(self.num_groups)

    @property
    def most_entries(self) -> int:
        """A number that `num_entries` does not exceed, for counts that need long to count their entries."""
        return self.num_entries

    @property
    def chunk_bounds(self) -> list[int]:
        """The first sequences of the chunks, and the end: a chunk is what is in memory at the same time.

        Usual corpora are one chunk. Chunks have nearly equal numbers of sequences.

        Example:
            >>> Characteristics.from_counts({"topic": [[3, 1], [0, 4]]}).chunk_bounds
            [0, 2]
        """
        number = -(-self.num_sequences // MOST_ROWS)
        if self.most_entries > MOST_ENTRIES:
            number = max(number, -(-self.num_entries // MOST_ENTRIES))
        number = max(min(number, self.num_sequences), 1)
        return [self.num_sequences * chunk // number for chunk in range(number + 1)]

    def chunks(self) -> Iterator[Characteristics]:
        """Read the counts chunk by chunk."""
        for first, stop in itertools.pairwise(self.chunk_bounds):
            yield self.rows(first, stop)

    @cached_property
    def totals(self) -> Mapping[str, Int64[np.ndarray, " group"]]:
        """Family -> the tokens of each of its groups, over all sequences."""
        sums = {family: np.zeros(number, np.int64) for family, number in self.num_groups.items()}
        for chunk in self.chunks():
            for family, matrix in chunk.counts.items():
                sums[family] += np.asarray(matrix.sum(axis=0, dtype=np.int64)).ravel()
        for total in sums.values():
            total.setflags(write=False)
        return sums

    def target_share(self, family: str) -> Float64[np.ndarray, " group"]:
        """Return τ: every group's share of all tokens."""
        totals = self.totals[family].astype(np.float64)
        # For a corpus without tokens all shares are 0, not NaN.
        return totals / max(totals.sum(), 1.0)

    def turns_of_documents(self) -> tuple[Int64[np.ndarray, " sequence"], Int64[np.ndarray, " sequence"]] | None:
        """Return the document and the turn of every sequence; None if they are unknown."""
        pairs = []
        for chunk in self.chunks():
            if chunk.documents is None or chunk.turns is None:
                return None
            pairs.append((chunk.documents, chunk.turns))
        documents, turns = (np.concatenate(blocks) for blocks in zip(*pairs, strict=True))
        return documents, turns

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the counts, weights, sequence length, documents, copies and turns, without the batch size."""
        digest = CountsDigest(self)
        for chunk in self.chunks():
            digest.add(chunk)
        return digest.hexdigest()


class CountsDigest:
    """The hash of counts that are added in blocks of consecutive sequences; it does not depend on the blocks.

    Args:
        counts: whose weights and sequence length are part of the hash.
    """

    def __init__(self, counts: TokenCounts) -> None:
        description = [dict(counts.weights), counts.sequence_length, dict(counts.num_groups)]
        self._about = json.dumps(description).encode()
        self._columns: dict[str, hashlib._Hash] = {}

    def add(self, block: Characteristics) -> None:
        """Add the next sequences."""
        for family, matrix in block.counts.items():
            parts = {"lengths": np.diff(matrix.indptr), "groups": matrix.indices, "tokens": matrix.data}
            for kind, values in parts.items():
                self._add(f"{kind} {family}", values)
        if block.documents is not None:
            self._add("documents", block.documents)
        if block.copies is not None:
            is_copy = block.copies >= 0
            self._add("copies", is_copy.sum(axis=1))
            self._add("members", block.copies[is_copy])
        if block.turns is not None:
            self._add("turns", block.turns)

    def _add(self, column: str, values: np.ndarray) -> None:
        digest = self._columns.setdefault(column, hashlib.sha256())
        # SciPy chooses int32 or int64 by size; this choice must not change the hash.
        for first in range(0, len(values), _HASHED_TOGETHER):
            digest.update(values[first : first + _HASHED_TOGETHER].astype("<i8").tobytes())

    def hexdigest(self) -> str:
        """Return the hash of all sequences that were added."""
        columns = [[name, digest.hexdigest()] for name, digest in sorted(self._columns.items())]
        return hashlib.sha256(self._about + json.dumps(columns).encode()).hexdigest()


def as_weights(weights: Mapping[str, float] | None, matrices: Mapping[str, Any]) -> dict[str, float]:
    """Check weights, and return a weight for each of the families `matrices`."""
    weights = {} if weights is None else weights
    check_mapping("weights", weights, "family -> number")
    unknown = set(weights) - set(matrices)
    if unknown:
        raise UserError(f"Weights name unknown families {sorted(unknown)}; the families are {sorted(matrices)}.")
    complete = {name: as_weight(f"the weight of family {name!r}", weights.get(name, 1.0)) for name in matrices}
    if not any(complete.values()):
        raise UserError("At least one family must have a weight above zero, found only zeros.")
    return complete
