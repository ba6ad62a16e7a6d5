"""The files of a corpus and their bytes: local or remote, plain or compressed."""

from __future__ import annotations

import codecs
import dataclasses
import glob
import io
import itertools
import json
import lzma
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from jax_diversity.foundation.checks import reads_as_number
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.folders import source_of_file, valid_name
from jax_diversity.foundation.libraries import missing_driver
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.preparation.readers.compression import COMPRESSED, PieceStream, archive_error, decompressed
from jax_diversity.preparation.settings import PYTHON_ENVIRONMENT, CorpusConfig, TextFormat

MAX_DOCUMENT_BYTES = 2**30
"""Maximum size of a line or a text file. A string of an Arrow column can be only a little longer."""

_PAIR = (".idx", ".bin")
LINKING = "set corpus.format=tokens, or make the .idx of a token file with link_tokens (docs/howto/existing-shards.md)"
"""The advice for files of token ids of other programs."""
_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "dev", "eval"))
_PART = re.compile(r"[-._]\d{3,}-of-\d{3,}$")
_MAGIC = re.compile(r"[*?\[]")
_ENDING_BEFORE = re.compile(r"\.(?:warc|arc|jsonl|ndjson|json)$", re.IGNORECASE)
_PARTITION, _NO_VALUE = re.compile(r"(\w[\w.-]*)=(.+)"), "__HIVE_DEFAULT_PARTITION__"
_NAMES: dict[TextFormat, re.Pattern] = {
    # enwiki-20240101-pages-articles-multistream1.xml-p1p41242; stats.stackexchange.com/Posts.xml.
    "mediawiki": re.compile(r"pages-(?:articles|meta-current).*\.xml(?:-p\d+p\d+)?$", re.IGNORECASE),
    "stack_exchange": re.compile(r"(?:^|-)posts\.xml$", re.IGNORECASE),
    "warc": re.compile(r"\.(?:w?arc|wet|wat)$", re.IGNORECASE),
    "html": re.compile(r"\.(?:html?|xhtml)$", re.IGNORECASE),
    "latex": re.compile(r"\.tex$", re.IGNORECASE),
    "jsonl": re.compile(r"\.(?:jsonl|jsonlines|ndjson|json)$", re.IGNORECASE),
    "parquet": re.compile(r"\.(?:parquet|pq)$", re.IGNORECASE),
    "csv": re.compile(r"\.(?:csv|tsv)$", re.IGNORECASE),
}


_OBJECT = re.compile(rb'(?:\xef\xbb\xbf)?\s*+(?:\[\s*+)?\{\s*+"(?:[^"\\\n]|\\.){0,200}"\s*+:\s*+["\[{\dtfn-]')
"""The beginning of JSON Lines, or of an array of objects."""
_READ_BYTES = 1 << 13
LOOKED_AT = 1 << 16
"""Number of bytes of a file in which its format is recognised."""


_WIDE_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def _reported(stored: io.BufferedReader, advance: Advance) -> Iterator[bytes]:
    """Yield the stored bytes, and report their numbers."""
    while piece := stored.read(_READ_BYTES):
        advance(len(piece))
        yield piece


def _recoded(content: io.BufferedReader, encoding: str) -> Iterator[bytes]:
    """Yield text in UTF-16 or UTF-32 as UTF-8. Programs on Windows often write tables and JSON Lines in them."""
    for text in codecs.iterdecode(iter(lambda: content.read(LOOKED_AT), b""), encoding, "replace"):
        yield text.encode("utf-8", "replace")


class OtherFormat(Exception):
    """The content of a file without a known name is not running text."""

    def __init__(self, format: TextFormat) -> None:
        super().__init__(format)
        self.format: TextFormat = format


def format_of(content: bytes) -> TextFormat | None:
    """Return the format of a file whose name does not say it, by its first bytes; None for running text.

    Example:
        >>> format_of(b'{"text": "a"}\\n{"text": "b"}\\n'), format_of(b"{a}")
        ('jsonl', None)
    """
    if content.startswith((b"WARC/", b"filedesc://")):
        return "warc"
    if content.startswith(b"PAR1"):
        return "parquet"
    content = content[:LOOKED_AT]
    if not _OBJECT.match(content):
        return None
    # An object over several lines is a file of settings. The first line may be longer than what is looked at.
    line, is_whole, _ = content.lstrip(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    if line.startswith(b"[") or not is_whole:
        return "jsonl"
    try:
        return "jsonl" if isinstance(json.loads(line), dict) else None
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class InputFile:
    """One file of a corpus. `filesystem` is the fsspec file system of a remote file.

    `name` is the part of the address that is equal in every copy of the corpus: the path below the fixed folders of the
    glob, or the base name. If two files of a corpus would have the same name, all names are paths below the common
    folder. `is_split` says that the name is that of a split, in several folders, and therefore not the source.
    """

    address: str
    name: str
    filesystem: Any = None
    is_split: bool = False

    @property
    def stem(self) -> str:
        """The base name without endings and without `-00000-of-00512`."""
        return _PART.sub("", self._root) or self._root

    @property
    def _root(self) -> str:
        """The base name without endings."""
        base = without_compression(PurePosixPath(self.name).name)
        root = base.removesuffix(PurePosixPath(base).suffix) or base
        return _ENDING_BEFORE.sub("", root) or root  # of `.warc.wet` and `.jsonl.txt`

    @cached_property
    def source(self) -> str:
        """The source of the file's documents, if they do not name one: its name, or its folder if the name is a number.

        `web/train.bin` and `code/train.bin` are the sources `web` and `code`.
        """
        return source_of_file("" if self.is_split else self._root, self.folder)

    @property
    def folder(self) -> str:
        """The name of the file's folder. It is the source of documents for files with one document each."""
        folders = (name for name in reversed(self._folders) if not _PARTITION.fullmatch(name))
        return valid_name(next(folders, "")) or self.stem

    @property
    def _folders(self) -> Sequence[str]:
        path = os.path.abspath(self.address) if self.filesystem is None else self.address.partition("://")[2]
        return PurePosixPath(path).parent.parts

    @cached_property
    def partitions(self) -> dict[str, str]:
        """The fields that the names of the file's folders give, such as `language=de` (partitions of Hive)."""
        partitions = itertools.takewhile(bool, map(_PARTITION.fullmatch, reversed(self._folders)))
        return {match[1]: unquote(match[2]) for match in reversed([*partitions]) if match and match[2] != _NO_VALUE}

    @cached_property
    def format(self) -> TextFormat:
        """The format that the file's name says; `text` for unknown names."""
        base = PurePosixPath(without_compression(self.name)).name
        for name, pattern in _NAMES.items():
            if pattern.search(base):
                return name
        return "text"

    @property
    def format_of_content(self) -> TextFormat:
        """The format that the name says; for unknown names, the format of the content."""
        if self.format != "text":
            return self.format
        with self.stream() as content:
            return format_of(content.read(LOOKED_AT)) or "text"

    @property
    def stores_array_records(self) -> bool:
        """Whether the file has the name of an ArrayRecord file."""
        return _PART.sub("", PurePosixPath(self.name).name).endswith((".array_record", ".arrayrecord"))

    def open(self) -> io.BufferedReader:
        """Open the file's stored bytes."""
        if self.filesystem is None:
            # Opening a named pipe waits for another program.
            if stat.S_ISFIFO(os.stat(self.address).st_mode):
                raise OSError("a named pipe")
            return open(self.address, "rb")
        return io.BufferedReader(self.filesystem.open(self.address, "rb"))

    @property
    def plain(self) -> list[str]:
        """The address and the name, from which `of_plain` makes the file again."""
        return [self.address, self.name]

    @classmethod
    def of_plain(cls, plain: Sequence[str]) -> InputFile:
        """Make a file from the result of `plain`."""
        address, name = plain
        if "://" not in address and "::" not in address:
            return cls(address, name)
        import fsspec

        return cls(address, name, fsspec.core.url_to_fs(address)[0])

    def stamp(self) -> Any:
        """A value that changes when the file is written or replaced; None for a file on another machine."""
        if self.filesystem is not None:
            return None
        status = os.stat(self.address)
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino

    def size(self) -> int:
        """Number of stored bytes."""
        if self.filesystem is None:
            return os.stat(self.address).st_size
        return int(self.filesystem.size(self.address) or 0)  # some servers return None

    @contextmanager
    def stream(self, advance: Advance = ignore, by_member: bool = False) -> Iterator[io.BufferedReader]:
        """Yield the content: decompressed, and in UTF-8 if it has the mark of UTF-16 or UTF-32.

        `advance` gets the numbers of stored bytes that were read. With `by_member`, damaged members of gzip are left
        out (`GzipMembers`). Other faults are `UserError`s.
        """
        with reading_faults(self), self.open() as file:
            stored = io.BufferedReader(PieceStream(_reported(file, advance)), _READ_BYTES)
            if error := archive_error(stored.peek(), self.address, PurePosixPath(self.address).name):
                raise error
            with decompressed(stored, self.name, by_member) as content:  # type: ignore[arg-type]
                begin = content.peek(4)[:4]
                encoding = next((name for mark, name in _WIDE_MARKS.items() if begin.startswith(mark)), None)
                yield io.BufferedReader(PieceStream(_recoded(content, encoding))) if encoding else content


@contextmanager
def reading_faults(file: InputFile) -> Iterator[None]:
    """Convert the exceptions of reading a damaged or absent file to a `UserError` that names the file."""
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"Expected a readable file at {file.address}, found: {error.strerror or error}.") from None
    # UnicodeDecodeError comes from names in a Parquet file's schema. Records that are not UTF-8 are counted separately.
    except (EOFError, zlib.error, lzma.LZMAError, pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise UserError(
            f"{file.address} is cut off, damaged or not what its name says ({in_one_line(error)}); "
            "fetch it again, or rename it to its format."
        ) from None


def local_path(file: InputFile) -> Path:
    """Return the path of a file; a `UserError` if the file is not on this machine."""
    if file.filesystem is not None:
        raise UserError(
            f"Expected Megatron and ArrayRecord files on this machine, found {file.address}; copy them first."
        )
    return Path(file.address)


def find_files(config: CorpusConfig) -> list[InputFile]:
    """Find all files of `config.paths`. Each file is returned once, sorted by address."""
    files: dict[str, InputFile] = {}
    for pattern in (path for path in config.paths if path != PYTHON_ENVIRONMENT):
        for file in _find_pairs(pattern) if config.format == "megatron" else _find(pattern):
            # A file that two patterns match is read once.
            files.setdefault(os.path.abspath(file.address) if file.filesystem is None else file.address, file)
    return _with_splits(_with_own_names({address: files[address] for address in sorted(files)}))


def _find(pattern: str) -> list[InputFile]:
    """Return the files of a path, a glob or a folder; a `UserError` if there are none."""
    files = _matches(pattern)
    if not files:
        raise UserError(f"Expected files at {pattern}, found none; check corpus.paths.")
    return files


def _find_pairs(pattern: str) -> list[InputFile]:
    """Return the .idx and .bin files of Megatron prefixes: a prefix, one of its files, a folder, or a glob of these."""
    prefix = pattern.removesuffix(".idx").removesuffix(".bin")
    files = [*_matches(f"{prefix}.idx"), *_matches(f"{prefix}.bin")]
    # A folder beside files of the same name is not meant; `tokens/*` means prefixes and folders.
    if not _is_remote(pattern) and (not files or _MAGIC.search(pattern)):
        files += find_local(pattern)
    pairs: list[dict[str, InputFile]] = [{}, {}]
    for file in files:
        path, ending = os.path.splitext(file.address)
        if ending in _PAIR:
            pairs[_PAIR.index(ending)][path] = file
    if alone := sorted(pairs[0].keys() ^ pairs[1].keys()):
        file = (pairs[0] | pairs[1])[alone[0]]
        missing = _PAIR[alone[0] in pairs[0]]
        program = "" if missing == ".bin" else ", or make the .idx of another program's tokens with link_tokens"
        raise UserError(
            f"Expected {alone[0]}{missing} beside {file.address}, found none; a Megatron dataset has both files: copy "
            f"the other one{program} (docs/howto/existing-shards.md)."
        )
    if pairs[0]:
        return [*pairs[0].values(), *pairs[1].values()]
    if reads_as_number(pattern):
        raise UserError(
            f"Expected prefixes of .bin and .idx files in corpus.paths, found the number {pattern} and no "
            f"{pattern}.idx; datasets have no weights here: leave the numbers out, and give the whole list to "
            "`jax-diversity schedule --family source --weights` afterwards (docs/megatron.md)."
        )
    is_other_format = any(file.name.endswith((".ds", ".npy")) for file in files)
    advice = LINKING if is_other_format else "check corpus.paths"
    raise UserError(f"Expected .idx and .bin files at {pattern}, found none; {advice}.")


def _matches(pattern: str) -> list[InputFile]:
    """Return the files of a path, a glob or a folder; the list may be empty."""
    return _find_remote(pattern) if _is_remote(pattern) else find_local(pattern)


def _is_remote(pattern: str) -> bool:
    return "://" in pattern or "::" in pattern


def _with_own_names(files: dict[str, InputFile]) -> list[InputFile]:
    """Give the files different names, because the ids of documents contain these names."""
    if len({file.name for file in files.values()}) == len(files):
        return list(files.values())
    parts = [address.split("/") for address in files]
    folders = zip(*(path[:-1] for path in parts), strict=False)
    num_common = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, folders))
    return [
        dataclasses.replace(file, name=valid_name("/".join(path[num_common:])))
        for file, path in zip(files.values(), parts, strict=True)
    ]


def _with_splits(files: list[InputFile]) -> list[InputFile]:
    """Mark files in several folders whose name is that of a split, such as `web/train.bin` and `code/train.bin`."""
    folders: dict[str, set[str]] = {}
    splits = [source_of_file(file._root, "").lower() for file in files]
    for file, split in zip(files, splits, strict=True):
        folders.setdefault(split, set()).add(file.folder)
    return [
        dataclasses.replace(file, is_split=True) if split in _SPLITS and len(folders[split]) > 1 else file
        for file, split in zip(files, splits, strict=True)
    ]


def find_local(pattern: str) -> list[InputFile]:
    """Return the files of a path, a glob or a folder on this machine; the list may be empty."""
    path = os.path.expanduser(pattern)
    if os.path.isfile(path):
        return [InputFile(path, valid_name(os.path.basename(path)))]
    if os.path.isdir(path):
        if os.path.isfile(os.path.join(path, "manifest.json")):
            raise UserError(
                f"Expected files of a corpus, found the dataset {pattern}; name its documents, as in "
                f"'{path.rstrip('/')}/documents/*.parquet'."
            )
        root, path = path, os.path.join(glob.escape(path), "**")
    else:
        root = _fixed_folder(path)
    # The root is not part of names, so that the same files in another folder have the same names.
    matches = []
    for match in glob.glob(path, recursive=True):
        # A glob matches folders, too: all their files, as if a shell had given their names. A dataset is left out.
        is_folder = os.path.isdir(match) and not os.path.isfile(os.path.join(match, "manifest.json"))
        inner = glob.glob(os.path.join(glob.escape(match), "**"), recursive=True) if is_folder else [match]
        matches += filter(os.path.isfile, inner)
    matches = list(dict.fromkeys(matches))
    return [InputFile(match, valid_name(Path(os.path.relpath(match, root or ".")).as_posix())) for match in matches]


def _find_remote(pattern: str) -> list[InputFile]:
    import fsspec

    protocol = pattern.partition("://")[0].rpartition("::")[2]
    try:
        filesystem, path = fsspec.core.url_to_fs(pattern)
        is_folder = not _MAGIC.search(path) and filesystem.isdir(path)
        root = path.rstrip("/") if is_folder else _fixed_folder(path)
        matches = filesystem.find(root) if is_folder else filesystem.glob(path) if _MAGIC.search(path) else [path]
        matches = [match for match in matches if filesystem.isfile(match)]
        if is_folder:  # as on this machine, without hidden files
            matches = [match for match in matches if "/." not in match.removeprefix(root)]
    except ImportError as error:
        raise missing_driver(protocol, error) from None
    except ValueError as error:
        raise UserError(f"Expected an address that fsspec supports, found {pattern}: {error}.") from None
    except Exception as error:  # every driver has its own exceptions
        raise UserError(f"Could not list {pattern}: {in_one_line(error)}.") from None
    return [
        InputFile(filesystem.unstrip_protocol(match), match.removeprefix(root).lstrip("/"), filesystem)
        for match in matches
    ]


def _fixed_folder(pattern: str) -> str:
    """Return the folder of a path; for a glob, the folder before its first wildcard."""
    return (_MAGIC.split(pattern, maxsplit=1)[0]).rpartition("/")[0]


def without_compression(name: str) -> str:
    """Return a file's name without the ending of its compression."""
    lowered = name.lower()
    return next((name[: -len(ending)] for ending in COMPRESSED if lowered.endswith(ending)), name)
