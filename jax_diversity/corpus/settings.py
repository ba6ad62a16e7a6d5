"""The settings of the stage `prepare`: which documents there are."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal

from jax_diversity.foundation.checks import check_at_least
from jax_diversity.foundation.errors import UserError

PYTHON_ENVIRONMENT = "python-environment"
"""The word in `paths` for the installed Python packages."""

TextFormat = Literal["jsonl", "parquet", "text", "html", "latex", "mediawiki", "stack_exchange", "warc"]
Format = Literal["auto", TextFormat, "chat", "code", "megatron", "tokens"]


@dataclass(frozen=True)
class CorpusConfig:
    """Which documents, and which of their fields are what."""

    paths: tuple[str, ...] = ()
    """Files or globs (local or any fsspec address, `gs://bucket/*.jsonl.gz`), or the word `python-environment`
    for the modules, docstrings, READMEs and licences of the installed Python packages."""
    format: Format = "auto"
    """What the files are; `auto` goes by their names. `chat`: JSONL or Parquet files that hold turns; `code`: files of
    text, each with its licence in the field `licence`. Some give raw text for a step of preparation: `html` and `warc`
    (crawls) for the step html, `latex` (files, or archives as arXiv ships them), `mediawiki` (XML dumps of wikis) and
    `stack_exchange` (a site's Posts.xml) for the steps of these names. `megatron`: prefixes of .bin and .idx files, or
    globs of them; `tokens`: JSONL, Parquet or ArrayRecord files that hold token ids in `tokens_field`. Both go with
    tokenizer.kind `stored`."""
    chat_template: str = "chatml"
    """How turns become one text (format `chat`): chatml, llama-3, alpaca, plain, or a YAML file with a pattern for
    each role."""
    text_field: str = "text"
    """The field that holds a document's text."""
    id_field: str | None = "id"
    """The field that holds its id; where absent, an id is made of file name and place."""
    source_field: str = "source"
    """The field that names where it comes from; where absent, the file's name serves."""
    language_field: str = "language"
    """The field that holds its language."""
    tokens_field: str = "tokens"
    """The field that holds a document's token ids (format `tokens`)."""
    array_record_tokens: Literal["example", "uint16", "int32", "uint32", "int64"] = "example"
    """What an ArrayRecord file's records are (format `tokens`): `example`, a tf.train.Example with the token ids as
    an int64 list in `tokens_field`; otherwise the bytes of a little-endian array of that type."""
    documents_begin: str | None = None
    """Text files hold several documents: one begins with each line in which this pattern (a regular expression) is
    found, such as `^ = [^=]` for an article of WikiText, or `\\S` where every line is one. None: a file is one."""
    title_field: str = "title"
    """The field that holds its title."""
    duplicate_ids: Literal["error", "rename"] = "error"
    """What to do when an id comes twice: stop, or append `#2`, `#3` ..."""
    strict: bool = False
    """Stop at the first broken record instead of counting it and going on."""
    max_bytes: int | None = None
    """Keep a part of the corpus of about this many bytes of text, chosen by a hash of the documents' ids
    (python-environment) or from the start (files). A token that came with the corpus counts as four bytes."""
    file_bytes: int = 16 * 2**20
    """Text bytes (and four for a token that came along) in a stored file of documents; also what is held in memory
    at a time."""

    def check(self) -> None:
        """Refuse settings that no corpus could satisfy, with a `UserError`."""
        if not self.paths:
            raise UserError(
                "Expected corpus.paths to name files or `python-environment`, found nothing; "
                "pass --corpus.paths 'texts/*.jsonl.gz'."
            )
        check_at_least(1, "corpus", self, "max_bytes", "file_bytes")
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
            from jax_diversity.corpus.readers.chat_template import load_template

            load_template(self.chat_template)
        elif self.chat_template != type(self).chat_template:
            raise UserError(
                f"Expected corpus.chat_template with corpus.format=chat only, found {self.chat_template!r} with "
                f"{self.format}; leave it out, or set the format."
            )

    def made_of(self) -> dict[str, Any]:
        """The settings that decide the documents; a template and a pattern only where they are read."""
        settings = dataclasses.asdict(self)
        if self.format != "chat":
            del settings["chat_template"]
        if self.documents_begin is None:
            del settings["documents_begin"]
        return settings
