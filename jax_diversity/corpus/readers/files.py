"""The files of a corpus and their bytes: local or remote, plain, .gz, .bz2 or .zst."""

from __future__ import annotations

import dataclasses
import glob
import gzip
import io
import itertools
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

import pyarrow as pa

from jax_diversity.corpus.settings import PYTHON_ENVIRONMENT, CorpusConfig, TextFormat
from jax_diversity.foundation.checks import reads_as_number
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.folders import source_of_file
from jax_diversity.foundation.libraries import missing_driver

MAX_DOCUMENT_BYTES = 2**30
"""Maximum size of a line or a text file. A string of an Arrow column can be only a little longer."""

_PAIR = (".idx", ".bin")
LINKING = "make the .idx of a .ds or .npy file with link_tokens (docs/howto/existing-shards.md)"
"""The advice for files of token ids of other programs."""
_COMPRESSIONS = (".gz", ".bz2", ".zst")
_PART = re.compile(r"[-._]\d{3,}-of-\d{3,}$")
_MAGIC = re.compile(r"[*?\[]")
_NAMES: dict[TextFormat, re.Pattern] = {
    # enwiki-20240101-pages-articles-multistream1.xml-p1p41242; stats.stackexchange.com/Posts.xml.
    "mediawiki": re.compile(r"pages-(?:articles|meta-current).*\.xml(?:-p\d+p\d+)?$", re.IGNORECASE),
    "stack_exchange": re.compile(r"(?:^|-)posts\.xml$", re.IGNORECASE),
    "warc": re.compile(r"\.(?:warc|wet)$", re.IGNORECASE),
    "html": re.compile(r"\.(?:html?|xhtml)$", re.IGNORECASE),
    "latex": re.compile(r"\.tex$", re.IGNORECASE),
    "jsonl": re.compile(r"\.(?:jsonl|ndjson|json)$", re.IGNORECASE),
    "parquet": re.compile(r"\.(?:parquet|pq)$", re.IGNORECASE),
    "csv": re.compile(r"\.(?:csv|tsv)$", re.IGNORECASE),
}


@dataclass(frozen=True)
class InputFile:
    """One file of a corpus. `filesystem` is the fsspec file system of a remote file.

    `name` is the part of the address that is equal in every copy of the corpus: the path below the fixed folders of the
    glob, or the base name. If two files of a corpus would have the same name, all names are paths below the common
    folder.
    """

    address: str
    name: str
    filesystem: Any = None

    @property
    def stem(self) -> str:
        """The base name without endings and without `-00000-of-00512`."""
        return _PART.sub("", self._root) or self._root

    @property
    def _root(self) -> str:
        """The base name without endings."""
        base = without_compression(PurePosixPath(self.name).name)
        return base.removesuffix(PurePosixPath(base).suffix) or base

    @cached_property
    def source(self) -> str:
        """The source of the file's documents, if they do not name one: its name, or its folder for a numbered file."""
        return source_of_file(self._root, self.folder)

    @property
    def folder(self) -> str:
        """The name of the file's folder. It is the source of documents for files with one document each."""
        path = os.path.abspath(self.address) if self.filesystem is None else self.address.partition("://")[2]
        return valid_name(PurePosixPath(path).parent.name) or self.stem

    @property
    def format(self) -> TextFormat:
        """The format that the file's name says; `text` for unknown names."""
        base = PurePosixPath(without_compression(self.name)).name
        for name, pattern in _NAMES.items():
            if pattern.search(base):
                return name
        return "text"

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
    def stream(self) -> Iterator[tuple[io.BufferedReader, io.BufferedReader]]:
        """Yield the stored bytes and the content, decompressed as the file's ending says. Faults are `UserError`s."""
        if self.name.endswith(".7z"):
            raise UserError(
                f"Expected a plain file, .gz, .bz2 or .zst, found the 7z archive {self.address}; unpack it with "
                f"`7z x {PurePosixPath(self.address).name}`, and name the files that it holds."
            )
        with reading_faults(self), self.open() as stored:
            if self.name.endswith(_COMPRESSIONS):
                if not stored.read(1):  # we check this, because the decompressors accept an empty file
                    raise EOFError("no bytes")
                stored.seek(0)
            # A buffer in C splits the lines. GzipFile and pyarrow's stream would run Python code for each line.
            if self.name.endswith(".gz"):
                with gzip.GzipFile(fileobj=stored) as content:
                    yield stored, io.BufferedReader(content, 1 << 18)  # type: ignore[arg-type]
            elif self.name.endswith((".bz2", ".zst")):
                # pyarrow's streams raise an error for a truncated frame and for trailing bytes. The stream of the
                # package zstandard ends without an error, and Python's stream for bz2 ignores trailing bytes.
                kind = "bz2" if self.name.endswith(".bz2") else "zstd"
                with pa.CompressedInputStream(pa.PythonFile(stored, "r"), kind) as content:
                    yield stored, io.BufferedReader(content, 1 << 18)
            else:
                yield stored, stored


@contextmanager
def reading_faults(file: InputFile) -> Iterator[None]:
    """Convert the exceptions of reading a damaged or absent file to a `UserError` that names the file."""
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"Expected a readable file at {file.address}, found: {error.strerror or error}.") from None
    # UnicodeDecodeError comes from names in a Parquet file's schema. Records that are not UTF-8 are counted separately.
    except (EOFError, gzip.BadGzipFile, zlib.error, pa.ArrowException, UnicodeDecodeError, OSError) as error:
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
    found: dict[str, InputFile] = {}
    for pattern in (path for path in config.paths if path != PYTHON_ENVIRONMENT):
        for file in _find_pairs(pattern) if config.format == "megatron" else _find(pattern):
            # A file that two patterns match is read once.
            found.setdefault(os.path.abspath(file.address) if file.filesystem is None else file.address, file)
    return _with_own_names({address: found[address] for address in sorted(found)})


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
    found: list[dict[str, InputFile]] = [{}, {}]
    for file in files:
        path, ending = os.path.splitext(file.address)
        if ending in _PAIR:
            found[_PAIR.index(ending)][path] = file
    if alone := sorted(found[0].keys() ^ found[1].keys()):
        file = (found[0] | found[1])[alone[0]]
        missing = _PAIR[alone[0] in found[0]]
        program = "" if missing == ".bin" else ", or make the .idx of another program's tokens with link_tokens"
        raise UserError(
            f"Expected {alone[0]}{missing} beside {file.address}, found none; a Megatron dataset has both files: copy "
            f"the other one{program} (docs/howto/existing-shards.md)."
        )
    if found[0]:
        return [*found[0].values(), *found[1].values()]
    if reads_as_number(pattern):
        raise UserError(
            f"Expected prefixes of .bin and .idx files in corpus.paths, found the number {pattern} and no "
            f"{pattern}.idx; datasets have no weights here: leave the numbers out, and give the whole list to "
            "`jax-diversity schedule --family source --weights` afterwards (docs/megatron.md)."
        )
    others = any(file.name.endswith((".ds", ".npy")) for file in files)
    advice = LINKING if others else "check corpus.paths"
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
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    return name


def valid_name(name: str) -> str:
    """Return a file's name as text that can be stored. Names on disk may contain any bytes."""
    return os.fsencode(name).decode("utf-8", "replace")
