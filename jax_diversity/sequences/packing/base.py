"""The contract of all packing methods: their arguments, their names, and `pack`, which calls a method by its name.

A method is a pure function with three positional arguments. `document_lengths` has the number of tokens of every
document of the corpus, the end token included. `document_order` has the indices of the documents to pack, in order.
`sequence_length` is L, in tokens. It returns `Segments` in one or more blocks, so that a caller can store a block
before the method makes the next one. A method that needs all documents returns a list of one block. A sequence that a
block does not fill goes on in the next block; every block has the number of all sequences. All segments of a document
are in one block, unless the document appears several times. Such a document is in `document_order` several times, at
places far apart. A sequence should not contain two appearances of a document.

A method may also take these keyword parameters: `seed`, if it draws random numbers; `clusters` (int32, the cluster of
each document of the corpus) and `vectors` (float32, a row for each document of the corpus; may be a memory map);
`advance`, a function that the method calls with the number of documents done. `clusters` and `vectors` have the default
None only if the method works without them. All other keyword parameters are the method's options and have defaults. The
method first checks the values of its options, even if there are no documents, because settings are checked by a call
without documents. A method that may use a token several times has the option `num_epochs`. For validation documents the
stage `pack` sets `num_epochs` to 1, `num_samples` to None, `num_rows` to 1 and `last_sequence` to `pad`: use these
names for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64

from jax_diversity.foundation.checks import as_whole_number, check_function
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.methods import Methods
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.tables import Display, Displayed
from jax_diversity.foundation.wording import counted
from jax_diversity.schema import Segments
from jax_diversity.schema.orderings import as_integers
from jax_diversity.sequences.packing.appearances import intersperse
from jax_diversity.sequences.packing.chats import of_documents, rows_of
from jax_diversity.sequences.packing.pieces import Pieces, joined_blocks
from jax_diversity.sequences.packing.report import PackingReport, cluster_mix

_MOST_TOKENS = 2**62


METHODS = Methods(
    "packing method",
    "jax_diversity.sequences.packing",
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
"""Maps the name of each method to its module in this package."""
KEEP_WHOLE = ("best_fit", "first_fit", "pad")
"""The methods that do not cut a document of at most L tokens."""


@dataclass(frozen=True, repr=False)
class Packed(Displayed):
    """Documents packed into sequences, and a report of the kept and lost tokens."""

    segments: Segments
    report: PackingReport

    def __repr__(self) -> str:
        documents, sequences = self.report.num_documents, self.report.num_sequences
        return f"Packed({counted(documents, 'document')} in {counted(sequences, 'sequence')})"

    def _display(self) -> Display:
        numbers = [(field.name, getattr(self.report, field.name)) for field in fields(self.report)]
        rows = [
            [name.removeprefix("num_").replace("_", " "), f"{number:,}" if isinstance(number, int) else f"{number:.3f}"]
            for name, number in numbers
            if number is not None
        ]
        return Display("Documents packed into sequences", [("", [["", ""], *rows])])


def pack(
    document_lengths: Any,
    sequence_length: int,
    *,
    method: str = "concat",
    document_order: Any = None,
    appearances: Any = None,
    seed: int = 0,
    clusters: Any = None,
    vectors: Any = None,
    advance: Advance = ignore,
    **options: Any,
) -> Packed:
    """Pack documents into sequences of one length. The result is an index; tokens are not read.

    Args:
        document_lengths: the number of tokens of every document of the corpus, its end token included; whole numbers.
        sequence_length: L, tokens per sequence.
        method: a name of `METHODS`; docs/packing.md describes all of them.
        document_order: indices of the documents to pack, in order; None packs all documents in the order of the corpus.
        appearances: how often each document of the corpus appears, as whole numbers; documents with 0 are left out.
            None packs each document once. The appearances of a document are far apart in the packed order.
        seed: for methods that draw random numbers; an integer >= 0.
        clusters: the topic cluster of each document of the corpus, as whole numbers. Some methods need clusters. With
            clusters, the report of any method also contains the number of topics in a sequence.
        vectors: the embedding of each document of the corpus, one row per document, for the methods that need
            embeddings.
        advance: called by slow methods with the number of documents done.
        options: the method's own options, such as `atom_size`; `jax-diversity pack --help` lists them.

    Raises:
        UserError: unknown method or option, a wrong value, or missing clusters or vectors that the method needs.

    Example:
        >>> packed = pack([3, 2, 4], 4)
        >>> packed.segments.document_index.tolist(), packed.segments.length.tolist()
        ([0, 1, 1, 2], [3, 1, 1, 3])
        >>> packed.report.num_tokens_dropped, packed.report.num_documents_cut
        (1, 1)
    """
    blocks = pack_in_blocks(
        document_lengths,
        sequence_length,
        method=method,
        document_order=document_order,
        appearances=appearances,
        seed=seed,
        clusters=clusters,
        vectors=vectors,
        advance=advance,
        **options,
    )
    # We keep no list of the blocks, so that their segments are freed while they are joined.
    segments = joined_blocks((last := block).segments for block in blocks)
    report = last.report  # of all segments
    if clusters is not None and (mix := cluster_mix(segments, np.asarray(clusters, np.int32))) is not None:
        clusters_per_sequence, share = mix
        report = replace(report, clusters_per_sequence=clusters_per_sequence, largest_cluster_share=share)
    return Packed(segments, report)


def pack_in_blocks(
    document_lengths: Any,
    sequence_length: int,
    *,
    method: str,
    document_order: Any = None,
    appearances: Any = None,
    seed: int = 0,
    clusters: Any = None,
    vectors: Any = None,
    pieces: Pieces | None = None,
    chosen_sequences: Callable[[Segments], Bool[np.ndarray, " sequence"]] | None = None,
    advance: Advance = ignore,
    **options: Any,
) -> Iterator[Packed]:
    """Check the arguments of `pack`, and yield the packing in the blocks of the method; see the contract above.

    Each block has the report of all segments up to its end, so the last report is the report of the packing. The
    reports have no numbers of topics, because the segments of a sequence may be in several blocks.

    With `pieces`, sorted by document, a method of `KEEP_WHOLE` packs these pieces in place of the documents.
    `chosen_sequences` says which sequences to keep; the packing is then one block.
    """
    chosen = METHODS.find(method)
    METHODS.check_options(method, options)
    sequence_length = as_whole_number("sequence_length", sequence_length, least=1, most=2**55)
    lengths = as_integers("document_lengths", document_lengths, below=_MOST_TOKENS)
    times = None if appearances is None else _as_appearances(appearances, len(lengths))
    # We add in float64, because a sum in int64 could overflow before the comparison.
    total = float(lengths.sum(dtype=np.float64) if times is None else (lengths * np.maximum(times, 1.0)).sum())
    if total > _MOST_TOKENS:
        raise UserError(f"Expected at most 2^62 tokens in all, found about {total:.3g} in document_lengths.")
    order = _as_order(document_order, len(lengths))
    report = PackingReport.of_documents(lengths, order if times is None else order[times[order] > 0])
    check_function("advance", advance)
    arguments = {
        "seed": as_whole_number("seed", seed),
        "clusters": None if clusters is None else _as_clusters(clusters, len(lengths)),
        "vectors": None if vectors is None else _as_vectors(vectors, len(lengths)),
        "advance": advance,
    }
    parameters = METHODS.parameters(method)
    for name, value in arguments.items():
        if value is None and name in parameters and parameters[name].default is None:
            raise UserError(f"Packing {method!r} needs the documents' {name}, found none; pass {name}=...")
    taken = {name: value for name, value in arguments.items() if name in parameters and value is not None}
    if times is not None:
        order = intersperse(order, times, lengths)
    if pieces is None:
        blocks = chosen(lengths, order, sequence_length, **taken, **options)
    else:
        of_pieces = chosen(pieces.length, rows_of(pieces, order), sequence_length, **taken, **options)
        blocks = (of_documents(segments, pieces, lengths) for segments in of_pieces)
    # If a token may be in several sequences, it is counted once, so we need all segments together.
    repeats = "num_epochs" in parameters or times is not None
    if repeats or chosen_sequences is not None:
        blocks = [joined_blocks(blocks)]
    if chosen_sequences is not None:
        blocks = [whole.take(np.flatnonzero(chosen_sequences(whole))) for whole in blocks]
    for segments in blocks:
        report = report.with_block(segments, lengths, repeats=repeats)
        yield Packed(segments, report)


def check_settings(method: str, options: Mapping[str, Any], sequence_length: int, seed: int) -> None:
    """Check the method, the names and types of its options, and then their values by a call without documents."""
    METHODS.check_name(method)
    try:
        METHODS.check_settings(method, options)
        arguments: dict[str, Any] = {"clusters": [], "vectors": np.zeros((0, 1), np.float32), **options}
        pack([], sequence_length, method=method, seed=seed, **arguments)
    except UserError as error:
        raise UserError(f"packing.method={method}: {error}") from None


def _as_order(document_order: Any, num_documents: int) -> Int64[np.ndarray, " chosen"]:
    if document_order is None:
        return np.arange(num_documents)
    order = as_integers("document_order", document_order, below=num_documents)
    is_wanted = np.zeros(num_documents, np.bool_)
    is_wanted[order] = True
    if is_wanted.sum() < len(order):
        raise UserError(f"Expected every document once in document_order, found {np.bincount(order).argmax()} again.")
    return order


def _as_appearances(appearances: Any, num_documents: int) -> Int64[np.ndarray, " document"]:
    times = as_integers("appearances", appearances, below=2**31)
    if len(times) != num_documents:
        raise UserError(f"Expected the appearances of each of {num_documents} documents, found {len(times)}.")
    return times


def _as_clusters(clusters: Any, num_documents: int) -> Int32[np.ndarray, " document"]:
    codes = as_integers("clusters", clusters, below=2**31)
    if len(codes) != num_documents:
        raise UserError(f"Expected one cluster for each of {num_documents} documents, found {len(codes)}.")
    return codes.astype(np.int32)


def _as_vectors(vectors: Any, num_documents: int) -> Float32[np.ndarray, "document feature"]:
    try:
        array = np.asarray(vectors)
    except Exception as error:  # errors of other libraries' arrays when they become NumPy's
        raise UserError(f"Expected vectors to be rows of numbers: {in_one_line(error)}.") from None
    if array.ndim != 2 or array.dtype.kind not in "iuf" or len(array) != num_documents:
        raise UserError(
            f"Expected vectors to contain a row of numbers for each of {num_documents} documents, "
            f"found shape {array.shape} of {array.dtype}."
        )
    return array.astype(np.float32, copy=False)  # a memory map stays a memory map
