"""Files whose names do not say what they contain: compressions, formats, arrays of JSON, archives."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import random
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from jax_diversity.foundation.errors import UserError
from jax_diversity.preparation.readers import jsonl
from jax_diversity.preparation.readers.compression import PieceStream
from jax_diversity.preparation.readers.files import InputFile, format_of
from jax_diversity.preparation.readers.reading import input_fingerprint, read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig, Format
from jax_diversity.schema import Document
from tests.support.web_records import compressed, record

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "lz4": lambda content: pa.compress(content, "lz4", asbytes=True),
    "lzma": lambda content: lzma.compress(content, lzma.FORMAT_ALONE),
}
LINES = "".join(json.dumps({"id": str(n), "text": f"A text with the number {n}."}) + "\n" for n in range(300)).encode()


def read(path: Path, format: Format = "auto", begins: str | None = None) -> tuple[list[Document], ReadReport]:
    report = ReadReport()
    config = CorpusConfig(paths=(str(path),), format=format, documents_begin=begins)
    return list(read_documents(config, report)), report


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be", "utf-8-sig"])
@pytest.mark.parametrize("name", ["a.jsonl", "part-00000", "a.jsonl.gz", "a.csv", "a.tsv", "a.txt", "a.html"])
def test_the_mark_of_an_encoding_counts_in_every_format(tmp_path: Path, encoding: str, name: str) -> None:
    """Excel and PowerShell write tables and JSON Lines in UTF-16."""
    text = "Größe, 大きさ 😀" * 2000
    row = f'"{text}"' if name.endswith("csv") else text
    content = json.dumps({"text": text}, ensure_ascii=False) if name[0] == "p" or "json" in name else row
    content = f"text\n{row}\n" if name.endswith("sv") else content
    mark = "\ufeff" if encoding.endswith("be") else ""
    stored = (mark + content).encode(encoding)
    documents, report = read(written(tmp_path / name, gzip.compress(stored) if name.endswith("gz") else stored))
    assert [document.text for document in documents] == [text]
    assert not report.num_problems


def test_half_a_character_at_the_end_of_a_file_is_replaced(tmp_path: Path) -> None:
    documents, _ = read(written(tmp_path / "a.txt", codecs.BOM_UTF16_LE + "words".encode("utf-16-le") + b"x"))
    assert [document.text for document in documents] == ["words\ufffd"]


def test_manual_pages_are_text(tmp_path: Path) -> None:
    text = "N\bNA\bAM\bME\bE\n" * 20
    assert [document.text for document in read(written(tmp_path / "ls.txt", text.encode()))[0]] == [text]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "Zoë thinks that a naïve façade of the café sells jalapeños, 5 µm thick." * 3),
        ("cp1252", "“Smart quotes” are not rare in texts of word processors, and they mean well." * 3),
        ("cp1252", "The people of the town know the house, and nobody in the whole street minds Itô." * 3),
        ("cp850", "Grüße aus München, wo die Straßen schön und die Häuser groß sind." * 4),
        ("cp852", "Árvíztűrő tükörfúrógép, őszi időjárás, ahol a fiúk és a lányok játszottak az erdő szélén."),
        ("cp852", "Zażółć gęślą jaźń, pchnąć w tę łódź jeża."),
        ("cp850", "L'été dernier, nous avons mangé des crêpes à côté de la forêt où les élèves étudiaient."),
        ("cp437", "El niño comió piñas. ¿Cómo está usted? La canción más rápida según el señor Núñez."),
        ("cp1250", "Kŕdeľ šťastných ďatľov učí pri ústí Váhu mĺkveho koňa obhrýzať kôru a žrať čerstvé mäso."),
        ("iso8859-2", "Kŕdeľ šťastných ďatľov učí pri ústí Váhu mĺkveho koňa obhrýzať kôru a žrať čerstvé mäso."),
        ("cp1251", "Это длинный текст на русском языке, который мы читаем без указания кодировки."),
        ("koi8-r", "Это длинный текст на русском языке, который мы читаем без указания кодировки."),
        ("latin-1", "Das Mädchen läuft über die Straße und grüßt, aber niemand grüßt zurück."),
        ("cp932", "これは日本語の文章です。長い文章を読みます。"),
        ("gb18030", "这是一个没有声明编码的中文文本文件。我们要把它读出来。"),
        ("utf-16-le", "Plain text without a mark."),
    ],
)
def test_text_files_in_old_encodings(tmp_path: Path, encoding: str, text: str) -> None:
    written(tmp_path / "new.txt", b"Text in UTF-8.")
    written(tmp_path / "old.txt", text.encode(encoding))
    (_, old), report = read(tmp_path)
    assert old.text == text
    assert old.metadata["encoding"]
    assert (report.num_other_encodings, report.num_problems) == (1, 0)
    documents, _ = read(written(tmp_path / "lines.txt", f"{text}\n{text}\n".encode(encoding)), begins=r"\S")
    assert [document.text for document in documents] == [text, text]


def archive(kind: str) -> bytes:
    """A tar archive, or a table in one of Arrow's formats."""
    content = io.BytesIO()
    if kind == "tar":
        with tarfile.open(fileobj=content, mode="w") as files:
            about = tarfile.TarInfo("a.jsonl")
            about.size = len(LINES)
            files.addfile(about, io.BytesIO(LINES))
        return content.getvalue()
    table = pa.table({"text": ["a"]})
    with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.tar", archive("tar"), r"a tar archive; unpack it with `tar xf a\.tar`"),
        ("a.tgz", compressed(archive("tar")), "a tar archive"),
        ("a.arrow", archive("file"), "an Arrow file; save the table as Parquet"),
        ("data-00000-of-00001.arrow", archive("stream"), "an Arrow stream; save the data set"),
        ("a.avro", b"Obj\x01abc", "an Avro file"),
        ("a.pdf", b"%PDF-1.4\nabc", "binary data"),
        ("a.db", b"SQLite format 3\0abc", "binary data"),
        ("a.txt.gz", compressed(compressed(b"twice" * 99)), "binary data"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0\xff" * 300, "Microsoft Office"),
        ("a.rtf", rb"{\rtf1\ansi Words.}", "Rich Text Format"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read(written(tmp_path / name, content))


@pytest.mark.parametrize(
    ("name", "content", "texts", "num_problems"),
    [
        ("a.tsv", 'text\tx\n"He said hi\t1\nb\t2\nc "q" d\t3\n', ['"He said hi', "b", 'c "q" d'], 0),
        ("a.tsv", 'text\tx\n"quoted" words\t1\nb\t2\n', ['"quoted" words', "b"], 0),
        ("a.tsv", 'x\ttext\n1\t"first\nsecond"\n2\t"a ""b"""\n', ["first\nsecond", 'a "b"'], 0),
        ("a.tsv", 'x\ttext\n1\t"first\n2\tsecond\n', ['"first', "second"], 0),
        ("a.csv", 'text,x\n"He said hi,1\nb,2\nc "q" d,3\n', ["b", 'c "q" d'], 1),
        ("a.csv", 'text,x\n"He said \\"hi, you\\" now",1\nb,2\n', ['He said "hi, you" now', "b"], 0),
        ("a.tsv", 'text\n"line one\nline two"\nlast\n', ["line one\nline two", "last"], 0),
        ("a.csv", 'text,x\n"a \\"b\\" C:\\new\\table",1\n', ['a "b" C:\\new\\table'], 0),
        ("a.csv", 'text,x\n"print(\\"x\\n\\")",1\n', ['print("x\\n")'], 0),
        ("a.csv", 'text,x\n"a, ""b""\nc",1\n"C:\\",2\n', ['a, "b"\nc', "C:\\"], 0),
    ],
)
def test_misplaced_quotes_join_no_rows(
    tmp_path: Path, name: str, content: str, texts: list[str], num_problems: int
) -> None:
    documents, report = read(written(tmp_path / name, content.encode()))
    assert [document.text for document in documents] == texts
    assert report.num_problems == num_problems


def test_a_table_of_other_line_ends_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="end lines with a line feed"):
        read(written(tmp_path / "a.csv", b"text,x\ra,1\rb,2\r"))


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize(
    "name", ["a.jsonl.gz", "a.jsonl.GZ", "a.jsonl.zst", "a.jsonl.xz", "a.jsonl", "part-00000", "a.txt"]
)
def test_the_content_decides_the_compression(tmp_path: Path, kind: str, name: str) -> None:
    documents, report = read(written(tmp_path / name, COMPRESS[kind](LINES)))
    assert len(documents) == 300
    assert documents[299].text == "A text with the number 299."
    assert not report.num_problems


@pytest.mark.parametrize("ending", [".gz", ".gzip", ".bz2", ".bzip2", ".zst", ".zstd", ".xz", ".lz4", ".GZ"])
def test_endings_of_compressed_files_are_not_part_of_names(tmp_path: Path, ending: str) -> None:
    (document,), _ = read(written(tmp_path / f"web-00001.jsonl{ending}", COMPRESS["xz"](b'{"text": "a"}')))
    assert document.source == "web"


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_cut_file_is_an_error(tmp_path: Path, kind: str) -> None:
    content = COMPRESS[kind](random.Random(1).randbytes(9000).hex().encode())
    for end in (len(content) // 2, len(content) - 3):
        with pytest.raises(UserError, match="is cut off, damaged"):
            read(written(tmp_path / "a.txt", content[:end]))


@pytest.mark.parametrize("kind", COMPRESS)
def test_several_compressed_parts_are_one_file(tmp_path: Path, kind: str) -> None:
    documents, _ = read(written(tmp_path / "a.jsonl", COMPRESS[kind](LINES[:300]) + COMPRESS[kind](LINES[300:])))
    assert len(documents) == 300


def test_text_that_begins_as_compressed_files_do(tmp_path: Path) -> None:
    (document,), _ = read(written(tmp_path / "a.txt", b"BZh9 is how a bzip2 file begins."))
    assert document.text.startswith("BZh9")


@pytest.mark.parametrize("window", [27, 28, 31])
def test_long_windows_of_zstd(tmp_path: Path, window: int) -> None:
    """Of windows above 128 MiB the memory is said."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window)
    content = io.BytesIO()
    with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(content, closefd=False) as stream:
        stream.write(LINES)  # the size is not stored, so the whole window is needed
    path = written(tmp_path / "RC_2020-01.zst", content.getvalue())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(read(path, "jsonl")[0]) == 300
    said = [str(each.message) for each in caught]
    assert said == (
        []
        if window == 27
        else [f"To read {path.name}, {2**window // 2**20:,} MiB of memory are needed: it was made with a long window."]
    )


def test_a_frame_that_is_cut_off_within_its_size(tmp_path: Path) -> None:
    content = zstandard.ZstdCompressor().compress(LINES) + (0x184D2A50).to_bytes(4, "little") + b"\0"
    with pytest.raises(UserError, match="is cut off, damaged"):
        read(written(tmp_path / "a.jsonl.zst", content))


@pytest.mark.parametrize("is_compressed", [False, True])
def test_crawls_with_a_dictionary(tmp_path: Path, is_compressed: bool) -> None:
    """Their first frame is left out by programs that do not know it, and has the dictionary."""
    pages = [gzip.decompress(record(number, f"<p>A page with the number {number}.".encode())) for number in range(500)]
    dictionary = zstandard.train_dictionary(2000, list[Any](pages))
    stored = dictionary.as_bytes()
    stored = zstandard.ZstdCompressor().compress(stored) if is_compressed else stored
    content = (0x184D2A5D).to_bytes(4, "little") + len(stored).to_bytes(4, "little") + stored
    content += (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"other"
    compressor = zstandard.ZstdCompressor(dict_data=dictionary)
    content += b"".join(map(compressor.compress, pages))
    documents, report = read(written(tmp_path / "a.warc.zst", content))
    assert len(documents) == 500
    assert not report.num_problems
    documents, report = read(written(tmp_path / "a.warc.zst", content[:-20]))
    assert len(documents) == 499
    assert "cut off" in report.problems[0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"PK\x03\x04", "the zip archive .*unzip a.txt"),
        (b"7z\xbc\xaf\x27\x1c", "the 7z archive"),
        (b"Rar!\x1a\x07", "the rar archive"),
    ],
)
def test_archives_are_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read(written(tmp_path / "a.txt", content))


NAMES = ["part-00000", "a.jsonlines", "a.ndjson", "a.jl", "a.jsonl.txt", "a.txt", "a.log", "a.JSONL"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf", b"\n\n"])
def test_json_lines_under_other_names(tmp_path: Path, name: str, begin: bytes) -> None:
    documents, report = read(written(tmp_path / name, begin + LINES))
    assert len(documents) == 300
    assert documents[0].text == "A text with the number 0."
    assert not report.num_text_files


def test_a_long_first_line_is_recognised(tmp_path: Path) -> None:
    content = json.dumps({"text": "word " * 50_000, "id": "a"}).encode()
    assert [document.id for document in read(written(tmp_path / "part-0", content))[0]] == ["a"]


@pytest.mark.parametrize(
    "text",
    [
        '{\n  "name": "settings",\n  "text": "over several lines"\n}\n',
        "{text}\n{more}",
        "[1] A note.\n[2] Another one.",
        '{"a" is no JSON\n',
        '"{"',
        "",
        "{",
    ],
)
def test_running_text_stays(tmp_path: Path, text: str) -> None:
    assert format_of(text.encode()) is None
    documents, report = read(written(tmp_path / "a.txt", f"{text}\nwords".encode()))
    assert [document.text for document in documents] == [f"{text}\nwords"]
    assert report.num_text_files == 1


def test_the_given_format_counts(tmp_path: Path) -> None:
    assert len(read(written(tmp_path / "a.txt", LINES), "text")[0]) == 1
    assert len(read(tmp_path / "a.txt", begins=r"\S")[0]) == 300


@pytest.mark.parametrize("name", ["part-00000", "a.warc.gz", "crawl.txt"])
def test_crawls_under_other_names(tmp_path: Path, name: str) -> None:
    assert [document.text for document in read(written(tmp_path / name, record(1, b"a page")))[0]] == ["a page"]


@pytest.mark.parametrize("name", ["a.warc.wat.gz", "part-00000"])
def test_metadata_of_crawls_are_named(tmp_path: Path, name: str) -> None:
    wat = b"WARC/1.0\r\nWARC-Type: metadata\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}\r\n\r\n"
    with pytest.raises(UserError, match="only metadata of pages"):
        read(written(tmp_path / name, gzip.compress(wat * 3)))


@pytest.mark.parametrize("name", ["a.arc.gz", "part-00000"])
def test_the_older_format_of_crawls_is_named(tmp_path: Path, name: str) -> None:
    arc = b"filedesc://a.arc.gz 0.0.0.0 20080101000000 text/plain 72\n1 0 InternetArchive\nURL IP-address\n"
    with pytest.raises(UserError, match="the older format ARC"):
        read(written(tmp_path / name, gzip.compress(arc)))


def test_parquet_under_another_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "part-00000")
    assert [document.text for document in read(tmp_path / "part-00000")[0]] == ["a", "b"]


def test_chats_under_another_name(tmp_path: Path) -> None:
    chats = [{"instruction": f"Say {number}.", "input": "", "output": str(number)} for number in range(3)]
    for content in (json.dumps(chats, indent=1), "\n".join(map(json.dumps, chats))):
        assert len(read(written(tmp_path / "part-00000", content.encode()), "chat")[0]) == 3


# ---- Arrays of JSON.
RECORDS = [{"id": str(n), "text": 'Größe [{,}] \\ " ' * (n % 7) + "x", "numbers": [n, 1.5e3, None]} for n in range(200)]


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize("begin", ["", "\ufeff", " \n"])
def test_arrays_are_read_in_pieces(
    tmp_path: Path, indent: int | None, piece: int, begin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries are those of the module json, wherever the pieces end."""
    monkeypatch.setattr(jsonl, "_PIECE_CHARACTERS", piece)
    content = begin + json.dumps(RECORDS[:40], indent=indent, ensure_ascii=False) + "\n"
    documents, report = read(written(tmp_path / "a.json", content.encode()))
    assert [(document.id, document.text) for document in documents] == [(r["id"], r["text"]) for r in RECORDS[:40]]
    assert [document.metadata["numbers"] for document in documents] == [r["numbers"] for r in RECORDS[:40]]
    assert not report.num_problems


@pytest.mark.parametrize(
    ("content", "number", "problem"),
    [
        (b'[{"text": "a"}, 3, {"text": "b"}]', 2, "expected a JSON object, found int"),
        (b'[{"text": "a"}, {"text": oops}, {"text": "b"}]', 1, "the rest of the array is left out"),
        (b'[{"text": "a"}, {"text": "b"', 1, "cut off here"),
        (b'[{"text": "a"}, {"text": "\\ud800"}]', 1, "invalid UTF-8"),
        (b'[{"text": "a"}, {"text": "\xff"}]', 1, "invalid UTF-8"),
        (b'[{"text": "a"}] more', 1, "expected the end of the file"),
        (b'[{"text": "a"}, {"n": ' + b"9" * 5000 + b"}]", 1, "unreadable JSON"),
        (b'[{"text": "a"}, ' + b"[" * 100_000, 1, "left out|cut off"),
    ],
)
def test_broken_arrays_are_counted(tmp_path: Path, content: bytes, number: int, problem: str) -> None:
    documents, report = read(written(tmp_path / "a.json", content))
    assert len(documents) == number
    assert report.num_problems == 1
    assert any(each in report.problems[0] for each in problem.split("|"))


@pytest.mark.parametrize("indent", [None, 1])
def test_the_rest_of_a_broken_array_is_not_lines(
    tmp_path: Path, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "_PIECE_CHARACTERS", 64)
    entries = [json.dumps(record, indent=indent) for record in RECORDS[:200]]
    content = "[\n" + ",\n".join([entries[0], '{"text": oops}', *entries[1:]]) + "\n]\n"
    documents, report = read(written(tmp_path / "a.json", content.encode()))
    assert [document.id for document in documents] == [RECORDS[0]["id"]]
    assert report.num_problems == 1


def test_an_empty_array_is_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one document"):
        read(written(tmp_path / "a.json", b"[]"))


# ---- Sources and fields from names.
SEGMENT = "CC-MAIN-20240220211055-20240221001055"


@pytest.mark.parametrize(
    "ending", [".warc", ".warc.gz", ".warc.wet", ".warc.wet.gz", ".wet.gz", ".arc.gz", ".jsonl.txt"]
)
def test_the_shards_of_a_crawl_are_one_source(ending: str) -> None:
    sources = {
        InputFile(f"/x/{SEGMENT}-{number:05d}{ending}", f"{SEGMENT}-{number:05d}{ending}").source for number in range(3)
    }
    assert sources == {SEGMENT}


def test_the_files_of_an_extracted_wiki_are_one_source() -> None:
    assert {InputFile(f"/x/{name}", name).source for name in ("AA/wiki_00", "AB/wiki_99", "AB/wiki_07.bz2")} == {"wiki"}
    assert InputFile("/x/wiki_2024.jsonl", "wiki_2024.jsonl").source == "wiki_2024"


@pytest.mark.parametrize(
    ("header", "language"), [("eng", "en"), ("deu,eng", "de"), ("zho", "zh"), ("kat", "kat"), (None, None), ("", None)]
)
def test_the_language_of_a_crawl_is_read(tmp_path: Path, header: str | None, language: str | None) -> None:
    content = gzip.decompress(record(1, b"some words"))
    if header is not None:
        kind, _, rest = content.partition(b"\r\n")
        content = kind + f"\r\nWARC-Identified-Content-Language: {header}\r\n".encode() + rest
    (document,), _ = read(written(tmp_path / "a.warc", content))
    assert document.language == language
    assert document.metadata.get("languages") == (header or None)


def test_folders_of_hive_give_fields(tmp_path: Path) -> None:
    for language in ("de", "en"):
        folder = tmp_path / "crawl" / "date=2024-01-02" / f"language={language}" / "name=a%2Fb"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"text": [f"A text in {language}."]}), folder / "part-0.parquet")
        written(folder / "b.jsonl", b'{"text": "a", "language": "fr", "date": "own"}\n{"text": "b"}\n')
        written(folder / "c.txt", b"running text")
    documents, _ = read(tmp_path / "crawl")
    assert len(documents) == 8
    for document in documents:
        assert document.source in ("crawl", "b")  # not `language=de`
        assert document.metadata["name"] == "a/b"
        assert document.metadata["date"] == ("own" if document.language == "fr" else "2024-01-02")
    assert {document.language for document in documents} == {"de", "en", "fr"}
    # The same fields, whichever folder the pattern names.
    inner = read(tmp_path / "crawl/date=2024-01-02/language=de/name=*/*.parquet")[0]
    assert (inner[0].language, inner[0].metadata["date"]) == ("de", "2024-01-02")


def test_the_source_may_be_a_folder_of_hive(tmp_path: Path) -> None:
    for source in ("web", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"source={source}").mkdir()
        written(tmp_path / f"source={source}" / "00000.jsonl", b'{"text": "a"}\n{"text": "b", "source": "own"}\n')
    assert [document.source for document in read(tmp_path)[0]] == [tmp_path.name, "own", "web", "own"]


def test_folders_of_hive_change_the_fingerprint(tmp_path: Path) -> None:
    found = []
    for language in ("de", "en"):
        (tmp_path / f"language={language}").mkdir()
        written(tmp_path / f"language={language}" / "a.jsonl", b'{"text": "a"}\n')
        found.append(input_fingerprint(CorpusConfig(paths=(str(tmp_path / f"language={language}" / "*.jsonl"),))))
    assert found[0] != found[1]


# ---- Fields in fields.
NESTED = {"text": "outer", "meta": {"text": "inner", "id": 7, "set": {"name": "Pile-CC"}}, "meta.id": "whole name"}


def test_bytes_in_fields_are_texts(tmp_path: Path) -> None:
    rows = [{"meta": {"body": "é".encode(), "id": b"one"}}, {"meta": {"body": b"\xff", "id": b"two"}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    report = ReadReport()
    config = CorpusConfig(paths=(str(tmp_path / "a.parquet"),), text_field="meta.body", id_field="meta.id")
    assert [(document.id, document.text) for document in read_documents(config, report)] == [("one", "é")]
    assert report.num_invalid_utf8 == 1


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_fields_in_fields(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    if ending == "jsonl":
        written(path, json.dumps(NESTED).encode())
    else:
        pq.write_table(pa.Table.from_pylist([NESTED]), path)
    config = CorpusConfig(paths=(str(path),), text_field="meta.text", source_field="meta.set.name", id_field="meta.id")
    (document,) = read_documents(config, ReadReport())
    assert (document.text, document.source, document.id) == ("inner", "Pile-CC", "whole name")
    assert document.metadata == {"text": "outer", "meta": {"id": 7, "set": {}}}
    config = CorpusConfig(paths=(str(path),), text_field="meta.body")
    with pytest.raises(UserError, match=r"corpus\.text_field|at least one document"):
        list(read_documents(config, ReadReport()))
    config = CorpusConfig(paths=(str(path),), source_field="meta.set.nam")
    with pytest.raises(UserError, match=r"meta\.set"):
        list(read_documents(config, ReadReport()))


def test_the_exception_of_a_damaged_file_is_raised_again() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"text"
        raise OSError("damaged")

    stream = PieceStream(pieces())
    assert stream.read(10) == b"text"
    for _ in range(2):  # the end of the file would say that the rest is complete
        with pytest.raises(OSError, match="damaged"):
            stream.read(10)
