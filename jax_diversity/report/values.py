"""From the stages' arrays to the report's values: plain JSON, small whatever the corpus's size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jax_diversity.report import words
from jax_diversity.report.aggregate import (
    as_json,
    clean_text,
    count_histogram,
    envelope,
    group_table,
    length_histogram,
    rest_row,
    round_value,
)
from jax_diversity.report.inputs import (
    ClusterInputs,
    CorpusInputs,
    DocumentGroups,
    OrderingInputs,
    PackingInputs,
    ReportInputs,
    TrainingInputs,
)

FORMAT_VERSION = 1
MAX_GROUPS = 30
MAX_CLUSTERS = 60
MAX_TERMS = 12
MAX_TITLES = 5
MAX_CIRCLES = 1000
MAX_LABELS = 7
BASELINE_METHOD = "uniform_shuffle"


def report_values(inputs: ReportInputs) -> dict[str, Any]:
    """Everything that the page shows, aggregated: plain JSON values without NaN, the same for the same inputs.

    Curves keep the least and the largest value of every bucket of positions; numbers have six significant digits;
    all text is one clean line each. Comparisons are made before rounding.

    Returns:
        `title`, `summary` (three sentences, cards), `verdicts`, `corpus`, `clusters`, `packing`, `ordering`,
        `training`, `settings`, `fingerprints`.

    Raises:
        ValueError: `main_ordering` names no ordering, or two orderings share a name.
    """
    names = [order.name for order in inputs.orderings]
    if len(set(names)) != len(names):
        raise ValueError(f"Expected orderings with different names, found {names}.")
    baseline = next((order for order in inputs.orderings if order.method == BASELINE_METHOD), None)
    verdicts = _verdicts(inputs.orderings, baseline)
    values: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "title": clean_text(inputs.title) or "Untitled dataset",
        "corpus": _corpus(inputs.corpus),
        "clusters": _clusters(inputs.clusters),
        "packing": _packing(inputs.packing),
        "ordering": _ordering(inputs, baseline),
        "verdicts": verdicts,
        "training": [_training(run) for run in inputs.training],
        "settings": as_json(inputs.settings),
        "fingerprints": as_json(inputs.fingerprints),
    }
    main = _main_verdicts(inputs, verdicts)
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
        "num_duplicates": None if corpus.num_duplicates is None else int(corpus.num_duplicates),
        "skipped": [
            {"reason": clean_text(reason), "records": int(count)}
            for reason, count in corpus.skipped.items()
            if count
        ],
        "length_summary": dict(zip(names, quantiles, strict=True)),
        "lengths": length_histogram(lengths),
        "sources": table(corpus.sources),
        "languages": table(corpus.languages),
    }


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
        "clusters_per_sequence": _rounded(packing.clusters_per_sequence),
        "largest_cluster_share": _rounded(packing.largest_cluster_share),
        "mean_segments": round_value(segments.mean()) if len(segments) else None,
        "segments_per_sequence": count_histogram(segments),
    }


def _ordering(inputs: ReportInputs, baseline: OrderingInputs | None) -> dict[str, Any]:
    families = list(dict.fromkeys(family for order in inputs.orderings for family in order.prefix_l2))
    sizes = {size for order in inputs.orderings for tv in order.window_tv.values() for size in tv}
    return {
        "baseline": None if baseline is None else clean_text(baseline.name),
        "families": [clean_text(family) for family in families],
        "window_sizes": sorted(int(size) for size in sizes),
        "references": [
            {
                "family": clean_text(family),
                "window_size": int(size),
                "floor": _lookup(inputs.orderings, family, size),
                "ideal_token_tv": _rounded(inputs.ideal_token_tv.get(family, {}).get(size)),
            }
            for family in families
            for size in sorted(sizes)
        ],
        "orders": [_order(order, order.method == BASELINE_METHOD) for order in inputs.orderings],
    }


def _lookup(orderings: Sequence[OrderingInputs], family: str, size: int) -> float | int | None:
    # The floor belongs to the sequences, not to an ordering: the first ordering that knows it speaks for all.
    floors = (order.window_tv_floor.get(family, {}).get(size) for order in orderings)
    return _rounded(next((floor for floor in floors if floor is not None), None))


def _rounded(value: float | int | None) -> float | int | None:
    return None if value is None else round_value(value)


def _order(order: OrderingInputs, is_baseline: bool) -> dict[str, Any]:
    prefix = [
        {"family": clean_text(family), "max": _rounded(_largest(curve)), "curve": envelope(curve)}
        for family, curve in order.prefix_l2.items()
    ]
    windows = [
        {
            "family": clean_text(family),
            "window_size": int(size),
            "num_windows": len(tv),
            "mean": round_value(tv.mean()),
            "best": round_value(tv.min()),
            "worst": round_value(tv.max()),
            "worst_position": int(np.argmax(tv)) * int(size),
            "window_max": _rounded(order.window_max.get(family, {}).get(size)),
            "curve": envelope(tv, (np.arange(len(tv)) + 0.5) * size),
        }
        for family, by_size in order.window_tv.items()
        for size, tv in sorted(by_size.items())
        if len(tv)
    ]
    drift = order.norm_drift
    return {
        "name": clean_text(order.name),
        "method": clean_text(order.method),
        "is_baseline": is_baseline,
        "info": as_json(order.info),
        "prefix": prefix,
        "windows": windows,
        "norm_drift": {"max": _rounded(_largest(np.abs(drift))), "curve": envelope(drift)},
    }


def _largest(values: np.ndarray) -> float | None:
    return float(values.max()) if len(values) else None


def _verdicts(orderings: Sequence[OrderingInputs], baseline: OrderingInputs | None) -> list[dict[str, Any]]:
    """Every ordering that is no shuffle against the baseline: its worst window and the baseline's best."""
    if baseline is None:
        return []
    verdicts = []
    for order in orderings:
        if order.method == BASELINE_METHOD:
            continue
        for family, by_size in order.window_tv.items():
            for size, tv in sorted(by_size.items()):
                reference = baseline.window_tv.get(family, {}).get(size)
                if reference is None or min(len(tv), len(reference)) < 2:
                    continue
                verdicts.append(_verdict(order, baseline, family, size))
    return verdicts


def _verdict(order: OrderingInputs, baseline: OrderingInputs, family: str, size: int) -> dict[str, Any]:
    tv, reference = order.window_tv[family][size], baseline.window_tv[family][size]
    mean, reference_mean = float(tv.mean()), float(reference.mean())
    floor = order.window_tv_floor.get(family, {}).get(size)
    gap = None if floor is None else reference_mean - floor
    # A gap of rounding errors would make any share of it.
    has_gap = gap is not None and gap > 1e-9
    verdict: dict[str, Any] = {
        "ordering": clean_text(order.name),
        "baseline": clean_text(baseline.name),
        "family": clean_text(family),
        "window_size": int(size),
        "num_windows": len(tv),
        "holds": bool(tv.max() < reference.min()),
        "worst": float(tv.max()),
        "baseline_best": float(reference.min()),
        "mean": mean,
        "baseline_mean": reference_mean,
        "gap_closed": (reference_mean - mean) / gap if has_gap and gap else None,
    }
    sentence = words.verdict_sentence(verdict)
    rounded = {key: round_value(value) if isinstance(value, float) else value for key, value in verdict.items()}
    return {**rounded, "sentence": sentence}


def _main_verdicts(inputs: ReportInputs, verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The verdicts that the summary is about: one ordering, one window size, every family."""
    names = [order.name for order in inputs.orderings]
    if inputs.main_ordering is not None and inputs.main_ordering not in names:
        raise ValueError(f"Expected main_ordering to be one of {names}, found {inputs.main_ordering!r}.")
    name = inputs.main_ordering
    if name is None or clean_text(name) not in {verdict["ordering"] for verdict in verdicts}:
        name = verdicts[0]["ordering"] if verdicts else ""
    own = [verdict for verdict in verdicts if verdict["ordering"] == clean_text(name)]
    sizes = {verdict["window_size"] for verdict in own}
    if not sizes:
        return []
    size = inputs.main_window
    if size not in sizes:
        size = min(sizes, key=lambda size: (abs(math.log(size / 256)), size))
    return [verdict for verdict in own if verdict["window_size"] == size]


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


def _training(run: TrainingInputs) -> dict[str, Any]:
    values: dict[str, Any] = {"ordering": clean_text(run.ordering), "num_nonfinite": 0}
    values["num_steps"] = int(max((row["step"] for row in run.steps), default=0))
    for name in ("loss", "validation_loss"):
        rows = [(row["step"], row[name]) for row in run.steps if row.get(name) is not None]
        steps, losses = np.array([row[0] for row in rows], float), np.array([row[1] for row in rows], float)
        finite = losses[np.isfinite(losses)]
        values["num_nonfinite"] += len(losses) - len(finite)
        values[name] = {
            "first": round_value(finite[0]) if len(finite) else None,
            "last": round_value(finite[-1]) if len(finite) else None,
            "best": round_value(finite.min()) if len(finite) else None,
            "curve": envelope(losses, steps),
        }
    return {**values, "sentence": words.training_sentence(values)}
