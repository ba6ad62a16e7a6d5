"""The settings of the stage `prepare`: files, formats and fields of the corpus."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal

from jax_diversity.foundation.checks import check_at_least
from jax_diversity.foundation.errors import UserError

PYTHON_ENVIRONMENT = "python-environment"
"""The word in `paths` for the installed Python packages."""

SECONDS_PER_DOCUMENT = 60.0
"""The default time limit in seconds for reading a document, and for each step of preparation of a document."""

TextFormat = Literal["jsonl", "parquet", "csv", "text", "html", "latex", "mediawiki", "stack_exchange", "warc"]
Format = Literal["auto", TextFormat, "chat", "code", "megatron", "tokens"]


_OF_BARE_TOKENS = ("end_id", "start_id", "dtype")
"""The settings for files of token ids alone."""


@dataclass(frozen=True)
class CorpusConfig:
    """The files of the corpus, and the meaning of their fields."""

    paths: tuple[str, ...] = ()
    """Files, globs or folders (local or any fsspec address, `gs://bucket/*.jsonl.gz`), or the word `python-environment`
    for the modules, docstrings, READMEs and licences of the installed Python packages. A folder means all files in it
    and in its folders, without hidden ones."""
    format: Format = "auto"
    """The format of the files; `auto` decides by their names. `csv`: tables; the first line names the columns, which
    become fields. `chat`: JSONL, Parquet or CSV files of turns, and texts beside them; `code`: text files, each with
    its licence in the field `licence`. Some formats give raw text for a step of preparation: `html`
    and `warc` (crawls) for the step html; `latex` (files, or archives of arXiv), `mediawiki` (XML dumps of wikis) and
    `stack_exchange` (a site's Posts.xml) for the steps of the same names. `megatron`: prefixes of .bin and .idx files,
    or globs of them; `tokens`: JSONL, Parquet or ArrayRecord files with token ids in `tokens_field`, or files of token
    ids alone (`.ds`, `.npy`, `.bin` of nanoGPT and llm.c). Both need tokenizer.kind `stored`."""
    chat_template: str = "chatml"
    """The template that joins turns (format `chat`): the folder of a tokenizer with a chat template, a `.jinja` file,
    a YAML file with a pattern for each role, or a built-in one: chatml, llama-3, alpaca, plain, qwen-2.5, qwen-3,
    mistral, deepseek, gemma, llama-3.1."""
    text_field: str = "text"
    """The field of a document's text. `meta.text` is the field `text` of the field `meta`; the next names too."""
    id_field: str | None = "id"
    """The field of a document's id. Without it, the id consists of the file's name and the document's place."""
    source_field: str = "source"
    """The field of a document's source. Without it, the source is the file's name, or its folder's if the
    name only numbers the file (`00000.jsonl`, `part-0001.jsonl`), or that of a split in several
    folders (`web/train.bin`, `code/train.bin`)."""
    language_field: str = "language"
    """The field of a document's language."""
    tokens_field: str = "tokens"
    """The field of a document's token ids (format `tokens`)."""
    array_record_tokens: Literal["example", "uint16", "int32", "uint32", "int64"] = "example"
    """The records of an ArrayRecord file (format `tokens`): `example`, a tf.train.Example with the token ids as an
    int64 list in `tokens_field`; otherwise the bytes of a little-endian array of this type."""
    end_id: int | None = None
    """The token that ends every document in files of token ids alone (format `tokens`). Without it, the index beside a
    `.ds` or `.npy` file is read, or the header of llm.c."""
    start_id: int | None = None
    """The token that begins every document in files of token ids alone."""
    dtype: Literal["uint16", "uint32", "int32"] | None = None
    """The type in files of token ids alone; by default it is recognised."""
    documents_begin: str | None = None
    """A regular expression for text files with several documents: a document begins with each matching line, such as
    `^ = [^=]` for an article of WikiText, or `\\S` for every line. Without it, each file is one document."""
    title_field: str = "title"
    """The field of a document's title."""
    duplicate_ids: Literal["error", "rename"] = "error"
    """The action for a repeated id: stop with an error, or append `#2`, `#3` ..."""
    keep_markup: bool = False
    """Tokenize documents of HTML, wiki markup or XML as they are. Otherwise a corpus of which a tenth is such markup is
    refused, and a hundredth gives a warning."""
    strict: bool = False
    """Stop at the first broken record instead of counting and skipping it."""
    max_bytes: int | None = None
    """Keep about this many bytes of text. In files, the first documents are kept. In python-environment, documents are
    chosen by a hash of their ids. In a corpus of tokens, a token counts as four bytes."""
    file_bytes: int = 16 * 2**20
    """Number of text bytes (and four bytes for each token of a corpus of tokens) in a stored file of documents.
    About this amount of text is also in memory at a time."""

    def check(self) -> None:
        """Raise a `UserError` for settings that do not fit together."""
        if not self.paths:
            raise UserError(
                "Expected corpus.paths to name files or `python-environment`, found nothing; "
                "pass --corpus.paths 'texts/*.jsonl.gz'."
            )
        check_at_least(1, "corpus", self, "max_bytes", "file_bytes")
        for name in _OF_BARE_TOKENS:
            if getattr(self, name) is not None and self.format != "tokens":
                raise UserError(
                    f"Expected corpus.{name} with corpus.format=tokens only, found it with {self.format}; leave it "
                    "out, or set the format."
                )
        if self.documents_begin is not None:
            if self.format not in ("auto", "text"):
                raise UserError(
                    f"Expected corpus.documents_begin with corpus.format=text only, found it with {self.format}; leave "
                    "it out, or set the format."
                )
            try:
                re.compile(self.documents_begin)
            except re.error as error:
                raise UserError(
                    f"Expected corpus.documents_begin to be a regular expression, found {self.documents_begin!r}: "
                    f"{error}."
                ) from None
        if self.format == "chat":
            from jax_diversity.preparation.readers.chat_template import load_template

            load_template(self.chat_template)
        elif self.chat_template != type(self).chat_template:
            raise UserError(
                f"Expected corpus.chat_template with corpus.format=chat only, found {self.chat_template!r} with "
                f"{self.format}; leave it out, or set the format."
            )

    def made_of(self) -> dict[str, Any]:
        """Return the settings that decide the documents. A template or a pattern is included only if it is used."""
        settings = dataclasses.asdict(self)
        del settings["keep_markup"]  # it changes no document
        if self.format != "chat":
            del settings["chat_template"]
        for name in ("documents_begin", *_OF_BARE_TOKENS):
            if settings[name] is None:
                del settings[name]
        return settings
