"""Megatron's indexed dataset: genuine bytes read, faults named, runs gathered."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.characteristics.counts import count_own_tokens
from jax_diversity.sequences.token_store.blend import read_blend
from jax_diversity.sequences.token_store.megatron import TokenFile, TokenStore, TokenWriter
from jax_diversity.streaming.export.megatron import write_tokens

MEGATRON = Path(__file__).parents[2] / "support" / "data" / "megatron"
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def index_bytes(
    run_lengths: list[int],
    documents: list[int],
    dtype_code: int,
    width: int,
    *,
    modes: bool = False,
    **changed: bytes,
) -> bytes:
    """An `.idx` laid out by hand."""
    offsets = [width * sum(run_lengths[:index]) for index in range(len(run_lengths))]
    parts = {
        "magic": b"MMIDIDX\x00\x00",
        "version": struct.pack("<Q", 1),
        "code": struct.pack("<B", dtype_code),
        "num_runs": struct.pack("<Q", len(run_lengths)),
        "num_bounds": struct.pack("<Q", len(documents)),
        "lengths": struct.pack(f"<{len(run_lengths)}i", *run_lengths),
        "offsets": struct.pack(f"<{len(offsets)}q", *offsets),
        "bounds": struct.pack(f"<{len(documents)}q", *documents),
        "modes": bytes(len(run_lengths)) if modes else b"",
    }
    return b"".join({**parts, **changed}.values())


def write_pair(folder: Path, index: bytes, tokens: np.ndarray) -> Path:
    (folder / "t.idx").write_bytes(index)
    (folder / "t.bin").write_bytes(tokens.tobytes())
    return folder / "t"


@pytest.mark.parametrize("modes", [False, True])
@pytest.mark.parametrize("name", CODES)
def test_genuine_bytes_are_read(tmp_path: Path, name: str, modes: bool) -> None:
    tokens = np.arange(10).astype(name)
    # four runs, three documents: the first of two runs, an empty one, the last of two with no tokens in one
    index = index_bytes([3, 2, 0, 5], [0, 2, 2, 4], CODES[name], tokens.itemsize, modes=modes)
    file = TokenFile(write_pair(tmp_path, index, tokens))
    assert file.dtype == np.dtype(name)
    assert (file.num_documents, file.num_tokens) == (3, 10)
    assert file.lengths.tolist() == [5, 0, 5]
    assert [file.document(index).tolist() for index in range(3)] == [[0, 1, 2, 3, 4], [], [5, 6, 7, 8, 9]]
    assert not file.document(0).flags.writeable


@pytest.mark.parametrize("name", CODES)
def test_written_bytes_are_the_format_to_the_letter(tmp_path: Path, name: str) -> None:
    documents = [np.array([1, 2, 3]), np.array([], np.int64), np.array([4, 5], np.uint8)]
    with TokenWriter(tmp_path / "a.b", np.dtype(name)) as writer:
        writer.add_document(documents[0])
        writer.add_documents(documents[1:])
        writer.add_documents([])
        assert not (tmp_path / "a.b.idx").exists()
    width = np.dtype(name).itemsize
    assert (tmp_path / "a.b.idx").read_bytes() == index_bytes([3, 0, 2], [0, 1, 2, 3], CODES[name], width)
    assert (tmp_path / "a.b.bin").read_bytes() == np.array([1, 2, 3, 4, 5], name).tobytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.b.bin", "a.b.idx"]


def test_a_file_without_documents_or_tokens(tmp_path: Path) -> None:
    with TokenWriter(tmp_path / "none", np.dtype(np.uint16)):
        pass
    with TokenWriter(tmp_path / "empty", np.dtype(np.uint16)) as writer:
        writer.add_document(np.array([], np.uint16))
    store = TokenStore([tmp_path / "none", tmp_path / "empty"])
    assert (store.num_documents, store.num_tokens, store.document_lengths.tolist()) == (1, 0, [0])
    assert store.document(0).tolist() == []
    nothing = np.zeros(1, np.int64)
    assert store.gather(nothing, nothing, nothing).tolist() == []
    assert store.gather(nothing[:0], nothing[:0], nothing[:0]).tolist() == []


FAULTS = {
    "magic": ({"magic": b"MMIDIDY\x00\x00"}, "begin with"),
    "version": ({"version": struct.pack("<Q", 2)}, "version 1, found 2"),
    "code": ({"code": b"\x09"}, "dtype code of 1 to 8, found 9"),
    "floats": ({"code": b"\x07"}, "integer tokens, found float32"),
    "more runs": ({"num_runs": struct.pack("<Q", 5)}, "for 5 sequences"),
    "endless": ({"num_runs": struct.pack("<Q", 2**60)}, "for 1152921504606846976 sequences"),
    "fewer bounds": ({"num_bounds": struct.pack("<Q", 2)}, "2 document indices"),
    "negative": ({"lengths": struct.pack("<3i", 3, -1, 5)}, "found a negative"),
    "length": ({"lengths": struct.pack("<3i", 3, 3, 4)}, "sequence 2 at byte 12 or later, found byte 10"),
    "offset": ({"offsets": struct.pack("<3q", 0, 8, 10)}, "sequence 2 at byte 12 or later, found byte 10"),
    "first bound": ({"bounds": struct.pack("<4q", 1, 1, 2, 3)}, "document indices 0 to 3"),
    "last bound": ({"bounds": struct.pack("<4q", 0, 1, 2, 4)}, "document indices 0 to 3"),
    "falling": ({"bounds": struct.pack("<4q", 0, 2, 1, 3)}, "in ascending order"),
    "other type": ({"code": b"\x01"}, "sequence 1 at byte 3"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_index_that_contradicts_itself_is_refused(tmp_path: Path, fault: str) -> None:
    changed, what = FAULTS[fault]
    index = index_bytes([3, 2, 5], [0, 1, 2, 3], 8, 2, modes=False, **changed)
    with pytest.raises(UserError, match=what) as caught:
        TokenFile(write_pair(tmp_path, index, np.arange(10, dtype=np.uint16)))
    assert "t.idx" in str(caught.value)


def test_files_that_are_cut_or_absent_are_refused(tmp_path: Path) -> None:
    index, tokens = index_bytes([3, 2, 5], [0, 1, 2, 3], 8, 2), np.arange(10, dtype=np.uint16)
    for length in range(len(index)):
        with pytest.raises(UserError, match=r"t\.idx"):
            TokenFile(write_pair(tmp_path, index[:length], tokens))
    for wrong in (tokens[:-1], np.append(tokens, 0), tokens.astype(np.int32)):
        with pytest.raises(UserError, match=r"t\.bin does not fit"):
            TokenFile(write_pair(tmp_path, index, wrong.astype(wrong.dtype)))
    (tmp_path / "t.bin").unlink()
    with pytest.raises(UserError, match=r"tokens at .*t\.bin"):
        TokenFile(tmp_path / "t")
    with pytest.raises(UserError, match=r"index at .*u\.idx"):
        TokenFile(tmp_path / "u")
    with pytest.raises(UserError, match="at least one pair"):
        TokenStore([])


@given(st.binary(max_size=120), st.integers(0, 105))
@settings(max_examples=80, deadline=None)
def test_scribbled_indices_never_crash(tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int) -> None:
    index = index_bytes([3, 2, 5], [0, 1, 2, 3], 8, 2)
    folder = tmp_path_factory.mktemp("noise")
    prefix = write_pair(folder, index[:at] + noise + index[at + len(noise) :], np.arange(10, dtype=np.uint16))
    try:
        file = TokenFile(prefix)
    except UserError:
        return
    assert sum(len(file.document(index)) for index in range(file.num_documents)) == file.num_tokens


def test_tokens_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for tokens, dtype in (([70_000], "uint16"), ([-1], "uint16"), ([2**31], "int32"), ([0, 256], "uint8")):
        with (
            pytest.raises(UserError, match="Expected token ids that fit"),
            TokenWriter(tmp_path / "t", np.dtype(dtype)) as writer,
        ):
            writer.add_documents([np.array([1]), np.array(tokens)])
    for dtype in ("float32", "uint32", "uint64"):
        with pytest.raises(UserError, match="token type"):
            TokenWriter(tmp_path / "t", np.dtype(dtype))
    assert list(tmp_path.iterdir()) == []


def test_a_failing_writer_leaves_what_was_there(tmp_path: Path) -> None:
    with TokenWriter(tmp_path / "t", np.dtype(np.uint16)) as writer:
        writer.add_document(np.array([1, 2], np.uint16))
    failing = TokenWriter(tmp_path / "t", np.dtype(np.uint16))
    with pytest.raises(UserError), failing:
        failing.add_documents([np.array([3]), np.array([-1])])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.bin", "t.idx"]
    assert TokenFile(tmp_path / "t").document(0).tolist() == [1, 2]
    with pytest.raises(ValueError, match="with"):
        TokenWriter(tmp_path / "u", np.dtype(np.uint16)).add_document(np.array([1]))


_corpora = st.lists(
    st.tuples(st.sampled_from(sorted(CODES)), st.lists(st.lists(st.integers(0, 127), max_size=12), max_size=8)),
    min_size=1,
    max_size=4,
)


@given(_corpora, st.data())
@settings(max_examples=40, deadline=None)
def test_several_files_are_one_corpus(
    tmp_path_factory: pytest.TempPathFactory, files: list, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    for index, (name, documents) in enumerate(files):
        with TokenWriter(folder / f"{index}", np.dtype(name)) as writer:
            writer.add_documents([np.array(document, np.int64) for document in documents])
    store = TokenStore([str(folder / f"{index}") for index in range(len(files))])
    documents = [document for _, part in files for document in part]
    assert store.document_lengths.tolist() == [len(document) for document in documents]
    assert (store.num_documents, store.num_tokens) == (len(documents), sum(map(len, documents)))
    assert [store.document(index).tolist() for index in range(len(documents))] == documents
    if not documents:
        return
    runs = []
    for _ in range(data.draw(st.integers(0, 20))):
        document = data.draw(st.integers(0, len(documents) - 1))
        begin = data.draw(st.integers(0, len(documents[document])))
        runs.append((document, begin, data.draw(st.integers(0, len(documents[document]) - begin))))
    columns = [np.array(column, np.int64) for column in zip(*runs, strict=True)] or [np.zeros(0, np.int64)] * 3
    for view in (store, pickle.loads(pickle.dumps(store))):
        gathered = view.gather(*columns)
        assert gathered.dtype == store.dtype
        assert gathered.tolist() == [
            token for d, begin, length in runs for token in documents[d][begin : begin + length]
        ]


def test_runs_of_other_documents_are_refused(tmp_path: Path) -> None:
    with TokenWriter(tmp_path / "t", np.dtype(np.uint16)) as writer:
        writer.add_documents([np.array([1, 2]), np.array([3])])
    store = TokenStore([tmp_path / "t"])
    for document, begin, length in ((2, 0, 1), (-1, 0, 1), (1, 0, 2), (0, -1, 1), (0, 1, -1), (1, 2, 0)):
        with pytest.raises(UserError, match=f"document {document}; the segments belong to other tokens"):
            store.gather(*(np.array([0, value], np.int64) for value in (document, begin, length)))
    for index in (-1, 2):
        with pytest.raises(IndexError):
            store.document(index)
        with pytest.raises(IndexError):
            store.files[0].document(index)


def test_a_pickled_store_is_its_paths(tmp_path: Path) -> None:
    with TokenWriter(tmp_path / "t", np.dtype(np.int32)) as writer:
        writer.add_documents([np.arange(1000)] * 100)
    store = TokenStore([tmp_path / "t"])
    assert store.num_tokens == 100_000
    store.document(3)
    pickled = pickle.dumps(store)
    assert len(pickled) < 2000
    assert pickle.loads(pickled).document(99).tolist() == list(range(1000))


@pytest.mark.parametrize(("name", "dtype"), [("short", "uint16"), ("long", "int32"), ("ragged", "uint16")])
def test_files_that_megatron_lm_wrote_are_read_and_written_alike(tmp_path: Path, name: str, dtype: str) -> None:
    file = TokenFile(MEGATRON / name)
    assert file.dtype == dtype
    assert file.sequence_lengths.sum() == file.num_tokens == len(file.tokens)
    assert file.num_documents == len(file.sequence_lengths) - (4 if name == "ragged" else 0)
    if name == "ragged":  # its documents consist of several sequences
        assert file.lengths[2] == file.sequence_lengths[2:5].sum()
        return
    assert file.lengths.tolist() == file.sequence_lengths.tolist()
    with TokenWriter(tmp_path / name, file.dtype) as writer:
        writer.add_runs(file.tokens, file.lengths)
    for ending in (".bin", ".idx"):
        assert (tmp_path / (name + ending)).read_bytes() == (MEGATRON / (name + ending)).read_bytes()


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_a_damaged_genuine_index_never_crashes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["short", "long", "ragged"]))
    content = bytearray((MEGATRON / f"{name}.idx").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    prefix = tmp_path_factory.getbasetemp() / "damaged"
    prefix.with_suffix(".idx").write_bytes(content)
    prefix.with_suffix(".bin").write_bytes((MEGATRON / f"{name}.bin").read_bytes())
    try:
        file, fault = TokenFile(prefix), ""
    except UserError as error:
        file, fault = None, str(error)
    if file is None:
        assert "damaged" in fault
        return
    assert sum(len(file.document(index)) for index in range(file.num_documents)) == file.num_tokens
    assert file.sequence_lengths.sum() == file.num_tokens


def test_runs_and_their_lengths_agree(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="lengths with the sum 3, found 4"),
        TokenWriter(tmp_path / "t", np.dtype(np.uint16)) as writer,
    ):
        writer.add_runs(np.array([1, 2, 3]), np.array([2, 2]))
    assert not list(tmp_path.iterdir())


def test_blends_are_read_as_megatron_names_them(tmp_path: Path) -> None:
    short, long = str(MEGATRON / "short"), str(MEGATRON / "long")
    blend = read_blend(["30", short, " 90 ", f"{long} "])
    assert blend.names == ("short", "long")
    assert blend.weights.tolist() == [0.25, 0.75]
    assert [file.num_tokens for file in blend.files] == [424, 871]
    by_size = read_blend([short, long])
    assert by_size.weights.tolist() == [424 / 1295, 871 / 1295]
    assert read_blend([short]).weights.tolist() == [1.0]
    for folder in ("a", "b"):
        with TokenWriter(tmp_path / folder / "text", np.dtype(np.uint16)) as writer:
            writer.add_document(np.array([1]))
    with TokenWriter(tmp_path / "2024", np.dtype(np.uint16)) as writer:
        writer.add_document(np.array([1]))
    assert read_blend([str(tmp_path / "a/text"), str(tmp_path / "b/text")]).names == ("a/text", "b/text")


def test_a_prefix_may_be_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("2023", "2024", "2025"):
        with TokenWriter(Path(name), np.dtype(np.uint16)) as writer:
            writer.add_document(np.array([1]))
    assert read_blend(["2023", "2024", "2025"]).names == ("2023", "2024", "2025")
    assert read_blend(["3", "2024", "1", "2025"]).weights.tolist() == [0.75, 0.25]
    assert read_blend(["2023", "2024"]).names == ("2023", "2024")
    assert read_blend(["2023", "2024"]).weights.tolist() == [0.5, 0.5]
    assert read_blend(["2023.0", "2024"]).names == ("2024",)
    assert read_blend(["2023", "2024", "3", "2025"]).weights.tolist() == [2023 / 2026, 3 / 2026]
    for words in (["2023", "2026"], ["2023", "2024", "3"], ["3", "4", "2025"]):
        with pytest.raises(UserError, match=r"index at 2026\.idx|give weights to all prefixes"):
            read_blend(words)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "found none"),
        (["0.3", ""], "name at least one"),
        (["0.3", "SHORT", "LONG"], "give weights to all prefixes or"),
        (["0.3", "SHORT", "LONG", "0.7"], "give weights to all prefixes or"),
        (["0", "SHORT", "1", "LONG"], "above zero, found 0.0 for .*short"),
        (["-1", "SHORT", "1", "LONG"], "above zero"),
        (["nan", "SHORT", "1", "LONG"], "above zero"),
        (["inf", "SHORT", "1", "LONG"], "above zero"),
        (["1", "SHORT", "1", "SHORT"], "every prefix once"),
        (["SHORT", "nowhere"], r"index at nowhere\.idx"),
    ],
)
def test_blends_that_cannot_be_are_refused(words: list[str], what: str) -> None:
    paths = {"SHORT": str(MEGATRON / "short"), "LONG": str(MEGATRON / "long")}
    with pytest.raises(UserError, match=what):
        read_blend([paths.get(word, word) for word in words])


def test_datasets_without_tokens_have_no_size_to_weigh(tmp_path: Path) -> None:
    with TokenWriter(tmp_path / "empty", np.dtype(np.uint16)):
        pass
    with pytest.raises(UserError, match=r"Expected tokens in .*empty, found none"):
        read_blend([str(tmp_path / "empty")])
    assert read_blend(["2", str(tmp_path / "empty")]).weights.tolist() == [1.0]


def write_ids(prefix: Path, dtype: str, documents: list[list[int]]) -> Path:
    with TokenWriter(prefix, np.dtype(dtype)) as writer:
        writer.add_documents([np.array(document, dtype) for document in documents])
    return prefix


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_negative_ids_are_refused_by_every_reader(tmp_path: Path, dtype: str) -> None:
    store = TokenStore([write_ids(tmp_path / "t", dtype, [[1, 2, 0], [3, -1, 0]])])
    one, zero = np.array([1], np.int64), np.array([0], np.int64)
    assert store.document(0).tolist() == [1, 2, 0]
    assert store.gather(one, zero, one).tolist() == [3]
    segments = jd.pack(store.document_lengths, 3).segments
    for read in (
        lambda: store.document(1),
        lambda: store.gather(one, zero, np.array([3])),
        lambda: count_own_tokens(segments, store, 10, 0),
        lambda: write_tokens(store, tmp_path / "exported"),
    ):
        with pytest.raises(UserError, match=r"Expected token ids >= 0 in .*t\.bin, found -1; store an id of"):
            read()
    assert not list(tmp_path.glob("exported.*"))


SELECTIONS: dict[str, tuple[list[int], list[int], list[list[int]]]] = {
    # lengths, offsets in tokens, documents
    "permuted": ([5, 3, 2], [5, 0, 3], [[5, 6, 7, 8, 9], [0, 1, 2], [3, 4]]),
    "selected": ([3, 5], [0, 5], [[0, 1, 2], [5, 6, 7, 8, 9]]),
    "repeated": ([3, 2, 3], [0, 3, 0], [[0, 1, 2], [3, 4], [0, 1, 2]]),
    "the last": ([5], [5], [[5, 6, 7, 8, 9]]),
    "empty ones": ([0, 3, 0], [10, 0, 4], [[], [0, 1, 2], []]),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_an_index_may_select_documents(tmp_path: Path, name: str) -> None:
    lengths, places, documents = SELECTIONS[name]
    offsets = struct.pack(f"<{len(places)}q", *(2 * place for place in places))
    index = index_bytes(lengths, list(range(len(lengths) + 1)), 8, 2, offsets=offsets)
    store = TokenStore([write_pair(tmp_path, index, np.arange(10, dtype=np.uint16))])
    assert [store.document(number).tolist() for number in range(store.num_documents)] == documents
    assert (store.num_tokens, store.num_loss_tokens) == (sum(lengths), sum(lengths))
    numbers = np.arange(store.num_documents)
    everything = store.gather(numbers, np.zeros_like(numbers), store.document_lengths)
    assert everything.tolist() == [token for document in documents for token in document]
    write_tokens(store, tmp_path / "exported")
    assert TokenFile(tmp_path / "exported").tokens.tolist() == everything.tolist()


@pytest.mark.parametrize(
    ("lengths", "offsets", "what"),
    [
        ([3, 5], [0, 11], "multiples of 2, found 11"),
        ([3, 5], [0, 12], r"t\.bin does not fit its index: expected sequence 1 at byte 12 \(5 tokens"),
        ([3, 5], [10, -2], r"t\.bin does not fit its index: expected sequence 1 at byte -2"),
        ([3, 5], [2**62, 0], r"expected sequence 0 at byte 4611686018427387904"),
        ([3, 3], [0, 4], "sequence 1 at byte 6 or later, found byte 4"),
        ([3, 2], [0, 0], "or later, found byte 0"),
    ],
)
def test_selections_that_cannot_be_are_refused(
    tmp_path: Path, lengths: list[int], offsets: list[int], what: str
) -> None:
    index = index_bytes(lengths, [0, 1, 2], 8, 2, offsets=struct.pack("<2q", *offsets))
    with pytest.raises(UserError, match=what):
        TokenFile(write_pair(tmp_path, index, np.arange(10, dtype=np.uint16)))


def test_the_first_documents_of_a_longer_file(tmp_path: Path) -> None:
    index = index_bytes([3, 2], [0, 1, 2], 8, 2)
    tokens = np.array([1, 2, 0, 4, 0, 5, 6, 0], np.uint16)
    assert TokenFile(write_pair(tmp_path, index, tokens)).document(1).tolist() == [4, 0]
    with pytest.raises(UserError, match=r"expected 10 bytes \(5 tokens of uint16\), found 16 bytes"):
        TokenFile(write_pair(tmp_path, index, np.roll(tokens, 1)))  # the documents do not end alike


def test_the_sequences_of_a_document_are_neighbours(tmp_path: Path) -> None:
    tokens = np.arange(10, dtype=np.uint16)
    moved = index_bytes([2, 3, 5], [0, 1, 3], 8, 2, offsets=struct.pack("<3q", 16, 0, 6))
    assert TokenFile(write_pair(tmp_path, moved, tokens)).document(1).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    apart = index_bytes([2, 3, 5], [0, 1, 3], 8, 2, offsets=struct.pack("<3q", 6, 0, 10))
    with pytest.raises(UserError, match="expected sequence 2 behind sequence 1 of the same document, found byte 10"):
        TokenFile(write_pair(tmp_path, apart, tokens))


def test_the_last_document_index_may_be_absent(tmp_path: Path) -> None:
    tokens = np.arange(10, dtype=np.uint16)
    for bounds, lengths in (([0, 1, 2], [3, 2, 5]), ([0, 2], [5, 5]), ([0, 0, 2], [0, 5, 5])):
        file = TokenFile(write_pair(tmp_path, index_bytes([3, 2, 5], bounds, 8, 2), tokens))
        assert file.lengths.tolist() == lengths
    for bounds in ([0, 1], [0], [], [1, 2]):
        with pytest.raises(UserError, match="expected document indices 0 to 3"):
            TokenFile(write_pair(tmp_path, index_bytes([3, 2, 5], bounds, 8, 2), tokens))
