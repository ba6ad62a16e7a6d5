"""SentencePiece's .model files: the vocabulary and the few settings that decide how texts may be cut.

The file is a protocol buffer, `ModelProto` in sentencepiece_model.proto: field 1 the pieces (text, score, type),
field 2 how it was trained (its field 47 the end token's name), field 3 how text is normalised (its field 3 whether
a blank is put before it). Both libraries that read such files get the same bytes and the same end token, and a
damaged file is found here, with one sentence, before either library meets it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.protobuf import read_fields
from jax_diversity.tokenization.base import usual_end_token

FILE_NAME = "tokenizer.model"
UNKNOWN, CONTROL, UNUSED = 2, 3, 5
_NORMAL = 1


@dataclass(frozen=True)
class SentencePieceModel:
    """What a .model file says.

    Attributes:
        content: its bytes.
        pieces: the vocabulary; a piece's place is its id.
        types: every piece's type, such as `CONTROL`: a token that text never turns into.
        end_token: the end-of-document token.
        adds_blank: whether a blank is put before every text.
        name: what messages call it.
    """

    content: bytes
    pieces: tuple[str, ...]
    types: tuple[int, ...]
    end_token: str
    adds_blank: bool
    name: str

    @property
    def end_id(self) -> int:
        """The end token's id."""
        return self.pieces.index(self.end_token)

    @property
    def unknown_id(self) -> int | None:
        """The id of text that the vocabulary cannot write."""
        return self.types.index(UNKNOWN) if UNKNOWN in self.types else None

    @property
    def end_may_be_text(self) -> bool:
        """Whether the end token's letters in a text may turn into it."""
        return self.types[self.end_id] not in (CONTROL, UNUSED)

    def fingerprint(self, library: str) -> str:
        """Hash of the file, the end token and the library that reads it."""
        return hashlib.sha256(b"\0".join([library.encode(), self.end_token.encode(), self.content])).hexdigest()


def read_model(path: str | Path, end_token: str | None = None) -> SentencePieceModel:
    """Read a .model file.

    Args:
        path: the file.
        end_token: its end-of-document token; None takes the one that it was trained with (`eos_piece`), or else one
            of the usual names.

    Raises:
        UserError: no such file, no model in it, a part of one, no such token, an end token that unknown text
            becomes.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"Expected a SentencePiece model at {path}, found: {error.strerror}.") from None
    try:
        pieces, types, trained_end, adds_blank = _parse(content)
    except ValueError as error:
        raise UserError(
            f"{path} is no whole SentencePiece model: {error}; name a .model file that SentencePiece's trainer wrote."
        ) from None
    model_end = _end_token(pieces, types, end_token, trained_end, str(path))
    return SentencePieceModel(content, pieces, types, model_end, adds_blank, str(path))


def _end_token(pieces: tuple[str, ...], types: tuple[int, ...], wanted: str | None, trained: str, name: str) -> str:
    if wanted is None:
        found = trained if trained in pieces else usual_end_token(pieces, name)
    elif wanted in pieces:
        found = wanted
    else:
        raise UserError(
            f"Expected the end token {wanted!r} in {name}, found no such token among its {len(pieces)}; "
            "name one of them in tokenizer.end_token."
        )
    if types[pieces.index(found)] == UNKNOWN:
        raise UserError(
            f"Expected an end token that no text turns into, found {found!r}, which {name} writes for unknown "
            "text; name another one in tokenizer.end_token."
        )
    return found


def _parse(content: bytes) -> tuple[tuple[str, ...], tuple[int, ...], str, bool]:
    """Pieces, their types, the trained end token's name, whether a blank is put before texts.

    Raises:
        ValueError: not a whole model.
    """
    pieces: list[str] = []
    types: list[int] = []
    parts: dict[int, dict[int, int | memoryview]] = {}
    for number, _, value in read_fields(content):
        if number == 1:
            piece = _values(value)
            pieces.append(_text(piece.get(1, b"")))
            types.append(_number(piece.get(3, _NORMAL)))
        elif number in (2, 3):
            parts[number] = _values(value)
    if not pieces:
        raise ValueError("it has no vocabulary")
    if len(parts) < 2:
        raise ValueError("it ends after its vocabulary")
    end_token = _text(parts[2].get(47, b"</s>"))
    return tuple(pieces), tuple(types), end_token, bool(_number(parts[3].get(3, 1)))


def _values(message: int | memoryview) -> dict[int, int | memoryview]:
    """The last value of every field of a message."""
    if isinstance(message, int):
        raise ValueError("a number stands where a message is expected")
    return {number: value for number, _, value in read_fields(message)}


def _text(value: int | bytes | memoryview) -> str:
    if isinstance(value, int):
        raise ValueError("a number stands where text is expected")
    return str(value, "utf-8")


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError("text stands where a number is expected")
    return value
