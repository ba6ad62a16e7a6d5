"""Documents' beginnings as text: what embeddings and clusters' names are made from.

Beginnings are measured in the dataset's own tokens. A document that is no longer than asked for comes as its own
text; of a longer one the first tokens are decoded. A corpus that was given as tokens may lack the texts: all of its
documents are decoded then. Where it came without a tokenizer too, token ids stand for words (`t17 t4 ...`), and
texts, if there are any, are cut at the same share of their characters.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int64

from jax_diversity.errors import UserError
from jax_diversity.pipeline.context import Context

if TYPE_CHECKING:
    from jax_diversity.token_store import TokenStore
    from jax_diversity.tokenization import Tokenizer


def document_beginnings(context: Context, max_tokens: int) -> Iterator[list[str]]:
    """Every document's first `max_tokens` tokens as text, in stored order, in lists of at most 1,000 documents.

    Needs the stages `prepare` and `tokenize`.

    Raises:
        UserError: stored files that are absent or damaged, or that do not belong together.
    """
    beginnings = Beginnings(context, max_tokens)
    for path in beginnings.paths:
        yield from beginnings.of_file(path)


class Beginnings:
    """Documents' beginnings, a stored file at a time.

    Args:
        context: of a build whose stages `prepare` and `tokenize` are finished.
        max_tokens: first tokens of a document that are read.

    Raises:
        UserError: stored files that are absent or damaged, or that do not belong together.

    Example:
        >>> beginnings = Beginnings(context, max_tokens=1024)
        >>> for path in beginnings.paths:
        ...     for texts in beginnings.of_file(path):
        ...         embedder.embed(texts)
    """

    def __init__(self, context: Context, max_tokens: int) -> None:
        from jax_diversity import corpus

        self.max_tokens = max_tokens
        self.paths: list[Path] = corpus.document_paths(context.root / "documents")
        self._context = context
        self._end_id = context.counts("tokenize").get("end_id")
        self._has_text: bool = context.counts("prepare").get("has_text", True)
        self._tokens: TokenStore = context.dataset.tokens
        self._lengths: Int64[np.ndarray, " document"] = self._tokens.document_lengths
        num_documents = [corpus.read_columns([path], ["source"]).num_rows for path in self.paths]
        if sum(num_documents) != len(self._lengths):
            raise UserError(
                f"Expected tokens of {sum(num_documents)} stored documents in {context.root}, found tokens of "
                f"{len(self._lengths)}; run `jax-diversity tokenize` again."
            )
        starts = np.cumsum([0, *num_documents[:-1]]).tolist()
        self._first_documents: dict[Path, int] = dict(zip(self.paths, starts, strict=True))

    @property
    def num_documents(self) -> int:
        """Documents in all files."""
        return len(self._lengths)

    def first_document(self, path: Path) -> int:
        """The index of a file's first document."""
        return self._first_documents[path]

    def of_file(self, path: Path, wanted: Bool[np.ndarray, " document"] | None = None) -> Iterator[list[str]]:
        """The beginnings of one file's documents, in lists of at most 1,000.

        Args:
            path: one of `paths`.
            wanted: over all documents of the corpus, those to give; the others are left out. None gives all.
        """
        from jax_diversity import corpus

        first = self._first_documents[path]
        for texts in corpus.read_texts(path):
            places = np.arange(len(texts)) if wanted is None else np.flatnonzero(wanted[first : first + len(texts)])
            yield [self._beginning(texts[place], first + place) for place in places.tolist()]
            first += len(texts)

    def _beginning(self, text: str, document_index: int) -> str:
        num_tokens = int(self._lengths[document_index])
        if self._has_text and num_tokens <= self.max_tokens:
            return text
        if self._has_text and self._tokenizer is None:
            return text[: len(text) * self.max_tokens // num_tokens]
        tokens = self._tokens.document(document_index)[: self.max_tokens]
        if self._tokenizer is not None:
            return self._tokenizer.decode(tokens)
        return " ".join([f"t{token}" for token in tokens.tolist() if token != self._end_id])

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        from jax_diversity import tokenization

        folder = self._context.root / "tokens"
        return tokenization.load_saved(folder) if any(folder.glob("tokenizer.*")) else None
