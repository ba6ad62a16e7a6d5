"""SentencePiece's .model files: their content, and the two libraries that make token ids with them.

The file is a protocol buffer, `ModelProto` in sentencepiece_model.proto. Field 1 has the pieces (text, score, type).
Field 2 has the settings of the training; in this field, field 47 is the name of the end token. Field 3 has the
normalisation of text; in this field, field 3 is whether a blank (a space) is added before the text. This module reads
the file, so that both libraries get the same bytes and the same end token.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.libraries import optional
from jax_diversity.foundation.protobuf import read_fields
from jax_diversity.sequences.tokenization.base import Tokenizer, find_end_token, find_start_token
from jax_diversity.sequences.tokenization.cutting import blanks
from jax_diversity.sequences.tokenization.tensorflow_text import implementation, import_libraries, sentence_ends
from jax_diversity.sequences.tokenization.tiktoken_files import check_format

# While it merges, a BPE model uses a few hundred bytes per character.
PIECE_CHARACTERS = 2**18
# This is large enough to hide the fixed cost of a call, and small enough that every thread gets work.
_CALL_CHARACTERS = 2**18
# Types of pieces in ModelProto.
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED = 1, 2, 3, 5


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a .model file; the index of a piece is its id, and `name` is the model's name in messages."""

    content: bytes
    pieces: tuple[str, ...]
    types: tuple[int, ...]
    end_token: str
    end_id: int
    adds_blank: bool  # whether the library adds a blank before every text
    name: str
    start_token: str | None = None


def read_model(path: str | Path, end_token: str | None = None, start_token: str | None = None) -> SentencePieceModel:
    """Read a .model file.

    Without `end_token`, documents end with the end token of the training (`eos_piece`), or else with a token of a usual
    name. Without `start_token`, documents have no start token.
    """
    name = str(path)
    check_format(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"Expected a SentencePiece model at {name}, found: {error.strerror}.") from None
    try:
        pieces, types, trained_end, adds_blank = _parse(content)
    except ValueError as error:
        raise UserError(
            f"{name} is not a complete SentencePiece model: {error}; name a .model file of SentencePiece's trainer."
        ) from None
    if end_token is None and trained_end in pieces:
        end_token = trained_end
    end_token = find_end_token(pieces, end_token, name)
    start_token = find_start_token(pieces, start_token, name)
    for place, token in (("end", end_token), ("start", start_token)):
        if token is not None and types[pieces.index(token)] == _UNKNOWN:
            raise UserError(
                f"Expected {'an' if place == 'end' else 'a'} {place} token that no text turns into, found {token!r}, "
                f"which {name} uses for unknown text; name another token in tokenizer.{place}_token."
            )
    end_id = pieces.index(end_token)
    return SentencePieceModel(content, pieces, types, end_token, end_id, adds_blank, name, start_token)


def _parse(content: bytes) -> tuple[tuple[str, ...], tuple[int, ...], str, bool]:
    """Return the pieces, their types, the name of the trained end token, and whether texts get a blank before them."""
    pieces: list[str] = []
    types: list[int] = []
    parts: dict[int, dict[int, int | memoryview]] = {}
    for number, _, value in read_fields(content):
        if number == 1:
            piece = _values(value)
            pieces.append(str(_content(piece.get(1, b"")), "utf-8"))
            types.append(_number(piece.get(3, _NORMAL)))
        elif number in (2, 3):
            parts[number] = _values(value)
    if not pieces:
        raise ValueError("it has no vocabulary")
    if len(parts) < 2:  # a file cut between two fields is a valid protocol buffer
        raise ValueError("it ends after its vocabulary")
    end_token = str(_content(parts[2].get(47, b"</s>")), "utf-8")
    return tuple(pieces), tuple(types), end_token, bool(_number(parts[3].get(3, 1)))


def _values(message: int | memoryview) -> dict[int, int | memoryview]:
    """Return the value of every field of a message; if a field occurs several times, the last value is used."""
    return {number: value for number, _, value in read_fields(_content(message))}


def _content(value: int | bytes | memoryview) -> bytes | memoryview:
    if isinstance(value, int):
        raise ValueError("expected text or a message, found a number")
    return value


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError("expected a number, found text")
    return value


class ModelTokenizer(Tokenizer):
    """The common part of both libraries that read .model files.

    Texts of more than 262,144 characters are encoded in pieces, cut before a blank. If a model adds a blank before
    every text, we remove the blank at the cut. Then the ids are equal to the ids of the whole text, for all models
    whose tokens do not extend over a blank (the default of the trainer). If a text has no such place, the model adds
    the mark of a blank at the cut.
    """

    def __init__(self, model: SentencePieceModel, kind: str, implementation: str, cut_at: str) -> None:
        unknown_id = model.types.index(_UNKNOWN) if _UNKNOWN in model.types else None
        start = model.start_token
        start_id = None if start is None else model.pieces.index(start)
        marks = (model.end_token, model.end_id, unknown_id, implementation, start, start_id)
        super().__init__(kind, len(model.pieces), *marks)
        self.model, self.cut_at = model, cut_at
        # Libraries never turn text into a control or unused piece, so we need not search the ids for tokens of these
        # types.
        self._forbidden = [token for token in self._forbidden if model.types[token] not in (_CONTROL, _UNUSED)]

    @property
    def settings(self) -> dict[str, Any]:
        """The content of `tokenizer.meta.json`, including where long texts are cut."""
        return super().settings | {"cut_at": self.cut_at}

    def save_file(self, folder: Path) -> None:
        """Write the model, which all readers of SentencePiece models accept."""
        with atomic_path(folder / "tokenizer.model") as temporary:
            temporary.write_bytes(self.model.content)

    def _identity(self) -> bytes:
        return b"\0".join([self.kind.encode(), self.end_token.encode(), self.model.content])

    def _cut(self, text: str) -> Iterator[str]:
        cut = sentence_ends if self.cut_at == "sentences" else blanks
        for index, piece in enumerate(cut(text, PIECE_CHARACTERS)):
            # The library adds a blank before every piece: together with the piece's own blank there would be two.
            yield piece[1:] if index and self.model.adds_blank and piece.startswith(" ") else piece

    def _unreadable(self, error: object) -> UserError:
        return UserError(f"{self.model.name} is not a readable SentencePiece model: {in_one_line(error)}.")


class SentencePieceTokenizer(ModelTokenizer):
    """A tokenizer that reads a .model file with the package sentencepiece."""

    def __init__(self, model: SentencePieceModel, num_threads: int | None, cut_at: str) -> None:
        sentencepiece = optional("sentencepiece", "sentencepiece")
        super().__init__(model, "sentencepiece", f"sentencepiece {sentencepiece.__version__}", cut_at)
        self._num_threads = num_threads or -1  # -1: all cores
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model.content)
        except (RuntimeError, ValueError) as error:
            raise self._unreadable(error) from None

    def _encode(self, pieces: list[str], *, marks: bool = False) -> Iterable[np.ndarray]:
        return self._processor.encode(
            pieces, return_type="numpy", num_threads=self._num_threads, add_bos=False, add_eos=False
        )

    def _decode(self, ids: list[int]) -> str:
        return self._processor.decode(ids)


class TensorflowTextTokenizer(ModelTokenizer):
    """A tokenizer that reads a .model file with tensorflow-text's `SentencepieceTokenizer`.

    Its ids are equal to the ids of the package sentencepiece, with one exception. If several ways to cut a word have
    the same score, a unigram model may choose another way. For example, `***` may be `* **` or `** *`.
    """

    def __init__(self, model: SentencePieceModel, num_threads: int | None, cut_at: str) -> None:
        tensorflow, text = import_libraries()
        super().__init__(model, "tensorflow-text", implementation(), cut_at)
        self._tensorflow = tensorflow
        self._num_threads = num_threads or len(os.sched_getaffinity(0))
        try:
            self._library = text.SentencepieceTokenizer(model=model.content, out_type=tensorflow.int32)
            self._library.tokenize(["a"])  # the model is not read before the first call
        except tensorflow.errors.OpError as error:
            raise self._unreadable(error.message) from None

    def _encode(self, pieces: list[str], *, marks: bool = False) -> Iterator[np.ndarray]:
        # One call encodes the pieces that begin in the same `_CALL_CHARACTERS` characters.
        starts = accumulate(map(len, pieces), initial=0)
        groups = groupby(zip(starts, pieces, strict=False), lambda start: start[0] // _CALL_CHARACTERS)
        calls = [[piece for _, piece in group] for _, group in groups]
        # The library encodes the texts of a call one after another, but several calls can run at the same time.
        with ThreadPoolExecutor(self._num_threads) as threads:
            for values, splits in threads.map(self._call, calls):
                yield from (values[splits[i] : splits[i + 1]] for i in range(len(splits) - 1))

    def _call(self, pieces: list[str]) -> tuple[Integer[np.ndarray, " token"], Int64[np.ndarray, " boundary"]]:
        ragged = self._library.tokenize(pieces)
        return ragged.values.numpy(), ragged.row_splits.numpy()

    def _decode(self, ids: list[int]) -> str:
        if not ids:
            return ""
        text = self._library.detokenize(self._tensorflow.constant(ids, self._tensorflow.int32))
        return text.numpy().decode()
