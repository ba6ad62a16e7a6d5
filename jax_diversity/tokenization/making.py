"""The tokenizer that the settings ask for, and the one that a dataset's folder holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.tokenization.saving import read_settings
from jax_diversity.tokenization.settings import TokenizerConfig

if TYPE_CHECKING:
    from jax_diversity.tokenization.base import Tokenizer


def make_tokenizer(
    config: TokenizerConfig, training_texts: Iterable[str] = (), num_threads: int | None = None
) -> Tokenizer:
    """The tokenizer that the settings ask for.

    Args:
        config: its kind and what the kind needs.
        training_texts: what a `bpe` is trained on, read once; the other kinds leave it alone.
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
    if config.normalization != "none":
        training_texts = _each_normalized(training_texts, config.normalization)
    settings = {"kind": config.kind, "end_token": config.end_token, "cut_at": config.cut_at}
    if config.kind in ("bpe", "bytes"):
        from jax_diversity.tokenization.tokenizer_json import byte_tokenizer, train_bpe

        made = config.kind == "bytes"
        tokenizer: Tokenizer = byte_tokenizer() if made else train_bpe(training_texts, config.vocab_size)
    else:
        tokenizer = _read(settings, Path(config.path or ""), num_threads)
    return _normalized(tokenizer, config.normalization)


def load_saved(folder: str | Path, num_threads: int | None = None) -> Tokenizer:
    """The tokenizer that `Tokenizer.save` wrote into a folder, such as a dataset's `tokens/`.

    Args:
        folder: with tokenizer.json or tokenizer.model, and tokenizer.meta.json (a tokenizer.json alone will do).
        num_threads: as in `make_tokenizer`.

    Raises:
        UserError: no tokenizer there, or one that cannot be read; a library that is not installed.
    """
    folder = Path(folder)
    settings = read_settings(folder)
    if settings is None:
        if not (folder / "tokenizer.json").is_file():
            raise UserError(f"Expected a stored tokenizer in {folder}, found none; tokenize the corpus.")
        settings = {"kind": "file"}
    names = {"file": "tokenizer.json", "sentencepiece": "tokenizer.model", "tensorflow-text": "tokenizer.model"}
    if settings["kind"] not in names:
        raise UserError(
            f"Expected a stored tokenizer of kind {', '.join(names)} in {folder}, found {settings['kind']!r}; "
            "upgrade jax-diversity."
        )
    tokenizer = _read(settings, folder / names[settings["kind"]], num_threads)
    return _normalized(tokenizer, settings.get("normalization", "none"))


def load_saved_for(config: TokenizerConfig, folder: str | Path) -> Tokenizer | None:
    """The tokenizer that a folder holds, where it is what the settings ask for, made by the libraries of today.

    Which file `config.path` names, and what a BPE was trained on, is the caller's to know.

    Args:
        config: the settings.
        folder: a folder that `Tokenizer.save` may have written.

    Returns:
        None where the folder holds no tokenizer, or another one: of another kind, end token, normal form, place to
        cut, made by another version of its library, or one that cannot be read.
    """
    try:
        recorded = read_settings(Path(folder))
        if recorded is None or not _asks_for(config, recorded):
            return None
        tokenizer = load_saved(folder)
    except UserError:  # whoever makes the tokenizer anew finds it again, if it is still wrong then
        return None
    return tokenizer if tokenizer.settings == recorded else None


def _asks_for(config: TokenizerConfig, recorded: dict[str, Any]) -> bool:
    wanted = {
        "kind": "file" if config.kind in ("bpe", "bytes") else config.kind,
        "normalization": config.normalization,
    }
    if config.end_token is not None:
        wanted["end_token"] = config.end_token
    if wanted["kind"] != "file":
        wanted["cut_at"] = config.cut_at
    return wanted.items() <= recorded.items()


def _read(settings: dict[str, Any], path: Path, num_threads: int | None) -> Tokenizer:
    kind, end_token = settings["kind"], settings.get("end_token")
    if kind == "file":
        from jax_diversity.tokenization.tokenizer_json import load_tokenizer

        return load_tokenizer(path, end_token)
    from jax_diversity.tokenization.model_file import read_model

    model = read_model(path, end_token)
    cut = None
    if settings.get("cut_at") == "sentences":
        from jax_diversity.tokenization.tensorflow_text import sentence_ends as cut
    if kind == "sentencepiece":
        from jax_diversity.tokenization.sentencepiece_model import SentencePieceTokenizer

        return SentencePieceTokenizer(model, num_threads, cut)
    from jax_diversity.tokenization.tensorflow_text import TensorflowTextTokenizer

    return TensorflowTextTokenizer(model, num_threads, cut)


def _each_normalized(texts: Iterable[str], form: str) -> Iterator[str]:
    from jax_diversity.tokenization.tensorflow_text import normalize_texts

    for text in texts:
        yield from normalize_texts([text], form)


def _normalized(tokenizer: Tokenizer, form: str) -> Tokenizer:
    if form == "none":
        return tokenizer
    from jax_diversity.tokenization.tensorflow_text import NormalizedTokenizer

    return NormalizedTokenizer(tokenizer, form)
