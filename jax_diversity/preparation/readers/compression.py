"""Decompress streams of bytes. The content decides the compression; the name only says that there must be one."""

from __future__ import annotations

import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import zstandard

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.warned import warn

COMPRESSED = (".gz", ".gzip", ".bz2", ".bzip2", ".zst", ".zstd", ".xz", ".lzma", ".lz4")
"""The endings of compressed files."""
_BEGINNINGS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"\x5d\0\0": "xz",  # .lzma, its older form
    b"\x04\x22\x4d\x18": "lz4",
}
_OF_BZIP2 = (b"1AY&SY", b"\x17rE8P\x90")
"""The bytes after `BZh` and a digit: a block, or the end. Other texts may begin with the letters."""
_ARCHIVES = {b"7z\xbc\xaf\x27\x1c": "7z", b"PK\x03\x04": "zip", b"Rar!\x1a\x07": "rar"}
_UNPACK = {"7z": "7z x", "zip": "unzip", "rar": "unrar x"}
_CONTAINERS = {
    b"ARROW1\0": ("an Arrow file", "save the table as Parquet"),
    b"\xff\xff\xff\xff": ("an Arrow stream", "save the data set as Parquet, as `to_parquet` of datasets does"),
    b"Obj\x01": ("an Avro file", "convert it to Parquet or JSON Lines"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("a file of Microsoft Office", "save it as text or HTML"),
    b"{\\rtf": ("Rich Text Format", "save it as text or HTML"),
}
_TAR, _TAR_PLACE = b"ustar", 257
_MOST_BYTES = 12
_PIECE_BYTES, _BUFFER_BYTES = 1 << 13, 1 << 18
# Frames of zstd (RFC 8878). Bytes that are left out have one of 16 marks; those of ArchiveTeam hold a dictionary.
_FRAME = b"\x28\xb5\x2f\xfd"
_LONGEST_HEAD, _LARGEST_DICTIONARY = 18, 2**27
_SKIPPED, _DICTIONARY = 0x184D2A50, 0x184D2A5D
_LARGEST_WINDOW, _USUAL_WINDOW = 2**31, 2**27


def archive_error(beginning: bytes, address: str, name: str) -> UserError | None:
    """Return the error for an archive of several files; None for other content."""
    kind = next((kind for mark, kind in _ARCHIVES.items() if beginning.startswith(mark)), None)
    if kind is None:
        return None
    return UserError(
        f"Expected a plain file, .gz, .bz2, .zst, .xz or .lz4, found the {kind} archive {address}; unpack it with "
        f"`{_UNPACK[kind]} {name}`, and name the files that it holds."
    )


def container_error(content: bytes, address: str, name: str) -> UserError | None:
    """Return the error for an unsupported container format, such as a .tar; None for other content."""
    kind, advice = next((container for mark, container in _CONTAINERS.items() if content.startswith(mark)), ("", ""))
    if content[_TAR_PLACE : _TAR_PLACE + len(_TAR)] == _TAR and b"\0" in content[:_TAR_PLACE]:
        kind, advice = "a tar archive", f"unpack it with `tar xf {name}`, and name the files that it holds"
    return UserError(f"Expected text in {address}, found {kind}; {advice}.") if kind else None


@contextmanager
def decompressed(stored: io.BufferedReader, name: str, by_member: bool = False) -> Iterator[io.BufferedReader]:
    """Yield the content of stored bytes; with `by_member`, that of gzip without damaged members.

    Raises:
        EOFError: the file is empty or cut off.
        OSError: the file has the name of a compressed file, and other content; or it is damaged.
    """
    beginning = stored.peek(_MOST_BYTES)[:_MOST_BYTES]
    kind = _compression(beginning)
    if kind is None:
        if name.lower().endswith(COMPRESSED):
            raise OSError("it is not compressed") if beginning else EOFError("no bytes")
        yield stored
    # A buffer in C splits the lines. The streams would run Python code for each line.
    elif kind == "gzip":
        with GzipMembers(stored) if by_member else gzip.GzipFile(fileobj=stored) as content:
            yield io.BufferedReader(content, _BUFFER_BYTES)  # type: ignore[arg-type]
    elif kind == "xz":
        with lzma.LZMAFile(stored) as content:
            yield io.BufferedReader(content, _BUFFER_BYTES)  # type: ignore[arg-type]
    elif kind == "zstd":
        yield io.BufferedReader(PieceStream(_zstd_frames(stored, name)), _BUFFER_BYTES)
    else:
        # pyarrow's streams raise an error for a truncated frame and for trailing bytes. Python's stream for bz2 ignores
        # trailing bytes.
        with pa.CompressedInputStream(pa.PythonFile(stored, "r"), kind) as content:
            yield io.BufferedReader(content, _BUFFER_BYTES)


def _compression(beginning: bytes) -> str | None:
    if _is_skipped(beginning):
        return "zstd"
    kind = next((kind for mark, kind in _BEGINNINGS.items() if beginning.startswith(mark)), None)
    if kind == "bz2" and not beginning[4:].startswith(_OF_BZIP2):
        return None
    return kind


def _is_skipped(beginning: bytes) -> bool:
    return len(beginning) >= 4 and int.from_bytes(beginning[:4], "little") & ~0xF == _SKIPPED


class PieceStream(io.RawIOBase):
    """The bytes of pieces that an iterator yields. An exception of the iterator is raised again by every later read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._ready = pieces, memoryview(b"")
        self._exception: Exception | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, and return the number of bytes; 0 at the end."""
        while not len(self._ready):
            if self._exception is not None:  # the iterator has ended, so the next read would see the end of the file
                raise self._exception
            try:
                piece = next(self._pieces, None)
            except Exception as exception:
                self._exception = exception
                raise
            if piece is None:
                return 0
            self._ready = memoryview(piece)
        number = min(len(buffer), len(self._ready))
        buffer[:number], self._ready = self._ready[:number], self._ready[number:]
        return number


def _zstd_frames(stored: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield the content of frames of zstd, with windows up to 2 GiB, and with the dictionary of the first frame.

    pyarrow's stream refuses windows above 128 MiB and knows no dictionaries. The package's own stream ends without an
    error at a truncated frame.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    rest = b""

    def taken(number: int) -> bytes:
        """Return the next bytes, at least `number` if there are so many."""
        return rest + stored.read(max(number - len(rest), 0))

    try:
        while rest := taken(_LONGEST_HEAD):
            if _is_skipped(rest):
                size = 8 + int.from_bytes(rest[4:8], "little")
                if len(rest) < 8:
                    raise EOFError("it ends within a frame")
                rest = taken(size)
                mark, content, rest = rest[:4], rest[8:size], rest[size:]
                if len(content) < size - 8:
                    raise EOFError("it ends within a frame")
                if int.from_bytes(mark, "little") == _DICTIONARY:
                    if content.startswith(_FRAME):
                        content = decompressor.decompress(content, max_output_size=_LARGEST_DICTIONARY)
                    dictionary = zstandard.ZstdCompressionDict(content)
                    decompressor = zstandard.ZstdDecompressor(dictionary, max_window_size=_LARGEST_WINDOW)
                continue
            window = zstandard.get_frame_parameters(rest).window_size
            if _USUAL_WINDOW < window <= _LARGEST_WINDOW:
                warn(f"To read {name}, {window / 2**20:,.0f} MiB of memory are needed: it was made with a long window.")
            frame = decompressor.decompressobj()
            while not frame.eof:
                if not (piece := rest or stored.read(_PIECE_BYTES)):
                    raise EOFError("it ends within a frame")
                yield frame.decompress(piece)
                rest = b""
            rest = frame.unused_data
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from None


_MEMBER = re.compile(b"\x1f\x8b\x08")
_LONGEST_HELD = 2**24


class GzipMembers(PieceStream):
    """The content of gzip's members, without damaged members.

    A crawl has one member for each record. Members of at most 16 MiB are returned only after their checksum was
    verified.

    Attributes:
        num_damaged: the number of places at which members were left out.
    """

    def __init__(self, stored: io.BufferedReader) -> None:
        super().__init__(self._members())
        self._stored, self.num_damaged = stored, 0

    def _members(self) -> Iterator[bytes]:
        rest = b""
        while rest := self._without_padding(rest):
            stream, unchecked, size, compressed = zlib.decompressobj(zlib.MAX_WBITS | 16), list[bytes](), 0, [rest]
            is_whole = is_given = False
            try:
                while not is_whole:
                    unchecked.append(stream.decompress(rest))
                    size += len(unchecked[-1])
                    is_whole, rest = stream.eof, stream.unused_data
                    if size > _LONGEST_HELD or is_whole:
                        yield from unchecked
                        unchecked, is_given = [], True
                    if not is_whole:
                        rest = self._stored.read(_PIECE_BYTES)
                        compressed += [] if is_given else [rest]
                        if not rest:
                            yield from unchecked
                            raise EOFError("it ends within a member of gzip")
            except zlib.error as error:
                if is_given:
                    raise OSError(str(error)) from None
                rest = self._next_member(b"".join(compressed))
                if not rest:  # a file may be one member, so what was read of the last one is returned
                    yield from unchecked
                    raise OSError(str(error)) from None
                self.num_damaged += 1

    def _without_padding(self, content: bytes) -> bytes:
        """Return the content, or what follows in the file, without the zero bytes at its beginning."""
        while not (content := content.lstrip(b"\0")):
            content = self._stored.read(_PIECE_BYTES)
            if not content:
                break
        return content

    def _next_member(self, content: bytes) -> bytes:
        """Return the content from the next member on."""
        start = 1
        while not (member := _MEMBER.search(content, start)):
            more = self._stored.read(_PIECE_BYTES)
            if not more:
                return b""
            content, start = content[-2:] + more, 0
        return content[member.start() :]
