"""The settings of the stage `tokenize`: which tokenizer makes the tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from jax_diversity.foundation.checks import as_whole_number, check_at_least
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.settings import adopt_settings

_TOKEN_FORMATS = ("megatron", "tokens")
"""Formats of corpora of tokens."""
_MODEL_KINDS = ("sentencepiece", "tensorflow-text")
_FILE_KINDS = ("file", *_MODEL_KINDS)
_LARGEST_VOCABULARY = 2**24
"""The `tokenizers` library reserves memory for the whole vocabulary before it trains, and ends the process if it does
not get it; a model's embedding of more tokens would have billions of weights."""


def tokenizer_files(path: str | Path) -> tuple[Path, ...]:
    """The files that `tokenizer.path` names: itself, and GPT-2's `*merges.txt` beside a `*vocab.json`."""
    path = Path(path)
    if not path.name.endswith("vocab.json"):
        return (path,)
    return path, path.with_name(path.name.removesuffix("vocab.json") + "merges.txt")


def _only_for(kinds: tuple[str, ...], default: Any, advice: str) -> Any:
    """A field that only some kinds of tokenizers use, and the advice if it is set with another kind."""
    return field(default=default, metadata={"kinds": kinds, "advice": advice})


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes token ids."""

    kind: Literal["bpe", "bytes", "file", "sentencepiece", "tensorflow-text", "stored"] = "bpe"
    """`bpe` trains byte-level BPE on the corpus, `bytes` takes UTF-8 bytes, `file` reads a tokenizer.json or a
    vocab.json with its merges.txt; `sentencepiece` and `tensorflow-text` read a SentencePiece model, each with the
    library of that name; `stored`: the corpus consists of tokens."""
    path: str | None = _only_for(
        (*_FILE_KINDS, "stored"),
        None,
        "set tokenizer.kind=file for a tokenizer.json or vocab.json, sentencepiece or tensorflow-text for a .model, "
        "or leave the path out",
    )
    """The tokenizer.json (kind `file`), or a `*vocab.json` with its `*merges.txt` beside it, as GPT-2 has them; or
    the SentencePiece model; for kind `stored`, optionally a tokenizer of the first two sorts that turns tokens into
    text for embeddings and reports."""
    end_token: str | None = _only_for(
        (*_FILE_KINDS, "stored"), None, "leave the setting out: trained BPE and bytes have their own end token"
    )
    """The end-of-document token of a tokenizer that `path` names; None looks for the usual names."""
    start_token: str | None = _only_for(
        ("bpe", "bytes", *_FILE_KINDS),
        None,
        "leave the setting out: a corpus's own tokens are stored as they are",
    )
    """The token that starts every document, such as `<s>`; None: documents have an end token alone. `bpe` and `bytes`
    add it to their vocabulary, a tokenizer that `path` names must have it."""
    end_id: int | None = _only_for(("stored",), None, "leave it out, or name the token in tokenizer.end_token")
    """The end-of-document token's id (kind `stored`); None takes the id that ends all documents."""
    vocab_size: int = _only_for(
        ("bpe",), 16_384, "leave the setting out: only a tokenizer that is trained has a size to choose"
    )
    """Vocabulary of a trained BPE, including the end token and, if there is one, the start token."""
    train_bytes: int = _only_for(("bpe",), 16 * 2**20, "leave the setting out: only bpe is trained")
    """Text bytes that BPE is trained on, spread evenly over the corpus."""
    normalization: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = _only_for(
        ("bpe", "bytes", *_FILE_KINDS),
        "none",
        "leave the setting out: a corpus of tokens is stored as it is",
    )
    """Unicode normalisation of the text before it is tokenised, by tensorflow-text; not for kind `stored`."""
    cut_at: Literal["blanks", "sentences"] = _only_for(_MODEL_KINDS, "blanks", "leave the setting out")
    """Where texts too long to be tokenised at once are cut (SentencePiece models): before a blank, or after a
    sentence, which tensorflow-text finds."""
    num_processes: int = 0
    """Processes that tokenise side by side; 0 takes one per core, or only this one if starting others would cost
    more than it saves. The result is the same."""

    def check(self, reads_files: bool = True) -> None:
        """Check the settings; a `UserError` if no corpus could satisfy them.

        `reads_files` is False if another dataset brings the tokenizer: the files in `path` may be gone.
        """
        check_at_least(1, "tokenizer", self, "train_bytes")
        check_at_least(0, "tokenizer", self, "num_processes")
        for setting in fields(self):
            # A default passes with every kind: settings do not record whether a value was given.
            kinds, value = setting.metadata.get("kinds", (self.kind,)), getattr(self, setting.name)
            if self.kind not in kinds and value != setting.default:
                raise UserError(
                    f"Expected tokenizer.{setting.name} with tokenizer.kind={' or '.join(kinds)} only, found {value!r} "
                    f"with {self.kind}; {setting.metadata['advice']}."
                )
        if self.start_token == "":
            raise UserError("Expected tokenizer.start_token to be the name of a token, such as '<s>', found ''.")
        least = 257 + (self.start_token is not None)
        if not least <= self.vocab_size <= _LARGEST_VOCABULARY:
            marks = "the end token" if self.start_token is None else "the start and the end token"
            raise UserError(
                f"Expected tokenizer.vocab_size >= {least} (256 bytes and {marks}) and <= {_LARGEST_VOCABULARY}, "
                f"found {self.vocab_size}."
            )
        if not reads_files:
            return
        if self.kind in _MODEL_KINDS:
            self._check_file("a SentencePiece model")
        elif self.kind == "file":
            self._check_file("a tokenizer.json or vocab.json")
        elif self.kind == "stored":
            self._check_stored()

    def adopt(self, other: TokenizerConfig, corpus_format: str) -> TokenizerConfig:
        """The settings of the dataset of `features_from`, whose tokenizer makes the tokens of a corpus in some format.

        Raises:
            UserError: texts where that dataset has no tokenizer, tokens where its tokens were made of texts; other
                settings than its own.
        """
        has_tokens = corpus_format in _TOKEN_FORMATS
        if has_tokens and other.kind != "stored":
            raise UserError(
                f"Expected texts for the tokenizer of the dataset of features_from, found "
                f"corpus.format={corpus_format}; name the texts in corpus.paths."
            )
        if not has_tokens and other.kind == "stored":
            if other.path is None:
                raise UserError(
                    "Expected a corpus of tokens (corpus.format=megatron or tokens), since the dataset of "
                    f"features_from was built from tokens and has no tokenizer, found corpus.format={corpus_format}; "
                    "use the documents' tokens, or build that dataset with tokenizer.path."
                )
            other = replace(other, kind="file", end_id=None)
        return adopt_settings("tokenizer", self, other, own=("num_processes",))

    def check_corpus(self, corpus_format: str, has_environment: bool) -> None:
        """Refuse a corpus of tokens without the kind `stored`, or `stored` with another corpus."""
        if (corpus_format in _TOKEN_FORMATS) != (self.kind == "stored"):
            raise UserError(
                f"Expected tokenizer.kind=stored with corpus.format=megatron or tokens and with no other, found "
                f"{self.kind} with {corpus_format}; set tokenizer.kind=stored where the corpus holds tokens, "
                "another kind where it holds texts."
            )
        if self.kind == "stored" and has_environment:
            raise UserError(
                f"Expected files of tokens with corpus.format={corpus_format}, found python-environment, which holds "
                "texts; leave it out of corpus.paths."
            )

    def _check_stored(self) -> None:
        if self.end_id is not None:
            as_whole_number("tokenizer.end_id", self.end_id, 0, 2**31 - 1)
        elif self.end_token is not None and self.path is None:
            raise UserError(
                f"Expected tokenizer.path with tokenizer.end_token, found {self.end_token!r} alone; name the "
                "tokenizer.json or vocab.json that has it, or set tokenizer.end_id."
            )
        if self.path is not None:
            self._check_file("the tokenizer.json or vocab.json that made the tokens")

    def _check_file(self, what: str) -> None:
        if not self.path:
            raise UserError(f"Expected tokenizer.path with tokenizer.kind={self.kind}, found nothing; name {what}.")
        if "://" in self.path or not Path(self.path).is_file():
            raise UserError(
                f"Expected tokenizer.path to be {what}, found no file at {self.path}; name a local one that exists."
            )
        for file in () if self.kind in _MODEL_KINDS else tokenizer_files(self.path)[1:]:
            if not file.is_file():
                raise UserError(
                    f"Expected {file.name} beside {self.path}, found no such file; a vocabulary alone does "
                    "not define how words become tokens: put both files of the tokenizer into one folder."
                )
