"""Functions that make the tokenizer of the settings, or load the stored tokenizer of a dataset.

The functions import the libraries when they are called: a library takes time and memory, and a build needs only one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.tokenization.base import SETTINGS_NAME, Tokenizer
from jax_diversity.sequences.tokenization.settings import AddedTokens, TokenizerConfig
from jax_diversity.sequences.tokenization.tensorflow_text import normalize_texts

_FILE_NAMES = {"file": "tokenizer.json", "sentencepiece": "tokenizer.model", "tensorflow-text": "tokenizer.model"}


def make_tokenizer(
    config: TokenizerConfig, training_texts: Iterable[str] = (), num_threads: int | None = None
) -> Tokenizer:
    """Make the tokenizer of the settings; `training_texts` are read once, only for the kind `bpe`.

    `num_threads` is the number of threads that encode, if the library has this choice; None means all cores.
    """
    if config.kind in ("bpe", "bytes"):
        from jax_diversity.sequences.tokenization.tokenizer_json import byte_tokenizer, train_bpe

        if config.kind == "bytes":
            tokenizer: Tokenizer = byte_tokenizer(config.start_token)
        else:
            form = config.normalization
            texts = training_texts if form == "none" else (normalize_texts([text], form)[0] for text in training_texts)
            tokenizer = train_bpe(texts, config.vocab_size, config.start_token)
    else:
        marks = (config.end_token, config.start_token)
        tokenizer = _read(config.kind, Path(config.path or ""), marks, config.cut_at, num_threads, config.added_tokens)
    return tokenizer.with_normalization(config.normalization)


def load_saved(folder: str | Path, num_threads: int | None = None) -> Tokenizer:
    """Load the tokenizer that `Tokenizer.save` wrote into a folder, such as a dataset's `tokens/`.

    Args:
        folder: contains tokenizer.json or tokenizer.model, and tokenizer.meta.json.
        num_threads: see `make_tokenizer`.

    Raises:
        UserError: the tokenizer is absent or cannot be read, or its library is not installed.
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
    marks = (settings["end_token"], settings.get("start_token"))
    added = settings.get("added_tokens", "text")
    tokenizer = _read(settings["kind"], path, marks, settings.get("cut_at", "blanks"), num_threads, added)
    return tokenizer.with_normalization(settings["normalization"])


def load_unchanged(folder: str | Path) -> Tokenizer | None:
    """Load the tokenizer that an unfinished build left in a folder; None if a new tokenizer must be made."""
    # A build continues in a folder only with the same settings, tokenizer file and version of `tokenizers`. Ids may
    # also change with the versions of the optional libraries; only the settings of the tokenizer record these versions.
    try:
        recorded = _read_settings(Path(folder))
        tokenizer = None if recorded is None else load_saved(folder)
    except UserError:  # damaged
        return None
    return tokenizer if tokenizer is not None and tokenizer.settings == recorded else None


def _read_settings(folder: Path) -> dict[str, Any] | None:
    """Read `tokenizer.meta.json`; None if there is no such file."""
    path = folder / SETTINGS_NAME
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict) or not {"kind", "end_token", "normalization"} <= settings.keys():
            raise ValueError("no kind, end token or normalization")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} does not contain a tokenizer's settings ({error}); tokenize again.") from None
    return settings


def _read(
    kind: str,
    path: Path,
    marks: tuple[str | None, str | None],
    cut_at: str,
    num_threads: int | None,
    added_tokens: AddedTokens,
) -> Tokenizer:
    """Read the tokenizer of a file; `marks` are the end token and the start token."""
    if kind == "file":
        from jax_diversity.sequences.tokenization.tokenizer_json import load_tokenizer

        return load_tokenizer(path, *marks, added_tokens)
    from jax_diversity.sequences.tokenization import sentencepiece_model as models

    make = models.SentencePieceTokenizer if kind == "sentencepiece" else models.TensorflowTextTokenizer
    return make(models.read_model(path, *marks), num_threads, cut_at)
