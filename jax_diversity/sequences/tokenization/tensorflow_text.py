"""Unicode normalisation and sentence ends by tensorflow-text, for any tokenizer.

The library needs all of TensorFlow, whose import takes about ten seconds and 600 MB. So we import it at its first use.
We configure it not to use accelerators, because JAX uses them.
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
from jax_diversity.sequences.tokenization.cutting import blanks


@cache
def import_libraries() -> tuple[Any, Any]:
    """Import TensorFlow and tensorflow-text once; a `UserError` if one of them is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # otherwise it writes log messages to standard error
    # This needs Python 3.13 or older: tensorflow-text has no wheels for later versions.
    tensorflow, tensorflow_text = (optional(name, "tensorflow-text") for name in ("tensorflow", "tensorflow_text"))
    with suppress(RuntimeError):  # other code of this process has configured TensorFlow's devices
        tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow, tensorflow_text


def implementation() -> str:
    """Return the name of the library with its version."""
    import_libraries()
    return f"tensorflow-text {version('tensorflow-text')}"


def normalize_texts(texts: Sequence[str], form: str) -> list[str]:
    """Convert texts to a normal form of Unicode Standard Annex 15: `NFC`, `NFD`, `NFKC` or `NFKD`."""
    _, text = import_libraries()
    if all(map(str.isascii, texts)):  # none of the four normal forms changes ASCII
        return list(texts)
    return [one.decode() for one in text.normalize_utf8(list(texts), form).numpy().tolist()]


def split_sentences(texts: Sequence[str]) -> list[Int64[np.ndarray, "sentence 2"]]:
    """Find where the sentences of texts begin and end, by tensorflow-text's `StateBasedSentenceBreaker`.

    A sentence ends after `.`, `!`, `?`, an ellipsis or a similar mark of another script, including quotes and brackets
    that close there. Spaces between sentences belong to no sentence. By mistake, an abbreviation (`e.g.`) may end a
    sentence.

    Returns:
        For every text, the start and stop of each sentence in characters.

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
    """Cut a text into pieces of at most `size` characters, each after its last whole sentence, or as `blanks`."""
    start = 0
    while len(text) - start > size:
        spans = split_sentences([text[start : start + size]])[0]
        # We cut after the sentence before the last, because the last sentence may continue after the piece.
        length = int(spans[-2, 1]) if len(spans) > 1 else len(next(blanks(text[start:], size)))
        yield text[start : start + length]
        start += length
    yield text[start:]


def _character_index(text: str, byte_index: np.ndarray) -> Int64[np.ndarray, " place"]:
    """Convert indices of UTF-8 bytes to indices of characters."""
    if text.isascii():
        return byte_index.astype(np.int64)
    # In UTF-8, every byte begins a character, except bytes of the form 10xxxxxx, which continue a character.
    starts = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
    return np.concatenate([[0], np.cumsum(starts)]).astype(np.int64)[byte_index]
