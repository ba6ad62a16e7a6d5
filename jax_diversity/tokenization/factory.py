"""The tokenizer that the settings ask for, and the one that a dataset's folder holds.

The libraries are imported inside the functions: each takes time and memory, and a build needs one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.tokenization.base import SETTINGS_NAME, Tokenizer
from jax_diversity.tokenization.settings import TokenizerConfig
from jax_diversity.tokenization.tensorflow_text import normalize_texts

_FILE_NAMES = {"file": "tokenizer.json", "sentencepiece": "tokenizer.model", "tensorflow-text": "tokenizer.model"}


def make_tokenizer(
    config: TokenizerConfig, training_texts: Iterable[str] = (), num_threads: int | None = None
) -> Tokenizer:
    """The tokenizer that the settings ask for.

    Args:
        config: its kind and what the kind needs.
        training_texts: what a `bpe` is trained on, read once; the other kinds do not read it.
        num_threads: threads that encode side by side, where the library lets one choose; None takes all cores.

    Raises:
        UserError: no such file, none that can be read, no end token in it, a library that is not installed, the
            kind `stored`, which needs no tokenizer.

    Example:
        >>> tokenizer = make_tokenizer(TokenizerConfig(kind="sentencepiece", path="tokenizer.model"))
        >>> tokenizer.encode_documents(["two words"])[0]
        array([ 312, 1045,    2], dtype=uint16)
    """
    if config.kind == "stored":
        raise UserError("Expected a tokenizer.kind that makes tokens, found stored; choose another one.")
    if config.kind in ("bpe", "bytes"):
        from jax_diversity.tokenization.tokenizer_json import byte_tokenizer, train_bpe

        if config.kind == "bytes":
            tokenizer: Tokenizer = byte_tokenizer()
        else:
            tokenizer = train_bpe(_normalized(training_texts, config.normalization), config.vocab_size)
    else:
        tokenizer = _read(config.kind, Path(config.path or ""), config.end_token, config.cut_at, num_threads)
    return tokenizer.with_normalization(config.normalization)


def load_saved(folder: str | Path, num_threads: int | None = None) -> Tokenizer:
    """The tokenizer that `Tokenizer.save` wrote into a folder, such as a dataset's `tokens/`.

    Args:
        folder: with tokenizer.json or tokenizer.model, and tokenizer.meta.json.
        num_threads: as in `make_tokenizer`.

    Raises:
        UserError: no tokenizer there, or one that cannot be read; a library that is not installed.
    """
    folder = Path(folder)
    settings = _read_settings(folder)
    if settings is None:
        raise UserError(f"Expected a stored tokenizer in {folder}, found none; tokenize the corpus.")
    if settings["kind"] not in _FILE_NAMES:
        raise UserError(
            f"Expected a stored tokenizer of kind {', '.join(_FILE_NAMES)} in {folder}, found {settings['kind']!r}; "
            "upgrade jax-diversity."
        )
    path = folder / _FILE_NAMES[settings["kind"]]
    tokenizer = _read(settings["kind"], path, settings["end_token"], settings.get("cut_at", "blanks"), num_threads)
    return tokenizer.with_normalization(settings["normalization"])


def load_unchanged(folder: str | Path) -> Tokenizer | None:
    """The tokenizer that an unfinished build left in a folder; None where a new one has to be made.

    The engine resumes a folder only with the same settings, tokenizer's file and version of `tokenizers`. It does not
    know the versions of the optional libraries: a tokenizer that another version saved is not used, since its ids may
    differ.
    """
    try:
        recorded = _read_settings(Path(folder))
        tokenizer = None if recorded is None else load_saved(folder)
    except UserError:  # damaged
        return None
    return tokenizer if tokenizer is not None and tokenizer.settings == recorded else None


def _read_settings(folder: Path) -> dict[str, Any] | None:
    """The content of `tokenizer.meta.json`; None where there is no such file.

    Raises:
        UserError: it cannot be read.
    """
    path = folder / SETTINGS_NAME
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict) or not {"kind", "end_token", "normalization"} <= settings.keys():
            raise ValueError("no kind, end token or normalization")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} does not hold a tokenizer's settings ({error}); tokenize again.") from None
    return settings


def _read(kind: str, path: Path, end_token: str | None, cut_at: str, num_threads: int | None) -> Tokenizer:
    if kind == "file":
        from jax_diversity.tokenization.tokenizer_json import load_tokenizer

        return load_tokenizer(path, end_token)
    from jax_diversity.tokenization.sentencepiece_model import (
        SentencePieceTokenizer,
        TensorflowTextTokenizer,
        read_model,
    )

    make = SentencePieceTokenizer if kind == "sentencepiece" else TensorflowTextTokenizer
    return make(read_model(path, end_token), num_threads, cut_at)


def _normalized(texts: Iterable[str], form: str) -> Iterator[str]:
    for text in texts:
        yield from [text] if form == "none" else normalize_texts([text], form)
