"""tensorflow-text for any tokenizer: Unicode normalisation and sentence ends.

The library needs all of TensorFlow, whose import takes about ten seconds and 600 MB. It is imported at
its first use and cannot use the accelerators, which belong to JAX.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.libraries import optional
from jax_diversity.tokenization.cutting import blanks


@cache
def import_libraries() -> tuple[Any, Any]:
    """TensorFlow and tensorflow-text, imported once; a `UserError` if one of them is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # otherwise it writes log messages to standard error
    # Python 3.13 or older: tensorflow-text has no wheels for later ones.
    tensorflow, tensorflow_text = (optional(name, "tensorflow-text") for name in ("tensorflow", "tensorflow_text"))
    with suppress(RuntimeError):  # other code of this process has configured TensorFlow's devices
        tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow, tensorflow_text


def implementation() -> str:
    """The library with its version."""
    import_libraries()
    return f"tensorflow-text {version('tensorflow-text')}"


def normalize_texts(texts: Sequence[str], form: str) -> list[str]:
    """Texts in a normal form of Unicode Standard Annex 15: `NFC`, `NFD`, `NFKC` or `NFKD`."""
    _, text = import_libraries()
    if all(map(str.isascii, texts)):  # ASCII is its own normal form, in all four
        return list(texts)
    return [one.decode() for one in text.normalize_utf8(list(texts), form).numpy().tolist()]


def split_sentences(texts: Sequence[str]) -> list[Int64[np.ndarray, "sentence 2"]]:
    """Where the sentences of texts begin and end, by tensorflow-text's `StateBasedSentenceBreaker`.

    A sentence ends after `.`, `!`, `?`, an ellipsis or their like in other scripts, with quotes and brackets that
    close there. Blanks between sentences belong to no sentence; abbreviations (`e.g.`) may end one by mistake.

    Returns:
        For every text the first character of each sentence and the one after its last.

    Raises:
        UserError: tensorflow-text is not installed.

    Example:
        >>> split_sentences(["Here. And there!"])[0].tolist()
        [[0, 5], [6, 16]]
    """
    _, text = import_libraries()
    if not texts:
        return []
    _, begins, ends = text.StateBasedSentenceBreaker().break_sentences_with_offsets(list(texts))
    return [
        np.stack([_character_index(one, begins[i].numpy()), _character_index(one, ends[i].numpy())], axis=1)
        for i, one in enumerate(texts)
    ]


def sentence_ends(text: str, size: int) -> Iterator[str]:
    """Pieces of at most `size` characters, cut after the last sentence that ends in the piece, or else as `blanks`."""
    start = 0
    while len(text) - start > size:
        spans = split_sentences([text[start : start + size]])[0]
        # The sentence before the last: the last one may continue after the piece.
        length = int(spans[-2, 1]) if len(spans) > 1 else len(next(blanks(text[start:], size)))
        yield text[start : start + length]
        start += length
    yield text[start:]


def _character_index(text: str, byte_index: np.ndarray) -> Int64[np.ndarray, " place"]:
    """Places in UTF-8 bytes as places in characters."""
    if text.isascii():
        return byte_index.astype(np.int64)
    # UTF-8: every byte begins a character, except those of the form 10xxxxxx, which continue one.
    starts = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
    return np.concatenate([[0], np.cumsum(starts)]).astype(np.int64)[byte_index]
