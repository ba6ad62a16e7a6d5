"""Token counts of some sequences in narrow types: the form of files and spools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Integer
from scipy.sparse import csr_array

DOCUMENT, COPIES, TURN = "document", "copies", "turn"
"""The names of the columns that do not belong to a family."""


@dataclass(frozen=True)
class NarrowCounts:
    """The token counts of some sequences, in the narrowest types that represent them.

    Attributes:
        lengths: family -> the number of groups of every sequence.
        groups: family -> the groups, sequence after sequence.
        tokens: family -> the tokens of these groups.
        documents: the document of every sequence; None if unknown.
        copies: the groups of copies (sequence, member); unused places are negative. None if unknown.
        turns: the turn of every sequence; None if turns do not matter.
    """

    lengths: Mapping[str, Integer[np.ndarray, " sequence"]]
    groups: Mapping[str, Integer[np.ndarray, " _nonzero"]]
    tokens: Mapping[str, Integer[np.ndarray, " _nonzero"]]
    documents: Int64[np.ndarray, " sequence"] | None = None
    copies: Int64[np.ndarray, "sequence member"] | None = None
    turns: Int64[np.ndarray, " sequence"] | None = None

    @classmethod
    def of(
        cls,
        counts: Mapping[str, csr_array],
        documents: Int64[np.ndarray, " sequence"] | None,
        copies: Int64[np.ndarray, "sequence member"] | None,
        turns: Int64[np.ndarray, " sequence"] | None,
    ) -> NarrowCounts:
        """Copy the counts of all families (sequence, group) into narrow arrays."""
        return cls(
            {name: narrow(np.diff(matrix.indptr)) for name, matrix in counts.items()},
            {name: narrow(matrix.indices) for name, matrix in counts.items()},
            {name: narrow(matrix.data) for name, matrix in counts.items()},
            documents,
            copies,
            turns,
        )

    def counts(self, num_groups: Mapping[str, int]) -> dict[str, csr_array]:
        """Return the counts as matrices (sequence, group) with int32 counts, or int64 if they do not fit."""
        matrices = {}
        for name, lengths in self.lengths.items():
            data, starts = self.tokens[name], np.append(0, np.cumsum(lengths, dtype=np.int64))
            index_type = np.int32 if starts[-1] < 2**31 else np.int64
            parts = (
                data.astype(np.int32 if int(data.max(initial=0)) < 2**31 else np.int64),
                self.groups[name].astype(index_type),
                starts.astype(index_type),
            )
            matrices[name] = csr_array(parts, shape=(len(lengths), num_groups[name]))
        return matrices

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name; see `from_arrays`."""
        named = {
            f"{kind}/{name}": values
            for kind in ("lengths", "groups", "tokens")
            for name, values in getattr(self, kind).items()
        }
        optional = {DOCUMENT: self.documents, COPIES: self.copies, TURN: self.turns}
        return named | {name: values for name, values in optional.items() if values is not None}

    @staticmethod
    def joined(several: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return the arrays of several, see `arrays`, with the sequences of one after those of another."""
        first = several[0]
        if COPIES in first:
            width = max(arrays[COPIES].shape[1] for arrays in several)
            # Unused places contain a negative number.
            several = [
                {
                    **arrays,
                    COPIES: np.pad(arrays[COPIES], ((0, 0), (0, width - arrays[COPIES].shape[1])), constant_values=-1),
                }
                for arrays in several
            ]
        return {name: np.concatenate([arrays[name] for arrays in several]) for name in first}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> NarrowCounts:
        """Make the counts from the arrays of `arrays`."""

        def columns(kind: str) -> dict[str, np.ndarray]:
            return {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}

        of_sequences = (arrays.get(name) for name in (DOCUMENT, COPIES, TURN))
        return cls(columns("lengths/"), columns("groups/"), columns("tokens/"), *of_sequences)


def narrow(values: np.ndarray) -> Integer[np.ndarray, " value"]:
    """Copy numbers >= 0 into uint16, or into a wider type if they do not fit."""
    largest = int(values.max(initial=0))
    return values.astype(np.uint16 if largest < 2**16 else np.uint32 if largest < 2**32 else np.uint64)
