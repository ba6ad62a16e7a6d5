"""The common part of tokenizers of all libraries: from text to token ids with an end token, and back.

A document may also have a start token, as in Megatron and Llama.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer

from jax_diversity.foundation.artifacts import write_json
from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.tokenization import tensorflow_text
from jax_diversity.sequences.tokenization.cutting import batches, lines_and_blanks
from jax_diversity.sequences.tokenization.settings import AddedTokens

SETTINGS_NAME = "tokenizer.meta.json"
# Names in the order in which we look for them, because a vocabulary may have several. Tokens that are used only for the
# end of documents come first.
USUAL_END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<|end▁of▁sentence|>",
    "<\uff5cend▁of▁sentence\uff5c>",  # DeepSeek's, with full-width bars
    "<EOS>",
    "[EOS]",
    "[SEP]",
)
_MAX_VOCAB_SIZE = 2**31
_MOST_KEPT, _LONGEST_KEPT = 4096, 1000  # parts of templates whose ids are kept, and their characters
_MAX_UINT16_VOCAB = 65_500


class Tokenizer:
    """Turns documents into token ids and back; made by `make_tokenizer` and `load_saved`.

    Long texts are encoded in pieces. No text turns into the start or the end token. Texts may be converted to a Unicode
    normal form first. A subclass encodes pieces (`_encode`), decodes ids (`_decode`), writes its file (`save_file`),
    and returns the bytes that determine its ids (`_identity`). It may also define where to cut texts (`_cut`).

    Attributes:
        kind: the setting that determines how `load_saved` reads the tokenizer's file.
        vocab_size: the number of ids; all ids are below it.
        end_id: the token that ends every document and occurs nowhere else in it.
        end_token: the name of the end token in the vocabulary.
        start_id: the token that starts every document and occurs nowhere else in it; None if there is no start token.
        start_token: the name of the start token in the vocabulary.
        unknown_id: the token for text that the vocabulary cannot represent; None if it can represent all text.
        dtype: the type that ids are stored in.
        implementation: the library that makes the ids, with its version, such as `tokenizers 0.23.1`.
        normalization: the Unicode normal form of the texts, or `none`.
        added_tokens: whether the names of added tokens in texts stay text or become these tokens.
    """

    def __init__(
        self,
        kind: str,
        vocab_size: int,
        end_token: str,
        end_id: int,
        unknown_id: int | None,
        implementation: str,
        start_token: str | None = None,
        start_id: int | None = None,
    ) -> None:
        if start_id == end_id:
            raise UserError(
                f"Expected a start token that is not the end token {end_token!r}, found the same; name another token "
                "in tokenizer.start_token, or none."
            )
        self.kind = kind
        self.vocab_size, self.dtype = vocab_size, token_dtype(vocab_size)
        self.end_token, self.end_id = end_token, end_id
        self.start_token, self.start_id = start_token, start_id
        self.unknown_id, self.implementation = unknown_id, implementation
        self.normalization = "none"
        self.added_tokens: AddedTokens = "text"
        self._markup: dict[str, np.ndarray] = {}
        self._start = np.array([] if start_id is None else [start_id], self.dtype)
        self._end = np.array([end_id], self.dtype)
        # Ids that text must not become. A subclass may list fewer ids, so that fewer searches are needed.
        self._forbidden = [token for token in (start_id, end_id) if token is not None]

    def with_normalization(self, form: str) -> Tokenizer:
        """Return the same tokenizer, but it first normalises texts by tensorflow-text; `none` changes nothing."""
        if form == "none":
            return self
        other = copy.copy(self)  # both use the library's tokenizer, which no call changes
        other.normalization = form
        other.implementation = f"{self.implementation} after {form} by {tensorflow_text.implementation()}"
        return other

    @property
    def fingerprint(self) -> str:
        """Hash of everything that determines the ids, except the version of the library."""
        form = "" if self.normalization == "none" else f"-{self.normalization}"
        start = b"" if self.start_token is None else b"\0start " + self.start_token.encode()
        return hashlib.sha256(self._identity() + start).hexdigest() + form

    @property
    def settings(self) -> dict[str, Any]:
        """The content of `tokenizer.meta.json`: the values that `load_saved` needs besides the tokenizer's file."""
        names = ("kind", "end_token", "implementation", "normalization")
        start = {} if self.start_token is None else {"start_token": self.start_token}
        added = {} if self.added_tokens == "text" else {"added_tokens": self.added_tokens}
        return {name: getattr(self, name) for name in names} | start | added

    def encode_documents(self, texts: Sequence[str]) -> list[Integer[np.ndarray, " _"]]:
        """Encode every text; its tokens end with `end_id` and begin with `start_id` if there is a start token.

        Texts longer than a piece are cut at the beginning of a word, so memory stays a small multiple of a piece. The
        ids are equal to the ids of the whole text; the docstring of each subclass has the exceptions.

        Args:
            texts: valid text (no lone surrogates).

        Returns:
            One array of `dtype` for each text.

        Raises:
            UserError: the start or the end token also encodes other text.
        """
        return [tokens for tokens, _ in self.encode_parts([[(text, False)] for text in texts])]

    def encode_parts(
        self, documents: Sequence[Sequence[tuple[str, bool]]]
    ) -> list[tuple[Integer[np.ndarray, " _"], list[int]]]:
        """Encode documents in parts, as in `encode_documents`; also return the number of tokens of each part.

        Every part is normalised and encoded separately, so no token extends over the end of a part. If the tokenizer
        adds a prefix to each text (such as "▁"), it adds the prefix to each part. Start and end tokens belong to no
        part.

        Args:
            documents: parts of text, each with whether it is markup, such as the markers of a chat template. In markup,
                the names of special tokens become special tokens. In other text they do not.
        """
        encoded = self._encode_texts([text for parts in documents for text, is_markup in parts if not is_markup])
        tokens: list[tuple[np.ndarray, list[int]]] = []
        for parts in documents:
            pieces = [self._encode_markup(text) if is_markup else next(encoded) for text, is_markup in parts]
            # We copy the ids once. Libraries give int32 or int64; we convert to `dtype` in the same step. `dtype` can
            # represent all ids below `vocab_size`.
            arrays = (self._start, *(ids for of_part in pieces for ids in of_part), self._end)
            document = np.concatenate(arrays, dtype=self.dtype, casting="unsafe")
            tokens.append((document, [sum(map(len, of_part)) for of_part in pieces]))
        return tokens

    def _encode_markup(self, text: str) -> list[np.ndarray]:
        # A template has only a few different short parts, so we keep their ids. A list of tools is long.
        if (ids := self._markup.get(text)) is None:
            (ids,) = self._encode([text], marks=True)
            if len(text) <= _LONGEST_KEPT and len(self._markup) < _MOST_KEPT:
                self._markup[text] = ids
        return [ids]

    def _encode_texts(self, texts: Sequence[str]) -> Iterator[list[np.ndarray]]:
        """Yield the ids of the pieces of every text, without start and end tokens."""
        if self.normalization != "none":
            texts = tensorflow_text.normalize_texts(texts, self.normalization)
        ids_of_pieces: list[np.ndarray] = []
        for batch in batches(texts, self._cut):
            pieces = [piece for piece, _ in batch]
            for piece, ids, (_, is_last) in zip(pieces, self._encode(pieces), batch, strict=True):
                # We search in the ids, because only the library defines which texts become these tokens.
                if any((ids == token).any() for token in self._forbidden):
                    ids = self._encode_halved(piece)
                ids_of_pieces.append(ids)
                if is_last:
                    yield ids_of_pieces
                    ids_of_pieces = []

    def decode(self, ids: Integer[np.ndarray, " token"] | Sequence[int]) -> str:
        """Decode token ids to text, without start and end tokens.

        The text stays normalised; half a character becomes U+FFFD.

        Raises:
            UserError: an id is not in the vocabulary.
        """
        ids = np.asarray(ids, np.int64)
        if len(ids) and (ids.min() < 0 or ids.max() >= self.vocab_size):
            bad = ids[(ids < 0) | (ids >= self.vocab_size)][0]
            raise UserError(f"Expected token ids of 0 .. {self.vocab_size - 1}, found {bad}.")
        return self._decode(ids[~np.isin(ids, [*self._start, *self._end])].tolist())

    def save(self, folder: Path) -> None:
        """Write the files that `load_saved` reads: the tokenizer's own file, then `tokenizer.meta.json`."""
        self.save_file(folder)
        # This file is written last, so it exists only if the whole tokenizer was written.
        write_json(folder / SETTINGS_NAME, self.settings)

    def count_names(self, text: str) -> int:
        """Count the names of added tokens in a text, which stay text."""
        return 0

    # ---- Methods that a subclass defines; `_cut` has a default.
    def save_file(self, folder: Path) -> None:
        """Write only the tokenizer's file, in a format that other programs can read."""
        raise NotImplementedError

    def _identity(self) -> bytes:
        """Return the bytes that determine the ids, for the fingerprint."""
        raise NotImplementedError

    def _encode(self, pieces: list[str], *, marks: bool = False) -> Iterable[np.ndarray]:
        """Encode every piece, without start and end tokens; with `marks`, names of special tokens become these tokens.

        A library that never turns text into special tokens ignores `marks`.
        """
        raise NotImplementedError

    def _decode(self, ids: list[int]) -> str:
        """Decode ids, which contain neither the start nor the end token."""
        raise NotImplementedError

    def _cut(self, text: str) -> Iterator[str]:
        """Yield the pieces of a text, which are encoded separately."""
        return lines_and_blanks(text)

    def _encode_halved(self, piece: str) -> np.ndarray:
        """Encode text that contains the name of the start or the end token: the name is cut into two halves."""
        names = [name for name in (self.start_token, self.end_token) if name is not None]
        matches = re.finditer("|".join(map(re.escape, names)), piece)
        # "a</s>b" becomes "a</" and "s>b". The halves are encoded separately, so they do not become the token.
        cuts = [0, *((match.start() + match.end()) // 2 for match in matches), len(piece)]
        halves = [piece[start:stop] for start, stop in pairwise(cuts)]
        ids = np.concatenate([*self._encode(halves)])
        for place, name, token in (("start", self.start_token, self.start_id), ("end", self.end_token, self.end_id)):
            if token is not None and (ids == token).any():
                raise UserError(
                    f"Expected {'a' if place == 'start' else 'an'} {place} token that no text turns into, found "
                    f"{name!r}; name another token in tokenizer.{place}_token."
                )
        return ids


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the stored type of tokens, as in Megatron: uint16 for fewer than 65,500 ids, otherwise int32."""
    if not 1 <= vocab_size <= _MAX_VOCAB_SIZE:
        raise UserError(
            f"Expected a vocabulary of 1 to {_MAX_VOCAB_SIZE} ids, the range of int32 tokens, found {vocab_size}; "
            "use another tokenizer."
        )
    return np.dtype(np.uint16 if vocab_size < _MAX_UINT16_VOCAB else np.int32)


def find_end_token(vocabulary: Iterable[str], wanted: str | None, name: str) -> str:
    """Find the end-of-document token of a vocabulary: the `wanted` token, or the first usual name in the vocabulary.

    `name` is the tokenizer's name in error messages.
    """
    tokens = set(vocabulary)
    if wanted is not None:
        return _in_vocabulary("end", wanted, tokens, name)
    for token in USUAL_END_TOKENS:
        if token in tokens:
            return token
    raise UserError(
        f"Expected an end token in {name}, found none of {', '.join(USUAL_END_TOKENS)}; name it in tokenizer.end_token."
    )


def find_start_token(vocabulary: Iterable[str], wanted: str | None, name: str) -> str | None:
    """Check that the vocabulary has the `wanted` start-of-document token and return it; None if none is wanted.

    `name` is the tokenizer's name in error messages.
    """
    return None if wanted is None else _in_vocabulary("start", wanted, set(vocabulary), name)


def _in_vocabulary(place: str, wanted: str, tokens: set[str], name: str) -> str:
    if wanted not in tokens:
        raise UserError(
            f"Expected the {place} token {wanted!r} in {name}, found no such token in its vocabulary of "
            f"{len(tokens)} tokens; name one of them in tokenizer.{place}_token."
        )
    return wanted
