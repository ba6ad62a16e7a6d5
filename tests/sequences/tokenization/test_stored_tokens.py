"""Corpora that come as tokens: every format, what is wrong with records, end tokens, and a build from them."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_diversity.foundation.errors import UserError
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.readers.array_record import decode_example
from jax_diversity.preparation.readers.files import find_files
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport, token_ids
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema.document_store import DocumentStore
from jax_diversity.schema.documents import TokenDocument
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.token_store.megatron import TokenStore, TokenWriter
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from jax_diversity.sequences.tokenization.tokenizer_json import byte_tokenizer
from jax_diversity.streaming.dataset import Dataset
from tests.support.tiny_corpus import tiny_config

GOLDENS = Path(__file__).parents[2] / "support" / "data" / "megatron"
END = 300
Rows = list[dict[str, Any]]


def make_rows(num_documents: int = 60, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    return [
        {
            "id": f"doc-{index}",
            "source": f"part {index % 2}",
            "year": 1990 + index,
            "tokens": [*rng.integers(0, 256, int(rng.integers(1, 40))).tolist(), END],
        }
        for index in range(num_documents)
    ]


# --- tf.train.Example, written without any library -------------------------------------------------------------


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    content = b""
    while value >= 0x80:
        content += bytes([value & 0x7F | 0x80])
        value >>= 7
    return content + bytes([value])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(fields: dict[str, Any], *, packed: bool = True) -> bytes:
    entries = b""
    for name, value in fields.items():
        values = value if isinstance(value, list) else [value]
        if values and isinstance(values[0], str | bytes):
            texts = [text.encode() if isinstance(text, str) else text for text in values]
            feature = message(1, b"".join(message(1, text) for text in texts))
        elif values and isinstance(values[0], float):
            feature = message(2, message(1, np.array(values, "<f4").tobytes()))
        elif packed:
            feature = message(3, message(1, b"".join(map(varint, values))))
        else:
            feature = message(3, b"".join(b"\x08" + varint(number) for number in values))
        entries += message(1, message(1, name.encode()) + message(2, feature))
    return message(1, entries)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.one_of(
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8),
            st.lists(st.integers(0, 300), min_size=1, max_size=20),
            st.lists(st.binary(max_size=9), min_size=1, max_size=3),
            st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_examples_are_decoded(fields: dict[str, list], packed: bool) -> None:
    found = decode_example(example(fields, packed=packed))
    assert list(found) == list(fields)
    assert {name: list(values) for name, values in found.items()} == fields


def test_the_protobuf_library_reads_the_same() -> None:
    descriptors = pytest.importorskip("google.protobuf.descriptor_pb2", reason="protobuf is not a dependency")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptors.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    label = descriptors.FieldDescriptorProto
    for name, kind in (
        ("BytesList", label.TYPE_BYTES),
        ("FloatList", label.TYPE_FLOAT),
        ("Int64List", label.TYPE_INT64),
    ):
        kinds = file.message_type.add(name=name)
        kinds.field.add(name="value", number=1, label=label.LABEL_REPEATED, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), 1):
        feature.field.add(
            name=name.lower(),
            number=number,
            label=label.LABEL_OPTIONAL,
            type=label.TYPE_MESSAGE,
            type_name=f".t.{name}",
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=label.LABEL_OPTIONAL, type=label.TYPE_STRING)
    entry.field.add(name="value", number=2, label=label.LABEL_OPTIONAL, type=label.TYPE_MESSAGE, type_name=".t.Feature")
    features.field.add(
        name="feature",
        number=1,
        label=label.LABEL_REPEATED,
        type=label.TYPE_MESSAGE,
        type_name=".t.Features.FeatureEntry",
    )
    whole = file.message_type.add(name="Example")
    whole.field.add(
        name="features", number=1, label=label.LABEL_OPTIONAL, type=label.TYPE_MESSAGE, type_name=".t.Features"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    record: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))()
    record.features.feature["tokens"].int64list.value.extend([0, 127, 128, 2**31 - 1, -1, 2**63 - 1])
    record.features.feature["text"].byteslist.value.append("zwölf".encode())
    record.features.feature["score"].floatlist.value.extend([0.5, -2.0])
    found = decode_example(record.SerializeToString())
    assert {name: list(values) for name, values in found.items()} == {
        "tokens": [0, 127, 128, 2**31 - 1, -1, 2**63 - 1],
        "text": ["zwölf".encode()],
        "score": [0.5, -2.0],
    }


@given(st.one_of(st.binary(max_size=60), st.tuples(st.integers(0, 200), st.binary(max_size=4))))
def test_what_is_no_example_is_a_value_error(noise: bytes | tuple[int, bytes]) -> None:
    whole = example({"tokens": list(range(0, 4000, 97)), "text": "some text", "score": [1.5]})
    at, bits = noise if isinstance(noise, tuple) else (0, b"")
    record = whole[:at] + bits + whole[at + len(bits) + 1 :] if isinstance(noise, tuple) else noise
    try:
        found = decode_example(record)
    except ValueError:
        return
    assert all(isinstance(name, str) for name in found)


# --- readers ---------------------------------------------------------------------------------------------------


def write_jsonl(folder: Path, rows: Rows) -> Path:
    path = folder / "part.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_jsonl_gz(folder: Path, rows: Rows) -> Path:
    path = folder / "part.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def write_jsonl_zst(folder: Path, rows: Rows) -> Path:
    path = folder / "part.jsonl.zst"
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with pa.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(content)
    return path


def parquet_of(kind: pa.DataType) -> Callable[[Path, Rows], Path]:
    def write(folder: Path, rows: Rows) -> Path:
        path = folder / "part.parquet"
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "tokens"}
        columns["attention_mask"] = [[1] * len(row["tokens"]) for row in rows]
        table = pa.table(columns).append_column("tokens", pa.array([row["tokens"] for row in rows], kind))
        pq.write_table(table, path, row_group_size=17)
        return path

    return write


def write_records(path: Path, records: Sequence[bytes]) -> Path:
    from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def write_examples(folder: Path, rows: Rows) -> Path:
    return write_records(folder / "part.array_record-00000-of-00001", [example(row) for row in rows])


WRITERS: dict[str, Callable[[Path, Rows], Path]] = {
    "jsonl": write_jsonl,
    "jsonl.gz": write_jsonl_gz,
    "jsonl.zst": write_jsonl_zst,
    "parquet list<int64>": parquet_of(pa.list_(pa.int64())),
    "parquet list<uint16>": parquet_of(pa.list_(pa.uint16())),
    "parquet large_list<int32>": parquet_of(pa.large_list(pa.int32())),
    "array_record": write_examples,
}


def read(config: CorpusConfig) -> tuple[list[TokenDocument], ReadReport]:
    report = ReadReport()
    documents = []
    for document in read_documents(config, report):
        assert isinstance(document, TokenDocument)
        documents.append(document)
    return documents, report


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_same_documents(tmp_path: Path, kind: str) -> None:
    rows = make_rows()
    path = WRITERS[kind](tmp_path, rows)
    documents, report = read(CorpusConfig(paths=(str(path),), format="tokens", strict=True))
    assert [document.tokens.tolist() for document in documents] == [row["tokens"] for row in rows]
    assert [document.id for document in documents] == [row["id"] for row in rows]
    assert {document.source for document in documents} == {"part 0", "part 1"}
    assert all(document.metadata == {"year": row["year"]} for document, row in zip(documents, rows, strict=True))
    assert all(document.text == "" and document.tokens.dtype == np.int32 for document in documents)
    assert (report.num_documents, report.text_bytes) == (60, 0)
    assert report.num_tokens == sum(len(row["tokens"]) for row in rows)


def test_fixed_size_lists_and_columns_of_tokens_alone(tmp_path: Path) -> None:
    table = pa.table({"ids": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2))})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(pa.table({"ids": pa.array([[], []], pa.list_(pa.null()))}), tmp_path / "b.parquet")
    config = CorpusConfig(paths=(str(tmp_path / "*"),), format="tokens", tokens_field="ids")
    documents, report = read(config)
    assert [document.tokens.tolist() for document in documents] == [[1, 2], [3, 4], [5, 6]]
    assert [document.id for document in documents] == ["a.parquet:1", "a.parquet:2", "a.parquet:3"]
    assert report.num_empty_documents == 2
    assert {document.source for document in documents} == {"a"}


@pytest.mark.parametrize("kind", ["uint16", "int32", "uint32", "int64"])
def test_records_may_be_bare_arrays(tmp_path: Path, kind: Any) -> None:
    rows = make_rows(20)
    records = [np.array(row["tokens"]).astype(np.dtype(kind).newbyteorder("<")).tobytes() for row in rows]
    path = write_records(tmp_path / "tokens.arrayrecord", [*records, b"\0", b""])
    documents, report = read(CorpusConfig(paths=(str(path),), format="tokens", array_record_tokens=kind))
    assert [document.tokens.tolist() for document in documents] == [row["tokens"] for row in rows]
    assert (report.num_broken_records, report.num_empty_documents) == (1, 1)
    assert "tokens.arrayrecord:21: " in report.problems[0]


def test_a_text_that_came_along_is_kept(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "words", "tokens": [1, 2]}, {"id": "b", "text": None, "tokens": [3]}]
    documents, report = read(CorpusConfig(paths=(str(write_jsonl(tmp_path, rows)),), format="tokens"))
    assert [document.text for document in documents] == ["words", ""]
    assert report.text_bytes == 5
    examples = write_records(tmp_path / "x.array_record", [example({"id": "a", "text": "wörter", "tokens": [1]})])
    documents, _ = read(CorpusConfig(paths=(str(examples),), format="tokens"))
    assert [(document.id, document.text) for document in documents] == [("a", "wörter")]


def test_megatron_datasets_are_corpora(tmp_path: Path) -> None:
    documents, _ = read(CorpusConfig(paths=(str(GOLDENS / "short"),), format="megatron", strict=True))
    store = TokenStore([GOLDENS / "short"])
    assert [document.tokens.tolist() for document in documents] == [
        store.document(index).tolist() for index in range(store.num_documents)
    ]
    assert (documents[0].id, documents[0].source) == ("short:1", "short")
    both, _ = read(CorpusConfig(paths=(str(GOLDENS / "*"),), format="megatron"))
    assert {document.source for document in both} == {"short", "long", "ragged"}
    for path in ("short.idx", "short.bin"):
        again, _ = read(CorpusConfig(paths=(str(GOLDENS / path),), format="megatron"))
        assert [document.id for document in again] == [document.id for document in documents]
    with TokenWriter(tmp_path / "v1.5.text", np.dtype(np.int32)) as writer:
        writer.add_documents([np.array([7]), np.array([], np.int32), np.array([5, -3])])
    documents, report = read(CorpusConfig(paths=(str(tmp_path / "v1.5*"),), format="megatron"))
    assert [(document.id, document.source) for document in documents] == [("v1.5.text:1", "v1.5.text")]
    assert (report.num_empty_documents, report.num_broken_records) == (1, 1)
    assert report.problems == ["v1.5.text:3: expected token ids of 0 to 2147483647, found -3"]


def test_numbered_megatron_files_have_the_source_of_their_folder(tmp_path: Path) -> None:
    for prefix in (
        "web/00000_tokens",
        "web/00001_tokens",
        "code/00000_tokens",
        "law/part-0-00000",
        "books_00000_tokens",
    ):
        with TokenWriter(tmp_path / "all" / prefix, np.dtype(np.uint16)) as writer:
            writer.add_document(np.array([7, 8]))
    sources = {"web/00000_tokens:1": "web", "web/00001_tokens:1": "web", "code/00000_tokens:1": "code"}
    sources |= {"law/part-0-00000:1": "law", "books_00000_tokens:1": "books"}
    for paths in (["all/*/*", "all/books*"], ["all"], ["all/web", "all/code/", "all/law", "all/books_00000_tokens"]):
        given = tuple(str(tmp_path / path) for path in paths)
        documents, _ = read(CorpusConfig(paths=given, format="megatron"))
        assert {document.id: document.source for document in documents} == sources
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"Expected \.idx and \.bin files at .*empty, found none"):
        read(CorpusConfig(paths=(str(tmp_path / "empty"),), format="megatron"))


def test_globs_of_megatron_files_also_match_folders(tmp_path: Path) -> None:
    for prefix in ("one", "web/00000_tokens", "web/deep/00001_tokens"):
        with TokenWriter(tmp_path / prefix, np.dtype(np.uint16)) as writer:
            writer.add_document(np.array([7, 8]))
    (tmp_path / "notes").mkdir()  # a folder without token files
    sources = {"one:1": "one", "web/00000_tokens:1": "web", "web/deep/00001_tokens:1": "deep"}
    for pattern in ("*", "*e*", "[ow]*"):
        documents, _ = read(CorpusConfig(paths=(str(tmp_path / pattern),), format="megatron"))
        assert {document.id: document.source for document in documents} == sources


@pytest.mark.parametrize("name", ["web.bin", "web.idx", "00000_unshuffled.ds"])
def test_token_files_are_not_read_as_texts(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"bytes")
    for path in (name, "*", ""):
        with pytest.raises(UserError, match=rf"Expected texts, found .*{name}; set corpus.format=megatron"):
            read(CorpusConfig(paths=(str(tmp_path / path),)))


@pytest.mark.parametrize("name", ["00000_unshuffled.ds", "part-0-00000.npy", "web.bin"])
def test_token_files_of_other_programs_name_the_way_to_read_them(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\7\0\0\0")
    config = CorpusConfig(paths=(str(tmp_path / name),), format="tokens")
    with pytest.raises(UserError, match="end_id"):
        read(config)
    documents, _ = read(dataclasses.replace(config, end_id=0, dtype="uint16"))
    assert [document.tokens.tolist() for document in documents] == [[7, 0]]
    with pytest.raises(UserError, match=r"corpus\.end_id with corpus\.format=tokens only, found it with megatron"):
        dataclasses.replace(config, end_id=0, format="megatron").check()
    (tmp_path / "web.idx").write_bytes(b"")
    with pytest.raises(UserError, match=r"web\.bin with its \.idx; set corpus\.format=megatron|web\.idx"):
        read(CorpusConfig(paths=(str(tmp_path),), format="tokens", end_id=0, dtype="uint16"))


def test_half_a_megatron_dataset_is_refused(tmp_path: Path) -> None:
    for ending in (".bin", ".idx"):
        for path in tmp_path.iterdir():
            path.unlink()
        (tmp_path / f"short{ending}").write_bytes((GOLDENS / f"short{ending}").read_bytes())
        for pattern in ("short", "*"):
            config = CorpusConfig(paths=(str(tmp_path / pattern),), format="megatron")
            other = ".bin" if ending == ".idx" else ".idx"
            with pytest.raises(
                UserError, match=rf"Expected .*short\{other} beside .*short\{ending}, found none; .*copy"
            ):
                read(config)
    (tmp_path / "other.bin").write_bytes(b"")
    (tmp_path / "short.bin").write_bytes((GOLDENS / "short.bin").read_bytes())
    with pytest.raises(UserError, match=r"other\.idx beside .*other\.bin, found none"):
        read(CorpusConfig(paths=(str(tmp_path / "*"),), format="megatron"))
    (tmp_path / "other.bin").unlink()
    (tmp_path / "short.bin").write_bytes(b"\0\0")
    with pytest.raises(UserError, match=r"short\.bin does not fit its index"):
        read(CorpusConfig(paths=(str(tmp_path / "short"),), format="megatron"))


BROKEN: dict[str, tuple[Any, str]] = {
    "negative": ([1, -5], "found -5"),
    "large": ([2**31], "found 2147483648"),
    "huge": ([2**70], "found 1180591620717411303424"),
    "float": ([1, 2.5], "token ids hold 2.5"),
    "bool": ([True], "token ids hold True"),
    "text": ("1 2 3", "expected a list of token ids, found '1 2 3'"),
    "null": (None, "expected a list of token ids, found null"),
    "nulls": ([1, None], "token ids hold None"),
    "nested": ([[1], [2]], r"token ids hold \[1\]"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_records_are_counted_by_file_and_line(tmp_path: Path, fault: str) -> None:
    tokens, what = BROKEN[fault]
    rows = [{"tokens": [1]}, {"tokens": tokens}, {"tokens": [2]}, {"other": 3}, {"tokens": []}]
    path = write_jsonl(tmp_path, rows)
    config = CorpusConfig(paths=(str(path),), format="tokens")
    documents, report = read(config)
    assert [document.id for document in documents] == ["part.jsonl:1", "part.jsonl:3"]
    assert (report.num_broken_records, report.num_empty_documents) == (2, 1)
    assert report.problems[1] == "part.jsonl:4: no field 'tokens' among other"
    with pytest.raises(UserError, match=rf"part\.jsonl:2: field 'tokens': .*{what}"):
        read(dataclasses.replace(config, strict=True))


def test_nulls_in_parquet_are_broken_rows(tmp_path: Path) -> None:
    lists = [[1, 2], None, [3, None], [], [4], [5, -1], [6]]
    pq.write_table(pa.table({"tokens": pa.array(lists, pa.list_(pa.int64()))}), tmp_path / "a.parquet")
    documents, report = read(CorpusConfig(paths=(str(tmp_path / "a.parquet"),), format="tokens"))
    assert [document.tokens.tolist() for document in documents] == [[1, 2], [4], [6]]
    assert [problem.split(":")[1] for problem in report.problems] == ["2", "3", "6"]
    assert report.num_empty_documents == 1


@pytest.mark.parametrize(
    "column",
    [pa.array([1, 2]), pa.array(["1 2"]), pa.array([[1.5]]), pa.array([["1"]]), pa.array([[[1]], [[2, 3]]])],
    ids=lambda column: str(column.type).replace(" ", ""),
)
def test_columns_of_other_types_are_refused(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"tokens": column}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"Expected lists of whole numbers in column 'tokens' of .*a\.parquet, found"):
        read(CorpusConfig(paths=(str(tmp_path / "a.parquet"),), format="tokens"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet list<int64>", "array_record"])
def test_a_file_without_the_field_is_refused(tmp_path: Path, kind: str) -> None:
    path = WRITERS[kind](tmp_path, make_rows(3))
    with pytest.raises(UserError, match=r"Expected token ids in field 'input_ids' of .*; set corpus.tokens_field"):
        read(CorpusConfig(paths=(str(path),), format="tokens", tokens_field="input_ids"))


def test_files_that_are_not_what_they_are_called_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 2 3")
    with pytest.raises(UserError, match=r"named \.jsonl, \.parquet or \.array_record, found .*a\.txt"):
        read(CorpusConfig(paths=(str(tmp_path / "a.txt"),), format="tokens"))
    good = write_examples(tmp_path, make_rows(30)).read_bytes()
    for number, content in enumerate(
        (b"", b"nothing of the sort", good[:-1000], good[: len(good) // 2], bytes(70_000))
    ):
        path = tmp_path / f"{number}.array_record"
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"{number}\.array_record"):
            read(CorpusConfig(paths=(str(path),), format="tokens"))
    records = [example({"tokens": [1]}), b"\xff\xff", example({"tokens": [2]})[:-1]]
    path = write_records(tmp_path / "some.array_record", records)
    documents, report = read(CorpusConfig(paths=(str(path),), format="tokens"))
    assert len(documents) == 1
    assert [problem.partition(": ")[0] for problem in report.problems] == [
        "some.array_record:2",
        "some.array_record:3",
    ]


@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=30),
    st.sampled_from(["list", "int32", "uint32", "int64", "uint64"]),
)
def test_token_ids_of_any_integer_type(values: list[int], kind: str) -> None:
    given_ids = values if kind == "list" else np.array(values, kind)
    found = token_ids(given_ids)
    assert found.dtype == np.int32
    assert found.tolist() == values


def test_part_of_a_corpus_counts_four_bytes_a_token(tmp_path: Path) -> None:
    rows = [{"tokens": list(range(100))}] * 50
    config = CorpusConfig(paths=(str(write_jsonl(tmp_path, rows)),), format="tokens", max_bytes=4000)
    _, report = read(config)
    assert report.num_documents == 10


# --- stages ----------------------------------------------------------------------------------------------------


def config_of(where: Path | str, out: Path, kind: Any = "tokens", **tokenizer: Any) -> BuildConfig:
    config = tiny_config(Path("."), out)
    return dataclasses.replace(
        config,
        corpus=CorpusConfig(paths=(str(where),), format=kind, file_bytes=1500),
        tokenizer=TokenizerConfig(kind="stored", **tokenizer),
        packing=PackingConfig(sequence_length=32, validation_fraction=0.05),
    )


def build(config: BuildConfig, *stages: str) -> dict[str, dict[str, Any]]:
    made = Build(config)
    return {stage: made.run_stage(stage).counts for stage in stages}


def test_the_stored_tokens_are_the_given_ones(tmp_path: Path) -> None:
    rows = make_rows()
    counts = build(config_of(write_jsonl(tmp_path, rows), tmp_path / "out"), "prepare", "tokenize")
    assert counts["prepare"]["has_text"] is False
    assert counts["prepare"]["num_files"] > 2
    tokens = counts["tokenize"]
    assert (tokens["end_id"], tokens["vocab_size"], tokens["token_dtype"]) == (END, END + 1, "uint16")
    assert (tokens["num_ends_appended"], tokens["num_ends_inside"]) == (0, 0)
    assert tokens["implementation"] == "stored"
    dataset = Dataset(tmp_path / "out")
    assert [dataset.tokens.document(index).tolist() for index in range(60)] == [row["tokens"] for row in rows]


def test_copies_are_found_by_their_tokens(tmp_path: Path) -> None:
    rows = [{"id": str(index), "tokens": [index % 7, END]} for index in range(30)]
    config = config_of(write_jsonl(tmp_path, rows), tmp_path / "out")
    build(config, "prepare", "tokenize")
    hashes = DocumentStore.of_folder(tmp_path / "out" / "documents").columns(["text_hash"])["text_hash"].to_pylist()
    assert len(set(hashes)) == 7
    assert len({(row["tokens"][0], text_hash) for row, text_hash in zip(rows, hashes, strict=True)}) == 7


def test_wide_ids_are_stored_wide(tmp_path: Path) -> None:
    rows = [{"tokens": [index, 2**31 - 2]} for index in range(5)]
    counts = build(config_of(write_jsonl(tmp_path, rows), tmp_path / "out"), "prepare", "tokenize")["tokenize"]
    assert (counts["vocab_size"], counts["token_dtype"]) == (2**31 - 1, "int32")
    assert Dataset(tmp_path / "out").tokens.document(4).tolist() == [4, 2**31 - 2]


def test_a_missing_end_token_is_appended(tmp_path: Path) -> None:
    rows = [{"tokens": [index, END]} for index in range(100)]
    rows[37]["tokens"] = [8, 9]
    path = write_jsonl(tmp_path, rows)
    counts = build(config_of(path, tmp_path / "a"), "prepare", "tokenize")["tokenize"]
    assert (counts["end_id"], counts["num_ends_appended"]) == (END, 1)
    assert Dataset(tmp_path / "a").tokens.document(37).tolist() == [8, 9, END]
    rows[38]["tokens"] = [8]
    path = write_jsonl(tmp_path, rows)
    with pytest.raises(UserError, match=r"without an end token: the most frequent last id, 300, ends 98\.0 %"):
        build(config_of(path, tmp_path / "b"), "prepare", "tokenize")
    counts = build(config_of(path, tmp_path / "c", end_id=400), "prepare", "tokenize")["tokenize"]
    assert (counts["end_id"], counts["num_ends_appended"], counts["vocab_size"]) == (400, 100, 401)
    tokens = Dataset(tmp_path / "c").tokens
    assert [tokens.document(index).tolist() for index in range(100)] == [[*row["tokens"], 400] for row in rows]


def test_an_id_that_stands_everywhere_ends_nothing(tmp_path: Path) -> None:
    newline = 10
    rows = [{"tokens": [index, newline, 3, newline]} for index in range(20, 60)]
    path = write_jsonl(tmp_path, rows)
    with pytest.raises(UserError, match=r"without an end token: 10 ends 100\.0 % of them, but occurs 40 times inside"):
        build(config_of(path, tmp_path / "a"), "prepare", "tokenize")
    counts = build(config_of(path, tmp_path / "b", end_id=newline), "prepare", "tokenize")["tokenize"]
    assert (counts["num_ends_appended"], counts["num_ends_inside"]) == (0, 40)


DELIMITED = [[index % 50, 7 + index % 3] for index in range(200)]


@pytest.mark.parametrize("options", [{}, {"end_id": END}])
def test_a_delimiter_that_begins_documents_is_moved(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = [{"tokens": [END, *text]} for text in DELIMITED]
    rows[5]["tokens"] = [END]
    rows[17]["tokens"] = [1, 2]  # a shard that begins inside a document
    rows[18]["tokens"] = [END, 3, END]
    counts = build(config_of(write_jsonl(tmp_path, rows), tmp_path / "out", **options), "prepare", "tokenize")[
        "tokenize"
    ]
    assert (counts["end_id"], counts["ends_began_documents"], counts["num_ends_appended"]) == (END, True, 0)
    tokens = Dataset(tmp_path / "out").tokens
    stored = [tokens.document(index).tolist() for index in range(200)]
    expected = [[*text, END] for text in DELIMITED]
    expected[5], expected[17], expected[18] = [END], [1, 2, END], [3, END]
    assert stored == expected


def test_a_delimiter_at_both_ends_is_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, [{"tokens": [END, *text, END]} for text in DELIMITED])
    with pytest.raises(
        UserError,
        match=r"found 300 at both ends: it begins 100\.0 % of the documents and ends 100\.0 %; set tokenizer\.end_id",
    ):
        build(config_of(path, tmp_path / "a"), "prepare", "tokenize")
    counts = build(config_of(path, tmp_path / "b", end_id=END), "prepare", "tokenize")["tokenize"]
    assert (counts["num_ends_appended"], counts["ends_began_documents"]) == (0, False)
    assert Dataset(tmp_path / "b").tokens.document(3).tolist() == [END, *DELIMITED[3], END]


@pytest.mark.parametrize(("first", "last"), [(1, 2), (1, None), (None, 2)])
def test_start_and_end_tokens_that_differ(tmp_path: Path, first: int | None, last: int | None) -> None:
    marks = [[] if token is None else [token + 400] for token in (first, last)]
    path = write_jsonl(tmp_path, [{"tokens": [*marks[0], *text, *marks[1]]} for text in DELIMITED])
    counts = build(config_of(path, tmp_path / "out"), "prepare", "tokenize")["tokenize"]
    assert counts["end_id"] == 400 + (last or first or 0)
    assert counts["ends_began_documents"] == (last is None)


def test_an_id_that_begins_documents_and_stands_inside_is_no_delimiter(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, [{"tokens": [10, *text, 10, *text]} for text in DELIMITED])
    with pytest.raises(UserError, match=r"without an end token: the most frequent last id"):
        build(config_of(path, tmp_path / "out"), "prepare", "tokenize")


def test_folders_of_bare_token_files(tmp_path: Path) -> None:
    ids = np.array([5, 6, END, 7, END], "<u2")
    for folder in ("web", "books"):
        (tmp_path / "all" / folder).mkdir(parents=True)
        ids.tofile(tmp_path / "all" / folder / "00000.npy")
        ends = gzip.compress(b"0,3\n3,5\n")
        (tmp_path / "all" / folder / "00000.csv.gz").write_bytes(ends)
        ids.tofile(tmp_path / "all" / folder / "00001.ds")
        (tmp_path / "all" / folder / "00001.ds.index").write_bytes(np.array([3, 5], "<u8").tobytes())
    documents, report = read(CorpusConfig(paths=(str(tmp_path / "all"),), format="tokens"))
    assert [document.tokens.tolist() for document in documents] == [[5, 6, END], [7, END]] * 4
    assert [document.source for document in documents] == ["books"] * 4 + ["web"] * 4
    assert (documents[0].id, report.num_problems) == ("books/00000:1", 0)
    (tmp_path / "all" / "web" / "00001.ds").write_bytes(ids.tobytes()[:-1])
    with pytest.raises(UserError, match=r"Expected 10 bytes in .*00001\.ds, 2 documents of uint16, found 9"):
        read(CorpusConfig(paths=(str(tmp_path / "all"),), format="tokens"))


def test_a_tokenizer_that_is_given_goes_along(tmp_path: Path) -> None:
    byte_tokenizer().save(tmp_path)
    path = str(tmp_path / "tokenizer.json")
    rows = [{"tokens": [*b"some words", 256]}, {"tokens": [*b"other words", 256]}] * 3
    corpus_path = write_jsonl(tmp_path, rows)
    counts = build(config_of(corpus_path, tmp_path / "a", path=path), "prepare", "tokenize")["tokenize"]
    assert (counts["vocab_size"], counts["end_id"]) == (257, 256)
    assert (tmp_path / "a" / "tokens" / "tokenizer.json").read_bytes() == Path(path).read_bytes()
    end_token = byte_tokenizer().end_token
    named = config_of(corpus_path, tmp_path / "b", path=path, end_token=end_token)
    assert build(named, "prepare", "tokenize")["tokenize"]["end_token"] == end_token
    corpus_path = write_jsonl(tmp_path, [{"tokens": [5, 999, 256]}])
    with pytest.raises(UserError, match="found token id 999, which it does not have"):
        build(config_of(corpus_path, tmp_path / "c", path=path), "prepare", "tokenize")
    with pytest.raises(UserError, match="found token id 700, which it does not have"):
        build(config_of(corpus_path, tmp_path / "d", path=path, end_id=700), "prepare", "tokenize")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"without a tokenizer's model"):
        build(config_of(corpus_path, tmp_path / "e", path=path), "prepare", "tokenize")


def test_a_killed_stage_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path, make_rows(80))
    build(config_of(path, tmp_path / "whole"), "prepare", "tokenize")
    config = config_of(path, tmp_path / "killed")
    build(config, "prepare")
    written: list[Path] = []
    add_runs = TokenWriter.add_runs

    def die_in_the_third(writer: TokenWriter, *arguments: Any) -> None:
        if writer.prefix.name == "tokens-00002" and not written.count(writer.prefix):
            written.append(writer.prefix)
            raise KeyboardInterrupt
        written.append(writer.prefix)
        add_runs(writer, *arguments)

    monkeypatch.setattr(TokenWriter, "add_runs", die_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        build(config, "tokenize")
    assert len(written) == 3
    build(config, "tokenize")
    assert [prefix.name for prefix in written].count("tokens-00000") == 1
    names = sorted(file.name for file in (tmp_path / "whole" / "tokens").iterdir())
    assert len(names) > 6
    assert names == sorted(file.name for file in (tmp_path / "killed" / "tokens").iterdir())
    for name in names:
        assert (tmp_path / "whole/tokens" / name).read_bytes() == (tmp_path / "killed/tokens" / name).read_bytes()


def test_megatron_in_and_megatron_packed(tmp_path: Path) -> None:
    config = config_of(GOLDENS / "long", tmp_path / "out", "megatron", end_id=1000)
    config = dataclasses.replace(
        config,
        packing=PackingConfig(
            method="megatron", sequence_length=32, options={"num_epochs": 2}, validation_fraction=0.0
        ),
    )
    counts = build(config, "prepare", "tokenize", "pack")
    assert counts["tokenize"]["num_ends_appended"] == 12
    dataset = Dataset(tmp_path / "out")
    assert (dataset.segments.sequence_length, dataset.segments.overlap) == (33, 1)
    shuffle = np.load(tmp_path / "out" / "sequences" / "shuffle_index.npy")
    assert shuffle.dtype == np.uint32
    assert sorted(shuffle.tolist()) == list(range(dataset.segments.num_sequences))


def test_weights_among_the_prefixes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("long.idx", "long.bin"):
        (tmp_path / name).write_bytes((GOLDENS / name).read_bytes())
    config = CorpusConfig(paths=("30", "long", "0.7", "other"), format="megatron")
    with pytest.raises(
        UserError, match=r"the number 30 and no 30\.idx; datasets have no weights here: .*schedule --family source"
    ):
        find_files(config)
    for name in ("long.idx", "long.bin"):
        (tmp_path / name).rename(tmp_path / name.replace("long", "30"))
    assert len(find_files(dataclasses.replace(config, paths=("30",)))) == 2
    with pytest.raises(UserError, match=r"Expected \.idx and \.bin files at other, found none"):
        find_files(dataclasses.replace(config, paths=("other",)))


def test_texts_are_no_tokens(tmp_path: Path) -> None:
    from tests.support.tiny_corpus import write_corpus

    config = tiny_config(write_corpus(tmp_path / "texts", 20), tmp_path / "out")
    assert build(config, "prepare")["prepare"]["has_text"] is True
    with pytest.raises(UserError, match=r"Expected documents that came as tokens in .*, found texts"):
        next(DocumentStore.of_folder(tmp_path / "out" / "documents").token_lists())


@pytest.mark.parametrize(
    ("corpus_settings", "tokenizer_settings", "what"),
    [
        ({"format": "megatron"}, {"kind": "bytes"}, "tokenizer.kind=stored with corpus.format=megatron or tokens"),
        ({"format": "tokens"}, {"kind": "bytes"}, "found bytes with tokens"),
        ({"format": "auto"}, {"kind": "stored"}, "found stored with auto"),
        ({}, {"end_id": 3}, "tokenizer.end_id with tokenizer.kind=stored only, found 3 with bpe"),
        ({}, {"path": "a.json"}, "a tokenizer.json or vocab.json, found no file at a.json"),
        ({}, {"kind": "bytes", "vocab_size": 300}, "tokenizer.vocab_size with tokenizer.kind=bpe only, found 300"),
        ({}, {"kind": "bytes", "train_bytes": 99}, "tokenizer.train_bytes with tokenizer.kind=bpe only, found 99"),
        ({}, {"vocab_size": 256}, "tokenizer.vocab_size >= 257"),
        (
            {"format": "tokens"},
            {"kind": "stored", "normalization": "NFC"},
            "tokenizer.normalization with .* only, found 'NFC' with stored",
        ),
        (
            {"format": "tokens"},
            {"kind": "stored", "end_id": -1},
            "tokenizer.end_id .* >= 0 and .*, found -1",
        ),
        (
            {"format": "tokens"},
            {"kind": "stored", "end_id": 2**31},
            "end_id .* <= 2147483647, found 2147483648",
        ),
        ({"format": "tokens"}, {"kind": "stored", "end_token": "</s>"}, "tokenizer.path with tokenizer.end_token"),
        ({"format": "tokens"}, {"kind": "stored", "path": "nowhere"}, "no file at nowhere"),
        (
            {"format": "tokens", "paths": ("python-environment",)},
            {"kind": "stored"},
            "found python-environment, which contains texts",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    corpus_settings: dict[str, Any], tokenizer_settings: dict[str, Any], what: str
) -> None:
    settings: dict[str, Any] = {"paths": ("x",)} | corpus_settings
    config = BuildConfig(corpus=CorpusConfig(**settings), tokenizer=TokenizerConfig(**tokenizer_settings))
    with pytest.raises(UserError, match=what):
        config.check()
