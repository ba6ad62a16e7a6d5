"""The contract of embedders, which turn texts into vectors; the methods by name; and the check of the vectors.

A method is a function that makes an embedder. `embedding.method=my_module:letters` chooses a method of your own:

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
    "jax_diversity.sequences.embedding",
    {"tfidf_svd": "tfidf_svd", "hashing": "hashing", "qwen3": "qwen3", "precomputed": "precomputed"},
    contract=frozenset({"texts", "stored", "document_ids", "max_tokens", "seed"}),
)
"""Maps the name of each method to its module in this package."""
CHARACTERS_PER_TOKEN = 16
"""Number of characters of a text that are read for each token of an embedder, so that long texts are not read whole.
Tokens are rarely longer on average, except in ruled lines and in tables of spaces; of such texts slightly less is
read."""
_SETTING = "embedding.method"
MOST_DIMENSIONS = 8192
"""With more dimensions, the directions of the terms would need gigabytes. A few hundred dimensions describe a topic."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors.

    The same texts must give the same bits, and the vector of a text should not depend on the other texts. The reason:
    an interrupted build continues with the next file of documents and must give the same result.
    """

    @property
    def dimensions(self) -> int:
        """Number of features of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> Float32[np.ndarray, "document feature"]:
        """Return one vector per text, never with NaN or infinity; zeros for a text without known terms.

        Vectors need not have length one.

        Args:
            texts: beginnings of documents, at least as long as the first `max_tokens` tokens of the embedder.
        """
        ...


class Method(Protocol):
    """Makes an embedder; only `precomputed` makes a `PrecomputedVectors` instead.

    A method may take these keyword parameters: `texts`, a function that returns the documents to fit on; `stored`, the
    path of the fitted state, or None if nothing is kept; `document_ids`, a function that returns the ids of all
    documents in stored order; `max_tokens`; `seed`. If the file `stored` exists, the method loads it and does not fit.
    The method writes this file under another name first and then renames it. All other parameters are options. If a
    method reads files, its module has a function `input_files` with the same options, which checks the options and
    returns the files.
    """

    def __call__(self, **settings: Any) -> Embedder:
        """Return an embedder that is ready to use."""
        ...


def check_method(method: str, options: Mapping[str, Any]) -> list[Path]:
    """Check the method, its options and the files that it reads, without loading anything large.

    Returns the files, besides the corpus, that the vectors depend on, sorted. They are a checkpoint, stored vectors, or
    the source of a user's embedder and the files that its option `path` names.
    """
    _find(method, options)
    if ":" in method:
        # The content of the source file is hashed, because after a change the embedder makes other vectors under the
        # same name.
        named = options.get("path")
        source = source_file(method)
        return ([] if source is None else [source]) + (files_at(named) if isinstance(named, str) and named else [])
    module = import_module(f"{METHODS.package}.{METHODS[method]}")
    if hasattr(module, "input_files"):
        return module.input_files(**options)
    make_embedder(method, options)  # checks the values of the options; fast, because there are no texts
    return []


def files_at(path: str) -> list[Path]:
    """Return the file at a path, or the visible files if the path is a folder; an empty list if nothing is there."""
    expanded = Path(os.path.expanduser(path))
    if not expanded.is_dir():
        return [expanded] if expanded.is_file() else []
    return sorted(file for file in expanded.iterdir() if file.is_file() and not file.name.startswith("."))


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
    """Make the embedder of the settings, or the `PrecomputedVectors` of the method `precomputed`.

    Args:
        method: a name of `METHODS`, or `module:name` for a method of your own.
        options: the options of the method.
        max_tokens: how many tokens to read from the beginning of a document; tokens of the embedder's tokenizer.
        seed: the seed of the random numbers.
        texts: returns the texts that an embedder is fitted on; called only if they are needed.
        stored: the file of the fitted state; None does not store it.
        document_ids: returns the ids of all documents; called only if they are needed.

    Raises:
        UserError: the method is unknown, does not make an embedder, or does not have these options.

    Example:
        >>> make_embedder("hashing", {"dimensions": 64}).embed(["wind and sail"]).shape
        (1, 64)
    """
    contract = {"texts": texts, "stored": stored, "document_ids": document_ids}
    contract |= {"max_tokens": max_tokens, "seed": seed}
    make, taken = _find(method, options)
    with own_code(method):
        embedder = make(**options, **{name: contract[name] for name in taken})
    if ":" in method:
        if not isinstance(embedder, Embedder):
            raise UserError(
                f"Expected embedding.method={method} to make an object with `dimensions` and `embed`, found "
                f"{type(embedder).__name__} without them."
            )
        as_whole_number(f"`dimensions` of embedding.method={method}", embedder.dimensions, 1)
    return embedder


def own_code(method: str) -> AbstractContextManager[None]:
    """Turn errors of a user's embedder into a `UserError` that names the file and line of the error."""
    # An error of a method of this package is a bug, so it keeps its traceback.
    return calling(method, _SETTING, "embed the documents") if ":" in method else nullcontext()


def learns(method: str, options: Mapping[str, Any]) -> bool:
    """Return whether the method is fitted to the corpus before it embeds."""
    return "texts" in _find(method, options)[1]


def brings_vectors(method: str) -> bool:
    """Return whether the vectors of the method are stored for one corpus and cannot be made for other texts."""
    return ":" not in method and METHODS.takes(method, "document_ids")


def runs_alone(method: str) -> bool:
    """Return whether an embedder uses all cores or accelerators, as one of a user may."""
    return ":" in method or METHODS[method] == "qwen3"


def check_embedded(vectors: Any, num_texts: int, dimensions: int, name_document: Callable[[int], str]) -> None:
    """Check that there is one finite float32 row per text; `name_document` gives the document of a row for errors."""
    shape = (num_texts, dimensions)
    if not isinstance(vectors, np.ndarray) or vectors.shape != shape or vectors.dtype != np.float32:
        description = f"{vectors.dtype} {vectors.shape}" if isinstance(vectors, np.ndarray) else type(vectors).__name__
        raise UserError(
            f"Expected the embedder to give a float32 array of the shape (documents, dimensions) = {shape} for "
            f"{num_texts} documents (the first is {name_document(0)}), found {description}; repair its `embed` or "
            "`dimensions`."
        )
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise UserError(
            f"Expected finite vectors from the embedder, found NaN or infinity for {name_document(row)}; "
            "repair its `embed`."
        )


def _find(method: str, options: Mapping[str, Any]) -> tuple[Callable[..., Any], list[str]]:
    """Return the function of the method and the parameters of the contract that it has; check the options."""
    if ":" not in method:
        METHODS.check_settings(method, options)
        return METHODS.find(method), [*filter(METHODS.contract.__contains__, METHODS.parameters(method))]
    function = find_function(method, _SETTING)
    try:
        signature = inspect.signature(function)
        taken = [parameter for parameter in signature.parameters if parameter in METHODS.contract]
        signature.bind(**options, **dict.fromkeys(taken))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"Expected embedding.method={method} to be a function that makes an embedder and takes the "
            f"options {', '.join(options) or '(none)'}, found: {error}."
        ) from None
    return function, taken
