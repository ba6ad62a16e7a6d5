"""What the tests of packing share: corpora of lengths, every method's options, sequences written out in tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.base import METHODS, Packed, pack

Token = tuple[int, int | str]
INSERTED = "end"
"""In place of an offset: an end token that packing inserted."""

_OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "last_sequence": st.sampled_from(["drop", "pad"]),
    "num_rows": st.integers(1, 4),
    "num_epochs": st.integers(1, 3),
    "num_neighbors": st.integers(1, 4),
}


@st.composite
def corpora(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Documents' lengths, some of the documents in some order, a sequence length."""
    lengths = np.array(draw(st.lists(st.integers(0, 14), max_size=25)), np.int64)
    order = np.random.default_rng(draw(st.integers(0, 2**16))).permutation(len(lengths)).astype(np.int64)
    return lengths, order[: draw(st.integers(0, len(order)))], draw(st.integers(1, 9))


@st.composite
def atom_sizes(draw: st.DrawFn, sequence_length: int) -> int | None:
    """None, a fraction of the sequence length or a multiple of it."""
    fractions = [size for size in range(2, sequence_length + 1) if sequence_length % size == 0]
    multiples = [sequence_length * times for times in (2, 3) if sequence_length * times >= 2]
    return draw(st.sampled_from([None, *fractions, *multiples]))


@st.composite
def packings(draw: st.DrawFn, method: str) -> tuple[np.ndarray, np.ndarray, int, dict[str, Any]]:
    """A corpus and arguments for `pack` with a method, its options drawn, too."""
    lengths, order, length = draw(corpora())
    seed = draw(st.integers(0, 2**16))
    arguments: dict[str, Any] = {"method": method, "document_order": order, "seed": seed}
    for option in METHODS.options(method):
        if option == "atom_size":
            arguments[option] = draw(atom_sizes(length))
        elif option in _OPTIONS:
            arguments[option] = draw(_OPTIONS[option])
    if "num_rows" in arguments:  # every row must hold a token
        arguments["num_rows"] = min(arguments["num_rows"], max(int(lengths[order].sum()), 1))
    rng = np.random.default_rng(seed)
    if METHODS.takes(method, "clusters"):
        arguments["clusters"] = rng.integers(0, 4, len(lengths))
    if METHODS.takes(method, "vectors"):
        arguments["vectors"] = rng.normal(size=(len(lengths), 3)).astype(np.float32)
    return lengths, order, length, arguments


def registered() -> list[str]:
    """All methods, the same in every process."""
    return sorted(METHODS)


def tokens_of(segments: Segments, lengths: np.ndarray) -> list[list[Token]]:
    """Every sequence's tokens: document and offset in it."""
    inserted = segments.inserted_ends(lengths)
    sequences: list[list[Token]] = [[] for _ in range(segments.num_sequences)]
    for row in range(len(segments)):
        document, offset = int(segments.document_index[row]), int(segments.document_offset[row])
        run: list[Token] = [(document, offset + token) for token in range(segments.length[row])]
        if inserted[row]:
            run[-1] = (document, INSERTED)
        sequences[segments.sequence_index[row]] += run
    return sequences


def fewest_segments(sequences: list[list[Token]]) -> int:
    """Runs of one document's tokens in their order, an inserted end being the last of its run."""
    runs = 0
    for tokens in sequences:
        before: Token | None = None
        for token in tokens:
            goes_on = before is not None and before[0] == token[0] and before[1] != INSERTED
            if goes_on and token[1] != INSERTED:
                assert before is not None
                goes_on = token[1] == int(before[1]) + 1
            runs += not goes_on
            before = token
    return runs


def same_columns(first: Packed, second: Packed) -> bool:
    """Whether two packings' segments are equal in every column."""
    pairs = [(getattr(first.segments, name), getattr(second.segments, name)) for name in Segments.COLUMNS]
    return all(np.array_equal(mine, other) for mine, other in pairs)


def packed(lengths: np.ndarray, length: int, arguments: dict[str, Any]) -> Packed:
    """`pack` with drawn arguments."""
    return pack(lengths, length, **arguments)
