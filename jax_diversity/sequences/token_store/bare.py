"""Find the documents in files of token ids that have no Megatron index.

- datatrove, `NAME.ds`: `NAME.ds.index` has the end of every document in tokens (u64), and the first line of
  `NAME.ds.metadata` ends in `|2` or `|4`, the bytes of a token.
- dolma and OLMo, `NAME.npy`: bytes without NumPy's header, despite the name. The first two columns of `NAME.csv.gz` are
  the begin and the end of every document in tokens.
- nanoGPT, `train.bin`: uint16 or uint32, with a delimiter after every document.
- llm.c and modded-nanogpt, `NAME.bin`: a header of 256 int32 (magic, version, number of tokens), then uint16 or uint32,
  with a delimiter before every document.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64, Integer

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.sequences.token_store.megatron import LONGEST_DOCUMENT, type_code

_NUMPY = b"\x93NUMPY"
_HEADER_BYTES = 1024
_DELIMITERS = {20240520: 50256, 20240801: 128000}
"""The magic numbers of llm.c, and the token before every document: GPT-2's <|endoftext|>, Llama 3's begin of text."""
_TOKENS_PER_BLOCK = 2**22
_FEWEST_TO_RECOGNISE = 64
_LARGEST_HIGH_HALF = 15


@dataclass(frozen=True)
class BareTokens:
    """The tokens of a file, and its documents, which are end to end.

    Attributes:
        path: the file.
        first_byte: where the tokens begin.
        dtype: the type of the tokens. uint32 is read as int32, because ids are below 2^31.
        lengths: the number of tokens of every document.
        start_id: the delimiter, if it begins documents and none ends them.
    """

    path: Path
    first_byte: int
    dtype: np.dtype
    lengths: Int64[np.ndarray, " document"]
    start_id: int | None

    @property
    def tokens(self) -> Integer[np.ndarray, " token"]:
        """All tokens, as a read-only array that is mapped from the file."""
        return _mapped(self.path, self.dtype, self.first_byte)


def find_documents(
    tokens: str | Path,
    *,
    lengths: Any = None,
    dtype: np.typing.DTypeLike | None = None,
    end_id: int | None = None,
    start_id: int | None = None,
) -> BareTokens:
    """Find the documents of a file of token ids, by their lengths, by a delimiter, or by the index beside the file.

    For the arguments and errors see `link_tokens`.
    """
    source = Path(tokens)
    delimiters = {
        name: as_whole_number(name, token, 0, LONGEST_DOCUMENT)
        for name, token in (("end_id", end_id), ("start_id", start_id))
        if token is not None
    }
    if delimiters and lengths is not None:
        raise UserError(
            f"Expected lengths or a delimiter of {source}, found both; leave {' and '.join(delimiters)} out."
        )
    try:
        with source.open("rb") as file:
            beginning = file.read(_HEADER_BYTES)
        num_bytes = source.stat().st_size
    except OSError as error:
        raise UserError(f"Expected a file of tokens at {source}, found: {error.strerror}; check the path.") from None
    if beginning.startswith(_NUMPY):
        raise UserError(
            f"Expected token ids without a header in {source}, as dolma writes them, found NumPy's header; write the "
            f"ids without it, np.load({str(source)!r}).astype(np.uint32).tofile('train.bin'), and give that file and "
            "the token that ends every document (end_id; in a build corpus.end_id) or begins it (start_id)."
        )
    header = _header(source, beginning, num_bytes)
    told_type = None if dtype is None else np.dtype(dtype)
    stored = header.dtype if header is not None else told_type
    if header is not None and told_type is not None and told_type.itemsize != header.dtype.itemsize:
        raise UserError(
            f"Expected the type of {source} that its header and size say, {header.dtype}, found dtype {told_type}; "
            "leave it out."
        )
    first_byte = 0 if header is None else _HEADER_BYTES
    if source.suffix == ".ds" and stored is None:
        stored = _type_of_trove(source)
    by_delimiter = bool(delimiters) or (header is not None and lengths is None)
    if by_delimiter:
        if header is not None and not delimiters:
            delimiters = {"start_id": header.delimiter}
        stored = stored or _recognised_type(source, num_bytes, max(delimiters.values()))
        if (num_bytes - first_byte) % stored.itemsize or num_bytes == first_byte:
            raise UserError(
                f"Expected tokens of {stored.itemsize} bytes in {source}, found {num_bytes - first_byte} bytes; check "
                "the type of the tokens (dtype), or copy the file again."
            )
        document_lengths = None
    else:
        document_lengths = _lengths_beside(source) if lengths is None else np.asarray(lengths)
        if (
            document_lengths.ndim != 1
            or document_lengths.dtype.kind not in "iu"
            or (len(document_lengths) and document_lengths.min() < 0)
        ):
            raise UserError(f"Expected one length >= 0 for every document of {source}, found other values.")
        num_tokens = int(document_lengths.sum(dtype=np.int64))
        if stored is None:  # the number of tokens and the size say the type
            stored = np.dtype(np.uint32 if num_tokens and num_bytes == 4 * num_tokens else np.uint16)
        if num_tokens * stored.itemsize != num_bytes - first_byte:
            raise UserError(
                f"Expected {num_tokens * stored.itemsize} bytes in {source}, {len(document_lengths)} documents of "
                f"{stored}, found {num_bytes - first_byte}; check the type of the tokens (dtype) and the index."
            )
    as_read = np.dtype(np.int32) if stored == np.uint32 else stored
    type_code(as_read)
    values = _mapped(source, as_read, first_byte)
    if document_lengths is None:
        document_lengths = _between(source, values, delimiters, header is not None)
    elif as_read.kind == "i":
        for _, block in _blocks(values):
            _check_ids(source, block)
    if document_lengths.max(initial=0) > LONGEST_DOCUMENT:
        raise UserError(
            f"Expected documents of at most {LONGEST_DOCUMENT} tokens in {source}, found {document_lengths.max()}."
        )
    begun_by = None if "end_id" in delimiters else delimiters.get("start_id")
    return BareTokens(source, first_byte, as_read, document_lengths.astype(np.int64), begun_by)


class _Header(NamedTuple):
    dtype: np.dtype
    delimiter: int


def _header(source: Path, beginning: bytes, num_bytes: int) -> _Header | None:
    """The header of llm.c; None if the file has none."""
    values = np.frombuffer(beginning[: len(beginning) // 4 * 4], "<i4")
    magic = int(values[0]) if len(values) else 0
    if magic not in _DELIMITERS:
        # Three numbers and zeros: the header of a program that we do not know. Its numbers would be read as tokens.
        if len(values) == _HEADER_BYTES // 4 and values[:3].all() and not values[3:].any():
            raise UserError(
                f"Expected the magic number {' or '.join(map(str, _DELIMITERS))} in the header of {source}, found "
                f"{magic}; write the tokens again without the header."
            )
        return None
    rest = num_bytes - _HEADER_BYTES
    if rest < 0:
        raise UserError(f"Expected a header of {_HEADER_BYTES} bytes in {source}, found {num_bytes}; copy it again.")
    num_tokens = int(values[2])
    if num_tokens < 0 or rest not in (2 * num_tokens, 4 * num_tokens):
        raise UserError(
            f"Expected {num_tokens} tokens of 2 or 4 bytes in {source}, as its header says, found {rest} bytes; copy "
            "the file again."
        )
    return _Header(np.dtype(np.uint16 if rest == 2 * num_tokens else np.uint32), _DELIMITERS[magic])


def _recognised_type(source: Path, num_bytes: int, largest_id: int) -> np.dtype:
    """uint32 if the upper halves of the first tokens are nearly zero, otherwise uint16."""
    if largest_id >= 2**16:
        return np.dtype(np.uint32)
    if num_bytes % 4:
        return np.dtype(np.uint16)
    halves = _mapped(source, np.dtype("<u2"), 0)[:_TOKENS_PER_BLOCK].reshape(-1, 2)
    low, high = halves.max(axis=0, initial=0).tolist()
    if not low or high > _LARGEST_HIGH_HALF or (high and low <= _LARGEST_HIGH_HALF):
        return np.dtype(np.uint16)
    if len(halves) < _FEWEST_TO_RECOGNISE:
        raise UserError(
            f"Expected tokens whose type can be recognised in {source}, found {num_bytes} bytes that are uint16 or "
            "uint32; give the dtype."
        )
    return np.dtype(np.uint32)


def _mapped(source: Path, dtype: np.dtype, first_byte: int) -> np.ndarray:
    if source.stat().st_size <= first_byte:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(source, dtype.newbyteorder("<"), mode="r", offset=first_byte).view(np.ndarray)


def _blocks(tokens: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for first in range(0, len(tokens), _TOKENS_PER_BLOCK):
        yield first, tokens[first : first + _TOKENS_PER_BLOCK]


def _check_ids(source: Path, tokens: np.ndarray) -> None:
    if tokens.dtype.kind == "i" and (lowest := tokens.min()) < 0:
        as_unsigned = f" ({2**32 + int(lowest)} as uint32)" if tokens.dtype.itemsize == 4 else ""
        raise UserError(
            f"Expected token ids of 0 to {LONGEST_DOCUMENT} in {source}, found {lowest}{as_unsigned}; store an id of "
            "the vocabulary in its place."
        )


def _between(
    source: Path, tokens: np.ndarray, delimiters: dict[str, int], has_header: bool
) -> Int64[np.ndarray, " document"]:
    """The lengths of the documents that end with `end_id`, begin with `start_id`, or both."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in delimiters}
    for first, block in _blocks(tokens):
        _check_ids(source, block)
        for name, token in delimiters.items():
            parts[name].append(np.flatnonzero(block == token) + first)
    places = {name: np.concatenate(part) for name, part in parts.items()}
    for name, token in delimiters.items():
        if not len(places[name]):
            advice = "give the token between documents: end_id or start_id" if has_header else f"check {name} and dtype"
            raise UserError(
                f"Expected documents with the delimiter {token} in {source}, found none in {len(tokens)} tokens; "
                f"{advice}."
            )
    (name, token), delimiter_places = next(iter(delimiters.items())), next(iter(places.values()))
    is_paired = (
        len(delimiter_places) >= 4
        and len(delimiter_places) % 2 == 0
        and delimiter_places[0] == 0
        and delimiter_places[-1] == len(tokens) - 1
        and np.array_equal(delimiter_places[2::2], delimiter_places[1:-1:2] + 1)
    )
    if len(set(delimiters.values())) < len(delimiters):  # the same token at both ends
        if not is_paired and not (
            len(delimiter_places) == 2 and delimiter_places[0] == 0 and delimiter_places[1] == len(tokens) - 1
        ):
            raise UserError(
                f"Expected {token} at both ends of every document in {source}, found other places; give only end_id or "
                "only start_id."
            )
        return np.diff(delimiter_places)[::2] + 1
    if is_paired:
        raise UserError(
            f"Expected {token} at one end of the documents in {source} ({name}), found it at both ends; give end_id "
            "and start_id."
        )
    bounds = [place + (name == "end_id") for name, place in places.items()]
    return np.diff(np.unique(np.concatenate([[0, len(tokens)], *bounds])))


def _type_of_trove(source: Path) -> np.dtype:
    """The type of a `.ds` file: the metadata has the size of a token, and without metadata it is two bytes."""
    path = source.with_name(f"{source.name}.metadata")
    try:
        size = path.read_text(encoding="utf-8").partition("\n")[0].rpartition("|")[2].strip()
    except FileNotFoundError:
        return np.dtype(np.uint16)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Expected readable metadata at {path}, found: {in_one_line(error)}; give the dtype.") from None
    if size not in ("2", "4"):
        raise UserError(f"Expected a first line that ends in |2 or |4 in {path}, found {size!r}; give the dtype.")
    return np.dtype(np.uint16 if size == "2" else np.uint32)


def _lengths_beside(source: Path) -> Int64[np.ndarray, " document"]:
    """Every document's number of tokens, from the index that the other program wrote."""
    if source.suffix == ".ds":
        path, read = source.with_name(f"{source.name}.index"), _trove_ends
    elif source.suffix == ".npy":
        path, read = source.with_suffix(".csv.gz"), _dolma_ends
    else:
        raise UserError(
            f"Expected a .ds or .npy file, or a delimiter of the documents, found {source}; give the token that ends "
            "every document (end_id; in a build corpus.end_id) or begins it (start_id)."
        )
    try:
        ends = read(path)
    except FileNotFoundError:
        raise UserError(
            f"Expected the documents' places at {path}, found no file; copy it too, or give the token between "
            "documents: end_id or start_id."
        ) from None
    except (OSError, EOFError, zlib.error, csv.Error, ValueError, OverflowError, IndexError) as error:
        raise UserError(f"Expected the documents' places in {path}, found: {in_one_line(error)}.") from None
    return np.diff(ends, prepend=0)


def _trove_ends(path: Path) -> Int64[np.ndarray, " document"]:
    ends = np.frombuffer(path.read_bytes(), "<u8").astype(np.int64)
    if (np.diff(ends, prepend=0) < 0).any():
        raise ValueError("ends that are not in ascending order")
    return ends


def _dolma_ends(path: Path) -> Int64[np.ndarray, " document"]:
    ends, stop = [], 0
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            begin, end = int(row[0]), int(row[1])
            if begin != stop or end < begin:
                raise ValueError(f"a document at {begin} .. {end} after token {stop} (line {number})")
            ends.append(stop := end)
    return np.array(ends, np.int64)
