"""What tensorflow-text does here: SentencePiece models, Unicode normalisation, sentence ends.

The library comes with all of TensorFlow, whose import takes about ten seconds and 600 MB: it is imported when it is
first used, never before, and it is kept from the accelerators, which belong to JAX.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

from jax_diversity.foundation.errors import UserError
from jax_diversity.tokenization.base import Tokenizer
from jax_diversity.tokenization.cutting import blanks
from jax_diversity.tokenization.model_file import SentencePieceModel
from jax_diversity.tokenization.saving import write_settings
from jax_diversity.tokenization.sentencepiece_model import ModelTokenizer

KIND = "tensorflow-text"
# Enough for a call's fixed cost not to show, and few enough for all threads to have some.
_CALL_CHARACTERS = 2**18


class TensorflowTextTokenizer(ModelTokenizer):
    """A .model file read by tensorflow-text's `SentencepieceTokenizer`.

    Its ids are those of the sentencepiece package but where several ways of cutting a word have the same score:
    a unigram model then takes one or the other, as in `***`, which may be `* **` or `** *`.

    Args:
        model: the .model file.
        num_threads: threads that encode side by side; None takes as many as there are cores.
        cut: gives a text's pieces; None cuts at blanks.

    Raises:
        UserError: the library is not installed, or cannot read the model.
    """

    def __init__(
        self,
        model: SentencePieceModel,
        num_threads: int | None = None,
        cut: Callable[[str, int], Iterable[str]] | None = None,
    ) -> None:
        tensorflow, text = _libraries()
        super().__init__(model, KIND, implementation(), cut)
        self._tensorflow = tensorflow
        self._num_threads = num_threads or len(os.sched_getaffinity(0))
        try:
            self._library = text.SentencepieceTokenizer(model=model.content, out_type=tensorflow.int32)
            self._library.tokenize(["a"])
        except tensorflow.errors.OpError as error:
            what = " ".join(str(error.message).split())
            raise UserError(f"{model.name} is no SentencePiece model that can be read: {what}.") from None

    def _encode(self, pieces: list[str]) -> Iterator[np.ndarray]:
        # The library encodes a call's texts one after another, but lets several calls run at once.
        with ThreadPoolExecutor(self._num_threads) as threads:
            for values, splits in threads.map(self._call, _calls(pieces)):
                yield from (values[splits[i] : splits[i + 1]] for i in range(len(splits) - 1))

    def _call(self, pieces: list[str]) -> tuple[Integer[np.ndarray, " token"], Int64[np.ndarray, " boundary"]]:
        ragged = self._library.tokenize(pieces)
        return ragged.values.numpy(), ragged.row_splits.numpy()

    def _decode(self, ids: list[int]) -> str:
        if not ids:
            return ""
        text = self._library.detokenize(self._tensorflow.constant(ids, self._tensorflow.int32))
        return text.numpy().decode()


class NormalizedTokenizer:
    """Another tokenizer, given texts in a Unicode normal form.

    Args:
        tokenizer: what makes the ids.
        form: `NFC`, `NFD`, `NFKC` or `NFKD`.

    Raises:
        UserError: tensorflow-text is not installed.
    """

    def __init__(self, tokenizer: Tokenizer, form: str) -> None:
        self.form, self._tokenizer = form, tokenizer
        self.vocab_size, self.dtype = tokenizer.vocab_size, tokenizer.dtype
        self.end_id, self.end_token = tokenizer.end_id, tokenizer.end_token
        self.unknown_id = tokenizer.unknown_id
        self.implementation = f"{tokenizer.implementation} after {form} by {implementation()}"

    @property
    def fingerprint(self) -> str:
        """The tokenizer's own with the normal form."""
        return f"{self._tokenizer.fingerprint}-{self.form}"

    def encode_documents(self, texts: Sequence[str]) -> list[Integer[np.ndarray, " _"]]:
        """Tokens of every text in its normal form, each ending in `end_id`."""
        return self._tokenizer.encode_documents(normalize_texts(texts, self.form))

    def decode(self, ids: Integer[np.ndarray, " token"] | Sequence[int]) -> str:
        """Text of token ids; it stays normalised.

        Raises:
            UserError: an id that the vocabulary does not have.
        """
        return self._tokenizer.decode(ids)

    @property
    def settings(self) -> dict[str, Any]:
        """The tokenizer's own with the normal form and what makes it."""
        return self._tokenizer.settings | {"normalization": self.form, "implementation": self.implementation}

    def save_file(self, folder: Path) -> None:
        """Write the tokenizer's file."""
        self._tokenizer.save_file(folder)

    def save(self, folder: Path) -> None:
        """Write the tokenizer's file, then its settings, the normal form among them."""
        self.save_file(folder)
        write_settings(folder, self.settings)


def implementation() -> str:
    """The library with its version.

    Raises:
        UserError: it is not installed.
    """
    _libraries()
    return f"tensorflow-text {version('tensorflow-text')}"


def normalize_texts(texts: Sequence[str], form: str) -> list[str]:
    """Texts in a Unicode normal form.

    Args:
        texts: valid text.
        form: `NFC`, `NFD`, `NFKC` or `NFKD`; Unicode Standard Annex 15.

    Raises:
        UserError: tensorflow-text is not installed.

    Example:
        >>> normalize_texts(["ﬁre"], "NFKC")
        ['fire']
    """
    _, text = _libraries()
    if all(map(str.isascii, texts)):  # it is its own normal form
        return list(texts)
    return [one.decode() for one in text.normalize_utf8(list(texts), form).numpy().tolist()]


def split_sentences(texts: Sequence[str]) -> list[Int64[np.ndarray, "sentence 2"]]:
    """Where the sentences of texts begin and end, by tensorflow-text's `StateBasedSentenceBreaker`.

    A sentence ends after `.`, `!`, `?`, an ellipsis or their like in other scripts, with quotes and brackets that
    close there. Blanks between sentences belong to none; abbreviations (`e.g.`) may be taken for ends.

    Returns:
        For every text the first character of each sentence and the one after its last.

    Raises:
        UserError: tensorflow-text is not installed.

    Example:
        >>> split_sentences(["Here. And there!"])[0].tolist()
        [[0, 5], [6, 16]]
    """
    _, text = _libraries()
    if not texts:
        return []
    _, begins, ends = text.StateBasedSentenceBreaker().break_sentences_with_offsets(list(texts))
    return [
        np.stack([_character_index(one, begins[i].numpy()), _character_index(one, ends[i].numpy())], axis=1)
        for i, one in enumerate(texts)
    ]


def sentence_ends(text: str, size: int) -> Iterator[str]:
    """The text in pieces of at most `size` characters, cut after the last sentence that ends in time.

    Where none does, before a blank, else at a line's end, else wherever the size ends.

    Raises:
        UserError: tensorflow-text is not installed.
    """
    start = 0
    while len(text) - start > size:
        spans = split_sentences([text[start : start + size]])[0]
        # The last one may go on after the piece.
        length = int(spans[-2, 1]) if len(spans) > 1 else len(next(blanks(text[start:], size)))
        yield text[start : start + length]
        start += length
    yield text[start:]


def _character_index(text: str, byte_index: np.ndarray) -> Int64[np.ndarray, " place"]:
    """Places in UTF-8 bytes as places in characters."""
    if text.isascii():
        return byte_index.astype(np.int64)
    # All bytes but those that continue a character.
    starts = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
    return np.concatenate([[0], np.cumsum(starts)]).astype(np.int64)[byte_index]


def _calls(pieces: list[str]) -> Iterator[list[str]]:
    """Pieces in lists of some `_CALL_CHARACTERS`."""
    call: list[str] = []
    num_characters = 0
    for piece in pieces:
        call.append(piece)
        num_characters += len(piece)
        if num_characters >= _CALL_CHARACTERS:
            yield call
            call, num_characters = [], 0
    if call:
        yield call


@cache
def _libraries() -> tuple[Any, Any]:
    """TensorFlow and tensorflow-text, imported once.

    Raises:
        UserError: one of them is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it tells of itself on standard error otherwise
    try:
        import tensorflow
        import tensorflow_text
    except ImportError as error:
        raise UserError(
            f"Expected tensorflow-text for this tokenizer, found none ({error}); install it with "
            "`pip install 'jax-diversity[tensorflow-text]'` (Python 3.13 or older)."
        ) from None
    with suppress(RuntimeError):  # another user of TensorFlow in this process has set it up already
        tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow, tensorflow_text
