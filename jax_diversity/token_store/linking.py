"""Read tokens that datatrove, dolma or OLMo stored, where they are.

The token files of these programs contain what a `.bin` contains: token ids, end to end, little-endian. Only the index
differs. So we write an `.idx`, and the `.bin` is a symbolic link to the file.

- datatrove, `NAME.ds`: `NAME.ds.index` has the end of every document in tokens (u64), and the first line of
  `NAME.ds.metadata` ends in `|2` or `|4`, the bytes of a token.
- dolma and OLMo, `NAME.npy`: bytes without NumPy's header, despite the name. The first two columns of `NAME.csv.gz` are
  the begin and the end of every document in tokens.
"""

from __future__ import annotations

import csv
import gzip
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.folders import make_folder
from jax_diversity.token_store.megatron import LONGEST_DOCUMENT, TokenFile, write_index

_NUMPY = b"\x93NUMPY"


def link_tokens(
    tokens: str | Path, prefix: str | Path, *, lengths: Any = None, dtype: np.typing.DTypeLike | None = None
) -> TokenFile:
    """Make `prefix.idx` for the tokens of another program, and `prefix.bin`, a link to them; no token is copied.

    Args:
        tokens: a file of token ids, such as `00000_unshuffled.ds` or `part-0-00000.npy`.
        prefix: path of the new files, without `.bin` and `.idx`. Files that a call with these tokens made are replaced.
        lengths: the number of tokens of every document. None reads the index beside a `.ds` or `.npy` file.
        dtype: the type of the stored ids. None means the type in the metadata of a `.ds` file, otherwise uint16. uint32
            is stored as int32 in the index, because the format has no uint32: ids must be below 2^31.

    Returns:
        The tokens as documents, checked.

    Raises:
        UserError: a file is absent or damaged; lengths or a type that do not fit the size of the file; a type that
            Megatron does not have; a `.npy` file with NumPy's header; a prefix that other files have.

    Example:
        >>> link_tokens("web/00000_unshuffled.ds", "linked/web/00000_unshuffled").num_documents
        357
    """
    source, prefix = Path(tokens), Path(prefix)
    if prefix.suffix in (".idx", ".bin"):
        raise UserError(f"Expected a prefix without .idx and .bin, found {prefix}; both files get it.")
    try:
        with source.open("rb") as file:
            beginning = file.read(len(_NUMPY))
        num_bytes = source.stat().st_size
    except OSError as error:
        raise UserError(f"Expected a file of tokens at {source}, found: {error.strerror}; check the path.") from None
    if beginning == _NUMPY:
        raise UserError(
            f"Expected token ids without a header in {source}, as dolma writes them, found NumPy's header; load the "
            "array with np.load, and store it with jax_diversity.token_store.megatron.TokenWriter."
        )
    if dtype is None:
        dtype = _type_of_trove(source) if source.suffix == ".ds" else np.uint16
    found = _lengths_beside(source) if lengths is None else np.asarray(lengths)
    if found.ndim != 1 or found.dtype.kind not in "iu" or (len(found) and found.min() < 0):
        raise UserError(f"Expected one length >= 0 for every document of {source}, found other values.")
    if found.max(initial=0) > LONGEST_DOCUMENT:
        raise UserError(f"Expected documents of at most {LONGEST_DOCUMENT} tokens in {source}, found {found.max()}.")
    stored = np.dtype(dtype)
    expected = int(found.sum(dtype=np.int64)) * stored.itemsize
    if expected != num_bytes:
        raise UserError(
            f"Expected {expected} bytes in {source}, {len(found)} documents of {stored}, found {num_bytes}; check the "
            "type of the tokens (dtype) and the index."
        )
    make_folder(prefix.parent)
    with atomic_path(prefix.with_name(f"{prefix.name}.idx")) as path:
        write_index(path, found.astype(np.int64), np.dtype(np.int32) if stored == np.uint32 else stored)
        _link(source, prefix.with_name(f"{prefix.name}.bin"))
    return TokenFile(prefix)


def _link(source: Path, link: Path) -> None:
    target = os.path.relpath(source.resolve(), link.parent.resolve())  # both may move together
    if link.is_symlink() and os.readlink(link) == target:
        return
    try:
        link.symlink_to(target)
    except FileExistsError:
        raise UserError(f"Expected no other tokens at {link}, found a file; choose another prefix.") from None
    except OSError as error:
        raise UserError(f"Expected a folder that can have links, found {link}: {error.strerror}.") from None


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
        raise UserError(f"Expected a .ds or .npy file, or lengths of the documents, found {source}; give the lengths.")
    try:
        ends = read(path)
    except FileNotFoundError:
        raise UserError(
            f"Expected the documents' places at {path}, found no file; copy it too, or give the lengths."
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
