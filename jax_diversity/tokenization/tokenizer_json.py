"""Text -> token ids: a given tokenizer.json or GPT-2's pair of files, byte-level BPE trained here, or plain bytes.

A document's tokens are its text's, then the end token. Text is always text: the letters `<|endoftext|>` in a
document never become the end token, and what a tokenizer.json says of truncation, padding or tokens to add is
left aside.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from jax_diversity.foundation.artifacts import write_text
from jax_diversity.foundation.errors import UserError
from jax_diversity.tokenization.base import PiecewiseTokenizer, usual_end_token
from jax_diversity.tokenization.cutting import lines_and_blanks
from jax_diversity.tokenization.gpt2_files import byte_letters, read_merges, read_text, read_vocabulary
from jax_diversity.tokenization.settings import tokenizer_files

END_TOKEN = "<|endoftext|>"
FILE_NAME = "tokenizer.json"
_TRAIN_PIECE = 2**16


class JsonTokenizer(PiecewiseTokenizer):
    """A tokenizer of the `tokenizers` library, made by `train_bpe`, `byte_tokenizer` or `load_tokenizer`.

    Texts of more than a million characters are encoded in pieces, cut after a line end or before a blank that
    stands between other characters, where byte-level BPE starts a new word anyway: the ids are the same. A
    tokenizer that puts a mark before each text puts one at each cut, and a million characters without any such
    place are cut wherever the million ends.

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
        end_token = _find_end_token(vocabulary, end_token, name)
        self._is_bytes = _is_byte_tokenizer(definition)
        unknown = _unknown_token(definition)
        super().__init__(
            kind="file",
            vocab_size=max(vocabulary.values()) + 1,
            end_token=end_token,
            end_id=vocabulary[end_token],
            unknown_id=None if unknown is None else vocabulary.get(unknown),
            implementation="UTF-8 bytes" if self._is_bytes else f"tokenizers {tokenizers.__version__}",
        )
        self._backend = _harmless(definition, self.end_token)

    @property
    def fingerprint(self) -> str:
        """Hash of the definition and the end token."""
        return hashlib.sha256(json.dumps([self.definition, self.end_token]).encode()).hexdigest()

    def save_file(self, folder: Path) -> None:
        """Write the definition, which any reader of the `tokenizers` library takes."""
        write_text(folder / FILE_NAME, self.definition)

    def _encode(self, pieces: list[str]) -> Iterator[np.ndarray]:
        if self._is_bytes:
            for piece in pieces:
                yield np.frombuffer(piece.encode(), np.uint8)
            return
        for encoding in self._backend.encode_batch_fast(pieces, add_special_tokens=False):
            yield np.array(encoding.ids, self.dtype)

    def _decode(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=False)


def train_bpe(texts: Iterable[str], vocab_size: int) -> JsonTokenizer:
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
    pieces = (piece for text in texts for piece in lines_and_blanks(text))
    backend.train_from_iterator(pieces, trainer)
    return _with_end_token(backend)


def byte_tokenizer() -> JsonTokenizer:
    """UTF-8 bytes as ids 0 .. 255, and 256 for the end of a document."""
    vocabulary = {letter: byte for byte, letter in byte_letters().items()}
    return _with_end_token(_byte_level(models.BPE(vocab=vocabulary, merges=[])))


def load_tokenizer(path: str | Path, end_token: str | None = None) -> JsonTokenizer:
    """Read a tokenizer.json, or a `*vocab.json` and the `*merges.txt` beside it.

    Args:
        path: the file, or the vocabulary of the two.
        end_token: its end-of-document token; None looks for the usual names, `USUAL_END_TOKENS`.

    Raises:
        UserError: no such file, no tokenizer in it, no such token.
    """
    files = tokenizer_files(path)
    if len(files) == 1:
        return JsonTokenizer(read_text(files[0], "a tokenizer.json"), end_token, str(path))
    backend = _read_pair(*files)
    backend.add_special_tokens([_find_end_token(backend.get_vocab(), end_token, str(path))])
    return JsonTokenizer(backend.to_str(), end_token, str(path))


def token_name(path: str | Path, token: int) -> str | None:
    """The token with an id, in a file that `load_tokenizer` reads; None where there is none.

    Raises:
        UserError: no such file, no tokenizer in it.
    """
    files = tokenizer_files(path)
    if len(files) == 1:
        return _parse(read_text(files[0], "a tokenizer.json"), str(path)).id_to_token(token)
    return _read_pair(*files).id_to_token(token)


def spread_texts(texts: Iterable[str], total_bytes: int, keep_bytes: int) -> Iterator[str]:
    """Pieces of the texts, about `keep_bytes` in all, spread evenly over all of them: what BPE is trained on.

    Args:
        texts: read once.
        total_bytes: bytes of all texts in UTF-8.
        keep_bytes: bytes to keep; all pieces where it is `total_bytes` or more.
    """
    seen, kept = 0, 0
    for text in texts:
        for piece in lines_and_blanks(text, _TRAIN_PIECE):
            size = len(piece.encode())
            seen += size
            if (kept + size / 2) * total_bytes <= seen * keep_bytes:
                kept += size
                yield piece


def _read_pair(vocab: Path, merges: Path) -> tokenizers.Tokenizer:
    """GPT-2's two files as the library has them."""
    vocabulary = read_vocabulary(vocab)
    return _byte_level(models.BPE(vocab=vocabulary, merges=read_merges(merges, vocabulary)))


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
                f"Expected the end token {end_token!r} in {name}, found no such token among its {len(vocabulary)}; "
                "name one of them in tokenizer.end_token."
            )
        return end_token
    return usual_end_token(vocabulary, name)


def _unknown_token(definition: str) -> str | None:
    """What the model writes for text it has no tokens for, if it has such a token."""
    model: dict[str, Any] = json.loads(definition)["model"]
    if isinstance(model.get("unk_id"), int):  # Unigram
        return model["vocab"][model["unk_id"]][0]
    return model.get("unk_token")


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


def _with_end_token(backend: tokenizers.Tokenizer) -> JsonTokenizer:
    backend.add_special_tokens([END_TOKEN])
    return JsonTokenizer(backend.to_str(), END_TOKEN)


def _is_byte_tokenizer(definition: str) -> bool:
    """Whether ids are bytes, so that no library is needed to make them."""
    content: dict[str, Any] = json.loads(definition)
    model, words = content["model"], content.get("pre_tokenizer") or {}
    return (
        model.get("vocab") == {letter: byte for byte, letter in byte_letters().items()}
        and not model.get("merges")
        and not content.get("normalizer")
        and words.get("type") == "ByteLevel"
        and not words.get("add_prefix_space")
    )
