r"""LaTeX as arXiv distributes it: single files, archives of one paper, archives of papers. Every paper is one document.

Archives are read as a stream from beginning to end. Nothing is unpacked to disk. A name in an archive is never used as
a path on disk.
"""

from __future__ import annotations

import gzip
import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any, Protocol, cast, runtime_checkable

from jax_diversity.foundation.errors import in_one_line
from jax_diversity.foundation.folders import valid_name
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.decoding import codec_of, decoded
from jax_diversity.preparation.readers.files import InputFile
from jax_diversity.preparation.readers.records import Found, Place, Problem, converted
from jax_diversity.schema import Document

MEDIA_TYPE = "text/x-tex"
MAX_UNPACKED_BYTES = 2**28
"""Maximum size of a paper with its figures."""
MAX_TEXT_BYTES = 2**25
"""Maximum size of a paper's LaTeX, and of all text that is read to join its main files with their included files."""

_MAIN_ENDINGS = (".tex", ".ltx", ".latex")
_TEXT_ENDINGS = (*_MAIN_ENDINGS, ".bbl", ".tikz", ".pgf")
# In an archive of papers: hep-th0001001.gz, 0704.0001.gz, paper.tar.gz; but fig1.eps.gz is a paper's figure.
_PAPER = re.compile(r"(?:^|/)[^/.]+(?:\.\d+(?:v\d+)?)?(?:\.tar|\.tex)?\.gz$|\.tgz$|\.tar$", re.IGNORECASE)
_OTHERS = (b"%!PS", b"%PDF", b"%auto-ignore", b"<", b"PK\3\4")  # PostScript, PDF, withdrawn, HTML, Word
_GZIP = b"\x1f\x8b"

_HAS_CLASS = re.compile(r"^[^%\n]*\\document(?:class|style)\b", re.MULTILINE)
_BEGIN, _CLOSE = r"\begin{document}", r"\end{document}"
_END = re.compile(r"^[^%\n]*?\\endinput\b", re.MULTILINE)
# Escapes and comments come first, so that commands inside them do not match.
_INPUT = re.compile(
    r"\\[\\%]|%[^\n]*|\\(?:input|include|subfile|subfileinclude)(?![a-zA-Z@])\s*(?:\{([^{}\n]*)\}|([^\s{}\\%]+))"
    r"|\\(?:sub)?(?:import|includefrom|inputfrom)\*?\s*\{([^{}\n]*)\}\s*\{([^{}\n]*)\}"
)
_MAX_LEVELS = 16
_MAX_MAIN_FILES = 32
_PART_COST = 4096
"""Every inclusion counts as this many characters, besides the characters of its file.

So even endless inclusion of absent or empty files reaches the limit.
"""
_ENCODING = re.compile(
    rb"^[^%\n]{0,500}?(?:\\(?:usepackage|RequirePackage|documentclass)\s{0,9}\[([^\[\]]{0,99})\]\s{0,9}\{[^{}]{0,99}\b(?:inputenc|ctex)"
    rb"|\\inputencoding\s{0,9}\{([\w-]{1,20})\}|\\begin\s{0,9}\{CJK\*?\}\s{0,9}(?:\[[^\[\]]{0,40}\])?\{([\w+-]{1,20})\})",
    re.MULTILINE,
)
_PREAMBLE = 2**16  # bytes of a file in which a declaration is looked for
_ENCODINGS = {
    **{
        f"latin{number}": f"iso-8859-{part}"
        for number, part in zip(range(1, 11), (1, 2, 3, 4, 9, 10, 13, 14, 15, 16), strict=True)
    },
    **{"ansinew": "cp1252", "applemac": "macintosh", "macce": "mac_latin2"},
    **{"maccyr": "x-mac-cyrillic", "8859-8": "iso-8859-8"},
    **{"gb": "gb2312", "bg5": "big5", "bg5+": "big5", "bg5hk": "big5", "gbt": "gb2312"},
    **{"sjis": "shift_jis", "sjisdnp": "shift_jis", "jis": "euc-jp", "jisdnp": "euc-jp", "ks": "euc-kr"},
}
"""Names of the packages `inputenc` and `CJK` that are not labels of encodings."""
_COMMENT = re.compile(r"(?<!\\)%[^\n]*\n?")
_TITLE = re.compile(r"\\title\s*+(?:\[[^\]]{0,300}\])?\s*+\{(.{0,500})", re.DOTALL)


def read_latex(file: InputFile, advance: Advance) -> Found:
    r"""Read a .tex file, plain or compressed, or an archive (.tar, .tar.gz, .gz) of one paper or of many papers.

    The content decides the file type. The text of a paper is its main file with its included files (`\input` and
    similar commands). Papers without LaTeX (such as a single PDF) are counted as records without text.
    """
    with file.stream(advance) as content:
        try:
            yield from _papers(file, _unpacked(content))
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise EOFError(in_one_line(error)) from None


@runtime_checkable
class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _TooLargeError(Exception):
    """A paper exceeds the limits."""


class _Bounded:
    """Content that is read up to a limit. The type of the content is decided by its first bytes."""

    def __init__(self, content: _Readable) -> None:
        self._content, self._block, self._block_start = content, b"", 0
        self.head = self._ahead = content.read(tarfile.BLOCKSIZE)
        self.renew()

    def renew(self) -> None:
        """Reset the limit."""
        self._left = MAX_UNPACKED_BYTES

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes. Only at the end there may be fewer."""
        self._block_start += len(self._block)
        self._block, self._ahead = self._ahead[:size], self._ahead[size:]
        if len(self._block) < size:
            self._block += self._content.read(size - len(self._block))
        self._left -= len(self._block)
        if self._left < 0:
            raise _TooLargeError(f"unpacks to more than {MAX_UNPACKED_BYTES} bytes")
        return self._block

    def is_archive(self) -> bool:
        """Return whether the content begins like an archive."""
        try:
            tarfile.TarInfo.frombuf(self.head, "utf-8", "replace")
        except tarfile.HeaderError:
            return False
        return True

    def members(self) -> Iterator[tuple[str, _Readable]]:
        """Yield the files of an archive. Each file must be read before the next file."""
        with tarfile.open(fileobj=cast(Any, self), mode="r|", encoding="utf-8", errors="replace") as opened:
            archive: Any = opened
            while (member := archive.next()) is not None:
                archive.members.clear()  # without this, `archive` would keep the headers of millions of empty files
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None:
                    yield valid_name(member.name), content
            # An archive ends with an empty block. tarfile also stops at a damaged block.
            start = archive.offset - self._block_start
            if start < 0 or self._block[start : start + tarfile.BLOCKSIZE] != bytes(tarfile.BLOCKSIZE):
                raise EOFError("an archive without its end")


def _unpacked(content: _Readable) -> _Bounded:
    """Return the content; if it is compressed, it is decompressed once."""
    bounded = _Bounded(content)
    if bounded.head.startswith(_GZIP):
        return _Bounded(cast(Any, gzip.GzipFile(fileobj=cast(Any, bounded))))
    return bounded


def _papers(file: InputFile, content: _Bounded) -> Found:
    """Yield the papers of a file: one paper, or the papers of an archive."""
    place, texts, without_text, num_papers = Place(file, None), _Texts(file.folder), list[Place](), 0
    try:
        if not content.is_archive():
            texts.add(file.name, content)
        else:
            for name, member in content.members():
                inner = Place(InputFile(f"{file.address}/{name}", f"{file.name}/{name}", file.filesystem), None)
                if name.lower().endswith(_TEXT_ENDINGS):
                    texts.add(name, member)
                elif _PAPER.search(name):
                    paper = _paper_within(inner, file.folder, member)
                    content.renew()  # an archive of papers may have any size
                    if paper is None:
                        without_text.append(inner)
                    else:
                        num_papers += 1
                        yield inner, paper
                elif name.lower().endswith(".pdf"):
                    without_text.append(inner)
        document = converted(texts.document, place)
    except _TooLargeError as error:
        yield place, Problem("num_broken_records", str(error))
        return
    if document is not None:  # the file is one paper, and the other files in it are its figures
        yield place, document
    elif without_text or not num_papers:
        for inner in without_text or [place]:
            yield inner, Problem("num_without_text", "a paper without LaTeX")


def _paper_within(place: Place, source: str, content: _Readable) -> Document | Problem | None:
    """Read a paper of an archive of papers; None if it has no LaTeX."""
    texts = _Texts(source)
    try:
        unpacked = _unpacked(content)
        if unpacked.is_archive():
            for name, member in unpacked.members():
                if name.lower().endswith(_TEXT_ENDINGS):
                    texts.add(name, member)
        else:
            texts.add("main.tex", unpacked)
    except _TooLargeError as error:
        return Problem("num_broken_records", str(error))
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        return Problem("num_broken_records", f"damaged: {in_one_line(error)}")
    return converted(texts.document, place)


class _Texts(dict[str, str]):
    """The LaTeX files of one paper by name."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source, self._left = source, MAX_TEXT_BYTES
        self._stored: dict[str, bytes] = {}

    def add(self, name: str, content: _Readable) -> None:
        """Read a file. Files of other types, such as PostScript, are left out."""
        stored = content.read(self._left + 1)
        self._take(len(stored))
        if stored.startswith(_OTHERS) or b"\0" in stored:
            return
        self._stored[posixpath.normpath(name)] = stored

    def document(self, place: Place) -> Document | Problem | None:
        r"""Return the paper; None if it has no LaTeX.

        The main file is the file with a `\documentclass` that is longest after its parts are included.
        """
        self._decode()
        try:
            return self._document(place)
        except _TooLargeError as error:
            return Problem("num_broken_records", str(error))

    def _decode(self) -> None:
        r"""Decode the files. One of them declares the encoding of all; without a declaration it is detected."""
        declared: str | None = None
        for name, stored in self._stored.items():
            try:
                text = stored.decode("utf-8-sig")
            except UnicodeDecodeError:
                declared = declared or next(filter(None, map(_declared, self._stored.values())), None)
                text = decoded(stored, declared)
            self[name] = text.replace("\r\n", "\n").replace("\r", "\n")
        self._stored.clear()

    def _document(self, place: Place) -> Document | None:
        names = [name for name in self if name.lower().endswith(_MAIN_ENDINGS)] or list(self)[:1]
        names = [name for name in names if _HAS_CLASS.search(self[name])] or names
        longest = ""
        main = ""
        self._left = MAX_TEXT_BYTES
        for name in sorted(names, key=lambda name: (name.count("/"), name))[:_MAX_MAIN_FILES]:
            text = "".join(self._with_parts(name, ()))
            if len(text) > len(longest):
                main, longest = name, text
        if not main:
            return None
        return Document(
            id=place.name,
            text=longest,
            source=self._source,
            title=_title(longest),
            metadata={"media_type": MEDIA_TYPE, "main_file": main},
        )

    def _with_parts(self, name: str, above: tuple[str, ...]) -> Iterator[str]:
        """Yield the text of a file with its included files, in pieces. A file is never included within itself."""
        text, last = self[name], 0
        self._take(len(text))
        if end := _END.search(text):
            text = text[: end.end() - len(r"\endinput")]
        if above and _BEGIN in text:  # a part that is also a complete LaTeX document
            text = text.partition(_BEGIN)[2].rpartition(_CLOSE)[0]
        above = (*above, name)
        for match in _INPUT.finditer(text):
            part = self._find(match, above)
            if part is not None:
                yield text[last : match.start()]
                yield from self._with_parts(part, above)
                last = match.end()
        yield text[last:]
        if len(above) > 1 and not text.endswith("\n"):
            yield "\n"

    def _find(self, match: re.Match, above: tuple[str, ...]) -> str | None:
        """Return the name of the file that a command includes; None for other matches and files outside the archive."""
        braced, bare, folder, within = match.groups()
        target = (braced or bare or posixpath.join(folder or "", within or "")).strip().strip('"')
        if not target or len(above) >= _MAX_LEVELS:
            return None
        self._take(_PART_COST)
        for base in dict.fromkeys((posixpath.dirname(above[0]), posixpath.dirname(above[-1]), "")):
            path = posixpath.normpath(posixpath.join(base, target))
            for name in (path, f"{path}.tex"):
                if name in self and name not in above:
                    return name
        return None

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _TooLargeError(f"has more than {MAX_TEXT_BYTES} bytes of LaTeX")


def _declared(stored: bytes) -> str | None:
    """Return the label of the encoding that a file declares, other than UTF-8."""
    for match in _ENCODING.finditer(stored[:_PREAMBLE]):
        for name in re.split(rb"[\s,]+", next(filter(None, match.groups()), b"")):
            label = name.decode("ascii", "replace").lower()
            label = _ENCODINGS.get(label, label)
            codec = codec_of(label)
            if codec is not None and not label.startswith("utf"):
                return label
    return None


def _title(text: str) -> str | None:
    """Return the title, in one line, without its notes (`\\thanks`)."""
    match = _TITLE.search(text)
    if match is None:
        return None
    depth, text = 1, _COMMENT.sub("", match[1])
    for place, mark in enumerate(text):
        depth += (mark == "{") - (mark == "}")
        if not depth:
            return " ".join(text[:place].partition(r"\thanks")[0].replace(r"\\", " ").split()) or None
    return None
