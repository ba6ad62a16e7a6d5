"""The settings of the stage `tokenize`: which tokenizer makes the tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from jax_diversity.foundation.checks import as_whole_number, check_at_least
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.libraries import check_installed
from jax_diversity.foundation.settings import adopt_settings
from jax_diversity.sequences.tokenization.tiktoken_files import check_format

_TOKEN_FORMATS = ("megatron", "tokens")
"""Corpus formats that contain tokens."""
Kind = Literal["bpe", "bytes", "file", "sentencepiece", "tensorflow-text", "stored"]
"""The kinds of tokenizers."""
AddedTokens = Literal["text", "tokens"]
"""What the names of added tokens in texts become."""
_MODEL_KINDS = ("sentencepiece", "tensorflow-text")
_FILE_KINDS = ("file", *_MODEL_KINDS)
_LARGEST_VOCABULARY = 2**24
"""Before it trains, the `tokenizers` library reserves memory for the whole vocabulary; if it does not get this memory,
it ends the process. With more tokens, the embedding of a model would have billions of weights."""


def tokenizer_files(path: str | Path) -> tuple[Path, ...]:
    """Return the file `tokenizer.path`, and for GPT-2's `*vocab.json` also the `*merges.txt` in the same folder.

    For a folder, such as that of a model, the file is its tokenizer.json.
    """
    path = Path(path)
    if path.is_dir():
        path /= "tokenizer.json"
    if not path.name.endswith("vocab.json"):
        return (path,)
    return path, path.with_name(path.name.removesuffix("vocab.json") + "merges.txt")


def _only_for(kinds: tuple[str, ...], default: Any, advice: str) -> Any:
    """Make a field that only some kinds of tokenizers use; `advice` is for the error if another kind sets it."""
    return field(default=default, metadata={"kinds": kinds, "advice": advice})


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes token ids."""

    kind: Kind = "bpe"
    """`bpe` trains byte-level BPE on the corpus; with a `path` it becomes `file` or, for a .model, `sentencepiece`, and
    with a corpus of tokens `stored`. `bytes` uses UTF-8 bytes. `file` reads a tokenizer.json or a
    vocab.json with its merges.txt. `sentencepiece` and `tensorflow-text` read a SentencePiece model, each with the
    library of that name. `stored` means that the corpus consists of tokens."""
    path: str | None = _only_for(
        (*_FILE_KINDS, "stored"),
        None,
        "set tokenizer.kind=file for a tokenizer.json or vocab.json, sentencepiece or tensorflow-text for a .model, "
        "or leave the path out",
    )
    """For kind `file`, the tokenizer.json or a folder that contains it, or GPT-2's `*vocab.json` with its `*merges.txt`
    in the same folder. For the kinds `sentencepiece` and `tensorflow-text`, the SentencePiece model. For kind `stored`,
    optionally a file as for kind `file`; that tokenizer turns tokens into text for embeddings and reports."""
    end_token: str | None = _only_for(
        (*_FILE_KINDS, "stored"), None, "leave the setting out: trained BPE and bytes have their own end token"
    )
    """The end-of-document token, for a tokenizer from `path`; by default the usual names are tried."""
    start_token: str | None = _only_for(
        ("bpe", "bytes", *_FILE_KINDS),
        None,
        "leave the setting out: a corpus's own tokens are stored as they are",
    )
    """The token that starts every document, such as `<s>`. Without it, documents have only an end token. `bpe` and
    `bytes` add the start token to their vocabulary; a tokenizer from `path` must have it."""
    end_id: int | None = _only_for(("stored",), None, "leave it out, or name the token in tokenizer.end_token")
    """The id of the end-of-document token (kind `stored`); by default the id that ends nearly all documents."""
    vocab_size: int = _only_for(
        ("bpe",), 16_384, "leave the setting out: only a tokenizer that is trained has a size to choose"
    )
    """Vocabulary size of a trained BPE, including the end token and, if there is one, the start token."""
    train_bytes: int = _only_for(("bpe",), 16 * 2**20, "leave the setting out: only bpe is trained")
    """Number of bytes of text that BPE is trained on, taken evenly from the whole corpus."""
    normalization: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = _only_for(
        ("bpe", "bytes", *_FILE_KINDS),
        "none",
        "leave the setting out: a corpus of tokens is stored as it is",
    )
    """Unicode normalisation of the text before tokenization, by tensorflow-text; not for kind `stored`."""
    added_tokens: Literal["text", "tokens"] = _only_for(("file",), "text", "leave the setting out")
    """The names of tokens that were added to a tokenizer.json, such as the marks of chats or of code to fill in: in
    texts they stay `text`, or become `tokens`, as the file says. Added runs of spaces are tokens in both cases."""
    cut_at: Literal["blanks", "sentences"] = _only_for(_MODEL_KINDS, "blanks", "leave the setting out")
    """Where long texts are cut into pieces (SentencePiece models): before a blank (a space), or after a sentence.
    tensorflow-text finds the sentences."""

    def kind_for(self, corpus_format: str) -> Kind:
        """Return the kind, which follows from the corpus and from `path` if it is `bpe`, the default.

        A corpus of tokens has the kind `stored`; a path that ends in .model has `sentencepiece`, another path `file`.
        """
        if self.kind != "bpe":
            return self.kind
        if corpus_format in _TOKEN_FORMATS:
            return "stored"
        if self.path:
            return "sentencepiece" if self.path.endswith(".model") else "file"
        return self.kind

    def check(self, reads_files: bool = True) -> None:
        """Check the settings; a `UserError` if they cannot be used with any corpus.

        `reads_files` is False if the tokenizer comes from another dataset: then the file in `path` need not exist.
        """
        check_at_least(1, "tokenizer", self, "train_bytes")
        for setting in fields(self):
            # A default value is accepted with every kind, because settings do not record whether a value was given.
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
        if reads_files and self.path:
            check_format(tokenizer_files(self.path)[0])
        if self.kind == "tensorflow-text" or self.normalization != "none":
            check_installed("tensorflow_text", "tensorflow-text")
        elif self.kind == "sentencepiece":
            check_installed("sentencepiece", "sentencepiece")
        if not reads_files:
            return
        if self.kind in _MODEL_KINDS:
            self._check_file("a SentencePiece model")
        elif self.kind == "file":
            self._check_file("a tokenizer.json or vocab.json")
        elif self.kind == "stored":
            self._check_stored()

    def adopt(self, other: TokenizerConfig, corpus_format: str) -> TokenizerConfig:
        """Return the settings of the dataset in `features_from`, whose tokenizer makes the tokens of this corpus.

        Raises:
            UserError: the corpus has texts, but that dataset has no tokenizer; the corpus has tokens, but that dataset
                was made from texts; or the settings differ from the settings of that dataset.
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
        return adopt_settings("tokenizer", self, other)

    def check_corpus(self, corpus_format: str, has_environment: bool) -> None:
        """Check that the kind is `stored` if, and only if, the corpus contains tokens."""
        if (corpus_format in _TOKEN_FORMATS) != (self.kind == "stored"):
            raise UserError(
                f"Expected tokenizer.kind=stored with corpus.format=megatron or tokens and with no other format, found "
                f"{self.kind} with {corpus_format}; set tokenizer.kind=stored if the corpus contains tokens, "
                "and another kind if it contains texts."
            )
        if self.kind == "stored" and has_environment:
            raise UserError(
                f"Expected files of tokens with corpus.format={corpus_format}, found python-environment, which "
                "contains texts; leave it out of corpus.paths."
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
        if Path(self.path).is_dir():
            if self.kind in _MODEL_KINDS:
                raise UserError(
                    f"Expected tokenizer.path to be {what}, found a folder at {self.path}; name the .model file in it."
                )
            if not tokenizer_files(self.path)[0].is_file():
                raise UserError(
                    f"Expected tokenizer.path to be {what}, found the folder {self.path} without a tokenizer.json; "
                    "name another file of a tokenizer, such as a vocab.json or a .model."
                )
        elif "://" in self.path or not Path(self.path).is_file():
            advice = "name a local file that exists"
            if not Path(self.path).suffix and "://" not in self.path:  # such as gpt2, a name of the Hugging Face Hub
                advice = f"get it with `hf download {self.path} tokenizer.json --local-dir .`, and name that file"
            raise UserError(f"Expected tokenizer.path to be {what}, found no file at {self.path}; {advice}.")
        for file in () if self.kind in _MODEL_KINDS else tokenizer_files(self.path)[1:]:
            if not file.is_file():
                raise UserError(
                    f"Expected {file.name} beside {self.path}, found no such file; a vocabulary alone does "
                    "not define how words become tokens. Put both files of the tokenizer into one folder."
                )
