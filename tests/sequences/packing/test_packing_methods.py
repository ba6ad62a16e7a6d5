"""Every packing method against a slow, obvious one, its report, and what `pack` refuses."""

from __future__ import annotations

import importlib
import re
import tracemalloc
from collections import Counter
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from benchmarks.packing_picture import FOLDER, PICTURES, all_pictures
from jax_diversity.sequences.packing.base import METHODS, Packed, pack
from jax_diversity.sequences.packing.pieces import as_atom_size
from jax_diversity.sequences.packing.report import PackingReport, cluster_mix
from tests.support.packing_cases import INSERTED, Token, corpora, fewest_segments, packings, tokens_of


def stream_of(lengths: np.ndarray, order: np.ndarray) -> list[Token]:
    return [(document, offset) for document in order.tolist() for offset in range(lengths[document])]


def split(tokens: list[Any], size: int) -> list[list[Any]]:
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


def without_unfilled(sequences: list[list[Token]], length: int, last_sequence: str) -> list[list[Token]]:
    return [tokens for tokens in sequences if last_sequence == "pad" or len(tokens) == length]


@settings(max_examples=150)
@given(packings("concat"))
def test_concat_shuffles_atoms(drawn: tuple[np.ndarray, np.ndarray, int, dict[str, Any]]) -> None:
    lengths, order, length, options = drawn
    atom_size = options["atom_size"] or length
    stream = stream_of(lengths, order)
    atoms = split(stream, atom_size)
    full = [atom for atom in atoms if len(atom) == atom_size]
    if options["atom_size"] is not None:
        mixed = np.random.default_rng(options["seed"]).permutation(len(full))
        atoms = [full[index] for index in mixed] + atoms[len(full) :]
    sequences = split([token for atom in atoms for token in atom], length)
    expected = without_unfilled(sequences, length, options["last_sequence"])
    segments = pack(lengths, length, **options).segments
    assert tokens_of(segments, lengths) == expected
    assert len(segments) == fewest_segments(expected)


@settings(max_examples=150)
@given(packings("pad"))
def test_pad_gives_every_document_atoms_of_its_own(
    drawn: tuple[np.ndarray, np.ndarray, int, dict[str, Any]],
) -> None:
    lengths, order, length, options = drawn
    atom_size = options["atom_size"] or max(length, 2)
    atoms: list[list[Token]] = []
    for document in order.tolist():
        *text, end = [(document, offset) for offset in range(lengths[document])] or [None]
        if end is not None:
            parts = split(text, atom_size - 1) or [[]]
            atoms += [[*part, (document, INSERTED)] for part in parts[:-1]] + [[*parts[-1], end]]
    if options["atom_size"] is not None:
        atoms = [atoms[index] for index in np.random.default_rng(options["seed"]).permutation(len(atoms))]
    if atom_size > length:
        expected = [part for atom in atoms for part in split(atom, length)]
    else:
        together = without_unfilled(split(atoms, length // atom_size), length // atom_size, options["last_sequence"])
        expected = [[token for atom in several for token in atom] for several in together]
    done = pack(lengths, length, **options)
    assert tokens_of(done.segments, lengths) == expected
    assert (done.segments.position % min(atom_size, length) == 0).all()  # each at its own atom's first place
    assert done.segments.ends_with_eos.sum() == sum(
        token[1] in (INSERTED, lengths[token[0]] - 1) for tokens in expected for token in tokens
    )


def test_atoms_lie_where_the_study_has_them() -> None:
    """Two documents of 21 tokens in atoms of 16 (Chen et al., 2024, https://arxiv.org/abs/2408.09621)."""
    segments = pack([21, 21], 64, method="pad", atom_size=16, seed=0).segments
    assert segments.position.tolist() == [0, 16, 32, 48]
    assert sorted(zip(segments.document_index.tolist(), segments.length.tolist(), strict=True)) == [
        *((0, 6), (0, 16)),  # 15 tokens and an inserted end, then the other six with the document's own
        *((1, 6), (1, 16)),
    ]
    assert segments.has_gaps
    assert not pack([21, 21], 16, method="pad", atom_size=16).segments.has_gaps  # one atom a sequence


@pytest.mark.parametrize("method", ["concat", "pad"])
@pytest.mark.parametrize("times", [0.25, 0.5, 1, 2, 4])
def test_atoms_of_all_sizes_are_shuffled_by_one_rule(method: str, times: float) -> None:
    size = int(16 * times)
    # Every document fills one atom but for its end, so that a document is an atom in both methods.
    segments = pack([size] * 40, 16, method=method, atom_size=size, seed=3).segments
    begins = segments.document_index[segments.document_offset == 0]
    assert begins.tolist() == np.random.default_rng(3).permutation(40).tolist()
    unshuffled = pack([size] * 40, 16, method=method, seed=3).segments.document_index
    assert (np.diff(unshuffled) >= 0).all()


def pieces_of(lengths: np.ndarray, order: np.ndarray, length: int) -> list[list[Token]]:
    documents = [[(document, offset) for offset in range(lengths[document])] for document in order.tolist()]
    return [piece for tokens in documents for piece in split(tokens, length)]


def by_first_piece(bins: list[list[list[Token]]], pieces: list[list[Token]]) -> list[list[Token]]:
    """Bins' pieces in the documents' order, bins by their first."""
    places = {tuple(piece): place for place, piece in enumerate(pieces)}
    in_order = [sorted(places[tuple(piece)] for piece in some) for some in bins]
    return [[token for place in some for token in pieces[place]] for some in sorted(in_order)]


@settings(max_examples=150)
@given(corpora())
def test_first_fit_takes_the_first_sequence_with_room(drawn: tuple[np.ndarray, np.ndarray, int]) -> None:
    lengths, order, length = drawn
    pieces = pieces_of(lengths, order, length)
    bins: list[list[list[Token]]] = []
    for piece in pieces:
        fitting = [some for some in bins if sum(map(len, some)) + len(piece) <= length]
        if fitting:
            fitting[0].append(piece)
        else:
            bins.append([piece])
    done = pack(lengths, length, method="first_fit", document_order=order)
    assert tokens_of(done.segments, lengths) == by_first_piece(bins, pieces)


@settings(max_examples=200)
@given(corpora())
def test_best_fit_takes_the_tightest_sequence_longest_pieces_first(
    drawn: tuple[np.ndarray, np.ndarray, int],
) -> None:
    lengths, order, length = drawn
    pieces = pieces_of(lengths, order, length)
    bins: list[list[int]] = []
    for piece in sorted(map(len, pieces), reverse=True):
        fitting = [some for some in bins if sum(some) + piece <= length]
        if fitting:
            min(fitting, key=lambda some: length - sum(some)).append(piece)
        else:
            bins.append([piece])
    segments = pack(lengths, length, method="best_fit", document_order=order).segments
    found = [Counter() for _ in range(segments.num_sequences)]
    for sequence, size in zip(segments.sequence_index, segments.length, strict=True):
        found[sequence][int(size)] += 1
    # Sequences with equal room are alike: which of them is taken is free, what the sequences are made of is not.
    assert Counter(frozenset(some.items()) for some in found) == Counter(
        frozenset(Counter(some).items()) for some in bins
    )
    sequences = tokens_of(segments, lengths)
    places = {tuple(piece): place for place, piece in enumerate(pieces)}
    firsts = []
    for sequence, tokens in enumerate(sequences):
        sizes = segments.length[segments.sequence_index == sequence]
        ends = np.cumsum(sizes)
        parts = [tuple(tokens[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
        assert [places[part] for part in parts] == sorted(places[part] for part in parts)
        firsts.append(places[parts[0]])
    assert firsts == sorted(firsts)


@settings(max_examples=150)
@given(packings("partial_shuffle"))
def test_partial_shuffle_rotates_every_row(drawn: tuple[np.ndarray, np.ndarray, int, dict[str, Any]]) -> None:
    lengths, order, length, options = drawn
    num_rows, num_epochs = options["num_rows"], options["num_epochs"]
    stream = stream_of(lengths, order)
    if num_rows > len(stream) > 0:
        with pytest.raises(jd.UserError, match=f"at most the number of tokens, {len(stream)}, .* {num_rows};"):
            pack(lengths, length, **options)
        return
    size = len(stream) // num_rows
    offsets = np.random.default_rng(options["seed"]).integers(max(size, 1), size=num_rows * num_epochs)
    expected: list[list[Token]] = []
    for epoch in range(num_epochs):
        columns = []
        for row in range(num_rows):
            offset = int(offsets[epoch * num_rows + row])
            tokens = stream[row * size : (row + 1) * size]
            rotated = tokens[offset:] + tokens[:offset]
            # Each sequence's tokens, and the token after them: all but the rotated row's first are targets.
            cut = [rotated[start : start + length + 1] for start in range(0, len(rotated) - 1, length)]
            columns.append(without_unfilled(cut, length + 1, options["last_sequence"]))
        expected += [row[column] for column in range(len(columns[0])) for row in columns]
    segments = pack(lengths, length, **options).segments
    assert tokens_of(segments, lengths) == expected
    assert (segments.sequence_length, segments.overlap) == (length + 1, 1)


def test_rows_go_on_where_the_batch_before_ended() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 400)
    segments = pack(lengths, 16, method="partial_shuffle", num_rows=8).segments
    stream = {token: place for place, token in enumerate(stream_of(lengths, np.arange(400)))}
    places = [[stream[token] for token in tokens] for tokens in tokens_of(segments, lengths)]
    # The last token is the next sequence's first, also where the row jumps back to its beginning.
    assert all(later[0] == former[-1] for former, later in zip(places, places[8:], strict=False))


@pytest.mark.parametrize("method", ["best_fit", "first_fit"])
@pytest.mark.parametrize("length", [10**5, 10**13, 2**55])
def test_long_sequences_take_no_more_memory_than_their_documents(method: str, length: int) -> None:
    lengths = np.random.default_rng(0).integers(0, 1000, 3000)
    tracemalloc.start()
    report = pack(lengths, length, method=method).report
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.num_sequences == -(-int(lengths.sum()) // length)
    assert report.num_tokens_dropped == 0
    assert peak < 5e6


def test_rows_beyond_the_tokens_take_no_memory() -> None:
    tracemalloc.start()
    with pytest.raises(jd.UserError, match=r"Expected num_rows to be at most the number of tokens, 29, .* found 10"):
        pack([7, 9, 0, 13], 4, method="partial_shuffle", num_rows=10**10)
    assert pack([], 4, method="partial_shuffle", num_rows=10**10).report.num_sequences == 0
    assert pack([0, 0], 4, method="partial_shuffle", num_rows=10**10).report.num_sequences == 0
    lengths = np.full(10, 10**6)  # every row shorter than a sequence
    options = {"method": "partial_shuffle", "num_rows": 10**6, "last_sequence": "drop"}
    assert pack(lengths, 10**4, **options).report.num_sequences == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


def test_epochs_are_counted_as_repeats() -> None:
    done = pack([7, 9, 4, 14], 4, method="partial_shuffle", num_rows=2, num_epochs=3)
    assert (done.report.num_sequences, done.report.num_padding_tokens) == (24, 0)
    # Sequences of 4 + 1 tokens; the first token of the next one is counted once.
    assert (done.report.num_tokens_kept, done.report.num_tokens_repeated) == (34, 24 * 5 - 34)
    assert done.report.num_tokens_dropped == 0
    # A document of 4 tokens may lie whole in a sequence; all longer ones are in parts.
    assert done.report.num_documents_cut >= 3


def test_best_fit_cuts_no_document_that_fits_and_needs_few_sequences() -> None:
    lengths = np.random.default_rng(1).integers(1, 129, 20_000)
    best = pack(lengths, 128, method="best_fit").report
    first = pack(lengths, 128, method="first_fit").report
    assert best.num_documents_cut == first.num_documents_cut == 0
    assert best.num_sequences <= first.num_sequences
    assert best.num_padding_tokens < 0.01 * best.num_tokens


@settings(max_examples=60)
@given(corpora(), st.integers(1, 5))
def test_topics_that_meet_in_a_sequence(drawn: tuple[np.ndarray, np.ndarray, int], num_clusters: int) -> None:
    lengths, order, length = drawn
    clusters = np.random.default_rng(len(order)).integers(0, num_clusters, len(lengths)).astype(np.int32)
    segments = pack(lengths, length, document_order=order, last_sequence="pad").segments
    mix = cluster_mix(segments, clusters)
    counts = [Counter(int(clusters[document]) for document, _ in tokens) for tokens in tokens_of(segments, lengths)]
    if not counts:
        assert mix is None
        return
    assert mix is not None
    assert mix.clusters_per_sequence == pytest.approx(np.mean([len(count) for count in counts]))
    assert mix.largest_share == pytest.approx(np.mean([max(c.values()) / c.total() for c in counts]))


def test_pack_is_public_and_lists_what_it_knows() -> None:
    done = jd.pack([4, 4], 4, clusters=[0, 1])
    assert isinstance(done, Packed)
    assert isinstance(done.report, PackingReport)
    assert (done.report.clusters_per_sequence, done.report.mean_segments) == (1.0, 1.0)
    assert METHODS.options("concat") == {"last_sequence": "drop", "atom_size": None}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"method": "bestfit"}, "Unknown packing method 'bestfit': .* did you mean 'best_fit'?"),
        ({"atom_sise": 4}, "Method 'concat' has no option 'atom_sise': .* did you mean 'atom_size'?"),
        ({"method": "best_fit", "atom_size": 4}, "Method 'best_fit' has no option 'atom_size': it takes none"),
        ({"method": "spread"}, "Packing 'spread' needs the documents' clusters, found none; pass clusters=..."),
        ({"method": "nearest"}, "Packing 'nearest' needs the documents' vectors, found none; pass vectors=..."),
        ({"atom_size": 3}, "atom_size that divides the sequence length 8 or is a multiple of it, found 3"),
        ({"atom_size": 12}, "atom_size that divides the sequence length 8 .* found 12"),
        ({"atom_size": 0}, "atom_size to be a whole number >= 1, found 0"),
        ({"atom_size": True}, "atom_size to be a whole number >= 1, found True"),
        ({"method": "pad", "atom_size": 1}, "atom_size to be a whole number >= 2, found 1"),
        ({"method": "pad", "atom_size": 5}, "atom_size that divides the sequence length 8"),
        ({"method": "partial_shuffle", "num_rows": 0}, "num_rows to be a whole number >= 1, found 0"),
        ({"method": "partial_shuffle", "num_epochs": 0}, "num_epochs to be a whole number >= 1, found 0"),
        ({"seed": -1}, "seed to be a whole number >= 0, found -1"),
        ({"document_order": [0, 3]}, "document_order >= 0 and below 3, found 3 at place 1"),
        ({"document_order": [-1]}, "document_order >= 0 and below 3, found -1 at place 0"),
        ({"document_order": [1, 1]}, "every document once in document_order, found 1 again"),
        ({"document_order": [0.5]}, "document_order to be one axis of integers, found float64 of shape (1,)"),
        ({"clusters": [0, 1]}, "one cluster for each of 3 documents, found 2"),
        ({"clusters": [0, 1, -1]}, "clusters >= 0 and below 2147483648, found -1 at place 2"),
        ({"clusters": [0, 1, 2**31]}, "clusters >= 0 and below 2147483648"),
        (
            {"vectors": [[1.0], [2.0]]},
            "vectors to contain a row of numbers for each of 3 documents, found shape (2, 1)",
        ),
        ({"vectors": [["a"]] * 3}, "vectors to contain a row of numbers"),
    ],
)
def test_what_pack_refuses(arguments: dict[str, Any], sentence: str) -> None:
    if "did you" not in sentence and ".*" not in sentence:
        sentence = re.escape(sentence)
    with pytest.raises(jd.UserError, match=sentence):
        pack([3, 5, 9], 8, **arguments)


def test_options_of_another_kind_are_named() -> None:
    with pytest.raises(jd.UserError, match=r"atom_size to be a whole number >= 2, found 4\.0"):
        as_atom_size(4.0, 8, least=2)


@pytest.mark.parametrize(
    ("lengths", "length", "sentence"),
    [
        ([3, -2], 4, "document_lengths >= 0 .* found -2 at place 1"),
        ([3.0], 4, "one axis of integers, found float64"),
        ([[3]], 4, "one axis of integers, found int64 of shape"),
        (np.array([2**63 + 5], np.uint64), 4, "found 9223372036854775813 at place 0"),
        ([2**61, 2**61, 2**61], 4, "at most 2.62 tokens in all"),
        ([3], 0, "sequence_length to be a whole number >= 1 and <= 36028797018963968, found 0"),
    ],
)
def test_what_no_method_could_pack(lengths: Any, length: Any, sentence: str) -> None:
    with pytest.raises(jd.UserError, match=sentence):
        pack(lengths, length)


def test_the_pictures_are_what_the_methods_make() -> None:
    assert {picture.method for picture in PICTURES} <= set(METHODS)
    page = (FOLDER.parent / "packing.md").read_text(encoding="utf-8")
    for name, text in all_pictures().items():
        ElementTree.fromstring(text)
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"{name}: draw it again"
        assert f"images/{name}" in page


def test_loops_of_the_benchmark_make_as_many_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER.parent.parent / "benchmarks"))
    benchmark = importlib.import_module("benchmarks.packing")
    lengths = np.random.default_rng(3).integers(1, 400, 500)
    assert {case.method for case in benchmark.CASES} == {method for method, _ in benchmark.FIGURES} <= set(METHODS)
    for method, loop in benchmark.LOOPS.items():
        segments = pack(lengths, 128, method=method).segments
        assert loop(lengths.tolist(), 128) == (segments.num_sequences, segments.length.sum()), method


def test_partial_shuffle_of_the_article() -> None:
    """Press 2019, section 3: twelve tokens A to L in two rows, three tokens at a time; every token is kept."""
    segments = pack([12], 3, method="partial_shuffle", num_rows=2, seed=0).segments
    rows = [[token for _, token in tokens] for tokens in tokens_of(segments, np.array([12]))]
    # A sequence has one token more, the target of its last place; a row of six tokens has five targets.
    assert [len(row) for row in rows] == [4, 4, 3, 3]
    for row, first in ((0, 0), (1, 6)):
        stream = rows[row] + rows[row + 2][1:]
        assert sorted(stream) == list(range(first, first + 6))
        assert [(token - first) % 6 for token in stream] == [(stream[0] - first + step) % 6 for step in range(6)]
