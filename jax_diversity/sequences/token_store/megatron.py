"""Write and read Megatron's indexed datasets: a `.bin` with raw tokens and an `.idx` with the documents' places.

Little-endian layout of the `.idx`: the magic `MMIDIDX` and two zero bytes, u64 version 1, u8 dtype code, u64 number
of sequences S, u64 length of the document indices (documents + 1); then i32[S] lengths, i64[S] byte offsets in the
`.bin`, i64[documents + 1] document indices, and for multimodal data i8[S] modes, which are skipped. Megatron
calls a stored run of tokens a sequence; a document consists of one or more sequences. This package writes each document
as one sequence.

The byte offsets decide where a sequence is read. So an index may permute, select or repeat the documents of a `.bin`,
and skip a header. Old preprocessors do not write the last document index, S.

If only some tokens count towards the loss, as in chats, a third file, `prefix.loss_mask.npy` (int64), lists them. It
contains the start and end positions of their runs in the `.bin`, in tokens: start, end, start, end ...
A fourth file, `prefix.turns.npy` (int64), then has a row for each turn of a chat: its first place in the `.bin`, in
tokens, and the number of its role; -1 for a chat whose turns are unknown.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Integer

from jax_diversity.foundation.artifacts import atomic_path, read_array, write_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.wording import counted

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
LOSS_MASK = ".loss_mask.npy"
TURNS = ".turns.npy"
_HEADER = struct.Struct("<9sQBQQ")
_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_DTYPES = {code: np.dtype(name) for code, name in _CODES.items()}
LONGEST_DOCUMENT = 2**31 - 1
"""Largest number of tokens of a document."""


class TokenWriter:
    """Write the tokens of documents to `prefix.bin` and `prefix.idx`, one document after another.

    Both files get their names when the block ends without an error. The `.idx` is renamed last, so an `.idx` is always
    complete. Memory: four bytes per document.

    Args:
        prefix: path without `.bin` and `.idx`.
        dtype: token type, one of Megatron's integer types.
        with_chats: whether to write `prefix.loss_mask.npy` and `prefix.turns.npy` too.

    Raises:
        UserError: the format does not have this type, or token ids do not fit the type.

    Example:
        >>> with TokenWriter(Path("tokens/tokens-00000"), np.dtype(np.uint16)) as writer:
        ...     writer.add_document(np.array([17, 4, 256]))
    """

    def __init__(self, prefix: Path, dtype: np.dtype, *, with_chats: bool = False) -> None:
        self.prefix, self.dtype = prefix, np.dtype(dtype).newbyteorder("<")
        type_code(self.dtype)
        self._lengths = array("i")  # grows in place; a list would need an object per document
        self._chats = (array("q"), array("q")) if with_chats else None  # bounds of loss runs; turns
        self._num_tokens = 0
        self._files = ExitStack()
        self._bin: BinaryIO | None = None  # None until the block is entered

    def __enter__(self) -> TokenWriter:
        self.prefix.parent.mkdir(parents=True, exist_ok=True)
        # An ExitStack ends its contexts in reverse order: the .bin is closed and renamed, and then the .idx is renamed.
        self._index_path = self._files.enter_context(atomic_path(_path(self.prefix, ".idx")))
        bin_path = self._files.enter_context(atomic_path(_path(self.prefix, ".bin")))
        self._bin = self._files.enter_context(bin_path.open("wb"))
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:  # both temporary files are removed
            self._files.__exit__(*error)
            return
        if self._chats is not None:  # before the .idx: if the .idx exists, the other files are complete
            loss_bounds, turns = (np.array(part, "<i8") for part in self._chats)
            write_array(_path(self.prefix, LOSS_MASK), loss_bounds)
            write_array(_path(self.prefix, TURNS), turns.reshape(-1, 2))
        lengths = np.frombuffer(self._lengths, np.intc)
        with self._files:  # an error in the index removes both files
            write_index(self._index_path, lengths, self.dtype)

    @property
    def num_documents(self) -> int:
        """Number of documents added so far."""
        return len(self._lengths)

    @property
    def num_tokens(self) -> int:
        """Number of tokens added so far."""
        return self._num_tokens

    def add_document(self, tokens: Integer[np.ndarray, " token"]) -> None:
        """Append one document; it may have no tokens."""
        self.add_documents([tokens])

    def add_documents(
        self,
        documents: Sequence[Integer[np.ndarray, " _"]],
        chats: Sequence[tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]] | None = None,
    ) -> None:
        """Append documents with one conversion and one write for all of them.

        If the writer has `with_chats`, `chats` contains for each document the start and end positions of the runs of
        tokens that count towards the loss, and its turns: where each begins, and the number of its role.
        """
        if (chats is None) != (self._chats is None):
            raise ValueError("Expected chats if and only if the writer was made with_chats.")
        if chats is not None and self._chats is not None:
            bounds, stored_turns = self._chats
            start = self._num_tokens
            for tokens, (runs, turns) in zip(documents, chats, strict=True):
                for begin, end in runs:
                    if bounds and bounds[-1] == start + begin:  # continues the previous run
                        bounds[-1] = start + end
                    elif begin < end:
                        bounds.extend((start + begin, start + end))
                for begin, role in turns:
                    stored_turns.extend((start + begin, role))
                start += len(tokens)
        if documents:
            self.add_runs(np.concatenate(documents), np.array([len(tokens) for tokens in documents], np.int64))

    def add_runs(self, tokens: Integer[np.ndarray, " token"], lengths: Int64[np.ndarray, " document"]) -> None:
        """Append several documents whose tokens are end to end in one array.

        Args:
            tokens: the tokens of all these documents.
            lengths: the number of tokens of each document; the sum is `len(tokens)`.
        """
        if self._bin is None:
            raise ValueError("A TokenWriter can write only inside its `with` block.")
        if lengths.sum() != len(tokens):
            raise ValueError(f"Expected lengths with the sum {len(tokens)}, found {lengths.sum()}.")
        longest = lengths.max(initial=0)
        if longest > LONGEST_DOCUMENT:
            raise UserError(
                f"Expected documents of at most {LONGEST_DOCUMENT} tokens, found {longest}; split the document."
            )
        if tokens.dtype != self.dtype and len(tokens):
            bounds = np.iinfo(self.dtype)
            low, high = int(tokens.min()), int(tokens.max())
            if low < bounds.min or high > bounds.max:
                bad = low if low < bounds.min else high
                raise UserError(f"Expected token ids that fit {self.dtype}, found {bad}; choose a wider token type.")
        # The values were checked above, so this conversion never overflows.
        self._bin.write(np.ascontiguousarray(tokens, self.dtype).data)
        self._lengths.frombytes(lengths.astype(np.intc).tobytes())
        self._num_tokens += len(tokens)


def write_index(path: Path, lengths: Integer[np.ndarray, " document"], dtype: np.dtype, first_byte: int = 0) -> None:
    """Write the `.idx` of documents that are one stored sequence each.

    Args:
        path: the path of the `.idx`.
        lengths: the number of tokens of every document.
        dtype: type of the stored tokens.
        first_byte: where the first document begins in the `.bin`, behind a header.

    Raises:
        UserError: the format does not have this type.
    """
    header = _HEADER.pack(MAGIC, VERSION, type_code(dtype), len(lengths), len(lengths) + 1)
    with path.open("wb") as file:
        file.write(header)
        file.write(lengths.astype("<i4").data)
        file.write((first_byte + run_starts(lengths.astype(np.int64) * dtype.itemsize)[:-1]).astype("<i8").data)
        file.write(np.arange(len(lengths) + 1, dtype="<i8").data)


def type_code(dtype: np.dtype) -> int:
    """Return the code of a token type in an `.idx`; a `UserError` if the format does not have the type."""
    codes = [code for code, token_type in _DTYPES.items() if token_type == dtype and token_type.kind in "iu"]
    if not codes:
        token_type = ", ".join(str(token_type) for token_type in _DTYPES.values() if token_type.kind in "iu")
        raise UserError(f"Expected a token type of .bin files ({token_type}), found {dtype}.")
    return codes[0]


class TokenFile:
    """One pair of `.bin` and `.idx` files, checked when it is opened.

    A pickle contains only the path: the process that unpickles it opens the files again.

    Args:
        prefix: path without `.bin` and `.idx`.

    Attributes:
        dtype: type of the stored tokens.
        begins: where each document begins in the `.bin`, in tokens.
        ends: where each document ends.

    Raises:
        UserError: a file is absent or contradicts itself; the message names the file and the fault.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = Path(prefix)
        index, tokens = _path(self.prefix, ".idx"), _path(self.prefix, ".bin")
        self.dtype, self.begins, self.ends, self._num_stored = _read_index(index, tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenFile, (self.prefix,)

    def __repr__(self) -> str:
        numbers = f"{counted(self.num_documents, 'document')}, {counted(self.num_tokens, 'token')}"
        return f"TokenFile({str(self.prefix)!r}: {numbers} of {self.dtype})"

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.begins)

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens of all documents."""
        return int(self.lengths.sum())

    @property
    def lengths(self) -> Int64[np.ndarray, " document"]:
        """Every document's number of tokens."""
        return self.ends - self.begins

    @property
    def sequence_lengths(self) -> Int64[np.ndarray, " sequence"]:
        """Number of tokens of every stored sequence in Megatron's sense, read from the file.

        They are equal to `lengths`, unless documents consist of several sequences. Megatron's `GPTDataset` treats each
        sequence as a document.
        """
        content = _read_bytes(_path(self.prefix, ".idx"))
        return np.frombuffer(content, "<i4", _HEADER.unpack_from(content)[3], _HEADER.size).astype(np.int64)

    def document(self, document_index: int) -> Integer[np.ndarray, " token"]:
        """One document's tokens, a read-only view of the file; an `IndexError` if there is no such document."""
        if not 0 <= document_index < self.num_documents:
            raise IndexError(f"Expected a document in 0 .. {self.num_documents - 1}, found {document_index}.")
        return self.documents(document_index, document_index + 1)

    def documents(self, first: int, stop: int) -> Integer[np.ndarray, " token"]:
        """The tokens of the documents `first .. stop - 1`, end to end; a view if they are neighbours in the `.bin`."""
        begins, ends = self.begins[first:stop], self.ends[first:stop]
        if not len(begins):
            return np.zeros(0, self.dtype)
        if np.array_equal(begins[1:], ends[:-1]):
            return self.read(slice(begins[0], ends[-1]))
        return self.read(run_positions(begins, ends - begins))

    def read(self, places: slice | Int64[np.ndarray, " token"]) -> Integer[np.ndarray, " token"]:
        """The tokens at these places of the `.bin`.

        Raises:
            UserError: a token is negative: NumPy and JAX would count it from the end of the vocabulary.
        """
        tokens = self.tokens[places]
        if self.dtype.kind == "i" and len(tokens) and (lowest := tokens.min()) < 0:
            raise UserError(
                f"Expected token ids >= 0 in {_path(self.prefix, '.bin')}, found {lowest}; store an id of the "
                "vocabulary in its place."
            )
        return tokens

    @cached_property
    def tokens(self) -> Integer[np.ndarray, " token"]:
        """All of the `.bin`, as a read-only array that is mapped from the file; `read` also checks the ids."""
        if not self._num_stored:
            return np.zeros(0, self.dtype)  # an empty file cannot be mapped
        # We return a plain array: slices of a memmap are memmaps, which are slower to make.
        mapped = np.memmap(_path(self.prefix, ".bin"), self.dtype, mode="r", shape=(self._num_stored,))
        return mapped.view(np.ndarray)

    @property
    def has_loss_mask(self) -> bool:
        """Whether there is a loss mask; without a loss mask all tokens count towards the loss."""
        return _path(self.prefix, LOSS_MASK).exists()

    def loss_mask(self, places: Int64[np.ndarray, " token"]) -> Bool[np.ndarray, " token"]:
        """Whether the tokens at these places of the `.bin` count towards the loss."""
        # Up to a token that counts, there is one more start than ends.
        return (np.searchsorted(self._loss_runs, places, "right") & 1).astype(np.bool_)

    def num_loss_tokens_before(self, places: Int64[np.ndarray, " place"]) -> Int64[np.ndarray, " place"]:
        """For each of these places of the `.bin`: the number of earlier tokens that count towards the loss."""
        behind = np.searchsorted(self._loss_runs, places, "right")
        whole = run_starts(self._loss_runs[1::2] - self._loss_runs[::2])[behind // 2]
        begun = np.concatenate([self._loss_runs, [0]])[behind - 1]  # only used for places inside a run
        return whole + np.where(behind & 1, places - begun, 0)

    @property
    def num_loss_tokens(self) -> int:
        """Number of tokens that count towards the loss, in all documents."""
        return int((self.num_loss_tokens_before(self.ends) - self.num_loss_tokens_before(self.begins)).sum())

    @property
    def turns(self) -> Int64[np.ndarray, "turn 2"]:
        """The turns of all chats: the first place in the `.bin`, and the number of the role; read from the file."""
        if not (path := _path(self.prefix, TURNS)).exists():
            return np.zeros((0, 2), np.int64)
        turns = read_array(path, "tokenize")
        is_sound = turns.ndim == 2 and turns.shape[1] == 2 and turns.dtype == np.int64
        if not is_sound or not (np.diff(turns[:, 0], prepend=-1, append=self._num_stored) > 0).all():
            raise UserError(f"{path} does not contain the turns of {self._num_stored} tokens; tokenize again.")
        return turns

    @cached_property
    def _loss_runs(self) -> Int64[np.ndarray, " bound"]:
        if not self.has_loss_mask:
            return np.array([0, self._num_stored], np.int64)
        bounds = read_array(path := _path(self.prefix, LOSS_MASK), "tokenize")
        is_sound = bounds.ndim == 1 and bounds.dtype == np.int64 and len(bounds) % 2 == 0
        if not is_sound or not (np.diff(bounds, prepend=-1, append=self._num_stored + 1) > 0).all():
            raise UserError(f"{path} is not a loss mask of {self._num_stored} tokens; tokenize again.")
        return bounds


class Turns(NamedTuple):
    """The turns of the chats among some documents, in order.

    Attributes:
        document_index: the chat of each turn.
        offset: where the turn begins in its document, in tokens; 0 for the first turn.
        role: the number of its role; -1 if the turns of the chat are unknown.
    """

    document_index: Int64[np.ndarray, " turn"]
    offset: Int64[np.ndarray, " turn"]
    role: Int64[np.ndarray, " turn"]


class TokenStore:
    """Several token files as one corpus; documents are numbered from the first file to the last.

    Args:
        prefixes: paths without `.bin` and `.idx`.

    Raises:
        UserError: there are no files, or `TokenFile` refuses a file.

    Example:
        >>> store = TokenStore([Path("tokens/tokens-00000"), Path("tokens/tokens-00001")])
        >>> store.document(0)
        array([ 17,   4, 256], dtype=uint16)
    """

    def __init__(self, prefixes: Sequence[str | Path]) -> None:
        if not prefixes:
            raise UserError("Expected at least one pair of .bin and .idx files, found none; tokenize the corpus first.")
        self.files = [TokenFile(Path(prefix)) for prefix in prefixes]
        # The number of the first document of each file, and the number of all documents.
        self.first_documents = run_starts(np.array([file.num_documents for file in self.files], np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStore, ([file.prefix for file in self.files],)

    @property
    def num_documents(self) -> int:
        """Number of documents of all files."""
        return int(self.first_documents[-1])

    @cached_property
    def document_lengths(self) -> Int64[np.ndarray, " document"]:
        """Every document's number of tokens."""
        return np.concatenate([file.lengths for file in self.files])

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all documents."""
        return sum(file.num_tokens for file in self.files)

    @property
    def dtype(self) -> np.dtype:
        """The smallest type that can represent the tokens of all files."""
        return np.result_type(*(file.dtype for file in self.files))

    def document(self, document_index: int) -> Integer[np.ndarray, " token"]:
        """One document's tokens, a read-only view; an `IndexError` if there is no such document."""
        if not 0 <= document_index < self.num_documents:
            raise IndexError(f"Expected a document in 0 .. {self.num_documents - 1}, found {document_index}.")
        # "right": an empty file begins at the same document as the next file, which has the document.
        file_index = int(np.searchsorted(self.first_documents, document_index, "right")) - 1
        return self.files[file_index].document(document_index - int(self.first_documents[file_index]))

    def gather(
        self,
        document_index: Int64[np.ndarray, " run"],
        document_offset: Int64[np.ndarray, " run"],
        length: Int64[np.ndarray, " run"],
    ) -> Integer[np.ndarray, " token"]:
        """Read runs of tokens, end to end, without a Python loop over the runs; a run is a part of a document.

        This needs about 20 bytes of memory per token: read at most a few million tokens at a time.

        Args:
            document_index: the document of every run.
            document_offset: where each run begins in its document, in tokens.
            length: the number of tokens of each run.

        Returns:
            The `length.sum()` tokens, as `dtype`.

        Raises:
            UserError: a run is not inside its document, so the runs belong to other tokens; a token is negative.
        """
        return self._gather(self.dtype, TokenFile.read, document_index, document_offset, length)

    @property
    def has_loss_mask(self) -> bool:
        """Whether the files have loss masks; without loss masks all tokens count towards the loss."""
        return any(file.has_loss_mask for file in self.files)

    @property
    def num_loss_tokens(self) -> int:
        """Number of tokens that count towards the loss, in all documents."""
        return sum(file.num_loss_tokens for file in self.files)

    def loss_mask(
        self,
        document_index: Int64[np.ndarray, " run"],
        document_offset: Int64[np.ndarray, " run"],
        length: Int64[np.ndarray, " run"],
    ) -> Bool[np.ndarray, " token"]:
        """Whether each token of these runs counts towards the loss, in the order of `gather`, which defines runs."""
        return self._gather(np.dtype(np.bool_), TokenFile.loss_mask, document_index, document_offset, length)

    def num_loss_tokens_of(
        self,
        document_index: Int64[np.ndarray, " run"],
        document_offset: Int64[np.ndarray, " run"],
        length: Int64[np.ndarray, " run"],
    ) -> Int64[np.ndarray, " run"]:
        """How many tokens of each run count towards the loss, without reading the tokens; runs as in `gather`."""
        self._check_runs(document_index, document_offset, length)
        counts = np.zeros(len(length), np.int64)
        for file, runs, first in self._runs_of_files(document_index, document_offset):
            counts[runs] = file.num_loss_tokens_before(first + length[runs]) - file.num_loss_tokens_before(first)
        return counts

    @cached_property
    def turns(self) -> Turns:
        """The turns of all chats; empty if no document is a chat."""
        rows = [np.zeros((0, 3), np.int64)]
        for file, first in zip(self.files, self.first_documents, strict=False):
            place, role = file.turns.T
            document = np.searchsorted(file.begins, place, "right") - 1
            rows.append(np.stack([first + document, place - file.begins[document], role], axis=1))
        return Turns(*np.concatenate(rows).T)

    def _gather(
        self,
        dtype: np.dtype,
        take: Callable[[TokenFile, Int64[np.ndarray, " token"]], np.ndarray],
        document_index: Int64[np.ndarray, " run"],
        document_offset: Int64[np.ndarray, " run"],
        length: Int64[np.ndarray, " run"],
    ) -> np.ndarray:
        """Call `take` for each file with the places of the runs' tokens in its `.bin`; results in the runs' order."""
        self._check_runs(document_index, document_offset, length)
        # One index array gathers all runs of a file.
        target = run_starts(length)
        values = np.empty(int(target[-1]), dtype)
        for file, runs, first in self._runs_of_files(document_index, document_offset):
            rows = take(file, run_positions(first, length[runs]))
            if len(runs) == len(length):  # the usual case of one file needs no second copy
                return rows.astype(dtype, copy=False)
            values[run_positions(target[runs], length[runs])] = rows
        return values

    def _runs_of_files(
        self, document_index: Int64[np.ndarray, " run"], document_offset: Int64[np.ndarray, " run"]
    ) -> Iterator[tuple[TokenFile, Int64[np.ndarray, " own"], Int64[np.ndarray, " own"]]]:
        """Yield each file that contains runs, the numbers of these runs, and where they begin in its `.bin`."""
        file_index = np.searchsorted(self.first_documents, document_index, "right") - 1
        for index in np.unique(file_index):
            file, runs = self.files[index], np.flatnonzero(file_index == index)
            yield file, runs, file.begins[document_index[runs] - self.first_documents[index]] + document_offset[runs]

    def _check_runs(
        self,
        document_index: Int64[np.ndarray, " run"],
        document_offset: Int64[np.ndarray, " run"],
        length: Int64[np.ndarray, " run"],
    ) -> None:
        good = (document_index >= 0) & (document_index < self.num_documents) & (document_offset >= 0) & (length >= 0)
        if good.all():
            good = document_offset + length <= self.document_lengths[document_index]
        if not good.all():
            run = int(np.argmin(good))
            begin, number = int(document_offset[run]), int(document_index[run])
            raise UserError(
                f"Expected runs inside the {self.num_documents} stored documents, found tokens {begin} .. "
                f"{begin + int(length[run])} of document {number}; the segments belong to other tokens; pack again."
            )


def count_documents(prefix: Path) -> int:
    """Return the number of documents of a token file, from the header of its `.idx`.

    Raises:
        UserError: the file is absent, or is not an index.
    """
    path = _path(prefix, ".idx")
    try:
        with path.open("rb") as file:
            magic, version, _, _, num_bounds = _HEADER.unpack(file.read(_HEADER.size))
    except OSError as error:
        raise _no_index(path, error) from None
    except struct.error:
        magic, version, num_bounds = b"", 0, 0
    if magic != MAGIC or version != VERSION or not num_bounds:
        raise UserError(f"{path} is not a valid Megatron index; restore the file or tokenize again.")
    return num_bounds - 1


def run_starts(lengths: np.ndarray) -> np.ndarray:
    """Where each of several consecutive runs begins, and where the last run ends."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def run_positions(begin: np.ndarray, length: np.ndarray) -> np.ndarray:
    """`begin[0], begin[0] + 1, ...` for `length[0]` positions, then the positions of the next run, and so on."""
    # `arange` numbers the positions of all runs: a run begins at `ends - length` there, and must begin at `begin`.
    ends = np.cumsum(length)
    return np.repeat(begin - ends + length, length) + np.arange(length.sum())


def _path(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)  # `with_suffix` is wrong here: a prefix may contain a dot


def _read_index(
    index_path: Path, bin_path: Path
) -> tuple[np.dtype, Int64[np.ndarray, " document"], Int64[np.ndarray, " document"], int]:
    """Token type, begins and ends of the documents, and the number of tokens in the `.bin`. The index is checked."""
    content = _read_bytes(index_path)

    def check(good: bool | np.bool_, what: str) -> None:
        if not good:
            raise UserError(f"{index_path} is not a valid Megatron index: {what}; restore the file or tokenize again.")

    check(len(content) >= _HEADER.size, f"expected at least {_HEADER.size} bytes, found {len(content)}")
    magic, version, code, num_runs, num_bounds = _HEADER.unpack_from(content)
    check(magic == MAGIC, f"expected the file to begin with {MAGIC!r}, found {magic!r}")
    check(version == VERSION, f"expected version {VERSION}, found {version}")
    check(code in _DTYPES, f"expected a dtype code of 1 to 8, found {code}")
    dtype = _DTYPES[code]
    check(dtype.kind in "iu", f"expected integer tokens, found {dtype}")
    size = _HEADER.size + 12 * num_runs + 8 * num_bounds
    check(
        len(content) in (size, size + num_runs),  # the second size is with modes
        f"expected {size} bytes for {num_runs} sequences and {num_bounds} document indices, found {len(content)}",
    )
    # The sizes are correct, so no read below goes beyond the content. Lengths are summed in 64 bits.
    lengths = np.frombuffer(content, "<i4", num_runs, _HEADER.size).astype(np.int64)
    offsets = np.frombuffer(content, "<i8", num_runs, _HEADER.size + 4 * num_runs)
    bounds = np.frombuffer(content, "<i8", num_bounds, _HEADER.size + 12 * num_runs)
    check(not num_runs or int(lengths.min()) >= 0, "expected lengths >= 0, found a negative length")
    check(num_bounds > 0 and bounds[0] == 0 and bounds[-1] <= num_runs, f"expected document indices 0 to {num_runs}")
    check((np.diff(bounds) >= 0).all(), "expected document indices in ascending order")
    if bounds[-1] < num_runs:  # an old preprocessor left out the last bound, and no more than this one
        has_one_each = (np.diff(bounds) == 1).all()
        check(not has_one_each or bounds[-1] == num_runs - 1, f"expected document indices 0 to {num_runs}")
        bounds = np.append(bounds, num_runs)
    starts = run_starts(lengths)
    num_tokens, width = int(starts[-1]), dtype.itemsize
    try:
        num_bytes = bin_path.stat().st_size
    except OSError as error:
        raise UserError(f"Expected tokens at {bin_path}, found: {error.strerror}; tokenize the corpus.") from None

    def check_size(good: bool | np.bool_, expected: str) -> None:
        if not good:
            raise UserError(
                f"{bin_path} does not fit its index: expected {expected}, found {num_bytes} bytes; restore the file or "
                "tokenize again."
            )

    num_stored = num_bytes // width
    if np.array_equal(offsets, starts[:-1] * width):  # the usual case: all sequences, end to end
        is_whole = num_bytes == num_tokens * width
        # The first documents of a longer file may be selected. Then their ends are documents' ends.
        is_whole |= num_bytes > num_tokens * width and _end_alike(bin_path, dtype, num_stored, starts[bounds[1:]])
        check_size(is_whole, f"{num_tokens * width} bytes ({num_tokens} tokens of {dtype})")
        return dtype, starts[bounds[:-1]], starts[bounds[1:]], num_stored
    expected = starts[:-1] * width
    run = int(np.argmax(offsets != expected))
    is_other_type = num_tokens and np.array_equal(offsets, starts[:-1] * (num_bytes // num_tokens))
    check(
        not (is_other_type and num_bytes % num_tokens == 0),
        f"expected sequence {run} at byte {expected[run]}, found byte {offsets[run]}",
    )
    uneven = offsets % width != 0
    check(not uneven.any(), f"expected offsets in multiples of {width}, found {offsets[np.argmax(uneven)]}")
    begins = offsets // width
    ends = begins + lengths
    outside = (begins < 0) | (begins > num_stored) | (ends > num_stored)
    run = int(np.argmax(outside))
    check_size(not outside.any(), f"sequence {run} at byte {offsets[run]} ({lengths[run]} tokens of {dtype})")
    check_size(num_bytes % width == 0, f"a multiple of {width} bytes")
    # Sequences may be repeated. Sequences that overlap in part are damaged.
    order = np.lexsort((ends, begins))
    order = order[lengths[order] > 0]
    before, after = order[:-1], order[1:]
    overlaps = (begins[after] < ends[before]) & ((begins[after] != begins[before]) | (ends[after] != ends[before]))
    for pair in np.flatnonzero(overlaps)[:1]:
        run, end = after[pair], ends[before[pair]] * width
        check(False, f"expected sequence {run} at byte {end} or later, found byte {offsets[run]}")
    is_first = np.zeros(num_runs + 1, bool)
    is_first[bounds] = True
    apart = (begins[1:] != ends[:-1]) & ~is_first[1:num_runs]
    run = int(np.argmax(apart)) + 1 if apart.any() else 0
    check(not run, f"expected sequence {run} behind sequence {run - 1} of the same document, found byte {offsets[run]}")
    # An empty document ends where it begins; the last ones may have no sequence.
    document_begins = np.append(begins, ends[-1])[bounds[:-1]]
    document_ends = np.where(np.diff(bounds) > 0, ends[bounds[1:] - 1], document_begins)
    return dtype, document_begins, document_ends, num_stored


def _end_alike(path: Path, dtype: np.dtype, num_stored: int, ends: Int64[np.ndarray, " document"]) -> bool:
    """Whether at least two documents end with the same token, and no document ends with another token."""
    ends = np.unique(ends[ends > 0])
    if len(ends) < 2:
        return False
    last = np.memmap(path, dtype, mode="r", shape=(num_stored,))[ends - 1]
    return bool((last == last[0]).all())


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _no_index(path, error) from None


def _no_index(path: Path, error: OSError) -> UserError:
    prefix = path.with_suffix("")
    if prefix.suffix in (".idx", ".bin"):
        advice = f"give the path of both files without .idx and .bin, {prefix.with_suffix('').name}"
    elif path.is_symlink():
        advice = "the tokens were moved: link them again"
    else:
        advice = "check the prefix, or tokenize the corpus"
    return UserError(f"Expected a token index at {path}, found: {error.strerror}; {advice}.")
