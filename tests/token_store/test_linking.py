"""Tokens of other programs: the same documents without a copy, and what is wrong with their files."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.token_store.linking import link_tokens
from jax_diversity.token_store.megatron import TokenFile, TokenStore, TokenWriter

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
        ("no index", r"places at .*x\.ds\.index, found no file; copy it too, or give the lengths"),
        ("descending", r"x\.ds\.index, found: .*not in ascending order"),
        ("cut index", r"Expected the documents' places in .*x\.ds\.index"),
        ("cut tokens", r"Expected 18 bytes in .*x\.ds, 4 documents of uint16, found 16; check the type"),
        ("type", r"Expected 36 bytes in .*x\.ds, 4 documents of uint32, found 18"),
        ("size", r"ends in \|2 or \|4 in .*x\.ds\.metadata, found 'org/tokenizer'; give the dtype"),
        ("ending", r"Expected a \.ds or \.npy file, or lengths of the documents, found .*x\.tokens"),
        ("float", r"Expected a token type of \.bin files .*found float32"),
        ("lengths", r"Expected one length >= 0 for every document"),
        ("fractions", r"Expected one length >= 0 for every document"),
        ("rows", r"x\.csv\.gz, found: .*a document at 4 \.\. 9 after token 3 \(line 2\)"),
        ("words", r"places in .*x\.csv\.gz"),
        ("columns", r"places in .*x\.csv\.gz"),
        ("not compressed", r"places in .*x\.csv\.gz, found: .*[Nn]ot a gzipped file"),
        ("numpy", r"without a header in .*x\.npy.*found NumPy's header; load the array with np\.load"),
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
