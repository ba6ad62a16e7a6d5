"""Tokens of other programs: the same documents without a copy, and what is wrong with their files."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.token_store.linking import link_tokens
from jax_diversity.sequences.token_store.megatron import TokenFile, TokenStore, TokenWriter

DOCUMENTS = ([5, 6, 0], [7, 0], [], [70, 8, 9, 0])
TOKENS = [token for document in DOCUMENTS for token in document]
ENDS = [3, 5, 5, 9]


def write_trove(path: Path, width: int = 2, *, metadata: bool = True) -> Path:
    path.write_bytes(np.array(TOKENS, f"<u{width}").tobytes())
    path.with_name(f"{path.name}.index").write_bytes(np.array(ENDS, "<u8").tobytes())
    if metadata:
        path.with_name(f"{path.name}.metadata").write_text(f"org/tokenizer|{width}\n9\n9 T", encoding="utf-8")
    return path


def write_dolma(path: Path, dtype: str = "<u2", rows: Any = ((0, 3), (3, 5), (5, 5), (5, 9))) -> Path:
    path.write_bytes(np.array(TOKENS, dtype).tobytes())
    with gzip.open(path.with_suffix(".csv.gz"), "wt", newline="") as file:
        csv.writer(file).writerows([*row, "id", "documents/a, b.jsonl.gz", 1] for row in rows)
    return path


def documents_of(file: TokenFile) -> list[list[int]]:
    return [file.document(index).tolist() for index in range(file.num_documents)]


@pytest.mark.parametrize("width", [2, 4])
def test_datatrove(tmp_path: Path, width: int) -> None:
    shard = write_trove(tmp_path / "00000.ds", width)
    file = link_tokens(shard, tmp_path / "linked" / "web" / "00000")
    assert documents_of(file) == [list(document) for document in DOCUMENTS]
    assert file.dtype == (np.uint16 if width == 2 else np.int32)
    tokens = sum(map(len, DOCUMENTS))
    assert repr(file).endswith(f"00000': {len(DOCUMENTS)} documents, {tokens} tokens of {file.dtype})")
    with TokenWriter(tmp_path / "written", file.dtype) as writer:
        writer.add_documents([np.array(document, file.dtype) for document in DOCUMENTS])
    linked = tmp_path / "linked" / "web" / "00000"
    assert linked.with_suffix(".idx").read_bytes() == (tmp_path / "written.idx").read_bytes()
    assert linked.with_suffix(".bin").is_symlink()
    assert linked.with_suffix(".bin").resolve() == shard.resolve()


def test_dolma(tmp_path: Path) -> None:
    shard = write_dolma(tmp_path / "part-0-00000.npy")
    assert documents_of(link_tokens(shard, tmp_path / "linked" / "a")) == [list(document) for document in DOCUMENTS]
    wide = write_dolma(tmp_path / "part-1-00000.npy", "<u4")
    file = link_tokens(wide, tmp_path / "linked" / "b", dtype="uint32")
    assert documents_of(file) == [list(document) for document in DOCUMENTS]


def test_a_second_call_replaces_the_index_and_no_other_file(tmp_path: Path) -> None:
    shard = write_trove(tmp_path / "00000.ds", metadata=False)
    link_tokens(str(shard), str(tmp_path / "a"))
    assert link_tokens(shard, tmp_path / "a", lengths=[4, 5]).lengths.tolist() == [4, 5]
    (tmp_path / "a.bin").unlink()
    (tmp_path / "a.bin").write_bytes(shard.read_bytes())
    with pytest.raises(UserError, match=r"no other tokens at .*a\.bin, found a file; choose another prefix"):
        link_tokens(shard, tmp_path / "a")
    assert TokenFile(tmp_path / "a").lengths.tolist() == [4, 5]


def test_links_stay_valid_when_all_folders_move(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    link_tokens(write_trove(tmp_path / "before" / "x.ds"), tmp_path / "before" / "linked" / "x")
    (tmp_path / "before").rename(tmp_path / "after")
    assert TokenFile(tmp_path / "after" / "linked" / "x").document(1).tolist() == [7, 0]


def broken(tmp_path: Path, fault: str) -> tuple[Path, dict[str, Any]]:
    if fault in ("rows", "words", "columns"):
        rows = {"rows": ((0, 3), (4, 9)), "words": (("start", "end"), (0, 9)), "columns": ((0,), (9,))}[fault]
        return write_dolma(tmp_path / "x.npy", rows=rows), {}
    if fault == "not compressed":
        write_dolma(tmp_path / "x.npy").with_suffix(".csv.gz").write_text("0,9")
        return tmp_path / "x.npy", {}
    if fault == "numpy":
        np.save(tmp_path / "x.npy", np.array(TOKENS, np.uint16))
        return tmp_path / "x.npy", {}
    shard = write_trove(tmp_path / "x.ds")
    index, metadata = tmp_path / "x.ds.index", tmp_path / "x.ds.metadata"
    if fault == "no tokens":
        shard.unlink()
    elif fault == "no index":
        index.unlink()
    elif fault == "descending":
        index.write_bytes(np.array([5, 3, 9], "<u8").tobytes())
    elif fault == "cut index":
        index.write_bytes(index.read_bytes()[:-3])
    elif fault == "cut tokens":
        shard.write_bytes(shard.read_bytes()[:-2])
    elif fault == "size":
        metadata.write_text("org/tokenizer")
    elif fault == "ending":
        shard = shard.rename(tmp_path / "x.tokens")
    changed: dict[str, dict[str, Any]] = {
        "type": {"dtype": "uint32"},
        "float": {"dtype": "float32", "lengths": [4]},
        "lengths": {"lengths": [4, -1, 6]},
        "fractions": {"lengths": [4.5, 4.5]},
    }
    if fault == "float":
        shard.write_bytes(bytes(16))
    return shard, changed.get(fault, {})


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no tokens", r"Expected a file of tokens at .*x\.ds, found: No such file"),
        ("no index", r"places at .*x\.ds\.index, found no file; copy it too, or give the token between"),
        ("descending", r"x\.ds\.index, found: .*not in ascending order"),
        ("cut index", r"Expected the documents' places in .*x\.ds\.index"),
        ("cut tokens", r"Expected 18 bytes in .*x\.ds, 4 documents of uint16, found 16; check the type"),
        ("type", r"Expected 36 bytes in .*x\.ds, 4 documents of uint32, found 18"),
        ("size", r"ends in \|2 or \|4 in .*x\.ds\.metadata, found 'org/tokenizer'; give the dtype"),
        ("ending", r"Expected a \.ds or \.npy file, or a delimiter of the documents, found .*x\.tokens"),
        ("float", r"Expected a token type of \.bin files .*found float32"),
        ("lengths", r"Expected one length >= 0 for every document"),
        ("fractions", r"Expected one length >= 0 for every document"),
        ("rows", r"x\.csv\.gz, found: .*a document at 4 \.\. 9 after token 3 \(line 2\)"),
        ("words", r"places in .*x\.csv\.gz"),
        ("columns", r"places in .*x\.csv\.gz"),
        ("not compressed", r"places in .*x\.csv\.gz, found: .*[Nn]ot a gzipped file"),
        (
            "numpy",
            r"without a header in .*x\.npy.*found NumPy's header; .*x\.npy'\)\.astype\(np\.uint32\)\.tofile\('",
        ),
    ],
)
def test_faults_are_one_sentence(tmp_path: Path, fault: str, said: str) -> None:
    shard, arguments = broken(tmp_path, fault)
    with pytest.raises(UserError, match=said) as raised:
        link_tokens(shard, tmp_path / "linked" / "x", **arguments)
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "linked").glob("x.*"))


def test_prefixes_have_no_ending(tmp_path: Path) -> None:
    shard = write_trove(tmp_path / "x.ds")
    with pytest.raises(UserError, match=r"Expected a prefix without \.idx and \.bin, found .*y\.bin"):
        link_tokens(shard, tmp_path / "y.bin")
    link_tokens(shard, tmp_path / "y")
    with pytest.raises(UserError, match=r"give the path of both files without \.idx and \.bin, y\."):
        TokenStore([tmp_path / "y.idx"])
    shard.unlink()
    with pytest.raises(UserError, match="check the prefix, or tokenize"):
        TokenStore([tmp_path / "z"])


END = 50_256
TEXTS = ([72, 101, 108, 108, 111], [1, 2], [300, 40_000, 7])
AT_END = [token for text in TEXTS for token in (*text, END)]
AT_BEGINNING = [token for text in TEXTS for token in (END, *text)]
ENDED = [[*text, END] for text in TEXTS]
BEGUN = [[END, *text] for text in TEXTS]


def write_ids(path: Path, tokens: list[int], dtype: str = "<u2", magic: int | None = None, promised: int = 0) -> Path:
    """Write bare tokens, or, with a magic number, the file of llm.c, whose header promises too many tokens."""
    header = np.zeros(0 if magic is None else 256, "<i4")
    header[:3] = (magic, 1, len(tokens) + promised) if magic is not None else ()
    path.write_bytes(header.tobytes() + np.array(tokens, dtype).tobytes())
    return path


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i4"])
@pytest.mark.parametrize("magic", [None, 20240520, 20240801])
@pytest.mark.parametrize(("at_end", "expected"), [(True, ENDED), (False, BEGUN)])
def test_documents_between_delimiters(
    tmp_path: Path, dtype: str, magic: int | None, at_end: bool, expected: list[list[int]]
) -> None:
    path = write_ids(tmp_path / "train.bin", AT_END if at_end else AT_BEGINNING, dtype, magic)
    delimiter: dict[str, Any] = {"end_id" if at_end else "start_id": END}
    told = jd.link_tokens(path, tmp_path / "linked" / "told", dtype=dtype, **delimiter)
    assert documents_of(told) == expected
    assert told.dtype == ("uint16" if dtype == "<u2" else "int32")
    long = write_ids(tmp_path / "long.bin", (AT_END if at_end else AT_BEGINNING) * 30, dtype, magic)
    recognised = link_tokens(long, tmp_path / "linked" / "recognised", **delimiter)
    assert documents_of(recognised) == expected * 30
    lengths = [len(document) for document in expected]
    given = link_tokens(path, tmp_path / "linked" / "given", lengths=lengths)
    assert documents_of(given) == expected
    store = TokenStore([told.prefix, given.prefix])
    numbers = np.arange(6)
    gathered = store.gather(numbers, np.zeros(6, np.int64), store.document_lengths)
    assert gathered.tolist() == [token for document in expected * 2 for token in document]


@pytest.mark.parametrize(("magic", "delimiter", "dtype"), [(20240520, 50_256, "<u2"), (20240801, 128_000, "<u4")])
def test_a_header_says_the_delimiter(tmp_path: Path, magic: int, delimiter: int, dtype: str) -> None:
    tokens = [4, 5, delimiter, 6, delimiter, 7, 8]  # the shard begins inside a document
    file = link_tokens(write_ids(tmp_path / "x.bin", tokens, dtype, magic), tmp_path / "linked" / "x")
    assert documents_of(file) == [[4, 5], [delimiter, 6], [delimiter, 7, 8]]
    other = write_ids(tmp_path / "y.bin", [256, 1, 2, 256, 3], dtype, magic)
    with pytest.raises(UserError, match=rf"delimiter {delimiter} in .*y\.bin, found none in 5 tokens; give the token"):
        link_tokens(other, tmp_path / "linked" / "y")
    assert documents_of(link_tokens(other, tmp_path / "linked" / "y", start_id=256)) == [[256, 1, 2], [256, 3]]


def test_a_delimiter_at_both_ends(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "x.bin", [9, 1, 2, 9, 9, 3, 9, 9, 9])
    options: list[dict[str, Any]] = [{"end_id": 9}, {"start_id": 9}]
    for option in options:
        with pytest.raises(
            UserError, match=r"Expected 9 at one end of the documents .*both ends; give end_id and start_id"
        ):
            link_tokens(path, tmp_path / "linked" / "x", **option)
    both = link_tokens(path, tmp_path / "linked" / "x", end_id=9, start_id=9)
    assert documents_of(both) == [[9, 1, 2, 9], [9, 3, 9], [9, 9]]
    with pytest.raises(UserError, match=r"Expected 9 at both ends of every document .*found other places"):
        link_tokens(write_ids(tmp_path / "y.bin", [9, 1, 9, 2, 9]), tmp_path / "linked" / "y", end_id=9, start_id=9)
    different = write_ids(tmp_path / "z.bin", [8, 1, 9, 8, 2, 3, 9])
    assert documents_of(link_tokens(different, tmp_path / "linked" / "z", start_id=8, end_id=9)) == [
        [8, 1, 9],
        [8, 2, 3, 9],
    ]


def test_empty_and_cut_documents(tmp_path: Path) -> None:
    tokens = [1, END, END, 2, 3]
    path = write_ids(tmp_path / "x.bin", tokens)
    assert documents_of(link_tokens(path, tmp_path / "a", end_id=END)) == [[1, END], [END], [2, 3]]
    assert documents_of(link_tokens(path, tmp_path / "b", start_id=END)) == [[1], [END], [END, 2, 3]]


def test_the_type_of_tokens_with_lengths_follows_from_the_size(tmp_path: Path) -> None:
    wide = write_dolma(tmp_path / "part.npy", "<u4")
    assert documents_of(link_tokens(wide, tmp_path / "linked" / "a")) == [list(document) for document in DOCUMENTS]


HOSTILE: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "empty": (b"", {"end_id": 5}, r"Expected tokens of 2 bytes in .*x\.bin, found 0 bytes"),
    "odd": (bytes([5, 0, 1]), {"end_id": 5}, r"Expected tokens of 2 bytes .*found 3 bytes; check the type"),
    "odd for the type": (bytes(6), {"end_id": 5, "dtype": "uint32"}, r"Expected tokens of 4 bytes .*found 6 bytes"),
    "no delimiter told": (bytes(8), {}, r"or a delimiter of the documents, found .*x\.bin; give the token that ends"),
    "never": (bytes(6), {"end_id": 5}, r"the delimiter 5 in .*found none in 3 tokens; check end_id and dtype"),
    "never, wide": (bytes(8), {"start_id": 70_000}, r"delimiter 70000 in .*none in 2 tokens; check start_id and dtype"),
    "too wide": (bytes(8), {"end_id": 70_000, "dtype": "uint16"}, r"delimiter 70000 in .*found none in 4 tokens"),
    "which type": (np.array([1, 5], "<u4").tobytes(), {"end_id": 5}, r"uint16 or uint32; give the dtype"),
    "negative": (b"\1\0\0\0\xff\xff\xff\xff", {"end_id": 1, "dtype": "uint32"}, r"found -1 \(4294967295 as uint32\)"),
    "negative, lengths": (b"\xff\xff\xff\xff", {"lengths": [1]}, r"Expected token ids of 0 to 2147483647 .*found -1"),
    "negative, int16": (b"\1\0\xff\xff", {"end_id": 1, "dtype": "int16"}, r"found -1; store an id"),
    "both": (bytes(4), {"end_id": 0, "lengths": [2]}, r"Expected lengths or a delimiter .*leave end_id out"),
    "no id": (bytes(4), {"end_id": -1}, r"Expected end_id"),
    "half a header": (np.array([20240520, 1], "<i4").tobytes(), {}, r"a header of 1024 bytes .*found 8; copy"),
    "other magic": (np.array([7, 1, 4, *[0] * 255], "<i4").tobytes(), {"end_id": 4}, r"magic number .*found 7; write"),
    "no tokens": (np.array([20240520, 1, *[0] * 254], "<i4").tobytes(), {}, r"tokens of 2 bytes in .*found 0 bytes"),
    "negative count": (np.array([20240520, 1, -2, *[0] * 254], "<i4").tobytes(), {}, r"Expected -2 tokens"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_files_are_one_sentence(tmp_path: Path, fault: str) -> None:
    content, options, said = HOSTILE[fault]
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(UserError, match=said) as raised:
        link_tokens(tmp_path / "x.bin", tmp_path / "linked" / "x", **options)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "linked").exists()


@pytest.mark.parametrize("promised", [1, 1000, -1])
def test_a_header_that_promises_other_tokens(tmp_path: Path, promised: int) -> None:
    path = write_ids(tmp_path / "x.bin", AT_BEGINNING, magic=20240520, promised=promised)
    with pytest.raises(UserError, match=rf"Expected {13 + promised} tokens of 2 or 4 bytes .*found 26 bytes; copy"):
        link_tokens(path, tmp_path / "linked" / "x")
    with pytest.raises(UserError, match="uint16, found dtype uint32; leave it out"):
        link_tokens(
            write_ids(tmp_path / "y.bin", AT_BEGINNING, magic=20240520), tmp_path / "linked" / "y", dtype="uint32"
        )


def test_a_link_whose_tokens_are_cut_afterwards(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "x.bin", AT_BEGINNING, magic=20240520)
    link_tokens(path, tmp_path / "linked" / "x")
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"x\.bin does not fit its index: expected sequence 2 at byte"):
        TokenFile(tmp_path / "linked" / "x")
