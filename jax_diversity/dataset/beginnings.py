"""Documents' beginnings as text: what embeddings and clusters' names are made from.

Beginnings are measured in the dataset's own tokens. A document that is no longer than asked for comes as its own
text; of a longer one the first tokens are decoded. A corpus that was given as tokens may lack the texts: all of its
documents are decoded then. Where it came without a tokenizer too, token ids stand for words (`t17 t4 ...`), and
texts, if there are any, are cut at the same share of their characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int64

from jax_diversity.foundation.errors import UserError

if TYPE_CHECKING:
    from jax_diversity.corpus.store import DocumentStore
    from jax_diversity.token_store.megatron import TokenStore
    from jax_diversity.tokenization.base import Tokenizer


class Beginnings:
    """The first `max_tokens` tokens of documents as text, a stored file at a time."""

    def __init__(
        self,
        documents: DocumentStore,
        tokens: TokenStore,
        max_tokens: int,
        *,
        has_text: bool,
        end_id: int,
        tokenizer: Callable[[], Tokenizer | None],
    ) -> None:
        self.max_tokens = max_tokens
        self._documents, self._tokens, self._has_text, self._end_id = documents, tokens, has_text, end_id
        self._tokenizer = tokenizer  # asked for when a document is longer than its beginning: loading it takes time
        self._lengths: Int64[np.ndarray, " document"] = tokens.document_lengths
        # The stored files of documents, and the number of documents in all of them.
        self.paths, self.num_documents = self._documents.paths, len(self._lengths)
        if self._documents.num_documents != len(self._lengths):
            raise UserError(
                f"Expected tokens of {self._documents.num_documents} stored documents, found tokens "
                f"of {len(self._lengths)}; run `jax-diversity tokenize` again."
            )
        self._first_documents = dict(zip(self.paths, self._documents.first_documents[:-1].tolist(), strict=True))

    def first_document(self, path: Path) -> int:
        """The index of a file's first document."""
        return self._first_documents[path]

    def of_file(self, path: Path, wanted: Bool[np.ndarray, " document"] | None = None) -> Iterator[list[str]]:
        """The beginnings of one file's documents, in lists of at most 1,000; `wanted` is over the whole corpus."""
        first = self._first_documents[path]
        for texts in self._documents.texts(path):
            places = np.arange(len(texts)) if wanted is None else np.flatnonzero(wanted[first : first + len(texts)])
            yield [self._beginning(texts[place], first + place) for place in places.tolist()]
            first += len(texts)

    def _beginning(self, text: str, document_index: int) -> str:
        num_tokens = int(self._lengths[document_index])
        # The text itself, not its decoded tokens: a tokenizer may have normalized it, which loses characters.
        if self._has_text and num_tokens <= self.max_tokens:
            return text
        tokenizer = self._tokenizer()
        if self._has_text and tokenizer is None:
            return text[: len(text) * self.max_tokens // num_tokens]
        tokens = self._tokens.document(document_index)[: self.max_tokens]
        if tokenizer is not None:
            return tokenizer.decode(tokens)
        return " ".join([f"t{token}" for token in tokens.tolist() if token != self._end_id])
