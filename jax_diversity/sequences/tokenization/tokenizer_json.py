"""Tokenizers of the library `tokenizers`: a given file, byte-level BPE trained here, or plain bytes.

A given file is a tokenizer.json or GPT-2's pair of files. The tokens of a document are the start token, if there is
one, the tokens of its text, and the end token. Text stays text: `<|endoftext|>` in a document never becomes the end
token, and the names of other added tokens do not become these tokens. The truncation and padding of a tokenizer.json
are ignored, and so are the special tokens that it would add to texts.

GPT-2's pair is `vocab.json`, the tokens and their ids, and `merges.txt`, the pairs of tokens to join. In both files,
letters represent bytes (Radford et al., 2019, "Language Models are Unsupervised Multitask Learners"). Every line is
checked: a truncated list of merges, or the list of another vocabulary, would make tokens that are not the model's
tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from jax_diversity.foundation.artifacts import write_text
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.sequences.tokenization.base import Tokenizer, find_end_token, find_start_token
from jax_diversity.sequences.tokenization.cutting import lines_and_blanks
from jax_diversity.sequences.tokenization.settings import AddedTokens, tokenizer_files
from jax_diversity.sequences.tokenization.tiktoken_files import check_format

END_TOKEN = "<|endoftext|>"
_TRAIN_PIECE = 2**16
# Tokens that no merge makes: byte-level vocabularies have a few (special and unused tokens), truncated files have many.
_MOST_TOKENS_WITHOUT_MERGE = 100
_MOST_SHARE_WITHOUT_MERGE = 0.05


class JsonTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, made by `train_bpe`, `byte_tokenizer` or `load_tokenizer`.

    Texts of more than a million characters are encoded in pieces. They are cut after a line end, or before a blank (a
    space) between other characters. Byte-level BPE always starts a new word there, so the ids are the same. If a
    tokenizer puts a mark before each text, it also puts a mark at each cut. A million characters without such a place
    are cut at the end of the million. `definition` is the content of a tokenizer.json.
    """

    def __init__(
        self,
        definition: str,
        end_token: str | None = None,
        start_token: str | None = None,
        name: str = "The tokenizer",
        added_tokens: AddedTokens = "text",
    ) -> None:
        self.definition = definition
        vocabulary = _parse(definition, name).get_vocab(with_added_tokens=True)
        end_token = find_end_token(vocabulary, end_token, name)
        start_token = find_start_token(vocabulary, start_token, name)
        content = json.loads(definition)
        self._is_bytes = _is_byte_tokenizer(content)
        model = content["model"]  # if it has an `unk_id`, its kind is Unigram
        unknown = model["vocab"][model["unk_id"]][0] if isinstance(model.get("unk_id"), int) else model.get("unk_token")
        super().__init__(
            kind="file",
            vocab_size=max(vocabulary.values()) + 1,
            end_token=end_token,
            end_id=vocabulary[end_token],
            unknown_id=None if unknown is None else vocabulary.get(unknown),
            implementation="UTF-8 bytes" if self._is_bytes else f"tokenizers {tokenizers.__version__}",
            start_token=start_token,
            start_id=None if start_token is None else vocabulary[start_token],
        )
        self.added_tokens = added_tokens
        # The library finds added tokens before it splits words. With `encode_special_tokens`, it treats the names of
        # special tokens as text. So we mark the start and end tokens as special, and all added tokens that are marks.
        names = list[str]()
        for token in content.get("added_tokens") or []:
            is_mark = added_tokens == "text" and not token["content"].isspace()
            token["special"] = token["special"] or is_mark or token["content"] in (start_token, end_token)
            names += [token["content"]] if token["special"] and token["content"] else []
        self._names = re.compile("|".join(map(re.escape, sorted(names, reverse=True)))) if names else None
        self._backend = tokenizers.Tokenizer.from_str(json.dumps(content))
        self._backend.encode_special_tokens = True
        self._backend.no_truncation()
        self._backend.no_padding()

    @cached_property
    def _marking(self) -> tokenizers.Tokenizer:
        """The same tokenizer, except that it turns the names of special tokens into these tokens."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.encode_special_tokens = False
        return backend

    def save_file(self, folder: Path) -> None:
        """Write the definition, which the `tokenizers` library reads."""
        write_text(folder / "tokenizer.json", self.definition)

    def _identity(self) -> bytes:
        added = [] if self.added_tokens == "text" else [self.added_tokens]
        return json.dumps([self.definition, self.end_token, *added]).encode()

    def count_names(self, text: str) -> int:
        """Count the names of added tokens in a text, which stay text."""
        return 0 if self._names is None else sum(1 for _ in self._names.finditer(text))

    def _encode(self, pieces: list[str], *, marks: bool = False) -> Iterator[np.ndarray]:
        if self._is_bytes:  # the UTF-8 bytes of a text are its ids
            for piece in pieces:
                yield np.frombuffer(piece.encode(), np.uint8)
            return
        backend = self._marking if marks else self._backend
        for encoding in backend.encode_batch_fast(pieces, add_special_tokens=False):
            yield np.array(encoding.ids, self.dtype)

    def _decode(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=False)


def train_bpe(texts: Iterable[str], vocab_size: int, start_token: str | None = None) -> JsonTokenizer:
    """Train byte-level BPE (GPT-2's words, no normalisation).

    The same texts in the same order give the same tokenizer. The vocabulary contains the 256 bytes, then merges (fewer
    if the texts allow only fewer), then the end token and, if there is one, the start token.
    """
    backend = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1 - (start_token is not None),  # start and end are added afterwards, with the last ids
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pieces = (piece for text in texts for piece in lines_and_blanks(text))
    backend.train_from_iterator(pieces, trainer)
    return _with_marks(backend, start_token)


def byte_tokenizer(start_token: str | None = None) -> JsonTokenizer:
    """Make a tokenizer with UTF-8 bytes as ids 0 .. 255, 256 as the end token, and 257 as the start token, if any."""
    return _with_marks(_byte_level(models.BPE(vocab=_byte_letters(), merges=[])), start_token)


def load_tokenizer(
    path: str | Path,
    end_token: str | None = None,
    start_token: str | None = None,
    added_tokens: AddedTokens = "text",
) -> JsonTokenizer:
    """Read a tokenizer.json, also that of a folder, or a `*vocab.json` and the `*merges.txt` in the same folder."""
    files = tokenizer_files(path)
    check_format(files[0])
    if len(files) == 1:
        definition = _read_text(files[0], "a tokenizer.json")
        return JsonTokenizer(definition, end_token, start_token, str(path), added_tokens)
    backend = _read_pair(*files)
    backend.add_special_tokens([find_end_token(backend.get_vocab(), end_token, str(path))])
    if start_token is not None and start_token in backend.get_vocab():
        backend.add_special_tokens([start_token])
    return JsonTokenizer(backend.to_str(), end_token, start_token, str(path))


def token_name(path: str | Path, token: int) -> str | None:
    """Return the name of a token id in a file that `load_tokenizer` reads; None if there is no such id."""
    files = tokenizer_files(path)
    check_format(files[0])
    if len(files) == 1:
        return _parse(_read_text(files[0], "a tokenizer.json"), str(path)).id_to_token(token)
    return _read_pair(*files).id_to_token(token)


def spread_texts(texts: Iterable[str], total_bytes: int, keep_bytes: int) -> Iterator[str]:
    """Yield pieces of texts to train BPE on: about `keep_bytes` of the `total_bytes`, taken evenly from all texts."""
    seen, kept = 0, 0
    for text in texts:
        for piece in lines_and_blanks(text, _TRAIN_PIECE):
            size = len(piece.encode())
            seen += size
            # A piece is taken if its middle is not above the line from (0, 0) to (total_bytes, keep_bytes).
            if (kept + size / 2) * total_bytes <= seen * keep_bytes:
                kept += size
                yield piece


def _parse(definition: str, name: str) -> tokenizers.Tokenizer:
    try:
        content = json.loads(definition)
        if isinstance(content, dict) and isinstance(content.get("model"), dict):
            return tokenizers.Tokenizer.from_str(definition)
    except json.JSONDecodeError as error:
        raise UserError(f"{name} is not a tokenizer.json: not JSON, {error.msg} in line {error.lineno}.") from None
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{name} is not a readable tokenizer.json: {in_one_line(error)}.") from None
    raise UserError(f"Expected a tokenizer.json in {name}, found JSON without a tokenizer's model.")


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    # With a prefix space, decoding would add a space before the text.
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return backend


def _with_marks(backend: tokenizers.Tokenizer, start_token: str | None) -> JsonTokenizer:
    """Add a new end token and, if `start_token` is given, a new start token to the tokenizer."""
    marks = [END_TOKEN] if start_token is None else [END_TOKEN, start_token]
    for mark in marks:
        if backend.token_to_id(mark) is not None:
            raise UserError(
                f"Expected tokenizer.start_token to be absent from the trained vocabulary, found {mark!r}; choose "
                "another name, such as '<s>'."
            )
        backend.add_special_tokens([mark])
    return JsonTokenizer(backend.to_str(), END_TOKEN, start_token)


def _is_byte_tokenizer(content: dict[str, Any]) -> bool:
    """Return whether ids are bytes, so that no library is needed."""
    model, words = content["model"], content.get("pre_tokenizer") or {}
    return (
        model.get("vocab") == _byte_letters()
        and not model.get("merges")
        and not content.get("normalizer")
        and words.get("type") == "ByteLevel"
        and not words.get("add_prefix_space")
    )


def _read_pair(vocab: Path, merges: Path) -> tokenizers.Tokenizer:
    """Make a tokenizer of the library from GPT-2's two files."""
    vocabulary = _read_vocabulary(vocab)
    return _byte_level(models.BPE(vocab=vocabulary, merges=_read_merges(merges, vocabulary)))


def _read_text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"Expected {what} at {path}, found: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"Expected {what} at {path}, found a file that is not UTF-8 text.") from None


def _byte_letters() -> dict[str, int]:
    """Return the letter that byte-level BPE uses for each byte: itself if it is printable, else a letter above 255."""
    # This is GPT-2's table. Spaces and control characters get a letter, so that no token contains white space.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    other_bytes = [byte for byte in range(256) if byte not in printable]
    return {chr(byte if byte in printable else 256 + other_bytes.index(byte)): byte for byte in range(256)}


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Read the tokens of a `vocab.json` and their ids."""
    try:
        vocabulary = json.loads(_read_text(path, "a vocabulary"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not a vocabulary: not JSON ({error}); name a vocab.json.") from None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [None]
    if not all(type(token) is int and 0 <= token < 2**31 for token in ids) or len(set(ids)) < len(ids):
        raise UserError(
            f"Expected {path} to be a vocabulary, every token with a distinct id below 2^31, found other "
            "JSON; a tokenizer.json needs a name that does not end in vocab.json."
        )
    # Without a token for each byte, the tokenizer could not encode every text. Tokens that end in </w> mean that words
    # are split in another way than in GPT-2.
    letters = _byte_letters()
    num_lacking = sum(letter not in vocabulary for letter in letters)
    if num_lacking or any(f"{letter}</w>" in vocabulary for letter in letters):
        description = f"none for {num_lacking} of them" if num_lacking else "tokens that end in </w>"
        raise UserError(
            f"Expected a vocabulary of byte-level BPE in {path}, with a token for each of the 256 bytes, found "
            f"{description}; use the tokenizer's tokenizer.json."
        )
    return vocabulary


def _read_merges(path: Path, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Read the pairs of tokens of a `merges.txt`; earlier pairs are joined first."""
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(_read_text(path, "a list of merges").split("\n"), 1):
        if not line or line.startswith("#version"):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not {*parts, "".join(parts)} <= vocabulary.keys():
            raise UserError(
                f"{path}:{number}: expected two tokens of the vocabulary that join to a third, found "
                f"{line[:100]!r}; put the two files of one tokenizer side by side."
            )
        merges.append((parts[0], parts[1]))
    # If a file was cut off at the end of a line, every line is correct. Only the number of merges shows that the file
    # was cut off.
    merged = {first + second for first, second in merges}
    longer = sum(len(token) > 1 for token in vocabulary)
    without = longer - len(merged)
    if without > max(_MOST_TOKENS_WITHOUT_MERGE, _MOST_SHARE_WITHOUT_MERGE * longer):
        raise UserError(
            f"Expected merges for the {longer} tokens of more than one byte in {path}, found none for {without} of "
            "them; the file is cut off, or belongs to another vocabulary; fetch it again."
        )
    return merges
