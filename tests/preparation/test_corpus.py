"""Reading files of every kind, whole and broken, and storing documents."""

from __future__ import annotations

import datetime
import decimal
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.foundation import artifacts
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.text.normal_forms import text_hash
from jax_diversity.preparation.identity import IdRegistry
from jax_diversity.preparation.readers.reading import input_fingerprint, input_size, read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema import Document
from jax_diversity.schema.document_store import DocumentStore, write_documents


def read(*paths: object, **settings: Any) -> tuple[list[Document], ReadReport]:
    report = ReadReport()
    config = CorpusConfig(paths=tuple(map(str, paths)), **settings)
    return list(read_documents(config, report)), report


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    elif path.suffix == ".zst":
        content = zstandard.ZstdCompressor().compress(content)
    path.write_bytes(content)
    return path


# JSON Lines


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".ndjson.gz"])
def test_a_record_becomes_a_document_and_keeps_every_field(tmp_path: Path, ending: str) -> None:
    record = {"id": "a", "text": "Grüße 𝄞", "language": "de", "title": "T", "n": 3, "deep": {"x": [1, None]}}
    path = write(tmp_path / f"part{ending}", lines(record, {"id": 7, "text": "b", "source": "s"}))
    documents, report = read(path)
    assert documents == [
        Document("a", "Grüße 𝄞", "part", "de", "T", {"n": 3, "deep": {"x": [1, None]}}),
        Document("7", "b", "s"),
    ]
    assert (report.num_documents, report.text_bytes, report.problems) == (2, len("Grüße 𝄞b".encode()), [])


def test_other_fields_can_hold_text_id_and_the_rest(tmp_path: Path) -> None:
    record = {"content": "c", "key": "k", "site": "w", "lang": "de", "name": "T", "id": 5, "text": None}
    path = write(tmp_path / "x.jsonl", lines(record))
    names = {"text_field": "content", "id_field": "key", "source_field": "site"}
    (document,), _ = read(path, language_field="lang", title_field="name", **names)
    assert document == Document("k", "c", "w", "de", "T", {"id": 5, "text": None})


def test_a_field_of_files_without_fields_is_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", b"text")
    with pytest.raises(
        UserError, match=r"the field 'lang' \(corpus\.language_field\), found only files without fields"
    ):
        read(path, language_field="lang")


def test_ids_that_are_absent_are_made_of_file_name_and_line(tmp_path: Path) -> None:
    content = lines({"text": "a", "id": None}) + b"\n" + lines({"text": "b"}, {"text": "c", "id": {"no": "id"}})
    for folder in ("here", "there"):
        documents, _ = read(write(tmp_path / folder / "x.jsonl", content))
        assert [document.id for document in documents] == ["x.jsonl:1", "x.jsonl:3", "x.jsonl:4"]
    assert documents[2].metadata == {"id": {"no": "id"}}
    documents, _ = read(tmp_path / "*" / "x.jsonl")
    assert [document.id for document in documents][::3] == ["here/x.jsonl:1", "there/x.jsonl:1"]


def test_files_that_would_share_a_name_are_named_from_their_common_folder_on(tmp_path: Path) -> None:
    for corpus_folder in ("here", "there/deeper"):
        root = tmp_path / corpus_folder / "x"
        one, two = (write(root / part / "t.jsonl", lines({"text": part})) for part in ("a", "b/c"))
        other = write(root / "b" / "u.txt", b"text")
        documents, _ = read(two, one, other)
        assert [document.id for document in documents] == ["a/t.jsonl:1", "b/c/t.jsonl:1", "b/u.txt"]
        assert [document.source for document in documents] == ["t", "t", "b"]
        documents, _ = read(f"{root}/a/*.jsonl", f"{root}/b/*/*.jsonl")
        assert [document.id for document in documents] == ["t.jsonl:1", "c/t.jsonl:1"]
        documents, _ = read(f"{root}/a/*.jsonl", two)
        assert [document.id for document in documents] == ["a/t.jsonl:1", "b/c/t.jsonl:1"]
        documents, _ = read(one, other)
        assert [document.id for document in documents] == ["t.jsonl:1", "u.txt"]


def test_remote_files_that_would_share_a_name() -> None:
    memory = fsspec.filesystem("memory")
    for part in ("a", "b"):
        memory.pipe(f"/names/{part}/t.jsonl", lines({"text": part}))
    documents, _ = read("memory://names/a/t.jsonl", "memory://names/b/t.jsonl")
    assert [document.id for document in documents] == ["a/t.jsonl:1", "b/t.jsonl:1"]


def test_a_source_that_is_absent_is_the_name_without_what_says_how_it_is_stored(tmp_path: Path) -> None:
    for name in ("web.en.jsonl.gz", "web-00001-of-00512.jsonl", "web.00002-of-00512.json.zst"):
        write(tmp_path / name, lines({"text": name}))
    assert [document.source for document in read(tmp_path / "web*")[0]] == ["web", "web", "web.en"]


@pytest.mark.parametrize(
    ("names", "sources"),
    [
        (["web/train.jsonl", "code/train.jsonl", "code/more.jsonl"], ["code", "more", "web"]),
        (["web/train-00000-of-00002.jsonl", "code/train-00000-of-00001.jsonl"], ["code", "web"]),
        (["web/train-00000-of-00002.jsonl", "web/train-00001-of-00002.jsonl"], ["train"]),
        (["AA/wiki_00.jsonl", "AB/wiki_00.jsonl"], ["wiki"]),  # parts of one source
        (["web/train.jsonl"], ["train"]),
    ],
)
def test_names_of_splits_in_several_folders_are_no_sources(
    tmp_path: Path, names: list[str], sources: list[str]
) -> None:
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'{{"text": "words of {number}"}}\n', encoding="utf-8")
    documents = read_documents(CorpusConfig(paths=(f"{tmp_path}/*/*.jsonl",)), ReadReport())
    assert sorted({document.source for document in documents}) == sources


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("00000.jsonl", "news"),
        ("part-0001.jsonl", "news"),
        ("shard_3.jsonl.gz", "news"),
        ("part-00000-of-00512.jsonl", "news"),
        ("part-00000-6ba7b810-9dad-11d1-80b4-00c04fd430c8-c000.snappy.jsonl", "news"),
        ("web-0001.jsonl", "web"),
        ("web.part-07.jsonl", "web"),
        ("books_00012.jsonl", "books"),
        ("train-00000-of-00001-a09b74b3ef9c3b56.jsonl", "train"),
        ("wiki-2024.jsonl", "wiki-2024"),
        ("wiki-202401.jsonl", "wiki-202401"),
        ("enwiki-20240101.jsonl", "enwiki-20240101"),
        ("gpt4.jsonl", "gpt4"),
    ],
)
def test_files_that_are_only_numbered_have_the_source_of_their_folder(tmp_path: Path, name: str, source: str) -> None:
    (tmp_path / "news").mkdir()
    path = write(tmp_path / "news" / name, lines({"text": "a"}, {"text": "b", "source": "own"}))
    documents, _ = read(path)
    assert [document.source for document in documents] == [source, "own"]


def test_files_are_read_once_and_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write(tmp_path / f"{name}.jsonl", lines({"text": name}))
    documents, _ = read(tmp_path / "c.jsonl", tmp_path / "*.jsonl", tmp_path / "a.jsonl")
    assert [document.text for document in documents] == ["a", "b", "c"]


def test_a_glob_that_matches_folders_means_their_files(tmp_path: Path) -> None:
    """As in a shell, where `texts/*` also gives the names of folders; a dataset in such a place is left out."""
    for name in ("a.txt", "b/c.txt", "b/d/e.txt", "dataset/documents/f.txt", "b/.hidden.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, name.encode())
    write(tmp_path / "dataset/manifest.json", b"{}")
    documents, _ = read(tmp_path / "*")
    assert [(document.id, document.text) for document in documents] == [
        (name, name) for name in ("a.txt", "b/c.txt", "b/d/e.txt")
    ]


def test_a_broken_line_in_the_middle_is_counted_with_its_place(tmp_path: Path) -> None:
    bad = {
        b'{"text": "cut': "not JSON",
        b'{"text": "a\x01"}': "not JSON: Invalid control character at character 12",
        b'{"text": ': "not JSON: Expecting value at the end of the line",
        b"[1, 2]": "expected a JSON object, found list",
        b'{"text": "\xff"}': "invalid UTF-8",
        b'{"text": "half \\ud800 a pair"}': "invalid UTF-8",
        b'{"text": "x", "title": "\\uDFFF"}': "invalid UTF-8",
        b'{"other": 1}': "no field 'text' among other",
        b'{"text": 5}': "holds int, expected a string",
        b'{"text": null}': "holds null, expected a string",
        b'{"text": ' + b"9" * 5000 + b"}": "unreadable JSON",
        b"[" * 200_000: "unreadable JSON",
    }
    content = (
        b'{"text": "first"}\n' + b"\n".join(bad) + b'\n{"text": "  \\n"}\n{"text": ""}\n{"text": "last \\ud834\\udd1e"}'
    )
    documents, report = read(write(tmp_path / "x.jsonl", content))
    assert [document.text for document in documents] == ["first", "last 𝄞"]
    assert len(report.problems) == report.num_problems == len(bad)
    for number, (problem, what) in enumerate(zip(report.problems, bad.values(), strict=True), start=2):
        assert problem.startswith(f"x.jsonl:{number}: "), problem
        assert what in problem
    assert (report.num_broken_records, report.num_invalid_utf8) == (6, 3)
    assert (report.num_without_text, report.num_text_not_string, report.num_empty_documents) == (1, 2, 2)


def test_strict_stops_at_the_first_broken_line(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", lines({"text": "a"}) + b"{broken\n" + lines({"text": "b"}))
    with pytest.raises(UserError, match=f"{path}:2: not JSON"):
        read(path, strict=True)


def test_only_the_first_problems_are_kept(tmp_path: Path) -> None:
    _, report = read(write(tmp_path / "x.jsonl", b"broken\n" * 50 + lines({"text": "a"})))
    assert (report.num_broken_records, len(report.problems)) == (50, 20)


def test_nan_and_infinity_in_metadata_become_null(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", b'{"text": "a", "x": NaN, "y": [1e999, -Infinity], "z": 0.5}\n')
    (document,), _ = read(path)
    assert document.metadata == {"x": None, "y": [None, None], "z": 0.5}
    write_documents([document], tmp_path / "out", 1000)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("no.jsonl.gz", lines({"text": "a"}), "not what its name says"),
        ("no.jsonl.zst", lines({"text": "a"}), "not what its name says"),
        ("cut.jsonl.gz", gzip.compress(os.urandom(9000), mtime=0)[:5000], "cut off"),
        ("empty.jsonl.gz", b"", "cut off"),
        ("cut.jsonl.zst", zstandard.ZstdCompressor().compress(os.urandom(9000))[:5000], "cut off"),
        ("flipped.jsonl.gz", gzip.compress(lines({"text": "a"}), mtime=0)[:-6] + b"\0\0\0\0\0\0", "CRC"),
        ("no.parquet", lines({"text": "a"}), "not what its name says"),
        ("binary.jsonl", bytes(range(256)) * 50, "found no line that is a JSON object"),
        ("array.json", b'["a", "b"]', "found no line that is a JSON object"),
        ("fields.jsonl", lines({"body": "a"}, {"head": "b"}), "field 'text' of .* found only body, head"),
        ("empty.jsonl", b"", "at least one document"),
        ("blank.jsonl", lines({"text": " "}, {"text": 3}), "1 broken and 1 empty ones; .*blank.jsonl:2"),
        ("picture.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "at least one document.*binary data"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=what) as caught:
        read(path)
    assert name in str(caught.value)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_file_cut_in_the_middle_gives_an_error_after_its_good_documents(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"x.jsonl{ending}", lines(*({"text": os.urandom(500).hex()} for _ in range(2000))))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    report = ReadReport()
    with pytest.raises(UserError, match=r"x\.jsonl.* is cut off"):
        list(read_documents(CorpusConfig(paths=(str(path),)), report))
    assert report.num_documents > 500


def test_several_compressed_members_are_one_file(tmp_path: Path) -> None:
    for ending, compress in ((".gz", gzip.compress), (".zst", zstandard.ZstdCompressor().compress)):
        path = tmp_path / f"x.jsonl{ending}"
        path.write_bytes(compress(lines({"text": "a"})) + compress(lines({"text": "b"})))
        assert [document.text for document in read(path)[0]] == ["a", "b"]


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.jsonl, found none"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match=r"\*\.gz, found none"):
        read(tmp_path / "*.gz")
    with pytest.raises(UserError, match="found none"):  # an empty folder
        read(tmp_path)


def test_a_literal_name_with_wildcard_letters_is_found(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a[1].jsonl", lines({"text": "a"})))[0][0].id == "a[1].jsonl:1"


def test_a_limit_stops_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", lines(*({"text": "x" * 100} for _ in range(100))) + b"broken\n")
    documents, report = read(path, max_bytes=950)
    assert (len(documents), report.num_broken_records) == (10, 0)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    assert read(write(tmp_path / "x.jsonl", b"\xef\xbb\xbf" + lines({"text": "a"})))[0][0].text == "a"
    assert read(write(tmp_path / "x.txt", b"\xef\xbb\xbfb"))[0][0].text == "b"


_HUGE = """
import json, resource, sys
from pathlib import Path
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema.document_store import write_documents
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = ReadReport()
config = CorpusConfig(paths=(sys.argv[1],))
stored = write_documents(read_documents(config, report), Path(sys.argv[2]), 16 * 2**20)
print(json.dumps([report.text_bytes, stored.num_files, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start]))
"""


@pytest.mark.campaign
def test_a_document_of_100_mb_takes_a_few_copies_of_memory(tmp_path: Path) -> None:
    size = 100 * 2**20
    with (tmp_path / "x.jsonl").open("wb") as file:
        file.write(b'{"text": "small"}\n{"text": "' + b"word " * (size // 5) + b'"}\n{"text": "small"}\n')
    command = [sys.executable, "-c", _HUGE, str(tmp_path / "x.jsonl"), str(tmp_path / "out")]
    text_bytes, num_files, kilobytes = json.loads(subprocess.check_output(command))
    assert (text_bytes, num_files) == (size // 5 * 5 + 10, 3)
    assert kilobytes * 1024 < 9 * size


# Ids


def test_a_duplicate_id_stops_with_both_places(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", lines({"id": "x", "text": " "}, {"id": "x", "text": "1"}, {"id": "y", "text": "2"}))
    write(tmp_path / "b.jsonl", lines({"id": "z", "text": "3"}, {"id": "x", "text": "4"}))
    with pytest.raises(UserError, match=r"'x' at .*a\.jsonl:2 and again at .*b\.jsonl:2; .*duplicate_ids=rename"):
        read(tmp_path / "*.jsonl")


def test_duplicate_ids_are_renamed_on_wish(tmp_path: Path) -> None:
    ids = ["a", "a", "a#2", "b", "a", "a#2"]
    path = write(tmp_path / "a.jsonl", lines(*({"id": id, "text": id} for id in ids)))
    documents, report = read(path, duplicate_ids="rename")
    assert [document.id for document in documents] == ["a", "a#2", "a#2#2", "b", "a#3", "a#2#3"]
    assert report.num_renamed_ids == 4


def test_ids_that_share_a_hash_are_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines({"id": "a", "text": "1"}, {"id": "b", "text": "2"}))
    with mock.patch("jax_diversity.preparation.identity._hash", return_value=5):
        assert [document.id for document in read(path)[0]] == ["a", "b"]


@given(st.lists(st.integers(0, 5000), max_size=3000))
@settings(max_examples=30, deadline=None)
def test_the_registry_is_a_set(numbers: list[int]) -> None:
    registry, reference = IdRegistry(), set()
    for number in numbers:
        assert registry.add(str(number)) == (number not in reference)
        reference.add(number)


# Parquet


def test_parquet_rows_become_documents_with_plain_metadata(tmp_path: Path) -> None:
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "text": ["a", None, " ", "d"],
            "id": pa.array([10, 11, 12, 13], pa.int64()),
            "when": pa.array([moment] * 4, pa.timestamp("us", "UTC")),
            "fine": pa.array([1, 1, 1, 1_577_934_245_678_901_234], pa.timestamp("ns")),
            "day": [datetime.date(2020, 1, 2)] * 4,
            "span": pa.array([1500] * 4, pa.duration("ms")),
            "raw": [b"\xff\0"] * 4,
            "price": [decimal.Decimal("1.50")] * 4,
            "score": [float("nan"), 1.0, 1.0, float("inf")],
            "deep": [{"list": [1, 2], "at": moment}] * 4,
            "map": pa.array([[("k", 1)]] * 4, pa.map_(pa.string(), pa.int64())),
            "source": pa.array(["s"] * 4).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    documents, report = read(tmp_path / "x.parquet")
    assert [(document.id, document.text, document.source) for document in documents] == [
        ("10", "a", "s"),
        ("13", "d", "s"),
    ]
    assert documents[1].metadata == {
        "when": "2020-01-02T03:04:05.678901+00:00",
        "fine": "2020-01-02T03:04:05.678901",
        "day": "2020-01-02",
        "span": 1.5,
        "raw": "/wA=",
        "price": "1.50",
        "score": None,
        "deep": {"list": [1, 2], "at": "2020-01-02T03:04:05.678901+00:00"},
        "map": {"k": 1},
    }
    json.dumps(documents[1].metadata, allow_nan=False)
    assert report.problems == ["x.parquet:2: field 'text' holds null, expected a string"]
    assert report.num_empty_documents == 1


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_parquet_texts_without_the_mark_of_a_string(tmp_path: Path, kind: pa.DataType) -> None:
    texts = pa.array(["one é".encode(), b"two \xff", None, b"three"], kind)
    sources = pa.array([b"web"] * 4, kind)
    pq.write_table(pa.table({"text": texts, "site": sources}), tmp_path / "x.parquet")
    documents, report = read(tmp_path / "x.parquet", source_field="site")
    assert [(document.text, document.source) for document in documents] == [("one é", "web"), ("three", "web")]
    assert (report.num_invalid_utf8, report.num_text_not_string) == (1, 1)


def test_a_parquet_row_of_invalid_utf8_is_counted_alone(tmp_path: Path) -> None:
    raw = pa.array([b"a", b"\xff\xfe", b"c"])
    text = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    pq.write_table(pa.table({"text": text}), tmp_path / "x.parquet")
    documents, report = read(tmp_path / "x.parquet")
    assert [document.id for document in documents] == ["x.parquet:1", "x.parquet:3"]
    assert report.num_invalid_utf8 == 1
    assert report.problems[0].startswith("x.parquet:2: invalid UTF-8")


def test_a_time_that_python_cannot_hold_breaks_its_row_alone(tmp_path: Path) -> None:
    times = pa.array([0, 2**50, 5], pa.timestamp("ms"))
    pq.write_table(pa.table({"text": ["a", "b", "c"], "t": times}), tmp_path / "x.parquet")
    documents, report = read(tmp_path / "x.parquet")
    assert [document.text for document in documents] == ["a", "c"]
    assert report.num_broken_records == 1


def test_an_unknown_time_zone_breaks_its_rows_alone(tmp_path: Path) -> None:
    times = pa.array([0, None], pa.timestamp("us", tz="Mars/Phobos"))
    pq.write_table(pa.table({"text": ["a", "b"], "t": times}), tmp_path / "x.parquet")
    documents, report = read(tmp_path / "x.parquet")
    assert [document.text for document in documents] == ["b"]
    assert report.problems == ["x.parquet:1: unreadable row: 'Mars/Phobos'"]


def test_parquet_faults_name_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"x\.parquet, found only body, n"):
        read(tmp_path / "x.parquet")
    pq.write_table(pa.table({"text": [os.urandom(9).hex() for _ in range(9999)]}), tmp_path / "y.parquet")
    whole = (tmp_path / "y.parquet").read_bytes()
    (tmp_path / "y.parquet").write_bytes(whole[:5000])
    with pytest.raises(UserError, match=r"y\.parquet is cut off"):
        read(tmp_path / "y.parquet")
    (tmp_path / "y.parquet").write_bytes(whole[:100] + os.urandom(9000) + whole[9100:])
    with pytest.raises(UserError):
        read(tmp_path / "y.parquet")
    pq.write_table(pa.table({"text": ["a"], "extra": [1]}), tmp_path / "z.parquet", store_schema=False)
    (tmp_path / "z.parquet").write_bytes((tmp_path / "z.parquet").read_bytes().replace(b"extra", b"\x80xtra"))
    with pytest.raises(UserError, match=r"z\.parquet is cut off, damaged"):  # a name that is no UTF-8
        read(tmp_path / "z.parquet")


# Text files


def test_a_text_file_is_a_document(tmp_path: Path) -> None:
    write(tmp_path / "repo" / "pkg" / "a.py", b"print(1)\r\n")
    write(tmp_path / "repo" / "pkg" / "empty.py", b"")
    write(tmp_path / "repo" / "notes.txt.gz", b"gr\xc3\xbc\xc3\x9fe")
    write(tmp_path / "repo" / "bad.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    documents, report = read(tmp_path / "repo" / "**" / "*.*")
    assert documents == [
        Document("notes.txt.gz", "grüße", "repo", None, "notes.txt.gz"),
        Document("pkg/a.py", "print(1)\r\n", "pkg", "code:python", "pkg/a.py"),
    ]
    assert (report.num_empty_documents, report.num_undecodable) == (1, 1)
    assert report.problems == ["bad.txt: binary data, not text"]


def test_a_file_name_that_is_no_utf8_can_be_stored(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/bad\xff.txt"
    try:
        with open(path, "wb") as file:
            file.write(b"text")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    documents, _ = read(tmp_path / "*.txt")
    assert documents[0].id == "bad\ufffd.txt"
    write_documents(documents, tmp_path / "out", 1000)


def test_the_format_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "records.log", lines({"text": "a"}))
    assert read(path, format="jsonl")[0][0].text == "a"
    assert read(path, format="text")[0][0].text == '{"text": "a"}\n'


# Remote files


def test_remote_files_are_read_through_fsspec(tmp_path: Path) -> None:
    remote = fsspec.filesystem("memory")
    remote.pipe("/bucket/b/x.jsonl.gz", gzip.compress(lines({"text": "b"}), mtime=0))
    remote.pipe("/bucket/a/x.jsonl", lines({"text": "a"}))
    pq.write_table(pa.table({"text": ["p"]}), tmp_path / "x.parquet")
    remote.pipe("/bucket/p.parquet", (tmp_path / "x.parquet").read_bytes())
    remote.pipe("/bucket/t.txt", b"t")
    documents, _ = read("memory://bucket/*/x.jsonl*", "memory://bucket/p.parquet", "memory://bucket/t.txt")
    assert [document.text for document in documents] == ["a", "b", "p", "t"]
    assert [document.id for document in documents] == ["a/x.jsonl:1", "b/x.jsonl.gz:1", "p.parquet:1", "t.txt"]
    with pytest.raises(UserError, match=r"memory://bucket/none\*, found none"):
        read("memory://bucket/none*")
    remote.pipe("/bucket/cut.jsonl.gz", gzip.compress(os.urandom(999), mtime=0)[:500])
    with pytest.raises(UserError, match="cut off"):
        read("memory://bucket/cut.jsonl.gz")
    config = CorpusConfig(paths=("memory://bucket/a/x.jsonl",))
    before = input_fingerprint(config)
    assert input_fingerprint(config) == before
    remote.pipe("/bucket/a/x.jsonl", lines({"text": "c"}))
    assert input_fingerprint(config) != before


def test_a_missing_driver_names_the_extra() -> None:
    with mock.patch("fsspec.core.url_to_fs", side_effect=ImportError("Please install gcsfs")):
        with pytest.raises(UserError, match=r"a driver for gs://, .*jax-diversity\[gcs\]"):
            read("gs://bucket/*.jsonl")
        with pytest.raises(UserError, match=r"jax-diversity\[s3\]"):
            read("s3://bucket/*.jsonl")
    with pytest.raises(UserError, match="nonsense"):
        read("nonsense://bucket/x.jsonl")


# Progress and fingerprint


def test_progress_sums_up_to_the_size(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl.gz", lines(*({"text": f"{n}"} for n in range(999))))
    write(tmp_path / "b.jsonl.zst", lines({"text": "b"}))
    write(tmp_path / "c.txt", b"text")
    pq.write_table(pa.table({"text": ["x"] * 5000}), tmp_path / "d.parquet")
    config = CorpusConfig(paths=(str(tmp_path / "*"),))
    told: list[int] = []
    for _ in read_documents(config, ReadReport(), told.append):
        pass
    assert sum(told) == input_size(config) == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_the_fingerprint_is_of_names_and_contents(tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"

    def fingerprint(folder: str) -> str:
        return input_fingerprint(CorpusConfig(paths=(str(tmp_path / folder / "*"),)), cache)

    write(tmp_path / "one" / "x.jsonl", b"abc")
    write(tmp_path / "two" / "x.jsonl", b"abc")
    first = fingerprint("one")
    assert first == fingerprint("two") == fingerprint("one")
    write(tmp_path / "two" / "x.jsonl", b"abd")
    os.utime(tmp_path / "two" / "x.jsonl", ns=(0, 1))
    assert fingerprint("two") != first
    os.rename(tmp_path / "one" / "x.jsonl", tmp_path / "one" / "y.jsonl")
    assert fingerprint("one") != first
    cache.write_text("damaged")
    write(tmp_path / "two" / "x.jsonl", b"abc")
    assert fingerprint("two") == first


def test_the_cache_spares_reading(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "x.jsonl", b"abc"), tmp_path / "cache.json"
    config = CorpusConfig(paths=(str(path),))
    first = input_fingerprint(config, cache)
    with mock.patch.object(artifacts, "file_hash", side_effect=AssertionError):
        assert input_fingerprint(config, cache) == first


# The store

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
_documents = st.lists(
    st.builds(
        Document,
        id=_texts,
        text=_texts,
        source=_texts,
        language=st.none() | _texts,
        title=st.none() | _texts,
        metadata=st.dictionaries(
            _texts, st.integers(-(2**70), 2**70) | st.none() | _texts | st.lists(st.floats(-1, 1)), max_size=3
        ),
    ),
    max_size=30,
)


@given(_documents, st.integers(1, 2000))
@settings(max_examples=40, deadline=None)
def test_documents_come_back_as_stored(
    tmp_path_factory: pytest.TempPathFactory, documents: list[Document], file_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("store")
    stored = write_documents(iter(documents), folder, file_bytes)
    assert stored.has_text == all(document.text for document in documents)
    if not documents:
        assert stored.num_files == 0
        return
    paths = DocumentStore.of_folder(folder).paths
    assert len(paths) == stored.num_files
    store = DocumentStore.of_folder(folder)
    assert [text for texts in store.texts() for text in texts] == [document.text for document in documents]
    assert list(store.ids()) == [document.id for document in documents]
    short = [text for texts in store.texts(max_characters=3) for text in texts]
    assert short == [document.text[:3] for document in documents]
    table = store.columns(["id", "source", "language", "title", "metadata", "text_hash"])
    for row, document in zip(table.to_pylist(), documents, strict=True):
        assert (row["id"], row["source"], row["language"], row["title"]) == (
            document.id,
            document.source,
            document.language,
            document.title,
        )
        assert json.loads(row["metadata"]) == document.metadata
        assert row["text_hash"] == text_hash(document.text)
    for path in paths:
        texts = [text for part in store.texts(path) for text in part]
        long = [text for text in texts if text]  # empty ones take no room
        assert len(long) <= 1 or sum(len(text.encode()) for text in long) <= file_bytes


def test_row_groups_are_small_and_bytes_the_same_again(tmp_path: Path) -> None:
    documents = [Document(f"{n}", f"text {n} " * (n % 50), "s", metadata={"b": 1, "a": n}) for n in range(3500)]
    documents += [Document(f"long{n}", "x" * 3_000_000, "s") for n in range(3)]
    for folder in ("one", "two"):
        write_documents(documents, tmp_path / folder, 10**9)
    (path,) = DocumentStore.of_folder(tmp_path / "one").paths
    assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    groups = [len(texts) for texts in DocumentStore((path,)).texts()]
    assert max(groups) <= 1000
    assert len(groups) >= 6


def test_a_failing_source_leaves_no_half_file(tmp_path: Path) -> None:
    def failing():
        for n in range(5000):
            yield Document(f"{n}", "text " * 100, "s")
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        write_documents(failing(), tmp_path, 1_000_000)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["documents-00000.parquet", "documents-00001.parquet"]


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    documents = [Document(f"{n}", "text", "s") for n in range(1500)]
    write_table = pq.ParquetWriter.write_table
    written: list[int] = []

    def fill(writer: pq.ParquetWriter, table: pa.Table) -> None:
        written.append(len(table))
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        write_table(writer, table)

    with mock.patch.object(pq.ParquetWriter, "write_table", fill), pytest.raises(OSError, match="No space"):
        write_documents(documents, tmp_path, 10**9)
    assert written == [1000, 500]
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found none; prepare the corpus"):
        DocumentStore.of_folder(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        list(DocumentStore((tmp_path / "documents-00000.parquet",)).texts())
    (tmp_path / "documents-00000.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match=r"documents-00000\.parquet is damaged"):
        DocumentStore.of_folder(tmp_path).columns(["id"])


@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=60))
@settings(max_examples=40, deadline=None)
def test_copies_get_the_numbers_of_their_sorted_hashes(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    write_documents([Document(f"{index}", text, "s") for index, text in enumerate(texts)], folder, 20)
    hashes = [text_hash(text) for text in texts]
    expected = np.unique(np.array(hashes, "S16"), return_inverse=True)[1]
    found = DocumentStore.of_folder(folder).group_duplicates()
    assert found.dtype == np.int64
    assert found.tolist() == expected.tolist()


def test_rows_are_found_in_any_group(tmp_path: Path) -> None:
    documents = [Document(f"{n}", "text " * (n % 7), "s", metadata={"n": n}) for n in range(2500)]
    write_documents(documents, tmp_path, 20_000)
    store = DocumentStore.of_folder(tmp_path)
    assert len(store.paths) > 1
    assert store.num_documents == 2500
    wanted = np.array([0, 3, 1000, 2499])
    assert [row["id"] for row in store.rows(wanted, ["id"])] == ["0", "3", "1000", "2499"]
    values = [value for group in store.metadata(["n", "none"]) for value in zip(group["n"], group["none"], strict=True)]
    assert values == [(n, None) for n in range(2500)]
