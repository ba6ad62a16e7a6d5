"""From the stages' arrays to the report's values: plain JSON, small whatever the corpus's size.

What `report.json` holds and the page draws; `?` marks what may be null, `[...]` a list, `{name: ...}` an object
with such keys. FORMAT_VERSION rises when a reader of an earlier file would err. A *curve* has `position`, `mean`,
`min` and `max`, lists of one length: neighbouring values share a point. Deviations are in sequence lengths, TV,
shares and targets between 0 and 1, losses in nats a token, positions and window sizes in sequences.

    format_version, title
    summary      main_ordering?, main_window?, sentences [text with `names`], cards [{label, value, detail}]
    verdicts     [{ordering, baseline, family, window_size, num_windows, holds, worst, baseline_best, mean,
                   baseline_mean, gap_closed?, sentence}]
    corpus       num_documents, text_bytes, num_tokens, num_empty, num_duplicates?, num_duplicate_groups?,
                 largest_duplicate_group?, skipped [{reason, records}],
                 length_summary {shortest?, median?, nine_tenths?, longest?}, lengths {edges, documents, tokens},
                 sources? and languages? {rows [{name, documents, tokens, share}],
                                          rest {groups, documents, tokens, share}, num_groups}
    clusters     num_clusters, num_empty, rows [{cluster, documents, tokens, share, terms, titles}], rest,
                 share_by_rank curve, map {labels, rows [{x, y, name, share, documents, label}]}, purity?;
                 a map's label is an index into labels, -1 for none of them
    packing      the numbers of `PackingInputs`, mean_segments?, segments_per_sequence {edges, frequency}
    ordering     baseline?, families, window_sizes,
      references           [{family, window_size, floor?, ideal_token_tv?}]
      profile_references   {family: {sizes, floor, ideal, shuffle {num_seeds, offset: {sizes, mean, mean_low,
                            mean_high, worst_low, worst_high, best_low}}}}; offset is `0` or `half`
      orders               [{name, method, is_baseline, info,
                             prefix [{family, max?, curve}],
                             windows [{family, window_size, num_windows, mean, best, worst, worst_position,
                                       window_max?, curve}],
                             profile {family: {offset: {sizes, num_windows, mean, best, worst}}},
                             heat_map {family: {num_bins, bin_size, groups [{name, target}], share [[bin] group]}},
                             norm_drift {max?, curve}}]
      batches?             batch_size, orders {ordering: {family: {best [batch], worst [batch]}}}
        batch              step, position, tv, differences [{name, share, target}], rows [row], num_more_rows
        row                row, sequence_index, segments [segment], num_more_segments
        segment            document (its id), title, source, language?, cluster?, tokens
    training     [{ordering, num_steps, num_nonfinite, sentence,
                   loss and validation_loss {first?, last?, best?, curve},
                   gradient_diversity?, stable_rank?, input_wait? {first?, last?, curve}}]
    settings     nested as they were given;  fingerprints  {stage: hash}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jax_diversity.measures.curves import envelope
from jax_diversity.report import words
from jax_diversity.report.aggregate import (
    as_json,
    clean_text,
    count_histogram,
    group_table,
    length_histogram,
    rest_row,
    round_optional,
    round_value,
)
from jax_diversity.report.inputs import ClusterInputs, CorpusInputs, DocumentGroups, PackingInputs, ReportInputs
from jax_diversity.report.ordering_values import BASELINE_METHOD, ordering_values
from jax_diversity.report.training_values import training_values
from jax_diversity.report.verdict_values import main_verdicts, verdict_values

FORMAT_VERSION = 2
MAX_GROUPS = 30
MAX_CLUSTERS = 60
MAX_TERMS = 12
MAX_TITLES = 5
MAX_CIRCLES = 1000
MAX_LABELS = 7


def report_values(inputs: ReportInputs) -> dict[str, Any]:
    """Everything that the page shows, aggregated: plain JSON values without NaN, the same for the same inputs.

    Curves keep the least and the largest value of every bucket of positions; numbers have six significant digits;
    all text is one clean line each. Comparisons are made before rounding.

    Returns:
        What this module's text lists.

    Raises:
        ValueError: `main_ordering` names no ordering, or two orderings share a name.
    """
    names = [order.name for order in inputs.orderings]
    if len(set(names)) != len(names):
        raise ValueError(f"Expected orderings with different names, found {names}.")
    baseline = next((order for order in inputs.orderings if order.method == BASELINE_METHOD), None)
    verdicts = verdict_values(inputs.orderings, baseline)
    values: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "title": clean_text(inputs.title) or "Untitled dataset",
        "corpus": _corpus(inputs.corpus),
        "clusters": _clusters(inputs.clusters),
        "packing": _packing(inputs.packing),
        "ordering": ordering_values(inputs, baseline),
        "verdicts": verdicts,
        "training": [training_values(run) for run in inputs.training],
        "settings": as_json(inputs.settings),
        "fingerprints": as_json(inputs.fingerprints),
    }
    main = main_verdicts(inputs, verdicts)
    values["summary"] = {
        "main_ordering": main[0]["ordering"] if main else None,
        "main_window": main[0]["window_size"] if main else None,
        "sentences": _sentences(values, main),
        "cards": _cards(values, main),
    }
    return values


def _corpus(corpus: CorpusInputs) -> dict[str, Any]:
    lengths = corpus.document_lengths

    def table(groups: DocumentGroups | None) -> dict[str, Any] | None:
        return None if groups is None else group_table(groups.codes, groups.names, lengths, MAX_GROUPS)

    names = ("shortest", "median", "nine_tenths", "longest")
    quantiles = np.quantile(lengths, [0, 0.5, 0.9, 1], method="higher").tolist() if len(lengths) else [None] * 4
    return {
        "num_documents": len(lengths),
        "text_bytes": int(corpus.text_bytes),
        "num_tokens": int(lengths.sum()),
        "num_empty": int((lengths == 0).sum()),
        "num_duplicates": _whole(corpus.num_duplicates),
        "num_duplicate_groups": _whole(corpus.num_duplicate_groups),
        "largest_duplicate_group": _whole(corpus.largest_duplicate_group),
        "skipped": [
            {"reason": clean_text(reason), "records": int(count)} for reason, count in corpus.skipped.items() if count
        ],
        "length_summary": dict(zip(names, quantiles, strict=True)),
        "lengths": length_histogram(lengths),
        "sources": table(corpus.sources),
        "languages": table(corpus.languages),
    }


def _whole(number: int | None) -> int | None:
    return None if number is None else int(number)


def _clusters(clusters: ClusterInputs) -> dict[str, Any]:
    documents, tokens = clusters.num_documents, clusters.num_tokens
    order = np.lexsort((np.arange(len(tokens)), -documents, -tokens))
    order = order[documents[order] > 0]
    top, rest = [int(index) for index in order[:MAX_CLUSTERS]], order[MAX_CLUSTERS:]
    total = max(int(tokens.sum()), 1)
    rows = [
        {
            "cluster": index,
            "documents": int(documents[index]),
            "tokens": int(tokens[index]),
            "share": round_value(int(tokens[index]) / total),
            "terms": _clean_list(clusters.top_terms[index][:MAX_TERMS], 40),
            "titles": _clean_list(clusters.example_titles[index][:MAX_TITLES], 120),
        }
        for index in top
    ]
    return {
        "num_clusters": len(tokens),
        "num_empty": len(tokens) - len(order),
        "rows": rows,
        "rest": rest_row(rest, documents, tokens),
        "share_by_rank": envelope(tokens[order] / total),
        "map": _cluster_map(clusters, order),
        "purity": None if clusters.purity is None else words.purity_sentence(clusters.purity),
    }


def _cluster_map(clusters: ClusterInputs, order: np.ndarray) -> dict[str, Any]:
    """The circles of the map, the largest first, which is drawn first; labels beyond the commonest are one."""
    positions = clusters.positions
    if positions is None:
        return {"labels": [], "rows": []}
    shown = [int(index) for index in order if np.isfinite(positions[index]).all()][:MAX_CIRCLES]
    tokens, total = clusters.num_tokens, max(int(clusters.num_tokens.sum()), 1)
    labels_given = clusters.labels or [None] * len(tokens)
    label_of = {index: clean_text(labels_given[index] or "", 40) for index in shown}
    tokens_of: dict[str, int] = {}
    for index, label in label_of.items():
        tokens_of[label] = tokens_of.get(label, 0) + int(tokens[index])
    tokens_of.pop("", None)
    labels = sorted(tokens_of, key=lambda label: (-tokens_of[label], label))[:MAX_LABELS]
    names = clusters.names or [", ".join(terms[:3]) for terms in clusters.top_terms]
    rows = [
        {
            "x": round_value(positions[index, 0], 4),
            "y": round_value(positions[index, 1], 4),
            "name": clean_text(names[index], 60),
            "share": round_value(int(tokens[index]) / total),
            "documents": int(clusters.num_documents[index]),
            "label": labels.index(label) if label in labels else -1,
        }
        for index, label in label_of.items()
    ]
    return {"labels": labels, "rows": rows}


def _clean_list(texts: Sequence[str], max_characters: int) -> list[str]:
    cleaned = (clean_text(text, max_characters) for text in texts)
    return [text for text in cleaned if text]


def _packing(packing: PackingInputs) -> dict[str, Any]:
    segments = packing.segments_per_sequence
    return {
        "method": clean_text(packing.method),
        "sequence_length": int(packing.sequence_length),
        "num_sequences": int(packing.num_sequences),
        "num_validation_sequences": int(packing.num_validation_sequences),
        "num_tokens_kept": int(packing.num_tokens_kept),
        "num_tokens_dropped": int(packing.num_tokens_dropped),
        "num_documents_cut": int(packing.num_documents_cut),
        "num_padding_tokens": int(packing.num_padding_tokens),
        "num_inserted_ends": int(packing.num_inserted_ends),
        "num_tokens_repeated": int(packing.num_tokens_repeated),
        "clusters_per_sequence": round_optional(packing.clusters_per_sequence),
        "largest_cluster_share": round_optional(packing.largest_cluster_share),
        "mean_segments": round_value(segments.mean()) if len(segments) else None,
        "segments_per_sequence": count_histogram(segments),
    }


def _sentences(values: Mapping[str, Any], main: list[dict[str, Any]]) -> list[str]:
    sentences = [words.corpus_sentence(values)]
    if main:
        return [*sentences, words.headline(main), words.gap_sentence(main)]
    return [*sentences, words.nothing_to_compare(values)]


def _cards(values: Mapping[str, Any], main: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Key numbers: a label, the number, and what it refers to."""
    corpus, packing, clusters = values["corpus"], values["packing"], values["clusters"]
    cards = [
        (
            "Documents",
            words.compact(corpus["num_documents"]),
            f"{words.size_in_words(corpus['text_bytes'])} of text",
        ),
        ("Tokens", words.compact(corpus["num_tokens"]), f"{packing['num_tokens_kept']:,} in sequences"),
        (
            "Sequences",
            words.compact(packing["num_sequences"]),
            f"of {packing['sequence_length']:,} tokens, for training",
        ),
        ("Clusters", f"{clusters['num_clusters']:,}", "topics found in the text"),
    ]
    if main:
        first = main[0]
        where = f"by {first['family']}, windows of {first['window_size']:,}"
        if first["gap_closed"] is not None:
            cards.append(("Gap closed", words.percent(first["gap_closed"]), f"from shuffle to floor {where}"))
        worst, best = words.against(first["worst"], first["baseline_best"])
        cards.append(
            (f"Worst window of {first['ordering']}", worst, f"against {best}, the best of {first['baseline']}")
        )
    return [{"label": label, "value": value, "detail": detail} for label, value, detail in cards]
