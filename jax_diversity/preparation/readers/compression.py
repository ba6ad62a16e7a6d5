"""Decompress streams of bytes. The content decides the compression; the name only says that there must be one."""

from __future__ import annotations

import gzip
import io
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import zstandard

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.warned import warn

COMPRESSED = (".gz", ".gzip", ".bz2", ".bzip2", ".zst", ".zstd", ".xz", ".lz4")
"""The endings of compressed files."""
_BEGINNINGS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "lz4",
}
_OF_BZIP2 = (b"1AY&SY", b"\x17rE8P\x90")
"""The bytes after `BZh` and a digit: a block, or the end. Other texts may begin with the letters."""
_ARCHIVES = {b"7z\xbc\xaf\x27\x1c": "7z", b"PK\x03\x04": "zip", b"Rar!\x1a\x07": "rar"}
_UNPACK = {"7z": "7z x", "zip": "unzip", "rar": "unrar x"}
_MOST_BYTES = 12
_PIECE_BYTES, _BUFFER_BYTES = 1 << 13, 1 << 18
# Frames of zstd (RFC 8878). Bytes that are left out have one of 16 marks; those of ArchiveTeam hold a dictionary.
_FRAME = b"\x28\xb5\x2f\xfd"
_LARGEST_DICTIONARY = 2**27
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


@contextmanager
def decompressed(stored: io.BufferedReader, name: str) -> Iterator[io.BufferedReader]:
    """Yield the content of stored bytes.

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
        with gzip.GzipFile(fileobj=stored) as content:
            yield io.BufferedReader(content, _BUFFER_BYTES)  # type: ignore[arg-type]
    elif kind == "xz":
        with lzma.LZMAFile(stored) as content:
            yield io.BufferedReader(content, _BUFFER_BYTES)  # type: ignore[arg-type]
    elif kind == "zstd":
        yield io.BufferedReader(_ZstdFrames(stored, name), _BUFFER_BYTES)
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


class _ZstdFrames(io.RawIOBase):
    """The content of frames of zstd, with windows up to 2 GiB, and with the dictionary of the first frame.

    pyarrow's stream refuses windows above 128 MiB and knows no dictionaries. The package's own stream ends without an
    error at a truncated frame.
    """

    def __init__(self, stored: io.BufferedReader, name: str) -> None:
        self._stored, self._name = stored, name
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._ready = memoryview(b"")
        self._rest = b""
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while not len(self._ready):
                frame = self._frame = self._frame or self._begun()
                if frame is None:
                    return 0
                piece = self._rest or self._stored.read(_PIECE_BYTES)
                if not piece:
                    raise EOFError("it ends within a frame")
                self._ready, self._rest = memoryview(frame.decompress(piece)), b""
                if frame.eof:
                    self._frame, self._rest = None, frame.unused_data
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        number = min(len(buffer), len(self._ready))
        buffer[:number] = self._ready[:number]
        self._ready = self._ready[number:]
        return number

    def _begun(self) -> zstandard.ZstdDecompressionObj | None:
        """Begin the next frame; return None if there is none."""
        while True:
            head = self._rest = self._take(18)
            if not head:
                return None
            if not _is_skipped(head):
                break
            size = int.from_bytes(head[4:8], "little")
            self._rest = head[8:]
            taken = self._take(size)
            content, self._rest = taken[:size], taken[size:]
            if len(content) < size or len(head) < 8:
                raise EOFError("it ends within a frame")
            if int.from_bytes(head[:4], "little") == _DICTIONARY:
                if content.startswith(_FRAME):
                    content = self._decompressor.decompress(content, max_output_size=_LARGEST_DICTIONARY)
                dictionary = zstandard.ZstdCompressionDict(content)
                self._decompressor = zstandard.ZstdDecompressor(dictionary, max_window_size=_LARGEST_WINDOW)
        window = zstandard.get_frame_parameters(head).window_size
        if _USUAL_WINDOW < window <= _LARGEST_WINDOW:
            warn(
                f"To read {self._name}, {window / 2**20:,.0f} MiB of memory are needed: it was made with a long window."
            )
        return self._decompressor.decompressobj()

    def _take(self, number: int) -> bytes:
        """Return the next bytes, at least `number` if there are so many."""
        if len(self._rest) < number:
            self._rest += self._stored.read(number - len(self._rest))
        return self._rest
