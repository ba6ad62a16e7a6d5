"""Compute the values of the corpus, its clusters and its packing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.foundation.figures.plain import (
    clean_text,
    count_histogram,
    largest_groups,
    length_histogram,
    round_value,
)
from jax_diversity.ordering.measures.curves import envelope
from jax_diversity.report.words import purity_sentence
from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.report import ClusterMix, cluster_mix

if TYPE_CHECKING:
    import pyarrow as pa

DOCUMENT_COLUMNS = ("num_tokens", "source", "language", "duplicate_group")
"""The columns to read of every document."""
MAX_GROUPS, MAX_CLUSTERS, MAX_TERMS, MAX_TITLES = 30, 60, 12, 5
MAX_CIRCLES, MAX_LABELS = 1000, 7  # of the map of clusters
_SKIPPED = {
    "num_empty_documents": "empty",
    "num_broken_records": "broken",
    "num_without_text": "without text",
    "num_text_not_string": "text is not a string",
    "num_invalid_utf8": "invalid UTF-8",
    "num_undecodable": "unknown encoding",
    "num_raised": "unreadable",
    "num_took_too_long": "too slow",
}
"""The name under which `prepare` counts a kind of left-out records -> the reason in words."""
_PACKED = ("sequence_length", "num_sequences", "num_validation_sequences", "num_tokens_kept", "num_tokens_dropped")
_PACKED += ("num_documents_cut", "num_padding_tokens", "num_inserted_ends", "num_tokens_repeated")

_WEIGHED = ("num_appearances", "num_documents_repeated", "num_documents_left_out")
"""The counts of `pack` for documents with weights."""
_CHATS = ("num_sequences_without_targets", "num_chats", "num_chats_whole", "num_chats_cut", "num_chats_dropped")
_CHATS += ("num_answer_tokens", "num_answer_tokens_apart", "num_answer_tokens_kept", "num_answer_tokens_left_out")
_CHATS += ("num_answers_left_out", "enough_sequence_length", "num_left_out_then")


def corpus_values(documents: pa.Table, prepared: Mapping[str, Any], num_duplicates: int) -> dict[str, Any]:
    """The corpus, from the columns `DOCUMENT_COLUMNS` of all documents and the counts of the stage `prepare`."""
    lengths = documents["num_tokens"].to_numpy()
    # Groups are numbered from 0 without gaps, so that `bincount` gives their sizes.
    copies = np.bincount(documents["duplicate_group"].to_numpy())
    names = ("shortest", "median", "nine_tenths", "longest")
    quantiles = np.quantile(lengths, [0, 0.5, 0.9, 1], method="higher").tolist() if len(lengths) else [None] * 4
    return {
        "num_documents": len(lengths),
        "text_bytes": prepared["text_bytes"],
        "num_tokens": int(lengths.sum()),
        "num_empty": int((lengths == 0).sum()),
        "num_duplicates": num_duplicates,
        "num_duplicate_groups": int((copies > 1).sum()),
        "largest_duplicate_group": int(copies.max(initial=0)),
        "skipped": [{"reason": _SKIPPED[name], "records": prepared[name]} for name in _SKIPPED if prepared[name]],
        "length_summary": dict(zip(names, quantiles, strict=True)),
        "lengths": length_histogram(lengths),
        "sources": _group_table(documents["source"], lengths),
        "languages": _group_table(documents["language"], lengths),
    }


def _group_table(column: pa.ChunkedArray, lengths: Int64[np.ndarray, " document"]) -> dict[str, Any] | None:
    """The largest groups of a column of names; None if no document has a name."""
    if column.null_count == len(column):
        return None
    # Arrow encodes the names, because a hundred million Python objects would need too much memory.
    coded = column.fill_null("unknown").combine_chunks().dictionary_encode()
    codes, names = coded.indices.to_numpy(), coded.dictionary.to_pylist()
    tokens = np.bincount(codes, weights=lengths, minlength=len(names)).astype(np.int64)
    groups, lines, rest = largest_groups(np.bincount(codes, minlength=len(names)), tokens, MAX_GROUPS)
    rows = [{"name": clean_text(names[group], 120), **line} for group, line in zip(groups, lines, strict=False)]
    return {"rows": rows, "rest": rest, "num_groups": len(groups)}


def cluster_values(
    clusters: Sequence[Mapping[str, Any]],
    tokens: Int64[np.ndarray, " cluster"],
    counts: Mapping[str, Any],
    embedding: str,
) -> dict[str, Any]:
    """The topic clusters, from the dataset's list of clusters and the counts of the stage `cluster`."""
    documents = np.array([cluster["num_documents"] for cluster in clusters], np.int64)
    order, lines, rest = largest_groups(documents, tokens, MAX_CLUSTERS)
    rows = [
        {
            "cluster": index,
            "terms": [shown for term in clusters[index]["top_terms"][:MAX_TERMS] if (shown := clean_text(term, 40))],
            "titles": [shown for title in clusters[index]["titles"][:MAX_TITLES] if (shown := clean_text(title, 120))],
            **line,
        }
        for index, line in zip(order, lines, strict=False)
    ]
    shares = tokens[order] / max(int(tokens.sum()), 1)
    return {
        "num_clusters": len(tokens),
        "num_empty": len(tokens) - len(order),
        "rows": rows,
        "rest": rest,
        "share_by_rank": envelope(shares),
        "map": _cluster_map([clusters[index] for index in order], tokens[order], shares),
        "purity": purity_sentence(counts, embedding),
    }


def _cluster_map(clusters: Sequence[Mapping[str, Any]], tokens: np.ndarray, shares: np.ndarray) -> dict[str, Any]:
    """The circles of the map in drawing order, the largest first; rare labels are combined."""
    shown = [index for index, cluster in enumerate(clusters) if cluster["position"]][:MAX_CIRCLES]
    labels = [clean_text(cluster["label"] or "", 40) for cluster in clusters]
    # Readers cannot distinguish more colours than this. So only the labels with the most tokens are kept.
    tokens_of: dict[str, int] = {}
    for index in shown:
        tokens_of[labels[index]] = tokens_of.get(labels[index], 0) + int(tokens[index])
    tokens_of.pop("", None)
    commonest = sorted(tokens_of, key=lambda label: (-tokens_of[label], label))[:MAX_LABELS]
    rows = [
        {
            "x": round_value(clusters[index]["position"][0], 4),
            "y": round_value(clusters[index]["position"][1], 4),
            "name": clean_text(clusters[index]["name"], 60),
            "share": round_value(shares[index]),
            "documents": clusters[index]["num_documents"],
            "label": commonest.index(labels[index]) if labels[index] in commonest else -1,
        }
        for index in shown
    ]
    return {"labels": commonest, "rows": rows}


def packing_values(
    counts: Mapping[str, Any], method: str, segments: Iterable[Segments], clusters: Int32[np.ndarray, " document"]
) -> dict[str, Any]:
    """The tokens that packing kept, and the documents and clusters in a training sequence.

    `segments` are the packing of consecutive sequences.
    """
    numbers, sums, num_held = [np.zeros(0, np.int64)], np.zeros(2), 0
    for block in segments:
        numbers.append(np.bincount(block.sequence_index, minlength=block.num_sequences))
        if (block_mix := cluster_mix(block, clusters)) is not None:
            num_present = int((numbers[-1] > 0).sum())
            sums, num_held = sums + np.array(block_mix) * num_present, num_held + num_present
    per_sequence = np.concatenate(numbers)
    mix = ClusterMix(*(sums / num_held).tolist()) if num_held else None
    return {
        "method": method,
        **{name: counts[name] for name in _PACKED},
        **{name: counts[name] for name in (*_WEIGHED, *_CHATS) if name in counts},
        "clusters_per_sequence": round_value(mix.clusters_per_sequence) if mix else None,
        "largest_cluster_share": round_value(mix.largest_share) if mix else None,
        "mean_segments": round_value(per_sequence.mean()) if len(per_sequence) else None,
        "segments_per_sequence": count_histogram(per_sequence),
    }
