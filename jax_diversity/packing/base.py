"""The one contract of all packing methods: documents' lengths, their order and options in, segments out."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.methods import Methods
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.packing import checks
from jax_diversity.packing.report import PackingReport, report_packing
from jax_diversity.packing.settings import PackingConfig
from jax_diversity.schema import Segments


@runtime_checkable
class Method(Protocol):
    """A pure function to segments; the same arguments give the same result.

    Besides these arguments a method may take, by keyword: `seed` where it draws; `clusters` (int32, one a document
    of the corpus) or `vectors` (float32, a row a document of the corpus) where it needs them, with a default of
    None where it can do without; `advance`, told the
    documents done, where it takes long. All other keyword parameters, each with a default, are its options. A
    method that may use a token several times has the option `num_epochs`.
    """

    def __call__(
        self,
        document_lengths: Int64[np.ndarray, " document"],
        document_order: Int64[np.ndarray, " chosen"],
        sequence_length: int,
    ) -> Segments:
        """Pack the documents of `document_order`, some or all of the corpus's."""
        ...


METHODS = Methods(
    "packing method",
    "jax_diversity.packing",
    {
        "best_fit": "best_fit",
        "concat": "concat",
        "first_fit": "first_fit",
        "megatron": "megatron",
        "nearest": "nearest",
        "pad": "pad",
        "partial_shuffle": "partial_shuffle",
        "same_cluster": "same_cluster",
        "spread": "spread",
    },
    contract=frozenset(
        {"document_lengths", "document_order", "sequence_length", "seed", "clusters", "vectors", "advance"}
    ),
)
"""Name -> module below this package."""


@dataclass(frozen=True)
class Packed:
    """Documents packed into sequences, and what that kept and lost."""

    segments: Segments
    report: PackingReport


def check_settings(config: PackingConfig) -> None:
    """Check the method and its options, by packing no documents at all: every method checks its own values.

    Raises:
        UserError: an unknown method or option, or a value that does not fit.
    """
    METHODS.check_settings(config.method, config.options)
    given: dict[str, Any] = {"clusters": [], "vectors": np.zeros((0, 1), np.float32), **config.options}
    pack([], config.sequence_length, method=config.method, seed=config.seed, **given)


def pack(
    document_lengths: Any,
    sequence_length: int,
    *,
    method: str = "concat",
    document_order: Any = None,
    seed: int = 0,
    clusters: Any = None,
    vectors: Any = None,
    advance: Advance = ignore,
    **options: Any,
) -> Packed:
    """Pack documents into sequences of one length, as an index: tokens are not touched.

    Args:
        document_lengths: tokens of every document of the corpus, each ending with its end token; whole numbers.
        sequence_length: L, tokens a sequence.
        method: a name of `METHODS`; docs/packing.md shows them all.
        document_order: indices of the documents to pack, in the order wanted; None packs all as they stand.
        seed: for the methods that draw; an integer >= 0.
        clusters: every document's topic cluster, one whole number a document of the corpus. Some methods need
            them; with any method the report then tells how many topics meet in a sequence.
        vectors: every document's embedding, a row a document of the corpus; for the methods that need them.
        advance: told the number of documents done, by the methods that take long.
        options: the method's own, such as `atom_size`; `method_options(name)` lists them.

    Raises:
        UserError: unknown method or option, a value that does not fit, clusters or vectors that the method needs
            and that are not given.

    Example:
        >>> packed = pack([3, 2, 4], 4)
        >>> packed.segments.document_index.tolist(), packed.segments.length.tolist()
        ([0, 1, 1, 2], [3, 1, 1, 3])
        >>> packed.report.num_tokens_dropped, packed.report.num_documents_cut
        (1, 1)
    """
    chosen = METHODS.find(method)
    METHODS.check_options(method, options)
    length = checks.whole_number("sequence_length", sequence_length, least=1)
    lengths = checks.checked_lengths(document_lengths)
    order = checks.checked_order(document_order, len(lengths))
    codes = checks.checked_clusters(clusters, len(lengths))
    given = {
        "seed": checks.whole_number("seed", seed, least=0),
        "clusters": codes,
        "vectors": checks.checked_vectors(vectors, len(lengths)),
        "advance": advance,
    }
    contract = {name: value for name, value in given.items() if METHODS.takes(method, name) and value is not None}
    for name, parameter in METHODS.parameters(method).items():
        if name in given.keys() - contract.keys() and parameter.default is inspect.Parameter.empty:
            raise UserError(f"Packing {method!r} needs the documents' {name}, found none; pass {name}=...")
    segments = chosen(lengths, order, length, **contract, **options)
    repeats = METHODS.takes(method, "num_epochs")
    return Packed(segments, report_packing(segments, lengths, order, codes, repeats=repeats))
