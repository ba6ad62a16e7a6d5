"""Text -> token ids: a given tokenizer.json, byte-level BPE trained on the corpus, or plain bytes.

A document's tokens are its text's, then the end token. Text is always text: the letters `<|endoftext|>` in a
document never become the end token, and what a tokenizer.json says of truncation, padding or tokens to add is
left aside.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Integer
from tokenizers import decoders, models, pre_tokenizers, trainers

from jax_diversity.artifacts import write_text
from jax_diversity.errors import UserError

END_TOKEN = "<|endoftext|>"
USUAL_END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<|end▁of▁sentence|>",
    "<EOS>",
    "[EOS]",
    "[SEP]",
)
MAX_VOCAB_SIZE = 2**31
_MAX_UINT16_VOCAB = 65_500

_PIECE_CHARACTERS = 2**20
_BATCH_CHARACTERS = 4 * 2**20
_TRAIN_PIECE = 2**16


def token_dtype(vocab_size: int) -> np.dtype:
    """Type that tokens are stored in: uint16 for vocabularies below 65,500, int32 otherwise (Megatron's rule).

    Raises:
        UserError: the ids do not fit int32, or there are none.
    """
    if not 1 <= vocab_size <= MAX_VOCAB_SIZE:
        raise UserError(
            f"Expected a vocabulary of 1 to {MAX_VOCAB_SIZE} ids, which int32 tokens can hold, found {vocab_size}; "
            "use another tokenizer."
        )
    return np.dtype(np.uint16 if vocab_size < _MAX_UINT16_VOCAB else np.int32)


class Tokenizer:
    """Turns documents into token ids and back.

    Made by `train_bpe`, `byte_tokenizer` or `load_tokenizer`.

    Args:
        definition: the content of a tokenizer.json.
        end_token: the end-of-document token, one of its tokens; None looks for the usual names.
        name: what messages call the tokenizer.

    Raises:
        UserError: no tokenizer, no usual end token, no such token.
    """

    def __init__(self, definition: str, end_token: str | None = None, name: str = "The tokenizer") -> None:
        self.definition = definition
        vocabulary = _parse(definition, name).get_vocab(with_added_tokens=True)
        self.end_token = _find_end_token(vocabulary, end_token, name)
        self.end_id = vocabulary[self.end_token]
        self._backend = _harmless(definition, self.end_token)
        self.vocab_size = max(vocabulary.values()) + 1
        self.dtype = token_dtype(self.vocab_size)
        self._is_bytes = _is_byte_tokenizer(definition)

    @property
    def fingerprint(self) -> str:
        """Hash of the definition and the end token."""
        return hashlib.sha256(json.dumps([self.definition, self.end_token]).encode()).hexdigest()

    def encode_documents(self, texts: Sequence[str]) -> list[Integer[np.ndarray, " _"]]:
        """Tokens of every text, each ending in `end_id`.

        The library encodes many texts at a time on all cores. Texts of more than a million characters are encoded
        in pieces, so that memory stays a small multiple of a piece. Cuts are made after a line end or before a
        blank that stands between other characters, where byte-level BPE starts a new word anyway: the ids are the
        same. A tokenizer that puts a mark before each text puts one at each cut, and a million characters without
        any such place are cut wherever the million ends.

        Args:
            texts: valid text (no lone surrogates).

        Returns:
            One array of `dtype` for each text.
        """
        documents: list[np.ndarray] = []
        parts: list[np.ndarray] = []
        for batch in _batches(texts):
            pieces = [piece for piece, _ in batch]
            for ids, (_, is_last) in zip(self._encode(pieces), batch, strict=True):
                parts.append(ids)
                if is_last:
                    documents.append(np.concatenate([*parts, np.array([self.end_id], self.dtype)]))
                    parts = []
        return documents

    def _encode(self, pieces: list[str]) -> Iterator[np.ndarray]:
        if self._is_bytes:
            for piece in pieces:
                yield np.frombuffer(piece.encode(), np.uint8).astype(self.dtype)
            return
        encodings = self._backend.encode_batch_fast(pieces, add_special_tokens=False)
        for piece, encoding in zip(pieces, encodings, strict=True):
            ids = np.array(encoding.ids, self.dtype)
            yield self._encode_halved(piece) if (ids == self.end_id).any() else ids

    def _encode_halved(self, piece: str) -> np.ndarray:
        """Tokens of text in which the end token's letters are a word of the model's own: each is cut in two.

        Raises:
            UserError: the end token stands for other text too, as an unknown token does.
        """
        half = len(self.end_token) // 2
        head, tail = self.end_token[:half], self.end_token[half:]
        parts = piece.split(self.end_token)
        parts = [tail * (index > 0) + part + head * (index < len(parts) - 1) for index, part in enumerate(parts)]
        encodings = self._backend.encode_batch_fast(parts, add_special_tokens=False)
        ids = np.array([*chain.from_iterable(encoding.ids for encoding in encodings)], self.dtype)
        if (ids == self.end_id).any():
            raise UserError(
                f"Expected an end token that no text turns into, found {self.end_token!r}; "
                "name another one in tokenizer.end_token."
            )
        return ids

    def decode(self, ids: Integer[np.ndarray, " token"] | Sequence[int]) -> str:
        """Text of token ids, end tokens left out; a character cut in two becomes U+FFFD.

        Raises:
            UserError: an id that the vocabulary does not have.
        """
        ids = np.asarray(ids, np.int64)
        if len(ids) and (ids.min() < 0 or ids.max() >= self.vocab_size):
            bad = ids[(ids < 0) | (ids >= self.vocab_size)][0]
            raise UserError(f"Expected token ids of 0 .. {self.vocab_size - 1}, found {bad}.")
        return self._backend.decode(ids[ids != self.end_id].tolist(), skip_special_tokens=False)

    def save(self, path: Path) -> None:
        """Write the definition, a tokenizer.json that any reader of the `tokenizers` library takes."""
        write_text(path, self.definition)


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE (GPT-2's words, no normalisation), trained on the texts.

    The same texts in the same order give the same tokenizer.

    Args:
        texts: read once; `spread_texts` takes a part of a corpus.
        vocab_size: 256 bytes, the end token (the last id) and merges; fewer where the texts have fewer to merge.

    Raises:
        UserError: `vocab_size` is below 257.
    """
    if vocab_size < 257:
        raise UserError(f"Expected a vocabulary of at least 257 (256 bytes and the end token), found {vocab_size}.")
    backend = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pieces = (piece for text in texts for piece in _pieces(text, _PIECE_CHARACTERS))
    backend.train_from_iterator(pieces, trainer)
    return _with_end_token(backend)


def byte_tokenizer() -> Tokenizer:
    """UTF-8 bytes as ids 0 .. 255, and 256 for the end of a document."""
    vocabulary = {letter: byte for byte, letter in _byte_letters().items()}
    return _with_end_token(_byte_level(models.BPE(vocab=vocabulary, merges=[])))


def load_tokenizer(path: str | Path, end_token: str | None = None) -> Tokenizer:
    """Read a tokenizer.json.

    Args:
        path: the file.
        end_token: its end-of-document token; None looks for the usual names, `USUAL_END_TOKENS`.

    Raises:
        UserError: no such file, no tokenizer in it, no such token.
    """
    try:
        definition = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"Expected a tokenizer.json at {path}, found: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"Expected a tokenizer.json at {path}, found a file that is no UTF-8 text.") from None
    return Tokenizer(definition, end_token, str(path))


def spread_texts(texts: Iterable[str], total_bytes: int, keep_bytes: int) -> Iterator[str]:
    """Pieces of the texts, about `keep_bytes` in all, spread evenly over all of them: what BPE is trained on.

    Args:
        texts: read once.
        total_bytes: bytes of all texts in UTF-8.
        keep_bytes: bytes to keep; all pieces where it is `total_bytes` or more.
    """
    seen, kept = 0, 0
    for text in texts:
        for piece in _pieces(text, _TRAIN_PIECE):
            size = len(piece.encode())
            seen += size
            if (kept + size / 2) * total_bytes <= seen * keep_bytes:
                kept += size
                yield piece


def _parse(definition: str, name: str) -> tokenizers.Tokenizer:
    try:
        content = json.loads(definition)
        if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
            raise UserError(f"Expected a tokenizer.json in {name}, found JSON without a tokenizer's model.")
        return tokenizers.Tokenizer.from_str(definition)
    except UserError:
        raise
    except json.JSONDecodeError as error:
        raise UserError(f"{name} is no tokenizer.json: no JSON, {error.msg} in line {error.lineno}.") from None
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{name} is no tokenizer.json that can be read: {' '.join(str(error).split())}.") from None


def _find_end_token(vocabulary: dict[str, int], end_token: str | None, name: str) -> str:
    if end_token is not None:
        if end_token not in vocabulary:
            raise UserError(
                f"Expected the end token {end_token!r} in {name}, found no such token among its {len(vocabulary)}."
            )
        return end_token
    for usual in USUAL_END_TOKENS:
        if usual in vocabulary:
            return usual
    raise UserError(
        f"Expected an end token in {name}, found none of {', '.join(USUAL_END_TOKENS)}; "
        "name it in tokenizer.end_token."
    )


def _harmless(definition: str, end_token: str) -> tokenizers.Tokenizer:
    """The library's tokenizer, for which special tokens' letters are text, and the end token is special."""
    content = json.loads(definition)
    for token in content.get("added_tokens") or []:
        token["special"] = token["special"] or token["content"] == end_token
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return backend


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return backend


def _with_end_token(backend: tokenizers.Tokenizer) -> Tokenizer:
    backend.add_special_tokens([END_TOKEN])
    return Tokenizer(backend.to_str(), END_TOKEN)


def _byte_letters() -> dict[int, str]:
    """The letter that byte-level BPE writes for each byte: itself where it is printable, else one past 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)}


def _is_byte_tokenizer(definition: str) -> bool:
    """Whether ids are bytes, so that no library is needed to make them."""
    content: dict[str, Any] = json.loads(definition)
    model, words = content["model"], content.get("pre_tokenizer") or {}
    return (
        model.get("vocab") == {letter: byte for byte, letter in _byte_letters().items()}
        and not model.get("merges")
        and not content.get("normalizer")
        and words.get("type") == "ByteLevel"
        and not words.get("add_prefix_space")
    )


# Where a new word begins in any case, so that text can be cut there: after a line end or before a blank that stands
# between other characters.
_LINE_END = re.compile(r"(?<=\S\n)(?=\S)")
_BLANK = re.compile(r"(?<=\S)(?= \S)")


def _pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of at most `size` characters."""
    start = 0
    while len(text) - start > size:
        end = _last_cut(text, start, start + size)
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _last_cut(text: str, start: int, end: int) -> int:
    """Where to cut between `start` and `end`: the last good place, looked for in ever wider parts from the end."""
    for pattern in (_LINE_END, _BLANK):
        window, low = 1024, end
        while low > start + 1:
            low = max(start + 1, end - window)
            places = [match.start() for match in pattern.finditer(text, low, end)]
            if places:
                return places[-1]
            window *= 8
    return end


def _batches(texts: Iterable[str]) -> Iterator[list[tuple[str, bool]]]:
    """Pieces, each with whether it is its text's last, in lists of at most some `_BATCH_CHARACTERS`."""
    batch: list[tuple[str, bool]] = []
    num_characters = 0
    for text in texts:
        left = len(text)
        for piece in _pieces(text, _PIECE_CHARACTERS):
            left -= len(piece)
            if batch and num_characters + len(piece) > _BATCH_CHARACTERS:
                yield batch
                batch, num_characters = [], 0
            batch.append((piece, left == 0))
            num_characters += len(piece)
    if batch:
        yield batch
