"""The contract of all embedders (texts to vectors), the methods by name, and the check of the vectors.

A method is a function that makes an embedder. `embedding.method=my_module:letters` chooses your own method:

    def letters(*, alphabet: str = "abc") -> Letters: ...

    class Letters:
        dimensions = 3

        def embed(self, texts: Sequence[str]) -> np.ndarray: ...  # float32 (text, dimension)
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.methods import Methods
from jax_diversity.foundation.own_functions import calling, find_function, source_file

METHODS = Methods(
    "embedding method",
    "jax_diversity.embedding",
    {"tfidf_svd": "tfidf_svd", "hashing": "hashing", "qwen3": "qwen3", "precomputed": "precomputed"},
    contract=frozenset({"texts", "stored", "document_ids", "max_tokens", "seed"}),
)
"""Name -> module below this package."""
CHARACTERS_PER_TOKEN = 16
"""Characters of a text for each token that an embedder reads. The average token is rarely longer, except in
ruled lines and tables of blanks, of which slightly less is read. Long texts are not read whole."""
_SETTING = "embedding.method"
MOST_DIMENSIONS = 8192
"""More dimensions would need gigabytes for the terms' directions; a few hundred describe a document's topic."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors.

    The same texts must give the same bits, and a text's vector should not depend on the texts beside it: an
    interrupted build continues with the next file of documents and must give the same result.
    """

    @property
    def dimensions(self) -> int:
        """Width of the vectors."""
        ...

    def embed(self, texts: Sequence[str]) -> Float32[np.ndarray, "document feature"]:
        """One vector per text, of any length; zeros for a text without known terms, never NaN or infinity.

        Args:
            texts: documents' beginnings, at least as long as the first `max_tokens` tokens of the embedder.
        """
        ...


class Method(Protocol):
    """Makes an embedder; only `precomputed` makes a `PrecomputedVectors` instead.

    A method may take these keyword parameters: `texts`, a function that returns the documents to fit on; `stored`, the
    path of the fitted state, None to keep nothing: if the file exists, it is loaded and nothing is fitted (write it
    under another name first, then rename it); `document_ids`, a function that returns all documents' ids in stored
    order; `max_tokens`; `seed`. All its other parameters are
    options. The module of a method that reads files has a function `input_files` with the same options, which checks
    them and returns the files.
    """

    def __call__(self, **given: Any) -> Embedder:
        """The embedder, ready to use."""
        ...


def check_method(method: str, options: Mapping[str, Any]) -> list[Path]:
    """Check the method, its options and the files that it reads, without loading anything large.

    Returns the files besides the corpus that the vectors depend on, sorted: a checkpoint, stored vectors, the source
    of a user's embedder and the files that its option `path` names.
    """
    _find(method, options)
    if ":" in method:
        # The file's content is hashed: after a change, the embedder makes other vectors under the same name.
        named = options.get("path")
        source = source_file(method)
        return ([] if source is None else [source]) + (files_at(named) if isinstance(named, str) and named else [])
    module = import_module(f"{METHODS.package}.{METHODS[method]}")
    if hasattr(module, "input_files"):
        return module.input_files(**options)
    make_embedder(method, options)  # quick, because there are no texts: every method checks the values of its options
    return []


def files_at(path: str) -> list[Path]:
    """The file at a path, or the visible files of the folder there; empty if there is nothing."""
    found = Path(os.path.expanduser(path))
    if not found.is_dir():
        return [found] if found.is_file() else []
    return sorted(file for file in found.iterdir() if file.is_file() and not file.name.startswith("."))


def make_embedder(
    method: str,
    options: Mapping[str, Any],
    *,
    max_tokens: int = 1024,
    seed: int = 0,
    texts: Callable[[], Sequence[str]] = list,
    stored: Path | None = None,
    document_ids: Callable[[], Sequence[str]] = list,
) -> Any:
    """The embedder of the settings, or the `PrecomputedVectors` of the method `precomputed`.

    Args:
        method: a name of `METHODS`, or `module:name` of your own.
        options: the method's own options.
        max_tokens: the number of first tokens of a document to read, by the embedder's tokenizer.
        seed: the seed of the random numbers.
        texts: returns the texts that an embedder is fitted on; called only if they are needed.
        stored: the file of the fitted state; None does not store it.
        document_ids: returns all documents' ids; called only if they are needed.

    Raises:
        UserError: an unknown method, one that does not make an embedder, or options that it does not have.

    Example:
        >>> make_embedder("hashing", {"dimensions": 64}).embed(["wind and sail"]).shape
        (1, 64)
    """
    contract = {"texts": texts, "stored": stored, "document_ids": document_ids}
    contract |= {"max_tokens": max_tokens, "seed": seed}
    make, taken = _find(method, options)
    with own_code(method):
        made = make(**options, **{name: contract[name] for name in taken})
    if ":" in method:
        if not isinstance(made, Embedder):
            raise UserError(
                f"Expected embedding.method={method} to make an object with `dimensions` and `embed`, found "
                f"{type(made).__name__}, which lacks them."
            )
        as_whole_number(f"`dimensions` of embedding.method={method}", made.dimensions, 1)
    return made


def own_code(method: str) -> AbstractContextManager[None]:
    """Turn errors of a user's embedder into a `UserError` that names their place."""
    # An error of this package's methods is a bug: it keeps its traceback.
    return calling(method, _SETTING, "embed the documents") if ":" in method else nullcontext()


def learns(method: str, options: Mapping[str, Any]) -> bool:
    """Return whether the method is fitted to the corpus before it embeds."""
    return "texts" in _find(method, options)[1]


def brings_vectors(method: str) -> bool:
    """Return whether the method's vectors are given for one corpus and cannot be made for other texts."""
    return ":" not in method and METHODS.takes(method, "document_ids")


def check_embedded(vectors: Any, num_texts: int, dimensions: int, name_document: Callable[[int], str]) -> None:
    """Check that there is one finite float32 row per text; `name_document` names a row's document in errors."""
    shape = (num_texts, dimensions)
    if not isinstance(vectors, np.ndarray) or vectors.shape != shape or vectors.dtype != np.float32:
        found = f"{vectors.dtype} {vectors.shape}" if isinstance(vectors, np.ndarray) else type(vectors).__name__
        raise UserError(
            f"Expected the embedder to give a float32 array of the shape (documents, dimensions) = {shape} for "
            f"{num_texts} documents from {name_document(0)} on, found {found}; repair its `embed` or `dimensions`."
        )
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise UserError(
            f"Expected finite vectors from the embedder, found NaN or infinity for {name_document(row)}; "
            "repair its `embed`."
        )


def _find(method: str, options: Mapping[str, Any]) -> tuple[Callable[..., Any], list[str]]:
    """The method's function, and the contract's parameters that it takes; the options are checked."""
    if ":" not in method:
        METHODS.check_settings(method, options)
        return METHODS.find(method), [*filter(METHODS.contract.__contains__, METHODS.parameters(method))]
    found = find_function(method, _SETTING)
    try:
        signature = inspect.signature(found)
        taken = [parameter for parameter in signature.parameters if parameter in METHODS.contract]
        signature.bind(**options, **dict.fromkeys(taken))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"Expected embedding.method={method} to be a function that makes an embedder and takes the "
            f"options {', '.join(options) or '(none)'}, found: {error}."
        ) from None
    return found, taken
