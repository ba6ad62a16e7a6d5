"""What an embedding is: the protocol that any embedder meets, the methods by name, the check of what comes back.

An embedder of your own is a class (or function) that takes the settings and gives an object with `dimensions` and
`embed`; `embedding.method=my_module:Lengths` chooses it:

    class Lengths:
        dimensions = 2

        def __init__(self, config: EmbeddingConfig) -> None: ...

        def embed(self, texts: Sequence[str]) -> np.ndarray:
            return np.array([(len(text), text.count(" ")) for text in texts], np.float32).reshape(-1, 2)

One that learns from the corpus first has the class methods `fit(texts, config)` and `load(path)`, which give the
embedder to use, and `save(path)`. What its code raises, at any step, becomes a sentence, see `own_code`.
"""

from __future__ import annotations

import importlib
import operator
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from jax_diversity.embedding.own_code import own_code
from jax_diversity.embedding.settings import EmbeddingConfig
from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError

METHODS = {
    "tfidf_svd": "jax_diversity.embedding.tfidf_svd:TfidfSvd",
    "hashing": "jax_diversity.embedding.hashing:HashingEmbedder",
    "qwen3": "jax_diversity.embedding.base:load_qwen3",
}
"""Name -> `module:name` of what makes the embedder; imported when it is asked for."""
PRECOMPUTED = "precomputed"
"""The method that reads vectors instead of texts, see `jax_diversity.embedding.precomputed`."""
_LEARNING = ("fit", "load", "save")


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors.

    The same texts must give the same bits, and a text's vector should not depend on the texts beside it: a build
    that was cut off goes on with the next file of documents, and has to end like one that was not.
    """

    @property
    def dimensions(self) -> int:
        """Width of the vectors."""
        ...

    def embed(self, texts: Sequence[str]) -> Float32[np.ndarray, "document feature"]:
        """A vector a text, of any length; zeros where nothing is known of a text, never NaN or infinity.

        Args:
            texts: documents' beginnings.
        """
        ...


class Method(Protocol):
    """What `embedding.method` names: makes the embedder of the settings."""

    def __call__(self, config: EmbeddingConfig, /) -> Embedder:
        """The embedder; not called where there is a `fit`."""
        ...


def make_embedder(
    config: EmbeddingConfig, draw_texts: Callable[[], Sequence[str]] | None = None, stored: Path | None = None
) -> Embedder:
    """The embedder that the settings name.

    One that learns is loaded from `stored` where it is there already; otherwise it is fitted and stored there.

    Args:
        config: method, its settings.
        draw_texts: gives the texts that an embedder learns from; called only if they are needed.
        stored: the file that keeps what was learnt; None keeps nothing.

    Raises:
        UserError: a method that is unknown, cannot be imported or makes no embedder; an embedder of your own that
            raises anything, or saves nothing.

    Example:
        >>> make_embedder(EmbeddingConfig(method="hashing", dimensions=64)).embed(["wind and sail"]).shape
        (1, 64)
    """
    method = _find_method(config.method)
    if not hasattr(method, "fit"):
        with own_code(config.method, "construction"):
            embedder = method(config)
        return _checked(embedder, config.method)
    lacking = [name for name in _LEARNING if not hasattr(method, name)]
    if lacking:
        raise UserError(
            f"Expected embedding.method={config.method}, which learns from the corpus, to have "
            f"{', '.join(_LEARNING)}, found no {', '.join(lacking)}."
        )
    if stored is not None and stored.exists():
        with own_code(config.method, "load"):
            embedder = method.load(stored)
        return _checked(embedder, config.method)
    texts = [] if draw_texts is None else draw_texts()
    with own_code(config.method, "fit"):
        embedder = method.fit(texts, config)
    embedder = _checked(embedder, config.method)
    if stored is not None:
        _save(embedder, config.method, stored)
    return embedder


def load_qwen3(config: EmbeddingConfig) -> Embedder:
    """The embedder of the Qwen3-Embedding checkpoint in the folder `config.path`."""
    from jax_diversity.embedding.qwen3 import Qwen3Embedder

    settings: dict[str, Any] = {"max_tokens": config.max_tokens, "batch_tokens": config.batch_tokens}
    return Qwen3Embedder.load(os.path.expanduser(config.path or ""), **settings, dtype=config.dtype)


def embed_texts(
    embedder: Embedder, texts: Sequence[str], method: str, name_document: Callable[[int], str]
) -> Float32[np.ndarray, "document feature"]:
    """The texts' vectors, checked: one finite float32 row a text.

    Args:
        embedder: what `make_embedder` gave.
        texts: documents' beginnings, one or more.
        method: `embedding.method`, for messages.
        name_document: what a message calls the document of a row.

    Raises:
        UserError: the embedder is the user's own and raises something, or gives something else.
    """
    with own_code(method, "embed"):
        vectors = embedder.embed(texts)
    check_embedded(vectors, len(texts), operator.index(embedder.dimensions), name_document)
    return vectors


def check_embedded(vectors: Any, num_texts: int, dimensions: int, name_document: Callable[[int], str]) -> None:
    """Whether an embedder gave what it has to: one finite float32 row a text.

    Args:
        vectors: what came back.
        num_texts: texts that went in.
        dimensions: the width that the embedder says its vectors have.
        name_document: what a message calls the document of a row.

    Raises:
        UserError: it did not; names the document, the first of them where it is no single one's fault.
    """
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


def _find_method(method: str) -> Any:
    if ":" not in method and method not in METHODS:
        raise UserError(
            f"Expected embedding.method to be one of {', '.join([*METHODS, PRECOMPUTED])}, or `module:name` of an "
            f"embedder of your own, found {method!r}."
        )
    module, _, name = METHODS.get(method, method).partition(":")
    if module.startswith(".") or "/" in module:
        raise UserError(
            f"Expected embedding.method to name a module as `import` does, found a path, {method!r}; put the "
            "module's folder in PYTHONPATH and leave it out of the name."
        )
    with own_code(method, "import"):
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    if not callable(found):
        raise UserError(
            f"Expected embedding.method={method} to name a class or function that takes the settings, found "
            f"{type(found).__name__}."
        )
    return found


def _checked(embedder: Any, method: str) -> Embedder:
    with own_code(method, "dimensions"):  # a property of it runs here
        is_embedder = isinstance(embedder, Embedder)
        width: Any = embedder.dimensions if is_embedder else None
    if not is_embedder:
        raise UserError(
            f"Expected embedding.method={method} to make an object with `dimensions` and `embed`, found "
            f"{type(embedder).__name__}, which lacks them."
        )
    try:
        number = 0 if isinstance(width, bool) else operator.index(width)
    except TypeError:
        number = 0
    if number < 1:
        raise UserError(
            f"Expected embedding.method={method} to have `dimensions`, a whole number of 1 or more, found {width!r}."
        )
    return embedder


def _save(embedder: Any, method: str, path: Path) -> None:
    """Let the embedder write its file in a folder of its own, under the final name: `np.savez` adds endings."""
    folder = path.with_name("unfinished")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        with own_code(method, "save"):
            embedder.save(folder / path.name)
        if not (folder / path.name).is_file():
            names = [other.name + "/" * other.is_dir() for other in folder.iterdir()]
            found = ", ".join(sorted(names)) or "nothing"
            raise UserError(
                f"Expected the `save` of embedding.method={method} to write the file whose path it is given "
                f"({path.name}), found {found} written; repair it."
            )
        with atomic_path(path) as temporary:
            (folder / path.name).replace(temporary)
            shutil.rmtree(folder)  # a kill after this leaves the file alone
    finally:
        shutil.rmtree(folder, ignore_errors=True)
