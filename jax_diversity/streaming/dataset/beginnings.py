"""The beginnings of documents as text, for embeddings and for the names of clusters.

The beginning of a document is its first characters, up to a limit. If a corpus of tokens has no texts, the first tokens
of its documents are decoded. Without a tokenizer, token ids replace words (`t17 t4 ...`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool

from jax_diversity.foundation.errors import UserError

if TYPE_CHECKING:
    from jax_diversity.schema.document_store import DocumentStore
    from jax_diversity.sequences.token_store.megatron import TokenStore
    from jax_diversity.sequences.tokenization.base import Tokenizer


_CHARACTERS_PER_TOKEN = 4


class Beginnings:
    """The first characters of documents, at most `max_characters` each, one stored file at a time."""

    def __init__(
        self,
        documents: DocumentStore,
        tokens: TokenStore,
        max_characters: int,
        *,
        has_text: bool,
        end_id: int,
        tokenizer: Callable[[], Tokenizer | None],
    ) -> None:
        self.max_characters = max_characters
        self._documents, self._tokens, self._has_text, self._end_id = documents, tokens, has_text, end_id
        self._tokenizer = tokenizer  # called when a document is decoded: loading it takes time
        # The stored files of documents, and the number of documents in all of them.
        self.paths, self.num_documents = self._documents.paths, self._documents.num_documents
        if self.num_documents != tokens.num_documents:
            raise UserError(
                f"Expected tokens of {self.num_documents} stored documents, found tokens of {tokens.num_documents}; "
                "run `jax-diversity tokenize` again."
            )
        self._first_documents = dict(zip(self.paths, self._documents.first_documents[:-1].tolist(), strict=True))

    def first_document(self, path: Path) -> int:
        """Return the index of the first document of a file."""
        return self._first_documents[path]

    def of_file(self, path: Path, is_wanted: Bool[np.ndarray, " document"] | None = None) -> Iterator[list[str]]:
        """Yield the beginnings of the documents of one file, in lists of at most 1,000.

        `wanted` has one entry for each document of the whole corpus, not only of this file.
        """
        first = self._first_documents[path]
        for texts in self._documents.texts(path, self.max_characters):
            places = (
                np.arange(len(texts)) if is_wanted is None else np.flatnonzero(is_wanted[first : first + len(texts)])
            )
            yield [texts[place] if self._has_text else self._decoded(first + place) for place in places.tolist()]
            first += len(texts)

    def _decoded(self, document_index: int) -> str:
        tokens, tokenizer = self._tokens.document(document_index), self._tokenizer()
        num_tokens = self.max_characters // _CHARACTERS_PER_TOKEN + 1
        while True:  # usually one pass; only the needed part of a long document is decoded
            part = tokens[:num_tokens]
            if tokenizer is None:
                text = " ".join([f"t{token}" for token in part.tolist() if token != self._end_id])
            else:
                text = tokenizer.decode(part)
            if len(text) >= self.max_characters or num_tokens >= len(tokens):
                return text[: self.max_characters]
            num_tokens *= 2
